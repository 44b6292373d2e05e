"""Reductions, windows and sorts by a function of the program's own, spelled out on whole arrays.

The function combines scalars; of arrays it combines the elements side by side.  Its order is kept
where it could matter: neighbours are combined, never elements that lie apart.
"""

import numpy as np

from opentrn.compiler.spell import cut, grown
from opentrn.graph import (
    Builder,
    Elementwise,
    Pattern,
    PatternBuilder,
    Region,
    Rule,
    Type,
    Value,
    graph_dtype,
    no,
    remake,
)

# Every element is compared with every other of its row: more comparisons than this are refused.
MOST_COMPARED = 1 << 24


def by_element(region: Region) -> bool | no:
    """Whether a region of scalars can be computed of whole arrays at once."""
    for value in region:
        plain = value.op in ("input", "constant") or isinstance(value.attrs, Elementwise)
        if not plain or value.shape:
            return no(f"its function holds {value.op}, which is not of single elements")
    return True


def spread(g: Builder, region: Region, args: list[Value]) -> list[Value]:
    """The region's outputs for arrays of one shape; scalars among them are the same everywhere."""
    shape = next((a.shape for a in args if a.shape), ())
    held = {name: g.broadcast(a, shape) for name, a in zip(region.inputs, args, strict=True)}
    for value in region:
        if value.op == "constant":
            held[value] = g.broadcast(value, shape)
        elif value not in held:
            held[value] = remake(value, tuple(held[a] for a in value.args))
    return [held[v] for v in region.outputs]


def _halves(g: Builder, x: Value, axis: int) -> tuple[Value, Value]:
    """The elements at even and at odd places of an axis of even length."""
    return cut(g, x, axis, 0, x.shape[axis], 2), cut(g, x, axis, 1, x.shape[axis], 2)


def _folded(g: Builder, rows: list[Value], axis: int, body: Region, fixed) -> list[Value]:
    """Arrays combined along an axis, neighbours first, until its length is 1."""
    while (size := rows[0].shape[axis]) > 1:
        even = size - size % 2
        pairs = [_halves(g, cut(g, x, axis, 0, even), axis) for x in rows]
        made = spread(g, body, [*(a for a, _ in pairs), *(b for _, b in pairs), *fixed])
        if size % 2:
            last = [cut(g, x, axis, even, size) for x in rows]
            made = [g.concatenate(m, z, dimension=axis) for m, z in zip(made, last, strict=True)]
        rows = made
    return rows


def _operands(call: Value, count: int) -> tuple[list[Value], list[Value], list[Value]]:
    """The inputs of an op, what begins each result, and what the function reads besides."""
    args = list(call.args)
    return args[:count], args[count : 2 * count], args[2 * count :]


class FoldToHalves(Rule):
    """a reduction by a function → neighbours combined, log₂ n times along each axis"""

    tolerance = 1e-5

    def find(p: PatternBuilder) -> Pattern:
        return p.get_tuple_element(p.reduce_with(bind="call"), bind="part")

    def when(call: Value) -> bool | no:
        return call.args[0].size > 0 and by_element(call.attrs.body)

    def make(g: Builder, call: Value, part: Value) -> Value:
        body, axes = call.attrs.body, call.attrs.dimensions
        rows, begin, fixed = _operands(call, len(body.outputs))
        for axis in sorted(axes, reverse=True):
            rows = _folded(g, rows, axis, body, fixed)
        rows = [g.reshape(x, part.shape) for x in rows]
        first = [g.broadcast(x, part.shape) for x in begin]
        return spread(g, body, [*first, *rows, *fixed])[part.attrs.index]

    def _first_largest(g: Builder, axis: int) -> Value:
        """The largest, and where it is first."""
        kinds = [Type((), graph_dtype(k)) for k in ("float32", "int32")]

        def body(value, place, other, there):
            better = g.or_(
                g.compare(value, other, "GT"),
                g.and_(g.compare(value, other, "EQ"), g.compare(place, there, "LT")),
            )
            return g.select(better, value, other), g.select(better, place, there)

        x = g.input("x", (3, 7))
        return g.reduce_with(
            x, g.iota(x.shape, axis, "int32"), g.full((), -np.inf), g.full((), 0, "int32"),
            dimensions=(axis,), body=Region.of(body, *kinds, *kinds),
        )  # fmt: skip

    def sample(g: Builder) -> tuple[Value, ...]:
        found = FoldToHalves._first_largest(g, 1)
        kind = Type((), graph_dtype("float32"))
        body = Region.of(lambda a, b: g.sqrt(a * a + b * b), kind, kind)
        length = g.reduce_with(
            g.input("y", (2, 3, 5)), g.full((), 0.0), dimensions=(0, 2), body=body
        )
        return (
            g.get_tuple_element(found, 0), g.get_tuple_element(found, 1),
            g.get_tuple_element(length, 0),
        )  # fmt: skip

    def refuse(g: Builder) -> Value:
        kind = Type((), graph_dtype("float32"))
        body = Region.of(lambda a, b: g.reshape(g.broadcast(a, (1,)), ()) + b, kind, kind)
        x = g.input("x", (2, 3))
        return g.get_tuple_element(g.reduce_with(x, g.full((), 0.0), dimensions=(0,), body=body), 0)


