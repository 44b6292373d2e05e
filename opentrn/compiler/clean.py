"""Cleaning: fold what is known, drop what does nothing, and undo what frameworks spell out."""

import numpy as np

from opentrn.graph import (
    ATTENTION,
    CLEAN,
    RECOGNISE,
    Builder,
    Data,
    Graph,
    Pattern,
    PatternBuilder,
    Rule,
    Value,
    carriers,
    fold,
    no,
    remake,
    rewrite,
    run,
    splat_of,
)


class AndTrue(Rule):
    """x and true → x"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.and_(x, p.splat("flag"))

    def when(x: Value, flag: Value) -> bool | no:
        if x.dtype.kind != "bool":
            return no("the operands are bit patterns, not flags")
        return splat_of(flag) == 1.0 or no("the other operand is false")

    def make(g: Builder, x: Value) -> Value:
        return x

    def sample(g: Builder) -> Value:
        return g.and_(g.input("x", (3, 4), "bool"), g.full((3, 4), True, "bool"))

    def refuse(g: Builder) -> Value:
        return g.and_(g.input("x", (3, 4), "bool"), g.full((3, 4), False, "bool"))


class SelectKnown(Rule):
    """select by one truth known beforehand → the operand it picks"""

    def find(p: PatternBuilder, truth: Pattern, x: Pattern, y: Pattern) -> Pattern:
        return p.select(truth, x, y)

    def when(truth: Value) -> bool | no:
        return splat_of(truth) is not None or no("the truth is not the same everywhere, or known")

    def make(g: Builder, truth: Value, x: Value, y: Value) -> Value:
        return x if splat_of(truth) else y

    def sample(g: Builder) -> tuple[Value, ...]:
        x, y = g.input("x", (2, 3)), g.input("y", (2, 3))
        yes, no_ = g.full((2, 3), True, "bool"), g.full((2, 3), False, "bool")
        return g.select(yes, x, y), g.select(no_, x, y)

    def refuse(g: Builder) -> Value:
        x = g.input("x", (2, 3))
        return g.select(g.input("truth", (2, 3), "bool"), x, x * 2.0)


class BroadcastTwice(Rule):
    """broadcast(broadcast(x)) → one broadcast"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.broadcast_in_dim(p.broadcast_in_dim(x, bind="inner"), bind="outer")

    def make(g: Builder, x: Value, inner: Value, outer: Value) -> Value:
        axes = tuple(outer.attrs.dimensions[a] for a in inner.attrs.dimensions)
        return g.broadcast_in_dim(x, outer.shape, axes)

    def sample(g: Builder) -> Value:
        inner = g.broadcast_in_dim(g.input("x", (3,)), (2, 3), (1,))
        return g.broadcast_in_dim(inner, (4, 2, 3), (1, 2))


def _numbers(value: Value) -> np.ndarray | None:
    """A constant's array, folded through what does nothing to its numbers."""
    if value.op == "constant":
        return value.attrs.data.array
    return None


def _picks_in_order(x: Value, indices: np.ndarray, gather: Value) -> bool:
    """Whether the gather takes single elements of leading axes in row-major order, all of them."""
    a = gather.attrs
    lead = len(a.start_index_map)
    plain = (
        a.start_index_map == tuple(range(lead))
        and a.collapsed_slice_dims == tuple(range(lead))
        and a.slice_sizes == (*(1,) * lead, *x.shape[lead:])
        and a.index_vector_dim == indices.ndim - 1
        and not a.operand_batching_dims
    )
    if not plain:
        return False
    wanted = np.stack(np.meshgrid(*map(np.arange, x.shape[:lead]), indexing="ij"), -1)
    return np.array_equal(indices.reshape(-1, lead), wanted.reshape(-1, lead))


