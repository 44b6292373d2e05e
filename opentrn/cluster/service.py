"""A replica that serves a model: how long it reads a prompt, how long it makes a token of many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from opentrn.base import UsageError, declare
from opentrn.cost import Platform, Serving, Split, step_time
from opentrn.plan import Plan
from opentrn.workloads import Batcher, Model, kv_bytes

declare(
    "cluster.service",
    "A service has replicas, and a plan for serving.",
    rule="replicas are at least 1; separate prefill replicas are not negative",
    fix="take a plan of `plan_serving`",
)


class Pace(NamedTuple):
    """Seconds of one token of a whole batch: `fixed`, and `each` for every token in the caches."""

    fixed: float
    each: float


@dataclass(frozen=True)
class Service:
    """Equal replicas behind one queue that hands requests out in turn.

    `prefill(tokens)` is seconds to read a prompt, `decode(batch)` the Pace of so many answers.
    With `prefill_replicas` prompts are read elsewhere, and `transfer(tokens)` seconds later the
    caches are here.
    """

    batcher: Batcher
    prefill: Callable[[int], float]
    decode: Callable[[int], Pace]
    replicas: int = 1
    prefill_replicas: int = 0
    transfer: Callable[[int], float] = lambda tokens: 0.0
    name: str = "service"

    def __post_init__(self):
        if self.replicas < 1 or self.prefill_replicas < 0:
            raise UsageError(f"{self.replicas} replicas, {self.prefill_replicas} for prefill",
                             code="cluster.service")  # fmt: skip

    @classmethod
    def of(
        cls,
        plan: Plan,
        model: Model,
        where: Platform,
        *,
        slots: int | None = None,
        chunk: int = 0,
        weight_bytes: float = 2.0,
        prefill_replicas: int = 0,
    ) -> Service:
        """The service of a plan of `plan_serving` on its machines.

        Slots are the plan's batch unless given; the cache has what the plan's memory leaves. Ranks
        that share experts work together, so a replica has as many data-parallel members as experts
        are spread over. Of the plan's replicas `prefill_replicas` read prompts only.
        """
        split = plan.split
        one = Split(tp=split.tp, cp=split.cp, pp=split.pp, dp=split.ep, ep=split.ep, zero=0)
        replicas = split.dp // split.ep
        batch = int(plan.extra["batch"]) // replicas
        if not 0 <= prefill_replicas < replicas:
            raise UsageError(f"{prefill_replicas} of {replicas} replicas for prefill alone",
                             code="cluster.service")  # fmt: skip
        held = dict(plan.step.memory)
        free = plan.step.capacity - sum(held.values()) + held["kv_cache"]
        each = held["kv_cache"] / (batch * plan.extra["context"])
        tokens = free / each if model.attends else float("inf")  # a state has no length

        def job(batch: int, prompt: int, answer: int = 1) -> Serving:
            return Serving(batch=batch, prompt=prompt, answer=answer, weight_bytes=weight_bytes)

        @cache
        def prefill(tokens: int) -> float:
            return float(step_time(model, where, one, job(1, tokens), "prefill").seconds)

        @cache
        def decode(batch: int) -> Pace:
            near, far = 128, 8192
            times = [
                float(step_time(model, where, one, job(batch, at, 1), "decode").seconds)
                for at in (near, far)
            ]
            each = (times[1] - times[0]) / ((far - near) * batch)
            return Pace(times[0] - each * (near + 0.5) * batch, each)

        network = where.tiers[-1].bandwidth * split.tp * split.pp  # of one member

        def transfer(tokens: int) -> float:
            return kv_bytes(model, tokens) / network

        return cls(
            batcher=Batcher(slots or batch, tokens, chunk=chunk), prefill=prefill, decode=decode,
            replicas=replicas - prefill_replicas, prefill_replicas=prefill_replicas,
            transfer=transfer, name=f"{model.name} on {plan.count} x {plan.machine}",
        )  # fmt: skip
