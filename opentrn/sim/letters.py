"""A straight-line program as letters: equal ones are instructions of one form that look in one way.

A letter stands for the form of an instruction and the ways in which its operands look at tiles on
chip (`View._facts`); not for which tiles those are, and not for the part of HBM a transfer uses.
Loops that were unrolled show as letters that repeat (`sim.recur`).  Found for all instructions at
once, from words of memory (`sim.words`).
"""

from typing import Any, NamedTuple

import numpy as np

from opentrn.isa import Instruction, Program
from opentrn.sim.accesses import places_of
from opentrn.sim.words import Layout, layout, listed, memory

_ROOM = 8  # accesses of an instruction, at first
_AT_ONCE = 1 << 13  # instructions; their columns stay in the processor's cache
_SHARE = 4  # where more than one in so many instructions is a letter of its own, little repeats
ODD = 0x9E3779B97F4A7C15
SHIFT = 29


class Letters(NamedTuple):
    """Instruction i is `letter[i]`, numbered by first use, of form `forms[form[letter[i]]]`.

    Access k of a form is operand `place[k, form]` (-1: it has fewer), written where `writes`, in
    HBM where `hbm`; reads come first.  `buffer[k, i]` is the address of the buffer object.
    """

    forms: list
    place: np.ndarray
    writes: np.ndarray
    hbm: np.ndarray
    form: np.ndarray
    letter: np.ndarray
    buffer: np.ndarray

    def form_of(self, rows: Any) -> np.ndarray:
        """The forms of instructions."""
        return self.form[self.letter[rows]]


class Known:
    """The forms and letters seen so far.

    `places`, `writes` and `hbm` are as in `Letters`; letter n has form `form[n]`, ways of looking
    `way[n]` (0: in HBM, or none) and the number `mixed[n]`, made of both.  There is room for more.
    """

    def __init__(self):
        self.forms: list = []
        self.lists: list[tuple[list, list, list]] = []
        self.place = self.writes = self.hbm = np.zeros((0, 0), np.int64)
        self.count = 0
        self.mixed, self.form = np.zeros(0, np.uint64), np.zeros(0, np.int32)
        self.way = np.zeros((0, 0), np.int64)

    def add_form(self, form: Any) -> bool:
        """One more form; False where it uses registers or the cores meet in it."""
        places = places_of(form)
        if places is None or form.meets:
            return False
        reads, writes = places
        self.forms.append(form)
        spaces = [form.given[n].space for n in reads + writes]
        written = [False] * len(reads) + [True] * len(writes)
        self.lists.append((reads + writes, written, [space == "hbm" for space in spaces]))
        self.place = self._table(0, -1, np.int64)
        self.writes, self.hbm = self._table(1, False, bool), self._table(2, False, bool)
        self.room(self.count)
        return True

    def _table(self, which: int, rest: Any, kind: type) -> np.ndarray:
        """Lists of all forms as (access, form)."""
        lists = [own[which] for own in self.lists]
        most = max(map(len, lists))
        padded = [own + [rest] * (most - len(own)) for own in lists]
        return np.array(padded, kind).reshape(len(lists), most).T.copy()

    def room(self, letters: int) -> None:
        """Have room for so many letters, and for the accesses of all forms."""
        size = max(len(self.mixed), letters)
        self.mixed, self.form = (_widened(own, size) for own in (self.mixed, self.form))
        way = np.zeros((size, len(self.place)), np.int64)
        way[: len(self.way), : self.way.shape[1]] = self.way
        self.way = way


def _widened(column: np.ndarray, size: int) -> np.ndarray:
    made = np.zeros(size, column.dtype)
    made[: len(column)] = column
    return made


class Columns:
    """`letter` and `buffer` of `Letters` in the making."""

    def __init__(self, count: int):
        self.letter = np.empty(count, np.int32)
        self.buffer = np.zeros((0, count), np.int64)

    def widen(self, accesses: int) -> None:
        """Have room for so many accesses of an instruction, and for more: what nobody writes to
        takes no memory, and a copy would take all of it twice.
        """
        if accesses > len(self.buffer):
            room = np.zeros((max(accesses, _ROOM), len(self.letter)), np.int64)
            room[: len(self.buffer)] = self.buffer
            self.buffer = room


def letters_of(program: Program, fast: bool = False) -> Letters | None:
    """The letters of a program; None where it has device loops, registers, runtime indices,
    explicit waits, meetings of cores, where objects cannot be read as words, or little repeats.

    `fast`: by compiled code.
    """
    where, body, known = layout(), program.body, Known()
    if where is None or not body:
        return None
    columns, read = Columns(len(body)), read_plainly
    if fast:
        from opentrn.sim.letters_fast import read
    if not read(where, known, body, columns):
        return None
    return Letters(known.forms, known.place, known.writes, known.hbm, known.form[: known.count],
                   columns.letter, columns.buffer[: len(known.place)])  # fmt: skip


