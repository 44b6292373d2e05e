"""ONNX rules: reductions, softmax and kin."""

from __future__ import annotations

import math
from collections.abc import Callable

from opentrn.graph.importers.onnx_call import Node, onnx_op
from opentrn.graph.importers.torch_types import restored
from opentrn.graph.ir import Value

Axes = tuple[int, ...]


def _reduced(n: Node, make: Callable[[Node, Value, Axes], Value],
             alone: Callable[[Node, Value], Value] | None = None) -> Value:
    """A reduction along the named axes: all, where none are named, unless the node says that
    then nothing is reduced (`alone` is what it does then)."""
    named = n.ints_of("axes", 1)
    if not named and n.attr("noop_with_empty_axes", 0):
        return n.x if alone is None else alone(n, n.x)
    axes = n.axes(named or None, n.x.rank)
    made = make(n, n.x, axes)
    return restored(n.g, made, n.x.shape, axes, bool(n.attr("keepdims")))


def _fold(kind: str) -> Callable[[Node, Value, Axes], Value]:
    def make(n: Node, x: Value, axes: Axes) -> Value:
        if x.dtype.kind == "bool":  # the largest of bools is whether any is true
            return n.g.reduce(x, kind="or" if kind == "maximum" else "and", dimensions=axes)
        return n.g.reduce(x, kind=kind, dimensions=axes)
    return make


_sum = _fold("add")


def _squares(n: Node, x: Value, axes: Axes) -> Value:
    return _sum(n, x * x, axes)


def _mean(n: Node, x: Value, axes: Axes) -> Value:
    if x.dtype.kind == "float":
        return n.g.mean(x, axes)
    return _sum(n, x, axes) / math.prod(x.shape[a] for a in axes)


def _norm(n: Node, x: Value, axes: Axes) -> Value:
    if x.dtype.kind != "float":
        return n.g.cast(n.g.sqrt(_squares(n, n.g.cast(x, "float64"), axes)), x.dtype)
    return n.g.sqrt(_squares(n, x, axes))


def _log_sum(n: Node, x: Value, axes: Axes) -> Value:
    return n.g.log(_sum(n, x, axes))


def _log_sum_exp(n: Node, x: Value, axes: Axes) -> Value:
    top = n.g.reduce(x, kind="maximum", dimensions=axes)
    fine = n.g.is_finite(top)
    top = n.g.select(fine, top, n.g.like(top, 0.0))
    kept = tuple(a for a in range(x.rank) if a not in axes)
    wide = n.g.broadcast_in_dim(top, shape=x.shape, dimensions=kept)
    return n.g.log(_sum(n, n.g.exponential(x - wide), axes)) + top


REDUCTIONS: dict[str, Callable[[Node, Value, Axes], Value]] = {
    "ReduceSum": _sum, "ReduceMean": _mean, "ReduceProd": _fold("multiply"),
    "ReduceMax": _fold("maximum"), "ReduceMin": _fold("minimum"),
    "ReduceL1": lambda n, x, axes: _sum(n, n.g.abs(x), axes), "ReduceL2": _norm,
    "ReduceSumSquare": _squares, "ReduceLogSum": _log_sum, "ReduceLogSumExp": _log_sum_exp,
}
ALONE: dict[str, Callable[[Node, Value], Value]] = {
    "ReduceL1": lambda n, x: n.g.abs(x), "ReduceL2": lambda n, x: n.g.abs(x),
    "ReduceSumSquare": lambda n, x: x * x, "ReduceLogSum": lambda n, x: n.g.log(x),
}


def _reduction(n: Node) -> Value:
    return _reduced(n, REDUCTIONS[n.op], ALONE.get(n.op))


onnx_op(*REDUCTIONS)(_reduction)


def _flat_rows(n: Node, make: Callable[[Value, int], Value]) -> Value:
    """Before version 13 softmax and kin saw a matrix: the axes from `axis` on are one row."""
    axis = n.axis(default=-1)
    if n.opset >= 13:
        return make(n.x, axis)
    rows = n.g.reshape(n.x, (math.prod(n.x.shape[:axis]), math.prod(n.x.shape[axis:])))
    return n.g.reshape(make(rows, 1), n.x.shape)


@onnx_op("Softmax")
def softmax(n: Node) -> Value:
    """eˣ as a share of its sum along an axis."""
    return _flat_rows(n, lambda x, axis: n.g.softmax(x, axis=axis))


@onnx_op("LogSoftmax")
def log_softmax(n: Node) -> Value:
    """The logarithm of softmax."""
    return _flat_rows(n, lambda x, axis: n.g.log_softmax(x, axis=axis))


@onnx_op("Hardmax")
def hardmax(n: Node) -> Value:
    """1 at the first of the largest along an axis, 0 elsewhere."""
    def make(x: Value, axis: int) -> Value:
        best = n.g.argmax(x, dimension=axis, dtype="int32")
        spread = n.g.broadcast_in_dim(best, shape=x.shape, dimensions=tuple(
            a for a in range(x.rank) if a != axis))
        here = n.g.compare(spread, n.g.iota(x.shape, axis, "int32"), direction="EQ")
        return n.g.cast(here, x.dtype)
    return _flat_rows(n, make)
