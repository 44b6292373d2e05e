"""When each instruction runs: an event-driven schedule of in-order engines and shared DMA rings.

The model.  A *stream* is a queue that starts its instructions in program order: one for each of
the five engines, and for each engine that issues DMA up to three DMA queues (into SBUF/PSUM from
HBM, into HBM, within the chip), so that a store that waits does not hold back the next load.
Several cores of one launch have their own streams, ports and DMA engines; HBM is shared.

* An instruction is ready when every dependence is satisfied: the producer's result is visible
  (its end plus its latency; results of one engine become visible in order), or, where it only
  overwrites what another reads, that reader has ended; and `semaphore_ns` have passed since.  The
  branch of a device loop only waits until its engine has issued the transfers before it.
* An engine runs one instruction at a time, for `busy`.  `background` (the stationary load of the
  Tensor Engine) comes first but may run beside the multiply before it, never two ahead.  `setup`
  (loading coefficients of another activation function) needs the engine, but no dependence.
* A port that engines share (`ports`, bits) serves one instruction at a time, in order of arrival.
* Multiplies on disjoint `cells` of the PE array run side by side; they start in order, at least
  `issue_ns` apart.
* A DMA instruction occupies its issuing engine for `busy`; `lead` later, but not before the one
  before it in its queue (a queue hands over its descriptors in order), it reaches the rings and
  takes `count` DMA engines from number `first` on, each for `move`; every further engine begins
  `stagger_ns` later.  A DMA engine serves in order of arrival, unless transfers have classes
  (`priority`, 0 first): see `timing_classes`.  HBM serves in order of arrival
  too, `hbm` for each transfer.  `finish` later others can see the result.
* The current limiter of the Tensor Engine works in windows of `window_ns`, counted from the start.
  A window in which it did full-speed work of at least `warm_share` of the window (each multiply
  counts with its `share`) is followed by one at full speed, any other by one at `cold_rate`.
  What does not use the array (`share` 0) is not slowed.

Claims on what streams share are made in order of (time, priority, program order), which makes the
schedule deterministic.  Durations are whole ticks of 2^-20 ns, so that sums are exact and the same
wherever in time they happen.  `timing_fast` is the same in compiled code, equal bit by bit.
"""

import heapq
from typing import NamedTuple

from opentrn.base import Bug

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")
"""The engines, in the order of their stream numbers."""

QUEUES = ("load", "store", "move")
"""The DMA queues of one issuing engine: HBM to chip, into HBM, within the chip."""

STREAMS = len(ENGINES) * (1 + len(QUEUES))
"""Streams of one core; core c has numbers c * STREAMS and on."""

TICK = 2.0**-20
"""Times are multiples of this many ns: sums are exact up to 2^33 ns, or 8.6 s."""

TENSOR = 0
PORTS = 9  # ports that engines of one core share
CELLS = 4  # the PE array counts as CELLS x CELLS cells

# Kinds of dependence, the low bits of a code `4 * producer + kind`.
SEEN, FREED, OWN, ISSUED = 0, 1, 2, 3
# What an instruction waited for last.
REASONS = ("", "engine", "data", "semaphore", "dma", "queue", "hbm", "port", "core")
NOTHING, ENGINE, DATA, SEMAPHORE, DMA, QUEUE, HBM, PORT, CORE = range(len(REASONS))


class Columns(NamedTuple):
    """A program as numbers: one row for each instruction, in program order of its core.

    Times are in ns.  `dep[dep_start[i]:dep_start[i + 1]]` are the dependences of row i as
    `4 * producer + kind`: SEEN waits for a result, FREED for the end of a read, OWN for a result
    on the same engine, ISSUED until the engine has issued a transfer.  `cells` is 0 where the whole
    PE array is used and nobody uses less.
    """

    stream: list
    busy: list
    latency: list
    background: list
    setup: list
    lead: list
    move: list
    finish: list
    hbm: list
    share: list
    first: list
    count: list
    ports: list
    cells: list
    priority: list
    dep_start: list
    dep: list


class Rates(NamedTuple):
    """What the schedule needs of the chip, in ns (`cold_rate`, `warm_share`: shares of one).

    `turns`: DMA engines take turns among queues (`timing_turns`), not in order of arrival.
    """

    semaphore_ns: float
    window_ns: float
    warm_share: float
    cold_rate: float
    issue_ns: float
    stagger_ns: float
    dma_engines: int
    cores: int = 1
    packet_ns: float = 0.0
    turns: bool = False


class Schedule(NamedTuple):
    """When everything happened, in ns, one entry for each row.

    `start` to `end` the engine works (DMA: bytes move); `visible` others can see the result;
    `issue` is when the issuing engine began (DMA only, else `start`); `since` is when the thing
    that held it back last had passed, `binding` that predecessor's row (-1: none), `reason` a
    number of `REASONS`.
    """

    start: list
    end: list
    visible: list
    issue: list
    since: list
    binding: list
    reason: list


