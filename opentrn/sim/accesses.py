"""The accesses of a straight-line program as columns: which instruction touches which view.

Reading millions of Python objects costs more than what is then done with them, so it is done once
and in few passes: instructions are taken by form, whose operands are alike, and what depends on a
view only is found once for each view.
"""

from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from opentrn.isa import Buffer, Instruction, OperandForm, Program, RegIn, RegisterForm, RegOut, View
from opentrn.sim.rows import READS, WRITES


class Accesses(NamedTuple):
    """Instructions by form, and their accesses in the order in which waits are looked for.

    Access `a` of instruction `i` (`start[i]` ≤ a < `start[i + 1]`, reads first) touches
    `views[view[a]]`; `writes[a]` tells writes from reads.  `form[i]` is a number in `forms`,
    `buffer[v]` that of a view's buffer in `buffers`, `way[v]` one for each way in which views look
    at buffers of one sort; all are numbered by their first use.  Buffer `b` is touched from
    instruction `first[b]` to `last[b]`.
    """

    forms: list
    form: np.ndarray
    start: np.ndarray
    view: np.ndarray
    writes: np.ndarray
    views: Sequence[View]
    way: np.ndarray
    buffer: np.ndarray
    buffers: list[Buffer]
    first: np.ndarray
    last: np.ndarray

    def lifetimes(self) -> dict[Buffer, tuple[int, int]]:
        """As `place.lifetimes`."""
        lives = zip(self.buffers, self.first.tolist(), self.last.tolist(), strict=True)
        return {buffer: (begin, end) for buffer, begin, end in lives if buffer.on_chip}


def accesses_of(program: Program) -> Accesses | None:
    """The table of a program; None where it has device loops, registers, runtime indices or
    explicit waits.
    """
    body = program.body
    if set(map(type, body)) != {Instruction} or any(map(attrgetter("after"), body)):
        return None
    forms = [one.form for one in body]
    number = {form: n for n, form in enumerate(dict.fromkeys(forms))}
    places = [places_of(one) for one in number]
    if any(one is None for one in places):
        return None
    form = np.fromiter(map(number.__getitem__, forms), np.int32, len(body))
    counts = np.array([len(reads) + len(writes) for reads, writes in places], np.int64)
    start = np.zeros(len(body) + 1, np.int64)
    np.cumsum(counts[form], out=start[1:])
    operands = [one.operands for one in body]
    key, place, writes = _by_form(operands, form, start, places)
    _, at, which = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(at)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    at = at[order]
    owner = np.searchsorted(start, at, side="right") - 1
    views = [operands[i][n] for i, n in zip(owner.tolist(), place[at].tolist(), strict=True)]
    if any(view.index is not None for view in views):
        return None
    way, _ = _numbered([id(view._facts) for view in views])
    buffer, buffers = _numbered([view.buffer for view in views])
    first, last = _lives(start, buffer[rank[which]], len(buffers))
    return Accesses(list(number), form, start, rank[which], writes, views, way, buffer, buffers,
                    first, last)  # fmt: skip


def _numbered(keys: list) -> tuple[np.ndarray, list]:
    """A number for each key by its first use, and the keys."""
    known = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    return np.fromiter(map(known.__getitem__, keys), np.int64, len(keys)), list(known)


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


def _by_form(operands: list, form: np.ndarray, start: np.ndarray, places: list) -> tuple:
    """Of each access: what identifies its view, which operand it is, whether it is a write."""
    key = np.empty(start[-1], np.int64)
    place = np.empty(len(key), np.int16)
    writes = np.empty(len(key), bool)
    order = np.argsort(form, kind="stable")
    ends = np.cumsum(np.bincount(form, minlength=len(places)))
    begin = 0
    for (reads, written), end in zip(places, ends.tolist(), strict=True):
        rows = order[begin:end]
        own = [operands[i] for i in rows.tolist()]
        for k, n in enumerate(reads + written):
            at = start[rows] + k
            key[at] = np.fromiter(map(id, map(itemgetter(n), own)), np.int64, len(own))
            place[at], writes[at] = n, k >= len(reads)
        begin = end
    return key, place, writes


__all__ = ["Accesses", "accesses_of", "places_of"]
