"""The schedule an algorithm stands for on a topology, and the seconds its links need for it."""

from collections.abc import Callable, Sequence
from functools import partial

from opentrn.base import LimitError, declare
from opentrn.comm import hierarchical, kangaring, mesh, rdh, ring, tree
from opentrn.comm.cycles import orders
from opentrn.comm.schedule import Schedule, by_step
from opentrn.comm.timing import cube_order, pick, planes, time
from opentrn.comm.topology import Topology, busiest

declare(
    "comm.size",
    "A schedule lists every send; for very many ranks use the closed form.",
    rule="at most 256 ranks",
    fix="use `comm.time`, which makes nothing for each rank",
)

MOST = 256
"""Ranks for which a schedule is made."""


def build(
    collective: str, topology: Topology, algorithm: str | None = None, nbytes: float = 0.0
) -> Schedule:
    """The schedule of a collective on a topology; by default of the algorithm for `nbytes`.

    Raises LimitError `comm.size`, and what `time` raises.
    """
    t = topology
    if t.ranks > MOST:
        raise LimitError(f"a schedule for {t.ranks} ranks", code="comm.size")
    name = algorithm or pick(collective, nbytes, t)
    time(collective, nbytes, t, name)  # what cannot be timed cannot be built: the same refusals
    if collective == "all_to_all":
        return mesh.all_to_all(t.ranks)
    if collective == "permute":
        pairs = tuple((rank, (rank + 1) % t.ranks) for rank in range(t.ranks))
        return mesh.permute(t.ranks, pairs)
    if t.ranks == 1:
        return getattr(mesh, collective)(1)
    if name == "flat":
        return getattr(ring, collective)(t.ranks)
    if name == "hier":
        return _levels(collective, t.nodes if t.nodes > 1 else planes(t), t)
    if name in ("ring", "kangaring"):
        return _around(name, collective, t)
    if name == "mesh1":
        return mesh.all_reduce_once(t.ranks)
    if name == "tree":
        return tree.all_reduce(t.ranks)
    return _chips(name, collective, t)


def _around(name: str, collective: str, t: Topology) -> Schedule:
    """Rings through the ranks of each chip in turn, along every order of the chips."""
    ranks = [
        [chip * t.per_chip + local for chip in order for local in range(t.per_chip)]
        for order in orders(t)
    ]
    if name == "kangaring":
        return getattr(kangaring, collective)(ranks)
    return getattr(ring, f"{collective}_along")(ranks)


def _composed(collective: str, across: int, within: int, outer, order=None) -> Schedule:
    inner: Callable | tuple = getattr(mesh, collective)
    if collective == "all_reduce":
        inner = (mesh.reduce_scatter, mesh.all_gather)
    return getattr(hierarchical, collective)(across, within, outer, inner, order)


def _chips(name: str, collective: str, t: Topology) -> Schedule:
    """A mesh or a hypercube across chips, a mesh within each."""
    outer = getattr({"mesh": mesh, "rdh": rdh}[name], collective)
    order = partial(cube_order, t) if name == "rdh" and t.chips > 1 else None
    if t.chips == 1:
        return outer(t.ranks)
    return _composed(collective, t.chips, t.per_chip, outer, order)


def _levels(collective: str, units: int, t: Topology) -> Schedule:
    """A ring across nodes or planes, a mesh within each."""
    return _composed(collective, units, t.ranks // units, getattr(ring, collective))


def wire_seconds(
    running: Sequence[tuple[Schedule, Sequence[int]]], topology: Topology, nbytes: float
) -> float:
    """Seconds of the busiest link, step by step, for schedules that run at once.

    Each is (schedule, the ranks it runs on); all move `nbytes` of data, cut into their chunks.  The
    loads of all groups on a link add up.  Latency is not counted.  One node only.

    Source: bandwidths of the links of `hw`'s fabrics.
    """
    steps: list[list[tuple[int, int, float]]] = []
    for schedule, ranks in running:
        chunk = nbytes / (schedule.chunks / 2 if "all_to_all" in schedule.name else schedule.chunks)
        for step, sends in enumerate(by_step(schedule)):
            while len(steps) <= step:
                steps.append([])
            for send in sends:
                source = ranks[send.source] // topology.per_chip
                target = ranks[send.target] // topology.per_chip
                if source != target:
                    steps[step].append((source, target, chunk))
    return sum(busiest(topology, traffic) for traffic in steps)
