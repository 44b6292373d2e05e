"""Run a graph in NumPy: the reference meaning every back end is measured against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from opentrn.base import DtypeError, ShapeError, UsageError, declare
from opentrn.graph import carriers
from opentrn.graph.ir import Graph, Value, run

declare("graph.inputs", "a graph was given other inputs than it lists",
        "one array for each input, with its shape and dtype")
declare("graph.input_shape", "an input array has another shape than the graph says",
        "shapes are fixed when the graph is built")
declare("graph.input_dtype", "an input array has another dtype than the graph says",
        "dtypes are fixed when the graph is built", "convert the array first")

Arrays = Sequence[np.ndarray] | Mapping[str, np.ndarray]


def evaluate(graph: Graph, inputs: Arrays = (),
             watch: Callable[[Value, np.ndarray], None] | None = None) -> list[np.ndarray]:
    """The outputs for these inputs, given in order or by name, as arrays of the outputs' dtypes.

    Every op computes on carriers (float32 for floats of at most 32 bits) and its result is rounded
    to its dtype, so a bfloat16 graph has bfloat16 meaning.  `watch(value, carrier)` sees each
    result.  A result is dropped after its last reader.  Raises UsageError, ShapeError or
    DtypeError (`graph.inputs`, `graph.input_shape`, `graph.input_dtype`)."""
    held = {v: _enter(v, a) for v, a in zip(graph.inputs, _ordered(graph, inputs), strict=True)}
    readers = _reader_counts(graph)
    with np.errstate(all="ignore"):
        for value in graph:
            if value.op != "input":
                held[value] = run(value, *(held[a] for a in value.args))
            if watch is not None:
                watch(value, held[value])
            for arg in value.args:
                readers[arg] -= 1
                if not readers[arg]:
                    del held[arg]
    return [_own(v, carriers.leave(held[v], v.dtype)) for v in graph.outputs]


def _own(value: Value, array: np.ndarray) -> np.ndarray:
    """An output the caller may write to: never an input's, a constant's or a view's memory."""
    given = value.op in ("input", "constant")
    return array.copy() if given or not array.flags.owndata else array


def _ordered(graph: Graph, inputs: Arrays) -> list[np.ndarray]:
    names = [v.attrs.label for v in graph.inputs]
    if isinstance(inputs, Mapping):
        if set(inputs) != set(names):
            raise UsageError(f"the graph's inputs are {', '.join(names)}; "
                             f"got {', '.join(inputs)}", code="graph.inputs")
        return [np.asarray(inputs[n]) for n in names]
    if len(inputs) != len(names):
        raise UsageError(f"the graph has {len(names)} inputs ({', '.join(names)}); "
                         f"got {len(inputs)}", code="graph.inputs")
    return [np.asarray(a) for a in inputs]


def _enter(value: Value, array: np.ndarray) -> np.ndarray:
    if array.shape != value.shape:
        raise ShapeError(f"input {value.attrs.label} is {list(array.shape)}, the graph says "
                         f"{list(value.shape)}", code="graph.input_shape")
    if array.dtype != carriers.storage(value.dtype):
        raise DtypeError(f"input {value.attrs.label} is {array.dtype}, the graph says "
                         f"{value.dtype}", code="graph.input_dtype")
    return carriers.enter(array, value.dtype)


def _reader_counts(graph: Graph) -> dict[Value, int]:
    counts: dict[Value, int] = {}
    for value in graph:
        counts.setdefault(value, 0)
        for arg in value.args:
            counts[arg] += 1
    for output in graph.outputs:
        counts[output] += 1  # an output is never dropped
    return counts
