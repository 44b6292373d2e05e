"""ONNX rules: quantised numbers, as plain arithmetic on scales and zero points."""

from __future__ import annotations

from typing import Any

from opentrn.graph.importers.onnx_call import Node, onnx_op
from opentrn.graph.importers.onnx_rules_elementwise import cast_to
from opentrn.graph.importers.onnx_rules_linear import conv_of, matmul_of
from opentrn.graph.ir import Value


def _along(n: Node, v: Value, like: Value, axis: int, block: int) -> Value:
    """A scale or zero point for each element: one for all, one for each place along an axis, or
    one for each block along it."""
    if v.size == 1 and v.rank <= 1:
        return n.g.broadcast_in_dim(n.g.reshape(v, ()), shape=like.shape, dimensions=())
    axis = n.inside(axis, like.rank)
    if v.rank == 1:
        return n.g.broadcast_in_dim(v, shape=like.shape, dimensions=(axis,))
    block = block or -(-like.shape[axis] // v.shape[axis])
    wide = (*v.shape[:axis + 1], block, *v.shape[axis + 1:])
    spread = n.g.broadcast_in_dim(v, shape=wide, dimensions=tuple(
        i if i <= axis else i + 1 for i in range(v.rank)))
    whole = n.g.reshape(spread, (*v.shape[:axis], v.shape[axis] * block, *v.shape[axis + 1:]))
    return n.g.slice(whole, [0] * v.rank, list(like.shape), [1] * v.rank)


def quantised(n: Node, x: Value, scale: Value, zero: Value | None, kind: Any, axis: int = 1,
              block: int = 0) -> Value:
    """x / scale, rounded to even, plus zero, kept within the dtype `kind` (of floats where the node
    says `saturate`)."""
    y = n.g.cast(x, "float32") / n.g.cast(_along(n, scale, x, axis, block), "float32")
    if kind.kind == "float":
        return cast_to(n, y, kind)
    y = n.g.round_nearest_even(y)
    if zero is not None:
        y = y + n.g.cast(_along(n, zero, x, axis, block), "float32")
    y = n.g.minimum(n.g.maximum(y, n.g.like(y, kind.min)), n.g.like(y, kind.max))
    return n.g.cast(y, kind)


def dequantised(n: Node, x: Value, scale: Value, zero: Value | None, axis: int = 1,
                block: int = 0) -> Value:
    """(x - zero) · scale in float32."""
    wide = n.g.cast(x, "float32")
    if zero is not None:
        wide = wide - n.g.cast(_along(n, zero, x, axis, block), "float32")
    return wide * n.g.cast(_along(n, scale, x, axis, block), "float32")


@onnx_op("QuantizeLinear")
def quantize_linear(n: Node) -> Value:
    """Numbers in few bits."""
    zero = n.arg(2) if n.has(2) else None
    kind = n.kind(n.attr("output_dtype")) if n.attr("output_dtype") else None
    kind = zero.dtype if zero is not None else kind or n.kind(2)
    return quantised(n, n.x, n.arg(1), zero, kind, n.attr("axis", 1), n.attr("block_size", 0))


@onnx_op("DequantizeLinear")
def dequantize_linear(n: Node) -> Value:
    """Numbers of few bits as floats."""
    made = dequantised(n, n.x, n.arg(1), n.arg(2) if n.has(2) else None,
                       n.attr("axis", 1), n.attr("block_size", 0))
    kind = n.kind(n.attr("output_dtype")) if n.attr("output_dtype") else n.arg(1).dtype
    return n.g.cast(made, kind)


@onnx_op("DynamicQuantizeLinear")
def dynamic_quantize_linear(n: Node) -> tuple[Value, Value, Value]:
    """Numbers as uint8 between their smallest and largest (and 0), with scale and zero point."""
    x, axes = n.x, tuple(range(n.x.rank))
    nothing = n.g.full((), 0.0, x.dtype)
    high = n.g.maximum(n.g.reduce(x, kind="maximum", dimensions=axes), nothing)
    low = n.g.minimum(n.g.reduce(x, kind="minimum", dimensions=axes), nothing)
    scale = (high - low) / 255.0
    flat = n.g.compare(scale, nothing, direction="EQ")
    place = n.g.select(flat, nothing, nothing - low / scale)
    place = n.g.round_nearest_even(n.g.minimum(n.g.maximum(place, nothing), n.g.like(place, 255)))
    zero = n.g.cast(place, "uint8")
    return quantised(n, x, scale, zero, zero.dtype), scale, zero


def _centred(n: Node, index: int, zero: int, kind: str, axis: int) -> Value:
    """Whole numbers of 8 bits less their zero point."""
    x = n.g.cast(n.arg(index), kind)
    if not n.has(zero):
        return x
    point = n.g.cast(n.arg(zero), kind)
    if point.rank <= 1 and x.rank:
        return x - _along(n, point, x, axis, 0)
    return x - n.g.broadcast(point, x.shape)


@onnx_op("MatMulInteger")
def matmul_integer(n: Node) -> Value:
    """A product of 8-bit numbers less their zero points, summed in int32."""
    a = _centred(n, 0, 2, "int32", max(n.arg(0).rank - 2, 0))
    return matmul_of(n, a, _centred(n, 1, 3, "int32", n.arg(1).rank - 1))


@onnx_op("ConvInteger")
def conv_integer(n: Node) -> Value:
    """A convolution of 8-bit numbers less their zero points, summed in int32."""
    return conv_of(n, _centred(n, 0, 2, "int32", 1), _centred(n, 1, 3, "int32", 0))


@onnx_op("QLinearMatMul")
def qlinear_matmul(n: Node) -> Value:
    """A product of quantised numbers, quantised again."""
    a = _centred(n, 0, 2, "int32", max(n.arg(0).rank - 2, 0))
    b = _centred(n, 3, 5, "int32", n.arg(3).rank - 1)
    y = n.g.cast(matmul_of(n, a, b), "float32")
    return _rescaled(n, y, n.arg(1), n.arg(4), n.arg(6), n.arg(7), y.rank - 1)


@onnx_op("QLinearConv")
def qlinear_conv(n: Node) -> Value:
    """A convolution of quantised numbers, quantised again."""
    a, w = _centred(n, 0, 2, "int32", 1), _centred(n, 3, 5, "int32", 0)
    y = n.g.cast(conv_of(n, a, w, n.arg(8) if n.has(8) else None), "float32")
    return _rescaled(n, y, n.arg(1), n.arg(4), n.arg(6), n.arg(7), 1)


def _rescaled(n: Node, y: Value, a: Value, b: Value, scale: Value, zero: Value,
              axis: int) -> Value:
    """Sums of products in the scale of the result."""
    def as_float(v: Value) -> Value:
        return n.g.cast(v, "float32")

    if a.size > 1 and a.rank == 1:  # one for each row
        rows = n.g.broadcast_in_dim(as_float(a), shape=y.shape, dimensions=(y.rank - 2,))
    else:
        rows = n.g.broadcast(as_float(a), y.shape) if a.rank > 1 else _along(
            n, as_float(a), y, axis, 0)
    columns = n.g.broadcast(as_float(b), y.shape) if b.rank > 1 else _along(
        n, as_float(b), y, axis, 0)
    return quantised(n, y * rows * columns, scale, zero, zero.dtype, axis)
