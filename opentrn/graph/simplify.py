"""Rules that hold for every back end: nothing done twice, nothing done for nothing."""

from __future__ import annotations

import numpy as np

from opentrn.graph import carriers
from opentrn.graph.build import Builder
from opentrn.graph.data import Data
from opentrn.graph.evaluate import run
from opentrn.graph.ir import Graph, Value, relocate, remake
from opentrn.graph.ops.define import TupleType
from opentrn.graph.rules import Pattern, PatternBuilder, Rule, no, splat_of

FOLD_BYTES = 4 << 20
GENERATED = ("iota", "broadcast_in_dim")  # NumPy holds these as views, whatever their size


class ReshapeTwice(Rule):
    """reshape(reshape(x)) → reshape(x)"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.reshape(p.reshape(x), bind="outer")

    def make(g: Builder, x: Value, outer: Value) -> Value:
        return g.reshape(x, outer.shape)

    def sample(g: Builder) -> Value:
        return g.reshape(g.reshape(g.input("x", (4, 6)), (24,)), (3, 8))


class ReshapeNothing(Rule):
    """reshape to the shape it has → x"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.reshape(x, bind="outer")

    def when(x: Value, outer: Value) -> bool | no:
        return x.shape == outer.shape or no("the shape changes")

    def make(g: Builder, x: Value) -> Value:
        return x

    def sample(g: Builder) -> Value:
        return g.reshape(g.input("x", (4, 6)), (4, 6))

    def refuse(g: Builder) -> Value:
        return g.reshape(g.input("x", (4, 6)), (6, 4))


class TransposeTwice(Rule):
    """transpose(transpose(x)) → one transpose"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.transpose(p.transpose(x, bind="inner"), bind="outer")

    def make(g: Builder, x: Value, inner: Value, outer: Value) -> Value:
        first = inner.attrs.permutation
        return g.transpose(x, tuple(first[a] for a in outer.attrs.permutation))

    def sample(g: Builder) -> Value:
        return g.transpose(g.transpose(g.input("x", (2, 3, 4)), (1, 2, 0)), (0, 2, 1))


class TransposeNothing(Rule):
    """transpose that keeps the order → x"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.transpose(x, bind="outer")

    def when(x: Value, outer: Value) -> bool | no:
        return outer.attrs.permutation == tuple(range(x.rank)) or no("the order changes")

    def make(g: Builder, x: Value) -> Value:
        return x

    def sample(g: Builder) -> Value:
        return g.transpose(g.input("x", (2, 3)), (0, 1))

    def refuse(g: Builder) -> Value:
        return g.transpose(g.input("x", (3, 3)), (1, 0))


class ConvertNothing(Rule):
    """convert to the dtype it has → x"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.convert(x, bind="outer")

    def when(x: Value, outer: Value) -> bool | no:
        return x.dtype == outer.dtype or no("the dtype changes")

    def make(g: Builder, x: Value) -> Value:
        return x

    def sample(g: Builder) -> Value:
        return g.convert(g.input("x", (3,)), "float32")

    def refuse(g: Builder) -> Value:
        return g.convert(g.input("x", (3,)), "bfloat16")


class ConvertThereAndBack(Rule):
    """narrow → wide → narrow again → x: widening loses nothing"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.convert(p.convert(x, bind="inner"), bind="outer")

    def when(x: Value, inner: Value, outer: Value) -> bool | no:
        if x.dtype != outer.dtype:
            return no("it does not come back to the first dtype")
        holds = x.dtype.kind == inner.dtype.kind == "float" and (
            x.dtype.mantissa <= inner.dtype.mantissa and x.dtype.exponent <= inner.dtype.exponent)
        return holds or no(f"{inner.dtype} does not hold every {x.dtype}")

    def make(g: Builder, x: Value) -> Value:
        return x

    def sample(g: Builder) -> Value:
        return g.convert(g.convert(g.input("x", (9,), "bfloat16"), "float32"), "bfloat16")

    def refuse(g: Builder) -> Value:
        return g.convert(g.convert(g.input("x", (9,)), "bfloat16"), "float32")


class BroadcastNothing(Rule):
    """broadcast to the shape it has → x"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.broadcast_in_dim(x, bind="outer")

    def when(x: Value, outer: Value) -> bool | no:
        return x.shape == outer.shape or no("the shape changes")

    def make(g: Builder, x: Value) -> Value:
        return x

    def sample(g: Builder) -> Value:
        return g.broadcast_in_dim(g.input("x", (2, 3)), (2, 3), (0, 1))

    def refuse(g: Builder) -> Value:
        return g.broadcast_in_dim(g.input("x", (3,)), (2, 3), (1,))


class SliceNothing(Rule):
    """slice of everything → x"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.slice(x, bind="outer")

    def when(x: Value, outer: Value) -> bool | no:
        return x.shape == outer.shape or no("something is cut off")

    def make(g: Builder, x: Value) -> Value:
        return x

    def sample(g: Builder) -> Value:
        return g.slice(g.input("x", (4, 5)), (0, 0), (4, 5), (1, 1))

    def refuse(g: Builder) -> Value:
        return g.slice(g.input("x", (4, 5)), (0, 1), (4, 5), (1, 1))


