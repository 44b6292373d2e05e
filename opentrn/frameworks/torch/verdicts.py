"""Which ops of a model run on the chip, as what, and what to write instead of those that do not.

Every op is judged for itself, with its dtypes and shapes: imported by its rule, taken through the
compiler up to the choice of kernels.  All findings come at once, each with the user's line.
"""

from typing import Any

from opentrn import hw
from opentrn.base import TrnError
from opentrn.frameworks import support
from opentrn.frameworks.support import Fact
from opentrn.frameworks.torch.capture import Captured, capture
from opentrn.frameworks.torch.hints import hint_for
from opentrn.frameworks.torch.settings import Settings
from opentrn.frameworks.verdict import OUTCOMES, Analysis, Verdict, compiled, reason
from opentrn.graph import (
    TORCH_RULES,
    FxImporter,
    Graph,
    Value,
    g,
    near_op,
    op_name,
    torch_dtype,
    where_of,
)

ON_THE_CPU = "do it on the CPU, outside the compiled function"

# Sizes that depend on data: the op that made them is judged, not what is computed with them.
SIZES = ("sym_size", "ge", "le", "gt", "lt", "eq", "add", "mul", "sub", "floordiv", "getitem")
def analyze(
    module: Any, args: Any, *, target: str = "", dtype: str = "keep", train: bool = False
) -> Analysis:
    """Judge every op of a module called with these arguments; with `train`, its gradients too.

    Never raises for what the model does: what cannot be traced is a verdict as well.  Raises
    UnknownNameError for an unknown target.
    """
    settings = Settings.of({"target": target, "dtype": dtype})
    chip = hw.target(settings.chip)
    name = type(module).__name__ if hasattr(module, "parameters") else _name(module)
    found: Captured = capture(module, args, train=train)
    if found.problem is not None:
        what, where, fix, neuron = found.problem
        refused = Verdict("the model", "", "", "unsupported", what, fix, neuron,
                          places=(where,) if where else ())  # fmt: skip
        return Analysis(name, chip.name, refused=(refused,))
    judged = _judged(found.graph, chip, settings.precision)
    return Analysis(name, chip.name, tuple(judged))


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _judged(graph: Any, chip: Any, precision: str) -> list[Verdict]:
    """One verdict for each kind of node, in the order of first use."""
    kinds: dict[tuple, list[Any]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and not _is_size(node):
            key = (op_name(node.target), _text(node.args), _text(node.kwargs), _types(node))
            kinds.setdefault(key, []).append(node)
    found = []
    for nodes in kinds.values():
        outcome, why, fix, neuron = _judge(nodes[0], graph, chip, precision)
        facts = _facts(nodes[0], graph, chip)
        where = dict.fromkeys(where_of(n.meta.get("stack_trace") or "") for n in nodes)
        found.append(Verdict(
            op_name(nodes[0].target), *_types(nodes[0]), outcome, why, fix, neuron, len(nodes),
            tuple(w for w in where if w is not None), facts,
        ))  # fmt: skip
    return found


def _facts(node: Any, graph: Any, chip: Any) -> tuple[Fact, ...]:
    """What the vendor says of a node: of the ops it is made of, else of its dtypes alone."""
    try:
        return support.of_graph(_alone(node, graph), chip.name)
    except Exception:  # no rule imports it, which its judgement tells
        kinds = {str(x.dtype).removeprefix("torch.") for x in _examples(node)}
        return support.of_dtypes(kinds, chip.name)


def _examples(node: Any) -> list[Any]:
    """The tensors a node reads and makes."""
    shown = [n.meta.get("val") for n in (*node.all_input_nodes, node)]
    leaves = [x for one in shown for x in (one if isinstance(one, tuple | list) else [one])]
    return [x for x in leaves if hasattr(x, "dtype")]


def _is_size(node: Any) -> bool:
    """Whether a node takes a result apart, or computes sizes and not elements."""
    name = op_name(node.target)
    return name in SIZES or name.startswith(("aten::sym_", "aten::_assert"))


def _text(given: Any) -> str:
    """Arguments with nodes by their types, so that alike calls are one."""
    import torch

    return str(torch.fx.node.map_arg(given, lambda n: _type(n.meta.get("val"))))


def _type(example: Any) -> str:
    if isinstance(example, tuple | list):
        return ", ".join(map(_type, example))
    if not hasattr(example, "dtype"):
        return str(example)
    return f"{str(example.dtype).removeprefix('torch.')}{[*map(_size, example.shape)]}"


def _size(n: Any) -> Any:
    return n if isinstance(n, int) else str(n)


def _types(node: Any) -> tuple[str, str]:
    """Operands and result of a node, as text."""
    return ", ".join(_type(n.meta.get("val")) for n in node.all_input_nodes), _type(
        node.meta.get("val")
    )


Judgement = tuple[str, str, str, str]


def _judge(node: Any, graph: Any, chip: Any, precision: str) -> Judgement:
    """(outcome, why, fix, neuron code) of one node."""
    name = op_name(node.target)
    leaves = _examples(node)
    kinds = {str(x.dtype).removeprefix("torch.") for x in leaves}
    if any(kind.startswith("complex") for kind in kinds):
        return _no("NeuronCores have no complex numbers", *hint_for("complex"))
    if any(not isinstance(n, int) for x in leaves for n in getattr(x, "shape", ())):
        return _no("its shape depends on the data", *hint_for(name, "dynamic"))
    if leaves and 0 in getattr(leaves[-1], "shape", ()):
        return "view", "it has no elements", "", ""
    if name not in TORCH_RULES and not FxImporter.passes(node):
        close = near_op(name, TORCH_RULES)
        alike = f" (there is {close})" if close else ""
        fix, neuron = hint_for(name)
        return _no(f"it has no rule{alike}", fix or ON_THE_CPU, neuron)
    try:
        outcome, why = compiled(_alone(node, graph), chip, precision)
    except TrnError as error:
        fix, neuron = hint_for(name)
        return _no(reason(error), fix or error.fix, neuron or error.neuron)
    except Exception as error:  # a rule that fails is a finding about the rule, not the end
        return _no(f"its rule failed: {type(error).__name__}: {error}", *hint_for(name))
    return _narrowed(outcome, why, kinds)


def _no(why: str, fix: str = "", neuron: str = "") -> Judgement:
    return "unsupported", why, fix, neuron


def _narrowed(outcome: str, why: str, kinds: set[str]) -> Judgement:
    if "float64" in kinds:
        why = f"float64 as float32; as inputs they are refused; {why}"
        return "narrowed", why, "x.float() in the model", "NCC_ESPP004"
    if kinds & {"int64", "uint64"} and outcome != "view":
        return "slow" if outcome == "slow" else "narrowed", f"int64 as int32; {why}", "", ""
    return outcome, why, "", ""


def _alone(node: Any, graph: Any) -> Graph:
    """A graph of one node, its operands inputs."""
    importer = FxImporter.alone(graph)
    inputs = []
    for n, source in enumerate(node.all_input_nodes):
        importer.values[source] = _operand(f"x{n}", source.meta.get("val"), inputs)
    importer.call(node)
    made = importer.values.get(node)
    outputs = [v for v in (made if isinstance(made, tuple | list) else [made])
               if isinstance(v, Value)]  # fmt: skip
    return Graph([*inputs, *importer.drawn], outputs)


def _operand(name: str, example: Any, inputs: list[Value]) -> Any:
    """Inputs for a node's operand, or the number it is."""
    if isinstance(example, tuple | list):
        return [_operand(f"{name}_{n}", one, inputs) for n, one in enumerate(example)]
    if not hasattr(example, "dtype"):
        return example
    value = g.input(name, tuple(example.shape), torch_dtype(example.dtype))
    inputs.append(value)
    return value


__all__ = ["OUTCOMES", "Analysis", "Verdict", "analyze"]
