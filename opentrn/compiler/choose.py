"""Kernel choice: which kernel of `nki.kernels` computes each op, and what it is called with."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from opentrn.base import DType, UnsupportedError, declare, float32, int32, uint32
from opentrn.compiler.views import is_view
from opentrn.graph import Graph, Value
from opentrn.nki import kernels

declare(
    "compiler.no_kernel",
    "Ops of the program have no kernel yet.",
    rule="every op is computed by a kernel of nki.kernels, or is a view",
    fix="write it with other ops, or add a choice in opentrn/compiler/choose.py",
    neuron="NCC_EUOC002",
)

LEAVES = ("input", "constant")
# What the chip stores: 64-bit types are narrowed, as the vendor's compiler does.
ON_DEVICE = {"int64": int32, "uint64": uint32, "float64": float32}


def device_dtype(kind: DType) -> DType:
    """The dtype a graph value has on the chip."""
    return ON_DEVICE.get(str(kind), kind)


@dataclass(frozen=True)
class Use:
    """One kernel call: `args` are Values, numbers or tuples of them; `why` says why this kernel."""

    value: Value
    kernel: Callable
    args: tuple
    options: dict[str, Any] = field(default_factory=dict)
    why: str = ""


class no:
    """A kernel that does not take an op, and the reason."""

    def __init__(self, why: str):
        self.why = why


CHOICES: dict[str, Callable[[Value], "Use | no"]] = {}


def choice(*ops: str):
    """Register the function that calls a kernel for these ops."""

    def decorate(function):
        CHOICES.update(dict.fromkeys(ops, function))
        return function

    return decorate


@choice("linear")
def _linear(value: Value) -> Use:
    a, parts = value.attrs, list(value.args)
    x, weight = parts.pop(0), parts.pop(0)
    bias = parts.pop(0) if a.bias else None
    residual = parts.pop(0) if a.residual else None
    options = {"activation": a.activation or None, "out_dtype": device_dtype(value.dtype)}
    return Use(value, kernels.linear, (x, weight, bias, residual), options, "weights stay in SBUF")


@choice("dot_general")
def _matmul(value: Value) -> Use | no:
    x, y = value.args
    d, lead = value.attrs, tuple(range(value.args[1].rank - 2))
    plain = (
        d.lhs_contracting == (x.rank - 1,)
        and d.rhs_contracting == (y.rank - 2,)
        and d.lhs_batch == d.rhs_batch == lead
        and x.rank == y.rank >= 2
    )
    if not plain:
        return no("only batched products [.., M, K] · [.., K, N] have a kernel")
    return Use(value, kernels.matmul, (x, y), {"out_dtype": device_dtype(value.dtype)}, "batched")


@choice("attention")
def _attention(value: Value) -> Use | no:
    q = value.args[0]
    if q.rank != 4 or q.shape[-1] > 128:
        return no(f"the kernel takes [B, H, T, D ≤ 128], not {list(q.shape)}")
    options = {"scale": value.attrs.scale, "causal": value.attrs.causal}
    return Use(value, kernels.attention, value.args, options, "scores stay on the chip")


@choice("layer_norm")
def _layer_norm(value: Value) -> Use | no:
    if value.attrs.axis != value.rank - 1:
        return no("the kernel normalises the last axis only")
    return Use(value, kernels.layer_norm, value.args, {"epsilon": value.attrs.epsilon}, "one pass")


@choice("rms_norm")
def _rms_norm(value: Value) -> Use | no:
    if value.attrs.axis != value.rank - 1:
        return no("the kernel normalises the last axis only")
    return Use(value, kernels.rms_norm, value.args, {"epsilon": value.attrs.epsilon}, "one pass")


@choice("softmax")
def _softmax(value: Value) -> Use | no:
    if value.attrs.axis != value.rank - 1:
        return no("the kernel takes the softmax over the last axis only")
    return Use(value, kernels.softmax, value.args, {}, "one pass")


@choice("gather")
def _embedding(value: Value) -> Use | no:
    table, ids = value.args
    a = value.attrs
    rows = (
        table.rank == 2
        and a.start_index_map == a.collapsed_slice_dims == (0,)
        and a.slice_sizes == (1, table.shape[1])
        and a.offset_dims == (value.rank - 1,)
        and a.index_vector_dim in (ids.rank, ids.rank - 1)
        and not a.operand_batching_dims
    )
    if not rows:
        return no("only rows of a matrix can be looked up")
    return Use(value, kernels.embedding, (table, ids), {}, "a DMA gather of rows")


def _step(name: str, attributes: tuple, places: tuple) -> tuple:
    """A chain's step as `kernels.elementwise` takes it."""
    given = dict(attributes)
    if name == "compare":
        return (f"compare_{given['direction']}", *places)
    if name == "convert":
        return ("convert", *places, device_dtype(given["dtype"]))
    if name == "gelu" and given["approximate"]:
        return ("gelu_tanh", *places)
    return (name, *places)


@choice("chain")
def _chain(value: Value) -> Use:
    options = {
        "steps": tuple(_step(*step) for step in value.attrs.steps),
        "shape": value.shape,
        "out_dtype": device_dtype(value.dtype),
    }
    return Use(value, kernels.elementwise, (value.args,), options, "one trip through SBUF")


@choice("reduce")
def _reduce(value: Value) -> Use | no:
    kind = {"add": "add", "max": "maximum", "min": "minimum", "mul": "multiply"}
    name = kind.get(value.attrs.kind, value.attrs.kind)
    if name not in ("add", "maximum", "minimum", "multiply"):
        return no(f"reductions by {value.attrs.kind} have no kernel")
    args = (value.args[0], name, value.attrs.dimensions)
    return Use(value, kernels.reduce, args, {"out_dtype": device_dtype(value.dtype)}, "on the chip")


@choice("concatenate")
def _concatenate(value: Value) -> Use:
    return Use(value, kernels.concatenate, (value.args, value.attrs.dimension), {}, "DMA only")


@choice("reshape", "transpose", "slice", "broadcast_in_dim")
def _copy(value: Value) -> Use:
    return Use(value, kernels.copy, (value,), {}, "the layout cannot be a view")


def choose(graph: Graph) -> dict[Value, Use]:
    """A kernel call for each value that is neither a leaf nor surely a view.

    Raises UnsupportedError `compiler.no_kernel` naming all ops without a kernel at once.
    """
    uses: dict[Value, Use] = {}
    refused: list[tuple[Value, str]] = []
    for value in graph:
        if value.op in LEAVES or is_view(value):
            continue
        made = CHOICES[value.op](value) if value.op in CHOICES else no("no kernel computes it")
        if isinstance(made, no):
            refused.append((value, made.why))
        else:
            uses[value] = made
    if refused:
        raise _unsupported(refused, len(graph))
    return uses


def _unsupported(refused: list[tuple[Value, str]], total: int) -> UnsupportedError:
    counts: dict[tuple[str, str], int] = {}
    for value, why in refused:
        counts[value.op, why] = counts.get((value.op, why), 0) + 1
    rows = []
    for (op, why), count in sorted(counts.items()):
        near = difflib.get_close_matches(op, CHOICES, 1, 0.7)
        hint = f" (nearest: {near[0]})" if near and near[0] != op else ""
        rows.append(f"\n     {count:4d} × {op}: {why}{hint}")
    return UnsupportedError(
        f"{len(counts)} kinds of op have no kernel ({len(refused)} of {total} values)"
        + "".join(rows),
        code="compiler.no_kernel",
        at=refused[0][0].where,
    )
