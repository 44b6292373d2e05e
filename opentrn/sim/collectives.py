"""What collectives compute: the data of all ranks of one list in, the results of each out.

Data moves by the schedule that `comm` chooses for the size, so reductions happen in the order of
that algorithm; each step computes in float32 and rounds to the tensors' dtype, as the DMA engines
do when they accumulate (integers too: beyond 24 bits they are not exact).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from opentrn.base import BoundsError, NotBuiltError, declare
from opentrn.comm import choose, mesh, run
from opentrn.isa import Instruction, collectives

declare(
    "sim.meeting",
    "A program that needs other cores or ranks was run by itself.",
    rule="barriers, exchanges and collectives need all who take part to run together",
    fix="run the kernel with nki.simulate(kernel, ranks=N) or kernel[2](...)",
)
declare(
    "sim.counts",
    "The counts or offsets of a variable-length collective reach outside a buffer.",
    rule="offset + count lies inside `srcs`; what arrives lies inside its slot of `dsts`",
    fix="correct the metadata tensor, or make the buffer larger",
)


class Piece(NamedTuple):
    """Elements that replace part of a flat buffer, from element `start` on.

    `sender` is the place in the list of the rank that they come from.
    """

    start: int
    values: np.ndarray
    sender: int = 0


Held = Sequence[dict[str, np.ndarray]]
Found = list[dict[str, Any]]


def by_itself(instruction: Instruction) -> NoReturn:
    """What a machine does with instructions that need others when it has none: NotBuiltError."""
    raise NotBuiltError(
        f"{instruction.opcode} needs other cores or ranks; this program runs by itself",
        code="sim.meeting",
        at=instruction.where,
    )


def exchanged(form, held: Held) -> Found:
    """Results of a collective for each rank of one list, in order of the list.

    `held[k]` are the carrier values of the operands the k-th rank gives, by operand name; results
    are arrays of the operands' shapes, or a list of `Piece` where only parts are written, by name;
    an operand that a rank does not receive is missing.  For a collective_permute the list is that
    of `form.lists()`.  Raises BoundsError `sim.counts`.
    """
    found: Found = [{} for _ in held]
    RULES[type(form).__name__](form, held, found)
    return found


def _reducer(form, name: str) -> Callable:
    dtype = getattr(form, name).dtype
    return lambda mine, arriving: collectives.reduced(form.op, dtype, mine, arriving)


def _each(form, held: Held):
    """(source name, target name, target form, the source of every rank) of each pair of tensors."""
    for source, target in form.pairs():
        yield source, target, getattr(form, target), [own[source] for own in held]


def _bytes(form, source: str, target: str) -> int:
    return max(getattr(form, source).nbytes, getattr(form, target).nbytes)


def _all_reduce(form, held: Held, found: Found) -> None:
    ranks = len(held)
    for source, target, tile, sources in _each(form, held):
        schedule = choose("all_reduce", _bytes(form, source, target), ranks)
        chunks = [np.array_split(own.reshape(-1), ranks) for own in sources]
        for own, kept in zip(found, run(schedule, chunks, _reducer(form, target)), strict=True):
            own[target] = np.concatenate(kept).reshape(tile.shape)


def _all_gather(form, held: Held, found: Found) -> None:
    ranks = len(held)
    for source, target, tile, sources in _each(form, held):
        schedule = choose("all_gather", _bytes(form, source, target), ranks)
        chunks = [_only(sources[k], k, ranks) for k in range(ranks)]
        for own, kept in zip(found, run(schedule, chunks), strict=True):
            own[target] = np.concatenate(kept, form.collective_dim).reshape(tile.shape)


def _only(chunk: np.ndarray, place: int, places: int) -> list:
    """A rank's chunks when it holds one of them."""
    return [chunk if k == place else None for k in range(places)]


def _reduce_scatter(form, held: Held, found: Found) -> None:
    ranks = len(held)
    for source, target, tile, sources in _each(form, held):
        schedule = choose("reduce_scatter", _bytes(form, source, target), ranks)
        chunks = [list(own.reshape(ranks, -1)) for own in sources]
        for own, (part,) in zip(found, run(schedule, chunks, _reducer(form, target)), strict=True):
            own[target] = part.reshape(tile.shape)


def _transposed(parts: list[list[Any]]) -> list[list[Any]]:
    """Chunk t of rank s becomes chunk s of rank t."""
    ranks = len(parts)
    return run(mesh.all_to_all(ranks), [[*own, *[None] * ranks] for own in parts])


def _all_to_all(form, held: Held, found: Found) -> None:
    for _, target, tile, sources in _each(form, held):
        arrived = _transposed([list(own.reshape(len(held), -1)) for own in sources])
        for own, parts in zip(found, arrived, strict=True):
            own[target] = np.concatenate(parts).reshape(tile.shape)


