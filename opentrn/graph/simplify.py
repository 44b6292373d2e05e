"""Rules that hold for every back end: nothing done twice, nothing done for nothing, and composites
recognised where a framework spelled them out."""

from __future__ import annotations

import math

import numpy as np

from opentrn.graph import carriers
from opentrn.graph.build import Builder
from opentrn.graph.data import Data
from opentrn.graph.evaluate import run
from opentrn.graph.ir import Graph, Value, remake
from opentrn.graph.rules import Pattern, PatternBuilder, Rule, no, splat_of

FOLD_ELEMENTS = 1 << 16


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


class FindSilu(Rule):
    """x · logistic(x) → silu(x)"""

    private = True

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return x * p.logistic(x)

    def make(g: Builder, x: Value) -> Value:
        return g.silu(x)

    def sample(g: Builder) -> Value:
        x = g.input("x", (4, 50))
        return g.logistic(x) * x


def _close(value: Value, wanted: float) -> bool:
    found = splat_of(value)
    return found is not None and math.isclose(found, wanted, rel_tol=1e-6)


class FindRmsNorm(Rule):
    """x · rsqrt(Σx²·(1/n) + ε) → rms_norm(x), as Llama-like models spell it"""

    private = True

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        total = p.reshape(p.reduce(x * x, kind="add", bind="total"))
        root = p.rsqrt(total * p.splat("share") + p.splat("epsilon"))
        return x * p.broadcast_in_dim(root)

    def when(x: Value, total: Value, share: Value) -> bool | no:
        last = x.rank - 1
        if total.attrs.dimensions != (last,):
            return no("the sum is not over the last axis")
        return _close(share, 1.0 / x.shape[last]) or no("the sum is not divided by its count")

    def make(g: Builder, x: Value, epsilon: Value) -> Value:
        return g.rms_norm(x, axis=-1, epsilon=splat_of(epsilon))

    def _spelled(g: Builder, over: int, share: float) -> Value:
        x = g.input("x", (2, 4, 4))
        root = g.rsqrt(g.sum(x * x, over, keep=True) * share + 1e-6)
        return x * g.broadcast(root, x.shape)

    def sample(g: Builder) -> Value:
        return FindRmsNorm._spelled(g, 2, 0.25)

    def refuse(g: Builder) -> tuple[Value, ...]:
        return FindRmsNorm._spelled(g, 1, 0.25), FindRmsNorm._spelled(g, 2, 0.5)


class NarrowRmsNorm(Rule):
    """convert(rms_norm(convert(x))) → rms_norm(x): it computes in float32 and rounds once anyway"""

    private = True

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.convert(p.rms_norm(p.convert(x), bind="norm"), bind="outer")

    def when(x: Value, norm: Value, outer: Value) -> bool | no:
        narrow = x.dtype == outer.dtype and x.dtype.kind == "float" and norm.dtype == "float32"
        return narrow or no("it does not go through float32 and back")

    def make(g: Builder, x: Value, norm: Value) -> Value:
        return g.rms_norm(x, axis=norm.attrs.axis, epsilon=norm.attrs.epsilon)

    def _spelled(g: Builder, kind: str) -> Value:
        return g.convert(g.rms_norm(g.convert(g.input("x", (3, 16), "bfloat16"), "float32")), kind)

    def sample(g: Builder) -> Value:
        return NarrowRmsNorm._spelled(g, "bfloat16")

    def refuse(g: Builder) -> Value:
        return NarrowRmsNorm._spelled(g, "float16")


class WeighRmsNorm(Rule):
    """weight · rms_norm(x) → rms_norm(x, weight); narrow floats are rounded once, not twice"""

    private = True
    tolerance = 2.0 ** -7

    def find(p: PatternBuilder, x: Pattern, weight: Pattern) -> Pattern:
        return p.broadcast_in_dim(weight, bind="wide") * p.rms_norm(x, bind="norm")

    def when(x: Value, weight: Value, wide: Value, norm: Value) -> bool | no:
        axes = tuple(range(norm.attrs.axis, x.rank))
        plain = wide.attrs.dimensions == axes and weight.shape == x.shape[norm.attrs.axis:]
        return plain or no("the weight is not one number for each place on the normalised axes")

    def make(g: Builder, x: Value, weight: Value, norm: Value) -> Value:
        return g.rms_norm(x, weight, axis=norm.attrs.axis, epsilon=norm.attrs.epsilon)

    def _spelled(g: Builder, kind: str, axis: int) -> Value:
        x, weight = g.input("x", (4, 4), kind), g.input("weight", (4,), kind)
        return g.broadcast_in_dim(weight, (4, 4), (axis,)) * g.rms_norm(x)

    def sample(g: Builder) -> tuple[Value, ...]:
        return WeighRmsNorm._spelled(g, "float32", 1), WeighRmsNorm._spelled(g, "bfloat16", 1)

    def refuse(g: Builder) -> Value:
        return WeighRmsNorm._spelled(g, "float32", 0)


