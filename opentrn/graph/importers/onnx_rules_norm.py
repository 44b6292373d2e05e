"""ONNX rules: normalisation."""

from __future__ import annotations

from opentrn.graph.importers.onnx_call import Node, onnx_op
from opentrn.graph.ir import Value


def by_channel(n: Node, x: Value, like: Value) -> Value:
    """A vector along axis 1 of `like`."""
    return n.g.broadcast_in_dim(x, shape=like.shape, dimensions=(1,))


@onnx_op("BatchNormalization")
def batch_norm(n: Node) -> Value:
    """(x - mean) / √(variance + epsilon) · scale + bias, by channel, for inference."""
    trains = n.opset < 7 and not n.attr("is_test")
    if trains or n.attr("training_mode", 0) or n.results > 1:
        raise n.refuse("it computes running means, as in training",
                       "export the model for inference")
    if n.attr("spatial", 1) != 1:
        raise n.refuse("`spatial` is 0")
    x, scale, bias, mean, variance = n.values
    wide = n.g.cast(variance, scale.dtype)
    factor = n.g.cast(n.g.rsqrt(wide + n.attr("epsilon")) * scale, x.dtype)
    centred = x - by_channel(n, n.g.cast(mean, x.dtype), x)
    return centred * by_channel(n, factor, x) + by_channel(n, n.g.cast(bias, x.dtype), x)


@onnx_op("LayerNormalization")
def layer_norm(n: Node) -> tuple[Value, ...]:
    """Mean 0 and variance 1 over the axes from `axis` on, then scale and bias."""
    x, axis = n.x, n.axis(default=-1)
    shape = x.shape[axis:]
    rest = [n.g.broadcast(n.arg(i), shape) for i in (1, 2) if n.has(i)]
    made = n.g.layer_norm(x, *rest, axis=axis, epsilon=n.attr("epsilon"))
    if n.results == 1:
        return (made,)
    axes = tuple(range(axis, x.rank))
    wide = n.g.cast(x, n.kind(n.attr("stash_type")))
    mean = n.g.mean(wide, axes, keep=True)
    apart = wide - n.g.broadcast(mean, wide.shape)
    return made, mean, n.g.rsqrt(n.g.mean(apart * apart, axes, keep=True) + n.attr("epsilon"))


@onnx_op("RMSNormalization")
def rms_norm(n: Node) -> Value:
    """Mean square 1 over the axes from `axis` on, then scale."""
    axis = n.axis(default=-1)
    scale = n.g.broadcast(n.arg(1), n.x.shape[axis:])
    return n.g.rms_norm(n.x, n.g.cast(scale, n.x.dtype), axis=axis, epsilon=n.attr("epsilon"))


def _groups(n: Node, groups: int) -> Value:
    """Mean 0 and variance 1 over each group of channels of each sample."""
    x = n.x
    rows = n.g.reshape(x, (x.shape[0], groups, -(-x.size // max(x.shape[0] * groups, 1))))
    return n.g.reshape(n.g.layer_norm(rows, axis=-1, epsilon=n.attr("epsilon")), x.shape)


@onnx_op("InstanceNormalization")
def instance_norm(n: Node) -> Value:
    """Mean 0 and variance 1 over each channel of each sample, then scale and bias."""
    y = _groups(n, n.x.shape[1])
    return y * by_channel(n, n.arg(1), y) + by_channel(n, n.arg(2), y)


@onnx_op("GroupNormalization")
def group_norm(n: Node) -> Value:
    """Mean 0 and variance 1 over groups of channels, then scale and bias, by channel (by group
    before version 21)."""
    groups = n.attr("num_groups")
    y = _groups(n, groups)
    scale, bias = n.arg(1), n.arg(2)
    if n.opset < 21:
        each = n.x.shape[1] // groups
        scale, bias = (n.g.reshape(n.g.broadcast_in_dim(v, shape=(groups, each), dimensions=(0,)),
                                   (n.x.shape[1],)) for v in (scale, bias))
    return y * by_channel(n, scale, y) + by_channel(n, bias, y)


@onnx_op("MeanVarianceNormalization")
def mean_variance_norm(n: Node) -> Value:
    """(x - mean) / (standard deviation + 1e-9) over axes."""
    axes = n.axes(n.attr("axes"), n.x.rank)
    wide = n.g.cast(n.x, "float32")
    mean = n.g.broadcast(n.g.mean(wide, axes, keep=True), wide.shape)
    square = n.g.mean((wide - mean) * (wide - mean), axes, keep=True)
    return n.g.cast((wide - mean) / (n.g.broadcast(n.g.sqrt(square), wide.shape) + 1e-9),
                    n.x.dtype)


@onnx_op("LpNormalization")
def lp_norm(n: Node) -> Value:
    """x as a share of its length along an axis; 0 where that is 0."""
    axis, p = n.axis(default=-1), n.attr("p")
    if p not in (1, 2):
        raise n.refuse(f"`p` is {p}")
    size = n.g.abs(n.x) if p == 1 else n.x * n.x
    total = n.g.sum(size, (axis,), keep=True)
    length = n.g.broadcast(total if p == 1 else n.g.sqrt(total), n.x.shape)
    nothing = n.g.compare(length, n.g.like(length, 0.0), direction="EQ")
    return n.g.select(nothing, n.g.like(n.x, 0.0), n.x / length)


@onnx_op("LRN")
def lrn(n: Node) -> Value:
    """x / (bias + alpha/size · sum of squares over nearby channels)^beta"""
    size = n.attr("size")
    before = (size - 1) // 2
    window = [1] * n.x.rank
    padding = [(0, 0)] * n.x.rank
    window[1], padding[1] = size, (before, size - 1 - before)
    near = n.g.reduce_window(n.x * n.x, kind="add", window=window, padding=padding)
    base = near * (n.attr("alpha") / size) + n.attr("bias")
    return n.x / n.g.power(base, n.g.like(base, n.attr("beta")))


@onnx_op("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(n: Node) -> Value:
    """One number for each channel."""
    axes = tuple(range(2, n.x.rank))
    shape = (*n.x.shape[:2], *(1 for _ in axes))
    if n.op == "GlobalAveragePool":
        return n.g.mean(n.x, axes, keep=True)
    if n.op == "GlobalMaxPool":
        return n.g.reshape(n.g.reduce(n.x, kind="maximum", dimensions=axes), shape)
    p = float(n.attr("p"))
    total = n.g.sum(n.g.power(n.g.abs(n.x), n.g.like(n.x, p)), axes, keep=True)
    return n.g.power(total, n.g.like(total, 1 / p))

