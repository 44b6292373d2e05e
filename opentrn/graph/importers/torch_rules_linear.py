"""Torch rules: products, convolutions, pooling, norms and attention."""

from __future__ import annotations

from typing import Any

from opentrn.graph.build import Builder
from opentrn.graph.importers.torch_rules import refuse, torch_op
from opentrn.graph.importers.torch_types import broadcast_shape, together
from opentrn.graph.ir import Value


@torch_op("aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor")
def linear(g: Builder, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """input · weightᵀ + bias"""
    y = g.dot_general(input, weight, lhs_contracting=-1, rhs_contracting=-1)
    return y if bias is None else y + g.broadcast(bias, y.shape)


@torch_op("aten::mm(Tensor self, Tensor mat2) -> Tensor",
          "aten::bmm(Tensor self, Tensor mat2) -> Tensor")
def mm(g: Builder, self: Value, mat2: Value) -> Value:
    """Matrix product; of three axes, one product for each first index."""
    return g.matmul(self, mat2)


@torch_op("aten::matmul(Tensor self, Tensor other) -> Tensor")
def matmul(g: Builder, self: Value, other: Value) -> Value:
    """NumPy's matmul: vectors are rows or columns, leading axes are broadcast."""
    if other.rank <= 2:
        last = max(other.rank - 2, 0)
        return g.dot_general(self, other, lhs_contracting=-1, rhs_contracting=last)
    x = g.reshape(self, (1, *self.shape)) if self.rank == 1 else self
    lead = broadcast_shape(x.shape[:-2], other.shape[:-2])
    y = g.matmul(g.broadcast(x, (*lead, *x.shape[-2:])),
                 g.broadcast(other, (*lead, *other.shape[-2:])))
    return g.reshape(y, (*lead, y.shape[-1])) if self.rank == 1 else y


@torch_op("aten::dot(Tensor self, Tensor tensor) -> Tensor")
def dot(g: Builder, self: Value, tensor: Value) -> Value:
    """Sum of products of two vectors."""
    return g.dot_general(self, tensor, lhs_contracting=0, rhs_contracting=0)


@torch_op("aten::mv(Tensor self, Tensor vec) -> Tensor")
def mv(g: Builder, self: Value, vec: Value) -> Value:
    """Matrix times vector."""
    return g.dot_general(self, vec, lhs_contracting=1, rhs_contracting=0)


def _added(g: Builder, product: Value, x: Value, beta: Any, alpha: Any) -> Value:
    scaled = product if alpha == 1 else product * alpha
    if beta == 0:
        return scaled
    x = g.broadcast(x if beta == 1 else x * beta, product.shape)
    return scaled + x


@torch_op("aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) "
          "-> Tensor")
def addmm(g: Builder, self: Value, mat1: Value, mat2: Value, beta: Any = 1,
          alpha: Any = 1) -> Value:
    """self·beta + (mat1 · mat2)·alpha"""
    return _added(g, g.matmul(mat1, mat2), self, beta, alpha)


@torch_op("aten::baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar "
          "alpha=1) -> Tensor")
def baddbmm(g: Builder, self: Value, batch1: Value, batch2: Value, beta: Any = 1,
            alpha: Any = 1) -> Value:
    """self·beta + (batch1 · batch2)·alpha, one product for each first index."""
    return _added(g, g.matmul(batch1, batch2), self, beta, alpha)


def _each(given: Any, count: int) -> tuple[int, ...]:
    """Torch's number, or list of one or `count` numbers, as `count` numbers."""
    if isinstance(given, int):
        return (given,) * count
    return tuple(given) * count if len(given) == 1 else tuple(given)


@torch_op("aten::convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] "
          "padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> "
          "Tensor")
def convolution(g: Builder, input: Value, weight: Value, bias: Value | None, stride: list[int],
                padding: list[int], dilation: list[int], transposed: bool,
                output_padding: list[int], groups: int) -> Value:
    """Convolution (correlation) of NC… with OI…; transposed: its adjoint."""
    spatial = weight.rank - 2
    steps, reach = _each(stride, spatial), _each(dilation, spatial)
    pads, ones = _each(padding, spatial), (1,) * spatial
    if transposed:
        extra = _each(output_padding, spatial)
        taps = weight.shape[2:]
        edges = [(d * (k - 1) - p, d * (k - 1) - p + e)
                 for d, k, p, e in zip(reach, taps, pads, extra, strict=True)]
        y = g.convolution(input, _turned(g, weight, groups), strides=ones, padding=edges,
                          lhs_dilation=steps, rhs_dilation=reach, groups=groups)
    else:
        y = g.convolution(input, weight, strides=steps, padding=[(p, p) for p in pads],
                          rhs_dilation=reach, groups=groups)
    if bias is None:
        return y
    return y + g.broadcast_in_dim(bias, shape=y.shape, dimensions=(1,))


def _turned(g: Builder, weight: Value, groups: int) -> Value:
    """A transposed convolution's I O/groups … kernel as O I/groups …, back to front."""
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    taps = weight.shape[2:]
    spatial = tuple(range(2, weight.rank))
    split = g.reshape(g.reverse(weight, spatial), (groups, inputs, outputs, *taps))
    order = (0, 2, 1, *range(3, 3 + len(taps)))
    return g.reshape(g.transpose(split, order), (groups * outputs, inputs, *taps))


@torch_op("aten::conv1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], "
          "SymInt[1] padding=[0], SymInt[1] dilation=[1], SymInt groups=1) -> Tensor")
def conv1d(g: Builder, input: Value, weight: Value, bias: Value | None = None, stride: Any = (1,),
           padding: Any = (0,), dilation: Any = (1,), groups: int = 1) -> Value:
    """Convolution along one axis."""
    return _conv(g, input, weight, bias, stride, padding, dilation, groups)


@torch_op("aten::conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], "
          "SymInt[2] padding=[0, 0], SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor")
def conv2d(g: Builder, input: Value, weight: Value, bias: Value | None = None,
           stride: Any = (1, 1), padding: Any = (0, 0), dilation: Any = (1, 1),
           groups: int = 1) -> Value:
    """Convolution along two axes."""
    return _conv(g, input, weight, bias, stride, padding, dilation, groups)


@torch_op("aten::conv3d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, "
          "1], SymInt[3] padding=[0, 0, 0], SymInt[3] dilation=[1, 1, 1], SymInt groups=1) -> "
          "Tensor")
def conv3d(g: Builder, input: Value, weight: Value, bias: Value | None = None,
           stride: Any = (1, 1, 1), padding: Any = (0, 0, 0), dilation: Any = (1, 1, 1),
           groups: int = 1) -> Value:
    """Convolution along three axes."""
    return _conv(g, input, weight, bias, stride, padding, dilation, groups)


def _conv(g: Builder, x: Value, weight: Value, bias: Value | None, stride: Any, padding: Any,
          dilation: Any, groups: int) -> Value:
    whole = x if x.rank == weight.rank else g.reshape(x, (1, *x.shape))
    y = convolution(g, whole, weight, bias, list(stride), list(padding), list(dilation), False,
                    [0], groups)
    return y if x.rank == weight.rank else g.reshape(y, y.shape[1:])


@torch_op("aten::layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? "
          "bias=None, float eps=1.0000000000000001e-05, bool cudnn_enable=True) -> Tensor")
def layer_norm(g: Builder, input: Value, normalized_shape: list[int], weight: Value | None = None,
               bias: Value | None = None, eps: float = 1e-5) -> Value:
    """Mean 0 and variance 1 over the last axes, then weight and bias."""
    if weight is None and bias is not None:
        weight = g.like(bias, 1.0)
    rest = [x for x in (weight, bias) if x is not None]
    return g.layer_norm(input, *rest, axis=-len(normalized_shape), epsilon=eps)


@torch_op("aten::rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? "
          "eps=None) -> Tensor")
def rms_norm(g: Builder, input: Value, normalized_shape: list[int], weight: Value | None = None,
             eps: float | None = None) -> Value:
    """Mean square 1 over the last axes, then weight."""
    small = 2.0 ** -input.dtype.mantissa if eps is None else eps
    rest = [] if weight is None else [weight]
    return g.rms_norm(input, *rest, axis=-len(normalized_shape), epsilon=small)


def _per_channel(g: Builder, x: Value, like: Value) -> Value:
    return g.broadcast_in_dim(x, shape=like.shape, dimensions=(1,))


@torch_op("aten::group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, "
          "float eps=1.0000000000000001e-05, bool cudnn_enabled=True) -> Tensor")
def group_norm(g: Builder, input: Value, num_groups: int, weight: Value | None = None,
               bias: Value | None = None, eps: float = 1e-5) -> Value:
    """Mean 0 and variance 1 over each group of channels, then weight and bias by channel."""
    rows = g.reshape(input, (input.shape[0], num_groups, -1))
    y = g.reshape(g.layer_norm(rows, axis=-1, epsilon=eps), input.shape)
    y = y if weight is None else y * _per_channel(g, weight, y)
    return y if bias is None else y + _per_channel(g, bias, y)


@torch_op("aten::_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, "
          "Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, "
          "Tensor)")
def batch_norm(g: Builder, input: Value, weight: Value | None, bias: Value | None,
               running_mean: Value, running_var: Value, momentum: float,
               eps: float) -> tuple[Value, None, None]:
    """(input - mean) / √(variance + eps) · weight + bias, by channel."""
    scale = g.rsqrt(running_var + eps)
    scale = scale if weight is None else scale * weight
    y = (input - _per_channel(g, running_mean, input)) * _per_channel(g, scale, input)
    return (y if bias is None else y + _per_channel(g, bias, y)), None, None


@torch_op("aten::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? "
          "attn_mask=None, float dropout_p=0., bool is_causal=False, *, float? scale=None, bool "
          "enable_gqa=False) -> Tensor")
def attention(g: Builder, query: Value, key: Value, value: Value, attn_mask: Value | None = None,
              dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
              enable_gqa: bool = False) -> Value:
    """softmax(scale · query keyᵀ + mask) · value"""
    if dropout_p:
        raise refuse("attention with dropout draws random numbers", g.where,
                     "call module.eval() first")
    lead = broadcast_shape(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    q, k, v = (g.broadcast(x, (*lead, *x.shape[-3:])) if x.rank > 2 else x
               for x in (query, key, value))
    rest = mask_of(g, attn_mask, q)
    return g.attention(q, k, v, *rest, causal=is_causal, scale=scale or 0.0)


def mask_of(g: Builder, mask: Value | None, query: Value) -> list[Value]:
    """The mask as an attention of these queries takes it, if there is one."""
    if mask is None:
        return []
    typed = mask if mask.dtype == "bool" else g.cast(mask, query.dtype)
    return [g.reshape(typed, ((1,) * (query.rank - mask.rank)) + mask.shape)]


@torch_op("aten::outer(Tensor self, Tensor vec2) -> Tensor")
def outer(g: Builder, self: Value, vec2: Value) -> Value:
    """Every product of two vectors' elements."""
    return g.multiply(*together(g, g.reshape(self, (self.size, 1)), vec2))
