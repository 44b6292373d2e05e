"""The schedule of `sim.timing` compiled by Numba: the same steps on arrays, equal bit by bit.

`sim.timing` is the specification and says what each step means; the functions here have the names
of its methods.  Numba is optional, so nothing imports this module unless it is installed.  State is
kept in a few arrays of records, because each array handed to a compiled function costs time.
"""

import numpy as np
from numba import njit

from opentrn.sim.timing import (
    DATA,
    DMA,
    ENGINE,
    ENGINES,
    FREED,
    HBM,
    OWN,
    QUEUE,
    QUEUES,
    SEEN,
    SEMAPHORE,
    STREAMS,
    TENSOR,
    Columns,
    Rates,
    Schedule,
)

_ENGINES, _QUEUES = len(ENGINES), len(QUEUES)
_CLAIM = 1 << 40  # set in an event's key when it is a claim on an engine, not on the rings


def _record(floats: str, ints: str) -> np.dtype:
    names = [(name, np.float64) for name in floats.split()]
    return np.dtype(names + [(name, np.int64) for name in ints.split()])


# One instruction: its column values, what `Schedule` reports, when each kind of dependence on it is
# satisfied (-1: unknown), and the first stream that waits for it.
_ROW = _record(
    "busy latency background lead move finish hbm "
    "start end visible issue since seen freed own",
    "stream first count dep_start dep_stop binding reason waiting",
)
_STREAM = _record("ready last_start", "begin size at scan cause last_row next_waiting")
_ENGINE = _record("free seen_until", "holder shared")
_RING = _record("free", "holder")
_EVENT = _record("time", "key")
# What there is one of: HBM, the Tensor Engine's warmth, rates, and how full the two lists are.
_WHOLE = _record(
    "hbm tensor_end heat semaphore_ns warmup_ns cold_rate", "warm hbm_holder events awake"
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
    for name in ("seen", "freed", "own", "binding", "waiting"):
        rows[name] = -1
    dep = np.asarray(columns.dep, np.int64)
    streams, engines = _fresh_streams(rows["stream"])
    rings = np.zeros(int(rates.dma_engines), _RING)
    rings["holder"] = -1
    transfers = int(streams["size"][_ENGINES:].sum())
    order = np.argsort(rows["stream"], kind="stable")
    awake = np.zeros(2 * STREAMS, np.int64)
    whole = _fresh_whole(rates)
    _run(dep, rows, order, streams, engines, rings, _events(transfers), awake, whole)
    return Schedule(*(rows[name].copy() for name in Schedule._fields))


def _events(transfers: int) -> np.ndarray:
    return np.zeros(transfers + STREAMS + 1, _EVENT)


def _fresh_streams(stream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    streams, engines = np.zeros(STREAMS, _STREAM), np.zeros(_ENGINES, _ENGINE)
    sizes = np.bincount(stream, minlength=STREAMS)
    streams["size"], streams["begin"] = sizes, np.cumsum(sizes) - sizes
    for name in ("scan", "cause", "last_row", "next_waiting"):
        streams[name] = -1
    engines["holder"] = -1
    for number in range(_ENGINES, STREAMS):
        engines["shared"][(number - _ENGINES) // _QUEUES] |= sizes[number] > 0
    return streams, engines


def _fresh_whole(rates: Rates) -> np.ndarray:
    whole = np.zeros(1, _WHOLE)
    for name in ("semaphore_ns", "warmup_ns", "cold_rate"):
        whole[name] = getattr(rates, name)
    whole["warm"], whole["hbm_holder"] = rates.cold_rate >= 1.0, -1
    return whole


@_compiled
def _run(dep, rows, order, streams, engines, rings, events, awake, whole):
    w = whole[0]
    for stream in range(STREAMS):
        if streams[stream].size > 0:
            _wake(awake, w, stream)
    while True:
        while w.awake > 0:
            w.awake -= 1
            _advance(dep, rows, order, streams, engines, events, awake, w, awake[w.awake])
        if w.events == 0:
            return
        time, key = events[0].time, events[0].key
        _pop(events, w)
        if key >= _CLAIM:
            _claim(rows, streams, engines, events, awake, w, key - _CLAIM, time)
        else:
            _transfer(rows, streams, rings, awake, w, key, time)


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
def _advance(dep, rows, order, streams, engines, events, awake, w, stream):
    s = streams[stream]
    alone = stream < _ENGINES and engines[stream].shared == 0
    while s.at < s.size:
        row = order[s.begin + s.at]
        if not _satisfied(dep, rows, s, stream, rows[row]):
            break
        arrival = max(s.ready, s.last_start)
        if not alone:
            _push(events, w, arrival, row + _CLAIM)
            break
        _begin(rows, streams, engines, awake, w, row, stream, arrival)
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
        time = _time_of(producer, code & 3)
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
def _time_of(producer, kind):
    if kind == SEEN:
        return producer.seen
    return producer.freed if kind == FREED else producer.own


@_compiled
def _claim(rows, streams, engines, events, awake, w, row, time):
    stream = rows[row].stream
    if stream < _ENGINES:
        _begin(rows, streams, engines, awake, w, row, stream, time)
    else:
        _issue(rows, streams, engines, events, w, row, stream, time)
    streams[stream].at += 1
    _wake(awake, w, stream)


@_compiled
def _begin(rows, streams, engines, awake, w, row, stream, arrival):
    r, s, e = rows[row], streams[stream], engines[stream]
    begin = arrival + r.background
    if e.free > begin:
        begin = e.free
        r.since, r.binding, r.reason = begin, e.holder, ENGINE
    else:
        r.since = arrival
        _blame(rows, s, r)
    busy = r.busy
    if stream == TENSOR and w.cold_rate < 1.0:
        busy = _warmed(w, begin, busy)
    end = begin + busy
    e.free, e.holder = end, row
    s.last_start, s.last_row = begin, row
    visible = end + r.latency
    if visible < e.seen_until:
        visible = e.seen_until
    e.seen_until = visible
    r.start, r.end, r.visible, r.issue = begin, end, visible, begin
    s.scan = -1
    _settle(streams, awake, w, r, visible, end)


@_compiled
def _warmed(w, begin, busy):
    window, rate = w.warmup_ns, w.cold_rate
    heat = w.heat - (begin - w.tensor_end)
    if w.warm == 1 and heat < window / 2:
        w.warm, heat = 0, 0.0
    if w.warm == 0:
        heat = max(heat, 0.0)
        left = window - heat
        busy = min(busy / rate, left + (busy - left * rate))
    w.heat = min(heat + busy, window)
    w.warm = 1 if w.heat >= window else 0
    w.tensor_end = begin + busy
    return busy


@_compiled
def _blame(rows, s, r):
    if s.last_start > s.ready:
        r.binding, r.reason = s.last_row, ENGINE
    elif s.cause >= 0:
        r.binding = s.cause >> 2
        if rows[s.cause >> 2].stream >= _ENGINES:
            r.reason = DMA
        else:
            r.reason = DATA if s.cause & 3 == OWN else SEMAPHORE


@_compiled
def _issue(rows, streams, engines, events, w, row, stream, arrival):
    r, s, e = rows[row], streams[stream], engines[(stream - _ENGINES) // _QUEUES]
    begin = arrival
    if e.free > begin:
        begin = e.free
        r.binding, r.reason = e.holder, ENGINE
    else:
        _blame(rows, s, r)
    r.issue, r.since = begin, begin
    end = begin + r.busy
    e.free, e.holder = end, row
    s.last_start, s.last_row = begin, row
    s.scan = -1
    _push(events, w, end + r.lead, row)


@_compiled
def _transfer(rows, streams, rings, awake, w, row, arrival):
    r, total = rows[row], len(rings)
    earliest, latest, blocker = np.inf, arrival, -1
    for k in range(r.first, r.first + r.count):
        ring = rings[k % total]
        begin = ring.free
        if begin <= arrival:
            begin = arrival
        elif begin > latest:
            latest, blocker = begin, ring.holder
        if begin < earliest:
            earliest = begin
        ring.free, ring.holder = begin + r.move, row
    end = latest + r.move
    if blocker >= 0:
        r.since, r.binding, r.reason = latest, blocker, QUEUE
    end = _through_hbm(w, r, row, arrival, end)
    visible = end + r.finish
    r.start, r.end, r.visible = earliest, end, visible
    _settle(streams, awake, w, r, visible, visible)


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
def _settle(streams, awake, w, r, visible, freed):
    r.seen, r.freed, r.own = visible + w.semaphore_ns, freed + w.semaphore_ns, visible
    stream = r.waiting
    while stream >= 0:
        _wake(awake, w, stream)
        stream = streams[stream].next_waiting
