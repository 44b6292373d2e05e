"""The regions of buffers that a program accesses, and which of them meet: each pair judged once."""

from typing import NamedTuple

import numpy as np
from numba import njit

from opentrn.isa import View
from opentrn.sim.accesses import Accesses, taken
from opentrn.sim.accesses_fast import ODD, numbered
from opentrn.sim.overlaps import Box, Shapes

_MOST = 20_000  # regions of one buffer
_JUDGED = 200_000  # pairs of regions that are not dense
_compiled = njit(cache=True, nogil=True, error_model="numpy", _nrt=False)
_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


class Regions(NamedTuple):
    """Regions numbered buffer by buffer, those of buffer `b` from `begin[b]` to `begin[b + 1]`.

    What a region meets in its buffer, itself included, stands in `meets[low[r] : high[r]]`,
    counted from the buffer's first region; where a write to it also replaces an earlier access to
    the other, `replaces` is set.  `whole[r]` is the whole buffer, which meets everything.
    `of_access` has codes below 0 for accesses that were not asked for.  Buffer `b` is number
    `buffers[b]` of the table.
    """

    buffers: np.ndarray
    begin: np.ndarray
    buffer: np.ndarray
    whole: np.ndarray
    low: np.ndarray
    high: np.ndarray
    meets: np.ndarray
    replaces: np.ndarray
    of_access: np.ndarray


class _Kind(NamedTuple):
    """Buffers that are accessed in the same regions."""

    whole: np.ndarray
    low: np.ndarray
    high: np.ndarray


