"""The ring of `sim.place` through turns of unrolled loops (`sim.turns`) until it has come round.

Where the next tiles lie depends on where the ring stands and on the tiles alive.  When a turn
begins as one before it began, all that lies between comes again: a lap.  So addresses are known for
any number of turns, and are those that `sim.place` gives tile by tile.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from opentrn.isa import Buffer, Program
from opentrn.sim.place import Life, Memory, Placement, Slot, free_from, peak_of
from opentrn.sim.turns import Restless, Turns

_MOST = 20_000  # tiles that are placed one by one in search of a lap


class Loose(NamedTuple):
    """A tile that is not one of those that every turn makes."""

    buffer: Buffer
    first: int
    last: int


class Laps(NamedTuple):
    """Addresses of the tiles `numbers` (of `Turns.made`) of one memory: `table[t]` those of turn
    `low + t`; from turn `start` on they come again every `turns` turns."""

    numbers: list[int]
    sizes: list[int]
    table: np.ndarray
    low: int
    start: int
    turns: int

    def addresses(self, turn) -> np.ndarray:
        """Those of one turn, or of each of an array of turns."""
        again = self.start + (turn - self.start) % self.turns
        return self.table[np.where(turn < self.start, turn, again) - self.low]


class _Ring:
    """The ring of one memory in the making (`place._in_order`)."""

    def __init__(self, memory: Memory):
        self.memory, self.cursor = memory, 0
        self.taken: list[tuple[int, int]] = []
        self.dying: list[tuple[int, int, int, bool]] = []  # last, address, end, made by a turn

    def put(self, first: int, last: int, nbytes: int, made: bool) -> int | None:
        """The address of a tile; None when stuck."""
        self.free(first)
        at = free_from(self.memory, [self.taken], nbytes, self.cursor)
        if at is None and self.cursor:
            at = free_from(self.memory, [self.taken], nbytes, 0)
        if at is None:
            return None
        self.cursor = at + nbytes
        insort(self.taken, (at, self.cursor))
        insort(self.dying, (last, at, self.cursor, made))
        return at

    def free(self, first: int) -> None:
        """Forget tiles that died before instruction `first`."""
        while self.dying and self.dying[0][0] < first:
            _, low, high, _ = self.dying.pop(0)
            del self.taken[bisect_left(self.taken, (low, high))]

    def state(self, begin: int) -> tuple:
        """All that decides where tiles lie from instruction `begin` on."""
        self.free(begin)
        alive = [(low, last - begin if made else last, made) for last, low, _, made in self.dying]
        return self.cursor, tuple(alive)

    def move(self, by: int) -> None:
        """Stand as so many instructions later."""
        self.dying = sorted((last + by * made, *more, made) for last, *more, made in self.dying)


def placed(program: Program, memory: Memory, loose: list[Loose], turns: list[Turns],
           placement: Placement) -> list[Laps]:  # fmt: skip
    """Laps of one memory for each of `turns`; Restless when the ring is stuck, or has no lap.

    The loose tiles come to lie in `placement`, which learns the peak as well.
    """
    ring, found = _Ring(memory), []
    own = sorted((one for one in loose if one.buffer.space == memory.space),
                 key=lambda one: (one.first, one.buffer.id))  # fmt: skip
    laps = [_tiles(program, memory, one) for one in turns]
    _note_peak(memory, own, turns, laps, placement)
    if placement.peak_bytes[memory.space] > memory.size:
        raise Restless(None)
    left = deque(own)
    for number, (these, (numbers, sizes)) in enumerate(zip(turns, laps, strict=True)):
        _alone(ring, left, these.at(these.low), placement)
        inside = bool(left) and left[0].first < these.at(these.high)
        made = None if inside else _round(ring, these, numbers, sizes)
        if made is None:
            raise Restless(number)
        found.append(made)
    _alone(ring, left, None, placement)
    return found


def _alone(ring: _Ring, left: deque[Loose], before: int | None, placement: Placement) -> None:
    """Place loose tiles that begin before an instruction."""
    while left and (before is None or left[0].first < before):
        one = left.popleft()
        nbytes = ring.memory.rounded(one.buffer.partition_bytes)
        at = ring.put(one.first, one.last, nbytes, False)
        if at is None:
            raise Restless(None)
        placement.slots[one.buffer] = Slot(at, nbytes, one.first, one.last, one.buffer.partition)


def _tiles(program: Program, memory: Memory, turns: Turns) -> tuple[list[int], list[int]]:
    """Numbers and bytes of what each turn makes in a memory."""
    buffers = [turns.buffer(program, turns.low, n) for n in range(len(turns.made))]
    numbers = [n for n, buffer in enumerate(buffers) if buffer.space == memory.space]
    return numbers, [memory.rounded(buffers[n].partition_bytes) for n in numbers]


def _round(ring: _Ring, turns: Turns, numbers: list[int], sizes: list[int]) -> Laps | None:
    """Place turns until one begins as one did before, and go on behind the last of them."""
    table, seen = [], {}
    for turn in range(turns.low, turns.high):
        start = seen.setdefault(ring.state(turns.at(turn)), turn)
        if start < turn:
            lap = turn - start
            skipped = (turns.high - turn) // lap * lap
            ring.move(skipped * turns.length)
            rest = range(turn + skipped, turns.high)
            if any(_turn(ring, turns, numbers, sizes, one) is None for one in rest):
                return None
            return Laps(numbers, sizes, np.array(table, np.int64), turns.low, start, lap)
        made = _turn(ring, turns, numbers, sizes, turn)
        if made is None or len(table) * len(numbers) > _MOST:
            return None
        table.append(made)
    return None


def _turn(ring: _Ring, turns: Turns, numbers, sizes, turn: int) -> list[int] | None:
    """The addresses of the tiles of one turn; None when stuck."""
    begin, found = turns.at(turn), []
    for n, nbytes in zip(numbers, sizes, strict=True):
        made = turns.made[n]
        at = ring.put(begin + made.first, begin + made.last, nbytes, True)
        if at is None:
            return None
        found.append(at)
    return found


# ---------------------------------------------------------------------- the peak


def _note_peak(memory: Memory, loose: list[Loose], turns: list[Turns], laps: list,
               placement: Placement) -> None:  # fmt: skip
    """The most bytes alive, and when first: as in a program that has fewer turns.

    Those that are left out are like the one before them.
    """
    lives, cuts = [], [(one.at(one.low + _kept(one)), _left_out(one)) for one in turns]

    def short(position: int) -> int:
        return position - sum(gone for cut, gone in cuts if position >= cut + gone)

    for one in loose:
        nbytes = memory.rounded(one.buffer.partition_bytes)
        lives.append(Life(one.buffer, short(one.first), short(one.last), nbytes))
    for one, (numbers, sizes) in zip(turns, laps, strict=True):
        for turn in range(one.high - one.low - _left_out(one) // one.length):
            begin = short(one.at(one.low)) + turn * one.length
            for n, nbytes in zip(numbers, sizes, strict=True):
                made = one.made[n]
                lives.append(Life(None, begin + made.first, begin + made.last, nbytes))
    most, at = peak_of(lives)[:2]
    for cut, gone in cuts:
        at += gone * (at >= cut)
    placement.peak_bytes[memory.space], placement.peak_at[memory.space] = most, at


def _kept(turns: Turns) -> int:
    """Turns at the beginning that are looked at."""
    return min(2 * turns.low + 1, turns.high - turns.low)


def _left_out(turns: Turns) -> int:
    """Instructions of the turns that are left out."""
    return max(turns.high - turns.low - 2 * _kept(turns), 0) * turns.length


# ---------------------------------------------------------------------- all of it


def every_slot(program: Program, lone: Placement, turns: list[Turns], laps: dict[str, list[Laps]]
               ) -> Iterator[tuple[Buffer, Slot]]:  # fmt: skip
    """All buffers and their slots in the order of `place.place`."""
    for space, rounds in laps.items():
        left = iter([*((b, slot) for b, slot in lone.slots.items() if b.space == space), None])
        one = next(left)
        for these, lap in zip(turns, rounds, strict=True):
            while one is not None and one[1].first < these.at(these.low):
                yield one
                one = next(left)
            for turn in range(these.low, these.high):
                yield from slots_of(program, these, lap, turn)
        while one is not None:
            yield one
            one = next(left)


def slots_of(program: Program, turns: Turns, lap: Laps, turn: int
             ) -> Iterator[tuple[Buffer, Slot]]:  # fmt: skip
    """What one turn makes in one memory, and where it lies."""
    begin = turns.at(turn)
    at = lap.addresses(turn).tolist()
    for n, address, nbytes in zip(lap.numbers, at, lap.sizes, strict=True):
        buffer, made = turns.buffer(program, turn, n), turns.made[n]
        yield buffer, Slot(address, nbytes, begin + made.first, begin + made.last, buffer.partition)


__all__ = ["Laps", "Loose", "every_slot", "placed", "slots_of"]
