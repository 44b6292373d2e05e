"""What a simulated training run was: goodput, where the time went, and what happened when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from opentrn.base import Trace, seconds_text
from opentrn.cluster.job import Job, expected_goodput, mean_time_between
from opentrn.cluster.world import World
from opentrn.cost import table_text
from opentrn.plan import styled

PARTS = (
    "useful", "jitter", "slow", "checkpoint", "lost", "detect", "wait", "replace", "restart",
)  # fmt: skip
"""Where time goes: steps that count; waits for late and for slow machines within them; standing for
checkpoints; work done in vain; noticing a fault; no spare machine; replacing; restart and load."""

DAY = 86400.0


@dataclass(frozen=True)
class Run:
    """A simulated training run of `seconds` on a world.

    `parts` are seconds by PARTS and add up to `seconds`; `steps` are those that count. `faults`
    counts faults that struck the job by kind, `counts` checkpoints, restarts and swaps of slow
    machines. `spans` are (begin, end, name) in seconds, in order.
    """

    world: World
    job: Job
    seconds: float
    steps: float
    parts: Mapping[str, float]
    faults: Mapping[str, int]
    counts: Mapping[str, int]
    spans: tuple[tuple[float, float, str], ...]
    interval_s: float
    write_s: float

    @property
    def goodput(self) -> float:
        """The share of time that steps at full speed took, of those that count."""
        return self.parts["useful"] / self.seconds

    @property
    def finished(self) -> bool:
        """Whether all steps of the job are done."""
        return self.steps >= self.job.steps - 1e-6

    @property
    def tokens(self) -> float:
        """Tokens of the steps that count."""
        return self.steps * self.job.step_tokens

    def json(self) -> dict[str, Any]:
        """As the command prints it with --json; a time between faults that never come is None."""
        between = mean_time_between(self.job, self.world)
        return {
            "goodput": self.goodput, "goodput_closed_form": expected_goodput(self.job, self.world),
            "seconds": self.seconds, "days": self.seconds / DAY, "steps": self.steps,
            "tokens": self.tokens, "finished": self.finished, "parts": dict(self.parts),
            "faults": dict(self.faults), "counts": dict(self.counts),
            "rates": {
                fault.name: {"per_machine_hour": fault.rate * 3600.0, "grade": fault.grade,
                             "source": fault.source}
                for fault in self.world.faults
            },
            "settings": {
                name: {"value": one.value, "grade": one.grade, "because": one.because}
                for name, one in self.world.settings.items()
            },
            "checkpoint": {"every_s": self.interval_s, "stall_s": self.job.stall_s(self.world),
                           "write_s": self.write_s, "bytes": self.job.checkpoint_bytes},
            "mean_time_between_faults_s": between if between < inf else None,
            "machine": self.world.where.name, "machines": self.job.machines,
            "spares": self.world.machines - self.job.machines, "chips": self.world.chips,
            "seed": self.world.seed,
        }  # fmt: skip

    def trace(self) -> Trace:
        """The run as a trace of one track, for `profiler`: nanoseconds from its begin."""
        found = Trace({"target": self.world.where.name, "program": "training"})
        begin = self.world.now
        for start, end, name in self.spans:
            found.add("job", name, (start - begin) * 1e9, (end - begin) * 1e9, grade="assumed")
        return found

    def _repr_html_(self) -> str:
        """What a notebook shows: where the time went, goodput over intervals, faults."""
        from opentrn.cluster.page import training_body  # which draws what this module holds
        return styled(training_body((self,)))

    def __str__(self) -> str:
        return runs_text((self,))


def runs_text(runs: Sequence[Run]) -> str:
    """Runs of one job that differ in their seeds: what the job is, and a column for each."""
    first = runs[0]
    job, world = first.job, first.world
    spare = world.machines - job.machines
    closed, between = expected_goodput(job, world), mean_time_between(job, world)
    goods = sorted(run.goodput for run in runs)
    mean = sum(goods) / len(goods)
    days = sum(run.seconds for run in runs) / len(runs) / DAY
    several = f" on average of {len(runs)} runs" if len(runs) > 1 else ""
    lines = [
        f"{job.machines:,} x {world.where.name} and {spare:,} spare, {world.chips:,} chips: "
        f"{days:,.2f} days, goodput {mean:.1%}{several} "
        f"(closed form without slow machines and lack of spares: {closed:.1%})",
        f"checkpoint every {seconds_text(first.interval_s)}: the job stands "
        f"{seconds_text(job.stall_s(world))}, written after {seconds_text(first.write_s)}",
        _faults_text(job, world, between),
        "",
        table_text(("seed", *(str(run.world.seed) for run in runs)), _rows(runs)),
    ]
    if len(runs) > 1:
        lines += ["", f"goodput of {len(runs)} runs: {mean:.2%}, "
                      f"from {goods[0]:.2%} to {goods[-1]:.2%}"]  # fmt: skip
    return "\n".join(lines)


def _faults_text(job: Job, world: World, between: float) -> str:
    """How often a fault stops the job, and what each costs besides the work that is lost."""
    if between == inf:
        return "no fault stops the job"
    lost, stays = job.recovery_s(world), job.recovery_s(world, lost=False)
    told = (
        f"a fault stops the job every {seconds_text(between)} on average; until it goes on "
        f"{seconds_text(stays)}, with another machine {seconds_text(lost)}"
    )
    longer = ": longer than between faults, so that most recoveries are begun again"
    return told + (longer if lost > between else "")


def _rows(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """Rows of the table: shares of time, steps, faults by kind, what was done."""
    yield "goodput", *(f"{run.goodput:.2%}" for run in runs)
    for part in PARTS:
        if any(run.parts[part] > 0 for run in runs):
            yield f"time {part}", *(f"{run.parts[part] / run.seconds:.2%}" for run in runs)
    yield "days", *(f"{run.seconds / DAY:,.2f}" for run in runs)
    yield f"steps of {seconds_text(runs[0].job.step_s)}", *(f"{run.steps:,.0f}" for run in runs)
    if runs[0].job.step_tokens:
        yield "tokens", *(f"{run.tokens:.3g}" for run in runs)
    kinds = dict.fromkeys(kind for run in runs for kind in run.faults)
    for kind in sorted(kinds, key=lambda kind: -sum(run.faults.get(kind, 0) for run in runs)):
        yield f"{kind} faults", *(f"{run.faults.get(kind, 0):,}" for run in runs)
    for name in runs[0].counts:
        yield name, *(f"{run.counts[name]:,}" for run in runs)
