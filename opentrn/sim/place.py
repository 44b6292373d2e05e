"""Where tiles lie: SBUF and PSUM addresses for every buffer of a program, by liveness.

A tile lives from the first instruction that touches it to the last, in program order.  Tiles are
placed at the next free address after the one before (a ring through the whole memory), so that an
address is reused as late as possible and reuse does not make instructions wait for each other.
Where that leaves too many holes, the lowest address that fits is tried, then the largest tiles
first.  A tile occupies its bytes in all partitions.
"""

import os
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from opentrn.base import CapacityError, UsageError, declare
from opentrn.isa import Buffer, Instruction, Loop, Program, View
from opentrn.sim.strict import Finding

declare(
    "sim.sbuf_capacity",
    "More SBUF is needed at one time than the core has.",
    rule="all tiles that live at the same time must fit the usable SBUF of each partition",
    fix="cut the largest tile along its free dimension, or load it again where it is used",
)
declare(
    "sim.psum_capacity",
    "More PSUM is needed at one time than the core has.",
    rule="all accumulators that live at the same time must fit the PSUM banks; one of at most a "
    "bank does not straddle banks, a larger one takes whole banks",
    fix="copy an accumulator to SBUF before starting the next, or use smaller output tiles",
)
declare(
    "sim.address_overlap",
    "Two tiles with explicit addresses share bytes while both are in use.",
    rule="tiles that live at the same time should not overlap; these really alias",
    fix="give one of them another address, or finish with it first",
    fault="unpredictable",
)
declare(
    "sim.address_range",
    "A tile with an explicit address lies outside its memory.",
    rule="address + bytes per partition ≤ the memory's bytes per partition",
    fix="choose a lower address or a smaller tile",
)

_SHOWN = 8  # tiles named in a capacity error


class Slot(NamedTuple):
    """Where one buffer lies (bytes within each partition) and when it lives (positions)."""

    address: int
    nbytes: int
    first: int
    last: int


