"""Rules that find composites where a framework spelled them out, and say more about attention."""

from __future__ import annotations

import math

import numpy as np

from opentrn.graph import carriers
from opentrn.graph.build import Builder
from opentrn.graph.ir import Value
from opentrn.graph.rules import Pattern, PatternBuilder, Rule, no, splat_of


class FindLogistic(Rule):
    """1 / (1 + exp(-x)) → logistic(x), as JAX spells it"""

    private = True

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.splat("one") / (p.exponential(p.negate(x)) + p.splat("added"))

    def when(x: Value, one: Value, added: Value) -> bool | no:
        ones = splat_of(one) == 1.0 == splat_of(added) and x.dtype.kind == "float"
        return ones or no("one of the numbers is not 1, or they are complex")

    def make(g: Builder, x: Value) -> Value:
        return g.logistic(x)

    def _spelled(g: Builder, one: float, added: float) -> Value:
        x = g.input("x", (4, 50))
        return g.like(x, one) / (g.like(x, added) + g.exponential(g.negate(x)))

    def sample(g: Builder) -> Value:
        return FindLogistic._spelled(g, 1.0, 1.0)

    def refuse(g: Builder) -> tuple[Value, ...]:
        return FindLogistic._spelled(g, 2.0, 1.0), FindLogistic._spelled(g, 1.0, 1.5)


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


class FindGelu(Rule):
    """x · ½·(1 + tanh(√(2/π)·(x + 0.044715·x³))) → gelu(x), as JAX spells it"""

    private = True

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        inner = x + p.splat("share") * (x * x * x)
        return x * (p.splat("half") * (p.splat("one") + p.tanh(p.splat("root") * inner)))

    def when(half: Value, one: Value, root: Value, share: Value) -> bool | no:
        return _numbers_of_gelu(half, one, root, share)

    def make(g: Builder, x: Value) -> Value:
        return g.gelu(x, approximate=True)

    def _spelled(g: Builder, half: float, share: float) -> Value:
        x = g.input("x", (4, 50))
        inner = x + x * x * x * share
        return x * ((g.tanh(inner * math.sqrt(2 / math.pi)) + 1.0) * half)

    def sample(g: Builder) -> Value:
        return FindGelu._spelled(g, 0.5, 0.044715)

    def refuse(g: Builder) -> tuple[Value, ...]:
        return FindGelu._spelled(g, 1.0, 0.044715), FindGelu._spelled(g, 0.5, 0.045)


class FindGeluOfPower(Rule):
    """½·x · (1 + tanh(√(2/π)·(x + 0.044715·x³))) → gelu(x), as TensorFlow spells it"""

    private = True

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        inner = x + p.splat("share") * p.power(x, p.splat("three"))
        return p.splat("half") * x * (p.splat("one") + p.tanh(p.splat("root") * inner))

    def when(half: Value, one: Value, root: Value, share: Value, three: Value) -> bool | no:
        known = _numbers_of_gelu(half, one, root, share)
        return known if splat_of(three) == 3.0 else no("it is not the third power")

    def make(g: Builder, x: Value) -> Value:
        return g.gelu(x, approximate=True)

    def _spelled(g: Builder, power: float) -> Value:
        x = g.input("x", (4, 50))
        inner = x + g.power(x, g.like(x, power)) * 0.044715
        return x * 0.5 * (g.tanh(inner * math.sqrt(2 / math.pi)) + 1.0)

    def sample(g: Builder) -> Value:
        return FindGeluOfPower._spelled(g, 3.0)

    def refuse(g: Builder) -> Value:
        return FindGeluOfPower._spelled(g, 2.0)


def _numbers_of_gelu(half: Value, one: Value, root: Value, share: Value) -> bool | no:
    wanted = (0.5, 1.0, math.sqrt(2 / math.pi), 0.044715)
    known = all(map(_close, (half, one, root, share), wanted))
    return known or no("its numbers are not those of GELU")


