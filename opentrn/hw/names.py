"""The names people type for a machine, and the price they ask for it."""

from __future__ import annotations

from opentrn.base.errors import UnknownNameError, declare, nearest
from opentrn.hw import schema
from opentrn.hw.fact import Chip, Instance, Price
from opentrn.hw.load import chip, chips, fabrics, instance, instances, prices

declare(
    "hw.target",
    "A target is a chip, a NeuronCore generation, or an instance that carries one.",
    rule="trn1 (gen2), inf2 (gen2), trn2 (gen3), trn3 (gen4), or an instance name",
    fix="`opentrn show targets` lists them",
)

ALIASES = {
    "gen2": "trn1",
    "gen3": "trn2",
    "gen4": "trn3",
    "v2": "trn1",
    "v3": "trn2",
    "v4": "trn3",
    "trn1n": "trn1",
    "trn2u": "trn2",
    "trainium": "trn1",
    "trainium1": "trn1",
    "trainium2": "trn2",
    "trainium3": "trn3",
    "inferentia2": "inf2",
}
"""Other names of the chips."""

INSTANCE_ALIASES = {
    "u-trn2x64": "trn2-ultraserver",
    "trn3-gen1": "trn3-gen1-ultraserver",
    "trn3-gen2": "trn3-gen2-ultraserver",
}
"""Other names of the instances."""


def _plain(name: str) -> str:
    """As typed by people: any case, with SageMaker's `ml.`, with `neuroncore-` before a version."""
    return name.strip().lower().removeprefix("ml.").removeprefix("neuroncore-")


def find_instance(name: str | Instance) -> Instance:
    """The instance under any of its names (`ml.trn1.32xlarge`, `u-trn2x64`)."""
    if isinstance(name, Instance):
        return name
    plain = _plain(name)
    return instance(INSTANCE_ALIASES.get(plain, plain))


def target(name: str | Chip | Instance) -> Chip:
    """The chip that `name` means: a chip, a generation (`gen3`), an instance, or the object itself.

    Raises UnknownNameError `hw.target` with the nearest names.
    """
    if isinstance(name, Chip):
        return name
    if isinstance(name, Instance):
        return name.chip
    plain = _plain(str(name))
    plain = ALIASES.get(plain, plain)
    if plain in chips():
        return chip(plain)
    plain = INSTANCE_ALIASES.get(plain, plain)
    if plain in instances():
        return instance(plain).chip
    known = [*chips(), *ALIASES, *instances(), *INSTANCE_ALIASES]
    close = nearest(plain, known) or [*chips(), "gen2", "gen3", "gen4"]
    raise UnknownNameError(
        f"no target is called {name!r}", code="hw.target", fix=f"try {', '.join(close)}"
    )


def names() -> dict[str, tuple[str, ...]]:
    """Every name `target` and `page` know, by kind."""
    return {
        "chips": chips(),
        "instances": instances(),
        "fabrics": fabrics(),
        "other names": tuple(f"{a} = {n}" for a, n in (ALIASES | INSTANCE_ALIASES).items()),
    }


def price(name: str | Instance, basis: str = "on-demand", region: str | None = None) -> Price:
    """The price of an instance on one basis; the Price says which region and day it is from.

    Without a region: that of us-east-1 if it is listed, else the newest listing. Nothing is made
    up: UnknownNameError `hw.price` names the bases and regions there are.
    """
    if basis not in schema.BASES:
        raise UnknownNameError(
            f"no price basis is called {basis!r}",
            code="hw.price",
            fix=f"one of {', '.join(schema.BASES)}",
        )
    owner = find_instance(name).name
    listed = prices(owner)
    found = [p for p in listed if p.basis == basis and region in (None, p.region)]
    if not found:
        there = ", ".join(sorted({f"{p.basis} ({p.region})" for p in listed}))
        where = f" in {region}" if region else ""
        raise UnknownNameError(
            f"no {basis} price of {owner} is known{where}",
            code="hw.price",
            fix=f"choose one of: {there}" if there else "no price of it is published at all",
        )
    return max(found, key=lambda p: (p.region == "us-east-1", p.date))


def best_price(name: str | Instance) -> Price:
    """The first price there is of: on-demand, capacity-block, spot, ri-3yr. It names its basis.

    Raises UnknownNameError `hw.price` when none is known.
    """
    listed = {p.basis for p in prices(find_instance(name).name)}
    first = next((basis for basis in schema.BASES if basis in listed), schema.BASES[0])
    return price(name, first)
