"""How long a collective takes on a topology: latency of its steps, and loads of its links.

    ring, KangaRing    steps alpha + load / bandwidth, but at least load / (share bandwidth):
                       the next slice is sent while one is added; several rings at once
    mesh               latency of routed messages + load / (share bandwidth)
    halving, doubling  the same, log2 steps; groups of ranks begin on different axes
    more planes or     reduce-scatter inside, then across, then all-gather inside
    nodes
    flat ring          one ring through the ranks of all nodes, a cycle for each network interface

The load of a link is the sum over all messages whose way it is on.  Nothing is made for each rank,
so a hundred thousand ranks cost no more than one node.  Shares and latencies: `rates.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2

from opentrn.base import UnknownNameError, UsageError, nearest
from opentrn.comm import kangaring, rdh
from opentrn.comm.choose import MESH_BYTES, RDH_BYTES, bus_factor
from opentrn.comm.cycles import orders
from opentrn.comm.rates import GRADE_ORDER, Rate, rates
from opentrn.comm.topology import Topology, busiest, diameter

ALGORITHMS = ("mesh", "mesh1", "rdh", "ring", "kangaring", "tree")
"""Algorithms of one node; `hier` puts two levels together, `flat` goes round all nodes."""

PHASES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
ONE_WAY = {"all_to_all": ("mesh",), "permute": ("permute",)}
"""Collectives that are done in one way only, and what it is called."""

NETWORK_MESH = 0.5
"""What a mesh gets of the network beside a ring (assumed: the page says low)."""


@dataclass(frozen=True)
class Part:
    """One stage of a collective: `latency` seconds of its steps, `moving` seconds of its bytes."""

    name: str
    steps: int
    latency: float
    moving: float
    latency_grade: str
    moving_grade: str

    @property
    def seconds(self) -> float:
        """Both together."""
        return self.latency + self.moving


@dataclass(frozen=True)
class Timing:
    """Time of a collective of `nbytes` (the larger of a rank's two buffers), and what it is of."""

    collective: str
    algorithm: str
    nbytes: float
    ranks: int
    parts: tuple[Part, ...]

    @property
    def seconds(self) -> float:
        """All parts, one after the other."""
        return sum(part.seconds for part in self.parts)

    @property
    def bus(self) -> float:
        """Bus bandwidth in byte/s, as nccom-test counts it."""
        return self.nbytes / self.seconds * bus_factor(self.collective, self.ranks)

    @property
    def grades(self) -> dict[str, float]:
        """The share of the time that rests on each grade of number."""
        found: dict[str, float] = {}
        for part in self.parts:
            for grade, seconds in (
                (part.latency_grade, part.latency),
                (part.moving_grade, part.moving),
            ):
                found[grade] = found.get(grade, 0.0) + seconds
        total = sum(found.values())
        if not total:
            return {"stated": 1.0}
        return {g: found[g] / total for g in GRADE_ORDER if found.get(g)}


def pick(collective: str, nbytes: float, topology: Topology) -> str:
    """The algorithm of a collective, by its size.

    From Trainium2 on by the published ranges (mesh below 1 MB, halving and doubling to 56 MB, then
    KangaRing where whole chips take part).  They are for whole machines: on some of the chips
    KangaRing may come sooner (the nccom-test guide shows it at 32 MB of 16 ranks), so the faster of
    the two.  The ring is "fallback only" there: where KangaRing cannot run, the faster of it and
    halving and doubling, which nccom-test shows on one chip to 64 MB.  For older chips no ranges
    are published: the faster of mesh and ring on one node, of two levels and the flat ring on more.
    """
    if collective in ONE_WAY:
        return ONE_WAY[collective][0]
    _phases(collective)
    older = topology.chip.generation < 3
    if topology.nodes > 1 and older:
        return _faster(("hier", "flat"), collective, nbytes, topology)
    if topology.nodes > 1 or planes(topology) > 1:
        return "hier"
    if older:
        return _faster(("mesh", "ring"), collective, nbytes, topology)
    return _by_range(collective, nbytes, topology)


def _by_range(collective: str, nbytes: float, topology: Topology) -> str:
    """By the published ranges of sizes, on one node of Trainium2 or later."""
    if nbytes < MESH_BYTES:
        return "mesh"
    paired = pairs(topology)
    last = "kangaring" if paired else "ring"
    if not rdh.fits(topology.ranks):
        return last
    if nbytes > RDH_BYTES:
        return last if paired else _faster(("rdh", last), collective, nbytes, topology)
    whole = topology.fabric is None or topology.chips == int(topology.fabric.chips)
    if whole or topology.chips == 1:
        return "rdh"
    return _faster(("rdh", last), collective, nbytes, topology)


def _faster(names: tuple[str, ...], collective: str, nbytes: float, topology: Topology) -> str:
    return min(names, key=lambda name: time(collective, nbytes, topology, name).seconds)


def pairs(topology: Topology) -> bool:
    """Whether KangaRing runs here: several chips, all ranks of each, an even number of them."""
    whole = topology.per_chip * topology.cores == int(topology.chip.cores)
    return topology.chips > 1 and whole and kangaring.fits(topology.per_chip)


def planes(topology: Topology) -> int:
    """Planes of a torus of three axes that take part; 1 elsewhere."""
    if len(topology.shape) < 3:
        return 1
    size = topology.shape[0] * topology.shape[1]
    return topology.chips // size if topology.chips % size == 0 else 1


def time(
    collective: str, nbytes: float, topology: Topology, algorithm: str | None = None
) -> Timing:
    """Time a collective of `nbytes`; without an algorithm, the one `pick` chooses.

    On several nodes `algorithm` is the one within each, or `flat`, or `hier`.  Raises
    UnknownNameError `comm.collective`, `comm.algorithm`; UsageError `comm.ranks` where the
    algorithm cannot run.

    Source: latencies and shares of bandwidth in `rates.py`, each with source and grade.
    """
    name = algorithm or pick(collective, nbytes, topology)
    _refuse_unknown(collective, name)
    levels = topology.nodes > 1 or planes(topology) > 1
    if topology.ranks == 1:
        copying = rates(topology.chip).copy
        parts = (Part("copy", 0, 0.0, nbytes / copying.value, copying.grade, copying.grade),)
    elif collective == "all_to_all":
        parts = tuple(_all_to_all(nbytes, topology))
    elif collective == "permute":
        parts = tuple(_permute(nbytes, topology))
    elif name == "flat":
        parts = (_flat(nbytes, topology, _phases(collective)),)
    else:
        _refuse_one_level(name, levels)
        inner = None if name == "hier" else algorithm
        parts = tuple(_levels(collective, nbytes, topology, inner))
    shown = "hier" if levels and name != "flat" else name
    return Timing(collective, shown, nbytes, topology.ranks, parts)


def _refuse_unknown(collective: str, name: str) -> None:
    """UnknownNameError for a collective, or an algorithm of it, that there is not."""
    known = ONE_WAY.get(collective, (*ALGORITHMS, "hier", "flat"))
    if collective not in ONE_WAY:
        _phases(collective)
    if name not in known:
        raise UnknownNameError(
            f"there is no algorithm `{name}` of {collective}",
            code="comm.algorithm",
            fix=f"use {', '.join(known)}",
        )


def _phases(collective: str) -> int:
    if collective not in PHASES:
        known = [*PHASES, *ONE_WAY]
        raise UnknownNameError(
            f"there is no collective `{collective}`",
            code="comm.collective",
            fix=f"nearest names: {', '.join(nearest(collective, known)) or ', '.join(known)}",
        )
    return PHASES[collective]


# ------------------------------------------------------------------------------------------ levels


def _levels(collective: str, nbytes: float, t: Topology, algorithm: str | None) -> Iterator[Part]:
    """Within a plane, across planes, across nodes; each level reduces what the next carries."""
    phases = _phases(collective)
    flat = Topology(
        t.machine, t.chip, t.fabric, t.chips // planes(t), t.per_chip, t.cores
    )
    if flat.ranks > 1:
        name = algorithm or pick(collective, nbytes, flat)
        yield from _plane(name, nbytes, flat, phases)
    if planes(t) > 1:
        yield _across_planes(nbytes, t, phases)
    if t.nodes > 1:
        yield _across_nodes(nbytes, t, phases)


def _across_planes(nbytes: float, t: Topology, phases: int) -> Part:
    """A ring through the same chip of each plane, both ways round; each carries its chip's part."""
    own, count = rates(t.chip), planes(t)
    size = t.chips // count
    steps = phases * (count - 1)
    part = nbytes / size / count / 2  # of a chip's share, one slice each way
    traffic = [(z * size, (z + 1) % count * size, part) for z in range(count)]
    back = [(b, a, n) for a, b, n in traffic]
    raw = steps * busiest(t, traffic + back)
    return _ring_part("across planes", steps, own.ring_step, raw, own.link, 0.0, own.through)


def _across_nodes(nbytes: float, t: Topology, phases: int) -> Part:
    """The fastest of ring, halving and doubling, and mesh over the network."""
    own, x = rates(t.chip), t.nodes
    chips = int(t.fabric.chips) if t.fabric is not None else 1
    speed = t.network * t.chips / chips * own.network.value
    moving = phases * (x - 1) / x * nbytes / speed
    ways = [(phases * (x - 1), moving), (phases, moving / NETWORK_MESH)]
    if rdh.fits(x):
        ways.append((phases * int(log2(x)), moving))
    steps, moving = min(ways, key=lambda way: way[0] * t.network_latency + way[1])
    return Part("network", steps, steps * t.network_latency, moving, "stated", own.network.grade)


def _refuse_one_level(name: str, levels: bool) -> None:
    """UsageError `comm.ranks` for `hier` where there is nothing to put together."""
    if name == "hier" and not levels:
        raise UsageError(
            "a hierarchy of one level", code="comm.ranks", fix="ask for more nodes (-N)"
        )


def _flat(nbytes: float, t: Topology, phases: int) -> Part:
    """One ring through all ranks of all nodes: as many cycles at once as a node has interfaces.

    Every step waits for the slowest of its links, the network, and the collective cores serve the
    cycles in turn (AWS Neuron, inter-node collectives: the flat ring).  Raises UsageError
    `comm.ranks` on one node.
    """
    if t.nodes < 2:
        raise UsageError(
            "a flat ring goes round several nodes", code="comm.ranks", fix="ask for more nodes (-N)"
        )
    own, steps = rates(t.chip), phases * (t.ranks - 1)
    latency = steps * (own.ring_step.value + t.interfaces * own.channel.value)
    latency += phases * t.nodes * t.network_latency
    chips = int(t.fabric.chips) if t.fabric is not None else 1
    speed = t.network * t.chips / chips * own.network.value
    moving = phases * (t.ranks - 1) / t.ranks * nbytes / speed
    return Part("flat ring", steps, latency, moving, own.channel.grade, own.network.grade)


# ------------------------------------------------------------------------------ one node, one plane


def _plane(name: str, nbytes: float, t: Topology, phases: int) -> list[Part]:
    """The parts of one algorithm on the chips of one plane, or on one chip."""
    if name == "rdh" and not rdh.fits(t.ranks):
        raise UsageError(f"halving and doubling on {t.ranks} ranks", code="comm.ranks")
    if name == "kangaring" and not pairs(t):
        raise UsageError(
            "KangaRing needs several chips, all ranks of each, an even number", code="comm.ranks"
        )
    if name in ("ring", "kangaring"):
        return [_around(name, nbytes, t, phases)]
    if name in ("tree", "mesh1"):
        return [_whole(name, nbytes, t, phases)]
    parts = [_inside(name, nbytes, t, phases)] if t.per_chip > 1 else []
    if t.chips > 1:
        parts.append(_between(name, nbytes, t, phases))
    return parts


def _inside(name: str, nbytes: float, t: Topology, phases: int) -> Part:
    """Among the ranks of each chip, directly: all at once, or by halving and doubling alone."""
    own, p = rates(t.chip), t.per_chip
    steps = phases * (int(log2(p)) if name == "rdh" and t.chips == 1 else 1)
    moving = phases * (p - 1) / p * nbytes / own.direct.value
    return Part(
        "within chips", steps, steps * own.chip_step.value, moving, own.chip_step.grade,
        own.direct.grade,
    )  # fmt: skip


def _between(name: str, nbytes: float, t: Topology, phases: int) -> Part:
    """Among chips: every chip to every other, or step by step along the axes of a hypercube."""
    own, n = rates(t.chip), t.chips
    if name == "mesh":
        traffic = [(a, b, nbytes / n) for a in range(n) for b in range(n) if a != b]
        steps, raw, share, far = 1, busiest(t, traffic), own.mesh, diameter(t)
        floor = 0.0
    else:
        steps, raw, share, far = int(log2(n)), sum(_cube_seconds(nbytes, t)), own.link, 1
        floor = (n - 1) / n * nbytes / t.per_chip / own.direct.value
    latency = phases * steps * (own.message.value + far * own.passed.value)
    moving = phases * max(raw / share.value, floor)
    return Part("across chips", phases * steps, latency, moving, own.message.grade, share.grade)


def _cube_seconds(nbytes: float, t: Topology) -> Iterator[float]:
    """Seconds of the links, for each step of doubling: twice the bytes of the step before."""
    n = t.chips
    axes = int(log2(n))
    for step in range(axes):
        part = nbytes / t.per_chip / n * 2**step
        traffic = []
        for place in range(t.per_chip):
            chips = cube_order(t, place)
            traffic += [(chips[r], chips[r ^ (1 << step)], part) for r in range(n)]
        yield busiest(t, traffic)


def cube_order(t: Topology, place: int) -> tuple[int, ...]:
    """The chips as corners of a hypercube whose edges are links of the torus (Gray code).

    Ranks of another `place` on their chip take the axes in another order, so that all links work.
    """
    axes, sizes, left = int(log2(t.chips)), [], t.chips
    for size in t.shape if t.fabric is not None and t.fabric.topology == "torus" else ():
        sizes.append(min(size, left))
        left //= sizes[-1]
    sizes.append(left)
    found = []
    for corner in range(t.chips):
        turned = sum(((corner >> k) & 1) << (k + place) % axes for k in range(axes))
        chip, scale = 0, 1
        for size in sizes:
            chip += _ungray(turned % size) * scale
            turned //= size
            scale *= size
        found.append(chip)
    return tuple(found)


def _ungray(code: int) -> int:
    """The place of a code in the Gray sequence: 0, 1, 3, 2 -> 0, 1, 2, 3."""
    place = code
    while code := code >> 1:
        place ^= code
    return place


def _around(name: str, nbytes: float, t: Topology, phases: int) -> Part:
    """Rings along disjoint cycles, a slice of the data on each; KangaRing passes two chunks."""
    own, rings = rates(t.chip), orders(t)
    each = 2 if name == "kangaring" else 1
    stations = t.ranks // each
    chunk = nbytes / stations / len(rings)
    traffic = [
        (order[k], order[(k + 1) % len(order)], chunk)
        for order in rings
        for k in range(len(order))
        if len(order) > 1
    ]
    steps = phases * (stations - 1)
    passed = steps * nbytes / stations
    if t.chips == 1:
        rate = Rate(own.core.value * t.cores, own.core.grade, own.core.source)
        step = own.chip_step
    else:
        each_core = Rate(own.through.value * t.cores, own.through.grade, own.through.source)
        each_ring = Rate(own.ring.value * len(rings), own.ring.grade, own.ring.source)
        rate = min(each_core, each_ring, key=lambda found: found.value)
        step = own.ring_step
    floor = passed / rate.value
    raw = steps * busiest(t, traffic)
    return _ring_part(name, steps + phases * (each - 1), step, raw, own.link, floor, rate)


def _ring_part(
    name: str, steps: int, step: Rate, raw: float, share: Rate, floor: float, rate: Rate
) -> Part:
    """A pipelined ring: latency beside the links at full speed, or their share, or the engines."""
    latency = steps * step.value
    total = max(latency + raw, raw / share.value, floor if raw else latency + floor)
    grade = rate.grade if floor > raw / share.value else share.grade
    latency = min(latency, total)  # hidden behind the bytes where those take longer
    return Part(name, steps, latency, total - latency, step.grade, grade)


def _whole(name: str, nbytes: float, t: Topology, phases: int) -> Part:
    """Whole buffers: up and down a tree, or once from every rank to every other."""
    own = rates(t.chip)
    far = diameter(t)
    step = own.message.value + far * own.passed.value if far else own.chip_step.value
    if name == "tree":
        steps = phases * int(t.ranks - 1).bit_length()
        moving = steps * nbytes / min(own.direct.value, _slowest(t) * own.mesh.value)
    else:
        steps, n = 1, t.chips
        traffic = [
            (a, b, nbytes * t.per_chip**2) for a in range(n) for b in range(n) if a != b
        ]
        inside = (t.ranks - 1) * nbytes / own.direct.value
        moving = max(busiest(t, traffic) / own.mesh.value, inside)
    return Part(name, steps, steps * step, moving, own.message.grade, own.mesh.grade)


def _slowest(t: Topology) -> float:
    """byte/s of a single message between the chips that take part."""
    if t.chips == 1:
        return float("inf")
    return min(1.0 / busiest(t, [(0, chip, 1.0)]) for chip in range(1, t.chips))


# -------------------------------------------------------------------------- all-to-all and permute


def _all_to_all(nbytes: float, t: Topology) -> Iterator[Part]:
    """Every rank sends each other one its part, all at once and routed."""
    own, n = rates(t.chip), t.chips
    each = t.per_chip**2 * nbytes / t.ranks
    traffic = [(a, b, each) for a in range(n) for b in range(n) if a != b]
    wires = busiest(t, traffic) / own.mesh.value
    inside = (t.here - 1) / t.ranks * nbytes / own.direct.value
    latency = own.message.value + diameter(t) * own.passed.value
    yield Part("mesh", 1, latency, max(wires, inside), own.message.grade, own.mesh.grade)
    if t.nodes > 1:
        chips = int(t.fabric.chips) if t.fabric is not None else 1
        speed = t.network * n / chips * own.network.value * NETWORK_MESH
        leaving = t.here * nbytes * (t.nodes - 1) / t.nodes
        yield Part("network", 1, t.network_latency, leaving / speed, "stated", "assumed")


def _permute(nbytes: float, t: Topology) -> Iterator[Part]:
    """Each rank sends all it has to the next one; chips are passed along the first ring."""
    own, order = rates(t.chip), orders(t.one_node)[0]
    traffic = [(a, b, nbytes) for a, b in zip(order, order[1:] + order[:1], strict=True) if a != b]
    wires = busiest(t, traffic) / own.link.value
    moving = max(wires, nbytes / own.copy.value)
    yield Part("permute", 1, own.call.value, moving, own.call.grade, own.link.grade)
    if t.nodes > 1:
        chips = int(t.fabric.chips) if t.fabric is not None else 1
        speed = t.network / chips * own.network.value
        yield Part("network", 1, t.network_latency, nbytes / speed, "stated", own.network.grade)
