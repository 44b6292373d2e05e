"""How far off we are, by level (kernel, model, collective) and by hardware and workload.

A score is one published number beside ours, whatever benchmark it comes from: `bench.predict`
(kernels), `bench.fleet` (models) or `bench.fabric` (collectives).
"""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import fabric, fleet

BEGIN, END = "<!-- cells -->", "<!-- end of cells -->"
USES = ("checked", "fitted")
HEAD = (
    "| hardware | workload | use | rows | median error | 90 % within | worst | which |\n"
    "|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Score:
    """One comparison: `error` is a share of the published number, `measure` what was compared."""

    level: str
    use: str
    hardware: str
    workload: str
    measure: str
    id: str
    error: float


def models() -> Iterator[Score]:
    """Steps, prefills and decodes (seconds), and activations (bytes; never used in a fit)."""
    for name, make in fleet.TABLES.items():
        measure = "bytes" if name == "memory" else "seconds"
        for row in make():
            hardware = row.machine.split(" x ")[-1]
            yield Score("model", row.use, hardware, name, measure, row.id, row.error)


def collectives() -> Iterator[Score]:
    """Every point above 1 MB of every curve."""
    for curve in fabric.curves():
        for point in curve.counted:
            name = f"{curve.name} {point.nbytes} B"
            machine = "not stated" if curve.name.startswith("unknown") else curve.machine
            yield Score("collective", curve.use, machine, _tool(curve.name), "seconds",
                        name, point.error)  # fmt: skip


def _tool(name: str) -> str:
    """What a curve was measured with: the second word, where it is not a number of ranks."""
    word = name.split()[0].split(".")[1]
    return "nccom-test" if word[0].isdigit() or word == "nccom" else word


def levels(scores: Iterable[Score]) -> dict[str, Any]:
    """`{use: {level: rows, median_abs_error, p90_abs_error, measures}}`; errors are fractions."""
    found: dict[str, Any] = {}
    scores = list(scores)
    for use in USES:
        for level in dict.fromkeys(score.level for score in scores):
            own = [s for s in scores if (s.use, s.level) == (use, level)]
            if own:
                measures = sorted({s.measure for s in own})
                found.setdefault(use, {})[level] = {**_errors(own), "measures": measures}
    return found


def _errors(scores: list[Score]) -> dict[str, float]:
    errors = [abs(score.error) for score in scores]
    return {
        "rows": len(errors),
        "median_abs_error": statistics.median(errors),
        "p90_abs_error": float(np.quantile(errors, 0.9)),
    }


def cells(scores: Iterable[Score]) -> list[str]:
    """A line of the page for each hardware, workload and use, the worst median first."""
    groups: dict[tuple[str, str, str], list[Score]] = {}
    for score in scores:
        groups.setdefault((score.hardware, score.workload, score.use), []).append(score)
    ordered = sorted(groups.items(), key=lambda x: (-_errors(x[1])["median_abs_error"], x[0]))
    return [_cell(key, own) for key, own in ordered]


def _cell(key: tuple[str, str, str], scores: list[Score]) -> str:
    found, worst = _errors(scores), max(scores, key=lambda s: abs(s.error))
    told = (*key, str(found["rows"]), f"{found['median_abs_error']:.0%}",
            f"{found['p90_abs_error']:.0%}", f"{worst.error:+.0%}", worst.id)  # fmt: skip
    return f"| {' | '.join(told)} |"


def update(page: str, scores: Iterable[Score]) -> str:
    """The page with a fresh table of cells."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return "\n".join([before + BEGIN, HEAD, *cells(scores), END]) + after
