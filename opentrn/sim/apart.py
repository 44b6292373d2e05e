"""Tensors in HBM of which no two accesses share a byte: nobody waits there for anybody.

A result that is written tile by tile is the common case.  Accesses are looked at as boxes, rows of
one pitch × bytes; what is not seen to be apart counts as together.
"""

from typing import NamedTuple

import numpy as np

from opentrn.isa import Buffer, Program, View
from opentrn.sim.letters import Letters


class Together(NamedTuple):
    """Changing tensors of a program: those whose accesses are `apart`, and at which instructions
    (sorted) others are accessed."""

    apart: set[Buffer]
    at: np.ndarray


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
    views = [program.body[i].operands[n] for i, n in zip(at.tolist(), place.tolist(), strict=True)]
    buffers, which = np.unique(address, return_inverse=True)
    apart, rest = set(), []
    for number in range(len(buffers)):
        own = np.flatnonzero(which == number)
        if all_apart([views[n] for n in own.tolist()]):
            apart.add(views[own[0]].buffer)
        else:
            rest.append(at[own])
    return Together(apart, np.sort(np.concatenate(rest)) if rest else np.zeros(0, np.int64))


def all_apart(views: list[View]) -> bool:
    """Whether no two views of one buffer in HBM are seen to share a byte."""
    kinds: dict[tuple, int] = {}
    looks = [(view.steps, id(view.dtype)) for view in views]
    number = np.array([kinds.setdefault(look, len(kinds)) for look in looks], np.int64)
    regions, sizes = _regions(views, number, len(kinds))
    low = np.array([view.offset for view in views], np.int64) * sizes[number]
    low += np.array([region[0] for region in regions], np.int64)[number]
    high = low + np.array([region[1] for region in regions], np.int64)[number]
    if _follow(low, high):
        return True
    pitch = _pitch(views[0].buffer, regions)
    run = np.array([region[2] for region in regions], np.int64)[number]
    even = [all(stride % pitch == 0 for stride, _ in region[3]) for region in regions]
    row, column = low // pitch, low % pitch
    narrow = np.array(even, bool)[number] & (column + run <= pitch)
    left, right = np.where(narrow, column, 0), np.where(narrow, column + run, pitch)
    return _boxes_apart(row, -(-high // pitch), left, right)


def _regions(views: list[View], number: np.ndarray, count: int) -> tuple[list, np.ndarray]:
    """Of each kind of view: first byte from its offset on, bytes to the last, run, strides; and the
    bytes of an element.
    """
    found, sizes = [], []
    for at in np.unique(number, return_index=True)[1][:count].tolist():
        view = views[at]
        _, _, _, low, high, run, dims = view._region
        sizes.append(view.dtype.itemsize)
        found.append((low - view.offset * view.dtype.itemsize, high - low, run, dims))
    return found, np.array(sizes, np.int64)


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