class FindSoftmax(Rule):
    """exp(x - max x) / Σ exp(x - max x) → softmax(x), as JAX and TensorFlow spell it"""

    private = True

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        top = p.reduce(x, kind="maximum", bind="top")
        grown = p.exponential(x - p.broadcast_in_dim(top, bind="down"))
        total = p.reduce(grown, kind="add", bind="total")
        return grown / p.broadcast_in_dim(total, bind="across")

    def when(x: Value, top: Value, total: Value, down: Value, across: Value) -> bool | no:
        axes = top.attrs.dimensions
        if len(axes) != 1 or total.attrs.dimensions != axes:
            return no("maximum and sum are not along one axis")
        kept = tuple(a for a in range(x.rank) if a != axes[0])
        plain = down.attrs.dimensions == kept == across.attrs.dimensions
        return plain or no("maximum or sum is spread along another axis")

    def make(g: Builder, x: Value, top: Value) -> Value:
        return g.softmax(x, axis=top.attrs.dimensions[0])

    def _spelled(g: Builder, over: int, along: int) -> Value:
        x = g.input("x", (4, 4, 4))
        kept = tuple(a for a in range(3) if a != along)
        top = g.reduce(x, kind="maximum", dimensions=over)
        grown = g.exponential(x - g.broadcast_in_dim(top, shape=x.shape, dimensions=kept))
        total = g.reduce(grown, kind="add", dimensions=over)
        return grown / g.broadcast_in_dim(total, shape=x.shape, dimensions=kept)

    def sample(g: Builder) -> Value:
        return FindSoftmax._spelled(g, 1, 1)

    def refuse(g: Builder) -> Value:
        return FindSoftmax._spelled(g, 1, 2)


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


class SeeCausal(Rule):
    """attention with a known mask that hides exactly the future → causal attention"""

    def find(p: PatternBuilder, q: Pattern, k: Pattern, v: Pattern, mask: Pattern) -> Pattern:
        return p.attention(q, k, v, mask, causal=False, bind="whole")

    def when(q: Value, k: Value, mask: Value) -> bool | no:
        while mask.op == "broadcast_in_dim" and mask.args[0].rank == mask.rank:
            mask = mask.args[0]  # repeated over batch and heads
        if mask.op != "constant" or mask.attrs.data.array is None:
            return no("the mask is not known")
        if mask.shape[-2:] != (q.shape[-2], k.shape[-2]):
            return no("the mask is repeated over positions")
        return _hides_the_future(mask) or no("the mask does not hide exactly the future")

    def make(g: Builder, q: Value, k: Value, v: Value, whole: Value) -> Value:
        return g.attention(q, k, v, causal=True, scale=whole.attrs.scale)

    def _spelled(g: Builder, mask: np.ndarray) -> Value:
        q, k = g.input("q", (2, 3, 4, 5)), g.input("k", (2, 3, 4, 5))
        return g.attention(q, k, g.input("v", (2, 3, 4, 6)), g.constant(mask))

    def sample(g: Builder) -> tuple[Value, ...]:
        seen = np.tri(4, dtype=np.bool_)[None, None]
        added = np.where(seen, 0, np.finfo(np.float32).min)
        return SeeCausal._spelled(g, seen), SeeCausal._spelled(g, np.float32(added))

    def refuse(g: Builder) -> tuple[Value, ...]:
        seen = np.tri(4, k=1, dtype=np.bool_)[None, None]
        soft = np.float32(np.where(np.tri(4), 0, -9.0))[None, None]
        return SeeCausal._spelled(g, seen), SeeCausal._spelled(g, soft)


NEVER = -1e30  # added to a score of any model, its exponential is exactly 0


def _hides_the_future(mask: Value) -> bool:
    array = carriers.enter(mask.attrs.data.array, mask.dtype)
    seen = np.tri(*array.shape[-2:], dtype=np.bool_)
    if mask.dtype == "bool":
        return bool((array == seen).all())
    return bool(np.where(seen, array == 0, array <= NEVER).all())


