"""Why a request has no legal split at all, and the nearest that has one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from itertools import chain, product

import numpy as np

from opentrn.base.errors import LimitError
from opentrn.cost import Platform, Training
from opentrn.hw import instances
from opentrn.plan.legal import Degrees, tensor_degree
from opentrn.plan.space import MOST_CHUNKS, MOST_SEQUENCES, Wanted, blocks
from opentrn.workloads import Model


def _of_heads(m: Model, wanted: Wanted, devices: int, legal: Degrees) -> Iterator[str]:
    for tp in wanted.tp:
        degree = tensor_degree(m, tp)
        if not degree.legal:
            yield f"tp {tp}: {degree.why}"
        elif devices % tp == 0 and tp not in legal.legal_tp:
            yield f"tp {tp}: fast links join fewer devices"


def _of_model(m: Model, wanted: Wanted, legal: Degrees) -> Iterator[str]:
    why = {
        "pp": f": there are {m.layers} layers",
        "cp": ": a part of a sequence has at least 4,096 tokens",
        "ep": f" does not divide {m.experts} experts" if m.experts else " needs experts",
    }
    for name, told in why.items():
        for value in getattr(wanted, name):
            if value not in getattr(legal, name):
                yield f"{name} {value}{told}"


def refused(m: Model, wanted: Wanted, devices: int, legal: Degrees) -> str:
    """What is wrong with one of the degrees asked for by itself; "" when none is."""
    parts = (
        f"{name} {value} does not divide {devices:,} devices"
        for name in ("tp", "cp", "pp", "dp")
        for value in getattr(wanted, name) if devices % value
    )  # fmt: skip
    limits = (
        f"{name.replace('_', '-')} {value}: tried up to {most}"
        for name, most in (("micro_batch", MOST_SEQUENCES), ("chunks", MOST_CHUNKS))
        for value in getattr(wanted, name) if value > most
    )  # fmt: skip
    heads = _of_heads(m, wanted, devices, legal)
    return next(chain(heads, parts, _of_model(m, wanted, legal), limits), "")


def _together(m: Model, job: Training, wanted: Wanted, legal: Degrees, devices: int) -> str:
    """The nearest values of one degree asked for that would be legal with the others; or ""."""
    for one in fields(wanted):
        asked = getattr(wanted, one.name)
        if not asked or one.name in ("recompute", "sequence", "zero"):
            continue
        free = blocks(m, job, legal, devices, replace(wanted, **{one.name: ()}))
        values = set(chain.from_iterable(np.unique(getattr(b, one.name)).tolist() for b in free))
        if values:
            near = sorted(values, key=lambda value: abs(value - asked[0]))[:3]
            told = " or ".join(f"{value:.0f}" for value in sorted(near))
            return f"{one.name.replace('_', '-')} {told} with the others as asked for"
    return ""


def _batch(job: Training, wanted: Wanted, legal: Degrees, devices: int) -> tuple[str, str]:
    """(why, the nearest batch) where no number of replicas divides the batch."""
    groups = product(*(wanted.of(name, values) for name, values in (
        ("tp", legal.legal_tp), ("cp", legal.cp), ("pp", legal.pp))))  # fmt: skip
    sizes = {devices // (tp * cp * pp) for tp, cp, pp in groups if devices % (tp * cp * pp) == 0}
    replicas = wanted.of("dp", sorted(sizes))
    if not replicas:
        return "these degrees do not make up the devices", "leave one of them out"
    near = min((max(round(job.batch / r), 1) * r for r in replicas),
               key=lambda batch: abs(batch - job.batch))  # fmt: skip
    told = _listed(replicas[:3]) + (" or more" if len(replicas) > 3 else "")
    return (
        f"a batch of {job.batch:,} does not divide among {told} replicas",
        f"a batch of {near:,}, or fewer machines",
    )


def illegal(
    m: Model, job: Training, wanted: Wanted, allowed: list[tuple[Platform, Degrees]], count: int
) -> LimitError:
    """The refusal of a request without a legal split: what is in the way, and the nearest to it.

    `allowed` has the degrees of `count` machines for each size of their logical cores; told is of
    the first that allows each degree asked for by itself, else of the first.
    """
    whys = [refused(m, wanted, count * where.devices, legal) for where, legal in allowed]
    why = "" if "" in whys else whys[0]
    where, legal = allowed[whys.index(why)]
    devices = count * where.devices
    fix = f"legal: {said(legal)}; dp x micro-batch must divide the batch"
    if not why and (near := _together(m, job, wanted, legal, devices)):
        why, fix = "the degrees asked for do not go together", near
    elif not why:
        why, fix = _batch(job, wanted, legal, devices)
    core = f" (LNC {where.lnc})" if where.name in instances() else ""
    return LimitError(
        f"no split of {m.name} over {devices:,} devices{core} of {where.name} is legal: {why}",
        code="plan.request", fix=fix,
    )  # fmt: skip


def said(legal: Degrees) -> str:
    """The legal degrees in words."""
    rows = (("tp", legal.legal_tp), ("pp", legal.pp), ("cp", legal.cp), ("ep", legal.ep))
    return "; ".join(f"{name} {_listed(values)}" for name, values in rows)


def _listed(values: Iterable[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)
