"""`Tensor` of the older API: an access pattern over memory, indexed by grids, with operators.

Tiles lie on chip with their first dimension on the partitions; tensors in HBM have no partitions.
Positions are checked when a tile is used, not when it is indexed, because a mask may cut them.
Source: NKI programming model and API reference v2.26.1 (tensor indexing, nki.tensor).
"""

import sys
from math import prod
from typing import Any

import numpy as np

from opentrn.base import BoundsError, ShapeError, UsageError, declare, numerics, user_line
from opentrn.base import dtype as as_dtype
from opentrn.isa import View
from opentrn.nki.beta1 import addressing
from opentrn.nki.beta1.masks import Ranges
from opentrn.nki.beta1.operators import Arithmetic
from opentrn.nki.beta1.pending import Waiting, current
from opentrn.nki.language import memory
from opentrn.nki.tensor import Handle, MemoryRegion, NkiTensor
from opentrn.nki.unknown import Valueless

declare(
    "beta1.bounds",
    "A tile reaches outside its tensor.",
    rule="every position that an instruction touches exists; a mask takes positions out",
    fix="pass mask=(grid < size), or correct the grid",
)
declare(
    "beta1.reshape",
    "A tensor cannot take that shape without moving data.",
    rule="same number of elements; partitions stay; the dimensions concerned are dense",
    fix="load or copy into a new tile",
)


def numpy_dtype(kind: Any) -> Any:
    """What a kernel of this age sees as a dtype: NumPy's, where it has one."""
    return kind if kind == "tfloat32" else kind.storage


class Memory:
    """What the tiles of one buffer share.

    `zero`: the buffer stands for zeros where nothing has been written (nl.zeros in PSUM, which
    costs nothing when a matmul overwrites it).  `plain`: only matmuls have written; `started` are
    the parts they began.
    """

    __slots__ = ("handle", "plain", "started", "zero")

    def __init__(self, handle: Handle, zero: bool = False):
        self.handle, self.zero = handle, zero
        self.plain, self.started = True, []


