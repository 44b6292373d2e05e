"""When a device loop has come to repeat itself: nothing new is found out by unrolling it further.

What the search for waits does next depends only on what it remembers and on the loop's body.  If
after one turn it remembers what it remembered a turn before, but for the numbers of instances, of
which some stayed and all later ones grew by the length of a turn, then every further turn finds the
same waits, moved on by as much.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from opentrn.isa import Loop, Register, View

_LEAST_TURNS = 6
_WORTH = 2000  # instances that would have to be written one by one
_TRIED = 8  # turns that are looked at; after those ever fewer


class Memory(NamedTuple):
    """What the search remembers of a loop: `marks` are numbers of instances, `shape` the rest."""

    count: int
    shape: list
    marks: list[int]


def grown(before: Memory, now: Memory) -> list[bool] | None:
    """Which marks grew by the length of a turn; None when the turn left other traces."""
    length = now.count - before.count
    if now.shape != before.shape or len(now.marks) != len(before.marks):
        return None
    flags = [a != b for a, b in zip(now.marks, before.marks, strict=True)]
    latest, oldest = -1, now.count  # of those that stay, and of those that move
    for mark, old, moved in zip(now.marks, before.marks, flags, strict=True):
        if moved and mark != old + length:
            return None
        if moved:
            oldest = min(oldest, old)
        else:
            latest = max(latest, mark)
    return flags if oldest > latest else None


class Steady:
    """Watches one execution of a loop, turn by turn."""

    def __init__(self, finder: Any, body: list, turns: int):
        self.finder, self.body, self.turn = finder, body, 0
        worth = turns >= _LEAST_TURNS and turns * _length(body) >= _WORTH
        self.watching = worth and not any(map(_counted_at_run_time, body))
        self.buffers = list(_buffers(body)) if self.watching else []
        self.piece, self.known = [-1, -1], None

    def before(self) -> None:
        """A turn begins."""
        if self.watching:
            self.piece = [self.piece[1], self.finder.tape.close() if self.looking() else -1]

    def looking(self) -> bool:
        """Whether this turn is looked at: the first ones, then two at each power of two."""
        turn = self.turn
        return turn <= _TRIED or (turn & (turn - 1)) == 0 or ((turn - 1) & (turn - 2)) == 0

    def skipped(self, left: int) -> int:
        """A turn has ended: how many of the `left` ones were written at once."""
        if not self.watching or left < 2:
            return 0
        looked, self.turn = self.looking(), self.turn + 1
        before, self.known = self.known, self.memory() if looked else None
        if before is None or self.known is None or -1 in self.piece:
            return 0
        moved = grown(before, self.known)
        if moved is None or not self.finder.tape.again(*self.piece, left):
            return 0
        self.move(moved, (self.known.count - before.count) * left)
        self.watching = False
        return left

    # ------------------------------------------------------------ what the search remembers

    def memory(self) -> Memory:
        """A picture of everything that the loop's body reads or changes."""
        f = self.finder
        shape: list = [
            [(low, high, owner.buffer.id) for low, high, owner in owners]
            for owners in f.owners.values()
        ]
        marks: list[int] = [*f.branch, *f.passed, *f.latest_dma, *f.latest.values()]
        shape.append(tuple(f.latest))
        for buffer in self.buffers:
            tile = f.tiles.get(buffer)
            if tile is None:
                shape.append(None)
                continue
            shape.append((tile.displaced, tile.ledgers))
            for kept in (tile.writes, tile.reads):
                picture(kept, shape, marks)
        for number, record in f.registers.items():
            shape.append((number, record.stream))
            marks.append(record.number)
        return Memory(f.tape.count, shape, marks)

    def move(self, grown: list[bool], by: int) -> None:
        """Let the marks that grow stand as they will after the turns that were skipped."""
        f, flags = self.finder, iter(grown)
        f.branch = [x + by * next(flags) for x in f.branch]
        f.passed = [x + by * next(flags) for x in f.passed]
        f.latest_dma = [x + by * next(flags) for x in f.latest_dma]
        for key in f.latest:
            f.latest[key] += by * next(flags)
        for buffer in self.buffers:
            tile = f.tiles.get(buffer)
            for kept in () if tile is None else (tile.writes, tile.reads):
                move(kept, flags, by)
        for record in f.registers.values():
            record.number += by * next(flags)


def picture(kept: Any, shape: list, marks: list[int]) -> None:
    """The accesses to one tile (see `depend._Tile`), whole ones or by region."""
    if type(kept) is list:
        for number, *rest in kept:
            marks.append(number)
            shape.append(rest)
        return
    shape.append((kept.grid, kept.disjoint, len(kept.records)))
    for record in (*kept.records.values(), *kept.inherited):
        marks.append(record.number)
        shape.append((record.stream, record.kind, record.box, record.waited, record.passed))


def move(kept: Any, flags: Iterator[bool], by: int) -> None:
    """Move on the marks of one tile that grow, in the order of `picture`."""
    if type(kept) is list:
        for mark in kept:
            mark[0] += by * next(flags)
        return
    for record in (*kept.records.values(), *kept.inherited):
        record.number += by * next(flags)


def _length(body: list) -> int:
    """Instances of one turn, as far as bounds are known."""
    total = 0
    for node in body:
        if not isinstance(node, Loop):
            total += 1
        elif not _counted_at_run_time(node):
            total += _length(node.body) * len(range(node.start, node.stop, node.step))
    return total


def _counted_at_run_time(node: Any) -> bool:
    """Whether a node is, or holds, a loop whose turns differ from one time to the next."""
    return isinstance(node, Loop) and (
        node.while_true is not None
        or isinstance(node.start, Register)
        or isinstance(node.stop, Register)
        or any(map(_counted_at_run_time, node.body))
    )


def _buffers(body: list) -> dict[Any, None]:
    """The buffers that a body touches, in order, each once."""
    found: dict[Any, None] = {}
    for node in body:
        if isinstance(node, Loop):
            found.update(_buffers(node.body))
            continue
        for view in node.views():
            if type(view) is View:
                found[view.buffer] = None
    return found


__all__ = ["Memory", "Steady", "grown", "move", "picture"]
