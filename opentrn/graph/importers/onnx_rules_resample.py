"""ONNX rules: images in another size.

Interpolation works along each axis on its own, so each is a product with a matrix that is known
beforehand; nearest neighbours are picked by index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from opentrn.graph.importers.onnx_call import Node, onnx_op
from opentrn.graph.importers.torch_rules_resample import along
from opentrn.graph.ir import Value

NEAREST = {
    "round_prefer_floor": lambda x: math.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: math.floor(x + 0.5),
    "floor": math.floor, "ceil": math.ceil,
}


class Axis(NamedTuple):
    """One axis in another size: from `size` to `wanted` elements, by `scale`."""

    size: int
    wanted: int
    scale: float
    window: tuple[float, float]


def source(n: Node, a: Axis, x: int) -> float:
    """Where in the input the element x of the result lies, by the node's
    `coordinate_transformation_mode` (formulas: the operator's documentation)."""
    mode = n.attr("coordinate_transformation_mode", "asymmetric")
    whole = a.scale * a.size
    if mode == "align_corners":
        return 0.0 if whole == 1 else x * (a.size - 1) / (whole - 1)
    if mode == "asymmetric":
        return x / a.scale
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / a.scale
    if mode == "pytorch_half_pixel" and whole == 1:
        return -0.5
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (x + 0.5) / a.scale - 0.5
    if mode == "half_pixel_symmetric":
        return a.size / 2 * (1 - a.wanted / whole) + (x + 0.5) / a.scale - 0.5
    if mode == "tf_crop_and_resize":
        first, last = a.window
        if whole == 1:
            return (first + last) * (a.size - 1) / 2
        return first * (a.size - 1) + x * (last - first) * (a.size - 1) / (whole - 1)
    raise n.refuse(f"`coordinate_transformation_mode` is {mode!r}")


def _linear(far: np.ndarray) -> np.ndarray:
    return np.clip(1 - np.abs(far), 0, 1)


def _cubic(far: np.ndarray, a: float) -> np.ndarray:
    far = np.abs(far)
    near = ((a + 2) * far - (a + 3)) * far * far + 1
    outer = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
    return np.where(far <= 1, near, np.where(far < 2, outer, 0.0))


def matrix(n: Node, a: Axis, mode: str) -> np.ndarray:
    """Weights [wanted, size]; a row of zeros for an element that is extrapolated."""
    reach = 1 if mode == "linear" else 2
    sharp = min(a.scale, 1.0) if n.attr("antialias", 0) else 1.0
    first = math.floor(-reach / sharp) + 1
    made = np.zeros((a.wanted, a.size))
    for x in range(a.wanted):
        place = source(n, a, x)
        if outside(n, a, place):
            continue
        base = math.floor(place)
        taps = base + np.arange(first, 2 - first)
        far = (taps - place) * sharp
        weight = _linear(far) if mode == "linear" else _cubic(far, n.attr("cubic_coeff_a", -0.75))
        if n.attr("exclude_outside", 0):
            weight = np.where((taps >= 0) & (taps < a.size), weight, 0)
        if sharp != 1.0 or n.attr("exclude_outside", 0):
            weight = weight / weight.sum()
        np.add.at(made[x], np.clip(taps, 0, a.size - 1), weight)
    return made


def outside(n: Node, a: Axis, place: float) -> bool:
    """Whether an element lies outside a crop and has the node's `extrapolation_value`."""
    crop = n.attr("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return crop and not 0 <= place <= a.size - 1


def resized(n: Node, axes: dict[int, Axis], mode: str) -> Value:
    """The array with each of these axes in another size."""
    x = n.x
    wide = x if mode == "nearest" or x.dtype.bits >= 32 else n.g.cast(x, "float32")
    gone = np.zeros((), np.bool_)
    for axis, a in axes.items():
        places = [source(n, a, i) for i in range(a.wanted)]
        lost = np.asarray([outside(n, a, p) for p in places], np.bool_)
        gone = gone | lost.reshape([-1 if i == axis else 1 for i in range(x.rank)])
        if mode == "nearest":
            pick = NEAREST[n.attr("nearest_mode", "floor")]
            at = np.clip([pick(p) for p in places], 0, a.size - 1)
            wide = n.g.take(wide, n.g.constant(np.asarray(at, np.int32)), axis)
        else:
            wide = along(n.g, wide, axis, matrix(n, a, mode))
    made = n.g.cast(wide, x.dtype)
    if not gone.any():
        return made
    hidden = n.g.constant(np.broadcast_to(gone, made.shape))
    return n.g.select(hidden, n.g.like(made, n.attr("extrapolation_value", 0.0)), made)


def _mode(n: Node) -> str:
    mode = {"bilinear": "linear"}.get(n.attr("mode"), n.attr("mode"))
    if mode not in ("nearest", "linear", "cubic"):
        raise n.refuse(f"`mode` is {mode!r}")
    return mode


def _floats(n: Node, index: int, what: str) -> list[float]:
    return [float(v) for v in n.known(index, what).reshape(-1)]


@onnx_op("Resize")
def resize(n: Node) -> Value:
    """An array in another size, by factors or by sizes."""
    if n.opset < 11:
        scales = _floats(n, 1, "scales")
        return resized(n, _by_scales(n, range(n.x.rank), scales, None), _mode(n))
    axes = n.axes(n.attr("axes"), n.x.rank)
    window = _floats(n, 1, "roi") if n.has(1) else None
    scales = _floats(n, 2, "scales") if n.has(2) else []
    if scales:
        return resized(n, _by_scales(n, axes, scales, window), _mode(n))
    return resized(n, _by_sizes(n, axes, n.ints(3, "sizes"), window), _mode(n))


def _axis(n: Node, i: int, axis: int, wanted: int, scale: float, window: Any, count: int) -> Axis:
    ends = (window[i], window[i + count]) if window else (0.0, 1.0)
    if wanted < 0 or scale <= 0 or wanted * n.x.shape[axis] > 1 << 28:
        raise n.refuse(f"axis {axis} of {n.x.shape[axis]} becomes {wanted}")
    return Axis(n.x.shape[axis], wanted, scale, ends)


def _by_scales(n: Node, axes: Sequence[int], scales: list[float], window: Any) -> dict[int, Axis]:
    return _changed(n, {axis: _axis(n, i, axis, math.floor(n.x.shape[axis] * s), s, window,
                                    len(scales))
                        for i, (axis, s) in enumerate(zip(axes, scales, strict=True))})


def _by_sizes(n: Node, axes: Sequence[int], sizes: list[int], window: Any) -> dict[int, Axis]:
    policy = n.attr("keep_aspect_ratio_policy", "stretch")
    every = [want / n.x.shape[axis] for axis, want in zip(axes, sizes, strict=True)]
    if policy != "stretch":
        scale = min(every) if policy == "not_larger" else max(every)
        every = [scale] * len(every)
        sizes = [math.floor(scale * n.x.shape[axis] + 0.5) for axis in axes]
    return _changed(n, {axis: _axis(n, i, axis, want, s, window, len(sizes)) for i, (axis, want, s)
                        in enumerate(zip(axes, sizes, every, strict=True))})


def _changed(n: Node, axes: dict[int, Axis]) -> dict[int, Axis]:
    """Only the axes that are not left as they are."""
    return {k: a for k, a in axes.items()
            if a.scale != 1 or a.wanted != a.size or a.window != (0.0, 1.0)}


@onnx_op("Upsample")
def upsample(n: Node) -> Value:
    """An array in another size, by factors."""
    scales = _floats(n, 1, "scales") if n.has(1) else n.attr("scales")
    return resized(n, _by_scales(n, range(n.x.rank), scales, None), _mode(n))
