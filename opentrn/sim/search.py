"""The search for waits (`sim.depend`) in one memory of a program whose loops were unrolled.

Waits in different memories have nothing to do with each other, and what is in one comes again
sooner than what is in all.  Of each repetition laps are searched until the search remembers what
it remembered a lap before, but for the names of tiles and the numbers of instructions, of which
some stay and all later ones grow (as in `sim.steady`); the last lap then stands for the rest.
"""

from typing import NamedTuple

import numpy as np

from opentrn.isa import Buffer, Program, View
from opentrn.sim.depend import Finder
from opentrn.sim.laps import Laps, slots_of
from opentrn.sim.letters import Letters
from opentrn.sim.place import Placement
from opentrn.sim.rows import Row
from opentrn.sim.steady import Memory, grown, move, picture
from opentrn.sim.turns import Restless, Turns

_LAPS = 6  # after which a search that is not steady is given up


class Lap(NamedTuple):
    """Turns [begin, begin + turns) of a repetition stand for those that follow; waits for
    instructions behind number `fixed` move on with them."""

    begin: int
    turns: int
    fixed: int


class Search(Finder):
    """The waits in one memory.  `laps` has one lap for each repetition; `found` the waits of the
    instructions that were looked at, as pairs (instruction, `4 * producer + kind`), not pruned, in
    order of instructions; `banks` pairs (instruction, bits) where PSUM banks are asked for.
    """

    def __init__(self, program: Program, space: str, lone: Placement, turns: list[Turns],
                 rounds: list[Laps] | None, apart: set[Buffer], rows: list[Row],
                 letters: Letters):  # fmt: skip
        super().__init__(program, Placement(dict(lone.slots), bank=lone.bank), None, ())
        self.unchanging |= apart
        self.program, self.space, self.turns, self.apart = program, space, turns, apart
        self.rounds = rounds
        self.letters, self.laps = letters, []
        self.consumers: list[int] = []
        self.codes: list[int] = []
        self.bank_at: list[int] = []
        self.bits: list[int] = []
        self.names: dict[Buffer, tuple[int, int]] = {}  # (turn, number) of what turns made
        self.uses = [self._uses(number, row) for number, row in enumerate(rows)]

    def _uses(self, number: int, row: Row) -> tuple:
        """Of a form: its stream, operands in this memory that it reads, and writes, banks."""
        letters, form = self.letters, self.letters.forms[number]
        reads, writes = [], []
        for k, n in enumerate(letters.place[:, number].tolist()):
            if n >= 0 and form.given[n].space == self.space:
                (writes if letters.writes[k, number] else reads).append(n)
        return row.stream, tuple(reads), tuple(writes), row.banks and self.space == "psum"

    # ------------------------------------------------------------ running through it

    def run(self) -> None:
        """Search; Restless where a repetition does not become steady."""
        at = 0
        for number, turns in enumerate(self.turns):
            self.through(at, turns.at(turns.low))
            rounds = None if self.rounds is None else self.rounds[number]
            if not self.fold(turns, rounds):
                raise Restless(number)
            at = turns.at(turns.high)
        self.through(at, len(self.program.body))

    def through(self, begin: int, end: int) -> None:
        """Instruction by instruction."""
        body, uses = self.program.body, self.uses
        for number, form in enumerate(self.letters.form_of(slice(begin, end)).tolist(), begin):
            stream, reads, writes, banks = uses[form]
            if not reads and not writes:
                continue
            operands = body[number].operands
            if banks:
                self.bank_at.append(number)
                self.bits.append(self.banks_of(operands))
            for n in reads:
                self.read(operands[n], number, stream)
            for n in writes:
                self.write(operands[n], number, stream)
            if self.edges:
                self.consumers += [number] * len(self.edges)
                self.codes += self.edges
                self.edges = []

    def write(self, view: View, number: int, stream: int) -> None:
        """As of `Finder`; nobody waits for what is written apart."""
        if view.buffer not in self.apart:
            super().write(view, number, stream)

    def turn(self, turns: Turns, rounds: Laps | None, turn: int) -> None:
        """One turn, with what it makes in this memory."""
        if rounds is not None:
            made = slots_of(self.program, turns, rounds, turn)
            for number, (buffer, slot) in zip(rounds.numbers, made, strict=True):
                self.placement.slots[buffer], self.names[buffer] = slot, (turn, number)
        self.through(turns.at(turn), turns.at(turn + 1))

    def fold(self, turns: Turns, rounds: Laps | None) -> bool:
        """All turns, of which most are not looked at; False where that cannot be."""
        self.names = {}
        start, size = (turns.low, 1) if rounds is None else (rounds.start, rounds.turns)
        for turn in range(turns.low, start):
            self.turn(turns, rounds, turn)
        before = self.memory(turns, start, size)
        for turn in range(start, min(start + _LAPS * size, turns.high - size + 1), size):
            for one in range(turn, turn + size):
                self.turn(turns, rounds, one)
            known = self.memory(turns, turn + size, size)
            flags = grown(before, known)
            if flags is not None:
                lap = Lap(turn, size, _latest(known, flags))
                self.steady(turns, rounds, lap, flags)
                return True
            before = known
        return False

    def steady(self, turns: Turns, rounds: Laps | None, lap: Lap, flags: list[bool]) -> None:
        """Behind a lap that stands for the others: go on where the last one ends."""
        turn = lap.begin + lap.turns
        left = (turns.high - turn) // lap.turns * lap.turns
        self.skip(turns, flags, left)
        # What is left of a lap changes what is remembered, but its waits are those of the lap.
        kept = len(self.consumers), len(self.bank_at)
        for one in range(turn + left, turns.high):
            self.turn(turns, rounds, one)
        del self.consumers[kept[0] :], self.codes[kept[0] :]
        del self.bank_at[kept[1] :], self.bits[kept[1] :]
        self.laps.append(lap)

    # ------------------------------------------------------------ what is remembered

    def owning(self) -> list:
        """The tiles that bytes belong to, each once; in HBM all tiles."""
        if self.space == "hbm":
            return list(self.tiles.values())
        return list({id(tile): tile for own in self.owners.values() for _, _, tile in own}.values())

    def memory(self, turns: Turns, turn: int, lap: int) -> Memory:
        """What is remembered when a turn begins, tiles named as they look from there.

        Bytes that tiles of the last lap did not take over are taken over in no lap; who they
        belonged to stays the same.
        """
        self.names = {one: made for one, made in self.names.items() if turn - made[0] <= lap}
        shape: list = []
        marks: list[int] = []
        for lane, own in self.owners.items():
            shape.append((lane, [(low, high, self.name(tile.buffer, turn))
                                 for low, high, tile in own]))  # fmt: skip
        for tile in self.owning():
            shape.append((tile.displaced, tile.ledgers))
            for kept in (tile.writes, tile.reads):
                picture(kept, shape, marks)
        return Memory(turns.at(turn), shape, marks)

    def name(self, buffer: Buffer, turn: int) -> tuple[int, int]:
        """A name for a tile that is the same from turn to turn."""
        made = self.names.get(buffer)
        return (-1, buffer.id) if made is None else (turn - made[0], made[1])

    def skip(self, turns: Turns, flags: list[bool], by: int) -> None:
        """Remember what will be remembered so many turns later."""
        left, slots = iter(flags), self.placement.slots
        for tile in self.owning():
            for kept in (tile.writes, tile.reads):
                move(kept, left, by * turns.length)
        for tile in self.owning():
            old = tile.buffer
            if old not in self.names:
                continue
            turn, number = self.names.pop(old)
            new = tile.buffer = turns.buffer(self.program, turn + by, number)
            self.names[new], slots[new] = (turn + by, number), slots[old]
            self.tiles[new] = self.tiles.pop(old)
            if tile.ledgers:
                for record in (*tile.writes.records.values(), *tile.reads.records.values()):
                    view = record.view
                    record.view = View(new, view.offset, view.steps, view.dtype)

    # ------------------------------------------------------------ what was found

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(instructions, waits) and (instructions, banks), of those that were looked at, sorted."""
        consumers, codes = np.array(self.consumers, np.int64), np.array(self.codes, np.int64)
        order = np.lexsort((codes, consumers))
        return (consumers[order], codes[order],
                np.array(self.bank_at, np.int64), np.array(self.bits, np.int64))  # fmt: skip

    def every_bank(self) -> "Banks":
        """Those of all turns."""
        turns = [turns._replace(fresh=np.zeros(0, np.int64)) for turns in self.turns]
        return Banks(*self.columns()[2:], turns, self.laps, len(self.program.body))


class Banks(NamedTuple):
    """The PSUM banks that a program of `count` instructions uses: `bits` at instructions `at`,
    of those that were looked at.
    """

    at: np.ndarray
    bits: np.ndarray
    turns: list[Turns]
    laps: list[Lap]
    count: int

    def every(self) -> tuple[np.ndarray, np.ndarray]:
        """(instructions, banks) of all turns."""
        found, begin = [], 0
        for turns, lap in zip(self.turns, self.laps, strict=True):
            found.append(cut(self.at, self.bits, begin, turns.at(turns.low)))
            found.append(unrolled(self.at, self.bits, turns, lap, turns.low, turns.high, False))
            begin = turns.at(turns.high)
        found.append(cut(self.at, self.bits, begin, self.count))
        one, other = (np.concatenate(column) for column in zip(*found, strict=True))
        return one, other


def cut(at: np.ndarray, what: np.ndarray, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """What was found at instructions [begin, end)."""
    low, high = np.searchsorted(at, (begin, end))
    return at[low:high], what[low:high]


def unrolled(at, what, turns: Turns, lap: Lap, low: int, high: int, waits: bool):
    """What was found, waits or else banks, in turns [low, high) or in those that stand for them."""
    before = cut(at, what, turns.at(low), turns.at(min(high, lap.begin)))
    one, other = cut(at, what, turns.at(lap.begin), turns.at(lap.begin + lap.turns))
    moves = other >> 2 > lap.fixed if waits else np.zeros(len(other), bool)
    times = np.arange(max(low - lap.begin, 0) // lap.turns, -(-(high - lap.begin) // lap.turns))
    by = times[:, None] * (lap.turns * turns.length)
    one, other = (one + by).ravel(), (other + 4 * by * moves).ravel()
    inside = slice(*np.searchsorted(one, (turns.at(max(low, lap.begin)), turns.at(high))))
    return np.concatenate((before[0], one[inside])), np.concatenate((before[1], other[inside]))


def _latest(known: Memory, flags: list[bool]) -> int:
    """The latest mark that stays."""
    return max((mark for mark, moved in zip(known.marks, flags, strict=True) if not moved),
               default=-1)  # fmt: skip


__all__ = ["Banks", "Lap", "Search", "cut", "unrolled"]
