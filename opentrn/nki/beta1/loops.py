"""Loops of the older API: Python ranges that remember which loop an index belongs to."""

from collections.abc import Iterator
from typing import Any

from opentrn.base import UsageError
from opentrn.nki.beta1.pending import current


class LoopIndex(int):
    """The index of a running loop: an integer that knows its loop."""

    loop: "Loop"


class Loop:
    """One running loop and its present index."""

    __slots__ = ("index",)

    def __init__(self) -> None:
        self.index = 0


def _loop(bounds: tuple) -> Iterator[LoopIndex]:
    loops, loop = current().loops, Loop()
    loops.append(loop)
    try:
        for number in bounds:
            index = LoopIndex(number)
            index.loop, loop.index = loop, number
            yield index
    finally:
        if loop in loops:
            del loops[loops.index(loop) :]


def affine_range(*bounds: Any) -> Iterator[LoopIndex]:
    """A loop without dependencies between iterations, unrolled when the kernel is built."""
    return _loop(_numbers(bounds))


def sequential_range(*bounds: Any) -> Iterator[LoopIndex]:
    """A loop whose iterations depend on each other, unrolled when the kernel is built."""
    return _loop(_numbers(bounds))


def static_range(*bounds: Any) -> Iterator[LoopIndex]:
    """A loop unrolled when the kernel is built."""
    return _loop(_numbers(bounds))


def _numbers(bounds: tuple) -> range:
    try:
        return range(*bounds)
    except TypeError:
        raise UsageError(f"a loop over {bounds!r}", code="nki.loop") from None


def place(reduced: Any) -> tuple:
    """What tells one running sum from another: the loops reduced over, and the other indices.

    `reduced` is an index or a sequence of them, as `loop_reduce` takes.
    """
    given = reduced if isinstance(reduced, list | tuple) else [reduced]
    inner = [i.loop for i in given if isinstance(i, LoopIndex)]
    others = tuple((id(l), l.index) for l in current().loops if l not in inner)
    return tuple(id(loop) for loop in inner), others


__all__ = ["LoopIndex", "affine_range", "place", "sequential_range", "static_range"]
