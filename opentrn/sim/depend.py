"""Which instruction must wait for which: exact overlap of what they read and write.

An instruction waits for the last writes of the bytes it reads (RAW), and for the last writes (WAW)
and reads (WAR) of the bytes it writes.  Tiles that take over bytes of earlier tiles wait for the
last accesses of those.  Instructions of one engine start in order, so between them only a result
that is read makes a wait (its latency); accumulating matmuls follow each other freely, because
PSUM adds where it is.  Registers order like memory; `instruction.after` is an explicit wait.

Device loops are unrolled by their trip counts.  Each iteration costs every engine of the body one
branch: no DMA of an iteration is issued before its engine's branch, and the branch comes when all
DMAs of the iteration before it have been issued (a sequencer runs its instructions in order).
"""

from bisect import bisect_left
from collections import deque
from typing import Any, NamedTuple

from opentrn.base import OrderError, UsageError, declare
from opentrn.isa import Instruction, Loop, Program, RegIn, Register, RegOut, View
from opentrn.sim.overlaps import WHOLE, Ledger, Record, Shapes
from opentrn.sim.place import Placement
from opentrn.sim.rows import PSUM_PORT, READS, WRITES, branch_row, row_of
from opentrn.sim.steady import Steady
from opentrn.sim.tape import Flow, Tape
from opentrn.sim.timing import ENGINES, FREED, ISSUED, OWN, QUEUES, SEEN, engine_of, queue_number

declare(
    "sim.trips",
    "The trip count of a device loop is not known.",
    rule="a loop whose bounds are registers is timed by the counts it really ran",
    fix="pass trips= the counts the machine reported, one for each time such a loop is entered",
)

declare(
    "sim.order_ahead",
    "An instruction is told to wait for one that comes later, or for itself.",
    rule="engines run their instructions in program order, so waits lead back; a circle of waits "
    "would hang the chip",
    fix="write the instruction that is waited for first, or drop one edge of the circle",
)

_N = len(ENGINES)


class _Plan(NamedTuple):
    """Where one form's accesses are among its operands."""

    row: int
    stream: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    registers_in: tuple[int, ...]
    registers_out: tuple[int, ...]
    banks: bool


class _Tile:
    """What later instructions may have to wait for in one buffer.

    As long as only the whole buffer is accessed (which is what most tiles ever see), the accesses
    are two short lists of marks.  The first access to a part turns them into ledgers by region.
    """

    __slots__ = ("buffer", "displaced", "ledgers", "reads", "writes")

    def __init__(self, buffer, ledgers: bool):
        self.buffer, self.displaced, self.ledgers = buffer, False, ledgers
        self.writes, self.reads = (Ledger(), Ledger()) if ledgers else ([], [])

    def divide(self, view: View) -> None:
        """Keep ledgers from now on; `view` stands for the marks' accesses, which were whole."""
        self.ledgers = True
        self.writes, self.reads = _ledger(self.writes, view), _ledger(self.reads, view)


# A mark: number, stream, kind, streams that waited for it (bits), whether it is this tile's own
# access (else inherited with its bytes).
NUMBER, STREAM, KIND, WAITED, MINE = range(5)


def _ledger(marks: list, view: View) -> Ledger:
    """The marks of accesses to the whole of a buffer as a ledger."""
    ledger = Ledger()
    for number, stream, kind, waited, mine in marks:
        if not mine:
            record = Record(None, number, stream, kind, WHOLE, None)
            ledger.inherited.append(record)
        else:
            reader = stream if stream < _N else -number
            key = (None, reader) if kind == FREED else None
            record = ledger.records[key] = Record(key, number, stream, kind, WHOLE, view)
        record.waited = waited
    return ledger


def _handed_on(old, alias: bool) -> list[list]:
    """Marks for whoever takes over bytes (see `Ledger.inherit`)."""
    if type(old) is list:
        return [[m[NUMBER], m[STREAM], m[KIND], 0, False] for m in old if alias or not m[WAITED]]
    heir = Ledger()
    heir.inherit(old, alias)
    return [[r.number, r.stream, r.kind, 0, False] for r in heir.inherited]


