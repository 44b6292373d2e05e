"""Small tiles beside each other: the partitions that each tile may begin at, and those it gets.

A tile of at most 64 partitions may begin at partition 64 too, one of at most 32 at 0, 32, 64 or 96
(`isa.legal_starts`; NKI states the same rule for addresses that a kernel chooses, nki.compiler.
sbuf.alloc).  A view that is legal in a tile at partition 0 is legal wherever the tile may begin.

What an instruction joins begins together.  What it reads: a lane reads its own partition; results
may go to another quadrant (architecture guide, Vector and Scalar Engine), inputs of one instruction
may not come from different ones (kernels of the NKI Library copy a tile so that both inputs of
tensor_tensor begin at one partition).  A tile of indices or scales: with its data.  On engines
other than Vector and Scalar, results as well.  Some tiles stay at partition 0: what the Tensor
Engine writes, as a column of its array belongs to a partition of PSUM; what an instruction with
state of its own touches, as the state is kept by lanes; what is read together with another memory.
DMAs move data between any partitions.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from opentrn.isa import Buffer, Instr, Instruction, Program, View, legal_starts, reduce_cmd

QUADRANT = 32  # partitions
QUADRANTS = 4
_TRIES = 4000  # places tried beyond one for each quadrant, where bundles are in each other's way


class Bundle(NamedTuple):
    """Tiles (`place.Life`) that begin at one partition, and the partitions open to them."""

    lives: list
    starts: tuple[int, ...]

    @property
    def rank(self) -> tuple:
        """Bundles without a choice come first, then large ones."""
        area = sum(x.nbytes * len(quadrants_of(x.buffer, 0)) for x in self.lives)
        return len(self.starts), -area, self.lives[0].first, self.lives[0].buffer.id

    def put(self, load: np.ndarray, start: int, times: int = 1) -> int:
        """Add its bytes to `load` (quadrants × positions); the most there while it lives."""
        for life in self.lives:
            rows = quadrants_of(life.buffer, start + life.buffer.partition)
            load[rows.start : rows.stop, life.first : life.last + 1] += times * life.nbytes
        first = min(life.first for life in self.lives)
        return int(load[:, first : 1 + max(life.last for life in self.lives)].max())


def quadrants_of(buffer: Buffer, start: int) -> range:
    """The quadrants that a tile lies in when it begins at partition `start`."""
    return range(start // QUADRANT, -(-(start + buffer.partitions) // QUADRANT))


def spreads(program: Program, lives: list, size: int) -> Iterator[dict[Buffer, int]]:
    """Start partitions for the tiles of one memory (`lives`: `place.Life`), the best first.

    First, if one is found, a spread with at most `size` bytes alive in every quadrant; then the
    one in which each bundle begins where the most bytes alive while it lives grow least.
    """
    bundles = sorted(_bundles(program, lives), key=lambda bundle: bundle.rank)
    last = max((life.last for life in lives), default=0)
    for find in (_packed, _levelled):
        starts = find(bundles, np.zeros((QUADRANTS, last + 1), np.int64), size)
        if starts is not None:
            pairs = zip(bundles, starts, strict=True)
            yield {life.buffer: start for bundle, start in pairs for life in bundle.lives}


def _packed(bundles: list[Bundle], load: np.ndarray, size: int) -> list[int] | None:
    """Each bundle at the first partition where it fits, going back where one fits nowhere."""
    left = [list(bundle.starts) for bundle in bundles]
    chosen: list[int] = []
    for _ in range(len(bundles) * QUADRANTS + _TRIES):
        if len(chosen) == len(bundles):
            return chosen
        bundle, open_starts = bundles[len(chosen)], left[len(chosen)]
        if open_starts:
            start = open_starts.pop(0)
            if bundle.put(load, start) <= size:
                chosen.append(start)
            else:
                bundle.put(load, start, -1)
        elif chosen:
            left[len(chosen)] = list(bundle.starts)
            back = chosen.pop()
            bundles[len(chosen)].put(load, back, -1)
        else:
            return None
    return None


def _levelled(bundles: list[Bundle], load: np.ndarray, size: int) -> list[int]:
    """Each bundle where the load is least."""
    chosen = []
    for bundle in bundles:
        most = []
        for start in bundle.starts:
            most.append((bundle.put(load, start), start))
            bundle.put(load, start, -1)
        chosen.append(min(most)[1])
        bundle.put(load, chosen[-1])
    return chosen


# ---------------------------------------------------------------------- what begins together


def _bundles(program: Program, lives: list) -> list[Bundle]:
    """Every tile of one memory in the bundle it belongs to."""
    ties = _Ties(lives[0].buffer.space)
    for one in program.instructions():
        ties.note(one)
    bundles: dict[Buffer | None, list] = {}
    for life in lives:
        bundles.setdefault(ties.root(life.buffer), []).append(life)
    stay, found = ties.root(None), []
    for root, own in bundles.items():
        fixed = root is stay or any(life.buffer.address is not None for life in own)
        most = max(life.buffer.partitions for life in own)
        found.append(Bundle(own, (0,) if fixed else legal_starts(most)))
    return found


class _Ties:
    """Sets of buffers that begin at the same partition; that of `None` stays at 0."""

    def __init__(self, space: str):
        self.space = space
        self.above: dict[Buffer | None, Buffer | None] = {}

    def root(self, buffer: Buffer | None) -> Buffer | None:
        """The buffer that stands for the set of this one."""
        at, above = buffer, self.above
        while (next_one := above.setdefault(at, at)) is not at:
            above[at] = at = above[next_one]
        return at

    def join(self, buffers: list[Buffer | None]) -> None:
        """Make one set of these; all stay where one of them lies in another memory."""
        if any(buffer is not None and buffer.space != self.space for buffer in buffers):
            buffers = [*buffers, None]
        for other in buffers[1:]:
            self.above[self.root(other)] = self.root(buffers[0])

    def note(self, one: Instruction) -> None:
        """Join what an instruction joins."""
        form = one.form
        for view in one.operands:
            if type(view) is View and view.index is not None:
                offset = view.index.offset
                if type(offset) is View:
                    self.join_chip([view, offset])
        if form.engine_name == "dma":
            return
        read, written = one.reads(), one.writes()
        if form.engine_name == "tensor":
            self.join([None, *(view.buffer for view in written if view.buffer.on_chip)])
        elif _uses_state(form):
            self.join([None, *(v.buffer for v in (*read, *written) if v.buffer.on_chip)])
        elif form.engine_name not in ("vector", "scalar"):
            read = read + written
        sides = zip(form.operands.values(), one.operands, strict=True)
        read += [v for d, v in sides if type(v) is View and not getattr(d, "engine_side", True)]
        self.join_chip(read)

    def join_chip(self, views: list[View]) -> None:
        """Join those of the buffers that lie on chip."""
        buffers = [view.buffer for view in views if view.buffer.on_chip]
        if len(buffers) > 1:
            self.join(buffers)


def _uses_state(form: Instr) -> bool:
    """Whether an instruction reads or changes the state of its engine."""
    idle = getattr(form, "reduce_cmd", None) is reduce_cmd.idle and form.reduce_res is None
    return form.state is not None and not idle
