"""Torch rules: running extremes and sums of exponentials, distances between rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opentrn.graph.build import Builder
from opentrn.graph.importers.torch_rules import torch_op
from opentrn.graph.importers.torch_rules_reduce import vector_norm
from opentrn.graph.importers.torch_types import broadcast_shape, floated
from opentrn.graph.ir import Value

# ---------------------------------------------------------------------- running


def _extreme(g: Builder, x: Value, dim: int, kind: str) -> tuple[Value, Value]:
    """The extreme of the elements so far, and the last place that holds it; NaN is one."""
    if not x.rank:
        return x, g.full((), 0, "int64")
    held = g.cast(x, "int32") if x.dtype.kind == "bool" else x
    best = g.cumulative(held, kind, dim)
    here = g.compare(held, best, direction="EQ")
    if held.dtype.kind == "float":
        here = g.or_(here, g.compare(held, held, direction="NE"))
    place = g.iota(x.shape, dim % x.rank, "int32")
    last = g.cumulative(g.select(here, place, g.like(place, 0)), "maximum", dim)
    return g.cast(best, x.dtype), g.cast(last, "int64")


@torch_op("aten::cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)")
def cummax(g: Builder, self: Value, dim: int) -> tuple[Value, Value]:
    """The largest of the elements so far along dim, and where it is."""
    return _extreme(g, self, dim, "maximum")


@torch_op("aten::cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)")
def cummin(g: Builder, self: Value, dim: int) -> tuple[Value, Value]:
    """The smallest of the elements so far along dim, and where it is."""
    return _extreme(g, self, dim, "minimum")


def _log_of_sum(g: Builder, a: Value, b: Value) -> Value:
    """log(eᵃ + eᵇ), the larger taken out."""
    high, low = g.maximum(a, b), g.minimum(a, b)
    same = g.compare(high, low, direction="EQ")  # infinities have no difference
    apart = g.select(same, g.like(high, 0.0), low - high)
    return high + g.log_plus_one(g.exponential(apart))


@torch_op("aten::logcumsumexp(Tensor self, int dim) -> Tensor",
          "aten::_logcumsumexp(Tensor self, int dim) -> Tensor")
def logcumsumexp(g: Builder, self: Value, dim: int) -> Value:
    """log of the sum of the exponentials so far along dim, doubling the reach step by step."""
    if not self.rank:
        return self
    axis, total = dim % self.rank, g.cast(self, floated(self.dtype))
    total = g.cast(total, "float32") if total.dtype.bits < 32 else total
    nothing, reach = g.full((), -math.inf, total.dtype), 1
    while reach < self.shape[axis]:
        shift = [reach if a == axis else 0 for a in range(self.rank)]
        before = g.pad(total, nothing, shift, [-n for n in shift])
        total, reach = _log_of_sum(g, total, before), 2 * reach
    return g.cast(total, floated(self.dtype))


# ---------------------------------------------------------------------- distances


def _slope(g: Builder, apart: Value, distance: Value, p: float) -> Value:
    """The derivative of (Σ |apart|ᵖ)^(1/p), which is `distance`, by each difference; 0 at 0."""
    sign = g.sign(apart)
    if p == 0:
        return g.like(apart, 0.0)
    if p == 1:
        return sign
    if math.isinf(p):
        farthest = g.compare(g.abs(apart), distance, direction="EQ")
        return g.select(farthest, sign, g.like(sign, 0.0))
    nowhere = g.compare(apart, g.like(apart, 0.0), direction="EQ")
    safe = g.select(nowhere, g.like(apart, 1.0), g.abs(apart) / distance)
    share = safe if p == 2 else g.power(safe, g.like(safe, p - 1))
    return g.select(nowhere, g.like(apart, 0.0), sign * share)


def _apart(g: Builder, x1: Value, x2: Value) -> Value:
    """Differences of every row of x1 […, P, M] and every row of x2 […, R, M]: […, P, R, M]."""
    lead = broadcast_shape(x1.shape[:-2], x2.shape[:-2])
    shape = (*lead, x1.shape[-2], x2.shape[-2], x1.shape[-1])
    rows = g.reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
    others = g.reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))
    return g.broadcast(rows, shape) - g.broadcast(others, shape)


@torch_op("aten::_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor")
def cdist(g: Builder, x1: Value, x2: Value, p: float, compute_mode: int | None) -> Value:
    """The p-norm of the difference of every two rows; never by a product, which would cancel."""
    return vector_norm(g, _apart(g, x1, x2), p, [-1])


@torch_op("aten::_cdist_backward(Tensor grad, Tensor x1, Tensor x2, float p, Tensor cdist) -> "
          "Tensor")
def cdist_backward(g: Builder, grad: Value, x1: Value, x2: Value, p: float,
                   cdist: Value) -> Value:
    """What the distances of each row of x1 say of it."""
    apart = _apart(g, x1, x2)
    far, slope = (g.broadcast(g.reshape(v, (*v.shape, 1)), apart.shape) for v in (cdist, grad))
    return g.sum(_slope(g, apart, far, p) * slope, (apart.rank - 2,))


def _pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of each pair, in torch's order."""
    first, second = np.triu_indices(count, 1)
    return first.astype(np.int32), second.astype(np.int32)


@torch_op("aten::_pdist_forward(Tensor self, float p=2.) -> Tensor")
def pdist(g: Builder, self: Value, p: float = 2) -> Value:
    """The p-norm of the difference of each pair of rows."""
    first, second = (g.take(self, g.constant(rows), 0) for rows in _pairs(self.shape[0]))
    return vector_norm(g, first - second, p, [-1])


@torch_op("aten::_pdist_backward(Tensor grad, Tensor self, float p, Tensor pdist) -> Tensor")
def pdist_backward(g: Builder, grad: Value, self: Value, p: float, pdist: Value) -> Value:
    """What the distances of each row's pairs say of it: a product with who is in which pair."""
    first, second = _pairs(self.shape[0])
    apart = g.take(self, g.constant(first), 0) - g.take(self, g.constant(second), 0)
    far, slope = (g.broadcast_in_dim(v, apart.shape, (0,)) for v in (pdist, grad))
    rows = np.arange(self.shape[0])
    member = np.equal.outer(rows, first).astype(np.float32) - np.equal.outer(rows, second)
    kind: Any = g.cast(g.constant(member.astype(np.float32)), self.dtype)
    return g.matmul(kind, _slope(g, apart, far, p) * slope)
