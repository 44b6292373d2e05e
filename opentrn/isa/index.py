"""What goes between the brackets of a tensor: static keys, and indices known only at run time.

A runtime index is a `View` of one integer (or one for each partition) in SBUF, or a register: any
object whose class says `is_register = True`.
"""

import operator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from opentrn.base import BoundsError, DtypeError, ShapeError, SpaceError, UsageError, declare

_CODES = {
    "buffer": ("memory cannot be described", "sizes are positive, the space is hbm, sbuf or psum"),
    "index": ("an index does not fit the tensor", "every position must exist"),
    "slice": ("a slice does not fit the dimension", "0 ≤ start < end ≤ size and step ≥ 1"),
    "select": ("a selection is not possible", "0 ≤ index < size; one runtime index for a view"),
    "vector_select": (
        "a per-partition selection is not possible",
        "dim 0 of an HBM tensor, offsets of shape (n, 1) in SBUF, one runtime index for a view",
    ),
    "permute": (
        "the dimensions cannot be reordered so",
        "every dimension once; the partition dimension stays first",
    ),
    "broadcast": (
        "the dimension cannot be repeated",
        "its size must be 1; partitions cannot be broadcast by a view",
    ),
    "expand_dim": (
        "a dimension cannot be inserted there",
        "the partition dimension stays first",
    ),
    "squeeze_dim": ("the dimension cannot be removed", "its size must be 1; not the partitions"),
    "reshape_dim": (
        "the dimension cannot be split so",
        "the product of the new sizes is the old size; partitions are not split",
    ),
    "flatten_dims": (
        "the dimensions cannot be merged",
        "they must be dense in memory and exclude the partition dimension",
    ),
    "reshape": (
        "the view cannot take that shape without a copy",
        "same number of elements, same partitions, compatible layout",
    ),
    "rearrange": ("the pattern does not fit", "both sides name the same dimensions once"),
    "ap": (
        "the access pattern is not possible",
        "it stays in the tensor; on chip its first stride is one partition",
    ),
    "view": (
        "the bits cannot be read as that dtype",
        "the last dimension is dense and divides evenly; no runtime index",
    ),
    "indirect": (
        "the tensor indirection is not possible",
        "a 2-D on-chip view and an SBUF index of the same partitions",
    ),
}
for _name, (_meaning, _rule) in _CODES.items():
    declare(f"view.{_name}", _meaning, rule=_rule)


def refuse(kind: type, method: str, what: str, rule: str, fix: str) -> None:
    """Raise `kind` with the code `view.<method>` at the user's line."""
    raise kind(f"{method}: {what}", rule=rule, fix=fix, code=f"view.{method}")


def integers(method: str, values: Any) -> tuple[int, ...]:
    """`values` as plain integers; UsageError when one is not (64 / 2 is a float)."""
    try:
        return tuple([operator.index(v) for v in values])
    except TypeError:
        refuse(
            UsageError,
            method,
            f"{values!r} are no integers",
            "sizes, positions and steps are integers",
            "divide with //, and pass a tuple of integers",
        )
        raise


def hbm_only(method: str, view: Any) -> None:
    """Refuse a gather from a view on chip (SpaceError)."""
    if view.buffer.on_chip:
        refuse(
            SpaceError,
            method,
            f"the tensor lies in {view.buffer.space}",
            "rows are gathered by DMA from a tensor in HBM",
            "keep the source in HBM (nl.shared_hbm), or use indirect() on trn3",
        )


def needs_copy(method: str, what: str) -> None:
    """Refuse a layout that no access pattern over the same memory has (ShapeError)."""
    refuse(
        ShapeError,
        method,
        f"{what}: not dense in memory",
        "a view moves no data, so the dimensions concerned must be dense in memory",
        "copy it into a fresh tile with nisa.tensor_copy or nisa.dma_copy first",
    )


@dataclass(frozen=True, slots=True)
class Indirect:
    """An index resolved at run time, added to a view's static addresses.

    The element address is `static address + stride · value`, in elements of the view's dtype.
    kind "scalar": one value from `offset` (a View of one element, or a register).
    kind "vector": one value for each position of dimension 0 (`offset` is a View of shape (n, 1),
    or (n, c): its columns one after another, for a transpose of more rows than partitions).
    kind "tensor": one value for each position of dimension 1, the same for a group of partitions;
    value i is `offset[i % G, i // G]` in each group of G partitions (16; 32 for the Tensor Engine).
    `dim` is the dimension of the view that takes part (None when select removed it).  For vector
    and tensor its own step is not used for addressing.  `limit`: legal values are 0 … limit - 1.
    """

    kind: str
    offset: Any
    dim: int | None
    stride: int
    limit: int

    def __eq__(self, other: object) -> bool:
        """Equal in every part, where a register is only itself (kernels may not compare any)."""
        if type(other) is not Indirect:
            return NotImplemented
        mine, given = self.offset, other.offset
        register = hasattr(mine, "is_register") or hasattr(given, "is_register")
        same = mine is given or not (register or mine != given)
        rest = self.kind, self.dim, self.stride, self.limit
        return same and rest == (other.kind, other.dim, other.stride, other.limit)

    def uses(self, dim: int) -> bool:
        """Whether dimension `dim` takes part, so that it cannot be cut or selected."""
        return dim <= 1 if self.kind == "tensor" else dim == self.dim

    def moved(self, dim: int | None) -> "Indirect":
        """The same index after its dimension became dimension `dim`."""
        return self if dim == self.dim else replace(self, dim=dim)


