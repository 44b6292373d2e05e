"""The page of a machine as plain text, 100 columns: values as written, meaning, source and grade.

    tensor
      clock             2.4 GHz        nki-trn2-guide       one moving column a cycle
    ~ latency           165 ns         kernel-profiles      from the last column's issue to ...
        because ...

The mark before a name is its grade (see MARKS); the other readings of a contested fact, the reason
for a choice, and the notes of the file stand below it.
"""

from __future__ import annotations

import textwrap
from itertools import takewhile

from opentrn.base.errors import UnknownNameError, nearest
from opentrn.hw import schema
from opentrn.hw.fact import Chip, Fact, Instance, Machine, Price
from opentrn.hw.load import FOLDER, chips, fabric, fabrics, instances, prices
from opentrn.hw.names import ALIASES, INSTANCE_ALIASES, find_instance, names, target

WIDTH = 100
MARKS = {"stated": " ", "derived": "+", "fitted": "~", "assumed": "?"}
_VALUE, _SOURCE = 14, 21


def page(name: str) -> str:
    """Everything known about a chip, an instance or a fabric; `targets` lists the names.

    Raises UnknownNameError `hw.target` with the nearest names.
    """
    plain = name.strip().lower()
    if plain in ("targets", "hw"):
        return _names()
    machine = _find(plain)
    lines = _head(machine)
    for section in machine.sections:
        lines += ["", *_section(machine, section)]
    if isinstance(machine, Instance):
        lines += ["", *_prices(prices(machine.name))]
    lines += ["", *_grades(machine), "", *_sources(machine)]
    return "\n".join(line.rstrip() for line in lines)


def _find(name: str) -> Machine:
    plain = name.removeprefix("ml.")
    if plain in instances() or plain in INSTANCE_ALIASES:
        return find_instance(plain)
    if plain in fabrics():
        return fabric(plain)
    if plain in chips() or plain in ALIASES:
        return target(plain)
    known = [*chips(), *ALIASES, *instances(), *INSTANCE_ALIASES, *fabrics()]
    close = ", ".join(nearest(plain, known)) or ", ".join(chips())
    raise UnknownNameError(f"nothing is called {name!r}", code="hw.target", fix=f"try {close}")


def _names() -> str:
    lines = []
    for kind, listed in names().items():
        lines += [kind, *_wrapped(", ".join(listed), "  "), ""]
    return "\n".join(lines).rstrip()


def _head(machine: Machine) -> list[str]:
    if isinstance(machine, Chip):
        text = (
            f"{machine.title}: {machine.cores} NeuronCore-v{machine.generation} "
            f"(NKI gen{machine.generation})"
        )
        used = [i for i in instances() if find_instance(i).chip == machine]
        more = f"in {', '.join(used)}"
    elif isinstance(machine, Instance):
        text = (
            f"{machine.chips} x {machine.chip.title}, {machine.cores} physical cores, "
            f"{machine.logical_cores} logical cores by default"
        )
        joined = machine.fabric.name if machine.fabric else "nothing: one chip"
        more = f"chips joined by {joined}; `opentrn show {machine.chip.name}` tells about the chip"
    else:
        text = f"{machine.topology} of {machine.chips} {target(machine.fabric.chip).title}"
        used = [i for i in instances() if find_instance(i).fabric == machine]
        more = f"in {', '.join(used)}"
    return [f"{machine.name}   {text}", *_wrapped(more, " " * (len(machine.name) + 3))]


def _section(machine: Machine, section: str) -> list[str]:
    known = schema.needs(machine.kind, machine.sections)
    rows = [f for f in machine if f.path.startswith(f"{section}.")]
    name = max(len(f.path) for f in rows) - len(section) + 1
    value = max(_VALUE, *(len(f.text) + 2 for f in rows))
    lines = [section]
    for fact in rows:
        lines += _fact(fact, (name, value), known[fact.path].meaning)
    return lines + _note(machine, section)


def _note(machine: Machine, section: str) -> list[str]:
    """The comment block that stands directly above the section in its file, if it has one."""
    file = FOLDER / f"{machine.kind}s" / f"{machine.name}.toml"
    if not file.exists():
        return []
    above = file.read_text(encoding="utf-8").split(f"\n[{section}]\n")[0].split("\n")
    note = list(takewhile(lambda line: line.startswith("#"), reversed(above)))
    return ["", *(f"  {line[2:]}" for line in reversed(note))] if note else []


def _fact(fact: Fact, widths: tuple[int, int], meaning: str) -> list[str]:
    name, value = widths
    label = fact.path.split(".")[1]
    start = f"{MARKS[fact.grade]} {label:<{name}}{fact.text:<{value}}{fact.source:<{_SOURCE}}"
    first, *rest = _wrapped(meaning, "", WIDTH - len(start)) or [""]
    lines = [start + first, *(" " * len(start) + line for line in rest)]
    indent = " " * (name + 2)
    for other in fact.also:
        lines.append(f"{indent}{other.text:<{value}}{other.source:<{_SOURCE}}says otherwise")
    return lines + _wrapped(fact.because, f"{indent}  ")


def _prices(listed: tuple[Price, ...]) -> list[str]:
    if not listed:
        return ["prices", "  none is published"]
    lines = ["prices"]
    for p in listed:
        lines.append(f"{MARKS[p.grade]} {p.basis:<16}{p.hourly:>10g} $/h   {p.region:<16}{p.date}"
                     f"  {p.source}")  # fmt: skip
        lines += _wrapped(p.note, " " * 4) if p.note else []
    lines += ["  sources of the prices"]
    for key, cited in {p.source: p.cited for p in listed}.items():
        lines += _wrapped(f"{key}: {cited}", " " * 4)
    return lines


def _grades(machine: Machine) -> list[str]:
    counts = {g: sum(f.grade == g for f in machine) for g in schema.GRADES}
    told = ", ".join(f"{n} {g}" for g, n in counts.items() if n)
    return [
        f"grades   {told} of {len(machine.facts)} facts",
        "         no mark: stated   + derived: arithmetic   ~ fitted: measured   ? assumed",
    ]


def _sources(machine: Machine) -> list[str]:
    width = max(len(key) for key in machine.sources)
    lines = ["sources"]
    for key, text in machine.sources.items():
        first, *rest = _wrapped(text, "", WIDTH - width - 4)
        lines += [f"  {key:<{width}}  {first}", *(" " * (width + 4) + line for line in rest)]
    return lines


def _wrapped(text: str, indent: str, width: int = WIDTH) -> list[str]:
    return textwrap.wrap(
        text, max(20, width), initial_indent=indent, subsequent_indent=indent,
        break_on_hyphens=False,
    )  # fmt: skip
