"""Precision: which floats the program stores between ops, decided once for the whole graph."""

import dataclasses

import numpy as np

from opentrn.base import DType, UsageError, bfloat16, declare, float16, float32
from opentrn.base import dtype as as_dtype
from opentrn.graph import (
    Builder,
    Data,
    Elementwise,
    Graph,
    Note,
    Op,
    Value,
    carriers,
    make,
    remake,
)

declare(
    "compiler.dtype",
    "The compiler was asked for a precision it does not have.",
    rule="a program computes in float32, bfloat16 or float16",
    fix="bfloat16 (the fast one), float16 or float32",
)

declare(
    "compiler.auto_cast",
    "There is no such level of automatic casts, or not with this precision.",
    rule="levels are none, matmult (operands of products: bf16, fp16, tf32, fp8_e4m3) and all "
    "(whatever is stored: bf16, fp16)",
    fix="--auto-cast matmult --auto-cast-type bf16, for example",
)

PRECISIONS = (float32, bfloat16, float16)
# What `--auto-cast-type` calls the dtypes of products, and their other names.
PRODUCTS = {"bf16": "bfloat16", "fp16": "float16", "tf32": "tfloat32", "fp8_e4m3": "float8_e4m3"}
LEVELS = ("none", "matmult", "all")
# Products whose result has the dtype of their operands: it is rounded too.
ROUNDED = ("convolution", "attention", "attention_gradient")
# A small relative error of an angle of many turns is a wrong angle.
ANGLES = ("sine", "cosine", "tan")
MOVES = ("reshape", "transpose", "slice", "broadcast_in_dim", "concatenate", "pad", "gather")


def precision(graph: Graph, kind: DType, notes: list[Note] | None = None) -> Graph:
    """The graph with every float32 value of `kind`; inputs and outputs keep their dtypes.

    Each op still computes in float32 inside and rounds its result once, as the engines do, so only
    what is stored between ops loses precision.  Angles stay float32: see `angles`.  A finite
    constant stays finite (the lowest float32 of a mask becomes the lowest of `kind`).  Raises
    UsageError `compiler.dtype`.
    """
    if kind not in PRECISIONS:
        raise UsageError(f"no precision {kind}", code="compiler.dtype")
    if kind == float32:
        return graph
    # A region computes in the dtypes of its inputs, its own graph is narrowed by itself; a kernel
    # of the user's takes what it is written for.
    own = {v for v in graph if v.attrs.regions or v.op == "foreign"}
    wide, new = angles(graph) | own | _readers(graph), {}

    def given(arg: Value, at: Value) -> Value:
        """An operand in the dtype the reader `at` computes in."""
        if getattr(arg, "dtype", None) != float32:
            return new[arg]
        wanted = float32 if at in wide else kind
        if arg.op == "constant":
            return arg if wanted == float32 else _constant(arg, kind)
        return Builder(arg.where).cast(new[arg], wanted)

    for value in graph:
        if value.op in ("input", "constant"):
            new[value] = value
        else:
            attrs = value.attrs if value in wide else _attributes(value, kind)
            new[value] = make(attrs, tuple(given(a, value) for a in value.args), value.where)
    if notes is not None:
        notes += [_kept(v, kind) for v in graph if v in wide and v.op in ANGLES]
    outputs = [Builder(v.where).cast(new[v], v.dtype) for v in graph.outputs]
    named = {
        name: _constant(v, kind) if v.op == "constant" and v.dtype == float32 else new[v]
        for name, v in graph.constants.items()
    }
    return graph.with_outputs(outputs, named)


