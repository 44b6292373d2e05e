"""Simulate a training job on a fleet: events only, nothing for each machine or step that is alike.

The job works until a checkpoint is due, or a fault strikes. A fault that stops it costs the work
since the last checkpoint that is wholly written, the time to notice, a spare machine (or the wait
for a repair), and the restart with its load; faults that strike meanwhile begin the recovery anew.
A slow machine slows every step, because steps are synchronous, until it is swapped at a checkpoint.
With jitter each machine is late by an exponential time, and a step takes as long as its last one:
the largest of n is drawn at once, -ln(1 - U^(1/n)).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from opentrn.base import LimitError, UsageError, declare
from opentrn.cluster.faults import Fault
from opentrn.cluster.job import Job
from opentrn.cluster.run import PARTS, Run
from opentrn.cluster.world import Fleet, World

declare(
    "cluster.length",
    "A simulated run has a number of events that ends within minutes.",
    rule=f"at most {2_000_000:,} checkpoints and faults",
    fix="simulate a shorter time, or fewer machines",
)

PHASES = {
    "lost": ("detect", "wait", "replace", "restart"),
    "job": ("detect", "wait", "restart"),
    "swap": ("replace", "restart"),
    "begin": ("wait", "replace", "restart"),
}
"""What a recovery goes through, by what it recovers from."""

_ROUNDING = 1e-6  # of a step: what adding up many floats may be off


@dataclass
class _Stretch:
    """Work since a checkpoint: steps, and seconds by part."""

    steps: float = 0.0
    useful: float = 0.0
    jitter: float = 0.0
    slow: float = 0.0
    checkpoint: float = 0.0

    @property
    def seconds(self) -> float:
        return self.useful + self.jitter + self.slow + self.checkpoint


class _Training:
    """One run while it is simulated."""

    def __init__(self, world: World, job: Job, until: float):
        self.world, self.job, self.end = world, job, until
        self.fleet = Fleet(world, job.machines)
        self.parts = dict.fromkeys(PARTS, 0.0)
        self.checkpoints = self.restarts = self.swaps = 0
        self.spans: list[tuple[float, float, str]] = []
        self.steps = 0.0  # of checkpoints that are written
        self.written: _Stretch | None = None  # a checkpoint being written in the background
        self.ready = inf  # when it is
        self.stall, self.write = job.stall_s(world), job.write_s(world)
        self.each = max(1, round(job.interval_s(world) / job.step_s))

    def run(self) -> None:
        """Until all steps are in a checkpoint, or time is over."""
        if self.fleet.spare < 0:
            self._recover("begin")
        while self.fleet.now < self.end and self.job.steps - self.steps > _ROUNDING:
            self._attempt()

    # ------------------------------------------------------------------------------------ work

    def _attempt(self) -> None:
        """Work to the next checkpoint and take it; what stops the job is answered."""
        stretch = _Stretch()
        doing = self.written.steps if self.written else 0.0
        left = self.job.steps - self.steps - doing
        stopped = None
        if left > _ROUNDING:
            stopped = self._work(stretch, min(self.each, left))
        if stopped is None and self.fleet.now < self.end:
            begin = self.fleet.now
            stopped = self._checkpoint(stretch, last=left <= self.each)
            self._span(begin, self.fleet.now, "checkpoint")
        if stopped is not None:
            self._lost(stretch, stopped)
        elif self.fleet.now >= self.end:
            self._keep(stretch)
        else:
            self._swap()

    def _work(self, stretch: _Stretch, count: float) -> Fault | None:
        """Do steps; the fault that stops the job, or None when all are done or time is over."""
        own, nominal = self._durations(count)
        done = np.cumsum(nominal)
        whole_s, at = float(done[-1]), 0.0  # nominal seconds done
        while True:
            pace, begin = self.job.pace(self.fleet.slowest), self.fleet.now
            due = begin + (whole_s - at) * pace
            struck = self.fleet.until(min(due, self.end))
            now = self.fleet.now
            at = whole_s if now >= due else at + (now - begin) / pace
            self._span(begin, now, "work" if pace == 1.0 else "slow")
            stretch.slow += float((now - begin) * (1.0 - 1.0 / pace))
            if struck is None or struck.effect != "slow":
                break
        whole = min(int(np.searchsorted(done, at, "right")), len(own) - 1)
        part = (at - float(done[whole] - nominal[whole])) / float(nominal[whole])
        stretch.useful = float(own[:whole].sum() + part * own[whole])
        stretch.steps = stretch.useful / self.job.step_s
        stretch.jitter = max(at - stretch.useful, 0.0) if own is not nominal else 0.0
        return struck

    def _durations(self, count: float) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of each step, without jitter and with; the last may be a part of one."""
        whole = int(np.ceil(count))
        own = np.full(whole, float(self.job.step_s))
        own[-1] *= count - (whole - 1)
        jitter = self.world.setting("jitter")
        if not jitter:
            return own, own
        u = self.fleet.random.random(whole)
        late = -np.log(-np.expm1(np.log(u) / self.job.machines))
        return own, own + jitter * self.job.step_s * late

    # ------------------------------------------------------------------------------ checkpoints

    def _checkpoint(self, stretch: _Stretch, last: bool) -> Fault | None:
        """Stand for the copy (and the one before it, if not yet written), then go on.

        The last checkpoint, and one before a slow machine is swapped, is waited for.
        """
        if self.written is not None:
            if stopped := self._stand(stretch, self.ready):
                return stopped
            self._settle()
        if stretch.steps:
            stopped = self._stand(stretch, self.fleet.now + self.stall)
            if stopped is not None or self.fleet.now >= self.end:
                return stopped
            self.checkpoints += 1
            self.written = replace(stretch)
            self.ready = self.fleet.now + (0.0 if self.job.blocking else self.write)
            vars(stretch).update(vars(_Stretch()))  # it is in the checkpoint now
        stopped = None
        if self.written is not None and (last or self._noticed()):
            stopped = self._stand(self.written, self.ready)
        if stopped is None:
            self._settle()
        return stopped

    def _stand(self, stretch: _Stretch, until: float) -> Fault | None:
        """Do nothing until a time; the fault that stops the job meanwhile."""
        begin = self.fleet.now
        stopped = self.fleet.stopped(min(until, self.end))
        stretch.checkpoint += self.fleet.now - begin
        return stopped

    def _settle(self) -> None:
        """A checkpoint whose writing has ended counts from now on."""
        if self.written is not None and self.ready <= self.fleet.now:
            self._keep(self.written)
            self.written, self.ready = None, inf

    def _keep(self, stretch: _Stretch) -> None:
        """Count a stretch of work for good."""
        self.steps += stretch.steps
        for name in ("useful", "jitter", "slow", "checkpoint"):
            self.parts[name] += getattr(stretch, name)

    def _noticed(self) -> bool:
        """Whether a slow machine is known to be slow, and there is another."""
        late = any(slow.noticed <= self.fleet.now for slow in self.fleet.slow)
        return late and self.fleet.spare > 0

    def _swap(self) -> None:
        """Swap slow machines, when nothing would be lost by a restart."""
        if self.written is None and self._noticed():
            self.swaps += self.fleet.swap()
            self._recover("swap")

    # -------------------------------------------------------------------------------- recovery

    def _lost(self, stretch: _Stretch, struck: Fault) -> None:
        """The job stopped: what no checkpoint holds is lost; recover."""
        self._settle()
        self.parts["lost"] += stretch.seconds
        if self.written is not None:
            self.parts["lost"] += self.written.seconds
            self.written, self.ready = None, inf
        self._recover(struck.effect)

    def _recover(self, kind: str) -> None:
        """Detect, replace, restart, load; a fault meanwhile begins it anew."""
        while self.fleet.now < self.end:
            struck = self._recovery(kind)
            if struck is None:
                self.restarts += 1
                self.swaps += self.fleet.swap()  # the job stands anyway
                return
            kind = struck.effect

    def _recovery(self, kind: str) -> Fault | None:
        """One try: the fault that stopped it, or None."""
        for name in PHASES[kind]:
            begin, struck = self.fleet.now, None
            if name == "wait":
                self.fleet.wait_for_machines(self.end)
            else:
                load = self.job.load_s(self.world) if name == "restart" else 0.0
                until = begin + self.world.setting(name) + load
                struck = self.fleet.stopped(min(until, self.end))
            self.parts[name] += self.fleet.now - begin
            self._span(begin, self.fleet.now, name)
            if struck is not None or self.fleet.now >= self.end:
                return struck
        return None

    def _span(self, begin: float, end: float, name: str) -> None:
        if end > begin:
            self.spans.append((begin, end, name))


