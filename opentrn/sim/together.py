"""The cores of one launch in time: each runs its own program, they meet, and HBM is shared.

A meeting (core_barrier, sendrecv) begins when the instruction has come to its turn on every core.
So it becomes two rows: the arrival, which waits for what the instruction waits for, and the meeting
itself, which waits for the arrivals of all cores.
"""

from typing import Any, NamedTuple

import numpy as np

from opentrn.base import OrderError, UsageError, declare
from opentrn.isa import Program
from opentrn.sim.timeline import Prepared, Timeline, alone, prepare, scheduled, served
from opentrn.sim.timing import CORE, SEEN, STREAMS, Columns, Schedule

declare(
    "sim.cores_apart",
    "The cores of a launch do not come to the same meetings.",
    rule="every core_barrier and sendrecv of one core has its counterpart on the other, in an "
    "order in which no core waits for one that waits for it",
    fix="make both cores take part, or guard the meeting by the same condition on both",
)


class Stretched(NamedTuple):
    """The columns of one core with arrivals, and where its rows are among them.

    `place[i]` is the row of instruction i; `arrivals[key]` the rows of the arrivals of each kind of
    meeting, in order, and `meetings` the instructions that meet with their key and turn.
    """

    columns: Columns
    place: np.ndarray
    arrivals: dict[Any, list[int]]
    meetings: list[tuple[int, Any, int]]


def timeline_together(
    programs: tuple[Program, ...],
    chip,
    *,
    trips: Any = None,
    fast: bool | None = None,
    queues: str = "arrival",
) -> tuple[Timeline, ...]:
    """When every instruction of each core's program runs, all cores of one launch at work.

    `trips` has the trip counts of each core; `queues` as for `timeline`.  Times count from the
    launch; an instruction that waited for another core has the reason "core".  Raises OrderError
    `sim.cores_apart` where the cores do not meet, UsageError without a program, and what `timeline`
    raises.
    """
    if not programs:
        raise UsageError("a launch needs at least one program", code="sim.cores_apart")
    counts = trips if trips is not None else (None,) * len(programs)
    pairs = zip(programs, counts, strict=True)
    ready = [served(prepare(one, chip, found), queues) for one, found in pairs]
    if len(ready) == 1:
        return (Timeline(ready[0], alone(ready[0], fast)),)
    parts = [stretched(one) for one in ready]
    columns, bases = joined(parts, ready)
    found = scheduled(columns, ready[0].rates._replace(cores=len(ready)), fast)
    _check_met(found, parts, bases, ready)
    return tuple(
        Timeline(one, own_part(found, part, base))
        for one, part, base in zip(ready, parts, bases, strict=True)
    )


def stretched(ready: Prepared) -> Stretched:
    """One core's columns with a row for the arrival at each meeting, before the meeting's."""
    c, flow = ready.columns, ready.flow
    meets = np.asarray([row.meets for row in flow.rows], bool)[flow.row]
    at = np.flatnonzero(meets)
    place = np.arange(len(meets)) + np.cumsum(meets)
    found = {name: np.insert(getattr(c, name), at, getattr(c, name)[at]) for name in c._fields[:-2]}
    arrived = place[at] - 1
    for name in ("busy", "latency", "background", "setup", "ports", "cells"):
        found[name][arrived] = 0
    # The arrival takes over the waits; those of the meeting are added when all cores are known.
    lengths = np.insert(np.diff(c.dep_start), at + 1, 0)
    dep = 4 * place[c.dep >> 2] + (c.dep & 3)
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    arrivals: dict[Any, list[int]] = {}
    meetings = []
    for instruction in at.tolist():
        form = flow.instances[instruction].form
        key = (type(form).__name__, getattr(form, "pipe_id", None))
        turns = arrivals.setdefault(key, [])
        meetings.append((instruction, key, len(turns)))
        turns.append(int(place[instruction]) - 1)
    columns = Columns(**found, dep_start=starts, dep=dep)
    return Stretched(columns, place, arrivals, meetings)