def engine_of(stream: int) -> int:
    """The engine that runs a stream's instructions, or issues them (of any core)."""
    stream %= STREAMS
    return stream if stream < len(ENGINES) else (stream - len(ENGINES)) // len(QUEUES)


def is_queue(stream: int) -> bool:
    """Whether a stream is a DMA queue."""
    return stream % STREAMS >= len(ENGINES)


def queue_number(issuer: int, queue: int) -> int:
    """The stream of DMA queue `queue` (0 load, 1 store, 2 move) of an issuing engine."""
    return len(ENGINES) + issuer * len(QUEUES) + queue


def schedule(columns: Columns, rates: Rates) -> Schedule:
    """Run the columns through the machine.

    Dependences on the same core name earlier rows; those on another core may name any row.  Rows
    in a circle of waits never run and keep the time 0.
    """
    if rates.turns:
        from opentrn.sim import timing_turns

        return timing_turns.schedule(columns, rates)
    if len(columns.priority) and min(columns.priority) != max(columns.priority):
        from opentrn.sim import timing_classes

        return timing_classes.schedule(columns, rates)
    run = Run(columns, rates)
    run.run()
    return run.result


class Run:
    """One schedule in the making; every column of `Columns` and `Schedule` is an attribute."""

    stream: list
    busy: list
    latency: list
    background: list
    setup: list
    lead: list
    move: list
    finish: list
    hbm: list
    share: list
    first: list
    count: list
    ports: list
    cells: list
    priority: list
    dep_start: list
    dep: list
    start: list
    end: list
    visible: list
    issue: list
    since: list
    binding: list
    reason: list

    def __init__(self, c: Columns, rates: Rates):
        n, streams = len(c.stream), STREAMS * rates.cores
        self.rates = rates
        self.result = Schedule(*([0.0] * n for _ in range(5)), [-1] * n, [0] * n)
        # Attributes are the quickest thing to look up.
        vars(self).update(c._asdict())
        vars(self).update(self.result._asdict())
        # When a dependence of each kind is satisfied; -1 while not known.
        seen = [-1.0] * n
        # OWN differs from SEEN only in what is told.
        self.times = (seen, [-1.0] * n, seen, [-1.0] * n)
        self.waiting: list = [None] * n
        self.order: list = [[] for _ in range(streams)]
        for row, stream in enumerate(c.stream):
            self.order[stream].append(row)
        self.at = [0] * streams
        self.scan = [-1] * streams
        self.ready, self.cause = [0.0] * streams, [-1] * streams
        self.last_start, self.last_row = [0.0] * streams, [-1] * streams
        self.reached = [0.0] * streams
        # State of an engine stands under the number of its stream.
        self.queue = [is_queue(s) for s in range(streams)]
        self.home = [s - s % STREAMS + engine_of(s) for s in range(streams)]
        self.shared = [False] * streams
        for stream in range(streams):
            self.shared[self.home[stream]] |= self.queue[stream] and bool(self.order[stream])
        self.free, self.holder = [0.0] * streams, [-1] * streams
        self.seen_until = [0.0] * streams
        self.fresh_shares(rates)
        self.heap: list = []
        self.awake = [s for s in range(streams) if self.order[s]]

    def fresh_shares(self, rates: Rates) -> None:
        """Everything that streams share, unused so far."""
        cores = rates.cores
        rings = cores * rates.dma_engines
        self.rings, self.ring_holder = [0.0] * rings, [-1] * rings
        self.hbm_free, self.hbm_holder = 0.0, -1
        self.port_free, self.port_holder = [0.0] * (cores * PORTS), [-1] * (cores * PORTS)
        self.cell_free = [0.0] * (cores * CELLS * CELLS)
        self.limited, self.semaphore = rates.cold_rate < 1.0, rates.semaphore_ns
        self.stagger = rates.stagger_ns
        self.window, self.work, self.warm = [0] * cores, [0.0] * cores, [False] * cores

    def run(self) -> None:
        """Process events until nothing is left."""
        heap, awake = self.heap, self.awake
        while True:
            while awake:
                self.advance(awake.pop())
            if not heap:
                return
            time, claim, row = heapq.heappop(heap)
            if claim == 1:
                self.claim(row, time)
            elif claim == 0:
                self.transfer(row, time)
            else:
                self.other(claim, row, time)

    def other(self, kind: int, number: int, time: float) -> None:
        """An event of a kind that only `timing_classes` has."""
        raise Bug(f"an event of kind {kind} in a schedule without classes")

    def advance(self, stream: int) -> None:
        """Start the stream's instructions until one has to wait for another stream."""
        order, at = self.order[stream], self.at[stream]
        contested = self.queue[stream] or self.shared[stream]
        while at < len(order):
            row = order[at]
            if not self.satisfied(stream, row):
                break
            arrival = self.ready[stream]
            if self.last_start[stream] > arrival:
                arrival = self.last_start[stream]
            if contested or self.ports[row]:
                heapq.heappush(self.heap, (arrival, 1, row))
                break
            self.begin(row, stream, arrival)
            at += 1
        self.at[stream] = at

    def satisfied(self, stream: int, row: int) -> bool:
        """Whether all dependences have a time; otherwise wait for the first that has none."""
        dep, times = self.dep, self.times
        k = self.scan[stream]
        if k < 0:
            k, ready, cause = self.dep_start[row], 0.0, -1
        else:
            ready, cause = self.ready[stream], self.cause[stream]
        stop = self.dep_start[row + 1]
        while k < stop:
            code = dep[k]
            time = times[code & 3][code >> 2]
            if time < 0.0:
                waiting = self.waiting[code >> 2]
                if waiting is None:
                    self.waiting[code >> 2] = [stream]
                else:
                    waiting.append(stream)
                break
            if time > ready:
                ready, cause = time, code
            k += 1
        self.scan[stream], self.ready[stream], self.cause[stream] = k, ready, cause
        return k == stop

    def claim(self, row: int, time: float) -> None:
        """An instruction reaches an engine or a port that several streams share."""
        stream = self.stream[row]
        if self.queue[stream]:
            self.trigger(row, stream, time)
        else:
            free = self.free[stream] + self.setup[row]
            if self.ports[row] and free > time:
                # It asks for the port when the engine has come to it.
                heapq.heappush(self.heap, (free, 1, row))
                return
            self.begin(row, stream, max(self.ready[stream], self.last_start[stream]))
        self.at[stream] += 1
        self.awake.append(stream)

    def begin(self, row: int, engine: int, arrival: float) -> None:
        """Run an engine instruction that is ready at `arrival`."""
        begin = arrival + self.background[row]
        setup = self.setup[row]
        if self.cells[row]:
            begin = self.beside(row, engine, arrival, begin)
        elif self.free[engine] + setup > begin:
            begin = self.free[engine] + setup
            self.since[row] = self.free[engine]
            holder = self.holder[engine]
            self.binding[row], self.reason[row] = holder, ENGINE if holder >= 0 else NOTHING
        else:
            self.since[row] = arrival
            self.blame(row, engine, arrival)
        if self.ports[row]:
            begin = self.through_ports(row, engine, begin)
        if engine % STREAMS == TENSOR and self.limited and self.share[row]:
            end = self.limited_end(engine // STREAMS, begin, self.busy[row], self.share[row])
        else:
            end = begin + self.busy[row]
        self.occupy(row, engine, begin, end)
        visible = end + self.latency[row]
        if visible < self.seen_until[engine]:
            visible = self.seen_until[engine]
        self.seen_until[engine] = visible
        self.start[row], self.issue[row] = begin, begin
        self.end[row], self.visible[row] = end, visible
        self.scan[engine] = -1
        self.settle(row, visible, end)

    def beside(self, row: int, engine: int, arrival: float, begin: float) -> float:
        """When the cells of the PE array that a multiply uses are free, others at work or not."""
        cells, base = self.cells[row], engine // STREAMS * (CELLS * CELLS)
        free = 0.0
        if self.last_row[engine] >= 0:
            free = self.last_start[engine] + self.rates.issue_ns
        for k in range(CELLS * CELLS):
            if cells >> k & 1 and self.cell_free[base + k] > free:
                free = self.cell_free[base + k]
        if free > begin:
            begin = free
            self.since[row] = begin
            self.binding[row], self.reason[row] = self.last_row[engine], ENGINE
        else:
            self.since[row] = arrival
            self.blame(row, engine, arrival)
        return begin

    def through_ports(self, row: int, engine: int, begin: float) -> float:
        """When the ports are free as well."""
        ports, base = self.ports[row], engine // STREAMS * PORTS
        latest, blocker = begin, -1
        for k in range(PORTS):
            if ports >> k & 1 and self.port_free[base + k] > latest:
                latest, blocker = self.port_free[base + k], self.port_holder[base + k]
        if blocker >= 0:
            self.since[row], self.binding[row], self.reason[row] = latest, blocker, PORT
        return latest

    def occupy(self, row: int, engine: int, begin: float, end: float) -> None:
        """The engine, the ports and the cells are in use from `begin` to `end`."""
        core = engine // STREAMS
        if end > self.free[engine]:
            self.free[engine], self.holder[engine] = end, row
        self.last_start[engine], self.last_row[engine] = begin, row
        ports, cells = self.ports[row], self.cells[row]
        if ports:
            for k in range(PORTS):
                if ports >> k & 1:
                    self.port_free[core * PORTS + k] = end
                    self.port_holder[core * PORTS + k] = row
        if cells:
            for k in range(CELLS * CELLS):
                if cells >> k & 1:
                    self.cell_free[core * (CELLS * CELLS) + k] = end

    def limited_end(self, core: int, begin: float, left: float, share: float) -> float:
        """When `left` ns of full-speed work of the Tensor Engine that begin at `begin` are done."""
        window, need = self.rates.window_ns, self.rates.warm_share * self.rates.window_ns
        number = int(begin / window)
        if number > self.window[core]:
            idle = number > self.window[core] + 1
            self.warm[core] = self.work[core] >= need and not idle
            self.window[core], self.work[core] = number, 0.0
        now = begin
        while True:
            rate = 1.0 if self.warm[core] else self.rates.cold_rate
            stop = (self.window[core] + 1) * window
            room = (stop - now) * rate
            if left <= room:
                self.work[core] += left * share
                return now + left / rate
            if room > 0.0:
                self.work[core] += room * share
                left -= room
                now = stop
            self.warm[core] = self.work[core] >= need
            self.window[core], self.work[core] = self.window[core] + 1, 0.0

    def blame(self, row: int, stream: int, arrival: float) -> None:
        """Note what made the instruction ready only at `arrival`."""
        cause = self.cause[stream]
        if self.last_start[stream] > self.ready[stream]:
            self.binding[row], self.reason[row] = self.last_row[stream], ENGINE
        elif cause >= 0:
            producer = cause >> 2
            self.binding[row] = producer
            if cause & 3 == ISSUED:
                self.reason[row] = ENGINE
            elif self.queue[self.stream[producer]]:
                self.reason[row] = DMA
            else:
                self.reason[row] = DATA if cause & 3 == OWN else SEMAPHORE

    def trigger(self, row: int, stream: int, arrival: float) -> None:
        """The issuing engine starts a DMA instruction that is ready at `arrival`."""
        engine, begin = self.home[stream], arrival
        if self.free[engine] > begin:
            begin = self.free[engine]
            self.binding[row], self.reason[row] = self.holder[engine], ENGINE
        else:
            self.blame(row, stream, arrival)
        self.issue[row] = self.since[row] = begin
        end = begin + self.busy[row]
        self.free[engine], self.holder[engine] = end, row
        self.last_start[stream], self.last_row[stream] = begin, row
        self.scan[stream] = -1
        self.times[ISSUED][row] = end
        self.wake(row)
        self.reached[stream] = max(self.reached[stream], end + self.lead[row])
        heapq.heappush(self.heap, (self.reached[stream], 0, row))

    def transfer(self, row: int, arrival: float) -> None:
        """A DMA instruction reaches the rings and HBM."""
        first, count, move = self.first[row], self.count[row], self.move[row]
        rings, holders, total = self.rings, self.ring_holder, self.rates.dma_engines
        base = self.stream[row] // STREAMS * total
        earliest, latest, blocker = float("inf"), arrival, -1
        for k in range(count):
            ring, due = base + (first + k) % total, arrival + k * self.stagger
            begin, holder = rings[ring], holders[ring]
            if begin <= due:
                begin, holder = due, -1
            if begin > latest:
                latest, blocker = begin, holder
            if begin < earliest:
                earliest = begin
            rings[ring], holders[ring] = begin + move, row
        end = latest + move
        if blocker >= 0:
            self.since[row], self.binding[row], self.reason[row] = latest, blocker, QUEUE
        end = self.through_hbm(row, arrival, end)
        visible = end + self.finish[row]
        self.start[row], self.end[row], self.visible[row] = earliest, end, visible
        self.settle(row, visible, visible)

    def through_hbm(self, row: int, arrival: float, end: float) -> float:
        """The end of a transfer when HBM has its share of it done as well."""
        need = self.hbm[row]
        if need == 0.0:
            return end
        begin = self.hbm_free if self.hbm_free > arrival else arrival
        done = begin + need
        if done > end:
            end = done
            if begin > arrival:
                self.since[row], self.binding[row], self.reason[row] = begin, self.hbm_holder, HBM
        self.hbm_free, self.hbm_holder = done, row
        return end

    def settle(self, row: int, visible: float, freed: float) -> None:
        """Give the row's dependences their times and wake the streams that waited for it."""
        times = self.times
        times[SEEN][row] = visible + self.semaphore
        times[FREED][row] = freed + self.semaphore
        self.wake(row)

    def wake(self, row: int) -> None:
        """Something more is known of the row: the streams that waited for it look again."""
        waiting = self.waiting[row]
        if waiting is not None:
            self.waiting[row] = None
            self.awake += waiting