def at_run_time(loop: Loop) -> bool:
    """Whether only the device knows how often a loop runs."""
    bounds = isinstance(loop.start, Register) or isinstance(loop.stop, Register)
    return loop.while_true is not None or bounds


def moved_trips(trips: Any, program: Program, copy: Program) -> list[tuple[Loop, int]]:
    """Pairs `(loop, count)` of a program for its copy (`isa.for_chip`), whose loops are others."""
    known = {id(a): b for a, b in zip(_loops(program.body), _loops(copy.body), strict=True)}
    return [(known[id(loop)], count) for loop, count in trips]


def _loops(body: list) -> list[Loop]:
    """Every loop of a body, outer ones first."""
    found = []
    for node in body:
        if isinstance(node, Loop):
            found += [node, *_loops(node.body)]
    return found


def dependencies(program: Program, placement: Placement, chip, trips: Any = ()) -> Flow:
    """Unroll the program and find every wait.

    `trips` gives the trip counts of loops bounded by registers: pairs `(loop, count)`, one for
    each time a loop is entered (`Machine.trips`), or plain counts in the order in which such loops
    are entered.  Raises UsageError `sim.trips` when one is missing.
    """
    finder = Finder(program, placement, chip, trips)
    for one in program.instructions():
        if one.after:
            finder.latest.update((id(other), -1) for other in one.after)
    if finder.latest:
        check_waits(program)
    finder.walk(program.body)
    return finder.tape.flow(finder.rows)


def check_waits(program: Program) -> None:
    """OrderError `sim.order_ahead` where an explicit wait names what comes later, or itself."""
    passed: set[int] = set()
    for one in program.instructions():
        for other in one.after:
            if id(other) not in passed:
                where = f"{other.opcode}{f' at {other.where}' if other.where else ''}"
                raise OrderError(
                    f"{one.opcode} waits for {where}, which does not come before it",
                    code="sim.order_ahead",
                    at=one.where,
                )
        passed.add(id(one))


