"""Search the whole space of splits for the fastest that fits, and say why the others lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

import numpy as np

from opentrn.base.errors import CapacityError, LimitError, TrnError, UsageError, declare
from opentrn.base.units import bytes_text
from opentrn.cost import (
    Platform,
    Split,
    Training,
    memory,
    platform,
    step_time,
    training_parts,
)
from opentrn.hw import Price
from opentrn.plan.answer import Plan, Plans, energy, time_text
from opentrn.plan.illegal import illegal
from opentrn.plan.legal import Degrees, default_sequence, degrees, longer
from opentrn.plan.price import age_note, find_price, unpriced
from opentrn.plan.space import Columns, Wanted, blocks
from opentrn.plan.why import precisions, reasons
from opentrn.workloads import Model, model, parameters

declare(
    "plan.request",
    "A request must be possible.",
    rule="count, tokens, batch and sequence are above zero; degrees asked for are legal",
    fix="correct the number named above",
)
declare(
    "plan.memory",
    "No split of this model fits these machines.",
    rule="weights, optimizer states, activations and overheads <= memory of a core",
    fix="take more or larger machines, a smaller batch or sequence, or adamw-bf16",
)
declare(
    "plan.limit",
    "No plan meets the deadline, the budget or the latency.",
    rule="a run takes no longer than its deadline and costs no more than its budget; tokens are "
    "served within the seconds allowed",
    fix="take more machines, or allow more time",
)

ALL = 500_000
"""Splits up to which every one is timed; beyond, blocks that cannot win are passed over."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a plan must keep to: seconds for the whole run, dollars for the whole run."""

    deadline_s: float | None = None
    budget_usd: float | None = None


@dataclass(frozen=True)
class Found:
    """The fitting splits of one platform with their seconds, and the counts of the rest."""

    where: Platform
    columns: Columns
    seconds: np.ndarray
    legal: int
    fitting: int
    least: tuple[float, Split] | None
    passed: int