def is_view(x: Any) -> bool:
    """Whether `x` is a View (told by its parts: this module lies below isa.view)."""
    return hasattr(x, "steps") and hasattr(x, "buffer")


def is_runtime(x: Any) -> bool:
    """Whether `x` is an index whose value is known only on the device."""
    return is_view(x) or bool(getattr(x, "is_register", False))


def check_runtime(method: str, view: Any, index: Any, shape: tuple[int, ...] | None = None) -> None:
    """Check a runtime index on `view`: first one, in SBUF, 32-bit integers, one element.

    `shape` replaces the one-element rule.  Raises UsageError, SpaceError, DtypeError, ShapeError.
    """
    if view.index is not None:
        refuse(
            UsageError,
            method,
            "the view already has a runtime index",
            "a view carries at most one runtime index",
            "ask is_indirect() first, or copy the selected part into a tile",
        )
    if not is_view(index):
        if not getattr(index, "is_register", False) or shape is not None:
            refuse(
                UsageError,
                method,
                f"{index!r} is not an index",
                "an index is an integer, a slice, nl.ds, a one-element SBUF tensor or a register",
                "use one of these",
            )
        return
    if index.buffer.space != "sbuf":
        refuse(
            SpaceError,
            method,
            f"the index lies in {index.buffer.space}",
            "a runtime index is read from SBUF",
            "copy it into an SBUF tile with nisa.dma_copy or nisa.tensor_copy",
        )
    if index.dtype.kind not in ("int", "uint"):
        refuse(
            DtypeError,
            method,
            f"the index is {index.dtype}",
            "a runtime index is an integer",
            "allocate the index tile with dtype nl.int32 or nl.uint32",
        )
    want = shape or "one element"
    whole = shape or ()  # further dimensions of size 1 change nothing
    if index.shape[: len(whole)] != whole or index.size != prod(whole):
        refuse(
            ShapeError,
            method,
            f"the index has shape {list(index.shape)}",
            f"it must have {want if isinstance(want, str) else f'shape {list(want)}'}",
            "slice or reshape the index tile",
        )


def _spread(key: tuple, ndim: int) -> tuple:
    """Fill `...` and missing dimensions with full slices; None stays."""
    dots = sum(1 for k in key if k is Ellipsis)
    used = sum(1 for k in key if k is not None) - dots
    if used > ndim or dots > 1:
        refuse(
            BoundsError,
            "index",
            f"{used} indices and {dots} `...` for {ndim} dimensions",
            "at most one index for each dimension, and one `...`",
            "remove the extra index",
        )
    fill = (slice(None),) * (ndim - used)
    if not dots:
        return key + fill
    at = next(i for i, k in enumerate(key) if k is Ellipsis)
    return key[:at] + fill + key[at + 1 :]


