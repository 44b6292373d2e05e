"""Torch rules: gradients of what looks through windows: convolutions, pooling, `unfold`.

Each tap of a window sees a strided slice of the image, so a gradient is put back tap by tap: a
slice's gradient with zeros between and around its elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opentrn.graph.build import Builder
from opentrn.graph.importers.torch_rules import torch_op
from opentrn.graph.importers.torch_rules_index import scatter_add
from opentrn.graph.importers.torch_rules_resample import (
    along,
    divisors,
    each,
    windows,
)
from opentrn.graph.ir import Value


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
    count = weight.rank - 2
    steps, pads, holes = (each(x, count) for x in (stride, padding, dilation))
    image = kernel = bias = None
    if output_mask[0] and transposed:
        # A transposed convolution's gradient is the convolution it is the transpose of.
        extra = each(output_padding, count)
        edges = [(p, p - more) for p, more in zip(pads, extra, strict=True)]
        image = g.convolution(grad_output, weight, strides=steps, padding=edges,
                              rhs_dilation=holes, groups=groups)
    elif output_mask[0]:
        image = _image_gradient(g, grad_output, input, weight, steps, pads, holes, groups)
    if output_mask[1]:
        small, large = (input, grad_output) if transposed else (grad_output, input)
        kernel = _kernel_gradient(g, small, large, weight, steps, pads, holes, groups)
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


# ---------------------------------------------------------------------- pooling


def _put_back(g: Builder, part: Value, tap: Sequence[int], image: Sequence[int],
              steps: Sequence[int], holes: Sequence[int]) -> Value:
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


def _batched(g: Builder, x: Value, axes: int) -> Value:
    """An image with its axis of images, which torch lets one leave out."""
    return x if x.rank == axes + 2 else g.reshape(x, (1, *x.shape))


def _cut_padding(g: Builder, x: Value, pads: Sequence[int], shape: tuple[int, ...]) -> Value:
    """The image of this shape inside a padded one, without the axis of images if it has none."""
    sizes = shape[-len(pads):]
    if x.shape[2:] != sizes:
        limits = [p + n for p, n in zip(pads, sizes, strict=True)]
        x = g.slice(x, [0, 0, *pads], [*x.shape[:2], *limits], [1] * x.rank)
    return g.reshape(x, shape)


def _most(g: Builder, grad: Value, x: Value, size: Any, stride: Any, padding: Any, dilation: Any,
          ceil: bool, axes: int) -> Value:
    """Each gradient at the first place of its window that holds the maximum."""
    shape, x, grad = x.shape, _batched(g, x, axes), _batched(g, grad, axes)
    sizes, pads, holes = (each(v, axes) for v in (size, padding, dilation))
    steps = each(stride, axes) if stride else sizes
    after = [more for _, more in windows(x.shape[2:], sizes, steps, pads, holes, ceil)]
    floor = g.full((), float(x.dtype.min), x.dtype)
    padded = g.pad(x, floor, [0, 0, *pads], [0, 0, *after]) if any((*pads, *after)) else x
    places = grad.shape[2:]
    seen = [_window(g, padded, tap, places, steps, holes) for tap in _taps(sizes)]
    top = seen[0]
    for one in seen[1:]:
        top = g.maximum(top, one)
    free, parts = None, []
    for tap, one in zip(_taps(sizes), seen, strict=True):
        best = g.compare(one, top, direction="EQ")
        taken = best if free is None else g.and_(best, free)
        free = g.not_(best) if free is None else g.and_(free, g.not_(best))
        kept = g.select(taken, grad, g.like(grad, 0.0))
        parts.append(_put_back(g, kept, tap, padded.shape[2:], steps, holes))
    return _cut_padding(g, _total(parts), pads, shape)


def _most_rule(axes: int) -> Callable:
    def rule(g: Builder, grad_output: Value, self: Value, kernel_size: Any, stride: Any,
             padding: Any, dilation: Any, ceil_mode: bool, indices: Value) -> Value:
        """Each gradient at the first place of its window that holds the maximum."""
        return _most(g, grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, axes)

    return rule


def _to_places(g: Builder, grad: Value, x: Value, indices: Value, axes: int) -> Value:
    """Each gradient at its row-major place in the image."""
    lead = x.size // math.prod(x.shape[-axes:])
    rows = [g.reshape(v, (lead, v.size // lead)) for v in (grad, indices)]
    zero = g.full((lead, x.size // lead), 0.0, grad.dtype)
    return g.reshape(scatter_add(g, zero, 1, rows[1], rows[0]), x.shape)


@torch_op("aten::adaptive_max_pool2d_backward(Tensor grad_output, Tensor self, Tensor indices) "
          "-> Tensor")
def adaptive_max_pool2d_backward(g: Builder, grad_output: Value, self: Value,
                                 indices: Value) -> Value:
    """Each gradient at the place of its window's maximum."""
    return _to_places(g, grad_output, self, indices, 2)


