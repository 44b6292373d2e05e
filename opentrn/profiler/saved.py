"""Summaries read back from their files: looked through before anything is made of them."""

import json
import math
import os
from pathlib import Path
from typing import Any

from opentrn.base import FileFormatError, MissingFileError, Where, declare
from opentrn.profiler.advice import Advice
from opentrn.profiler.bounds import KINDS, Bound
from opentrn.profiler.reloads import Reload
from opentrn.profiler.source import Line
from opentrn.profiler.summary import SCHEMA, Metric, Summary

declare(
    "profiler.no_file",
    "There is no summary file at this path.",
    rule="a file is read relative to the current directory",
    fix="check the path",
)
declare(
    "profiler.summary_file",
    "A file is not a summary of a version this program reads.",
    rule=f"a summary is JSON with schema {SCHEMA!r}, as `save_summary` writes it",
    fix="profile the program again",
)

# What each part of a summary is: a type, [one], {"any name": one}, or the names it has.
ANY = "*"
_PLACE = {"file": str, "line": int}
_LINE = {"busy": float, "bytes": float, "count": int, "critical_path": float, "file": str,
         "flops": float, "line": int, "resource": str, "text": str}  # fmt: skip
_RELOAD = {"name": str, "nbytes": int, "read": int, "distinct": int, "where": _PLACE}
_FINDING = {
    "code": str,
    "what": str,
    "at": (None, {**_PLACE, "text": str}),
    "rule": str,
    "fix": str,
    "fault": str,
}
_METRIC = {"value": float, "unit": str}
_ENGINE = ("active_time", "active_time_percent", "instruction_count")
_WANTED = (
    "total_time", "model_flops", "transpose_flops", "mfu_estimated_percent",
    "hfu_estimated_percent", "mbu_estimated_percent", "hbm_read_bytes", "hbm_write_bytes",
    "dma_active_time", "dma_active_time_percent", "dma_transfer_count", "dma_bandwidth",
    "dma_transfer_average_bytes", "dma_bandwidth_percent", "spill_save_bytes",
    "spill_reload_bytes", "peak_flops_bandwidth_ratio", "roofline_time", "roofline_percent",
    *(f"{engine}_engine_{what}" for engine in ("tensor", "vector", "scalar", "gpsimd", "sync")
      for what in _ENGINE),
)  # fmt: skip
SHAPE = {
    "schema": str, "program": str, "target": str,
    "metrics": {**dict.fromkeys(_WANTED, _METRIC), ANY: _METRIC},
    "bound": {"kind": str, "resource": str, "share": float, "reason": str},
    "critical_path": {ANY: float}, "idle": {ANY: {ANY: float}}, "grades": {ANY: float},
    "opcodes": {ANY: int}, "top_lines": [_LINE], "absent": {ANY: str},
    "advice": [{"code": str, "seen": str, "remedy": str, "line": str, "predicted_gain": float}],
}  # fmt: skip
"""What every saved summary has."""
SINCE = {"reloads": [_RELOAD], "assumed": {ANY: str}, "findings": [_FINDING]}
"""What later ones have besides."""
_CALLED = {str: "text", int: "a whole number", float: "a number"}


def load_summary(path: str | os.PathLike) -> Summary:
    """Read what `save_summary` wrote; MissingFileError or FileFormatError otherwise."""
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"there is no file {path}", code="profiler.no_file")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileFormatError(
            f"{path.name} is not JSON: {error}", code="profiler.summary_file"
        ) from error
    return from_json(data)


def from_json(data: Any) -> Summary:
    """The summary that `Summary.json` made; FileFormatError `profiler.summary_file` for others."""
    wrong = misfit(data, {"schema": str}, "it")
    if not wrong and data["schema"] != SCHEMA:
        wrong = f"its schema is {data['schema']!r}, not {SCHEMA!r}"
    wrong = wrong or misfit(data, SHAPE, "it")
    wrong = wrong or misfit(data, {n: part for n, part in SINCE.items() if n in data}, "it")
    if not wrong and data["bound"]["kind"] not in KINDS:
        wrong = f"bound.kind is {_short(data['bound']['kind'])}, not one of {', '.join(KINDS)}"
    if wrong:
        raise FileFormatError(f"this is no summary: {wrong}", code="profiler.summary_file")
    return Summary(
        program=data["program"],
        target=data["target"],
        metrics={name: Metric(**value) for name, value in data["metrics"].items()},
        bound=Bound(**data["bound"]),
        path=data["critical_path"],
        idle=data["idle"],
        grades=data["grades"],
        opcodes=data["opcodes"],
        lines=tuple(_line_of(line) for line in data["top_lines"]),
        advice=tuple(Advice(**one) for one in data["advice"]),
        absent=data["absent"],
        reloads=tuple(_reload_of(one) for one in data.get("reloads", ())),
        assumed=data.get("assumed", {}),
        findings=tuple(data.get("findings", ())),
    )


def misfit(data: Any, shape: Any, where: str) -> str:
    """The first place where `data` is not of the shape, told; "" where it is."""
    if isinstance(shape, tuple):
        return "" if data is None else misfit(data, shape[1], where)
    if isinstance(shape, list):
        if not isinstance(data, list | tuple):
            return f"{where} is {_short(data)}, not a list"
        told = (misfit(one, shape[0], f"{where}[{n}]") for n, one in enumerate(data))
        return next(filter(None, told), "")
    if isinstance(shape, dict):
        return _misfit_of_names(data, shape, where)
    kinds = {float: (int, float)}.get(shape, shape)
    fits = isinstance(data, kinds) and not isinstance(data, bool)
    if fits and not isinstance(data, str):
        fits = math.isfinite(data)
    return "" if fits else f"{where} is {_short(data)}, not {_CALLED[shape]}"


def _misfit_of_names(data: Any, shape: dict, where: str) -> str:
    whole = where == "it"  # a later summary may have more parts
    if not isinstance(data, dict):
        return f"{where} is {_short(data)}, not an object"
    for name in shape:
        if name != ANY and name not in data:
            return f"{where} has no {name!r}"
    for name, value in data.items():
        if name not in shape and ANY not in shape:
            if whole:
                continue
            return f"{where} has {_short(name)}, which is not known"
        place = name if whole else f"{where}.{name}"
        wrong = misfit(value, shape.get(name, shape.get(ANY)), place)
        if wrong:
            return wrong
    return ""


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _line_of(line: dict[str, Any]) -> Line:
    where = Where(line["file"], line["line"]) if line["file"] else None
    spent = (line["critical_path"], line["busy"], line["count"], line["resource"])
    return Line(where, *spent, line["flops"], line["bytes"])


def _reload_of(one: dict[str, Any]) -> Reload:
    where = one["where"]
    return Reload(**{**one, "where": Where(**where) if where["file"] else None})


__all__ = ["from_json", "load_summary"]
