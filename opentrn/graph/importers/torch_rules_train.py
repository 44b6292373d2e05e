"""Torch rules: what training adds, that is gradients, statistics of a batch, and losses by class.

Ops torch's own decompositions express well in others have no rule here; these would become
scatters or loops.  A result that nobody uses costs nothing: values are built only for what reads
them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from opentrn.graph.build import Builder
from opentrn.graph.importers.torch_rules import refuse, torch_op
from opentrn.graph.importers.torch_rules_linear import (
    attention,
    group_norm,
    layer_norm,
    mask_of,
)
from opentrn.graph.ir import Value

# -------------------------------------------------------------------------- statistics of a batch


def _moments(g: Builder, x: Value, over: tuple[int, ...]) -> tuple[Value, Value]:
    """Mean and variance over axes, which stay with size 1, in float32."""
    wide = g.cast(x, "float32")
    mean = g.mean(wide, over, keep=True)
    moved = wide - g.broadcast(mean, x.shape)
    return mean, g.mean(moved * moved, over, keep=True)


@torch_op("aten::native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, "
          "Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)")
def native_layer_norm(g: Builder, input: Value, normalized_shape: list[int],
                      weight: Value | None, bias: Value | None,
                      eps: float) -> tuple[Value, Value, Value]:
    """`layer_norm`, the mean, and 1/√(variance + eps) of each row."""
    over = tuple(range(input.rank - len(normalized_shape), input.rank))
    mean, variance = _moments(g, input, over)
    y = layer_norm(g, input, normalized_shape, weight, bias, eps)
    return y, g.cast(mean, input.dtype), g.cast(g.rsqrt(variance + eps), input.dtype)


@torch_op("aten::native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, "
          "SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)")
def native_group_norm(g: Builder, input: Value, weight: Value | None, bias: Value | None, N: int,
                      C: int, HxW: int, group: int, eps: float) -> tuple[Value, Value, Value]:
    """`group_norm`, the mean, and 1/√(variance + eps) of each group."""
    mean, variance = _moments(g, g.reshape(input, (N, group, -1)), (2,))
    y = group_norm(g, input, group, weight, bias, eps)
    found = (g.cast(x, input.dtype) for x in (mean, g.rsqrt(variance + eps)))
    mean, root = (g.reshape(x, (N, group)) for x in found)
    return y, mean, root


def _spread(g: Builder, x: Value, like: Value) -> Value:
    """One number for each channel, as large as `like`."""
    return g.broadcast_in_dim(g.cast(x, like.dtype), shape=like.shape, dimensions=(1,))


def _batch_norm(g: Builder, input: Value, weight: Value | None, bias: Value | None,
                eps: float) -> tuple[Value, Value, Value, Value]:
    """(result, mean, 1/√(variance + eps), variance) of the batch, by channel."""
    over = (0, *range(2, input.rank))
    mean, variance = (g.reshape(x, (input.shape[1],)) for x in _moments(g, input, over))
    root = g.rsqrt(variance + eps)
    wide = g.cast(input, "float32")
    y = (wide - _spread(g, mean, wide)) * _spread(g, root, wide)
    y = y if weight is None else y * _spread(g, weight, wide)
    y = y if bias is None else y + _spread(g, bias, wide)
    return g.cast(y, input.dtype), mean, root, variance


@torch_op("aten::_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, "
          "Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> "
          "(Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)")
def batch_norm_training(g: Builder, input: Value, weight: Value | None, bias: Value | None,
                        running_mean: Value, running_var: Value, training: bool, momentum: float,
                        eps: float) -> tuple[Value, ...]:
    """Normalised by the batch's own statistics, which move the running ones by `momentum`."""
    if not training:
        raise refuse("batch norm that keeps running statistics without training", g.where)
    y, mean, root, variance = _batch_norm(g, input, weight, bias, eps)
    count = input.size // input.shape[1]
    unbiased = variance * (count / max(count - 1, 1))
    moved = [g.cast(g.cast(old, "float32") * (1 - momentum) + new * momentum, old.dtype)
             for old, new in ((running_mean, mean), (running_var, unbiased))]
    return y, mean, root, *moved  # in float32, as torch keeps them of shorter floats too


@torch_op("aten::_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, "
          "bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)")
def batch_norm_alone(g: Builder, input: Value, weight: Value | None, bias: Value | None,
                     training: bool, momentum: float, eps: float) -> tuple[Value, ...]:
    """Normalised by the batch's own statistics, by channel."""
    y, mean, root, _ = _batch_norm(g, input, weight, bias, eps)
    return y, mean, root


