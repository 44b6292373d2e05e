"""Ops without a kernel, spelled out in ops that have one."""

import numpy as np

from opentrn.compiler.narrow import device_dtype
from opentrn.graph import Builder, Pattern, PatternBuilder, Rule, Value, no

# The largest k for which top-k is k passes of argmax.
MOST_PASSES = 16
IDENTITY = {"add": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}
COMBINE = {"add": "add", "multiply": "multiply", "maximum": "maximum", "minimum": "minimum"}


def _neutral(kind: str, value: Value) -> float | int:
    """The number that changes nothing when combined with numbers of the value's dtype."""
    number = IDENTITY[kind]
    if value.dtype.kind == "float" or kind in ("add", "multiply"):
        return number
    held = device_dtype(value.dtype)  # no number of the chip is beyond its ends
    return int(held.min if kind == "maximum" else held.max)


def cut(g: Builder, x: Value, axis: int, start: int, limit: int, step: int = 1) -> Value:
    """x[start:limit:step] along one axis."""
    starts, limits, steps = [0] * x.rank, list(x.shape), [1] * x.rank
    starts[axis], limits[axis], steps[axis] = start, limit, step
    return g.slice(x, starts, limits, steps)


def grown(g: Builder, x: Value, number, low, high) -> Value:
    """x with so many elements of a number before and after it on every axis."""
    fill = g.full((), number, x.dtype)
    return g.pad(x, fill, low=low, high=high, interior=(0,) * x.rank)


class IotaToLine(Rule):
    """iota → one line of numbers, known on the host, repeated"""

    def find(p: PatternBuilder) -> Pattern:
        return p.iota(bind="iota")

    def make(g: Builder, iota: Value) -> Value:
        axis = iota.attrs.dimension
        line = np.arange(iota.shape[axis], dtype=np.int64)
        made = g.constant(line) if iota.dtype == "int64" else g.constant(line.astype(np.int32))
        return g.broadcast_in_dim(g.cast(made, iota.dtype), iota.shape, (axis,))

    def sample(g: Builder) -> tuple[Value, ...]:
        return g.iota((3, 4), 1, "int32"), g.iota((3, 4), 0, "float32"), g.iota((5,), 0, "int64")


class CumulativeSum(Rule):
    """running sum of floats → product with a triangle of ones, on the Tensor Engine"""

    tolerance = 1e-5

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.cumulative(x, kind="add", bind="sums")

    def when(x: Value) -> bool | no:
        if x.dtype not in ("float32", "bfloat16", "float16"):
            return no("the Tensor Engine would not add integers exactly")
        return x.size > 0 or no("it is empty")

    def make(g: Builder, x: Value, sums: Value) -> Value:
        axis = sums.attrs.dimension
        order = (*(a for a in range(x.rank) if a != axis), axis)
        back = tuple(order.index(a) for a in range(x.rank))
        triangle = g.constant(np.triu(np.ones((x.shape[axis],) * 2, np.float32)))
        line = g.transpose(x, order)
        rows = line if x.rank > 1 else g.reshape(line, (1, *line.shape))
        made = g.reshape(g.matmul(rows, g.cast(triangle, x.dtype)), line.shape)
        return g.transpose(made, back)

    def sample(g: Builder) -> tuple[Value, ...]:
        x = g.input("x", (3, 4, 5))
        line = g.input("line", (9,))
        return (
            g.cumulative(x, kind="add", dimension=1),
            g.cumulative(line, kind="add", dimension=0),
        )

    def refuse(g: Builder) -> Value:
        return g.cumulative(g.input("x", (3, 4), "int32"), kind="add", dimension=1)


