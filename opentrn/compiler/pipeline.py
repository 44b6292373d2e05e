"""The whole trip on one page: a graph becomes an executable by named steps, each with its law."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import opentrn
from opentrn.base import DType, UsageError, declare
from opentrn.base import dtype as as_dtype
from opentrn.compiler import clean as cleaning
from opentrn.compiler.choose import Use, choose
from opentrn.compiler.emit import Emitter
from opentrn.compiler.fuse import LINEAR, chains
from opentrn.compiler.place import place_hbm
from opentrn.compiler.precision import precision
from opentrn.graph import OPS, Graph, Note, Value, from_torch, rewrite, write
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
    program: Program | None = None
    memory: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, int] = field(default_factory=dict)
    tick: Callable | None = None


@dataclass(frozen=True)
class Stage:
    """One stop: `run` changes the state; `law` tells which ops may exist after it (None: any)."""

    name: str
    run: Callable[[State], None]
    why: str
    law: frozenset[str] | None = None


def _clean(state: State) -> None:
    state.graph = cleaning.clean(state.graph, state.notes)


def _precision(state: State) -> None:
    state.graph = cleaning.clean(precision(state.graph, state.dtype), state.notes)


def _fuse(state: State) -> None:
    state.graph = chains(rewrite(state.graph, LINEAR, state.notes))


def _layout(state: State) -> None:
    state.graph = cleaning.lay_out(state.graph)


def _choose(state: State) -> None:
    state.uses = choose(state.graph)


def _emit(state: State) -> None:
    emitter = Emitter(state.graph, state.uses, state.chip, state.tick)
    state.program = emitter.run()
    state.statistics = {"kernels_traced": emitter.traced, "kernel_calls": emitter.linked}


def _place(state: State) -> None:
    state.memory = place_hbm(state.program)


ANY = frozenset(OPS)
UNFUSED = frozenset(OPS) - {"linear", "chain"}

PIPELINE = (
    Stage("clean", _clean, "fold what is known, drop what does nothing", UNFUSED),
    Stage("precision", _precision, "decide which floats are stored between ops", UNFUSED),
    Stage("fuse", _fuse, "give one kernel what belongs together", ANY),
    Stage("layout", _layout, "lay constants out once, on the host", ANY),
    Stage("choose", _choose, "pick a kernel for each op, or say why there is none", None),
    Stage("emit", _emit, "trace each kernel once, link its calls in program order", None),
    Stage("place", _place, "give HBM buffers addresses by liveness", None),
)


def compile_graph(
    graph: Graph,
    target: str = "trn2",
    dtype: str = "float32",
    watch: Callable[[str, State], None] | None = None,
    tick: Callable | None = None,
) -> Executable:
    """Compile a graph for one core of `target`; floats are stored as `dtype` between ops.

    `watch(stage name, state)` is called after each stage, `tick()` for each value emitted.  Raises
    UnsupportedError `compiler.no_kernel`, CapacityError from placement, UnknownNameError.
    """
    state = State(graph, find_target(target), as_dtype(dtype), tick=tick)
    for stage in PIPELINE:
        stage.run(state)
        _obey(stage, state)
        if watch is not None:
            watch(stage.name, state)
    meta = {
        "opentrn": opentrn.__version__,
        "dtype": str(state.dtype),
        "hbm_bytes": state.memory,
        **state.statistics,
    }
    return Executable.of(state.program, graph_text=write(graph), meta=meta)


def compile(
    model: Any,
    args: tuple = (),
    *,
    target: str = "trn2",
    dtype: str = "float32",
    **options: Any,
) -> Executable:
    """Compile a `Graph`, or a torch module with example arguments, for one core of `target`.

    `dtype` is what floats are stored as between ops: "float32", "bfloat16" or "float16"; other
    options as in `compile_graph`.  Raises UnsupportedError naming every op without a rule
    (`graph.unsupported_op`) or a kernel (`compiler.no_kernel`).
    """
    graph = model if isinstance(model, Graph) else from_torch(model, args)
    return compile_graph(graph, target, dtype, **options)


def _obey(stage: Stage, state: State) -> None:
    for value in state.graph if stage.law is not None else ():
        if value.op not in stage.law:
            raise UsageError(
                f"stage {stage.name}: `{value!r}` may not exist after it",
                code="compiler.law",
                at=value.where,
            )


__all__ = ["PIPELINE", "Stage", "State", "compile", "compile_graph"]
