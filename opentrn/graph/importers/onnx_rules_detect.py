"""ONNX rules: what detectors of objects use, deformed convolutions, and determinants."""

from __future__ import annotations

import itertools
import math

import numpy as np

from opentrn.graph.importers.onnx_call import Node, onnx_op
from opentrn.graph.importers.onnx_rules_linear import edges
from opentrn.graph.importers.onnx_rules_sample import Tap, pixels
from opentrn.graph.importers.onnx_rules_shape import cut
from opentrn.graph.ir import Value

MOST_ROWS = 64  # of a matrix whose determinant is taken: each is a step of the program


# ------------------------------------------------------------------------------- regions of images


@onnx_op("RoiAlign")
def roi_align(n: Node) -> Value:
    """Each region of interest cut into bins; of a bin the mean (or the largest) of points inside,
    interpolated between pixels (He et al., "Mask R-CNN").

    Interpolation is separate along height and width, so a mean is two matrix products."""
    g, (x, rois, image) = n.g, n.values[:3]
    count = n.attr("sampling_ratio", 0)
    if count < 1:
        raise n.refuse("with `sampling_ratio` 0 each region has as many points as its size says",
                       fix="export it with a sampling_ratio, for example 2")
    half = n.attr("coordinate_transformation_mode", "output_half_pixel") == "half_pixel"
    images = g.cast(g.take(x, image, 0), "float32")
    places = g.cast(rois, "float32") * n.attr("spatial_scale") - (0.5 if half else 0.0)
    sides = []
    for axis, word in ((1, "output_height"), (0, "output_width")):
        begin, end = (g.reshape(cut(n, places, 1, a, a + 1), (rois.shape[0],))
                      for a in (axis, axis + 2))
        size = end - begin if half else g.maximum(end - begin, g.like(begin, 1.0))
        sides.append(_samples(n, begin, size, n.attr(word), count, x.shape[3 - axis]))
    if n.attr("mode") == "avg":
        means = [low + high for low, high in sides]
        summed = [g.reduce(m, kind="add", dimensions=1) * (1.0 / count) for m in means]
        return g.cast(_bins(n, summed[0], images, summed[1]), x.dtype)
    found = None
    for one, other in itertools.product(*([(part, i) for part in side for i in range(count)]
                                          for side in sides)):
        rows, columns = (g.reshape(cut(n, part, 1, i, i + 1), (part.shape[0], *part.shape[2:]))
                         for part, i in (one, other))
        value = _bins(n, rows, images, columns)
        found = value if found is None else g.maximum(found, value)
    return g.cast(found, x.dtype)


def _samples(n: Node, begin: Value, size: Value, bins: int, count: int,
             pixels_: int) -> tuple[Value, Value]:
    """The weights [regions, count, bins, pixels] of the pixel before each point and of the one
    after it, along one axis; none for points more than a pixel outside."""
    g, shape = n.g, (begin.shape[0], count, bins)
    offsets = np.arange(bins) + (np.arange(count)[:, None] + 0.5) / count
    spread = g.broadcast(g.constant(offsets.astype(np.float32)), shape)
    at = (g.broadcast_in_dim(size * (1.0 / bins), shape, (0,)) * spread
          + g.broadcast_in_dim(begin, shape, (0,)))
    inside = g.and_(g.compare(at, g.like(at, -1.0), direction="GE"),
                    g.compare(at, g.like(at, float(pixels_)), direction="LE"))
    moved = g.minimum(g.maximum(at, g.like(at, 0.0)), g.like(at, pixels_ - 1.0))
    low = g.floor(moved)
    share = moved - low
    weights = []
    for place, weight in ((low, 1.0 - share), (low + 1.0, share)):
        held = g.select(inside, weight, g.like(weight, 0.0))
        wide = (*shape, pixels_)
        here = g.compare(g.broadcast_in_dim(place, wide, (0, 1, 2)),
                         g.iota(wide, 3, "float32"), direction="EQ")
        held = g.broadcast_in_dim(held, wide, (0, 1, 2))
        weights.append(g.select(here, held, g.like(held, 0.0)))
    return weights[0], weights[1]


def _bins(n: Node, rows: Value, images: Value, columns: Value) -> Value:
    """[R, C, h, w] of rows [R, h, H], images [R, C, H, W] and columns [R, w, W]."""
    made = n.g.dot_general(images, columns, lhs_contracting=3, rhs_contracting=2, lhs_batch=0,
                           rhs_batch=0)
    made = n.g.dot_general(made, rows, lhs_contracting=2, rhs_contracting=2, lhs_batch=0,
                           rhs_batch=0)
    return n.g.transpose(made, (0, 1, 3, 2))


