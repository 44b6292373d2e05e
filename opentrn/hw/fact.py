"""A fact is a number that knows its unit, source and grade; a machine is a set of facts.

`chip.fact("tensor.clock")` gives the whole Fact; `chip.tensor.clock` only its SI value, as fast as
any attribute. Machines are immutable, equal and hashable by name, and pickle by content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from opentrn.base.errors import FactError, UnknownNameError, declare, nearest

declare(
    "hw.fact",
    "A machine has only the facts that its file lists.",
    rule="a fact is named <section>.<name>, as in `tensor.clock`",
    fix="`opentrn show <machine>` lists all of them",
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What another source says about the same fact."""

    value: Any
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Fact:
    """One number: `value` in SI units, `unit` its dimension, `text` as the file writes it.

    `source` is a key of the machine's `sources`, `grade` one of `schema.GRADES`, `also` the other
    readings, `because` the reason for the choice or the way the number was made.
    """

    path: str
    value: Any
    unit: str
    text: str
    source: str
    grade: str
    also: tuple[Reading, ...] = ()
    because: str = ""


class Group:
    """The facts of one section as plain read-only attributes."""

    def __init__(self, owner: str, section: str, values: Mapping[str, Any]):
        self.__dict__.update(values)
        self.__dict__["_of"] = (owner, section)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{'.'.join(self._of)} is read-only; use changed() for a variant")

    __delattr__ = __setattr__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_of" not in self.__dict__:
            raise AttributeError(name)
        known = [key for key in self.__dict__ if key != "_of"]
        close = ", ".join(nearest(name, known)) or ", ".join(known)
        owner, section = self._of
        raise AttributeError(f"{owner} has no fact {section}.{name}; nearest: {close}")

    def __reduce__(self):
        values = {key: value for key, value in self.__dict__.items() if key != "_of"}
        return Group, (*self._of, values)

    def __repr__(self) -> str:
        return f"<{'.'.join(self._of)}: {', '.join(k for k in self.__dict__ if k != '_of')}>"


class Machine:
    """Facts read from one file. The main section's facts are attributes of the machine itself."""

    kind = "machine"
    main = "machine"

    def __init__(self, name: str, facts: Mapping[str, Fact], sources: Mapping[str, str]):
        sections: dict[str, dict[str, Any]] = {}
        for path, fact in facts.items():
            section, key = path.split(".")
            sections.setdefault(section, {})[key] = fact.value
        own = self.__dict__
        for section, values in sections.items():
            own[section] = Group(name, section, values)
        for key, value in sections.get(self.main, {}).items():
            own.setdefault("title" if key == "name" else key, value)
        own.update(name=name, facts=dict(facts), sources=dict(sources), sections=tuple(sections))
        own["_hash"] = hash((self.kind, name))

    def fact(self, path: str) -> Fact:
        """The fact `<section>.<name>`; UnknownNameError `hw.fact` names the nearest ones."""
        found = self.facts.get(path)
        if found is None:
            close = ", ".join(nearest(path, self.facts)) or "none"
            raise UnknownNameError(
                f"{self.name} has no fact {path!r}", code="hw.fact", fix=f"nearest: {close}"
            )
        return found

    def __iter__(self) -> Iterator[Fact]:
        return iter(self.facts.values())

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self.name} is read-only; use changed() for a variant")

    __delattr__ = __setattr__

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self.name == other.name)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self):
        return type(self), (self.name, self.facts, self.sources)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"


class Chip(Machine):
    """One chip and its cores: `.name` "trn2", `.title` "Trainium2", `.generation` 3.

    The facts of [chip] are also attributes of the chip (`chip.cores`, `chip.hbm`); the others are
    in their groups (`chip.core.partitions`, `chip.tensor.clock`, `chip.dma.engine_rate`, ...).
    """

    kind = "chip"
    main = "chip"

    def changed(self, name: str, **texts: str | int | float) -> Chip:
        """A variant called `name` with other values: `changed("fast", tensor__clock="3 GHz")`.

        A double underscore stands for the dot. The new facts are graded `assumed`; units are
        checked as in a file. Raises FactError for a wrong one and UnknownNameError `hw.fact`.
        """
        from opentrn.hw.load import read_value

        if name == self.name:
            raise FactError(f"a variant of {name} needs a name of its own", code="hw.fact")
        facts = dict(self.facts)
        for key, text in texts.items():
            fact = self.fact(key.replace("__", "."))
            facts[fact.path] = replace(
                fact,
                value=read_value(text, fact.unit, fact.path, at=None),
                text=str(text),
                source="variant",
                grade="assumed",
                because=f"changed from {fact.text}",
                also=(),
            )
        return Chip(name, facts, {**self.sources, "variant": f"a variant of {self.name}"})


class Instance(Machine):
    """One instance or UltraServer: chips, host and network.

    `.chip` is the Chip, `.chips` how many, `.cores` all physical cores, `.logical_cores` all
    logical ones by default, `.fabric` the Fabric or None; groups `.host` and `.totals`.
    """

    kind = "instance"
    main = "instance"

    def __init__(self, name: str, facts: Mapping[str, Fact], sources: Mapping[str, str]):
        from opentrn.hw.load import chip, fabric

        super().__init__(name, facts, sources)
        own = self.__dict__
        own["chip"] = chip(self.instance.chip)
        own["fabric"] = fabric(own["fabric"]) if "fabric" in own else None
        own["cores"] = self.chips * self.chip.cores
        own["logical_cores"] = self.cores // self.chip.logical_cores
        own["servers"] = own.get("servers", 1)


class Fabric(Machine):
    """How the chips of an instance are joined: `.topology`, `.shape`, `.links`, and group `.efa`.

    `.links` is a tuple of groups (`.links` a chip, `.bandwidth` of one in one direction, `.both`),
    in the order of the axes of a torus or of the levels of a switched fabric.
    """

    kind = "fabric"
    main = "fabric"

    def __init__(self, name: str, facts: Mapping[str, Fact], sources: Mapping[str, str]):
        super().__init__(name, facts, sources)
        links = tuple(self.__dict__[s] for s in self.sections if s.startswith("link_"))
        self.__dict__["links"] = links


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars an hour for a whole instance: one basis, one region, one day, one source."""

    instance: str
    basis: str
    region: str
    date: str
    hourly: float
    source: str
    grade: str
    note: str = ""
    cited: str = ""

    def __str__(self) -> str:
        return (
            f"{self.hourly:g} $/h for {self.instance}, {self.basis}, region {self.region}, "
            f"{self.date} ({self.source})"
        )
