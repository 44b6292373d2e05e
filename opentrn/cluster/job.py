"""A training job as a fleet sees it: the seconds of a step, its checkpoints, the machines it takes.

Closed forms for checkpoints: Young, CACM 17(9), 1974; Daly, FGCS 22(3), 2006, equations 13, 37.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, inf, sqrt

from opentrn.base import UsageError, declare
from opentrn.cluster.world import World
from opentrn.cost import COMMUNICATION
from opentrn.plan import Plan
from opentrn.workloads import Model, optimizer, parameters

declare(
    "cluster.job",
    "A job has machines, steps that take time, and a length.",
    rule="machines, seconds of a step and steps are above zero; intervals are above zero",
    fix="correct the number named above",
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A synchronous training job on `machines` machines.

    A step takes `step_s` seconds, of which `compute_s` and `communication_s` grow with a slow
    machine. A checkpoint has `checkpoint_bytes` (all states once), a machine holds `machine_bytes`
    of them. `steps` is the length, infinite for a run that only time ends; `step_tokens` are the
    tokens of a step. `every_s` is the time between checkpoints (None: Daly's best). With `blocking`
    the job stands while one is written, else only while it is copied to host memory.
    """

    machines: int
    step_s: float
    compute_s: float = 0.0
    communication_s: float = 0.0
    steps: float = inf
    step_tokens: float = 0.0
    checkpoint_bytes: float = 0.0
    machine_bytes: float = 0.0
    every_s: float | None = None
    blocking: bool = False

    def __post_init__(self):
        if self.machines < 1 or not 0 < self.step_s < inf or not self.steps > 0:
            raise UsageError(f"{self} cannot be", code="cluster.job")
        if self.every_s is not None and not self.every_s > 0:
            raise UsageError(f"a checkpoint every {self.every_s:g} s", code="cluster.job")
        if self.compute_s + self.communication_s > self.step_s * (1 + 1e-9):
            raise UsageError("parts of a step are longer than the step", code="cluster.job")

    @classmethod
    def of(cls, plan: Plan, model: Model, *, tokens: float | None, step_tokens: float,
           kind: str = "adamw", **more) -> Job:  # fmt: skip
        """The job of a training plan: steps, checkpoint and states held follow from it."""
        each = optimizer(kind)
        total = parameters(model) * float(each.weight + each.states)
        devices = plan.split.devices / plan.count
        held = (plan.step.memory["weights"] + plan.step.memory["optimizer"]) * devices
        parts = {name: float(part) for name, part in plan.step.parts.items()}
        return cls(
            machines=plan.count, step_s=plan.step_time_s,
            compute_s=parts["compute"] + parts["bubble"] + parts["optimizer"],
            communication_s=sum(parts[name] for name in COMMUNICATION),
            steps=tokens / step_tokens if tokens else inf, step_tokens=step_tokens,
            checkpoint_bytes=total, machine_bytes=held, **more,
        )  # fmt: skip

    def pace(self, slowest: tuple[float, float]) -> float:
        """How many times longer a step takes with a slowest machine of these factors."""
        compute, communication = slowest
        more = (compute - 1) * self.compute_s + (communication - 1) * self.communication_s
        return 1.0 + more / self.step_s

    def write_s(self, world: World) -> float:
        """Seconds until a checkpoint is written, at the file system's rate or the machines'."""
        each = self.checkpoint_bytes / self.machines / network(world)
        return max(self.checkpoint_bytes / world.setting("write"), each)

    def load_s(self, world: World) -> float:
        """Seconds until every machine has its states: read once, or through its own network."""
        into = self.machine_bytes / network(world)
        return max(self.checkpoint_bytes / world.setting("read"), into)

    def stall_s(self, world: World) -> float:
        """Seconds that the job stands for a checkpoint."""
        if self.blocking:
            return self.write_s(world)
        return self.machine_bytes / (world.setting("snapshot") * world.where.chips)

    def recovery_s(self, world: World, lost: bool = True) -> float:
        """Seconds from a fault to the next step, while spare machines are there."""
        names = ("detect", "replace", "restart") if lost else ("detect", "restart")
        return sum(world.setting(name) for name in names) + self.load_s(world)

    def interval_s(self, world: World) -> float:
        """Seconds of work between checkpoints: as asked, or the best, at least one step.

        A checkpoint that is written in the background must be written before the next begins.
        """
        wanted = self.every_s
        if wanted is None:
            wanted = best_interval(self.stall_s(world), mean_time_between(self, world))
        least = 0.0 if self.blocking else self.write_s(world)
        return max(wanted, least, self.step_s)


def network(world: World) -> float:
    """Byte/s of one machine, one direction."""
    tier = world.where.tiers[-1]
    return tier.bandwidth * world.where.devices if tier.name == "network" else inf


def mean_time_between(job: Job, world: World) -> float:
    """Mean seconds between faults that stop the job.

    Source: one over the sum of the rates of all machines.
    """
    rate = sum(fault.rate for fault in world.faults if fault.effect != "slow") * job.machines
    return 1.0 / rate if rate else inf


def best_interval(stall: float, between: float) -> float:
    """Daly's best seconds of work between checkpoints of `stall` seconds (equation 37).

    sqrt(2 d M) (1 + sqrt(d / 2M)/3 + (d / 2M)/9) - d for d < 2 M, else M; Young's is the first
    factor alone.
    """
    if stall <= 0 or between == inf:
        return 3600.0 if between == inf else 0.0
    if stall >= 2 * between:
        return between
    share = stall / (2 * between)
    return sqrt(2 * stall * between) * (1 + sqrt(share) / 3 + share / 9) - stall


def expected_goodput(job: Job, world: World) -> float:
    """The share of time that is useful when spares never run out and nothing is slow, closed form.

    Work of w seconds and a stall of d, faults at rate r that also strike recoveries of R seconds:
    e^(r R) (e^(r (w + d)) - 1) / r seconds for w of work (Daly, equation 13); with recoveries of
    two lengths 1 / e^(r R) is their mean. Written in the background, a checkpoint counts from the
    end of its writing; this counts it from its copy, so it is a little too good there.
    """
    between = mean_time_between(job, world)
    steps = max(1, round(job.interval_s(world) / job.step_s))
    work = steps * job.step_s
    if between == inf:
        return work / (work + job.stall_s(world))
    rates = {True: 0.0, False: 0.0}
    for fault in world.faults:
        if fault.effect != "slow":
            rates[fault.effect == "lost"] += fault.rate
    whole_rate = sum(rates.values())
    unbroken = sum(
        rate / whole_rate * exp(-job.recovery_s(world, lost) / between)
        for lost, rate in rates.items()
    )
    try:
        whole = expm1((work + job.stall_s(world)) / between) * between / unbroken
    except (OverflowError, ZeroDivisionError):
        return 0.0  # more faults than any attempt survives
    return work / whole