class Memory(NamedTuple):
    """The rules of one on-chip memory: bytes per partition, alignment, bank size (0: none)."""

    space: str
    size: int
    alignment: int
    bank: int

    def rounded(self, nbytes: int) -> int:
        """Bytes a tile takes: aligned, and whole banks when it is larger than one."""
        unit = self.bank if self.bank and nbytes > self.bank else self.alignment
        return -(-nbytes // unit) * unit

    def fit(self, at: int, nbytes: int) -> int:
        """The lowest legal address from `at` on for a tile of (rounded) `nbytes`."""
        at = -(-at // self.alignment) * self.alignment
        bank = self.bank
        if bank and at % bank + nbytes > bank:
            at = -(-at // bank) * bank
        return at


class Life(NamedTuple):
    """One buffer's use: positions of the first and last instruction that touch it."""

    buffer: Buffer
    first: int
    last: int
    nbytes: int


@dataclass(slots=True)
class Placement:
    """Where every on-chip buffer of a program lies and how full that makes the memories.

    A position is the number of an instruction in `Program.instructions()`.  `peak_bytes` (per
    partition) and `peak_at` (position) are by space.  `findings` lists explicit addresses that
    alias.
    """

    slots: dict[Buffer, Slot] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    peak_at: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    bank: int = 2048

    def live(self, space: str, position: int) -> list[Buffer]:
        """The buffers of `space` that live at `position`, largest first."""
        found = [
            (slot.nbytes, buffer)
            for buffer, slot in self.slots.items()
            if buffer.space == space and slot.first <= position <= slot.last
        ]
        return [buffer for _, buffer in sorted(found, key=lambda x: (-x[0], x[1].id))]

    def banks(self, buffer: Buffer) -> range:
        """The PSUM banks a buffer touches."""
        slot = self.slots[buffer]
        return range(slot.address // self.bank, -(-(slot.address + slot.nbytes) // self.bank))

    def banks_used(self) -> list[tuple[int, int]]:
        """`(position, banks in use from there on)`, one entry for each change."""
        changes: dict[int, list[tuple[int, int]]] = {}
        for buffer, slot in self.slots.items():
            if buffer.space == "psum":
                for bank in self.banks(buffer):
                    changes.setdefault(slot.first, []).append((bank, 1))
                    changes.setdefault(slot.last + 1, []).append((bank, -1))
        users: dict[int, int] = {}
        found: list[tuple[int, int]] = []
        for position in sorted(changes):
            for bank, change in changes[position]:
                users[bank] = users.get(bank, 0) + change
            used = sum(1 for count in users.values() if count)
            if not found or found[-1][1] != used:
                found.append((position, used))
        return found


def memories(chip) -> tuple[Memory, Memory]:
    """SBUF and PSUM of one core of `chip`."""
    core = chip.core
    banks = int(core.psum_banks) * int(core.psum_bank)
    return (
        Memory("sbuf", int(core.sbuf_usable), int(core.sbuf_alignment), 0),
        Memory("psum", banks, int(core.psum_alignment), int(core.psum_bank)),
    )


def place(program: Program, chip) -> Placement:
    """Give every SBUF and PSUM buffer an address; explicit `buffer.address` is kept.

    Raises CapacityError (`sim.sbuf_capacity`, `sim.psum_capacity`) with the tiles that live at
    the peak, and UsageError (`sim.address_range`).
    """
    placement = Placement(bank=int(chip.core.psum_bank))
    lives = lifetimes(program)
    for memory in memories(chip):
        own = [
            Life(buffer, first, last, memory.rounded(buffer.partition_bytes))
            for buffer, (first, last) in lives.items()
            if buffer.space == memory.space
        ]
        own.sort(key=lambda life: (life.first, life.buffer.id))
        _place_memory(program, chip, memory, own, placement)
    return placement


# ---------------------------------------------------------------------- liveness


def lifetimes(program: Program) -> dict[Buffer, tuple[int, int]]:
    """`{buffer: (first, last)}` positions between which each on-chip buffer must keep its bytes.

    A tile that enters a device loop from outside lives through the whole loop.  So does one first
    used inside it by anything but a write of the whole tile, because its value may come from the
    iteration before, unless it is declared in the loop's body.
    """
    scan = _Liveness()
    scan.walk(program.body)
    return {buffer: (first, scan.last[buffer]) for buffer, first in scan.first.items()}


class _Liveness:
    """First and last use of each buffer, while walking a program."""

    def __init__(self):
        self.position = 0
        self.first: dict[Buffer, int] = {}
        self.last: dict[Buffer, int] = {}
        self.fresh: set[Buffer] = set()  # first touched by a write of the whole buffer
        self.inside: list[set[Buffer]] = []

    def walk(self, body) -> None:
        """Note every use in `body`."""
        for node in body:
            if isinstance(node, Loop):
                self.loop(node)
            else:
                self.touch(node)
                self.position += 1

    def touch(self, one: Instruction) -> None:
        """Note the buffers one instruction uses."""
        first, last, position = self.first, self.last, self.position
        for operand in one.operands:
            if type(operand) is not View:
                continue
            buffer = operand.buffer
            if buffer.on_chip:
                if buffer not in first:
                    first[buffer] = position
                    if self.inside and _writes_whole(one, buffer):
                        self.fresh.add(buffer)
                last[buffer] = position
                if self.inside:
                    self.inside[-1].add(buffer)
            if operand.index is not None and type(operand.index.offset) is View:
                buffer = operand.index.offset.buffer
                first.setdefault(buffer, position)
                last[buffer] = position
                if self.inside:
                    self.inside[-1].add(buffer)

    def loop(self, node: Loop) -> None:
        """Note a loop, then stretch the lives of what may carry values between iterations."""
        begin = self.position
        self.inside.append(set())
        self.walk(node.body)
        touched, end = self.inside.pop(), self.position - 1
        own = self.fresh.union(node.local)
        for buffer in touched:
            if self.first[buffer] < begin or buffer not in own:
                self.first[buffer] = min(self.first[buffer], begin)
                self.last[buffer] = max(self.last[buffer], end)
        if self.inside:
            self.inside[-1] |= touched


def _writes_whole(one: Instruction, buffer: Buffer) -> bool:
    reads = any(view.buffer is buffer for view in one.reads())
    return not reads and any(v.buffer is buffer and v.whole for v in one.writes())


# ---------------------------------------------------------------------- addresses


def _place_memory(program, chip, memory: Memory, lives: list[Life], placement: Placement) -> None:
    _note_peak(lives, memory, placement)
    fixed = [life for life in lives if life.buffer.address is not None]
    _check_fixed(memory, chip, fixed, placement)
    if placement.peak_bytes[memory.space] > memory.size and len(fixed) < len(lives):
        raise _full(program, chip, memory, lives, placement, "")
    loose = [life for life in lives if life.buffer.address is None]
    for strategy in (_ring, _lowest, _largest_first):
        found = strategy(memory, loose, fixed)
        if found is not None:
            break
    else:
        raise _full(program, chip, memory, lives, placement, " without holes between them")
    for life in lives:
        address = life.buffer.address
        address = found[life.buffer] if address is None else address
        placement.slots[life.buffer] = Slot(address, life.nbytes, life.first, life.last)


def _note_peak(lives: list[Life], memory: Memory, placement: Placement) -> None:
    """The most bytes alive at once, and where."""
    changes: list[tuple[int, int]] = []
    for life in lives:
        changes.append((life.first, life.nbytes))
        changes.append((life.last + 1, -life.nbytes))
    changes.sort()
    now = peak = at = 0
    for position, change in changes:
        now += change
        if now > peak:
            peak, at = now, position
    placement.peak_bytes[memory.space], placement.peak_at[memory.space] = peak, at


def _check_fixed(memory: Memory, chip, fixed: list[Life], placement: Placement) -> None:
    """Explicit addresses inside the memory (UsageError), aliases noted as findings."""
    core = chip.core
    size = int(core.sbuf_partition if memory.space == "sbuf" else core.psum_partition)
    active: list[Life] = []
    for life in fixed:
        buffer = life.buffer
        if not 0 <= buffer.address <= size - buffer.partition_bytes:
            raise UsageError(
                f"tile `{buffer.name or buffer.id}` at address {buffer.address} with "
                f"{buffer.partition_bytes} bytes does not fit {memory.space} of {size} bytes",
                code="sim.address_range",
                at=buffer.where,
            )
        active = [other for other in active if other.last >= life.first]
        placement.findings += [_alias(other, life) for other in active if _shares(other, life)]
        active.append(life)


def _shares(a: Life, b: Life) -> bool:
    one, two = a.buffer, b.buffer
    rows = one.partition < two.partition + two.partitions
    rows &= two.partition < one.partition + one.partitions
    return (
        rows
        and one.address < two.address + two.partition_bytes
        and two.address < one.address + one.partition_bytes
    )


def called(buffer: Buffer) -> str:
    """What a message calls a tile: its name, or what it is and where it was made."""
    if buffer.name:
        return f"`{buffer.name}`"
    where = f" of {os.path.basename(buffer.where.file)}:{buffer.where.line}" if buffer.where else ""
    return f"the tile {list(buffer.shape)} {buffer.dtype}{where}"


def _alias(a: Life, b: Life) -> Finding:
    from opentrn.base import explanation

    known = explanation("sim.address_overlap")
    names = f"{called(a.buffer)} and {called(b.buffer)}"
    what = f"{names} overlap in {a.buffer.space} while both are in use"
    return Finding("sim.address_overlap", what, b.buffer.where, known.rule, known.fix)


def _ring(memory: Memory, lives: list[Life], fixed: list[Life]) -> dict[Buffer, int] | None:
    return _in_order(memory, lives, fixed, ring=True)


def _lowest(memory: Memory, lives: list[Life], fixed: list[Life]) -> dict[Buffer, int] | None:
    return _in_order(memory, lives, fixed, ring=False)


def _in_order(memory, lives, fixed, ring: bool) -> dict[Buffer, int] | None:
    """Addresses in order of first use, freeing each tile after its last; None when stuck."""
    found: dict[Buffer, int] = {}
    taken: list[tuple[int, int]] = []  # (address, end) of live tiles, by address
    dying: list[tuple[int, int, int]] = []  # (last position, address, end)
    cursor = 0
    for life in lives:
        while dying and dying[0][0] < life.first:
            _, low, high = dying.pop(0)
            del taken[bisect_left(taken, (low, high))]
        busy = _with_fixed(taken, fixed, life) if fixed else taken
        at = _gap(memory, busy, life.nbytes, cursor)
        if at is None and cursor:
            at = _gap(memory, busy, life.nbytes, 0)
        if at is None:
            return None
        end = at + life.nbytes
        insort(taken, (at, end))
        insort(dying, (life.last, at, end))
        found[life.buffer] = at
        cursor = end if ring else 0
    return found


def _with_fixed(taken, fixed: list[Life], life: Life) -> list[tuple[int, int]]:
    """Taken ranges and those of explicit tiles whose life meets this one's, by address."""
    meets = [
        (other.buffer.address, other.buffer.address + other.nbytes)
        for other in fixed
        if other.first <= life.last and life.first <= other.last
    ]
    return sorted(taken + meets)


def _gap(memory: Memory, taken, nbytes: int, start: int) -> int | None:
    """The first legal address ≥ start where `nbytes` are free, or None."""
    at = memory.fit(start, nbytes)
    first = bisect_left(taken, (at,))
    if first and taken[first - 1][1] > at:
        first -= 1
    for low, high in _from(taken, first):
        if at + nbytes <= low:
            break
        if high > at:
            at = memory.fit(high, nbytes)
    return at if at + nbytes <= memory.size else None


def _from(items: list, first: int) -> Iterator:
    for k in range(first, len(items)):
        yield items[k]


def _largest_first(memory: Memory, lives: list[Life], fixed: list[Life]):
    """Largest tiles first, each at the lowest address free during its life; None when stuck."""
    if len(lives) > 4000:  # quadratic, and only a last resort
        return None
    found: dict[Buffer, int] = {}
    done = [(other, other.buffer.address) for other in fixed]
    for life in sorted(lives, key=lambda x: (-x.nbytes, x.first, x.buffer.id)):
        busy = sorted(
            (at, at + other.nbytes)
            for other, at in done
            if other.first <= life.last and life.first <= other.last
        )
        at = _gap(memory, busy, life.nbytes, 0)
        if at is None:
            return None
        found[life.buffer] = at
        done.append((life, at))
    return found


# ---------------------------------------------------------------------- refusals


def _full(program, chip, memory: Memory, lives, placement: Placement, why: str) -> CapacityError:
    """The error that names the tiles alive at the peak."""
    space, at = memory.space, placement.peak_at[memory.space]
    alive = [life for life in lives if life.first <= at <= life.last]
    alive.sort(key=lambda life: (-life.nbytes, life.buffer.id))
    instruction = next(one for n, one in enumerate(program.instructions()) if n == at)
    total = sum(life.nbytes for life in alive)
    what = (
        f"{space.upper()} is full: {len(alive)} tiles alive at {instruction.opcode} need "
        f"{total:,} bytes per partition, {memory.size:,} are usable on {chip.name}"
    )
    if why:
        what = (
            f"{space.upper()} is full: the tiles of this kernel do not fit {memory.size:,} bytes "
            f"per partition of {chip.name}{why} ({total:,} bytes alive at {instruction.opcode})"
        )
    lines = [_tile_line(life) for life in alive[:_SHOWN]]
    if len(alive) > _SHOWN:
        lines.append(f"    … and {len(alive) - _SHOWN} more")
    return CapacityError(
        "\n".join([what, *lines]), code=f"sim.{space}_capacity", at=instruction.where
    )


def _tile_line(life: Life) -> str:
    buffer = life.buffer
    name = buffer.name or f"#{buffer.id}"
    place = f"  {buffer.where}" if buffer.where else ""
    return f"    {life.nbytes:>9,} B  {name} {list(buffer.shape)} {buffer.dtype}{place}"
