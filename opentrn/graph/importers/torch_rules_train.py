"""Torch rules: what training adds, that is gradients, statistics of a batch, and losses by class.

Ops torch's own decompositions express well in others have no rule here; these would become
scatters or loops.  A result that nobody uses costs nothing: values are built only for what reads
them.
"""

from __future__ import annotations

import math

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


def _by_running(g: Builder, input: Value, weight: Value | None, bias: Value | None, mean: Value,
                variance: Value, eps: float) -> tuple[Value, ...]:
    """Normalised by running statistics, which stay; of the batch's own there are none."""
    wide, held = g.cast(input, "float32"), [g.cast(v, "float32") for v in (mean, variance)]
    y = (wide - _spread(g, held[0], wide)) * _spread(g, g.rsqrt(held[1] + eps), wide)
    y = y if weight is None else y * _spread(g, weight, wide)
    y = y if bias is None else y + _spread(g, bias, wide)
    none = g.full((0,), 0.0, input.dtype)
    return g.cast(y, input.dtype), none, none, *held


@torch_op("aten::_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, "
          "Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> "
          "(Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)")
def batch_norm_training(g: Builder, input: Value, weight: Value | None, bias: Value | None,
                        running_mean: Value, running_var: Value, training: bool, momentum: float,
                        eps: float) -> tuple[Value, ...]:
    """Normalised by the batch's own statistics, which move the running ones by `momentum`; not
    in training by the running ones."""
    if not training:
        return _by_running(g, input, weight, bias, running_mean, running_var, eps)
    y, mean, root, variance = _batch_norm(g, input, weight, bias, eps)
    count = input.size // input.shape[1]
    unbiased = variance * (count / max(count - 1, 1))
    moved = [g.cast(old, "float32") * (1 - momentum) + new * momentum
             for old, new in ((running_mean, mean), (running_var, unbiased))]
    # Torch keeps the batch's own in the dtype of the image, and the running ones in float32.
    return y, g.cast(mean, input.dtype), g.cast(root, input.dtype), *moved


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
