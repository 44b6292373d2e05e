"""Inputs and outputs without elements: no memory holds them, so they pass beside the program."""

import numpy as np

from opentrn.compiler.narrow import device_dtype
from opentrn.graph import Builder, Data, Graph, Value, carriers, inline


def without_empty_ends(graph: Graph) -> tuple[Graph, dict[str, list]]:
    """(the graph without them, [place, name, shape, dtype on the chip] of each by "inputs" and
    "outputs"); a runtime takes the former and gives the latter itself."""
    given = [_known(v) if not v.size else v for v in graph.inputs]
    outputs = inline(graph, given)
    kept = [n for n, v in enumerate(graph.outputs) if v.size]
    told = {
        "inputs": _told(graph.inputs, [v.attrs.label for v in graph.inputs]),
        "outputs": _told(graph.outputs, graph.output_names),
    }
    if not any(told.values()):
        return graph, told
    made = Graph(
        [v for v in graph.inputs if v.size],
        [outputs[n] for n in kept],
        graph.constants,
        name=graph.name,
        output_names=[graph.output_names[n] for n in kept],
    )
    return made, told


def _told(values, names) -> list[list]:
    rows = enumerate(zip(values, names, strict=True))
    return [[n, name, list(v.shape), str(device_dtype(v.dtype))]
            for n, (v, name) in rows if not v.size]  # fmt: skip


def _known(value: Value) -> Value:
    """The constant that has no elements."""
    held = np.zeros(value.shape, carriers.storage(value.dtype))
    return Builder(value.where).constant(Data.of(held, value.dtype))


__all__ = ["without_empty_ends"]
