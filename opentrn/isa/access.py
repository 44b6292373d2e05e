"""Raw access patterns, reinterpreted dtypes, and the facts that follow from a view's steps.

Functions here take a view and return parts of a new one (offset, steps, index), or derive a fact.
"""

import operator
from math import prod
from typing import Any

from opentrn.base import BoundsError, DType, DtypeError, ShapeError, UsageError
from opentrn.isa.index import Indirect, check_runtime, hbm_only, is_view, refuse
from opentrn.isa.overlap import normal
from opentrn.isa.relayout import dense

Steps = tuple[tuple[int, int], ...]

WAYS = 10_000  # to look at buffers of one sort that are remembered
CUTS = 1024  # of one view that are kept
FEW = 4  # of them that are looked through one by one

_set = object.__setattr__


# ---------------------------------------------------------------------- other dtypes


def in_units(method: str, count: int, old: DType, new: DType) -> int:
    """`count` elements of `old` counted in elements of `new`; DtypeError when uneven."""
    total = count * old.itemsize
    if total % new.itemsize:
        refuse(
            DtypeError,
            method,
            f"{count} elements of {old} are no whole number of {new}",
            "offsets, strides and partitions must divide evenly into the new dtype",
            "align the slice to the larger dtype",
        )
    return total // new.itemsize


