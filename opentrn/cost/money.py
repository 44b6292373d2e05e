"""Dollars for machine time: always with basis, region, date and source, and what is assumed.

A price is for a whole instance. Work that uses some of its cores is charged their share,

    dollars = hourly / 3600 * seconds * cores_used / cores,

which is true only when other paying work fills the other cores; the number for an instance that
idles beside it stands next to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from opentrn.base.errors import LimitError, UsageError
from opentrn.base.units import dollars_text, seconds_text
from opentrn.cost.estimate import Estimate
from opentrn.hw import Instance, Price, instance, price

SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True)
class Dollars:
    """An amount of money, and all that is needed to check it.

    `value` is for the cores used, `whole` for the whole instance over the same time. `per` says
    what one amount buys ("run", "million tokens").
    """

    value: float
    whole: float
    seconds: float
    cores_used: int
    cores: int
    price: Price
    per: str = "run"

    @property
    def filling(self) -> str:
        """How the cores are assumed to be filled."""
        if self.cores_used == self.cores:
            return f"all {self.cores} cores of the instance work on it"
        return (
            f"{self.cores_used} of {self.cores} cores, the others filled with other paid work; "
            f"{dollars_text(self.whole)} if they idle"
        )

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{dollars_text(self.value)} per {self.per}: {self.filling}; {self.price}"


def _price(owner: Instance, basis: str | Price, region: str | None) -> Price:
    if not isinstance(basis, Price):
        return price(owner, basis, region)
    if basis.instance != owner.name:
        raise UsageError(
            f"this price is for {basis.instance}, not {owner.name}",
            code="hw.price",
            fix=f"use best_price({owner.name!r}), or a basis",
        )
    return basis


def dollars(
    seconds: float | Estimate,
    machine: str | Instance,
    *,
    cores_used: int | None = None,
    basis: str | Price = "on-demand",
    region: str | None = None,
    per: str = "run",
) -> Dollars:
    """What `seconds` on `cores_used` physical cores of an instance cost (all cores if left out).

    `basis` is "on-demand", "capacity-block", "spot", "ri-3yr", or a Price such as
    `best_price(machine)`. There is no silent fallback: an instance without that price (every trn2
    size has no on-demand one) raises UnknownNameError `hw.price` with the bases it has.
    Raises LimitError `cost.cores`, UsageError `cost.negative`.

    Source: the Price, which names its basis, region, date and document.
    """
    owner = instance(machine)
    time = float(seconds)
    used = owner.cores if cores_used is None else cores_used
    if time < 0:
        raise UsageError(f"{seconds_text(time)} is no duration", code="cost.negative")
    if not 1 <= used <= owner.cores:
        raise LimitError(f"{owner.name} has {owner.cores} cores, not {used}", code="cost.cores")
    paid = _price(owner, basis, region)
    whole = paid.hourly / SECONDS_AN_HOUR * time
    return Dollars(
        value=whole * used / owner.cores,
        whole=whole,
        seconds=time,
        cores_used=used,
        cores=owner.cores,
        price=paid,
        per=per,
    )


def dollars_per_million(
    latency: float | Estimate,
    items: float,
    machine: str | Instance,
    *,
    cores_used: int | None = None,
    basis: str | Price = "on-demand",
    region: str | None = None,
    item: str = "items",
) -> Dollars:
    """What a million items cost when one call of `latency` seconds makes `items` of them.

    Calls follow each other without a gap, on every group of `cores_used` cores. `seconds` of the
    result is the time one group takes for a million. Raises as `dollars` does.

    Source: as `dollars`.
    """
    if items <= 0:
        raise UsageError(f"a call makes {items} {item}", code="cost.negative")
    return dollars(
        float(latency) * 1e6 / items,
        machine,
        cores_used=cores_used,
        basis=basis,
        region=region,
        per=f"million {item}",
    )
