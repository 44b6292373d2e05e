"""What the report page knows of one profile, packed: a JSON header and columns of numbers.

The page holds each profile as base64 of deflate of

    header length (4 bytes, little-endian) | header (JSON, padded to 8) | columns in a row

and the header's `columns` tells each one's type, first byte and length.  A million events are then
a few megabytes, and the page draws from typed arrays.  Times are multiples of `tick` ns.
"""

import json
import struct
import zlib
from base64 import b64encode
from typing import Any

import numpy as np

from opentrn.base import Where
from opentrn.cost import roofline
from opentrn.profiler.bounds import RESOURCES
from opentrn.profiler.metrics import COUNTED, METRICS, dtype_of
from opentrn.profiler.perfetto import tracks_of
from opentrn.profiler.profile import Profile
from opentrn.profiler.source import source_files
from opentrn.profiler.table import coded
from opentrn.profiler.tiles import peak_of

_TICKS = 4.0e9  # ticks in the longest time a column of 32 bits holds
_LEAST = 1.0e-3  # ns
_POINTS = 4000  # of a counter


class Columns:
    """Columns of numbers on their way into one buffer."""

    def __init__(self) -> None:
        self.index: dict[str, list] = {}
        self.held: list[bytes] = []
        self.size = 0

    def add(self, name: str, values: Any, kind: str) -> None:
        """Append a column of NumPy type `kind` (little-endian), padded to eight bytes."""
        data = np.ascontiguousarray(values, dtype=np.dtype(kind).newbyteorder("<")).tobytes()
        self.index[name] = [kind, self.size, len(values)]
        data += b"\0" * (-len(data) % 8)
        self.held.append(data)
        self.size += len(data)


def packed(profile: Profile) -> str:
    """One profile as the page reads it; base64 text."""
    columns = Columns()
    header = _header(profile, columns)
    header["columns"] = columns.index
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 4) % 8)
    raw = b"".join((struct.pack("<I", len(text)), text, *columns.held))
    return b64encode(zlib.compress(raw, 6)).decode("ascii")


