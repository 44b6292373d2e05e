"""ONNX rules: pooling, and what slides windows over an image."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from opentrn.graph.importers.onnx_call import Node, onnx_op
from opentrn.graph.importers.onnx_rules_linear import edges
from opentrn.graph.importers.torch_rules_index import scattered
from opentrn.graph.ir import Value

Window = dict[str, Any]
MOST_TAPS = 1 << 14
MOST_PLACES = 1 << 26


def within(n: Node, sizes: Sequence[int], most: int) -> None:
    """Refuse sizes below 1, or whose product is beyond what is counted one by one."""
    if min(sizes, default=1) < 1 or math.prod(sizes) > most:
        raise n.refuse(f"{list(sizes)} is more than {most} places, or none")


def _window(n: Node, ceil: bool = True) -> Window:
    """Window, strides, dilations and padding of a pooling; with `ceil_mode` the last window may
    begin inside and end outside."""
    taps = list(n.attr("kernel_shape"))
    sizes = n.x.shape[2:]
    within(n, taps, MOST_TAPS)
    strides = n.attr("strides") or [1] * len(taps)
    dilations = n.attr("dilations") or [1] * len(taps)
    padding = edges(n, sizes, taps, strides, dilations)
    more = [0] * len(taps)
    if ceil and n.attr("ceil_mode", 0):
        for i, (size, k, s, d, (lo, hi)) in enumerate(
                zip(sizes, taps, strides, dilations, padding, strict=True)):
            room = size + lo + hi - (k - 1) * d - 1
            count = -(-room // s) + 1
            if (count - 1) * s >= size + lo:
                count -= 1
            more[i] = max((count - 1) * s - room, 0)
    return {"taps": taps, "strides": strides, "dilations": dilations, "padding": padding,
            "more": more}


def _pooled(n: Node, x: Value, kind: str, w: Window) -> Value:
    padding = [(0, 0), (0, 0), *((lo, hi + e) for (lo, hi), e in
                                 zip(w["padding"], w["more"], strict=True))]
    return n.g.reduce_window(x, kind=kind, window=[1, 1, *w["taps"]],
                             strides=[1, 1, *w["strides"]], padding=padding,
                             dilation=[1, 1, *w["dilations"]])


@onnx_op("AveragePool")
def average_pool(n: Node) -> Value:
    """Means under a window; elements of the padding count with `count_include_pad`."""
    w = _window(n)
    wide = n.g.cast(n.x, "float32") if n.x.dtype.bits < 32 else n.x
    total = _pooled(n, wide, "add", w)
    within(n, [size + 1 + sum(map(abs, pads)) + more for size, pads, more in
               zip(n.x.shape[2:], w["padding"], w["more"], strict=True)], MOST_PLACES)
    ones = np.ones(n.x.shape[2:])
    if n.attr("count_include_pad", 0):
        ones = np.pad(ones, w["padding"], constant_values=1)
        around = [(0, e) for e in w["more"]]
    else:
        around = [(lo, hi + e) for (lo, hi), e in zip(w["padding"], w["more"], strict=True)]
    counted = _counts(np.pad(ones, around), w, total.shape[2:])
    share = n.g.constant(np.asarray(1 / counted, str(wide.dtype)))
    return n.g.cast(total * n.g.broadcast(share, total.shape), n.x.dtype)


def _counts(ones: np.ndarray, w: Window, places: Sequence[int]) -> np.ndarray:
    """How many elements lie under each window."""
    total = np.zeros(tuple(places))
    for tap in itertools.product(*map(range, w["taps"])):
        cuts = tuple(slice(t * d, t * d + s * (p - 1) + 1, s) for t, d, s, p in
                     zip(tap, w["dilations"], w["strides"], places, strict=True))
        total += ones[cuts]
    return np.maximum(total, 1)


@onnx_op("LpPool")
def lp_pool(n: Node) -> Value:
    """(Σ |x|^p)^(1/p) under a window."""
    p = float(n.attr("p"))
    total = _pooled(n, n.g.power(n.g.abs(n.x), n.g.like(n.x, p)), "add", _window(n))
    return n.g.power(total, n.g.like(total, 1 / p))


@onnx_op("MaxPool")
def max_pool(n: Node) -> Any:
    """The largest under a window, and where it is in the whole array."""
    w = _window(n)
    best = _pooled(n, n.x, "maximum", w)
    if not n.wants(1):
        return best
    return best, _where_largest(n, best, w)


def _where_largest(n: Node, best: Value, w: Window) -> Value:
    """The first place under each window whose element is the largest, in row-major order (in
    column-major order of the image with `storage_order`)."""
    x, spatial = n.x, n.x.shape[2:]
    within(n, x.shape, MOST_PLACES)
    plane = np.arange(math.prod(spatial), dtype=np.int64)
    numbers = plane.reshape(spatial[::-1]).T if n.attr("storage_order", 0) else plane.reshape(
        spatial)
    channels = np.arange(x.shape[0] * x.shape[1], dtype=np.int64).reshape(
        x.shape[0], x.shape[1], *(1 for _ in spatial))
    places = n.g.constant(channels * plane.size + numbers)
    edge = [(0, 0), (0, 0), *((lo, hi + e) for (lo, hi), e in
                              zip(w["padding"], w["more"], strict=True))]
    low, high = [lo for lo, _ in edge], [hi for _, hi in edge]
    worst = n.g.full((), x.dtype.min if x.dtype.kind != "float" else -math.inf, x.dtype)
    grown = n.g.pad(x, worst, low=low, high=high)
    numbered = n.g.pad(places, n.g.full((), -1, "int64"), low=low, high=high)
    found = n.g.full(best.shape, -1, "int64")
    for tap in reversed(list(itertools.product(*map(range, w["taps"])))):
        starts = [0, 0, *(t * d for t, d in zip(tap, w["dilations"], strict=True))]
        stops = [*best.shape[:2], *(a + s * (p - 1) + 1 for a, s, p in
                                    zip(starts[2:], w["strides"], best.shape[2:], strict=True))]
        steps = [1, 1, *w["strides"]]
        value = n.g.slice(grown, starts, stops, steps)
        number = n.g.slice(numbered, starts, stops, steps)
        here = n.g.compare(value, best, direction="EQ")
        inside = n.g.compare(number, n.g.like(number, 0), direction="GE")
        found = n.g.select(n.g.and_(here, inside), number, found)
    return found


@onnx_op("MaxUnpool")
def max_unpool(n: Node) -> Value:
    """Each number at the place where MaxPool found it, 0 elsewhere."""
    x = n.x
    taps = n.attr("kernel_shape")
    strides, pads = n.attr("strides") or [1] * len(taps), n.attr("pads") or [0] * 2 * len(taps)
    count = len(taps)
    own = [(s - 1) * st + k - lo - hi for s, st, k, lo, hi in
           zip(x.shape[2:], strides, taps, pads[:count], pads[count:], strict=True)]
    shape = tuple(n.ints(2, "output_shape")) if n.has(2) else (*x.shape[:2], *own)
    # The numbers count places in the array that was pooled, not in a larger result.
    pooled = math.prod((*x.shape[:2], *own))
    flat = n.g.full((pooled,), 0.0, x.dtype)
    made = scattered(n.g, flat, 0, n.g.reshape(n.arg(1), (x.size,)),
                      n.g.reshape(x, (x.size,)), "set")
    made = n.g.reshape(made, (*x.shape[:2], *own))
    if made.shape == shape:
        return made
    return n.g.pad(made, n.g.full((), 0.0, x.dtype), low=[0] * x.rank,
                   high=[a - b for a, b in zip(shape, made.shape, strict=True)])


@onnx_op("Col2Im")
def col2im(n: Node) -> Value:
    """Columns of blocks added back into an image at the places they were cut from."""
    image, block = n.ints(1, "image_shape"), n.ints(2, "block_shape")
    count = len(image)
    strides, dilations = n.attr("strides") or [1] * count, n.attr("dilations") or [1] * count
    pads = n.attr("pads") or [0] * 2 * count
    within(n, block, MOST_TAPS)
    taps = math.prod(block)
    batch, channels = n.x.shape[0], n.x.shape[1] // taps
    places = [(i + lo + hi - (b - 1) * d - 1) // s + 1 for i, b, s, d, lo, hi in
              zip(image, block, strides, dilations, pads[:count], pads[count:], strict=True)]
    x = n.g.reshape(n.x, (batch, channels, taps, *places))
    total = None
    for number, tap in enumerate(itertools.product(*map(range, block))):
        lows, highs, inner = [0, 0], [0, 0], [0, 0]
        for t, d, s, p, i, lo in zip(tap, dilations, strides, places, image, pads, strict=False):
            start = t * d - lo
            lows.append(start)
            highs.append(i - start - (s * (p - 1) + 1))
            inner.append(s - 1)
        part = n.g.reshape(n.g.slice(x, [0, 0, number, *[0] * count],
                                     [batch, channels, number + 1, *places], [1] * x.rank),
                           (batch, channels, *places))
        part = n.g.pad(part, n.g.full((), 0, x.dtype), low=lows, high=highs, interior=inner)
        total = part if total is None else total + part
    if total is None:
        raise n.refuse("its blocks are empty")
    return total
