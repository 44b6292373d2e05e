"""KangaRing: ranks in pairs, only the primary of each pair is on the ring.

Half the steps of a ring; the secondary's memory is written by the same read that goes downstream
(one read, two writes), and its part of a sum is read in the same pass (three reads, one write): 3
memory accesses for an all-gathered chunk instead of 4, 4 for a reduced one instead of 6 (AWS
Neuron, intra-node collectives).  Pairs are neighbours in `orders`; every other ring swaps who is
primary, so that each rank is in half of them.
"""

from collections.abc import Sequence

from opentrn.base import UsageError
from opentrn.comm.ring import sliced
from opentrn.comm.schedule import Schedule, Send

Pair = tuple[int, int]


def fits(ranks: int) -> bool:
    """Whether ranks pair up."""
    return ranks > 0 and ranks % 2 == 0


def _pairs(order: Sequence[int], swapped: bool) -> list[Pair]:
    """(primary, secondary) along an order of ranks; UsageError `comm.ranks` for an odd number."""
    if not fits(len(order)):
        raise UsageError(
            f"KangaRing on {len(order)} ranks",
            code="comm.ranks",
            rule="it pairs ranks, so their number is even",
            fix="use a ring",
        )
    found = list(zip(order[::2], order[1::2], strict=True))
    return [pair[::-1] for pair in found] if swapped else found


def _gather(pairs: list[Pair], chunk, first: int) -> list[Send]:
    """Chunks of pair p - s leave primary p in step s: down the ring and to its secondary."""
    count, found = len(pairs), []
    for step in range(count):
        for p, (primary, secondary) in enumerate(pairs):
            below = pairs[(p + 1) % count][0]
            for owner in pairs[(p - step) % count]:
                place = chunk(owner)
                source = owner if step == 0 else primary
                targets = {primary, secondary, *([below] if step < count - 1 else [])}
                others = sorted(targets - {source})
                found += [Send(first + step, source, to, place, place) for to in others]
    return found


def _scatter(pairs: list[Pair], chunk) -> list[Send]:
    """A secondary adds its part to a chunk one step before its primary passes the chunk on."""
    count, found = len(pairs), []
    for step in range(count + 1):
        for p, (primary, secondary) in enumerate(pairs):
            if step < count:
                for owner in pairs[(p - 1 - step) % count]:
                    place = chunk(owner)
                    found.append(Send(step, secondary, primary, place, place, True))
            if 0 < step < count:
                for owner in pairs[(p - step) % count]:
                    place = chunk(owner)
                    below = pairs[(p + 1) % count][0]
                    found.append(Send(step, primary, below, place, place, True))
            if step == count:
                found.append(Send(step, primary, secondary, chunk(secondary), chunk(secondary)))
    return found


def all_gather(orders: Sequence[Sequence[int]]) -> Schedule:
    """Every rank begins with its own chunks and ends with all, one slice on each ring."""
    return sliced("all_gather.kangaring", orders, lambda order, n, chunk: _gather(
        _pairs(order, n % 2 == 1), chunk, 0
    ), every=True)  # fmt: skip


def reduce_scatter(orders: Sequence[Sequence[int]]) -> Schedule:
    """Every rank ends with the sum of its own chunks, one slice on each ring."""
    return sliced("reduce_scatter.kangaring", orders, lambda order, n, chunk: _scatter(
        _pairs(order, n % 2 == 1), chunk
    ), every=False)  # fmt: skip


def all_reduce(orders: Sequence[Sequence[int]]) -> Schedule:
    """Reduce-scatter, then all-gather."""

    def both(order: Sequence[int], n: int, chunk) -> list[Send]:
        pairs = _pairs(order, n % 2 == 1)
        return [*_scatter(pairs, chunk), *_gather(pairs, chunk, len(pairs) + 1)]

    return sliced("all_reduce.kangaring", orders, both, every=True)