def unpacked(text: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the columns of what `packed` made, as the page's script reads them."""
    from base64 import b64decode

    raw = zlib.decompress(b64decode(text))
    (length,) = struct.unpack_from("<I", raw)
    header = json.loads(raw[4 : 4 + length])
    found = {
        name: np.frombuffer(raw, np.dtype(kind).newbyteorder("<"), count, 4 + length + first)
        for name, (kind, first, count) in header["columns"].items()
    }
    return header, found


def _header(profile: Profile, columns: Columns) -> dict[str, Any]:
    read, summary = profile.table, profile.summary
    tick = max(_LEAST, read.total / _TICKS)
    places = _Places()
    header = {
        "program": summary.program or "program",
        "target": summary.target,
        "total": read.total,
        "tick": tick,
        "resources": list(RESOURCES),
        "summary": summary.json(),
        "counted": list(COUNTED),
        "meanings": {name: kind.meaning for name, kind in METRICS.items()},
        "counters": {name: _thinned(points) for name, points in profile.trace.counters.items()},
        "roofline": _roofline(profile),
        "tracks": _events(profile, columns, tick, places),
        **_words(read, columns),
        "path": _path(profile, columns, tick),
        "memory": _tiles(profile, columns, tick, places),
        "files": source_files(profile.lines),
    }
    header["places"] = places.told()
    return header


class _Places:
    """Source lines by number."""

    def __init__(self) -> None:
        self.known: dict[Where | None, int] = {}

    def number(self, where: Where | None) -> int:
        return self.known.setdefault(where, len(self.known))

    def told(self) -> list[list]:
        """`[file, line, text]` of each, by number."""
        return [[w.file, w.line, w.text] if w else ["", 0, ""] for w in self.known]


def _events(profile: Profile, columns: Columns, tick: float, places: _Places) -> list[str]:
    """The columns of the events; returns the names of the tracks."""
    read = profile.table
    lanes, names = tracks_of(read)
    rows = np.lexsort((read.start, np.array(lanes, np.int64)))
    place = np.array([places.number(where) for where in read.where], np.int64)
    seat = np.empty(len(rows), np.int64)
    seat[rows] = np.arange(len(rows))
    reasons, before = _waits(read)
    columns.add("track", (np.array(lanes, np.int64) - 1)[rows], "u2")
    columns.add("start", np.rint(read.start[rows] / tick), "u4")
    columns.add("end", np.rint(read.end[rows] / tick), "u4")
    columns.add("done", np.rint(read.done[rows] / tick), "u4")
    columns.add("place", place[rows], "u4")
    columns.add("before", np.where(before >= 0, seat[before], -1)[rows], "i4")
    columns.add("reason", reasons[rows], "u1")
    columns.add("wait", np.array(read.trace.column("wait_ns"))[rows], "f4")
    for name, values in (("flops", read.flops), ("read", read.read), ("written", read.written)):
        columns.add(name, values[rows], "f8")
    columns.add("row", rows, "u4")
    return names


# The page's script has the words for these, in this order (timeline.js).
REASONS = ("", "engine", "data", "semaphore", "dma", "queue", "hbm", "port", "core", "other")


def _waits(read) -> tuple[np.ndarray, np.ndarray]:
    """For each event the number of its reason, and the row of what it waited for (-1: none)."""
    pairs = [read.reason(row) for row in range(len(read))]
    codes = [
        REASONS.index(reason) if reason in REASONS else len(REASONS) - 1 for reason, _ in pairs
    ]
    return np.array(codes, np.int64), np.array([before for _, before in pairs], np.int64)


def _words(read, columns: Columns) -> dict[str, list[str]]:
    """Names, memories and grades of the events, each a column of codes and a list of words."""
    found = {}
    rows = np.lexsort((read.start, np.array(tracks_of(read)[0], np.int64)))
    issue = [
        f"{n} (issue)" if i else n for n, i in zip(read.name, read.issue.tolist(), strict=True)
    ]
    moves = [f"{a} → {b}" if a or b else "" for a, b in zip(read.source, read.target, strict=True)]
    for name, words, kind in (
        ("name", issue, "u2"), ("move", moves, "u1"), ("grade", read.grade, "u1"),
    ):  # fmt: skip
        codes, distinct = coded(words)
        columns.add(name, codes[rows] if len(codes) else codes, kind)
        found[f"{name}s"] = distinct
    return found


def _path(profile: Profile, columns: Columns, tick: float) -> dict[str, Any]:
    """The critical path: rows, times, and what each piece mostly is."""
    pieces = profile.path.pieces
    kinds: dict[str, int] = {}
    main = [max(p.parts, key=lambda part: part[1])[0] if p.parts else "latency" for p in pieces]
    columns.add("path_row", [piece.row for piece in pieces], "u4")
    columns.add("path_begin", np.rint(np.array([p.begin for p in pieces]) / tick), "u4")
    columns.add("path_end", np.rint(np.array([p.end for p in pieces]) / tick), "u4")
    columns.add("path_kind", [kinds.setdefault(kind, len(kinds)) for kind in main], "u1")
    return {"kinds": list(kinds)}


def _tiles(profile: Profile, columns: Columns, tick: float, places: _Places) -> dict[str, Any]:
    """The columns of the tiles, the sizes of the memories and their peaks."""
    core, tiles = profile.chip.core, profile.tiles
    words: dict[str, int] = {}
    spaces = {"sbuf": int(core.sbuf_usable), "psum": int(core.psum_banks * core.psum_bank)}
    named = [f"{t.name} {list(t.shape)} {t.dtype}" for t in tiles]
    columns.add("tile_space", [list(spaces).index(t.space) for t in tiles], "u1")
    columns.add("tile_address", [t.address for t in tiles], "u4")
    columns.add("tile_bytes", [t.nbytes for t in tiles], "u4")
    columns.add("tile_partitions", [t.partitions for t in tiles], "u1")
    columns.add("tile_partition", [t.partition for t in tiles], "u1")
    columns.add("tile_begin", np.rint(np.array([t.begin for t in tiles]) / tick), "u4")
    columns.add("tile_end", np.rint(np.array([t.end for t in tiles]) / tick), "u4")
    columns.add("tile_place", [places.number(t.where) for t in tiles], "u4")
    columns.add("tile_name", [words.setdefault(name, len(words)) for name in named], "u4")
    peaks = {space: peak_of(tiles, space) for space in spaces}
    return {
        "sizes": spaces,
        "bank": int(core.psum_bank),
        "names": list(words),
        "peaks": {s: [p.time, p.nbytes] if p else [0.0, 0] for s, p in peaks.items()},
    }


def _thinned(points: list[tuple[float, float]]) -> list[list[float]]:
    """At most `_POINTS` points of a counter: of a run of points, the largest."""
    step = -(-len(points) // _POINTS) or 1
    runs = (points[n : n + step] for n in range(0, len(points), step))
    return [[run[0][0], max(value for _, value in run)] for run in runs]


def _roofline(profile: Profile) -> dict[str, Any]:
    """Roofs of one core in FLOP/s and byte/s, and where the program stands under them."""
    summary, chip = profile.summary, profile.chip
    dtype = dtype_of(profile.table, chip, profile.known)
    flops, total = summary["model_flops"], summary["total_time"]
    hbm = summary["hbm_read_bytes"] + summary["hbm_write_bytes"]
    roofs = {name: roofline(1.0, 0.0, chip, name, cores=1).peak
             for name in ("bfloat16", "float32", "float8_e4m3")}  # fmt: skip
    return {
        "dtype": dtype,
        "peaks": {name: float(value) for name, value in roofs.items()},
        "bandwidth": float(roofline(0.0, 1.0, chip, dtype, cores=1).bandwidth),
        "dma": float(chip.dma.engines * chip.dma.engine_rate),
        "flops": flops,
        "bytes": hbm,
        "rate": flops / total if total else 0.0,
    }


__all__ = ["packed", "unpacked"]
