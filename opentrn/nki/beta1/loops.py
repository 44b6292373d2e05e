"""Loops of the older API: Python ranges that remember which loop an index belongs to."""

from collections.abc import Iterator
from typing import Any

from opentrn.base import UsageError, declare, user_line
from opentrn.nki.beta1.pending import current

declare(
    "beta1.left_loop",
    "A kernel left a loop by `return` or `break`.",
    rule="the body of an affine or sequential loop is built once, for all its iterations",
    fix="put `return` after the loop; use nl.static_range where iterations differ",
)


class LoopIndex(int):
    """The index of a running loop: an integer that knows its loop."""

    loop: "Loop"


class Loop:
    """One running loop and its present index.

    The chip's compiler builds the body of an affine or sequential loop once, so what such a body
    decides with Python variables is decided in its first iteration: `decided` keeps that, `lines`
    and `started` count what the present iteration has done, to know the same place again.
    """

    __slots__ = ("decided", "index", "lines", "once", "place", "started")

    def __init__(self, place: int, once: bool) -> None:
        self.index, self.place, self.once = 0, place, once
        self.started, self.lines = 0, {}
        self.decided: dict[tuple, Any] = {}

    def begin(self, index: int) -> None:
        """Begin an iteration."""
        self.index, self.started = index, 0
        self.lines.clear()


def _loop(bounds: range, once: bool) -> Iterator[LoopIndex]:
    session, where = current(), user_line()
    loops, place = session.loops, 0
    if loops:
        place = loops[-1].started
        loops[-1].started += 1
    loop = Loop(place, once)
    loops.append(loop)
    try:
        for number in bounds:
            index = LoopIndex(number)
            index.loop = loop
            loop.begin(number)
            yield index
    except GeneratorExit:
        # The compiler builds the body once for all iterations; nobody can leave it for some.
        if once and number != bounds[-1]:
            session.left.append((number, where))
        raise
    finally:
        if loop in loops:
            del loops[loops.index(loop) :]


def first_decision(where: Any, decision: Any) -> Any:
    """`decision`, or what this place of the source decided in the first iteration of its loops."""
    loops = current().loops
    if not loops or not all(loop.once for loop in loops):
        return decision
    lines = loops[-1].lines
    count = lines[where] = lines.get(where, 0) + 1
    key = (where, count, *(loop.place for loop in loops[1:]))
    return loops[0].decided.setdefault(key, decision)


def affine_range(*bounds: Any) -> Iterator[LoopIndex]:
    """A loop without dependencies between iterations, unrolled when the kernel is built."""
    return _loop(_numbers(bounds), once=True)


def sequential_range(*bounds: Any) -> Iterator[LoopIndex]:
    """A loop whose iterations depend on each other, unrolled when the kernel is built."""
    return _loop(_numbers(bounds), once=True)


def static_range(*bounds: Any) -> Iterator[LoopIndex]:
    """A loop unrolled when the kernel is built."""
    return _loop(_numbers(bounds), once=False)


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
    others = tuple((id(one), one.index) for one in current().loops if one not in inner)
    return tuple(id(loop) for loop in inner), others


__all__ = [
    "LoopIndex",
    "affine_range",
    "first_decision",
    "place",
    "sequential_range",
    "static_range",
]
