"""How long a collective takes as an instruction: the times of `comm`, beside issue and start.

    time = issue + start + latency of the algorithm's steps + bytes over the busiest link or engine

`comm.time` has the algorithms, links and rates; here a replica group becomes a topology: as many
chips, next to each other, with as many ranks of each as the group has. Groups that share chips
share their links, so the bytes of all of them pass one after the other (assumed: not published).
"""

from functools import cache
from math import ceil

from opentrn import comm, hw
from opentrn.isa.operands import Transfer, assumed

# The machine a chip's ranks are taken to be in; further chips than it has are on other such nodes.
MACHINES = {
    "inf2": "inf2.48xlarge",
    "trn1": "trn1.32xlarge",
    "trn2": "trn2.48xlarge",
    "trn3": "trn3-gen1-ultraserver",
}
SOURCE = "comm.time for the group's chips, DMA issue and start of hw; see isa/collective_laws.py"


def ranks_of_chip(chip) -> int:
    """Ranks of one chip when a rank is a logical core."""
    return int(chip.cores) // int(chip.logical_cores)


def topology(chip, ranks: tuple[int, ...]) -> comm.Topology:
    """Where a group's ranks lie, ranks of the machine lying in order, chip after chip."""
    per_chip = ranks_of_chip(chip)
    return _topology(chip.name, chip, len({rank // per_chip for rank in ranks}), len(ranks))


@cache
def _topology(name: str, chip, chips: int, count: int) -> comm.Topology:
    # A variant of a chip keeps its name, so that its own numbers count on the named machine.
    machine = hw.instance(MACHINES[name])
    nodes = ceil(chips / int(machine.chips))
    here = ceil(chips / nodes)
    latency = float(machine.fabric.efa.latency) if nodes > 1 else 0.0
    network = float(machine.host.network) if nodes > 1 else 0.0
    fabric = machine.fabric if chips > 1 else None
    return comm.Topology(
        machine.name, chip, fabric, here, ceil(count / chips), int(chip.logical_cores), nodes,
        network, latency,
    )  # fmt: skip


def sharing(chip, lists: tuple[tuple[int, ...], ...]) -> int:
    """How many groups that leave a chip meet on the first chip of one of them; at least 1."""
    per_chip = ranks_of_chip(chip)
    crossing = [chips for one in lists if len(chips := {rank // per_chip for rank in one}) > 1]
    if not crossing:
        return 1
    first = min(crossing[0])
    return max(1, sum(first in chips for chips in crossing))


def plan(i, kind: str, lists: tuple[tuple[int, ...], ...], nbytes: int) -> Transfer:
    """The transfer of one rank: the collective's size is `nbytes`, the larger of its buffers."""
    dma, ranks = i.chip.dma, len(lists[0])
    timing = comm.time(kind, nbytes, topology(i.chip, lists[0]))
    latency = sum(part.latency for part in timing.parts)
    moving = sum(part.moving for part in timing.parts) * sharing(i.chip, lists)
    sent = nbytes * (comm.bus_factor(kind, ranks) if ranks > 1 else 1.0)
    engines = ceil(sent / moving / float(dma.engine_rate)) if moving else 1
    count = max(1, ceil(sent / float(dma.descriptor_bytes)))
    start = max(0.0, float(dma.start) - float(dma.static_issue))
    return Transfer(
        nbytes=int(sent),
        descriptors=count,
        descriptor_bytes=sent / count,
        engines=max(1, min(int(dma.engines), engines)),
        first_engine=0,
        issuer="sync",
        issue_ns=float(dma.static_issue) * 1e9,
        start_ns=(start + latency) * 1e9,
        busy_ns=moving * 1e9,
        finish_ns=0.0,
    )


def priced(kind: str, lists, nbytes):
    """The cost law of a collective; `lists(i)` are its rank lists, `nbytes(i)` its size."""
    return assumed(SOURCE, lambda i, chip: plan(i, kind, lists(i), nbytes(i)))
