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


def place(program: Program, chip, table: Accesses) -> Placement:
    """As `place.place`."""
    placement = Placement(bank=int(chip.core.psum_bank))
    spaces = np.array([buffer.space for buffer in table.buffers])
    if all(buffer.address is None for buffer in table.buffers):
        for memory in memories(chip):
            own = np.flatnonzero(spaces == memory.space)
            buffers = [table.buffers[n] for n in own.tolist()]
            if not _placed(memory, buffers, table.first[own], table.last[own], placement):
                break
        else:
            return placement
    return place_plainly(program, chip, table.lifetimes())


def _placed(
    memory: Memory,
    buffers: list[Buffer],
    first: np.ndarray,
    last: np.ndarray,
    placement: Placement,
) -> bool:
    """Whether the tiles of one memory found room; then they are in the placement."""
    unit = np.array([buffer.partition_bytes for buffer in buffers], np.int64)
    step = np.where((unit > memory.bank) & (memory.bank > 0), memory.bank or 1, memory.alignment)
    nbytes = -(-unit // step) * step
    peak, at = _peak(first, last, nbytes)
    placement.peak_bytes[memory.space], placement.peak_at[memory.space] = peak, at
    if peak > memory.size:
        return False
    order = np.lexsort((np.array([buffer.id for buffer in buffers], np.int64), first))
    address = np.empty(len(buffers), np.int64)
    live = np.empty((3, len(buffers)), np.int64)
    limits = memory.size, memory.alignment, memory.bank
    if not _ring(order, first, last, nbytes, *limits, live, address):
        return False
    columns = (address[order], nbytes[order], first[order], last[order])
    slots = map(Slot, *(column.tolist() for column in columns))
    chosen = (buffers[n] for n in order.tolist())
    placement.slots.update(
        (buffer, slot._replace(partition=buffer.partition) if buffer.partition else slot)
        for buffer, slot in zip(chosen, slots, strict=True)
    )
    return True


def _peak(first: np.ndarray, last: np.ndarray, nbytes: np.ndarray) -> tuple[int, int]:
    """The most bytes alive at once, and the position; of equal ones the first."""
    position = np.concatenate((first, last + 1))
    change = np.concatenate((nbytes, -nbytes))
    order = np.lexsort((change, position))
    now = np.cumsum(change[order])
    if not len(now):
        return 0, 0
    most = int(now.argmax())
    return int(now[most]), int(position[order][most])


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
