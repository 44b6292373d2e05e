"""Where ranks lie: chips, the links between them, and the ways messages take over those links.

Links have a bandwidth in each direction.  On a torus a message goes along one axis after the other,
the shorter way round; where both ways are equally long, half of it takes each.  On a switched
fabric it goes up to the nearest common switch and down again; to the other rack it takes the direct
link of the target's twin.  Chips that are not on one fabric talk over the network (EFA).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from opentrn.base import LimitError, UsageError, declare
from opentrn.hw import Chip, Fabric, instance

declare(
    "comm.place",
    "There is no such number of ranks on the machine.",
    rule="ranks are logical cores: chips x cores of a chip / LNC, the same number on every node",
    fix="ask for fewer ranks, more nodes (-N), or a larger instance",
)

LATENCY = 15e-6
"""Seconds from HBM to HBM of another server, where a machine has no fabric file (AWS Neuron,
collective communication)."""

RACKS = 2
"""Racks of the switched fabric that has links across racks."""


@dataclass(frozen=True)
class Topology:
    """Ranks on `nodes` equal machines, chip by chip in the order of the chips' ids.

    `chips` of each node take part with `per_chip` ranks each, of `cores` physical cores.  `network`
    is byte/s of one node, one direction; `network_latency` seconds from HBM to HBM; `interfaces`
    are a node's EFA interfaces.  All hashable.
    """

    machine: str
    chip: Chip
    fabric: Fabric | None
    chips: int
    per_chip: int
    cores: int
    nodes: int = 1
    network: float = 0.0
    network_latency: float = 0.0
    interfaces: int = 1

    @property
    def here(self) -> int:
        """Ranks of one node."""
        return self.chips * self.per_chip

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.here * self.nodes

    @property
    def one_node(self) -> "Topology":
        """The same ranks of one node alone."""
        return Topology(
            self.machine, self.chip, self.fabric, self.chips, self.per_chip, self.cores
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Chips along the axes of the whole fabric; a lone chip is (1,)."""
        return (1,) if self.fabric is None else tuple(self.fabric.shape)


def place(
    ranks: int, on: str = "trn2.48xlarge", nodes: int = 1, lnc: int | None = None
) -> Topology:
    """The first `ranks` ranks of `nodes` machines called `on`, spread evenly over the nodes.

    `lnc` is physical cores of a rank (default: the chip's).  Raises UnknownNameError `hw.target`,
    LimitError and UsageError `comm.place`.
    """
    machine = instance(on)
    chip = machine.chip
    cores = int(lnc or chip.logical_cores)
    if cores not in (1, int(chip.logical_cores)):
        raise UsageError(f"LNC {cores} on {chip.name}", code="comm.place")
    here, left = divmod(ranks, max(1, nodes))
    if ranks < 1 or nodes < 1 or left:
        raise UsageError(f"{ranks} ranks on {nodes} nodes", code="comm.place")
    per_chip = int(chip.cores) // cores
    most = int(machine.chips) * per_chip
    if here > most:
        raise LimitError(
            f"{here} ranks on one {machine.name}: it has {most} at LNC {cores}",
            code="comm.place",
            fix=f"use -N {-(-ranks // most)} nodes, or a larger instance",
        )
    chips, rest = (1, 0) if here <= per_chip else divmod(here, per_chip)
    if rest:
        raise UsageError(
            f"{here} ranks do not fill whole chips of {per_chip}",
            code="comm.place",
            fix=f"ask for {here - rest} or {here - rest + per_chip}",
        )
    network, latency = _network(machine, nodes)
    known = machine.facts.get("host.efa")
    interfaces = max(1, int(known.value)) if known is not None else 1
    return Topology(
        machine.name, chip, machine.fabric, chips, min(here, per_chip), cores, nodes,
        network, latency, interfaces,
    )  # fmt: skip


def _network(machine, nodes: int) -> tuple[float, float]:
    """(byte/s of a node, seconds of a message) between nodes; UsageError for machines without."""
    if nodes == 1:
        return 0.0, 0.0
    fabric = machine.fabric
    efa = getattr(fabric, "efa", None) if fabric is not None else None
    interfaces = machine.facts.get("host.efa")
    if efa is None and (interfaces is None or interfaces.value == 0):
        raise UsageError(
            f"{machine.name} has no EFA: it works alone",
            code="comm.place",
            fix="use -N 1, or trn1.32xlarge, trn2.48xlarge or an UltraServer",
        )
    return float(machine.host.network), float(efa.latency) if efa is not None else LATENCY


# ------------------------------------------------------------------------------------------ links


@cache
def links(topology: Topology) -> dict[tuple[int, int], float]:
    """byte/s of every link of a node's fabric, keyed by (from, to); switches follow the chips."""
    fabric = topology.fabric
    if fabric is None:
        return {}
    found: dict[tuple[int, int], float] = {}
    if fabric.topology == "switched":
        for a, b, rate in _switch_links(topology):
            found[a, b] = found[b, a] = rate
        return found
    for chip in range(int(fabric.chips)):
        for axis, link in enumerate(fabric.links):
            for sign in (1, -1):
                other = _moved(topology, chip, axis, sign)
                if other is not None:
                    found[chip, other] = float(link.bandwidth)
    return found


