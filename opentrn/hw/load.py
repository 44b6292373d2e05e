"""Read the TOML files of this folder, refusing whatever is not a complete, sourced fact.

Every refusal is a FactError that names the file, the line and the key:

    hw.toml       not TOML               hw.form        not [value, source, grade]
    hw.duplicate  a key twice            hw.unknown     a fact that no machine of the kind has
    hw.missing    a fact left out        hw.bare        a bare number where a unit is needed
    hw.unit       an unknown unit        hw.dimension   measured in something else
    hw.zero       zero or less           hw.source      a source that is not under [sources]
    hw.grade      an unknown grade       hw.reason      no reason where one is owed

Machines are read when first asked for, and then kept.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from opentrn.base import units
from opentrn.base.errors import (
    FactError,
    MissingFileError,
    TrnError,
    UnknownNameError,
    Where,
    declare,
    nearest,
)
from opentrn.hw import schema
from opentrn.hw.fact import Chip, Fabric, Fact, Instance, Machine, Price, Reading

FOLDER = Path(__file__).parent

_REFUSALS = {
    "toml": ("A hardware file is TOML.", "correct the line named above"),
    "duplicate": ("A key stands twice in one file.", "remove one of the two lines"),
    "form": (
        "A fact is [value, source, grade] or a table of these.",
        'as ["96 GiB", "a", "stated"]',
    ),
    "unknown": ("A fact is of the list in hw/schema.py.", "correct its name, or extend the schema"),
    "missing": ("A file has every required fact of its kind.", "add it; `assumed` if unpublished"),
    "bare": ("A quantity is text with its unit.", 'write the unit, as in "96 GiB"'),
    "unit": ("A unit is one of base.units.", "`opentrn explain base.unit` tells which"),
    "dimension": ("A fact is measured as hw/schema.py says.", "check the unit and the key"),
    "zero": (
        "What is unknown is left out or assumed, never zero.",
        "leave it out, or assume a value",
    ),
    "source": ("A source is listed in full under [sources].", "add the source to [sources]"),
    "grade": ("A grade is stated, fitted, derived or assumed.", "use one of the four"),
    "reason": ("What is not plainly stated says why.", "add a fourth element, or `because`"),
    "file": (
        "A hardware or price file can be read.",
        "correct its path; `opentrn doctor` shows where the package's own files lie",
    ),
    "price": ("A price has basis, region and date; none is made up.", "choose one that is listed"),
}
for _code, (_meaning, _fix) in _REFUSALS.items():
    declare(f"hw.{_code}", _meaning, rule=_meaning.rstrip("."), fix=_fix)

_WHOLE = {"count", "number", "flag"}


def _refuse(what: str, code: str, at: Where | None, **more: str) -> FactError:
    return FactError(what, code=f"hw.{code}", at=at, **more)


def _where(file: Path, text: str, section: str = "", key: str = "") -> Where:
    """The line of `key` in [section], or of the section, or the first line."""
    place, inside = 1, not section
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("["):
            inside = line.strip("[] \n") == section
            place = number if inside else place
        elif inside and key and re.match(rf"{re.escape(key)}\s*(\.|=)", line):
            return Where(str(file), number)
    return Where(str(file), place)


def read_toml(file: Path) -> tuple[dict, str]:
    """The parsed file and its text; FactError `hw.toml` or `hw.duplicate`, MissingFileError."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        why = error.strerror or str(error)
        raise MissingFileError(f"cannot read {file}: {why}", code="hw.file") from error
    except UnicodeDecodeError as error:
        at = Where(str(file), 1)
        raise _refuse(f"{file.name} is no text: {error.reason}", "toml", at) from None
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        at = Where(str(file), int(found.group(1)) if found else 1)
        twice = "Cannot overwrite" in str(error) or "twice" in str(error)
        code = "duplicate" if twice else "toml"
        raise _refuse(f"{file.name}: {error}", code, at) from None


def read_value(value: Any, dimension: str, path: str, at: Where | None) -> Any:
    """The SI value of a raw TOML value that must have this dimension (see schema.py)."""
    if dimension == "text":
        if not isinstance(value, str) or not value:
            raise _refuse(f"{path} = {value!r} is not text", "dimension", at)
        return value
    if dimension == "shape":
        if not isinstance(value, str) or not re.fullmatch(r"\d+( x \d+)*", value):
            raise _refuse(f"{path} = {value!r} is not a shape such as '4 x 4'", "dimension", at)
        return tuple(int(size) for size in value.split(" x "))
    if dimension in schema.PLAIN:
        return _plain(value, dimension, path, at)
    return _quantity(value, dimension, path, at)


def _units(dimension: str) -> str:
    """How a quantity of this dimension is written."""
    own = [unit for unit, (_, measured) in units.UNITS.items() if measured == dimension and unit]
    return f"write a number and its unit, one of {', '.join(own)}"


