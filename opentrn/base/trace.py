"""The trace: what happened when, written by everything that simulates, read by the profiler.

One row per event, kept as columns: a million events are a few arrays, not a million objects. Times
are floats in nanoseconds from the start of the program.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from opentrn.base.errors import Bug, Where

GRADES = ("stated", "fitted", "derived", "assumed")
"""How sure a number is, best first: stated by a source, fitted, derived, assumed."""

_GRADES = frozenset(GRADES)
_NUMBERS = ("start", "end", "flops", "bytes_read", "bytes_written", "wait_ns")
_WORDS = ("track", "name", "source", "target", "where", "waited_for", "grade", "label")
COLUMNS = _NUMBERS + _WORDS + ("args",)
"""The names of the columns of a Trace, which are also the fields of an Event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One row of a trace: something that kept `track` busy from `start` to `end` (ns).

    `source` and `target` name the memories it moved bytes between, `where` is the user's line,
    `waited_for` says what held it back for `wait_ns` before it started, and `grade` how sure the
    duration is.
    """

    track: str
    name: str
    start: float
    end: float
    flops: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    source: str = ""
    target: str = ""
    where: Where | None = None
    waited_for: str = ""
    wait_ns: float = 0.0
    grade: str = "derived"
    label: str = ""
    args: dict[str, Any] | None = None

    @property
    def duration(self) -> float:
        """Nanoseconds from start to end."""
        return self.end - self.start


class Trace:
    """Events in columns, counters over time, and a `meta` dict about the run as a whole."""

    def __init__(self, meta: dict[str, Any] | None = None):
        """Start with no event; `meta` holds target, program, dtype and the like."""
        self.meta: dict[str, Any] = dict(meta or {})
        self.counters: dict[str, list[tuple[float, float]]] = {}
        self._numbers = {name: array("d") for name in _NUMBERS}
        self._words: dict[str, list[Any]] = {name: [] for name in _WORDS}
        self._args: dict[int, dict[str, Any]] = {}
        # Bound methods in column order: looking them up again would double the cost of `add`.
        self._append = tuple(self._numbers[n].append for n in _NUMBERS) + tuple(
            self._words[n].append for n in _WORDS
        )

    def add(
        self, track, name, start, end, *, flops=0, bytes_read=0, bytes_written=0, source="",
        target="", where=None, waited_for="", wait_ns=0.0, grade="derived", label="", args=None,
    ):  # fmt: skip
        """Append one event; times in ns. An end before its start or an unknown grade is a Bug."""
        if not end >= start:
            raise Bug(f"event {name!r} on {track!r} ends at {end} ns before it starts, {start} ns")
        if grade not in _GRADES:
            raise Bug(f"event {name!r} has grade {grade!r}; grades are {', '.join(GRADES)}")
        row = (track, name, source, target, where, waited_for, grade, label)
        put_start, put_end, put_flops, put_read, put_written, put_wait, *put_words = self._append
        try:
            put_start(start)
            put_end(end)
            put_flops(flops)
            put_read(bytes_read)
            put_written(bytes_written)
            put_wait(wait_ns)
        except TypeError:
            for column in self._numbers.values():
                del column[len(self) :]
            raise
        if args:
            self._args[len(self)] = args
        for put, word in zip(put_words, row):  # noqa: B905 (strict would double the loop's cost)
            put(word)

    def count(self, counter: str, time_ns: float, value: float) -> None:
        """Note the value that `counter` (e.g. `"sbuf_bytes"`) has from `time_ns` on."""
        self.counters.setdefault(counter, []).append((time_ns, value))

    def column(self, name: str) -> np.ndarray | list:
        """One column: a float64 array for numbers, else a list. Both are copies."""
        if name in self._numbers:
            return np.array(self._numbers[name])
        if name in self._words:
            return list(self._words[name])
        if name == "args":
            return [self._args.get(index) for index in range(len(self))]
        raise Bug(f"a trace has no column {name!r}; columns are {', '.join(COLUMNS)}")

    def __len__(self) -> int:
        """How many events."""
        return len(self._words["track"])

    def row(self, index: int) -> Event:
        """The event at `index`, in the order of `add`."""
        values = {name: column[index] for name, column in self._numbers.items()}
        values.update((name, column[index]) for name, column in self._words.items())
        position = index if index >= 0 else len(self) + index
        return Event(**values, args=self._args.get(position))

    def rows(self) -> Iterator[Event]:
        """All events in the order of `add`."""
        return (self.row(index) for index in range(len(self)))

    __iter__ = rows

    @property
    def end(self) -> float:
        """When the last event ends, in ns; 0.0 for an empty trace."""
        return max(self._numbers["end"], default=0.0)

    @property
    def tracks(self) -> list[str]:
        """The tracks in order of their first event."""
        return list(dict.fromkeys(self._words["track"]))
