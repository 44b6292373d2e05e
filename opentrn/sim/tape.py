"""A program unrolled: written instance by instance, or by repeating what was written last.

Long programs are mostly repetition.  What repeats is kept as arrays that were tiled, and said to
be a repetition, so that who comes later (`sim.repeats`) need not look at every turn either.
"""

from bisect import bisect_right
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from opentrn.sim.rows import Row


class Repeat(NamedTuple):
    """Instances [begin, begin + length * count) are `count` equal turns: the same rows, and the
    same waits, which name producers `length` later in each turn (or one before `begin`, fixed).
    """

    begin: int
    length: int
    count: int

    @property
    def end(self) -> int:
        """The first instance behind the last turn."""
        return self.begin + self.length * self.count


class Part(NamedTuple):
    """Instances from `first` on; `edges` counts the waits of each, the other columns are `Flow`'s.

    With `times` they are a turn that comes so often, each wait that `moves` naming an instance
    `len(row)` later every time.
    """

    first: int
    instances: list
    position: np.ndarray
    row: np.ndarray
    edges: np.ndarray
    dep: np.ndarray
    bank_at: np.ndarray
    bank_bits: np.ndarray
    times: int = 1
    moves: np.ndarray | None = None

    @property
    def end(self) -> int:
        """The first instance behind."""
        return self.first + len(self.row) * self.times

    def column(self, name: str) -> Any:
        """A column with every turn."""
        column, times = getattr(self, name), self.times
        if times == 1:
            return column
        if name == "instances":
            return column * times
        if name not in ("dep", "bank_at"):
            return np.tile(column, times)
        shifts = len(self.row) * np.arange(times)[:, None]
        step = 4 * shifts * self.moves if name == "dep" else shifts
        return (column + step).ravel()


class Flow:
    """A program unrolled.  Columns are unrolled when they are first asked for.

    `instances[i]` is an Instruction, or a Loop whose branch it is; `row[i]` is its place in `rows`;
    `position[i]` its number in `Program.instructions()` (-1 for a branch); `dep_start` and `dep`
    are as in `timing.Columns`.  `bank_bits` are the PSUM banks, as bits of `Columns.ports`, of the
    instances `bank_at`, whose rows ask for them.
    """

    def __init__(self, parts: list[Part], rows: list[Row], repeats: tuple[Repeat, ...]):
        self.parts, self.rows, self.repeats = parts, rows, repeats

    def __len__(self) -> int:
        return self.parts[-1].end if self.parts else 0

    def _unrolled(self, name: str, kind: type) -> np.ndarray:
        columns = [part.column(name) for part in self.parts]
        return np.concatenate(columns) if columns else np.zeros(0, kind)

    @cached_property
    def instances(self) -> list:
        """What happens, in program order."""
        return [one for part in self.parts for one in part.column("instances")]

    @cached_property
    def position(self) -> np.ndarray:
        """Numbers in the text."""
        return self._unrolled("position", np.int32)

    @cached_property
    def row(self) -> np.ndarray:
        """Numbers of rows."""
        return self._unrolled("row", np.int32)

    @cached_property
    def dep_start(self) -> np.ndarray:
        """Where the waits of each instance begin, and where the last ones end."""
        starts = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self._unrolled("edges", np.int32), out=starts[1:])
        return starts

    @cached_property
    def dep(self) -> np.ndarray:
        """Waits, as `4 * producer + kind`."""
        return self._unrolled("dep", np.int64)

    @cached_property
    def bank_at(self) -> np.ndarray:
        """Instances that use PSUM banks."""
        return self._unrolled("bank_at", np.int64)

    @cached_property
    def bank_bits(self) -> np.ndarray:
        """The banks they use."""
        return self._unrolled("bank_bits", np.int64)

    def shortened(self, repeat: Repeat, turns: int) -> "Flow":
        """The flow with only the first `turns` turns of `repeat`.

        What waited for a turn that is left out waits for one as far from the end, or for the first.
        """
        gone = (repeat.count - turns) * repeat.length

        def moved(producer: np.ndarray) -> np.ndarray:
            copy = repeat.begin + (producer - repeat.begin) % repeat.length
            inside = np.maximum(producer - gone, copy)
            kept = np.where(producer < repeat.begin, producer, inside)
            return np.where(producer >= repeat.end, producer - gone, kept)

        parts = []
        for part in self.parts:
            if part.first >= repeat.end:
                dep = 4 * moved(part.dep >> 2) + (part.dep & 3)
                part = part._replace(first=part.first - gone, dep=dep, bank_at=part.bank_at - gone)
            elif part.end == repeat.end:
                part = part._replace(times=turns - 1)
            parts.append(part)
        return Flow(parts, self.rows, tuple(
            r._replace(begin=r.begin - gone) if r.begin >= repeat.end else r
            for r in self.repeats if r is not repeat
        ))  # fmt: skip