@onnx_op("NonMaxSuppression")
def non_max_suppression(n: Node) -> Value:
    """The boxes kept of known boxes and scores: how many there are depends on the numbers."""
    boxes, scores = (n.known(i, "which boxes are kept").astype(np.float64) for i in (0, 1))
    most = int(n.known(2).reshape(-1)[0]) if n.has(2) else 0
    limits = [float(n.known(i).reshape(-1)[0]) if n.has(i) else None for i in (3, 4)]
    if n.attr("center_point_box"):
        middle, size = boxes[..., :2], boxes[..., 2:]
        boxes = np.concatenate([middle - size / 2, middle + size / 2], -1)
    kept = [(image, label, box) for image, label in np.ndindex(scores.shape[:2])
            for box in _kept(boxes[image], scores[image, label], most, limits[0] or 0.0, limits[1])]
    return n.g.constant(np.asarray(kept, np.int64).reshape(-1, 3))


def _kept(boxes: np.ndarray, scores: np.ndarray, most: int, overlap: float,
          least: float | None) -> list[int]:
    """The boxes of one label, best first, that no better one covers by more than `overlap`."""
    low, high = (np.stack([f(boxes[:, a], boxes[:, a + 2]) for a in (0, 1)], 1)
                 for f in (np.minimum, np.maximum))
    area = (high - low).prod(1)
    kept: list[int] = []
    for box in np.argsort(-scores, kind="stable"):
        if len(kept) == most or (least is not None and scores[box] <= least):
            break
        room = np.minimum(high[kept], high[box]) - np.maximum(low[kept], low[box])
        shared = np.maximum(room, 0.0).prod(1)
        if not (shared > overlap * (area[kept] + area[box] - shared)).any():
            kept.append(int(box))
    return kept


# ------------------------------------------------------------------------------------- convolutions


