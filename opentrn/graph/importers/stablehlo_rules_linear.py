"""Rules for products, convolutions, transforms, gathers and normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from opentrn.base import DType
from opentrn.graph.build import Builder
from opentrn.graph.importers.stablehlo_call import Call, rule
from opentrn.graph.importers.stablehlo_mlir import pairs
from opentrn.graph.importers.stablehlo_rules_plain import known
from opentrn.graph.ir import Value


def alike(g: Builder, lhs: Value, rhs: Value, result: DType) -> tuple[Value, Value]:
    """Operands of one dtype: as they are if they agree, else both as the result's."""
    if lhs.dtype == rhs.dtype:
        return lhs, rhs
    return g.cast(lhs, result), g.cast(rhs, result)


@rule("stablehlo.dot_general")
def dot_general(call: Call) -> Value:
    """Sums of products."""
    from jaxlib.mlir.dialects import stablehlo
    at = stablehlo.DotDimensionNumbers(call.raw("dot_dimension_numbers"))
    lhs, rhs = alike(call.g, *call.args, call.result.dtype)
    return call.g.dot_general(
        lhs, rhs, at.lhs_contracting_dimensions, at.rhs_contracting_dimensions,
        at.lhs_batching_dimensions, at.rhs_batching_dimensions, call.result.dtype)


@rule("stablehlo.dot")
def dot(call: Call) -> Value:
    """Sums of products over the last axis of lhs and the first of rhs."""
    lhs, rhs = alike(call.g, *call.args, call.result.dtype)
    return call.g.dot_general(lhs, rhs, lhs.rank - 1, 0, dtype=call.result.dtype)


@rule("stablehlo.convolution", "stablehlo.dynamic_conv")
def convolution(call: Call) -> Value:
    """A convolution; groups of the batch one after the other."""
    from jaxlib.mlir.dialects import stablehlo
    at = stablehlo.ConvDimensionNumbers(call.raw("dimension_numbers"))
    lhs, rhs = call.args[:2]
    # Products of narrow numbers are exact in the result's dtype or wider.
    if lhs.dtype != rhs.dtype or lhs.dtype != call.result.dtype:
        lhs, rhs = (call.g.cast(x, call.result.dtype) for x in (lhs, rhs))
    spatial = len(at.input_spatial_dimensions)
    padding = known(call, call.args[2]).tolist() if len(call.args) > 2 else call.attr("padding")
    ones = (1,) * spatial
    turned = call.attr("window_reversal") or (False,) * spatial
    axes = [d for d, back in zip(at.kernel_spatial_dimensions, turned, strict=True) if back]
    if axes:
        rhs = call.g.reverse(rhs, axes)
    options = {
        "strides": call.attr("window_strides") or ones, "padding": pairs(padding, spatial),
        "lhs_dilation": call.attr("lhs_dilation") or ones,
        "rhs_dilation": call.attr("rhs_dilation") or ones,
        "groups": call.attr("feature_group_count"),
        "lhs_axes": (at.input_batch_dimension, at.input_feature_dimension,
                     *at.input_spatial_dimensions),
        "rhs_axes": (at.kernel_output_feature_dimension, at.kernel_input_feature_dimension,
                     *at.kernel_spatial_dimensions),
        "out_axes": (at.output_batch_dimension, at.output_feature_dimension,
                     *at.output_spatial_dimensions),
    }
    return _batches(call.g, lhs, rhs, call.attr("batch_group_count"), options)


def _batches(g: Builder, lhs: Value, rhs: Value, groups: int, options: dict[str, Any]) -> Value:
    """A convolution whose batch is in groups, each with its own part of the kernels."""
    made = []
    for number in range(groups):
        image, kernel = (
            _part(g, x, axis, number, groups) for x, axis in
            ((lhs, options["lhs_axes"][0]), (rhs, options["rhs_axes"][0])))
        made.append(_convolved(g, image, kernel, options))
    if groups == 1:
        return made[0]
    return g.concatenate(*made, dimension=options["out_axes"][1])


def _convolved(g: Builder, lhs: Value, rhs: Value, options: dict[str, Any]) -> Value:
    """One convolution; without spatial axes it gets one of size 1."""
    if lhs.rank > 2:
        return g.convolution(lhs, rhs, **options)
    lone = {"strides": (1,), "padding": ((0, 0),), "lhs_dilation": (1,), "rhs_dilation": (1,)}
    axes = {name: (*options[name], 2) for name in ("lhs_axes", "rhs_axes", "out_axes")}
    wide = [g.reshape(x, (*x.shape, 1)) for x in (lhs, rhs)]
    made = g.convolution(*wide, **(options | lone | axes))
    return g.reshape(made, made.shape[:2])


def _part(g: Builder, x: Value, axis: int, number: int, parts: int) -> Value:
    """One of equal parts along an axis."""
    if parts == 1:
        return x
    size = x.shape[axis] // parts
    starts = [number * size if a == axis else 0 for a in range(x.rank)]
    limits = [(number + 1) * size if a == axis else n for a, n in enumerate(x.shape)]
    return g.slice(x, starts, limits, (1,) * x.rank)


@rule("stablehlo.gather", "stablehlo.dynamic_gather")
def gather(call: Call) -> Value:
    """Windows at places of indices."""
    from jaxlib.mlir.dialects import stablehlo
    at = stablehlo.GatherDimensionNumbers(call.raw("dimension_numbers"))
    operand, indices = call.args[:2]
    sizes = known(call, call.args[2]).tolist() if len(call.args) > 2 else call.attr("slice_sizes")
    rooms = [operand.shape[axis] - sizes[axis] for axis in at.start_index_map]
    indices = _inside(call.g, indices, rooms, at.index_vector_dim)
    return call.g.gather(
        operand, indices, at.offset_dims, at.collapsed_slice_dims, at.start_index_map,
        at.index_vector_dim, sizes, at.operand_batching_dims, at.start_indices_batching_dims)