MOST_EVENTS = 2_000_000
"""Checkpoints and faults that one run may be expected to have: some minutes of simulating."""


def _refuse_endless(world: World, job: Job, seconds: float | None) -> None:
    """LimitError `cluster.length` where far more would happen than anybody waits for."""
    long = min(job.steps * job.step_s, seconds or inf)
    if long == inf:
        return
    each = max(job.interval_s(world), job.step_s)
    rate = sum(fault.rate for fault in world.faults) * world.machines + 1.0 / each
    if world.setting("jitter"):
        rate += 1.0 / job.step_s / 100.0  # steps are drawn, some hundred for the price of an event
    if long * rate > MOST_EVENTS:
        days = MOST_EVENTS / rate / 86400.0
        raise LimitError(
            f"{long / 86400.0:,.0f} days are {long * rate:,.0f} checkpoints and faults",
            code="cluster.length",
            fix=f"simulate at most {days:,.0f} days; the goodput of a long run is the same",
        )


def train(world: World, job: Job, *, seconds: float | None = None) -> tuple[Run, World]:
    """Run a job on a world for `seconds`, or until its steps are done; (the run, the world then).

    The same world and job give the same run. Raises UsageError `cluster.job` when neither steps nor
    seconds end it, `cluster.world` when the fleet is smaller than the job, and LimitError
    `cluster.length` for runs with too many events.

    Source: rates and times of recovery in faults.toml, each with source and grade.
    """
    if seconds is not None and not 0 < seconds < inf:
        raise UsageError(f"{seconds:g} s of simulated time", code="cluster.job")
    _refuse_endless(world, job, seconds)
    if seconds is None and job.steps == inf:
        raise UsageError("nothing ends the run", code="cluster.job",
                         fix="give the tokens of the job, or seconds")  # fmt: skip
    one = _Training(world, job, world.now + seconds if seconds else inf)
    one.run()
    left = one.written
    if left is not None:  # time is over: what is being written counts as done
        one._keep(left)
    counts = {"checkpoints": one.checkpoints, "restarts": one.restarts, "swaps": one.swaps}
    run = Run(
        world=world, job=job, seconds=one.fleet.now - world.now, steps=one.steps,
        parts=one.parts, faults=dict(one.fleet.struck), counts=counts, spans=tuple(one.spans),
        interval_s=one.each * job.step_s, write_s=one.write,
    )  # fmt: skip
    return run, world.later(one.fleet.now, tuple(sorted(one.fleet.down)))
