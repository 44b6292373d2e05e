"""When each instruction runs: an event-driven schedule of in-order engines and shared DMA rings.

The model.  A *stream* is a queue that starts its instructions in program order: one for each of
the five engines, and for each engine that issues DMA up to three DMA queues (into SBUF/PSUM from
HBM, into HBM, within the chip), so that a store that waits does not hold back the next load.

* An instruction is ready when every dependence is satisfied: the producer's result is visible
  (its end plus its latency; results of one engine become visible in order), or, where it only
  overwrites what another reads, that reader has ended.  A dependence on another stream costs
  `semaphore_ns` more.
* An engine runs one instruction at a time, for `busy`.  `background` (the stationary load of the
  Tensor Engine) comes first but may run beside the multiply before it, never two ahead.
* A DMA instruction occupies its issuing engine for `busy`; `lead` later it reaches the rings and
  takes `count` DMA engines from number `first` on, each for `move`.  Every DMA engine serves in
  order of arrival.  HBM serves in order of arrival too, `hbm` for each transfer.  `finish` later
  others can see the result.
* The Tensor Engine is cold at first: it works at `cold_rate` until it has been busy for
  `warmup_ns` more than idle; it cools down when idle time exceeds busy time by half of that
  (hardware facts §15: half rate for the first 3 us, re-armed when use over a window of 3 us falls
  below half).

Claims on what streams share are made in order of (time, priority, program order), which makes the
schedule deterministic.  `timing_fast` is the same in compiled code, equal bit by bit.
"""

import heapq
from typing import NamedTuple

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")
"""The engines, in the order of their stream numbers."""

QUEUES = ("load", "store", "move")
"""The DMA queues of one issuing engine: HBM to chip, into HBM, within the chip."""

STREAMS = len(ENGINES) * (1 + len(QUEUES))
TENSOR = 0

# Kinds of dependence, the low bits of a code `4 * producer + kind`.
SEEN, FREED, OWN = 0, 1, 2
# What an instruction waited for last.
REASONS = ("", "engine", "data", "semaphore", "dma", "queue", "hbm")
NOTHING, ENGINE, DATA, SEMAPHORE, DMA, QUEUE, HBM = range(len(REASONS))


class Columns(NamedTuple):
    """A program as numbers: one row for each instruction, in program order.

    Times are in ns.  `dep[dep_start[i]:dep_start[i + 1]]` are the dependences of row i as
    `4 * producer + kind`: SEEN waits for a result, FREED for the end of a read, OWN for a result
    on the same engine (no semaphore).
    """

    stream: list
    busy: list
    latency: list
    background: list
    lead: list
    move: list
    finish: list
    hbm: list
    first: list
    count: list
    dep_start: list
    dep: list


class Rates(NamedTuple):
    """What the schedule needs of the chip, in ns (`cold_rate`: a share of full speed)."""

    semaphore_ns: float
    warmup_ns: float
    cold_rate: float
    dma_engines: int


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
    """The engine that runs a stream's instructions, or issues them."""
    return stream if stream < len(ENGINES) else (stream - len(ENGINES)) // len(QUEUES)


def queue_number(issuer: int, queue: int) -> int:
    """The stream of DMA queue `queue` (0 load, 1 store, 2 move) of an issuing engine."""
    return len(ENGINES) + issuer * len(QUEUES) + queue


def schedule(columns: Columns, rates: Rates) -> Schedule:
    """Run the columns through the machine; every dependence must name an earlier row."""
    run = _Run(columns, rates)
    run.run()
    return run.result


