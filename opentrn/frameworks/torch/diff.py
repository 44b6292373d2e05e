"""Where a model's numbers on the device leave eager float32, layer by layer, and why.

Every layer's result is computed twice: by eager PyTorch in float32 on the CPU, and by the compiled
program.  The first layer that departs is looked into: each of its ops is rounded alone, and the one
that moves the layer's result most is to blame.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from opentrn import compiler, runtime
from opentrn.base import UsageError, Where, declare
from opentrn.frameworks.torch.capture import as_module
from opentrn.frameworks.torch.piece import refuse_dtypes, to_device
from opentrn.frameworks.torch.settings import Settings
from opentrn.graph import Graph, TorchImporter, Value, exported_torch, op_name, where_of

NOTHING = declare(
    "frameworks.nothing_to_compare",
    "A model computes no floats, so there is nothing to compare.",
    rule="opentrn diff compares results that are floats, at the end of each layer",
    fix="return the scores instead of the classes",
)
# Bits of the fraction, as IEEE 754 and bfloat16 have them; float32 goes through the engines'
# function tables, which are good to about 20 bits.
FRACTION = {"float32": 20, "bfloat16": 8, "float16": 11, "tf32": 11, "fp8_e4m3": 4}
ROOM = 8
"""How many roundings in a row a layer may be off by before it counts as departed."""
MOST_BLAMED = 200


@dataclass(frozen=True)
class Layer:
    """One layer's result: root-mean-square difference as a share of that of the result itself,
    the largest difference, and whether all numbers are finite there and here."""

    name: str
    op: str
    error: float
    largest: float
    finite: bool
    finite_exactly: bool
    where: Where | None


@dataclass(frozen=True)
class Blame:
    """An op of the layer that departs, and the layer's error when this op alone is rounded."""

    op: str
    error: float
    where: Where | None


@dataclass(frozen=True)
class Difference:
    """All layers in order; `first` departs by more than `allowed`; `blame` says by which ops, worst
    first; `origin` tells where numbers stop being finite, or is ""."""

    name: str
    target: str
    dtype: str
    allowed: float
    layers: tuple[Layer, ...]
    first: Layer | None = None
    blame: tuple[Blame, ...] = ()
    origin: str = ""

    @property
    def agrees(self) -> bool:
        """Whether no layer departs and everything is finite."""
        return self.first is None and not self.origin

    def json(self) -> dict[str, Any]:
        """The comparison as plain data, schema opentrn.diff/1."""
        return {"schema": "opentrn.diff/1", **_plain(asdict(self)), "agrees": self.agrees}

    def __str__(self) -> str:
        lines = [f"{self.name} on {self.target} as {self.dtype}, against eager float32; "
                 f"allowed {self.allowed:.1e}"]  # fmt: skip
        for one in self.layers:
            mark = "  ← departs" if one is self.first else ""
            mark += "" if one.finite else "  not finite"
            lines.append(f"  {one.error:9.1e}  {one.name or 'the model'} ({one.op}){mark}")
        if self.first is None and not self.origin:
            lines.append("every layer agrees")
        for one in self.blame[:3]:
            lines.append(f"  to blame: {one.op} rounded to {self.dtype} alone gives {one.error:.1e}"
                         f"  {one.where or ''}")  # fmt: skip
        return "\n".join([*lines, *([self.origin] if self.origin else [])])


def _plain(told: Any) -> Any:
    if isinstance(told, dict):
        return {k: _plain(v) for k, v in told.items()}
    if isinstance(told, list | tuple):
        return [_plain(v) for v in told]
    return None if isinstance(told, float) and not math.isfinite(told) else told


