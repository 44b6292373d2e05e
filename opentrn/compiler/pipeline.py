"""The whole trip on one page: a graph becomes an executable by named steps, each with its law."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import opentrn
from opentrn.base import DType, UsageError, declare
from opentrn.base import dtype as as_dtype
from opentrn.compiler import clean as cleaning
from opentrn.compiler.chains import chainable, chains
from opentrn.compiler.choose import Use, choose, use_of
from opentrn.compiler.dilate import DILATION
from opentrn.compiler.emit import Emitter
from opentrn.compiler.empty import without_empty_ends
from opentrn.compiler.fast import Fast
from opentrn.compiler.fuse import LAST, LINEAR
from opentrn.compiler.masks import MASKS
from opentrn.compiler.merge import merge, norms
from opentrn.compiler.narrow import WRAP
from opentrn.compiler.numerics import after_linking, before_linking, check_mode
from opentrn.compiler.order import order
from opentrn.compiler.outline import Outline, outline
from opentrn.compiler.pairs import in_pairs
from opentrn.compiler.place import place_hbm
from opentrn.compiler.places import PLACES
from opentrn.compiler.precision import auto_cast as cast
from opentrn.compiler.precision import precision
from opentrn.compiler.products import PRODUCTS
from opentrn.compiler.regions import REGIONS
from opentrn.compiler.spell import SPELL
from opentrn.compiler.together import together
from opentrn.compiler.wide import WIDE, refuse_integer_products
from opentrn.compiler.windows import WINDOWS
from opentrn.graph import (
    OPS,
    Builder,
    Graph,
    Note,
    Region,
    Value,
    from_torch,
    remake,
    rewrite,
    straighten,
    write,
)
from opentrn.hw import target as find_target
from opentrn.isa import Executable, Program

declare(
    "compiler.law",
    "A value is not allowed at a stage of the compiler.",
    rule="each stage of the pipeline lists the ops that may exist after it",
    fix="report this program",
)


@dataclass
class State:
    """What travels down the pipeline."""

    graph: Graph
    chip: Any
    dtype: DType
    notes: list[Note] = field(default_factory=list)
    uses: dict[Value, Use] = field(default_factory=dict)
    calls: list[Use] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    program: Program | None = None
    memory: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, int] = field(default_factory=dict)
    tick: Callable | None = None
    integer_products: bool = False


@dataclass(frozen=True)
class Stage:
    """One stop: `run` changes the state; `law` tells which ops may exist after it (None: any)."""

    name: str
    run: Callable[[State], None]
    why: str
    law: frozenset[str] | None = None


def _clean(state: State) -> None:
    if not state.integer_products:
        refuse_integer_products(state.graph)
    state.graph = cleaning.clean(state.graph, state.notes)


def _precision(state: State) -> None:
    narrowed = precision(state.graph, state.dtype, state.notes)
    state.graph = cleaning.clean(narrowed, state.notes)


def _spell(state: State) -> None:
    """Rules first; then composites no kernel takes, whose parts may need rules again."""
    state.graph = in_pairs(state.graph, state.notes)
    while True:
        graph = rewrite(state.graph, SPELLING, state.notes)
        spelled = _spelled(graph, state.notes)
        if spelled.outputs == graph.outputs:
            break
        state.graph = spelled
    state.graph = cleaning.clean(graph, state.notes)


def _spelled(graph: Graph, notes: list[Note]) -> Graph:
    def change(value: Value, args: tuple[Value, ...]) -> Value:
        new = remake(value, args)
        if not new.attrs.composite or new.op in FUSED or chainable(new):
            return new
        made = use_of(new)
        if isinstance(made, Use):
            return new
        notes.append(Note("spell", repr(new), "rewrote", made.why, new.where))
        return new.attrs.decompose(Builder(new.where), *args)

    return graph.rebuild(change)


def _fuse(state: State) -> None:
    fused = merge(rewrite(state.graph, (*MASKS, *LINEAR), state.notes), state.notes)
    fused = norms(rewrite(fused, LAST, state.notes), state.notes)
    state.graph = chains(fused, state.notes)


def _layout(state: State) -> None:
    state.graph = cleaning.lay_out(state.graph)


def _choose(state: State) -> None:
    uses = choose(state.graph, lambda region: _region(region, state))
    state.uses = together(state.graph, uses)


def _region(region: Region, state: State) -> Graph:
    """A loop's region spelled out by the stages before this one."""
    given = straighten(Graph(region.inputs, region.outputs))
    inner = State(given, state.chip, state.dtype, state.notes)
    inner.integer_products = state.integer_products
    for stage in PIPELINE[: [stage.name for stage in PIPELINE].index("choose")]:
        stage.run(inner)
        obey(stage, inner)
    return inner.graph


def _emit(state: State) -> None:
    emitter = Emitter(state.graph, state.uses, state.chip, state.tick)
    state.program, state.calls, state.starts = emitter.run(), emitter.calls, emitter.starts
    state.statistics = {"kernels_traced": emitter.traced, "kernel_calls": emitter.linked,
                        "kernels_cut_anew": emitter.cuts}  # fmt: skip


def _order(state: State) -> None:
    moved = order(state.program, state.starts, state.chip)
    state.statistics["constants_fetched_early"] = moved


def _place(state: State) -> None:
    state.memory = place_hbm(state.program)


