"""Ring algorithms: each rank talks to its neighbour only; N - 1 steps use every link fully.

Traffic (AWS Neuron, intra-node collectives): all-gather and reduce-scatter send (N - 1)/N of the
data per rank, all-reduce twice that.
"""

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
