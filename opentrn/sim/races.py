"""Unordered accesses to the same bytes: what the official compiler would not put in order.

What is ordered on the chip.  Every engine runs its instructions in order.  Between engines and DMA
queues the compiler inserts a wait for each dependence through a tile, for the edges of
`with_schedule`, and inside `no_reorder` between every two instructions (NKI scheduling guide); for
tiles it places itself it also orders the reuse of their bytes.  Of tiles with explicit addresses
the allocation guide says only that tiles alive at the same time must not share memory, that the
checks for lifetime conflicts are incomplete, and that the compiler is not guaranteed to catch all
races.  So two accesses through different tiles with explicit addresses race when they share a byte,
one of them writes, both tiles are alive, and nothing of the above puts one before the other.

Races between the cores of a launch are found while it runs (`nki.core_race`).
"""

from typing import Any, NamedTuple

from opentrn.base import declare
from opentrn.isa import Buffer, Instruction, Program, View
from opentrn.sim.depend import dependencies
from opentrn.sim.place import Placement, Slot, called, place
from opentrn.sim.strict import Finding
from opentrn.sim.tape import Flow
from opentrn.sim.timing import ENGINES, is_queue

declare(
    "sim.race",
    "Two instructions touch the same bytes through different tiles, and nothing orders them.",
    rule="waits are inserted for dependences through one tile; tiles with explicit addresses that "
    "share memory while both are in use are not known to depend on each other",
    fix="give the tiles addresses of their own, use one tile, or name the order in with_schedule",
    fault="unpredictable",
)

_LOOKED_AT = 4000  # pairs of accesses compared for two tiles that alias


class Access(NamedTuple):
    """One access to a tile: which instance, by what, the rows and bytes, and whether it writes."""

    instance: int
    buffer: Buffer
    rows: tuple[int, int]
    bytes: tuple[int, int]
    writes: bool


def races(program: Program, chip, *, trips: Any = ()) -> list[Finding]:
    """Findings `sim.race`, one for each pair of source lines, in program order.

    Of two tiles that alias, at most 4,000 pairs of accesses are compared, nearest first.  `trips`
    as for `timeline`.  Raises what placing the program raises.
    """
    placement = place(program, chip)
    pairs = aliases(placement)
    if not pairs:
        return []
    flow = dependencies(program, kept_apart(placement), chip, trips)
    order = Order(flow)
    touched = {buffer for pair in pairs for buffer in pair}
    accesses = accesses_of(flow, placement, touched)
    found: dict[tuple, Finding] = {}
    for one, other in pairs:
        for a, b in _conflicts(accesses[one], accesses[other]):
            lines = tuple(str(flow.instances[x.instance].where) for x in (a, b))
            if lines not in found and not order.before(a.instance, b.instance):
                found[lines] = _finding(flow, a, b)
    return list(found.values())


def aliases(placement: Placement) -> list[tuple[Buffer, Buffer]]:
    """Pairs of tiles with explicit addresses that share memory and are alive at the same time."""
    fixed = [(slot, b) for b, slot in placement.slots.items() if b.address is not None]
    fixed.sort(key=lambda item: (item[0].address, item[1].id))
    found = []
    for n, (slot, buffer) in enumerate(fixed):
        for other_slot, other in fixed[n + 1 :]:
            if other_slot.address >= slot.address + buffer.partition_bytes:
                break
            alive = slot.first <= other_slot.last and other_slot.first <= slot.last
            if alive and buffer.space == other.space and _meet(_rows(buffer), _rows(other)):
                found.append((buffer, other))
    return found


def kept_apart(placement: Placement) -> Placement:
    """The placement as if every tile had memory of its own: no order through reused bytes."""
    slots, free = {}, 0
    for buffer, slot in placement.slots.items():
        slots[buffer] = Slot(free, slot.nbytes, slot.first, slot.last)
        free += slot.nbytes
    return Placement(slots=slots, bank=placement.bank)


def accesses_of(flow: Flow, placement: Placement, touched: set) -> dict[Buffer, list[Access]]:
    """Every access to the tiles in `touched`, in program order."""
    found: dict[Buffer, list[Access]] = {buffer: [] for buffer in touched}
    for number, one in enumerate(flow.instances):
        if not isinstance(one, Instruction):
            continue
        for views, writes in ((one.reads(), False), (one.writes(), True)):
            for view in views:
                if view.buffer in touched:
                    found[view.buffer].append(_access(number, view, placement, writes))
    return found


def _rows(buffer: Buffer) -> tuple[int, int]:
    return buffer.partition, buffer.partition + buffer.partitions


def _access(number: int, view: View, placement: Placement, writes: bool) -> Access:
    buffer, item = view.buffer, view.dtype.itemsize
    first = view.start_partition + buffer.partition
    low = placement.slots[buffer].address
    last = view.shape[0]
    if view.index is not None:
        return Access(number, buffer, _rows(buffer), (low, low + buffer.partition_bytes), writes)
    span = 1 + sum(stride * (count - 1) for stride, count in view.steps[1:])
    begin = low + view.free_offset * item
    rows = (first, first + 1 + (last - 1) * max(1, view.partition_step))
    return Access(number, buffer, rows, (begin, begin + span * item), writes)


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _conflicts(first: list[Access], second: list[Access]):
    """Pairs (earlier, later) that share bytes and of which one writes; the nearest ones first."""
    looked = 0
    for a in first:
        for b in sorted(second, key=lambda x: abs(x.instance - a.instance)):
            looked += 1
            if looked > _LOOKED_AT:
                return
            clash = (a.writes or b.writes) and a.instance != b.instance
            if clash and _meet(a.rows, b.rows) and _meet(a.bytes, b.bytes):
                yield (a, b) if a.instance < b.instance else (b, a)


class Order:
    """What comes before what: waits of the flow, and the order of each engine."""

    def __init__(self, flow: Flow):
        self.flow = flow
        self.previous: dict[int, int] = {}
        last: dict[int, int] = {}
        for number, row in enumerate(flow.row):
            stream = flow.rows[row].stream
            if not is_queue(stream):
                if stream in last:
                    self.previous[number] = last[stream]
                last[stream] = number

    def before(self, first: int, second: int) -> bool:
        """Whether `first` has surely ended when `second` begins."""
        seen, left = {second}, [second]
        while left:
            now = left.pop()
            codes = self.flow.dep[self.flow.dep_start[now] : self.flow.dep_start[now + 1]]
            earlier = [code >> 2 for code in codes]
            if now in self.previous:
                earlier.append(self.previous[now])
            for number in earlier:
                if number == first:
                    return True
                if number > first and number not in seen:
                    seen.add(number)
                    left.append(number)
        return False


def _finding(flow: Flow, a: Access, b: Access) -> Finding:
    told = []
    for access in (a, b):
        one = flow.instances[access.instance]
        stream = flow.rows[flow.row[access.instance]].stream
        place = "a DMA queue" if is_queue(stream) else ENGINES[stream]
        verb = "writes" if access.writes else "reads"
        tile = called(access.buffer)
        told.append(f"{one.opcode} on {place} {verb} {tile} at {one.where}")
    return Finding(
        "sim.race",
        f"{told[0]} and {told[1]} share bytes, unordered",
        flow.instances[b.instance].where,
        rule="tiles with explicit addresses that are alive at the same time must not share memory",
        fix="give the tiles addresses of their own, use one tile, or name the order in "
        "with_schedule",
    )


__all__ = ["races"]
