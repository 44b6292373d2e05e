"""Ops that move numbers without changing them: shape, order, slices, joining, filling."""

from __future__ import annotations

import numpy as np

from opentrn.graph.ops.define import (
    Ints,
    Op,
    Traffic,
    Type,
    Wrong,
    axes_of,
    axis_of,
    count,
    same_dtype,
    stream,
    whole,
)


class Movement(Op, abstract=True):
    """No arithmetic: the numbers of the operands, placed elsewhere."""

    exact = True

    def flops(self, out: Type, *args: Type) -> int:
        return 0  # moving is not arithmetic

    def traffic(self, out: Type, *args: Type) -> Traffic:
        return stream(out, *args)


class BroadcastInDim(Movement):
    """Repeat the operand: its axis i becomes axis dimensions[i] of the result."""

    operands = ("operand",)
    law = "dimensions are distinct and rising; each operand size is 1 or the result's size there"
    shape: Ints
    dimensions: Ints

    def result(self, operand: Type) -> Type:
        if len(self.dimensions) != len(operand.shape):
            raise Wrong(f"`dimensions` {self.dimensions} must name one axis for each of "
                        f"{list(operand.shape)}")
        if list(self.dimensions) != sorted(set(self.dimensions)):
            raise Wrong(f"`dimensions` {self.dimensions} must rise", fix="transpose first")
        for size, axis in zip(operand.shape, self.dimensions, strict=True):
            axis_of(axis, len(self.shape), "dimensions")
            if size not in (1, self.shape[axis]):
                raise Wrong(f"size {size} cannot become {self.shape[axis]} (axis {axis})")
        return Type(self.shape, operand.dtype)

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        view = [1] * len(self.shape)
        for size, axis in zip(operand.shape, self.dimensions, strict=True):
            view[axis] = size
        return np.broadcast_to(operand.reshape(view), self.shape)


class Reshape(Movement):
    """The same numbers in the same row-major order under another shape."""

    operands = ("operand",)
    law = "the result has as many elements as the operand"
    shape: Ints

    def settle(self, operand: Type) -> Reshape:
        if self.shape.count(-1) != 1:
            return self
        known = count(tuple(s for s in self.shape if s != -1))
        if known == 0 or count(operand.shape) % known:
            raise Wrong(f"{list(operand.shape)} does not fill {list(self.shape)}")
        rest = count(operand.shape) // known
        return Reshape(tuple(rest if s == -1 else s for s in self.shape))

    def result(self, operand: Type) -> Type:
        if count(self.shape) != count(operand.shape) or min(self.shape, default=0) < 0:
            raise Wrong(f"{list(operand.shape)} has {count(operand.shape)} elements, "
                        f"{list(self.shape)} has {count(self.shape)}")
        return Type(self.shape, operand.dtype)

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        return operand.reshape(self.shape)

    def traffic(self, out: Type, operand: Type) -> Traffic:
        return Traffic(0, 0)  # row-major order is kept, so HBM bytes stay where they are


class Transpose(Movement):
    """Reorder axes: axis i of the result is axis permutation[i] of the operand."""

    operands = ("operand",)
    law = "permutation names each axis once"
    permutation: Ints

    def settle(self, operand: Type) -> Transpose:
        return Transpose(axes_of(self.permutation, len(operand.shape), "permutation"))

    def result(self, operand: Type) -> Type:
        if len(self.permutation) != len(operand.shape):
            raise Wrong(f"permutation {self.permutation} does not name all "
                        f"{len(operand.shape)} axes")
        return Type(tuple(operand.shape[p] for p in self.permutation), operand.dtype)

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        return operand.transpose(self.permutation)


