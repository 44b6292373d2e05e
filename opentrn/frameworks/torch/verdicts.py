"""Which ops of a model run on the chip, as what, and what to write instead of those that do not.

Every op is judged for itself, with its dtypes and shapes: imported by its rule, taken through the
compiler up to the choice of kernels.  All findings come at once, each with the user's line.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from opentrn import hw
from opentrn.base import TrnError, Where, dtype, nearest
from opentrn.compiler import PIPELINE, State
from opentrn.frameworks.torch.capture import Captured, capture
from opentrn.frameworks.torch.hints import hint_for
from opentrn.frameworks.torch.settings import Settings
from opentrn.graph import TORCH_RULES, FxImporter, Graph, Value, g, op_name, where_of

# Sizes that depend on data: the op that made them is judged, not what is computed with them.
SIZES = ("sym_size", "ge", "le", "gt", "lt", "eq", "add", "mul", "sub", "floordiv", "getitem")
OUTCOMES = {
    "runs": "one kernel computes it",
    "view": "it moves nothing: another view of the same memory, or known when compiled",
    "spelled out": "it is computed by several kernels",
    "narrowed": "it runs with 32-bit numbers where the model says 64",
    "unsupported": "it cannot run on the chip as it is",
}


@dataclass(frozen=True)
class Verdict:
    """What becomes of one op with these operands: `outcome` is a key of `OUTCOMES`.

    `why` names the kernels and the reason for them, or what is missing; `fix` says what to write
    instead, `neuron` is the code the vendor's tools print for it, `places` are the lines."""

    op: str
    operands: str
    result: str
    outcome: str
    why: str
    fix: str = ""
    neuron: str = ""
    count: int = 1
    places: tuple[Where, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether the op runs on the chip."""
        return self.outcome != "unsupported"

    def json(self) -> dict[str, Any]:
        """The verdict as plain data."""
        told = {**asdict(self), "runs": self.runs}
        told["places"] = [{"file": w.file, "line": w.line} for w in self.places]
        return told


@dataclass(frozen=True)
class Analysis:
    """The verdicts on a model's ops for one chip; `refused` says why nothing could be traced."""

    name: str
    target: str
    verdicts: tuple[Verdict, ...] = ()
    refused: tuple[Verdict, ...] = field(default=())

    @property
    def runs(self) -> bool:
        """Whether every op runs."""
        return not self.refused and all(v.runs for v in self.verdicts)

    @property
    def unsupported(self) -> tuple[Verdict, ...]:
        """What does not run, first lines first."""
        return (*self.refused, *(v for v in self.verdicts if not v.runs))

    def json(self) -> dict[str, Any]:
        """The analysis as plain data, schema opentrn.analysis/1."""
        return {
            "schema": "opentrn.analysis/1",
            "model": self.name,
            "target": self.target,
            "runs": self.runs,
            "verdicts": [v.json() for v in (*self.refused, *self.verdicts)],
        }

    def __str__(self) -> str:
        counts = {name: sum(v.count for v in self.verdicts if v.outcome == name)
                  for name in OUTCOMES}  # fmt: skip
        told = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
        lines = [f"{self.name} on {self.target}: {told or 'nothing was traced'}"]
        for name in OUTCOMES:
            mine = [v for v in (*self.refused, *self.verdicts) if v.outcome == name]
            if mine:
                lines += ["", f"{name}: {OUTCOMES[name]}", *(x for v in mine for x in _lines(v))]
        return "\n".join(lines)


def _lines(verdict: Verdict) -> Iterator[str]:
    place = f"  {verdict.places[0]}" if verdict.places else ""
    yield (
        f"  {verdict.count:4d} × {verdict.op} ({verdict.operands}) → {verdict.result}: "
        f"{verdict.why}"
    )
    if not verdict.runs:
        yield f"         at  {place.strip() or 'an unknown line'}"
        more = f"  ({verdict.neuron})" if verdict.neuron else ""
        yield f"         fix {verdict.fix or 'none known'}{more}"


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
        where = dict.fromkeys(where_of(n.meta.get("stack_trace") or "") for n in nodes)
        found.append(Verdict(
            op_name(nodes[0].target), *_types(nodes[0]), outcome, why, fix, neuron, len(nodes),
            tuple(w for w in where if w is not None),
        ))  # fmt: skip
    return found


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
    shown = [n.meta.get("val") for n in (*node.all_input_nodes, node)]
    leaves = [x for one in shown for x in (one if isinstance(one, tuple | list) else [one])]
    kinds = {str(x.dtype).removeprefix("torch.") for x in leaves if hasattr(x, "dtype")}
    if any(kind.startswith("complex") for kind in kinds):
        return _no("NeuronCores have no complex numbers", *hint_for("complex"))
    if any(not isinstance(n, int) for x in leaves for n in getattr(x, "shape", ())):
        return _no("its shape depends on the data", *hint_for(name, "dynamic"))
    if leaves and 0 in getattr(leaves[-1], "shape", ()):
        return "view", "it has no elements", "", ""
    if name not in TORCH_RULES and not FxImporter.passes(node):
        close = nearest(name, TORCH_RULES, 1)
        return _no(f"it has no rule (nearest: {close[0] if close else 'none'})", *hint_for(name))
    try:
        outcome, why = _compiled(_alone(node, graph), chip, precision)
    except TrnError as error:
        fix, neuron = hint_for(name)
        return _no(_reason(error), fix or error.fix, neuron or error.neuron)
    except Exception as error:  # a rule that fails is a finding about the rule, not the end
        return _no(f"its rule failed: {type(error).__name__}: {error}", *hint_for(name))
    return _narrowed(outcome, why, kinds)


def _no(why: str, fix: str = "", neuron: str = "") -> Judgement:
    return "unsupported", why, fix, neuron


def _narrowed(outcome: str, why: str, kinds: set[str]) -> Judgement:
    if "float64" in kinds:
        why = f"float64 as float32; as inputs they are refused; {why}"
        return "narrowed", why, "x.float() in the model", "NCC_ESPP004"
    if kinds & {"int64", "uint64"} and outcome not in ("view",):
        return "narrowed", f"int64 as int32; {why}", "", ""
    return outcome, why, "", ""


def _reason(error: TrnError) -> str:
    """The first thing an error says, without the counts that concern a whole model."""
    rows = [row.strip() for row in error.what.splitlines()]
    causes = [row.partition("×")[2].strip() for row in rows if "×" in row]
    return "no kernel for " + "; ".join(causes) if causes else rows[0]


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
    value = g.input(name, tuple(example.shape), dtype(example.dtype))
    inputs.append(value)
    return value


def _compiled(graph: Graph, chip: Any, precision: str) -> tuple[str, str]:
    """What the compiler makes of the graph: the outcome, and its kernels with the reason."""
    state = State(graph, chip, dtype(precision))
    for stage in PIPELINE:
        if stage.name == "emit":
            break
        stage.run(state)
    uses = list(state.uses.values())
    if not uses:
        return "view", "no kernel needed"
    if len(uses) == 1:
        return "runs", f"{uses[0].name}: {uses[0].why}"
    counts: dict[str, int] = {}
    for use in uses:
        counts[use.name] = counts.get(use.name, 0) + 1
    told = ", ".join(f"{n} {name}" if n > 1 else name for name, n in counts.items())
    return "spelled out", f"{len(uses)} kernel calls: {told}"


__all__ = ["OUTCOMES", "Analysis", "Verdict", "analyze"]
