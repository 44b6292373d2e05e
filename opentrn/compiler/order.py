"""Order: constants are fetched while the kernel before still works.

A kernel begins with loads of its weights.  Each engine issues its DMAs in program order, so such a
load would be issued only after the loads of the kernel before, which wait for their operands.  It
depends on nothing, and goes ahead of that kernel.
"""

from collections.abc import Sequence

from opentrn.base import CapacityError
from opentrn.isa import Buffer, Instruction, Loop, Program
from opentrn.sim import place

Node = Instruction | Loop


def order(program: Program, starts: Sequence[int], chip) -> int:
    """Move loads of constants one kernel ahead; returns how many were moved.

    `starts` are the positions in the body where kernels begin.  Kernels whose tiles would not fit
    in SBUF beside what is fetched for the next one keep their order.
    """
    given = program.body
    if not starts:
        return 0
    calls = [given[a:b] for a, b in zip(starts, (*starts[1:], len(given)), strict=True)]
    head = given[: starts[0]]
    early = [_fetches(call) for call in calls]
    moved = set(range(1, len(calls)))
    while moved:
        program.body = head + _reordered(calls, early, moved)
        try:
            place(program, chip)
        except CapacityError:
            # Half as many, those that fetch least: a few steps lead to an order that fits.
            ranked = sorted(moved, key=lambda n: (sum(_nbytes(one) for one in early[n]), n))
            moved = set(ranked[: len(ranked) // 2])
        else:
            return sum(len(early[n]) for n in moved)
    program.body = given
    return 0


def _reordered(calls, early, moved: set[int]) -> list[Node]:
    body: list[Node] = []
    for number, call in enumerate(calls):
        if number + 1 in moved:
            body += early[number + 1]
        gone = set(map(id, early[number])) if number in moved else ()
        body += [node for node in call if id(node) not in gone]
    return body


def _fetches(call: list[Node]) -> list[Instruction]:
    """Loads of constants into tiles that nothing in the call has touched before."""
    touched: set[Buffer] = set()
    found: list[Instruction] = []
    for node in call:
        target = _fetched(node)
        if target is not None and target not in touched:
            found.append(node)
            continue
        touched |= _buffers(node)
    return found


def _fetched(node: Node) -> Buffer | None:
    """The tile that a plain load of a constant fills, or None."""
    if isinstance(node, Loop) or node.opcode != "dma_copy":
        return None
    target, *sources = [*node.writes(), *node.reads()]
    plain = target.buffer.space == "sbuf" and target.index is None
    known = all(v.buffer.kind == "constant" and v.index is None for v in sources)
    return target.buffer if plain and known and sources else None


def _buffers(node: Node) -> set[Buffer]:
    if isinstance(node, Loop):
        return set().union(*map(_buffers, node.body)) if node.body else set()
    return {v.buffer for v in node.views()}


def _nbytes(one: Instruction) -> int:
    return one.writes()[0].size


__all__ = ["order"]