def default_batch(m: Model, sequence: int, devices: int = 1) -> int:
    """Sequences in a step when none are asked for: 4 Mi tokens, 16 Mi from 100 B parameters.

    Replicas must divide it, so it is the nearest number of the form 2^n times the odd part of
    `devices`.
    """
    tokens = (16 if parameters(m) >= 100e9 else 4) * 2**20
    wanted = max(tokens // sequence, 1)
    odd = devices // (devices & -devices)
    return odd * 2 ** max(round(log2(wanted / odd)), 0)


def evaluate(m: Model, where: Platform, job: Training, parts: Columns) -> tuple[Any, Any]:
    """(bytes on the fullest device, seconds of a step) of every row."""
    held = sum(memory(m, where, job, parts).values())
    return held, sum(training_parts(m, where, job, parts).values())


def search(m: Model, where: Platform, job: Training, legal: Degrees, devices: int,
           wanted: Wanted) -> Found:  # fmt: skip
    """Look at every split, or prove that it cannot win: memory first, then the time of those
    that fit.
    """
    kept, times, least = [], [], None
    count, passed = 0, 0
    group: list[Columns] = []
    best = np.inf

    def finish(group: list[Columns]) -> None:
        nonlocal least, best
        rows = Columns.joined(group)
        held = sum(memory(m, where, job, rows).values())
        low = int(np.argmin(held))
        if least is None or held[low] < least[0]:
            least = (float(held[low]), rows.split(low))
        good = np.flatnonzero(held <= where.memory)
        if len(good):
            rows = rows.take(good)
            seconds = sum(training_parts(m, where, job, rows).values())
            best = min(best, float(seconds.min()))
            kept.append(rows)
            times.append(seconds)

    size = 0
    for block in blocks(m, job, legal, devices, wanted):
        count += len(block)
        if count > ALL and best < _bound(m, where, job, block):
            passed += len(block)
            continue
        group.append(block)
        size += len(block)
        if size > min(100_000, ALL):
            finish(group)
            group, size = [], 0
    if group:
        finish(group)
    empty = Columns(np.empty((10, 0)))
    columns = Columns.joined(kept) if kept else empty
    seconds = np.concatenate(times) if times else np.empty(0)
    return Found(where, columns, seconds, count, len(columns), least, passed)


def _bound(m: Model, where: Platform, job: Training, block: Columns) -> float:
    """Seconds no row of a block can beat: compute and bubble of those that recompute least."""
    light = (block.level == block.level.min()) & (block.sequence == block.sequence.max())
    light &= block.zero == block.zero.min()
    parts = training_parts(m, where, job, block.take(np.flatnonzero(light)))
    return float((parts["compute"] + parts["bubble"]).min())


def _checked(count: int, tokens: float | None, keep: int) -> None:
    asked = (("count", count), ("tokens", tokens), ("plans to keep", keep))
    for name, value in asked:
        if value is not None and not 0 < value < np.inf:
            raise UsageError(f"{name} is {value:g}", code="plan.request",
                             fix=f"{name} is above zero, and finite")  # fmt: skip


def _platforms(target: str, lnc: int | None) -> list[Platform]:
    """Every logical core size of a machine, or the one asked for."""
    first = platform(target, lnc)
    if lnc is not None or first.lnc == 1:
        return [first]
    return [first, platform(target, 1)]


def domain(where: Platform) -> int:
    """Devices joined by fast links: the largest tier below the network."""
    inner = [tier.size for tier in where.tiers if tier.name != "network"]
    return max(inner, default=1)


def _no_fit(m: Model, target: str, count: int, found: list[Found], fits_on) -> CapacityError:
    near = min((f for f in found if f.least), key=lambda f: f.least[0] / f.where.memory)
    held, split = near.least
    core = f"a core of LNC {near.where.lnc}" if near.where.lnc > 1 else "a core"
    return CapacityError(
        f"{m.name} does not fit {count} x {target}: at least {bytes_text(held)} {core} "
        f"({split}), there are {bytes_text(near.where.memory)}",
        code="plan.memory",
        fix=nearest_fit(target, count, fits_on),
    )


LARGER = ("trn1.32xlarge", "trn2.48xlarge", "trn2-ultraserver", "trn3-gen2-ultraserver")
"""Machines that are tried when no number of those asked for will do."""

MOST_DEVICES = 1 << 17
"""Devices up to which a number of machines is tried."""


def nearest_fit(target: str, count: int, fits_on) -> str:
    """What would fit: more of the same machines, by doubling, or else the fewest of larger ones.

    `fits_on(machine, count)` tells whether a job fits so many machines.
    """
    for name, first in ((target, 2 * count), *((other, 1) for other in LARGER)):
        tried = first
        while tried * platform(name).devices <= MOST_DEVICES:
            if fits_on(name, tried):
                return f"{tried:,} x {name} would fit"
            tried *= 2
    return f"nothing up to {MOST_DEVICES:,} devices fits; take a smaller batch or sequence"


def _fits_on(m: Model, job: Training, wanted: Wanted, lnc: int | None):
    """A function that tells whether some split fits so many machines."""

    def fits_on(name: str, count: int) -> bool:
        where = platform(name, lnc if lnc in (None, 1) else None)
        devices = count * where.devices
        legal = degrees(m, devices, domain(where), job.sequence)
        return bool(search(m, where, job, legal, devices, wanted).fitting)

    return fits_on


def _distinct(found: list[Found], keep: int) -> list[tuple[Found, int]]:
    """The fastest row of each platform and set of degrees, fastest first."""
    rows = []
    for one in found:
        order = np.argsort(one.seconds, kind="stable")[: 400 * keep]
        rows += [(one.seconds[row], number, one, int(row)) for number, row in enumerate(order)]
    rows.sort(key=lambda row: (row[0], row[1]))
    seen, out = set(), []
    for _, _, one, row in rows:
        key = (one.where.lnc, *one.columns.table[:5, row])
        if key not in seen:
            seen.add(key)
            out.append((one, row))
    return out[:keep]


def plan(
    what: str | Model,
    target: str,
    count: int = 1,
    *,
    tokens: float | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    optimizer: str = "adamw",
    dtype: str = "bfloat16",
    attention: str = "flash",
    lnc: int | None = None,
    wanted: Wanted | dict | None = None,
    limits: Limits | None = None,
    basis: str | None = None,
    region: str | None = None,
    prices: str | None = None,
    keep: int = 5,
) -> Plans:
    """The fastest ways to train a model on `count` machines, with reasons why others lost.

    `tokens` is the length of the run, `batch` the sequences of one step, `sequence` their tokens;
    `wanted` fixes degrees (`{"tp": 8}`); `limits` are a deadline and a budget, `prices` is a file
    of yours. Step times are seconds, memory bytes of one device, cost dollars. Raises CapacityError
    `plan.memory` and LimitError `plan.limit`, both with the nearest that would do, UsageError
    `plan.request`, and errors of `model`, `platform`, prices. Source: `cost`, opentrn/hw/prices.
    """
    m = model(what)
    _checked(count, tokens, keep)
    platforms = _platforms(target, lnc)
    job, assumed = _job(m, batch, sequence, count * platforms[0].devices, optimizer=optimizer,
                        dtype=dtype, attention=attention)  # fmt: skip
    asked, found, allowed = _wanted(wanted), [], []
    for where in platforms:
        legal = degrees(m, count * where.devices, domain(where), job.sequence)
        found.append(search(m, where, job, legal, count * where.devices, asked))
        allowed.append((where, legal))
    if not any(f.legal for f in found):
        raise illegal(m, job, asked, allowed, count)
    if not any(f.fitting for f in found):
        raise _no_fit(m, target, count, found, _fits_on(m, job, asked, lnc))
    steps = tokens / (job.batch * job.sequence) if tokens else None
    price = find_price(found[0].where.name, basis, region, prices)
    chosen = [_plan(m, one.where, one.columns.split(row), job, count, steps, price)
              for one, row in _distinct(found, keep)]  # fmt: skip
    kind = {"batch": batch, "sequence": sequence, "optimizer": optimizer, "dtype": dtype}
    again = _again(m, target, tokens=tokens, attention=attention, lnc=lnc, wanted=wanted, **kind)
    chosen = _limited(chosen, limits or Limits(), tokens, again)
    best, other = chosen[0], _seconds(m, found, legal, count, asked)
    return Plans(
        plans=tuple(chosen),
        rejected=(*reasons(m, job, found, best, legal),
                  *precisions(job, best, found[0].where.peaks, other)),
        searched={"legal": sum(f.legal for f in found), "fitting": sum(f.fitting for f in found),
                  "passed over": sum(f.passed for f in found)},
        gap=0.0,
        assumptions=(*assumed, *asked.notes(job), *best_notes(best, price)),
        legal={"tp": legal.legal_tp, "pp": legal.pp, "cp": legal.cp, "ep": legal.ep},
        step_tokens=job.batch * job.sequence,
    )  # fmt: skip


def _again(m: Model, target: str, **options: Any):
    """A function: seconds of a whole run on another number of machines, None for no plan."""

    def fastest(count: int) -> float | None:
        try:
            return plan(m, target, count, keep=1, **options).best.hours * 3600
        except TrnError:
            return None

    return fastest


def _seconds(m: Model, found: list[Found], legal: Degrees, count: int, wanted: Wanted):
    """A function: seconds of the fastest split of another job on the same machines, or None."""

    def fastest(job: Training) -> float | None:
        every = (search(m, f.where, job, legal, count * f.where.devices, wanted) for f in found)
        return min((float(f.seconds.min()) for f in every if f.fitting), default=None)

    return fastest


def best_notes(best: Plan, price: Price | None) -> Iterator[str]:
    """What the time and the price of a plan rest on."""
    if "assumed" in best.step.seconds.shares:
        share = best.step.seconds.shares["assumed"]
        yield f"{share:.0%} of the step time rests on assumed efficiencies"
    if price is None:
        yield unpriced(best.machine)
    elif note := age_note(price):
        yield note


def _job(m: Model, batch: int | None, sequence: int | None, devices: int,
         **kind: str) -> tuple[Training, list[str]]:  # fmt: skip
    """The job, and what was not asked and therefore assumed."""
    notes = []
    if sequence is None:
        sequence = default_sequence(m)
        notes.append(f"sequences of {sequence:,} tokens")
    notes += [note] if (note := longer(m, sequence)) else []
    if batch is None:
        batch = default_batch(m, max(sequence, 1), devices)
        notes.append(f"{batch:,} sequences ({batch * sequence / 2**20:g} Mi tokens) in a step")
    job = Training(batch=batch, sequence=sequence, **kind)
    return job, [*notes, f"{job.attention} attention", f"optimizer {job.optimizer}"]


def _wanted(wanted: Wanted | dict | None) -> Wanted:
    if wanted is None or isinstance(wanted, Wanted):
        return wanted or Wanted()
    rows = {}
    for name, value in wanted.items():
        if name not in Wanted.__dataclass_fields__:
            known = ", ".join(Wanted.__dataclass_fields__)
            raise UsageError(f"no degree is called {name!r}", code="plan.request",
                             fix=f"one of {known}")  # fmt: skip
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        least, most = (0, 3) if name in ("zero", "sequence") else (1, 1 << 40)
        if any(isinstance(v, int) and not least <= v <= most for v in values):
            raise UsageError(f"{name} is {value}", code="plan.request",
                             fix=f"{name} is {least} to {most}")  # fmt: skip
        rows[name] = values
    return Wanted(**rows)


def _plan(m, where, split, job, count, steps, price) -> Plan:
    step = step_time(m, where, split, job)
    seconds = float(step.seconds) * (steps or 1.0)
    cost = price.hourly * count * seconds / 3600.0 if price else None
    return Plan(
        split=split, step=step, machine=where.name, lnc=where.lnc, count=count,
        hours=seconds / 3600.0, cost_usd=cost, cost_for="for the run" if steps else "a step",
        price=str(price) if price else "", extra={"step_tokens": job.batch * job.sequence},
        **energy(where, count, seconds / 3600.0),
    )  # fmt: skip


def _limited(plans: list[Plan], limits: Limits, tokens: float | None, fastest) -> list[Plan]:
    """Those plans that keep the limits; LimitError `plan.limit` with the nearest that would.

    `fastest(count)` is the seconds of the run on another number of machines, None for no plan.
    """
    if (limits.deadline_s or limits.budget_usd) and not tokens:
        raise UsageError("a deadline or a budget needs the tokens of the run", code="plan.request",
                         fix="give --tokens")  # fmt: skip
    for name, value in (("deadline", limits.deadline_s), ("budget", limits.budget_usd)):
        if value is not None and not 0 < value < np.inf:
            raise UsageError(f"{name} is {value:g}", code="plan.request")
    good = plans
    if limits.deadline_s:
        good = [p for p in good if p.hours * 3600 <= limits.deadline_s]
        if not good:
            best = plans[0]
            raise LimitError(
                f"the fastest plan takes {time_text(best.hours * 3600)}, the deadline is "
                f"{time_text(limits.deadline_s)}", code="plan.limit",
                fix=_in_time(best, limits.deadline_s, fastest),
            )  # fmt: skip
    return _affordable(good, limits.budget_usd, tokens) if limits.budget_usd else good


def _affordable(plans: list[Plan], budget: float, tokens: float) -> list[Plan]:
    """Those plans that cost no more; LimitError `plan.limit` with what the budget would pay."""
    cheap = [p for p in plans if p.cost_usd is not None and p.cost_usd <= budget]
    if cheap:
        return cheap
    least = min((p.cost_usd for p in plans if p.cost_usd is not None), default=None)
    told = f"the cheapest plan costs {least:,.0f} $" if least else "no price is known"
    near = f"the budget would pay {tokens * budget / least:.3g} of {tokens:.3g} tokens" if least \
        else "give a price file of your own"  # fmt: skip
    raise LimitError(f"{told}, the budget is {budget:,.0f} $", code="plan.limit", fix=near)


TRIES = 12
"""Numbers of machines that are tried for a deadline."""


def _in_time(best: Plan, deadline_s: float, fastest) -> str:
    """A number of machines that keeps a deadline, tried and not extrapolated; or the fastest."""
    most = MOST_DEVICES // platform(best.machine, best.lnc).devices
    count, taken = best.count, best.hours * 3600
    quickest = (taken, count)
    for _ in range(TRIES):
        if count >= most:
            break
        count = min(max(count + 1, ceil(count * taken / deadline_s)), most)
        found = fastest(count)
        if found is None:  # nothing divides by this number: try the next
            continue
        taken = found
        quickest = min(quickest, (taken, count))
        if taken <= deadline_s:
            return f"{count:,} x {best.machine} would do"
    seconds, machines = quickest
    return (f"no number tried keeps it; {machines:,} x {best.machine} take {time_text(seconds)}: "
            "take a longer deadline, a larger batch or faster machines")  # fmt: skip
