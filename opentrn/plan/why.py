"""Why plans lost: for each choice not taken, its best plan and what made it slower or too big."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from opentrn.base.units import bytes_text
from opentrn.cost import RECOMPUTE, Training, step_time
from opentrn.plan.answer import Plan, Rejected
from opentrn.plan.legal import Degrees
from opentrn.workloads import Model

CHOICES = ("tp", "cp", "pp", "ep", "micro_batch", "chunks", "level", "sequence", "zero")
"""The choices that are explained, in this order."""

_WORDS = {
    "tensor": "tensor-parallel communication", "sequence": "sequence-parallel communication",
    "expert": "expert all-to-all", "context": "context-parallel communication",
    "pipeline": "pipeline sends", "data": "data-parallel communication",
    "bubble": "the pipeline bubble", "compute": "compute", "optimizer": "the optimizer",
    "host": "host time",
}  # fmt: skip


def _label(name: str, value: float) -> str:
    if name == "level":
        return f"recompute {RECOMPUTE[int(value)]}"
    if name == "sequence":
        return "with sequence parallelism" if value else "without sequence parallelism"
    return f"{name.replace('_', '-')} {int(value)}"


def _slower(m: Model, where: Any, job: Training, best: Plan, split: Any, label: str) -> Rejected:
    """How much slower another split is, and the part of the step that grew most."""
    other = step_time(m, where, split, job)
    grown = {
        name: float(part) - float(best.step.parts[name]) for name, part in other.parts.items()
    }
    worst = max(grown, key=lambda name: grown[name])
    more = float(other.seconds) / best.step_time_s - 1.0
    part = f": {_WORDS[worst]} takes {grown[worst]:.3g} s more" if grown[worst] > 0 else ""
    reason = f"{more:.1%} slower{part}" if more > 5e-4 else "as fast; the plan chosen came first"
    return Rejected(label, "slower", reason, split, more)


def _choice(m, job, one, best: Plan, name: str, value: float, label: str) -> Rejected:
    """The fate of the best plan with one other choice on one platform."""
    here = np.flatnonzero(getattr(one.columns, name) == value)
    row = int(here[np.argmin(one.seconds[here])])
    return _slower(m, one.where, job, best, one.columns.split(row), label)


def _values(legal: Degrees, name: str, found: np.ndarray) -> list[float]:
    known = {"tp": legal.legal_tp, "cp": legal.cp, "pp": legal.pp, "ep": legal.ep}
    fixed = {"level": (0, 2), "sequence": (0, 1), "zero": (0, 1, 2, 3)}
    listed = known.get(name) or fixed.get(name) or ()
    return sorted({float(v) for v in listed} | {float(v) for v in found})


def reasons(
    m: Model, job: Training, found: list[Any], best: Plan, legal: Degrees
) -> Iterator[Rejected]:
    """For every value of every choice that the best plan does not have: why not.

    A value no fitting split has is rejected for memory (or the batch, where it has no legal split
    at all); any other for being slower, with the part of the step that grew.
    """
    one = next(f for f in found if f.where.lnc == best.lnc)
    row = best.split.row() | {"level": best.split.level}
    for name in CHOICES:
        have = np.unique(getattr(one.columns, name))
        for value in _values(legal, name, have):
            label = _label(name, value)
            if value == float(row[name]):
                continue
            if value in have:
                yield _choice(m, job, one, best, name, value, label)
            else:
                yield Rejected(label, "memory", _absent(name, value, job, one))
    for other in found:
        if other is not one and other.fitting:
            fastest = int(np.argmin(other.seconds))
            label = f"LNC {other.where.lnc}"
            yield _slower(m, other.where, job, best, other.columns.split(fastest), label)
        elif other is not one:
            yield Rejected(f"LNC {other.where.lnc}", "memory", "no split fits its smaller memory")
    for degree in legal.tp:
        if not degree.legal:
            yield Rejected(f"tp {degree.value}", "illegal", degree.why)


PRECISIONS = {"bf16": "bfloat16", "fp8": "float8", "fp32": "float32"}
"""Types of matrix products by the names of their rates."""


def precisions(job: Training, best: Plan, kinds: Iterable[str], seconds: Any) -> Iterator[Rejected]:
    """What other types of matrix products would do, which changes what is computed.

    `kinds` are the types the machine has rates for, `seconds(job)` the time of the fastest split.
    """
    for name in (PRECISIONS[kind] for kind in kinds if kind in PRECISIONS):
        if name == job.dtype or name == {"float16": "bfloat16"}.get(job.dtype):
            continue
        other = seconds(replace(job, dtype=name))
        if other is None:
            continue
        more = other / best.step_time_s - 1.0
        told = f"{abs(more):.0%} {'slower' if more > 0 else 'faster'}"
        reason = f"{told}; it changes what is computed, so it is taken only when asked for"
        yield Rejected(name, "precision", reason, None, more)


def _absent(name: str, value: float, job: Training, one: Any) -> str:
    """Why no fitting split has this value."""
    room = bytes_text(one.where.memory)
    if name in ("sequence", "zero", "level"):
        return f"no split with it fits {room} a core, or it does nothing at these degrees"
    return f"no split with it fits {room} a core and divides the batch of {job.batch}"
