"""The first strategy of `sim.place`, compiled by Numba: a ring through the whole memory.

`sim.place` is the specification and says what each step means; where tiles have explicit addresses,
or the ring leaves too many holes, it does the placing.  Numba is optional: nothing imports this
unless it is installed.
"""

import numpy as np
from numba import njit

from opentrn.isa import Buffer, Program
from opentrn.sim.accesses import Accesses
from opentrn.sim.place import Memory, Placement, Slot, memories
from opentrn.sim.place import place as place_plainly

_compiled = njit(cache=True, nogil=True, error_model="numpy", _nrt=False)


class TabledPlacement(Placement):
    """A placement as columns, whose slots are made when they are first asked for.

    Buffer `b` of the table lies at `address[b]` (-1 in HBM) with `nbytes[b]`; `order` has the tiles
    in the order of `place.place`.
    """

    __slots__ = ("_made", "address", "nbytes", "order", "table")

    def __init__(self, table: Accesses, bank: int):
        self.table, self._made, self.order = table, None, np.zeros(0, np.int64)
        self.address = np.full(len(table.buffers), -1, np.int64)
        self.nbytes = np.zeros(len(table.buffers), np.int64)
        super().__init__(bank=bank)

    @property
    def slots(self) -> dict[Buffer, Slot]:
        """As of `Placement`."""
        if self._made is None:
            table, order, buffers = self.table, self.order.tolist(), list(self.table.buffers)
            columns = self.address, self.nbytes, table.first, table.last
            rows = zip(order, *(column[self.order].tolist() for column in columns), strict=True)
            self._made = {buffers[n]: Slot(*row, buffers[n].partition) for n, *row in rows}
        return self._made

    @slots.setter
    def slots(self, none: dict[Buffer, Slot]) -> None:
        pass


def place(program: Program, chip, table: Accesses) -> Placement:
    """As `place.place`."""
    placement = TabledPlacement(table, int(chip.core.psum_bank))
    spaces, unit = table.of_sort(lambda x: x.space), table.of_sort(lambda x: x.partition_bytes)
    if not table.fixed:
        for memory in memories(chip):
            own = np.flatnonzero(spaces == memory.space)
            if not _placed(memory, own, unit[own], placement):
                break
        else:
            return placement
    return place_plainly(program, chip, table.lifetimes())


def _placed(memory: Memory, own: np.ndarray, unit: np.ndarray, placement: TabledPlacement) -> bool:
    """Whether the tiles `own` of one memory, of `unit` bytes, found room; they are placed then."""
    table = placement.table
    first, last, ids = table.first[own], table.last[own], table.ids[own]
    step = np.where((unit > memory.bank) & (memory.bank > 0), memory.bank or 1, memory.alignment)
    nbytes = -(-unit // step) * step
    peak, at = _peak(first, last, nbytes)
    placement.peak_bytes[memory.space], placement.peak_at[memory.space] = peak, at
    if peak > memory.size:
        return False
    # Buffers are numbered by first use, but those that one instruction uses first go by id.
    sorted_ = (first[1:] > first[:-1]) | (ids[1:] > ids[:-1])
    order = np.arange(len(own)) if sorted_.all() else np.lexsort((ids, first))
    address = np.empty(len(own), np.int64)
    live = np.empty((3, len(own)), np.int64)
    limits = memory.size, memory.alignment, memory.bank
    if not _ring(order, first, last, nbytes, *limits, live, address):
        return False
    placement.address[own], placement.nbytes[own] = address, nbytes
    placement.order = np.concatenate((placement.order, own[order]))
    return True


def _peak(first: np.ndarray, last: np.ndarray, nbytes: np.ndarray) -> tuple[int, int]:
    """The most bytes alive at once, and the first position where they are."""
    if not len(first):
        return 0, 0
    size = int(last.max()) + 2
    # Sums are whole numbers far below 2**53.
    change = np.bincount(first, nbytes, size) - np.bincount(last + 1, nbytes, size)
    now = np.cumsum(change)
    at = int(now.argmax())
    return int(now[at]), at


@_compiled
def _ring(order, first, last, nbytes, size, alignment, bank, live, address):
    """Addresses in order of first use; False when stuck."""
    count, cursor, end = 0, 0, -1
    for i in order:
        if first[i] > end:
            count = 0  # none lives on
        end = max(end, last[i])
        kept = 0
        for k in range(count):
            if live[2, k] >= first[i]:
                live[0, kept], live[1, kept], live[2, kept] = live[0, k], live[1, k], live[2, k]
                kept += 1
        count = kept
        at = _past(
            live, count, nbytes[i], _fit(cursor, nbytes[i], alignment, bank), alignment, bank
        )
        if at + nbytes[i] > size and cursor > 0:
            at = _past(live, count, nbytes[i], 0, alignment, bank)
        if at + nbytes[i] > size:
            return False
        k = count
        while k > 0 and live[0, k - 1] > at:
            live[0, k], live[1, k], live[2, k] = live[0, k - 1], live[1, k - 1], live[2, k - 1]
            k -= 1
        cursor = at + nbytes[i]
        live[0, k], live[1, k], live[2, k] = at, cursor, last[i]
        count += 1
        address[i] = at
    return True


@_compiled
def _fit(at, nbytes, alignment, bank):
    """As `Memory.fit`."""
    at = -(-at // alignment) * alignment
    if bank > 0 and at % bank + nbytes > bank:
        at = -(-at // bank) * bank
    return at


@_compiled
def _past(live, count, nbytes, at, alignment, bank):
    """The first legal address ≥ `at` (legal itself) with room between the live tiles."""
    for k in range(count):
        if live[1, k] <= at:
            continue
        if at + nbytes <= live[0, k]:
            break
        at = _fit(live[1, k], nbytes, alignment, bank)
    return at


__all__ = ["place"]
