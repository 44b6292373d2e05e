"""The schedule of `sim.timing` compiled by Numba: the same steps on arrays, equal bit by bit.

`sim.timing` is the specification and says what each step means; the functions here have the names
of its methods.  Numba is optional, so nothing imports this module unless it is installed.  State is
kept in a few arrays of records, handed on together as `state`: rows, dep, order, streams, units
(rings, ports and cells), cores, events, awake.
"""

import numpy as np
from numba import njit

from opentrn.sim.timing import (
    CELLS,
    DATA,
    DMA,
    ENGINE,
    FREED,
    HBM,
    ISSUED,
    NOTHING,
    OWN,
    PORT,
    PORTS,
    QUEUE,
    SEMAPHORE,
    STREAMS,
    TENSOR,
    Columns,
    Rates,
    Schedule,
    engine_of,
    is_queue,
)

_CLAIM = 1 << 40  # set in an event's key when it is a claim on an engine or port, not on the rings


def _record(floats: str, ints: str) -> np.dtype:
    names = [(name, np.float64) for name in floats.split()]
    return np.dtype(names + [(name, np.int64) for name in ints.split()])


# One instruction: its column values, what `Schedule` reports, when each kind of dependence on it is
# satisfied (-1: unknown), and the first stream that waits for it.
_ROW = _record(
    "busy latency background setup lead move finish hbm share "
    "start end visible issue since seen freed issued",
    "stream first count ports cells priority dep_start dep_stop binding reason waiting",
)
# One stream, and of the first five of a core also the engine's state.
_STREAM = _record(
    "ready last_start free seen_until",
    "begin size at scan cause last_row next_waiting home queue shared holder",
)
_UNIT = _record("free", "holder")
# One core: its Tensor Engine's window, and where its units begin.
_CORE = _record("work", "window warm rings ports cells")
_EVENT = _record("time", "key")
# What there is one of: HBM, rates, and how full the two lists are.
_WHOLE = _record(
    "hbm semaphore_ns window_ns warm_share cold_rate issue_ns stagger_ns",
    "dma_engines hbm_holder events awake",
)

_compiled = njit(cache=True, nogil=True)


def schedule(columns: Columns, rates: Rates) -> Schedule:
    """As `timing.schedule`; the columns may be lists or NumPy arrays, the result is arrays."""
    rows = np.zeros(len(columns.stream), _ROW)
    for name, column in zip(Columns._fields, columns, strict=True):
        if name not in ("dep_start", "dep"):
            rows[name] = column
    starts = np.asarray(columns.dep_start, np.int64)
    rows["dep_start"], rows["dep_stop"] = starts[:-1], starts[1:]
    for name in ("seen", "freed", "issued", "binding", "waiting"):
        rows[name] = -1
    dep = np.asarray(columns.dep, np.int64)
    streams = _fresh_streams(rows["stream"], rates.cores)
    queued = streams["queue"] > 0
    pushes = int(streams["size"][queued].sum()) + len(streams) + 1
    order = np.argsort(rows["stream"], kind="stable")
    awake = np.zeros(2 * len(streams), np.int64)
    units, cores = _fresh_units(rates)
    state = (rows, dep, order, streams, units, cores, np.zeros(pushes, _EVENT), awake)
    _run(state, _fresh_whole(rates))
    return Schedule(*(rows[name].copy() for name in Schedule._fields))


def _fresh_streams(stream: np.ndarray, cores: int) -> np.ndarray:
    streams = np.zeros(STREAMS * cores, _STREAM)
    sizes = np.bincount(stream, minlength=len(streams))
    streams["size"], streams["begin"] = sizes, np.cumsum(sizes) - sizes
    for name in ("scan", "cause", "last_row", "next_waiting", "holder"):
        streams[name] = -1
    for number in range(len(streams)):
        home = number - number % STREAMS + engine_of(number)
        streams["home"][number], streams["queue"][number] = home, is_queue(number)
        streams["shared"][home] |= is_queue(number) and sizes[number] > 0
    return streams


def _fresh_units(rates: Rates) -> tuple[np.ndarray, np.ndarray]:
    """Everything that is free or held: rings, ports, cells (in this order), and core states."""
    cores = np.zeros(rates.cores, _CORE)
    units = np.zeros(rates.cores * (rates.dma_engines + PORTS + CELLS * CELLS), _UNIT)
    units["holder"] = -1
    cores["rings"] = np.arange(rates.cores) * rates.dma_engines
    cores["ports"] = rates.cores * rates.dma_engines + np.arange(rates.cores) * PORTS
    cells = rates.cores * (rates.dma_engines + PORTS)
    cores["cells"] = cells + np.arange(rates.cores) * (CELLS * CELLS)
    return units, cores


def _fresh_whole(rates: Rates) -> np.ndarray:
    whole = np.zeros(1, _WHOLE)
    for name in ("semaphore_ns", "window_ns", "warm_share", "cold_rate", "issue_ns", "stagger_ns"):
        whole[name] = getattr(rates, name)
    whole["dma_engines"], whole["hbm_holder"] = rates.dma_engines, -1
    return whole


