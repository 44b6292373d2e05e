"""Traces and summaries as files: Chrome/Perfetto JSON (ui.perfetto.dev) and summary JSON.

Times in the trace file are microseconds, as the format asks; `displayTimeUnit` is ns and nothing
below a picosecond is lost.  Transfers of one queue may overlap, which the format forbids on one
track, so a queue gets as many tracks as it needs.
"""

import heapq
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opentrn.base import Trace, write_whole
from opentrn.profiler.summary import Summary
from opentrn.profiler.table import ENGINES, Table, table

_BATCH = 8192
_UNITS = {"sbuf_bytes": "bytes", "psum_banks": "banks"}
_SEMAPHORES = ("semaphore", "dma")  # waits for another engine's result, or a transfer's
_encode = json.encoder.encode_basestring_ascii


def save_summary(summary: Summary, path: str | os.PathLike) -> Path:
    """Write `summary.json()`, whole or not at all; raises what `base.write_whole` raises."""
    text = json.dumps(summary.json(), indent=1, allow_nan=False)
    return write_whole(path, [text, "\n"])


def save_perfetto(trace: Trace, path: str | os.PathLike) -> Path:
    """Write a trace that Perfetto and chrome://tracing open, whole or not at all.

    One track for each engine and DMA queue, one for the waits of each engine on semaphores, with
    arrows from what they waited for, counters, and as arguments of each event its source line,
    bytes, flops, grade and what it waited for.

    Raises what `base.write_whole` raises.
    """
    return write_whole(path, perfetto_pieces(trace))


def perfetto_pieces(trace: Trace) -> Iterator[str]:
    """The text of the file `save_perfetto` writes, in pieces."""
    read = table(trace)
    about = json.dumps({k: _plain(v) for k, v in trace.meta.items()}, allow_nan=False)
    yield f'{{"displayTimeUnit":"ns","otherData":{about},"traceEvents":[\n'
    name = _encode(str(trace.meta.get("target", "core")))
    yield f'{{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{{"name":{name}}}}}'
    numbers, tracks = tracks_of(read)
    waits = list(_idle(read, 1 + len(tracks)))
    for tid, track in enumerate([*tracks, *dict.fromkeys(wait.track for wait in waits)], 1):
        yield (
            f',\n{{"ph":"M","pid":1,"tid":{tid},"name":"thread_name",'
            f'"args":{{"name":{_encode(track)}}}}},\n{{"ph":"M","pid":1,"tid":{tid},'
            f'"name":"thread_sort_index","args":{{"sort_index":{tid}}}}}'
        )
    yield from _events(read, numbers)
    yield from _waits(read, numbers)
    yield from map(_wait, waits)
    for counter, points in trace.counters.items():
        yield from _counter(counter, points)
    yield "\n]}\n"


def _plain(value: Any) -> Any:
    """A meta value as JSON can hold it."""
    return value if isinstance(value, str | int | bool) or value is None else str(value)


def tracks_of(read: Table) -> tuple[list[int], list[str]]:
    """The track number of each event, from 1, and the names of the tracks, engines first.

    A DMA queue whose transfers overlap has as many tracks as it needs.
    """
    known = list(dict.fromkeys(read.track))
    order = [e for e in ENGINES if e in known] + sorted(t for t in known if t not in ENGINES)
    lanes = np.zeros(len(read), np.int64)
    words = np.array(read.track, dtype=object)
    names: list[str] = []
    for track in order:
        rows = np.flatnonzero(words == track)
        own, count = _lanes(read.start[rows], read.end[rows])
        lanes[rows] = np.array(own, np.int64) + len(names) + 1
        names += [track] + [f"{track} ({n})" for n in range(2, count + 1)]
    return lanes.tolist(), names


