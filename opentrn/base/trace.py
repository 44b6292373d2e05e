"""The trace: what happened when, written by everything that simulates, read by the profiler.

One row per event. The numbers of all rows lie in one array of floats, so that a column is a slice
of it and a million events take 48 MB for their numbers. Times are floats in nanoseconds from the
start of the program.
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
_WORDS = ("track", "name", "source", "target", "where", "waited_for", "grade", "label", "args")
COLUMNS = _NUMBERS + _WORDS
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
        self._numbers = array("d")  # row after row of _NUMBERS
        self._words: list[tuple] = []  # row after row of _WORDS
        self._end = 0.0

    def add(
        self, track, name, start, end, *, flops=0, bytes_read=0, bytes_written=0, source="",
        target="", where=None, waited_for="", wait_ns=0.0, grade="derived", label="", args=None,
    ):  # fmt: skip
        """Append one event; times in ns. An end before its start or an unknown grade is a Bug."""
        if not end >= start:
            raise Bug(f"event {name!r} on {track!r} ends at {end} ns before it starts, {start} ns")
        if grade not in _GRADES:
            raise Bug(f"event {name!r} has grade {grade!r}; grades are {', '.join(GRADES)}")
        # fromlist adds all six or, when one is no number, none.
        self._numbers.fromlist([start, end, flops, bytes_read, bytes_written, wait_ns])
        self._words.append((track, name, source, target, where, waited_for, grade, label, args))
        if end > self._end:
            self._end = end

    def count(self, counter: str, time_ns: float, value: float) -> None:
        """Note the value that `counter` (e.g. `"sbuf_bytes"`) has from `time_ns` on."""
        self.counters.setdefault(counter, []).append((time_ns, value))

    def column(self, name: str) -> np.ndarray | list:
        """One column: a float64 array for numbers, else a list. Both are copies."""
        if name in _NUMBERS:
            width = len(_NUMBERS)
            return np.array(self._numbers).reshape(-1, width)[:, _NUMBERS.index(name)].copy()
        if name in _WORDS:
            index = _WORDS.index(name)
            return [row[index] for row in self._words]
        raise Bug(f"a trace has no column {name!r}; columns are {', '.join(COLUMNS)}")

    def __len__(self) -> int:
        """How many events."""
        return len(self._words)

    def row(self, index: int) -> Event:
        """The event at `index`, in the order of `add`; negative counts from the end."""
        position = range(len(self))[index]
        width = len(_NUMBERS)
        numbers = self._numbers[position * width : (position + 1) * width]
        values = dict(zip(_NUMBERS, numbers, strict=True))
        return Event(**values, **dict(zip(_WORDS, self._words[position], strict=True)))

    def rows(self) -> Iterator[Event]:
        """All events in the order of `add`."""
        return (self.row(index) for index in range(len(self)))

    __iter__ = rows

    @property
    def end(self) -> float:
        """When the last event ends, in ns; 0.0 for an empty trace."""
        return self._end

    @property
    def tracks(self) -> list[str]:
        """The tracks in order of their first event."""
        return list(dict.fromkeys(row[0] for row in self._words))
