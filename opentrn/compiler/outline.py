"""A graph timed without being linked: for programs too big to hold, or when only time is asked.

Every kernel is recorded and timed once for each signature, so repeated layers cost nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from opentrn.base import DType, UnsupportedError, declare
from opentrn.base import dtype as as_dtype
from opentrn.compiler.choose import Use
from opentrn.compiler.emit import Emitter
from opentrn.compiler.empty import without_empty_ends
from opentrn.compiler.narrow import device_dtype
from opentrn.compiler.place import Lives, lives_of, place_hbm
from opentrn.graph import Graph, Value
from opentrn.hw import target as find_target
from opentrn.isa import Buffer, Call, Program, Spec, exe, view_of
from opentrn.nki import Recording
from opentrn.sim import timeline

declare(
    "compiler.outline",
    "A program with loops cannot be timed without being run.",
    rule="an outline times each kernel as often as it is called",
    fix="compile the program and run it, which finds how often its loops turn",
)


class Part(NamedTuple):
    """A kernel of one signature: how often it is called, with which of its tensors outside (inputs
    and outputs of the whole), and how long one call takes."""

    name: str
    program: Program
    outside: frozenset[Buffer]
    calls: int
    nanoseconds: float


@dataclass(frozen=True)
class Outline:
    """What is known of a graph on one core of a chip without a linked program.

    `hbm_bytes` are bytes of constants, inputs, outputs and scratchpad; `inputs` and `outputs` the
    specs of the program; `why` says why it was not linked.
    """

    name: str
    target: str
    dtype: DType
    parts: tuple[Part, ...]
    hbm_bytes: dict[str, int]
    inputs: tuple[Spec, ...] = ()
    outputs: tuple[Spec, ...] = ()
    why: str = ""

    @cached_property
    def instructions(self) -> int:
        """How many instructions the linked program would have."""
        return sum(len(part.program) * part.calls for part in self.parts)

    @property
    def nanoseconds(self) -> float:
        """The kernels one after another; a linked program may overlap the end of one with the
        beginning of the next."""
        return sum(part.nanoseconds * part.calls for part in self.parts)

    def by_kernel(self) -> dict[str, float]:
        """Nanoseconds by the name of the kernel, longest first."""
        found: dict[str, float] = {}
        for part in self.parts:
            found[part.name] = found.get(part.name, 0.0) + part.nanoseconds * part.calls
        return dict(sorted(found.items(), key=lambda item: -item[1]))


class Outliner(Emitter):
    """An emitter that notes kernel calls and their tensors, and links nothing."""

    def __init__(self, graph: Graph, uses: dict, chip: Any):
        super().__init__(graph, uses, chip)
        self.noted: list[tuple[Use, Recording, dict[Buffer, Buffer]]] = []

    def emit_constant(self, value: Value) -> None:
        """A buffer for the constant, whether its numbers are known or not."""
        if value.attrs.data.array is not None:
            super().emit_constant(value)
            return
        kind, name = device_dtype(value.dtype), self.labels.get(value, "")
        made = self.builder.buffer("hbm", value.shape or (1,), kind, name=name, kind="constant")
        self.views[value] = view_of(made)

    def link(
        self, use: Use, recording: Recording, bound: dict[Buffer, Buffer], moved: dict[Buffer, int]
    ) -> Call:
        """Make the tensors of a call, and no instructions."""
        call = Call(self.builder, recording.program, bound)
        call.reserve("hbm")
        self.noted.append((use, recording, call.bound))
        return call

    def inside(self, part: tuple, given: list) -> Emitter:
        """A loop: UnsupportedError `compiler.outline`."""
        raise UnsupportedError("the program has a loop", code="compiler.outline")

    def lives(self) -> Lives:
        """First and last instruction that touches each tensor in HBM, counted as if linked."""
        first: dict[Buffer, int] = {}
        last: dict[Buffer, int] = {}
        known: dict[int, Lives] = {}
        at = 0
        for _, recording, bound in self.noted:
            if id(recording) not in known:
                known[id(recording)] = lives_of(recording.program)
            begin, end = known[id(recording)]
            for own, position in begin.items():
                first.setdefault(bound[own], at + position)
                last[bound[own]] = max(last.get(bound[own], 0), at + end[own])
            at += len(recording.program.body)
        return first, last

    def timed(self) -> Iterator[Part]:
        """The kernels, each timed once."""
        counts: dict[tuple[str, int, frozenset[Buffer]], int] = {}
        recordings: dict[int, Recording] = {}
        for use, recording, bound in self.noted:
            outside = frozenset(
                own for own, real in bound.items() if real.kind in ("input", "output")
            )
            recordings[id(recording)] = recording
            key = (use.name, id(recording), outside)
            counts[key] = counts.get(key, 0) + 1
        times = {n: timeline(r.program, self.chip).total_ns for n, r in recordings.items()}
        for (name, number, outside), calls in counts.items():
            yield Part(name, recordings[number].program, outside, calls, times[number])


def outline(
    graph: Graph, target: str = "trn2", dtype: str = "float32", why: str = "",
    integer_products: bool = False, watch: Callable | None = None, tick: Callable | None = None,
) -> Outline:  # fmt: skip
    """Time a graph on one core of `target` without linking a program or computing anything.

    Options as in `compile_graph`, of whose stages `watch` sees those before linking.  Raises what
    that raises, and UnsupportedError `compiler.outline` for loops.
    """
    from opentrn.compiler.pipeline import State, chosen

    inner, empty = without_empty_ends(graph)
    state = State(inner, find_target(target), as_dtype(dtype), tick=tick)
    state.integer_products = integer_products
    chosen(state, watch)
    emitter = Outliner(state.graph, state.uses, state.chip)
    program = emitter.run()
    hbm_bytes = place_hbm(program, emitter.lives())
    parts = tuple(emitter.timed())
    return Outline(graph.name, state.chip.name, state.dtype, parts, hbm_bytes,
                   exe.with_empty(exe.specs(program.inputs), empty["inputs"]),
                   exe.with_empty(exe.specs(program.results or program.outputs), empty["outputs"]),
                   why)  # fmt: skip


__all__ = ["Outline", "Part", "outline"]
