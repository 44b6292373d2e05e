"""Turns of an unrolled loop: which tiles each turn makes anew, and which all turns share.

Letters that repeat (`sim.recur`) say nothing of buffers.  Here it is seen to, for every turn, that
an access is to a tile that all turns share, or to one that the turn made, or a turn so many before;
what a turn makes is new in each.  Such turns differ only in the names of what they make.
"""

from typing import Any, NamedTuple

import numpy as np

from opentrn.isa import Buffer, Program
from opentrn.sim.letters import Letters
from opentrn.sim.recur import Span
from opentrn.sim.words import layout, memory

_BACK = 3  # turns that a tile may be used in behind the one that made it
_MULTIPLES = 4  # tiles may be used in turns: every second one, every third ...
_SMALL = 1 << 30


class Restless(Exception):
    """Repetition `number` of a program does not come to be alike turn by turn; None: none does."""

    def __init__(self, number: int | None):
        super().__init__(number)
        self.number = number


class Made(NamedTuple):
    """A tile that every turn makes: first used by instruction `first` of the turn, as operand
    `place`, last used `last` instructions behind the beginning of the turn."""

    first: int
    place: int
    last: int


class Turns(NamedTuple):
    """Instructions [begin, begin + length * count) are turns; in those from `low` to `high` nothing
    happens but what `made` says: no other tile is used for the first or the last time.

    `fresh` has the addresses of all buffers that they make.  `loose` are the accesses
    (instruction, operand, address of the buffer) around those turns, which others than `made` are
    about.
    """

    begin: int
    length: int
    count: int
    low: int
    high: int
    made: tuple[Made, ...]
    fresh: np.ndarray
    loose: tuple[np.ndarray, np.ndarray, np.ndarray]

    @property
    def end(self) -> int:
        """The first instruction behind the last turn."""
        return self.begin + self.length * self.count

    def buffer(self, program: Program, turn: int, number: int) -> Buffer:
        """What `made[number]` is in one turn."""
        made = self.made[number]
        return program.body[self.at(turn) + made.first].operands[made.place].buffer

    def at(self, turn: int) -> int:
        """The first instruction of a turn."""
        return self.begin + self.length * turn


class _Slots(NamedTuple):
    """The accesses to tiles on chip in each turn: instruction and operand of a turn's, and for each
    its buffers, turn by turn."""

    at: np.ndarray
    place: np.ndarray
    buffer: list[np.ndarray]

    def of_turn(self, turn: int) -> list[int]:
        """The buffers of one turn."""
        return [int(own[turn]) for own in self.buffer]


