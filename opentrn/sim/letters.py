"""A straight-line program as letters: equal ones are instructions of one form that look in one way.

A letter stands for the form of an instruction and the ways in which its operands look at tiles on
chip (`View._facts`); not for which tiles those are, and not for the part of HBM a transfer uses.
Loops that were unrolled show as letters that repeat (`sim.recur`).  Found for all instructions at
once, from words of memory (`sim.words`).
"""

from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from opentrn.isa import Instruction, Program
from opentrn.sim.accesses import places_of
from opentrn.sim.words import Layout, addresses, layout, memory

_AT_ONCE = 1 << 14  # instructions; their columns stay in the processor's cache
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Letters(NamedTuple):
    """Instruction i has form `forms[form[i]]` (numbered by first use); its access k is operand
    `place[k, form[i]]` (-1: it has fewer), written where `writes`, in HBM where `hbm`; reads first.

    `way[k, i]` tells ways of looking at tiles on chip from each other (0: in HBM, or none),
    `buffer[k, i]` is the address of the buffer object.  `letter` mixes form and ways into one
    number: different numbers are different letters, equal ones have to be looked at.
    """

    forms: list
    place: np.ndarray
    writes: np.ndarray
    hbm: np.ndarray
    form: np.ndarray
    letter: np.ndarray
    way: np.ndarray
    buffer: np.ndarray


class _Forms:
    """Forms by their addresses, and where each has its accesses."""

    def __init__(self):
        self.forms: list = []
        self.known = np.zeros(0, np.int64)
        self.number = np.zeros(0, np.int64)
        self.place, self.writes, self.hbm = [], [], []

    def numbers(self, found: np.ndarray, body: list, first: int) -> np.ndarray | None:
        """The numbers of forms at these addresses; None where one is out of the ordinary."""
        at = np.searchsorted(self.known, found)
        np.minimum(at, max(len(self.known) - 1, 0), out=at)
        new = np.flatnonzero(self.known[at] != found) if len(self.known) else np.arange(len(found))
        if not len(new):
            return self.number[at]
        for n in new[np.sort(np.unique(found[new], return_index=True)[1])].tolist():
            if not self.add(body[first + n].form):
                return None
        order = sorted(range(len(self.forms)), key=lambda n: id(self.forms[n]))
        self.known = np.array([id(self.forms[n]) for n in order], np.int64)
        self.number = np.array(order, np.int64)
        return self.numbers(found, body, first)

    def add(self, form: Any) -> bool:
        """One more form; False where it uses registers or the cores meet in it."""
        places = places_of(form)
        if places is None or form.meets:
            return False
        reads, writes = places
        self.forms.append(form)
        self.place.append(reads + writes)
        self.writes.append([False] * len(reads) + [True] * len(writes))
        self.hbm.append([form.given[n].space == "hbm" for n in reads + writes])
        return True

    def table(self, name: str, rest: Any, kind: type) -> np.ndarray:
        """A list of lists as (access, form)."""
        lists = getattr(self, name)
        most = max(map(len, lists), default=0)
        padded = [own + [rest] * (most - len(own)) for own in lists]
        return np.array(padded, kind).reshape(len(lists), most).T.copy()


def letters_of(program: Program) -> Letters | None:
    """The letters of a program; None where it has device loops, registers, runtime indices,
    explicit waits, meetings of cores, or objects cannot be read as words.
    """
    where, body, forms = layout(), program.body, _Forms()
    if where is None:
        return None
    source, parts = iter(body), []
    for first in range(0, len(body), _AT_ONCE):
        objects = np.fromiter(islice(source, _AT_ONCE), object)
        part = _Part(where, forms).read(objects, body, first)
        if part is None:
            return None
        parts.append(part)
    if not parts:
        return None
    most = max(len(part[2]) for part in parts)
    form, letter = (np.concatenate([part[n] for part in parts]) for n in range(2))
    way, buffer = (_joined([part[n] for part in parts], most) for n in (2, 3))
    return Letters(forms.forms, forms.table("place", -1, np.int64),
                   forms.table("writes", False, bool), forms.table("hbm", False, bool),
                   form, letter, way, buffer)  # fmt: skip


def _joined(columns: list[np.ndarray], most: int) -> np.ndarray:
    """Columns of all parts side by side, each with `most` rows."""
    found = np.zeros((most, sum(part.shape[1] for part in columns)), np.int64)
    at = 0
    for part in columns:
        found[: len(part), at : at + part.shape[1]] = part
        at += part.shape[1]
    return found


class _Part:
    """Some instructions that follow each other."""

    def __init__(self, where: Layout, forms: _Forms):
        self.where, self.forms = where, forms

    def read(self, objects: np.ndarray, body: list, first: int) -> tuple | None:
        """(form, letter, way, buffer) of these instructions; None for what is not known here."""
        where, words = self.where, memory()
        at = (addresses(objects) >> 3) - 1
        kinds, waits = words[at + where.type], words[at + where.after]
        if (kinds != id(Instruction)).any() or (waits != id(())).any():
            return None
        address = words[at + where.form]
        form = self.forms.numbers(address, body, first)
        if form is None:
            return None
        items = (words[at + where.operands] >> 3) - 1 + where.items
        letter = address.astype(np.uint64) * _ODD
        place, hbm = self.forms.table("place", -1, np.int64), self.forms.table("hbm", False, bool)
        way, buffer = np.zeros((2, len(place), len(form)), np.int64)
        for k in range(len(place)):
            own = place[k][form]
            some = slice(None) if (place[k] >= 0).all() else np.flatnonzero(own >= 0)
            if not len(own[some]):
                continue
            view = (words[items[some] + own[some]] >> 3) - 1
            if (words[view + where.index] != id(None)).any():
                return None
            buffer[k][some] = words[view + where.buffer]
            here = ~hbm[k][form[some]]
            way[k][some] = np.where(here, self.ways(view, here, (some, own), body, first), 0)
            letter ^= way[k].astype(np.uint64)
            letter *= _ODD
            letter ^= letter >> np.uint64(29)
        return form.astype(np.int32), letter, way, buffer

    def ways(self, view: np.ndarray, here: np.ndarray, of: tuple, body: list, first: int):
        """What is known of each view's way of looking; asked for where nobody has asked yet."""
        at = view + self.where.facts
        found = memory()[at]
        missing = np.flatnonzero((found == 0) & here)
        if len(missing):
            some, own = of
            row = np.arange(len(own))[some][missing]
            for n, place in zip(row.tolist(), own[row].tolist(), strict=True):
                body[first + n].operands[place]._facts  # noqa: B018  once, it stands in its slot
            found = memory()[at]
        return found


__all__ = ["Letters", "letters_of"]
