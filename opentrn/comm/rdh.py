"""Recursive doubling and halving: log2 N steps, each an exchange with a rank half as near or far.

Ranks are the corners of a hypercube; a torus of 4 x 4 chips is one of four dimensions, so chips
that exchange are neighbours.  Traffic is the least possible, as in a ring, in far fewer steps
(AWS Neuron, intra-node collectives).  Only for powers of two.
"""

from opentrn.base import UsageError, declare
from opentrn.comm.schedule import Schedule, Send

declare(
    "comm.ranks",
    "An algorithm does not run on this number of ranks.",
    rule="recursive doubling and halving needs a power of two",
    fix="use a ring or a mesh",
)


def fits(ranks: int) -> bool:
    """Whether the algorithm runs on this number of ranks."""
    return ranks > 0 and ranks & (ranks - 1) == 0


def _distances(ranks: int) -> list[int]:
    if not fits(ranks):
        raise UsageError(
            f"recursive doubling and halving on {ranks} ranks",
            code="comm.ranks",
            rule="it needs a power of two",
            fix="use a ring or a mesh",
        )
    return [1 << k for k in range(ranks.bit_length() - 1)]


def _doubling(ranks: int, first_step: int) -> list[Send]:
    """Exchanges in which each rank hands over all chunks it has so far."""
    found = []
    for step, distance in enumerate(_distances(ranks)):
        for rank in range(ranks):
            base = rank // distance * distance
            for chunk in range(base, base + distance):
                found.append(Send(first_step + step, rank, rank ^ distance, chunk, chunk))
    return found


def _halving(ranks: int) -> list[Send]:
    """Exchanges in which each rank hands over the half of its chunks that the other keeps."""
    found = []
    for step, distance in enumerate(reversed(_distances(ranks))):
        for rank in range(ranks):
            other = rank ^ distance
            base = other // distance * distance
            for chunk in range(base, base + distance):
                found.append(Send(step, rank, other, chunk, chunk, True))
    return found


def all_gather(ranks: int) -> Schedule:
    """Every rank begins with its own chunk and ends with all; UsageError off powers of two."""
    keeps = (tuple(range(ranks)),) * ranks
    return Schedule("all_gather.rdh", ranks, ranks, tuple(_doubling(ranks, 0)), keeps)


def reduce_scatter(ranks: int) -> Schedule:
    """Every rank begins with all chunks and ends with the sum of chunk number rank."""
    keeps = tuple((rank,) for rank in range(ranks))
    return Schedule("reduce_scatter.rdh", ranks, ranks, tuple(_halving(ranks)), keeps)


def all_reduce(ranks: int) -> Schedule:
    """Reduce-scatter, then all-gather."""
    halving = _halving(ranks)
    steps = len(_distances(ranks))
    keeps = (tuple(range(ranks)),) * ranks
    sends = (*halving, *_doubling(ranks, steps))
    return Schedule("all_reduce.rdh", ranks, ranks, sends, keeps)