@_compiled
def _run(state, whole):
    w, streams, events, awake = whole[0], state[3], state[6], state[7]
    for stream in range(len(streams)):
        if streams[stream].size > 0:
            _wake(awake, w, stream)
    while True:
        while w.awake > 0:
            w.awake -= 1
            _advance(state, w, awake[w.awake])
        if w.events == 0:
            return
        time, key = events[0].time, events[0].key
        _pop(events, w)
        if key >= _CLAIM:
            _claim(state, w, key - _CLAIM, time)
        else:
            _transfer(state, w, key, time)


@_compiled
def _wake(awake, w, stream):
    awake[w.awake] = stream
    w.awake += 1


@_compiled
def _push(events, w, time, key):
    """Put an event into the binary heap ordered by (time, key)."""
    k = w.events
    w.events = k + 1
    while k > 0:
        above = (k - 1) >> 1
        if not _before(time, key, events[above]):
            break
        events[k].time, events[k].key = events[above].time, events[above].key
        k = above
    events[k].time, events[k].key = time, key


@_compiled
def _pop(events, w):
    """Remove the first event of the heap."""
    n = w.events - 1
    w.events = n
    time, key = events[n].time, events[n].key
    k = 0
    while True:
        child = 2 * k + 1
        if child >= n:
            break
        other = child + 1
        if other < n and _before(events[other].time, events[other].key, events[child]):
            child = other
        if _before(time, key, events[child]):
            break
        events[k].time, events[k].key = events[child].time, events[child].key
        k = child
    events[k].time, events[k].key = time, key


@_compiled
def _before(time, key, event):
    return time < event.time or (time == event.time and key < event.key)


@_compiled
def _advance(state, w, stream):
    rows, dep, order, streams, events = state[0], state[1], state[2], state[3], state[6]
    s = streams[stream]
    contested = s.queue == 1 or s.shared == 1
    while s.at < s.size:
        row = order[s.begin + s.at]
        if not _satisfied(dep, rows, s, stream, rows[row]):
            break
        arrival = max(s.ready, s.last_start)
        if contested or rows[row].ports > 0:
            _push(events, w, arrival, row + _CLAIM)
            break
        _begin(state, w, row, stream, arrival)
        s.at += 1


@_compiled
def _satisfied(dep, rows, s, stream, r):
    k = s.scan
    if k < 0:
        k, ready, cause = r.dep_start, 0.0, -1
    else:
        ready, cause = s.ready, s.cause
    while k < r.dep_stop:
        code = dep[k]
        producer = rows[code >> 2]
        time = _known(producer, code & 3)
        if time < 0.0:
            s.next_waiting = producer.waiting
            producer.waiting = stream
            break
        if time > ready:
            ready, cause = time, code
        k += 1
    s.scan, s.ready, s.cause = k, ready, cause
    return k == r.dep_stop


@_compiled
def _known(producer, kind):
    if kind == ISSUED:
        return producer.issued
    return producer.freed if kind == FREED else producer.seen


@_compiled
def _claim(state, w, row, time):
    rows, streams, events, awake = state[0], state[3], state[6], state[7]
    stream = rows[row].stream
    s = streams[stream]
    if s.queue == 1:
        _trigger(state, w, row, stream, time)
    else:
        free = s.free + rows[row].setup
        if rows[row].ports > 0 and free > time:
            _push(events, w, free, row + _CLAIM)
            return
        _begin(state, w, row, stream, max(s.ready, s.last_start))
    s.at += 1
    _wake(awake, w, stream)


