"""Where the time goes in the user's source: one row for each line."""

import linecache
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

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


def source_files(lines: Iterable[Line], around: int = 4) -> list[dict[str, Any]]:
    """The source files of these lines, costliest first, with what is near a line that costs time.

    Each is `{"file", "lines": [[number, text, path, busy, count, resource, flops, bytes]]}` in
    order of the lines; numbers that are missing were left out.  Times in seconds; a line without
    instructions ends after its text.
    """
    by_file: dict[str, dict[int, Line]] = {}
    for line in lines:
        if line.where is not None:
            by_file.setdefault(line.where.file, {})[line.where.line] = line
    found = []
    for file, known in by_file.items():
        text = linecache.getlines(file)
        near = {n for number in known for n in range(number - around, number + around + 1)}
        rows = [_row(n, text, known.get(n)) for n in sorted(near)
                if n in known or 1 <= n <= len(text)]  # fmt: skip
        found.append({"file": file, "lines": rows, "path": sum(x.path for x in known.values())})
    return sorted(found, key=lambda one: (-one["path"], one["file"]))


def _row(number: int, text: list[str], line: Line | None) -> list:
    words = text[number - 1].rstrip() if number <= len(text) else ""
    if line is None:
        return [number, words]
    return [number, words, line.path, line.busy, line.count, line.resource, line.flops, line.nbytes]


def _key(where: Where | None) -> tuple:
    return () if where is None else (where.file, where.line)


def _line(table: Table, row: list) -> Line:
    where, path, busy, count, by_lane, flops, nbytes = row
    lane = max(by_lane, key=by_lane.get)
    return Line(where, path * NS, busy * NS, count, table.lanes[lane], flops, nbytes)
