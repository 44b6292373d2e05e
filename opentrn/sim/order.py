"""The order a compiler might give a program: whatever is ready first goes first, within a window.

The official compiler reorders independent instructions; how is not public.  Here a list scheduler
stands for it: an engine that is free takes, of the instructions whose dependences are satisfied,
the first one in program order.  None begins `window` or more places ahead of the oldest one left,
and none whose new tiles do not fit beside those alive.

Dependences are those of the program alone, byte by byte, without the reuse of addresses that
placing adds.  Device loops, instructions with registers or runtime indices, meetings of cores and
tiles with explicit addresses keep their places; engine state (accumulators) keeps its order.
"""

import heapq
from dataclasses import replace
from typing import Any

from opentrn.base import CapacityError
from opentrn.isa import Instruction, Program, Register, View
from opentrn.sim.overlaps import Ledger, Shapes
from opentrn.sim.place import memories, place
from opentrn.sim.rows import READS, WRITES, Row, row_of
from opentrn.sim.timing import FREED, SEEN, STREAMS, engine_of, is_queue

WINDOW = 128
_LEAST = 8
_LOOKED_AT = 8  # ready instructions of a stream that are tried


def reordered(program: Program, chip, window: int = WINDOW) -> Program:
    """The same instructions in the order a list scheduler issues them; dependences are kept.

    Where the tiles of the new order do not fit, the window is halved; the program itself comes
    back when nothing can move.
    """
    while window >= _LEAST:
        body: list = []
        for part in segments(program.body):
            body += part if len(part) < 3 else listed(part, chip, window)
        if all(a is b for a, b in zip(body, program.body, strict=True)):
            return program
        made = replace(program, body=body)
        try:
            place(made, chip)
        except CapacityError:
            window //= 2
            continue
        return made
    return program


def segments(body: list) -> list[list]:
    """The body cut at everything that keeps its place."""
    parts: list[list] = [[]]
    for node in body:
        if isinstance(node, Instruction) and _movable(node):
            parts[-1].append(node)
        else:
            parts += [[node], []]
    return parts


def _movable(one: Instruction) -> bool:
    for operand in one.operands:
        if isinstance(operand, Register):
            return False
        fixed = type(operand) is View and (operand.index or operand.buffer.address is not None)
        if fixed:
            return False
    return not one.form.meets


# ---------------------------------------------------------------------- dependences


def waits(part: list[Instruction]) -> list[list[tuple[int, int]]]:
    """For each instruction of a segment all it depends on: (number, SEEN or FREED)."""
    shapes, tiles, found = Shapes(), {}, []
    states: dict[Any, int] = {}
    known = {id(one): number for number, one in enumerate(part)}
    for number, one in enumerate(part):
        edges: dict[int, int] = {}
        for view in _views(one, READS):
            writes, reads = tiles.setdefault(view.buffer, (Ledger(), Ledger()))
            box = shapes.box(view)
            edges.update((record.number, SEEN) for record in writes.touching(box, view))
            reads.put((box.key, number), number, 0, FREED, box, view)
        for view in _views(one, WRITES):
            writes, reads = tiles.setdefault(view.buffer, (Ledger(), Ledger()))
            box = shapes.box(view)
            for ledger in (reads, writes):
                touched = ledger.touching(box, view)
                for record in touched:
                    edges.setdefault(record.number, FREED)
                ledger.replace(box, touched)
            writes.put(box.key, number, 0, SEEN, box, view)
        if one.form.state:
            key = one.form.engine_name, one.form.state
            edges.setdefault(states.get(key, number), FREED)
            states[key] = number
        edges.update((known[id(other)], SEEN) for other in one.after if id(other) in known)
        edges.pop(number, None)
        found.append(list(edges.items()))
    return found


def _views(one: Instruction, roles: tuple[str, ...]) -> list[View]:
    declared = zip(one.operands, one.form.operands.values(), strict=True)
    return [v for v, d in declared if type(v) is View and getattr(d, "role", None) in roles]


# ---------------------------------------------------------------------- the scheduler


def listed(part: list[Instruction], chip, window: int) -> list[Instruction]:
    """A segment in the order in which its instructions are issued."""
    run = _List(part, chip, window)
    run.run()
    return [part[n] for n in run.issued]