def turns_of(letters: Letters, span: Span) -> Turns | None:
    """The turns of a span, several of its turns being one where tiles are used in turns."""
    begin, length = span.begin, span.length
    for multiple in range(1, _MULTIPLES + 1):
        found = _turns(letters, Span(begin, length * multiple, span.count // multiple))
        if found is not None:
            return found
    return None


def _turns(letters: Letters, span: Span) -> Turns | None:
    if span.count < 4 * _BACK:
        return None
    slots = _slots(letters, span)
    begin = span.begin + _parting(slots, span)
    if begin > span.begin:
        span = Span(begin, span.length, (span.end - begin) // span.length)
        slots = _slots(letters, span)
    origin = _origins(slots, span.count)
    if origin is None:
        return None
    back, of, shared = origin
    if not _holds(slots, back, of, shared):
        return None
    made = _made(slots, back, of, shared, span.length)
    low = max(1, int(back.max(initial=0)))
    high = span.count - low
    own = np.flatnonzero((back == 0) & ~shared & (of == np.arange(len(of))))
    fresh = np.array([slots.buffer[n][low:high] for n in own.tolist()], np.int64)
    order = _in_order(made, fresh)
    if order is None:
        return None
    return Turns(*span, low, high, tuple(made[n] for n in order), fresh,
                 _loose(slots, span, low, high, back, shared))  # fmt: skip


def _slots(letters: Letters, span: Span) -> _Slots:
    form = letters.form_of(slice(span.begin, span.begin + span.length))
    chip = (letters.place[:, form] >= 0) & ~letters.hbm[:, form]
    at, access = np.nonzero(chip.T)
    buffer = [letters.buffer[k, span.begin + first : span.end : span.length]
              for k, first in zip(access.tolist(), at.tolist(), strict=True)]  # fmt: skip
    return _Slots(at, letters.place[access, form[at]], buffer)


def _parting(slots: _Slots, span: Span) -> int:
    """The instruction of a turn in front of which the fewest tiles of a turn are still in use.

    Where a turn begins is not to be seen in the letters alone.
    """
    middle, uses = span.count // 2, {}
    for turn in range(middle - _BACK, middle + _BACK + 1):
        for at, buffer in zip(slots.at.tolist(), slots.of_turn(turn), strict=True):
            uses.setdefault(buffer, []).append((turn - middle) * span.length + at)
    crossed = np.zeros(span.length, np.int64)
    for used in uses.values():
        first, last = used[0], used[-1]
        if 0 <= first < span.length and last < (_BACK + 1) * span.length:
            np.add.at(crossed, np.arange(first + 1, last + 1) % span.length, 1)
    return int(crossed.argmin())


def _origins(slots: _Slots, turns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """For each access of a turn: how many turns before its tile was made, by which access, and
    whether it is shared instead.  As one turn in the middle has it.
    """
    count, middle = len(slots.at), turns // 2
    one, other = (np.array(slots.of_turn(turn), np.int64) for turn in (middle - 1, middle))
    shared = one == other
    back, of = np.zeros(count, np.int64), np.arange(count)
    known: dict[int, tuple[int, int]] = {}
    for turn in range(_BACK + 1, -1, -1):
        for n, buffer in enumerate(slots.of_turn(middle - turn)):
            made = known.setdefault(buffer, (turn, n))
            if not turn:
                back[n], of[n] = made
    back[shared], of[shared] = 0, np.flatnonzero(shared)
    fits = (back <= _BACK) & (of[of] == of) & (back[of] == 0) & (shared[of] == shared)
    return (back, of, shared) if fits.all() else None


def _holds(slots: _Slots, back: np.ndarray, of: np.ndarray, shared: np.ndarray) -> bool:
    """Whether every turn is like that one."""
    for n in range(len(of)):
        own = slots.buffer[n]
        before = int(shared[n]) or int(back[n])
        other = own if shared[n] else slots.buffer[of[n]]
        if (of[n] != n or before) and (own[before:] != other[: len(own) - before]).any():
            return False
    return True


def _made(slots: _Slots, back, of, shared, length: int) -> list[Made]:
    """The tiles that a turn makes, by their first accesses."""
    last: dict[int, int] = {}
    for n in np.flatnonzero(~shared).tolist():
        behind = int(slots.at[n]) + length * int(back[n])
        last[int(of[n])] = max(behind, last.get(int(of[n]), 0))
    return [Made(int(slots.at[n]), int(slots.place[n]), last[n]) for n in sorted(last)]


def _in_order(made: list[Made], fresh: np.ndarray) -> list[int] | None:
    """The tiles by first use and number, as `sim.place` takes them; None where turns differ in
    that, or where tiles have addresses.
    """
    numbers = [_numbers(own) for own in fresh]
    if any(own is None for own in numbers):
        return None
    order = sorted(range(len(made)), key=lambda n: (made[n].first, int(numbers[n][0])))
    for one, other in zip(order, order[1:], strict=False):
        if made[one].first == made[other].first and (numbers[one] > numbers[other]).any():
            return None
    return order


def _numbers(fresh: np.ndarray) -> np.ndarray | None:
    """The numbers of buffers at addresses in memory; None where one has an address on the chip."""
    where, words = layout(), memory()
    at = (fresh >> 3) - 1
    if (words[at + where.address] != id(None)).any():
        return None
    numbers = words[(words[at + where.number] >> 3) - 1 + where.digits]
    return (numbers & (2 * _SMALL - 1)).astype(np.int32)


def _loose(slots: _Slots, span: Span, low: int, high: int, back, shared) -> Any:
    """The accesses of the turns at both ends, except to tiles made in between; and those in
    between to tiles made before.
    """
    turns, which = [], []
    for n in range(len(back)):
        before = int(back[n])
        own = [*range(low), *range(high + before, span.count)]
        if before and not shared[n]:
            own += range(low, low + before)
        turns += own
        which += [n] * len(own)
    turn, n = np.array(turns, np.int64), np.array(which, np.int64)
    at = span.begin + turn * span.length + slots.at[n]
    buffer = [slots.buffer[one][t] for one, t in zip(which, turns, strict=True)]
    return at, slots.place[n], np.array(buffer, np.int64)


__all__ = ["Made", "Restless", "Turns", "turns_of"]
