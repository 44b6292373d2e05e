"""Which ops of a graph run on the chip, as what; and the refusal that names all that do not.

Every op is judged for itself, with its dtypes, shapes and known operands: taken through the
compiler up to the choice of kernels.  All findings come at once, each with the program's line.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentrn import hw, nki
from opentrn.base import DType, DtypeError, TrnError, UnsupportedError, UsageError, declare
from opentrn.compiler import in_pairs
from opentrn.frameworks import support
from opentrn.frameworks.verdict import Analysis, Verdict, compiled, reason
from opentrn.graph import Graph, TupleType, Value, g, make, splat_of, straighten
from opentrn.isa import FIRST_GENERATION

PRECISIONS = {
    "keep": "float32", "float32": "float32", "bfloat16": "bfloat16", "float16": "float16",
}  # fmt: skip
"""What `dtype=` may be, and what floats of 32 bits are then stored as between ops."""

PRECISION = declare(
    "frameworks.precision",
    "There is no precision of that name.",
    rule="dtype is keep, float32, bfloat16 or float16",
    fix="dtype='bfloat16' stores what is float32 between ops as that; keep leaves it",
)
NUMBERS = declare(
    "frameworks.numbers",
    "A program computes with numbers the chip has not.",
    rule="NeuronCores have no complex numbers, no 64-bit floats and no integers of less than 8 "
    "bits; some formats of 8 bits exist from trn3 on",
    fix="carry real and imaginary parts as two arrays; compute in float32; unpack small integers "
    "into int8; use float8_e4m3 or float8_e5m2",
    neuron="NCC_EVRF004",
)

# Judged by what reads them: leaves, and the parts of an op with several results.
PASSED = ("input", "constant", "get_tuple_element")
# What may make 64-bit floats on the way to other numbers.
BETWEEN = ("constant", "convert", "broadcast_in_dim")
# Arithmetic whose result may be larger than its operands.
WRAPPING = ("add", "subtract", "multiply", "power", "dot_general", "reduce")
SHOWN = 3  # lines of one kind of op that an error names


def lacking(kind: DType, chip: Any) -> str:
    """Why the chip has no numbers of a dtype, "" where it has them, itself or as 32 bits."""
    if kind.kind == "complex":
        return "NeuronCores have no complex numbers"
    if kind == "float64":
        return "NeuronCores have no 64-bit floats"
    if kind.bits < 8:
        return "NeuronCores have no numbers of less than 8 bits"
    first = FIRST_GENERATION.get(str(kind), 0)
    return f"{chip.name} has no {kind}" if first > chip.generation else ""


class NarrowedWarning(UserWarning):
    """Arithmetic of int64 runs with 32 bits, so that larger results wrap around."""


def warn_of_narrowed(graph: Graph) -> None:
    """Give one NarrowedWarning, at the first line, for all arithmetic of int64 whose result may
    need more than 32 bits; counters, to which a known number is added, are left out."""
    found = [v for v in _with_regions(graph) if _may_wrap(v)]
    if not found:
        return
    names = ", ".join(dict.fromkeys(v.op for v in found))
    text = (f"{len(found)} of the ops on int64 ({names}) compute with 32 bits, as the chip does: "
            "results beyond 32 bits wrap around (opentrn analyze names each)")
    place = next((v.where for v in found if v.where is not None), None)
    if place is None:
        warnings.warn(text, NarrowedWarning, stacklevel=2)
    else:
        warnings.warn_explicit(text, NarrowedWarning, place.file, place.line)


def _with_regions(graph: Graph) -> Iterator[Value]:
    for value in graph:
        yield value
        for region in value.attrs.regions:
            yield from _with_regions(region)


def _may_wrap(value: Value) -> bool:
    if value.op not in WRAPPING or value.dtype != "int64":
        return False
    if value.op == "reduce":
        return value.attrs.kind in ("add", "multiply")
    if value.op == "multiply" and any(splat_of(x) in (-1, 0, 1) for x in value.args):
        return False
    return value.op not in ("add", "subtract") or not any(map(_is_known, value.args))


def refuse_numbers(graph: Graph, chip: Any) -> None:
    """Raise UnsupportedError `frameworks.numbers` for the first op of a graph that makes numbers
    the chip has not."""
    for value in graph:
        kind = getattr(value, "dtype", None)
        why = lacking(kind, chip) if kind is not None else ""
        if why and not (kind == "float64" and value.op in BETWEEN):
            raise UnsupportedError(f"{value.op}: {kind}: {why}", code=NUMBERS, at=value.where)


@contextmanager
def refusing(graph: Graph, target: str = "", dtype: str = "keep") -> Iterator[None]:
    """Compile a graph inside this block: a refusal names every op that cannot run, with its lines.

    Raises UnsupportedError `frameworks.numbers`, and what the compiler raises.
    """
    chip = hw.target(target) if target else nki.current_chip()
    try:
        refuse_numbers(graph, chip)
        yield
    except (UnsupportedError, DtypeError) as error:
        raise refusal(graph, error, target, dtype) from None


def refusal(graph: Graph, error: TrnError, target: str = "", dtype: str = "keep") -> TrnError:
    """The error with every op of the graph that cannot run; itself where each of them could alone.

    It keeps its kind, code, rule and fix.
    """
    graph = in_pairs(straighten(graph), [])  # so that turns of a loop count on both sides of "of"
    found = analyze(graph, target=target, dtype=dtype if dtype in PRECISIONS else "keep")
    refused = found.unsupported
    if not refused:
        return error
    count = sum(v.count for v in refused)
    kinds = f"{len(refused)} kind{'s' * (len(refused) > 1)} of op"
    rows = [f"{kinds} cannot run on {found.target} ({count} of {len(graph)} values)"]
    for verdict in refused:
        why = verdict.why.removeprefix(f"no kernel for {verdict.op}: ")
        rows.append(f"  {verdict.count:4d} × {verdict.op}: {verdict.result}: {why}")
        rows += [f"         {place}" for place in verdict.places[:SHOWN]]
    at = next((v.places[0] for v in refused if v.places), error.at)
    alike = {v.fix for v in refused} <= {error.fix}
    rule = error.rule if alike else "every op has a kernel, and makes numbers the chip has"
    outside = "do that outside of the program; `opentrn analyze` has more on each"
    fix = error.fix if alike else outside
    return type(error)("\n".join(rows), code=error.code, rule=rule, fix=fix, at=at,
                       neuron=error.neuron)  # fmt: skip


# ---------------------------------------------------------------------------------------- judging


def analyze(graph: Graph, *, target: str = "", dtype: str = "keep") -> Analysis:
    """Judge every op of a graph, its loops and branches written out where that can be done.

    Raises UnknownNameError for an unknown target, UsageError `frameworks.precision`.
    """
    if dtype not in PRECISIONS:
        raise UsageError(f"analyze: there is no precision {dtype}", code=PRECISION)
    chip = hw.target(target) if target else nki.current_chip()
    kinds: dict[tuple, list[Value]] = {}
    for value in in_pairs(straighten(graph), []):
        if value.op not in PASSED:
            key = (value.attrs, *map(_operand, value.args))
            kinds.setdefault(key, []).append(value)
    found = []
    for values in kinds.values():
        outcome, why, fix, neuron = _judge(values[0], chip, PRECISIONS[dtype])
        where = dict.fromkeys(v.where for v in values)
        operands = ", ".join(str(a.type) for a in values[0].args)
        found.append(Verdict(
            _name(values[0]), operands, str(values[0].type), outcome, why, fix, neuron,
            len(values), tuple(w for w in where if w is not None),
            support.of_graph(_alone(values[0]), chip.name),
        ))  # fmt: skip
    return Analysis(graph.name, chip.name, tuple(found))


def _name(value: Value) -> str:
    return value.attrs.callee.name if value.op == "foreign" else value.op


def _operand(x: Value) -> Any:
    """What is known of an operand before the program runs: its type, and a constant's numbers."""
    return x if _is_known(x) else x.type


