"""The search for waits of `sim.depend` in a straight-line program, compiled by Numba.

`sim.depend` is the specification; the waits found here are its waits, one by one.  Whether an
access meets another follows from their regions, so it is found beforehand (`sim.regions_fast`) and
the search only follows numbers.  Numba is optional: nothing imports this unless it is installed.

Records are those of `sim.overlaps`: of each region the last write, the last read of each engine,
and the reads of DMAs; these, and what a tile inherits, are `nodes` of lists.  `state` is handed on
together: stream, regions, buffers, meets, replaces, givers, nodes, edges, counts.
"""

import numpy as np
from numba import njit

from opentrn.isa import Program
from opentrn.sim.accesses import Accesses
from opentrn.sim.apart import all_apart
from opentrn.sim.beside import QUADRANTS
from opentrn.sim.depend import Finder
from opentrn.sim.place import Placement
from opentrn.sim.place_fast import TabledPlacement
from opentrn.sim.regions_fast import Regions, regions_of
from opentrn.sim.rows import PSUM_PORT
from opentrn.sim.tape import Flow, Part
from opentrn.sim.timing import ENGINES, FREED, OWN, SEEN

_N = len(ENGINES)
_UNCHANGING, _APART = -1, -2  # instead of a region: nobody waits there
_LISTS, _GIVERS = 1, 2  # what is too short in `_taken`
_NODES, _EDGES, _SPILT = range(3)  # what `counts` counts: nodes, edges, whether they did not fit

# Nothing is allocated inside, so references need no counting; that took most of the time.
_compiled = njit(cache=True, nogil=True, error_model="numpy", _nrt=False)
_inlined = njit(cache=True, nogil=True, error_model="numpy", _nrt=False, forceinline=True)


def _record(names: str) -> list:
    return [(name, np.int32) for name in names.split()]


_REGION = np.dtype(
    _record("buffer begin end whole write waited dmas")
    + [("read", np.int32, (_N,)), ("read_waited", np.int32, (_N,))]
)
# `givers` to `givers_end` are the tiles whose bytes it takes over; heads of two lists of nodes.
_BUFFER = np.dtype(_record("begin end givers givers_end opened writes reads"))
_NODE = np.dtype(_record("number stream waited next"))


def dependencies(program: Program, placement: Placement, chip, table: Accesses) -> Flow | None:
    """As `depend.dependencies`; None for what only that one knows.

    That is: tiles with explicit addresses, meetings of cores, constants that are written, buffers
    with too many regions.
    """
    finder = Finder(program, placement, chip, ())
    plans = [finder.plan(form) for form in table.forms]
    if table.fixed or any(row.meets for row in finder.rows):
        return None
    regions = regions_of(table, _codes(finder, table))
    if regions is None:
        return None
    stream = np.array([plan.stream for plan in plans], np.int8)[table.form]
    places = _places(placement, table)
    found = _searched(stream, table, regions, places)
    if found is None:
        return None
    banks = np.array([plan.banks for plan in plans], bool)
    n, at = len(stream), np.flatnonzero(banks[table.form]) if banks.any() else np.zeros(0, np.int64)
    part = Part(0, program.body, np.arange(n, dtype=np.int32), table.form, *found, at,
                _banks(finder, table, places[0], at))  # fmt: skip
    return Flow([part], finder.rows, ())


def _codes(finder: Finder, table: Accesses) -> np.ndarray:
    """Which buffers nobody waits for: `_UNCHANGING` ones, and tensors in HBM of which no two
    accesses share a byte (`_APART`, see `sim.apart`).  The others have 0.
    """
    codes = np.zeros(len(table.buffers), np.int64)
    in_hbm = ~table.on_chip()
    tiles_too = any(buffer.on_chip for buffer in finder.unchanging)
    for n in range(len(in_hbm)) if tiles_too else np.flatnonzero(in_hbm).tolist():
        if table.buffers[n] in finder.unchanging:
            codes[n] = _UNCHANGING
    some = np.flatnonzero((in_hbm & (codes == 0))[table.buffer])
    some = some[np.argsort(table.buffer[some], kind="stable")]
    for own in np.split(some, 1 + np.flatnonzero(np.diff(table.buffer[some]))):
        if len(own) and all_apart(table.views, own):
            codes[table.buffer[own[0]]] = _APART
    return codes