class WindowByDoubling(Rule):
    """a function under a sliding window → windows of 1, 2, 4, … places, joined to the width asked

    Along one axis after the other, the last first; then every stride-th place is kept."""

    tolerance = 1e-5

    def find(p: PatternBuilder) -> Pattern:
        return p.get_tuple_element(p.reduce_window_with(bind="call"), bind="part")

    def when(call: Value, part: Value) -> bool | no:
        return part.size > 0 and call.args[0].size > 0 and by_element(call.attrs.body)

    def make(g: Builder, call: Value, part: Value) -> Value:
        a = call.attrs
        rows, begin, fixed = _operands(call, len(a.body.outputs))
        low, high = ([p[i] for p in a.padding] for i in (0, 1))
        gaps = [d - 1 for d in a.base_dilation]
        if any((*low, *high, *gaps)):
            rows = [
                g.pad(x, fill, low=low, high=high, interior=gaps)
                for x, fill in zip(rows, begin, strict=True)
            ]
        for axis in reversed(range(len(a.window))):
            if a.window[axis] > 1:
                rows = _wide(g, rows, axis, a.window[axis], a.dilation[axis], a.body, fixed)
        kept = [g.slice(x, [0] * x.rank, list(x.shape), list(a.strides)) for x in rows]
        first = [g.broadcast(x, part.shape) for x in begin]
        return spread(g, a.body, [*first, *kept, *fixed])[part.attrs.index]

    def _window(g: Builder, body, **more) -> Value:
        kind = Type((), graph_dtype("float32"))
        given = {
            "window": (2, 3), "strides": (1, 2), "base_dilation": (1, 1), "dilation": (2, 1),
            "padding": ((1, 0), (0, 2)),
        }  # fmt: skip
        call = g.reduce_window_with(
            g.input("x", (5, 7)), g.full((), 0.0), body=Region.of(body, kind, kind), **given | more
        )
        return g.get_tuple_element(call, 0)

    def sample(g: Builder) -> tuple[Value, ...]:
        def length(a, b):
            return g.sqrt(a * a + b * b)

        return (
            WindowByDoubling._window(g, length),
            WindowByDoubling._window(g, length, base_dilation=(2, 3), window=(5, 1)),
        )

    def refuse(g: Builder) -> Value:
        return WindowByDoubling._window(
            g, lambda a, b: g.reshape(g.broadcast(a, (1,)), ()) + b
        )


def _wide(g: Builder, rows, axis: int, width: int, step: int, body: Region, fixed) -> list[Value]:
    """For each place of an axis, `width` elements from it on, `step` apart, combined."""
    room = rows[0].shape[axis] - (width - 1) * step
    done: list[Value] | None = None
    reach = taken = 0
    while True:
        size = 1 << reach  # rows[n] combines `size` elements from n on
        if width >> reach & 1:
            part = [cut(g, x, axis, taken * step, taken * step + room) for x in rows]
            done = part if done is None else spread(g, body, [*done, *part, *fixed])
            taken += size
        if taken == width:
            return done
        left = rows[0].shape[axis] - size * step
        first = [cut(g, x, axis, 0, left) for x in rows]
        second = [cut(g, x, axis, size * step, size * step + left) for x in rows]
        rows = spread(g, body, [*first, *second, *fixed])
        reach += 1


