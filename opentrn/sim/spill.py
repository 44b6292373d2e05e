"""Spills: tiles that do not fit SBUF go to HBM and come back, as the compiler has them do.

AWS: where the live data of a kernel overflows an on-chip memory, the compiler inserts the spills
and refills (Neuron SDK documentation, "Memory hierarchy overview").  Which tiles it chooses is not
public.  Here the one whose next use is furthest goes (Belady, 1966: the fewest reloads of equal
tiles).  A tile that was saved and not written since goes without being saved again.  So does one
that is a copy of HBM which the program never writes: it is loaded again.  Such a load, and what
brings a tile back, stands some instructions ahead of the use, so that it runs beside others' work
and takes no place before.  A value that is never read again is neither saved nor brought back.

Tiles with addresses are the author's to place, a tile of a device loop lives in all its turns, and
PSUM has no path to HBM: programs that do not fit for these reasons are refused.
"""

import heapq
from collections import OrderedDict
from dataclasses import replace

from opentrn.base import CapacityError, bytes_text, declare
from opentrn.isa import (
    INSTRUCTIONS,
    SPILL_RELOAD,
    SPILL_SAVE,
    Buffer,
    Instruction,
    Loop,
    Program,
    View,
    form,
    operand_form,
    view_of,
)
from opentrn.sim.place import memories, place, writes_whole
from opentrn.sim.strict import Finding

declare(
    "sim.spilled",
    "Tiles that live at the same time do not fit SBUF: some go to HBM and come back.",
    rule="tiles without addresses are the compiler's to place, and it spills those that do not fit",
    fix="cut the largest tile along its free dimension, or load it again where it is used",
    fault="unvalidated",
)

_AHEAD = (32, 8, 2, 0)  # instructions between a reload and the use, most first
# Of SBUF given away, in case holes between tiles need the rest.
_SHARES = (1.0, 0.95, 0.9, 0.8, 0.65, 0.5, 0.35)
_NEVER = 1 << 60
_KEPT = 2

# The last programs and what they became: a run asks, then its timeline.
_MADE: "OrderedDict[tuple, tuple[Program, Program]]" = OrderedDict()


def spilled(program: Program, chip, error: CapacityError) -> Program:
    """`program` with the transfers that make its tiles fit SBUF; it computes the same.

    `error` is what placing it raised, and what is raised again where spills do not help: other
    memories than SBUF, tiles with addresses, device loops, an instruction whose own tiles do not
    fit.  The last few are remembered.
    """
    key = id(program), chip
    known, made = _MADE.get(key, (None, None))
    if known is not program:
        made = _spilled(program, chip, error)
        _MADE[key] = program, made
        while len(_MADE) > _KEPT:
            _MADE.popitem(last=False)
    return made


def _spilled(program: Program, chip, error: CapacityError) -> Program:
    if error.code != "sim.sbuf_capacity" or not _may_spill(program):
        raise error
    size, text = memories(chip)[0].size, _Text(program)
    for share in _SHARES:
        for ahead in _AHEAD:
            made = _Spilling(text, chip, int(share * size), ahead).program()
            if made is not None:
                break
        else:
            raise error
        try:
            place(made, chip)
        except CapacityError:
            continue
        return made
    raise error


def spills_of(program: Program) -> dict[str, list[Instruction]]:
    """The transfers that `spilled` put in, by their name."""
    found: dict[str, list[Instruction]] = {SPILL_SAVE: [], SPILL_RELOAD: []}
    for one in program.instructions():
        if one.name in found:
            found[one.name].append(one)
    return found


def noticed(program: Program, error: CapacityError) -> Finding:
    """What is told of a program that `spilled` made, where placing raised `error`."""
    from opentrn.base import explanation

    known, spills = explanation("sim.spilled"), spills_of(program)
    saved, again = (bytes_text(sum(one.form.move.nbytes for one in spills[name]))
                    for name in (SPILL_SAVE, SPILL_RELOAD))  # fmt: skip
    what = f"{error.what.splitlines()[0]}: {saved} are spilled to HBM, {again} come back"
    return Finding("sim.spilled", what, error.at, known.rule, known.fix)


def _may_spill(program: Program) -> bool:
    if any(isinstance(node, Loop) for node in program.body):
        return False
    tiles = (v.buffer for one in program.body for v in one.views() if v.space == "sbuf")
    return all(tile.address is None for tile in tiles)


