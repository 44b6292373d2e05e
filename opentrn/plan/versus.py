"""One job on several machines: time, cost, how many are needed, each with grade and assumptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opentrn.base.errors import TrnError, UsageError
from opentrn.cost import platform
from opentrn.plan.answer import Plan, Plans
from opentrn.plan.search import MOST_DEVICES, default_batch, default_sequence, plan
from opentrn.plan.serve import plan_serving
from opentrn.workloads import Model, model


@dataclass(frozen=True)
class Versus:
    """One machine's row: its best plan, or why there is none.

    `least` is the fewest chips that hold the job, found by doubling machines; 0 where none do.
    """

    machine: str
    chips: int
    plan: Plan | None
    refused: str
    assumptions: tuple[str, ...]
    least: int = 0

    def json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "machine": self.machine, "chips": self.chips, "fits": self.plan is not None,
            "chips_needed": self.least, "refused": self.refused,
            "plan": self.plan.json() if self.plan else None,
            "assumptions": list(self.assumptions),
        }  # fmt: skip

    def __str__(self) -> str:
        held = f"{self.least} chips hold it" if self.least else "no number tried holds it"
        if self.plan is None:
            return f"{self.machine}: {self.refused}; {held}"
        p = self.plan
        cost = f"{p.cost_usd:,.2f} $ {p.cost_for}" if p.cost_usd is not None else "no price known"
        grade = ", ".join(f"{s:.0%} {g}" for g, s in p.step.seconds.grade_shares)
        return (f"{self.machine}: {self.chips} chips, {p.hours:,.2f} h, {cost}, MFU {p.mfu:.1%} "
                f"({grade}); {held}; {p.energy}")  # fmt: skip


def _count(machine: str, chips: int) -> int:
    where = platform(machine)
    return max(-(-chips // where.chips), 1)


def fewest(what: str | Model, machine: str, *, serve: bool = False, **options: Any) -> int:
    """The fewest chips of a kind that hold a job, by doubling machines; 0 where 131,072 devices
    do not. Options are those of `compare`.
    """
    where, count = platform(machine), 1
    while count * where.devices <= MOST_DEVICES:
        try:
            (plan_serving if serve else plan)(what, machine, count, **options | {"keep": 1})
        except TrnError as error:
            if error.code == "cost.dtype":
                return 0
            if error.code not in ("plan.memory", "plan.request"):
                return count * where.chips  # it fits, and something else is in the way
        else:
            return count * where.chips
        count *= 2
    return 0


def compare(what: str | Model, machines: list[str], *, chips: int = 64, serve: bool = False,
            **options: Any) -> list[Versus]:  # fmt: skip
    """The best plan of a job on each machine, each with at least `chips` chips.

    `options` go to `plan` or, with `serve`, to `plan_serving`. A machine on which the job does not
    fit tells so in its row; an unknown name raises UnknownNameError `cost.platform`, a job that is
    none on any machine UsageError `plan.request`.
    """
    if chips < 1:
        raise UsageError(f"chips is {chips}", code="plan.request", fix="chips is at least 1")
    if not serve:  # one job for all, whatever their number
        m, batch = model(what), options.get("batch")
        sequence = options.get("sequence") or default_sequence(m)
        batch = default_batch(m, sequence) if batch is None else batch
        options |= {"sequence": sequence, "batch": batch}
    rows: list[Versus] = []
    none: list[TrnError] = []
    for name in machines:
        where = platform(name)
        count = _count(name, chips)
        try:
            found: Plans = (plan_serving if serve else plan)(what, name, count, **options)
        except TrnError as error:
            if error.code not in ("plan.memory", "plan.limit", "plan.request", "cost.dtype"):
                raise
            none += [error] if error.code == "plan.request" else []
            least = fewest(what, name, serve=serve, **options)
            rows.append(Versus(where.name, count * where.chips, None, error.what, (), least))
            continue
        notes = (*found.assumptions, *((found.best.price,) if found.best.price else ()))
        if not serve:
            job = f"{options['batch']:,} sequences of {options['sequence']:,} tokens in a step"
            notes = (job, *notes)
        least = fewest(what, name, serve=serve, **options)
        rows.append(Versus(where.name, count * where.chips, found.best, "", notes, least))
    if none and len(none) == len(rows):
        raise none[0]
    return rows
