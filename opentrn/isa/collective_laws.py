"""How long a collective takes: latency of its steps, and its bytes over the slowest link.

    time = issue + start + steps * hop + sent / rate                        for each algorithm

The runtime picks the algorithm that suits the size, so the shorter time of ring and mesh counts.
Collectives are carried by DMA engines which the core's two CC cores direct; the rings are busy with
the bytes one rank sends.  Steps and bytes are those of the schedules in `comm` (a test compares
them).  Not published: how ranks of several groups share links, how much routing slows a mesh; the
ways they are taken here are stated beside each, and the whole is graded `assumed`.
"""

from functools import cache
from math import ceil

from opentrn import hw
from opentrn.isa.operands import Transfer, assumed

# The fabric a chip is used in, for the latency of a hop and the speed of its links.
FABRICS = {
    "inf2": "inf2-ring12",
    "trn1": "trn1-torus",
    "trn2": "trn2-torus",
    "trn3": "trn3-gen1-switch",
}
# Chips a message passes on the way to a chip of a 4 x 4 torus, on average (one along each axis):
# what a mesh, whose messages are routed, costs on links that a ring crosses once.
ROUTED = 2.0
SOURCE = (
    "hops of 1 to 2 us (intra-node collectives), bytes by the bus bandwidth factors (nccom-test "
    "guide), link and DMA rates of hw; see isa/collective_laws.py"
)


@cache
def hop(chip) -> float:
    """Seconds of one step between neighbours."""
    return float(hw.fabric(FABRICS[chip.name]).fabric.hop)


def ranks_of_chip(chip) -> int:
    """Ranks of one chip when a rank is a logical core."""
    return int(chip.cores) // int(chip.logical_cores)


def crosses(chip, ranks: tuple[int, ...]) -> bool:
    """Whether these ranks lie on more than one chip, ranks lying in order."""
    per_chip = ranks_of_chip(chip)
    return len({rank // per_chip for rank in ranks}) > 1


def rate(chip, lists: tuple[tuple[int, ...], ...], reduces: bool) -> float:
    """Bytes/s one rank can send: what its DMA engines move, or its share of the chip's links.

    All links of a chip work for a group that crosses chips; groups that share a chip share them.
    """
    dma = float(chip.dma.engines) * float(chip.dma.engine_rate)
    dma *= float(chip.dma.accumulate_rate) if reduces else 1.0
    crossing = [one for one in lists if crosses(chip, one)]
    if not crossing:
        return dma
    per_chip = ranks_of_chip(chip)
    first = crossing[0][0] // per_chip
    sharing = sum(any(rank // per_chip == first for rank in one) for one in crossing)
    links = float(chip.neuronlink_bandwidth) / 2
    return min(dma, links / max(1, sharing))


def steps(kind: str, ranks: int, mesh: bool) -> int:
    """Steps of a collective among `ranks`, as in `comm.mesh` and `comm.ring`."""
    if ranks == 1:
        return 0
    once = 1 if mesh or kind in ("all_to_all", "permute") else ranks - 1
    return 2 * once if kind == "all_reduce" else once


def share(kind: str, ranks: int) -> float:
    """Bytes a rank sends for each byte of the collective's size; a lone rank copies."""
    if ranks == 1 or kind == "permute":
        return 1.0
    once = (ranks - 1) / ranks
    return 2 * once if kind == "all_reduce" else once


def _seconds(i, kind: str, lists, sent: float, mesh: bool) -> float:
    """Latency of the steps and time on the wires."""
    ranks, chip = len(lists[0]), i.chip
    speed = rate(chip, lists, False)
    routed = ROUTED if mesh and crosses(chip, lists[0]) else 1.0
    halves = {"all_reduce": 0.5, "reduce_scatter": 1.0}
    adding = halves.get(kind, 0.0) * sent
    wires = (sent - adding) / speed + adding / rate(chip, lists, True)
    return steps(kind, ranks, mesh) * hop(chip) + routed * wires


def plan(i, kind: str, lists: tuple[tuple[int, ...], ...], nbytes: int) -> Transfer:
    """The transfer of one rank: the collective's size is `nbytes`, the larger of its buffers."""
    dma, ranks = i.chip.dma, len(lists[0])
    sent = share(kind, ranks) * nbytes
    seconds = min(_seconds(i, kind, lists, sent, mesh) for mesh in (True, False))
    speed = rate(i.chip, lists, False)
    engines = max(1, min(int(dma.engines), ceil(speed / float(dma.engine_rate))))
    moving = sent / speed
    count = max(1, ceil(sent / float(dma.descriptor_bytes)))
    return Transfer(
        nbytes=int(sent),
        descriptors=count,
        descriptor_bytes=sent / count,
        engines=engines,
        first_engine=0,
        issuer="sync",
        issue_ns=float(dma.static_issue) * 1e9,
        start_ns=(max(0.0, float(dma.start) - float(dma.static_issue)) + seconds - moving) * 1e9,
        busy_ns=moving * 1e9,
        finish_ns=0.0,
    )


def priced(kind: str, lists, nbytes):
    """The cost law of a collective; `lists(i)` are its rank lists, `nbytes(i)` its size."""
    return assumed(SOURCE, lambda i, chip: plan(i, kind, lists(i), nbytes(i)))
