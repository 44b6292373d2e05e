"""Kernel choice: which kernel of `nki.kernels` computes each op, and what it is called with."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from opentrn.base import UnsupportedError, declare
from opentrn.compiler.chains import FLOATS_ONLY, ON_BITS, unfit
from opentrn.compiler.narrow import device_dtype
from opentrn.compiler.regions import by_element
from opentrn.compiler.views import is_view
from opentrn.compiler.windows import writes_rows
from opentrn.graph import Builder, Graph, Region, Value, splat_of
from opentrn.nki import kernels

declare(
    "compiler.no_kernel",
    "Ops of the program have no kernel yet.",
    rule="every op is computed by a kernel of nki.kernels, or is a view",
    fix="write it with other ops, or compute it outside the compiled model, on the CPU",
    neuron="NCC_EUOC002",
)

LEAVES = ("input", "constant")


@dataclass(frozen=True)
class Use:
    """One kernel call: `args` are Values, numbers or tuples of them; `why` says why this kernel.

    `dense` lists the places in `args` that the kernel reads along rows: an operand whose last
    dimension is scattered in memory is copied first, but for those in `turned`, which it also reads
    along columns, and those in `by_dma`, which it turns as it loads them on chips whose DMA does.
    The value is result number `result` of the kernel; values that are results of one call share it,
    and are called where the value `after` stands.
    """

    value: Value
    kernel: Callable
    args: tuple
    options: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    dense: tuple[int, ...] = ()
    result: int | None = 0
    turned: tuple[int, ...] = ()
    by_dma: tuple[int, ...] = ()
    after: Value | None = None

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.__name__

    def reads(self, place: int, chip: Any) -> tuple[bool, bool]:
        """Whether the kernel reads this operand along rows only, and whether also along columns."""
        by_dma = place in self.by_dma and chip.generation >= kernels.DMA_TURNS
        return place in self.dense, place in self.turned or by_dma


@dataclass(frozen=True)
class Repeat:
    """A device loop: the programs of its two regions, each with its kernel calls."""

    value: Value
    cond: tuple[Graph, dict[Value, "Use | Repeat"]]
    body: tuple[Graph, dict[Value, "Use | Repeat"]]
    why: str = "it runs as often as its data say"

    @property
    def name(self) -> str:
        """What it is called among kernels."""
        return "while"


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
    parts = [p for p in (bias and "bias", a.activation, residual and "residual") if p]
    why = f"{', '.join(parts) or 'no bias'} on the way out of PSUM"
    args = (x, weight, bias, residual)
    turned = _turned(x.size // x.shape[-1], x, weight)
    return Use(value, kernels.linear, args, options, why, (0, 1, 3), **turned)


def _turned(rows: int, x: Value, weight: Value) -> dict[str, tuple[int, ...]]:
    """Which operands of a product with so many rows may lie transposed in memory.

    The first is needed that way.  The second is turned whenever it is loaded: more rows than are
    kept at a time load it again, and to copy it once in a better order is less work, but where the
    DMA turns it on its way.
    """
    if rows <= kernels.KEPT_ROWS:
        return {"turned": (0, 1)}
    able = kernels.turns_on_the_way(rows, *weight.shape[-2:], weight.dtype)
    return {"turned": (0,), "by_dma": (1,) if able and x.dtype == weight.dtype else ()}


@choice("linear_norm")
def _linear_norm(value: Value) -> Use:
    a, (x, weight, *rest) = value.attrs, value.args
    own, norms = (list(part) for part in a.parts(tuple(rest)))
    bias = own.pop(0) if a.bias else None
    residual = own.pop(0) if a.residual else None
    scale, shift = (*norms, None, None)[:2]
    options = {"activation": a.activation or None, "epsilon": a.epsilon}
    args = (x, weight, bias, residual, scale, shift)
    return Use(value, kernels.linear_norm, args, options, "rows normalised on the chip", (0, 1, 3))


@choice("dot_general")
def _matmul(value: Value) -> Use | no:
    x, y = value.args
    if x.dtype.kind != "float" or value.dtype.kind != "float":
        return no(f"the Tensor Engine multiplies floats, not {x.dtype}")
    if x.dtype != y.dtype:
        return no(f"the kernel multiplies operands of one dtype, not {x.dtype} and {y.dtype}")
    d, lead = value.attrs, tuple(range(value.args[1].rank - 2))
    plain = (
        d.lhs_contracting == (x.rank - 1,)
        and d.rhs_contracting == (y.rank - 2,)
        and d.lhs_batch == d.rhs_batch == lead
        and x.rank == y.rank >= 2
    )
    if not plain:
        return no("only batched products [.., M, K] · [.., K, N] have a kernel")
    options = {"out_dtype": device_dtype(value.dtype)}
    return Use(value, kernels.matmul, (x, y), options, "one product for each batch", (0, 1),
               **_turned(x.shape[-2], x, y))  # fmt: skip


def _no_attention(q: Value, k: Value, v: Value, mask: Sequence[Value]) -> str:
    """Why the attention kernels do not take these operands, or ""."""
    if q.rank != 4 or q.shape[-1] > 128 or v.shape[-1] != q.shape[-1]:
        shapes = " and ".join(str(list(x.shape)) for x in (q, v))
        return f"the kernel takes [B, H, T, D ≤ 128] and values as wide, not {shapes}"
    if mask and mask[0].shape[-1] != k.shape[-2]:
        return "the kernel takes masks with a number for each key"
    return ""


@choice("attention")
def _attention(value: Value) -> Use | no:
    q, k, v, *mask = value.args
    why = _no_attention(q, k, v, mask)
    options = {"scale": value.attrs.scale, "causal": value.attrs.causal}
    made = Use(value, kernels.attention, value.args, options, "scores stay on the chip")
    return no(why) if why else made


@choice("attention_gradient")
def _attention_gradient(value: Value) -> Use | no:
    q, k, v, _, _, *mask = value.args
    why = _no_attention(q, k, v, mask)
    options = {"scale": value.attrs.scale, "causal": value.attrs.causal}
    part = ("query", "key", "value").index(value.attrs.part)
    made = Use(value, kernels.attention_backward, value.args, options,
               "weights are computed again on the chip", (0, 1, 2, 3, 4), part)  # fmt: skip
    return no(why) if why else made


@choice("layer_norm")
def _layer_norm(value: Value) -> Use | no:
    if value.attrs.axis != value.rank - 1:
        return no("the kernel normalises the last axis only")
    options = {"epsilon": value.attrs.epsilon}
    return Use(value, kernels.layer_norm, value.args, options, "one pass over each row", (0,))


@choice("rms_norm")
def _rms_norm(value: Value) -> Use | no:
    if value.attrs.axis != value.rank - 1:
        return no("the kernel normalises the last axis only")
    options = {"epsilon": value.attrs.epsilon}
    return Use(value, kernels.rms_norm, value.args, options, "one pass over each row", (0,))


@choice("softmax")
def _softmax(value: Value) -> Use | no:
    if value.attrs.axis != value.rank - 1:
        return no("the kernel takes the softmax over the last axis only")
    return Use(value, kernels.softmax, value.args, {}, "one pass over each row", (0,))


@choice("gather")
def _embedding(value: Value) -> Use | no:
    table, ids = value.args
    a = value.attrs
    rows = (
        table.rank == 2
        and a.start_index_map == a.collapsed_slice_dims == (0,)
        and a.slice_sizes == (1, table.shape[1])
        and a.offset_dims == (value.rank - 1,)
        and a.index_vector_dim == ids.rank
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
    if name == "reduce_precision":
        return (name, *places, given["exponent_bits"], given["mantissa_bits"])
    if name == "gelu" and given["approximate"]:
        return ("gelu_tanh", *places)
    return (name, *places)


@choice(*FLOATS_ONLY, *ON_BITS)
def _of_some_dtypes(value: Value) -> no:
    return no(unfit(value))


@choice("bitcast_convert")
def _bitcast(value: Value) -> no:
    return no(f"the chip holds other bits than those of {value.args[0].dtype} and {value.dtype}")


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
    if value.args[0].size == 0 or not value.attrs.dimensions:
        return no("there is nothing to combine")
    args = (value.args[0], value.attrs.kind, value.attrs.dimensions)
    options = {"out_dtype": device_dtype(value.dtype)}
    return Use(value, kernels.reduce, args, options, "combined on the chip in float32")


@choice("concatenate")
def _concatenate(value: Value) -> Use:
    args = (tuple(value.args), value.attrs.dimension)
    return Use(value, kernels.concatenate, args, {}, "moved by DMA, no engine works")


@choice("pad")
def _pad(value: Value) -> Use | no:
    a, number = value.attrs, splat_of(value.args[1])
    if number is None:
        return no("the filling is not known when the program is compiled")
    if any(a.interior) or min((*a.low, *a.high), default=0) < 0:
        return no("the kernel fills before and after, not between, and cuts nothing")
    if value.dtype.kind != "float":
        number, held = int(number), device_dtype(value.dtype)
        if value.dtype.kind != "bool" and not held.min <= number <= held.max:
            return no(f"the chip's {held} does not hold the filling {number}")
    args = (value.args[0], number, a.low, a.high)
    return Use(value, kernels.pad, args, {}, "moved by DMA, filled from SBUF")


@choice("sort")
def _sort(value: Value) -> Use | no:
    (x,) = value.args
    if value.attrs.dimension != x.rank - 1 or x.dtype.kind == "bool":
        return no("the kernel sorts numbers along the last axis only")
    if x.shape[-1] > kernels.LONGEST_SORT:
        return no(f"rows of {x.shape[-1]} are longer than the {kernels.LONGEST_SORT} it sorts")
    options = {"descending": value.attrs.descending, "part": value.attrs.part}
    return Use(value, kernels.sort, (x,), options, "a merge network on whole rows", (0,))


@choice("scatter")
def _scatter(value: Value) -> Use | no:
    table, ids, rows = value.args
    kind = value.attrs.kind
    if not writes_rows(value):
        return no("there is nothing to write")
    if kind == "set" or (kind == "add" and table.dtype.kind == "float"):
        options = {"kind": kind}
        why = "a DMA scatter of rows"
    else:
        target = device_dtype(table.dtype)
        steps = ((kind, ("in", 0), ("in", 1)), ("convert", ("step", 0), target))
        options = {"kind": "steps", "steps": steps}
        why = "a DMA scatter of rows, those of one place in turn"
    return Use(value, kernels.scatter_rows, (table, ids, rows), options, why, (0, 2))


@choice("dynamic_update_slice")
def _update(value: Value) -> Use | no:
    x, part, *starts = value.args
    if not x.shape:
        return no("it writes a scalar")
    rooms = [n - w for n, w in zip(x.shape, part.shape, strict=True)]
    moved = [axis for axis, room in enumerate(rooms) if room] or [0]
    strides = tuple(prod(x.shape[axis + 1 :]) for axis in moved)
    args = (x, part, tuple(starts[axis] for axis in moved))
    options = {"rooms": tuple(rooms[axis] for axis in moved), "strides": strides}
    return Use(value, kernels.update_slice, args, options, "a DMA to a place the data say")


@choice("reduce_with", "reduce_window_with", "select_and_scatter", "sort_with")
def _by_function(value: Value) -> no:
    for region in value.attrs.regions:
        fits = by_element(region)
        if not fits:
            return no(fits.why)
    return no("its rule in opentrn/compiler/regions.py does not take this many elements, or none")


def use_of(value: Value) -> "Use | no":
    """The kernel call for one value, or why there is none."""
    if value.op not in CHOICES:
        return no("no kernel computes it")
    if 0 in getattr(value, "shape", ()):
        return no("it has no elements")
    return CHOICES[value.op](value)


Lower = Callable[[Region], Graph]


def choose(graph: Graph, lower: Lower) -> dict[Value, Use | Repeat]:
    """A kernel call for each value that is neither a leaf, a part of another nor surely a view.

    `lower` spells a loop's region out, as the graph was.  Raises UnsupportedError
    `compiler.no_kernel` naming all ops without a kernel at once, those inside loops too.
    """
    refused: list[tuple[Value, str]] = []
    uses = _choose(graph, lower, refused)
    if refused:
        raise _unsupported(refused, len(graph))
    return uses


def _choose(graph: Graph, lower: Lower, refused: list) -> dict[Value, Use | Repeat]:
    uses: dict[Value, Use | Repeat] = {}
    for value in graph:
        if value.op in (*LEAVES, "get_tuple_element") or (is_view(value) and value.size):
            continue
        if value.op == "while":
            again, body = value.attrs.cond, value.attrs.body
            # A register holds an integer.
            again = Region(again.inputs, [Builder(value.where).cast(again.outputs[0], "int32")])
            parts = [lower(region) for region in (again, body)]
            cond, body = ((part, _choose(part, lower, refused)) for part in parts)
            uses[value] = Repeat(value, cond, body)
            continue
        made = use_of(value)
        if isinstance(made, no):
            refused.append((value, made.why))
        else:
            uses[value] = made
    return uses


def _unsupported(refused: list[tuple[Value, str]], total: int) -> UnsupportedError:
    counts: dict[tuple[str, str], int] = {}
    for value, why in refused:
        counts[value.op, why] = counts.get((value.op, why), 0) + 1
    rows = []
    for (op, why), count in sorted(counts.items()):
        near = difflib.get_close_matches(op, CHOICES, 1, 0.7)
        hint = f" (nearest: {near[0]})" if near and near[0] != op else ""
        rows.append(f"{count} × {op}: {why}{hint}")
    return UnsupportedError(
        f"{len(counts)} kind{'s' * (len(counts) > 1)} of op without a kernel "
        f"({len(refused)} of {total} values): " + "; ".join(rows),
        code="compiler.no_kernel",
        at=refused[0][0].where,
    )
