"""Torch rules: pooling with any window, and images in another size.

Interpolation and adaptive means are linear along each axis on its own, so each is a product with a
matrix that is known beforehand, and its gradient one with the transposed matrix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opentrn.graph.build import Builder
from opentrn.graph.importers.torch_rules import refuse, torch_op
from opentrn.graph.ir import Value

CUBIC = -0.75
"""The parameter of torch's cubic convolution (Keys, 1981, leaves it open)."""


def along(g: Builder, x: Value, axis: int, matrix: np.ndarray) -> Value:
    """The matrix [out, in] applied along an axis."""
    axis %= x.rank
    order = (*(a for a in range(x.rank) if a != axis), axis)
    back = tuple(order.index(a) for a in range(x.rank))
    turned = g.transpose(x, order)
    rows = g.reshape(turned, (x.size // x.shape[axis], x.shape[axis]))
    made = g.matmul(rows, g.cast(g.constant(matrix.T.astype(np.float32)), x.dtype))
    return g.transpose(g.reshape(made, (*turned.shape[:-1], matrix.shape[0])), back)


def _resampled(g: Builder, x: Value, matrices: Sequence[np.ndarray]) -> Value:
    """One matrix for each of the last axes; floats of 16 bits are computed in 32."""
    wide = g.cast(x, "float32")
    for n, matrix in enumerate(matrices):
        wide = along(g, wide, n - len(matrices), matrix)
    return g.cast(wide, x.dtype)


# ---------------------------------------------------------------------- interpolation


def _step(count: int, wanted: int, align: bool, scale: float | None) -> float:
    """How far apart in the input the output's elements lie."""
    if align:
        return (count - 1) / (wanted - 1) if wanted > 1 else 0.0
    return 1 / scale if scale else count / wanted


def _sources(count: int, wanted: int, align: bool, scale: float | None) -> np.ndarray:
    """Where in the input each output element lies."""
    places, step = np.arange(wanted, dtype=np.float64), _step(count, wanted, align, scale)
    return places * step if align else (places + 0.5) * step - 0.5


def linear_matrix(count: int, wanted: int, align: bool, scale: float | None) -> np.ndarray:
    """Weights [wanted, count] of linear interpolation."""
    sources = np.maximum(_sources(count, wanted, align, scale), 0.0)
    low = np.minimum(sources.astype(np.int64), count - 1)
    share = sources - low
    made = np.zeros((wanted, count))
    np.add.at(made, (np.arange(wanted), low), 1 - share)
    np.add.at(made, (np.arange(wanted), np.minimum(low + 1, count - 1)), share)
    return made


def cubic_matrix(count: int, wanted: int, align: bool, scale: float | None) -> np.ndarray:
    """Weights [wanted, count] of cubic convolution; places outside count as the nearest inside."""
    sources = _sources(count, wanted, align, scale)
    first = np.floor(sources).astype(np.int64)
    made = np.zeros((wanted, count))
    for tap in range(-1, 3):
        far = np.abs(sources - (first + tap))
        near = ((CUBIC + 2) * far - (CUBIC + 3)) * far * far + 1
        outer = ((far - 5) * far + 8) * far * CUBIC - 4 * CUBIC
        weight = np.where(far <= 1, near, np.where(far < 2, outer, 0.0))
        np.add.at(made, (np.arange(wanted), np.clip(first + tap, 0, count - 1)), weight)
    return made


def _smooth_matrix(reach: int, filtered: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Weights of interpolation with antialiasing: a filter that reaches `reach` input elements to
    either side, wider by the factor when an image gets smaller, so that every element counts."""
    def matrix(count: int, wanted: int, align: bool, scale: float | None) -> np.ndarray:
        step = _step(count, wanted, align, scale)
        wide = max(step, 1.0)
        made = np.zeros((wanted, count))
        for n in range(wanted):
            centre = step * (n + 0.5)
            first = max(int(centre - reach * wide + 0.5), 0)
            last = min(int(centre + reach * wide + 0.5), count)
            weights = filtered(np.abs(np.arange(first, last) - centre + 0.5) / wide)
            made[n, first:last] = weights / weights.sum()
        return made
    return matrix


def _triangle(far: np.ndarray) -> np.ndarray:
    return np.maximum(1 - far, 0.0)


def _cubic(far: np.ndarray) -> np.ndarray:
    """Keys' cubic with the parameter -0.5, which torch takes for antialiasing."""
    near, outer = (1.5 * far - 2.5) * far * far + 1, ((-0.5 * far + 2.5) * far - 4) * far + 2
    return np.where(far < 1, near, np.where(far < 2, outer, 0.0))


def _nearest_matrix(exact: bool) -> Any:
    """Ones where the nearest element is; torch rounds down, or with `exact` to the middle."""
    def matrix(count: int, wanted: int, scale: float | None) -> np.ndarray:
        step = np.float32(1 / scale if scale else count / wanted)
        places = np.arange(wanted, dtype=np.float32) + np.float32(0.5 if exact else 0.0)
        sources = np.minimum((places * step).astype(np.int64), count - 1)
        return np.equal.outer(sources, np.arange(count)).astype(np.float64)
    return matrix


def mean_matrix(count: int, wanted: int) -> np.ndarray:
    """Weights [wanted, count] of the means of an adaptive pooling."""
    made = np.zeros((wanted, count))
    for n in range(wanted):
        first, last = n * count // wanted, -(-(n + 1) * count // wanted)
        made[n, first:last] = 1 / (last - first)
    return made


def _scales(count: int, given: Any) -> list[float | None]:
    return list(given) if given else [None] * count


def _interpolation(name: str, axes: int, matrix: Callable[..., np.ndarray]) -> None:
    """Enter the rules of one interpolation: by sizes, by factors, and the gradient."""
    letters = {1: "", 2: "hw", 3: "dhw"}[axes]
    words = [f"scales_{c}" for c in letters] or ["scales"]
    scales = ", ".join(f"float? {w}=None" for w in words)

    def matrices(sizes: Sequence[int], wanted: Any, align: bool, given: Any) -> list[np.ndarray]:
        return [matrix(n, int(w), align, s)
                for n, w, s in zip(sizes, wanted, _scales(axes, given), strict=True)]

    def forward(g: Builder, x: Value, wanted: Any, align: bool, given: Any) -> Value:
        return _resampled(g, x, matrices(x.shape[2:], wanted, align, given))

    def vec(g: Builder, input: Value, output_size: Any, align_corners: bool,
            scale_factors: Any) -> Value:
        wanted = output_size or [math.floor(n * s) for n, s in
                                 zip(input.shape[2:], scale_factors, strict=True)]
        return forward(g, input, wanted, align_corners, scale_factors)

    def backward(g: Builder, grad: Value, sizes: Any, wanted: Any, align: bool,
                 given: Any) -> Value:
        found = matrices(sizes[2:], wanted, align, given)
        return _resampled(g, grad, [m.T for m in found])

    vec.__doc__ = f"{name} of an image by its new size, or factors."
    torch_op(f"aten::{name}.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? "
             "scale_factors) -> Tensor")(vec)
    torch_op(f"aten::{name}(Tensor self, SymInt[{axes}] output_size, bool align_corners, {scales})"
             " -> Tensor")(_SIZED[axes](forward, name))
    torch_op(f"aten::{name}_backward(Tensor grad_output, SymInt[{axes}] output_size, "
             f"SymInt[{axes + 2}] input_size, bool align_corners, {scales}) -> Tensor")(
                 _BACK[axes](backward, name))


def _given(*scales: Any) -> list[Any] | None:
    return list(scales) if any(scales) else None


def _sized1(forward: Callable, name: str) -> Callable:
    def rule(g: Builder, self: Value, output_size: Any, align_corners: bool,
             scales: Any = None) -> Value:
        return forward(g, self, output_size, align_corners, _given(scales))
    rule.__doc__ = f"{name} of a line."
    return rule


def _sized2(forward: Callable, name: str) -> Callable:
    def rule(g: Builder, self: Value, output_size: Any, align_corners: bool, scales_h: Any = None,
             scales_w: Any = None) -> Value:
        return forward(g, self, output_size, align_corners, _given(scales_h, scales_w))
    rule.__doc__ = f"{name} of an image."
    return rule


def _sized3(forward: Callable, name: str) -> Callable:
    def rule(g: Builder, self: Value, output_size: Any, align_corners: bool, scales_d: Any = None,
             scales_h: Any = None, scales_w: Any = None) -> Value:
        return forward(g, self, output_size, align_corners, _given(scales_d, scales_h, scales_w))
    rule.__doc__ = f"{name} of a volume."
    return rule


def _back1(backward: Callable, name: str) -> Callable:
    def rule(g: Builder, grad_output: Value, output_size: Any, input_size: Any,
             align_corners: bool, scales: Any = None) -> Value:
        return backward(g, grad_output, input_size, output_size, align_corners, _given(scales))
    rule.__doc__ = f"The gradient of {name}."
    return rule


def _back2(backward: Callable, name: str) -> Callable:
    def rule(g: Builder, grad_output: Value, output_size: Any, input_size: Any,
             align_corners: bool, scales_h: Any = None, scales_w: Any = None) -> Value:
        return backward(g, grad_output, input_size, output_size, align_corners,
                        _given(scales_h, scales_w))
    rule.__doc__ = f"The gradient of {name}."
    return rule


def _back3(backward: Callable, name: str) -> Callable:
    def rule(g: Builder, grad_output: Value, output_size: Any, input_size: Any,
             align_corners: bool, scales_d: Any = None, scales_h: Any = None,
             scales_w: Any = None) -> Value:
        return backward(g, grad_output, input_size, output_size, align_corners,
                        _given(scales_d, scales_h, scales_w))
    rule.__doc__ = f"The gradient of {name}."
    return rule


_SIZED = {1: _sized1, 2: _sized2, 3: _sized3}
_BACK = {1: _back1, 2: _back2, 3: _back3}
_interpolation("upsample_linear1d", 1, linear_matrix)
_interpolation("upsample_bilinear2d", 2, linear_matrix)
_interpolation("upsample_trilinear3d", 3, linear_matrix)
_interpolation("upsample_bicubic2d", 2, cubic_matrix)
_interpolation("_upsample_bilinear2d_aa", 2, _smooth_matrix(1, _triangle))
_interpolation("_upsample_bicubic2d_aa", 2, _smooth_matrix(2, _cubic))


def _nearest_gradient(exact: bool) -> tuple[Callable, Callable, Callable]:
    """The gradients of nearest interpolation of lines, images and volumes."""
    matrix = _nearest_matrix(exact)

    def backward(g: Builder, grad: Value, sizes: Any, *scales: Any) -> Value:
        found = zip(sizes[2:], grad.shape[2:], scales, strict=True)
        return _resampled(g, grad, [matrix(n, w, s).T for n, w, s in found])

    def line(g: Builder, grad_output: Value, output_size: Any, input_size: Any,
             scales: Any = None) -> Value:
        """What each element became, added up."""
        return backward(g, grad_output, input_size, scales)

    def image(g: Builder, grad_output: Value, output_size: Any, input_size: Any,
              scales_h: Any = None, scales_w: Any = None) -> Value:
        """What each element became, added up."""
        return backward(g, grad_output, input_size, scales_h, scales_w)

    def volume(g: Builder, grad_output: Value, output_size: Any, input_size: Any,
               scales_d: Any = None, scales_h: Any = None, scales_w: Any = None) -> Value:
        """What each element became, added up."""
        return backward(g, grad_output, input_size, scales_d, scales_h, scales_w)

    return line, image, volume


for _name, _exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True)):
    for _axes, _rule in enumerate(_nearest_gradient(_exact), 1):
        _letters = [f"scales_{c}" for c in "dhw"[3 - _axes:]] if _axes > 1 else ["scales"]
        _more = ", ".join(f"float? {w}=None" for w in _letters)
        torch_op(f"aten::{_name}{_axes}d_backward(Tensor grad_output, SymInt[{_axes}] output_size, "
                 f"SymInt[{_axes + 2}] input_size, {_more}) -> Tensor")(_rule)


# ---------------------------------------------------------------------- adaptive means


@torch_op("aten::_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor",
          "aten::adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor",
          "aten::_adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor",
          "aten::adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor")
def adaptive_avg_pool(g: Builder, self: Value, output_size: Any) -> Value:
    """Means over windows that fill the image, in an image of this size."""
    sizes = self.shape[-len(output_size):]
    if all(w == 1 for w in output_size):
        return g.mean(self, tuple(range(self.rank - len(sizes), self.rank)), True)
    if not any(n % w for n, w in zip(sizes, output_size, strict=True)):
        window = [n // w for n, w in zip(sizes, output_size, strict=True)]
        return _means(g, self, window, (), 0, False, True, None, len(sizes))
    return _resampled(g, self, [mean_matrix(n, int(w)) for n, w in
                                zip(sizes, output_size, strict=True)])


def _spread(g: Builder, grad: Value, image: Value, count: int) -> Value:
    """The gradient of adaptive means along the last `count` axes."""
    sizes, places = image.shape[-count:], grad.shape[-count:]
    if any(n % w for n, w in zip(sizes, places, strict=True)):
        pairs = zip(sizes, places, strict=True)
        return _resampled(g, grad, [mean_matrix(n, w).T for n, w in pairs])
    repeats = [n // w for n, w in zip(sizes, places, strict=True)]
    lead = image.shape[:-count]
    thin = [n for w in places for n in (w, 1)]
    wide = [n for w, k in zip(places, repeats, strict=True) for n in (w, k)]
    share = g.reshape(grad * (1.0 / math.prod(repeats)), (*lead, *thin))
    return g.reshape(g.broadcast(share, (*lead, *wide)), image.shape)


@torch_op("aten::_adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor")
def adaptive_avg_pool2d_backward(g: Builder, grad_output: Value, self: Value) -> Value:
    """The gradient of adaptive means of an image."""
    return _spread(g, grad_output, self, 2)


@torch_op("aten::_adaptive_avg_pool3d_backward(Tensor grad_output, Tensor self) -> Tensor")
def adaptive_avg_pool3d_backward(g: Builder, grad_output: Value, self: Value) -> Value:
    """The gradient of adaptive means of a volume."""
    return _spread(g, grad_output, self, 3)


# ---------------------------------------------------------------------- pooling


def each(given: Any, count: int) -> tuple[int, ...]:
    """Torch's number, or list of one or `count` numbers, as `count` numbers."""
    listed = (given,) if isinstance(given, int) else tuple(given)
    return listed * count if len(listed) == 1 else listed


def windows(sizes: Sequence[int], window: Sequence[int], steps: Sequence[int],
            pads: Sequence[int], holes: Sequence[int], ceil: bool) -> list[tuple[int, int]]:
    """(places, padding after) along each axis, as torch counts them.

    With `ceil` a last window may begin inside the image (or the padding before it) and end
    outside."""
    found = []
    for n, k, s, p, d in zip(sizes, window, steps, pads, holes, strict=True):
        reach = d * (k - 1) + 1
        room = n + 2 * p - reach
        count = (-(-room // s) if ceil else room // s) + 1
        if ceil and (count - 1) * s >= n + p:
            count -= 1
        found.append((count, max((count - 1) * s + reach - n - p, 0)))
    return found


def pooled(g: Builder, x: Value, kind: str, size: Any, stride: Any, padding: Any, dilation: Any,
           ceil: bool, axes: int) -> Value:
    """`kind` over the windows along the last axes; outside counts as nothing."""
    window, pads, holes = (each(v, axes) for v in (size, padding, dilation))
    steps = each(stride, axes) if stride else window
    lead = (1,) * (x.rank - axes)
    ends = windows(x.shape[-axes:], window, steps, pads, holes, ceil)
    pairs = [(p, after) for p, (_, after) in zip(pads, ends, strict=True)]
    return g.reduce_window(x, kind=kind, window=lead + window, strides=lead + steps,
                           padding=[(0, 0)] * len(lead) + pairs, dilation=lead + holes)


def divisors(sizes: Sequence[int], window: Any, steps: Any, pads: Any, ceil: bool,
              padded: bool) -> np.ndarray:
    """How many elements torch divides each window's sum by."""
    ends = windows(sizes, window, steps, pads, (1,) * len(window), ceil)
    total: Any = 1.0
    for axis, (n, k, s, p) in enumerate(zip(sizes, window, steps, pads, strict=True)):
        first = np.arange(ends[axis][0]) * s - p
        last = np.minimum(first + k, n + p)
        count = last - first if padded else np.minimum(last, n) - np.maximum(first, 0)
        total = np.multiply.outer(total, count) if axis else count.astype(np.float64)
    return total


def _means(g: Builder, x: Value, size: Any, stride: Any, padding: Any, ceil: bool, padded: bool,
           divisor: int | None, axes: int) -> Value:
    window, pads = each(size, axes), each(padding, axes)
    steps = each(stride, axes) if stride else window
    total = pooled(g, x, "add", window, steps, pads, 1, ceil, axes)
    counts = divisors(x.shape[-axes:], window, steps, pads, ceil, padded)
    if divisor is not None or (counts == counts.flat[0]).all():
        return total * (1.0 / (divisor or float(counts.flat[0])))
    shares = g.cast(g.constant((1 / counts).astype(np.float32)), x.dtype)
    return total * g.broadcast(shares, total.shape)


@torch_op("aten::avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, "
          "bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> "
          "Tensor")
def avg_pool2d(g: Builder, self: Value, kernel_size: Any, stride: Any = (), padding: Any = 0,
               ceil_mode: bool = False, count_include_pad: bool = True,
               divisor_override: int | None = None) -> Value:
    """The mean under each window, padding counted as zeros unless said otherwise."""
    return _means(g, self, kernel_size, stride, padding, ceil_mode, count_include_pad,
                  divisor_override, 2)


@torch_op("aten::avg_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, "
          "bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> "
          "Tensor")
def avg_pool3d(g: Builder, self: Value, kernel_size: Any, stride: Any = (), padding: Any = 0,
               ceil_mode: bool = False, count_include_pad: bool = True,
               divisor_override: int | None = None) -> Value:
    """The mean under each window of a volume."""
    return _means(g, self, kernel_size, stride, padding, ceil_mode, count_include_pad,
                  divisor_override, 3)


@torch_op("aten::max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, "
          "int[2] dilation=1, bool ceil_mode=False) -> Tensor")
def max_pool2d(g: Builder, self: Value, kernel_size: Any, stride: Any = (), padding: Any = 0,
               dilation: Any = 1, ceil_mode: bool = False) -> Value:
    """The largest under each window."""
    return pooled(g, self, "maximum", kernel_size, stride, padding, dilation, ceil_mode, 2)


def _wins(g: Builder, one: Value, best: Value) -> Value:
    """Where torch takes a place for the largest: of a larger element, or of NaN."""
    return g.or_(g.compare(one, best, direction="GT"), g.compare(one, one, direction="NE"))


def _with_places(g: Builder, x: Value, size: Any, stride: Any, padding: Any, dilation: Any,
                 ceil: bool, axes: int) -> tuple[Value, Value]:
    """The largest under each window, and its row-major place in the image (the first such)."""
    if x.dtype.kind != "float":
        raise refuse(f"places of the largest of {x.dtype}", g.where, "convert to float32 first")
    window, pads, holes = (each(v, axes) for v in (size, padding, dilation))
    steps = each(stride, axes) if stride else window
    ends = windows(x.shape[-axes:], window, steps, pads, holes, ceil)
    lead = [0] * (x.rank - axes)
    high = [*lead, *(after for _, after in ends)]
    floor = g.full((), -math.inf, x.dtype)
    padded = g.pad(x, floor, [*lead, *pads], high) if any(pads) or any(high) else x
    best = place = None
    for tap in itertools.product(*map(range, window)):
        first = [t * d for t, d in zip(tap, holes, strict=True)]
        limits = [f + (n - 1) * s + 1
                  for f, (n, _), s in zip(first, ends, steps, strict=True)]
        one = g.slice(padded, [*lead, *first], [*x.shape[: len(lead)], *limits],
                      [1] * len(lead) + list(steps))
        here = None
        for n in range(axes):
            axis = len(lead) + n
            line = g.iota(one.shape, axis, "int32") * steps[n] + (first[n] - pads[n])
            here = line if here is None else here * x.shape[axis] + line
        place = here if best is None else g.select(_wins(g, one, best), here, place)
        best = one if best is None else g.maximum(best, one)
    return best, g.cast(place, "int64")


@torch_op("aten::max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] "
          "padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)")
def max_pool2d_with_indices(g: Builder, self: Value, kernel_size: Any, stride: Any = (),
                            padding: Any = 0, dilation: Any = 1,
                            ceil_mode: bool = False) -> tuple[Value, Value]:
    """The largest under each window of an image, and where it is."""
    return _with_places(g, self, kernel_size, stride, padding, dilation, ceil_mode, 2)


@torch_op("aten::max_pool3d_with_indices(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] "
          "padding=0, int[3] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)")
def max_pool3d_with_indices(g: Builder, self: Value, kernel_size: Any, stride: Any = (),
                            padding: Any = 0, dilation: Any = 1,
                            ceil_mode: bool = False) -> tuple[Value, Value]:
    """The largest under each window of a volume, and where it is."""
    return _with_places(g, self, kernel_size, stride, padding, dilation, ceil_mode, 3)


def _adaptive(g: Builder, x: Value, wanted: Sequence[int]) -> tuple[Value, Value]:
    """The largest of windows that fill the image, and its row-major place (the first such).

    Windows differ in size by at most one, so the smaller see their last element twice."""
    axes = len(wanted)
    lead, sources = x.rank - axes, []
    for size, count in zip(x.shape[-axes:], wanted, strict=True):
        first = np.arange(count) * size // count
        last = -(-(np.arange(count) + 1) * size // count) - 1
        taps = np.arange(int((last - first).max()) + 1)
        sources.append(np.minimum(first + taps[:, None], last))
    best = place = None
    for tap in itertools.product(*sources):
        one, here = x, np.zeros((), np.int64)
        for n, line in enumerate(tap):
            one = g.take(one, g.constant(line.astype(np.int32)), lead + n)
            here = here[..., None] * x.shape[lead + n] + line
        spread = g.broadcast(g.constant(here.astype(np.int32)), one.shape)
        place = spread if best is None else g.select(_wins(g, one, best), spread, place)
        best = one if best is None else g.maximum(best, one)
    return best, g.cast(place, "int64")


@torch_op("aten::adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)",
          "aten::adaptive_max_pool3d(Tensor self, int[3] output_size) -> (Tensor, Tensor)")
def adaptive_max_pool(g: Builder, self: Value, output_size: Any) -> tuple[Value, Value]:
    """The largest under windows that fill the image, and where it is."""
    if self.dtype.kind != "float":
        raise refuse(f"places of the largest of {self.dtype}", g.where, "convert to float32 first")
    return _adaptive(g, self, output_size)