class CumulativeByDoubling(Rule):
    """running sum, product, maximum, minimum → log₂ n steps, each combining with a shifted copy"""

    tolerance = 1e-5

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.cumulative(x, bind="running")

    def when(x: Value, running: Value) -> bool | no:
        if x.dtype.kind == "bool":
            return no("the operand is bool")
        summed = running.attrs.kind == "add" and x.dtype in ("float32", "bfloat16", "float16")
        return not summed or no("sums of floats go to the Tensor Engine: CumulativeSum")

    def make(g: Builder, x: Value, running: Value) -> Value:
        axis, kind = running.attrs.dimension, running.attrs.kind
        reach, size = 1, x.shape[running.attrs.dimension]
        while reach < size:
            low = [reach if a == axis else 0 for a in range(x.rank)]
            kept = cut(g, x, axis, 0, size - reach)
            moved = grown(g, kept, _neutral(kind, x), low, [0] * x.rank)
            x = getattr(g, COMBINE[kind])(x, moved)
            reach *= 2
        return x

    def sample(g: Builder) -> tuple[Value, ...]:
        x, n = g.input("x", (3, 7)), g.input("n", (5, 2), "int32")
        return (
            g.cumulative(x, kind="maximum", dimension=1),
            g.cumulative(x, kind="multiply", dimension=0),
            g.cumulative(n, kind="add", dimension=0),
            g.cumulative(n, kind="minimum", dimension=0),
        )

    def refuse(g: Builder) -> Value:
        return g.cumulative(g.input("x", (3, 4)), kind="add", dimension=1)


class ArgmaxToMinimum(Rule):
    """argmax → the least index among those that hold the maximum (NaN is the largest)"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.argmax(x, bind="place")

    def when(x: Value) -> bool | no:
        return x.dtype.kind != "bool" or no("the operands are bool")

    def make(g: Builder, x: Value, place: Value) -> Value:
        axis, size = place.attrs.dimension, x.shape[place.attrs.dimension]
        kept = tuple(a for a in range(x.rank) if a != axis)
        top = g.reduce(x, kind="maximum", dimensions=axis)
        best = g.compare(x, g.broadcast_in_dim(top, x.shape, kept), direction="EQ")
        if x.dtype.kind == "float":  # the maximum is NaN then, which equals nothing
            best = g.or_(best, g.compare(x, x, direction="NE"))
        # Indices up to 2^24 are exact in float32, which the Vector Engine reduces.
        line = g.broadcast_in_dim(g.constant(np.arange(size, dtype=np.float32)), x.shape, (axis,))
        index = g.select(best, line, g.full(x.shape, float(size), "float32"))
        return g.cast(g.reduce(index, kind="minimum", dimensions=axis), place.dtype)

    def sample(g: Builder) -> tuple[Value, ...]:
        x = g.input("x", (3, 7))
        n = g.input("n", (3, 7), "int32")
        y = g.input("y", (3, 7), "bfloat16")
        return g.argmax(x, 1), g.argmax(y, 0, "int64"), g.argmax(n, 1)

    def refuse(g: Builder) -> Value:
        return g.argmax(g.input("flags", (3, 7), "bool"), 1)


class TopKToPasses(Rule):
    """the k largest → k passes: the maximum and its place, which is then struck out"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.top_k(x, bind="best")

    def when(x: Value, best: Value) -> bool | no:
        if x.dtype.kind != "float":
            return no("the numbers are not floats")
        return 1 <= best.attrs.k <= MOST_PASSES or no(f"k is {best.attrs.k}, not 1 … {MOST_PASSES}")

    def make(g: Builder, x: Value, best: Value) -> Value:
        axis = x.rank - 1
        lead = tuple(range(axis))
        line = g.broadcast_in_dim(
            g.constant(np.arange(x.shape[-1], dtype=np.int32)), x.shape, (axis,)
        )
        columns = []
        free = None
        for _ in range(best.attrs.k):
            # What was taken counts as -∞; `free` keeps true -∞ apart from it.
            left = x if free is None else g.select(free, x, g.like(x, -np.inf))
            place = g.argmax(left, axis)
            found = g.reduce(left, kind="maximum", dimensions=axis)
            columns.append(found if best.attrs.part == "values" else place)
            spread = g.broadcast_in_dim(place, x.shape, lead)
            other = g.compare(line, spread, direction="NE")
            free = other if free is None else g.and_(free, other)
        shape = (*x.shape[:-1], 1)
        columns = [g.reshape(c, shape) for c in columns]
        return columns[0] if len(columns) == 1 else g.concatenate(*columns, dimension=axis)

    def sample(g: Builder) -> tuple[Value, ...]:
        x = g.input("x", (3, 9))
        return g.top_k(x, 3), g.top_k(x, 3, "indices"), g.top_k(x, 1)

    def refuse(g: Builder) -> tuple[Value, ...]:
        return g.top_k(g.input("x", (3, 90)), 80), g.top_k(g.input("n", (3, 9), "int32"), 2)


