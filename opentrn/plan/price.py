"""What a plan's machines cost: the price of an instance on a basis, or that none is known."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

from opentrn.base.errors import UnknownNameError, declare
from opentrn.cost import platform
from opentrn.hw import (
    BASES,
    Price,
    accelerator_prices,
    accelerators,
    instances,
    prices,
    read_prices,
)

declare(
    "plan.price",
    "A price has basis, region and date; none is made up.",
    rule="on-demand, capacity-block, spot or ri-3yr of a listed region",
    fix="choose one that is listed, or give your own price file",
)

OWN = "give your own with --prices FILE.toml"
OLD_DAYS = 365
"""A price older than this is flagged."""


def own_prices(file: str | Path) -> dict[str, tuple[Price, ...]]:
    """The prices of your own file by the machine they are for; "" has those that name none.

    Raises what `hw.read_prices` raises, and UnknownNameError `cost.platform` for an `instance` that
    is no machine.
    """
    stem, found = Path(file).name.removesuffix(".toml"), {}
    for one in read_prices(Path(file)):
        named = one.instance != stem or stem in (*instances(), *accelerators())
        found.setdefault(platform(one.instance).name if named else "", []).append(one)
    return {name: tuple(rows) for name, rows in found.items()}


def _listed(name: str, file: str | Path | None) -> tuple[Price, ...]:
    """Your own prices of a machine, else those in the package; none known is an empty tuple."""
    own = own_prices(file) if file is not None else {}
    mine = own.get(name) or own.get("", ())
    if mine:
        return tuple(replace(one, instance=name) for one in mine)
    return accelerator_prices(name) if name in accelerators() else prices(name)


def _chosen(name: str, listed: tuple[Price, ...], basis: str | None, region: str | None) -> Price:
    """Of the first basis there is: us-east-1, else the newest; UnknownNameError `plan.price`."""
    if basis is not None and basis not in BASES:
        raise UnknownNameError(f"no price basis is called {basis!r}", code="plan.price",
                               fix=f"one of {', '.join(BASES)}")  # fmt: skip
    for one in [basis] if basis else BASES:
        found = [p for p in listed if p.basis == one and region in (None, p.region)]
        if found:
            return max(found, key=lambda p: (p.region == "us-east-1", p.date))
    there = ", ".join(dict.fromkeys(f"{p.basis} ({p.region})" for p in listed))
    kind, where = f"{basis} price" if basis else "price", f" in {region}" if region else ""
    raise UnknownNameError(
        f"no {kind} of {name} is known{where}", code="plan.price",
        fix=f"{f'listed: {there}' if there else 'none is listed'}; or {OWN}",
    )  # fmt: skip


def find_price(
    name: str,
    basis: str | None = None,
    region: str | None = None,
    file: str | Path | None = None,
) -> Price | None:
    """The price of a machine: on the basis asked for, else the first there is; None without any.

    `file` is a price file of your own, in the form of those in opentrn/hw/prices; a row is for the
    machine it names as its `instance`, one that names none for whatever machine is planned. A
    machine that the file does not name has its listed price.

    Raises UnknownNameError `plan.price` when a basis or region is asked for that is not listed; the
    message names those that are.
    """
    listed = _listed(name, file)
    if not (listed or basis or region):
        return None
    return _chosen(name, listed, basis, region)


def unpriced(name: str) -> str:
    """What is told of a machine without a price."""
    return f"no price of {name} is public; {OWN}"


def age_note(found: Price, today: datetime.date | None = None) -> str:
    """A warning when a price is more than a year old, else nothing."""
    day = datetime.date.fromisoformat(found.date)
    old = ((today or datetime.date.today()) - day).days
    return f"the price of {found.instance} is {old} days old" if old > OLD_DAYS else ""
