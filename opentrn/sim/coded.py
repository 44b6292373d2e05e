"""Columns in short: a million instructions have few forms, so what a form says stands once.

`timing.Columns` has every number of every instruction, which is what the plain schedule reads.  The
compiled one follows the number of a row instead: a sixth of the memory, and nothing to write first.
"""

from typing import NamedTuple

import numpy as np

from opentrn.sim.timing import Columns

# Columns that differ between instructions of one form.
OWN = ("setup", "ports", "dep_start", "dep")


class Coded(NamedTuple):
    """Columns of instructions as rows of a table.

    Instruction i has what `table` says of row `row[i]`, and its own `setup` (ns), `ports` (bits)
    and dependences.  In the table those four are of no account.
    """

    table: Columns
    row: np.ndarray
    setup: np.ndarray
    ports: np.ndarray
    dep_start: np.ndarray
    dep: np.ndarray

    def columns(self) -> Columns:
        """Every number of every instruction."""
        own = {name: getattr(self, name) for name in OWN}
        shared = (name for name in Columns._fields if name not in OWN)
        return Columns(**{name: getattr(self.table, name)[self.row] for name in shared}, **own)


def coded(columns: Columns) -> Coded:
    """Columns (lists or arrays) in this form, each instruction with a row of its own."""
    arrays = Columns(*map(np.asarray, columns))
    row = np.arange(len(arrays.stream), dtype=np.int32)
    return Coded(
        arrays,
        row,
        arrays.setup.astype(float),
        arrays.ports.astype(np.int32),
        arrays.dep_start.astype(np.int64),
        arrays.dep.astype(np.int64),
    )


__all__ = ["Coded", "coded"]