class WindowToSlices(Rule):
    """pooling → the slices each place of the window sees, combined element by element"""

    tolerance = 1e-5

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.reduce_window(x, bind="pool")

    def when(x: Value, pool: Value) -> bool | no:
        return x.dtype.kind != "bool" and pool.size > 0 or no("the operand is bool or empty")

    def make(g: Builder, x: Value, pool: Value) -> Value:
        a = pool.attrs
        low, high = ([p[i] for p in a.padding] for i in (0, 1))
        if any(low) or any(high):
            x = grown(g, x, _neutral(a.kind, x), low, high)
        total = None
        for tap in np.ndindex(*a.window):
            starts = [t * d for t, d in zip(tap, a.dilation, strict=True)]
            limits = [
                first + (n - 1) * step + 1
                for first, n, step in zip(starts, pool.shape, a.strides, strict=True)
            ]
            part = g.slice(x, starts, limits, a.strides)
            total = part if total is None else getattr(g, COMBINE[a.kind])(total, part)
        return total

    def _pool(g: Builder, x: Value, kind: str) -> Value:
        return g.reduce_window(
            x, kind=kind, window=(1, 3, 2), strides=(1, 2, 2), padding=((0, 0), (1, 1), (0, 0))
        )

    def sample(g: Builder) -> tuple[Value, ...]:
        x = g.input("x", (2, 8, 6))
        return tuple(WindowToSlices._pool(g, x, kind) for kind in ("add", "maximum"))

    def refuse(g: Builder) -> Value:
        return WindowToSlices._pool(g, g.input("x", (2, 8, 6), "bool"), "maximum")


class ReverseToTake(Rule):
    """reverse → elements taken in falling order, one axis at a time"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.reverse(x, bind="turned")

    def make(g: Builder, x: Value, turned: Value) -> Value:
        for axis in turned.attrs.dimensions:
            places = g.constant(np.arange(x.shape[axis], dtype=np.int32)[::-1])
            x = g.take(x, places, axis)
        return x

    def sample(g: Builder) -> Value:
        return g.reverse(g.input("x", (2, 3, 4)), (0, 2))


class DynamicSliceToTake(Rule):
    """dynamic_slice → along each axis it cuts, the places from the (held) start on are taken"""

    def find(p: PatternBuilder) -> Pattern:
        return p.dynamic_slice(bind="window")

    def make(g: Builder, window: Value) -> Value:
        x, *starts = window.args
        for axis, (size, start) in enumerate(zip(window.attrs.sizes, starts, strict=True)):
            room = x.shape[axis] - size
            if room == 0:
                continue
            held = g.minimum(g.maximum(start, 0), room)
            line = g.cast(g.constant(np.arange(size, dtype=np.int32)), start.dtype)
            x = g.take(x, line + g.broadcast_in_dim(held, (size,), ()), axis)
        return x

    def sample(g: Builder) -> Value:
        x, zero = g.input("x", (4, 5, 6)), g.constant(0)
        return g.dynamic_slice(x, g.input("i", (), "int32"), zero, zero, sizes=(2, 5, 3))


class NegativePad(Rule):
    """pad by a negative amount → slice, then pad"""

    def find(p: PatternBuilder, x: Pattern, value: Pattern) -> Pattern:
        return p.pad(x, value, bind="grown")

    def when(grown: Value) -> bool | no:
        a = grown.attrs
        if any(a.interior):
            return no("it puts numbers between the elements")
        return min((*a.low, *a.high), default=0) < 0 or no("nothing is cut")

    def make(g: Builder, x: Value, value: Value, grown: Value) -> Value:
        a = grown.attrs
        starts = [max(-n, 0) for n in a.low]
        limits = [n - max(-cut, 0) for n, cut in zip(x.shape, a.high, strict=True)]
        cut = g.slice(x, starts, limits, (1,) * x.rank)
        low, high = ([max(n, 0) for n in side] for side in (a.low, a.high))
        return g.pad(cut, value, low=low, high=high, interior=a.interior)

    def _grown(g: Builder, low: int, interior: int = 0) -> Value:
        x, zero = g.input("x", (4, 5)), g.full((), 0.0)
        return g.pad(x, zero, low=(low, 1), high=(0, 2), interior=(interior, 0))

    def sample(g: Builder) -> Value:
        return NegativePad._grown(g, -1)

    def refuse(g: Builder) -> tuple[Value, ...]:
        return NegativePad._grown(g, 1), NegativePad._grown(g, -1, 1)


class SoftmaxOverLast(Rule):
    """softmax over a middle axis → over the last one, of a transposed view"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.softmax(x, bind="share")

    def when(x: Value, share: Value) -> bool | no:
        return share.attrs.axis != x.rank - 1 or no("it is over the last axis already")

    def make(g: Builder, x: Value, share: Value) -> Value:
        order = [a for a in range(x.rank) if a != share.attrs.axis] + [share.attrs.axis]
        made = g.softmax(g.transpose(x, order), x.rank - 1)
        return g.transpose(made, [order.index(a) for a in range(x.rank)])

    def sample(g: Builder) -> Value:
        return g.softmax(g.input("x", (3, 4, 5)), 1)

    def refuse(g: Builder) -> Value:
        return g.softmax(g.input("x", (3, 4, 5)), 2)