def reread(view: Any, new: DType) -> tuple[int, Steps]:
    """Offset and steps of `view` read as `new`, an item size other than the view's."""
    old = view.dtype
    count = view.steps[-1][1]
    total = count * old.itemsize
    if total % new.itemsize:
        refuse(
            ShapeError,
            "view",
            f"the last dimension has {count} elements of {old}, {total} bytes",
            f"they must divide into {new} ({new.itemsize} bytes each)",
            "slice the last dimension to a multiple of the ratio",
        )
    outer = tuple((in_units("view", s, old, new), n) for s, n in view.steps[:-1])
    offset = in_units("view", view.offset, old, new)
    return offset, (*outer, (1, total // new.itemsize))


# ---------------------------------------------------------------------- ap


def static_pattern(view: Any, pattern: Any, offset: int | None, new: DType) -> tuple[int, Steps]:
    """Offset and steps of `view.ap(pattern, offset, dtype=new)`, checked against the buffer.

    The public sources differ on `offset` (composed with the view's own, or replacing it); this
    follows the API reference of NKI 0.6: None keeps the view's offset, an integer adds to it.
    Raises UsageError, ShapeError (partition stride), DtypeError, BoundsError.
    """
    if view.index is not None:
        refuse(
            UsageError,
            "ap",
            "the view already has a runtime index, which the pattern would silently drop",
            "a pattern starts from a view without a runtime index",
            "call .ap() on the tensor itself and pass scalar_offset or vector_offset",
        )
    steps = _pairs(pattern)
    start = in_units("ap", view.offset, view.dtype, new)
    start += 0 if offset is None else operator.index(offset)
    buffer = view.buffer
    row = in_units("ap", buffer.free, buffer.dtype, new)
    if not buffer.on_chip:
        _within("ap", start, steps, row, "the tensor")
        return start, steps
    stride, count = steps[0]
    if count == 1:
        steps = ((row, 1), *steps[1:])
    elif stride != row:
        refuse(
            ShapeError,
            "ap",
            f"the first stride is {stride}, a partition has {row} elements of {new}",
            "on chip the first step walks partitions one by one: its stride is the free size",
            f"write [{row}, {count}] first, or repeat and skip in the free dimensions",
        )
    first, inside = divmod(start, row)
    if first < 0 or first + count > buffer.shape[0]:
        refuse(
            BoundsError,
            "ap",
            f"partitions {first} to {first + count - 1} of {buffer.shape[0]}",
            "offset and pattern stay within the tensor",
            f"use at most {max(buffer.shape[0] - first, 0)} partitions from there",
        )
    _within("ap", inside, steps[1:], row, "a partition")
    return start, steps


def _pairs(pattern: Any) -> Steps:
    """The pattern as integer pairs; UsageError when it is not a list of [stride, count]."""
    try:
        steps = tuple((operator.index(s), operator.index(n)) for s, n in pattern)
    except (TypeError, ValueError):
        steps = ()
    if not steps or any(n < 1 for _, n in steps):
        refuse(
            UsageError,
            "ap",
            f"the pattern {pattern!r}",
            "a pattern is a list of [stride, count] integers with count ≥ 1",
            "write for example [[512, 128], [1, 512]]",
        )
    return steps


def _reach(steps: Steps) -> tuple[int, int]:
    """Lowest and highest element distance the steps reach from their base."""
    ends = [stride * (count - 1) for stride, count in steps]
    return sum(e for e in ends if e < 0), sum(e for e in ends if e > 0)


def _within(method: str, start: int, steps: Steps, size: int, what: str) -> None:
    low, high = _reach(steps)
    if start + low < 0 or start + high >= size:
        refuse(
            BoundsError,
            method,
            f"elements {start + low} to {start + high} of {what} with {size}",
            f"0 ≤ element < {size}",
            "check offset, strides and counts: the last element is offset + Σ stride·(count − 1)",
        )


def runtime_offset(
    view: Any, start: int, steps: Steps, scalar: Any, vector: Any, dim: int, new: DType
) -> Indirect | None:
    """The runtime index of `view.ap(...)`: stride that of `dim` in the view `ap` was called on.

    Raises UsageError, BoundsError, and what `check_runtime` raises.
    """
    if scalar is None and vector is None:
        return None
    if scalar is not None and vector is not None:
        refuse(
            UsageError,
            "ap",
            "scalar_offset and vector_offset together",
            "a view carries at most one runtime index",
            "keep one of them",
        )
    if not 0 <= dim < len(view.steps) or (vector is not None and dim != 0):
        refuse(
            BoundsError,
            "ap",
            f"indirect_dim {dim} of a tensor with {len(view.steps)} dimensions",
            "indirect_dim is a dimension of the tensor; with vector_offset it is 0",
            "choose another indirect_dim",
        )
    stride = in_units("ap", view.steps[dim][0], view.dtype, new)
    taking = dim if dim < len(steps) else None
    if scalar is not None:
        check_runtime("ap", view, scalar)
        return Indirect("scalar", scalar, taking, stride, _legal(view, start, steps, stride, new))
    hbm_only("ap", view)
    shape = vector.shape[:2] if is_view(vector) else (0, 1)
    check_runtime("ap", view, vector, (*shape, *[1] * (2 - len(shape))))
    if prod(shape) < steps[0][1]:
        refuse(
            ShapeError,
            "ap",
            f"{prod(shape)} offsets for {steps[0][1]} rows",
            "vector_offset holds one index for each position of the first dimension",
            "make the pattern and the offsets the same size",
        )
    return Indirect("vector", vector, 0, stride, _legal(view, start, steps[1:], stride, new))


def _legal(view: Any, start: int, steps: Steps, stride: int, new: DType) -> int:
    """How many values 0, 1, … of an index keep the pattern inside the buffer (at least one)."""
    buffer = view.buffer
    row = in_units("ap", buffer.free, buffer.dtype, new)
    if stride <= 0:
        return 1
    if buffer.on_chip and stride % row == 0:
        room = buffer.shape[0] - start // row - steps[0][1]
        return room // (stride // row) + 1
    if buffer.on_chip:
        start, steps = start % row, steps[1:]
    return (row - 1 - start - _reach(steps)[1]) // stride + 1


# ---------------------------------------------------------------------- derived facts


def _pitch(view: Any) -> int:
    return view.buffer.partition_bytes // view.dtype.itemsize


def _partition_step(view: Any) -> int:
    if not view.buffer.on_chip:
        return 0
    stride, count = view.steps[0]
    return 1 if count == 1 else stride // view.pitch


def _whole(view: Any) -> bool:
    return (
        view.offset == 0
        and view.index is None
        and view.nbytes == view.buffer.nbytes
        and dense(view.steps)
    )


def _region(view: Any) -> tuple:
    """`(p0, p1, partition dims, byte_lo, byte_hi, run, byte dims)` for overlap tests.

    A runtime index becomes one more step over its legal values.
    """
    steps, index = view.steps, view.index
    size = view.dtype.itemsize
    if index is None and len(steps) == 2 and view.buffer.on_chip:
        # the common tile, one dense row in consecutive partitions, without the general machinery
        (stride, rows), (step, columns) = steps
        if step == 1 and stride == view.pitch:
            first, start = divmod(view.offset, stride)
            run = columns * size
            return first, first + rows, (), start * size, start * size + run, run, ()
    parts: Steps = ()
    free, offset = steps, view.offset
    extra: Steps = ()
    if index is not None:
        extra = ((index.stride, index.limit),)
        if index.kind != "scalar":
            free = steps[: index.dim] + steps[index.dim + 1 :]
    p0, p1 = 0, 1
    if view.buffer.on_chip:
        parts, free, offset = ((view.partition_step, steps[0][1]),), free[1:], view.free_offset
        if extra and extra[0][0] % view.pitch == 0:
            parts, extra = (*parts, (extra[0][0] // view.pitch, extra[0][1])), ()
        p0 = view.start_partition
        low, run, parts = normal(parts, 1)
        p0 += low
        p1 = p0 + run + sum(s * (n - 1) for s, n in parts)
    low, run, dims = normal(free + extra, size)
    low += offset * size
    high = low + run + sum(s * (n - 1) for s, n in dims)
    return p0, p1, parts, low, high, run, dims


def facts_of(view: Any) -> dict[Any, Any]:
    """What is known of views that look so at a buffer of this sort, by name."""
    ways = view.buffer.sort.ways
    key = view.offset, view.steps, view.dtype, view.dtype.narrow
    found = ways.get(key)
    if found is None:
        if len(ways) >= WAYS:
            ways.clear()
        found = ways[key] = {}
    return found


_STEPS: dict[Steps, Steps] = {}


def interned(steps: Steps) -> Steps:
    """Equal steps, once: long programs have many views that look alike."""
    if len(_STEPS) >= WAYS:
        _STEPS.clear()
    return _STEPS.setdefault(steps, steps)


def remember(view: Any, known: dict[Any, Any]) -> None:
    """Give a new view its `_facts`, and of those what every instruction asks for.

    The first look at a slot that is not set yet is slow.
    """
    _set(view, "_facts", known)
    form, whole = known.get("form"), known.get("whole")
    if form is not None:
        _set(view, "form", form)
    if whole is not None:
        _set(view, "whole", whole)


def shares(view: Any) -> bool:
    """Whether the facts `PLACED` are those of all views that look so at buffers of this sort.

    Tensors in HBM are cut at too many places for that to be kept.
    """
    buffer = view.buffer
    return view.index is None and buffer.address is None and buffer.sort.on_chip


def kept_cut(kept: Any, cut: tuple[int, Steps]) -> Any:
    """The kept cut of an offset and steps; None where it was not taken yet."""
    if type(kept) is dict:
        return kept.get(cut)
    offset, steps = cut
    for one in kept:
        if one.offset == offset and one.steps == steps:
            return one
    return None


def with_cut(kept: Any, cut: Any) -> Any:
    """The kept cuts of a view and one more: a few in a tuple, which is small, many by pattern."""
    if type(kept) is tuple:
        if len(kept) < FEW:
            return (*kept, cut)
        kept = {(one.offset, one.steps): one for one in kept}
    elif len(kept) >= CUTS:
        kept.clear()
    kept[cut.offset, cut.steps] = cut
    return kept


def numpy_layout(view: Any, itemsize: int, pitch_bytes: int) -> tuple:
    """See `View.numpy_layout`."""
    strides = [stride * itemsize for stride, _ in view.steps]
    buffer = view.buffer
    if buffer.on_chip:
        # As partition_step, start_partition and free_offset, which hot code need not keep.
        pitch = buffer.partition_bytes // view.dtype.itemsize
        first, free = divmod(view.offset, pitch)
        stride, count = view.steps[0]
        strides[0] = pitch_bytes if count == 1 else stride // pitch * pitch_bytes
        offset = first * pitch_bytes + free * itemsize
    else:
        offset = view.offset * itemsize
    index = view.index
    if index is not None and index.kind != "scalar":
        strides[index.dim] = 0
    return tuple([count for _, count in view.steps]), tuple(strides), offset


DERIVED = {
    "strides": lambda v: tuple([stride for stride, _ in v.steps]),
    "size": lambda v: prod(v.shape),
    "nbytes": lambda v: v.size * v.dtype.itemsize,
    # elements of the view's dtype in one partition (on chip) or in the whole buffer (HBM)
    "pitch": _pitch,
    # size of the first dimension, in HBM too; free_size is the product of the others
    "partitions": lambda v: v.steps[0][1],
    "free_size": lambda v: v.size // v.steps[0][1],
    # partitions from one row to the next: 1 unless sliced with a step; 0 in HBM
    "partition_step": _partition_step,
    "start_partition": lambda v: v.offset // v.pitch if v.buffer.on_chip else 0,
    "free_offset": lambda v: v.offset % v.pitch if v.buffer.on_chip else v.offset,
    # whether the innermost dimension is dense
    "contiguous": lambda v: v.steps[-1][0] == 1 or v.steps[-1][1] == 1,
    "whole": _whole,
    "_region": _region,
    # what is known of views that look so at a buffer of this sort, by name
    "_facts": facts_of,
    # the plain cuts of it that were taken
    "_cuts": lambda v: (),
}
# Facts of one view alone; the others are the same for all with the same `_facts`: these only of
# views without a runtime index, of buffers without an address.
OWN = ("_facts", "_cuts")
PLACED = ("whole", "form", "_region")
