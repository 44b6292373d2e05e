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
from opentrn.base import DType, UsageError, Where, declare, numerics
from opentrn.base import dtype as as_dtype
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
KINDS = {"tf32": "tfloat32", "fp8_e4m3": "float8_e4m3"}
PRODUCTS = ("mm", "linear", "conv", "attention", "einsum", "dot", "matmul", "mv", "lstm", "gru")
"""Words in the names of ops that multiply matrices."""


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
    stored, products = _stored(settings), settings.casts["auto_cast"] == "matmult"
    exactly, allowed = (ROOM * 2.0 ** -FRACTION[kind] for kind in ("float32", stored))
    narrow = _narrowed(program, ends, products)
    first = next((one for one, rounded in zip(layers, narrow, strict=True)
                  if not one.error <= (allowed if rounded else exactly)), None)  # fmt: skip
    blame = ()
    cast = Cast(stored, products)
    if first is not None and stored != "float32":
        blame = _blamed(run, exact, ends, ends[layers.index(first)], cast)
    whole = all(one.finite and one.finite_exactly for one in layers)
    origin = "" if whole else _origin(run, exact, given, cast)
    return Difference(type(held).__name__, settings.chip, str(cast), allowed, layers, first, blame,
                      origin)  # fmt: skip


@dataclass(frozen=True)
class Cast:
    """What is rounded to a dtype: every result, or with `products` the operands of products."""

    dtype: str
    products: bool = False

    def __str__(self) -> str:
        return f"{self.dtype} in products" if self.products else self.dtype

    @property
    def kind(self) -> DType:
        """The dtype as the chip has it."""
        return as_dtype(KINDS.get(self.dtype, self.dtype))

    def rounded(self, x: Any) -> Any:
        """float32 numbers of a tensor rounded to the dtype."""
        import torch

        held = numerics.round_to(x.detach().contiguous().numpy(), self.kind)
        return torch.from_numpy(held).reshape(x.shape)

    def rounds(self, node: Any) -> bool:
        """Whether it rounds something at a node."""
        return not self.products or _multiplies(node)


def _multiplies(node: Any) -> bool:
    name = op_name(node.target) if node.op == "call_function" else ""
    return any(word in name for word in PRODUCTS)


def _stored(settings: Settings) -> str:
    """The dtype whose rounding a layer may show: float32 where nothing is cast."""
    return "float32" if settings.casts["auto_cast"] == "none" else settings.casts["dtype"]


def _narrowed(program: Any, ends: list[Any], products: bool) -> list[bool]:
    """Whether each layer's result has been rounded to the narrow dtype: all have, or with
    `products` those after the first product."""
    if not products:
        return [True] * len(ends)
    found, seen = {}, False
    for node in program.graph.nodes:
        seen = seen or _multiplies(node)
        found[node] = seen
    return [found[end] for end in ends]


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

    def results(self, rounded: Any = (), cast: Cast | None = None) -> dict[Any, Any]:
        """The result of each node; with `rounded`, those nodes' floats are cast as `cast` says."""
        import torch

        found: dict[Any, Any] = {}

        def through(x: Any) -> Any:
            floats = isinstance(x, torch.Tensor) and x.dtype == torch.float32
            return cast.rounded(x) if floats else x

        class Run(torch.fx.Interpreter):
            def fetch_args_kwargs_from_env(self, node: Any) -> Any:
                given = super().fetch_args_kwargs_from_env(node)
                if cast is None or not cast.products or node not in rounded:
                    return given
                return torch.utils._pytree.tree_map(through, given)

            def run_node(self, node: Any) -> Any:
                made = super().run_node(node)
                if cast is not None and not cast.products and node in rounded:
                    made = through(made)
                if isinstance(made, torch.Tensor):
                    found[node] = made
                return made

        flat = self.program._graph_module_flat_inputs(self.given, {})
        with torch.no_grad():
            Run(self.program.graph_module).run(*flat)
        return found


def _blamed(run: _Eager, exact: dict, ends: Sequence[Any], end: Any,
            cast: Cast) -> tuple[Blame, ...]:  # fmt: skip
    """The ops between the layer before and `end`, by the error each makes when rounded alone."""
    nodes = [n for n in run.program.graph.nodes if n.op == "call_function" and n in exact]
    before = ends[ends.index(end) - 1] if ends.index(end) else None
    begin = nodes.index(before) + 1 if before in nodes else 0
    between = filter(cast.rounds, nodes[begin : nodes.index(end) + 1])
    chosen = [*between][-MOST_BLAMED:] or [*filter(cast.rounds, nodes[:begin])][-MOST_BLAMED:]
    found = []
    for node in chosen:
        moved = run.results({node}, cast)[end]
        where = where_of(node.meta.get("stack_trace") or "")
        found.append(Blame(op_name(node.target), _error(exact[end], moved), where))
    return tuple(sorted(found, key=lambda b: -b.error if b.error == b.error else -math.inf))


def _origin(run: _Eager, exact: dict, given: tuple, cast: Cast) -> str:
    """Where numbers stop being finite: in the inputs, in float32 already, or when rounded."""
    import torch

    for n, x in enumerate(torch.utils._pytree.tree_leaves(given)):
        if isinstance(x, torch.Tensor) and x.is_floating_point() and not x.isfinite().all():
            return f"input {n} is not finite already"
    wrong = _first_infinite(exact)
    if wrong is not None:
        place = where_of(wrong.meta.get("stack_trace") or "")
        return f"{op_name(wrong.target)} is not finite in float32 already  {place or ''}"
    if cast.dtype == "float32":
        return ""
    rounded = run.results({n for n in exact if cast.rounds(n)}, cast)
    wrong = _first_infinite(rounded)
    if wrong is None:
        return "results are not finite on the device; no op alone explains it"
    large = [exact[a] for a in wrong.all_input_nodes] if cast.products else [exact[wrong]]
    most = max(float(x.abs().max()) for x in large)
    place = where_of(wrong.meta.get("stack_trace") or "")
    return (f"{op_name(wrong.target)} is not finite in {cast.dtype}: its largest "
            f"{'operand' if cast.products else 'number'} is {most:.3g}, "
            f"{cast.dtype} ends at {float(cast.kind.max):.3g}  {place or ''}")  # fmt: skip


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