def _plain(value: Any, dimension: str, path: str, at: Where | None) -> int | float:
    kinds = (int,) if dimension in _WHOLE else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise _refuse(
            f"{path} = {value!r}: wanted a plain {'whole ' if dimension in _WHOLE else ''}number",
            "dimension", at,
        )  # fmt: skip
    if dimension == "flag" and value not in (0, 1):
        raise _refuse(f"{path} = {value!r} is neither 0 nor 1", "dimension", at)
    if value < 0 or (value == 0 and dimension in ("count", "ratio")):
        raise _refuse(f"{path} = {value!r}: wanted more than zero", "zero", at)
    return value if dimension in _WHOLE else float(value)


def _bare(path: str, value: Any, dimension: str, at: Where | None) -> TrnError:
    what = f"{path} = {value!r} has no unit; it is measured in {dimension}"
    return _refuse(what, "bare", at, fix=_units(dimension))


def _quantity(value: Any, dimension: str, path: str, at: Where | None) -> int | float:
    if not isinstance(value, str):
        raise _bare(path, value, dimension, at)
    try:
        found = units.parse(value)
    except TrnError as error:
        raise _refuse(f"{path} = {error.what}", "unit", at, fix=_units(dimension)) from None
    if found.dimension == "1" and not value.strip().endswith("%"):
        raise _bare(path, value, dimension, at)
    if found.dimension != dimension:
        raise _refuse(
            f"{path} = {value!r} is measured in {found.dimension}, wanted {dimension}",
            "dimension", at, fix=_units(dimension),
        )  # fmt: skip
    if not found.value > 0:
        raise _refuse(f"{path} = {value!r}: wanted more than zero", "zero", at)
    whole = dimension in ("byte", "cycle") and found.value == int(found.value)
    return int(found.value) if whole else found.value


def _row(raw: Any, path: str, at: Where) -> dict:
    """The two written forms of a fact as one dict: value, source, grade, also, because."""
    if isinstance(raw, list) and len(raw) in (3, 4):
        return dict(zip(("value", "source", "grade", "because"), raw, strict=False))
    if isinstance(raw, dict):
        extra = raw.keys() - {"value", "source", "grade", "also", "because"}
        if not extra and {"value", "source", "grade"} <= raw.keys():
            return raw
    raise _refuse(f"{path} = {raw!r} is not [value, source, grade]", "form", at)


def _cited(source: Any, sources: dict, path: str, at: Where) -> str:
    if source not in sources:
        close = ", ".join(nearest(source, sources)) or "none"
        raise _refuse(
            f"{path} cites {source!r}, which is not under [sources]; nearest: {close}", "source", at
        )
    return source


def _graded(grade: Any, path: str, at: Where) -> str:
    if grade not in schema.GRADES:
        raise _refuse(f"{path} has the unknown grade {grade!r}", "grade", at)
    return grade


def read_fact(raw: Any, path: str, dimension: str, sources: dict, at: Where) -> Fact:
    """One fact from its TOML form, fully checked."""
    row = _row(raw, path, at)
    also = []
    for other in row.get("also", ()):
        if not (isinstance(other, list) and len(other) == 2):
            raise _refuse(f"{path}: `also` holds [value, source] pairs", "form", at)
        value = read_value(other[0], dimension, path, at)
        also.append(Reading(value, str(other[0]), _cited(other[1], sources, path, at)))
    fact = Fact(
        path=path,
        value=read_value(row["value"], dimension, path, at),
        unit=dimension,
        text=str(row["value"]),
        source=_cited(row["source"], sources, path, at),
        grade=_graded(row["grade"], path, at),
        also=tuple(also),
        because=row.get("because", ""),
    )
    if not fact.because and (fact.grade != "stated" or fact.also):
        raise _refuse(f"{path} is {fact.grade} or contested, and says no reason", "reason", at)
    return fact


def _sources(data: dict, file: Path, text: str) -> dict[str, str]:
    sources = data.get("sources")
    if not isinstance(sources, dict) or not all(isinstance(v, str) for v in sources.values()):
        raise _refuse(f"{file.name} has no table [sources]", "source", _where(file, text))
    return {key: " ".join(value.split()) for key, value in sources.items()}


def read_machine(file: Path, kind: str) -> tuple[dict[str, Fact], dict[str, str]]:
    """All facts and sources of one file of `kind`; raises FactError (see the top of this file)."""
    data, text = read_toml(file)
    sources = _sources(data, file, text)
    known = schema.needs(kind, data)
    facts = {}
    for section, rows in data.items():
        if section == "sources":
            continue
        if not isinstance(rows, dict):
            raise _refuse(f"{file.name}: {section} stands outside a section", "form",
                          _where(file, text))  # fmt: skip
        for key, raw in rows.items():
            path, at = f"{section}.{key}", _where(file, text, section, key)
            if path not in known:
                close = ", ".join(nearest(path, known)) or "none"
                raise _refuse(f"{file.name}: {path} is no known fact of a {kind}; nearest: {close}",
                              "unknown", at)  # fmt: skip
            facts[path] = read_fact(raw, path, known[path].dimension, sources, at)
    _complete(facts, known, kind, file, text)
    return facts, sources


