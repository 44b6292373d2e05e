"""Order and places: sorts along the last axis, scattered windows as rows, empty reductions."""

import numpy as np

from opentrn.compiler.spell import MOST_PASSES, one_index
from opentrn.graph import Builder, Pattern, PatternBuilder, Rule, Value, no


class ReduceNothing(Rule):
    """reduce over no axes → x"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.reduce(x, bind="total")

    def when(total: Value) -> bool | no:
        return not total.attrs.dimensions or no("it is over an axis")

    def make(g: Builder, x: Value, total: Value) -> Value:
        return x

    def sample(g: Builder) -> tuple[Value, ...]:
        x = g.input("x", (2, 3))
        return tuple(g.reduce(x, kind=kind, dimensions=()) for kind in ("add", "maximum"))

    def refuse(g: Builder) -> Value:
        return g.reduce(g.input("x", (2, 3)), kind="add", dimensions=1)


class SortOverLast(Rule):
    """sort along another axis → along the last, of a transposed view; of bool as integers"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.sort(x, bind="sorted")

    def when(x: Value, sorted: Value) -> bool | no:
        plain = sorted.attrs.dimension == x.rank - 1 and x.dtype.kind != "bool"
        return not plain or no("it is along the last axis already")

    def make(g: Builder, x: Value, sorted: Value) -> Value:
        a = sorted.attrs
        order = [n for n in range(x.rank) if n != a.dimension] + [a.dimension]
        turned = g.cast(x, "int32") if x.dtype.kind == "bool" else x
        made = g.sort(g.transpose(turned, order), x.rank - 1, a.descending, a.part)
        return g.cast(g.transpose(made, [order.index(n) for n in range(x.rank)]), sorted.dtype)

    def sample(g: Builder) -> tuple[Value, ...]:
        x, flags = g.input("x", (3, 4, 5)), g.input("flags", (3, 4), "bool")
        return (
            g.sort(x, 1), g.sort(x, 0, True), g.sort(x, 1, False, "indices"), g.sort(flags, 1),
            g.sort(flags, 0, True, "indices"),
        )  # fmt: skip

    def refuse(g: Builder) -> Value:
        return g.sort(g.input("x", (3, 4)), 1)


