"""Rings through chips that share no link: how ring algorithms use every link of a torus.

A 4 x 4 torus has two Hamiltonian cycles without a common link (AWS Neuron, intra-node collectives);
each serves both directions, so four rings run at once.
"""

from collections.abc import Iterator
from functools import cache

from opentrn.comm.topology import Topology, links

SEARCHED = 16
"""Chips up to which cycles are searched for; larger groups work plane by plane."""

Order = tuple[int, ...]


@cache
def cycles(topology: Topology) -> tuple[Order, ...]:
    """Hamiltonian cycles of the chips that take part, no two with a common link.

    As many as were found: at most half the links of the chip with fewest.  A switched fabric has
    one, in the order of the ids.  Chips that lie on no cycle give their ids in order: the way back
    from the last to the first is then routed.
    """
    chips = tuple(range(topology.chips))
    if topology.fabric is None or len(chips) < 3 or topology.fabric.topology == "switched":
        return (chips,)
    beside = {a: [b for b in chips if (a, b) in links(topology)] for a in chips}
    most = min(map(len, beside.values())) // 2
    if len(chips) > SEARCHED or most == 0:
        return (chips,)
    best: tuple[Order, ...] = ()
    for first in _hamiltonian(beside):
        found = (first, *_others(beside, first, most))
        best = max(best, found, key=len)
        if len(best) >= most:
            break
    return best or (chips,)


def _others(beside: dict[int, list[int]], first: Order, most: int) -> tuple[Order, ...]:
    """One more cycle on the links that the first leaves, where there may be one."""
    if most < 2:
        return ()
    used = {frozenset(edge) for edge in zip(first, first[1:] + first[:1], strict=True)}
    rest = {a: [b for b in near if frozenset((a, b)) not in used] for a, near in beside.items()}
    return tuple(x for x in (next(_hamiltonian(rest), None),) if x is not None)


def _hamiltonian(beside: dict[int, list[int]]) -> Iterator[Order]:
    """Hamiltonian cycles from chip 0, by search in the order of the ids."""
    path, seen = [0], {0}

    def search() -> Iterator[Order]:
        if len(path) == len(beside):
            if path[0] in beside[path[-1]]:
                yield tuple(path)
            return
        for chip in beside[path[-1]]:
            if chip not in seen:
                path.append(chip)
                seen.add(chip)
                yield from search()
                seen.discard(path.pop())

    yield from search()


@cache
def orders(topology: Topology) -> tuple[Order, ...]:
    """The chips' orders of all rings that run at once: each cycle, and each turned round.

    Chips on a switch have one: turning it round would use the same links again. Two chips have two
    on the same links, because one ring does not fill them.
    """
    found = cycles(topology)
    switched = topology.fabric is None or topology.fabric.topology == "switched"
    if topology.chips < 2 or switched:
        return found
    return (*found, *(order[:1] + order[:0:-1] for order in found))
