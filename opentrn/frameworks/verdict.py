"""What becomes of one op of a model on a chip, and the verdicts on all ops, of any framework."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from opentrn.base import TrnError, Where, dtype
from opentrn.compiler import PIPELINE, State
from opentrn.graph import Graph

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
    if len(uses) == 1:
        return "runs", f"{uses[0].name}: {uses[0].why}"
    counts: dict[str, int] = {}
    for use in uses:
        counts[use.name] = counts.get(use.name, 0) + 1
    told = ", ".join(f"{n} {name}" if n > 1 else name for name, n in counts.items())
    return "spelled out", f"{len(uses)} kernel calls: {told}"


__all__ = ["OUTCOMES", "Analysis", "Verdict", "compiled", "reason"]