def diff(
    module: Any, args: Any, *, target: str = "", dtype: str = "bfloat16", numerics: str = "",
    auto_cast: str = "all",
) -> Difference:
    """Compare a module on the device, floats stored as `dtype`, with eager float32.

    `numerics` and `auto_cast` are as in `Settings`; with numerics "none" there is nothing to
    compare, which is refused (UsageError `runtime.no_numbers`).  Raises what tracing and compiling
    it raise, UsageError `frameworks.nothing_to_compare`."""
    import torch

    settings = Settings.of({"target": target, "dtype": dtype, "numerics": numerics,
                            "auto_cast": auto_cast})  # fmt: skip
    given = tuple(args) if isinstance(args, tuple | list) else (args,)
    refuse_dtypes([x for x in torch.utils._pytree.tree_leaves(given) if hasattr(x, "dtype")])
    held = module if isinstance(module, torch.nn.Module) else as_module(module)
    program = exported_torch(held, given)
    importer = TorchImporter(program, type(held).__name__)
    graph = importer.graph()
    ends = _ends(program, importer.values)
    if not ends:
        raise UsageError("no layer of the model ends in floats", code=NOTHING)
    run = _Eager(program, given)
    exact = run.results()
    found = _on_device(graph, [importer.values[n] for n in ends], given, settings)
    layers = tuple(_layer(n, exact[n], x) for n, x in zip(ends, found, strict=True))
    allowed = ROOM * 2.0 ** -FRACTION[settings.casts["dtype"]]
    first = next((one for one in layers if not one.error <= allowed), None)
    blame = ()
    if first is not None and settings.precision != "float32":
        end = ends[layers.index(first)]
        blame = _blamed(run, exact, ends, end, settings.precision)
    whole = all(one.finite and one.finite_exactly for one in layers)
    origin = "" if whole else _origin(run, exact, given, settings.precision)
    return Difference(type(held).__name__, settings.chip, settings.casts["dtype"], allowed, layers,
                      first, blame, origin)  # fmt: skip


# ---------------------------------------------------------------------- layers


def _path(node: Any) -> str:
    """The innermost module a node was written in."""
    stack = node.meta.get("nn_module_stack") or {}
    return [str(v[0]) for v in stack.values()][-1] if stack else ""


def _ends(program: Any, values: dict[Any, Any]) -> list[Any]:
    """The last node of each stretch of one module's code that is a float with elements."""
    ends: list[Any] = []
    for node in program.graph.nodes:
        value = values.get(node)
        if node.op != "call_function" or not isinstance(value, Value) or not value.size:
            continue
        if value.dtype.kind != "float" or value.op == "constant":
            continue
        if ends and _path(ends[-1]) == _path(node):
            ends.pop()
        ends.append(node)
    kept: dict[Any, Any] = {}
    for node in ends:  # one value may be the end of several stretches
        kept.setdefault(values[node], node)
    return list(kept.values())


def _on_device(graph: Graph, values: list[Value], given: tuple, settings: Settings) -> list[Any]:
    """The values as the compiled program computes them."""
    import torch

    whole = Graph(graph.inputs, values, graph.constants, name=graph.name)
    executable = compiler.compile(
        whole, target=settings.chip, **settings.casts, numerics=settings.computed
    )
    if isinstance(executable, compiler.Outline):
        raise UsageError(f"numerics are none: {executable.why}", code="runtime.no_numbers")
    tensors = [x for x in torch.utils._pytree.tree_leaves(given) if isinstance(x, torch.Tensor)]
    found = runtime.load(executable)(*map(to_device, tensors))
    found = found if isinstance(found, tuple) else (found,)
    return [torch.as_tensor(x).reshape(v.shape) for x, v in zip(found, values, strict=True)]


def _error(exact: Any, found: Any) -> float:
    """Root-mean-square difference as a share of the exact numbers'; NaN where one is not finite."""
    exact, found = exact.double(), found.double()
    size = float(exact.pow(2).mean().sqrt())
    return float((exact - found).pow(2).mean().sqrt()) / (size or 1.0)