class Finder:
    """The search for waits, in program order."""

    def __init__(self, program: Program, placement: Placement, chip, trips: Any):
        self.placement, self.chip = placement, chip
        self.trips: deque[int] = deque()  # counts in order of entry
        self.own_trips: dict[int, deque[int]] = {}  # by id of the loop they belong to
        for one in trips:
            if isinstance(one, tuple):
                self.own_trips.setdefault(id(one[0]), deque()).append(int(one[1]))
            else:
                self.trips.append(int(one))
        self.tape, self.rows = Tape(), []
        self.bank_bits: dict[Any, int] = {}
        self.shapes = Shapes()
        self.plans: dict[Any, _Plan] = {}
        self.tiles: dict[Any, _Tile] = {}
        self.owners: dict[tuple[str, int], list] = {}  # by memory and lane
        self.registers: dict[int, Record] = {}
        self.latest: dict[int, int] = {}  # by id of an instruction that others name in `after`
        self.branch, self.passed = [-1] * _N, [-1] * (queue_number(_N, 0))
        self.latest_dma = [-1] * queue_number(_N, 0)
        self.position = 0
        self.edges: list[int] = []
        self.engines: dict[int, dict[int, int]] = {}  # by id of a loop, see `loop_engines`
        fixed = set(program.inputs) | set(program.constants)
        self.unchanging = fixed - set(program.mutated) - set(program.outputs)

    # ------------------------------------------------------------ forms and loops

    def plan(self, form) -> _Plan:
        """Where the form's accesses are; made once for each form."""
        reads, writes, inward, outward = [], [], [], []
        for n, declared in enumerate(form.operands.values()):
            role = getattr(declared, "role", None)
            if isinstance(declared, RegOut):
                outward.append(n)
            elif isinstance(declared, RegIn) or getattr(declared, "register", False):
                inward.append(n)
            if role in READS:
                reads.append(n)
            if role in WRITES:
                writes.append(n)
        row = row_of(form, self.chip)
        if row.meets:
            # What the cores meet over may have been written by the other one meanwhile.
            writes += [n for n in reads if form.given[n] and form.given[n].space == "hbm"]
        self.rows.append(row)
        made = _Plan(
            len(self.rows) - 1,
            row.stream,
            *(tuple(x) for x in (reads, writes, inward, outward)),
            row.banks,
        )
        self.plans[form] = made
        return made

    def loop_engines(self, loop: Loop) -> dict[int, int]:
        """`{engine: row of its branch}` for the engines that take part in a loop's body."""
        known = self.engines.get(id(loop))
        if known is not None:
            return known
        engines: set[int] = set()
        for node in loop.body:
            if isinstance(node, Loop):
                engines |= set(self.loop_engines(node))
            else:
                plan = self.plans.get(node.form) or self.plan(node.form)
                engines.add(engine_of(plan.stream))
        found = {}
        for engine in sorted(engines):
            found[engine] = len(self.rows)
            self.rows.append(branch_row(engine, self.chip))
        self.engines[id(loop)] = found
        return found

    # ------------------------------------------------------------ running through it

    def walk(self, body) -> None:
        """Append every instance of the body, loops unrolled."""
        for node in body:
            if isinstance(node, Loop):
                self.repeat(node)
            else:
                self.instance(node)

    def repeat(self, loop: Loop) -> None:
        """Every iteration of a loop; a loop that does not run still has its positions."""
        begin, left = self.position, self.trip_count(loop)
        engines, steady = self.loop_engines(loop), Steady(self, loop.body, left)
        while left:
            self.position = begin
            steady.before()
            for engine, row in engines.items():
                self.edges = self.issued_since(engine)
                self.branch[engine] = self.tape.count
                self.append(loop, -1, row)
            self.walk(loop.body)
            left -= 1 + steady.skipped(left - 1)
        self.position = begin + _length(loop.body)

    def issued_since(self, engine: int) -> list[int]:
        """Waits of an engine's branch until it has issued its DMAs since the branch before."""
        queues = (queue_number(engine, queue) for queue in range(len(QUEUES)))
        latest = [self.latest_dma[queue] for queue in queues]
        return [4 * number + ISSUED for number in latest if number > self.branch[engine]]

    def trip_count(self, loop: Loop) -> int:
        """How often the loop runs this time."""
        if not at_run_time(loop):
            return len(range(loop.start, loop.stop, loop.step))
        counts = self.own_trips.get(id(loop)) or self.trips
        if not counts:
            raise UsageError(
                "a device loop's trip count is in a register, and `trips` has no count for it",
                code="sim.trips",
                at=loop.where,
            )
        return counts.popleft()

    def append(self, what, position: int, row: int) -> None:
        """Close the instance whose waits are in `edges`."""
        self.tape.append(what, position, row, self.edges)
        if self.edges:
            self.edges = []

    def instance(self, one: Instruction) -> None:
        """One instruction happens once more: find its waits, then record its accesses."""
        form, operands = one.form, one.operands
        plan = self.plans.get(form) or self.plan(form)
        row, stream, reads, writes, inward, outward, banks = plan
        number = self.tape.count
        if banks:
            self.tape.banks(number, self.banks_of(operands))
        for n in reads:
            view = operands[n]
            if type(view) is View:
                self.read(view, number, stream)
        for n in writes:
            view = operands[n]
            if type(view) is View:
                self.write(view, number, stream)
        if inward or outward:
            self.use_registers(operands, inward, outward, number, stream)
        if self.latest:
            self.wait_explicitly(one, number, stream)
        if stream >= _N:
            self.behind_branch(stream)
            self.latest_dma[stream] = number
        if len(self.edges) > 1:
            self.edges = self.pruned(self.edges)
        self.append(one, self.position, row)
        self.position += 1

    def behind_branch(self, stream: int) -> None:
        """The first DMA of a queue in an iteration is issued behind its engine's branch."""
        branch = self.branch[engine_of(stream)]
        if branch > self.passed[stream]:
            self.passed[stream] = branch
            self.edges.append(4 * branch + OWN)

    def banks_of(self, operands: tuple) -> int:
        """The PSUM banks that an instruction's views lie in, as bits of `Columns.ports`."""
        bits = 0
        for view in operands:
            if type(view) is View and view.buffer.space == "psum":
                known = self.bank_bits.get(view.buffer)
                bits |= self.new_bank_bits(view) if known is None else known
        return bits

    def new_bank_bits(self, view: View) -> int:
        """The banks of one view; remembered for buffers that lie in one bank."""
        buffer, bank = view.buffer, self.placement.bank
        low = self.placement.slots[buffer].address
        high, small = low + buffer.partition_bytes, buffer.partition_bytes <= bank
        box = self.shapes.box(view)
        if not small and not box.whole:
            low, high = low + box.c0, low + box.c1
        bits = sum(PSUM_PORT << k for k in range(low // bank, -(-high // bank)))
        if small:
            self.bank_bits[buffer] = bits
        return bits

    def use_index(self, view: View, number: int, stream: int) -> None:
        """A runtime index is read as well, from memory or from a register."""
        offset = view.index.offset
        if type(offset) is View:
            self.read(offset, number, stream)
        elif isinstance(offset, Register):
            self.read_register(offset, stream)

    def pruned(self, edges: list[int]) -> list[int]:
        """One wait for each engine and kind: its results become visible in order."""
        if len(edges) == 2:
            return edges if edges[0] <= edges[1] else edges[::-1]
        best: dict[tuple[int, int], int] = {}
        for code in edges:
            producer = code >> 2
            stream = self.rows[self.tape.row_of(producer)].stream
            key = (stream if stream < _N else _N + producer, code & 3)
            if code > best.get(key, -1):
                best[key] = code
        return sorted(best.values())

    def read(self, view: View, number: int, stream: int) -> None:
        """Wait for the writers of what is read, and remember the read."""
        buffer = view.buffer
        if view.index is not None:
            self.use_index(view, number, stream)
        tile = self.tiles.get(buffer)
        if tile is None or tile.displaced:
            if buffer in self.unchanging:
                return
            tile = self.open(buffer)
        if not tile.ledgers:
            if view.whole and view.index is None:
                self.read_whole(tile, number, stream)
                return
            tile.divide(view)
        box, bit = self.shapes.box(view), 1 << stream
        for record in tile.writes.touching(box, view):
            if not record.waited & bit:
                record.waited |= bit
                own = record.stream == stream and stream < _N
                self.edges.append(4 * record.number + (OWN if own else record.kind))
        # Reads of one engine end in order, so its last one stands for all; DMAs do not.
        key = (box.key, stream if stream < _N else -number)
        tile.reads.put(key, number, stream, FREED, box, view)

    def read_whole(self, tile: _Tile, number: int, stream: int) -> None:
        """As `read`, of a tile that is only accessed as a whole."""
        bit = 1 << stream
        for mark in tile.writes:
            if not mark[WAITED] & bit:
                mark[WAITED] |= bit
                own = mark[STREAM] == stream and stream < _N
                self.edges.append(4 * mark[NUMBER] + (OWN if own else mark[KIND]))
        if stream < _N:
            for mark in tile.reads:
                if mark[STREAM] == stream and mark[MINE]:
                    mark[NUMBER], mark[WAITED] = number, 0
                    return
        elif tile.reads and tile.reads[-1][NUMBER] == number:
            return
        tile.reads.append([number, stream, FREED, 0, True])

    def write(self, view: View, number: int, stream: int) -> None:
        """Wait for the readers and writers of what is written, and remember the write."""
        if view.index is not None:
            self.use_index(view, number, stream)
        tile = self.tiles.get(view.buffer)
        if tile is None or tile.displaced:
            tile = self.open(view.buffer)
        if not tile.ledgers:
            if view.whole and view.index is None:
                self.write_whole(tile, number, stream)
                return
            tile.divide(view)
        self.write_part(tile, view, number, stream)

    def write_part(self, tile: _Tile, view: View, number: int, stream: int) -> None:
        """As `write`, of a tile that keeps ledgers."""
        box, bit = self.shapes.box(view), 1 << stream
        for ledger in (tile.reads, tile.writes):
            if ledger.records or ledger.inherited:
                touched = ledger.touching(box, view)
                for record in touched:
                    if record.number == number:
                        continue
                    record.passed = True
                    if record.waited & bit:
                        continue
                    if record.stream != stream or stream >= _N:
                        record.waited |= bit
                        self.edges.append(4 * record.number + record.kind)
                ledger.replace(box, touched)
        tile.writes.put(box.key, number, stream, SEEN, box, view)

    def write_whole(self, tile: _Tile, number: int, stream: int) -> None:
        """As `write`, of a tile that is only accessed as a whole."""
        bit, edges = 1 << stream, self.edges
        for marks in (tile.reads, tile.writes):
            for other, its, kind, waited, _ in marks:
                if other != number and not waited & bit and (its != stream or stream >= _N):
                    edges.append(4 * other + kind)
        if tile.reads:
            tile.reads = []
        tile.writes = [[number, stream, SEEN, 0, True]]

    def use_registers(self, operands, inward, outward, number: int, stream: int) -> None:
        """Wait for the last writer of each register that is read; remember what is written."""
        for n in inward:
            if isinstance(operands[n], Register):
                self.read_register(operands[n], stream)
        for n in outward:
            if isinstance(operands[n], Register):
                self.registers[operands[n].number] = Record(None, number, stream, SEEN, WHOLE, None)

    def read_register(self, register: Register, stream: int) -> None:
        """Wait for the register's last writer; its own engine needs no semaphore."""
        writer = self.registers.get(register.number)
        if writer is not None:
            same = writer.stream == engine_of(stream)
            self.edges.append(4 * writer.number + (OWN if same else SEEN))

    def wait_explicitly(self, one: Instruction, number: int, stream: int) -> None:
        """Waits that the program names, and this instance when later ones name it."""
        for other in one.after:
            producer = self.latest[id(other)]
            if producer >= 0:
                same = self.rows[self.tape.row_of(producer)].stream == stream
                self.edges.append(4 * producer + (OWN if same and stream < _N else SEEN))
        if id(one) in self.latest:
            self.latest[id(one)] = number

    # ------------------------------------------------------------ reuse of bytes

    def open(self, buffer) -> _Tile:
        """Begin a tile; on chip it takes its bytes from their owners and inherits their waits."""
        tile = self.tiles[buffer] = _Tile(buffer, not buffer.on_chip)
        slot = self.placement.slots.get(buffer)
        if slot is not None:
            alias = buffer.address is not None
            writes, reads = tile.writes, tile.reads
            owners: dict[int, _Tile] = {}
            for lane in self.placement.lanes(buffer):
                own = self.owners.setdefault((buffer.space, lane), [])
                taken = take(own, tile, slot.address, slot.address + slot.nbytes)
                owners.update((id(owner), owner) for owner in taken)
            for owner in owners.values():
                owner.displaced = True
                writes += _handed_on(owner.writes, alias)
                reads += _handed_on(owner.reads, alias)
        return tile


def take(owners: list, tile: _Tile, low: int, high: int) -> list[_Tile]:
    """Make `tile` the owner of bytes [low, high) in a list of owners; returns those before.

    Entries `(low, high, owner)` are disjoint and sorted.
    """
    begin = bisect_left(owners, (low,))
    if begin and owners[begin - 1][1] > low:
        begin -= 1
    end, around, found = begin, [(low, high, tile)], []
    while end < len(owners) and owners[end][0] < high:
        first, last, owner = owners[end]
        if first < low:
            around.insert(0, (first, low, owner))
        if last > high:
            around.append((high, last, owner))
        if owner not in found:
            found.append(owner)
        end += 1
    owners[begin:end] = around
    return found


def _length(body) -> int:
    """How many instructions the text of a body has."""
    return sum(_length(node.body) if isinstance(node, Loop) else 1 for node in body)
