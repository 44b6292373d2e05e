"""Scaled dot-product attention, kept whole so that a back end can use one fused kernel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from opentrn.graph.ops import functions
from opentrn.graph.ops.composite import Composite, widen
from opentrn.graph.ops.define import Type, Wrong, count, floating, same_dtype

if TYPE_CHECKING:
    from opentrn.graph.build import Builder
    from opentrn.graph.ir import Value


class Attention(Composite):
    """softmax(scale · Q Kᵀ + mask) V over the last two axes (positions, features).

    Q is […, H, T, D], K […, G, S, D], V […, G, S, E]; H is a multiple of G, and query head h reads
    key head h·G/H.  A bool mask says where to look, any other is added to the scores; its sizes
    may be 1.  `causal` lets query t see keys 0…t.  A query that may see nothing gives 0.
    `scale` 0 stands for 1/√D.  Scores and weights stay in float32; the result is rounded once."""

    operands = ("query", "key", "value", "mask?")
    law = ("query […, H, T, D], key […, G, S, D], value […, G, S, E] have one float dtype; G "
           "divides H; mask broadcasts to […, H, T, S]")
    causal: bool = False
    scale: float = 0.0

    def settle(self, query: Type, *rest: Type) -> Attention:
        if self.scale or not query.shape:
            return self
        return Attention(self.causal, 1.0 / math.sqrt(max(query.shape[-1], 1)))

    def result(self, query: Type, key: Type, value: Type, *mask: Type) -> Type:
        floating(query)
        same_dtype(query, key, value)
        rank = len(query.shape)
        if rank < 2 or len(key.shape) != rank or len(value.shape) != rank:
            raise Wrong("query, key and value need equally many axes, at least 2")
        if query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
            raise Wrong("query and key differ in features, or key and value in positions")
        if query.shape[:-3] != key.shape[:-3] or (rank > 2 and (
                not key.shape[-3] or query.shape[-3] % key.shape[-3])):
            raise Wrong("batch sizes differ, or key heads do not divide query heads")
        if mask:
            self._check_mask(self.score_shape(query, key), query, mask[0])
        return Type((*query.shape[:-1], value.shape[-1]), query.dtype)

    @staticmethod
    def _check_mask(scores: tuple[int, ...], query: Type, mask: Type) -> None:
        if mask.dtype.kind != "bool":
            same_dtype(query, mask)
        if len(mask.shape) != len(scores) or any(
                m not in (1, s) for m, s in zip(mask.shape, scores, strict=True)):
            raise Wrong(f"mask {list(mask.shape)} does not broadcast to {list(scores)}",
                        fix="reshape it to as many axes as the query")

    @staticmethod
    def score_shape(query: Type, key: Type) -> tuple[int, ...]:
        """[…, H, T, S]"""
        return (*query.shape[:-1], key.shape[-2])

    def evaluate(self, out: Type, query: np.ndarray, key: np.ndarray, value: np.ndarray,
                 *mask: np.ndarray) -> np.ndarray:
        key, value = (repeated(x, query) for x in (key, value))
        grown, total = self.exponentials(query, key, *mask)
        return np.matmul(grown, value) / total

    def exponentials(self, query: np.ndarray, key: np.ndarray,
                     *mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """exp(scores - their maximum) for as many key heads as query heads, and its sums along the
        keys, 1 where they are 0."""
        scores = np.matmul(query, np.swapaxes(key, -1, -2)) * query.dtype.type(self.scale)
        if mask and mask[0].dtype == np.bool_:
            scores = np.where(mask[0], scores, -np.inf)
        elif mask:
            scores = scores + mask[0]
        if self.causal:
            seen = np.tri(*scores.shape[-2:], dtype=np.bool_)
            scores = np.where(seen, scores, -np.inf)
        scores = scores.astype(query.dtype)
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        grown = functions.exp(scores - np.where(np.isneginf(top), 0, top).astype(query.dtype))
        total = grown.sum(axis=-1, keepdims=True, dtype=query.dtype)
        return grown, np.where(total == 0, 1, total).astype(query.dtype)

    def pairs(self, query: Type, key: Type) -> int:
        """How many (query, key) pairs may see each other, over all heads; a mask is not counted."""
        rows, columns = query.shape[-2], key.shape[-2]
        seen = rows * columns
        if self.causal:
            full = max(rows - columns, 0)
            rising = rows - full
            seen = rising * (rising + 1) // 2 + full * columns
        return count(query.shape[:-2]) * seen

    def flops(self, out: Type, query: Type, key: Type, value: Type, *mask: Type) -> int:
        # per pair: two multiply-add lines; scale, mask, maximum, subtract, exponential, sum
        each = 2 * query.shape[-1] + 2 * value.shape[-1] + 5 + len(mask)
        return self.pairs(query, key) * each + out.size

    def decompose(self, g: Builder, query: Value, key: Value, value: Value,
                  *mask: Value) -> Value:
        """Two dot_general around an exponential, dividing by the sum last."""
        q, k, v = (widen(g, x) for x in (query, key, value))
        k, v = (_repeat_heads(g, x, q) for x in (k, v))
        grown, total = self.spelled(g, q, k, *mask)
        mixed = _product(g, grown, v, q.rank - 2)
        divisor = g.broadcast_in_dim(total, shape=mixed.shape, dimensions=tuple(range(q.rank - 1)))
        return g.cast(mixed / divisor, query.dtype)

    def spelled(self, g: Builder, q: Value, k: Value, *mask: Value) -> tuple[Value, Value]:
        """`exponentials` as primitive ops; the sums without the last axis."""
        scores = self._masked(g, _product(g, q, k, q.rank - 1) * self.scale, *mask)
        lines = tuple(range(scores.rank - 1))
        top = g.reduce(scores, kind="maximum", dimensions=-1)
        top = g.select(g.compare(top, -np.inf, direction="EQ"), g.like(top, 0.0), top)
        grown = g.exponential(scores - g.broadcast_in_dim(
            top, shape=scores.shape, dimensions=lines))
        total = g.reduce(grown, kind="add", dimensions=-1)
        return grown, g.select(g.compare(total, 0.0, direction="EQ"), g.like(total, 1.0), total)

    def _masked(self, g: Builder, scores: Value, *mask: Value) -> Value:
        if mask:
            full = g.broadcast(mask[0], scores.shape)
            if full.dtype == "bool":
                scores = g.select(full, scores, g.like(scores, -np.inf))
            else:
                scores = scores + widen(g, full)
        if self.causal:
            rank = scores.rank
            row = g.iota(shape=scores.shape, dimension=rank - 2, dtype="int32")
            column = g.iota(shape=scores.shape, dimension=rank - 1, dtype="int32")
            seen = g.compare(row, column, direction="GE")
            scores = g.select(seen, scores, g.like(scores, -np.inf))
        return scores


class AttentionGradient(Attention):
    """The gradient of an attention's query, key or value (`part`), where `grad` is its result's.

    With P its weights and dP = grad·Vᵀ:  dV = Pᵀ·grad, dS = P·(dP - rowsum(grad·out)),
    dQ = scale·dS·K, dK = scale·dSᵀ·Q; those of a key head are summed over the query heads that
    read it.  A query that may see nothing has gradient 0.  Everything stays in float32; the result
    is rounded once.  The three parts of one gradient are computed together by a compiler."""

    operands = ("query", "key", "value", "out", "grad", "mask?")
    law = ("query […, H, T, D], key […, G, S, D], value […, G, S, E] have one float dtype, out and "
           "grad […, H, T, E] too; G divides H; mask broadcasts to […, H, T, S]")
    choices: ClassVar = {"part": ("query", "key", "value")}
    part: str = "query"

    def settle(self, query: Type, *rest: Type) -> AttentionGradient:
        plain = super().settle(query)
        return AttentionGradient(plain.causal, plain.scale, self.part)

    def forward(self) -> Attention:
        """The attention whose gradient this is."""
        return Attention(self.causal, self.scale)

    def result(self, query: Type, key: Type, value: Type, out: Type, grad: Type,
               *mask: Type) -> Type:
        made = self.forward().result(query, key, value, *mask)
        for name, given in (("out", out), ("grad", grad)):
            if given != made:
                raise Wrong(f"{name} is {given}, the result of the attention {made}")
        return {"query": query, "key": key, "value": value}[self.part]

    def evaluate(self, out: Type, query: np.ndarray, key: np.ndarray, value: np.ndarray,
                 done: np.ndarray, grad: np.ndarray, *mask: np.ndarray) -> np.ndarray:
        keys, values = (repeated(x, query) for x in (key, value))
        grown, total = self.exponentials(query, keys, *mask)
        weights = grown / total
        if self.part == "value":
            return folded(np.matmul(np.swapaxes(weights, -1, -2), grad), value)
        worth = np.matmul(grad, np.swapaxes(values, -1, -2))
        drift = (grad * done).sum(axis=-1, keepdims=True, dtype=query.dtype)
        slopes = weights * (worth - drift) * query.dtype.type(self.scale)
        if self.part == "query":
            return np.matmul(slopes, keys)
        return folded(np.matmul(np.swapaxes(slopes, -1, -2), query), key)

    def flops(self, out: Type, query: Type, key: Type, value: Type, *rest: Type) -> int:
        # per pair: scores and their exponentials, then one product for dV, or dP and another
        width = query.shape[-1] + value.shape[-1]
        each = 2 * query.shape[-1] + 6 + (len(rest) > 2)
        each += 2 * value.shape[-1] if self.part == "value" else 2 * width + 3
        return self.pairs(query, key) * each

    def decompose(self, g: Builder, query: Value, key: Value, value: Value, out: Value,
                  grad: Value, *mask: Value) -> Value:
        """The formulas, with weights from `spelled`."""
        q, k, v, done, slope = (widen(g, x) for x in (query, key, value, out, grad))
        keys, values = (_repeat_heads(g, x, q) for x in (k, v))
        grown, total = self.spelled(g, q, keys, *mask)
        lines = tuple(range(q.rank - 1))
        weights = grown / g.broadcast_in_dim(total, shape=grown.shape, dimensions=lines)
        order = (*range(q.rank - 2), q.rank - 1, q.rank - 2)
        if self.part == "value":
            made = _product(g, g.transpose(weights, order), slope, q.rank - 2)
            return g.cast(_fold_heads(g, made, value), value.dtype)
        drift = g.reduce(slope * done, kind="add", dimensions=-1)
        worth = _product(g, slope, values, q.rank - 1)
        moved = worth - g.broadcast_in_dim(drift, shape=worth.shape, dimensions=lines)
        slopes = weights * moved * self.scale
        if self.part == "query":
            return g.cast(_product(g, slopes, keys, q.rank - 2), query.dtype)
        made = _product(g, g.transpose(slopes, order), q, q.rank - 2)
        return g.cast(_fold_heads(g, made, key), key.dtype)


def repeated(x: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Each key head once for every query head that reads it."""
    if query.ndim < 3 or x.shape[-3] == query.shape[-3]:
        return x
    return np.repeat(x, query.shape[-3] // x.shape[-3], axis=-3)


def folded(grad: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Gradients for each query head summed for the key head it reads."""
    if x.ndim < 3 or x.shape[-3] == grad.shape[-3]:
        return grad
    *lead, heads, places, width = x.shape
    parts = grad.reshape(*lead, heads, -1, places, width)
    return parts.sum(axis=-3, dtype=grad.dtype)


def _product(g: Builder, x: Value, y: Value, over: int) -> Value:
    """x times y for each batch, over the last axis of x and axis `over` of y."""
    lead = tuple(range(x.rank - 2))
    return g.dot_general(x, y, lhs_contracting=x.rank - 1, rhs_contracting=over,
                         lhs_batch=lead, rhs_batch=lead)


def _fold_heads(g: Builder, grad: Value, x: Value) -> Value:
    """`folded` as primitive ops."""
    if x.rank < 3 or x.shape[-3] == grad.shape[-3]:
        return grad
    *lead, heads, places, width = x.shape
    parts = g.reshape(grad, (*lead, heads, -1, places, width))
    return g.reduce(parts, kind="add", dimensions=len(lead) + 1)


def _repeat_heads(g: Builder, x: Value, query: Value) -> Value:
    """Each key head once for every query head that reads it."""
    if x.rank < 3 or x.shape[-3] == query.shape[-3]:
        return x
    lead, heads, tail = x.shape[:-3], x.shape[-3], x.shape[-2:]
    times = query.shape[-3] // heads
    axes = (*range(len(lead) + 1), len(lead) + 2, len(lead) + 3)
    spread = g.broadcast_in_dim(x, shape=(*lead, heads, times, *tail), dimensions=axes)
    return g.reshape(spread, (*lead, heads * times, *tail))
