"""Where a long row of letters repeats itself, and how long a turn is."""

from typing import NamedTuple

import numpy as np

_ALIKE = 16  # letters that have to agree before a distance is looked at
_TRIED = 8  # distances at one place
_STEP = 1 << 12


class Span(NamedTuple):
    """Letters [begin, begin + length * count) are `count` equal turns of `length`."""

    begin: int
    length: int
    count: int

    @property
    def end(self) -> int:
        """The first letter behind the last turn."""
        return self.begin + self.length * self.count


def spans(letters: np.ndarray, turns: int, worth: int) -> list[Span]:
    """Repetitions in order, none inside another; each leaves at least `worth` letters when `turns`
    of its turns are taken away.

    Looked for around the middle of what is left, then in front of what was found and behind it.
    """
    found, left = [], [(0, len(letters))]
    while left:
        low, high = left.pop()
        if high - low < worth:
            continue
        best = _around(letters, low, high, turns)
        if best is None or best.length * (best.count - turns) < worth:
            middle = (low + high) // 2
            left += [(low, middle), (middle, high)]
            continue
        found.append(best)
        left += [(low, best.begin), (best.end, high)]
    return sorted(found)


def _around(letters: np.ndarray, low: int, high: int, turns: int) -> Span | None:
    """The repetition around the middle of a stretch in which turns are saved most."""
    middle, best, saved = (low + high) // 2, None, 0
    for distance in _distances(letters, middle, high):
        one, other = letters[low : high - distance], letters[low + distance : high]
        here = middle - low
        begin = middle - _equal(one[:here][::-1], other[:here][::-1])
        end = middle + distance + _equal(one[here:], other[here:])
        count = (end - begin) // distance
        if distance * (count - turns) > saved:
            best, saved = Span(begin, distance, count), distance * (count - turns)
    return best


def _distances(letters: np.ndarray, at: int, high: int):
    """Distances at which the letters from `at` on come again; none inside a repetition seen."""
    alike = min(_ALIKE, (high - at) // 4)
    if alike < 1:
        return
    again = at + 1 + np.flatnonzero(letters[at + 1 : high - alike] == letters[at])
    for k in range(1, alike):
        again = again[letters[again + k] == letters[at + k]]
    for _ in range(_TRIED):
        if not len(again):
            return
        distance = int(again[0]) - at
        yield distance
        same = _equal(letters[at : high - distance], letters[at + distance : high])
        again = again[again >= at + distance + same]


def _equal(one: np.ndarray, other: np.ndarray) -> int:
    """How many of the first letters are equal."""
    at, step = 0, _STEP
    while at < len(one):
        unlike = np.flatnonzero(one[at : at + step] != other[at : at + step])
        if len(unlike):
            return at + int(unlike[0])
        at, step = at + step, step * 4
    return len(one)


__all__ = ["Span", "spans"]
