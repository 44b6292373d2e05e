"""ONNX rules: images sampled at computed places, and Fourier transforms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from opentrn.graph.importers.onnx_call import Node, onnx_op
from opentrn.graph.importers.onnx_rules_elementwise import torch_rule
from opentrn.graph.importers.onnx_rules_shape import cut
from opentrn.graph.ir import Value

CUBIC = -0.75
"""The parameter of GridSample's cubic convolution (the operator's documentation)."""

Tap = tuple[Value, Value]  # the place of a pixel along an axis, and its weight; [samples, points]


@onnx_op("GridSample")
def grid_sample(n: Node) -> Value:
    """Pixels of x at the places a grid names, between -1 and 1 along each axis, interpolated."""
    x, grid = n.arg(0), n.arg(1)
    sizes, points = x.shape[2:], grid.shape[1:-1]
    rank, count = len(sizes), math.prod(points)
    if grid.shape[-1] != rank or grid.shape[0] != x.shape[0] or not all(sizes):
        raise n.refuse(f"the grid is {list(grid.shape)} for an image {list(x.shape)}")
    rows = n.g.cast(n.g.reshape(grid, (x.shape[0], count, rank)), "float32")
    taps = []
    for axis, size in enumerate(sizes):
        place = n.g.reshape(cut(n, rows, 2, rank - 1 - axis, rank - axis), (x.shape[0], count))
        taps.append(_taps(n, place, size))
    flat = n.g.cast(n.g.reshape(x, (*x.shape[:2], math.prod(sizes))), "float32")
    total = None
    for corner in itertools.product(*taps):
        part = pixels(n, flat, corner, sizes, n.attr("padding_mode"))
        total = part if total is None else total + part
    if total is None:
        raise n.refuse("it has no taps")
    return n.g.cast(n.g.reshape(total, (*x.shape[:2], *points)), x.dtype)


def _taps(n: Node, place: Value, size: int) -> list[Tap]:
    """The pixels one axis is interpolated from."""
    g = n.g
    corners = bool(n.attr("align_corners"))
    x = (place + 1.0) * ((size - 1) / 2) if corners else ((place + 1.0) * size - 1.0) * 0.5
    mode = n.attr("mode")
    if mode == "nearest":
        x = g.round_nearest_even(x)
    x = _padded(n, x, size)
    if mode == "nearest":
        return [(x, g.like(x, 1.0))]
    base = g.floor(x)
    share = x - base
    if mode in ("linear", "bilinear"):
        return [(base, 1.0 - share), (base + 1.0, share)]
    if mode in ("cubic", "bicubic"):
        return [(base + float(k), _cubic(n, g.abs(share - float(k)))) for k in range(-1, 3)]
    raise n.refuse(f"`mode` is {mode!r}")


def _cubic(n: Node, far: Value) -> Value:
    """The weight of a pixel by its distance, 0 to 2 (Keys, 1981)."""
    a = CUBIC
    near = (far * (a + 2) - (a + 3)) * far * far + 1.0
    outer = ((far * a - 5 * a) * far + 8 * a) * far - 4 * a
    return n.g.select(n.g.compare(far, n.g.like(far, 1.0), direction="LE"), near, outer)


def _padded(n: Node, x: Value, size: int) -> Value:
    """Places outside moved in, by `padding_mode`; with zeros they stay outside."""
    g, mode = n.g, n.attr("padding_mode")
    corners = bool(n.attr("align_corners"))
    if mode == "border":
        return g.minimum(g.maximum(x, g.like(x, 0.0)), g.like(x, size - 1.0))
    if mode != "reflection":
        return x
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    span = high - low
    if not span:
        return g.like(x, low)
    far = g.abs(x - low)
    turns = g.floor(far / span)
    rest = far - turns * span
    odd = g.compare(g.remainder(turns, g.like(turns, 2.0)), g.like(turns, 1.0), direction="EQ")
    return g.select(odd, high - rest, rest + low)


def pixels(n: Node, flat: Value, corner: Sequence[Tap], sizes: Sequence[int],
           padding: str) -> Value:
    """One pixel of every channel for each point, weighted; outside what `padding` says."""
    g = n.g
    places: Value | None = None
    weight: Value | None = None
    for (place, share), size in zip(corner, sizes, strict=True):
        moved = _padded(n, place, size) if padding != "zeros" else place
        inside = g.minimum(g.maximum(moved, g.like(place, 0.0)),
                           g.like(place, size - 1.0))
        if padding == "zeros":
            here = g.compare(inside, place, direction="EQ")
            share = g.select(here, share, g.like(share, 0.0))
        number = g.cast(inside, "int32")
        places = number if places is None else places * size + number
        weight = share if weight is None else weight * share
    if places is None or weight is None:
        raise n.refuse("the image has no axes")
    shape = (*flat.shape[:2], places.shape[1])
    wide = g.broadcast_in_dim(places, shape=shape, dimensions=(0, 2))
    found = torch_rule(n, "gather", flat, 2, wide)
    return found * g.broadcast_in_dim(weight, shape=shape, dimensions=(0, 2))


# --------------------------------------------------------------------------------------- transforms


def _product(n: Node, x: Value, axis: int, matrix: np.ndarray) -> Value:
    """The matrix [out, in] applied along an axis."""
    held = n.g.constant(matrix.astype(str(x.dtype)))
    made = n.g.dot_general(x, held, lhs_contracting=axis, rhs_contracting=1)
    order = list(range(x.rank - 1))
    order.insert(axis, x.rank - 1)
    return n.g.transpose(made, tuple(order))


def fourier(n: Node, x: Value, axis: int, length: int, *, inverse: bool, half: bool) -> Value:
    """The discrete Fourier transform of [..., 1 or 2] (real and imaginary parts) along an axis;
    `half` leaves out what follows from the rest for real numbers."""
    if x.shape[-1] not in (1, 2) or axis == x.rank - 1:
        raise n.refuse(f"it transforms axis {axis} of {list(x.shape)}")
    room = length - x.shape[axis]
    x = cut(n, x, axis, 0, length) if room < 0 else n.g.pad(
        x, n.g.full((), 0.0, x.dtype), low=[0] * x.rank,
        high=[room if a == axis else 0 for a in range(x.rank)])
    count = length // 2 + 1 if half else length
    # k·n is reduced modulo the length first, so that the angles stay small and exact.
    turns = np.outer(np.arange(count), np.arange(length)) % length
    angles = 2 * np.pi * turns / length
    scale = 1 / length if inverse else 1.0
    sign = -1.0 if inverse else 1.0
    cosines, sines = np.cos(angles) * scale, np.sin(angles) * sign * scale
    real = cut(n, x, x.rank - 1, 0, 1)
    parts = [_product(n, real, axis, cosines), _product(n, real, axis, -sines)]
    if x.shape[-1] == 2:
        other = cut(n, x, x.rank - 1, 1, 2)
        parts = [parts[0] + _product(n, other, axis, sines),
                 parts[1] + _product(n, other, axis, cosines)]
    return n.g.concatenate(*parts, dimension=x.rank - 1)


def real_of_half(n: Node, x: Value, axis: int, length: int) -> Value:
    """The real numbers whose transform begins with x: what x leaves out is its mirror image."""
    count = length // 2 + 1
    if x.shape[-1] != 2 or x.shape[axis] != count or axis == x.rank - 1:
        raise n.refuse(f"{list(x.shape)} is not half a transform of length {length}")
    angles = 2 * np.pi * (np.outer(np.arange(length), np.arange(count)) % length) / length
    twice = np.where((np.arange(count) == 0) | (2 * np.arange(count) == length), 1.0, 2.0) / length
    real = _product(n, cut(n, x, x.rank - 1, 0, 1), axis, np.cos(angles) * twice)
    return real - _product(n, cut(n, x, x.rank - 1, 1, 2), axis, np.sin(angles) * twice)


@onnx_op("DFT")
def dft(n: Node) -> Value:
    """The discrete Fourier transform along an axis."""
    axis = n.ints(2, "axis")[0] if n.has(2) else n.attr("axis", 1 if n.opset < 20 else -2)
    axis = n.inside(int(axis), n.x.rank)
    inverse, half = bool(n.attr("inverse")), bool(n.attr("onesided"))
    whole = 2 * (n.x.shape[axis] - 1) if inverse and half else n.x.shape[axis]
    length = n.ints(1, "dft_length")[0] if n.has(1) else whole
    if not 0 < length <= 1 << 13:
        raise n.refuse(f"its length is {length}")
    if inverse and half:
        return real_of_half(n, n.x, axis, length)
    return fourier(n, n.x, axis, length, inverse=inverse, half=half)


@onnx_op("STFT")
def stft(n: Node) -> Value:
    """Fourier transforms of frames of a signal [samples, length, 1], under a window."""
    step = n.ints(1, "frame_step")[0]
    x = n.x if n.x.rank == 3 else n.g.reshape(n.x, (*n.x.shape, 1))
    size = n.ints(3, "frame_length")[0] if n.has(3) else (
        n.arg(2).shape[0] if n.has(2) else x.shape[1])
    count = (x.shape[1] - size) // step + 1 if step > 0 else 0
    if count < 1:
        raise n.refuse(f"frames of {size} every {step} in {x.shape[1]}")
    places = np.arange(count)[:, None] * step + np.arange(size)
    frames = n.g.take(x, n.g.constant(places.astype(np.int32)), 1)
    if n.has(2):
        frames = frames * n.g.broadcast_in_dim(n.arg(2), shape=frames.shape, dimensions=(2,))
    return fourier(n, frames, 2, size, inverse=False, half=bool(n.attr("onesided", 1)))
