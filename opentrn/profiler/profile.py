"""A timed program with everything the profiler can say of it: what the files and pages are made of.

The profiler lies below the simulator's users and does not import it: `Timed` lists what it needs
of a timeline.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from opentrn.base import Trace, declare
from opentrn.hw import Chip
from opentrn.isa import Program
from opentrn.profiler.details import Detail, details, matched
from opentrn.profiler.path import Path, critical_path
from opentrn.profiler.source import Line, lines_of
from opentrn.profiler.summary import Summary, summarize
from opentrn.profiler.table import Table, table
from opentrn.profiler.tiles import Tile, tiles_of

declare(
    "profiler.no_kernel",
    "There is nothing to profile: no kernel ran, or none of the name asked for.",
    rule="a profile is of kernels that were called",
    fix="profile a script that calls its kernels when run",
)
declare(
    "profiler.empty",
    "A kernel without instructions was to be profiled: it takes no time, and nothing bounds it.",
    rule="a profile is of a program with at least one instruction",
    fix="let the kernel compute something and store it; one that returns its input does nothing",
)
declare(
    "profiler.options",
    "Options of `opentrn profile` that do not fit what was profiled.",
    rule="a table or a trace is of one kernel, and a saved summary holds no events",
    fix="`opentrn profile --help` tells what each option needs",
)


class Timed(Protocol):
    """A program in time, as `sim.Timeline` has it; times in ns, one entry for each executed one."""

    program: Program
    chip: Chip
    placement: Any
    instructions: Sequence
    start: Sequence[float]
    end: Sequence[float]

    def trace(self) -> Trace:
        """The events."""

    def grade_shares(self) -> Mapping[str, float]:
        """Share of the time by grade of knowledge."""


@dataclass(frozen=True)
class Profile:
    """One timed program: its summary, and on request its events, tiles and lines."""

    timed: Timed
    trace: Trace
    summary: Summary

    @property
    def chip(self) -> Chip:
        """The chip it was timed on."""
        return self.timed.chip

    @cached_property
    def table(self) -> Table:
        """The events as columns."""
        return table(self.trace)

    @cached_property
    def known(self) -> list[Detail | None]:
        """What the program knows of each event."""
        return matched(self.table, details(self.timed.program))

    @cached_property
    def path(self) -> Path:
        """The critical path."""
        return critical_path(self.table)

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Every source line, costliest first."""
        return tuple(lines_of(self.table, self.path))

    @cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """The tiles of SBUF and PSUM in place and time."""
        timed = self.timed
        times = (timed.start.tolist(), timed.end.tolist())
        return tiles_of(timed.instructions, *times, timed.placement.slots)


def profile(timed: Timed, name: str = "", findings: Iterable[Mapping[str, Any]] = ()) -> Profile:
    """Everything about one timed program: `profile(run.timeline())`; `name` replaces its name.

    `findings` are what was noticed about the program, as plain data (`Finding.json()`).

    Facts of the chip that a variant replaced are named in the trace and the summary as assumed.
    """
    trace = timed.trace()
    if name:
        trace.meta["program"] = name
    changed = {f.path: f.text for f in timed.chip if f.source == "variant"}
    if changed:
        trace.meta["assumed"] = changed
    summary = summarize(
        trace,
        timed.chip,
        program=timed.program,
        grades=timed.grade_shares(),
        instructions=timed.instructions,
        findings=findings,
    )
    return Profile(timed, trace, summary)