def _inside(g: Builder, indices: Value, rooms: list[int], axis: int) -> Value:
    """Index vectors pushed to where their window is inside, as `gather` means it: said in the
    graph, because a device refuses places outside."""
    most = [min(room, int(indices.dtype.max)) for room in rooms]
    if indices.op == "constant" and indices.attrs.data.array is not None:
        numbers = np.moveaxis(indices.attrs.data.numbers().reshape(
            indices.shape + (1,) * (axis == indices.rank)), axis, -1)
        if ((numbers >= 0) & (numbers <= np.array(most))).all():
            return indices
    if len(set(most)) > 1:
        line = g.cast(g.constant(np.array(most, np.int64)), indices.dtype)
        limit = g.broadcast_in_dim(line, indices.shape, (axis,))
    else:
        limit = g.like(indices, most[0] if most else 0)
    return g.clamp(g.like(indices, 0), indices, limit)


@rule("stablehlo.torch_index_select")
def torch_index_select(call: Call) -> Value:
    """Whole slices along one axis."""
    if call.attr("batch_dims"):
        raise call.refuse("batch_dims is not 0", "use stablehlo.gather")
    return call.g.take(call.args[0], call.args[1], call.attr("dim"))


@rule("stablehlo.fft")
def fft(call: Call) -> Value:
    """A Fourier transform."""
    return call.g.fft(call.args[0], call.attr("fft_type"), call.attr("fft_length"))


@rule("stablehlo.cholesky")
def cholesky(call: Call) -> Value:
    """A triangular factor."""
    return call.g.cholesky(call.args[0], call.attr("lower", False))


@rule("stablehlo.triangular_solve")
def triangular_solve(call: Call) -> Value:
    """The solution of a triangular system."""
    return call.g.triangular_solve(*call.args, call.attr("left_side"), call.attr("lower"),
                                   call.attr("unit_diagonal"), call.attr("transpose_a"))


@rule("chlo.top_k")
def top_k(call: Call) -> list[Value]:
    """The largest elements along the last axis, and where they are."""
    k = call.attr("k")
    return [call.g.top_k(call.args[0], k, part) for part in ("values", "indices")]


# ------------------------------------------------------------------------------ batch normalisation


class Batch:
    """Statistics of one feature axis: the formulas of StableHLO's batch_norm ops, term by term."""

    def __init__(self, call: Call) -> None:
        self.g, self.x = call.g, call.args[0]
        self.feature = call.attr("feature_index")
        self.epsilon = call.attr("epsilon")
        self.others = tuple(a for a in range(self.x.rank) if a != self.feature)

    def spread(self, v: Value) -> Value:
        """One number for each feature, repeated over the other axes."""
        return self.g.broadcast_in_dim(v, self.x.shape, (self.feature,))

    def total(self, v: Value) -> Value:
        """The sum for each feature."""
        return self.g.sum(v, self.others)

    @property
    def count(self) -> int:
        """Elements of each feature."""
        return self.x.size // max(self.x.shape[self.feature], 1)

    def moments(self) -> tuple[Value, Value]:
        """Mean and variance of each feature."""
        mean = self.total(self.x) / self.count
        off = self.x - self.spread(mean)
        return mean, self.total(off * off) / self.count

    def normal(self, scale: Value, offset: Value, mean: Value, variance: Value) -> Value:
        """(x - mean) / √(variance + epsilon) · scale + offset"""
        deviation = self.g.sqrt(self.spread(variance + self.epsilon))
        off = (self.x - self.spread(mean)) / deviation
        return off * self.spread(scale) + self.spread(offset)


@rule("stablehlo.batch_norm_inference")
def batch_norm_inference(call: Call) -> Value:
    """Normalised by given statistics."""
    _, scale, offset, mean, variance = call.args
    return Batch(call).normal(scale, offset, mean, variance)


@rule("stablehlo.batch_norm_training")
def batch_norm_training(call: Call) -> list[Value]:
    """Normalised by its own statistics, which are results too."""
    _, scale, offset = call.args
    batch = Batch(call)
    mean, variance = batch.moments()
    return [batch.normal(scale, offset, mean, variance), mean, variance]


@rule("stablehlo.batch_norm_grad")
def batch_norm_grad(call: Call) -> list[Value]:
    """Gradients by the operand, scale and offset."""
    _, scale, mean, variance, given = call.args
    batch = Batch(call)
    deviation = batch.g.sqrt(batch.spread(variance + batch.epsilon))
    off = batch.x - batch.spread(mean)
    shifted = batch.total(given * off)
    by_offset = batch.total(given)
    by_scale = batch.total(given * (off / deviation))
    drift = off * batch.spread(shifted) / batch.spread(variance + batch.epsilon)
    rest = given * batch.count - batch.spread(by_offset) - drift
    by_x = batch.spread(scale) / deviation / batch.count * rest
    return [by_x, by_scale, by_offset]


# ---------------------------------------------------------------------------------- random numbers


@rule("stablehlo.rng")
def rng(call: Call) -> Value:
    """Random numbers, others for each such op of the program."""
    kind = call.result
    number = call.importer.next_draw()
    return call.g.rng(call.args[0], call.args[1], call.attr("rng_distribution"), kind.shape,
                      number)


@rule("stablehlo.rng_bit_generator")
def rng_bit_generator(call: Call) -> list[Value]:
    """Random bits and the next state."""
    kind = call.results[1]
    made = call.g.rng_bit_generator(call.args[0], call.attr("rng_algorithm"), kind.shape,
                                    kind.dtype)
    return call.parts(made)
