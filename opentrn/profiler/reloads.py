"""Reload traffic: bytes of HBM that a program reads more than once.

Bytes read again could have stayed in SBUF.  A view that repeats itself (stride 0) reads its bytes
once for each repetition.  Reads whose place only the device knows count as new bytes.  Spilled
tiles that come back are counted as such (`spill_reload_bytes`), not here.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from opentrn.base import Where
from opentrn.isa import SPILL_RELOAD, Loop, Program, View
from opentrn.profiler.table import covered

_MOST_RUNS = 1 << 23


class Reload(NamedTuple):
    """One HBM buffer: bytes `read` in all, `distinct` ones among them, the line that reads most."""

    name: str
    nbytes: int
    read: int
    distinct: int
    where: Where | None

    @property
    def again(self) -> int:
        """Bytes read that had been read before."""
        return self.read - self.distinct


def reloads_of(instructions: Iterable) -> tuple[Reload, ...]:
    """What each HBM buffer is read, most bytes read again first.

    `instructions` are the executed ones, in any order; a Loop among them stands for its branch.
    """
    views: dict = {}  # buffer -> {view: times}
    lines: dict = {}  # buffer -> {line: bytes}
    for one in instructions:
        if isinstance(one, Loop) or one.name == SPILL_RELOAD:
            continue
        for view in one.reads():
            if view.space != "hbm":
                continue
            seen = views.setdefault(view.buffer, {})
            seen[view] = seen.get(view, 0) + 1
            by_line = lines.setdefault(view.buffer, {})
            by_line[one.where] = by_line.get(one.where, 0) + view.nbytes
    found = [
        Reload(
            buffer.name or f"#{buffer.id}", buffer.nbytes, *_traffic(seen),
            max(lines[buffer], key=lines[buffer].get),
        )
        for buffer, seen in views.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: (-one.again, one.name)))


def queued(program: Program, instructions: Iterable) -> dict[str, int]:
    """Bytes that transfers read from inputs and constants of the program and write to its outputs.

    `instructions` are the executed ones.
    """
    kinds = dict.fromkeys(program.inputs, "input") | dict.fromkeys(program.constants, "weight")
    outputs, found = set(program.outputs), {"input": 0, "output": 0, "weight": 0}
    for one in instructions:
        if isinstance(one, Loop) or getattr(one.form, "move", None) is None:
            continue
        for view in one.reads():
            if view.buffer in kinds:
                found[kinds[view.buffer]] += view.nbytes
        for view in one.writes():
            found["output"] += view.nbytes if view.buffer in outputs else 0
    return {f"{kind}_queue_bytes": nbytes for kind, nbytes in found.items()}


def _traffic(seen: dict[View, int]) -> tuple[int, int]:
    """`(bytes read, distinct bytes)` of the views of one buffer."""
    read = sum(view.nbytes * times for view, times in seen.items())
    moving = sum(view.nbytes * times for view, times in seen.items() if view.index is not None)
    still = [view for view in seen if view.index is None]
    return read, min(read, moving + _distinct(still))


def _distinct(views: list[View]) -> int:
    """How many bytes at least one of the views covers."""
    parts = [_dense(view) for view in views]
    runs = sum(int(np.prod([count for _, count in outer])) for _, outer, _ in parts)
    if not parts or runs > _MOST_RUNS:  # too ragged to count: nothing is called a reload
        return sum(view.nbytes for view in views)
    first = [_starts(offset, outer) for offset, outer, _ in parts]
    last = [begin + run for begin, (_, _, run) in zip(first, parts, strict=True)]
    return round(covered(np.concatenate(first), np.concatenate(last)))


def _dense(view: View) -> tuple[int, list[tuple[int, int]], int]:
    """A view as `(first byte, outer steps in bytes, bytes of each dense run)`."""
    size = view.dtype.itemsize
    offset, run, outer = view.offset * size, size, []
    for stride, count in sorted(view.steps, key=lambda step: abs(step[0])):
        stride *= size
        if stride < 0:
            offset, stride = offset + stride * (count - 1), -stride
        if count == 1 or not stride:
            continue
        if stride == run and not outer:
            run *= count
        else:
            outer.append((stride, count))
    return offset, outer, run


def _starts(offset: int, outer: list[tuple[int, int]]) -> np.ndarray:
    found = np.array([offset], np.int64)
    for stride, count in outer:
        found = (found[:, None] + stride * np.arange(count)).ravel()
    return found


__all__ = ["Reload", "queued", "reloads_of"]
