"""What a plan's machines cost: the price of an instance on a basis, or that none is known."""

from __future__ import annotations

import datetime
from pathlib import Path

from opentrn.base.errors import FileFormatError, UnknownNameError, declare
from opentrn.hw import (
    BASES,
    Price,
    accelerator_prices,
    accelerators,
    best_price,
    price,
    read_prices,
)

declare(
    "plan.price",
    "A price has basis, region and date; none is made up.",
    rule="on-demand, capacity-block, spot or ri-3yr of a listed region",
    fix="choose one that is listed, or give your own price file",
)

OLD_DAYS = 365
"""A price older than this is flagged."""


def _newest(name: str, listed: tuple[Price, ...], basis: str | None, region: str | None) -> Price:
    """The newest listed price of the first basis there is; UnknownNameError names what there is."""
    for one in [basis] if basis else BASES:
        found = [p for p in listed if p.basis == one and region in (None, p.region)]
        if found:
            return max(found, key=lambda p: p.date)
    there = ", ".join(f"{p.basis} ({p.region})" for p in listed) or "none"
    raise UnknownNameError(
        f"no such price of {name} is known", code="plan.price", fix=f"listed: {there}"
    )


def _other(name: str, basis: str | None, region: str | None) -> Price | None:
    listed = accelerator_prices(name)
    return _newest(name, listed, basis, region) if listed or basis or region else None


def find_price(
    name: str,
    basis: str | None = None,
    region: str | None = None,
    file: str | Path | None = None,
) -> Price | None:
    """The price of a machine: on the basis asked for, else the first there is; None without any.

    `file` is a price file of your own, in the form of those in opentrn/hw/prices; its prices are
    taken for whatever machine is planned.

    Raises UnknownNameError (`hw.price`, `plan.price`) when a basis or region is asked for that is
    not listed; the message names those that are.
    """
    if file is not None:
        return _newest(name, read_prices(Path(file)), basis, region)
    if name in accelerators():
        return _other(name, basis, region)
    if basis or region:
        return price(name, basis or "on-demand", region)
    try:
        return best_price(name)
    except UnknownNameError:
        return None


def age_note(found: Price, today: datetime.date | None = None) -> str:
    """A warning when a price is more than a year old, else nothing."""
    try:
        day = datetime.date.fromisoformat(found.date)
    except ValueError as error:
        raise FileFormatError(f"{found.date} is no date", code="plan.price") from error
    old = ((today or datetime.date.today()) - day).days
    return f"the price of {found.instance} is {old} days old" if old > OLD_DAYS else ""