class _List:
    """Greedy issue of one segment; times in ns."""

    def __init__(self, part: list[Instruction], chip, window: int):
        forms: dict[Any, Row] = {}
        for one in part:
            if one.form not in forms:
                forms[one.form] = row_of(one.form, chip)
        self.rows = [forms[one.form] for one in part]
        self.window, self.semaphore = window, chip.semaphore.wait * 1e9
        self.rings = int(chip.dma.engines)
        edges, n = waits(part), len(part)
        self.left = [len(x) for x in edges]
        self.users: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        for number, found in enumerate(edges):
            for other, kind in found:
                self.users[other].append((number, kind))
        self.ready = [0.0] * n
        self.done = [False] * n
        self.issued: list[int] = []
        self.free = [0.0] * STREAMS
        self.ring_free, self.oldest = 0.0, 0
        self.memory = {m.space: m for m in memories(chip)}
        self.room = {m.space: m.size for m in memories(chip)}
        self.tiles = [{v.buffer for v in one.views() if v.buffer.on_chip} for one in part]
        self.uses: dict[Any, int] = {}
        for tiles in self.tiles:
            for tile in tiles:
                self.uses[tile] = self.uses.get(tile, 0) + 1
        self.live: set[Any] = set()
        # Ready instructions of each stream: those whose time has come, by number, and the others.
        self.now: list[list[int]] = [[] for _ in range(STREAMS)]
        self.later: list[list[tuple[float, int]]] = [[] for _ in range(STREAMS)]
        for number in range(n):
            if not self.left[number]:
                self.offer(number)

    def offer(self, number: int) -> None:
        """An instruction has everything it waits for, at a known time."""
        heapq.heappush(self.later[self.rows[number].stream], (self.ready[number], number))

    def run(self) -> None:
        """Issue until nothing is left, always the stream that can begin first."""
        for _ in range(len(self.rows)):
            found = [x for x in map(self.candidate, range(STREAMS)) if x is not None]
            self.issue(*min(found))

    def candidate(self, stream: int) -> tuple[float, int] | None:
        """(when, which) instruction a stream would begin next; None while it may not.

        The oldest instruction left may always begin, so some stream has a candidate.
        """
        now, later = self.now[stream], self.later[stream]
        if not now and not later:
            return None
        free = self.free[stream]
        if is_queue(stream):
            free = max(free, self.free[engine_of(stream)])
        time = free
        while True:
            while later and later[0][0] <= time:
                heapq.heappush(now, heapq.heappop(later)[1])
            for number in now if len(now) < 2 else heapq.nsmallest(_LOOKED_AT, now):
                if number == self.oldest or self.fits(number):
                    return time, number
            if not later:
                return None
            time = later[0][0]

    def fits(self, number: int) -> bool:
        """Whether an instruction is inside the window and its new tiles fit into memory."""
        if number >= self.oldest + self.window:
            return False
        needed: dict[str, int] = {}
        for tile in self.tiles[number] - self.live:
            size = self.memory[tile.space].rounded(tile.partition_bytes)
            needed[tile.space] = needed.get(tile.space, 0) + size
        return all(size <= self.room[space] for space, size in needed.items())

    def occupy(self, number: int) -> None:
        """The instruction's tiles live from now on, those it uses last no longer."""
        for tile in self.tiles[number]:
            size = self.memory[tile.space].rounded(tile.partition_bytes)
            if tile not in self.live:
                self.live.add(tile)
                self.room[tile.space] -= size
            self.uses[tile] -= 1
            if not self.uses[tile]:
                self.room[tile.space] += size

    def issue(self, time: float, number: int) -> None:
        """Begin an instruction and tell those that wait for it."""
        row, stream = self.rows[number], self.rows[number].stream
        now = self.now[stream]
        now.remove(number)
        heapq.heapify(now)
        self.occupy(number)
        self.done[number] = True
        self.issued.append(number)
        if is_queue(stream):
            end = visible = self.moved(time, row)
            self.free[engine_of(stream)] = time + row.busy
        else:
            end = max(time, self.ready[number] + row.background) + row.busy
            visible = end + row.latency
            self.free[stream] = end
        while self.oldest < len(self.done) and self.done[self.oldest]:
            self.oldest += 1
        for user, kind in self.users[number]:
            known = (visible if kind == SEEN else end) + self.semaphore
            self.ready[user] = max(self.ready[user], known)
            self.left[user] -= 1
            if not self.left[user]:
                self.offer(user)

    def moved(self, time: float, row: Row) -> float:
        """When a transfer that is issued at `time` is seen; the rings count as one server."""
        begin = max(time + row.busy + row.lead, self.ring_free)
        self.ring_free = begin + row.move * row.count / self.rings
        return begin + row.move + row.finish


__all__ = ["reordered"]
