"""What the real device does with an op: since and until which SDK, by the vendor's own pages.

The facts are in `support.toml`, each with its source.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from opentrn.graph import Graph, decompose

FILE = Path(__file__).with_name("support.toml")
STATES = ("refused", "limited", "runs")
"""What becomes of an op, worst first."""
LEAVES = ("input", "constant", "get_tuple_element")
READ = {"scatter": lambda v: (v,), "top_k": lambda v: v.args}
FIRST_SDK = "2.3"
"""The first SDK with a compiler for Trainium."""
MOST = 200
"""So many primitive ops of one op of a model are looked at."""


@dataclass(frozen=True)
class Fact:
    """One thing the vendor says: `ops` of `dtypes` on `chips` (none: all) are in a `state`.

    `since` and `until` are versions of the SDK, "" where none is told; `rewrite` says what to do
    instead and `code` is the compiler's error."""

    ops: frozenset[str]
    state: str
    text: str
    source: str
    dtypes: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    chips: frozenset[str] = frozenset()
    since: str = ""
    until: str = ""
    rewrite: str = ""
    code: str = ""

    def about(self, op: str, dtypes: Iterable[str], chip: str, kind: str = "") -> bool:
        """Whether it is about an op (of a `kind`, as scatters have) with such operands and results
        on a chip."""
        named = "" in self.ops or op in self.ops
        alike = not self.dtypes or not self.dtypes.isdisjoint(dtypes)
        meant = not self.kinds or kind in self.kinds
        return named and alike and meant and (not self.chips or chip in self.chips)

    @property
    def versions(self) -> str:
        """The versions of the SDK it holds for, as text."""
        told = [f"since SDK {self.since}"] if self.since else []
        return " ".join([*told, *([f"until SDK {self.until}"] if self.until else [])])

    def __str__(self) -> str:
        told = f"{self.state}{' ' + self.versions if self.versions else ''}: {self.text}"
        return f"{told} ({self.code})" if self.code else told

    def json(self) -> dict[str, str]:
        """The fact as plain data."""
        names = ("state", "since", "until", "text", "rewrite", "code", "source")
        return {name: getattr(self, name) for name in names}


@cache
def facts() -> tuple[Fact, ...]:
    """All facts of the file, sources written out."""
    held = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tuple(_read(row, held["sources"]) for row in held["fact"])


def _read(row: dict[str, Any], sources: dict[str, str]) -> Fact:
    sets = {name: frozenset(row.get(name, ())) for name in ("ops", "dtypes", "kinds", "chips")}
    rest = {k: v for k, v in row.items() if k not in sets and k != "source"}
    return Fact(**sets, **rest, source=sources[row["source"]])


def of_graph(graph: Graph, chip: str) -> tuple[Fact, ...]:
    """The facts about the ops of a graph on a chip, each once, worst first.

    Since when it runs is told where all its ops are on the vendor's list: of the latest."""
    found: dict[Fact, None] = {}
    listed = True
    for value in [*_primitive(graph)][:MOST]:
        # A scatter is judged by the numbers it writes, not the places; top_k by what it sorts.
        kind = str(getattr(value.attrs, "kind", ""))
        read = READ.get(value.op, lambda v: (v, *v.args))(value)
        kinds = [str(getattr(v, "dtype", "")) for v in read]
        about = [f for f in facts() if f.about(value.op, kinds, chip, kind)]
        listed = listed and (value.op in LEAVES or any(f.state == "runs" for f in about))
        found |= dict.fromkeys(about)
    return told(f for f in found if listed or f.state != "runs")


def _primitive(graph: Graph) -> Graph:
    """The graph in primitive ops, which are those of the vendor's list."""
    while any(value.attrs.composite for value in graph):
        graph = decompose(graph)
    return graph


def of_dtypes(dtypes: Iterable[str], chip: str) -> tuple[Fact, ...]:
    """The facts about dtypes, whatever is done with them."""
    kinds = list(dtypes)
    return told(f for f in facts() if "" in f.ops and f.about("", kinds, chip))


def told(found: Iterable[Fact]) -> tuple[Fact, ...]:
    """Facts worst first; of those that only say since when it runs, the latest."""
    held = list(dict.fromkeys(found))
    runs = [f for f in held if f.state == "runs"]
    latest = max(runs, key=lambda f: _order(f.since), default=None)
    kept = [f for f in held if f.state != "runs" or f is latest]
    return tuple(sorted(kept, key=lambda f: STATES.index(f.state)))


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in version.split(".")) if version else ()


__all__ = ["FIRST_SDK", "STATES", "Fact", "facts", "of_dtypes", "of_graph"]