# ------------------------------------------------------------------------------ classes and tables


def _one_hot(g: Builder, index: Value, classes: int, axis: int) -> Value:
    """bool: whether a place along a new axis is the one `index` names."""
    shape = (*index.shape[:axis], classes, *index.shape[axis:])
    places = (*range(axis), *range(axis + 1, len(shape)))
    spread = g.broadcast_in_dim(g.cast(index, "int32"), shape=shape, dimensions=places)
    return g.compare(spread, g.iota(shape, axis, "int32"), direction="EQ")


def _shares(g: Builder, hot: Value, target: Value, weight: Value | None, ignore: int,
            axis: int) -> Value:
    """float32: what each class of each place counts in the loss: its weight where it is the
    target, else 0, and 0 everywhere where the target is the ignored one."""
    kept = g.compare(g.cast(target, "int32"), ignore, direction="NE")
    others = tuple(a for a in range(hot.rank) if a != axis)
    hot = g.and_(hot, g.broadcast_in_dim(kept, shape=hot.shape, dimensions=others))
    share = g.cast(hot, "float32")
    if weight is None:
        return share
    return share * g.broadcast_in_dim(g.cast(weight, "float32"), shape=hot.shape,
                                      dimensions=(axis,))


@torch_op("aten::nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, "
          "SymInt ignore_index) -> (Tensor output, Tensor total_weight)",
          "aten::nll_loss2d_forward(Tensor self, Tensor target, Tensor? weight, int reduction, "
          "SymInt ignore_index) -> (Tensor output, Tensor total_weight)")
def nll_loss_forward(g: Builder, self: Value, target: Value, weight: Value | None, reduction: int,
                     ignore_index: int) -> tuple[Value, Value]:
    """-weight·self at each place's target class: each, their weighted mean, or their sum."""
    axis = 0 if self.rank == 1 else 1
    share = _shares(g, _one_hot(g, target, self.shape[axis], axis), target, weight, ignore_index,
                    axis)
    # select, not a product: -∞ in a class nobody asks for must not become NaN.
    wide = g.cast(self, "float32")
    picked = g.select(g.compare(share, 0.0, direction="NE"), wide * share, g.like(wide, 0.0))
    every = tuple(range(self.rank))
    total = g.sum(share, every)
    if reduction == 0:
        return g.cast(-g.sum(picked, axis), self.dtype), g.cast(g.like(total, 0.0), self.dtype)
    loss = -g.sum(picked, every)
    loss = loss / total if reduction == 1 else loss
    return g.cast(loss, self.dtype), g.cast(total, self.dtype)


@torch_op("aten::nll_loss_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? "
          "weight, int reduction, SymInt ignore_index, Tensor total_weight) -> Tensor",
          "aten::nll_loss2d_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? "
          "weight, int reduction, SymInt ignore_index, Tensor total_weight) -> Tensor")
def nll_loss_backward(g: Builder, grad_output: Value, self: Value, target: Value,
                      weight: Value | None, reduction: int, ignore_index: int,
                      total_weight: Value) -> Value:
    """-weight·grad at each place's target class, 0 elsewhere."""
    axis = 0 if self.rank == 1 else 1
    share = _shares(g, _one_hot(g, target, self.shape[axis], axis), target, weight, ignore_index,
                    axis)
    grad = g.cast(grad_output, "float32")
    if reduction == 1:
        grad = grad / g.cast(total_weight, "float32")
    others = tuple(a for a in range(self.rank) if a != axis) if grad.rank else ()
    spread = g.broadcast_in_dim(grad, shape=self.shape, dimensions=others)
    return g.cast(-(spread * share), self.dtype)


@torch_op("aten::embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, "
          "SymInt padding_idx, bool scale_grad_by_freq) -> Tensor")
def embedding_dense_backward(g: Builder, grad_output: Value, indices: Value, num_weights: int,
                             padding_idx: int, scale_grad_by_freq: bool) -> Value:
    """For each row of the table the sum of the gradients where it was looked up: a product with
    the one-hot matrix of the indices, on the Tensor Engine."""
    if scale_grad_by_freq:
        raise refuse("an embedding whose gradients are scaled by frequency", g.where)
    flat = g.reshape(indices, (indices.size,))
    rows = g.reshape(grad_output, (indices.size, -1))
    hot = _one_hot(g, flat, num_weights, 1)
    if padding_idx >= 0:
        kept = g.compare(g.cast(flat, "int32"), padding_idx, direction="NE")
        hot = g.and_(hot, g.broadcast_in_dim(kept, shape=hot.shape, dimensions=(0,)))
    return g.dot_general(g.cast(hot, rows.dtype), rows, lhs_contracting=0, rhs_contracting=0)