def _complete(facts: dict, known: dict, kind: str, file: Path, text: str) -> None:
    gone = [path for path, need in known.items() if need.required and path not in facts]
    if gone:
        at = _where(file, text, gone[0].split(".")[0])
        raise _refuse(f"{file.name} lacks {', '.join(gone)}", "missing", at)
    if kind != "fabric":
        return
    if facts["fabric.topology"].value not in schema.TOPOLOGIES:
        at = _where(file, text, "fabric", "topology")
        fix = f"one of {', '.join(schema.TOPOLOGIES)}"
        raise _refuse(f"{file.name}: unknown topology", "form", at, fix=fix)
    if not any(path.startswith("link_") for path in facts):
        raise _refuse(f"{file.name} has no link section", "missing", _where(file, text),
                      fix=f"add one of {', '.join(schema.LINK_SECTIONS)}")  # fmt: skip


_KINDS: dict[str, tuple[str, type[Machine]]] = {
    "chip": ("chips", Chip),
    "instance": ("instances", Instance),
    "fabric": ("fabrics", Fabric),
}


def read_file(file: str | Path, kind: str = "chip") -> Machine:
    """A machine from any file, named after it: your own chip, an edited copy of ours."""
    file = Path(file)
    facts, sources = read_machine(file, kind)
    return _KINDS[kind][1](file.stem, facts, sources)


def _listed(folder: str) -> list[str]:
    return sorted(file.name.removesuffix(".toml") for file in (FOLDER / folder).glob("*.toml"))


@cache
def chips() -> tuple[str, ...]:
    """The names of all chips."""
    return tuple(_listed("chips"))


@cache
def instances() -> tuple[str, ...]:
    """The names of all instances and UltraServers."""
    return tuple(_listed("instances"))


@cache
def fabrics() -> tuple[str, ...]:
    """The names of all fabrics."""
    return tuple(_listed("fabrics"))


@cache
def _machine(kind: str, name: str) -> Machine:
    folder, make = _KINDS[kind]
    facts, sources = read_machine(FOLDER / folder / f"{name}.toml", kind)
    return make(name, facts, sources)


def _known(name: str, kind: str, known: tuple[str, ...]) -> str:
    if name not in known:
        close = ", ".join(nearest(name, known)) or ", ".join(known)
        raise UnknownNameError(
            f"no {kind} is called {name!r}", code="hw.target", fix=f"try {close}"
        )
    return name


def chip(name: str) -> Chip:
    """The chip of that name ("inf2", "trn1", "trn2", "trn3"); else UnknownNameError `hw.target`."""
    return _machine("chip", _known(name, "chip", chips()))


def instance(name: str) -> Instance:
    """The instance of that name ("trn1.32xlarge", ...); else UnknownNameError `hw.target`."""
    return _machine("instance", _known(name, "instance", instances()))


def fabric(name: str) -> Fabric:
    """The fabric of that name ("trn2-torus", ...); else UnknownNameError `hw.target`."""
    return _machine("fabric", _known(name, "fabric", fabrics()))


@cache
def prices(name: str) -> tuple[Price, ...]:
    """Every known price of an instance, as its file lists them; none known is an empty tuple."""
    file = FOLDER / "prices" / f"{_known(name, 'instance', instances())}.toml"
    return read_prices(file) if file.exists() else ()


def _is_day(text: str) -> bool:
    """Whether it is a day such as 2026-07-20."""
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


_PRICE = {"basis", "region", "date", "hourly", "source", "grade"}
"""What every price has."""


def read_prices(file: Path) -> tuple[Price, ...]:
    """The prices of one file; FactError as for facts.

    A row is for the machine it names as its `instance`, else for the one the file is called after.
    """
    data, text = read_toml(file)
    sources = _sources(data, file, text)
    found = []
    rows, at = data.get("price", []), _where(file, text)
    if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        raise _refuse(f"{file.name}: prices are tables under [[price]]", "form", at)
    for number, row in enumerate(rows, 1):
        path = f"price {number}"
        gone, extra = _PRICE - row.keys(), row.keys() - _PRICE - {"note", "instance"}
        if gone or extra:
            code = "missing" if gone else "unknown"
            raise _refuse(f"{file.name}: {path}: {', '.join(sorted(gone or extra))}", code, at)
        for key in row:
            read_value(row[key], "text", f"{file.name}: {path}: {key}", at)
        if row["basis"] not in schema.BASES or not _is_day(row["date"]):
            fix = f"one of {', '.join(schema.BASES)}, and a date such as 2026-07-20"
            raise _refuse(f"{file.name}: {path}: unknown basis or date", "form", at, fix=fix)
        hourly = float(read_value(row["hourly"], "$/h", path, at))
        found.append(Price(
            instance=row.get("instance", file.name.removesuffix(".toml")), basis=row["basis"],
            region=row["region"], date=row["date"], hourly=hourly,
            source=_cited(row["source"], sources, path, at), grade=_graded(row["grade"], path, at),
            note=row.get("note", ""), cited=sources[row["source"]],
        ))  # fmt: skip
    return tuple(found)