def _coordinates(topology: Topology, chip: int) -> tuple[int, ...]:
    """Position of a chip: rows first, as ids are given (row-major)."""
    found = []
    for size in topology.shape:
        found.append(chip % size)
        chip //= size
    return tuple(found)


def _moved(topology: Topology, chip: int, axis: int, steps: int) -> int | None:
    """The chip some steps along an axis, round the ring; None over the end of a line."""
    shape = topology.shape
    at = _coordinates(topology, chip)[axis] + steps
    if topology.fabric.topology == "line" and not 0 <= at < shape[axis]:
        return None
    scale = 1
    for size in shape[:axis]:
        scale *= size
    return chip + (at % shape[axis] - _coordinates(topology, chip)[axis]) * scale


def _server(topology: Topology, chip: int) -> int:
    return chip // topology.shape[1]


def _rack(topology: Topology, chip: int) -> int:
    """The rack of a chip; fabrics without links across racks count as one."""
    servers = topology.shape[0]
    racks = RACKS if len(topology.fabric.links) > 2 else 1
    return _server(topology, chip) * racks // servers


def _twin(topology: Topology, chip: int) -> int:
    """The chip at the same place of the other rack."""
    half = int(topology.fabric.chips) // RACKS
    return chip + half if chip < half else chip - half


def _switches(topology: Topology, chip: int) -> tuple[int, int]:
    """Ids of the switches of a chip's server and rack."""
    total = int(topology.fabric.chips)
    server = total + _server(topology, chip)
    return server, total + topology.shape[0] + _rack(topology, chip)


def _switch_links(topology: Topology):
    fabric = topology.fabric
    rates = [float(link.bandwidth) * int(link.links) for link in fabric.links]
    for chip in range(int(fabric.chips)):
        server, rack = _switches(topology, chip)
        yield chip, server, rates[0]
        yield chip, rack, rates[1]
        if len(rates) > 2:
            yield chip, _twin(topology, chip), rates[2]


# ------------------------------------------------------------------------------------------ routes


Path = tuple[tuple[int, int], ...]


@cache
def routes(topology: Topology, source: int, target: int) -> tuple[tuple[float, Path], ...]:
    """The ways from chip to chip of one node, each with its share of the bytes."""
    if source == target:
        return ((1.0, ()),)
    if topology.fabric.topology == "switched":
        return ((1.0, _switched_path(topology, source, target)),)
    ways: list[tuple[float, list[tuple[int, int]], int]] = [(1.0, [], source)]
    for axis in range(len(topology.shape)):
        ways = [
            (share * part, [*path, *more], at)
            for share, path, begin in ways
            for part, more, at in _along(topology, begin, target, axis)
        ]
    return tuple((share, tuple(path)) for share, path, _ in ways)


def _along(topology: Topology, begin: int, target: int, axis: int):
    """The shortest ways along one axis to the target's place on it: (share, links, end)."""
    size = topology.shape[axis]
    here, there = _coordinates(topology, begin)[axis], _coordinates(topology, target)[axis]
    if topology.fabric.topology == "line":
        signs, length = ([1] if there >= here else [-1]), abs(there - here)
    else:
        forward = (there - here) % size
        length = min(forward, size - forward)
        signs = [1, -1] if forward * 2 == size else [1 if forward == length else -1]
    for sign in signs:
        at, path = begin, []
        for _ in range(length):
            new = _moved(topology, at, axis, sign)
            path.append((at, new))
            at = new
        yield 1.0 / len(signs), path, at


def _switched_path(topology: Topology, source: int, target: int) -> Path:
    if _server(topology, source) == _server(topology, target):
        switch = _switches(topology, source)[0]
        return ((source, switch), (switch, target))
    if _rack(topology, source) == _rack(topology, target):
        switch = _switches(topology, source)[1]
        return ((source, switch), (switch, target))
    twin = _twin(topology, target)
    last = ((twin, target),)
    return last if twin == source else _switched_path(topology, source, twin) + last


def loads(topology: Topology, traffic: Iterable[tuple[int, int, float]]) -> dict:
    """Bytes on each link for messages (from chip, to chip, bytes): the sum over all of them."""
    found: dict[tuple[int, int], float] = {}
    for source, target, nbytes in traffic:
        for share, path in routes(topology, source, target):
            for link in path:
                found[link] = found.get(link, 0.0) + share * nbytes
    return found


def busiest(topology: Topology, traffic: Iterable[tuple[int, int, float]]) -> float:
    """Seconds until the last link has carried its load at full speed."""
    rates = links(topology)
    return max((n / rates[link] for link, n in loads(topology, traffic).items()), default=0.0)


def distance(topology: Topology, source: int, target: int) -> int:
    """Chips passed from one chip to another, the target included; a switch is no chip."""
    if source == target:
        return 0
    total = int(topology.fabric.chips)
    return sum(1 for _, end in routes(topology, source, target)[0][1] if end < total)


@cache
def diameter(topology: Topology) -> int:
    """The longest distance between two of the chips that take part."""
    chips = range(topology.chips)
    return max((distance(topology, a, b) for a in chips for b in chips), default=0)