def _lanes(start: np.ndarray, end: np.ndarray) -> tuple[list[int], int]:
    """The lane of each interval, so that none overlap in a lane, and how many lanes there are."""
    order = np.argsort(start, kind="stable")
    if not (start[order][1:] < end[order][:-1]).any():
        return [0] * len(start), 1
    free: list[int] = []
    running: list[tuple[float, int]] = []
    found, count = [0] * len(start), 0
    for row in order.tolist():
        while running and running[0][0] <= start[row]:
            heapq.heappush(free, heapq.heappop(running)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, count = count, count + 1
        found[row] = lane
        heapq.heappush(running, (float(end[row]), lane))
    return found, count


def _events(read: Table, numbers: list[int]) -> Iterator[str]:
    """The events, a batch at a time."""
    start = np.rint(read.start * 1e3)  # in ps, so that an end never passes the next start
    length = np.rint(read.end * 1e3) - start
    columns = zip(
        numbers, (start / 1e6).tolist(), (length / 1e6).tolist(), read.name,
        read.label, read.where, read.flops.tolist(), read.read.tolist(), read.written.tolist(),
        read.waited_for, read.grade, strict=True,
    )  # fmt: skip
    names, places, batch = {}, {}, []
    for tid, ts, lasts, name, label, where, flops, got, put, waited, grade in columns:
        key = name, label
        title = names.get(key)
        if title is None:
            title = names[key] = _encode(f"{name} {label}" if label else name)
        place = places.get(id(where))  # the trace keeps every Where alive
        if place is None:
            place = places[id(where)] = _encode(str(where)) if where is not None else '""'
        wait = f',"waited_for":{_encode(waited)}' if waited else ""
        batch.append(
            f',\n{{"ph":"X","pid":1,"tid":{tid},"ts":{ts!r},"dur":{lasts!r},"name":{title},"args":'
            f'{{"line":{place},"flops":{flops:.0f},"bytes_read":{got:.0f},'
            f'"bytes_written":{put:.0f},"grade":"{grade}"{wait}}}}}'
        )
        if len(batch) >= _BATCH:
            yield "".join(batch)
            batch.clear()
    yield "".join(batch)


def _waits(read: Table, numbers: list[int]) -> Iterator[str]:
    """An arrow from what was waited for to what waited, for each semaphore that was waited on."""
    last = np.maximum(np.rint(read.end * 1e3) - 1, np.rint(read.start * 1e3))  # inside its slice
    first, batch = np.rint(read.start * 1e3), []
    for row in np.flatnonzero(~read.issue).tolist():
        reason, before = read.reason(row)
        if reason not in _SEMAPHORES or before < 0:
            continue
        same = f'"id":{row},"cat":"semaphore","name":{_encode(f"{reason} wait")}'
        batch.append(
            f',\n{{"ph":"s","pid":1,"tid":{numbers[before]},{same},'
            f'"ts":{float(last[before] / 1e6)!r}}},\n{{"ph":"f","bp":"e","pid":1,'
            f'"tid":{numbers[row]},{same},"ts":{float(first[row] / 1e6)!r}}}'
        )
        if len(batch) >= _BATCH:
            yield "".join(batch)
            batch.clear()
    yield "".join(batch)


class _Wait(NamedTuple):
    """Time (ns) in which an engine had nothing to do but wait for a semaphore."""

    tid: int
    track: str
    start: float
    end: float
    what: str
    line: str


def _idle(read: Table, first: int) -> Iterator[_Wait]:
    """The waits of each engine that has any, on tracks from number `first` on."""
    for engine in ENGINES:
        before, waited = 0.0, False
        for row in np.flatnonzero(read.on(engine)).tolist():
            start = float(read.start[row])
            if start > before and read.reason(row)[0] in _SEMAPHORES:
                line = str(read.where[row]) if read.where[row] is not None else ""
                track = f"{engine} semaphores"
                yield _Wait(first, track, before, start, f"wait for {read.waited_for[row]}", line)
                waited = True
            before = max(before, float(read.end[row]))
        first += waited


def _wait(wait: _Wait) -> str:
    start = round(wait.start * 1e3)
    lasts = round(wait.end * 1e3) - start
    return (
        f',\n{{"ph":"X","pid":1,"tid":{wait.tid},"ts":{start / 1e6!r},"dur":{lasts / 1e6!r},'
        f'"cat":"semaphore","name":{_encode(wait.what)},"args":{{"line":{_encode(wait.line)}}}}}'
    )


def _counter(counter: str, points: list[tuple[float, float]]) -> Iterator[str]:
    name, unit = _encode(counter), _encode(_UNITS.get(counter, "value"))
    for time, value in points:
        yield (
            f',\n{{"ph":"C","pid":1,"name":{name},"ts":{time / 1e3!r},"args":{{{unit}:{value!r}}}}}'
        )
