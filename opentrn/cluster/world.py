"""A fleet at one moment, as a value: how many machines, which are out, and what can befall them.

A simulation takes a world and returns the next one; nothing else remembers anything. All machines
are alike, so none is kept by itself: what differs is how many are out, and until when.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from opentrn.base import UsageError, declare
from opentrn.cluster.faults import Fault, Setting, faults, settings
from opentrn.cost import Platform, platform

declare(
    "cluster.world",
    "A fleet has at least one machine, and a job at least one of its machines.",
    rule="machines and spares are whole numbers; the job's machines are at most the fleet's",
    fix="give more machines, or plan the job on fewer",
)


@dataclass(frozen=True)
class World:
    """`machines` equal machines of `where` at time `now` (seconds), spares included.

    `down` are the times at which machines that are out come back. `settings` is recovery and
    storage (see faults.toml). `seed` and `epoch` fix all that is random: the same world and job
    give the same run, and the world that is returned draws other numbers.
    """

    where: Platform
    machines: int
    faults: tuple[Fault, ...]
    settings: Mapping[str, Setting] = field(default_factory=settings)
    seed: int = 0
    now: float = 0.0
    down: tuple[float, ...] = ()
    epoch: int = 0

    def __post_init__(self):
        if self.machines < 1 or self.seed < 0:
            raise UsageError(f"a fleet of {self.machines} machines, seed {self.seed}",
                             code="cluster.world")  # fmt: skip

    @classmethod
    def of(
        cls,
        machine: str | Platform,
        machines: int,
        *,
        seed: int = 0,
        hours: Mapping[str, float] | None = None,
        **changed: float,
    ) -> World:
        """A healthy fleet of an instance by name, with the published rates of faults.

        `hours` replaces mean times between failures (`{"chip": 50_000}`), `changed` settings of
        recovery and storage (`write=2e11`).
        """
        where = platform(machine) if isinstance(machine, str) else machine
        return cls(where, int(machines), faults(where, **(hours or {})), settings(**changed), seed)

    @property
    def chips(self) -> int:
        """All chips."""
        return self.machines * self.where.chips

    @property
    def healthy(self) -> int:
        """Machines that are not out."""
        return self.machines - len(self.down)

    def setting(self, name: str) -> float:
        """A number of recovery or storage."""
        return self.settings[name].value

    def random(self) -> np.random.Generator:
        """The random numbers of the run that begins here."""
        sequence = np.random.SeedSequence((self.seed, self.epoch))
        return np.random.Generator(np.random.Philox(sequence))

    def later(self, now: float, down: tuple[float, ...]) -> World:
        """This world at another time, in the next epoch."""
        return replace(self, now=now, down=down, epoch=self.epoch + 1)


class Slow(NamedTuple):
    """A slow machine of the job: its factors, and when it is noticed."""

    compute: float
    communication: float
    noticed: float


class Fleet:
    """A world while a job of `needed` machines runs on it: time, and what strikes next.

    Every machine that is not out fails, those of the job and spares alike, each kind as a Poisson
    process; arrivals for machines that are out are dropped, which keeps the others' rates right.
    """

    def __init__(self, world: World, needed: int):
        """Begin at the world's time; `struck` counts the job's faults, `slow` its slow machines.

        Raises UsageError `cluster.world` for more machines than there are.
        """
        if not 1 <= needed <= world.machines:
            raise UsageError(f"a job on {needed} of {world.machines} machines",
                             code="cluster.world")  # fmt: skip
        self.world, self.needed, self.now = world, needed, world.now
        self.random = world.random()
        self.down = list(world.down)
        heapq.heapify(self.down)
        self.slow: list[Slow] = []
        self.struck: dict[str, int] = {}
        rates = np.array([fault.rate for fault in world.faults])
        self.rate = float(rates.sum()) * world.machines
        self._kinds = np.cumsum(rates) / rates.sum() if self.rate else rates
        self._next = self.now + self._gap()

    def _gap(self) -> float:
        return float(self.random.exponential(1.0 / self.rate)) if self.rate else float("inf")

    @property
    def spare(self) -> int:
        """Healthy machines beyond those needed; below zero the job cannot run."""
        return self.world.machines - len(self.down) - self.needed

    def lose(self) -> None:
        """Take a machine out for a repair of exponentially distributed length."""
        mean = self.world.setting("repair")
        heapq.heappush(self.down, self.now + float(self.random.exponential(mean)))

    def until(self, time: float) -> Fault | None:
        """Go on to `time`, or to the first fault that strikes the job, which is returned."""
        while True:
            if self.down and self.down[0] <= min(self._next, time):
                self.now = max(self.now, heapq.heappop(self.down))
                continue
            if self._next > time:
                self.now = max(self.now, time)
                return None
            self.now = self._next
            self._next += self._gap()
            struck = self._strike()
            if struck is not None:
                return struck

    def _strike(self) -> Fault | None:
        """The fault that arrives now, if it strikes the job."""
        kind = self.world.faults[int(np.searchsorted(self._kinds, self.random.random(), "right"))]
        place = self.random.random() * self.world.machines
        up = self.world.machines - len(self.down)
        if place >= up:
            return None
        ours = place < min(self.needed, up)
        if kind.effect == "lost":
            self.lose()
            if place < len(self.slow):  # the job's first machines are the slow ones
                self.slow.pop(int(place))
        if ours and kind.effect == "slow":
            self._slow_down(int(place), kind)
        if ours:
            self.struck[kind.name] = self.struck.get(kind.name, 0) + 1
        return kind if ours else None

    def _slow_down(self, place: int, kind: Fault) -> None:
        """A machine of the job becomes slow, or slower still."""
        noticed = self.now + self.world.setting("notice")
        if place >= len(self.slow):
            self.slow.append(Slow(kind.compute, kind.communication, noticed))
        else:
            was = self.slow[place]
            self.slow[place] = Slow(
                max(was.compute, kind.compute), max(was.communication, kind.communication),
                was.noticed,
            )  # fmt: skip

    def stopped(self, time: float) -> Fault | None:
        """Go on to `time`, or to the first fault that stops the job, which is returned."""
        while (struck := self.until(time)) is not None:
            if struck.effect != "slow":
                return struck
        return None

    def wait_for_machines(self, limit: float) -> bool:
        """Go on until the job's machines are healthy again, or to `limit`; whether they are."""
        while self.spare < 0:
            if not self.down or self.down[0] > limit:
                self.until(limit)
                return self.spare >= 0
            self.until(self.down[0])
        return True

    def swap(self) -> int:
        """Take out the slow machines that were noticed, as far as there are spares; how many."""
        count = 0
        for one in [slow for slow in self.slow if slow.noticed <= self.now]:
            if self.spare <= 0:
                break
            self.slow.remove(one)
            self.lose()
            count += 1
        return count

    @property
    def slowest(self) -> tuple[float, float]:
        """(compute, communication) factors of the slowest machine of the job."""
        compute = max((slow.compute for slow in self.slow), default=1.0)
        return compute, max((slow.communication for slow in self.slow), default=1.0)
