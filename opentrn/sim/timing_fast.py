"""The schedule of `sim.timing` compiled by Numba: the same steps on arrays, equal bit by bit.

`sim.timing` is the specification and says what each step means; the functions here have the names
of its methods.  Numba is optional, so nothing imports this module unless it is installed.

A million instructions have few forms: what the clock is told of a form stands once in `rows`, and
an instruction names its row.  Of an instruction only its result is kept, in arrays of its own; when
dependences on it are satisfied follows from that.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from opentrn.sim.coded import Coded, coded
from opentrn.sim.timing import (
    CELLS,
    DATA,
    DMA,
    ENGINE,
    ENGINES,
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


# What the clock is told of one form (see `Columns`).
_ROW = _record(
    "busy latency background lead move finish hbm share", "stream first count cells queue"
)
# One stream, and of the first five of a core also the engine's state.  `waiters` is the first of
# the streams that wait for a row of this one, `wanted` the row that this one waits for.
_STREAM = _record(
    "ready last_start free seen_until reached",
    "begin size at scan cause last_row waiters wanted next_waiting home queue shared holder",
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


class _State(NamedTuple):
    """Everything the functions below share: what is given, what is found, what is in use."""

    rows: np.ndarray
    row: np.ndarray
    ports: np.ndarray
    setup: np.ndarray
    dep_start: np.ndarray
    dep: np.ndarray
    order: np.ndarray
    start: np.ndarray
    end: np.ndarray
    visible: np.ndarray
    issue: np.ndarray
    since: np.ndarray
    binding: np.ndarray
    reason: np.ndarray
    streams: np.ndarray
    units: np.ndarray
    cores: np.ndarray
    events: np.ndarray
    awake: np.ndarray


# Nothing is allocated inside, so references need no counting; that took most of the time.
_compiled = njit(cache=True, nogil=True, error_model="numpy", _nrt=False)
_inlined = njit(cache=True, nogil=True, error_model="numpy", _nrt=False, forceinline=True)


def schedule(columns: Columns | Coded, rates: Rates) -> Schedule:
    """As `timing.schedule`; the columns may be lists or NumPy arrays, the result is arrays."""
    given = columns if isinstance(columns, Coded) else coded(columns)
    rows = np.zeros(len(given.table.stream), _ROW)
    for name in _ROW.names[:-1]:
        rows[name] = getattr(given.table, name)
    rows["queue"] = rows["stream"] % STREAMS >= len(ENGINES)
    n = len(given.row)
    sizes = np.bincount(given.row, minlength=len(rows)) if n else np.zeros(len(rows), np.int64)
    streams = _fresh_streams(rows["stream"], sizes, rates.cores)
    queued = streams["queue"] > 0
    pushes = int(streams["size"][queued].sum()) + len(streams) + 1
    units, cores = _fresh_units(rates)
    times = [np.empty(n) for _ in range(5)]
    state = _State(
        rows, given.row, given.ports, given.setup, given.dep_start, given.dep,
        np.empty(n, np.int32), *times, np.empty(n, np.int32), np.empty(n, np.int8),
        streams, units, cores, np.zeros(pushes, _EVENT), np.zeros(2 * len(streams), np.int64),
    )  # fmt: skip
    _run(state, _fresh_whole(rates))
    return Schedule(*times, state.binding, state.reason)


def _fresh_streams(stream: np.ndarray, counts: np.ndarray, cores: int) -> np.ndarray:
    streams = np.zeros(STREAMS * cores, _STREAM)
    sizes = np.bincount(stream, weights=counts, minlength=len(streams)).astype(np.int64)
    streams["size"], streams["begin"] = sizes, np.cumsum(sizes) - sizes
    for name in ("scan", "cause", "last_row", "waiters", "wanted", "next_waiting", "holder"):
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
def _run(x, whole):
    w = whole[0]
    _prepare(x)
    for stream in range(len(x.streams)):
        if x.streams[stream].size > 0:
            _wake(x, w, stream)
    while True:
        while w.awake > 0:
            w.awake -= 1
            _advance(x, w, x.awake[w.awake])
        if w.events == 0:
            break
        time, key = x.events[0].time, x.events[0].key
        _pop(x.events, w)
        if key >= _CLAIM:
            _claim(x, w, key - _CLAIM, time)
        else:
            _transfer(x, w, key, time)
    _forget(x)


@_inlined
def _prepare(x):
    """The order of each stream; nothing has happened yet (a time of -1 is not known)."""
    streams = x.streams
    for i in range(len(x.row)):
        s = streams[x.rows[x.row[i]].stream]
        x.order[s.begin + s.at] = i
        s.at += 1
        x.visible[i] = x.issue[i] = -1.0
        x.since[i], x.binding[i], x.reason[i] = 0.0, -1, 0
    for stream in range(len(streams)):
        streams[stream].at = 0


@_inlined
def _forget(x):
    """What never ran has the time 0."""
    for i in range(len(x.row)):
        if x.visible[i] < 0.0:
            x.start[i] = x.end[i] = x.visible[i] = 0.0
            x.issue[i] = max(x.issue[i], 0.0)


@_inlined
def _wake(x, w, stream):
    x.awake[w.awake] = stream
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


@_inlined
def _before(time, key, event):
    return time < event.time or (time == event.time and key < event.key)


@_inlined
def _advance(x, w, stream):
    s = x.streams[stream]
    contested = s.queue == 1 or s.shared == 1
    while s.at < s.size:
        i = x.order[s.begin + s.at]
        if not _satisfied(x, w, s, stream, i):
            break
        arrival = max(s.ready, s.last_start)
        if contested or x.ports[i] > 0:
            _push(x.events, w, arrival, i + _CLAIM)
            break
        _begin(x, w, i, stream, arrival)
        s.at += 1


@_inlined
def _satisfied(x, w, s, stream, i):
    k, stop = s.scan, x.dep_start[i + 1]
    if k < 0:
        k, ready, cause = x.dep_start[i], 0.0, -1
    else:
        ready, cause = s.ready, s.cause
    while k < stop:
        code = x.dep[k]
        producer = code >> 2
        r = x.rows[x.row[producer]]
        time = _known(x, w, r, producer, code & 3)
        if time < 0.0:
            other = x.streams[r.stream]
            s.wanted, s.next_waiting, other.waiters = producer, other.waiters, stream
            break
        if time > ready:
            ready, cause = time, code
        k += 1
    s.scan, s.ready, s.cause = k, ready, cause
    return k == stop


@_inlined
def _known(x, w, r, producer, kind):
    """When a dependence is satisfied (`Run.times`)."""
    if kind == ISSUED:
        known = r.queue == 1 and x.issue[producer] >= 0.0
        return x.issue[producer] + r.busy if known else -1.0
    visible = x.visible[producer]
    if visible < 0.0:
        return visible
    if kind == FREED and r.queue == 0:
        return x.end[producer] + w.semaphore_ns
    return visible + w.semaphore_ns


@_inlined
def _claim(x, w, i, time):
    r = x.rows[x.row[i]]
    stream = r.stream
    s = x.streams[stream]
    if s.queue == 1:
        _trigger(x, w, i, r, s, time)
    else:
        free = s.free + x.setup[i]
        if x.ports[i] > 0 and free > time:
            _push(x.events, w, free, i + _CLAIM)
            return
        _begin(x, w, i, stream, max(s.ready, s.last_start))
    s.at += 1
    _wake(x, w, stream)


@_inlined
def _begin(x, w, i, engine, arrival):
    r, s, core = x.rows[x.row[i]], x.streams[engine], x.cores[engine // STREAMS]
    begin, setup = arrival + r.background, x.setup[i]
    if r.cells > 0:
        begin = _beside(x, w, i, r, s, core, arrival, begin)
    elif s.free + setup > begin:
        begin = s.free + setup
        x.since[i], x.binding[i] = s.free, s.holder
        x.reason[i] = ENGINE if s.holder >= 0 else NOTHING
    else:
        x.since[i] = arrival
        _blame(x, s, i)
    if x.ports[i] > 0:
        begin = _through_ports(x, i, core, begin)
    if engine % STREAMS == TENSOR and w.cold_rate < 1.0 and r.share > 0.0:
        end = _limited_end(core, w, begin, r.busy, r.share)
    else:
        end = begin + r.busy
    if end > s.free:
        s.free, s.holder = end, i
    s.last_start, s.last_row = begin, i
    if x.ports[i] > 0 or r.cells > 0:
        _occupy(x, i, r, core, end)
    visible = max(end + r.latency, s.seen_until)
    s.seen_until = visible
    x.start[i], x.end[i], x.visible[i], x.issue[i] = begin, end, visible, begin
    s.scan = -1
    if s.waiters >= 0:
        _wake_waiting(x, w, s, i)


@_inlined
def _beside(x, w, i, r, s, core, arrival, begin):
    free = 0.0
    if s.last_row >= 0:
        free = s.last_start + w.issue_ns
    for k in range(CELLS * CELLS):
        if r.cells >> k & 1 and x.units[core.cells + k].free > free:
            free = x.units[core.cells + k].free
    if free > begin:
        begin = free
        x.since[i], x.binding[i], x.reason[i] = begin, s.last_row, ENGINE
    else:
        x.since[i] = arrival
        _blame(x, s, i)
    return begin


@_inlined
def _through_ports(x, i, core, begin):
    latest, blocker = begin, -1
    for k in range(PORTS):
        unit = x.units[core.ports + k]
        if x.ports[i] >> k & 1 and unit.free > latest:
            latest, blocker = unit.free, unit.holder
    if blocker >= 0:
        x.since[i], x.binding[i], x.reason[i] = latest, blocker, PORT
    return latest


@_inlined
def _occupy(x, i, r, core, end):
    """Ports and cells are in use until `end`."""
    units = x.units
    for k in range(PORTS):
        if x.ports[i] >> k & 1:
            units[core.ports + k].free, units[core.ports + k].holder = end, i
    if r.cells > 0:
        for k in range(CELLS * CELLS):
            if r.cells >> k & 1:
                units[core.cells + k].free = end


@_inlined
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


@_inlined
def _blame(x, s, i):
    if s.last_start > s.ready:
        x.binding[i], x.reason[i] = s.last_row, ENGINE
    elif s.cause >= 0:
        producer = s.cause >> 2
        x.binding[i] = producer
        if s.cause & 3 == ISSUED:
            x.reason[i] = ENGINE
        elif x.rows[x.row[producer]].queue == 1:
            x.reason[i] = DMA
        else:
            x.reason[i] = DATA if s.cause & 3 == OWN else SEMAPHORE


@_inlined
def _trigger(x, w, i, r, s, arrival):
    e = x.streams[s.home]
    begin = arrival
    if e.free > begin:
        begin = e.free
        x.binding[i], x.reason[i] = e.holder, ENGINE
    else:
        _blame(x, s, i)
    x.issue[i] = x.since[i] = begin
    end = begin + r.busy
    e.free, e.holder = end, i
    s.last_start, s.last_row = begin, i
    s.scan = -1
    _wake_waiting(x, w, s, i)
    s.reached = max(s.reached, end + r.lead)
    _push(x.events, w, s.reached, i)


@_inlined
def _transfer(x, w, i, arrival):
    r = x.rows[x.row[i]]
    base = x.cores[r.stream // STREAMS].rings
    earliest, latest, blocker = np.inf, arrival, -1
    for k in range(r.count):
        ring, due = x.units[base + (r.first + k) % w.dma_engines], arrival + k * w.stagger_ns
        begin, holder = ring.free, ring.holder
        if begin <= due:
            begin, holder = due, -1
        if begin > latest:
            latest, blocker = begin, holder
        if begin < earliest:
            earliest = begin
        ring.free, ring.holder = begin + r.move, i
    end = latest + r.move
    if blocker >= 0:
        x.since[i], x.binding[i], x.reason[i] = latest, blocker, QUEUE
    end = _through_hbm(x, w, r, i, arrival, end)
    x.start[i], x.end[i], x.visible[i] = earliest, end, end + r.finish
    _wake_waiting(x, w, x.streams[r.stream], i)


@_inlined
def _through_hbm(x, w, r, i, arrival, end):
    if r.hbm == 0.0:
        return end
    begin = w.hbm if w.hbm > arrival else arrival
    done = begin + r.hbm
    if done > end:
        end = done
        if begin > arrival:
            x.since[i], x.binding[i], x.reason[i] = begin, w.hbm_holder, HBM
    w.hbm, w.hbm_holder = done, i
    return end


@_inlined
def _wake_waiting(x, w, s, i):
    """Wake the streams that wait for this row of stream `s`; those of its other rows stay."""
    stream, kept = s.waiters, -1
    while stream >= 0:
        waiting = x.streams[stream]
        following = waiting.next_waiting
        if waiting.wanted == i:
            _wake(x, w, stream)
        else:
            waiting.next_waiting, kept = kept, stream
        stream = following
    s.waiters = kept


__all__ = ["schedule"]