# ------------------------------------------------------------------------ variable lengths


def _metadata(form, own: dict[str, np.ndarray]) -> np.ndarray:
    """The rows of a metadata tensor, one column for each rank of the list."""
    return own["metadata_tensor"].reshape(-1, form.ranks).astype(np.int64)


def _chunk(form, rank: int, held: Held, start: int, count: int) -> np.ndarray:
    flat = held[rank]["srcs0"].reshape(-1)
    if start + count > flat.size:
        _outside(
            f"place {rank} of the list sends elements {start} to {start + count}",
            f"`srcs` has {flat.size}",
        )
    return flat[start : start + count]


def _outside(what: str, has: str) -> NoReturn:
    raise BoundsError(
        f"{what}, but {has}",
        code="sim.counts",
        rule="offset + count lies inside `srcs`; what arrives lies inside its slot of `dsts`",
        fix="correct the metadata tensor, or make the buffer larger",
    )


def _land(form, held: Held, found: Found, arrived: list[list[np.ndarray]]) -> None:
    """Where chunks go, and the counts that are told."""
    size = form.dsts0.size
    slot = size // form.ranks
    for rank, (own, chunks) in enumerate(zip(found, arrived, strict=True)):
        starts = [slot * k for k in range(form.ranks)]
        room = slot
        if form.has_rdispls:
            starts, room = _metadata(form, held[rank])[3].tolist(), size
        for source, (start, chunk) in enumerate(zip(starts, chunks, strict=True)):
            if chunk.size > room or start + chunk.size > size:
                _outside(
                    f"{chunk.size} elements from place {source} of the list arrive at {start} of "
                    f"`dsts` at place {rank}",
                    f"there is room for {min(room, max(0, size - start))}",
                )
        placed = enumerate(zip(starts, chunks, strict=True))
        own["dsts0"] = [Piece(start, c, sender) for sender, (start, c) in placed if c.size]
        if not form.recv_counts_known:
            counts = np.array([chunk.size for chunk in chunks], np.uint32)
            own["metadata_tensor"] = [Piece(2 * form.ranks, counts)]


def _all_gather_v(form, held: Held, found: Found) -> None:
    ranks, sent = len(held), []
    for rank, own in enumerate(held):
        count, start = _metadata(form, own)[:2, 0].tolist()
        sent.append(_only(_chunk(form, rank, held, start, count), rank, ranks))
    _land(form, held, found, run(mesh.all_gather(ranks), sent))


def _all_to_all_v(form, held: Held, found: Found) -> None:
    parts = []
    for rank, own in enumerate(held):
        counts, starts = _metadata(form, own)[:2].tolist()
        columns = zip(starts, counts, strict=True)
        parts.append([_chunk(form, rank, held, start, count) for start, count in columns])
    _land(form, held, found, _transposed(parts))


# ------------------------------------------------------------------------ permutes


def _permute(form, held: Held, found: Found) -> None:
    (ranks,) = form.lists()
    places = [(ranks.index(a), ranks.index(b)) for a, b in form.source_target_pairs]
    _moved(form, [own["srcs0"] for own in held], found, "dsts0", places)


def _moved(form, sources: list, found: Found, target: str, places: list) -> None:
    """Each target's tensor arrives from its source."""
    schedule = mesh.permute(len(sources), tuple(places))
    shape = getattr(form, target).shape
    for own, (arrived,) in zip(found, run(schedule, [[s, None] for s in sources]), strict=True):
        if arrived is not None:
            own[target] = arrived.reshape(shape)


def _ring(ranks: int) -> list[tuple[int, int]]:
    return [(k, (k + 1) % ranks) for k in range(ranks)]


def _implicit(form, held: Held, found: Found) -> None:
    for _, target, _, sources in _each(form, held):
        _moved(form, sources, found, target, _ring(len(held)))


def _implicit_reduce(form, held: Held, found: Found) -> None:
    for n, (_, target) in enumerate(form.pairs()):
        reduce = _reducer(form, target)
        names = [f"srcs{side}_by_channel{n}" for side in (0, 1)]
        sums = [reduce(own[names[0]], own[names[1]]) for own in held]
        _moved(form, sums, found, target, _ring(len(held)))


RULES: dict[str, Callable[[Any, Held, Found], None]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "all_gather_v": _all_gather_v,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_v": _all_to_all_v,
    "collective_permute": _permute,
    "collective_permute_implicit": _implicit,
    "collective_permute_implicit_reduce": _implicit_reduce,
}
"""The meaning of each collective, by the name of its instruction."""


__all__ = ["Piece", "by_itself", "exchanged"]