# ------------------------------------------------------------------------------------- attention

FLASH = ("aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor "
         "value, float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? "
         "scale=None) -> (Tensor output, Tensor logsumexp)")


def _turned(g: Builder, x: Value) -> Value:
    """The last two axes exchanged."""
    return g.transpose(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))


def _wide(g: Builder, x: Value, y: Value) -> Value:
    """x · y for each batch, summed and left in float32."""
    lead = tuple(range(x.rank - 2))
    return g.dot_general(x, y, lhs_contracting=x.rank - 1, rhs_contracting=y.rank - 2,
                         lhs_batch=lead, rhs_batch=lead, dtype="float32")


def _for_all_heads(g: Builder, x: Value, query: Value) -> Value:
    """Keys or values [B, G, T, D] repeated for the heads of queries [B, H, T, D] they serve."""
    if x.rank != 4 or x.shape[1] == query.shape[1]:
        return x
    b, groups, t, d = x.shape
    wide = (b, groups, query.shape[1] // groups, t, d)
    return g.reshape(g.broadcast_in_dim(x, wide, (0, 1, 3, 4)), (b, query.shape[1], t, d))


def _scores(g: Builder, query: Value, key: Value, causal: bool, mask: Value | None,
            scale: float | None) -> Value:
    """scale · query keyᵀ + mask in float32; -∞ where a query may not look."""
    product = _wide(g, query, _turned(g, _for_all_heads(g, key, query)))
    scores = product * (scale or 1.0 / math.sqrt(query.shape[-1]))
    if causal:
        row, column = (g.iota(scores.shape, scores.rank - n, "int32") for n in (2, 1))
        scores = g.select(g.compare(column, row, direction="LE"), scores,
                          g.like(scores, -math.inf))
    if mask is None:
        return scores
    spread = g.broadcast(mask, scores.shape)
    if mask.dtype == "bool":
        return g.select(spread, scores, g.like(scores, -math.inf))
    return scores + g.cast(spread, "float32")


@torch_op(FLASH)
def flash_attention(g: Builder, query: Value, key: Value, value: Value, dropout_p: float = 0.0,
                    is_causal: bool = False, attn_mask: Value | None = None,
                    scale: float | None = None) -> tuple[Value, Value]:
    """Attention, and for each query the logarithm of its scores' summed exponentials."""
    y = attention(g, query, key, value, attn_mask, dropout_p, is_causal, scale)
    scores = _scores(g, query, key, is_causal, attn_mask, scale)
    top = g.reduce(scores, kind="maximum", dimensions=scores.rank - 1)
    lead = tuple(range(scores.rank - 1))
    moved = scores - g.broadcast_in_dim(top, shape=scores.shape, dimensions=lead)
    return y, g.log(g.sum(g.exponential(moved), scores.rank - 1)) + top


@torch_op("aten::_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor "
          "query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool "
          "is_causal, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor grad_query, Tensor "
          "grad_key, Tensor grad_value)")
def flash_attention_backward(g: Builder, grad_out: Value, query: Value, key: Value, value: Value,
                             out: Value, logsumexp: Value, dropout_p: float, is_causal: bool,
                             attn_mask: Value | None = None,
                             scale: float | None = None) -> tuple[Value, Value, Value]:
    """The gradients of attention, for which the weights are computed again: `logsumexp` is not
    read."""
    return attention_gradients(g, grad_out, query, key, value, out, dropout_p, is_causal,
                               attn_mask=attn_mask, scale=scale)


@torch_op("opentrn::attention_gradients(Tensor grad_out, Tensor query, Tensor key, Tensor value, "
          "Tensor out, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, float? "
          "scale=None) -> (Tensor, Tensor, Tensor)")
def attention_gradients(g: Builder, grad_out: Value, query: Value, key: Value, value: Value,
                        out: Value, dropout_p: float, is_causal: bool,
                        attn_mask: Value | None = None,
                        scale: float | None = None) -> tuple[Value, Value, Value]:
    """The gradients of attention from its operands and result."""
    if dropout_p:
        raise refuse("attention with dropout draws random numbers", g.where)
    given = (query, key, value, out, grad_out, *mask_of(g, attn_mask, query))
    options = {"causal": is_causal, "scale": scale or 0.0}
    found = [g.attention_gradient(*given, part=part, **options)
             for part in ("query", "key", "value")]
    return found[0], found[1], found[2]


# ---------------------------------------------------------------------------- windows of an image


def _each(given: Any, count: int) -> tuple[int, ...]:
    """One number for each spatial axis; torch lets one stand for all."""
    listed = tuple(given) if isinstance(given, Sequence) else (given,)
    return listed * count if len(listed) == 1 else listed


def _window(g: Builder, x: Value, tap: tuple[int, ...], sizes: tuple[int, ...],
            strides: tuple[int, ...], dilation: tuple[int, ...]) -> Value:
    """What one tap of a window sees at every place, in a padded image N C spatial…."""
    first = [t * d for t, d in zip(tap, dilation, strict=True)]
    limits = [f + (n - 1) * s + 1 for f, n, s in zip(first, sizes, strides, strict=True)]
    return g.slice(x, [0, 0, *first], [*x.shape[:2], *limits], [1, 1, *strides])


def _taps(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, sizes)))


