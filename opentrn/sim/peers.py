"""Bytes that several ranks touch in one collective without an order between them.

Ranks send and receive at their own pace: a peer's data may arrive before this rank has sent what
lies there.  Nothing public says that a collective works in place, so a result may lie over a source
only where the rank's own part lies over itself: the same tensor reduced, its own chunk gathered,
scattered or exchanged (the in-place forms that collective libraries define).  Two chunks of a
variable-length exchange that land on the same elements are written by two peers, in any order.
"""

from collections.abc import Iterator, Sequence

from opentrn.base import Where, declare, explanation
from opentrn.isa import Instruction, View
from opentrn.sim.collectives import Piece
from opentrn.sim.strict import Finding

declare(
    "sim.rank_race",
    "Ranks touch the same bytes in a collective without an order between them.",
    rule="a peer writes results when it comes to it: they must not lie over what this rank still "
    "sends, over each other, or over what another peer writes",
    fix="give the collective a tensor of its own for each result, and distinct offsets to peers",
    fault="unpredictable",
)

# Along which dimension a tensor is cut into one chunk for each rank: sources, results.
_CHUNKS = {
    "all_reduce": (False, False),
    "all_gather": (False, True),
    "reduce_scatter": (True, False),
    "all_to_all": (True, True),
}


def overlapping(one: Instruction, place: int) -> Iterator[Finding]:
    """Findings `sim.rank_race` of the rank at `place` of its list: results over what is sent."""
    form = one.form
    sides = dict(zip(form.operand_names, one.operands, strict=True))
    tensors = {name: side for name, side in sides.items() if isinstance(side, View)}
    results = [form.operand_names[n] for n in form.writes if form.operand_names[n] in tensors]
    sources = [form.operand_names[n] for n in form.inputs if form.operand_names[n] in tensors]
    together = set(form.pairs())
    for n, result in enumerate(results):
        for other in results[n + 1 :]:
            if tensors[result].overlaps(tensors[other]):
                yield _finding(one, f"`{result}` and `{other}` are written over each other")
        for source in sources:
            if source == result or not tensors[result].overlaps(tensors[source]):
                continue
            chunks = _CHUNKS.get(one.opcode) if (source, result) in together else None
            if chunks is None or not _own_part(form, tensors[source], tensors[result], place):
                what = f"`{result}` lies over `{source}`: a peer may write what is not sent yet"
                yield _finding(one, what)


def landing(
    one: Instruction, name: str, pieces: Sequence[Piece], senders: Sequence[tuple[str, Where]]
) -> Iterator[Finding]:
    """Findings `sim.rank_race` of chunks that land over each other; `senders` by their place."""
    ordered = sorted(pieces, key=lambda piece: piece.start)
    first = ordered[0] if ordered else None  # of those before, the one that reaches furthest
    for second in ordered[1:]:
        reach = first.start + first.values.size, second.start + second.values.size
        if second.start < (end := min(reach)):
            (a, at), (b, there) = senders[first.sender], senders[second.sender]
            told = f"{a} (at {at}) and {b} (at {there})"
            yield _finding(one, f"elements {second.start} to {end} of `{name}` come from {told}")
        first = max(first, second, key=lambda piece: piece.start + piece.values.size)


def _own_part(form, source: View, result: View, place: int) -> bool:
    """Whether the tensors meet nowhere but where the rank's own part lies over itself."""
    ranks, (cut_source, cut_result) = form.ranks, _CHUNKS[type(form).__name__]
    dim = getattr(form, "collective_dim", 0)
    sent = _cut(source, dim, ranks) if cut_source else [source]
    written = _cut(result, dim, ranks) if cut_result else [result]
    own = (place if cut_source else 0), (place if cut_result else 0)
    for s, mine in enumerate(sent):
        for r, arriving in enumerate(written):
            if (s, r) == own and _same(mine, arriving):
                continue
            if mine.overlaps(arriving):
                return False
    return True


def _cut(view: View, dim: int, ranks: int) -> list[View]:
    """A tensor's chunks, one for each rank; the whole where they are no slices of it."""
    size, rest = divmod(view.shape[dim], ranks)
    if rest or not size:
        return [view] * ranks
    return [view.slice(dim, k * size, (k + 1) * size) for k in range(ranks)]


def _same(a: View, b: View) -> bool:
    """Whether two views of one buffer are the same elements in the same order."""
    plain = [[step for step in view.steps if step[1] > 1] for view in (a, b)]
    return a.buffer is b.buffer and a.offset == b.offset and plain[0] == plain[1]


def _finding(one: Instruction, what: str) -> Finding:
    known = explanation("sim.rank_race")
    return Finding("sim.rank_race", f"{one.opcode}: {what}", one.where, known.rule, known.fix)


__all__ = ["landing", "overlapping"]
