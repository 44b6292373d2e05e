"""The regions of buffers that a program accesses, and which of them meet: each pair judged once."""

from typing import NamedTuple

import numpy as np
from numba import njit

from opentrn.isa import View
from opentrn.sim.accesses import Accesses
from opentrn.sim.accesses_fast import numbered
from opentrn.sim.overlaps import Box, Shapes

_MOST = 20_000  # regions of one buffer
_JUDGED = 200_000  # pairs of regions that are not dense
_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


class Regions(NamedTuple):
    """Regions numbered buffer by buffer, those of buffer `b` from `begin[b]` to `begin[b + 1]`.

    What a region meets in its buffer, itself included, stands in `meets[low[r] : high[r]]`,
    counted from the buffer's first region; where a write to it also replaces an earlier access to
    the other, `replaces` is set.  `whole[r]` is the whole buffer, which meets everything.
    `of_access` has -1 for accesses that were not asked for.  Buffer `b` is number `buffers[b]` of
    the table.
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


def regions_of(table: Accesses, used: np.ndarray) -> Regions | None:
    """The regions of the accesses `used` (numbers, in order): all or none of those to a buffer.

    None where a buffer has too many of them, or too many that are not dense.
    """
    kept = np.zeros(len(table.buffers), bool)
    kept[table.buffer[used]] = True
    buffers = np.flatnonzero(kept)
    buffer = (np.cumsum(kept) - 1)[table.buffer[used]]
    box, boxes = _boxes_of(table, used)
    region, at = numbered(buffer * len(boxes) + box)
    order = np.argsort(buffer[at], kind="stable")  # buffer by buffer
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    at = at[order]
    of_access = np.full(len(table.views), -1, np.int32)
    of_access[used] = place[region]
    begin = np.zeros(len(buffers) + 1, np.int64)
    np.cumsum(np.bincount(buffer[at], minlength=len(buffers)), out=begin[1:])
    kinds, found = _Kinds(), _alike(box[at], begin)
    if found is None:
        return None
    kind, alike = found
    for b in alike.tolist():
        chosen = at[begin[b] : begin[b + 1]]
        views = (table.views[n] for n in used[chosen].tolist())
        if not kinds.add([(boxes[n], v) for n, v in zip(box[chosen].tolist(), views, strict=True)]):
            return None
    inside = np.arange(len(at)) - begin[buffer[at]] + kinds.begins()[kind][buffer[at]]
    whole, low, high = (column[inside] for column in kinds.columns())
    return Regions(buffers, begin, buffer[at], whole, low, high, *kinds.lists(), of_access)


def _boxes_of(table: Accesses, used: np.ndarray) -> tuple[np.ndarray, list]:
    """The number of each used access's box, and the boxes: equal where they are one region.

    On chip all that look in one way at buffers of one sort have one box; in HBM rows depend on the
    buffer.
    """
    shapes, boxes, known = Shapes(), [], {}
    way = table.way[used].astype(np.int64)
    in_hbm = np.flatnonzero(~table.on_chip()[table.buffer[used]])
    # Views are kept by their buffers and instructions, so no two have one address.
    other = np.array([id(table.views[n]) for n in used[in_hbm].tolist()], np.int64)
    way[in_hbm] = 1 + int(way.max(initial=0)) + numbered(other)[0]
    number, first = numbered(way)
    of_pair = []
    for n in first.tolist():
        view = table.views[used[n]]
        box = shapes.box(view)
        # On chip `Shapes` makes one box for each region.
        key = id(box) if view.buffer.on_chip else (view.buffer, box.key)
        if key not in known:
            known[key] = len(boxes)
            boxes.append(box)
        of_pair.append(known[key])
    return np.array(of_pair, np.int64)[number], boxes


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


@njit(cache=True, nogil=True, error_model="numpy", _nrt=False)
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