class _Run:
    """One schedule in the making; every column of `Columns` and `Schedule` is an attribute."""

    stream: list
    busy: list
    latency: list
    background: list
    lead: list
    move: list
    finish: list
    hbm: list
    first: list
    count: list
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
        n = len(c.stream)
        self.rates = rates
        self.result = Schedule(*([0.0] * n for _ in range(5)), [-1] * n, [0] * n)
        # Attributes are the quickest thing to look up.
        vars(self).update(c._asdict())
        vars(self).update(self.result._asdict())
        # When a dependence of each kind is satisfied; -1 while not known.
        self.times = ([-1.0] * n, [-1.0] * n, [-1.0] * n)
        self.waiting: list = [None] * n
        self.order: list = [[] for _ in range(STREAMS)]
        for row, stream in enumerate(c.stream):
            self.order[stream].append(row)
        self.at = [0] * STREAMS
        self.scan = [-1] * STREAMS
        self.ready, self.cause = [0.0] * STREAMS, [-1] * STREAMS
        self.last_start, self.last_row = [0.0] * STREAMS, [-1] * STREAMS
        engines = len(ENGINES)
        self.shared = [False] * engines
        for stream in range(engines, STREAMS):
            self.shared[engine_of(stream)] |= bool(self.order[stream])
        self.free, self.holder = [0.0] * engines, [-1] * engines
        self.seen_until = [0.0] * engines
        self.rings, self.ring_holder = [0.0] * rates.dma_engines, [-1] * rates.dma_engines
        self.hbm_free, self.hbm_holder = 0.0, -1
        self.tensor_end, self.heat, self.warm = 0.0, 0.0, rates.cold_rate >= 1.0
        self.limited, self.semaphore = rates.cold_rate < 1.0, rates.semaphore_ns
        self.heap: list = []
        self.awake = [s for s in range(STREAMS) if self.order[s]]

    def run(self) -> None:
        """Process events until nothing is left."""
        heap, awake = self.heap, self.awake
        while True:
            while awake:
                self.advance(awake.pop())
            if not heap:
                return
            time, claim, row = heapq.heappop(heap)
            if claim:
                self.claim(row, time)
            else:
                self.transfer(row, time)

    def advance(self, stream: int) -> None:
        """Start the stream's instructions until one has to wait for another stream."""
        order, at = self.order[stream], self.at[stream]
        alone = stream < len(ENGINES) and not self.shared[stream]
        while at < len(order):
            row = order[at]
            if not self.satisfied(stream, row):
                break
            arrival = self.ready[stream]
            if self.last_start[stream] > arrival:
                arrival = self.last_start[stream]
            if not alone:
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
        """An instruction reaches an engine that several streams share."""
        stream = self.stream[row]
        if stream < len(ENGINES):
            self.begin(row, stream, time)
        else:
            self.trigger(row, stream, time)
        self.at[stream] += 1
        self.awake.append(stream)

    def begin(self, row: int, engine: int, arrival: float) -> None:
        """Run an engine instruction that is ready at `arrival`."""
        begin = arrival + self.background[row]
        if self.free[engine] > begin:
            begin = self.free[engine]
            self.since[row] = begin
            self.binding[row], self.reason[row] = self.holder[engine], ENGINE
        else:
            self.since[row] = arrival
            self.blame(row, engine, arrival)
        busy = self.busy[row]
        if engine == TENSOR and self.limited:
            busy = self.warmed(begin, busy)
        end = begin + busy
        self.free[engine], self.holder[engine] = end, row
        self.last_start[engine], self.last_row[engine] = begin, row
        visible = end + self.latency[row]
        if visible < self.seen_until[engine]:
            visible = self.seen_until[engine]
        self.seen_until[engine] = visible
        self.start[row], self.issue[row] = begin, begin
        self.end[row], self.visible[row] = end, visible
        self.scan[engine] = -1
        self.settle(row, visible, end)

    def warmed(self, begin: float, busy: float) -> float:
        """How long the Tensor Engine takes for `busy` ns of full-speed work, warming up by it."""
        window, rate = self.rates.warmup_ns, self.rates.cold_rate
        heat = self.heat - (begin - self.tensor_end)
        if self.warm and heat < window / 2:
            self.warm, heat = False, 0.0
        if not self.warm:
            heat = max(heat, 0.0)
            left = window - heat
            busy = min(busy / rate, left + (busy - left * rate))
        self.heat = min(heat + busy, window)
        self.warm = self.heat >= window
        self.tensor_end = begin + busy
        return busy

    def blame(self, row: int, stream: int, arrival: float) -> None:
        """Note what made the instruction ready only at `arrival`."""
        cause = self.cause[stream]
        if self.last_start[stream] > self.ready[stream]:
            self.binding[row], self.reason[row] = self.last_row[stream], ENGINE
        elif cause >= 0:
            producer = cause >> 2
            self.binding[row] = producer
            if self.stream[producer] >= len(ENGINES):
                self.reason[row] = DMA
            else:
                self.reason[row] = DATA if cause & 3 == OWN else SEMAPHORE

    def trigger(self, row: int, stream: int, arrival: float) -> None:
        """The issuing engine starts a DMA instruction that is ready at `arrival`."""
        engine, begin = engine_of(stream), arrival
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
        heapq.heappush(self.heap, (end + self.lead[row], 0, row))

    def transfer(self, row: int, arrival: float) -> None:
        """A DMA instruction reaches the rings and HBM."""
        first, count, move = self.first[row], self.count[row], self.move[row]
        rings, holders, total = self.rings, self.ring_holder, len(self.rings)
        earliest, latest, blocker = float("inf"), arrival, -1
        for k in range(first, first + count):
            ring = k % total
            begin = rings[ring]
            if begin <= arrival:
                begin = arrival
            elif begin > latest:
                latest, blocker = begin, holders[ring]
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
        seen, frees, own = self.times
        seen[row] = visible + self.semaphore
        frees[row] = freed + self.semaphore
        own[row] = visible
        waiting = self.waiting[row]
        if waiting is not None:
            self.awake += waiting