class GatherEverything(Rule):
    """gather that takes every element in its place → reshape (masks indexed by iotas)"""

    def find(p: PatternBuilder, x: Pattern, indices: Pattern) -> Pattern:
        return p.gather(x, indices, bind="gather")

    def when(x: Value, indices: Value, gather: Value) -> bool | no:
        numbers = _numbers(indices)
        if numbers is None or x.size != gather.size:
            return no("the indices are not known, or not every element is taken once")
        return _picks_in_order(x, numbers, gather) or no("the elements change places")

    def make(g: Builder, x: Value, gather: Value) -> Value:
        return g.reshape(x, gather.shape)

    def _gather(g: Builder, rows: list[list[int]]) -> Value:
        x = g.input("x", (2, 3), "float32")
        indices = g.constant(np.array(rows, np.int64).reshape(2, 1, 3, 2))
        return g.gather(
            x,
            indices,
            offset_dims=(),
            collapsed_slice_dims=(0, 1),
            start_index_map=(0, 1),
            index_vector_dim=3,
            slice_sizes=(1, 1),
        )

    def sample(g: Builder) -> Value:
        return GatherEverything._gather(g, [[b, t] for b in range(2) for t in range(3)])

    def refuse(g: Builder) -> Value:
        return GatherEverything._gather(g, [[b, 2 - t] for b in range(2) for t in range(3)])


class GatherRepeated(Rule):
    """rows looked up by repeated indices → rows looked up once, repeated"""

    def find(p: PatternBuilder, table: Pattern, indices: Pattern) -> Pattern:
        return p.gather(table, p.broadcast_in_dim(indices, bind="spread"), bind="gather")

    def when(table: Value, spread: Value, gather: Value) -> bool | no:
        a = gather.attrs
        rows = (
            a.start_index_map == a.collapsed_slice_dims == (0,)
            and a.slice_sizes == (1, *table.shape[1:])
            and a.index_vector_dim == spread.rank
            and a.offset_dims == tuple(range(spread.rank, gather.rank))
            and not a.operand_batching_dims
        )
        return rows or no("it does not take whole rows of the first axis")

    def make(g: Builder, table: Value, indices: Value, spread: Value, gather: Value) -> Value:
        once = g.take(table, indices)
        axes = (*spread.attrs.dimensions, *range(spread.rank, gather.rank))
        return g.broadcast_in_dim(once, gather.shape, axes)

    def sample(g: Builder) -> tuple[Value, ...]:
        table, row = g.input("table", (4, 5)), g.input("row", (3,), "int32")
        one = g.input("one", (), "int32")
        return (
            g.take(table, g.broadcast_in_dim(row, (2, 3), (1,))),
            g.take(table, g.broadcast_in_dim(one, (2, 3), ())),
        )

    def refuse(g: Builder) -> Value:
        table, row = g.input("table", (5, 4)), g.input("row", (3,), "int32")
        return g.take(table, g.broadcast_in_dim(row, (2, 3), (1,)), axis=1)


class RotateHalf(Rule):
    """join(-a, b) · table → join(a, b) · table with signs: rotary positions negate nothing"""

    private = True

    def find(p: PatternBuilder, a: Pattern, b: Pattern, table: Pattern) -> Pattern:
        joined = p.concatenate(p.negate(a), b, bind="joined")
        return joined * p.broadcast_in_dim(table, bind="spread")

    def when(a: Value, table: Value, joined: Value, spread: Value) -> bool | no:
        if table.op != "constant" or table.attrs.data.array is None:
            return no("the table is not known")
        axis = joined.attrs.dimension
        if axis not in spread.attrs.dimensions:
            return no("the table is the same along the joined axis")
        whole = table.shape[spread.attrs.dimensions.index(axis)] == joined.shape[axis]
        return whole or no("the table is repeated along the joined axis")

    def make(g: Builder, a: Value, b: Value, table: Value, joined: Value, spread: Value) -> Value:
        axis = joined.attrs.dimension
        place = spread.attrs.dimensions.index(axis)
        signs = np.ones(table.shape, np.float32)
        signs[(*(slice(None),) * place, slice(0, a.shape[axis]))] = -1.0
        signed = table * g.cast(g.constant(signs), table.dtype)
        wide = g.broadcast_in_dim(signed, spread.shape, spread.attrs.dimensions)
        return g.concatenate(a, b, dimension=axis) * wide

    def _rotated(g: Builder, shape: tuple[int, ...]) -> Value:
        a, b = g.input("a", (2, 3, 4)), g.input("b", (2, 3, 4))
        table = g.constant(np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape))
        joined = g.concatenate(g.negate(a), b, dimension=2)
        return joined * g.broadcast_in_dim(table, (2, 3, 8), (1, 2))

    def sample(g: Builder) -> Value:
        return RotateHalf._rotated(g, (3, 8))

    def refuse(g: Builder) -> Value:
        return RotateHalf._rotated(g, (3, 1))


