"""What goes between the brackets of a tensor of the older API, as offsets and strides."""

import operator
from dataclasses import replace
from typing import Any

import numpy as np

from opentrn.base import BoundsError, ShapeError, SpaceError, UsageError, declare
from opentrn.isa import Indirect
from opentrn.nki.beta1.grids import Grid, Mesh, Moved, broadcast, fitted, whole
from opentrn.nki.beta1.pending import current
from opentrn.nki.tensor import DynamicSlice

declare(
    "beta1.index",
    "An index does not fit the tensor.",
    rule="one integer, slice, nl.ds, grid or index tile for each dimension",
    fix="count the dimensions; use nl.arange(n)[:, None] grids for tiles",
)
declare(
    "beta1.partition",
    "The partitions of a tile are not its first dimension.",
    rule="the grid that indexes the partitions moves along the first dimension only, alone",
    fix="index the partition dimension with nl.arange(n)[:, None] and the others with [None, :]",
)
declare(
    "beta1.indirect",
    "A data-dependent index that the hardware cannot follow.",
    rule="one index tile [n, 1] of integers in SBUF, selecting rows of a tensor in HBM; on chip "
    "one integer of a tile, in one free dimension",
    fix="put the selected dimension first, load the indices into an int32 tile [n, 1]; on chip "
    "loop over the offsets: t[ix, offsets[0, n] + iy]",
)


def expanded(key: Any, ndim: int) -> list:
    """The key with `...` and missing dimensions filled up; UsageError `beta1.index`."""
    keys = list(key) if isinstance(key, tuple | Mesh) else [key]
    dots = [n for n, k in enumerate(keys) if k is Ellipsis]
    used = sum(k is not None and k is not Ellipsis for k in keys)
    if used > ndim or len(dots) > 1:
        what = f"{used} indices for a tensor of {ndim} dimensions"
        raise UsageError(what, code="beta1.index")
    at = dots[0] if dots else len(keys)
    return keys[:at] + [slice(None)] * (ndim - used) + keys[at + len(dots) :]


class Walk:
    """The dimensions of a part being built: for each result dimension, how every source moves.

    `grids` are the source dimensions that grids index, `index` the one an index tile selects
    rows of (in HBM), `moved` the one an integer of a tile moves along (on chip).
    """

    def __init__(self, tensor: Any):
        self.tensor = tensor
        self.offset = tensor._offset
        # Result dimensions of slices and None: (size, source dimension or None, move).
        self.lines: list[tuple[int, int | None, int]] = []
        self.grids: list[tuple[int, Grid]] = []
        self.index: tuple[int, Any] | None = None
        self.moved: tuple[int, Any] | None = None
        self.fixed: list[tuple[int, int]] = []
        # Where the dimensions of the grids go among the lines.
        self.at: int | None = None

    def add(self, dim: int, one: Any) -> None:
        """One index of source dimension `dim`."""
        count = self.tensor._steps[dim][1]
        if isinstance(one, slice):
            self._cut(dim, *_bounds(one, count))
        elif isinstance(one, DynamicSlice):
            self._cut(dim, whole(one.start), one.size, 1, one)
        elif isinstance(one, Grid):
            self._grid(dim, one)
        elif isinstance(one, np.ndarray | list) and np.ndim(one):
            self._grid(dim, fitted(np.asarray(one)))
        elif isinstance(one, Moved):
            self._grid(dim, one.grid)
            self._move(dim, one.tile)
        elif hasattr(one, "settle") and self.tensor.on_chip and one.size == 1:
            self._move(dim, one)
        elif hasattr(one, "settle"):
            self._indirect(dim, one)
        else:
            self._fix(dim, one, count)

    def _fix(self, dim: int, one: Any, count: int) -> None:
        number = whole(one)
        if number is None:
            raise UsageError(f"{one!r} is no index", code="beta1.index")
        self.fixed.append((dim, number + count if -count <= number < 0 else number))

    def _cut(self, dim: int, start: Any, size: int, step: int, given: Any = None) -> None:
        if start is None:
            raise UsageError(f"the start of nl.ds is {given.start!r}", code="beta1.indirect")
        if size < 1:
            raise BoundsError(f"an empty slice of dimension {dim}", code="beta1.bounds")
        self.fixed.append((dim, start))
        self.lines.append((size, dim, step))

    def _grid(self, dim: int, grid: Grid) -> None:
        self.at = len(self.lines) if self.at is None else self.at
        self.grids.append((dim, grid))

    def _indirect(self, dim: int, tile: Any) -> None:
        if self.index is not None or self.tensor.on_chip or self.tensor._index is not None:
            raise SpaceError("an index tile where none can be", code="beta1.indirect")
        self.at = len(self.lines) if self.at is None else self.at
        self.index = dim, tile

    def _move(self, dim: int, tile: Any) -> None:
        """One integer of a tile moves the part along a free dimension of a tile."""
        tensor = self.tensor
        wrong = tile.size != 1 or not tile.element.kind.endswith("int") or not tile.on_chip
        if wrong or dim == 0 or not tensor.on_chip or self.moved or tensor._index is not None:
            what = f"{tile.element}{list(tile.shape)} moves dimension {dim}"
            raise UsageError(what, code="beta1.indirect")
        self.moved = dim, tile

    # ------------------------------------------------------------ the result

    def moves(self) -> tuple[list[int], list[list[int]]]:
        """(sizes of the result, for each source dimension its move along each of them)."""
        shapes = [g.shape for _, g in self.grids]
        if self.index is not None:
            rows, *rest = self.index[1].shape
            ndim = max([len(rest) + 1, *(len(s) for s in shapes)])
            shapes.append((rows, *rest, *(1,) * (ndim - len(rest) - 1)))
        common = broadcast(shapes) if shapes else ()
        at = self.at or 0
        lines = self.lines
        sizes = [n for n, _, _ in lines[:at]] + list(common) + [n for n, _, _ in lines[at:]]
        table = [[0] * len(sizes) for _ in self.tensor._steps]
        for n, (_, dim, step) in enumerate(lines):
            if dim is not None:
                table[dim][n if n < at else n + len(common)] = step
        for dim, grid in self.grids:
            table[dim][at : at + len(common)] = grid.spread(common)
        return sizes, table

    def starts(self) -> list[int]:
        """The first position in each source dimension."""
        first = [0] * len(self.tensor._steps)
        for dim, number in self.fixed:
            first[dim] += number
        for dim, grid in self.grids:
            first[dim] += grid.offset
        return first


