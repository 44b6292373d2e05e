"""How long one step takes, what of it is what, and how sure each part is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opentrn.base.errors import UsageError
from opentrn.cost.demand import memory
from opentrn.cost.estimate import Estimate, total
from opentrn.cost.platform import Platform, platform
from opentrn.cost.serving import decode_parts, prefill_parts
from opentrn.cost.split import Serving, Split, Training
from opentrn.cost.training import training_parts
from opentrn.workloads import Model, model, train_flops

RESTS_ON = {
    "compute": ("peak", "matmul", "memory", "memory rate", "passes"),
    "memory": ("memory rate", "memory"),
    "tensor": ("link", "sync"), "sequence": ("link", "sync"), "expert": ("link", "network", "sync"),
    "context": ("link", "network"), "pipeline": ("network",), "data": ("network", "overlap"),
    "bubble": ("peak", "matmul", "memory"), "optimizer": ("memory rate", "memory"),
    "host": ("launch",),
}  # fmt: skip
"""Which named efficiencies and rates each part of a step rests on."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step: `seconds` with its grade shares, and `parts` by kind.

    `memory` is bytes on the fullest device by kind, `mfu` the share of all devices' peak that the
    model's own flops make up (recomputation not counted).
    """

    seconds: Estimate
    parts: Mapping[str, Estimate]
    memory: Mapping[str, float]
    capacity: float
    mfu: float
    kind: str

    @property
    def fits(self) -> bool:
        """Whether all bytes fit into one device's memory."""
        return sum(self.memory.values()) <= self.capacity

    @property
    def communication(self) -> float:
        """Seconds of exposed communication."""
        names = ("tensor", "sequence", "expert", "context", "pipeline", "data")
        return sum(float(self.parts[n]) for n in names if n in self.parts)

    def __str__(self) -> str:
        rows = [f"{self.kind}: {self.seconds}, MFU {self.mfu:.1%}"]
        rows += [f"  {name:10} {part}" for name, part in self.parts.items() if float(part) > 0]
        return "\n".join(rows)


def _estimates(where: Platform, parts: Mapping[str, float], kind: str) -> dict[str, Estimate]:
    rests = RESTS_ON | {"compute": ("peak", "prefill")} if kind == "prefill" else RESTS_ON
    return {
        name: Estimate(float(value), "s", {where.grade(*rests[name]): 1.0})
        for name, value in parts.items()
    }


def step_time(
    what: str | Model,
    machine: str | Platform,
    split: Split,
    job: Training | Serving,
    phase: str = "",
) -> StepTime:
    """Seconds of a training step, or of a prefill or decode step of serving (`phase`).

    `what` is a model or its name, `machine` a platform or the name of one. For serving `phase` is
    "prefill" or "decode" (default). Raises UsageError `cost.split` when the batch does not divide.

    Source: `cost.training` and `cost.serving`; rates of `hw`, shares of efficiencies.toml, each
    graded.
    """
    m = model(what)
    where = platform(machine) if isinstance(machine, str) else machine
    held = {name: float(value) for name, value in memory(m, where, job, split).items()}
    if isinstance(job, Training):
        if job.batch % (split.dp * split.micro_batch):
            raise UsageError(
                f"{job.batch} sequences do not divide into {split.dp} replicas of micro-batches "
                f"of {split.micro_batch}", code="cost.split",
                fix="take a batch that is a multiple of dp x micro_batch",
            )  # fmt: skip
        kind, parts = "training step", training_parts(m, where, job, split)
        flops = train_flops(m, job.batch * job.sequence, job.sequence)
    else:
        kind = phase or "decode"
        count = {"prefill": prefill_parts, "decode": decode_parts}
        if kind not in count:
            raise UsageError(f"no phase is called {kind!r}", code="cost.split",
                             fix="prefill or decode")  # fmt: skip
        parts = count[kind](m, where, job, split)
        tokens = job.batch * (job.prompt if kind == "prefill" else 1)
        flops = train_flops(m, tokens, job.context) / 3.0
    estimates = _estimates(where, parts, kind)
    seconds = total(estimates.values())
    peak = split.devices * where.peak(job.dtype)
    return StepTime(
        seconds=seconds, parts=estimates, memory=held, capacity=where.memory,
        mfu=flops / peak / float(seconds), kind=kind,
    )  # fmt: skip
