"""Tensors on chip: shapes with `nl.par_dim`, block dimensions, and addresses chosen by hand.

Dimensions before the partition dimension are blocks: a tensor (4, par_dim(128), 512) is four
tiles, each with memory of its own.  Source: NKI programming model and block dimension migration
guide v2.26.1; nki.compiler.sbuf / psum for the addresses.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from opentrn.base import BoundsError, UsageError, declare, user_line
from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki.beta1.addressing import block_index
from opentrn.nki.beta1.grids import whole
from opentrn.nki.beta1.loops import first_decision
from opentrn.nki.beta1.operators import Arithmetic
from opentrn.nki.beta1.pending import current
from opentrn.nki.beta1.tile import Tensor, numpy_dtype
from opentrn.nki.language import memory
from opentrn.nki.tensor import MemoryRegion

declare(
    "beta1.par_dim",
    "A shape names its partition dimension wrongly.",
    rule="one nl.par_dim at most; only free dimensions follow it, only blocks stand before it",
    fix="write nl.ndarray((blocks, nl.par_dim(128), free), ...)",
)
declare(
    "beta1.allocation",
    "A function that places tiles by hand gave no address.",
    rule="sbuf.alloc: f(index, partitions, bytes) -> (partition, byte); psum.alloc: "
    "-> (bank, partition, byte)",
    fix="return a tuple of two (SBUF) or three (PSUM) integers",
)


class par_dim(int):
    """The size of the partition dimension, in a shape."""


@dataclass(frozen=True)
class Allocation:
    """A buffer whose tiles lie where `place(index, partitions, bytes)` says; None: anywhere."""

    region: MemoryRegion
    place: Callable | None = None


def split(shape: Any, on_chip: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(block dimensions, tile dimensions) of a shape."""
    sizes = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
    named = [n for n, size in enumerate(sizes) if isinstance(size, par_dim)]
    if len(named) > 1:
        raise UsageError(f"{len(named)} par_dim in {list(sizes)}", code="beta1.par_dim")
    numbers = tuple(int(n) for n in sizes)
    if not on_chip:
        return (), numbers
    at = named[0] if named else 0
    tile = numbers[at:]
    return numbers[:at], tile if len(tile) > 1 else (*tile, 1)


def tensor(shape: Any, dtype: Any, buffer: Any, name: str, value: Any = None) -> Any:
    """A new tensor in any memory: a tile, a tensor in HBM, or blocks; filled with `value`."""
    place = buffer if isinstance(buffer, Allocation) else Allocation(_region(buffer))
    if place.place is not None:
        place = first_decision(user_line(), place)
    on_chip = place.region.space != "hbm"
    blocks, tile = split(shape, on_chip)
    current().flush()
    if blocks:
        return Blocks(blocks, tile, as_dtype(dtype), place, name, value)
    return _tile((), tile, dtype, place, name, value)


def _region(buffer: Any) -> MemoryRegion:
    return memory.sbuf if buffer is None else memory.region_of(buffer)


def _tile(index: tuple, shape: tuple, dtype, place: Allocation, name: str, value: Any) -> Tensor:
    address = _address(index, shape, as_dtype(dtype), place)
    made = memory.ndarray(shape, dtype, place.region, name, address)
    lazy = value == 0 and place.region is memory.psum
    if value is not None and not lazy:
        fill(made, value)
    return Tensor.of(made, zero=lazy)


def fill(made: Any, value: Any) -> None:
    """Write a number everywhere in a tensor of `nki`."""
    if made.buffer.space == "hbm":
        memory.fill(made, value)
    else:
        nisa.memset(made, value)


def _address(index: tuple, shape: tuple, dtype, place: Allocation) -> tuple[int, int] | None:
    """(partition, byte) that the allocation function chooses, None without one."""
    if place.place is None:
        return None
    found = _asked(place.place, index, shape[0], prod(shape[1:]) * dtype.itemsize)
    wanted = 2 if place.region is memory.sbuf else 3
    if not isinstance(found, tuple) or len(found) != wanted:
        raise UsageError(f"the allocation function gave {found!r}", code="beta1.allocation")
    if wanted == 2:
        return found
    bank, partition, byte = found
    return partition, bank * int(current().chip.core.psum_bank) + byte


