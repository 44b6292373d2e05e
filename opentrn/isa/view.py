"""The ways to look at memory: a `View` is an access pattern over a `Buffer`.

Offsets and strides count elements of the view's dtype in the flattened, row-major buffer.  On chip
the first step walks partitions, its stride being the elements of one partition.  Every method
returns a new view of the same memory; nothing here touches values.  Source of the rules: NKI 0.6
API reference (class NkiTensor), the access pattern guide and the language guide.
"""

from math import prod
from typing import Any

from opentrn.base import BoundsError, DType, ShapeError, SpaceError, UsageError
from opentrn.base import dtype as as_dtype
from opentrn.isa import relayout
from opentrn.isa.access import (
    DERIVED,
    OWN,
    PLACED,
    facts_of,
    interned,
    kept_cut,
    numpy_layout,
    remember,
    reread,
    runtime_offset,
    shares,
    static_pattern,
    with_cut,
)
from opentrn.isa.buffer import Buffer
from opentrn.isa.index import (
    Indirect,
    check_runtime,
    hbm_only,
    integers,
    is_runtime,
    is_view,
    needs_copy,
    plain_cut,
    refuse,
    resolve,
)
from opentrn.isa.overlap import views_meet

Steps = tuple[tuple[int, int], ...]

_set = object.__setattr__


