"""Windows at places the data say: gather and scatter as rows of a matrix, one integer for each.

The axes on which a window is placed, or is narrower than the operand, are counted by one row number
in row-major order; what a row holds are the axes the window has whole.
"""

from dataclasses import dataclass

import numpy as np

from opentrn.graph import Builder, Pattern, PatternBuilder, Rule, Value, no

OUTSIDE = (1 << 31) - 1


@dataclass(frozen=True)
class Places:
    """Where the windows of a gather or scatter lie in an operand.

    `sizes` are those of a window on every axis; `mapped[n]` is the axis entry n of an index vector
    places; `batching` pairs axes with those of the indices; axes of `gone` are not in the windows.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    mapped: tuple[int, ...]
    batching: tuple[tuple[int, int], ...]
    gone: frozenset[int]
    vector: int

    @classmethod
    def of_gather(cls, gather: Value) -> "Places":
        """Those of a gather."""
        a = gather.attrs
        pairs = tuple(zip(a.operand_batching_dims, a.indices_batching_dims, strict=True))
        gone = frozenset({*a.collapsed_slice_dims, *a.operand_batching_dims})
        return cls(gather.args[0].shape, a.slice_sizes, a.start_index_map, pairs, gone,
                   a.index_vector_dim)  # fmt: skip

    @classmethod
    def of_scatter(cls, scatter: Value) -> "Places":
        """Those of a scatter."""
        a, (x, _, updates) = scatter.attrs, scatter.args
        pairs = tuple(zip(a.operand_batching_dims, a.indices_batching_dims, strict=True))
        gone = frozenset({*a.inserted_window_dims, *a.operand_batching_dims})
        rest = iter(updates.shape[axis] for axis in a.update_window_dims)
        sizes = tuple(1 if axis in gone else next(rest) for axis in range(x.rank))
        return cls(x.shape, sizes, a.scatter_dims, pairs, gone, a.index_vector_dim)

    @property
    def counted(self) -> tuple[int, ...]:
        """The axes that a row number counts."""
        batching = [axis for axis, _ in self.batching]
        return tuple(
            axis for axis, size in enumerate(self.shape)
            if axis in self.mapped or axis in batching or axis in self.gone
            or self.sizes[axis] != size
        )  # fmt: skip

    @property
    def whole(self) -> tuple[int, ...]:
        """The axes that a row holds."""
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.counted)

    @property
    def walked(self) -> tuple[int, ...]:
        """The counted axes on which a window has several places, or that stay in it."""
        return tuple(axis for axis in self.counted if axis not in self.gone)

    @property
    def count(self) -> int:
        """How many rows the operand has."""
        return int(np.prod([self.shape[axis] for axis in self.counted], dtype=int))

    def lookups(self) -> bool:
        """Whether each index is a row number already: one mapped axis, single places."""
        return self.counted == self.mapped and len(self.mapped) == 1 and not self.walked

    def rows(self, g: Builder, x: Value) -> Value:
        """The operand as a matrix [rows, what a row holds]."""
        return g.reshape(g.transpose(x, (*self.counted, *self.whole)), (self.count, -1))

    def numbers(self, g: Builder, indices: Value, push: bool) -> Value:
        """The row number of each place: the batch axes of the indices, then the walked axes.

        `push` moves windows inside; else places outside have the number OUTSIDE."""
        batch = [n for d, n in enumerate(indices.shape) if d != self.vector]
        full = (*batch, *(self.sizes[axis] for axis in self.walked))
        total, inside = None, None
        for axis in self.counted:
            at = self._corner(g, indices, axis, batch, full, push)
            if axis in self.walked:
                place = (len(batch) + self.walked.index(axis),)
                line = g.constant(np.arange(self.sizes[axis], dtype=np.int32))
                at = at + g.broadcast_in_dim(line, full, place)
            if axis in self.mapped and not push:
                held = _between(g, at, self.shape[axis])
                inside = held if inside is None else g.and_(inside, held)
            total = at if total is None else total * self.shape[axis] + at
        if total is None:
            total = g.full(full, 0, "int32")
        return total if inside is None else g.select(inside, total, g.like(total, OUTSIDE))

    def _corner(self, g: Builder, indices: Value, axis: int, batch, full, push: bool) -> Value:
        """Where the windows begin on a counted axis, for every place."""
        lead = tuple(range(len(batch)))
        sources = dict(self.batching)
        if axis in sources:
            line = g.constant(np.arange(self.shape[axis], dtype=np.int32))
            source = sources[axis]
            return g.broadcast_in_dim(line, full, (source - (source > self.vector),))
        if axis not in self.mapped:
            return g.full(full, 0, "int32")
        one = self._entry(g, indices, self.mapped.index(axis), batch)
        if push and not self.lookups():
            room = self.shape[axis] - self.sizes[axis]
            one = g.minimum(g.maximum(one, g.like(one, 0)), g.like(one, room))
        return g.broadcast_in_dim(g.cast(one, "int32"), full, lead)

    def _entry(self, g: Builder, indices: Value, entry: int, batch) -> Value:
        """One entry of every index vector, in at least 32 bits, as narrow integers may not hold the
        sizes; unsigned ones beyond int32 as its largest."""
        if self.vector < indices.rank:
            starts, limits = [0] * indices.rank, list(indices.shape)
            starts[self.vector], limits[self.vector] = entry, entry + 1
            cut = g.slice(indices, starts, limits, [1] * indices.rank)
            indices = g.reshape(cut, tuple(batch))
        if indices.dtype == "uint32":
            indices = g.minimum(indices, g.like(indices, OUTSIDE))
        return g.cast(indices, "int32") if indices.dtype.bits < 32 else indices


def _between(g: Builder, at: Value, size: int) -> Value:
    return g.and_(
        g.compare(at, g.like(at, 0), direction="GE"),
        g.compare(at, g.like(at, size), direction="LT"),
    )


class GatherToRows(Rule):
    """gather of windows by index vectors → rows of a matrix, one integer for each"""

    def find(p: PatternBuilder, x: Pattern, indices: Pattern) -> Pattern:
        return p.gather(x, indices, bind="gather")

    def when(x: Value, indices: Value, gather: Value) -> bool | no:
        a = gather.attrs
        single = a.index_vector_dim == indices.rank
        plain = x.rank == 2 and a.start_index_map == a.collapsed_slice_dims == (0,)
        whole = plain and single and a.slice_sizes == (1, x.shape[1])
        if whole and a.offset_dims == (gather.rank - 1,):
            return no("it takes rows of a matrix already")
        return gather.size > 0 or no("it has no elements")

    def make(g: Builder, x: Value, indices: Value, gather: Value) -> Value:
        places = Places.of_gather(gather)
        picked = places.numbers(g, indices, push=True)
        kept = tuple(x.shape[axis] for axis in places.whole)
        found = g.reshape(g.take(places.rows(g, x), picked), (*picked.shape, *kept))
        # Now: batch, walked axes, whole axes.  Windows have their axes in the operand's order.
        batch = picked.rank - len(places.walked)
        held = (*places.walked, *places.whole)
        windows = iter(batch + held.index(axis) for axis in sorted(held))
        batches = iter(range(batch))
        a = gather.attrs
        order = [
            next(windows) if axis in a.offset_dims else next(batches) for axis in range(gather.rank)
        ]
        return g.transpose(found, order)

    def sample(g: Builder) -> tuple[Value, ...]:
        x, ids = g.input("x", (4, 5, 6)), g.input("ids", (3, 2), "int32")
        pairs = g.input("pairs", (7, 2), "int32")
        both = {"collapsed_slice_dims": (0, 2), "start_index_map": (2, 0)}
        windows = {"start_index_map": (1, 0), "slice_sizes": (2, 3, 4), "index_vector_dim": 1}
        rows = {"operand_batching_dims": (0,), "indices_batching_dims": (1,)}
        return (
            g.take(x, ids),
            g.take(x, ids, axis=1),
            g.gather(x, pairs, offset_dims=(0,), index_vector_dim=1, slice_sizes=(1, 5, 1), **both),
            g.gather(x, pairs, offset_dims=(0, 2, 3), collapsed_slice_dims=(), **windows),
            g.gather(
                x, g.input("each", (3, 4), "int32"), offset_dims=(1, 2), collapsed_slice_dims=(),
                start_index_map=(2,), slice_sizes=(1, 5, 2), index_vector_dim=2, **rows,
            ),
        )  # fmt: skip

    def refuse(g: Builder) -> Value:
        return g.take(g.input("x", (4, 5)), g.input("ids", (3,), "int32"))


class ScatterToRows(Rule):
    """scatter of windows by index vectors → rows of a matrix, one integer for each"""

    def find(p: PatternBuilder, x: Pattern, indices: Pattern, updates: Pattern) -> Pattern:
        return p.scatter(x, indices, updates, bind="scatter")

    def when(x: Value, indices: Value, scatter: Value) -> bool | no:
        if writes_rows(scatter):
            return no("it writes rows of a matrix already")
        return (scatter.size > 0 and scatter.args[2].size > 0) or no("there is nothing to write")

    def make(g: Builder, x: Value, indices: Value, updates: Value, scatter: Value) -> Value:
        a, places = scatter.attrs, Places.of_scatter(scatter)
        ids = places.numbers(g, indices, push=False)
        batch = [n for n in range(updates.rank) if n not in a.update_window_dims]
        windows = dict(zip(sorted((*places.walked, *places.whole)), a.update_window_dims,
                           strict=True))  # fmt: skip
        order = (*batch, *(windows[axis] for axis in (*places.walked, *places.whole)))
        matrix = places.rows(g, x)
        given = g.reshape(g.transpose(updates, order), (ids.size, matrix.shape[1]))
        made = g.scatter(
            matrix, g.reshape(ids, (ids.size, 1)), given, kind=a.kind, update_window_dims=(1,),
            inserted_window_dims=(0,), scatter_dims=(0,), index_vector_dim=1,
        )  # fmt: skip
        order = (*places.counted, *places.whole)
        back = tuple(order.index(axis) for axis in range(x.rank))
        return g.transpose(g.reshape(made, tuple(x.shape[axis] for axis in order)), back)

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
        windows = g.scatter(
            x, ids, g.input("parts", (4, 2, 3, 2)), kind="maximum", update_window_dims=(1, 2, 3),
            inserted_window_dims=(), scatter_dims=(1,), index_vector_dim=1,
        )  # fmt: skip
        batched = g.scatter(
            x, g.input("each", (2, 4), "int32"), g.input("some", (2, 4, 3)), kind="add",
            update_window_dims=(2,), inserted_window_dims=(1,), scatter_dims=(1,),
            index_vector_dim=2, operand_batching_dims=(0,), indices_batching_dims=(0,),
        )  # fmt: skip
        return (
            columns, windows, batched, ScatterToRows._elements(g, "set"),
            ScatterToRows._elements(g, "set", "int32"), ScatterToRows._elements(g, "minimum"),
        )  # fmt: skip

    def refuse(g: Builder) -> Value:
        return g.scatter(
            g.input("x", (4, 5)), g.input("ids", (3, 1), "int32"), g.input("updates", (3, 5)),
            kind="add", update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims=(0,),
            index_vector_dim=1,
        )  # fmt: skip


def writes_rows(scatter: Value) -> bool:
    """Whether a scatter writes whole rows of a matrix, each at one 32-bit integer."""
    x, ids, updates = scatter.args
    a = scatter.attrs
    return (
        x.rank == updates.rank == 2
        and ids.shape == (updates.shape[0], 1)
        and a.index_vector_dim == 1
        and a.scatter_dims == a.inserted_window_dims == (0,)
        and a.update_window_dims == (1,)
        and updates.shape[1] == x.shape[1]
        and ids.dtype in ("int32", "int64")
    )


WINDOWS = (GatherToRows, ScatterToRows)

__all__ = ["WINDOWS", "Places", "writes_rows"]