class _Text:
    """What every walk asks of a program's instructions, read once."""

    def __init__(self, source: Program):
        self.source = source
        self.tiles = [_tiles(one) for one in source.body]
        self.written = [[view.buffer for view in one.writes()] for one in source.body]
        self.asked = {id(other) for one in source.body for other in one.after}
        kept = _kept(source)
        self.loaded = [_loaded(one, kept) for one in source.body]
        self.uses: dict[Buffer, list[int]] = {}  # positions of each tile, last first
        for position in reversed(range(len(self.tiles))):
            for tile in self.tiles[position]:
                self.uses.setdefault(tile, []).append(position)
        self.lines = {tile: source.body[at[-1]].where for tile, at in self.uses.items()}
        self.fills: dict[tuple[int, Buffer], bool] = {}

    def fresh(self, position: int, tile: Buffer) -> bool:
        """Whether the instruction there writes all of the tile and reads nothing of it."""
        found = self.fills.get((position, tile))
        if found is None:
            one = self.source.body[position]
            indexed = any(view.index is not None for view in one.views())  # may leave rows out
            found = self.fills[position, tile] = writes_whole(one, tile) and not indexed
        return found


class _Spilling:
    """One walk through a program with so many bytes of each partition."""

    def __init__(self, text: _Text, chip, room: int, ahead: int):
        self.text, self.source, self.tiles = text, text.source, text.tiles
        self.chip, self.free, self.ahead = chip, room, ahead
        self.memory = memories(chip)[0]
        self.uses = {tile: list(at) for tile, at in text.uses.items()}  # still to come, last first
        self.lies: dict[Buffer, Buffer] = {}  # where each tile in SBUF lies now
        self.loads: dict[Buffer, Instruction] = {}  # what gives it its value again
        self.late: set[Buffer] = set()  # whose own load has not been issued yet
        self.been: set[Buffer] = set()  # which lay in SBUF as themselves; next time others do
        self.far: list[tuple[int, int, Buffer]] = []  # who is used latest (some out of date)
        self.buffers = list(self.source.buffers)
        self.body: list[Instruction] = []
        self.made: dict[int, Instruction] = {}

    def program(self) -> Program | None:
        """The program with its spills; None when it does not fit this way."""
        seen = 0
        for position, one in enumerate(self.source.body):
            end = min(position + self.ahead + 1, len(self.tiles))
            soon = [t for q in range(seen, end) for t in self.tiles[q]
                    if t in self.loads and not self.dead(t)]  # fmt: skip
            seen = end
            if not self.may_wait(one, position):
                soon += self.tiles[position]
            for tile in dict.fromkeys(soon):
                if tile not in self.lies and not self.enter(tile, position):
                    return None
            self.issue(one, position)
        return replace(self.source, body=self.body, buffers=self.buffers)

    def may_wait(self, one: Instruction, position: int) -> bool:
        """Whether it is a load that may come later, its tile being used only then."""
        load = self.text.loaded[position]
        if load is None or load in self.lies or id(one) in self.text.asked:
            return False
        uses = self.uses[load]
        return len(uses) > 1 and uses[-2] > position + self.ahead

    def enter(self, tile: Buffer, position: int) -> bool:
        """Bring a tile into SBUF; False where the tiles needed soon leave no room."""
        size = self.memory.rounded(tile.partition_bytes)
        while self.free < size:
            if not self.evict(position):
                return False
        self.free -= size
        load = None if self.dead(tile) else self.loads.get(tile)
        lies = self.like(tile, "sbuf") if tile in self.been else tile
        self.been.add(tile)
        if load is not None:
            again = _into(load, view_of(lies))
            if tile not in self.late:
                again.name, again.where = SPILL_RELOAD, self.text.lines[tile]
            self.late.discard(tile)
            self.body.append(again)
        self.lies[tile] = lies
        self.note(tile)
        return True

    def evict(self, position: int) -> bool:
        """Make the tile that is used latest leave; False where all are used soon."""
        while self.far:
            when, _, tile = heapq.heappop(self.far)
            if tile in self.lies and -when == self.next_use(tile):
                break
        else:
            return False
        if -when <= position + self.ahead:
            self.note(tile)
            return False
        if tile not in self.loads and not self.dead(tile):
            place = view_of(self.like(tile, "hbm"))
            save = self.copy(SPILL_SAVE, tile, place, view_of(self.lies[tile]))
            self.loads[tile] = self.copy(SPILL_RELOAD, tile, view_of(tile), place)
            self.body.append(save)
        self.drop(tile)
        return True

    def drop(self, tile: Buffer) -> None:
        """The tile is no longer in SBUF."""
        del self.lies[tile]
        self.free += self.memory.rounded(tile.partition_bytes)

    def next_use(self, tile: Buffer) -> int:
        """The position of the next instruction that uses it."""
        return self.uses[tile][-1] if self.uses[tile] else _NEVER

    def dead(self, tile: Buffer) -> bool:
        """Whether the next instruction that uses it writes all of it and reads nothing of it."""
        return self.text.fresh(self.next_use(tile), tile)

    def note(self, tile: Buffer) -> None:
        """Keep in mind when a tile is used next."""
        heapq.heappush(self.far, (-self.next_use(tile), tile.id, tile))

    def issue(self, one: Instruction, position: int) -> None:
        """The instruction on the tiles as they lie now; or not yet, where it is a load that waits.

        What it writes has its value in SBUF only, unless it was loaded.
        """
        waits = self.may_wait(one, position)
        if not waits:
            after = tuple(self.made[id(other)] for other in one.after)
            operands = tuple(self.moved(operand) for operand in one.operands)
            made = Instruction(one.form, operands, one.values, one.where, one.name, after)
            self.made[id(one)] = made
            self.body.append(made)
        for buffer in self.text.written[position]:
            self.loads.pop(buffer, None)
        loaded = self.text.loaded[position]
        if loaded is not None:
            self.loads[loaded] = one
        if waits:
            self.late.add(loaded)
        self.leave(position)

    def moved(self, operand):
        """An operand where its tile lies now."""
        if not isinstance(operand, View):
            return operand
        index = operand.index
        if index is not None and isinstance(index.offset, View):
            index = replace(index, offset=self.moved(index.offset))
        buffer = self.lies.get(operand.buffer, operand.buffer)
        if buffer is operand.buffer and index is operand.index:
            return operand
        return View(buffer, operand.offset, operand.steps, operand.dtype, index)

    def leave(self, position: int) -> None:
        """After an instruction the tiles that are used no more are gone."""
        for tile in self.tiles[position]:
            self.uses[tile].pop()
            if tile not in self.lies:
                continue
            if self.uses[tile]:
                self.note(tile)
            else:
                self.drop(tile)

    def like(self, tile: Buffer, space: str) -> Buffer:
        """A new buffer of the tile's shape."""
        made = Buffer(len(self.buffers), space, tile.shape, tile.dtype, tile.name, tile.where)
        self.buffers.append(made)
        return made

    def copy(self, name: str, tile: Buffer, target: View, source: View) -> Instruction:
        """One transfer of a tile, at the line that used it first."""
        cls = INSTRUCTIONS["dma_copy"]
        given = {"dst": target, "src": source}
        operands = tuple(given.get(operand) for operand in cls.operands)
        forms = tuple(None if view is None else operand_form(view) for view in operands)
        flags = tuple(flag.default for flag in cls.flags.values())
        values = tuple(value.default for value in cls.values.values())
        made = form(cls, self.chip, forms, flags)
        return Instruction(made, operands, values, self.text.lines[tile], name)


def _into(load: Instruction, target: View) -> Instruction:
    """The same load into another tile of the shape."""
    (old,) = load.writes()
    operands = tuple(target if operand is old else operand for operand in load.operands)
    return Instruction(load.form, operands, load.values, load.where, load.name)


def _kept(program: Program) -> set[Buffer]:
    """The HBM buffers whose bytes never change."""
    views = [view for one in program.body for view in one.views() if view.space == "hbm"]
    written = {v.buffer for one in program.body for v in one.writes() if v.space == "hbm"}
    return {view.buffer for view in views} - written


def _loaded(one: Instruction, kept: set[Buffer]) -> Buffer | None:
    """The tile that a plain copy fills with what never changes in HBM; None for others."""
    if one.opcode != "dma_copy":
        return None
    (target,), (source, *index) = one.writes(), one.reads()
    fills = target.space == "sbuf" and target.whole and source.dtype == target.dtype
    return target.buffer if fills and not index and source.buffer in kept else None


def _tiles(one: Instruction) -> list[Buffer]:
    """The SBUF tiles an instruction touches, each once."""
    return list(dict.fromkeys(v.buffer for v in one.views() if v.space == "sbuf"))


__all__ = ["noticed", "spilled", "spills_of"]
