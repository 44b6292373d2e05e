"""A trace as columns that can be counted and added up: the form every question is asked of.

The profiler reads three kinds of events: work on the track of an engine, transfers on tracks whose
names begin with `dma`, and events labelled "issue", the time an engine spends to start a transfer.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from opentrn.base import Trace

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")
"""The tracks of the engines, in the order of every table."""

DMA = "dma"
_PREDECESSOR = re.compile(r"#(\d+)$")


def union(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The intervals [start, end) merged: sorted, disjoint, none empty."""
    kept = end > start
    start, end = start[kept], end[kept]
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    fresh = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    last = np.concatenate((fresh[1:] - 1, [len(start) - 1]))
    return start[fresh], reach[last]


def covered(start: np.ndarray, end: np.ndarray) -> float:
    """How long at least one of the intervals lasts, overlaps counted once."""
    first, last = union(start, end)
    return float((last - first).sum())


def coded(words: list) -> tuple[np.ndarray, list]:
    """Numbers for words: `(codes, distinct words)` with `distinct[codes[i]] == words[i]`."""
    known: dict[Any, int] = {}
    codes = np.fromiter((known.setdefault(w, len(known)) for w in words), np.int64, len(words))
    return codes, list(known)


@dataclass
class Table:
    """The columns of one trace. Times in ns; `total` is the device time of the whole program.

    `lane` names each event's resource: an engine, "dma" (all queues are one), or another track.
    """

    trace: Trace
    total: float
    start: np.ndarray
    end: np.ndarray
    flops: np.ndarray
    read: np.ndarray
    written: np.ndarray
    track: list[str]
    name: list[str]
    source: list[str]
    target: list[str]
    label: list[str]
    where: list
    waited_for: list[str]
    grade: list[str]
    args: list
    lane: np.ndarray = field(init=False)
    lanes: list[str] = field(init=False)
    issue: np.ndarray = field(init=False)

    def __post_init__(self):
        codes, tracks = coded(self.track)
        names = [DMA if track.startswith(DMA) else track for track in tracks]
        lane_of, self.lanes = coded(names)
        self.lane = lane_of[codes] if len(codes) else codes
        self.issue = np.array([label == "issue" for label in self.label], bool)

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def duration(self) -> np.ndarray:
        """End minus start of each event."""
        return self.end - self.start

    @cached_property
    def done(self) -> np.ndarray:
        """When each event's result is written (ns): an engine that works on the next instruction
        may still be writing.  Transfers and issues are done when they end.
        """
        given = [(args or {}).get("done", -1.0) for args in self.args]
        return np.maximum(self.end, np.where(self.issue, -1.0, np.array(given, np.float64)))

    def on(self, lane: str) -> np.ndarray:
        """Which events are on this resource (issue events count on the engine that issues)."""
        if lane not in self.lanes:
            return np.zeros(len(self), bool)
        return self.lane == self.lanes.index(lane)

    @cached_property
    def rows(self) -> dict[int, int]:
        """Index of an instruction -> row of its work (or its transfer)."""
        pairs = zip(self.args, self.issue.tolist(), strict=True)
        found = [(args or {}).get("index", -1) if not issue else -1 for args, issue in pairs]
        return {index: row for row, index in enumerate(found) if index >= 0}

    @cached_property
    def issue_rows(self) -> dict[int, int]:
        """Index of a transfer -> row of the event in which an engine issues it."""
        rows = np.flatnonzero(self.issue).tolist()
        return {(self.args[row] or {}).get("index", -1): row for row in rows}

    def reason(self, row: int) -> tuple[str, int]:
        """`(reason, row of what was waited for)`; ("", -1) when nothing held the event back.

        `waited_for` is "<reason>: <what> #<index>".  An issue event waited for what its transfer
        waited for.
        """
        if self.issue[row]:
            row = self.rows.get((self.args[row] or {}).get("index", -1), row)
        text = self.waited_for[row]
        if not text:
            return "", -1
        found = _PREDECESSOR.search(text)
        return text.partition(":")[0], self.rows.get(int(found[1]), -1) if found else -1


def table(trace: Trace) -> Table:
    """Read a trace into columns; the total is `meta["total_ns"]`, or the end of the last event."""
    column = trace.column
    return Table(
        trace=trace,
        total=max(float(trace.meta.get("total_ns", 0.0)), trace.end),
        start=column("start"),
        end=column("end"),
        flops=column("flops"),
        read=column("bytes_read"),
        written=column("bytes_written"),
        track=column("track"),
        name=column("name"),
        source=column("source"),
        target=column("target"),
        label=column("label"),
        where=column("where"),
        waited_for=column("waited_for"),
        grade=column("grade"),
        args=column("args"),
    )
