"""The page of a machine as plain text, 100 columns: values as written, meaning, source and grade.

    tensor
      clock             2.4 GHz        nki-trn2-guide       one moving column a cycle
    ~ latency           165 ns         kernel-profiles      from the last column's issue to ...
        because ...

The mark before a name is its grade: none stated, ` + ` derived, ` ~ ` fitted, ` ? ` assumed.
"""

from __future__ import annotations

import textwrap

from opentrn.base.errors import UnknownNameError, nearest
from opentrn.hw import schema
from opentrn.hw.fact import Chip, Fact, Instance, Machine, Price
from opentrn.hw.load import chips, fabric, fabrics, instances, prices
from opentrn.hw.names import ALIASES, INSTANCE_ALIASES, find_instance, names, target

WIDTH = 100
MARKS = {"stated": " ", "derived": "+", "fitted": "~", "assumed": "?"}
_VALUE, _SOURCE = 16, 22


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
    width = max(len(f.path) for f in rows) - len(section) - 1
    lines = [section]
    for fact in rows:
        lines += _fact(fact, section, width, known[fact.path].meaning)
    return lines


def _fact(fact: Fact, section: str, width: int, meaning: str) -> list[str]:
    name = fact.path.removeprefix(f"{section}.")
    start = f"{MARKS[fact.grade]} {name:<{width}}  {fact.text:<{_VALUE}}{fact.source:<{_SOURCE}}"
    left = max(len(start), 4 + width + _VALUE + _SOURCE)
    first, *rest = _wrapped(meaning, "", WIDTH - left) or [""]
    indent = " " * (width + 4)
    lines = [f"{start:<{left}}{first}", *(" " * left + line for line in rest)]
    for other in fact.also:
        lines.append(f"{indent}{other.text:<{_VALUE}}{other.source:<{_SOURCE}}says otherwise")
    if fact.because:
        lines += _wrapped(fact.because, f"{indent}  ")
    return lines


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