class View:
    """A buffer seen through an offset and `(stride, count)` steps, as a dtype.

    `index` is None or an `Indirect`.  Views are frozen; equal when they address the same elements
    of the same buffer in the same way.  Derived facts (`isa.access.DERIVED`) are computed when
    first asked for and kept; views that look in one way at buffers of one sort share them, and
    keep for themselves only those that are asked for all the time: long programs have many views.
    """

    buffer: Buffer
    offset: int
    steps: Steps
    dtype: DType
    index: Indirect | None
    strides: tuple[int, ...]
    size: int
    nbytes: int
    pitch: int
    partitions: int
    free_size: int
    partition_step: int
    start_partition: int
    free_offset: int
    contiguous: bool
    whole: bool

    __slots__ = (
        "buffer", "offset", "steps", "dtype", "index", "whole", "form", "_region", "_facts",
        "_cuts",
    )  # fmt: skip

    def __init__(
        self,
        buffer: Buffer,
        offset: int,
        steps: Steps,
        dtype: DType,
        index: Indirect | None = None,
    ):
        _set(self, "buffer", buffer)
        _set(self, "offset", offset)
        _set(self, "steps", steps)
        _set(self, "dtype", dtype)
        _set(self, "index", index)

    def __getattr__(self, name: str) -> Any:
        derive = DERIVED.get(name)
        if derive is None:
            raise AttributeError(f"a View has no attribute {name!r}")
        if name in OWN or (name in PLACED and not shares(self)):
            value = derive(self)
        else:
            known = self._facts
            value = known.get(name)
            if value is None:
                value = known[name] = derive(self)
        if name in KEPT:
            _set(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a View is frozen: `{name}` cannot be set")

    def __reduce__(self):
        return View, (self.buffer, self.offset, self.steps, self.dtype, self.index)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not View:
            return NotImplemented
        return (
            self.buffer is other.buffer
            and self.offset == other.offset
            and self.steps == other.steps
            and self.dtype == other.dtype
            and self.index == other.index
        )

    def __hash__(self) -> int:
        return hash((id(self.buffer), self.offset, self.steps, self.dtype, self.index))

    def __repr__(self) -> str:
        b = self.buffer
        text = f"{b.space} {b.name or f'#{b.id}'}{list(self.shape)} {self.dtype}"
        text += f" @{self.offset} {self.pattern()}"
        return f"View({text}{f' {self.index.kind} index' if self.index else ''})"

    # ------------------------------------------------------------------ facts

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return tuple([count for _, count in self.steps])

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.steps)

    @property
    def space(self) -> str:
        """The buffer's memory space."""
        return self.buffer.space

    @property
    def on_chip(self) -> bool:
        """Whether the view lies in SBUF or PSUM and so has a partition dimension."""
        return self.buffer.on_chip

    def pattern(self) -> list[list[int]]:
        """`[[stride, count], …]` in the order of the dimensions, a fresh list."""
        return [[stride, count] for stride, count in self.steps]

    get_pattern = pattern

    def is_indirect(self) -> bool:
        """Whether part of the address is known only at run time."""
        return self.index is not None

    def is_contiguous(self) -> bool:
        """Whether the elements fill their stretch of memory in row-major order.

        On chip the partition dimension is not judged: partitions are separate memories.
        """
        return relayout.dense(self.steps[1:] if self.buffer.on_chip else self.steps)

    def box(self) -> tuple[int, int, int, int]:
        """`(p0, p1, byte_lo, byte_hi)` within the buffer: the smallest region that holds the view.

        HBM is one partition, `(0, 1, …)`.  A runtime index counts with all its legal values.
        """
        first, last, _, low, high, _, _ = self._region
        return first, last, low, high

    def overlaps(self, other: "View") -> bool:
        """Whether some byte belongs to both views; exact for static views.

        Views of different buffers meet only when both buffers have addresses in the same space.
        With a runtime index, whether some legal value of it makes them meet.
        """
        return views_meet(self, other)

    def numpy_layout(
        self, itemsize: int, pitch_bytes: int
    ) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """`(shape, byte_strides, byte_offset)` of the view in an array of `itemsize` elements.

        On chip partitions are rows of `pitch_bytes`; HBM is flat row-major.  The dimension whose
        position comes from a runtime index (vector, tensor) gets stride 0: the consumer adds
        `index.stride · value`.
        """
        if self.index is not None:
            return numpy_layout(self, itemsize, pitch_bytes)
        key = itemsize, pitch_bytes
        found = self._facts.get(key)
        if found is None:
            found = self._facts[key] = numpy_layout(self, itemsize, pitch_bytes)
        return found

    # ------------------------------------------------------------------ cutting

    def __getitem__(self, key: Any) -> "View":
        """`view[key]` as in NKI: see `at`."""
        return self.at(key)

    def at(self, key: Any) -> "View":
        """Index with integers, slices, `...`, None, ds slices (`.start`, `.size`), runtime indices.

        Integers drop their dimension; on chip the partition dimension and at least two dimensions
        stay, in HBM at least one.  Raises BoundsError (nothing is clamped), UsageError.
        """
        cut = self.plain(key) if type(key) is tuple else None
        if cut is not None:
            return cut
        offset, steps, index = resolve(self, key)
        return View(self.buffer, offset, steps, self.dtype, index)

    def plain(self, key: tuple) -> "View | None":
        """`at` where only in-range integers, plain slices and static ds take part; else None.

        Cuts are kept, because the loops of a kernel take the same ones again and again.
        """
        if self.index is not None or len(key) != len(self.steps):
            return None
        buffer, kept = self.buffer, self._cuts
        cut = plain_cut(self.offset, self.steps, key, buffer.sort.on_chip)
        if cut is None:
            return None
        made = kept_cut(kept, cut)
        if made is None:
            made = View(buffer, cut[0], interned(cut[1]), self.dtype)
            if shares(made):
                remember(made, facts_of(made))
            _set(self, "_cuts", with_cut(kept, made))
        return made

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> "View":
        """Positions start, start + step, … below `end` of one dimension."""
        stride, count = self._step("slice", dim)
        if type(start) is not int or type(end) is not int or type(step) is not int:
            start, end, step = integers("slice", (start, end, step))
        if not 0 <= start < end <= count:
            refuse(
                BoundsError,
                "slice",
                f"[{start}:{end}] on dimension {dim} of size {count}",
                f"0 ≤ start < end ≤ {count}",
                f"end the slice at min(end, {count})",
            )
        if step < 1:
            refuse(UsageError, "slice", f"step {step}", "step ≥ 1", "use .ap() to walk backwards")
        size = -(-(end - start) // step)
        if self.index is not None and size != count:
            self._free("slice", dim)
        cut = self.steps[:dim] + ((stride * step, size),) + self.steps[dim + 1 :]
        return View(self.buffer, self.offset + start * stride, cut, self.dtype, self.index)

    def select(self, dim: int, index: Any) -> "View":
        """Position `index` of dimension `dim`, which is dropped; `index` may be a runtime index.

        As with `view[index]`, the partition dimension and the least number of dimensions stay.
        """
        stride, count = self._step("select", dim)
        if is_runtime(index):
            return self._select_at_run_time(dim, index)
        (index,) = integers("select", (index,))
        if not 0 <= index < count:
            refuse(
                BoundsError,
                "select",
                f"index {index} on dimension {dim} of size {count}",
                f"0 ≤ index < {count}",
                "check the loop bounds",
            )
        self._free("select", dim)
        keep = dim == 0 and self.buffer.on_chip
        kept = ((stride, 1),) if keep or self._least() else ()
        moved = self.index
        if moved is not None and not kept and moved.dim is not None and moved.dim > dim:
            moved = moved.moved(moved.dim - 1)
        steps = self.steps[:dim] + kept + self.steps[dim + 1 :]
        return View(self.buffer, self.offset + index * stride, steps, self.dtype, moved)

    def _select_at_run_time(self, dim: int, index: Any) -> "View":
        check_runtime("select", self, index)
        stride, count = self.steps[dim]
        if dim == 0 and self.buffer.on_chip:
            refuse(
                UsageError,
                "select",
                "a runtime index on the partition dimension",
                "on chip a runtime selection needs dim ≥ 1",
                "move the row with nisa.dma_copy from an HBM tensor",
            )
        kept = ((stride, 1),) if self._least() else ()
        steps = self.steps[:dim] + kept + self.steps[dim + 1 :]
        chosen = Indirect("scalar", index, None, stride, count)
        return View(self.buffer, self.offset, steps, self.dtype, chosen)

    def vector_select(self, dim: int, vector_offset: "View") -> "View":
        """Row `vector_offset[p]` of dimension 0 for each p: a gather (or scatter) over HBM."""
        stride, count = self._step("vector_select", dim)
        if dim != 0:
            refuse(
                UsageError,
                "vector_select",
                f"dim {dim}",
                "only dimension 0 can be selected per partition",
                "permute that dimension to the front",
            )
        hbm_only("vector_select", self)
        rows = vector_offset.shape[0] if is_view(vector_offset) else 0
        check_runtime("vector_select", self, vector_offset, (rows, 1))
        chosen = Indirect("vector", vector_offset, 0, stride, count)
        steps = ((stride, rows), *self.steps[1:])
        return View(self.buffer, self.offset, steps, self.dtype, chosen)

    def indirect(self, index: "View", num_elem: int | None = None) -> "View":
        """Column `index[i % G, i // G]` for i < num_elem in each group of G partitions.

        Shape `[P, num_elem]`; the group size depends on the engine (16; 32 for the Tensor Engine).
        `num_elem` defaults to all elements of `index`.  Exists from NeuronCore-v4 (trn3) on.
        """
        if not self.buffer.on_chip or self.ndim != 2:
            refuse(
                ShapeError if self.buffer.on_chip else SpaceError,
                "indirect",
                f"a {self.ndim}-dimensional tensor in {self.space}",
                "tensor indirection reads columns of a 2-D tile on chip",
                "load the tile into SBUF, or flatten its free dimensions",
            )
        rows = (self.shape[0], index.shape[-1]) if is_view(index) else (0, 0)
        check_runtime("indirect", self, index, rows)
        count = index.size if num_elem is None else num_elem
        if not 1 <= count <= index.size:
            refuse(
                BoundsError,
                "indirect",
                f"num_elem = {count} of an index with {index.size} elements",
                f"1 ≤ num_elem ≤ {index.size}",
                "use fewer elements or a larger index tile",
            )
        stride, limit = self.steps[1]
        chosen = Indirect("tensor", index, 1, stride, limit)
        steps = (self.steps[0], (stride, count))
        return View(self.buffer, self.offset, steps, self.dtype, chosen)

    # ------------------------------------------------------------------ relayout

    def permute(self, dims: tuple[int, ...]) -> "View":
        """The dimensions in the order `dims`; on chip (and after vector_select) dims[0] is 0."""
        dims = integers("permute", dims)
        if sorted(dims) != list(range(self.ndim)):
            refuse(
                ShapeError,
                "permute",
                f"{list(dims)} on {self.ndim} dimensions",
                f"every one of 0 … {self.ndim - 1} once",
                "list every dimension once",
            )
        if dims[0] != 0:
            self._not_first("permute", 0)
        index = self.index
        if index is not None and index.dim is not None:
            index = index.moved(dims.index(index.dim))
        steps = tuple(self.steps[d] for d in dims)
        return View(self.buffer, self.offset, steps, self.dtype, index)

    def broadcast(self, dim: int, size: int) -> "View":
        """Repeat a dimension of size 1 `size` times (stride 0)."""
        _, count = self._step("broadcast", dim)
        (size,) = integers("broadcast", (size,))
        if count != 1 or size < 1:
            refuse(
                ShapeError,
                "broadcast",
                f"dimension {dim} of size {count} to {size}",
                "only a dimension of size 1 can be repeated, at least once",
                "insert one with expand_dim, or slice it to size 1",
            )
        self._not_first("broadcast", dim)
        self._free("broadcast", dim)
        steps = self.steps[:dim] + ((0, size),) + self.steps[dim + 1 :]
        return View(self.buffer, self.offset, steps, self.dtype, self.index)

    def expand_dim(self, dim: int) -> "View":
        """Insert a dimension of size 1 at position `dim`."""
        if not 0 <= dim <= self.ndim:
            self._step("expand_dim", dim)
        self._not_first("expand_dim", dim)
        after = self.steps[dim] if dim < self.ndim else (1, 1)
        steps = self.steps[:dim] + ((after[0] * after[1], 1),) + self.steps[dim:]
        return View(self.buffer, self.offset, steps, self.dtype, self._shifted(dim, 1))

    def squeeze_dim(self, dim: int) -> "View":
        """Remove a dimension of size 1."""
        _, count = self._step("squeeze_dim", dim)
        if count != 1 or self.ndim == 1:
            refuse(
                ShapeError,
                "squeeze_dim",
                f"dimension {dim} of size {count} of {self.ndim}",
                "only a dimension of size 1 can be removed, and one must stay",
                "select a position of it instead",
            )
        self._not_first("squeeze_dim", dim)
        self._free("squeeze_dim", dim)
        steps = self.steps[:dim] + self.steps[dim + 1 :]
        return View(self.buffer, self.offset, steps, self.dtype, self._shifted(dim, -1))

    def reshape_dim(self, dim: int, shape: tuple[int, ...]) -> "View":
        """Split dimension `dim` into `shape` (one size may be -1)."""
        step = self._step("reshape_dim", dim)
        shape = relayout.fill_unknown("reshape_dim", shape, step[1])
        if shape == (step[1],):
            return self
        self._not_first("reshape_dim", dim)
        self._free("reshape_dim", dim)
        steps = self.steps[:dim] + relayout.split(step, shape) + self.steps[dim + 1 :]
        index = self._shifted(dim, len(shape) - 1)
        return View(self.buffer, self.offset, steps, self.dtype, index)

    def flatten_dims(self, start_dim: int, end_dim: int) -> "View":
        """Merge the dimensions start_dim … end_dim (inclusive), dense among themselves."""
        self._step("flatten_dims", start_dim)
        self._step("flatten_dims", end_dim)
        if start_dim >= end_dim:
            if start_dim == end_dim:
                return self
            refuse(
                ShapeError,
                "flatten_dims",
                f"{start_dim} to {end_dim}",
                "start_dim ≤ end_dim",
                "swap the two",
            )
        self._not_first("flatten_dims", start_dim)
        for dim in range(start_dim, end_dim + 1):
            self._free("flatten_dims", dim)
        step = relayout.merged(self.steps[start_dim : end_dim + 1])
        if step is None:
            needs_copy("flatten_dims", f"dimensions {start_dim} to {end_dim}")
        steps = self.steps[:start_dim] + (step,) + self.steps[end_dim + 1 :]
        index = self._shifted(start_dim, start_dim - end_dim)
        return View(self.buffer, self.offset, steps, self.dtype, index)

    def reshape(self, shape: tuple[int, ...]) -> "View":
        """The same elements in the same order with other sizes; the partitions stay."""
        shape, index = integers("reshape", shape), self.index
        if any(n < 1 for n in shape) or prod(shape) != self.size:
            refuse(
                ShapeError,
                "reshape",
                f"{list(self.shape)} to {list(shape)}",
                f"the new sizes are positive and their product is {self.size}",
                "give every size explicitly",
            )
        first = self.buffer.on_chip or (index is not None and index.dim == 0)
        if first and shape[0] != self.shape[0]:
            self._not_first("reshape", 0)
        if index is not None and index.dim not in (None, 0):
            self._free("reshape", index.dim)
        if first:
            free = relayout.reshaped(self.steps[1:], shape[1:])
            steps = None if free is None else (self.steps[0], *free)
        else:
            steps = relayout.reshaped(self.steps, shape)
        if steps is None:
            needs_copy("reshape", f"{list(self.shape)} with strides {list(self.strides)}")
        return View(self.buffer, self.offset, steps, self.dtype, index)

    def rearrange(
        self, src_pattern: Any, dst_pattern: Any, fixed_sizes: dict[str, int] | None = None
    ) -> "View":
        """Split, reorder and merge by name: `(('b', ('h', 'w')), ('b', 'w', 'h'), {'h': 4})`."""
        plan = relayout.rearrangement(self.shape, src_pattern, dst_pattern, fixed_sizes)
        splits, order, merges = plan
        view = self
        for dim, sizes in splits:
            view = view.reshape_dim(dim, sizes)
        if order != tuple(range(len(order))):
            view = view.permute(order)
        for first, last in merges:
            view = view.flatten_dims(first, last)
        return view

    # ------------------------------------------------------------------ raw patterns

    def ap(
        self,
        pattern: Any,
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: Any = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> "View":
        """An explicit `[[stride, count], …]` pattern over the buffer: see `isa.access`.

        `offset` adds to this view's own offset; shape and strides of this view do not matter.
        """
        new = self.dtype if dtype is None else as_dtype(dtype)
        start, steps = static_pattern(self, pattern, offset, new)
        index = runtime_offset(self, start, steps, scalar_offset, vector_offset, indirect_dim, new)
        return View(self.buffer, start, steps, new, index)

    def view(self, dtype: Any) -> "View":
        """The same bits read as another dtype; the last size scales by the ratio of item sizes."""
        new = as_dtype(dtype)
        old_size, new_size = self.dtype.itemsize, new.itemsize
        if self.index is not None:
            refuse(
                UsageError,
                "view",
                "the view has a runtime index",
                "bits are reinterpreted before a runtime index is applied",
                "call .view(dtype) first, then select",
            )
        stride, count = self.steps[-1]
        if count != 1 and stride != 1:
            needs_copy("view", f"the last dimension has stride {stride}")
        if old_size == new_size:
            return View(self.buffer, self.offset, self.steps, new)
        offset, steps = reread(self, new)
        return View(self.buffer, offset, steps, new)

    reinterpret_cast = view

    # ------------------------------------------------------------------ refusals

    def _step(self, method: str, dim: int) -> tuple[int, int]:
        """The step of dimension `dim`, or BoundsError."""
        if not 0 <= dim < len(self.steps):
            refuse(
                BoundsError,
                method,
                f"dimension {dim} of a tensor with {len(self.steps)}",
                f"0 ≤ dim < {len(self.steps)}",
                "count dimensions from 0",
            )
        return self.steps[dim]

    def _least(self) -> bool:
        """Whether dropping a dimension would leave fewer than NKI keeps (2 on chip, 1 in HBM)."""
        return len(self.steps) <= (2 if self.buffer.on_chip else 1)

    def _shifted(self, dim: int, by: int) -> Indirect | None:
        """The runtime index after `by` dimensions were inserted at `dim` (or removed)."""
        index = self.index
        if index is None or index.dim is None or index.dim < dim:
            return index
        return index.moved(index.dim + by)

    def _free(self, method: str, dim: int) -> None:
        """Refuse to change a dimension that takes part in the runtime index."""
        if self.index is not None and self.index.uses(dim):
            refuse(
                UsageError,
                method,
                f"dimension {dim} takes part in a runtime index",
                "the dimension a runtime index addresses cannot be changed afterwards",
                "change the view first, then select at run time; ask with is_indirect()",
            )

    def _not_first(self, method: str, dim: int) -> None:
        """Refuse to touch dimension 0 where it means partitions."""
        index = self.index
        if dim != 0 or not (self.buffer.on_chip or (index and index.kind == "vector")):
            return
        what = "the partition dimension" if self.buffer.on_chip else "the gathered dimension"
        refuse(
            ShapeError,
            method,
            f"{what} (0) would move or change",
            f"{what} stays first and whole: partitions are separate memories",
            "move data across partitions with nisa.nc_transpose or nisa.dma_copy",
        )


KEPT = frozenset(View.__slots__)


def of(buffer: Buffer) -> View:
    """The view of a whole buffer."""
    sort = buffer.sort
    made = View(buffer, 0, sort.steps, buffer.dtype)
    if buffer.address is None:
        remember(made, sort.whole)
    _set(made, "_cuts", ())
    return made