class Tensor(Arithmetic, Valueless):
    """A tile in SBUF or PSUM, or (part of) a tensor in HBM."""

    __slots__ = (
        "_index",
        "_known",
        "_limits",
        "_memory",
        "_offset",
        "_steps",
        "_waiting",
        "element",
        "shape",
    )
    __array_ufunc__ = None

    def __init__(self, memory_: Memory | None, offset, steps, dtype, limits=(), index=None):
        self._memory, self._offset, self._steps = memory_, offset, steps
        self.shape, self.element = tuple(count for _, count in steps), dtype
        self._limits, self._index, self._waiting, self._known = limits, index, None, None

    @classmethod
    def of(cls, tensor: NkiTensor, zero: bool = False) -> "Tensor":
        """The tile over a tensor of `nki`."""
        view = tensor._view
        return cls(Memory(tensor._handle, zero), view.offset, view.steps, view.dtype)

    @classmethod
    def waiting(cls, shape, dtype, waiting: Waiting) -> "Tensor":
        """A tile that gets its memory when its instruction is issued."""
        made = cls(None, 0, tuple((0, n) for n in shape), dtype)
        made._waiting = waiting
        return made

    # ------------------------------------------------------------ facts

    dtype = property(lambda self: numpy_dtype(self.element), doc="Element type, as NumPy has it.")
    ndim = property(lambda self: len(self.shape), doc="Number of dimensions.")
    size = property(lambda self: prod(self.shape), doc="Number of elements.")
    itemsize = property(lambda self: self.element.itemsize, doc="Bytes of one element.")

    @property
    def memory(self) -> Memory:
        """The memory under this tile, which gets it now if it waited."""
        self.settle()
        return self._memory

    @property
    def space(self) -> str:
        """hbm, sbuf or psum, without giving a waiting tile its memory."""
        if self._waiting is not None:
            return self._waiting.space
        return self._memory.handle.region.space

    @property
    def buffer(self) -> MemoryRegion:
        """The memory region."""
        return self.memory.handle.region

    @property
    def on_chip(self) -> bool:
        """Whether the first dimension lies on partitions."""
        return self.space != "hbm"

    def assert_shape(self, shape) -> "Tensor":
        """This tensor, when it has that shape; ShapeError otherwise."""
        if tuple(shape) != self.shape:
            raise ShapeError(f"shape {list(self.shape)}, not {list(shape)}", code="beta1.reshape")
        return self

    def settle(self) -> None:
        """Give a waiting tile its memory and issue its instruction."""
        waiting = self._waiting
        if waiting is None:
            return
        self._leave()
        self._place(memory.ndarray(self.shape, self.element, MemoryRegion[waiting.space]))
        waiting.issue(self)

    def _leave(self) -> None:
        """Stop waiting."""
        self._waiting, session = None, current()
        if session.waiting is self:
            session.waiting = None

    def _place(self, tensor: NkiTensor) -> None:
        view = tensor._view
        self._memory, self._offset, self._steps = Memory(tensor._handle), view.offset, view.steps

    # ------------------------------------------------------------ use

    def view(self, dtype: Any) -> "Tensor":
        """The same bytes as another dtype."""
        tensor = self._tensor().view(as_dtype(dtype))
        return self._like(tensor._view)

    def _like(self, view: View) -> "Tensor":
        return Tensor(self.memory, view.offset, view.steps, view.dtype, (), view.index)

    def read(self, ranges: Ranges | None = None) -> NkiTensor:
        """What an instruction reads: the tile, or a part of it; BoundsError `beta1.bounds`."""
        tensor = self._tensor(ranges)
        if self._memory.zero:
            self._fill(tensor)
        return tensor

    def write(self, ranges: Ranges | None = None) -> NkiTensor:
        """What an instruction writes: the tile, or a part of it; BoundsError `beta1.bounds`."""
        tensor = self._tensor(ranges)
        self._memory.plain = False
        return tensor

    def product(self) -> tuple[NkiTensor, bool | None]:
        """(tile, accumulate) of a matmul that adds to this tile."""
        tensor = self._tensor()
        started = self._memory.started
        view = tensor._view
        if any(view == other for other in started):
            return tensor, True
        meets = any(view.overlaps(other) for other in started)
        started.append(view)
        return tensor, None if meets else False

    def begin(self) -> NkiTensor:
        """The tile as the destination of a matmul that overwrites it."""
        tensor = self._tensor()
        if tensor._view not in self._memory.started:
            self._memory.started.append(tensor._view)
        return tensor

    def _tensor(self, ranges: Ranges | None = None) -> NkiTensor:
        self.settle()
        if ranges is None and self._known is not None:
            return self._known
        offset, steps = self._offset, self._steps
        spans = ranges or tuple((0, n) for n in self.shape)
        if ranges is not None:
            spans = tuple(
                (0, 1) if n == 1 else span for span, n in zip(spans, self.shape, strict=True)
            )
            offset += sum(low * s for (low, _), (s, _) in zip(spans, steps, strict=True))
            steps = tuple((s, high - low) for (low, high), (s, _) in zip(spans, steps, strict=True))
        self._check(spans)
        index = self._index
        if index is not None and index.dim is not None:
            low, high = spans[index.dim]
            if high - low != self.shape[index.dim]:
                index = addressing.cut_index(index, low, high)
        view = View(self._memory.handle.buffer, offset, steps, self.element, index)
        made = NkiTensor(view, self._memory.handle)
        if ranges is None:
            self._known = made
        return made

    def _check(self, spans: Ranges) -> None:
        for dim, start, moves, count in self._limits:
            ends = [(s * low, s * (high - 1)) for s, (low, high) in zip(moves, spans, strict=True)]
            low = start + sum(min(pair) for pair in ends)
            high = start + sum(max(pair) for pair in ends)
            if low < 0 or high >= count:
                raise BoundsError(
                    f"positions {low} … {high} of dimension {dim}, which has {count}",
                    code="beta1.bounds",
                )

    def written(self) -> bool:
        """Whether somebody has written all of this tile (or it stands for zeros)."""
        view = self._tensor()._view
        storage = self._memory.handle.machine.storage(view.buffer)
        return self._memory.zero or storage.written.all_of(view)

    def _fill(self, tensor: NkiTensor) -> None:
        """Write the zeros that the memory stands for and that nobody has written."""
        from opentrn.nki import isa as nisa

        machine, view = self._memory.handle.machine, tensor._view
        marks = machine.storage(view.buffer).written
        if marks.all_of(view):
            return
        if marks.some_of(view) is None:
            nisa.memset(tensor, 0)
            return
        for dim in range(1, view.ndim):
            if view.shape[dim] > 1:
                middle = view.shape[dim] // 2
                for low, high in ((0, middle), (middle, view.shape[dim])):
                    self._fill(tensor.slice(dim, low, high))
                return

    # ------------------------------------------------------------ shapes

    def __getitem__(self, key: Any) -> "Tensor":
        """A part, by integers, slices, `nl.ds`, grids, None and (in HBM) one index tile."""
        self.settle()
        return addressing.part(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write a value (a tile, a number, the result of an instruction) into a part."""
        from opentrn.nki.beta1 import assign

        fresh = assign.unnamed(sys.getrefcount(value))
        assign.into(lambda: self[key], value, fresh)

    def reshape(self, *sizes: Any, shape: Any = None) -> "Tensor":
        """The same elements with other sizes; one size may be -1."""
        sizes = sizes if shape is None else shape
        if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
            sizes = sizes[0]
        sizes = [int(n) for n in sizes]
        if -1 in sizes:
            known = prod(n for n in sizes if n != -1)
            sizes[sizes.index(-1)] = self.size // max(known, 1)
        if self._waiting is not None or not self._limits:
            return self._like(self._tensor()._view.reshape(tuple(sizes)))
        self._check(tuple((0, n) for n in self.shape))
        return self._like(self._tensor()._view.reshape(tuple(sizes)))

    def squeezed(self, shape: tuple[int, ...]) -> "Tensor":
        """This tile with dimensions of size 1 added or dropped to get `shape`, repeated to fit."""
        if self.shape == shape:
            return self
        mine = [n for n in self.shape if n != 1]
        if mine == [n for n in shape if n != 1] and (not self.on_chip or self._rows_fit(shape)):
            return self._same_elements(shape)
        if prod(shape) == self.size:
            return self.reshape(shape)
        return self.broadcast_to(shape)

    def _rows_fit(self, shape: tuple[int, ...]) -> bool:
        return bool(shape) and shape[0] == self.shape[0]

    def _same_elements(self, shape: tuple[int, ...]) -> "Tensor":
        self.settle()
        self._check(tuple((0, n) for n in self.shape))
        moving = iter([step for step in self._steps if step[1] != 1])
        steps = [next(moving) if n != 1 else (1, 1) for n in shape]
        if self.on_chip and shape[0] == 1:
            steps[0] = (self._memory.handle.buffer.free, 1)
        index = self._index
        if index is not None and index.dim is not None:
            index = index.moved(addressing.moved_dim(self.shape, shape, index.dim))
        return Tensor(self._memory, self._offset, tuple(steps), self.element, (), index)

    def broadcast_to(self, shape: Any) -> "Tensor":
        """Dimensions of size 1 repeated; partitions through an instruction."""
        shape = tuple(shape)
        self.settle()
        if self.on_chip and self.shape[0] == 1 != shape[0]:
            from opentrn.nki.beta1 import elements

            return elements.repeat_partition(self, shape)
        steps = self._steps
        extra = len(shape) - len(steps)
        middle = steps[:1] if self.on_chip else ()
        steps = (*middle, *((0, 1),) * max(extra, 0), *steps[len(middle) :])
        if extra < 0 or any(n not in (1, t) for (_, n), t in zip(steps, shape, strict=True)):
            what = f"{list(self.shape)} to {list(shape)}"
            raise ShapeError(f"broadcast of {what}", code="beta1.grid")
        self._check(tuple((0, n) for n in self.shape))
        repeated = tuple((0 if n != t else s, t) for (s, n), t in zip(steps, shape, strict=True))
        return Tensor(self._memory, self._offset, repeated, self.element, (), self._index)

    def expand_dims(self, axis: int) -> "Tensor":
        """A dimension of size 1 inserted."""
        axis = axis % (self.ndim + 1)
        return self._like(self._tensor()._view.expand_dim(axis))

    def permuted(self, dims: tuple[int, ...]) -> "Tensor":
        """The dimensions in another order (the partition stays first)."""
        return self._like(self._tensor()._view.permute(dims))

    def astype(self, dtype: Any) -> "Tensor":
        """A copy as another dtype (the tile itself when it has that one)."""
        from opentrn.nki.beta1 import elements

        kind = as_dtype(dtype)
        return self if kind == self.element else elements.copied(self, kind)

    # ------------------------------------------------------------ looking at values

    def numpy(self) -> np.ndarray:
        """A copy of the values now."""
        values = self.memory.handle.machine.value(self.read()._view)
        return numerics.encode(values, self.element)

    def __repr__(self) -> str:
        if self._waiting is not None:
            return f"Tensor({list(self.shape)} {self.element}, about to be computed)"
        return f"Tensor({self.element}{list(self.shape)} in {self.space})\n{self.numpy()}"

    def __bool__(self) -> bool:
        """True for a tensor in HBM (kernels ask whether one was given); UsageError for a tile."""
        if not self.on_chip:
            return True
        raise UsageError("the truth of a tile", code="beta1.truth")

    def __iter__(self):
        if self.on_chip:
            raise UsageError("a loop over a tile", code="beta1.truth")
        return (self[n] for n in range(self.shape[0]))


declare(
    "beta1.truth",
    "A tile was used as a Python truth value or sequence.",
    rule="what a tile holds is known only on the device",
    fix="use nl.where, a mask, or a range over positions",
)


def produce(shape, dtype, run, space: str = "sbuf", **more: Any) -> Tensor:
    """The tile that `run(tile)` will write; see `pending.Waiting` for the rest."""
    session = current()
    session.flush()
    waiting = Waiting(run, space, session.line or user_line(), **more)
    session.waiting = Tensor.waiting(tuple(shape), as_dtype(dtype), waiting)
    return session.waiting


__all__ = ["Memory", "Tensor", "produce"]
