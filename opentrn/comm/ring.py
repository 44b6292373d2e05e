"""Ring algorithms: each rank talks to its neighbour only; N - 1 steps use every link fully.

Traffic (AWS Neuron, intra-node collectives): all-gather and reduce-scatter send (N - 1)/N of the
data per rank, all-reduce twice that.
"""

from collections.abc import Callable, Sequence

from opentrn.base import Bug
from opentrn.comm.schedule import Schedule, Send


def _sends(ranks: int, first_step: int, begin: int, reduce: bool) -> list[Send]:
    """N - 1 steps in which rank r passes chunk (r + begin - step) on to rank r + 1."""
    found = []
    for step in range(ranks - 1):
        for rank in range(ranks):
            chunk = (rank + begin - step) % ranks
            target = (rank + 1) % ranks
            found.append(Send(first_step + step, rank, target, chunk, chunk, reduce))
    return found


def all_gather(ranks: int) -> Schedule:
    """Every rank begins with its own chunk (number = rank) and ends with all."""
    sends = _sends(ranks, 0, 0, False)
    keeps = (tuple(range(ranks)),) * ranks
    return Schedule("all_gather.ring", ranks, ranks, tuple(sends), keeps)


def reduce_scatter(ranks: int) -> Schedule:
    """Every rank begins with all chunks and ends with the sum of chunk number rank."""
    sends = _sends(ranks, 0, -1, True)
    keeps = tuple((rank,) for rank in range(ranks))
    return Schedule("reduce_scatter.ring", ranks, ranks, tuple(sends), keeps)


def all_reduce(ranks: int) -> Schedule:
    """Reduce-scatter, then all-gather."""
    sends = [*_sends(ranks, 0, -1, True), *_sends(ranks, ranks - 1, 0, False)]
    keeps = (tuple(range(ranks)),) * ranks
    return Schedule("all_reduce.ring", ranks, ranks, tuple(sends), keeps)


# ------------------------------------------------------------------------- several rings at once


Sends = Callable[[Sequence[int], int, Callable[[int], int]], list[Send]]


def sliced(name: str, orders: Sequence[Sequence[int]], sends: Sends, every: bool) -> Schedule:
    """Several rings at once, each carrying one slice of the data round all ranks in its own order.

    Chunk `rank * len(orders) + n` is what ring n carries of a rank's chunk.  `sends(order, n,
    chunk)` are the sends of ring n, `chunk(rank)` the number of a rank's chunk on it.  `every`: all
    ranks keep all chunks, else each its own.
    """
    count, ranks = len(orders), len(orders[0])
    if any(sorted(order) != list(range(ranks)) for order in orders):
        raise Bug(f"{name}: every ring must pass each of {ranks} ranks once")
    found: list[Send] = []
    for n, order in enumerate(orders):
        found += sends(order, n, lambda rank, n=n: rank * count + n)
    whole = tuple(range(ranks * count))
    own = [whole[rank * count : (rank + 1) * count] for rank in range(ranks)]
    keeps = (whole,) * ranks if every else tuple(own)
    return Schedule(name, ranks, ranks * count, tuple(found), keeps)


def _around(order: Sequence[int], chunk, first: int, begin: int, reduce: bool) -> list[Send]:
    """The sends of one ring, renamed to the ranks and chunks of an order."""
    return [
        Send(s.step, order[s.source], order[s.target], *(chunk(order[s.chunk]),) * 2, reduce)
        for s in _sends(len(order), first, begin, reduce)
    ]


def all_gather_along(orders: Sequence[Sequence[int]]) -> Schedule:
    """All-gather on several rings at once (`cycles.orders`), a slice of the data on each."""
    return sliced(
        "all_gather.ring", orders, lambda o, n, chunk: _around(o, chunk, 0, 0, False), True
    )


def reduce_scatter_along(orders: Sequence[Sequence[int]]) -> Schedule:
    """Reduce-scatter on several rings at once."""
    return sliced(
        "reduce_scatter.ring", orders, lambda o, n, chunk: _around(o, chunk, 0, -1, True), False
    )


def all_reduce_along(orders: Sequence[Sequence[int]]) -> Schedule:
    """All-reduce on several rings at once."""
    last = len(orders[0]) - 1
    return sliced(
        "all_reduce.ring",
        orders,
        lambda o, n, chunk: _around(o, chunk, 0, -1, True) + _around(o, chunk, last, 0, False),
        True,
    )
