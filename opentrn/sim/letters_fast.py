"""The letters of `sim.letters` read by compiled code, in one pass.

`sim.letters` is the specification.  Numba is optional: nothing imports this unless it is installed.
"""

import numpy as np
from numba import njit

from opentrn.isa import Instruction
from opentrn.sim.letters import ODD, SHIFT, Columns, Known, too_many
from opentrn.sim.words import Layout, listed, memory

_FORMS = 1 << 12
_ODD, _SHIFT = np.uint64(ODD), np.uint64(SHIFT)
# Why reading stops: what is not known here, a form or a way not known yet, no room for a letter.
_DONE, _ODDITY, _FORM, _WAY, _FULL = range(5)

_compiled = njit(cache=True, nogil=True, error_model="numpy", _nrt=False)
_inlined = njit(cache=True, nogil=True, error_model="numpy", _nrt=False, forceinline=True)


def read(where: Layout, known: Known, body: list, columns: Columns) -> bool:
    """As `letters.read_plainly`."""
    address, at = listed(body, where), 0
    forms, table = np.full((2, _FORMS), -1, np.int64), np.zeros(0, np.int32)
    same = np.array([id(Instruction), id(()), id(None)], np.int64)
    while True:
        state = (known.place, known.hbm, known.mixed, known.form, known.way, table)
        at, why, known.count = _read(memory(), where, address, at, same, forms, state, known.count,
                                     columns.letter, columns.buffer)  # fmt: skip
        if why == _DONE:
            return True
        if why == _ODDITY or too_many(known.count, at):
            return False
        if why == _FORM:
            form = body[at].form
            if 2 * len(known.forms) > _FORMS or not known.add_form(form):
                return False
            _enter_form(forms, id(form), len(known.forms) - 1)
            columns.widen(len(known.place))
        elif why == _WAY:
            for view in body[at].views():
                view._facts  # noqa: B018  asked for once, it stands in its slot
        else:
            known.room(4 * max(known.count, 64))
            table = np.full(2 * len(known.mixed), -1, np.int32)
            _enter_letters(table, known.mixed, known.count)


@_inlined
def _slot(key, size):
    """Where to look for a key in a table of a power of two."""
    return np.int64((np.uint64(key) * _ODD) >> np.uint64(32)) & (size - 1)


@_compiled
def _enter_form(forms, key, number):
    at = _slot(key, forms.shape[1])
    while forms[0, at] >= 0:
        at = (at + 1) & (forms.shape[1] - 1)
    forms[0, at], forms[1, at] = key, number


@_compiled
def _enter_letters(table, mixed, count):
    for n in range(count):
        at = _slot(mixed[n], len(table))
        while table[at] >= 0:
            at = (at + 1) & (len(table) - 1)
        table[at] = n


@_compiled
def _read(words, where, address, i, same, forms, state, count, letter, buffer):
    """(where it stopped, why, letters by then)."""
    while i < len(address):
        at = (address[i] >> 3) - 1
        if words[at + where.type] != same[0] or words[at + where.after] != same[1]:
            return i, _ODDITY, count
        key = words[at + where.form]
        form = _found(forms, key)
        if form < 0:
            return i, _FORM, count
        if 2 * (count + 1) > len(state[5]):
            return i, _FULL, count
        items = (words[at + where.operands] >> 3) - 1 + where.items
        why, number = _looked(words, where, items, np.uint64(key) * _ODD, form, same[2], state,
                              count, buffer, i)  # fmt: skip
        if why != _DONE:
            return i, why, count
        letter[i] = _named(state, number, form, count)
        if letter[i] < 0:
            return i, _ODDITY, count
        count += letter[i] == count
        i += 1
    return i, _DONE, count


@_inlined
def _looked(words, where, items, number, form, none, state, count, buffer, i):
    """Note the ways of looking as those of letter `count`: (why it stops, the mixed number)."""
    place, hbm, ways = state[0], state[1], state[4]
    for k in range(len(place)):
        n, own = place[k, form], np.int64(0)
        if n >= 0:
            view = (words[items + n] >> 3) - 1
            if words[view + where.index] != none:
                return _ODDITY, number
            buffer[k, i] = words[view + where.buffer]
            if not hbm[k, form]:
                own = words[view + where.facts]
                if own == 0:
                    return _WAY, number
            number = (number ^ np.uint64(own)) * _ODD
            number ^= number >> _SHIFT
        ways[count, k] = own
    return _DONE, number


@_inlined
def _named(state, number, form, count):
    """The letter of a mixed number, `count` if it is new; -1 where that number misled."""
    mixed, form_of, ways, table = state[2], state[3], state[4], state[5]
    at = _slot(number, len(table))
    while table[at] >= 0 and mixed[table[at]] != number:
        at = (at + 1) & (len(table) - 1)
    if table[at] < 0:
        table[at], mixed[count], form_of[count] = count, number, form
        return count
    known = table[at]
    same = form_of[known] == form
    for k in range(len(state[0])):
        same &= ways[known, k] == ways[count, k]
    return known if same else -1


@_inlined
def _found(forms, key):
    """The number of a form; -1 where it is new."""
    at = _slot(key, forms.shape[1])
    while forms[0, at] >= 0 and forms[0, at] != key:
        at = (at + 1) & (forms.shape[1] - 1)
    return forms[1, at]


__all__ = ["read"]