_KINDS = (np.int32, np.int32, np.int32, np.int64, np.int64, np.int64)


class Tape:
    """A flow in the making.  `count` instances are written."""

    def __init__(self):
        self.count = 0
        self.parts: list[Part] = []
        self.repeats: list[Repeat] = []
        self._begin()

    def _begin(self) -> None:
        self.first = self.count
        self._instances: list[Any] = []
        self._position: list[int] = []
        self._row: list[int] = []
        self._edges: list[int] = []
        self._dep: list[int] = []
        self._bank_at: list[int] = []
        self._bank_bits: list[int] = []

    def append(self, what: Any, position: int, row: int, edges: list[int]) -> None:
        """One more instance and its waits."""
        self._instances.append(what)
        self._position.append(position)
        self._row.append(row)
        self._edges.append(len(edges))
        if edges:
            self._dep += edges
        self.count += 1

    def banks(self, number: int, bits: int) -> None:
        """The PSUM banks of an instance."""
        self._bank_at.append(number)
        self._bank_bits.append(bits)

    def row_of(self, number: int) -> int:
        """The row of an instance written before."""
        if number >= self.first:
            return self._row[number - self.first]
        part = self.parts[bisect_right(self.parts, number, key=lambda p: p.first) - 1]
        return int(part.row[(number - part.first) % len(part.row)])

    def close(self) -> int:
        """End the part that is being written; returns the number of the next one."""
        if self.count > self.first:
            lists = (self._position, self._row, self._edges, self._dep, self._bank_at,
                     self._bank_bits)  # fmt: skip
            arrays = (np.asarray(x, kind) for x, kind in zip(lists, _KINDS, strict=True))
            self.parts.append(Part(self.first, self._instances, *arrays))
            self._begin()
        return len(self.parts)

    def again(self, before: int, last: int, times: int) -> bool:
        """Repeat all parts from number `last` on, if they continue those from `before` on.

        That is: both are equal but for waits, and each wait of the last ones names the same
        instance as the one before it, or one a whole turn later.
        """
        self.close()
        one, two = _joined(self.parts[before:last]), _joined(self.parts[last:])
        length = two.first - one.first
        moves = _moves(one, two, length)
        if moves is None:
            return False
        dep, bank_at = two.dep + 4 * length * moves, two.bank_at + length
        self.parts.append(
            two._replace(first=self.count, dep=dep, bank_at=bank_at, times=times, moves=moves)
        )
        self.repeats = [r for r in self.repeats if r.end <= two.first]
        self.repeats.append(Repeat(two.first, length, times + 1))
        self.count += length * times
        self._begin()
        return True

    def flow(self, rows: list[Row]) -> Flow:
        """All of it."""
        self.close()
        return Flow(self.parts, rows, tuple(self.repeats))


def _joined(parts: list[Part]) -> Part:
    """Parts that follow each other as one."""
    if len(parts) == 1 and parts[0].times == 1:
        return parts[0]
    columns = {
        name: np.concatenate([part.column(name) for part in parts]) for name in Part._fields[2:8]
    }
    instances = [one for part in parts for one in part.column("instances")]
    return Part(parts[0].first, instances, **columns)


def _moves(one: Part, two: Part, length: int) -> np.ndarray | None:
    """Which waits of `two` name an instance `length` later than those of `one`; None if unlike."""
    same = all(
        np.array_equal(getattr(one, name), getattr(two, name))
        for name in ("position", "row", "edges", "bank_bits")
    )
    if not same or len(two.row) != length or len(one.dep) != len(two.dep):
        return None
    if not np.array_equal(one.bank_at + length, two.bank_at):
        return None
    moves = two.dep - one.dep == 4 * length
    return moves if bool((moves | (two.dep == one.dep)).all()) else None


__all__ = ["Flow", "Part", "Repeat", "Tape"]
