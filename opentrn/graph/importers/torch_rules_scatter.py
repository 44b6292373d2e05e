"""Torch rules: writing and combining at places, and at the Trues of a mask."""

from __future__ import annotations

import math
from typing import Any

from opentrn.graph.build import Builder
from opentrn.graph.importers.torch_rules import refuse, torch_op
from opentrn.graph.importers.torch_rules_elementwise import div_mode
from opentrn.graph.importers.torch_rules_index import index_put, scattered
from opentrn.graph.importers.torch_types import broadcast_shape
from opentrn.graph.ir import Value

KINDS = {"sum": "add", "add": "add", "mean": "add", "prod": "multiply", "multiply": "multiply",
         "amax": "maximum", "amin": "minimum"}


def _nothing(x: Value, kind: str) -> Any:
    """What changes nothing when combined."""
    if kind in ("add", "multiply"):
        return 0 if kind == "add" else 1
    lowest = kind == "maximum"
    if x.dtype.kind == "float":
        return -math.inf if lowest else math.inf
    return x.dtype.min if lowest else x.dtype.max


@torch_op("aten::scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, "
          "bool include_self=True) -> Tensor")
def scatter_reduce(g: Builder, self: Value, dim: int, index: Value, src: Value, reduce: str,
                   include_self: bool = True) -> Value:
    """self with src combined in where `gather` would read; what was there counts, or not."""
    kind = KINDS[reduce]
    if self.dtype.kind == "bool":
        raise refuse(f"scatter_reduce by {reduce} of bool", g.where, "convert it to int32")
    base = self
    if not include_self:
        base = scattered(g, self, dim, index, _nothing(self, kind), "set")
    total = scattered(g, base, dim, index, src, kind)
    if reduce != "mean":
        return total
    begin = g.full(self.shape, int(include_self), "int32")
    count = scattered(g, begin, dim, index, g.full(index.shape, 1, "int32"), "add")
    count = g.maximum(count, g.like(count, 1))
    return div_mode(g, total, g.cast(count, self.dtype),
                    None if self.dtype.kind == "float" else "floor")


@torch_op("aten::scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> "
          "Tensor")
def scatter_by(g: Builder, self: Value, dim: int, index: Value, src: Value, reduce: str) -> Value:
    """self with src added, or multiplied in, where `gather` would read."""
    return scattered(g, self, dim, index, src, KINDS[reduce])


@torch_op("aten::scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str "
          "reduce) -> Tensor")
def scatter_number_by(g: Builder, self: Value, dim: int, index: Value, value: Any,
                      reduce: str) -> Value:
    """self with a number added, or multiplied in, where `gather` would read."""
    return scattered(g, self, dim, index, value, KINDS[reduce])


@torch_op("aten::index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, "
          "bool include_self=True) -> Tensor")
def index_reduce(g: Builder, self: Value, dim: int, index: Value, source: Value, reduce: str,
                 include_self: bool = True) -> Value:
    """Whole slices of self along dim with those of source combined in."""
    if not self.rank:
        places = g.reshape(index, ())
    else:
        places = g.broadcast_in_dim(g.reshape(index, (index.size,)), source.shape,
                                    (dim % self.rank,))
    return scatter_reduce(g, self, dim, places, source, reduce, include_self)


@torch_op("aten::put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor")
def put(g: Builder, self: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    """self with source written, or added, at row-major places."""
    flat = g.reshape(self, (self.size,))
    made = index_put(g, flat, [index], g.reshape(source, index.shape), accumulate)
    return g.reshape(made, self.shape)


# ---------------------------------------------------------------------- masks


def _ranks(g: Builder, mask: Value) -> Value:
    """int32: how many Trues come before each place of a mask, in row-major order."""
    count = g.cast(mask, "int32")
    if not mask.rank:
        return g.like(count, 0)
    within = g.cumulative(count, "add", mask.rank - 1) - count
    if mask.rank == 1:
        return within
    rows = g.reshape(g.reduce(count, kind="add", dimensions=mask.rank - 1),
                     (mask.size // mask.shape[-1],))
    before = g.reshape(g.cumulative(rows, "add", 0) - rows, (*mask.shape[:-1], 1))
    return within + g.broadcast(before, mask.shape)


@torch_op("aten::masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor")
def masked_scatter(g: Builder, self: Value, mask: Value, source: Value) -> Value:
    """self with the elements of source, in order, where mask is True.

    Where source has too few elements, which PyTorch refuses, floats become NaN."""
    shape = broadcast_shape(self.shape, mask.shape)
    spread, held = g.broadcast(g.cast(mask, "bool"), shape), g.broadcast(self, shape)
    places = _ranks(g, spread)
    inside = g.minimum(places, g.like(places, source.size - 1))
    found = g.take(g.reshape(source, (source.size,)), inside, 0)
    if self.dtype.kind == "float":
        beyond = g.compare(places, g.like(places, source.size), direction="GE")
        found = g.select(beyond, g.like(found, math.nan), found)
    return g.select(spread, found, held)


@torch_op("aten::masked_scatter_backward(Tensor grad_output, Tensor mask, SymInt[] sizes) -> "
          "Tensor")
def masked_scatter_backward(g: Builder, grad_output: Value, mask: Value,
                            sizes: list[int]) -> Value:
    """The gradients where mask is True, in order, then 0."""
    count, total = math.prod(sizes), grad_output.size
    spread = g.broadcast(g.cast(mask, "bool"), grad_output.shape)
    ranks = _ranks(g, spread)
    places = g.reshape(g.select(spread, ranks, g.like(ranks, count)), (total, 1))
    made = g.scatter(g.full((count,), 0.0, grad_output.dtype), places,
                     g.reshape(grad_output, (total,)), kind="set", update_window_dims=(),
                     inserted_window_dims=(0,), scatter_dims=(0,), index_vector_dim=1)
    return g.reshape(made, tuple(sizes))
