"""The regions of buffers that a program accesses, and which of them meet: each pair judged once."""

from typing import Any, NamedTuple

import numpy as np

from opentrn.isa import Buffer, View
from opentrn.sim.overlaps import Box, Shapes

_MOST = 20_000  # regions of one buffer
_JUDGED = 200_000  # pairs of regions that are not dense
_AT_ONCE = 1_000_000  # pairs of regions compared in one step


class Regions(NamedTuple):
    """Regions numbered buffer by buffer, those of buffer `b` from `begin[b]` to `begin[b + 1]`.

    What a region meets in its buffer, itself included, stands in `meets[low[r] : high[r]]`,
    counted from the buffer's first region; where a write to it also replaces an earlier access to
    the other, `replaces` is set.  `whole[r]` is the whole buffer, which meets everything.
    """

    buffers: list[Buffer]
    begin: np.ndarray
    buffer: np.ndarray
    whole: np.ndarray
    low: np.ndarray
    high: np.ndarray
    meets: np.ndarray
    replaces: np.ndarray
    of_view: np.ndarray


class _Kind(NamedTuple):
    """Buffers that are accessed in the same regions."""

    whole: np.ndarray
    low: np.ndarray
    high: np.ndarray


def regions_of(views: list[View], used: np.ndarray) -> Regions | None:
    """The regions of the views `used` (numbers in `views`, by first access).

    None where a buffer has too many of them, or too many that are not dense.
    """
    shapes, kinds = Shapes(), _Kinds()
    known: dict[Buffer, dict[Any, int]] = {}
    own: dict[Buffer, list[tuple[Box, View]]] = {}
    at = []
    for n in used.tolist():
        view = views[n]
        box, buffer = shapes.box(view), view.buffer
        # On chip a box stands for its key: `Shapes` makes one for each.
        key = id(box) if buffer.on_chip else box.key
        numbers = known.get(buffer)
        if numbers is None:
            numbers, own[buffer] = {}, []
            known[buffer] = numbers
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = len(numbers)
            own[buffer].append((box, view))
        at.append(number)
    found = [kinds.of(buffer, known[buffer], pairs) for buffer, pairs in own.items()]
    if any(kind is None for kind in found):
        return None
    begin = np.zeros(len(own) + 1, np.int64)
    np.cumsum([len(pairs) for pairs in own.values()], out=begin[1:])
    place = {buffer: n for n, buffer in enumerate(own)}
    base = begin[[place[views[n].buffer] for n in used.tolist()]]
    of_view = np.zeros(len(views), np.int64)
    of_view[used] = base + at
    whole, low, high = (np.concatenate(column) for column in zip(*found, strict=True))
    buffer_of = np.repeat(np.arange(len(found)), np.diff(begin))
    return Regions(list(own), begin, buffer_of, whole, low, high, *kinds.lists(), of_view)


class _Kinds:
    """What is known of buffers by their regions; most are like one before."""

    def __init__(self):
        self.known: dict[tuple, _Kind | None] = {}
        self.meets: list[np.ndarray] = []
        self.replaces: list[np.ndarray] = []
        self.count = 0

    def lists(self) -> tuple[np.ndarray, np.ndarray]:
        """`Regions.meets` and `Regions.replaces`."""
        return np.concatenate(self.meets), np.concatenate(self.replaces)

    def of(self, buffer: Buffer, keys: Any, own: list[tuple[Box, View]]) -> _Kind | None:
        """The kind of a buffer accessed in the regions `own`, which have these keys."""
        if not buffer.on_chip:
            return self._made(own)
        key = (buffer.partition_bytes, buffer.shape[0], *keys)
        if key not in self.known:
            self.known[key] = self._made(own)
        return self.known[key]

    def _made(self, own: list[tuple[Box, View]]) -> _Kind | None:
        if len(own) > _MOST:
            return None
        boxes = np.array([box[:4] for box, _ in own], np.int64)
        flags = np.array([box[4:7] for box, _ in own], bool)
        counts, rows = [], max(1, _AT_ONCE // len(own))
        for low in range(0, len(own), rows):
            chosen = slice(low, low + rows)
            one, other, replaces, doubtful = _pairs(boxes, flags, chosen)
            if len(doubtful) > _JUDGED:
                return None
            met = np.ones(len(one), bool)
            for k in doubtful.tolist():
                met[k] = own[one[k]][1].overlaps(own[other[k]][1])
            self.meets.append(other[met])
            self.replaces.append(replaces[met])
            counts.append(np.bincount(one[met] - low, minlength=len(boxes[chosen])))
        ends = self.count + np.cumsum(np.concatenate(counts))
        begins = np.concatenate(([self.count], ends[:-1]))
        self.count = int(ends[-1])
        return _Kind(flags[:, 2], begins, ends)


def _pairs(boxes: np.ndarray, flags: np.ndarray, chosen: slice) -> tuple[np.ndarray, ...]:
    """`(one, other, replaces, doubtful)`: pairs of the chosen regions with all whose boxes meet.

    `doubtful` are the places of those pairs for which the boxes do not decide.
    """
    r0, r1, c0, c1 = (column[:, None] for column in boxes[chosen].T)
    exact, covers, whole = (column[:, None] for column in flags[chosen].T)
    others, dense, all_of = boxes.T, flags[:, 0], flags[:, 2]
    meets = (r0 < others[1]) & (others[0] < r1) & (c0 < others[3]) & (others[2] < c1)
    inside = (r0 <= others[0]) & (others[1] <= r1) & (c0 <= others[2]) & (others[3] <= c1)
    row, other = np.nonzero(meets | whole | all_of)
    one = row + chosen.start
    decided = (exact & dense) | whole | all_of
    replaces = (inside & covers & ~all_of) | whole
    doubtful = np.flatnonzero(~decided[row, other] & (one != other))
    return one, other, replaces[row, other] | (one == other), doubtful


__all__ = ["Regions", "regions_of"]
