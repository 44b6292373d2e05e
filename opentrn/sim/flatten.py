"""A flow as the columns the clock runs: rows spread over instances, shared ports, tables loaded."""

import numpy as np

from opentrn.sim.coded import Coded
from opentrn.sim.rows import Row
from opentrn.sim.tape import Flow
from opentrn.sim.timing import ENGINES, TICK, Columns

SCALAR = ENGINES.index("scalar")
WHOLE_ARRAY = 0xFFFF


def coded_of(flow: Flow, chip) -> Coded:
    """A flow as rows of a table; times in whole ticks (`timing.TICK`)."""
    row, rows = flow.row, flow.rows
    table = dict(zip(Row._fields, zip(*rows, strict=True), strict=True)) if rows else {}
    found = {}
    for name in Columns._fields:
        whole = name in ("stream", "first", "count", "cells", "ports", "priority")
        given = table.get(name, [0] * len(rows))
        found[name] = np.asarray(given, np.int64) if whole else in_ticks(given)
    # Where only the sum is known, rounding each part must not move it.
    done = np.asarray(table.get("busy", []), float) + np.asarray(table.get("latency", []), float)
    found["latency"] = np.maximum(in_ticks(done) - found["busy"], 0.0)
    used = np.bincount(row, minlength=len(rows)) > 0
    partial = (found["cells"] != 0) & (found["cells"] != WHOLE_ARRAY)
    if not partial[used].any():
        found["cells"][:] = 0  # nobody uses less than the whole array
    ports = found["ports"].astype(np.int32)[row]
    ports[flow.bank_at] |= flow.bank_bits.astype(np.int32)
    if ports.any():
        contested(ports, found["stream"], row)
    setup = in_ticks(table_loads(flow, row, chip))
    return Coded(Columns(**found), row, setup, ports, flow.dep_start, flow.dep)


def columns_of(flow: Flow, chip) -> Columns:
    """The columns of a flow, as NumPy arrays; times in whole ticks (`timing.TICK`)."""
    return coded_of(flow, chip).columns()


def in_ticks(times) -> np.ndarray:
    """Times (ns) as whole multiples of a tick."""
    return np.round(np.asarray(times, float) / TICK) * TICK


def contested(ports: np.ndarray, streams: np.ndarray, row: np.ndarray) -> None:
    """Leave only ports that more than one engine uses: nobody waits for the others.

    `streams` are those of the rows; `ports` and `row` have an entry for each instance.
    """
    once = shared = 0
    for stream in np.unique(streams).tolist():
        own = int(np.bitwise_or.reduce(ports[(streams == stream)[row]], initial=0))
        shared |= once & own
        once |= own
    ports &= shared


def table_loads(flow: Flow, row: np.ndarray, chip) -> np.ndarray:
    """For each instance, ns of loading coefficients: its function needs a set not loaded yet.

    The Scalar Engine runs in program order, so what is loaded when is known beforehand.
    """
    loads = np.zeros(len(row))
    needs = np.array([one.table if one.stream == SCALAR else "" for one in flow.rows], object)
    if not any(needs):
        return loads
    wanting = np.flatnonzero((needs != "")[row])
    wanted = np.unique(needs.astype(str), return_inverse=True)[1][row[wanting]]
    changed = np.ones(len(wanting), bool)
    changed[1:] = wanted[1:] != wanted[:-1]
    loads[wanting[changed]] = chip.scalar.table_load * 1e9
    return loads


__all__ = ["coded_of", "columns_of", "in_ticks"]
