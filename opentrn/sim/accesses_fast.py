"""The table of `sim.accesses`, read by compiled code: the same numbers, without asking each object.

What the slots of objects hold is read as words of memory (`sim.words`); where that cannot be done,
objects are asked.  `sim.accesses` is the specification.  Numba is optional: nothing imports this
unless it is installed.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit

from opentrn.isa import Instruction, Program
from opentrn.sim import accesses
from opentrn.sim.accesses import Accesses, Operands, places_of, taken
from opentrn.sim.words import Layout, integers, layout, listed, memory

_FIRST_SIZE = 1 << 12
ODD = 0x1E3779B97F4A7C15  # spreads keys; the product may run over

_compiled = njit(cache=True, nogil=True, error_model="numpy", _nrt=False)


class _Buffers(Sequence):
    """The buffers, each looked up when it is asked for."""

    def __init__(self, views: Operands, access: np.ndarray):
        self.views, self.access = views, access

    def __len__(self) -> int:
        return len(self.access)

    def __getitem__(self, n):
        return self.views[self.access[n]].buffer

    def __iter__(self):
        return (view.buffer for view in taken(self.views, self.access))


def accesses_of(program: Program) -> Accesses | None:
    """As `accesses.accesses_of`."""
    where, body = layout(), program.body
    if where is None or not body:
        return accesses.accesses_of(program)
    form, operands = np.empty(len(body), np.int64), np.empty(len(body), np.int64)
    if not _instructions(memory(), listed(body, where), where, id(Instruction), id(()), form,
                         operands):  # fmt: skip
        return None
    form, first = numbered(form)
    forms = [body[i].form for i in first.tolist()]
    places = [places_of(one) for one in forms]
    if any(one is None for one in places):
        return None
    kinds = _flat(forms, places)
    start = np.zeros(len(body) + 1, np.int64)
    np.cumsum(np.diff(kinds[0])[form], out=start[1:])
    seen = _read(body, where, (operands, form, start), kinds)
    if seen is None:
        return None
    way, key, writes = seen
    views = Operands(body, form, start, kinds[:2])
    buffer, at = numbered(key)
    key = key[at]
    lives = np.full((2, len(at)), -1, np.int64)
    _lives(start, buffer, lives)
    buffers = _Buffers(views, at)
    return Accesses(forms, form, start, writes, views, numbered(way)[0], buffer, buffers,
                    *_sorts(buffers, key, where), *lives)  # fmt: skip


def _flat(forms: list, places: list) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Where each form's accesses begin; which operands they are, whether they are writes, whether
    to HBM."""
    begins = np.zeros(len(places) + 1, np.int64)
    np.cumsum([len(reads) + len(writes) for reads, writes in places], out=begins[1:])
    place = [n for reads, writes in places for n in (*reads, *writes)]
    written = [k >= len(reads) for reads, writes in places for k in range(len(reads + writes))]
    hbm = [form.given[n].space == "hbm" for form, (reads, writes) in zip(forms, places, strict=True)
           for n in (*reads, *writes)]  # fmt: skip
    return begins, np.array(place, np.int64), np.array(written, bool), np.array(hbm, bool)


def _read(body: list, where: Layout, given: tuple, kinds: tuple) -> tuple | None:
    """Of each access its way of looking (0: at HBM), its buffer's address, whether it is a write;
    None with a runtime index.
    """
    count = int(given[2][-1])
    found = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, bool)
    at, fine = 0, True
    while at < len(body):
        at, fine = _operands(memory(), where, id(None), at, given, kinds, found)
        if not fine:
            return None
        for view in body[at].views() if at < len(body) else ():
            view._facts  # noqa: B018  asked for once, it stands in its slot
    return found


def _sorts(buffers: _Buffers, address: np.ndarray, where: Layout) -> tuple:
    """`sorts`, `sort`, `ids` and `fixed` of `Accesses`."""
    words, at = memory(), (address >> 3) - 1
    sort, first = numbered(words[at + where.sort])
    sorts = [buffers[n].sort for n in first.tolist()]
    ids, known = integers(words[at + where.number], where)
    if not known.all():
        ids = np.array([buffer.id for buffer in buffers], np.int64)
    on_chip = np.array([one.on_chip for one in sorts], bool)[sort]
    fixed = bool((words[at + where.address][on_chip] != id(None)).any())
    return sorts, sort, ids, fixed


def numbered(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers for keys in the order of their first use, and where each was first used."""
    numbers, size = np.empty(len(keys), np.int32), _FIRST_SIZE
    while True:
        first = np.empty(size // 2, np.int32)
        count, read = _numbered(keys, np.full(size, -1, np.int32), first, numbers)
        if read == len(keys):
            return numbers, first[:count].copy()
        # As many more as there were so far, but not all that room for what may be a beginning.
        while size < 3 * count * min(len(keys) // read, 8):
            size *= 2


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
def _operands(words, where, none, i, given, kinds, found):
    """Note all accesses from instruction `i` on: (where it stopped, whether all is fine so far)."""
    operands, form, start = given
    begins, place, written, hbm = kinds
    way, buffer, writes = found
    while i < len(form):
        items = (operands[i] >> 3) - 1 + where.items
        a = start[i]
        for k in range(begins[form[i]], begins[form[i] + 1]):
            view = (words[items + place[k]] >> 3) - 1
            if words[view + where.index] != none:
                return i, False
            facts = 0 if hbm[k] else words[view + where.facts]
            if facts == 0 and not hbm[k]:
                return i, True
            way[a], buffer[a], writes[a] = facts, words[view + where.buffer], written[k]
            a += 1
        i += 1
    return i, True


@_compiled
def _numbered(keys, table, first, numbers):
    """How many keys there are, and how many were read: fewer where the table is too small."""
    count, mask = 0, len(table) - 1
    for i in range(len(keys)):
        key = keys[i]
        at = (key * ODD >> 20) & mask
        while table[at] >= 0 and keys[first[table[at]]] != key:
            at = (at + 1) & mask
        if table[at] < 0:
            if count == len(first):
                return count, i
            table[at], first[count] = count, i
            count += 1
        numbers[i] = table[at]
    return count, len(keys)


@_compiled
def _lives(start, buffer, lives):
    """The first and last instruction that touches each buffer."""
    for i in range(len(start) - 1):
        for a in range(start[i], start[i + 1]):
            b = buffer[a]
            if lives[0, b] < 0:
                lives[0, b] = i
            lives[1, b] = i


__all__ = ["ODD", "accesses_of", "numbered"]
