"""Time: cycles and nanoseconds of a clock, and the one order in which events happen.

Simulated time is a float in nanoseconds. Two events at the same time are ordered by priority
(lower first), then by the sequence in which they were announced; nothing else decides.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, NamedTuple

from opentrn.base.errors import Bug, FactError, declare

declare(
    "base.clock",
    "A clock runs at a positive number of cycles per second.",
    rule="a clock rate is a finite number of hertz above zero",
    fix="give the rate in hertz, for example 1.4e9",
)


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock of `hz` cycles per second. Raises FactError `base.clock` unless 0 < hz < inf."""

    hz: float

    def __post_init__(self):
        """Refuse a rate that gives no time."""
        if not 0 < self.hz < float("inf"):
            raise FactError(f"{self.hz!r} Hz is not a clock rate", code="base.clock")

    @property
    def period_ns(self) -> float:
        """Nanoseconds of one cycle."""
        return 1e9 / self.hz

    def ns(self, cycles: float) -> float:
        """Nanoseconds that `cycles` take."""
        return cycles * 1e9 / self.hz

    def cycles(self, ns: float) -> float:
        """Cycles that pass in `ns` nanoseconds, not rounded."""
        return ns * self.hz / 1e9


class EventKey(NamedTuple):
    """The order of events: time in ns, then priority (lower first), then sequence."""

    time: float
    priority: int
    sequence: int


class Agenda:
    """What is still to happen, handed out in the order of EventKey."""

    def __init__(self):
        """Start empty at sequence 0."""
        self._heap: list[tuple[float, int, int, Any]] = []
        self._sequence = 0

    def add(self, time: float, item: Any, priority: int = 0) -> EventKey:
        """Announce `item` for `time` (ns). A time that is not a number is a Bug."""
        if time != time:
            raise Bug(f"event {item!r} has no time")
        key = EventKey(time, priority, self._sequence)
        self._sequence += 1
        heapq.heappush(self._heap, (*key, item))
        return key

    def pop(self) -> tuple[EventKey, Any]:
        """Take the next event. Raises IndexError when nothing is left, like a list."""
        time, priority, sequence, item = heapq.heappop(self._heap)
        return EventKey(time, priority, sequence), item

    def __len__(self) -> int:
        """How many events are announced and not yet taken."""
        return len(self._heap)