def _asked(function: Callable, index: tuple, partitions: int, size_bytes: int) -> Any:
    """What the function answers; by the documented names where it has them (partial does)."""
    named = {"idx": index, "pdim_size": partitions, "fdim_size": size_bytes}
    if set(named) <= set(inspect.signature(function).parameters):
        return function(**named)
    return function(index, partitions, size_bytes)


class Blocks(Arithmetic):
    """A tensor with block dimensions: each position of them is a tile with its own memory."""

    def __init__(self, blocks, tile, dtype, place: Allocation, name: str, value: Any):
        self.shape, self.element, self._blocks = (*blocks, *tile), dtype, blocks
        self._tile, self._place, self._name, self._value = tile, place, name, value
        self._made: dict[tuple[int, ...], Tensor] = {}
        if place.place is not None or value is not None:
            for index in product(*map(range, blocks)):
                self.block(index)

    ndim = property(lambda self: len(self.shape), doc="Number of dimensions.")
    dtype = property(lambda self: numpy_dtype(self.element), doc="Element type, as NumPy has it.")
    itemsize = property(lambda self: self.element.itemsize, doc="Bytes of one element.")

    @property
    def buffer(self) -> MemoryRegion:
        """The memory region."""
        return self._place.region

    def block(self, index: tuple[int, ...]) -> Tensor:
        """The tile of one block; BoundsError `beta1.bounds` when there is none."""
        if any(not 0 <= i < n for i, n in zip(index, self._blocks, strict=True)):
            what = f"block {list(index)} of {list(self._blocks)}"
            raise BoundsError(what, code="beta1.bounds")
        found = self._made.get(index)
        if found is None:
            found = _tile(
                index, self._tile, self.element, self._place, self._label(index), self._value
            )
            self._made[index] = found
        return found

    def _label(self, index: tuple[int, ...]) -> str:
        return f"{self._name}_{'_'.join(map(str, index))}" if self._name else ""

    def _find(self, key: Any) -> tuple[Tensor, tuple]:
        index, rest = block_index(key, len(self._blocks))
        index = tuple(i + n if i < 0 else i for i, n in zip(index, self._blocks, strict=True))
        return self.block(index), rest

    def __getitem__(self, key: Any) -> Any:
        """A tile, or a part of it: integers for the blocks first; blocks when there are fewer."""
        keys = key if isinstance(key, tuple) else (key,)
        if len(keys) < len(self._blocks) and all(whole(k) is not None for k in keys):
            return SomeBlocks(self, tuple(int(k) for k in keys))
        made, rest = self._find(key)
        return made[rest] if rest else made

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write a value into a tile or a part of it."""
        from opentrn.nki.beta1 import assign

        fresh = assign.unnamed(sys.getrefcount(value))
        assign.into(lambda: self[key], value, fresh)

    def settle(self) -> None:
        """Refused: instructions take tiles."""
        raise UsageError(f"a tensor {list(self.shape)} as a tile", code="beta1.block")


class SomeBlocks(Blocks):
    """The blocks of a tensor that begin with given positions."""

    def __init__(self, whole_tensor: Blocks, first: tuple[int, ...]):
        self._of, self._first = whole_tensor, first
        self.shape, self.element = whole_tensor.shape[len(first) :], whole_tensor.element
        self._blocks, self._place = whole_tensor._blocks[len(first) :], whole_tensor._place

    def block(self, index: tuple[int, ...]) -> Tensor:
        """The tile of one block of the whole tensor."""
        return self._of.block((*self._first, *index))


__all__ = ["Allocation", "Blocks", "fill", "par_dim", "split", "tensor"]
