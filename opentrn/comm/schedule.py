"""What every collective is: a schedule of sends between ranks, some of them adding on arrival.

A schedule says nothing of bytes or time.  Each rank holds an array of chunks; a `Send` moves one
chunk of one rank to one place of another, where it replaces or is reduced with what lies there.
The runtime moves data by it, the simulators time it, the cost model prices it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from opentrn.base import Bug


@dataclass(frozen=True, slots=True)
class Send:
    """Chunk `chunk` of rank `source` goes to place `place` of rank `target` in step `step`.

    `reduce`: combined with what `target` holds there, instead of replacing it.
    """

    step: int
    source: int
    target: int
    chunk: int
    place: int
    reduce: bool = False


@dataclass(frozen=True)
class Schedule:
    """Sends of a collective among ranks 0 … `ranks` - 1, each holding `chunks` chunks.

    All sends of one step happen at once and read what lay there before the step.  `name` is the
    collective and its algorithm, `keeps` tells for each rank the chunks that are its result.
    """

    name: str
    ranks: int
    chunks: int
    sends: tuple[Send, ...]
    keeps: tuple[tuple[int, ...], ...]

    @property
    def steps(self) -> int:
        """How many steps there are: what latency is paid for."""
        return 1 + max((send.step for send in self.sends), default=-1)

    def sent(self, rank: int) -> int:
        """Chunks that one rank sends."""
        return sum(1 for send in self.sends if send.source == rank)

    def most_sent(self) -> int:
        """Chunks sent by the rank that sends most: what bandwidth is paid for."""
        return max((self.sent(rank) for rank in range(self.ranks)), default=0)


def by_step(schedule: Schedule) -> list[list[Send]]:
    """The sends of each step, in the order of the schedule."""
    found: list[list[Send]] = [[] for _ in range(schedule.steps)]
    for send in schedule.sends:
        found[send.step].append(send)
    return found


Reduce = Callable[[np.ndarray, np.ndarray], np.ndarray]


def run(
    schedule: Schedule, held: Sequence[Sequence[np.ndarray]], reduce: Reduce | None = None
) -> list[list[np.ndarray]]:
    """Carry out a schedule on data: `held[rank][chunk]` are arrays; returns the kept chunks.

    `reduce(mine, arriving)` combines two chunks in the order of the schedule, so that sums round
    as the algorithm rounds them.  The arrays given are not changed.
    """
    if len(held) != schedule.ranks or any(len(own) != schedule.chunks for own in held):
        raise Bug(f"{schedule.name}: {schedule.ranks} ranks of {schedule.chunks} chunks expected")
    now = [list(own) for own in held]
    for sends in by_step(schedule):
        before = [list(own) for own in now]
        for send in sends:
            arriving = before[send.source][send.chunk]
            if send.reduce:
                if reduce is None:
                    raise Bug(f"{schedule.name} reduces, but no operator was given")
                arriving = reduce(now[send.target][send.place], arriving)
            now[send.target][send.place] = arriving
    return [[now[rank][c] for c in kept] for rank, kept in enumerate(schedule.keeps)]
