"""Scaled dot-product attention, kept whole so that a back end can use one fused kernel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

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
        if query.ndim > 2 and key.shape[-3] != query.shape[-3]:
            times = query.shape[-3] // key.shape[-3]
            key, value = np.repeat(key, times, axis=-3), np.repeat(value, times, axis=-3)
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
        weights = functions.exp(scores - np.where(np.isneginf(top), 0, top).astype(query.dtype))
        total = weights.sum(axis=-1, keepdims=True, dtype=query.dtype)
        return np.matmul(weights, value) / np.where(total == 0, 1, total).astype(query.dtype)

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
        lead = tuple(range(q.rank - 2))
        scores = g.dot_general(q, k, lhs_contracting=q.rank - 1, rhs_contracting=q.rank - 1,
                               lhs_batch=lead, rhs_batch=lead) * self.scale
        scores = self._masked(g, scores, *mask)
        lines = tuple(range(scores.rank - 1))
        top = g.reduce(scores, kind="maximum", dimensions=-1)
        top = g.select(g.compare(top, -np.inf, direction="EQ"), g.like(top, 0.0), top)
        weights = g.exponential(scores - g.broadcast_in_dim(
            top, shape=scores.shape, dimensions=lines))
        total = g.reduce(weights, kind="add", dimensions=-1)
        total = g.select(g.compare(total, 0.0, direction="EQ"), g.like(total, 1.0), total)
        mixed = g.dot_general(weights, v, lhs_contracting=q.rank - 1, rhs_contracting=q.rank - 2,
                              lhs_batch=lead, rhs_batch=lead)
        divisor = g.broadcast_in_dim(total, shape=mixed.shape, dimensions=lines)
        return g.cast(mixed / divisor, query.dtype)

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


def _repeat_heads(g: Builder, x: Value, query: Value) -> Value:
    """Each key head once for every query head that reads it."""
    if x.rank < 3 or x.shape[-3] == query.shape[-3]:
        return x
    lead, heads, tail = x.shape[:-3], x.shape[-3], x.shape[-2:]
    times = query.shape[-3] // heads
    axes = (*range(len(lead) + 1), len(lead) + 2, len(lead) + 3)
    spread = g.broadcast_in_dim(x, shape=(*lead, heads, times, *tail), dimensions=axes)
    return g.reshape(spread, (*lead, heads * times, *tail))