def joined(parts: list[Stretched], ready: list[Prepared]) -> tuple[Columns, list[int]]:
    """The columns of all cores one after another, meetings waiting for every arrival.

    Returns the first row of each core as well.
    """
    sizes = [len(part.columns.stream) for part in parts]
    bases = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))[:-1].tolist()
    _check(parts, ready)
    found: dict[str, list] = {name: [] for name in Columns._fields}
    offset = 0
    for number, part in enumerate(parts):
        for name in Columns._fields[:-2]:
            column = getattr(part.columns, name)
            found[name].append(column + number * STREAMS if name == "stream" else column)
        at, extra = [], []
        for instruction, key, turn in part.meetings:
            row = int(part.place[instruction])
            for other, base in zip(parts, bases, strict=True):
                if other is not part:
                    at.append(part.columns.dep_start[row])
                    extra.append(4 * (other.arrivals[key][turn] + base) + SEEN)
        dep = part.columns.dep + 4 * bases[number]
        lengths = np.diff(part.columns.dep_start)
        lengths[[int(part.place[m[0]]) for m in part.meetings]] = len(parts) - 1
        starts = offset + np.cumsum(lengths)
        found["dep"].append(np.insert(dep, np.asarray(at, np.int64), np.asarray(extra, np.int64)))
        found["dep_start"].append(starts)
        offset = int(starts[-1]) if len(starts) else offset
    found["dep_start"].insert(0, np.zeros(1, np.int64))
    return Columns(*(np.concatenate(found[name]) for name in Columns._fields)), bases


def _check(parts: list[Stretched], ready: list[Prepared]) -> None:
    """Every core comes to each kind of meeting equally often."""
    first = {key: len(turns) for key, turns in parts[0].arrivals.items()}
    for number, part in enumerate(parts):
        own = {key: len(turns) for key, turns in part.arrivals.items()}
        for name, pipe in first.keys() | own.keys():
            mine, theirs = first.get((name, pipe), 0), own.get((name, pipe), 0)
            if mine != theirs:
                where = "" if pipe is None else f" of pipe {pipe}"
                raise _apart(
                    f"core 0 comes to {mine} {name}{where}, core {number} to {theirs}", ready[0]
                )


def _check_met(found: Schedule, parts: list[Stretched], bases, ready: list[Prepared]) -> None:
    """No meeting was left waiting because the cores come to them in different orders."""
    for part, base, one in zip(parts, bases, ready, strict=True):
        for instruction, key, _ in part.meetings:
            if found.end[base + part.place[instruction]] == 0.0:
                raise _apart(f"no core comes to the {key[0]} that the other one waits in", one)


def _apart(what: str, ready: Prepared) -> OrderError:
    body = ready.program.body
    return OrderError(what, code="sim.cores_apart", at=body[0].where if body else None)


def own_part(found: Schedule, part: Stretched, base: int) -> Schedule:
    """The schedule of one core's instructions; rows of other cores show as the reason "core"."""
    rows = part.place + base
    cut = {name: np.asarray(column)[rows] for name, column in found._asdict().items()}
    back = np.full(len(part.columns.stream), -1, np.int64)
    back[part.place] = np.arange(len(part.place))
    for instruction, _, _ in part.meetings:
        _behind_arrival(found, cut, base + int(part.place[instruction]) - 1, instruction)
        back[part.place[instruction] - 1] = instruction
    inside = (cut["binding"] >= base) & (cut["binding"] < base + len(back))
    other = (cut["binding"] >= 0) & ~inside
    cut["binding"] = np.where(inside, back[np.where(inside, cut["binding"] - base, 0)], -1)
    cut["reason"] = np.where(other, CORE, cut["reason"])
    return Schedule(**cut)


def _behind_arrival(found: Schedule, cut: dict, arrival: int, instruction: int) -> None:
    """A meeting that only waited for its own arrival waited for what that waited for."""
    if cut["binding"][instruction] == arrival:
        for name in ("since", "binding", "reason"):
            cut[name][instruction] = getattr(found, name)[arrival]


__all__ = ["timeline_together"]
