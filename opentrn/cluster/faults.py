"""What fails, how often, and what recovery takes: the rows of `faults.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from opentrn.base import UnknownNameError, UsageError, declare, nearest
from opentrn.comm import orders, place
from opentrn.cost import Platform
from opentrn.hw import instance, instances

declare(
    "cluster.fault",
    "A kind of fault has a name, a mean time between failures above zero, and an effect.",
    rule="hours between failures of one part; the effect is lost, job, slow or link",
    fix="name a kind that `opentrn simulate` lists, or leave it out",
)
declare(
    "cluster.setting",
    "Settings of recovery and storage are known by name and not negative.",
    rule="detect, replace, restart, notice, repair in seconds; jitter a share of a step, at most "
    "1; snapshot, write, read in byte/s",
    fix="correct the setting named above",
)

FILE = Path(__file__).with_name("faults.toml")
HOUR = 3600.0
LONGEST = 1e9
"""Seconds of the longest pause of a recovery, some thirty years."""
_RATE = (1.0, 1e36)
_BOUNDS = {"jitter": (0.0, 1.0), "snapshot": _RATE, "write": _RATE, "read": _RATE}
EFFECTS = ("lost", "job", "slow")
"""The machine is taken out; the job stops and the machine stays; the job goes on, slower."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault: `rate` a second for each machine, and its effect (one of EFFECTS).

    A slow machine multiplies the compute and the communication of every step of its job.
    """

    name: str
    rate: float
    effect: str
    compute: float = 1.0
    communication: float = 1.0
    source: str = "caller"
    grade: str = "assumed"

    def __post_init__(self):
        if self.rate < 0 or self.effect not in EFFECTS or min(self.compute, self.communication) < 1:
            raise UsageError(f"fault {self.name!r} cannot be: {self}", code="cluster.fault")

    @property
    def machine_hours(self) -> float:
        """Mean hours between two of these on one machine."""
        return 1.0 / self.rate / HOUR if self.rate else float("inf")


@dataclass(frozen=True, slots=True)
class Setting:
    """One number of recovery or storage with where it comes from."""

    value: float
    source: str
    grade: str
    because: str


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def settings(**changed: float) -> Mapping[str, Setting]:
    """Recovery (seconds) and storage (byte/s) as the file has them, some changed.

    Raises UsageError `cluster.setting`. Source: faults.toml, each with its reason.
    """
    data = _file()
    found = {
        name: Setting(float(value), data["sources"][source], grade, because)
        for name, (value, source, grade, because) in data["recovery"].items()
    }
    for name, value in changed.items():
        if name not in found:
            raise UsageError(f"no setting is called {name!r}", code="cluster.setting",
                             fix=f"one of {', '.join(found)}")  # fmt: skip
        least, most = _BOUNDS.get(name, (0.0, LONGEST))
        if not least <= value <= most:
            raise UsageError(f"{name} = {value:g}, from {least:g} to {most:g}",
                             code="cluster.setting")  # fmt: skip
        found[name] = Setting(float(value), "caller", "assumed", "given by the caller")
    return found


def ring_share(where: Platform) -> float:
    """The share of a machine's ring bandwidth that is left when one link of it is broken.

    A link lies on one disjoint cycle, both ways round, so two of the rings stop (`comm.orders`);
    on a switched fabric one of a chip's links does. A torus of three axes has its rings in planes.
    0 where nothing is left, or no fabric is known.

    Source: the fabric of `hw`, its rings of `comm.orders`.
    """
    fabric = instance(where.name).fabric if where.name in instances() else None
    if fabric is None or where.chips < 2:
        return 0.0
    if fabric.topology == "switched":
        links = min(int(link.links) for link in fabric.links)
        return (links - 1) / links
    plane = prod(fabric.shape[:2]) * where.devices // where.chips
    rings = len(orders(place(plane, where.name, 1, where.lnc)))
    return max(rings - 2, 0) / rings


def _fault(row: Mapping[str, Any], where: Platform, hours: float | None) -> Fault:
    """A row of the file for one machine; `hours` between failures of one part replaces its rate."""
    data, own = _file(), where.chips if row["per"] == "chip" else 1
    between = hours if hours is not None else row["units"] * row["days"] * 24.0 / row["count"]
    if not between > 0:
        raise UsageError(f"{row['name']}: {between:g} h between failures", code="cluster.fault",
                         fix="more than 0 hours; inf for never")  # fmt: skip
    rate = own / between / HOUR
    source, grade = data["sources"][row["source"]], row["grade"]
    if hours is not None:
        source, grade = "caller", "assumed"
    if row["does"] == "link":
        share = ring_share(where)
        if share == 0:
            return Fault(row["name"], rate, "lost", source=source, grade=grade)
        return Fault(row["name"], rate, "slow", 1.0, 1.0 / share, source, grade)
    return Fault(row["name"], rate, row["does"], row.get("compute", 1.0), 1.0, source, grade)


def faults(where: Platform, **hours: float) -> tuple[Fault, ...]:
    """The kinds of faults of one machine of a platform.

    `hours` give mean times between failures of one chip (`chip`, `link`, `software`) or one machine
    (`host`, `maintenance`, `straggler`) in place of the file's; infinity switches a kind off.
    Raises UnknownNameError and UsageError `cluster.fault`.

    Source: faults.toml: Llama 3, arXiv 2407.21783, table 5, and what is assumed.
    """
    rows = _file()["fault"]
    known = [row["name"] for row in rows]
    for name in hours:
        if name not in known:
            close = ", ".join(nearest(name, known)) or ", ".join(known)
            raise UnknownNameError(f"no kind of fault is called {name!r}", code="cluster.fault",
                                   fix=f"try {close}")  # fmt: skip
    return tuple(_fault(row, where, hours.get(row["name"])) for row in rows)
