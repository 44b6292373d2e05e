"""How much time a remedy would save: the estimates behind `Advice.predicted_gain`.

One rule for all: a remedy takes time away from some resources.  What it takes away on the critical
path shortens the run, but the run stays at least as long as its busiest resource is then busy:

    time after = max(time - saved on the path, busiest resource after the change)

The rest of each estimate is which time goes away; each function says it.  Loading earlier
(`overlapped`) takes nothing away, it lets resources work at the same time.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from opentrn.hw import Chip
from opentrn.profiler.bounds import Bound
from opentrn.profiler.details import Detail
from opentrn.profiler.metrics import spills
from opentrn.profiler.path import DMA, ISSUE, LATENCY, Path
from opentrn.profiler.reloads import Reload
from opentrn.profiler.source import Line
from opentrn.profiler.table import Table


@dataclass(frozen=True, kw_only=True)
class Case:
    """All that is known of a run when advice is given; `busy` and the path in ns."""

    chip: Chip
    table: Table
    path: Path
    busy: Mapping[str, float]
    bound: Bound
    found: Mapping[str, Any]
    lines: tuple[Line, ...]
    known: list[Detail | None]
    reloads: tuple[Reload, ...]

    def gain(self, on_path: float, busy: Mapping[str, float], left: float = 1.0) -> float:
        """Share of the time saved: `on_path` ns go, resources are then busy for `busy` ns.

        `left` is the share that stays of what comes before and after a resource's work.
        """
        total = self.table.total
        if not total:
            return 0.0
        then = {**self.busy, **busy}
        least = (ns + left * self.around.get(lane, 0.0) for lane, ns in then.items() if ns > 0.0)
        return max(0.0, 1.0 - max(total - on_path, *least) / total)

    @cached_property
    def around(self) -> dict[str, float]:
        """ns before each resource begins, and after it has ended."""
        table, found = self.table, {}
        for lane in self.busy:
            on = table.on(lane)
            if on.any():
                lasts = float(table.end[on].max() - table.start[on].min())
                found[lane] = table.total - lasts
        return found

    def on_path(self, rows: Iterable[int], kinds: Iterable[str] = ()) -> float:
        """ns of the critical path that events of these rows answer for, in parts of these kinds.

        Without kinds, every part counts.
        """
        wanted, kinds = set(rows), set(kinds)
        return sum(
            ns
            for piece in self.path.pieces
            if piece.row in wanted
            for kind, ns in piece.parts
            if not kinds or kind in kinds
        )

    def transfers(self) -> np.ndarray:
        """Rows of the transfers."""
        return np.flatnonzero(self.table.on(DMA))


def overlapped(case: Case) -> float:
    """Loads run ahead: all but one turn of the busiest resource's work hides the rest."""
    total, lane = case.table.total, max(case.busy, key=case.busy.__getitem__)
    most = turns(case, lane)
    if not total or not most:
        return 0.0
    return (total - case.busy[lane]) * (1.0 - 1.0 / most) / total


def turns(case: Case, lane: str) -> int:
    """How often one line works on a resource; what happens once has no next tile to prepare."""
    rows = np.flatnonzero(case.table.on(lane) & ~case.table.issue).tolist()
    lines = Counter((w.file, w.line) if (w := case.table.where[r]) else None for r in rows)
    return max(lines.values(), default=0)