def cast_products(graph: Graph, kind: DType, notes: list[Note] | None = None) -> Graph:
    """The graph with float32 operands of products as `kind`, and everything else as it is.

    Sums and results stay float32.  Convolutions and attention, whose results have the dtype of
    their operands, are rounded on the way out; in formats without a kernel for them (tf32, fp8)
    they stay float32.  Raises UsageError `compiler.auto_cast`.
    """
    if str(kind) not in PRODUCTS.values():
        raise UsageError(f"products are not multiplied in {kind}", code="compiler.auto_cast")
    noted = [] if notes is None else notes

    def change(value: Value, args: tuple[Value, ...]) -> Value:
        wide = all(a.dtype == float32 for a in args if a.dtype.kind == "float")
        if not wide or value.dtype != float32 or value.op not in ("dot_general", *ROUNDED):
            return remake(value, args)
        if value.op in ROUNDED and kind not in PRECISIONS:
            noted.append(Note("precision", repr(value), "kept", f"no kernel in {kind}",
                              value.where))  # fmt: skip
            return remake(value, args)
        g = Builder(value.where)
        narrow = tuple(g.cast(a, kind) if a.dtype == float32 else a for a in args)
        return g.cast(make(value.attrs, narrow, value.where), float32)

    return graph.rebuild(change)


def auto_cast(graph: Graph, level: str, kind: str) -> tuple[Graph, str]:
    """The graph after `--auto-cast level --auto-cast-type kind`, and the dtype to store floats as.

    `kind` is one of `PRODUCTS` by either name, or float32.  Raises UsageError
    `compiler.auto_cast`, `compiler.dtype`."""
    if level not in LEVELS:
        raise UsageError(f"there is no level {level!r} of automatic casts",
                         code="compiler.auto_cast", fix=f"one of {', '.join(LEVELS)}")  # fmt: skip
    name = PRODUCTS.get(kind, kind)
    if level == "none" or name == "float32":
        return graph, "float32"
    if level == "matmult" or name == "tfloat32":  # which has no form in memory of its own
        return cast_products(graph, as_dtype(name)), "float32"
    if name == "float8_e4m3":
        raise UsageError(f"floats are not stored as {name} between ops", code="compiler.auto_cast",
                         fix="--auto-cast matmult --auto-cast-type fp8_e4m3")  # fmt: skip
    return graph, name


def _readers(graph: Graph) -> set[Value]:
    """Element-wise ops that read what a kernel made: float32 is its own choice, and a random number
    below 1 rounded to fewer digits may be 1."""
    made = {v for v in graph if v.op == "get_tuple_element" and v.args[0].op == "foreign"}
    return {v for v in graph if isinstance(v.attrs, Elementwise) and made.intersection(v.args)}


def _kept(value: Value, kind: DType) -> Note:
    why = f"its angle stays float32: {kind} has too few digits for many turns"
    return Note("precision", repr(value), "kept", why, value.where)


def angles(graph: Graph) -> set[Value]:
    """Sines, cosines and tangents of float32, and the float32 arithmetic that makes their angles.

    It is followed back through element-wise ops, layout, counting and outer products, and ends at
    everything that sums.
    """
    stack = [v for v in graph if v.op in ANGLES and v.dtype == float32]
    found: set[Value] = set()
    while stack:
        value = stack.pop()
        if value in found:
            continue
        found.add(value)
        stack += [a for a in value.args if a.dtype == float32 and _makes_angles(a)]
    return found


def _makes_angles(value: Value) -> bool:
    if value.op == "dot_general":
        inner = value.attrs.lhs_contracting
        return all(value.args[0].shape[axis] == 1 for axis in inner)
    return value.op in (*MOVES, "iota") or isinstance(value.attrs, Elementwise)


def _constant(value: Value, kind: DType) -> Value:
    held = value.attrs.data.array
    if held is None:
        return Builder(value.where).cast(value, kind)
    given = carriers.enter(held, float32)
    rounded = carriers.settle(given, kind)
    limit = float(kind.max)
    kept = np.where(np.isfinite(given), np.clip(rounded, -limit, limit), rounded)
    stored = carriers.leave(carriers.settle(kept, kind), kind)
    return Builder(value.where).constant(Data.of(stored, kind))


def _attributes(value: Value, kind: DType) -> Op:
    """The op with float32 replaced by `kind` where an attribute names the result's dtype."""
    attrs = value.attrs
    changed = {
        field: kind
        for field in ("dtype", "kind", "source")
        if field in attrs.fields and getattr(attrs, field) == float32
    }
    return dataclasses.replace(attrs, **changed) if changed else attrs
