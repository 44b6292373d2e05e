"""The accesses of a straight-line program as columns: which instruction touches which view.

Reading millions of Python objects costs more than what is then done with them, so it is done once,
and what follows from a way of looking, or from the sort of a tile, stands once.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from opentrn.isa import (
    Buffer,
    Instruction,
    OperandForm,
    Program,
    RegIn,
    RegisterForm,
    RegOut,
    Sort,
    View,
)
from opentrn.sim.rows import READS, WRITES


class Accesses(NamedTuple):
    """Instructions by form, and their accesses in the order in which waits are looked for.

    Access `a` of instruction `i` (`start[i]` ≤ a < `start[i + 1]`, reads first) is through
    `views[a]`; `writes[a]` tells writes from reads.  `form[i]` is a number in `forms`, `buffer[a]`
    one in `buffers`, `way[a]` one for each way in which views look at tiles of one sort (and one
    for all that look at HBM); all are numbered by their first use.  Buffer `b` is like
    `sorts[sort[b]]`, has the id `ids[b]`, and is touched from instruction `first[b]` to `last[b]`;
    `fixed`: some have addresses of their own.
    """

    forms: list
    form: np.ndarray
    start: np.ndarray
    writes: np.ndarray
    views: Sequence[View]
    way: np.ndarray
    buffer: np.ndarray
    buffers: Sequence[Buffer]
    sorts: list[Sort]
    sort: np.ndarray
    ids: np.ndarray
    fixed: bool
    first: np.ndarray
    last: np.ndarray

    def lifetimes(self) -> dict[Buffer, tuple[int, int]]:
        """As `place.lifetimes`."""
        lives = zip(self.buffers, self.first.tolist(), self.last.tolist(), strict=True)
        return {buffer: (begin, end) for buffer, begin, end in lives if buffer.on_chip}

    def of_sort(self, what: Callable[[Sort], Any]) -> np.ndarray:
        """Something that follows from its sort, of each buffer."""
        return np.array(list(map(what, self.sorts)))[self.sort]

    def on_chip(self) -> np.ndarray:
        """Which buffers are tiles."""
        return self.of_sort(attrgetter("on_chip"))


class Operands(Sequence):
    """The views of all accesses, each looked up when it is asked for.

    `kinds`: where each form's accesses begin, and which operand each is.
    """

    def __init__(self, body: list, form: np.ndarray, start: np.ndarray, kinds: tuple):
        self.body, self.form, self.start, self.kinds = body, form, start, kinds

    def __len__(self) -> int:
        return int(self.start[-1])

    def __getitem__(self, n):
        at = self.start.searchsorted(n, "right") - 1
        begins, place = self.kinds
        return self.body[at].operands[place[begins[self.form[at]] + n - self.start[at]]]

    def operands(self, access: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Instructions, and which operand of theirs each of some views is."""
        begins, place = self.kinds
        at = np.searchsorted(self.start, access, side="right") - 1
        return at, place[begins[self.form[at]] + access - self.start[at]]


def taken(views: Sequence[View], some: np.ndarray) -> list[View]:
    """The views of some accesses."""
    if not isinstance(views, Operands):
        return [views[n] for n in some.tolist()]
    columns, body = views.operands(some), views.body
    pairs = zip(*(column.tolist() for column in columns), strict=True)
    return [body[i].operands[n] for i, n in pairs]


def accesses_of(program: Program) -> Accesses | None:
    """The table of a program; None where it has device loops, registers, runtime indices or
    explicit waits.
    """
    body = program.body
    if set(map(type, body)) != {Instruction} or any(map(attrgetter("after"), body)):
        return None
    form, forms = _numbered([one.form for one in body])
    places = [places_of(one) for one in forms]
    if any(one is None for one in places):
        return None
    counts = np.array([len(reads) + len(writes) for reads, writes in places], np.int64)
    start = np.zeros(len(body) + 1, np.int64)
    np.cumsum(counts[form], out=start[1:])
    every = [reads + writes for reads, writes in places]
    views = [one.operands[n] for one, k in zip(body, form.tolist(), strict=True) for n in every[k]]
    if any(view.index is not None for view in views):
        return None
    writes = [n >= len(places[k][0]) for k in form.tolist() for n in range(len(every[k]))]
    way, _ = _numbered([id(view._facts) if view.buffer.on_chip else 0 for view in views])
    buffer, buffers = _numbered([view.buffer for view in views])
    sort, sorts = _numbered([one.sort for one in buffers])
    ids = np.array([one.id for one in buffers], np.int64)
    fixed = any(one.on_chip and one.address is not None for one in buffers)
    first, last = _lives(start, buffer, len(buffers))
    return Accesses(forms, form, start, np.array(writes, bool), views, way, buffer, buffers, sorts,
                    sort, ids, fixed, first, last)  # fmt: skip


def _numbered(keys: list) -> tuple[np.ndarray, list]:
    """A number for each key by its first use, and the keys."""
    known = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    return np.fromiter(map(known.__getitem__, keys), np.int32, len(keys)), list(known)


def _lives(start: np.ndarray, buffer: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first and last instruction that touches each buffer."""
    instance = np.repeat(np.arange(len(start) - 1), np.diff(start))
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)
    # Of what is assigned to one place the last one stays.
    last[buffer] = instance
    first[buffer[::-1]] = instance[::-1]
    return first, last


def places_of(form: Any) -> tuple[list[int], list[int]] | None:
    """Which operands a form reads and writes in memory; None where it uses registers."""
    reads: list[int] = []
    writes: list[int] = []
    for n, (declared, given) in enumerate(zip(form.operands.values(), form.given, strict=True)):
        if isinstance(declared, RegIn | RegOut) or isinstance(given, RegisterForm):
            return None
        if isinstance(given, OperandForm):
            reads += [n] * (declared.role in READS)
            writes += [n] * (declared.role in WRITES)
    return reads, writes


__all__ = ["Accesses", "Operands", "accesses_of", "places_of", "taken"]
