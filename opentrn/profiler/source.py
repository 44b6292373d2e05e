"""Where the time goes in the user's source: one row for each line."""

import os
from typing import NamedTuple

from opentrn.base import Trace, Where
from opentrn.profiler.path import Path, critical_path
from opentrn.profiler.table import Table, table

NS = 1e-9


class Line(NamedTuple):
    """One line of source. Times in seconds.

    `path` is its time on the critical path, `busy` the sum of the durations of its events on all
    resources (issue included), `count` its instructions, `resource` where it works longest.
    """

    where: Where | None
    path: float
    busy: float
    count: int
    resource: str
    flops: float
    nbytes: float

    @property
    def place(self) -> str:
        """`file.py:12`, or "(no source)"."""
        if self.where is None:
            return "(no source)"
        return f"{os.path.basename(self.where.file)}:{self.where.line}"


def top_lines(trace: Trace, most: int = 10) -> list[Line]:
    """The lines that cost most: by time on the critical path, then by busy time."""
    read = table(trace)
    return lines_of(read, critical_path(read))[:most]


def lines_of(table: Table, path: Path) -> list[Line]:
    """Every line of the trace, costliest first."""
    totals: dict[tuple, list] = {}
    columns = (table.where, table.duration.tolist(), table.lane.tolist(), table.issue.tolist())
    moved = zip(table.flops.tolist(), table.read.tolist(), table.written.tolist(), strict=True)
    for where, ns, lane, issue, (flops, read, written) in zip(*columns, moved, strict=True):
        row = totals.get(_key(where))
        if row is None:
            row = totals[_key(where)] = [where, 0.0, 0.0, 0, {}, 0.0, 0.0]
        row[2] += ns
        row[4][lane] = row[4].get(lane, 0.0) + ns
        row[5] += flops
        if not issue:
            row[3] += 1
            row[6] += max(read, written)
    for piece in path.pieces:
        totals[_key(table.where[piece.row])][1] += piece.end - piece.begin
    found = [_line(table, row) for row in totals.values()]
    return sorted(found, key=lambda line: (-line.path, -line.busy, line.place))


def _key(where: Where | None) -> tuple:
    return () if where is None else (where.file, where.line)


def _line(table: Table, row: list) -> Line:
    where, path, busy, count, by_lane, flops, nbytes = row
    lane = max(by_lane, key=by_lane.get)
    return Line(where, path * NS, busy * NS, count, table.lanes[lane], flops, nbytes)
