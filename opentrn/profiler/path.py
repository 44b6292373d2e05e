"""The critical path: which events, one after the other, the end of the program had to wait for.

Walking back from the event that ends last, each event answers for the time from the moment its
predecessor let it go until it ended itself (or until the next one was let go, if that was earlier).
Of that time, what passes while its engine works or its bytes move belongs to that resource, what
passes while an engine issues the transfer to "dma issue", and the rest to "latency": semaphores,
pipelines that drain, transfers that start.  An event that waited for another core answers for the
time since the last event of this core ended, which is called "other core".  Every ns of the total
belongs to exactly one of these.
"""

from typing import NamedTuple

import numpy as np

from opentrn.profiler.table import DMA, Table

ISSUE, LATENCY, UNKNOWN, CORE = "dma issue", "latency", "unknown", "other core"


class Piece(NamedTuple):
    """One event's share of the path: its row, and the ns it answers for by resource."""

    row: int
    begin: float
    end: float
    parts: tuple[tuple[str, float], ...]


class Path(NamedTuple):
    """The critical path of a trace, first event first. Times in ns.

    `spent` maps each resource (and "dma issue", "latency", "unknown") to its time; the values add
    up to the total.  `issued` divides "dma issue" among the engines that issue.
    """

    pieces: tuple[Piece, ...]
    spent: dict[str, float]
    issued: dict[str, float]


def critical_path(table: Table) -> Path:
    """Walk back from the event that ends last; see the module for what each one answers for.

    The time before an event that waited for nothing is "latency"; before one that waited for
    something the trace does not hold it is "unknown".
    """
    spent: dict[str, float] = {}
    issued: dict[str, float] = {}
    pieces: list[Piece] = []
    cursor, row, seen, rest = table.total, _last(table), set(), UNKNOWN
    while row >= 0 and cursor > 0.0 and row not in seen:
        seen.add(row)
        released, before = _released(table, row)
        released = min(released, cursor)
        parts, issuer = _parts(table, row, released, cursor)
        for resource, ns in parts:
            spent[resource] = spent.get(resource, 0.0) + ns
            if resource == ISSUE:
                issued[issuer] = issued.get(issuer, 0.0) + ns
        pieces.append(Piece(row, released, cursor, parts))
        rest = UNKNOWN if table.waited_for[row] else LATENCY
        cursor, row = released, before
    if cursor > 0.0:
        spent[rest] = spent.get(rest, 0.0) + cursor
    return Path(tuple(reversed(pieces)), spent, issued)


def _last(table: Table) -> int:
    """The row of the event that ends last."""
    return int(np.argmax(table.end)) if len(table) else -1


def _issue_row(table: Table, row: int) -> int:
    if table.issue[row]:
        return row
    return table.issue_rows.get((table.args[row] or {}).get("index", -1), -1)


def _released(table: Table, row: int) -> tuple[float, int]:
    """When the predecessor let this event go, and the predecessor's row (-1: there is none)."""
    reason, before = table.reason(row)
    if reason == "core":
        begun = float(table.start[row])
        earlier = np.where(table.end <= begun, table.end, -1.0)
        earlier[row] = -1.0
        before = int(np.argmax(earlier)) if len(earlier) else -1
        return (float(table.end[before]), before) if earlier[before] > 0.0 else (0.0, -1)
    if before < 0:
        first = _issue_row(table, row)
        began = min(table.start[row], table.start[first] if first >= 0 else np.inf)
        return float(began), -1
    if reason == "engine":
        issue = _issue_row(table, before)
        if issue >= 0:  # the engine was free again once it had issued the transfer
            return float(table.end[issue]), before
    return float(table.end[before]), before


def _parts(table: Table, row: int, begin: float, end: float):
    """How [begin, end) of one event is divided, and the engine that issued it."""
    issue = _issue_row(table, row)
    work = _overlap(begin, end, float(table.start[row]), float(table.end[row]))
    lane = table.lanes[table.lane[row]]
    parts, issuer, started = [(lane, work)], "", 0.0
    if issue >= 0:
        issuer = table.lanes[table.lane[issue]]
        started = _overlap(begin, end, float(table.start[issue]), float(table.end[issue]))
        parts.append((ISSUE, started))
    rest = end - begin - work - started
    apart = 0.0
    if table.reason(row)[0] == "core":
        apart = min(rest, max(0.0, float(table.start[row]) - begin))
    parts += [(CORE, apart), (LATENCY, rest - apart)]
    return tuple((name, ns) for name, ns in parts if ns > 0.0), issuer


def _overlap(begin: float, end: float, first: float, last: float) -> float:
    return max(0.0, min(end, last) - max(begin, first))


__all__ = ["CORE", "DMA", "ISSUE", "LATENCY", "UNKNOWN", "Path", "Piece", "critical_path"]
