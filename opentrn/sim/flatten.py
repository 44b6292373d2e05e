"""A flow as the columns the clock runs: rows spread over instances, shared ports, tables loaded."""

import numpy as np

from opentrn.sim.rows import Row
from opentrn.sim.tape import Flow
from opentrn.sim.timing import ENGINES, PORTS, TICK, Columns

SCALAR = ENGINES.index("scalar")
WHOLE_ARRAY = 0xFFFF


def columns_of(flow: Flow, chip) -> Columns:
    """The columns of a flow, as NumPy arrays; times in whole ticks (`timing.TICK`)."""
    row = flow.row
    table = dict(zip(Row._fields, zip(*flow.rows, strict=True), strict=True)) if flow.rows else {}
    found = {}
    for name in Columns._fields:
        if name not in table:
            found[name] = np.zeros(len(row), np.int64 if name in ("ports", "cells") else float)
        elif type(table[name][0]) is int:
            found[name] = np.asarray(table[name], np.int64)[row]
        else:
            found[name] = in_ticks(table[name])[row]
    found["ports"][flow.bank_at] |= flow.bank_bits
    contested(found["ports"], found["stream"])
    if not ((found["cells"] != 0) & (found["cells"] != WHOLE_ARRAY)).any():
        found["cells"][:] = 0  # nobody uses less than the whole array
    found["setup"] = in_ticks(table_loads(flow, row, chip))
    found["dep_start"], found["dep"] = flow.dep_start, flow.dep
    return Columns(**found)


def in_ticks(times) -> np.ndarray:
    """Times (ns) as whole multiples of a tick."""
    return np.round(np.asarray(times, float) / TICK) * TICK


def contested(ports: np.ndarray, stream: np.ndarray) -> None:
    """Leave only ports that more than one engine uses: nobody waits for the others."""
    used = np.flatnonzero(ports)
    for bit in range(PORTS):
        users = used[ports[used] >> bit & 1 == 1]
        if len(users) and (stream[users] == stream[users[0]]).all():
            ports[users] &= ~(1 << bit)


def table_loads(flow: Flow, row: np.ndarray, chip) -> np.ndarray:
    """For each instance, ns of loading coefficients: its function needs a set not loaded yet.

    The Scalar Engine runs in program order, so what is loaded when is known beforehand.
    """
    loads = np.zeros(len(row))
    needs = [one.table if one.stream == SCALAR else "" for one in flow.rows]
    loaded = ""
    wanting = np.flatnonzero(np.asarray([bool(need) for need in needs], bool)[row]) if needs else ()
    for instance in wanting:
        need = needs[row[instance]]
        if need != loaded:
            loads[instance], loaded = chip.scalar.table_load * 1e9, need
    return loads


__all__ = ["columns_of", "in_ticks"]
