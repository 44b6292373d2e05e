"""A straight-line program made ready for the clock turn by turn: loops that a kernel unrolled.

Long programs are loops that were written out.  Where instructions come again turn by turn (`recur`,
`turns`) and addresses lap by lap (`laps`), the search for waits (`depend`) comes to remember what
it remembered a lap before, but for the names of tiles and the numbers of instructions; then all
laps that follow have its waits, moved on (as `sim.steady` has it for device loops).  So the search
is asked for few laps, and the clock (`sim.repeats`) likewise.  What is found is what `place` and
`depend` find, instruction by instruction.
"""

from functools import cached_property

import numpy as np

from opentrn.isa import Buffer, Program
from opentrn.sim.apart import Together, together
from opentrn.sim.laps import Laps, Loose, every_slot, placed
from opentrn.sim.letters import Letters, letters_of
from opentrn.sim.place import Placement, Slot, memories
from opentrn.sim.recur import spans
from opentrn.sim.rows import row_of
from opentrn.sim.search import Banks, Search
from opentrn.sim.tape import Flow
from opentrn.sim.turns import Restless, Turns, turns_of
from opentrn.sim.woven import woven

_TURNS = 16  # of a repetition that are not saved, at best
_WORTH = 1000  # instructions that a repetition has to save


class FoldedPlacement(Placement):
    """A placement whose slots are made when they are first asked for."""

    __slots__ = ("_laps", "_lone", "_made", "_program", "_turns")

    def __init__(self, program: Program, lone: Placement, turns: list[Turns], laps: dict):
        self._program, self._turns, self._laps, self._made = program, turns, laps, None
        super().__init__(lone.slots, lone.peak_bytes, lone.peak_at, lone.findings, lone.bank)

    @property
    def slots(self) -> dict[Buffer, Slot]:
        """As of `Placement`."""
        if self._made is None:
            lone = Placement(self._lone)
            self._made = dict(every_slot(self._program, lone, self._turns, self._laps))
        return self._made

    @slots.setter
    def slots(self, lone: dict[Buffer, Slot]) -> None:
        self._lone = lone


class StraightFlow(Flow):
    """A flow whose instances are the instructions of a body, one each."""

    def __init__(self, parts, rows, repeats, body: list, banks: Banks):
        super().__init__(parts, rows, repeats)
        self.body, self.banks = body, banks

    @cached_property
    def instances(self) -> list:
        """What happens, in program order."""
        return self.body

    @cached_property
    def position(self) -> np.ndarray:
        """Numbers in the text."""
        return np.arange(len(self), dtype=np.int32)

    @cached_property
    def bank_at(self) -> np.ndarray:
        """Instances that use PSUM banks."""
        return self.banks.every()[0]

    @cached_property
    def bank_bits(self) -> np.ndarray:
        """The banks they use."""
        return self.banks.every()[1]


def folded(program: Program, chip, share: float, fast: bool = False
           ) -> tuple[Placement, Flow] | None:  # fmt: skip
    """As `place` and `dependencies`; None where that would not save a `share` of the program.

    `fast`: the program is read by compiled code.
    """
    letters = letters_of(program, fast)
    found = None if letters is None else _turns(program, letters, share)
    if found is None:
        return None
    turns, tensors = found
    rows = [row_of(form, chip) for form in letters.forms]
    least = max(share * len(letters.letter), 1)
    while sum((one.high - one.low) * one.length for one in turns) >= least:
        loose = _loose(program, letters, turns)
        if loose is None:
            return None
        try:
            return _made(program, chip, letters, rows, turns, loose, tensors, least)
        except Restless as found:
            if found.number is None:
                return None
            del turns[found.number]
    return None


def _made(program: Program, chip, letters: Letters, rows: list, turns: list[Turns],
          loose: list[Loose], tensors: Together, least: float
          ) -> tuple[Placement, Flow]:  # fmt: skip
    """The placement and the flow; Restless where turns are not alike in them."""
    lone = Placement(bank=int(chip.core.psum_bank))
    laps = {one.space: placed(program, one, loose, turns, lone) for one in memories(chip)}
    if sum(map(_saved, turns, zip(*laps.values(), strict=True))) < least:
        raise Restless(None)
    searches = [Search(program, space, lone, turns, laps.get(space), tensors.apart, rows, letters)
                for space in (*laps, *["hbm"] * bool(len(tensors.at)))]  # fmt: skip
    for one in searches:
        one.run()
    psum = next(one for one in searches if one.space == "psum")
    flow = StraightFlow(*woven(letters, rows, turns, searches), program.body, psum.every_bank())
    return FoldedPlacement(program, lone, flow.banks.turns, laps), flow


def _saved(turns: Turns, laps: tuple[Laps, ...]) -> int:
    """Instructions of turns that no search looks at, if it is steady after one lap."""
    looked_at = max(one.start + 2 * one.turns for one in laps)
    return max(turns.high - looked_at, 0) * turns.length


def _turns(program: Program, letters: Letters, share: float):
    """The repetitions of a program in order, and the tensors nobody waits in; None if too few."""
    repeated = spans(letters.letter, _TURNS, _WORTH)
    if sum(one.length * one.count for one in repeated) < share * len(letters.letter):
        return None
    tensors = together(program, letters)
    if tensors is None:
        return None
    found = []
    for span in repeated:
        turns = turns_of(letters, span)
        if turns is None:
            continue
        inside = np.searchsorted(tensors.at, (turns.at(turns.low), turns.at(turns.high)))
        if inside[0] == inside[1]:
            found.append(turns)
    saved = sum((one.high - one.low) * one.length for one in found)
    return (found, tensors) if found and saved >= share * len(letters.letter) else None


def _loose(program: Program, letters: Letters, turns: list[Turns]) -> list[Loose] | None:
    """The tiles that no turn makes; None where tiles that turns make are used elsewhere."""
    at, place, address = _around(letters, turns)
    order = np.argsort(at, kind="stable")
    at, place, address = at[order], place[order], address[order]
    own, first = np.unique(address, return_index=True)
    last = len(address) - 1 - np.unique(address[::-1], return_index=True)[1]
    every = np.concatenate([own, *(one.fresh.ravel() for one in turns)])
    every.sort()
    if (every[1:] == every[:-1]).any():
        return None
    found = []
    for one, end in zip(first.tolist(), last.tolist(), strict=True):
        buffer = program.body[at[one]].operands[place[one]].buffer
        if buffer.address is not None:
            return None
        found.append(Loose(buffer, int(at[one]), int(at[end])))
    return found


def _around(letters: Letters, turns: list[Turns]) -> list[np.ndarray]:
    """The accesses to tiles on chip outside of the turns, and the loose ones inside."""
    outside = np.ones(len(letters.letter), bool)
    for one in turns:
        outside[one.begin : one.end] = False
    rows, parts = np.flatnonzero(outside), [one.loose for one in turns]
    form = letters.form_of(rows)
    for k in range(len(letters.place)):
        chip = (letters.place[k][form] >= 0) & ~letters.hbm[k][form]
        parts.append((rows[chip], letters.place[k][form[chip]], letters.buffer[k, rows[chip]]))
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


__all__ = ["FoldedPlacement", "StraightFlow", "folded"]
