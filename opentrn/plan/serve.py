"""Search for the cheapest way to serve a model: replicas, their split and their batch."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import NamedTuple

from opentrn.base.errors import CapacityError, LimitError, UsageError
from opentrn.base.units import bytes_text
from opentrn.cost import Platform, Serving, Split, memory, platform, step_time
from opentrn.plan.answer import Plan, Plans, Rejected, energy
from opentrn.plan.illegal import refused, said
from opentrn.plan.legal import as_stored, degrees, longer
from opentrn.plan.price import age_note, find_price, unpriced
from opentrn.plan.search import _platforms, _wanted, domain, nearest_fit
from opentrn.workloads import Model, model

BATCHES = tuple(2**n for n in range(11))
STAGES, SHARDS = 16, 64
"""Pipeline stages and degrees of expert parallelism up to which serving is planned."""


def _candidates(m: Model, where: Platform, devices: int, wanted):
    legal = degrees(m, devices, domain(where))
    for tp in wanted.of("tp", legal.legal_tp):
        for pp in wanted.of("pp", [p for p in legal.pp if p <= STAGES]):
            for ep in wanted.of("ep", [e for e in legal.ep if e <= SHARDS]):
                if devices % (tp * pp * ep) == 0 and (ep == 1 or pp == 1):
                    yield tp, pp, ep


def _evaluate(m, where, job: Serving, split: Split, count: int, price) -> Plan:
    decode = step_time(m, where, split, job, "decode")
    prefill = step_time(m, where, split, job, "prefill")
    token = float(decode.seconds)
    busy = job.answer * token + float(prefill.seconds)
    rate = job.batch * job.answer / busy
    cost = price.hourly * count / 3600.0 / rate * 1e6 if price else None
    extra = {"tpot_s": token, "ttft_s": float(prefill.seconds), "tokens_per_s": rate,
             "batch": job.batch, "context": job.context}  # fmt: skip
    if cost is not None:
        extra["cost_usd_per_million_requests"] = cost * job.answer
    hours = 1e6 / rate / 3600.0
    return Plan(
        split=split, step=decode, machine=where.name, lnc=where.lnc, count=count,
        hours=hours, cost_usd=cost, cost_for="per million answered tokens",
        price=str(price) if price else "", extra=extra,
        **energy(where, count, hours),
    )  # fmt: skip


def plan_serving(
    what: str | Model,
    target: str,
    count: int = 1,
    *,
    prompt: int = 1024,
    answer: int = 1024,
    tpot_s: float | None = 0.05,
    ttft_s: float | None = None,
    weight_bytes: float = 2.0,
    lnc: int | None = None,
    wanted=None,
    basis: str | None = None,
    region: str | None = None,
    prices: str | None = None,
    keep: int = 5,
) -> Plans:
    """The ways to serve a model with most answered tokens a second on `count` machines.

    All devices are filled with replicas of one split; the batch of a replica is the largest power
    of two whose cache fits and that keeps `tpot_s` (seconds for each token) and `ttft_s`. A batch
    is read, then answered: what continuous batching gains is not in these numbers. Raises
    CapacityError `plan.memory`, LimitError `plan.limit`, UsageError `plan.request`. Source:
    `cost.step_time`, `cost.memory`, prices in opentrn/hw/prices.
    """
    m = model(what)
    _served(m, {"count": count, "prompt": prompt, "answer": answer, "tpot": tpot_s, "ttft": ttft_s,
                "bytes of a weight": weight_bytes, "plans to keep": keep})  # fmt: skip
    asked = _wanted(wanted)
    plans, rejected, looked, misses = [], [], 0, []
    for where in _platforms(target, lnc):
        price = find_price(where.name, basis, region, prices)
        devices = count * where.devices
        for tp, pp, ep in _candidates(m, where, devices, asked):
            split = Split(tp=tp, pp=pp, dp=devices // (tp * pp), ep=ep, zero=0)
            tried, note = _largest(m, where, split, count, price, prompt, answer, tpot_s, ttft_s,
                                   weight_bytes)  # fmt: skip
            looked += len(BATCHES)
            label = f"tp {tp} pp {pp} ep {ep} LNC {where.lnc}"
            if tried is None:
                rejected.append(Rejected(label, note.kind, note.reason, split))
                misses.append((label, note))
            else:
                plans.append(tried)
    if not plans and not misses:
        raise _unserved(m, asked, where, devices, target)
    if not plans:
        shape = {"prompt": prompt, "answer": answer, "weight_bytes": weight_bytes}
        raise _nothing(m, target, count, misses, _fits_on(m, asked, shape))
    plans.sort(key=lambda one: -one.extra["tokens_per_s"])
    best = plans[0]
    rejected += [_fewer(best, other) for other in plans[keep:]]
    found = find_price(best.machine, basis, region, prices)
    notes = _notes(m, best, found, prompt, answer, tpot_s, weight_bytes)
    legal = degrees(m, count * where.devices, domain(where))
    return Plans(
        plans=tuple(plans[:keep]), rejected=tuple(rejected),
        searched={"legal": looked, "fitting": len(plans)}, gap=0.0, assumptions=notes,
        legal={"tp": legal.legal_tp, "pp": legal.pp, "ep": legal.ep},
    )  # fmt: skip


def _notes(m, best: Plan, price, prompt: int, answer: int, tpot_s, weight) -> tuple[str, ...]:
    """What was not asked, and what the price rests on."""
    notes = (
        f"prompts of {prompt:,} and answers of {answer:,} tokens",
        longer(m, prompt + answer),
        as_stored(m, weight),
        f"at most {tpot_s:g} s for each token" if tpot_s else "",
        age_note(price) if price else unpriced(best.machine),
    )
    return tuple(note for note in notes if note)


def _unserved(m: Model, wanted, where: Platform, devices: int, target: str) -> LimitError:
    """The refusal of degrees that leave no split to serve with."""
    legal = degrees(m, devices, domain(where))
    shown = replace(legal, pp=tuple(p for p in legal.pp if p <= STAGES), cp=(1,),
                    ep=tuple(e for e in legal.ep if e <= SHARDS))  # fmt: skip
    why = refused(m, wanted, devices, legal) or "tp x pp x ep divides the devices"
    if max(wanted.pp, default=1) > STAGES or max(wanted.ep, default=1) > SHARDS:
        why = f"at most {STAGES} stages and {SHARDS} shares of the experts are tried"
    elif max(wanted.pp, default=1) > 1 and max(wanted.ep, default=1) > 1:
        why = "experts are divided without a pipeline"
    return LimitError(
        f"no split of {m.name} over {devices:,} devices of {target} serves: {why}",
        code="plan.request", fix=f"legal: {said(shown)}",
    )  # fmt: skip


def _fewer(best: Plan, other: Plan) -> Rejected:
    """Why a plan that makes fewer tokens lost."""
    share = other.extra["tokens_per_s"] / best.extra["tokens_per_s"]
    told = f"{1 - share:.0%} fewer tokens a second"
    return Rejected(str(other.split), "slower", told, other.split, 1 / share - 1)


def _served(m: Model, asked: dict[str, float | None]) -> None:
    """Refuse what cannot be served, or numbers that cannot be."""
    if not m.decoder:
        raise UsageError(f"{m.name} makes no text", code="plan.request",
                         fix="take a decoder, or plan its training")  # fmt: skip
    for name, value in asked.items():
        if value is not None and not 0 < value < inf:
            raise UsageError(f"{name} is {value:g}", code="plan.request",
                             fix=f"{name} is above zero, and finite")  # fmt: skip


class Miss(NamedTuple):
    """Why a split serves nothing: a kind of Rejected, a sentence, bytes of a core, and how many
    times later than allowed its tokens are.
    """

    kind: str
    reason: str
    used: float
    late: float = 0.0


def _largest(m, where, split, count, price, prompt, answer, tpot_s, ttft_s, weight_bytes):
    """(the plan with the largest batch that fits and is in time, or None, and a Miss)."""
    found, note = None, Miss("memory", "", inf)
    for each in BATCHES:
        job = Serving(batch=each * split.dp, prompt=prompt, answer=answer,
                      weight_bytes=weight_bytes)  # fmt: skip
        one = _evaluate(m, where, job, split, count, price)
        if not one.step.fits:
            told = f"{bytes_text(one.used)} a core, there are {bytes_text(one.step.capacity)}"
            note = Miss("memory", told, one.used)
            break
        late = [(what, one.extra[key], limit) for what, key, limit in (
            ("a token", "tpot_s", tpot_s), ("a first token", "ttft_s", ttft_s))
            if limit is not None and one.extra[key] > limit]  # fmt: skip
        if late:
            told = " and ".join(f"{what} of {taken:.3g} s" for what, taken, _ in late)
            times = max(taken / limit for _, taken, limit in late)
            note = Miss("deadline", f"{told} with {each} at once", one.used, times)
            break
        found = one
    return found, note


def _fits_on(m: Model, asked, shape: dict):
    """A function that tells whether one sequence of each replica fits so many machines."""

    def fits_on(name: str, count: int) -> bool:
        where = platform(name)
        devices = count * where.devices
        for tp, pp, ep in _candidates(m, where, devices, asked):
            split = Split(tp=tp, pp=pp, dp=devices // (tp * pp), ep=ep, zero=0)
            held = memory(m, where, Serving(batch=split.dp, **shape), split)
            if sum(map(float, held.values())) <= where.memory:
                return True
        return False

    return fits_on


def _nothing(m, target, count, misses: list[tuple[str, Miss]], fits_on):
    """The error when no split serves: what comes nearest, in time or in memory."""
    late = [(note.late, label, note) for label, note in misses if note.kind == "deadline"]
    if late:
        times, label, nearest = min(late, key=lambda row: row[0])
        return LimitError(
            f"no split of {m.name} on {count} x {target} is fast enough; the nearest is {label}: "
            f"{nearest.reason}", code="plan.limit",
            fix=f"allow {times:.3g} times the seconds, or take weights of one byte",
        )  # fmt: skip
    need = bytes_text(min(note.used for _, note in misses)) if misses else "more"
    return CapacityError(
        f"{m.name} does not fit {count} x {target}: at least {need} a core",
        code="plan.memory", fix=nearest_fit(target, count, fits_on),
    )  # fmt: skip
