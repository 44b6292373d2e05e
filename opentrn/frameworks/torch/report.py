"""What torch.compile(backend="neuron") did: graphs, breaks, recompilations, and what each cost."""

from dataclasses import dataclass, field
from typing import Any

from opentrn.base import Where, seconds_text


@dataclass
class Compilation:
    """One graph compiled for one set of shapes: why, what it took, and how often it ran."""

    graph: str
    why: str
    shapes: str
    compile_seconds: float = 0.0
    calls: int = 0
    host_seconds: float = 0.0
    nodes: int = 0
    instructions: int = 0
    kernel_calls: int = 0
    numerics: str = "exact"
    numerics_why: str = ""
    model: Any = None

    @property
    def device_seconds(self) -> float | None:
        """Simulated time of one call on the device; None before the first call, and
        once the program has been replaced."""
        if self.model is None or not self.calls:
            return None
        return self.model.time().total_ns * 1e-9

    def json(self) -> dict[str, Any]:
        """The numbers as plain data."""
        told = {k: v for k, v in vars(self).items() if k != "model"}
        return {**told, "device_seconds": self.device_seconds}


@dataclass
class Break:
    """A place where the code left the graph, and torch's reason."""

    where: Where | None
    why: str

    def json(self) -> dict[str, Any]:
        """The place and the reason as plain data."""
        at = None if self.where is None else {"file": self.where.file, "line": self.where.line}
        return {"at": at, "why": self.why}


@dataclass
class Capture:
    """One graph torch handed over, and whether it is another version of one it had before."""

    name: str
    function: str
    again: str = ""


@dataclass
class Report:
    """Everything since the last `reset()`; printing it gives a page."""

    captures: list[Capture] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    compilations: list[Compilation] = field(default_factory=list)

    @property
    def graphs(self) -> int:
        """How many graphs torch captured, each version counted."""
        return len(self.captures)

    @property
    def recompiles(self) -> int:
        """Compilations beyond the first of each graph, and captures beyond the first of each
        piece of code."""
        names = {each.graph for each in self.compilations}
        return len(self.compilations) - len(names) + sum(bool(c.again) for c in self.captures)

    @property
    def compile_seconds(self) -> float:
        """Time all compilations took on this machine."""
        return sum(each.compile_seconds for each in self.compilations)

    def json(self) -> dict[str, Any]:
        """The report as plain data, schema opentrn.torch_report/1."""
        return {
            "schema": "opentrn.torch_report/1",
            "graphs": self.graphs,
            "recompiles": self.recompiles,
            "compile_seconds": self.compile_seconds,
            "captures": [dict(vars(each)) for each in self.captures],
            "breaks": [each.json() for each in self.breaks],
            "compilations": [each.json() for each in self.compilations],
        }

    def __str__(self) -> str:
        lines = [
            f"{self.graphs} graph{'s' * (self.graphs != 1)}, {len(self.breaks)} graph "
            f"break{'s' * (len(self.breaks) != 1)}, {self.recompiles} recompilation"
            f"{'s' * (self.recompiles != 1)}, compiled in {seconds_text(self.compile_seconds)}"
        ]
        for each in self.captures:
            lines.append(f"  {each.name}: {each.function}" + (each.again and f" ({each.again})"))
            mine = [c for c in self.compilations if c.graph.partition(" ")[0] == each.name]
            lines += [line for one in mine for line in _lines(one)]
        lines += [f"  break at {b.where or 'an unknown line'}: {b.why}" for b in self.breaks]
        alone = {each.name for each in self.captures}
        rest = [c for c in self.compilations if c.graph.partition(" ")[0] not in alone]
        return "\n".join([*lines, *(line for one in rest for line in _lines(one))])


def _lines(one: Compilation) -> list[str]:
    device = one.device_seconds
    known = "not run yet" if not one.calls else "replaced since"
    time = known if device is None else f"{seconds_text(device)} on the device each"
    return [
        f"    {one.graph}({one.shapes}): {one.why}",
        f"      compiled in {seconds_text(one.compile_seconds)}: {one.nodes} values, "
        f"{one.kernel_calls} kernel calls, {one.instructions:,} instructions",
        f"      {one.calls} calls, {time}",
        f"      numerics {one.numerics}: {one.numerics_why}",
    ]


# torch.compile hands graphs to a function and keeps what it returns, so the only place where all
# of them can be counted is one for the process.
HISTORY = Report()


def report() -> Report:
    """What has been captured, compiled and run since the last `reset()`.

    Computing device times takes a moment for large programs; it is done when the report is read.
    """
    return HISTORY


def reset() -> None:
    """Forget what has been reported; compiled graphs stay usable."""
    HISTORY.captures.clear()
    HISTORY.breaks.clear()
    HISTORY.compilations.clear()


__all__ = ["HISTORY", "Break", "Capture", "Compilation", "Report", "report", "reset"]
