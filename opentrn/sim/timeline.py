"""How long a program takes on a chip, and why: placement, waits and schedule put together."""

import gc
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from opentrn.base import CapacityError, Trace, UsageError, declare
from opentrn.isa import Instruction, Loop, Program
from opentrn.sim import repeats, timing
from opentrn.sim.coded import Coded
from opentrn.sim.compiled import CHOICE
from opentrn.sim.depend import dependencies
from opentrn.sim.flatten import coded_of, in_ticks
from opentrn.sim.folded import folded
from opentrn.sim.order import reordered
from opentrn.sim.place import Placement, place
from opentrn.sim.spill import noticed, spilled
from opentrn.sim.tape import Flow
from opentrn.sim.timing import ENGINES, REASONS, Columns, Rates, Schedule

declare(
    "sim.order",
    "An order of instructions that does not exist was asked for.",
    rule='order is "program" or "list"',
    fix='leave `order` out for program order, or pass order="list"',
)

declare(
    "sim.queues",
    "A way of serving DMA queues that does not exist was asked for.",
    rule='queues is "arrival" or "turns"',
    fix='leave `queues` out for order of arrival, or pass queues="turns"',
)

ORDERS = ("program", "list")
QUEUES = ("arrival", "turns")

# Programs made ready are kept, so many of so many instructions, and the last one.
_KEPT, _KEPT_INSTRUCTIONS = 4, 1_000_000
# From so many instructions on repetitions are looked for; of the program they have to save so much,
# less where the alternative is plain Python.
_WORTH_FOLDING = 2000
_SAVED = {False: 0.3, True: 0.8}

_PREPARED: "OrderedDict[tuple, Prepared]" = OrderedDict()


@dataclass(frozen=True, eq=False)
class Prepared:
    """A program made ready for the clock: everything that does not depend on how it is run."""

    program: Program
    chip: Any
    placement: Placement
    flow: Flow
    rates: Rates

    @cached_property
    def coded(self) -> Coded:
        """The flow as numbers, every turn of every loop."""
        return coded_of(self.flow, self.chip)

    @cached_property
    def columns(self) -> Columns:
        """The same, every number of every instruction."""
        return self.coded.columns()


class Step(NamedTuple):
    """One instruction of the critical path: `begin` to `end` (ns) it was what the rest waited for.

    `reason` is why it did not begin earlier; `instruction` is a Loop for a loop's branch.
    """

    instruction: Instruction | Loop
    index: int
    begin: float
    end: float
    reason: str


def rates_of(chip) -> Rates:
    """The rates of `chip` that the schedule needs."""
    tensor = chip.tensor
    issue = tensor.min_cycles / tensor.clock
    seconds = (chip.semaphore.wait, tensor.warmup, issue, chip.dma.stagger)
    packet = chip.dma.packet_bytes / chip.dma.engine_rate
    times = in_ticks([1e9 * x for x in (*seconds, packet)]).tolist()
    semaphore, window, issue, stagger, packet = times
    return Rates(
        semaphore_ns=semaphore,
        window_ns=window,
        warm_share=float(tensor.warm_share),
        cold_rate=float(tensor.cold_rate),
        issue_ns=issue,
        stagger_ns=stagger,
        dma_engines=int(chip.dma.engines),
        packet_ns=packet,
    )


def prepare(program: Program, chip, trips: Any = None, fast: bool | None = None) -> Prepared:
    """Place the program's tiles and find its waits; remembered for the last few programs.

    A program whose tiles do not fit is the one with its spills (`sim.spill`), where they help.
    `trips`: the trip counts of loops bounded by registers, see `depend.dependencies`.  `fast`: as
    in `timeline`; what is found is the same.
    """
    try:
        return _prepared(program, chip, trips, fast)
    except CapacityError as error:
        made = spilled(program, chip, error)
        ready = _prepared(made, chip, trips, fast)
        if not any(one.code == "sim.spilled" for one in ready.placement.findings):
            ready.placement.findings.append(noticed(made, error))
        return ready


