"""What bounds a program: the rule, and where the idle time of each engine goes.

The rule, in order:

1. A resource (an engine, or the DMA queues taken together) is *full* when it is active for at least
   `FULL` of the device time: even perfect overlap could then save no more than the rest.  The
   program is bound by the full resource on which the critical path spends most time; the issue of
   a transfer counts for the engine that issues it.  Kind "engine" or "dma", share = active share.
2. Else, when the critical path waits for another core of the launch at least half of the time: kind
   "dependency" of the resource "other core", share = that part.
3. Else, when fixed costs (issue of transfers, semaphores, draining pipelines, start of transfers)
   make up at least half of the critical path: kind "latency", share = their part of the path.
4. Else the work itself is on the path, but spread over resources that wait for each other: kind
   "dependency", share = the part of the path that is work.

Without a critical path (a trace whose events do not name what they waited for), the path's fixed
costs are taken to be the time in which nothing works.
"""

from typing import NamedTuple

import numpy as np

from opentrn.profiler.path import CORE, DMA, ISSUE, LATENCY, UNKNOWN, Path
from opentrn.profiler.table import ENGINES, Table, covered, union

FULL = 0.7
"""Share of the device time from which on a resource counts as full."""

HALF = 0.5
RESOURCES = (*ENGINES, DMA)


KINDS = ("engine", "dma", "latency", "dependency", "none")
"""What a program may be bound by; none where nothing takes time."""


class Bound(NamedTuple):
    """What bounds a program: `kind` is engine, dma, latency, dependency, or none (empty trace).

    `resource` is the engine or "dma" (the fullest one for latency and dependency), `share` what the
    rule compares, between 0 and 1, `reason` one sentence.
    """

    kind: str
    resource: str
    share: float
    reason: str


def active(table: Table) -> dict[str, float]:
    """ns in which each resource could take nothing else; issue counts for the engine.

    Unlike the active time of the metrics, the time in which an engine only writes its result does
    not count: the next instruction may run then.
    """
    found = {}
    for lane in RESOURCES:
        on = table.on(lane)
        found[lane] = covered(table.start[on], table.end[on])
    return found


def bound_of(table: Table, busy: dict[str, float], path: Path) -> Bound:
    """Apply the rule of this module."""
    total = table.total
    if not total:
        return Bound("none", "", 0.0, "nothing takes time")
    on_path = {r: path.spent.get(r, 0.0) + path.issued.get(r, 0.0) for r in RESOURCES}
    full = [r for r in RESOURCES if busy[r] >= FULL * total]
    if full:
        first = max(full, key=lambda r: (on_path[r], busy[r]))
        kind = "dma" if first == DMA else "engine"
        return Bound(kind, first, busy[first] / total, _full_reason(first, busy, path, total))
    apart = path.spent.get(CORE, 0.0) / total
    if apart >= HALF:
        return Bound(
            "dependency", CORE, apart, f"it waits for another core {apart:.0%} of the time"
        )
    first = max(RESOURCES, key=lambda r: busy[r])
    fixed = _fixed(table, path) / total
    if fixed >= HALF:
        return Bound("latency", first, fixed, _latency_reason(path, total, fixed))
    reason = (
        f"{_called(first)} is the busiest, {busy[first] / total:.0%} of the time; "
        "the work follows one step after the other and does not overlap"
    )
    return Bound("dependency", first, 1.0 - fixed, reason)


def _called(resource: str) -> str:
    """A resource as people name it."""
    return "DMA" if resource == DMA else f"the {resource.capitalize()} Engine"


def _full_reason(first: str, busy: dict[str, float], path: Path, total: float) -> str:
    share = f"{busy[first] / total:.0%} of the time"
    if first == DMA:
        return f"bytes move {share}"
    issuing, working = path.issued.get(first, 0.0), path.spent.get(first, 0.0)
    if issuing > working:
        return f"{_called(first)} is active {share}, mostly to issue DMA transfers"
    return f"{_called(first)} is active {share}"


def _latency_reason(path: Path, total: float, fixed: float) -> str:
    issue = sum(path.issued.values()) / total
    if issue:
        return (
            f"fixed costs take {fixed:.0%} of the time: {issue:.0%} to issue transfers, "
            f"{fixed - issue:.0%} for starts, semaphores and pipelines"
        )
    return f"nothing works {fixed:.0%} of the time: starts, semaphores, pipelines that drain"


def _fixed(table: Table, path: Path) -> float:
    """ns of the path that are fixed costs; without a path, ns in which nothing works."""
    if path.spent.get(UNKNOWN, 0.0) > HALF * table.total:
        work = ~table.issue
        return table.total - covered(table.start[work], table.end[work])
    return path.spent.get(ISSUE, 0.0) + path.spent.get(LATENCY, 0.0)


# ---------------------------------------------------------------------- idle time


def idle(table: Table) -> dict[str, dict[str, float]]:
    """`{resource: {cause: ns}}` for resources that work at all; with `active` it fills the total.

    An engine is idle when it neither works nor writes a result (as the active time has it).  A gap
    is charged to what the next event on the resource waited for: another engine, "dma", "own
    result", "dma rings" (queues and HBM), "other core", "start" (nothing; only its own start-up),
    "other"; the time after the last event is "done".
    """
    return {lane: _gaps(table, lane) for lane in RESOURCES if table.on(lane).any()}


def _gaps(table: Table, lane: str) -> dict[str, float]:
    rows = np.flatnonzero(table.on(lane))
    first, last = union(table.start[rows], table.done[rows])
    before = np.concatenate(([0.0], last))
    gaps = np.concatenate((first, [table.total])) - before
    # The event that ends each gap: the first one of the lane to start there.
    order = rows[np.argsort(table.start[rows], kind="stable")]
    order = order[table.done[order] > table.start[order]]
    opener = order[np.searchsorted(table.start[order], first)].tolist() if len(first) else []
    spent: dict[str, float] = {}
    for gap, row in zip(gaps.tolist(), [*opener, -1], strict=True):
        if gap > 0.0:
            cause = "done" if row < 0 else _cause(table, lane, row)
            spent[cause] = spent.get(cause, 0.0) + gap
    return spent


def _cause(table: Table, lane: str, row: int) -> str:
    """What kept a resource idle until `row` began."""
    reason, before = table.reason(row)
    if reason in ("queue", "hbm"):
        return "dma rings"
    if not reason:
        return "start"
    if reason == "core":
        return CORE
    if before < 0:
        return "other"
    other = table.lanes[table.lane[before]]
    if reason == "engine" and lane == DMA:
        return ISSUE  # the transfer waited for the engine that issues it
    return "own result" if other == lane else other


__all__ = ["FULL", "KINDS", "RESOURCES", "Bound", "active", "bound_of", "idle"]