def regions_of(table: Accesses, codes: np.ndarray) -> Regions | None:
    """The regions of all accesses to buffers whose code is 0; accesses to others get their codes.

    None where a buffer has too many of them, or too many that are not dense.
    """
    kept = codes == 0
    buffers = np.flatnonzero(kept)
    number = np.where(kept, np.cumsum(kept) - 1, codes)
    looks = _boxes_of(table, kept)
    of_access, at = _numbered_regions(table, number, looks, len(buffers))
    buffer, box = number[table.buffer[at]], looks.box(table, at)
    order = np.argsort(buffer, kind="stable")  # buffer by buffer
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order))
    _moved(of_access, place)
    at, buffer, box = at[order], buffer[order], box[order]
    begin = np.zeros(len(buffers) + 1, np.int64)
    np.cumsum(np.bincount(buffer, minlength=len(buffers)), out=begin[1:])
    kinds, found = _Kinds(), _alike(box, begin)
    if found is None:
        return None
    kind, alike = found
    counts = np.diff(begin)[alike]
    some = np.repeat(begin[alike] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    pairs = list(zip([looks.boxes[n] for n in box[some].tolist()], taken(table.views, at[some]),
                     strict=True))  # fmt: skip
    for end, count in zip(np.cumsum(counts).tolist(), counts.tolist(), strict=True):
        if not kinds.add(pairs[end - count : end]):
            return None
    inside = np.arange(len(at)) - begin[buffer] + kinds.begins()[kind][buffer]
    whole, low, high = (column[inside] for column in kinds.columns())
    return Regions(buffers, begin, buffer, whole, low, high, *kinds.lists(), of_access)


class _Looks(NamedTuple):
    """The numbers of boxes in `boxes`, equal where they are one region: of each way of looking at
    tiles, and of the accesses `far` (sorted) to tensors in HBM.

    On chip all that look in one way at tiles of one sort have one box; in HBM rows depend on the
    tensor.
    """

    of_way: np.ndarray
    far: np.ndarray
    of_far: np.ndarray
    boxes: list[Box]

    def box(self, table: Accesses, access: np.ndarray) -> np.ndarray:
        """The numbers of the boxes of accesses."""
        found = self.of_way[table.way[access]]
        is_far = np.isin(access, self.far)
        found[is_far] = self.of_far[np.searchsorted(self.far, access[is_far])]
        return found


def _boxes_of(table: Accesses, kept: np.ndarray) -> _Looks:
    """How all accesses to the buffers that are `kept` look at them."""
    shapes, boxes, known = Shapes(), [], {}

    def number(view: View) -> int:
        box = shapes.box(view)
        # On chip `Shapes` makes one box for each region.
        key = id(box) if view.buffer.on_chip else (view.buffer, box.key)
        if key not in known:
            known[key] = len(boxes)
            boxes.append(box)
        return known[key]

    on_chip = table.on_chip()
    first = np.full(int(table.way.max(initial=-1)) + 1, -1, np.int64)
    _firsts(table.way, first)
    tile = on_chip[table.buffer[first]]
    of_way = np.full(len(first), -1, np.int64)
    of_way[tile] = list(map(number, taken(table.views, first[tile])))
    far = np.flatnonzero((kept & ~on_chip)[table.buffer])
    of_far = np.array(list(map(number, taken(table.views, far))), np.int64)
    return _Looks(of_way, far, of_far, boxes)


def _numbered_regions(table: Accesses, number: np.ndarray, looks: _Looks, buffers: int):
    """A number for the region of each access, by first use (or the code of its buffer, below 0),
    and the access that used each first.
    """
    of_access, size = np.empty(len(table.buffer), np.int32), 1 << 12
    far, of_far = (np.append(column, -1) for column in (looks.far, looks.of_far))
    while size < 4 * buffers:
        size *= 2
    while True:
        first = np.empty(size // 2, np.int64)
        state = np.full(size, -1, np.int32), np.empty(size // 2, np.int64), first
        count = _regions(table.buffer, table.way, number, looks.of_way, far, of_far,
                         len(looks.boxes), state, of_access)  # fmt: skip
        if count >= 0:
            return of_access, first[:count].copy()
        size *= 4


@_compiled
def _firsts(way, first):
    """The first access of each way of looking."""
    for a in range(len(way)):
        if first[way[a]] < 0:
            first[way[a]] = a


@_compiled
def _regions(buffer, way, number, of_way, far, of_far, boxes, state, of_access):
    """How many regions there are, or -1 where the table is too small."""
    table, keys, first = state
    count, mask, f = 0, len(table) - 1, 0
    for a in range(len(buffer)):
        b = number[buffer[a]]
        if b < 0:
            of_access[a] = b
            continue
        box = of_way[way[a]]
        if far[f] == a:
            box = of_far[f]
            f += 1
        key = b * boxes + box
        at = (key * ODD >> 20) & mask
        while table[at] >= 0 and keys[table[at]] != key:
            at = (at + 1) & mask
        if table[at] < 0:
            if count == len(first):
                return -1
            table[at], keys[count], first[count] = count, key, a
            count += 1
        of_access[a] = table[at]
    return count


@_compiled
def _moved(of_access, place):
    """Other numbers for regions."""
    for a in range(len(of_access)):
        if of_access[a] >= 0:
            of_access[a] = place[of_access[a]]


def _alike(box: np.ndarray, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Numbers of kinds: buffers accessed in the same boxes are of one.  And the first of each.

    Found by one number for each buffer, then looked at; None where that number misled.
    """
    counts = np.diff(begin)
    inside = np.arange(len(box)) - np.repeat(begin[:-1], counts)
    mixed = (box + 1).astype(np.uint64) * _ODD[0]
    mixed ^= (mixed >> np.uint64(29)) + inside.astype(np.uint64) * _ODD[1]
    mixed *= _ODD[2]
    mixed ^= mixed >> np.uint64(32)
    kind, first = numbered(np.add.reduceat(mixed, begin[:-1]).view(np.int64))
    like = first[kind]
    same = counts[like] == counts
    if not same.all() or (box[np.repeat(begin[like], counts) + inside] != box).any():
        return None
    return kind, first


class _Kinds:
    """What is known of buffers by their regions; most are like another."""

    def __init__(self):
        self.made: list[_Kind] = []
        self.meets: list[np.ndarray] = []
        self.replaces: list[np.ndarray] = []
        self.count = 0

    def begins(self) -> np.ndarray:
        """Where the regions of each kind begin in `columns`."""
        return np.cumsum([0, *(len(kind.whole) for kind in self.made)])[:-1]

    def columns(self) -> list[np.ndarray]:
        """`_Kind` of all kinds, one after the other."""
        return [np.concatenate(column) for column in zip(*self.made, strict=True)]

    def lists(self) -> tuple[np.ndarray, np.ndarray]:
        """`Regions.meets` and `Regions.replaces`."""
        return np.concatenate(self.meets), np.concatenate(self.replaces)

    def add(self, own: list[tuple[Box, View]]) -> bool:
        """One more kind; False where it has too many regions."""
        made = self._made(own)
        if made is not None:
            self.made.append(made)
        return made is not None

    def _made(self, own: list[tuple[Box, View]]) -> _Kind | None:
        if len(own) > _MOST:
            return None
        boxes = np.array([box[:4] for box, _ in own], np.int64)
        exact, covers, whole = np.array([box[4:7] for box, _ in own], bool).T
        one, other = _meetings(boxes)
        same, all_of = one == other, whole[one] | whole[other]
        doubtful = np.flatnonzero(~(exact[one] & exact[other] | all_of | same))
        if len(doubtful) > _JUDGED:
            return None
        met = np.ones(len(one), bool)
        for k in doubtful.tolist():
            met[k] = own[one[k]][1].overlaps(own[other[k]][1])
        one, other = one[met], other[met]
        a, b = boxes[one].T, boxes[other].T
        inside = (a[0] <= b[0]) & (b[1] <= a[1]) & (a[2] <= b[2]) & (b[3] <= a[3])
        inside &= covers[one] & ~whole[other]
        self.meets.append(other)
        self.replaces.append(inside | whole[one] | (one == other))
        ends = self.count + np.cumsum(np.bincount(one, minlength=len(own)))
        begins = np.concatenate(([self.count], ends[:-1]))
        self.count = int(ends[-1])
        return _Kind(whole, begins, ends)


def _meetings(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of boxes that meet, each with itself too, sorted."""
    order, room = np.argsort(boxes[:, 0], kind="stable"), 4 * len(boxes) + 64
    while True:
        pairs = np.empty((2, room), np.int64)
        count = _swept(boxes, order, pairs)
        if count >= 0:
            one, other = pairs[:, :count]
            sort = np.argsort(one * len(boxes) + other)
            return one[sort], other[sort]
        room *= 4


@_compiled
def _swept(boxes, order, pairs):
    """How many pairs meet, or -1 where there is no room for them; `order` is by first row."""
    count = 0
    for m in range(len(order)):
        one = order[m]
        for n in range(m, len(order)):
            other = order[n]
            if boxes[other, 0] >= boxes[one, 1]:
                break
            if boxes[one, 2] < boxes[other, 3] and boxes[other, 2] < boxes[one, 3]:
                if count + 2 > pairs.shape[1]:
                    return -1
                pairs[0, count], pairs[1, count] = one, other
                count += 1
                if n > m:
                    pairs[0, count], pairs[1, count] = other, one
                    count += 1
    return count


__all__ = ["Regions", "regions_of"]
