"""The waits found in each memory (`sim.search`) woven into one flow, lap by lap of all of them."""

from math import lcm

import numpy as np

from opentrn.sim.letters import Letters
from opentrn.sim.rows import Row
from opentrn.sim.search import Lap, Search, cut, unrolled
from opentrn.sim.tape import Part, Repeat
from opentrn.sim.timing import ENGINES
from opentrn.sim.turns import Restless, Turns

_N = len(ENGINES)


def woven(letters: Letters, rows: list[Row], turns: list[Turns], searches: list[Search]):
    """(parts, rows, repeats) of a `Flow`; Restless where there is no room for two laps of all.

    Parts have banks only where several engines use banks, and so may wait for each other there.
    """
    loom = _Loom(letters, rows, searches)
    at, repeats = 0, []
    for number, these in enumerate(turns):
        laps = [loom.shortest(these, search.laps[number], n) for n, search in enumerate(searches)]
        size, fixed = lcm(*(lap.turns for lap in laps)), max(lap.fixed for lap in laps)
        start = max(loom.begins(these, lap, number, fixed) for number, lap in enumerate(laps))
        count = (these.high - start) // size
        if count < 2:
            raise Restless(number)
        loom.plain(at, these.at(these.low))
        loom.turns(these, laps, these.low, start)
        loom.turns(these, laps, start, start + size)
        loom.again(count - 1, fixed)
        repeats.append(Repeat(these.at(start), size * these.length, count))
        loom.turns(these, laps, start + count * size, these.high)
        at = these.at(these.high)
    loom.plain(at, len(letters.letter))
    return loom.parts, rows, tuple(repeats)


class _Loom:
    """Parts in the making."""

    def __init__(self, letters: Letters, rows: list[Row], searches: list[Search]):
        self.letters, self.parts = letters, []
        self.streams = np.array([row.stream for row in rows], np.int64)
        contested = len({row.stream for row in rows if row.banks}) > 1
        self.columns = [search.columns() for search in searches]
        if not contested:
            self.columns = [(*waits, *np.zeros((2, 0), np.int64)) for *waits, _, _ in self.columns]

    def shortest(self, turns: Turns, lap: Lap, number: int) -> Lap:
        """A lap as short as its waits and banks allow: part of it comes again within it."""
        for size in range(1, lap.turns // 2 + 1):
            if lap.turns % size == 0 and all(
                _again(*self.columns[number][k : k + 2], turns, lap, size, k == 0) for k in (0, 2)
            ):
                return lap._replace(turns=size)
        return lap

    def begins(self, turns: Turns, lap: Lap, number: int, fixed: int) -> int:
        """The turn of a lap from which on all waits that move are for later ones than those that
        stay, in any memory: else which wait stands for others would not be the same in all laps.
        """
        at, code = self.columns[number][:2]
        _, own = cut(at, code, turns.at(lap.begin), turns.at(lap.begin + lap.turns))
        moving = own[own >> 2 > lap.fixed] >> 2
        late = max(fixed + 1 - int(moving.min(initial=fixed + 1)), 0)
        return lap.begin - -late // turns.length

    def plain(self, begin: int, end: int) -> None:
        """Instructions that were looked at one by one."""
        if begin < end:
            self.part(begin, end, *(
                [cut(*columns[k : k + 2], begin, end) for columns in self.columns]
                for k in (0, 2)
            ))  # fmt: skip

    def turns(self, turns: Turns, laps: list[Lap], low: int, high: int) -> None:
        """Turns [low, high), from what was found in the turns that stand for them."""
        if low < high:
            self.part(turns.at(low), turns.at(high), *(
                [unrolled(*columns[k : k + 2], turns, lap, low, high, k == 0)
                 for columns, lap in zip(self.columns, laps, strict=True)]
                for k in (0, 2)
            ))  # fmt: skip

    def part(self, begin: int, end: int, waits, banks) -> None:
        """One more part; the waits of all memories are pruned together."""
        consumer, code = (np.concatenate(column) for column in zip(*waits, strict=True))
        consumer, code = self.pruned(consumer, code)
        bank_at, bits = (np.concatenate(column) for column in zip(*banks, strict=True))
        edges = np.bincount(consumer - begin, minlength=end - begin).astype(np.int32)
        row = self.letters.form_of(slice(begin, end))
        nothing = np.zeros(0, np.int32)  # a `StraightFlow` has the body and its positions
        self.parts.append(Part(begin, [], nothing, row, edges, code, bank_at, bits))

    def again(self, times: int, fixed: int) -> None:
        """The last part, so many times more."""
        last = self.parts[-1]
        moves = last.dep >> 2 > fixed
        length = len(last.row)
        self.parts.append(last._replace(
            first=last.first + length, dep=last.dep + 4 * length * moves,
            bank_at=last.bank_at + length, times=times, moves=moves,
        ))  # fmt: skip

    def pruned(self, consumer: np.ndarray, code: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Waits in order; of three and more one for each engine and kind (`Finder.pruned`)."""
        order = np.lexsort((code, consumer))
        consumer, code = consumer[order], code[order]
        if not len(code):
            return consumer, code
        producer, kind = code >> 2, code & 3
        stream = self.streams[self.letters.form_of(producer)]
        group = np.where(stream < _N, stream, _N + producer)
        order = np.lexsort((code, group, kind, consumer))
        key = np.stack((consumer, kind, group))[:, order]
        kept = np.ones(len(code), bool)
        kept[order[:-1]] = (key[:, 1:] != key[:, :-1]).any(axis=0)
        first = np.flatnonzero(np.diff(consumer, prepend=-1))
        count = np.diff(first, append=len(consumer))
        kept |= np.repeat(count, count) < 3
        return consumer[kept], code[kept]


def _again(at, what, turns: Turns, lap: Lap, size: int, waits: bool) -> bool:
    """Whether what was found in the first `size` turns of a lap comes again up to its end."""
    at, what = cut(at, what, turns.at(lap.begin), turns.at(lap.begin + lap.turns))
    times, step = lap.turns // size, size * turns.length
    if len(at) % times:
        return False
    at, what = at.reshape(times, -1), what.reshape(times, -1)
    by = step * np.arange(times)[:, None]
    moves = what >> 2 > lap.fixed if waits else np.zeros(what.shape, bool)
    what = what - 4 * by * moves
    return bool((at - by == at[0]).all() and (what == what[0]).all())


__all__ = ["woven"]