SPELLING = (*SPELL, *WINDOWS, *REGIONS, *WIDE, *WRAP, *PLACES, *PRODUCTS, *DILATION)
FUSED = frozenset({"linear", "linear_norm", "chain"})
UNFUSED = frozenset(OPS) - FUSED
SPELLED = UNFUSED - {"iota", "reverse", "dynamic_slice"}

PIPELINE = (
    Stage("clean", _clean, "fold what is known, drop what does nothing", UNFUSED),
    Stage("precision", _precision, "decide which floats are stored between ops", UNFUSED),
    Stage("spell", _spell, "spell out what no kernel computes in ops that have one", SPELLED),
    Stage("fuse", _fuse, "give one kernel what belongs together", SPELLED | FUSED),
    Stage("layout", _layout, "lay constants out once, on the host", SPELLED | FUSED),
    Stage("choose", _choose, "pick a kernel for each op, or say why there is none", None),
    Stage("emit", _emit, "trace each kernel once, link its calls in program order", None),
    Stage("order", _order, "fetch constants while the kernel before still works", None),
    Stage("place", _place, "give HBM buffers addresses by liveness", None),
)


def chosen(state: State, watch: Callable[[str, State], None] | None = None) -> None:
    """Run the stages up to the choice of kernels; `watch` as in `compile_graph`."""
    for stage in PIPELINE:
        if stage.name == "emit":
            return
        stage.run(state)
        obey(stage, state)
        if watch is not None:
            watch(stage.name, state)


def compile_graph(
    graph: Graph,
    target: str = "trn2",
    dtype: str = "float32",
    watch: Callable[[str, State], None] | None = None,
    tick: Callable | None = None,
    integer_products: bool = False,
    numerics: str = "exact",
) -> Executable:
    """Compile a graph for one core of `target`; floats are stored as `dtype` between ops.

    `watch(stage name, state)` is called after each stage, `tick()` for each value emitted.  With
    `integer_products` matrix products of 32- and 64-bit integers, which the Neuron compiler
    refuses, are computed exactly out of their bytes.  `numerics` says who computes: "exact" the
    instructions, "fast" vectorised code (see `compiler.fast`), "auto" either, by size.  Raises
    UnsupportedError `compiler.no_kernel` and `compiler.integer_product`, CapacityError from
    placement, UnknownNameError, UsageError `compiler.numerics`.
    """
    inner, empty = without_empty_ends(graph)
    state = State(inner, find_target(target), as_dtype(dtype), tick=tick)
    state.integer_products = integer_products
    for value in graph:
        if value.op == "constant":
            value.attrs.data.numbers()  # refused by the name it was given, before any work
    for stage in PIPELINE:
        stage.run(state)
        obey(stage, state)
        if watch is not None:
            watch(stage.name, state)
    choice = after_linking(numerics, state.graph, len(state.program))
    meta = {
        "opentrn": opentrn.__version__,
        "numerics": choice._asdict(),
        "dtype": str(state.dtype),
        "hbm_bytes": state.memory,
        **state.statistics,
        # A program has no tensor without dimensions: these outputs have one of size 1 in it.
        "scalars": [n for n, value in enumerate(inner.outputs) if value.shape == ()],
        "empty": empty,
        "kernels": _counts((use.name, use.why) for use in state.calls),
        "rules": _counts((note.rule, note.outcome) for note in state.notes),
    }
    fast = Fast(state.graph) if choice.mode == "fast" else None
    return Executable.of(state.program, graph_text=write(graph), meta=meta, fast=fast)


def _counts(pairs) -> list[list]:
    """[first, second, how often], most frequent first."""
    found: dict[tuple[str, str], int] = {}
    for pair in pairs:
        found[pair] = found.get(pair, 0) + 1
    return [[*pair, n] for pair, n in sorted(found.items(), key=lambda item: (-item[1], item[0]))]


def compile(
    model: Any,
    args: tuple = (),
    *,
    target: str = "trn2",
    dtype: str = "float32",
    auto_cast: str = "all",
    numerics: str = "exact",
    **options: Any,
) -> Executable | Outline:
    """Compile a `Graph`, or a torch module with example arguments, for one core of `target`.

    `dtype` is what floats are stored as between ops: "float32", "bfloat16" or "float16"; with
    `auto_cast` "matmult" only operands of products are ("tfloat32" and "float8_e4m3" as well).
    Other options as in `compile_graph`.  With `numerics` "none" (or "auto", for what does not fit
    this machine) the result is an outline, which has times and sizes only.  What a module returns
    comes flat, in the order of its pytree.  Raises UnsupportedError naming every op without a rule
    (`graph.unsupported_op`) or a kernel (`compiler.no_kernel`), UsageError `graph.effects` for a
    module that returns more than tensors or changes what it is given.
    """
    check_mode(numerics)
    graph = model if isinstance(model, Graph) else from_torch(model, args, pure=True)
    graph, dtype = cast(graph, auto_cast, dtype)
    choice = before_linking(numerics, graph)
    if choice is not None:
        return outline(graph, target, dtype, why=choice.why, **options)
    return compile_graph(graph, target, dtype, numerics=numerics, **options)


def obey(stage: Stage, state: State) -> None:
    """Refuse (UsageError `compiler.law`) a graph that a stage may not leave behind."""
    for value in state.graph if stage.law is not None else ():
        if value.op not in stage.law:
            raise UsageError(
                f"stage {stage.name}: `{value!r}` may not exist after it",
                code="compiler.law",
                at=value.where,
            )


__all__ = ["PIPELINE", "Stage", "State", "chosen", "compile", "compile_graph", "obey"]