def _bounds(cut: slice, count: int) -> tuple[int, int, int]:
    """(start, size, step) of a slice; ends beyond the dimension are kept, a mask may cut them."""
    step = 1 if cut.step is None else whole(cut.step)
    start = 0 if cut.start is None else whole(cut.start)
    stop = count if cut.stop is None else whole(cut.stop)
    if None in (step, start, stop) or step < 1:
        raise UsageError(f"{cut!r} is no slice of integers with step ≥ 1", code="beta1.index")
    start = start + count if start < 0 else start
    stop = stop + count if stop < 0 else stop
    return start, len(range(start, stop, step)), step


_NONE = (-1, 0)


def _plain_cut(one: Any, count: int) -> tuple[int, int]:
    """(start, size) of a plain index inside the dimension, size 0 for an integer; else _NONE."""
    kind = type(one)
    if kind is slice:
        if one.step is not None:
            return _NONE
        start = 0 if one.start is None else one.start
        stop = count if one.stop is None else one.stop
    elif kind is DynamicSlice:
        if not isinstance(one.start, int):
            return _NONE
        start, stop = one.start, one.start + one.size
    elif isinstance(one, int):
        return (one, 0) if 0 <= one < count else _NONE
    else:
        return _NONE
    inside = isinstance(start, int) and isinstance(stop, int) and 0 <= start < stop <= count
    return (start, stop - start) if inside else _NONE


def _plain_part(tensor: Any, keys: tuple) -> Any:
    """The short way for integers and slices inside the tensor; None when it is not that simple."""
    steps, offset, made = tensor._steps, tensor._offset, []
    if tensor._limits or tensor._index is not None or len(keys) > len(steps):
        return None
    for (stride, count), one in zip(steps, keys, strict=False):
        cut = _plain_cut(one, count)
        if cut is _NONE:
            return None
        offset += cut[0] * stride
        if cut[1]:
            made.append((stride, cut[1]))
    made += steps[len(keys) :]
    if tensor.on_chip:
        if keys and isinstance(keys[0], int):
            return None
        made = made if len(made) > 1 else [*made, (1, 1)]
    steps = _with_pitch(tensor, tuple(made) or ((1, 1),))
    return type(tensor)(tensor._memory, offset, steps, tensor.element)


def part(tensor: Any, key: Any) -> Any:
    """The part of `tensor` under `key`; positions are checked when it is used."""
    made = _plain_part(tensor, key if type(key) is tuple else (key,))
    return made if made is not None else _any_part(tensor, key)


def _any_part(tensor: Any, key: Any) -> Any:
    keys = expanded(key, tensor.ndim)
    if tensor._limits:
        tensor._check(tuple((0, n) for n in tensor.shape))
    walk, dim = Walk(tensor), 0
    for one in keys:
        if one is None:
            walk.lines.append((1, None, 0))
            continue
        walk.add(dim, one)
        dim += 1
    sizes, table = walk.moves()
    starts = walk.starts()
    if tensor.on_chip:
        sizes, table = _partition_first(tensor, sizes, table)
    elif not sizes:
        sizes, table = [1], [[0] for _ in table]
    offset = tensor._offset
    strides = [0] * len(sizes)
    limits = []
    for n, (stride, count) in enumerate(tensor._steps):
        offset += starts[n] * stride
        for d, move in enumerate(table[n]):
            strides[d] += move * stride
        if n not in [found[0] for found in (walk.index, walk.moved) if found]:
            limits.append((n, starts[n], tuple(table[n]), count))
    steps = _with_pitch(tensor, tuple(zip(strides, sizes, strict=True)))
    if walk.moved is not None:
        index = _moving(tensor, walk, sizes, starts, table)
    else:
        index = _index(tensor, walk, sizes, strides)
    made = type(tensor)(tensor._memory, offset, steps, tensor.element, tuple(limits), index)
    return made


