"""Which ops of a StableHLO program or a JAX function run on the chip, as what.

Every op is judged for itself, with its dtypes, shapes and known operands: taken through the
compiler up to the choice of kernels.  All findings come at once, each with the program's line.
"""

from typing import Any

from opentrn import hw, nki
from opentrn.base import TrnError, UsageError, explanation
from opentrn.frameworks.jax.jit import OPTION
from opentrn.frameworks.program import NUMBERS, PRECISIONS, has_numbers
from opentrn.frameworks.verdict import Analysis, Verdict, compiled, reason
from opentrn.graph import Graph, TupleType, Value, g, make, splat_of, straighten

# Judged by what reads them: leaves, and the parts of an op with several results.
PASSED = ("input", "constant", "get_tuple_element")


def analyze(graph: Graph, *, target: str = "", dtype: str = "keep") -> Analysis:
    """Judge every op of a graph, its loops and branches written out where that can be done.

    Raises UnknownNameError for an unknown target, UsageError `frameworks.jax_option`.
    """
    if dtype not in PRECISIONS:
        raise UsageError(f"analyze: there is no precision {dtype}", code=OPTION)
    chip = hw.target(target) if target else nki.current_chip()
    kinds: dict[tuple, list[Value]] = {}
    for value in straighten(graph):
        if value.op not in PASSED:
            key = (value.attrs, *map(_operand, value.args))
            kinds.setdefault(key, []).append(value)
    found = []
    for values in kinds.values():
        outcome, why, fix, neuron = _judge(values[0], chip, PRECISIONS[dtype])
        where = dict.fromkeys(v.where for v in values)
        operands = ", ".join(str(a.type) for a in values[0].args)
        found.append(Verdict(
            values[0].op, operands, str(values[0].type), outcome, why, fix, neuron, len(values),
            tuple(w for w in where if w is not None),
        ))  # fmt: skip
    return Analysis(graph.name, chip.name, tuple(found))


def _operand(x: Value) -> Any:
    """What is known of an operand before the program runs: its type, and a constant's numbers."""
    return x if _is_known(x) else x.type


def _is_known(x: Value) -> bool:
    return x.op == "constant" or splat_of(x) is not None


def _judge(value: Value, chip: Any, precision: str) -> tuple[str, str, str, str]:
    """(outcome, why, fix, the vendor's code) of one op."""
    graph = _alone(value)
    if not all(has_numbers(v.dtype) for v in (*graph.inputs, *graph.outputs)):
        told = explanation(NUMBERS)
        return "unsupported", told.rule, told.fix, told.neuron
    try:
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


__all__ = ["analyze"]
