"""One job on several machines: time, cost, how many are needed, each with grade and assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from opentrn.base.errors import TrnError, UsageError
from opentrn.cost import platform, table_text
from opentrn.plan.answer import HOUR, Plan, Plans, energy_text, time_text
from opentrn.plan.legal import default_sequence
from opentrn.plan.price import own_prices
from opentrn.plan.search import MOST_DEVICES, default_batch, plan
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
        return (f"{self.machine}: {self.chips} chips, {time_text(p.hours * HOUR)}, {p.cost} "
                f"{p.cost_for}, MFU {p.mfu:.1%} ({p.grades}); {held}; {p.energy}")  # fmt: skip


def versus_table(rows: Sequence[Versus]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The machines as a table: its head, and a row for each; dashes where there is no plan."""
    cells = []
    for row in rows:
        p, least = row.plan, f"{row.least:,}" if row.least else "-"
        if p is None:
            cells.append((row.machine, "none", f"{row.chips:,}", least, *"-" * 7))
            continue
        power = "-" if p.energy_kwh is None else energy_text(p.energy_kwh)
        cells.append((
            row.machine, p.split.degrees, f"{row.chips:,}", least, time_text(p.hours * HOUR),
            p.cost, p.basis, f"{p.mfu:.1%}", f"{p.used / p.step.capacity:.0%}", power, p.grades,
        ))  # fmt: skip
    per = next((row.plan.cost_for for row in rows if row.plan), "")
    head = ("machine", "split", "chips", "hold it", "time", f"cost {per}", "basis", "MFU",
            "memory", "energy", "grade")  # fmt: skip
    return head, cells


def mixed_bases(rows: Sequence[Versus]) -> tuple[str, ...]:
    """A warning where prices stand on different bases, which compares unlike with unlike."""
    bases = sorted({row.plan.basis for row in rows if row.plan and row.plan.basis != "-"})
    if len(bases) < 2:
        return ()
    return (f"warning: prices stand on different bases ({', '.join(bases)}); where all have one, "
            "--basis compares like with like",)  # fmt: skip


def versus_text(rows: Sequence[Versus]) -> str:
    """The comparison for people: a table, what all assume, and what each does."""
    head, cells = versus_table(rows)
    lines = [table_text(head, cells, left=(0, 1)), "", *mixed_bases(rows)]
    fitting = [row for row in rows if row.plan]
    common = [n for n in (fitting[0].assumptions if fitting else ())
              if all(n in row.assumptions for row in fitting)]  # fmt: skip
    lines += [f"assumed: {note}" for note in common]
    for row in rows:
        own = "; ".join(n for n in row.assumptions if n not in common) or row.refused
        lines += [f"{row.machine}: {own}"] if own else []
    return "\n".join(lines)


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


REFUSED = ("plan.memory", "plan.limit", "plan.request", "cost.dtype")
"""Codes of refusals that are told in a machine's row."""
UNPRICED = "plan.price"
"""Code of a price that is not known, which leaves a row without its dollars."""
EVERYWHERE = ("plan.request", "cost.dtype", UNPRICED)
"""Codes of what is raised when it is in the way on every machine."""


def _unpriced(found: Plans, error: TrnError) -> Plans:
    """The same plans without dollars, and why."""
    bare = tuple(
        replace(one, cost_usd=None, price="", extra={k: v for k, v in one.extra.items()
                                                     if not k.startswith("cost_usd")})
        for one in found.plans
    )  # fmt: skip
    notes = [note for note in found.assumptions if not note.startswith("the price of")]
    return replace(found, plans=bare, assumptions=(*notes, f"{error.what}; {error.fix}"))


def _row(what: str | Model, name: str, chips: int, serve: bool,
         options: dict[str, Any]) -> tuple[Versus, TrnError | None]:  # fmt: skip
    """One machine's row, and what stands in the way of its plan or its price."""
    where, count = platform(name), _count(name, chips)
    ask, stopped = plan_serving if serve else plan, None
    try:
        found = ask(what, name, count, **options)
    except TrnError as error:
        stopped = error
        if error.code in REFUSED:
            least = fewest(what, name, serve=serve, **options)
            return Versus(where.name, count * where.chips, None, error.what, (), least), error
        if error.code != UNPRICED:
            raise
        free = {k: v for k, v in options.items() if k not in ("basis", "region", "prices")}
        found = _unpriced(ask(what, name, count, **free), error)
    notes = (*found.assumptions, *((found.best.price,) if found.best.price else ()))
    if not serve:
        job = f"{options['batch']:,} sequences of {options['sequence']:,} tokens in a step"
        notes = (job, *notes)
    least = fewest(what, name, serve=serve, **options)
    return Versus(where.name, count * where.chips, found.best, "", notes, least), stopped


def compare(what: str | Model, machines: list[str], *, chips: int = 64, serve: bool = False,
            **options: Any) -> list[Versus]:  # fmt: skip
    """The best plan of a job on each machine, each with at least `chips` chips.

    Times are seconds, costs dollars, memory bytes of one device.

    `options` go to `plan` or, with `serve`, to `plan_serving`. A machine on which the job does not
    fit, or which has no such price, tells so in its row; a price file of yours names the `instance`
    of each price where there are several machines. What no machine can do is raised: an
    unknown name (UnknownNameError `cost.platform`), a job that is none or a type that has no rate
    (UsageError `plan.request`, `cost.dtype`), a price that none has (`plan.price`).

    Source: `plan` and `plan_serving`; each row has its price and assumptions.
    """
    if chips < 1:
        raise UsageError(f"chips is {chips}", code="plan.request", fix="chips is at least 1")
    if options.get("prices") and len(machines) > 1 and "" in own_prices(options["prices"]):
        raise UsageError(
            f"{options['prices']} does not say which machine its prices are for",
            code="plan.price", fix='give each [[price]] an instance, such as "trn2.48xlarge"',
        )  # fmt: skip
    if not serve:  # one job for all, whatever their number
        m, batch = model(what), options.get("batch")
        sequence = options.get("sequence") or default_sequence(m)
        batch = default_batch(m, sequence) if batch is None else batch
        options |= {"sequence": sequence, "batch": batch}
    rows, errors = [], []
    for name in machines:
        row, error = _row(what, name, chips, serve, options)
        rows.append(row)
        errors += [error] if error and error.code in EVERYWHERE else []
    if errors and len(errors) == len(rows):
        raise errors[0]
    return rows