class FindMaskedAttention(Rule):
    """softmax(q·kᵀ · scale + mask) · v, spelled out → attention"""

    private = True
    tolerance = 1e-5

    def find(p: PatternBuilder, q: Pattern, turned: Pattern, v: Pattern, mask: Pattern) -> Pattern:
        scores = p.dot_general(q, turned, bind="scores") * p.splat("scale")
        return p.dot_general(p.softmax(scores + mask, bind="weights"), v, bind="mixed")

    def when(q: Value, scores: Value, weights: Value, mixed: Value) -> bool | no:
        return _is_attention(q, scores, weights, mixed)

    def make(g: Builder, q: Value, turned: Value, v: Value, mask: Value, scale: Value) -> Value:
        return g.attention(q, _swapped(g, turned), v, mask, scale=splat_of(scale))

    def _spelled(g: Builder, axis: int) -> Value:
        scores, v = _scores(g)
        return g.matmul(g.softmax(scores + g.input("mask", (2, 3, 4, 4)), axis), v)

    def sample(g: Builder) -> Value:
        return FindMaskedAttention._spelled(g, -1)

    def refuse(g: Builder) -> Value:
        return FindMaskedAttention._spelled(g, -2)


class FindAttention(Rule):
    """softmax(q·kᵀ · scale) · v, spelled out → attention"""

    private = True
    tolerance = 1e-5

    def find(p: PatternBuilder, q: Pattern, turned: Pattern, v: Pattern) -> Pattern:
        scores = p.dot_general(q, turned, bind="scores") * p.splat("scale")
        return p.dot_general(p.softmax(scores, bind="weights"), v, bind="mixed")

    def when(q: Value, scores: Value, weights: Value, mixed: Value) -> bool | no:
        return _is_attention(q, scores, weights, mixed)

    def make(g: Builder, q: Value, turned: Value, v: Value, scale: Value) -> Value:
        return g.attention(q, _swapped(g, turned), v, scale=splat_of(scale))

    def _spelled(g: Builder, axis: int) -> Value:
        scores, v = _scores(g)
        return g.matmul(g.softmax(scores, axis), v)

    def sample(g: Builder) -> Value:
        return FindAttention._spelled(g, -1)

    def refuse(g: Builder) -> Value:
        return FindAttention._spelled(g, -2)


def _scores(g: Builder) -> tuple[Value, Value]:
    """Scaled scores of a small attention, and its values."""
    q, k, v = g.input("q", (2, 3, 4, 5)), g.input("k", (2, 3, 5, 4)), g.input("v", (2, 3, 4, 5))
    return g.matmul(q, k) * 0.5, v


def _swapped(g: Builder, x: Value) -> Value:
    return g.transpose(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))


def _is_attention(q: Value, scores: Value, weights: Value, mixed: Value) -> bool | no:
    last, lead = q.rank - 1, tuple(range(q.rank - 2))
    plain = q.rank >= 2 and all(
        (d.attrs.lhs_contracting, d.attrs.rhs_contracting) == ((last,), (last - 1,))
        and d.attrs.lhs_batch == d.attrs.rhs_batch == lead for d in (scores, mixed))
    if not plain:
        return no("the products are not over features and positions")
    return weights.attrs.axis == last or no("softmax is not over the keys")


CLEAN = (
    ReshapeTwice, ReshapeNothing, TransposeTwice, TransposeNothing, ConvertNothing,
    ConvertThereAndBack, BroadcastNothing, SliceNothing, TimesOne, DivideOne, PlusZero,
    NegateTwice,
)
RECOGNISE = (
    FindSilu, FindRmsNorm, NarrowRmsNorm, WeighRmsNorm, FindMaskedAttention, FindAttention,
)


def fold(graph: Graph, elements: int = FOLD_ELEMENTS) -> Graph:
    """The graph with everything computed that depends on constants alone.

    Results of more than `elements` elements are left to be computed, and so are iota and repeated
    numbers, which cost nothing to make and much to store."""
    known: dict[Value, np.ndarray] = {}
    g = Builder()

    def change(value: Value, args: tuple[Value, ...]) -> Value:
        new = remake(value, args)
        if value.size > elements or not all(a in known for a in args):
            return new
        if new.op == "constant" and new.attrs.data.array is None:
            return new
        with np.errstate(all="ignore"):
            array = run(new, *(known[a] for a in args))
        made = new
        if new.op not in ("constant", "iota", "broadcast_in_dim"):
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
        return value.attrs.decompose(Builder(value.where), *args)
    return graph.rebuild(change)