@torch_op("aten::adaptive_max_pool3d_backward(Tensor grad_output, Tensor self, Tensor indices) "
          "-> Tensor")
def adaptive_max_pool3d_backward(g: Builder, grad_output: Value, self: Value,
                                 indices: Value) -> Value:
    """Each gradient at the place of its window's maximum."""
    return _to_places(g, grad_output, self, indices, 3)


def _shares(g: Builder, grad: Value, x: Value, size: Any, stride: Any, padding: Any, ceil: bool,
            padded: bool, divisor: int | None, axes: int) -> Value:
    """Each gradient in equal shares at every place of its window."""
    shape, grad = x.shape, _batched(g, grad, axes)
    sizes, pads, ones = each(size, axes), each(padding, axes), (1,) * axes
    steps = each(stride, axes) if stride else sizes
    counts = divisors(shape[-axes:], sizes, steps, pads, ceil, padded)
    if divisor is not None or (counts == counts.flat[0]).all():
        share = grad * (1.0 / (divisor or float(counts.flat[0])))
    else:
        weights = g.cast(g.constant((1 / counts).astype(np.float32)), grad.dtype)
        share = grad * g.broadcast(weights, grad.shape)
    ends = windows(shape[-axes:], sizes, steps, pads, ones, ceil)
    image = [n + p + more for n, p, (_, more) in zip(shape[-axes:], pads, ends, strict=True)]
    reach = [(n - 1) * s + k for n, s, k in zip(grad.shape[2:], steps, sizes, strict=True)]
    image = [max(pair) for pair in zip(image, reach, strict=True)]
    parts = [_put_back(g, share, tap, image, steps, ones) for tap in _taps(sizes)]
    return _cut_padding(g, _total(parts), pads, shape)


def _shares_rule(axes: int) -> Callable:
    def rule(g: Builder, grad_output: Value, self: Value, kernel_size: Any, stride: Any,
             padding: Any, ceil_mode: bool, count_include_pad: bool,
             divisor_override: int | None) -> Value:
        """Each gradient in equal shares at every place of its window."""
        return _shares(g, grad_output, self, kernel_size, stride, padding, ceil_mode,
                       count_include_pad, divisor_override, axes)

    return rule


for _axes in (2, 3):
    _sizes = f"int[{_axes}] kernel_size, int[{_axes}] stride, int[{_axes}] padding"
    torch_op(f"aten::max_pool{_axes}d_with_indices_backward(Tensor grad_output, Tensor self, "
             f"{_sizes}, int[{_axes}] dilation, bool ceil_mode, Tensor indices) -> Tensor")(
                 _most_rule(_axes))
    torch_op(f"aten::avg_pool{_axes}d_backward(Tensor grad_output, Tensor self, {_sizes}, bool "
             "ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor")(
                 _shares_rule(_axes))


# ---------------------------------------------------------------------- windows as an axis


def _to_last(g: Builder, x: Value, axis: int) -> Value:
    return g.transpose(x, (*(a for a in range(x.rank) if a != axis), axis))


