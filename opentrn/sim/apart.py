"""Tensors in HBM of which no two accesses share a byte: nobody waits there for anybody.

A result that is written tile by tile is the common case.  Accesses are looked at as boxes, rows of
one pitch × bytes; what is not seen to be apart counts as together.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from opentrn.isa import Buffer, Program, View
from opentrn.sim.accesses import Operands, taken
from opentrn.sim.letters import ODD, SHIFT, Letters
from opentrn.sim.words import integers, layout, listed, memory


class Together(NamedTuple):
    """Changing tensors of a program: those whose accesses are `apart`, and at which instructions
    (sorted) others are accessed."""

    apart: set[Buffer]
    at: np.ndarray


class _Looks(NamedTuple):
    """Views of one buffer: the offset of each, and its number among `kinds`, which look alike but
    for the offset.
    """

    offset: np.ndarray
    number: np.ndarray
    kinds: list[View]


def together(program: Program, letters: Letters) -> Together | None:
    """What is known of a program's tensors in HBM; None where a constant one is written."""
    fixed = set(program.inputs) | set(program.constants)
    fixed -= {*program.mutated, *program.outputs}
    unchanging = np.array([id(buffer) for buffer in fixed], np.int64)
    at, place, address = [], [], []
    for k in range(len(letters.place)):
        rows = np.flatnonzero(letters.hbm[k][letters.form][letters.letter])
        buffer, form = letters.buffer[k, rows], letters.form_of(rows)
        changing = ~np.isin(buffer, unchanging)
        if letters.writes[k][form[~changing]].any():
            return None
        at.append(rows[changing])
        place.append(letters.place[k][form[changing]])
        address.append(buffer[changing])
    at, place, address = (np.concatenate(column) for column in (at, place, address))
    apart, rest = set(), []
    for buffer in np.unique(address).tolist():
        own = address == buffer
        looks = _read(program.body, at[own], place[own])
        if _all_apart(looks):
            apart.add(looks.kinds[0].buffer)
        else:
            rest.append(at[own])
    return Together(apart, np.sort(np.concatenate(rest)) if rest else np.zeros(0, np.int64))


def all_apart(views: Sequence[View], some: np.ndarray) -> bool:
    """Whether no two of some views of one buffer in HBM are seen to share a byte."""
    if isinstance(views, Operands) and layout() is not None:
        return _all_apart(_read(views.body, *views.operands(some)))
    return _all_apart(_asked(taken(views, some)))


def _asked(views: list[View]) -> _Looks:
    """How views look, asked one by one."""
    known: dict[tuple, int] = {}
    looks = [(view.steps, id(view.dtype)) for view in views]
    number = np.array([known.setdefault(look, len(known)) for look in looks], np.int64)
    first = np.unique(number, return_index=True)[1]
    kinds = [views[n] for n in first.tolist()]
    return _Looks(np.array([view.offset for view in views], np.int64), number, kinds)


def _read(body: list, at: np.ndarray, place: np.ndarray) -> _Looks:
    """How the views that are operands `place` of instructions `at` look, from words of memory."""
    where, words = layout(), memory()
    operands = words[(listed(body, where)[at] >> 3) - 1 + where.operands]
    view = (words[(operands >> 3) - 1 + where.items + place] >> 3) - 1
    steps = (words[view + where.steps] >> 3) - 1
    offset, known = integers(words[view + where.offset], where)
    columns = [words[view + where.dtype], words[steps + where.items - 1]]
    for dim in range(int(columns[1].max())):
        # Where a view has fewer dimensions its first one stands for those it has not.
        pair = (words[steps + where.items + np.where(dim < columns[1], dim, 0)] >> 3) - 1
        for part in range(2):
            value, read = integers(words[pair + where.items + part], where)
            columns.append(value)
            known &= read
    mixed = np.zeros(len(at), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(ODD)
        mixed ^= mixed >> np.uint64(SHIFT)
    first, number = np.unique(mixed, return_index=True, return_inverse=True)[1:]
    if not known.all() or any((column[first][number] != column).any() for column in columns):
        return _asked([body[i].operands[n] for i, n in zip(at.tolist(), place.tolist(),
                                                            strict=True)])  # fmt: skip
    kinds = [body[at[n]].operands[place[n]] for n in first.tolist()]
    return _Looks(offset, number, kinds)


def _all_apart(looks: _Looks) -> bool:
    """Whether no two views are seen to share a byte."""
    number, regions, sizes = looks.number, *_regions(looks.kinds)
    low = looks.offset * sizes[number]
    low += np.array([region[0] for region in regions], np.int64)[number]
    high = low + np.array([region[1] for region in regions], np.int64)[number]
    if _follow(low, high):
        return True
    pitch = _pitch(looks.kinds[0].buffer, regions)
    run = np.array([region[2] for region in regions], np.int64)[number]
    even = [all(stride % pitch == 0 for stride, _ in region[3]) for region in regions]
    row, column = low // pitch, low % pitch
    narrow = np.array(even, bool)[number] & (column + run <= pitch)
    left, right = np.where(narrow, column, 0), np.where(narrow, column + run, pitch)
    return _boxes_apart(row, -(-high // pitch), left, right)


def _regions(kinds: list[View]) -> tuple[list, np.ndarray]:
    """Of each kind of view: first byte from its offset on, bytes to the last, run, strides; and the
    bytes of an element.
    """
    sizes, found = np.array([view.dtype.itemsize for view in kinds], np.int64), []
    for view, size in zip(kinds, sizes.tolist(), strict=True):
        _, _, _, low, high, run, dims = view._region
        found.append((low - view.offset * size, high - low, run, dims))
    return found, sizes


def _pitch(buffer: Buffer, regions: list[tuple]) -> int:
    """Bytes of a row: as the first view that has rows sees it."""
    for _, _, _, dims in regions:
        if dims:
            return max(abs(dims[-1][0]), 1)
    return buffer.shape[-1] * buffer.dtype.itemsize


def _follow(low: np.ndarray, high: np.ndarray) -> bool:
    """Whether stretches [low, high) share nothing."""
    order = np.argsort(low, kind="stable")
    return bool((high[order][:-1] <= low[order][1:]).all())


def _boxes_apart(top, bottom, left, right) -> bool:
    """Whether boxes share nothing: those of equal rows lie side by side, other rows are apart."""
    order = np.lexsort((left, top))
    top, bottom, left, right = (column[order] for column in (top, bottom, left, right))
    same = (top[1:] == top[:-1]) & (bottom[1:] == bottom[:-1])
    beside = right[:-1] <= left[1:]
    return bool(np.where(same, beside, bottom[:-1] <= top[1:]).all())


__all__ = ["Together", "all_apart", "together"]
