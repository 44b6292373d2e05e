"""Check what public articles say about the system: by arithmetic, or against cited facts.

`claims.toml` holds the claims and says what each is compared with; the numbers they are compared
with come from hardware files, prices and workloads when the check runs.  A claim's verdict is the
first of these that one of its statements has:

    contradicts itself         its own figures do not add up
    contradicts source NAME    a cited fact says something else
    cannot be checked          no figure, or no fact to compare with
    agrees                     all of it that is checked agrees

A figure agrees within 2 %; bytes are tried as decimal and as binary, because both are written GB.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from opentrn.base import UnknownNameError, declare, nearest
from opentrn.cost.tables import table_text

declare(
    "cost.claim",
    "There is no claim under this number.",
    rule="claims are numbered A01, A02, ...",
    fix="`opentrn claims` lists them: A01 to A23",
)

DATA = Path(__file__).with_name("claims.toml")
TOLERANCE = 0.02
"""A figure this near agrees."""

AGREES, UNCHECKED, ITSELF = "agrees", "cannot be checked", "contradicts itself"
CONTRADICTS = "contradicts source "


@dataclass(frozen=True)
class Finding:
    """One statement of a claim: its verdict, what was computed, why, and by whom.

    `verdict` "" tells something beside the claim and decides nothing.
    """

    verdict: str
    computed: str
    reason: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A claim with what came of checking it."""

    id: str
    says: str
    kind: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """The weightiest verdict of its statements."""
        found = [f.verdict for f in self.findings if f.verdict]
        for start in (ITSELF, CONTRADICTS, UNCHECKED):
            for verdict in found:
                if verdict.startswith(start):
                    return verdict
        return AGREES

    @property
    def computed(self) -> str:
        """What was computed, statement by statement."""
        return "; ".join(f.computed for f in self.findings if f.computed)

    @property
    def reason(self) -> str:
        """Why, statement by statement; those that decide first."""
        order = sorted(self.findings, key=lambda f: f.verdict != self.verdict)
        return "; ".join(f.reason for f in order if f.reason) or "all that is checked agrees"

    @property
    def sources(self) -> tuple[str, ...]:
        """Every source, each once."""
        return tuple(dict.fromkeys(s for f in self.findings for s in f.sources))

    def json(self) -> dict[str, Any]:
        """id, verdict, computed, reason, sources."""
        return {
            "id": self.id,
            "verdict": self.verdict,
            "computed": self.computed,
            "reason": self.reason,
            "sources": list(self.sources),
        }


@cache
def data() -> dict[str, Any]:
    """The file of claims."""
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


def check_claims(
    wanted: str | None = None,
    features: Mapping[str, Callable[[], tuple[bool, str]]] = MappingProxyType({}),
) -> tuple[Claim, ...]:
    """Every claim, checked now; or the one called `wanted`.

    `features` try what is claimed to work, by the names of the file: each returns (works, what
    was done). A feature that nobody tries cannot be checked. Raises UnknownNameError `cost.claim`.
    """
    from opentrn.cost.checks import KINDS, feature

    def findings(check: dict[str, Any]) -> Iterable[Finding]:
        if check["kind"] == "feature":
            return feature(check, features)
        return KINDS[check["kind"]](check)

    every = data()["claim"]
    if wanted is not None:
        every = [row for row in every if row["id"] == wanted.upper()]
        if not every:
            known = [row["id"] for row in data()["claim"]]
            raise UnknownNameError(
                f"there is no claim {wanted}",
                code="cost.claim",
                fix=f"nearest: {', '.join(nearest(wanted, known)) or ', '.join(known)}",
            )
    return tuple(
        Claim(
            row["id"],
            row["says"],
            row["kind"],
            tuple(f for check in row["checks"] for f in findings(check)),
        )
        for row in every
    )


def claims_document(checked: tuple[Claim, ...]) -> dict[str, Any]:
    """All of it for programs: {"claims": [{id, verdict, computed, reason, sources}]}."""
    return {"claims": [claim.json() for claim in checked]}


def claims_text(checked: tuple[Claim, ...]) -> str:
    """A table for people; of a single claim also each thing computed and each source."""
    rows = [(one.id, one.says, one.verdict, one.reason) for one in checked]
    lines = [
        f"Claims of {data()['source']}, checked against cited facts", "",
        table_text(("", "claim", "verdict", "why"), rows, left=range(4)), "",
    ]  # fmt: skip
    for claim in checked if len(checked) == 1 else ():
        lines += [f"computed: {f.computed}" for f in claim.findings if f.computed]
        lines += [f"source: {source}" for source in claim.sources]
    kinds = (AGREES, ITSELF, CONTRADICTS, UNCHECKED)
    counts = {kind: sum(one.verdict.startswith(kind) for one in checked) for kind in kinds}
    told = ", ".join(f"{kind.strip()}: {count}" for kind, count in counts.items() if count)
    more = "" if len(checked) == 1 else "; `opentrn claims A05` shows what was computed, from what"
    return "\n".join([*lines, told + more])