def _from_last(g: Builder, x: Value, axis: int) -> Value:
    return g.transpose(x, (*range(axis), x.rank - 1, *range(axis, x.rank - 1)))


@torch_op("aten::unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)")
def unfold(g: Builder, self: Value, dimension: int, size: int, step: int) -> Value:
    """Windows of `size` elements every `step` along an axis, their elements on a new last axis."""
    if not self.rank:
        return g.reshape(self, (size,))
    axis = dimension % self.rank
    count = (self.shape[axis] - size) // step + 1
    x = _to_last(g, self, axis)
    lead, zeros, ones = x.shape[:-1], [0] * (x.rank - 1), [1] * (x.rank - 1)
    if step == size:
        cut = g.slice(x, [*zeros, 0], [*lead, count * size], [*ones, 1])
        made = g.reshape(cut, (*lead, count, size))
    elif size <= count:
        taps = [g.slice(x, [*zeros, n], [*lead, n + (count - 1) * step + 1], [*ones, step])
                for n in range(size)]
        made = g.concatenate(*(g.reshape(one, (*one.shape, 1)) for one in taps),
                             dimension=x.rank)
    else:
        each_window = [g.slice(x, [*zeros, n * step], [*lead, n * step + size], [*ones, 1])
                       for n in range(count)]
        made = g.concatenate(*(g.reshape(one, (*lead, 1, size)) for one in each_window),
                             dimension=x.rank - 1)
    back = (*range(axis), x.rank - 1, *range(axis, x.rank - 1), x.rank)
    return g.transpose(made, back)


@torch_op("aten::unfold_copy(Tensor self, int dimension, int size, int step) -> Tensor")
def unfold_copy(g: Builder, self: Value, dimension: int, size: int, step: int) -> Value:
    """As `unfold`."""
    return unfold(g, self, dimension, size, step)


@torch_op("aten::unfold_backward(Tensor grad_in, SymInt[] input_sizes, int dim, int size, int "
          "step) -> Tensor")
def unfold_backward(g: Builder, grad_in: Value, input_sizes: list[int], dim: int, size: int,
                    step: int) -> Value:
    """What each window's elements got, added up where they came from."""
    if not input_sizes:
        return g.reshape(g.sum(grad_in, 0), ())
    axis = dim % len(input_sizes)
    windowed = _to_last(g, grad_in, axis)  # […, size, count]
    lead, count = windowed.shape[:-2], windowed.shape[-1]
    zero, nothing = g.full((), 0.0, grad_in.dtype), [0] * len(lead)
    parts = []
    for n in range(min(size, input_sizes[axis])):
        starts, limits = [*nothing, n, 0], [*lead, n + 1, count]
        tap = g.reshape(g.slice(windowed, starts, limits, [1] * len(limits)), (*lead, count))
        after = input_sizes[axis] - n - (count - 1) * step - 1
        parts.append(g.pad(tap, zero, [*nothing, n], [*nothing, after], [*nothing, step - 1]))
    return _from_last(g, _total(parts), axis)


@torch_op("aten::replication_pad1d_backward(Tensor grad_output, Tensor self, SymInt[2] padding) "
          "-> Tensor",
          "aten::replication_pad2d_backward(Tensor grad_output, Tensor self, SymInt[4] padding) "
          "-> Tensor",
          "aten::replication_pad3d_backward(Tensor grad_output, Tensor self, SymInt[6] padding) "
          "-> Tensor")
def replication_pad_backward(g: Builder, grad_output: Value, self: Value,
                             padding: list[int]) -> Value:
    """The gradient of an image whose edges were repeated: sums of what its edges became."""
    found = g.cast(grad_output, "float32")
    for n in range(len(padding) // 2):
        axis = self.rank - 1 - n
        sources = np.arange(found.shape[axis]) - padding[2 * n]
        here = np.arange(self.shape[axis])
        matrix = np.equal.outer(here, np.clip(sources, 0, here[-1]))
        found = along(g, found, axis, matrix.astype(np.float32))
    return g.cast(found, self.dtype)