def _norm_over_one(g: Builder, x: Value, norm: Value, rest: tuple[Value, ...]) -> Value:
    axis = norm.attrs.axis
    flat = g.reshape(x, (*x.shape[:axis], -1))
    weights = [g.reshape(w, (-1,)) for w in rest]
    made = g.apply(type(norm.attrs), flat, *weights, axis=axis, epsilon=norm.attrs.epsilon)
    return g.reshape(made, x.shape)


class NormOverOne(Rule):
    """layer_norm over several axes → over one: they are neighbours in memory"""

    def find(p: PatternBuilder) -> Pattern:
        return p.layer_norm(bind="norm")

    def when(norm: Value) -> bool | no:
        return norm.attrs.axis != norm.rank - 1 or no("it is over one axis already")

    def make(g: Builder, norm: Value) -> Value:
        x, *rest = norm.args
        return _norm_over_one(g, x, norm, tuple(rest))

    def sample(g: Builder) -> tuple[Value, ...]:
        x, w, b = g.input("x", (2, 3, 4)), g.input("w", (3, 4)), g.input("b", (3, 4))
        return g.layer_norm(x, w, b, axis=1), g.layer_norm(x, axis=0)

    def refuse(g: Builder) -> Value:
        return g.layer_norm(g.input("x", (2, 3, 4)), axis=2)


class ConcatenateSome(Rule):
    """concatenate with empty parts → without them; of one part → the part"""

    def find(p: PatternBuilder) -> Pattern:
        return p.concatenate(bind="joined")

    def when(joined: Value) -> bool | no:
        full = [a for a in joined.args if a.size]
        return (
            len(full) in range(1, len(joined.args))
            or len(joined.args) == 1
            or no("all parts have elements")
        )

    def make(g: Builder, joined: Value) -> Value:
        full = [a for a in joined.args if a.size] or [joined.args[0]]
        if len(full) == 1:
            return full[0]
        return g.concatenate(*full, dimension=joined.attrs.dimension)

    def sample(g: Builder) -> tuple[Value, ...]:
        x, y, none = g.input("x", (2, 3)), g.input("y", (2, 4)), g.input("none", (2, 0))
        return g.concatenate(x, none, y, dimension=1), g.concatenate(none, x, dimension=1)

    def refuse(g: Builder) -> Value:
        return g.concatenate(g.input("x", (2, 3)), g.input("y", (2, 4)), dimension=1)


SPELL = (
    IotaToLine, CumulativeSum, CumulativeByDoubling, ArgmaxToMinimum, TopKToPasses,
    WindowToSlices, ReverseToTake, DynamicSliceToTake, NegativePad,
    SoftmaxOverLast, NormOverOne, ConcatenateSome,
)  # fmt: skip

__all__ = ["MOST_PASSES", "SPELL", "cut", "grown"]