class Slice(Movement):
    """operand[start:limit:stride] along every axis."""

    operands = ("operand",)
    law = "0 ≤ start ≤ limit ≤ size and stride ≥ 1, one of each for every axis"
    starts: Ints
    limits: Ints
    strides: Ints

    def result(self, operand: Type) -> Type:
        if not len(self.starts) == len(self.limits) == len(self.strides) == len(operand.shape):
            raise Wrong(f"give one start, limit and stride for each axis of {list(operand.shape)}")
        sizes = []
        for axis, size in enumerate(operand.shape):
            start, limit, stride = self.starts[axis], self.limits[axis], self.strides[axis]
            if not (0 <= start <= limit <= size and stride >= 1):
                raise Wrong(f"{start}:{limit}:{stride} is not inside axis {axis} of size {size}")
            sizes.append(-(-(limit - start) // stride))
        return Type(tuple(sizes), operand.dtype)

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        cut = zip(self.starts, self.limits, self.strides, strict=True)
        return operand[tuple(slice(a, b, c) for a, b, c in cut)]

    def traffic(self, out: Type, operand: Type) -> Traffic:
        return Traffic(out.nbytes, out.nbytes)


def _starts(operand: tuple[int, ...], sizes: tuple[int, ...],
            starts: tuple[np.ndarray, ...]) -> tuple[slice, ...]:
    """The slices of a window whose corner is pushed inside the operand, as StableHLO says."""
    low = [min(max(int(s), 0), n - w) for s, n, w in zip(starts, operand, sizes, strict=True)]
    return tuple(slice(s, s + w) for s, w in zip(low, sizes, strict=True))


def _check_starts(operand: Type, starts: tuple[Type, ...]) -> None:
    if len(starts) != len(operand.shape):
        raise Wrong(f"{len(starts)} start indices for {len(operand.shape)} axes")
    for start in starts:
        whole(start, "start index")
        if start.shape:
            raise Wrong(f"a start index has shape {list(start.shape)}, not a scalar")


class DynamicSlice(Movement):
    """A window of fixed `sizes` whose corner is given when the program runs; a corner that would
    put the window outside is pushed inside."""

    operands = ("operand", "*starts")
    law = "one scalar integer start for each axis; 0 ≤ size ≤ the operand's size"
    sizes: Ints

    def result(self, operand: Type, *starts: Type) -> Type:
        _check_starts(operand, starts)
        fits = len(self.sizes) == len(operand.shape) and all(
            0 <= w <= n for w, n in zip(self.sizes, operand.shape, strict=True))
        if not fits:
            raise Wrong(f"window {self.sizes} does not fit in {list(operand.shape)}")
        return Type(self.sizes, operand.dtype)

    def evaluate(self, out: Type, operand: np.ndarray, *starts: np.ndarray) -> np.ndarray:
        return operand[_starts(operand.shape, self.sizes, starts)]

    def traffic(self, out: Type, operand: Type, *starts: Type) -> Traffic:
        return Traffic(out.nbytes + sum(s.nbytes for s in starts), out.nbytes)


class DynamicUpdateSlice(Movement):
    """The operand with a window replaced by `update`; the corner is pushed inside."""

    operands = ("operand", "update", "*starts")
    law = "one scalar integer start for each axis; update has the operand's dtype and fits in it"

    def result(self, operand: Type, update: Type, *starts: Type) -> Type:
        _check_starts(operand, starts)
        same_dtype(operand, update)
        fits = len(update.shape) == len(operand.shape) and all(
            w <= n for w, n in zip(update.shape, operand.shape, strict=True))
        if not fits:
            raise Wrong(f"update {list(update.shape)} does not fit in {list(operand.shape)}")
        return operand

    def evaluate(self, out: Type, operand: np.ndarray, update: np.ndarray,
                 *starts: np.ndarray) -> np.ndarray:
        result = operand.copy()
        result[_starts(operand.shape, update.shape, starts)] = update
        return result

    def traffic(self, out: Type, operand: Type, update: Type, *starts: Type) -> Traffic:
        return stream(out, operand, update, *starts)  # alone it copies; in place it would not


class Concatenate(Movement):
    """The operands one after the other along one axis."""

    operands = ("*operands",)
    law = "one dtype; equal sizes on every axis but `dimension`"
    dimension: int

    def settle(self, *args: Type) -> Concatenate:
        if not args:
            raise Wrong("nothing to join", kind="attribute")
        return Concatenate(axis_of(self.dimension, len(args[0].shape), "dimension"))

    def result(self, *args: Type) -> Type:
        kind = same_dtype(*args)
        axis = self.dimension
        first = args[0].shape
        rest = first[:axis] + first[axis + 1:]
        for other in args[1:]:
            if other.shape[:axis] + other.shape[axis + 1:] != rest or not other.shape:
                raise Wrong(f"{list(first)} and {list(other.shape)} differ outside axis {axis}")
        total = sum(a.shape[axis] for a in args)
        return Type((*first[:axis], total, *first[axis + 1:]), kind)

    def evaluate(self, out: Type, *args: np.ndarray) -> np.ndarray:
        return np.concatenate(args, axis=self.dimension)


class Pad(Movement):
    """`value` put before (low), after (high) and between (interior) elements; a negative low or
    high cuts instead."""

    operands = ("operand", "value")
    law = "value is a scalar of the operand's dtype; interior ≥ 0; one of each for every axis"
    low: Ints
    high: Ints
    interior: Ints = ()

    def settle(self, operand: Type, value: Type) -> Pad:
        return self if self.interior or not operand.shape else Pad(
            self.low, self.high, (0,) * len(operand.shape))

    def result(self, operand: Type, value: Type) -> Type:
        same_dtype(operand, value)
        rank = len(operand.shape)
        if value.shape:
            raise Wrong(f"the filling has shape {list(value.shape)}, not a scalar")
        if not len(self.low) == len(self.high) == len(self.interior) == rank:
            raise Wrong(f"give low, high and interior for each of {rank} axes")
        sizes = tuple(n + lo + hi + gap * max(n - 1, 0) for n, lo, hi, gap in
                      zip(operand.shape, self.low, self.high, self.interior, strict=True))
        if min(sizes, default=0) < 0 or min(self.interior, default=0) < 0:
            raise Wrong(f"padding leaves sizes {list(sizes)}")
        return Type(sizes, operand.dtype)

    def evaluate(self, out: Type, operand: np.ndarray, value: np.ndarray) -> np.ndarray:
        before = [max(v, 0) for v in self.low]
        after = [max(v, 0) for v in self.high]
        spread = [n + gap * max(n - 1, 0)
                  for n, gap in zip(operand.shape, self.interior, strict=True)]
        grown = tuple(a + n + b for a, n, b in zip(before, spread, after, strict=True))
        result = np.full(grown, value, dtype=operand.dtype)
        inner = tuple(slice(a, a + n, gap + 1) for a, n, gap in
                      zip(before, spread, self.interior, strict=True))
        result[inner] = operand
        cut = tuple(slice(max(-lo, 0), n - max(-hi, 0))
                    for lo, hi, n in zip(self.low, self.high, grown, strict=True))
        return result[cut]


class Reverse(Movement):
    """The operand back to front along `dimensions`."""

    operands = ("operand",)
    law = "dimensions are distinct axes"
    dimensions: Ints

    def settle(self, operand: Type) -> Reverse:
        return Reverse(tuple(sorted(axes_of(self.dimensions, len(operand.shape), "dimensions"))))

    def result(self, operand: Type) -> Type:
        return operand

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        return np.flip(operand, self.dimensions)