class PadNowhere(Rule):
    """pad by nothing → x"""

    def find(p: PatternBuilder, x: Pattern, filling: Pattern) -> Pattern:
        return p.pad(x, filling, bind="outer")

    def when(x: Value, outer: Value) -> bool | no:
        added = (*outer.attrs.low, *outer.attrs.high, *outer.attrs.interior)
        return not any(added) or no("something is put beside or between")

    def make(g: Builder, x: Value) -> Value:
        return x

    def sample(g: Builder) -> Value:
        return g.pad(g.input("x", (4, 5)), g.input("y", ()), (0, 0), (0, 0), (0, 0))

    def refuse(g: Builder) -> Value:
        return g.pad(g.input("x", (4, 5)), g.input("y", ()), (0, 0), (0, 0), (0, 1))


class TimesOne(Rule):
    """x · 1 → x"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return x * 1.0

    def make(g: Builder, x: Value) -> Value:
        return x

    def sample(g: Builder) -> Value:
        return 1.0 * g.input("x", (4, 5))


class DivideOne(Rule):
    """x / 1 → x"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return x / 1.0

    def make(g: Builder, x: Value) -> Value:
        return x

    def sample(g: Builder) -> Value:
        return g.input("x", (4, 5)) / 1.0


class PlusZero(Rule):
    """x + 0 → x (a negative zero keeps its sign, which + 0 would take)"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return x + 0.0

    def make(g: Builder, x: Value) -> Value:
        return x

    def sample(g: Builder) -> Value:
        return g.input("x", (4, 5)) + 0.0


class NegateTwice(Rule):
    """-(-x) → x"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.negate(p.negate(x))

    def make(g: Builder, x: Value) -> Value:
        return x

    def sample(g: Builder) -> Value:
        return g.negate(g.negate(g.input("x", (4, 5))))


class MaximumWithLeast(Rule):
    """max(x, -∞) → x, as JAX guards the maximum of nothing"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.maximum(x, p.splat("least"))

    def when(x: Value, least: Value) -> bool | no:
        none = x.dtype.kind == "float" and splat_of(least) == -np.inf
        return none or no("something may be smaller")

    def make(g: Builder, x: Value) -> Value:
        return x

    def sample(g: Builder) -> Value:
        x = g.input("x", (4, 6))
        return g.maximum(g.like(x, -np.inf), x)

    def refuse(g: Builder) -> Value:
        return g.maximum(g.input("x", (4, 6)), 0.0)


CLEAN = (
    ReshapeTwice, ReshapeNothing, TransposeTwice, TransposeNothing, ConvertNothing,
    ConvertThereAndBack, BroadcastNothing, SliceNothing, PadNowhere, TimesOne, DivideOne, PlusZero,
    NegateTwice, MaximumWithLeast,
)


def fold(graph: Graph, most_bytes: int = FOLD_BYTES) -> Graph:
    """The graph with everything computed that depends on constants alone.

    Results of more than `most_bytes` bytes are left to be computed, and so are iota and repeated
    numbers, which cost nothing to make and much to store."""
    known: dict[Value, np.ndarray] = {}
    g = Builder()

    def change(value: Value, args: tuple[Value, ...]) -> Value:
        new = remake(value, args)
        large = value.nbytes > most_bytes and value.op not in GENERATED
        if large or not all(a in known for a in args):
            return new
        if new.op == "constant" and new.attrs.data.array is None:
            return new
        if new.attrs.regions or new.attrs.drawn or isinstance(new.type, TupleType):
            return new  # a loop may take long, and numbers drawn at random are drawn each time
        with np.errstate(all="ignore"):
            array = run(new, *(known[a] for a in args))
        made = new
        if new.op not in GENERATED and new.op != "constant":
            stored = carriers.leave(array, new.dtype)
            made = g.constant(Data.of(np.array(stored), new.dtype))
        known[made] = array
        return made
    return graph.rebuild(change)


def decompose(graph: Graph, keep: tuple[str, ...] = ()) -> Graph:
    """The graph with every composite op, except those in `keep`, in primitive ops."""
    def change(value: Value, args: tuple[Value, ...]) -> Value:
        if not value.attrs.composite or value.op in keep:
            return remake(value, args)
        parts = value.attrs.decompose(Builder(value.where), *args)
        relocate([parts], value.where)
        return parts
    return graph.rebuild(change)