@_compiled
def _begin(state, w, row, engine, arrival):
    rows, streams = state[0], state[3]
    r, s, core = rows[row], streams[engine], state[5][engine // STREAMS]
    begin = arrival + r.background
    if r.cells > 0:
        begin = _beside(state, w, row, engine, arrival, begin)
    elif s.free + r.setup > begin:
        begin = s.free + r.setup
        r.since, r.binding, r.reason = s.free, s.holder, ENGINE if s.holder >= 0 else NOTHING
    else:
        r.since = arrival
        _blame(rows, streams, s, r)
    if r.ports > 0:
        begin = _through_ports(state, r, core, begin)
    if engine % STREAMS == TENSOR and w.cold_rate < 1.0 and r.share > 0.0:
        end = _limited_end(core, w, begin, r.busy, r.share)
    else:
        end = begin + r.busy
    _occupy(state[4], row, r, s, core, begin, end)
    visible = end + r.latency
    if visible < s.seen_until:
        visible = s.seen_until
    s.seen_until = visible
    r.start, r.end, r.visible, r.issue = begin, end, visible, begin
    s.scan = -1
    _settle(state, w, r, visible, end)


@_compiled
def _beside(state, w, row, engine, arrival, begin):
    rows, streams, units, core = state[0], state[3], state[4], state[5][engine // STREAMS]
    r, s, free = rows[row], streams[engine], 0.0
    if s.last_row >= 0:
        free = s.last_start + w.issue_ns
    for k in range(CELLS * CELLS):
        if r.cells >> k & 1 and units[core.cells + k].free > free:
            free = units[core.cells + k].free
    if free > begin:
        begin = free
        r.since, r.binding, r.reason = begin, s.last_row, ENGINE
    else:
        r.since = arrival
        _blame(rows, streams, s, r)
    return begin


@_compiled
def _through_ports(state, r, core, begin):
    units, latest, blocker = state[4], begin, -1
    for k in range(PORTS):
        unit = units[core.ports + k]
        if r.ports >> k & 1 and unit.free > latest:
            latest, blocker = unit.free, unit.holder
    if blocker >= 0:
        r.since, r.binding, r.reason = latest, blocker, PORT
    return latest


@_compiled
def _occupy(units, row, r, s, core, begin, end):
    if end > s.free:
        s.free, s.holder = end, row
    s.last_start, s.last_row = begin, row
    for k in range(PORTS):
        if r.ports >> k & 1:
            units[core.ports + k].free, units[core.ports + k].holder = end, row
    if r.cells > 0:
        for k in range(CELLS * CELLS):
            if r.cells >> k & 1:
                units[core.cells + k].free = end


@_compiled
def _limited_end(core, w, begin, left, share):
    window, need = w.window_ns, w.warm_share * w.window_ns
    number = int(begin / window)
    if number > core.window:
        idle = number > core.window + 1
        core.warm = 1 if core.work >= need and not idle else 0
        core.window, core.work = number, 0.0
    now = begin
    while True:
        rate = 1.0 if core.warm == 1 else w.cold_rate
        stop = (core.window + 1) * window
        room = (stop - now) * rate
        if left <= room:
            core.work += left * share
            return now + left / rate
        if room > 0.0:
            core.work += room * share
            left -= room
            now = stop
        core.warm = 1 if core.work >= need else 0
        core.window, core.work = core.window + 1, 0.0


@_compiled
def _blame(rows, streams, s, r):
    if s.last_start > s.ready:
        r.binding, r.reason = s.last_row, ENGINE
    elif s.cause >= 0:
        r.binding = s.cause >> 2
        if s.cause & 3 == ISSUED:
            r.reason = ENGINE
        elif streams[rows[s.cause >> 2].stream].queue == 1:
            r.reason = DMA
        else:
            r.reason = DATA if s.cause & 3 == OWN else SEMAPHORE


@_compiled
def _trigger(state, w, row, stream, arrival):
    rows, streams = state[0], state[3]
    r, s = rows[row], streams[stream]
    e = streams[s.home]
    begin = arrival
    if e.free > begin:
        begin = e.free
        r.binding, r.reason = e.holder, ENGINE
    else:
        _blame(rows, streams, s, r)
    r.issue, r.since = begin, begin
    end = begin + r.busy
    e.free, e.holder = end, row
    s.last_start, s.last_row = begin, row
    s.scan = -1
    r.issued = end
    _wake_waiting(state, w, r)
    _push(state[6], w, end + r.lead, row)


@_compiled
def _transfer(state, w, row, arrival):
    r, units = state[0][row], state[4]
    base = state[5][r.stream // STREAMS].rings
    earliest, latest, blocker = np.inf, arrival, -1
    for k in range(r.count):
        ring, due = units[base + (r.first + k) % w.dma_engines], arrival + k * w.stagger_ns
        begin, holder = ring.free, ring.holder
        if begin <= due:
            begin, holder = due, -1
        if begin > latest:
            latest, blocker = begin, holder
        if begin < earliest:
            earliest = begin
        ring.free, ring.holder = begin + r.move, row
    end = latest + r.move
    if blocker >= 0:
        r.since, r.binding, r.reason = latest, blocker, QUEUE
    end = _through_hbm(w, r, row, arrival, end)
    visible = end + r.finish
    r.start, r.end, r.visible = earliest, end, visible
    _settle(state, w, r, visible, visible)


@_compiled
def _through_hbm(w, r, row, arrival, end):
    if r.hbm == 0.0:
        return end
    begin = w.hbm if w.hbm > arrival else arrival
    done = begin + r.hbm
    if done > end:
        end = done
        if begin > arrival:
            r.since, r.binding, r.reason = begin, w.hbm_holder, HBM
    w.hbm, w.hbm_holder = done, row
    return end


@_compiled
def _settle(state, w, r, visible, freed):
    r.seen, r.freed = visible + w.semaphore_ns, freed + w.semaphore_ns
    _wake_waiting(state, w, r)


@_compiled
def _wake_waiting(state, w, r):
    streams, awake = state[3], state[7]
    stream = r.waiting
    r.waiting = -1
    while stream >= 0:
        _wake(awake, w, stream)
        stream = streams[stream].next_waiting