def too_many(letters: int, instructions: int) -> bool:
    """Whether too many of so many instructions are letters of their own."""
    return _SHARE * letters > instructions + 4 * _AT_ONCE


def read_plainly(where: Layout, known: Known, body: list, columns: Columns) -> bool:
    """Read all instructions; False for what is not known here."""
    reader = _Reader(where, known, body, columns)
    return all(reader.read(slice(first, min(first + _AT_ONCE, len(body))))
               for first in range(0, len(body), _AT_ONCE))  # fmt: skip


class _Reader:
    """Reads some instructions at once."""

    def __init__(self, where: Layout, known: Known, body: list, columns: Columns):
        self.where, self.known, self.body, self.columns = where, known, body, columns
        self.address = listed(body, where)
        self.forms, self.letters = (_Sorted(kind) for kind in (np.int64, np.uint64))

    def read(self, part: slice) -> bool:
        """Read a part; False for what is not known here."""
        where, words, known = self.where, memory().take, self.known
        at = (self.address[part] >> 3) - 1
        plain = (words(at + where.type) == id(Instruction)) & (words(at + where.after) == id(()))
        if not plain.all():
            return False
        address = words(at + where.form)
        form, new = self.forms.numbers(address)
        if not all(known.add_form(self.body[part.start + n].form) for n in new):
            return False
        self.columns.widen(len(known.place))
        mixed = address.astype(np.uint64) * np.uint64(ODD)
        way = self.look((words(at + where.operands) >> 3) - 1 + where.items, form, part, mixed)
        return way is not None and self.name(mixed, form, way, part)

    def name(self, mixed: np.ndarray, form: np.ndarray, way: np.ndarray, part: slice) -> bool:
        """Number the letters; False where there are too many, or two have one mixed number."""
        known = self.known
        letter, new = self.letters.numbers(mixed)
        known.room(known.count + len(new))
        own = slice(known.count, known.count + len(new))
        known.mixed[own], known.form[own] = mixed[new], form[new]
        known.way[own, : len(way)] = way[:, new].T
        known.count += len(new)
        self.columns.letter[part] = letter
        if too_many(known.count, part.stop) or (known.form[letter] != form).any():
            return False
        return all((known.way[letter, k] == own).all() for k, own in enumerate(way))

    def look(self, items, form: np.ndarray, part: slice, mixed: np.ndarray) -> np.ndarray | None:
        """The ways of looking, which are mixed in; None with a runtime index.  Notes buffers."""
        where, words, known = self.where, memory().take, self.known
        way = np.zeros((len(known.place), len(form)), np.int64)
        for k, place in enumerate(known.place):
            own = place[form]
            some = slice(None) if (place >= 0).all() else np.flatnonzero(own >= 0)
            view = (words(items[some] + own[some]) >> 3) - 1
            if (words(view + where.index) != id(None)).any():
                return None
            self.columns.buffer[k, part][some] = words(view + where.buffer)
            chip = ~known.hbm[k][form[some]]
            found = words(view + where.facts)
            if (found[chip] == 0).any():
                self.ask(np.arange(len(form))[some][chip & (found == 0)], own, part.start)
                found = words(view + where.facts)
            way[k][some] = found * chip
            number = (mixed[some] ^ way[k][some].astype(np.uint64)) * np.uint64(ODD)
            mixed[some] = number ^ number >> np.uint64(SHIFT)
        return way

    def ask(self, rows: np.ndarray, place: np.ndarray, first: int) -> None:
        """Ask views for their ways of looking, where nobody has: then they are in their slots."""
        for n in rows.tolist():
            self.body[first + n].operands[place[n]]._facts  # noqa: B018


class _Sorted:
    """Numbers for keys in the order of their first use, where there are few different ones."""

    def __init__(self, kind: type):
        self.keys, self.number = np.zeros(0, kind), np.zeros(0, np.int64)

    def numbers(self, keys: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """The number of each key, and the places of those that are new, in order."""
        if len(self.keys):
            at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            unknown = np.flatnonzero(self.keys[at] != keys)
        else:
            at, unknown = np.zeros(len(keys), np.int64), np.arange(len(keys))
        if not len(unknown):
            return self.number[at], []
        new = unknown[np.sort(np.unique(keys[unknown], return_index=True)[1])]
        every = np.concatenate((self.keys, keys[new]))
        number = np.concatenate((self.number, len(self.number) + np.arange(len(new))))
        order = np.argsort(every)
        self.keys, self.number = every[order], number[order]
        return self.number[np.searchsorted(self.keys, keys)], new.tolist()


__all__ = ["ODD", "SHIFT", "Columns", "Known", "Letters", "letters_of", "too_many"]
