"""The table of instructions: one row for each executed one, as CSV, JSON or Parquet.

Names of the columns, where they mean the same: AWS Neuron SDK documentation, "Profile schema
reference" 7.4.0, table Instruction.  Columns of ours come last and say so.  A transfer is a row of
the engine that issues it; when its bytes move is told by `dma_trigger_*`.
"""

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from opentrn.base import UnsupportedError, declare, writing
from opentrn.isa import Instruction, View
from opentrn.profiler.profile import Profile
from opentrn.profiler.table import DMA

TABLE = "opentrn.instructions/1"

COLUMNS = {
    "id": "number of the instruction in order of execution",
    "start_ts": "ns from the start of the program: the engine begins (a transfer: its issue)",
    "end_ts": "ns: the result is written (a transfer: it is issued)",
    "duration_ns": "end_ts - start_ts",
    "engine": "the engine that runs it, or issues it",
    "opcode": "name in nki.isa",
    "operands": "name=memory tile[shape] dtype, numbers and registers as they are",
    "nki_source_location": "file:line",
    "evt_wait_time_ns": "ns its engine was idle before it",
    "dma_trigger_start_ts": "ns: bytes begin to move",
    "dma_trigger_end_ts": "ns: bytes have moved",
    "dma_wait_time_ns": "ns a transfer waited for the DMA engines or HBM",
    "hbm_read_bytes": "bytes read from HBM",
    "hbm_write_bytes": "bytes written to HBM",
    "sbuf_read_bytes": "bytes read from SBUF",
    "sbuf_write_bytes": "bytes written to SBUF",
    "psum_read_bytes": "bytes read from PSUM",
    "psum_write_bytes": "bytes written to PSUM",
    "raw_flops": "FLOP of the Tensor Engine, transposes included",
    "flops_transpose": "FLOP of it that only transpose",
    "adjusted_flops": "raw_flops as BF16 work",
    "waited_for": "ours: reason and number of what it waited for last",
    "grade": "ours: how sure the duration is",
    "dma_queue": "ours: the queue of a transfer",
}
"""The columns and what they mean; ns with three decimals, bytes and flops whole."""

declare(
    "profiler.parquet",
    "A Parquet table was asked for, but pyarrow is not installed.",
    rule="the formats csv and json need no other package",
    fix="pip install 'opentrn[report]'",
)


def instructions(profile: Profile) -> dict[str, list]:
    """The table as columns; what does not apply to a row is None."""
    read, ran = profile.table, profile.timed.instructions
    rows = np.flatnonzero(~read.issue).tolist()
    found: dict[str, list] = {name: [] for name in COLUMNS}
    words: dict[Any, str] = {}
    for row in rows:
        index = (read.args[row] or {}).get("index", row)
        one = ran[index]
        values = {
            "id": index,
            "opcode": read.name[row],
            "operands": _operands(one, words) if isinstance(one, Instruction) else "",
            "nki_source_location": _location(read.where[row]),
            "waited_for": read.waited_for[row],
            "grade": read.grade[row],
            **_times(profile, row),
            **_work(profile, row),
        }
        for name, column in found.items():
            column.append(values.get(name))
    return found


def _times(profile: Profile, row: int) -> dict[str, Any]:
    read = profile.table
    wait = round(read.trace.row(row).wait_ns, 3)
    start, end = round(float(read.start[row]), 3), round(float(read.done[row]), 3)
    if read.lanes[read.lane[row]] != DMA:
        return {"engine": read.track[row], "start_ts": start, "end_ts": end,
                "duration_ns": round(end - start, 3), "evt_wait_time_ns": wait}  # fmt: skip
    moved = {"dma_trigger_start_ts": start, "dma_trigger_end_ts": end, "dma_wait_time_ns": wait,
             "dma_queue": read.track[row]}  # fmt: skip
    issue = read.issue_rows.get((read.args[row] or {}).get("index", -1), -1)
    if issue < 0:
        return {"engine": DMA, "start_ts": start, "end_ts": end,
                "duration_ns": round(end - start, 3), **moved}  # fmt: skip
    start, end = round(float(read.start[issue]), 3), round(float(read.end[issue]), 3)
    return {"engine": read.track[issue], "start_ts": start, "end_ts": end,
            "duration_ns": round(end - start, 3), **moved}  # fmt: skip