def _is_known(x: Value) -> bool:
    return x.op == "constant" or splat_of(x) is not None


def _judge(value: Value, chip: Any, precision: str) -> tuple[str, str, str, str]:
    """(outcome, why, fix, the vendor's code) of one op."""
    graph = _alone(value)
    try:
        if value.op == "foreign" and value.attrs.callee.kernel is None:
            raise UnsupportedError("no rule reads it", code="graph.unsupported_op")
        for v in (*graph.inputs, *graph.outputs):
            why = lacking(v.dtype, chip)
            if why and not (v.dtype == "float64" and value.op in BETWEEN):
                raise UnsupportedError(why, code=NUMBERS)
        if not all(v.size for v in graph.outputs):
            return "view", "it has no elements", "", ""
        outcome, why = compiled(graph, chip, precision)
    except TrnError as error:
        return "unsupported", reason(error), error.fix, error.neuron
    kinds = {str(v.dtype) for v in (*graph.inputs, *graph.outputs)}
    if kinds & {"float64", "int64", "uint64"} and outcome != "view":
        return "narrowed", f"64 bits as 32; {why}", "", ""
    return outcome, why, "", ""


def _alone(value: Value) -> Graph:
    """A graph of one op; operands that are not known are inputs."""
    inputs: dict[Value, Value] = {}
    for n, x in enumerate(value.args):
        if not _is_known(x) and x not in inputs:
            inputs[x] = g.input(f"x{n}", x.shape, x.dtype)
    made = make(value.attrs, tuple(inputs.get(x, x) for x in value.args), value.where)
    parts = [made]
    if isinstance(made.type, TupleType):
        parts = [g.get_tuple_element(made, i) for i in range(len(made.type.parts))]
    return Graph(inputs.values(), parts)


__all__ = [
    "NUMBERS", "NarrowedWarning", "PRECISION", "PRECISIONS", "analyze", "lacking", "refusal",
    "refuse_numbers", "refusing", "warn_of_narrowed",
]  # fmt: skip
