"""Index grids of the older API: integers that are an affine function of a position in a tile.

`nl.arange(128)[:, None]` and `nl.mgrid[0:128, 0:512]` make them; sums with each other and products
with integers stay affine.  Nothing else does, because an access pattern of the hardware is an
offset and one stride for each dimension.  Source: NKI programming model v2.26.1 (class Index).
"""

import operator
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from opentrn.base import ShapeError, UsageError, declare
from opentrn.nki.beta1.masks import Mask

declare(
    "beta1.affine",
    "An index is not an affine function of grids and loop variables.",
    rule="an index is a sum of grids (nl.arange, nl.mgrid), each times an integer, and integers",
    fix="split the grid so that // and % are not needed, or gather with an index tile",
)
declare(
    "beta1.grid",
    "An index grid has a form it cannot have.",
    rule="nl.arange(n)[:, None] has one size for each dimension of the tile; sizes broadcast",
    fix="give every grid as many dimensions as the tile: [:, None], [None, :], [:, None, None]",
)


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The common shape, as NumPy broadcasts; ShapeError `beta1.grid` when there is none."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        text = " and ".join(str(list(s)) for s in shapes)
        raise ShapeError(f"index grids {text} do not broadcast", code="beta1.grid") from None


def aligned(steps: tuple[int, ...], shape: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """Steps for `ndim` dimensions: missing leading ones and those of size 1 do not move."""
    kept = tuple(0 if size == 1 else step for step, size in zip(steps, shape, strict=True))
    return (0,) * (ndim - len(kept)) + kept


class Grid:
    """`offset + Σ steps[d] · i[d]` for every position i of `shape`."""

    __slots__ = ("offset", "shape", "steps")
    # NumPy integers on the left must leave arithmetic to the grid.
    __array_ufunc__ = None

    def __init__(self, shape: tuple[int, ...], offset: int, steps: tuple[int, ...]):
        self.shape, self.offset, self.steps = shape, offset, steps

    ndim = property(lambda self: len(self.shape), doc="Number of dimensions.")
    size = property(lambda self: prod(self.shape), doc="Number of positions.")

    def __repr__(self) -> str:
        return f"Grid({list(self.shape)}: {self.offset} + {list(self.steps)}·i)"

    def numpy(self) -> np.ndarray:
        """The values, for looking at."""
        out = np.full(self.shape, self.offset, np.int64)
        for dim, (size, step) in enumerate(zip(self.shape, self.steps, strict=True)):
            line = np.arange(size) * step
            out += line.reshape([-1 if d == dim else 1 for d in range(self.ndim)])
        return out

    def spread(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Steps along the dimensions of a tile of `shape`; ShapeError when it does not fit."""
        if broadcast([self.shape, shape]) != tuple(shape):
            what = f"a grid {list(self.shape)} on a tile {list(shape)}"
            raise ShapeError(what, code="beta1.grid")
        return aligned(self.steps, self.shape, len(shape))

    # ------------------------------------------------------------ shape

    def __getitem__(self, key: Any) -> "Grid":
        """New dimensions with None, parts of dimensions with slices and integers."""
        keys = key if isinstance(key, tuple) else (key,)
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            rest = self.ndim - sum(k is not None for k in keys) + 1
            keys = (*keys[:at], *(slice(None),) * rest, *keys[at + 1 :])
        shape: list[int] = []
        steps: list[int] = []
        offset, dim = self.offset, 0
        for one in keys:
            if one is None:
                shape.append(1)
                steps.append(0)
                continue
            if dim == self.ndim:
                raise ShapeError(f"{self!r} indexed with {key!r}", code="beta1.grid")
            if isinstance(one, slice):
                first, stop, step = one.indices(self.shape[dim])
                shape.append(len(range(first, stop, step)))
                steps.append(self.steps[dim] * step)
            else:
                first = range(self.shape[dim])[operator.index(one)]
            offset += first * self.steps[dim]
            dim += 1
        return Grid((*shape, *self.shape[dim:]), offset, (*steps, *self.steps[dim:]))

    def reshape(self, *shape: Any) -> "Grid":
        """Sizes of 1 inserted or removed; anything else is not affine in the new dimensions."""
        sizes = tuple(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        moving = [(n, s) for n, s in zip(self.shape, self.steps, strict=True) if n != 1]
        if [n for n in sizes if n != 1] != [n for n, _ in moving]:
            raise UsageError(f"{self!r} reshaped to {list(sizes)}", code="beta1.affine")
        left = iter([s for _, s in moving])
        return Grid(sizes, self.offset, tuple(next(left) if n != 1 else 0 for n in sizes))

    # ------------------------------------------------------------ arithmetic

    def _plus(self, other: Any, sign: int) -> Any:
        if sign == 1 and hasattr(other, "settle"):
            if other.size != 1:
                what = f"a grid and a tile {list(other.shape)}: a tile of one integer moves a grid"
                raise UsageError(what, code="beta1.operand")
            return Moved(self, other)
        if isinstance(other, Grid):
            shape = broadcast([self.shape, other.shape])
            mine, theirs = self.spread(shape), other.spread(shape)
            steps = tuple(a + sign * b for a, b in zip(mine, theirs, strict=True))
            return Grid(shape, self.offset + sign * other.offset, steps)
        number = whole(other)
        if number is None:
            return self._of_others(other)
        return Grid(self.shape, self.offset + sign * number, self.steps)

    def __add__(self, other: Any) -> "Grid":
        return self._plus(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Grid":
        return self._plus(other, -1)

    def __rsub__(self, other: Any) -> "Grid":
        return (-self)._plus(other, 1)

    def __neg__(self) -> "Grid":
        return self * -1

    def __mul__(self, other: Any) -> "Grid":
        number = whole(other)
        if number is None:
            if isinstance(other, Grid):
                self._refuse("a product of two grids")
            return self._of_others(other)
        return Grid(self.shape, self.offset * number, tuple(s * number for s in self.steps))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> "Grid":
        """Exact where every value divides; otherwise not affine."""
        number = whole(other)
        parts = (self.offset, *self.spread(self.shape))
        if number is None or number == 0 or any(part % number for part in parts):
            self._refuse(f"`//` of a grid by {other!r}")
        return Grid(self.shape, self.offset // number, tuple(p // number for p in parts[1:]))

    def __mod__(self, other: Any) -> "Grid":
        """Constant where every step divides; otherwise not affine."""
        number = whole(other)
        steps = self.spread(self.shape)
        if not number or any(step % number for step in steps):
            self._refuse(f"`%` of a grid by {other!r}")
        return Grid(self.shape, self.offset % number, (0,) * self.ndim)

    def _of_others(self, other: Any) -> Any:
        """Tiles and moved grids know what they do to a grid; nothing else does."""
        if isinstance(other, Moved) or hasattr(other, "settle"):
            return NotImplemented
        return self._refuse(f"{other!r} in arithmetic with a grid")

    def _refuse(self, what: str) -> None:
        raise UsageError(f"{what} is not affine", code="beta1.affine")

    __rfloordiv__ = __rmod__ = __truediv__ = __rtruediv__ = __pow__ = lambda self, other: (
        self._refuse(f"this use of a grid with {other!r}")
    )

    # ------------------------------------------------------------ comparison

    def _at_least(self, other: Any, flip: bool, more: int) -> Mask:
        """self - other - more ≥ 0, or other - self - more ≥ 0 with `flip`."""
        apart = self._plus(other, -1)
        if apart is NotImplemented:
            return NotImplemented
        return condition((-apart if flip else apart) - more)

    def __lt__(self, other: Any) -> Mask:
        return self._at_least(other, True, 1)

    def __le__(self, other: Any) -> Mask:
        return self._at_least(other, True, 0)

    def __gt__(self, other: Any) -> Mask:
        return self._at_least(other, False, 1)

    def __ge__(self, other: Any) -> Mask:
        return self._at_least(other, False, 0)

    def __eq__(self, other: Any) -> Mask:
        return (self >= other) & (self <= other)

    def __ne__(self, other: Any) -> Mask:
        self._refuse("`!=` of a grid")

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        self._refuse("the truth of a grid")


class Moved:
    """A grid moved by what a tile of one element holds on the device: `tile[0, n] + grid`."""

    __slots__ = ("grid", "tile")
    __array_ufunc__ = None

    def __init__(self, grid: Grid, tile: Any):
        self.grid, self.tile = grid, tile

    def __add__(self, other: Any) -> "Moved":
        grid = self.grid._plus(other, 1)
        return Moved(grid, self.tile) if isinstance(grid, Grid) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Moved":
        grid = self.grid._plus(other, -1)
        return Moved(grid, self.tile) if isinstance(grid, Grid) else NotImplemented


def condition(grid: Grid) -> Mask:
    """The mask of positions where the grid is not negative."""
    return Mask.single(grid.shape, grid.offset, grid.spread(grid.shape))


def whole(value: Any) -> int | None:
    """`value` as an integer, None when it is none (a float, a tile)."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def arange(*bounds: Any) -> Grid:
    """Consecutive integers `start … stop - 1` (or by `step`) along one dimension."""
    numbers = [whole(b) for b in bounds]
    if None in numbers or not 1 <= len(numbers) <= 3 or (len(numbers) == 3 and not numbers[2]):
        raise UsageError(f"arange{bounds} needs one to three integers", code="beta1.grid")
    values = range(*numbers)
    if not values:
        raise UsageError(f"arange{bounds} is empty", code="beta1.grid")
    return Grid((len(values),), values.start, (values.step,))


def fitted(values: np.ndarray) -> Grid:
    """The grid with these integer values; UsageError `beta1.affine` when none has them."""
    values = np.asarray(values)
    if values.dtype.kind not in "iu" or not values.size:
        raise UsageError(f"an index of {values.dtype} values", code="beta1.affine")
    first = values[(0,) * values.ndim]
    steps = []
    for dim, size in enumerate(values.shape):
        second = tuple(1 if d == dim else 0 for d in range(values.ndim))
        steps.append(int(values[second]) - int(first) if size > 1 else 0)
    made = Grid(values.shape, int(first), tuple(steps))
    if not np.array_equal(made.numpy(), values):
        raise UsageError("an index array with irregular values", code="beta1.affine")
    return made


class Mesh:
    """The grids of `nl.mgrid[…]`, one for each dimension: unpack them, or `.p .x .y .z .w`."""

    __slots__ = ("grids",)

    def __init__(self, grids: tuple[Grid, ...]):
        self.grids = grids

    def __iter__(self) -> Iterator[Grid]:
        return iter(self.grids)

    def __len__(self) -> int:
        return len(self.grids)

    def __getitem__(self, n: int) -> Grid:
        return self.grids[n]

    p = property(lambda self: self.grids[0], doc="The grid of the partition dimension.")
    x = property(lambda self: self.grids[1], doc="The grid of the first free dimension.")
    y = property(lambda self: self.grids[2], doc="The grid of the second free dimension.")
    z = property(lambda self: self.grids[3], doc="The grid of the third free dimension.")
    w = property(lambda self: self.grids[4], doc="The grid of the fourth free dimension.")


class _MeshGrid:
    """`nl.mgrid[0:128, 0:512]`: dense grids, all of the full shape."""

    def __getitem__(self, key: Any) -> Mesh:
        cuts = key if isinstance(key, tuple) else (key,)
        if any(not isinstance(c, slice) or whole(c.stop) is None for c in cuts):
            raise UsageError(f"mgrid[{key!r}] needs slices with ends", code="beta1.grid")
        lines = [arange(c.start or 0, c.stop, c.step or 1) for c in cuts]
        shape = tuple(line.shape[0] for line in lines)
        grids = []
        for dim, line in enumerate(lines):
            steps = tuple(line.steps[0] if d == dim else 0 for d in range(len(lines)))
            grids.append(Grid(shape, line.offset, steps))
        return Mesh(tuple(grids))


mgrid = _MeshGrid()

__all__ = ["Grid", "Mesh", "aligned", "arange", "broadcast", "condition", "fitted", "mgrid"]
