"""Mesh algorithms: every rank talks to every other at once; few steps, for small messages."""

from opentrn.comm.schedule import Schedule, Send


def _pairs(ranks: int):
    """(source, target) of all different ranks, targets in the order of their distance."""
    for distance in range(1, ranks):
        for source in range(ranks):
            yield source, (source + distance) % ranks


def all_gather(ranks: int) -> Schedule:
    """One step: every rank sends its chunk to all others."""
    sends = tuple(Send(0, a, b, a, a) for a, b in _pairs(ranks))
    return Schedule("all_gather.mesh", ranks, ranks, sends, (tuple(range(ranks)),) * ranks)


def reduce_scatter(ranks: int) -> Schedule:
    """One step: every rank sends each other rank the chunk that is its part."""
    sends = tuple(Send(0, a, b, b, b, True) for a, b in _pairs(ranks))
    return Schedule(
        "reduce_scatter.mesh", ranks, ranks, sends, tuple((rank,) for rank in range(ranks))
    )


def all_reduce(ranks: int) -> Schedule:
    """Reduce-scatter and all-gather, a step each."""
    first = [Send(0, a, b, b, b, True) for a, b in _pairs(ranks)]
    second = [Send(1, a, b, a, a) for a, b in _pairs(ranks)]
    keeps = (tuple(range(ranks)),) * ranks
    return Schedule("all_reduce.mesh", ranks, ranks, (*first, *second), keeps)


def all_reduce_once(ranks: int) -> Schedule:
    """One step: every rank sends all it has to all others; N times the traffic, half the steps.

    There is one chunk: the whole buffer.
    """
    sends = tuple(Send(0, a, b, 0, 0, True) for a, b in _pairs(ranks))
    return Schedule("all_reduce.mesh1", ranks, 1, sends, ((0,),) * ranks)


def all_to_all(ranks: int) -> Schedule:
    """One step: chunk t of rank s becomes chunk s of rank t.

    Chunks `ranks` and on are where data arrives: what lies in the first half is still being read.
    """
    sends = [Send(0, a, b, b, ranks + a) for a, b in _pairs(ranks)]
    own = [Send(0, rank, rank, rank, ranks + rank) for rank in range(ranks)]
    keeps = (tuple(range(ranks, 2 * ranks)),) * ranks
    return Schedule("all_to_all.mesh", ranks, 2 * ranks, (*own, *sends), keeps)


def permute(ranks: int, pairs: tuple[tuple[int, int], ...]) -> Schedule:
    """One step: the chunk of each source arrives at its target (place 1)."""
    sends = tuple(Send(0, source, target, 0, 1) for source, target in pairs)
    return Schedule("permute", ranks, 2, sends, ((1,),) * ranks)
