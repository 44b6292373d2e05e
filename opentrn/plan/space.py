"""All splits of a model over so many devices, as columns that one formula evaluates at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from opentrn.cost import RECOMPUTE, Split, Training
from opentrn.plan.legal import Degrees, divisors
from opentrn.workloads import Model

MOST_CHUNKS, MOST_SEQUENCES = 16, 64
"""Interleaved chunks of a stage and sequences of a micro-batch, up to which splits are tried."""
NAMES = ("tp", "cp", "pp", "dp", "ep", "micro_batch", "chunks", "level", "sequence", "zero")
"""The columns of a space."""


class Columns:
    """Splits as columns: `tp`, `pp`, ... are equally long arrays of numbers (`sequence` of bools).

    The formulas of `cost` take it in place of one Split.
    """

    def __init__(self, table: np.ndarray):
        self.table = table
        for place, name in enumerate(NAMES):
            column = table[place]
            setattr(self, name, column > 0 if name == "sequence" else column)

    def __len__(self) -> int:
        return self.table.shape[1]

    def take(self, which: np.ndarray) -> Columns:
        """Some of the rows."""
        return Columns(self.table[:, which])

    def split(self, row: int) -> Split:
        """One row as a Split."""
        v = dict(zip(NAMES, (int(x) for x in self.table[:, row]), strict=True))
        v["recompute"] = RECOMPUTE[v.pop("level")]
        v["sequence"] = bool(v["sequence"])
        return Split(**v)

    @staticmethod
    def joined(parts: Iterable[Columns]) -> Columns:
        """All rows of several."""
        return Columns(np.concatenate([p.table for p in parts], axis=1))


@dataclass(frozen=True)
class Wanted:
    """Degrees the caller fixed; empty means free."""

    tp: tuple[int, ...] = ()
    cp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    dp: tuple[int, ...] = ()
    ep: tuple[int, ...] = ()
    micro_batch: tuple[int, ...] = ()
    chunks: tuple[int, ...] = ()
    recompute: tuple[str, ...] = ()
    sequence: tuple[bool, ...] = ()
    zero: tuple[int, ...] = ()

    def notes(self, job: Training) -> tuple[str, ...]:
        """What was asked for and is not what it says."""
        if job.attention == "flash" and "selective" in self.recompute:
            return ("flash attention keeps no scores: selective recomputation is none",)
        return ()

    def of(self, name: str, found: Sequence) -> list:
        """Those of `found` that were asked for."""
        asked = getattr(self, name)
        return [one for one in found if not asked or one in asked]


def _levels(job: Training, wanted: Wanted) -> list[int]:
    """With flash attention there is nothing selective to recompute."""
    kinds = ("none", "full") if job.attention == "flash" else RECOMPUTE
    asked = wanted.of("recompute", kinds)
    if not asked and "selective" in wanted.recompute:
        asked = ["none"]
    return [RECOMPUTE.index(kind) for kind in asked]


def _batches(job: Training, dp: int, wanted: Wanted) -> list[int]:
    """Micro-batches of 1, 2, 4, ... that divide what one replica does in a step."""
    return wanted.of("micro_batch", divisors(job.batch // dp, MOST_SEQUENCES))


def _chunks(m: Model, pp: int, batches: int, wanted: Wanted) -> list[int]:
    """Interleaving: layers divide into pp x chunks, micro-batches into pp."""
    many = [1]
    if pp > 1 and batches % pp == 0 and m.layers % pp == 0:
        many = divisors(m.layers // pp, MOST_CHUNKS)
    return wanted.of("chunks", many)


def blocks(
    m: Model, job: Training, legal: Degrees, devices: int, wanted: Wanted
) -> Iterator[Columns]:
    """The space in blocks of equal tensor, context, pipeline and data parallelism."""
    levels = _levels(job, wanted)
    for tp, cp, pp in product(wanted.of("tp", legal.legal_tp), wanted.of("cp", legal.cp),
                              wanted.of("pp", legal.pp)):  # fmt: skip
        if devices % (tp * cp * pp):
            continue
        dp = devices // (tp * cp * pp)
        if job.batch % dp or dp not in wanted.of("dp", [dp]):
            continue
        block = _block(m, job, legal, wanted, (tp, cp, pp, dp), levels)
        if block is not None:
            yield block


def _block(m, job, legal: Degrees, wanted: Wanted, at: tuple, levels: list[int]) -> Columns | None:
    tp, cp, pp, dp = at
    eps = [e for e in wanted.of("ep", legal.ep) if dp % e == 0]
    sequences = wanted.of("sequence", (True, False) if tp > 1 else (False,))
    zeros = wanted.of("zero", (0, 1, 2, 3) if dp * cp > 1 else (0,)) or list(wanted.zero[:1])
    rows = [
        (ep, b, v)
        for ep in eps
        for b in _batches(job, dp, wanted)
        for v in _chunks(m, pp, job.batch // (dp * b), wanted)
    ]
    if not rows or not levels or not sequences:
        return None
    outer = np.array(rows, dtype=float).T
    inner = np.array(list(product(levels, sequences, zeros)), dtype=float).T
    count, times = outer.shape[1], inner.shape[1]
    table = np.empty((len(NAMES), count * times))
    table[:4] = np.array(at, dtype=float)[:, None]
    table[4:7] = np.repeat(outer, times, axis=1)
    table[7:] = np.tile(inner, count)
    return Columns(table)
