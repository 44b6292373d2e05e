"""What becomes of one op of a model on a chip, and the verdicts on all ops, of any framework."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from opentrn.base import TrnError, Where, dtype, seconds_text
from opentrn.compiler import PIPELINE, State, outline
from opentrn.cost import roofline
from opentrn.frameworks.support import FIRST_SDK, STATES, Fact
from opentrn.graph import Graph

SLOW = 10
"""How many times the least time of its bytes and products an op may take before it is slow."""
SLOW_NS = 50_000
"""An op that takes less, in nanoseconds, is not called slow: starting a kernel takes a share."""

PRODUCTS = ("dot_general", "convolution", "attention", "attention_gradient")
BF16_BITS = 16
UNTIMED = ("sim.trips", "compiler.outline")
"""What timing raises for kernels that loop as often as their data say."""
NAMED = 8
"""So many ops are named for each fact."""

OUTCOMES = {
    "runs": "one kernel computes it",
    "view": "it moves nothing: another view of the same memory, or known when compiled",
    "spelled out": "it is computed by several kernels",
    "slow": f"it runs, but takes more than {SLOW} times the least its bytes and products take",
    "narrowed": "it runs with 32-bit numbers where the model says 64",
    "unsupported": "it cannot run on the chip as it is",
}


@dataclass(frozen=True)
class Verdict:
    """What becomes of one op with these operands: `outcome` is a key of `OUTCOMES`.

    `why` names the kernels and the reason for them, or what is missing; `fix` says what to write
    instead, `neuron` is the code the vendor's tools print for it, `places` are the lines; `facts`
    tell since and until which SDK the real device has it, and what it refuses."""

    op: str
    operands: str
    result: str
    outcome: str
    why: str
    fix: str = ""
    neuron: str = ""
    count: int = 1
    places: tuple[Where, ...] = ()
    facts: tuple[Fact, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether the op runs on the chip."""
        return self.outcome != "unsupported"

    def json(self) -> dict[str, Any]:
        """The verdict as plain data."""
        told = {**asdict(self), "runs": self.runs}
        told["facts"] = [fact.json() for fact in self.facts]
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
        return "\n".join([*lines, *self._on_the_real_device()])

    def _on_the_real_device(self) -> Iterator[str]:
        """What the vendor's pages say of these ops, worst first, each with the ops it is about."""
        about: dict[Fact, list[Verdict]] = {}
        for verdict in (*self.refused, *self.verdicts):
            for fact in verdict.facts:
                if fact.state != "runs" or fact.since != FIRST_SDK:
                    about.setdefault(fact, []).append(verdict)
        if about:
            yield from ("", "on the real device, by the Neuron documentation")
        for fact in sorted(about, key=lambda f: STATES.index(f.state)):
            names = dict.fromkeys(v.op for v in about[fact])
            more = f", and {len(names) - NAMED} more" if len(names) > NAMED else ""
            yield f"  {fact}"
            yield f"         ops {', '.join([*names][:NAMED])}{more}"
            if fact.rewrite:
                yield f"         fix {fact.rewrite}"


def _lines(verdict: Verdict) -> Iterator[str]:
    place = f"  {verdict.places[0]}" if verdict.places else ""
    yield (
        f"  {verdict.count:4d} × {verdict.op} ({verdict.operands}) → {verdict.result}: "
        f"{verdict.why}"
    )
    if verdict.outcome in ("unsupported", "slow"):
        yield f"         at  {place.strip() or 'an unknown line'}"
    if not verdict.runs:
        more = f"  ({verdict.neuron})" if verdict.neuron else ""
        yield f"         fix {verdict.fix or 'none known'}{more}"


def reason(error: TrnError) -> str:
    """The first thing an error says, without the counts that concern a whole model."""
    rows = [row.strip() for row in error.what.splitlines()]
    causes = re.findall(r"\d+ × (.*?)(?=; \d+ × |\n|$)", error.what)
    return "no kernel for " + "; ".join(causes) if causes else rows[0]


def compiled(graph: Graph, chip: Any, precision: str) -> tuple[str, str]:
    """What the compiler makes of the graph: the outcome, and its kernels with the reason."""
    state = State(graph, chip, dtype(precision))
    for stage in PIPELINE:
        if stage.name == "emit":
            break
        stage.run(state)
    uses = list(state.uses.values())
    if not uses:
        return "view", "no kernel needed"
    slow = _slow(graph, state)
    if len(uses) == 1:
        return "slow" if slow else "runs", f"{uses[0].name}: {uses[0].why}{slow}"
    counts: dict[str, int] = {}
    for use in uses:
        counts[use.name] = counts.get(use.name, 0) + 1
    told = ", ".join(f"{n} {name}" if n > 1 else name for name, n in counts.items())
    return "slow" if slow else "spelled out", f"{len(uses)} kernel calls: {told}{slow}"


def _slow(graph: Graph, state: State) -> str:
    """How much longer the kernels take than bytes and products must; "" where that is in order.

    The least is the roofline of one core: inputs and outputs once over the HBM, products at the
    peak of float32 or what the op has."""
    if any(value.op == "while" for value in state.graph):
        return ""
    try:
        found = outline(graph, state.chip.name, str(state.dtype))
    except TrnError as error:
        if error.code not in UNTIMED:
            raise
        return ""
    if found.nanoseconds < SLOW_NS:
        return ""
    kinds = [v.dtype for v in graph.inputs if v.dtype.is_float]
    kind = "bfloat16" if kinds and max(k.bits for k in kinds) <= BF16_BITS else "float32"
    flops = sum(v.flops for v in graph if v.op in PRODUCTS)
    nbytes = sum(v.nbytes for v in {*graph.inputs, *graph.outputs})
    least = roofline(flops, nbytes, state.chip, kind, cores=1).seconds.value
    ratio = found.nanoseconds * 1e-9 / least if least else 0.0
    if ratio <= SLOW:
        return ""
    took, must = seconds_text(found.nanoseconds * 1e-9), seconds_text(least)
    longest = next(iter(found.by_kernel()))
    return f"; {took} where {must} would do, most of it in {longest}"


__all__ = ["OUTCOMES", "Analysis", "Verdict", "compiled", "reason"]