def _kind(region: Region) -> str:
    """The op of a region that applies one to its two inputs, else ""."""
    out = region.outputs[0]
    return out.op if len(region) == 3 and set(out.args) == set(region.inputs) else ""


class SelectToTaps(Rule):
    """select_and_scatter → which place of its window each one prefers; its number laid there"""

    tolerance = 1e-5

    def find(p: PatternBuilder) -> Pattern:
        return p.select_and_scatter(bind="call")

    def when(call: Value) -> bool | no:
        a = call.attrs
        full = call.args[1].size > 0 or no("there are no windows")
        return full and by_element(a.select) and by_element(a.scatter)

    def make(g: Builder, call: Value) -> Value:
        operand, source, init = call.args
        a = call.attrs
        where = _preferred(g, call)
        total = g.broadcast(init, operand.shape)
        plain = _kind(a.scatter) == "add" and operand.dtype.kind != "bool"
        for number, tap in enumerate(np.ndindex(*a.window)):
            chosen = g.compare(where, g.like(where, number), direction="EQ")
            given = _laid(g, call, g.select(chosen, source, g.like(source, 0)), tap)
            if plain:
                total = g.add(total, given)
                continue
            there = _laid(g, call, g.cast(chosen, "int32"), tap)
            there = g.compare(there, g.like(there, 0), direction="NE")
            total = g.select(there, spread(g, a.scatter, [total, given])[0], total)
        return total

    def _pooled(g: Builder, select, scatter, kind: str = "float32") -> Value:
        scalar = Type((), graph_dtype(kind))
        return g.select_and_scatter(
            g.input("x", (5, 7), kind), g.input("source", (3, 3), kind),
            g.full((), 0, scalar.dtype),
            window=(2, 3), strides=(2, 2), padding=((1, 0), (0, 0)),
            select=Region.of(select, scalar, scalar), scatter=Region.of(scatter, scalar, scalar),
        )  # fmt: skip

    def sample(g: Builder) -> tuple[Value, ...]:
        def larger(a, b):
            return g.compare(a, b, direction="GE")

        return (
            SelectToTaps._pooled(g, larger, lambda a, b: a + b),
            SelectToTaps._pooled(g, larger, lambda a, b: g.maximum(a, b), "int32"),
        )

    def refuse(g: Builder) -> Value:
        return SelectToTaps._pooled(
            g, lambda a, b: g.compare(a, b, direction="GE"),
            lambda a, b: g.reshape(g.broadcast(a, (1,)), ()) + b,
        )  # fmt: skip


def _preferred(g: Builder, call: Value) -> Value:
    """The number of the place each window prefers; -1 where it holds padding only."""
    operand, source, _ = call.args
    a = call.attrs
    low, high = ([p[i] for p in a.padding] for i in (0, 1))
    wide = grown(g, operand, 0, low, high) if any((*low, *high)) else operand
    inside = np.pad(np.ones(operand.shape, bool), [(max(p, 0), max(q, 0)) for p, q in a.padding])
    inside = inside[tuple(slice(max(-p, 0), n - max(-q, 0)) for n, (p, q) in
                          zip(inside.shape, a.padding, strict=True))]  # fmt: skip
    best = where = None
    seen = np.zeros(source.shape, bool)
    for number, tap in enumerate(np.ndindex(*a.window)):
        limits = [
            t + (n - 1) * s + 1 for t, n, s in zip(tap, source.shape, a.strides, strict=True)
        ]
        value = g.slice(wide, tap, limits, a.strides)
        key = tuple(slice(t, e, s) for t, e, s in zip(tap, limits, a.strides, strict=True))
        real = inside[key]
        here = g.full(source.shape, number, "int32")
        if best is None:
            best, where = value, g.select(g.constant(real), here, g.like(here, -1))
        else:
            stay = g.and_(spread(g, a.select, [best, value])[0], g.constant(seen))
            stay = g.or_(stay, g.constant(~real))
            best, where = g.select(stay, best, value), g.select(stay, where, here)
        seen = seen | real
    return where