@onnx_op("DeformConv")
def deform_conv(n: Node) -> Value:
    """A convolution whose every tap is moved by an offset, and weighted by a mask (Dai et al.,
    "Deformable Convolutional Networks"; Zhu et al., v2); pixels outside are 0."""
    g, (x, weight, offset) = n.g, n.values[:3]
    taps, sizes, out = weight.shape[2:], x.shape[2:], offset.shape[2:]
    groups, parts, rank = n.attr("group"), n.attr("offset_group"), len(taps)
    batch, channels, count = x.shape[0], x.shape[1], math.prod(taps)
    if offset.shape[:2] != (batch, parts * count * rank) or channels % parts or channels % groups:
        raise n.refuse(f"offsets {list(offset.shape)} for an image {list(x.shape)} and taps "
                       f"{list(weight.shape)}")
    points = count * math.prod(out)
    moved = g.reshape(g.cast(offset, "float32"), (batch * parts, count, rank, math.prod(out)))
    places: list[Tap] = []
    for axis, grid in enumerate(_grid(n, taps, out)):
        own = g.reshape(cut(n, moved, 2, axis, axis + 1), (batch * parts, points))
        own = own + g.broadcast(g.constant(grid), own.shape)
        low = g.floor(own)
        places.append(((low, 1.0 - (own - low)), (low + 1.0, own - low)))
    flat = g.reshape(g.cast(x, "float32"), (batch * parts, channels // parts, math.prod(sizes)))
    seen = None
    for corner in itertools.product(*places):
        part = pixels(n, flat, corner, sizes, "zeros")
        seen = part if seen is None else seen + part
    if n.has(4):
        mask = g.reshape(g.cast(n.arg(4), "float32"), (batch * parts, points))
        seen = seen * g.broadcast_in_dim(mask, seen.shape, (0, 2))
    inner = channels // groups
    columns = g.reshape(seen, (batch, groups, inner * count, math.prod(out)))
    filters = g.reshape(g.cast(weight, "float32"), (groups, weight.shape[0] // groups,
                                                    inner * count))
    made = g.dot_general(filters, columns, lhs_contracting=2, rhs_contracting=2, lhs_batch=0,
                         rhs_batch=1)
    made = g.reshape(g.transpose(made, (2, 0, 1, 3)), (batch, weight.shape[0], *out))
    if n.has(3):
        made = made + g.broadcast_in_dim(g.cast(n.arg(3), "float32"), made.shape, (1,))
    return g.cast(made, x.dtype)


def _grid(n: Node, taps: tuple[int, ...], out: tuple[int, ...]) -> list[np.ndarray]:
    """Where each tap of each result lies before it is moved, along each axis: [taps · results]."""
    rank, sizes = len(taps), n.x.shape[2:]
    strides = n.attr("strides") or [1] * rank
    dilations = n.attr("dilations") or [1] * rank
    padding = edges(n, sizes, taps, strides, dilations)
    found = []
    for axis in range(rank):
        room = sizes[axis] + sum(padding[axis]) - (taps[axis] - 1) * dilations[axis] - 1
        if room // strides[axis] + 1 != out[axis]:
            raise n.refuse(f"offsets for {list(out)} results, not as many as the window has")
        wide = [1] * (2 * rank)
        wide[axis] = taps[axis]
        tap = np.arange(taps[axis]).reshape(wide) * dilations[axis]
        wide = [1] * (2 * rank)
        wide[rank + axis] = out[axis]
        first = np.arange(out[axis]).reshape(wide) * strides[axis] - padding[axis][0]
        found.append(np.broadcast_to(tap + first, (*taps, *out)).reshape(-1).astype(np.float32))
    return found


# -------------------------------------------------------------------------------- numbers of known


@onnx_op("MelWeightMatrix")
def mel_weights(n: Node) -> Value:
    """Triangles that sum the bins of a spectrum by the mel scale, 2595 · log10(1 + f / 700)."""
    bands, length, rate, low, high = (float(n.known(i).reshape(-1)[0]) for i in range(5))
    rows, columns = int(length) // 2 + 1, int(bands)
    if not (0 < columns < 1 << 16 and 0 < rows < 1 << 20 and rate > 0):
        raise n.refuse(f"{columns} bands of {rows} bins")
    ends = 2595 * np.log10(1 + np.array([low, high]) / 700)
    mel = ends[0] + np.arange(columns + 2) * (ends[1] - ends[0]) / (columns + 2)
    edge = np.floor((length + 1) * 700 * (10 ** (mel / 2595) - 1) / rate)
    at = np.arange(rows)[:, None]
    first, middle, last = edge[:-2], edge[1:-1], edge[2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = (at - first) / (middle - first)
        falling = (last - at) / (last - middle)
    up = (at >= first) & (at < middle)
    down = (at > middle) & (at < last)
    found = np.where(up, rising, np.where(down, falling, np.where(at == middle, 1.0, 0.0)))
    return n.g.cast(n.g.constant(found.astype(np.float32)), n.kind(n.attr("output_datatype")))


@onnx_op("Det")
def determinant(n: Node) -> Value:
    """The determinants of matrices [..., M, M]: Gaussian elimination, the largest element of a
    column as its pivot."""
    g, x = n.g, n.x
    if x.rank < 2 or x.shape[-1] != x.shape[-2] or x.shape[-1] > MOST_ROWS:
        raise n.refuse(f"{list(x.shape)} is no square matrix of at most {MOST_ROWS} rows")
    batch, size = math.prod(x.shape[:-2]), x.shape[-1]
    rest = g.reshape(g.cast(x, "float32") if x.dtype.bits < 32 else x, (batch, size, size))
    found = g.full((batch,), 1.0, rest.dtype)
    while size:
        pivot, rest = _eliminated(n, rest)
        found, size = found * pivot, size - 1
    return g.cast(g.reshape(found, x.shape[:-2]), x.dtype)


def _eliminated(n: Node, x: Value) -> tuple[Value, Value]:
    """(the pivot of the first column [B], with its sign; what is left [B, M - 1, M - 1])."""
    g, (batch, size, _) = n.g, x.shape
    column = g.reshape(cut(n, x, 2, 0, 1), (batch, size))
    best = g.argmax(g.abs(column), dimension=1, dtype="int32")
    here = g.compare(g.broadcast_in_dim(best, (batch, size), (0,)),
                     g.iota((batch, size), 1, "int32"), direction="EQ")
    wide = g.broadcast_in_dim(here, x.shape, (0, 1))
    row = g.reduce(g.select(wide, x, g.like(x, 0.0)), kind="add", dimensions=1)
    first = g.broadcast_in_dim(g.reshape(cut(n, x, 1, 0, 1), (batch, size)), x.shape, (0, 2))
    left = cut(n, g.select(wide, first, x), 1, 1, size)
    pivot = g.reshape(cut(n, row, 1, 0, 1), (batch,))
    stays = g.compare(best, g.like(best, 0), direction="EQ")
    signed = g.select(stays, pivot, g.negate(pivot))
    nothing = g.compare(pivot, g.like(pivot, 0.0), direction="EQ")
    divisor = g.select(nothing, g.like(pivot, 1.0), pivot)  # a determinant of 0 stays 0
    lead = g.reshape(cut(n, left, 2, 0, 1), (batch, size - 1))
    share = lead / g.broadcast_in_dim(divisor, lead.shape, (0,))
    inner = (batch, size - 1, size - 1)
    taken = (g.broadcast_in_dim(share, inner, (0, 1))
             * g.broadcast_in_dim(cut(n, row, 1, 1, size), inner, (0, 2)))
    return signed, cut(n, left, 2, 1, size) - taken
