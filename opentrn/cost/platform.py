"""A machine as a planner sees it: devices, their rates and memory, and the tiers that join them.

A device is what one rank of a framework runs on: a logical NeuronCore, a GPU, a TPU chip. Tiers
are nested: a chip, a row of a torus, an instance, the network. Each gives every device a share of
bandwidth in one direction when all devices talk at once; a group that spans several tiers reduces
inside the smaller one first (see `comm.tiers`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from opentrn.base.errors import LimitError, UnknownNameError, UsageError, declare, nearest
from opentrn.comm import NETWORK, Tier
from opentrn.cost.estimate import weakest
from opentrn.hw import ALIASES as OTHER_NAMES
from opentrn.hw import (
    GRADES,
    Accelerator,
    Chip,
    Instance,
    accelerator,
    accelerators,
    instance,
    instances,
)

declare(
    "cost.platform",
    "A platform is an instance of AWS or a system of another maker.",
    rule="an instance name, u-trn2x64, or a system such as p5.48xlarge, tpu-v5p, mi300x",
    fix="`opentrn show targets` lists those of AWS, `opentrn.hw.accelerators()` the others",
)
declare(
    "cost.lnc",
    "A logical core is one or two physical cores.",
    rule="lnc is 1 or 2 on trn2 and trn3, and 1 on trn1 and inf2",
    fix="leave --lnc out for the default",
)

@dataclass(frozen=True, slots=True)
class Named:
    """One calibrated number: value, source, grade and reason."""

    value: float
    source: str
    grade: str
    because: str


@dataclass(frozen=True)
class Platform:
    """One kind of machine. Rates are of one device, in SI units; `devices` are of one machine.

    `reserved` is memory of each device that no program gets (microcode, profiler and rings),
    `page` the granule of its scratchpad, `watts` the design power of one chip (0: no figure).
    `grades` tells how sure the peak, memory and power are.
    """

    name: str
    device: str
    devices: int
    chips: int
    peaks: Mapping[str, float]
    memory: float
    memory_bandwidth: float
    tiers: tuple[Tier, ...]
    efficiency: Mapping[str, Named]
    grades: Mapping[str, str]
    reserved: float = 0.0
    page: float = 0.0
    host_memory: float = 0.0
    watts: float = 0.0
    lnc: int = 1
    family: str = ""
    notes: tuple[str, ...] = field(default=())

    def __hash__(self) -> int:
        return hash((self.name, self.lnc))

    def eff(self, name: str) -> float:
        """The value of a named efficiency."""
        return self.efficiency[name].value

    @property
    def reached(self) -> tuple[Tier, ...]:
        """The tiers with the bandwidth that collectives reach."""
        share = {True: self.eff("network"), False: self.eff("link")}
        return tuple(
            replace(tier, bandwidth=tier.bandwidth * share[tier.size == NETWORK])
            for tier in self.tiers
        )

    def wait(self, size):
        """Seconds that one collective waits beyond its bytes; none in a group of one."""
        return np.where(np.asarray(size) > 1, self.eff("sync"), 0.0)

    def peak(self, dtype: str = "bfloat16") -> float:
        """Dense flop/s of one device; UsageError `cost.dtype` for a type it has no rate for."""
        kind = {"bfloat16": "bf16", "float16": "bf16", "float32": "fp32", "float8": "fp8"}.get(
            dtype, dtype
        )
        if kind not in self.peaks:
            raise UsageError(
                f"{self.name} has no {dtype} rate", code="cost.dtype",
                fix=f"one of {', '.join(self.peaks)}",
            )  # fmt: skip
        return self.peaks[kind]

    def grade(self, *names: str) -> str:
        """The weakest grade of these named efficiencies and rates ("peak", "memory rate")."""
        own = self.efficiency
        return weakest(own[n].grade if n in own else self.grades[n] for n in names)

    def with_efficiency(self, **values: float) -> Platform:
        """The same platform with other efficiencies, graded `assumed`."""
        own = dict(self.efficiency)
        for name, value in values.items():
            own[name] = Named(value, "caller", "assumed", "given by the caller")
        return replace(self, efficiency=own)


@cache
def efficiencies(family: str) -> dict[str, Named]:
    """The named efficiencies of a family of machines ("gpu", "tpu", "trn1", "trn2")."""
    data = tomllib.loads((Path(__file__).parent / "efficiencies.toml").read_text(encoding="utf-8"))
    sources = data.pop("sources")
    found = {}
    for name, (value, source, grade, because) in data[family].items():
        found[name] = Named(float(value), " ".join(sources[source].split()), grade, because)
        weakest([grade, GRADES[0]])
    return found


def _torus(owner: Instance, lnc: int) -> list[Tier]:
    """Chip, then one tier for each axis of the torus."""
    chip, fabric = owner.chip, owner.fabric
    devices = chip.cores // lnc
    rate = chip.dma.engines * chip.dma.engine_rate * lnc / 2
    tiers = [Tier("chip", devices, rate, 0.0, chip.fact("dma.engine_rate").grade)]
    size = devices
    for axis, (count, link) in enumerate(zip(reversed(fabric.shape), fabric.links, strict=False)):
        size *= count
        out = link.links * link.bandwidth / devices
        name = "instance" if size == owner.chips * devices else ("row", "plane", "cube")[axis]
        grade = fabric.fact("fabric.hop").grade
        tiers.append(Tier(name, size, out, fabric.hop, grade, axis=True))
    return tiers


def _switched(owner: Instance, lnc: int) -> list[Tier]:
    """Chip, then the levels of the switches, narrowest bandwidth last."""
    chip, fabric = owner.chip, owner.fabric
    devices = chip.cores // lnc
    rate = chip.dma.engines * chip.dma.engine_rate * lnc / 2
    tiers = [Tier("chip", devices, rate, 0.0, chip.fact("dma.engine_rate").grade)]
    servers, each = fabric.shape if len(fabric.shape) == 2 else (1, fabric.chips)
    levels = [each, *([servers // 2, 2] if len(fabric.links) == 3 else [servers])]
    size = devices
    names = ("server", "rack", "instance")
    for name, count, link in zip(names, levels, fabric.links, strict=False):
        size *= count
        tiers.append(Tier(name, size, link.links * link.bandwidth / devices, fabric.hop, "assumed"))
    return tiers


def _network(owner: Instance, lnc: int) -> Tier:
    devices = owner.cores // lnc
    latency, grade = 15e-6, "assumed"
    if owner.fabric is not None and "efa.latency" in owner.fabric.facts:
        found = owner.fabric.fact("efa.latency")
        latency, grade = found.value, found.grade
    grade = weakest([grade, owner.fact("host.network").grade])
    return Tier("network", NETWORK, owner.host.network / devices, latency, grade)


def _trainium(owner: Instance, lnc: int | None) -> Platform:
    chip: Chip = owner.chip
    lnc = chip.logical_cores if lnc is None else lnc
    if lnc not in (1, chip.logical_cores):
        raise LimitError(f"{chip.name} has no logical core of {lnc}", code="cost.lnc")
    if owner.fabric is None:
        devices = chip.cores // lnc
        rate = chip.dma.engines * chip.dma.engine_rate * lnc / 2
        tiers = [Tier("chip", devices, rate, 0.0, "derived")]
    else:
        shaped = _torus if owner.fabric.topology == "torus" else _switched
        tiers = shaped(owner, lnc) if owner.fabric.topology != "ring" else _ring(owner, lnc)
    share = lnc / chip.cores
    peaks = {k: getattr(chip, f"peak_{k}") * share for k in ("bf16", "fp8", "fp32")}
    family = "trn1" if chip.generation == 2 else "trn2"
    return Platform(
        name=owner.name, device="logical core" if lnc > 1 else "core",
        devices=owner.cores // lnc, chips=owner.chips, peaks=peaks, memory=chip.hbm * share,
        memory_bandwidth=chip.hbm_bandwidth * share, tiers=(*tiers, _network(owner, lnc)),
        efficiency=_for_chip(chip, family), lnc=lnc, family=chip.name,
        grades={"peak": chip.fact("chip.peak_bf16").grade,
                "memory rate": chip.fact("chip.hbm_bandwidth").grade,
                "power": _power_grade(chip, "chip.tdp")},
        reserved=lnc * float(chip.memory.microcode), page=float(chip.memory.scratchpad_page),
        host_memory=float(owner.instance.host_memory), watts=_watts(chip, "chip.tdp"),
    )  # fmt: skip


def _ring(owner: Instance, lnc: int) -> list[Tier]:
    chip, fabric = owner.chip, owner.fabric
    devices = chip.cores // lnc
    rate = chip.dma.engines * chip.dma.engine_rate * lnc / 2
    link = fabric.links[0]
    out = link.links * link.bandwidth / devices
    return [
        Tier("chip", devices, rate, 0.0, "derived"),
        Tier("instance", owner.chips * devices, out, fabric.hop, fabric.fact("fabric.hop").grade),
    ]


def _for_chip(chip: Chip, family: str) -> dict[str, Named]:
    """Efficiencies of a chip; those of another generation count as assumed."""
    own = efficiencies(family)
    if chip.name in ("trn1", "trn2", "inf2"):
        return own
    return {
        name: Named(n.value, n.source, "assumed", f"as for {family}: {n.because}")
        for name, n in own.items()
    }


def _watts(machine: Chip | Accelerator, path: str) -> float:
    """Design power of a chip in watts, 0 where no figure is known."""
    return float(machine.fact(path).value) if path in machine.facts else 0.0


def _power_grade(machine: Chip | Accelerator, path: str) -> str:
    return machine.fact(path).grade if path in machine.facts else GRADES[-1]


def _other(name: str) -> Platform:
    found = accelerator(name)
    family = "tpu" if found.maker == "Google" else "gpu"
    own = dict(efficiencies(family))
    if "accelerator.measured_bf16" in found.facts:
        fact = found.fact("accelerator.measured_bf16")
        source = found.sources[fact.source]
        share = fact.value / found.peak_bf16
        own["matmul"] = Named(share, source, fact.grade, f"measured {fact.text}")
    if family == "gpu" and not found.title.startswith("A100"):
        fitted = ("memory", "link", "passes")
        own |= {n: Named(own[n].value, own[n].source, "assumed", "fitted on A100") for n in fitted}
    peaks = {
        kind: float(getattr(found, f"peak_{kind}"))
        for kind in ("bf16", "fp8", "fp32") if f"accelerator.peak_{kind}" in found.facts
    }  # fmt: skip
    count = found.system.accelerators
    link = Tier("instance" if found.system.domain == count else "pod", found.system.domain,
                float(found.link_bandwidth), own["hop"].value, own["hop"].grade, once=True)
    network = Tier("network", NETWORK, found.system.network / count, 2e-5, "assumed")
    host = float(found.system.host_memory) if "system.host_memory" in found.facts else 0.0
    return Platform(
        name=found.name, device="accelerator", devices=count, chips=count, peaks=peaks,
        memory=float(found.memory), memory_bandwidth=float(found.memory_bandwidth),
        tiers=(link, network), efficiency=own, family=family, host_memory=host,
        grades={"peak": found.fact("accelerator.peak_bf16").grade,
                "memory rate": found.fact("accelerator.memory_bandwidth").grade,
                "power": _power_grade(found, "accelerator.tdp")},
        reserved=1.5e9, watts=_watts(found, "accelerator.tdp"),
    )  # fmt: skip


@cache
def platform(name: str, lnc: int | None = None) -> Platform:
    """The platform of an instance (`trn2.48xlarge`) or of another maker's system (`p5`, `tpu-v5p`).

    `lnc` is physical cores in one logical core (the chip's default). Raises UnknownNameError
    `cost.platform` with the names there are, LimitError `cost.lnc`.
    """
    plain = name.strip().lower()
    if plain in accelerators() or plain in OTHER_NAMES:
        return _other(plain)
    short = {"trn1": "trn1.32xlarge", "trn2": "trn2.48xlarge", "trn3": "trn3-gen2-ultraserver",
             "inf2": "inf2.48xlarge"}  # fmt: skip
    try:
        owner = instance(short.get(plain, plain))
    except UnknownNameError:
        known = [*short, *instances(), *accelerators(), *OTHER_NAMES]
        alike = [one for one in known if one[:1] == plain[:1]]
        close = nearest(plain, known, 4) or alike[:4] or [*short, "p5", "tpu-v5p", "mi300x"]
        raise UnknownNameError(f"no machine is called {name!r}", code="cost.platform",
                               fix=f"try {', '.join(close)}") from None  # fmt: skip
    return _trainium(owner, lnc)