@torch_op("aten::convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? "
          "bias_sizes, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, "
          "SymInt[] output_padding, SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, "
          "Tensor)")
def convolution_backward(g: Builder, grad_output: Value, input: Value, weight: Value,
                         bias_sizes: Any, stride: list[int], padding: list[int],
                         dilation: list[int], transposed: bool, output_padding: list[int],
                         groups: int, output_mask: list[bool]) -> tuple[Any, Any, Any]:
    """The gradients of a convolution's image, kernel and bias."""
    if transposed:
        raise refuse("the gradient of a transposed convolution", g.where)
    count = weight.rank - 2
    steps, pads, holes = (_each(x, count) for x in (stride, padding, dilation))
    image = kernel = bias = None
    if output_mask[0]:
        image = _image_gradient(g, grad_output, input, weight, steps, pads, holes, groups)
    if output_mask[1]:
        kernel = _kernel_gradient(g, grad_output, input, weight, steps, pads, holes, groups)
    if output_mask[2]:
        bias = g.sum(grad_output, (0, *range(2, grad_output.rank)))
    return image, kernel, bias


def _image_gradient(g: Builder, grad: Value, image: Value, weight: Value, steps, pads, holes,
                    groups: int) -> Value:
    """The gradients, spread by the strides, convolved with the kernel turned about."""
    count = weight.rank - 2
    turned = g.reverse(weight, tuple(range(2, weight.rank)))
    parts = g.reshape(turned, (groups, weight.shape[0] // groups, *weight.shape[1:]))
    order = (0, 2, 1, *range(3, parts.rank))
    each = weight.shape[1]
    kernel = g.reshape(g.transpose(parts, order),
                       (groups * each, weight.shape[0] // groups, *weight.shape[2:]))
    around = []
    for axis in range(count):
        reach = holes[axis] * (weight.shape[2 + axis] - 1)
        spread = (grad.shape[2 + axis] - 1) * steps[axis] + 1
        low = reach - pads[axis]
        around.append((low, image.shape[2 + axis] + reach - spread - low))
    return g.convolution(grad, kernel, strides=(1,) * count, padding=tuple(around),
                         lhs_dilation=steps, rhs_dilation=holes, groups=groups)


def _kernel_gradient(g: Builder, grad: Value, image: Value, weight: Value, steps, pads, holes,
                     groups: int) -> Value:
    """For each tap, what it saw times the gradients, summed over places: one product."""
    count, (outputs, each) = weight.rank - 2, weight.shape[:2]
    low = [0, 0, *pads]
    padded = image if not any(pads) else g.pad(image, g.full((), 0.0, image.dtype), low, low)
    last = (0, *range(2, image.rank), 1)
    places = grad.size // grad.shape[1]
    seen = [g.reshape(g.transpose(_window(g, padded, tap, grad.shape[2:], steps, holes), last),
                      (places, groups, 1, each)) for tap in _taps(weight.shape[2:])]
    taps = seen[0] if len(seen) == 1 else g.concatenate(*seen, dimension=2)
    slopes = g.reshape(g.transpose(grad, last), (places, groups, outputs // groups))
    columns = g.reshape(taps, (places, groups, len(seen) * each))
    made = g.dot_general(g.transpose(slopes, (1, 2, 0)), g.transpose(columns, (1, 0, 2)),
                         lhs_contracting=2, rhs_contracting=1, lhs_batch=0, rhs_batch=0)
    shaped = g.reshape(made, (outputs, *weight.shape[2:], each))
    return g.transpose(shaped, (0, count + 1, *range(1, count + 1)))



@torch_op("aten::max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] "
          "kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode, Tensor "
          "indices) -> Tensor")
def max_pool_backward(g: Builder, grad_output: Value, self: Value, kernel_size: Any, stride: Any,
                      padding: Any, dilation: Any, ceil_mode: bool, indices: Value) -> Value:
    """Each gradient at the first place of its window that holds the maximum."""
    if self.rank != 4 or ceil_mode:
        raise refuse("the gradient of max pooling of a single image, or with ceil_mode", g.where)
    sizes, pads, holes = (_each(x, 2) for x in (kernel_size, padding, dilation))
    steps = _each(stride, 2) if stride else sizes
    low = [0, 0, *pads]
    floor = g.full((), float(self.dtype.min), self.dtype)
    padded = g.pad(self, floor, low, low) if any(pads) else self
    places = grad_output.shape[2:]
    seen = [_window(g, padded, tap, places, steps, holes) for tap in _taps(sizes)]
    top = seen[0]
    for one in seen[1:]:
        top = g.maximum(top, one)
    free, parts = None, []
    for tap, one in zip(_taps(sizes), seen, strict=True):
        best = g.compare(one, top, direction="EQ")
        taken = best if free is None else g.and_(best, free)
        free = g.not_(best) if free is None else g.and_(free, g.not_(best))
        kept = g.select(taken, grad_output, g.like(grad_output, 0.0))
        parts.append(_put_back(g, kept, tap, padded.shape[2:], steps, holes))
    return _cut_padding(g, _total(parts), pads, self.shape)


def _put_back(g: Builder, part: Value, tap, image: tuple[int, ...], steps, holes) -> Value:
    """What one tap saw at every place, back where it came from in the padded image."""
    first = [t * d for t, d in zip(tap, holes, strict=True)]
    rest = [n - f - (p - 1) * s - 1
            for n, f, p, s in zip(image, first, part.shape[2:], steps, strict=True)]
    return g.pad(part, g.full((), 0.0, part.dtype), [0, 0, *first], [0, 0, *rest],
                 [0, 0, *(s - 1 for s in steps)])


def _total(parts: list[Value]) -> Value:
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    return found


def _cut_padding(g: Builder, x: Value, pads, shape: tuple[int, ...]) -> Value:
    if not any(pads):
        return x
    limits = [p + n for p, n in zip((0, 0, *pads), shape, strict=True)]
    return g.slice(x, [0, 0, *pads], limits, [1] * x.rank)


@torch_op("aten::avg_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] "
          "stride, int[2] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) "
          "-> Tensor")
def avg_pool_backward(g: Builder, grad_output: Value, self: Value, kernel_size: Any, stride: Any,
                      padding: Any, ceil_mode: bool, count_include_pad: bool,
                      divisor_override: int | None) -> Value:
    """Each gradient in equal shares at every place of its window."""
    sizes, pads = _each(kernel_size, 2), _each(padding, 2)
    if self.rank != 4 or ceil_mode or (any(pads) and not count_include_pad):
        raise refuse("the gradient of average pooling of a single image, with ceil_mode, or with "
                     "padding that does not count", g.where)
    steps = _each(stride, 2) if stride else sizes
    share = grad_output * (1.0 / (divisor_override or math.prod(sizes)))
    image = tuple(n + 2 * p for n, p in zip(self.shape[2:], pads, strict=True))
    parts = [_put_back(g, share, tap, image, steps, (1, 1)) for tap in _taps(sizes)]
    return _cut_padding(g, _total(parts), pads, self.shape)


@torch_op("aten::new_zeros(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? "
          "layout=None, Device? device=None, bool? pin_memory=None) -> Tensor")
def new_zeros(g: Builder, self: Value, size: list[int], dtype: str | None = None) -> Value:
    """0 everywhere, in the dtype of self."""
    return g.full(tuple(size), 0, dtype or self.dtype)


@torch_op("aten::new_ones(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? "
          "layout=None, Device? device=None, bool? pin_memory=None) -> Tensor")
def new_ones(g: Builder, self: Value, size: list[int], dtype: str | None = None) -> Value:
    """1 everywhere, in the dtype of self."""
    return g.full(tuple(size), 1, dtype or self.dtype)