class OneDevice(Rule):
    """where an array lies among devices → nothing: a compiled program has one core"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.sharding_constraint(x)

    def make(g: Builder, x: Value) -> Value:
        return x

    def sample(g: Builder) -> Value:
        return g.sharding_constraint(g.input("x", (4, 6)), "a=2 b=3", "a b")


class PadNothing(Rule):
    """pad of an array without elements → the filling, everywhere"""

    def find(p: PatternBuilder, x: Pattern, filling: Pattern) -> Pattern:
        return p.pad(x, filling, bind="grown")

    def when(x: Value, grown: Value) -> bool | no:
        return (not x.size and grown.size > 0) or no("there are elements")

    def make(g: Builder, filling: Value, grown: Value) -> Value:
        return g.broadcast(filling, grown.shape)

    def _grown(g: Builder, size: int) -> Value:
        return g.pad(g.input("x", (2, size)), g.input("y", ()), (0, 1), (1, 2), (0, 0))

    def sample(g: Builder) -> Value:
        return PadNothing._grown(g, 0)

    def refuse(g: Builder) -> Value:
        return PadNothing._grown(g, 1)


class SumOfNothing(Rule):
    """a product over an axis without elements → zeros"""

    def find(p: PatternBuilder, x: Pattern, y: Pattern) -> Pattern:
        return p.dot_general(x, y, bind="product")

    def when(x: Value, product: Value) -> bool | no:
        return (not x.size and product.size > 0) or no("there is something to sum")

    def make(g: Builder, product: Value) -> Value:
        return g.like(product, 0)

    def sample(g: Builder) -> Value:
        return g.matmul(g.input("x", (2, 0)), g.input("y", (0, 3)))

    def refuse(g: Builder) -> Value:
        return g.matmul(g.input("x", (2, 1)), g.input("y", (1, 3)))


def without_empty(graph: Graph) -> Graph:
    """The graph with every value that has no elements as a constant that has none."""

    def change(value: Value, args: tuple[Value, ...]) -> Value:
        new = remake(value, args)
        empty = 0 in getattr(new, "shape", ()) and new.op not in ("input", "constant")
        if not empty:
            return new
        return Builder(new.where).constant(
            Data.of(np.zeros(new.shape, carriers.storage(new.dtype)), new.dtype))  # fmt: skip

    return graph.rebuild(change)


RULES = (
    *CLEAN, *RECOGNISE, *ATTENTION,
    AndTrue, SelectKnown, BroadcastTwice, GatherEverything, GatherRepeated, RotateHalf,
    OneDevice, PadNothing, SumOfNothing,
)  # fmt: skip

# Ops that only lay numbers out; on constants they are done once, on the host.
LAYOUT_OPS = {"concatenate", "convert", "gather", "reshape", "reverse", "slice", "transpose"}


def clean(graph: Graph, notes: list) -> Graph:
    """Constants folded and rules applied until nothing changes."""
    graph = rewrite(fold(without_empty(graph)), RULES, notes)
    return rewrite(fold(graph), RULES, notes)


def _absent(value: Value) -> Data:
    """What a layout op makes of constants without numbers: another, named by what it is."""
    names = [a.attrs.data.name or a.attrs.data.digest for a in value.args]
    name = f"{', '.join(names)}, {value.op} {value.attrs.attributes}"
    return Data.absent(name, value.dtype, value.shape)


def lay_out(graph: Graph) -> Graph:
    """The graph with layout ops on constants done now, whatever their size."""

    def change(value: Value, args: tuple[Value, ...]) -> Value:
        new = remake(value, args)
        if value.op not in LAYOUT_OPS or not args or any(a.op != "constant" for a in args):
            return new
        if any(a.attrs.data.array is None for a in args):
            return Builder(value.where).constant(_absent(new))
        held = [carriers.enter(a.attrs.data.array, a.dtype) for a in args]
        array = carriers.leave(run(new, *held), new.dtype)
        return Builder(value.where).constant(Data.of(np.ascontiguousarray(array), new.dtype))

    return graph.rebuild(change)
