"""What slots of objects hold, read as words of memory: a column of many objects in one look.

Asking a million objects for their attributes costs more than all that is done with the answers.
CPython keeps what a slot holds as a word at a fixed place in the object (its `id` is its address),
and the items of a tuple behind its head; so the words are read instead.  Where they are is found
out by looking at objects that hold known things, and nothing is read where that fails: then
objects are asked.
"""

import ctypes
import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from opentrn.isa import Buffer, Instruction, View

_WORD = 8
_PROBE = 123_456_789  # an integer that nothing else is likely to hold
_LONG = _PROBE << 30 | 77  # one of two digits
_LOW = 0xFFFFFFFF
_SMALL = 1 << 20


class Layout(NamedTuple):
    """In which word of an object something stands; `digits`: of an integer below 2**30."""

    type: int
    form: int
    operands: int
    after: int
    items: int
    buffer: int
    index: int
    facts: int
    offset: int
    steps: int
    dtype: int
    address: int
    number: int
    sort: int
    digits: int
    listed: int


@cache
def memory() -> np.ndarray:
    """All memory as words: the word at address `a` is element `a // 8 - 1`.  Only to read."""
    words = (ctypes.c_int64 * (1 << 44)).from_address(_WORD)
    found = np.frombuffer(words, np.int64)
    found.flags.writeable = False
    return found


@cache
def layout() -> Layout | None:
    """Where things stand; None where it cannot be found out."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != _WORD:
        return None
    one = _slots(Instruction, ("form", "operands", "after"))
    view = _slots(View, ("buffer", "index", "_facts", "offset", "steps", "dtype"))
    buffer = _slots(Buffer, ("address", "id", "sort"))
    item = object()
    pair = (item, None)
    items = _place(pair, tuple.__basicsize__ + _WORD, item)
    kinds = {_place(x, c.__basicsize__, c) for x, c in ((Instruction.__new__(Instruction),
             Instruction), (pair, tuple))}  # fmt: skip
    found = (*kinds, *one, items, *view, *buffer, _digits(), _listed())
    return None if len(kinds) != 1 or None in found else Layout(*found)


def _slots(kind: type, names: tuple[str, ...]) -> list[int | None]:
    """The words of slots of a class."""
    probe, held = kind.__new__(kind), [object() for _ in names]
    for name, what in zip(names, held, strict=True):
        object.__setattr__(probe, name, what)
    return [_place(probe, kind.__basicsize__, what) for what in held]


def _place(one: Any, size: int, held: Any) -> int | None:
    """The one word of an object that holds something; None where none or several do."""
    begin = id(one) // _WORD - 1
    at = np.flatnonzero(memory()[begin : begin + size // _WORD] == id(held))
    return int(at[0]) if len(at) == 1 else None


def _digits() -> int | None:
    """The word whose lower half holds the value of a small integer, of a larger one two digits."""
    found = set()
    for value in (_PROBE, _PROBE + 1):
        begin = id(value) // _WORD - 1
        words = memory()[begin : begin + int.__basicsize__ // _WORD + 1]
        found.add(tuple(np.flatnonzero((words & _LOW) == value).tolist()))
    (at,) = found if len(found) == 1 else ((),)
    if len(at) != 1:
        return None
    word = int(memory()[id(_LONG) // _WORD - 1 + at[0]])
    return at[0] if (word & _LOW, word >> 32) == (77, _PROBE) else None


def _listed() -> int | None:
    """The word of a list that says where its items are."""
    made = [object() for _ in range(7)]
    begin, found = id(made) // _WORD - 1, []
    words = memory()[begin : begin + list.__basicsize__ // _WORD].tolist()
    for n, word in enumerate(words):
        # Counts are small numbers; of what is left only the type is no place of items.
        if word > _SMALL and word % _WORD == 0 and word != id(list):
            at = word // _WORD - 1
            found += [n] * (memory()[at : at + len(made)].tolist() == list(map(id, made)))
    return found[0] if len(found) == 1 else None


def integers(address: np.ndarray, where: Layout) -> tuple[np.ndarray, np.ndarray]:
    """The integers at addresses, and which of them are read: 1 to 2**60 - 1, and the 0 of Python.

    Digits are of 30 bits; what stands in front of them tells how many there are, and the sign.
    """
    words, at = memory(), (address >> 3) - 1
    digits, lengths = words[at + where.digits], words[at + where.digits - 1]
    one, two = (int(words[id(n) // _WORD - 1 + where.digits - 1]) for n in (_PROBE, _LONG))
    value = (digits & _LOW) + ((digits >> 32) << 30) * (lengths == two)
    zero = address == id(0)
    return np.where(zero, 0, value), zero | (lengths == one) | (lengths == two)


def listed(objects: list, where: Layout) -> np.ndarray:
    """Where the objects of a list are; only as long as the list stays as it is."""
    begin = int(memory()[id(objects) // _WORD - 1 + where.listed]) // _WORD - 1
    return memory()[begin : begin + len(objects)]


__all__ = ["Layout", "integers", "layout", "listed", "memory"]