def _banks(finder: Finder, table: Accesses, address: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The banks that the instructions `at` use; `address` of each buffer."""
    bits = np.zeros(len(at), np.int64)
    if not len(at):
        return bits
    psum = table.of_sort(lambda x: x.space == "psum")
    several = psum & (table.of_sort(lambda x: x.partition_bytes) > finder.placement.bank)
    # Where a tile lies in one bank, so do all its views.
    one = (PSUM_PORT << np.where(psum, address, 0) // finder.placement.bank) * psum
    begin, end = table.start[at], table.start[at + 1]
    for k in range(int((end - begin).max())):
        some = np.flatnonzero(begin + k < end)
        access = begin[some] + k
        bits[some] |= one[table.buffer[access]]
        rest = np.flatnonzero(several[table.buffer[access]])
        # What looks in one way at tiles of one sort and place lies in the same banks.
        look = table.way[access[rest]] + (address[table.buffer[access[rest]]] << 32)
        _, first, which = np.unique(look, return_index=True, return_inverse=True)
        found = [finder.banks_of((table.views[n],)) for n in access[rest[first]].tolist()]
        bits[some[rest]] |= np.array(found, np.int64)[which]
    return bits


def _places(placement: Placement, table: Accesses) -> np.ndarray:
    """Of each buffer its address and end, and the first and end of the lists of owners (of one
    memory and lane) that its bytes are in: none for HBM.
    """
    base = QUADRANTS * table.of_sort(lambda x: x.space == "psum")
    if isinstance(placement, TabledPlacement) and placement.table is table:
        address = np.maximum(placement.address, 0)
        return np.array([address, address + placement.nbytes, base, base + table.on_chip()])
    places = np.zeros((4, len(table.buffers)), np.int64)
    for number, buffer in enumerate(table.buffers):
        slot = placement.slots.get(buffer)
        if slot is not None:
            lanes = placement.lanes(buffer) if placement.apart else range(1)
            places[:, number] = (slot.address, slot.address + slot.nbytes,
                                 base[number] + lanes.start, base[number] + lanes.stop)  # fmt: skip
    return places


# ---------------------------------------------------------------------- tables


def _searched(stream: np.ndarray, table: Accesses, regions: Regions, places: np.ndarray):
    """Number of waits of each instruction, and the waits (see `tape.Part`).

    None where something is written that does not change.
    """
    size = len(stream) // 2 + 8 * len(regions.buffers) + 64
    while True:
        counts = np.zeros(3, np.int64)
        state = (stream, *_tables(regions, places), np.empty(size, _NODE),
                 np.empty(4 * size, np.int64), counts)  # fmt: skip
        edges = np.empty(len(stream), np.int32)
        if not _run(state, table.start, regions.of_access, table.writes, edges):
            return None
        if not counts[_SPILT]:
            return edges, state[7][: counts[_EDGES]].copy()
        size *= 4


def _tables(regions: Regions, places: np.ndarray) -> tuple:
    """Regions, buffers, meets, replaces and givers as the search begins."""
    own = np.empty(len(regions.buffer), _REGION)
    _forgotten(own, regions.buffer, regions.whole, regions.low, regions.high)
    buffers = np.zeros(len(regions.buffers), _BUFFER)
    buffers["begin"], buffers["end"] = regions.begin[:-1], regions.begin[1:]
    buffers["writes"] = buffers["reads"] = -1
    begins, givers = _givers(places[:, regions.buffers])
    buffers["givers"], buffers["givers_end"] = begins[:-1], begins[1:]
    return own, buffers, regions.meets, regions.replaces, givers


@_compiled
def _forgotten(own, buffer, whole, low, high):
    """Regions that nobody has accessed yet."""
    for r in range(len(own)):
        record = own[r]
        record["buffer"], record["whole"] = buffer[r], whole[r]
        record["begin"], record["end"] = low[r], high[r]
        record["write"] = record["dmas"] = -1
        record["waited"] = 0
        for engine in range(_N):
            record["read"][engine], record["read_waited"][engine] = -1, 0


def _givers(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tiles whose bytes each buffer takes over, and where they begin in the list of all.

    Buffers are numbered by their first access, so that is the order in which they are opened.
    """
    count = places.shape[1]
    begins, room, size = np.zeros(count + 1, np.int64), 64, 4 * count + 64
    while True:
        owners = np.zeros((2 * QUADRANTS, 3, room), np.int64)
        counts, givers = np.zeros(2 * QUADRANTS, np.int64), np.empty(size, np.int64)
        seen = np.full(count, -1, np.int64)
        full = _taken(places, owners, counts, seen, begins, givers)
        if not full:
            return begins, givers[: begins[-1]].copy()
        room, size = (4 * room, size) if full == _LISTS else (room, 4 * size)


@_compiled
def _taken(places, owners, counts, seen, begins, givers):
    """Each buffer takes its bytes (`depend.take`): what is too short for that, if anything."""
    total = 0
    for number in range(places.shape[1]):
        for lane in range(places[2, number], places[3, number]):
            own, count = owners[lane], counts[lane]
            if count + 2 > own.shape[1]:
                return _LISTS
            begin, end = _meeting(own, count, places[0, number], places[1, number])
            if total + end - begin > len(givers):
                return _GIVERS
            for k in range(begin, end):
                if seen[own[2, k]] != number:
                    seen[own[2, k]], givers[total] = number, own[2, k]
                    total += 1
            counts[lane] = _replaced(own, count, begin, end, places[:, number], number)
        begins[number + 1] = total
    return 0


@_compiled
def _meeting(own, count, low, high):
    """Which entries `(low, high, owner)` of a list share a byte with [low, high)."""
    begin, end = 0, count
    while begin < end:
        middle = (begin + end) >> 1
        if own[1, middle] <= low:
            begin = middle + 1
        else:
            end = middle
    while end < count and own[0, end] < high:
        end += 1
    return begin, end


@_compiled
def _replaced(own, count, begin, end, place, number):
    """Put one entry in the place of others, of which ends may be left; how many there are now."""
    low, high = place[0], place[1]
    before = begin < end and own[0, begin] < low
    after = begin < end and own[1, end - 1] > high
    last_high, last_owner = own[1, end - 1], own[2, end - 1]
    extra = 1 + before + after - (end - begin)
    for n in range(count - end):
        k = count - 1 - n if extra > 0 else end + n  # so that nothing is lost
        own[0, k + extra], own[1, k + extra], own[2, k + extra] = own[0, k], own[1, k], own[2, k]
    at = begin
    if before:
        own[1, at] = low
        at += 1
    own[0, at], own[1, at], own[2, at] = low, high, number
    if after:
        own[0, at + 1], own[1, at + 1], own[2, at + 1] = high, last_high, last_owner
    return count + extra


# ---------------------------------------------------------------------- the search


@_compiled
def _run(state, start, of_access, writes, edges):
    """All instructions in program order; False where something is written that does not change."""
    stream, regions, buffers, counts = state[0], state[1], state[2], state[8]
    for i in range(len(stream)):
        first = counts[_EDGES]
        for a in range(start[i], start[i + 1]):
            r = of_access[a]
            if r < 0:
                if writes[a] and r != _APART:
                    return False
                continue
            b = regions[r]["buffer"]
            if not buffers[b]["opened"]:
                _open(state, b)
            if writes[a]:
                _write(state, r, b, i, stream[i])
            else:
                _read(state, r, b, i, stream[i])
        if counts[_SPILT]:
            return True
        if counts[_EDGES] > first + 1:
            _prune(state, first)
        edges[i] = counts[_EDGES] - first
    return True


@_inlined
def _edge(state, producer, kind):
    """One more wait."""
    edges, counts = state[7], state[8]
    if counts[_EDGES] == len(edges):
        counts[_SPILT] = 1
        return
    edges[counts[_EDGES]] = 4 * producer + kind
    counts[_EDGES] += 1


@_inlined
def _node(state, number, stream, behind):
    """A node before `behind`; its number."""
    nodes, counts = state[6], state[8]
    n = counts[_NODES]
    if n == len(nodes):
        counts[_SPILT] = 1
        return behind
    nodes[n]["number"], nodes[n]["stream"] = number, stream
    nodes[n]["waited"], nodes[n]["next"] = 0, behind
    counts[_NODES] += 1
    return n


@_compiled
def _open(state, b):
    """The first access to a buffer: it inherits what nobody waited for (see `Ledger.inherit`)."""
    stream, regions, buffers, givers = state[0], state[1], state[2], state[5]
    own = buffers[b]
    own["opened"] = 1
    for g in range(own["givers"], own["givers_end"]):
        giver = buffers[givers[g]]
        for r in range(giver["begin"], giver["end"]):
            record = regions[r]
            if record["write"] >= 0 and not record["waited"]:
                number = record["write"]
                own["writes"] = _node(state, number, stream[number], own["writes"])
            for engine in range(_N):
                if record["read"][engine] >= 0 and not record["read_waited"][engine]:
                    own["reads"] = _node(state, record["read"][engine], engine, own["reads"])
            own["reads"] = _handed_on(state, record["dmas"], own["reads"])
        own["writes"] = _handed_on(state, giver["writes"], own["writes"])
        own["reads"] = _handed_on(state, giver["reads"], own["reads"])


@_compiled
def _handed_on(state, node, behind):
    """The nodes of a list that nobody waited for, before `behind`."""
    nodes = state[6]
    while node >= 0:
        if not nodes[node]["waited"]:
            behind = _node(state, nodes[node]["number"], nodes[node]["stream"], behind)
        node = nodes[node]["next"]
    return behind


@_inlined
def _read(state, r, b, i, stream):
    """Wait for the writers of what is read, and remember the read (`Finder.read`)."""
    streams, regions, buffers, nodes = state[0], state[1], state[2], state[6]
    bit, record, own = 1 << stream, regions[r], buffers[b]
    node = own["writes"]
    while node >= 0:
        if not nodes[node]["waited"] & bit:
            nodes[node]["waited"] |= bit
            same = nodes[node]["stream"] == stream and stream < _N
            _edge(state, nodes[node]["number"], OWN if same else SEEN)
        node = nodes[node]["next"]
    for k in range(record["begin"], record["end"]):
        other = regions[own["begin"] + state[3][k]]
        if other["write"] >= 0 and not other["waited"] & bit:
            other["waited"] |= bit
            same = streams[other["write"]] == stream and stream < _N
            _edge(state, other["write"], OWN if same else SEEN)
    if stream < _N:
        record["read"][stream], record["read_waited"][stream] = i, 0
    elif record["dmas"] < 0 or nodes[record["dmas"]]["number"] != i:
        record["dmas"] = _node(state, i, stream, record["dmas"])


@_inlined
def _write(state, r, b, i, stream):
    """Wait for the readers and writers of what is written; remember it (`Finder.write_part`)."""
    regions, buffers = state[1], state[2]
    bit, record, own = 1 << stream, regions[r], buffers[b]
    _listed(state, own["reads"], i, stream, FREED)
    _listed(state, own["writes"], i, stream, SEEN)
    for k in range(record["begin"], record["end"]):
        other, replaced = regions[own["begin"] + state[3][k]], state[4][k]
        for engine in range(_N):
            producer, waited = other["read"][engine], other["read_waited"][engine]
            if producer >= 0 and producer != i and engine != stream and not waited & bit:
                other["read_waited"][engine] |= bit
                _edge(state, producer, FREED)
            if replaced:
                other["read"][engine] = -1
        _listed(state, other["dmas"], i, stream, FREED)
        if replaced:
            other["dmas"] = -1
        _written(state, other, i, stream)
        if replaced:
            other["write"] = -1
    if record["whole"]:
        own["writes"] = own["reads"] = -1
    record["write"], record["waited"] = i, 0


@_inlined
def _written(state, other, i, stream):
    """Wait for the last write of a region that is written again."""
    producer, bit = other["write"], 1 << stream
    if producer < 0 or producer == i or other["waited"] & bit:
        return
    if state[0][producer] != stream or stream >= _N:
        other["waited"] |= bit
        _edge(state, producer, SEEN)


@_inlined
def _listed(state, node, i, stream, kind):
    """Wait for the accesses of a list, in front of a write."""
    nodes, bit = state[6], 1 << stream
    while node >= 0:
        known = nodes[node]
        orders = known["stream"] != stream or stream >= _N
        if orders and known["number"] != i and not known["waited"] & bit:
            known["waited"] |= bit
            _edge(state, known["number"], kind)
        node = known["next"]


@_inlined
def _prune(state, first):
    """One wait for each engine and kind, of three or more; all in order (`Finder.pruned`)."""
    stream, edges, counts = state[0], state[7], state[8]
    end = counts[_EDGES]
    for k in range(first + 1, end):
        code, at = edges[k], k
        while at > first and edges[at - 1] > code:
            edges[at] = edges[at - 1]
            at -= 1
        edges[at] = code
    if end - first < 3:
        return
    kept = first
    for k in range(first, end):
        if not _surpassed(stream, edges, k, end):
            edges[kept] = edges[k]
            kept += 1
    counts[_EDGES] = kept


@_compiled
def _surpassed(stream, edges, k, end):
    """Whether a later wait of a sorted list is for the same engine (or transfer) and kind."""
    producer, kind = edges[k] >> 2, edges[k] & 3
    for other in range(k + 1, end):
        if edges[other] & 3 == kind:
            same = stream[edges[other] >> 2] == stream[producer] and stream[producer] < _N
            if same or edges[other] >> 2 == producer:
                return True
    return False


__all__ = ["dependencies"]
