"""Order and places: sorts along the last axis, the k largest, empty reductions, fillings."""

from opentrn.compiler.spell import MOST_PASSES
from opentrn.graph import Builder, Pattern, PatternBuilder, Rule, Value, no, splat_of


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


class WriteNothing(Rule):
    """dynamic_update_slice of no elements → x"""

    def find(p: PatternBuilder) -> Pattern:
        return p.dynamic_update_slice(bind="written")

    def when(written: Value) -> bool | no:
        return not written.args[1].size or no("something is written")

    def make(g: Builder, written: Value) -> Value:
        return written.args[0]

    def _written(g: Builder, size: int) -> Value:
        x, update = g.input("x", (4,)), g.input("update", (size,))
        return g.dynamic_update_slice(x, update, g.input("at", (), "int32"))

    def sample(g: Builder) -> Value:
        return WriteNothing._written(g, 0)

    def refuse(g: Builder) -> Value:
        return WriteNothing._written(g, 2)


class PadUnknown(Rule):
    """pad by a number the data say → by zeros, and that number where the zeros are"""

    def find(p: PatternBuilder, x: Pattern, filling: Pattern) -> Pattern:
        return p.pad(x, filling, bind="grown")

    def when(x: Value, filling: Value) -> bool | no:
        return (splat_of(filling) is None and x.size > 0) or no("it is known when compiled")

    def make(g: Builder, x: Value, filling: Value, grown: Value) -> Value:
        a = grown.attrs

        def padded(v: Value) -> Value:
            return g.pad(v, g.full((), 0, v.dtype), a.low, a.high, a.interior)

        here = padded(g.full(x.shape, True, "bool"))
        return g.select(here, padded(x), g.broadcast(filling, grown.shape))

    def sample(g: Builder) -> Value:
        return g.pad(g.input("x", (2, 3)), g.input("y", ()), (1, -1), (0, 2), (0, 1))

    def refuse(g: Builder) -> Value:
        return g.pad(g.input("x", (2, 3)), g.full((), 2.0), (1, 0), (0, 2), (0, 1))


class TotalOrderToIntegers(Rule):
    """comparison in IEEE 754's total order → of integers: bits that fall as floats rise, turned"""

    def find(p: PatternBuilder, x: Pattern, y: Pattern) -> Pattern:
        return p.compare_total_order(x, y, bind="truth")

    def when(x: Value) -> bool | no:
        return x.dtype.bits <= 32 or no("the chip has no 64-bit floats")

    def make(g: Builder, x: Value, y: Value, truth: Value) -> Value:
        def key(v: Value) -> Value:
            bits = g.bitcast_convert(g.cast(v, "float32"), "int32")
            sign = g.shift_right_arithmetic(bits, g.like(bits, 31))
            return g.xor(bits, g.and_(sign, g.like(bits, 0x7FFFFFFF)))

        return g.compare(key(x), key(y), truth.attrs.direction)

    def _compared(g: Builder, kind: str, direction: str = "LT") -> Value:
        x, y = g.input("x", (40,), kind), g.input("y", (40,), kind)
        zeros = g.like(x, 0.0)
        return g.compare_total_order(g.concatenate(x, zeros, dimension=0),
                                     g.concatenate(y, g.negate(zeros), dimension=0), direction)

    def sample(g: Builder) -> tuple[Value, ...]:
        return tuple(
            TotalOrderToIntegers._compared(g, kind, direction)
            for kind in ("float32", "bfloat16") for direction in ("LT", "GE", "EQ")
        )  # fmt: skip

    def refuse(g: Builder) -> Value:
        return TotalOrderToIntegers._compared(g, "float64")


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


PLACES = (ReduceNothing, WriteNothing, PadUnknown, TotalOrderToIntegers, SortOverLast, TopKToSort)

__all__ = ["PLACES"]