def _slice_bounds(key: slice, dim: int, count: int) -> tuple[int, int, int]:
    """Start, number of elements and step of a static slice; BoundsError when it leaves `count`."""
    start = 0 if key.start is None else _integer(key.start)
    stop = count if key.stop is None else _integer(key.stop)
    step = 1 if key.step is None else _integer(key.step)
    start = start + count if start < 0 else start
    stop = stop + count if stop < 0 else stop
    if step < 1:
        refuse(
            UsageError,
            "index",
            f"dimension {dim} has step {step}",
            "a slice steps forward: step ≥ 1",
            "write the reversed pattern with .ap()",
        )
    if not 0 <= start < stop <= count:
        given = f"{key.start if key.start is not None else ''}:" + (
            f"{key.stop}" if key.stop is not None else ""
        )
        refuse(
            BoundsError,
            "index",
            f"[{given}] on dimension {dim} of size {count}",
            f"0 ≤ start < stop ≤ {count}; nothing is clamped, and no slice is empty",
            f"end the slice at min(stop, {count}), or skip the empty tile",
        )
    return start, -(-(stop - start) // step), step


def _integer(x: Any) -> int:
    if type(x) is int:
        return x
    if is_runtime(x):
        refuse(
            UsageError,
            "index",
            f"{x!r} as a bound of a slice",
            "the bounds of a slice are integers",
            "use nl.ds(start, size) for a start known at run time",
        )
    return integers("index", (x,))[0]


class _Keys:
    """The state of resolving one key: what the dimensions so far came to."""

    __slots__ = ("view", "offset", "steps", "index", "on_chip")

    def __init__(self, view):
        self.view, self.offset, self.steps = view, view.offset, []
        self.index, self.on_chip = view.index, view.buffer.on_chip

    def guard(self, dim: int) -> None:
        """Refuse to cut a dimension that takes part in the view's runtime index."""
        index = self.view.index
        if index is not None and index.uses(dim):
            refuse(
                UsageError,
                "index",
                f"dimension {dim} takes part in a runtime index",
                "the dimension a runtime index addresses cannot be cut or selected again",
                "cut first, then select at run time",
            )

    def cut(self, dim: int, stride: int, count: int, start: int, size: int, step: int) -> None:
        """Keep `size` positions of `dim` from `start`."""
        if size != count:
            self.guard(dim)
        self.offset += start * stride
        self.steps.append((stride * step, size))

    def window(self, dim: int, stride: int, count: int, start: Any, size: int) -> None:
        """An nl.ds slice: static start, or a start known at run time."""
        size = _integer(size)
        if not 1 <= size <= count:
            refuse(
                BoundsError,
                "index",
                f"ds of {size} on dimension {dim} of size {count}",
                f"1 ≤ size ≤ {count}",
                "use a smaller window",
            )
        if not is_runtime(start):
            first = _integer(start)
            _, size, _ = _slice_bounds(slice(first, first + size), dim, count)
            self.cut(dim, stride, count, first, size, 1)
            return
        check_runtime("index", self, start)
        self.index = Indirect("scalar", start, len(self.steps), stride, count - size + 1)
        self.steps.append((stride, size))

    def pick(self, dim: int, stride: int, count: int, key: Any) -> None:
        """One position of `dim`, static or at run time; the partition dimension stays."""
        if type(key) is not int and is_runtime(key):
            check_runtime("index", self, key)
            if dim == 0 and self.on_chip:
                refuse(
                    UsageError,
                    "index",
                    "a runtime index on the partition dimension",
                    "on chip a single runtime index may not select a partition",
                    "use nl.ds(index, 1), or move the data with nisa.dma_copy",
                )
            self.index = Indirect("scalar", key, None, stride, count)
            return
        at = _integer(key)
        at = at + count if at < 0 else at
        if not 0 <= at < count:
            refuse(
                BoundsError,
                "index",
                f"index {key} on dimension {dim} of size {count}",
                f"0 ≤ index < {count}",
                "check the loop bounds",
            )
        self.guard(dim)
        self.offset += at * stride
        if dim == 0 and self.on_chip:
            self.steps.append((stride, 1))

    def insert(self) -> None:
        """A new dimension of size 1 (None in the key)."""
        first = self.on_chip or (self.index is not None and self.index.kind != "scalar")
        if not self.steps and first:
            refuse(
                ShapeError,
                "index",
                "None before the partition dimension",
                "the partition dimension stays first",
                "put None after the first index",
            )
        self.steps.append((1, 1))


def plain_cut(offset: int, steps: tuple, key: tuple, on_chip: bool) -> tuple[int, tuple] | None:
    """Offset and steps of a key of in-range integers, step-1 slices and static ds; None otherwise.

    The common case of `resolve`, kept apart because kernels take many thousand such views.
    """
    cut = []
    for k, step in zip(key, steps, strict=True):
        if type(k) is slice:
            if k.step is not None:
                return None
            start, stop = k.start, k.stop
            if start is None and stop is None:
                cut.append(step)
                continue
            start, stop = 0 if start is None else start, step[1] if stop is None else stop
        elif type(k) is int:
            if not 0 <= k < step[1] or (on_chip and not cut):
                return None
            offset += k * step[0]
            continue
        else:
            start, size = getattr(k, "start", None), getattr(k, "size", None)
            stop = start + size if type(start) is int and type(size) is int else None
        if type(start) is not int or type(stop) is not int or not 0 <= start < stop <= step[1]:
            return None
        offset += start * step[0]
        cut.append((step[0], stop - start))
    return (offset, tuple(cut)) if len(cut) >= (2 if on_chip else 1) else None


def resolve(view: Any, key: Any) -> tuple[int, tuple[tuple[int, int], ...], Indirect | None]:
    """Offset, steps and runtime index of `view[key]`.

    Integers drop their dimension, except that on-chip views keep the partition dimension and at
    least two dimensions, and HBM views keep one.  Raises BoundsError, ShapeError, UsageError.
    """
    if type(key) is not tuple:
        key = (key,)
    given = view.steps
    if len(key) != len(given) or None in key or Ellipsis in key:
        key = _spread(key, len(given))
    state, dim, old = _Keys(view), 0, view.index
    for k in key:
        if k is None:
            state.insert()
            continue
        stride, count = given[dim]
        if old is not None and old.dim == dim:
            state.index = old.moved(len(state.steps))
        if type(k) is slice:
            state.cut(dim, stride, count, *_slice_bounds(k, dim, count))
        elif type(k) is not int and hasattr(k, "size") and hasattr(k, "start"):
            state.window(dim, stride, count, k.start, k.size)
        else:
            state.pick(dim, stride, count, k)
        dim += 1
    least = 2 if state.on_chip else 1
    if len(state.steps) < min(least, len(given)):
        state.steps.append((given[-1][0], 1))
    return state.offset, tuple(state.steps), state.index