def _prepared(program: Program, chip, trips: Any, fast: bool | None) -> Prepared:
    """As `prepare`, for a program whose tiles fit."""
    counts = tuple(trips) if trips is not None else ()
    key = (id(program), chip, tuple(_identity(one) for one in counts))
    found = _PREPARED.get(key)
    if found is not None and found.program is program:
        _PREPARED.move_to_end(key)
        return found
    with _collector_paused():
        placement, flow = _placed(program, chip, counts, fast)
    made = Prepared(program, chip, placement, flow, rates_of(chip))
    _PREPARED[key] = made
    while len(_PREPARED) > 1 and (len(_PREPARED) > _KEPT or _much_kept()):
        _PREPARED.popitem(last=False)
    return made


def _much_kept() -> bool:
    return sum(len(one.program.body) for one in _PREPARED.values()) > _KEPT_INSTRUCTIONS


def _placed(program: Program, chip, counts: tuple, fast: bool | None) -> tuple[Placement, Flow]:
    """`place` and `dependencies`, of repetitions as far as they are all alike."""
    compiled = CHOICE.compiled(len(program.body), fast)
    if len(program.body) >= _WORTH_FOLDING:
        found = folded(program, chip, _SAVED[compiled], compiled)
        if found is not None:
            return found
    if compiled:
        return _prepared_fast(program, chip, counts)
    placement = place(program, chip)
    return placement, dependencies(program, placement, chip, counts)


def _prepared_fast(program: Program, chip, counts: tuple) -> tuple[Placement, Flow]:
    """As `place` and `dependencies`, by tables and compiled code where those know the program."""
    from opentrn.sim import accesses_fast, place_fast, waits_fast

    table = accesses_fast.accesses_of(program)
    if table is None:
        placement, flow = place(program, chip), None
    else:
        placement = place_fast.place(program, chip, table)
        flow = waits_fast.dependencies(program, placement, chip, table)
    return placement, flow or dependencies(program, placement, chip, counts)


def _identity(trip: Any) -> tuple[int, int]:
    """A trip count as part of a key: loops are not hashable."""
    return (id(trip[0]), int(trip[1])) if isinstance(trip, tuple) else (0, int(trip))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No cyclic garbage collection meanwhile: it would walk the whole growing program again and
    again (half of the time), and find nothing.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def timeline(
    program: Program,
    chip,
    *,
    trips: Any = None,
    fast: bool | None = None,
    order: str = "program",
    queues: str = "arrival",
) -> "Timeline":
    """When every instruction of `program` runs on one core of `chip`.

    `order`: each engine runs its instructions in program order ("program"), or in the order of a
    list scheduler that stands for a compiler's ("list", see `sim.order`); the timeline's
    instructions are then in that order, and so is its program.  Where tiles do not fit SBUF and the
    compiler would spill them, its program has the spills.  `queues`: a DMA engine serves transfers
    in order of arrival, or takes turns among its queues ("turns", `sim.timing_turns`, by the plain
    scheduler).  `fast` chooses compiled code (None: where Numba is installed and there is, or was,
    enough to do, see `sim.compiled`); the results are equal.  Raises
    CapacityError when the tiles do not fit and spills do not help, UsageError `sim.trips`,
    `sim.order` and `sim.queues`.
    """
    if order not in ORDERS:
        raise UsageError(f"order={order!r} is not one of {', '.join(ORDERS)}", code="sim.order")
    ready = prepare(reordered(program, chip) if order == "list" else program, chip, trips, fast)
    ready = served(ready, queues)
    return Timeline(ready, alone(ready, fast))


def served(ready: Prepared, queues: str) -> Prepared:
    """The same with DMA engines that serve their queues so (see `timeline`); UsageError."""
    if queues not in QUEUES:
        names = ", ".join(QUEUES)
        raise UsageError(f"queues={queues!r} is not one of {names}", code="sim.queues")
    if queues == "arrival":
        return ready
    return replace(ready, rates=ready.rates._replace(turns=True))


