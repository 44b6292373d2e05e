"""The models that are known by name: one TOML file for each family."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from opentrn.base import FileFormatError, MissingFileError, UnknownNameError, declare, nearest
from opentrn.workloads.hugging_face import from_config
from opentrn.workloads.model import Model

FOLDER = Path(__file__).parent / "models"

declare(
    "workloads.unknown",
    "Models are known by name, or described by a config.json.",
    rule="a name of `opentrn.workloads.models()`, a Model, or a path to a Hugging Face config.json",
    fix="give the path of the model's config.json",
)
declare(
    "workloads.file",
    "A model file is readable.",
    rule="config.json is JSON; a family file is TOML whose tables hold the fields of Model",
    fix="correct the place named above",
)

_FIELDS = {field.name for field in fields(Model)}


def read_family(file: Path) -> dict[str, Model]:
    """The models of one TOML file; `[family]` fields hold for all; FileFormatError."""
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    every = data.pop("family", {})
    found = {}
    for name, row in data.items():
        extra = (row.keys() | every.keys()) - _FIELDS - {"names"}
        if extra:
            raise FileFormatError(
                f"{file.name}: {name} has unknown fields {', '.join(sorted(extra))}",
                code="workloads.file",
            )
        own = every | row
        names = own.pop("names", [])
        one = Model(name=name, **own)
        found |= dict.fromkeys((name, *names), one)
    return found


@cache
def _known() -> dict[str, Model]:
    found: dict[str, Model] = {}
    for file in sorted(FOLDER.glob("*.toml")):
        found |= read_family(file)
    return found


def models() -> tuple[str, ...]:
    """The names of all known models."""
    return tuple(sorted({one.name for one in _known().values()}))


def _plain(name: str) -> str:
    return name.strip().lower().split("/")[-1].removeprefix("meta-").replace("_", "-")


def model(name: str | Path | Mapping[str, Any] | Model) -> Model:
    """The model meant: a name (`llama-3.1-70b`), a config.json (path or mapping), or a Model.

    Raises UnknownNameError `workloads.unknown` with the nearest names, MissingFileError and
    FileFormatError for files, and what `from_config` raises.
    """
    if isinstance(name, Model):
        return name
    if isinstance(name, Mapping):
        return from_config(name)
    text = str(name)
    if text.endswith(".json"):
        return from_config(_read(Path(text)), Path(text).parent.name or text)
    known = _known()
    plain = _plain(text)
    for tried in (plain, plain.removesuffix("-instruct"), plain.removesuffix("-hf")):
        if tried in known:
            return known[tried]
    close = ", ".join(nearest(plain, known)) or ", ".join(models())
    raise UnknownNameError(
        f"no model is called {text!r}", code="workloads.unknown",
        fix=f"try {close}, or give the path of a config.json",
    )  # fmt: skip


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; ValueError for a field that stands in it twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} stands there twice")
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as error:
        what = f"cannot read {path}: {error.strerror or error}"
        fix = "give the path of a config.json, or the name of a model (llama-3.1-70b)"
        raise MissingFileError(what, code="workloads.file", fix=fix) from None
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path.name} is not JSON: {error}", code="workloads.file") from None
    if not isinstance(data, dict):
        raise FileFormatError(f"{path.name} holds no object", code="workloads.file")
    return data