def _layer(node: Any, exact: Any, found: Any) -> Layer:
    return Layer(
        _path(node), op_name(node.target), _error(exact, found),
        float((exact.double() - found.double()).abs().max()), bool(found.isfinite().all()),
        bool(exact.isfinite().all()), where_of(node.meta.get("stack_trace") or ""),
    )  # fmt: skip


# ---------------------------------------------------------------------- causes


class _Eager:
    """An exported program run by PyTorch on the CPU, op by op."""

    def __init__(self, program: Any, given: tuple) -> None:
        self.program, self.given = program, given

    def results(self, rounded: Any = None, dtype: str = "") -> dict[Any, Any]:
        """The result of each node; with `rounded`, those nodes' floats go through `dtype` first."""
        import torch

        found: dict[Any, Any] = {}
        kind = getattr(torch, dtype) if dtype else None

        class Run(torch.fx.Interpreter):
            def run_node(self, node: Any) -> Any:
                made = super().run_node(node)
                floats = isinstance(made, torch.Tensor) and made.dtype == torch.float32
                if floats and rounded is not None and node in rounded:
                    made = made.to(kind).float()
                if isinstance(made, torch.Tensor):
                    found[node] = made
                return made

        flat = self.program._graph_module_flat_inputs(self.given, {})
        with torch.no_grad():
            Run(self.program.graph_module).run(*flat)
        return found


def _blamed(run: _Eager, exact: dict, ends: Sequence[Any], end: Any,
            dtype: str) -> tuple[Blame, ...]:  # fmt: skip
    """The ops between the layer before and `end`, by the error each makes when rounded alone."""
    nodes = [n for n in run.program.graph.nodes if n.op == "call_function" and n in exact]
    before = ends[ends.index(end) - 1] if ends.index(end) else None
    begin = nodes.index(before) + 1 if before in nodes else 0
    chosen = nodes[begin : nodes.index(end) + 1][-MOST_BLAMED:]
    found = []
    for node in chosen:
        moved = run.results({node}, dtype)[end]
        where = where_of(node.meta.get("stack_trace") or "")
        found.append(Blame(op_name(node.target), _error(exact[end], moved), where))
    return tuple(sorted(found, key=lambda b: -b.error if b.error == b.error else -math.inf))


def _origin(run: _Eager, exact: dict, given: tuple, dtype: str) -> str:
    """Where numbers stop being finite: in the inputs, in float32 already, or when rounded."""
    import torch

    for n, x in enumerate(torch.utils._pytree.tree_leaves(given)):
        if isinstance(x, torch.Tensor) and x.is_floating_point() and not x.isfinite().all():
            return f"input {n} is not finite already"
    wrong = _first_infinite(exact)
    if wrong is not None:
        place = where_of(wrong.meta.get("stack_trace") or "")
        return f"{op_name(wrong.target)} is not finite in float32 already  {place or ''}"
    if dtype == "float32":
        return ""
    rounded = run.results(set(exact), dtype)
    wrong = _first_infinite(rounded)
    if wrong is None:
        return "results are not finite on the device; no op alone explains it"
    most = float(exact[wrong].abs().max())
    place = where_of(wrong.meta.get("stack_trace") or "")
    ends = torch.finfo(getattr(torch, dtype)).max
    return (f"{op_name(wrong.target)} is not finite in {dtype}: its largest number is {most:.3g}, "
            f"{dtype} ends at {ends:.3g}  {place or ''}")  # fmt: skip


def _first_infinite(found: dict) -> Any:
    """The first op whose result has NaN or infinities where its operands have none.

    Masks of -∞ that a model makes on purpose are no origin: only NaN counts, and infinities of
    ops that had operands."""
    for node, made in found.items():
        if node.op != "call_function" or not made.is_floating_point():
            continue
        operands = [found[a] for a in node.all_input_nodes if a in found]
        clean = all(bool(o.isfinite().all()) for o in operands if o.is_floating_point())
        if operands and clean and not made.isfinite().all():
            return node
    return None


__all__ = ["Blame", "Difference", "Layer", "diff"]