def joined(case: Case, size: int) -> float:
    """Transfers of at least `size` bytes: the fixed costs of those that are no longer there."""
    count, nbytes = case.found["dma_transfer_count"], case.found["dma_transfer_total_bytes"]
    if not count:
        return 0.0
    away = max(0.0, 1.0 - max(1, -(-nbytes // size)) / count)
    fixed = case.on_path(case.transfers(), (ISSUE, LATENCY))
    fixed += case.on_path(np.flatnonzero(case.table.issue), (ISSUE, LATENCY))
    busy = {lane: ns - away * _issue(case, lane) for lane, ns in case.busy.items()}
    return case.gain(away * fixed, busy, 1.0 - away)


def _issue(case: Case, lane: str) -> float:
    rows = case.table.on(lane) & case.table.issue
    return float(case.table.duration[rows].sum())


def denser(case: Case) -> float:
    """Transfers at the full rate of the DMA engines: what they take longer today."""
    away = 1.0 - case.found["dma_bandwidth_percent"] / 100.0
    on_path = away * case.path.spent.get(DMA, 0.0)
    return case.gain(on_path, {DMA: case.busy[DMA] * (1.0 - away)})


def unturned(case: Case) -> float:
    """No transposes on the PE array, and no copies of what they left in PSUM."""
    table = case.table
    flips = _flips(case)
    copies = [row for row in range(len(table)) if row not in flips and _follows(table, row, flips)]
    lanes: dict[str, float] = {}
    for row in [*flips, *copies]:
        lane = table.lanes[table.lane[row]]
        lanes[lane] = lanes.get(lane, 0.0) + float(table.duration[row])
    busy = {lane: case.busy.get(lane, 0.0) - ns for lane, ns in lanes.items() if lane in case.busy}
    return case.gain(case.on_path([*flips, *copies]), busy)


def _flips(case: Case) -> set[int]:
    """Rows of transposes on the Tensor Engine."""
    rows = np.flatnonzero(case.table.on("tensor")).tolist()
    name, known = case.table.name, case.known
    return {r for r in rows if name[r] == "nc_transpose" or (known[r] and known[r].transpose)}


def _follows(table: Table, row: int, flips: set[int]) -> bool:
    """Whether an event takes out of PSUM what a transpose left there."""
    return (
        table.source[row] == "psum"
        and table.flops[row] == 0.0
        and not table.issue[row]
        and table.reason(row)[1] in flips
    )


def narrowed(case: Case) -> float:
    """fp32 matmuls as bf16: one pass of the PE array instead of several."""
    rows = [r for r in _tensor_rows(case) if case.known[r] and case.known[r].dtype == "float32"]
    away = 1.0 - 1.0 / case.chip.tensor.fp32_passes
    lasts = float(case.table.duration[rows].sum()) if rows else 0.0
    busy = {"tensor": case.busy["tensor"] - away * lasts}
    return case.gain(away * case.on_path(rows, ("tensor",)), busy)


def filled(case: Case) -> float:
    """The flops of the Tensor Engine at the peak of its array, without their empty cells."""
    away = 1.0 - used(case)
    on_path = case.on_path(_tensor_rows(case), ("tensor",))
    return case.gain(away * on_path, {"tensor": (1.0 - away) * case.busy["tensor"]})


def used(case: Case) -> float:
    """Share of the PE array's peak that the Tensor Engine reaches while it is active, its cold
    clock left aside; 1 where it does nothing.
    """
    lasts = case.found["tensor_engine_active_time"] - case.found.get("throttle_time", 0.0)
    reached = case.found["mfu_estimated_percent"] / 100.0 * case.found["total_time"]
    return min(1.0, reached / lasts) if lasts > 0.0 else 1.0


def warmed(case: Case) -> float:
    """What the Tensor Engine's instructions last longer than at its full clock."""
    known, duration = case.known, case.table.duration
    rows = [row for row in _tensor_rows(case) if known[row] and known[row].busy_ns]
    lost = {row: max(0.0, float(duration[row]) - known[row].busy_ns) for row in rows}
    waited = {piece.row for piece in case.path.pieces}
    on_path = sum(ns for row, ns in lost.items() if row in waited)
    on_path = min(on_path, case.on_path(lost, ("tensor",)))
    return case.gain(on_path, {"tensor": case.busy["tensor"] - sum(lost.values())})


def cut(case: Case, parts: int) -> float:
    """What happens once happens in parts: all but one part of it beside the busiest resource."""
    total, most = case.table.total, max(case.busy.values())
    return (total - most) * (1.0 - 1.0 / parts) / total if total else 0.0


def _tensor_rows(case: Case) -> list[int]:
    return np.flatnonzero(case.table.on("tensor")).tolist()


def evacuation(case: Case) -> tuple[str, str, float]:
    """`(from, to, ns)`: the engine that empties PSUM most, the freer one, time that could move."""
    table, spent = case.table, {"vector": 0.0, "scalar": 0.0}
    for row in range(len(table)):
        lane = table.lanes[table.lane[row]]
        if lane in spent and table.source[row] == "psum" and "sbuf" in table.target[row]:
            spent[lane] += float(table.duration[row])
    full = max(spent, key=lambda lane: (case.busy[lane], lane))
    free = "scalar" if full == "vector" else "vector"
    return full, free, min(spent[full], (case.busy[full] - case.busy[free]) / 2.0)


def balanced(case: Case) -> float:
    """PSUM emptied by both engines: half the difference of their work goes to the freer one."""
    full, free, moved = evacuation(case)
    if moved <= 0.0:
        return 0.0
    busy = {full: case.busy[full] - moved, free: case.busy[free] + moved}
    return case.gain(min(moved, case.path.spent.get(full, 0.0)), busy)


def kept(case: Case) -> float:
    """Bytes read once: the share of the DMA's work that reads bytes again goes."""
    moved = case.found["dma_transfer_total_bytes"]
    again = sum(one.again for one in case.reloads)
    away = min(1.0, again / moved) if moved else 0.0
    on_path = case.on_path(case.transfers(), (DMA, ISSUE, LATENCY))
    return case.gain(away * on_path, {DMA: case.busy[DMA] * (1.0 - away)})


def unspilled(case: Case) -> float:
    """Tiles that stay in SBUF: no transfers out and back."""
    moved = case.found["dma_transfer_total_bytes"]
    again = case.found["spill_save_bytes"] + case.found["spill_reload_bytes"]
    away = again / moved if moved else 0.0
    return case.gain(case.on_path(spilled(case)), {DMA: case.busy[DMA] * (1.0 - away)})


def spilled(case: Case) -> list[int]:
    """Rows of the transfers out of SBUF and back that nobody wrote."""
    return [row for _, rows in spills(case.table) for row in np.flatnonzero(rows).tolist()]
