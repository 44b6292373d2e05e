"""Trees: the whole buffer goes up to one rank and down again, in 2 log2 N steps.

A binomial tree serves any number of ranks.  Links near the root carry the whole buffer, so it is
for small messages among many ranks.
"""

from opentrn.comm.schedule import Schedule, Send


def _levels(ranks: int) -> list[int]:
    """Distances of partners: 1, 2, 4, … below the number of ranks."""
    return [1 << k for k in range(max(0, (ranks - 1).bit_length()))]


def all_reduce(ranks: int) -> Schedule:
    """Sum up a binomial tree to rank 0, then down the same tree; one chunk, the whole buffer."""
    levels = _levels(ranks)
    sends = [
        Send(step, rank + d, rank, 0, 0, True)
        for step, d in enumerate(levels)
        for rank in range(0, ranks - d, 2 * d)
    ]
    sends += [
        Send(len(levels) + step, rank, rank + d, 0, 0)
        for step, d in enumerate(reversed(levels))
        for rank in range(0, ranks - d, 2 * d)
    ]
    return Schedule("all_reduce.tree", ranks, 1, tuple(sends), ((0,),) * ranks)