class TopKToSort(Rule):
    """the k largest of many, or of integers → the first k of the falling order"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.top_k(x, bind="best")

    def when(x: Value, best: Value) -> bool | no:
        few = x.dtype.kind == "float" and 1 <= best.attrs.k <= MOST_PASSES
        return not few or no(f"k is {best.attrs.k}: TopKToPasses")

    def make(g: Builder, x: Value, best: Value) -> Value:
        a = best.attrs
        made = g.sort(x, x.rank - 1, True, a.part)
        return g.slice(made, [0] * x.rank, list(best.shape), [1] * x.rank)

    def sample(g: Builder) -> tuple[Value, ...]:
        x, n = g.input("x", (2, 30)), g.input("n", (3, 9), "int32")
        return g.top_k(x, 20), g.top_k(x, 20, "indices"), g.top_k(n, 2)

    def refuse(g: Builder) -> Value:
        return g.top_k(g.input("x", (3, 9)), 3)


def _whole_windows(scatter: Value) -> bool | no:
    """Whether each index vector names whole slices."""
    x, _, updates = scatter.args
    a = scatter.attrs
    if a.kind not in ("set", "add"):
        return no(f"rows are set or added to, not combined by {a.kind}")
    if a.operand_batching_dims:
        return no("it has batching axes")
    if set(a.scatter_dims) != set(a.inserted_window_dims):
        return no("a mapped axis is part of the window")
    rest = [n for axis, n in enumerate(x.shape) if axis not in a.inserted_window_dims]
    sizes = [updates.shape[axis] for axis in a.update_window_dims]
    return rest == sizes or no("it writes windows, not whole slices")


class ScatterToRows(Rule):
    """scatter of slices by index vectors → rows of a matrix, one integer for each

    A row of the matrix behind the last takes what is written outside."""

    def find(p: PatternBuilder, x: Pattern, indices: Pattern, updates: Pattern) -> Pattern:
        return p.scatter(x, indices, updates, bind="scatter")

    def when(x: Value, indices: Value, scatter: Value) -> bool | no:
        plain = x.rank == 2 and indices.rank == 2 and indices.shape[1] == 1
        if plain and scatter.attrs.scatter_dims == (0,) and scatter.attrs.index_vector_dim == 1:
            return no("it writes rows of a matrix already")
        return scatter.size > 0 and indices.size > 0 and _whole_windows(scatter)

    def make(g: Builder, x: Value, indices: Value, updates: Value, scatter: Value) -> Value:
        a = scatter.attrs
        mapped = a.scatter_dims
        rest = tuple(axis for axis in range(x.rank) if axis not in mapped)
        order = (*mapped, *rest)
        rows = int(np.prod([x.shape[axis] for axis in mapped], dtype=int))
        matrix = g.reshape(g.transpose(x, order), (rows, -1))
        ids = _held(g, indices, a, [x.shape[axis] for axis in mapped], rows)
        batch = tuple(n for n in range(updates.rank) if n not in a.update_window_dims)
        moved = g.transpose(updates, (*batch, *a.update_window_dims))
        given = g.reshape(moved, (ids.size, matrix.shape[1]))
        spare = g.pad(matrix, g.full((), 0, x.dtype), low=(0, 0), high=(1, 0), interior=(0, 0))
        made = g.scatter(
            spare, g.reshape(ids, (ids.size, 1)), given, kind=a.kind, update_window_dims=(1,),
            inserted_window_dims=(0,), scatter_dims=(0,), index_vector_dim=1,
        )  # fmt: skip
        kept = g.slice(made, (0, 0), matrix.shape, (1, 1))
        back = tuple(order.index(axis) for axis in range(x.rank))
        return g.transpose(g.reshape(kept, tuple(x.shape[axis] for axis in order)), back)

    def _elements(g: Builder, kind: str, dtype: str = "float32") -> Value:
        x, places = g.input("x", (4, 5), dtype), g.input("places", (3, 2), "int32")
        return g.scatter(
            x, places, g.input("updates", (3,), dtype), kind=kind, update_window_dims=(),
            inserted_window_dims=(0, 1), scatter_dims=(0, 1), index_vector_dim=1,
        )  # fmt: skip

    def sample(g: Builder) -> tuple[Value, ...]:
        x, ids = g.input("x", (2, 6, 3)), g.input("ids", (4, 1), "int32")
        columns = g.scatter(
            x, ids, g.input("updates", (2, 4, 3)), kind="add", update_window_dims=(0, 2),
            inserted_window_dims=(1,), scatter_dims=(1,), index_vector_dim=1,
        )  # fmt: skip
        return (
            columns, ScatterToRows._elements(g, "set"),
            ScatterToRows._elements(g, "set", "int32"),
        )  # fmt: skip

    def refuse(g: Builder) -> Value:
        return ScatterToRows._elements(g, "maximum")


def _held(g: Builder, indices: Value, a, sizes: list[int], rows: int) -> Value:
    """Row numbers of index vectors, `rows` for those that lie outside."""
    wide = g.cast(indices, "int32")
    axis, fits = a.index_vector_dim, None
    for n, size in enumerate(sizes):
        one = wide
        if axis < indices.rank:
            starts, limits = [0] * wide.rank, list(wide.shape)
            starts[axis], limits[axis] = n, n + 1
            cut = g.slice(wide, starts, limits, [1] * wide.rank)
            one = g.reshape(cut, tuple(k for d, k in enumerate(wide.shape) if d != axis))
        inside = g.and_(
            g.compare(one, g.like(one, 0), direction="GE"),
            g.compare(one, g.like(one, size), direction="LT"),
        )
        fits = inside if fits is None else g.and_(fits, inside)
    picked = one_index(g, wide, a, sizes)
    return g.select(fits, picked, g.like(picked, rows))


PLACES = (ReduceNothing, SortOverLast, TopKToSort, ScatterToRows)

__all__ = ["PLACES"]
