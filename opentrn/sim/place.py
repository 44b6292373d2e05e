"""Where tiles lie: SBUF and PSUM addresses for every buffer of a program, by liveness.

A tile lives from the first instruction that touches it to the last, in program order.  Tiles are
placed at the next free address after the one before (a ring through the whole memory), so that an
address is reused as late as possible and reuse does not make instructions wait for each other.
Where that leaves too many holes, the lowest address that fits is tried, then the largest tiles
first; stretches of a program that no tile outlives are placed one by one, so that a kernel lies in
a program as it would alone.

A tile begins at partition 0 and has its bytes in all partitions to itself: that is what small tiles
do as long as there is room, on the chip too (of a kernel whose profile was published, 83 % of
partition 0 was in use and 6 % of partitions 32, 64 and 96: aws-neuron-sdk issue 999).  Where tiles
do not fit so, those of at most 64 partitions lie beside each other (`sim.beside`).
"""

import os
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from opentrn.base import CapacityError, UsageError, declare
from opentrn.isa import Buffer, Instruction, Loop, Program, View
from opentrn.sim.beside import QUADRANTS, quadrants_of, spreads
from opentrn.sim.strict import Finding

declare(
    "sim.sbuf_capacity",
    "More SBUF is needed at one time than the core has.",
    rule="tiles that live at the same time must fit the usable SBUF of each partition; spills are "
    "put in only where no tile has an address, there is no device loop, and what one instruction "
    "uses fits",
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
_ALL = range(1)  # the lanes of a tile that has its bytes in all partitions to itself


class Slot(NamedTuple):
    """Where one buffer lies (bytes within each partition) and when it lives (positions)."""

    address: int
    nbytes: int
    first: int
    last: int
    partition: int = 0  # where it begins


Taken = list[list[tuple[int, int]]]  # (address, end) of live tiles by address, of each lane


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
    """One buffer's use: positions of the first and last instruction that touch it.

    `lanes` are the parts of the memory it lies in: the quadrants of partitions where tiles lie
    beside each other, else one for all partitions.
    """

    buffer: Buffer
    first: int
    last: int
    nbytes: int
    lanes: range = _ALL


@dataclass(slots=True)
class Placement:
    """Where every on-chip buffer of a program lies and how full that makes the memories.

    A position is the number of an instruction in `Program.instructions()`.  `peak_bytes` (per
    partition, the fullest one) and `peak_at` (position) are by space.  `findings` lists explicit
    addresses that alias.  In the memories of `apart` tiles lie beside each other.
    """

    slots: dict[Buffer, Slot] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    peak_at: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    bank: int = 2048
    apart: set[str] = field(default_factory=set)

    def lanes(self, buffer: Buffer) -> range:
        """The parts of its memory that a buffer lies in (see `Life`)."""
        if buffer.space not in self.apart:
            return _ALL
        return quadrants_of(buffer, self.slots[buffer].partition)

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


def place(program: Program, chip, known: dict | None = None) -> Placement:
    """Give every SBUF and PSUM buffer an address; explicit `buffer.address` is kept.

    `known` are the `lifetimes`, where the caller has them.
    Raises CapacityError (`sim.sbuf_capacity`, `sim.psum_capacity`) with the tiles that live at
    the peak, and UsageError (`sim.address_range`).
    """
    placement = Placement(bank=int(chip.core.psum_bank))
    lives = lifetimes(program) if known is None else known
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
                    if self.inside and writes_whole(one, buffer):
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


def writes_whole(one: Instruction, buffer: Buffer) -> bool:
    """Whether an instruction writes all of a buffer and reads nothing of it."""
    reads = any(view.buffer is buffer for view in one.reads())
    return not reads and any(v.buffer is buffer and v.whole for v in one.writes())


# ---------------------------------------------------------------------- addresses


def _place_memory(program, chip, memory: Memory, lives: list[Life], placement: Placement) -> None:
    fixed = [life for life in lives if life.buffer.address is not None]
    _check_fixed(memory, chip, fixed, placement)
    found, starts = _addresses(memory, lives, placement), {}
    if found is None and any(life.buffer.partitions <= 64 for life in lives):
        for starts in spreads(program, lives, memory.size):
            lives = [_moved(life, starts[life.buffer]) for life in lives]
            found = _addresses(memory, lives, placement)
            if found is not None:
                break
    if found is None:
        raise _full(program, chip, memory, lives, placement)
    if starts or any(life.buffer.partition for life in fixed):
        placement.apart.add(memory.space)
    for life in lives:
        buffer = life.buffer
        address = found[buffer] if buffer.address is None else buffer.address
        start = buffer.partition + starts.get(buffer, 0)
        placement.slots[buffer] = Slot(address, life.nbytes, life.first, life.last, start)


def _moved(life: Life, start: int) -> Life:
    return life._replace(lanes=quadrants_of(life.buffer, start + life.buffer.partition))


def _addresses(memory: Memory, lives: list[Life], placement: Placement) -> dict | None:
    """Addresses of the tiles without one; None when they do not fit.  Notes the peak."""
    peak, at = peak_of(lives)[:2]
    placement.peak_bytes[memory.space], placement.peak_at[memory.space] = peak, at
    loose = [life for life in lives if life.buffer.address is None]
    fixed = [life for life in lives if life.buffer.address is not None]
    if peak > memory.size and loose:
        return None
    found: dict[Buffer, int] = {}
    cursor = 0
    for part in _stretches(loose):
        for strategy in (_ring, _lowest, _largest_first):
            made = strategy(memory, part, fixed, cursor)
            if made is not None:
                break
        else:
            return None
        found |= made
        cursor = made[part[-1].buffer] + part[-1].nbytes
    return found


def _stretches(lives: list[Life]) -> list[list[Life]]:
    """Tiles in order of first use, cut wherever none lives on."""
    found: list[list[Life]] = []
    end = -1
    for life in lives:
        if life.first > end:
            found.append([])
        found[-1].append(life)
        end = max(end, life.last)
    return found


def peak_of(lives: list[Life]) -> tuple[int, int, int]:
    """The most bytes alive at once in one lane, the position, and the lane."""
    changes: list[tuple[int, int, int]] = []
    for life in lives:
        for lane in life.lanes:
            changes.append((life.first, life.nbytes, lane))
            changes.append((life.last + 1, -life.nbytes, lane))
    changes.sort()
    now, most = [0] * QUADRANTS, (0, 0, 0)
    for position, change, lane in changes:
        now[lane] += change
        if now[lane] > most[0]:
            most = now[lane], position, lane
    return most


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


def _ring(memory: Memory, lives: list[Life], fixed: list[Life], cursor: int):
    return _in_order(memory, lives, fixed, cursor, ring=True)


def _lowest(memory: Memory, lives: list[Life], fixed: list[Life], cursor: int):
    return _in_order(memory, lives, fixed, 0, ring=False)


def _in_order(memory, lives, fixed, cursor: int, ring: bool) -> dict[Buffer, int] | None:
    """Addresses in order of first use, freeing each tile after its last; None when stuck."""
    found: dict[Buffer, int] = {}
    taken: Taken = [[] for _ in range(QUADRANTS)]
    dying: list[tuple[int, int, int, range]] = []  # (last position, address, end, lanes)
    for life in lives:
        while dying and dying[0][0] < life.first:
            _, low, high, lanes = dying.pop(0)
            for lane in lanes:
                del taken[lane][bisect_left(taken[lane], (low, high))]
        busy = [taken[lane] for lane in life.lanes]
        if fixed:
            busy = [*busy, _around(life, ((x, x.buffer.address) for x in fixed))]
        at = free_from(memory, busy, life.nbytes, cursor)
        if at is None and cursor:
            at = free_from(memory, busy, life.nbytes, 0)
        if at is None:
            return None
        end = at + life.nbytes
        for lane in life.lanes:
            insort(taken[lane], (at, end))
        insort(dying, (life.last, at, end, life.lanes), key=itemgetter(0, 1))
        found[life.buffer] = at
        cursor = end if ring else 0
    return found


def _around(life: Life, others: Iterable[tuple[Life, int]]) -> list[tuple[int, int]]:
    """Bytes of placed tiles that meet this one's life and lanes, by address, one range where some
    overlap."""
    met = sorted(
        (at, at + other.nbytes)
        for other, at in others
        if other.first <= life.last
        and life.first <= other.last
        and other.lanes.start < life.lanes.stop
        and life.lanes.start < other.lanes.stop
    )
    found: list[tuple[int, int]] = []
    for low, high in met:
        if found and low < found[-1][1]:
            low, high = found[-1][0], max(high, found.pop()[1])
        found.append((low, high))
    return found


def free_from(memory: Memory, busy: Taken, nbytes: int, start: int) -> int | None:
    """The first legal address ≥ start where `nbytes` are free in every list, or None."""
    at, settled = memory.fit(start, nbytes), 0
    while settled < len(busy):
        settled = 0
        for taken in busy:
            past = _past(memory, taken, nbytes, at)
            settled = settled + 1 if past == at else 0
            at = past
            if at + nbytes > memory.size:
                return None
    return at if at + nbytes <= memory.size else None


def _past(memory: Memory, taken: list[tuple[int, int]], nbytes: int, at: int) -> int:
    """The first legal address ≥ `at` (legal itself) free in one list of taken bytes."""
    first = bisect_left(taken, (at,))
    while first and taken[first - 1][1] > at:
        first -= 1
    for low, high in islice(taken, first, None):
        if at + nbytes <= low:
            break
        if high > at:
            at = memory.fit(high, nbytes)
    return at


def _largest_first(memory: Memory, lives: list[Life], fixed: list[Life], cursor: int):
    """Largest tiles first, each at the lowest address free during its life; None when stuck."""
    if len(lives) > 4000:  # quadratic, and only a last resort
        return None
    found: dict[Buffer, int] = {}
    done = [(other, other.buffer.address) for other in fixed]
    for life in sorted(lives, key=lambda x: (-x.nbytes, x.first, x.buffer.id)):
        at = free_from(memory, [_around(life, done)], life.nbytes, 0)
        if at is None:
            return None
        found[life.buffer] = at
        done.append((life, at))
    return found


# ---------------------------------------------------------------------- refusals


def _full(program, chip, memory: Memory, lives, placement: Placement) -> CapacityError:
    """The error that names the tiles alive at the peak."""
    space = memory.space
    total, at, lane = peak_of(lives)
    alive = [life for life in lives if life.first <= at <= life.last and lane in life.lanes]
    alive.sort(key=lambda life: (-life.nbytes, life.buffer.id))
    instruction = next(one for n, one in enumerate(program.instructions()) if n == at)
    what = (
        f"{space.upper()} is full: {len(alive)} tiles alive at {instruction.opcode} need "
        f"{total:,} bytes per partition, {memory.size:,} are usable on {chip.name}"
    )
    if total <= memory.size:
        what = (
            f"{space.upper()} is full: the tiles of this kernel do not fit {memory.size:,} bytes "
            f"per partition of {chip.name} without holes between them ({total:,} bytes alive at "
            f"{instruction.opcode})"
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
