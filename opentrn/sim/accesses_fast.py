"""The table of `sim.accesses`, read by compiled code: the same numbers, without asking each object.

What the slots of objects hold is read as words of memory (`sim.words`); where that cannot be done,
objects are asked.  `sim.accesses` is the specification.  Numba is optional: nothing imports this
unless it is installed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit

from opentrn.isa import Instruction, Program
from opentrn.sim import accesses
from opentrn.sim.accesses import Accesses, places_of
from opentrn.sim.words import Layout, addresses, layout, memory

_FIRST_SIZE = 1 << 12
_ODD = 0x1E3779B97F4A7C15  # spreads keys; the product may run over

_compiled = njit(cache=True, nogil=True, error_model="numpy", _nrt=False)


class _Views(Sequence):
    """The views, each looked up when it is asked for."""

    def __init__(self, body: list, owner: np.ndarray, place: np.ndarray):
        self.body, self.owner, self.place = body, owner, place

    def __len__(self) -> int:
        return len(self.owner)

    def __getitem__(self, n):
        return self.body[self.owner[n]].operands[self.place[n]]


def accesses_of(program: Program) -> Accesses | None:
    """As `accesses.accesses_of`."""
    where, body = layout(), program.body
    if where is None or not body:
        return accesses.accesses_of(program)
    objects = np.fromiter(body, object, len(body))
    form, operands = np.empty(len(body), np.int64), np.empty(len(body), np.int64)
    none, known = id(()), memory()
    if not _instructions(known, addresses(objects), where, id(Instruction), none, form, operands):
        return None
    form, first = numbered(form)
    forms = [body[i].form for i in first.tolist()]
    places = [places_of(one) for one in forms]
    if any(one is None for one in places):
        return None
    begins, place, written = _flat(places)
    start = np.zeros(len(body) + 1, np.int64)
    np.cumsum(np.diff(begins)[form], out=start[1:])
    key, writes = np.empty(start[-1], np.int64), np.empty(start[-1], bool)
    _operands(known, where.items, operands, form, begins, place, written, key, writes)
    view, at = numbered(key)
    owner = np.searchsorted(start, at, side="right") - 1
    views = _Views(body, owner, place[begins[form[owner]] + at - start[owner]])
    facts, buffer = _looked(views, key[at], where)
    if facts is None:
        return None
    way, _ = numbered(facts)
    buffer, at = numbered(buffer)
    buffers = [views[n].buffer for n in at.tolist()]
    lives = np.full((2, len(buffers)), -1, np.int64)
    _lives(start, view, buffer, lives)
    return Accesses(forms, form, start, view, writes, views, way, buffer, buffers, *lives)


def _flat(places: list) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each form's operands begin; which operands they are, and whether they are written."""
    begins = np.zeros(len(places) + 1, np.int64)
    np.cumsum([len(reads) + len(writes) for reads, writes in places], out=begins[1:])
    place = [n for reads, writes in places for n in (*reads, *writes)]
    written = [k >= len(reads) for reads, writes in places for k in range(len(reads + writes))]
    return begins, np.array(place, np.int64), np.array(written, bool)


def _looked(views: _Views, address: np.ndarray, where: Layout) -> tuple[Any, Any]:
    """Of each view what is known of its way of looking, and its buffer; None with an index."""
    words = memory()
    at = address // 8 - 1
    if (words[at + where.index] != id(None)).any():
        return None, None
    for n in np.flatnonzero(words[at + where.facts] == 0).tolist():
        views[n]._facts  # noqa: B018  asked for once, it stands in its slot
    return words[at + where.facts], words[at + where.buffer]


def numbered(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers for keys in the order of their first use, and where each was first used."""
    numbers, size = np.empty(len(keys), np.int32), _FIRST_SIZE
    while True:
        first = np.empty(size // 2, np.int64)
        count = _numbered(keys, np.full(size, -1, np.int32), first, numbers)
        if count >= 0:
            return numbers, first[:count].copy()
        size *= 4


@_compiled
def _instructions(words, address, where, kind, nothing, form, operands):
    """Forms and operands of instructions; False where something else is among them."""
    for i in range(len(address)):
        at = (address[i] >> 3) - 1
        if words[at + where.type] != kind or words[at + where.after] != nothing:
            return False
        form[i], operands[i] = words[at + where.form], words[at + where.operands]
    return True


@_compiled
def _operands(words, items, operands, form, begins, place, written, key, writes):
    """The views that each instruction accesses."""
    a = 0
    for i in range(len(form)):
        at = (operands[i] >> 3) - 1 + items
        for k in range(begins[form[i]], begins[form[i] + 1]):
            key[a], writes[a] = words[at + place[k]], written[k]
            a += 1


@_compiled
def _numbered(keys, table, first, numbers):
    """How many keys there are, or -1 where the table is too small."""
    count, mask = 0, len(table) - 1
    for i in range(len(keys)):
        key = keys[i]
        at = (key * _ODD >> 20) & mask
        while table[at] >= 0 and keys[first[table[at]]] != key:
            at = (at + 1) & mask
        if table[at] < 0:
            if count == len(first):
                return -1
            table[at], first[count] = count, i
            count += 1
        numbers[i] = table[at]
    return count


@_compiled
def _lives(start, view, buffer, lives):
    """The first and last instruction that touches each buffer."""
    for i in range(len(start) - 1):
        for a in range(start[i], start[i + 1]):
            b = buffer[view[a]]
            if lives[0, b] < 0:
                lives[0, b] = i
            lives[1, b] = i


__all__ = ["accesses_of", "numbered"]