def alone(ready: Prepared, fast: bool | None) -> Schedule | repeats.Prolonged:
    """The schedule of one core by itself; long repetitions are timed until they are steady."""

    def run(flow: Flow) -> Schedule:
        return scheduled(coded_of(flow, ready.chip), ready.rates, fast)

    if not ready.flow.repeats:
        return scheduled(ready.coded, ready.rates, fast)
    return repeats.schedule(ready.flow, ready.rates, run)


def scheduled(given: Columns | Coded, rates: Rates, fast: bool | None) -> Schedule:
    """The schedule as arrays, by the compiled or the plain scheduler (see `timeline`)."""
    short = isinstance(given, Coded)
    count = len(given.row if short else given.stream)
    plain = rates.turns or _in_classes(given.table if short else given)
    if plain or not CHOICE.compiled(count, fast):
        columns = given.columns() if short else given
        with _collector_paused():
            found = timing.schedule(Columns(*(column.tolist() for column in columns)), rates)
        numbers = [np.array(array("d", column)) for column in found[:5]]
        return Schedule(*numbers, *(np.asarray(column, np.int64) for column in found[5:]))
    from opentrn.sim import timing_fast

    return timing_fast.schedule(given, rates)


def _in_classes(columns: Columns) -> bool:
    """Whether transfers differ in their class of service, which only the plain scheduler knows."""
    classes = columns.priority
    return bool(len(classes)) and bool((classes != classes[0]).any())


