"""The regions of buffers that a program accesses, and which of them meet: each pair judged once."""

from typing import Any, NamedTuple

import numpy as np

from opentrn.isa import Buffer, View
from opentrn.sim.overlaps import Box, Shapes

_MOST = 20_000  # regions of one buffer
_JUDGED = 200_000  # pairs of regions that are not dense, of one kind of buffer


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
    shapes, of_view = Shapes(), np.zeros(len(views), np.int64)
    boxes: dict[Buffer, dict[Any, tuple[Box, View]]] = {}
    keys = []
    for n in used.tolist():
        view = views[n]
        box = shapes.box(view)
        boxes.setdefault(view.buffer, {}).setdefault(box.key, (box, view))
        keys.append((view.buffer, box.key))
    kinds = _Kinds()
    found, base, numbers = [], [0], {}
    for buffer, own in boxes.items():
        kind = kinds.of(buffer, own)
        if kind is None:
            return None
        found.append(kind)
        numbers.update(((buffer, key), base[-1] + k) for k, key in enumerate(own))
        base.append(base[-1] + len(own))
    of_view[used] = [numbers[key] for key in keys]
    begin = np.array(base, np.int64)
    whole, low, high = (np.concatenate(column) for column in zip(*found, strict=True))
    buffer = np.repeat(np.arange(len(found)), np.diff(begin))
    return Regions(list(boxes), begin, buffer, whole, low, high, *kinds.lists(), of_view)


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

    def of(self, buffer: Buffer, own: dict) -> _Kind | None:
        """The kind of a buffer accessed in the regions `own`."""
        if not buffer.on_chip:
            return self._made(list(own.values()))
        key = (buffer.partition_bytes, buffer.shape[0], *own)
        if key not in self.known:
            self.known[key] = self._made(list(own.values()))
        return self.known[key]

    def _made(self, own: list[tuple[Box, View]]) -> _Kind | None:
        count = len(own)
        if count > _MOST:
            return None
        r0, r1, c0, c1, exact, covers, whole, _ = (
            np.array(column) for column in zip(*(box[:7] + (0,) for box, _ in own), strict=True)
        )
        low, meets, replaces, judged = [self.count], [], [], 0
        for k in range(count):
            near = (r0 < r1[k]) & (r0[k] < r1) & (c0 < c1[k]) & (c0[k] < c1)
            near = near | whole | whole[k]
            for other in np.flatnonzero(near & ~(exact & exact[k]) & ~whole & ~whole[k]).tolist():
                judged += 1
                near[other] = other == k or own[k][1].overlaps(own[other][1])
            if judged > _JUDGED:
                return None
            inside = (r0[k] <= r0) & (r1 <= r1[k]) & (c0[k] <= c0) & (c1 <= c1[k]) & ~whole
            inside = (inside & covers[k]) | whole[k]
            inside[k] = True
            met = np.flatnonzero(near)
            meets.append(met)
            replaces.append(inside[met])
            low.append(low[-1] + len(met))
        self.meets += meets
        self.replaces += replaces
        self.count = low[-1]
        return _Kind(whole.astype(bool), np.array(low[:-1]), np.array(low[1:]))


__all__ = ["Regions", "regions_of"]