class GroupHeads(Rule):
    """attention on keys and values repeated for each query head → grouped heads, read once"""

    def find(p: PatternBuilder, q: Pattern, k: Pattern, v: Pattern) -> Pattern:
        keys = p.reshape(p.broadcast_in_dim(p.reshape(k), bind="spread_keys"))
        values = p.reshape(p.broadcast_in_dim(p.reshape(v), bind="spread_values"))
        return p.attention(q, keys, values, bind="whole")

    def when(q: Value, k: Value, v: Value, spread_keys: Value,
             spread_values: Value) -> bool | no:
        repeated = _repeats_heads(k, spread_keys, q) and _repeats_heads(v, spread_values, q)
        return repeated or no("what is repeated is not each head in turn")

    def make(g: Builder, q: Value, k: Value, v: Value, whole: Value) -> Value:
        return g.attention(q, k, v, causal=whole.attrs.causal, scale=whole.attrs.scale)

    def _spelled(g: Builder, axis: int) -> Value:
        q = g.input("q", (2, 6, 4, 5))
        heads = []
        for name in ("k", "v"):
            x = g.input(name, (2, 3, 4, 5))
            lone = g.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))
            wide = tuple(2 if i == axis else n for i, n in enumerate(lone.shape))
            heads.append(g.reshape(g.broadcast(lone, wide), (2, 6, 4, 5)))
        return g.attention(q, *heads)

    def sample(g: Builder) -> Value:
        return GroupHeads._spelled(g, 2)

    def refuse(g: Builder) -> Value:
        return GroupHeads._spelled(g, 1)


class GroupMaskedHeads(Rule):
    """the same for attention with a mask"""

    def find(p: PatternBuilder, q: Pattern, k: Pattern, v: Pattern, mask: Pattern) -> Pattern:
        keys = p.reshape(p.broadcast_in_dim(p.reshape(k), bind="spread_keys"))
        values = p.reshape(p.broadcast_in_dim(p.reshape(v), bind="spread_values"))
        return p.attention(q, keys, values, mask, bind="whole")

    def when(q: Value, k: Value, v: Value, spread_keys: Value,
             spread_values: Value) -> bool | no:
        return GroupHeads.when(q, k, v, spread_keys, spread_values)

    def make(g: Builder, q: Value, k: Value, v: Value, mask: Value, whole: Value) -> Value:
        return g.attention(q, k, v, mask, causal=whole.attrs.causal, scale=whole.attrs.scale)

    def sample(g: Builder) -> Value:
        plain = GroupHeads._spelled(g, 2)
        return g.attention(*plain.args, g.input("mask", (2, 1, 4, 4), "bool"))

    def refuse(g: Builder) -> Value:
        plain = GroupHeads._spelled(g, 1)
        return g.attention(*plain.args, g.input("mask", (2, 1, 4, 4), "bool"))


def _repeats_heads(x: Value, spread: Value, q: Value) -> bool:
    """Whether […, G, S, D] became […, G, times, S, D] and then as many heads as q has."""
    if x.rank != q.rank or x.rank < 3:
        return False
    *lead, heads, places, width = x.shape
    lone, times = spread.args[0].shape, q.shape[-3] // heads
    return (lone == (*lead, heads, 1, places, width)
            and spread.shape == (*lead, heads, times, places, width)
            and spread.attrs.dimensions == tuple(range(len(lone))))


RECOGNISE = (
    FindLogistic, FindSilu, FindGelu, FindGeluOfPower, FindSoftmax, FindRmsNorm, NarrowRmsNorm,
    WeighRmsNorm, FindMaskedAttention, FindAttention,
)

# For back ends whose attention takes `causal` and fewer key heads than query heads.
ATTENTION = (SeeCausal, GroupHeads, GroupMaskedHeads)