class Timeline:
    """A program in time.  Arrays have one entry for each executed instruction, in program order.

    `start`, `end` (ns): when its engine works on it, or its bytes move.  `visible` (ns): when
    others can see the result.  `instructions[i]` is the Instruction, or the Loop whose branch it
    is.  `placement` says where the tiles lie.
    """

    def __init__(self, prepared: Prepared, schedule: Schedule | repeats.Prolonged):
        self.program, self.chip = prepared.program, prepared.chip
        self.placement, self._prepared = prepared.placement, prepared
        self.schedule, self._flow, self._rates = schedule, prepared.flow, prepared.rates

    def __len__(self) -> int:
        return len(self._flow)

    @property
    def instructions(self) -> list:
        """What was executed."""
        return self._flow.instances

    @property
    def start(self) -> np.ndarray:
        """When each begins, ns."""
        return self.schedule.start

    @property
    def end(self) -> np.ndarray:
        """When its engine, or the transfer, is done with it, ns."""
        return self.schedule.end

    @property
    def visible(self) -> np.ndarray:
        """When others can see the result, ns."""
        return self.schedule.visible

    @property
    def columns(self) -> Columns:
        """What the clock was told of every instruction."""
        return self._prepared.columns

    @property
    def total_ns(self) -> float:
        """When the last result is visible."""
        return float(self.visible.max()) if len(self.visible) else 0.0

    @property
    def run_ns(self) -> float:
        """As a profiler counts a run on the device: with what surrounds the kernel."""
        return (self.chip.launch.begin + self.chip.launch.end) * 1e9 + self.total_ns

    @property
    def binding(self) -> list[tuple[int, str]]:
        """For each instruction what held it back last: `(index, reason)`; -1 when nothing did.

        Reasons: "engine" (its engine was busy), "data" (a result of its own engine), "semaphore"
        (another engine), "dma" (a transfer), "queue" (the DMA engines), "hbm" (bandwidth), "port"
        (an access to SBUF or PSUM that another engine's had to finish before), "core" (another core
        of the launch; the index is -1 then).
        """
        pairs = zip(self.schedule.binding.tolist(), self.schedule.reason.tolist(), strict=True)
        return [(index, REASONS[reason]) for index, reason in pairs]

    @property
    def engine_busy_ns(self) -> dict[str, float]:
        """How long each engine works (DMA issue included), and "dma": the mean DMA engine."""
        columns, found = self.columns, dict.fromkeys(ENGINES, 0.0)
        length = self.end - self.start
        issued = columns.stream >= len(ENGINES)
        length = np.where(issued, columns.busy, length)
        engine = np.where(
            issued, (columns.stream - len(ENGINES)) // len(timing.QUEUES), columns.stream
        )
        for number, name in enumerate(ENGINES):
            found[name] = float(length[engine == number].sum())
        moved = (columns.move * columns.count).sum()
        found["dma"] = float(moved) / self._rates.dma_engines
        return found

    # ------------------------------------------------------------ why it takes so long

    def critical_path(self) -> list[Step]:
        """The chain of instructions that ends last, each the one the next had to wait for.

        In a launch on several cores it begins where this core last waited for another one.
        """
        path, s = [], self.schedule
        if not len(self.visible):
            return path
        index, end = int(self.visible.argmax()), self.total_ns
        while index >= 0:
            begin = min(float(s.since[index]), end)
            reason = REASONS[s.reason[index]]
            path.append(Step(self.instructions[index], index, begin, end, reason))
            index, end = int(s.binding[index]), begin
            if reason in ("data", "semaphore", "dma"):
                end -= self._rates.semaphore_ns
        path.reverse()
        return path

    def grade_shares(self) -> dict[str, float]:
        """Share of the total time that rests on each grade of knowledge, along the critical path.

        Semaphores between the steps count with the grade of the semaphore fact.
        """
        spent: dict[str, float] = {}
        path, total = self.critical_path(), self.total_ns
        for step in path:
            grade = self._grade(step.index)
            spent[grade] = spent.get(grade, 0.0) + step.end - step.begin
        between = total - sum(spent.values())
        if path and between > 0.0:
            grade = self.chip.fact("semaphore.wait").grade
            spent[grade] = spent.get(grade, 0.0) + between
        return {grade: ns / total for grade, ns in spent.items()} if total else {}

    def _grade(self, index: int) -> str:
        return self._flow.rows[self._flow.row[index]].grade

    # ------------------------------------------------------------ the trace

    def trace(self) -> Trace:
        """The trace: engine tracks, DMA queues, and how full SBUF and PSUM are.

        A transfer is an event on its queue's track (while its bytes move) and, labelled "issue",
        on the track of the engine that issues it.  `args["index"]` is the index of the instruction
        here, which `waited_for` names: "<reason>: <what> #<index>"; `args["done"]` (ns) is when
        others can see its result.
        """
        about = {"target": self.chip.name, "program": self.program.name, "total_ns": self.total_ns}
        trace = Trace(about)
        self._add_events(trace)
        self._add_counters(trace)
        return trace

    def _add_events(self, trace: Trace) -> None:
        s, flow, facts = self.schedule, self._flow, {}
        tracks, streams = _tracks(self.columns), self.columns.stream.tolist()
        busy, waits = self.columns.busy.tolist(), self._waits().tolist()
        columns = [getattr(s, name).tolist() for name in Schedule._fields]
        for index, (start, end, done, issue, _, binding, reason) in enumerate(
            zip(*columns, strict=True)
        ):
            one, stream = self.instructions[index], streams[index]
            waited = self._told(reason, binding)
            if isinstance(one, Loop):
                trace.add(tracks[stream], "loop", start, end, where=one.where, label="loop",
                          waited_for=waited, wait_ns=waits[index], grade=self._grade(index),
                          args={"index": index})  # fmt: skip
                continue
            known = facts.get(one.form)
            if known is None:
                known = facts[one.form] = _facts(one.form)
            grade = flow.rows[flow.row[index]].grade
            if stream >= len(ENGINES):
                engine = ENGINES[timing.engine_of(stream)]
                trace.add(engine, one.opcode, issue, issue + busy[index], where=one.where,
                          label="issue", grade=grade, args={"index": index})  # fmt: skip
            trace.add(
                tracks[stream], one.opcode, start, end, where=one.where, waited_for=waited,
                wait_ns=waits[index], grade=grade, label=one.name or "",
                args={"index": index, "done": done}, **known,
            )  # fmt: skip

    def _told(self, reason: int, binding: int) -> str:
        """What the trace says an event waited for."""
        if reason == timing.CORE:
            return "core: another core"
        return f"{REASONS[reason]}: {self._name(binding)}" if binding >= 0 else ""

    def _name(self, index: int) -> str:
        one = self.instructions[index]
        return f"{'loop' if isinstance(one, Loop) else one.opcode} #{index}"

    def _waits(self) -> np.ndarray:
        """Idle time (ns) of the stream before each instruction; for a DMA, time in the rings."""
        s, c = self.schedule, self.columns
        waits = np.zeros(len(self))
        for stream in range(len(ENGINES)):
            own = np.flatnonzero(c.stream == stream)
            before = np.concatenate((np.zeros(1), s.end[own][:-1]))[: len(own)]
            waits[own] = np.maximum(s.start[own] - before, 0.0)
        issued = c.stream >= len(ENGINES)
        arrival = s.issue + c.busy + c.lead
        return np.where(issued, np.maximum(s.start - arrival, 0.0), waits)

    def _add_counters(self, trace: Trace) -> None:
        """`sbuf_bytes` (all partitions) and `psum_banks` in use, from first start to last end."""
        first, last = self._first_and_last()
        sbuf: dict[float, float] = {}
        banks: list[tuple[float, int, int]] = []
        for buffer, slot in self.placement.slots.items():
            begin, end = first.get(slot.first), last.get(slot.last)
            if begin is None or end is None:
                continue
            if buffer.space == "sbuf":
                size = slot.nbytes * buffer.partitions
                sbuf[begin] = sbuf.get(begin, 0) + size
                sbuf[end] = sbuf.get(end, 0) - size
            else:
                banks += [(begin, 1, b) for b in self.placement.banks(buffer)]
                banks += [(end, -1, b) for b in self.placement.banks(buffer)]
        now = 0.0
        for time in sorted(sbuf):
            now += sbuf[time]
            trace.count("sbuf_bytes", time, now)
        _count_banks(trace, sorted(banks))

    def _first_and_last(self) -> tuple[dict[int, float], dict[int, float]]:
        """Start of the first and end of the last instance of each position of the text."""
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        starts, ends = self.start.tolist(), self.end.tolist()
        for index, position in enumerate(self._flow.position.tolist()):
            first.setdefault(position, starts[index])
            last[position] = ends[index]
        return first, last


