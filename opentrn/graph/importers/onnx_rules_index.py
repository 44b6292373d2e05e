"""ONNX rules: reading and writing at indices, order, running totals."""

from __future__ import annotations

from typing import Any

import numpy as np

from opentrn.graph.importers.onnx_call import Node, onnx_op
from opentrn.graph.importers.onnx_rules_elementwise import torch_rule
from opentrn.graph.importers.onnx_rules_shape import cut
from opentrn.graph.importers.torch_types import wrapped
from opentrn.graph.ir import Value

ADDED = {"none": "set", "add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


@onnx_op("Gather")
def gather(n: Node) -> Value:
    """x[…, indices, …] along an axis."""
    axis = n.axis()
    return n.g.take(n.x, wrapped(n.g, n.arg(1), n.x.shape[axis]), axis)


@onnx_op("GatherElements")
def gather_elements(n: Node) -> Value:
    """x at each place of indices, with the index instead of the coordinate along an axis."""
    return torch_rule(n, "gather", n.x, n.axis(), n.arg(1))


def _vectors(n: Node, x: Value, indices: Value, lead: int) -> tuple[Value, int]:
    """Index vectors with negative entries counted from the end, and how long they are."""
    depth = indices.shape[-1]
    if not 0 < depth <= x.rank - lead:
        raise n.refuse(f"index vectors of {depth} entries for {x.rank - lead} axes")
    sizes = np.asarray(x.shape[lead:lead + depth], np.int64).astype(str(indices.dtype))
    room = n.g.broadcast(n.g.constant(sizes), indices.shape)
    below = n.g.compare(indices, n.g.like(indices, 0), direction="LT")
    return n.g.select(below, indices + room, indices), depth


@onnx_op("GatherND")
def gather_nd(n: Node) -> Value:
    """The slices of x that index vectors name, batch by batch."""
    x, lead = n.x, n.attr("batch_dims", 0)
    vectors, depth = _vectors(n, x, n.arg(1), lead)
    batch = tuple(range(lead))
    placed = tuple(range(lead, lead + depth))
    rest = x.rank - lead - depth
    sizes = tuple(1 if a < lead + depth else s for a, s in enumerate(x.shape))
    last = vectors.rank - 1
    return n.g.gather(x, vectors, offset_dims=tuple(range(last, last + rest)),
                      collapsed_slice_dims=placed, start_index_map=placed, index_vector_dim=last,
                      slice_sizes=sizes, operand_batching_dims=batch, indices_batching_dims=batch)


def _added(n: Node) -> str:
    word = n.attr("reduction", "none")
    if word not in ADDED:
        raise n.refuse(f"`reduction` is {word!r}")
    return ADDED[word]


@onnx_op("ScatterND")
def scatter_nd(n: Node) -> Value:
    """x with slices written, or combined in, where index vectors name them."""
    x, updates = n.x, n.arg(2)
    vectors, depth = _vectors(n, x, n.arg(1), 0)
    last = vectors.rank - 1
    placed = tuple(range(depth))
    return n.g.scatter(x, vectors, updates, kind=_added(n),
                       update_window_dims=tuple(range(last, last + x.rank - depth)),
                       inserted_window_dims=placed, scatter_dims=placed, index_vector_dim=last)


@onnx_op("ScatterElements", "Scatter")
def scatter_elements(n: Node) -> Value:
    """x with updates written, or combined in, where GatherElements would read."""
    from opentrn.graph.importers.torch_rules_index import scattered

    return scattered(n.g, n.x, n.axis(), n.arg(1), n.arg(2), _added(n))


@onnx_op("TensorScatter")
def tensor_scatter(n: Node) -> Value:
    """A cache with updates written from a place on along an axis, sample by sample."""
    cache, update = n.arg(0), n.arg(1)
    axis = n.axis(rank=cache.rank, default=-2)
    length, batch = cache.shape[axis], cache.shape[0]
    start = n.arg(2) if n.has(2) else n.g.full((batch,), 0, "int64")
    first = n.g.broadcast_in_dim(start, shape=update.shape, dimensions=(0,))
    places = first + n.g.iota(update.shape, axis, str(start.dtype))
    if n.attr("mode") == "circular":
        places = n.g.remainder(places, n.g.like(places, length))
    return torch_rule(n, "scatter.src", cache, axis, places, update)


@onnx_op("OneHot")
def one_hot(n: Node) -> Value:
    """A new axis that holds `on` at each index and `off` elsewhere."""
    indices, values = n.arg(0), n.arg(2)
    depth = int(n.known(1, "depth").reshape(-1)[0])
    axis = n.axis(rank=indices.rank + 1, default=-1)
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
    whole = indices if indices.dtype.kind == "int" else n.g.cast(indices, "int64")
    whole = wrapped(n.g, whole, depth)
    spread = n.g.broadcast_in_dim(whole, shape=shape, dimensions=tuple(
        i for i in range(len(shape)) if i != axis))
    here = n.g.compare(spread, n.g.iota(shape, axis, str(whole.dtype)), direction="EQ")
    off, on = (n.g.broadcast(n.g.reshape(cut(n, values, 0, i, i + 1), ()), shape) for i in (0, 1))
    return n.g.select(here, on, off)


@onnx_op("ReverseSequence")
def reverse_sequence(n: Node) -> Value:
    """The first elements along the time axis turned round, as many as each sample says."""
    x, time, batch = n.x, n.attr("time_axis"), n.attr("batch_axis")
    time, batch = n.inside(time, x.rank, "time_axis"), n.inside(batch, x.rank, "batch_axis")
    length = n.g.broadcast_in_dim(n.arg(1), shape=x.shape, dimensions=(batch,))
    at = n.g.iota(x.shape, time, str(length.dtype))
    inside = n.g.compare(at, length, direction="LT")
    return torch_rule(n, "gather", x, time, n.g.select(inside, length - at - 1, at))


@onnx_op("TopK")
def top_k(n: Node) -> tuple[Value, Value]:
    """The k largest (or smallest) along an axis in order, and where they are."""
    axis = n.axis(default=-1)
    k = n.ints(1, "k")[0] if n.opset >= 10 else n.attr("k")
    if not 0 <= k <= n.x.shape[axis]:
        raise n.refuse(f"k is {k}, axis {axis} has {n.x.shape[axis]}")
    largest = bool(n.attr("largest", 1))
    values = n.g.sort(n.x, dimension=axis, descending=largest, part="values")
    places = n.g.sort(n.x, dimension=axis, descending=largest, part="indices")
    return (cut(n, values, axis, 0, k),
            n.g.cast(cut(n, places, axis, 0, k), "int64"))


def _best(n: Node, smallest: bool) -> Value:
    axis, x = n.axis(), n.x
    if smallest:
        x = n.g.negate(x) if x.dtype.kind == "float" else n.g.not_(x)
    if n.attr("select_last_index", 0):
        place = n.g.argmax(n.g.reverse(x, (axis,)), dimension=axis, dtype="int64")
        found = n.g.negate(place) + (x.shape[axis] - 1)
    else:
        found = n.g.argmax(x, dimension=axis, dtype="int64")
    if not n.attr("keepdims"):
        return found
    return n.g.reshape(found, (*x.shape[:axis], 1, *x.shape[axis + 1:]))


@onnx_op("ArgMax")
def argmax(n: Node) -> Value:
    """The place of the largest along an axis."""
    return _best(n, False)


@onnx_op("ArgMin")
def argmin(n: Node) -> Value:
    """The place of the smallest along an axis."""
    return _best(n, True)


@onnx_op("CumSum", "CumProd")
def cumulative(n: Node) -> Value:
    """Running sums or products, from either end, with or without the element itself."""
    axis = n.inside(n.ints(1, "axis")[0], n.x.rank)
    adds = n.op == "CumSum"
    x = n.g.reverse(n.x, (axis,)) if n.attr("reverse") else n.x
    if n.attr("exclusive"):
        low = [1 if a == axis else 0 for a in range(x.rank)]
        room = cut(n, x, axis, 0, x.shape[axis] - 1)
        x = n.g.pad(room, n.g.full((), 0 if adds else 1, x.dtype), low=low, high=[0] * x.rank)
    x = n.g.cumulative(x, kind="add" if adds else "multiply", dimension=axis)
    return n.g.reverse(x, (axis,)) if n.attr("reverse") else x


# ------------------------------------------------------------------- results whose size is computed


@onnx_op("Compress")
def compress(n: Node) -> Value:
    """The slices (or elements) where a known condition holds."""
    axis = n.attr("axis")
    x = n.g.reshape(n.x, (n.x.size,)) if axis is None else n.x
    axis = 0 if axis is None else n.inside(axis, x.rank)
    places = np.flatnonzero(n.known(1, "condition"))
    return n.g.take(x, n.g.constant(places.astype(np.int64)), axis)


@onnx_op("NonZero")
def non_zero(n: Node) -> Value:
    """The coordinates of what is not 0, in known numbers."""
    return n.g.constant(np.asarray(np.nonzero(n.known(0)), np.int64))


@onnx_op("Unique")
def unique(n: Node) -> Any:
    """The different elements or slices of known numbers, where they are, and how many."""
    axis, x = n.attr("axis"), n.known(0)
    values, first, inverse, count = np.unique(x, True, True, True, axis=axis)
    if not n.attr("sorted"):
        order = np.argsort(first)
        back = np.argsort(order)
        values = np.take(values, order, 0 if axis is None else axis)
        first, inverse, count = first[order], back[inverse], count[order]
    rest = (each.reshape(-1).astype(np.int64) for each in (first, inverse, count))
    return (n.g.constant(values), *(n.g.constant(each) for each in rest))