def _with_pitch(tensor: Any, steps: tuple) -> tuple:
    """A single partition still has the stride of one."""
    if tensor.on_chip and steps[0][1] == 1:
        return ((tensor._memory.handle.buffer.free, 1), *steps[1:])
    return steps


def _partition_first(tensor: Any, sizes: list, table: list) -> tuple[list, list]:
    """On chip the first dimension is the partition; there are at least two."""
    moving = [d for d, move in enumerate(table[0]) if move and sizes[d] > 1]
    if len(moving) > 1:
        raise ShapeError("a grid moves partitions along two dimensions", code="beta1.partition")
    first = moving[0] if moving else 0
    if any(n != 1 for n in sizes[:first]) or any(
        move[first] and sizes[first] > 1 for move in table[1:] if moving
    ):
        raise ShapeError("the partitions are not the first dimension", code="beta1.partition")
    if moving:
        sizes, table = sizes[first:], [move[first:] for move in table]
    elif not sizes or sizes[0] != 1:
        sizes, table = [1, *sizes], [[0, *move] for move in table]
    if len(sizes) == 1:
        sizes, table = [*sizes, 1], [[*move, 0] for move in table]
    return sizes, table


def _index(tensor: Any, walk: Walk, sizes: list, strides: list) -> Indirect | None:
    """The runtime index of the part; UsageError `beta1.indirect` when hardware has none such."""
    if walk.index is None:
        return tensor._index
    dim, tile = walk.index
    rows = [d for d, n in enumerate(tile.shape) if n > 1]
    if tile.size != tile.shape[0] or rows[1:] or walk.at or not tile.element.kind.endswith("int"):
        raise UsageError(
            f"an index tile {tile.element}{list(tile.shape)} for dimension {dim}",
            code="beta1.indirect",
        )
    stride, count = tensor._steps[dim]
    if strides[0] and sizes[0] > 1:
        raise UsageError("an index tile beside a grid that moves along it", code="beta1.indirect")
    # A view refers to the index by its address only, which keeps no memory alive.
    current().kept.append(tile)
    column = tile.squeezed((tile.shape[0], 1)).read()
    return Indirect("vector", column._view, 0, stride, count)


def _moving(tensor: Any, walk: Walk, sizes: list, starts: list, table: list) -> Indirect:
    """The integer that moves the part, and how far it may; UsageError `beta1.indirect`."""
    dim, tile = walk.moved
    stride, count = tensor._steps[dim]
    ends = [move * (n - 1) for move, n in zip(table[dim], sizes, strict=True)]
    first = starts[dim] + sum(min(end, 0) for end in ends)
    last = starts[dim] + sum(max(end, 0) for end in ends)
    if first < 0 or last >= count:
        what = f"positions {first} … {last} before the move of dimension {dim}, which has {count}"
        raise BoundsError(what, code="beta1.bounds")
    # A view refers to the integer by its address only, which keeps no memory alive.
    current().kept.append(tile)
    return Indirect("scalar", tile.squeezed((1, 1)).read()._view, None, stride, count - last)


def cut_index(index: Indirect, low: int, high: int) -> Indirect:
    """The runtime index of some rows only."""
    return replace(index, offset=index.offset.slice(0, low, high))


def moved_dim(old: tuple[int, ...], new: tuple[int, ...], dim: int) -> int:
    """Where a dimension goes when sizes of 1 are added and dropped."""
    if old[dim] == 1:
        return 0
    nth = sum(n != 1 for n in old[:dim])
    return [d for d, n in enumerate(new) if n != 1][nth]


def block_index(key: Any, count: int) -> tuple[tuple[int, ...], tuple]:
    """(block position, the rest of the key) for a tensor with `count` block dimensions."""
    keys = key if isinstance(key, tuple) else (key,)
    numbers = []
    for one in keys[:count]:
        try:
            numbers.append(operator.index(one))
        except TypeError:
            break
    if len(numbers) < count:
        raise UsageError(
            f"{count} block dimensions need {count} integers before other indices",
            code="beta1.block",
        )
    return tuple(numbers), tuple(keys[count:])


declare(
    "beta1.block",
    "A tensor with block dimensions was used as a whole.",
    rule="instructions take tiles: every dimension before nl.par_dim is indexed by an integer",
    fix="loop over the block dimensions: t[i, :, :]",
)

__all__ = ["block_index", "cut_index", "moved_dim", "part"]