def _count_banks(trace: Trace, changes: list[tuple[float, int, int]]) -> None:
    users: dict[int, int] = {}
    for n, (time, change, bank) in enumerate(changes):
        users[bank] = users.get(bank, 0) + change
        if n + 1 == len(changes) or changes[n + 1][0] != time:
            trace.count("psum_banks", time, sum(1 for count in users.values() if count > 0))


def _tracks(columns: Columns) -> list[str]:
    """The track of each stream: engines by name, DMA queues in use by number."""
    names = list(ENGINES) + [""] * (timing.STREAMS - len(ENGINES))
    used = [n for n in np.unique(columns.stream).tolist() if n >= len(ENGINES)]
    for number, stream in enumerate(used):
        names[stream] = f"dma.q{number}"
    return names


def _facts(form) -> dict[str, Any]:
    """What the trace says of every instruction of this form: flops, bytes and memories."""
    read = [side for name, side in form.tiles() if form.operands[name].role in ("in", "inout")]
    written = [side for name, side in form.tiles() if form.operands[name].role != "in"]
    return {
        "flops": form.flop_count,
        "bytes_read": sum(side.nbytes for side in read),
        "bytes_written": sum(side.nbytes for side in written),
        "source": "+".join(dict.fromkeys(side.space for side in read)),
        "target": "+".join(dict.fromkeys(side.space for side in written)),
    }