def _laid(g: Builder, call: Value, given: Value, tap: tuple[int, ...]) -> Value:
    """One number for each window at its place of this tap in the operand, zeros elsewhere."""
    a, shape = call.attrs, call.args[0].shape
    low = [t - p[0] for t, p in zip(tap, a.padding, strict=True)]
    spans = [(n - 1) * s + 1 for n, s in zip(given.shape, a.strides, strict=True)]
    high = [n - first - span for n, first, span in zip(shape, low, spans, strict=True)]
    gaps = [s - 1 for s in a.strides]
    return g.pad(given, g.full((), 0, given.dtype), low=low, high=high, interior=gaps)


class SortByCounting(Rule):
    """a sort by a comparator → how many elements come before each, which is its place

    Of two that neither comes before the other, the earlier one does: the order is stable."""

    def find(p: PatternBuilder) -> Pattern:
        return p.get_tuple_element(p.sort_with(bind="call"), bind="part")

    def when(call: Value, part: Value) -> bool | no:
        compared = part.size * part.shape[call.attrs.dimension]
        if compared > MOST_COMPARED:
            return no(f"it would compare {compared} pairs, at most {MOST_COMPARED}")
        return part.size > 0 and by_element(call.attrs.comparator)

    def make(g: Builder, call: Value, part: Value) -> Value:
        a, x = call.attrs, part
        order = [n for n in range(x.rank) if n != a.dimension] + [a.dimension]
        lines = [g.transpose(v, order) for v in call.args[: a.results]]
        fixed = list(call.args[a.results :])
        place = _places(g, a.comparator, lines, fixed)
        line, lead = lines[part.attrs.index], tuple(range(x.rank - 1))
        made = g.scatter(
            line, place, line, kind="set", update_window_dims=(), inserted_window_dims=len(lead),
            scatter_dims=len(lead), index_vector_dim=x.rank, operand_batching_dims=lead,
            indices_batching_dims=lead,
        )  # fmt: skip
        return g.transpose(made, [order.index(n) for n in range(x.rank)])

    def sample(g: Builder) -> tuple[Value, ...]:
        kinds = [Type((), graph_dtype(k)) for k in ("int32", "int32", "float32", "float32")]

        def before(a, b, c, d):
            return g.or_(
                g.compare(a, b, direction="GT"),
                g.and_(g.compare(a, b, direction="EQ"), g.compare(c, d, direction="LT")),
            )

        call = g.sort_with(
            g.input("n", (6, 2), "int32"), g.input("x", (6, 2)), dimension=0, results=2,
            comparator=Region.of(before, *kinds),
        )  # fmt: skip
        return g.get_tuple_element(call, 0), g.get_tuple_element(call, 1)

    def refuse(g: Builder) -> Value:
        kind = Type((), graph_dtype("float32"))
        call = g.sort_with(
            g.input("x", (1 << 13,)), dimension=0, results=1,
            comparator=Region.of(lambda a, b: g.compare(a, b, direction="LT"), kind, kind),
        )  # fmt: skip
        return g.get_tuple_element(call, 0)


def _places(g: Builder, comparator: Region, lines: list[Value], fixed: list[Value]) -> Value:
    """The place of each element of every line (its last axis) in the order of a comparator."""
    shape, last = lines[0].shape, len(lines[0].shape) - 1
    wide = (*shape, shape[-1])
    mine = [g.broadcast_in_dim(x, wide, tuple(range(last + 1))) for x in lines]
    theirs = [g.broadcast_in_dim(x, wide, (*range(last), last + 1)) for x in lines]

    def before(first, second):
        both = [x for pair in zip(first, second, strict=True) for x in pair]
        return spread(g, comparator, [*both, *fixed])[0]

    n = np.arange(shape[-1])
    earlier = g.broadcast_in_dim(g.constant(n[None, :] < n[:, None]), wide, (last, last + 1))
    ahead = g.or_(before(theirs, mine), g.and_(earlier, g.not_(before(mine, theirs))))
    return g.cast(g.reduce(g.cast(ahead, "float32"), kind="add", dimensions=last + 1), "int32")


REGIONS = (FoldToHalves, WindowByDoubling, SelectToTaps, SortByCounting)

__all__ = ["REGIONS", "by_element", "spread"]