def _work(profile: Profile, row: int) -> dict[str, int]:
    read, detail = profile.table, profile.known[row]
    found = {}
    for space in ("hbm", "sbuf", "psum"):
        for verb, held, column, words in (
            ("read", detail and detail.read, read.read, read.source),
            ("write", detail and detail.written, read.written, read.target),
        ):
            only = int(column[row]) if words[row] == space else 0
            found[f"{space}_{verb}_bytes"] = held.get(space, 0) if held is not None else only
    flops = int(read.flops[row]) if read.lanes[read.lane[row]] == "tensor" else 0
    flips = read.name[row] == "nc_transpose" or bool(detail and detail.transpose)
    weight = detail.weight if detail else 1.0
    return {**found, "raw_flops": flops, "flops_transpose": flops if flips else 0,
            "adjusted_flops": int(flops * weight)}  # fmt: skip


def _location(where: Any) -> str:
    return f"{where.file}:{where.line}" if where is not None else ""


def _operands(one: Instruction, words: dict[Any, str]) -> str:
    """The operands that are given, as `name=memory tile[shape] dtype`."""
    parts = []
    for name, operand in zip(one.form.operands, one.operands, strict=True):
        if operand is None:
            continue
        if type(operand) is View:
            text = words.get(operand)
            if text is None:
                text = words[operand] = _view(operand)
        else:
            text = repr(operand)
        parts.append(f"{name}={text}")
    return "; ".join(parts)


def _view(view: View) -> str:
    name = view.buffer.name or f"#{view.buffer.id}"
    return f"{view.space} {name}{list(view.shape)} {view.dtype}"


# ---------------------------------------------------------------------- files


def csv_pieces(profile: Profile) -> Iterator[str]:
    """The table as CSV with a header, a batch of rows at a time; None is empty."""
    columns = instructions(profile)
    held = io.StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow(columns)
    for number, row in enumerate(zip(*columns.values(), strict=True), 1):
        writer.writerow(row)
        if number % 8192 == 0:
            yield held.getvalue()
            held.seek(0)
            held.truncate()
    yield held.getvalue()


def json_pieces(profile: Profile) -> Iterator[str]:
    """The summary and the table as one JSON object of schema TABLE; the table by columns."""
    about = {
        "schema": TABLE,
        "meta": {k: v for k, v in profile.trace.meta.items() if isinstance(v, str | int | float)},
        "columns": COLUMNS,
        "summary": profile.summary.json(),
    }
    yield json.dumps(about, allow_nan=False)[:-1] + ', "instructions": {'
    for number, (name, column) in enumerate(instructions(profile).items()):
        yield f"{', ' if number else ''}{json.dumps(name)}: {json.dumps(column, allow_nan=False)}"
    yield "}}\n"


def save_parquet(profile: Profile, path: str | os.PathLike) -> Path:
    """Write the table as Parquet, whole or not at all; raises what `base.writing` raises.

    UnsupportedError `profiler.parquet` without pyarrow.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UnsupportedError(
            "Parquet needs pyarrow, which is not installed", code="profiler.parquet"
        ) from error
    columns = instructions(profile)
    about = {"opentrn.schema": TABLE, "opentrn.summary": json.dumps(profile.summary.json())}
    with writing(path) as file:
        parquet.write_table(pyarrow.table(columns).replace_schema_metadata(about), file)
    return Path(path)


__all__ = ["COLUMNS", "TABLE", "csv_pieces", "instructions", "json_pieces", "save_parquet"]
