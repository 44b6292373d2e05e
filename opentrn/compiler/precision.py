"""Precision: which floats the program computes in, decided once for the whole graph."""

import dataclasses

from opentrn.base import DType, UsageError, bfloat16, declare, float16, float32
from opentrn.graph import Builder, Data, Graph, Op, Value, carriers, make

declare(
    "compiler.dtype",
    "The compiler was asked for a precision it does not have.",
    rule="a program computes in float32, bfloat16 or float16",
    fix="pass dtype='bfloat16' (the fast one), 'float16' or 'float32'",
)

PRECISIONS = (float32, bfloat16, float16)


def precision(graph: Graph, kind: DType) -> Graph:
    """The graph with every float32 value of `kind`; inputs and outputs keep their dtypes.

    Each op still computes in float32 inside and rounds its result once, as the engines do, so only
    what is stored between ops loses precision.  Raises UsageError `compiler.dtype`.
    """
    if kind not in PRECISIONS:
        raise UsageError(f"no precision {kind}", code="compiler.dtype")
    if kind == float32:
        return graph
    new: dict[Value, Value] = {}
    for value in graph:
        g = Builder(value.where)
        if value.op == "input":
            new[value] = g.cast(value, kind) if value.dtype == float32 else value
        elif value.op == "constant" and value.dtype == float32:
            new[value] = _constant(value, kind)
        else:
            args = tuple(new[a] for a in value.args)
            new[value] = make(_attributes(value, kind), args, value.where)
    outputs = [Builder(v.where).cast(new[v], v.dtype) for v in graph.outputs]
    named = {k: new[v] for k, v in graph.constants.items()}
    return graph.with_outputs(outputs, named)


def _constant(value: Value, kind: DType) -> Value:
    held = value.attrs.data.array
    if held is None:
        return Builder(value.where).cast(value, kind)
    stored = carriers.leave(carriers.settle(carriers.enter(held, float32), kind), kind)
    return Builder(value.where).constant(Data.of(stored, kind))


def _attributes(value: Value, kind: DType) -> Op:
    """The op with float32 replaced by `kind` where an attribute names the result's dtype."""
    attrs = value.attrs
    changed = {
        field: kind
        for field in ("dtype", "kind")
        if field in attrs.fields and getattr(attrs, field) == float32
    }
    return dataclasses.replace(attrs, **changed) if changed else attrs
