"""Our predicted times beside measurements that others published, good or bad.

    python -m bench.predict                every case (about a minute)
    python -m bench.predict --quick        those that take less than a second each
    python -m bench.predict mamba          those whose name contains a word
    python -m bench.predict --summary      one closing line
    python -m bench.predict --json         all of it, for programs
    python -m bench.predict --update docs/accuracy.md     write the results into that page's tables

`bench/published/*.toml` holds the measurements: what was run, what was published, where, how sure
that is (grade A, B or C), and whether the row was used when hardware numbers were fitted ("fitted")
or only ever compared ("checked").  Kernels are recorded from shapes; nothing is computed.  The
object of --json has `<use>.<level>.median_abs_error` and siblings for the levels kernel, and
unless a word or --quick narrows the run, model (`bench.fleet`) and collective (`bench.fabric`).
"""

import argparse
import importlib
import json
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import scores
from opentrn import dropin, hw, nki
from opentrn.base import CapacityError, dtypes
from opentrn.base.units import parse
from opentrn.isa import Buffer, Program, view
from opentrn.sim import Timeline, timeline
from opentrn.sim.timing import ENGINES

HERE = Path(__file__).resolve().parent
USES = scores.USES
BEGIN, END = "<!-- predictions -->", "<!-- end of predictions -->"


@dataclass(frozen=True)
class Case:
    """One kernel run: `inputs` are shapes, `kernel` is `module.function` of bench.kernels.

    `refused` is the code of the refusal to expect where our machine does not take the kernel.
    """

    name: str
    family: str
    kernel: str
    target: str
    dtype: str
    inputs: tuple[tuple[int, ...], ...]
    options: dict[str, Any]
    conditions: str
    source: str
    quick: bool
    refused: str
    rows: tuple[dict[str, str], ...]


@dataclass(frozen=True)
class Row:
    """One published number beside ours, in SI units; `predicted` is None for a refused kernel."""

    id: str
    family: str
    target: str
    measure: str
    published: float
    predicted: float | None
    dimension: str
    grade: str
    use: str
    rests_on: dict[str, float]
    conditions: str
    source: str

    @property
    def error(self) -> float | None:
        """How far off, as a share of the published number."""
        return None if self.predicted is None else self.predicted / self.published - 1.0


# ------------------------------------------------------------------------------------- measures


def total(t: Timeline) -> float:
    """Seconds of the run on the device, as profilers count it: start and end included."""
    return t.run_ns * 1e-9


def share(engine: str) -> Callable[[Timeline], float]:
    """Share of the kernel's time in which an engine is active."""
    return lambda t: active(engine)(t) / (t.total_ns * 1e-9)


def transfers(t: Timeline) -> np.ndarray:
    """Which of the timeline's instructions are DMA transfers."""
    return t.columns.count > 0


def union(begin: np.ndarray, end: np.ndarray) -> float:
    """Seconds covered by intervals given in ns."""
    if not len(begin):
        return 0.0
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(begin[1:] - end[:-1], 0.0).sum()
    return float(end[-1] - begin[0] - gaps) * 1e-9


def dma_active(t: Timeline) -> float:
    """Seconds in which at least one DMA engine moves bytes."""
    moving = transfers(t)
    return union(t.start[moving], t.end[moving])


def dma_bytes(t: Timeline) -> float:
    """Bytes that DMA moves."""
    moved = np.flatnonzero(transfers(t))
    return float(sum(t.instructions[n].form.move.nbytes for n in moved))


def measured(t: Timeline) -> float:
    """Seconds from start to visible result of the instruction that is named `measured`."""
    (index,) = [n for n, i in enumerate(t.instructions) if i.name == "measured"]
    return float(t.visible[index] - t.start[index]) * 1e-9


def step(t: Timeline) -> float:
    """Seconds from one of the equal transfers to the next (first and last dropped)."""
    ends = t.end[transfers(t)][1:-1]
    return float((ends[-1] - ends[0]) / (len(ends) - 1)) * 1e-9


def active(engine: str) -> Callable[[Timeline], float]:
    """Seconds in which an engine has an instruction that began and whose result is not visible.

    That is what profilers count: their instructions last until the result is written.
    """

    def measure(t: Timeline) -> float:
        own = t.columns.stream == ENGINES.index(engine)
        return union(t.start[own], t.visible[own])

    return measure


MEASURES: dict[str, Callable[[Timeline], float]] = {
    "total": total,
    "tensor active": active("tensor"),
    "vector active": active("vector"),
    "tensor share": share("tensor"),
    "vector share": share("vector"),
    "tensor rate": lambda t: sum(i.form.flop_count for i in t.instructions) / active("tensor")(t),
    "dma active": dma_active,
    "dma share": lambda t: dma_active(t) / (t.total_ns * 1e-9),
    "dma packets": lambda t: float((t.columns.move * t.columns.count).sum()) * 1e-9,
    "dma rate": lambda t: dma_bytes(t) / dma_active(t),
    "first transfer": lambda t: float(t.columns.move[0]) * 1e-9,
    "first latency": lambda t: float(t.start[0] - t.schedule.issue[0]) * 1e-9,
    "step rate": lambda t: t.instructions[0].form.move.nbytes / step(t),
    "instruction": measured,
}


# ------------------------------------------------------------------------------------- reading


def cases(directory: Path = HERE / "published") -> Iterator[Case]:
    """The cases of every file, in order; each row names a measure, a number, a grade and a use."""
    for path in sorted(directory.glob("*.toml")):
        page = tomllib.loads(path.read_text(encoding="utf-8"))
        for case in page["case"]:
            given = {"options": {}, "conditions": "", "quick": False, "refused": "", **case}
            given["inputs"] = tuple(map(tuple, given["inputs"]))
            given["rows"] = tuple(given["rows"])
            yield Case(family=path.stem, source=page["source"], **given)


def run(case: Case) -> list[Row]:
    """Record the case's kernel, time it, and put our numbers beside the published ones."""
    chip = hw.target(case.target)
    try:
        times = timeline(recorded(case, chip), chip)
    except CapacityError as error:
        if error.code != case.refused:
            raise
        times = None
    if times is not None and case.refused:
        raise SystemExit(f"{case.name}: {case.refused} was expected, but the kernel runs")
    return [compared(case, row, times) for row in case.rows]


def recorded(case: Case, chip: Any) -> Program:
    """The program of the case's kernel."""
    module, _, function = case.kernel.partition(".")
    with dropin.install(case.target):
        kernel = getattr(importlib.import_module(f"bench.kernels.{module}"), function)
        given = [
            view.of(Buffer(n, "hbm", shape, dtypes.dtype(case.dtype)))
            for n, shape in enumerate(case.inputs)
        ]
        return nki.record(kernel, chip, *given, **case.options).program


def compared(case: Case, row: dict[str, str], times: Timeline | None) -> Row:
    """One published number and ours."""
    published, name = parse(row["published"]), row["measure"]
    return Row(
        id=f"{case.name} {name}",
        family=case.family,
        target=case.target,
        measure=name,
        published=published.value,
        predicted=None if times is None else MEASURES[name](times),
        dimension=published.dimension,
        grade=row["grade"],
        use=row["use"],
        rests_on={} if times is None else times.grade_shares(),
        conditions=case.conditions,
        source=case.source,
    )


# ------------------------------------------------------------------------------------- telling


def text(value: float, dimension: str) -> str:
    """A number in the unit people use for it, with three digits."""
    scales = {
        "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
        "byte/s": ((1e9, "GB/s"),),
        "flop/s": ((1e12, "TFLOP/s"),),
    }.get(dimension, ((0.01, "%"),))
    scale, unit = next((s for s in scales if value >= s[0]), scales[-1])
    shown = value / scale
    digits = max(0, 2 - int(np.floor(np.log10(shown)))) if shown > 0 else 0
    return f"{shown:.{digits}f} {unit}"


def rests_on(shares: dict[str, float]) -> str:
    """Grades with at least 1 % of the critical path, largest first."""
    found = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{grade} {share:.0%}" for grade, share in found if share >= 0.005)


def line(row: Row) -> str:
    """The row of the page's table."""
    ours = ("refused", "")
    if row.predicted is not None:
        ours = (text(row.predicted, row.dimension), f"{row.error:+.0%}")
    published = text(row.published, row.dimension)
    cells = row.id, row.target, published, *ours, row.grade, row.use, rests_on(row.rests_on)
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| measurement | chip | published | predicted | error | grade | use | the case rests on |\n"
    "|---|---|---|---|---|---|---|---|"
)


def ranks(values: list[float]) -> np.ndarray:
    """Ranks from 0, equal values sharing the mean of theirs."""
    order = np.asarray(values)
    return np.array([(order < v).sum() + ((order == v).sum() - 1) / 2 for v in order])


def correlation(rows: list[Row]) -> float | None:
    """Spearman's rank correlation of predicted and published; None where it says nothing."""
    if len(rows) < 3:
        return None
    pairs = ranks([r.published for r in rows]), ranks([r.predicted for r in rows])
    if pairs[0].std() == 0 or pairs[1].std() == 0:
        return None
    return float(np.corrcoef(*pairs)[0, 1])


def scored(rows: list[Row]) -> list[scores.Score]:
    """The rows of kernels that ran, as scores."""
    return [
        scores.Score("kernel", r.use, r.target, r.family, r.measure, r.id, r.error)
        for r in rows
        if r.predicted is not None
    ]


def summary(rows: list[Row], others: Iterable[scores.Score] = ()) -> dict[str, Any]:
    """`scores.levels` of the rows and `others`; for kernels of each grade too, and the rank
    correlation of total times by family.
    """
    found = scores.levels([*scored(rows), *others])
    rows = [r for r in rows if r.predicted is not None]
    for use in USES:
        own = [r for r in rows if r.use == use]
        if not own:
            continue
        totals = [r for r in own if r.measure == "total"]
        families = {f: correlation([r for r in totals if r.family == f]) for f in
                    dict.fromkeys(r.family for r in totals)}  # fmt: skip
        kernel = found[use]["kernel"]
        kernel["rank_correlation"] = {f: c for f, c in families.items() if c is not None}
        kernel["grades"] = {
            grade: scores.levels(scored([r for r in own if r.grade == grade]))[use]["kernel"]
            for grade in sorted({r.grade for r in own})
        }
    return found


def summary_line(rows: list[Row]) -> str:
    """The summary in one line, with the checked rows of grade A and the worst rank correlation."""
    parts, found = [], summary(rows)
    for use, levels in found.items():
        parts.append(f"{use}: {_errors(levels['kernel'])}")
    checked = found.get("checked", {}).get("kernel", {})
    if "A" in checked.get("grades", {}):
        parts.append(f"checked, grade A: {_errors(checked['grades']['A'])}")
    if ranked := checked.get("rank_correlation"):
        parts.append(f"rank correlation within families at least {min(ranked.values()):.2f}")
    return "; ".join(parts)


def _errors(kernel: dict[str, Any]) -> str:
    within = f"90 % within {kernel['p90_abs_error']:.0%}"
    return f"{kernel['rows']} rows, median |error| {kernel['median_abs_error']:.0%}, {within}"


def update(page: str, rows: list[Row]) -> str:
    """The page with new lines for these rows; lines of other rows stay as they are."""
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    lines = {ln.split(" | ")[0]: ln for ln in table.splitlines() if ln.startswith("| ")}
    lines.update({line(r).split(" | ")[0]: line(r) for r in rows})
    body = [ln for key, ln in lines.items() if key != "| measurement"]
    return f"{before}{BEGIN}\n{HEAD}\n" + "\n".join(body) + f"\n{END}{after}"


def every_score(page: str) -> Iterator[scores.Score]:
    """Kernels as the page's table shows them (whole per cent), models and collectives afresh."""
    families = {case.name: case.family for case in cases()}
    table = page.partition(BEGIN)[2].partition(END)[0]
    for told in table.splitlines():
        cells = [cell.strip() for cell in told.strip("| ").split("|")]
        if len(cells) > 6 and cells[4].endswith("%"):
            name, error = cells[0], float(cells[4].rstrip("%")) / 100
            case, _, measure = name.partition(" ")
            yield scores.Score("kernel", cells[6], cells[1], families[case], measure, name, error)
    yield from scores.models()
    yield from scores.collectives()


def results(wanted: list[Case], told: bool) -> list[Row]:
    """Run the cases, saying on stderr which one is at work when `told`."""
    rows = []
    for case in wanted:
        start = time.perf_counter()
        rows += run(case)
        if told:
            print(f"{case.name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return rows


def main() -> None:
    """Run the cases asked for and print them."""
    parser = argparse.ArgumentParser(description="predicted times beside published ones")
    parser.add_argument("word", nargs="?", default="", help="only cases whose name contains it")
    parser.add_argument("--quick", action="store_true", help="only cases of less than a second")
    parser.add_argument("--summary", action="store_true", help="only the closing line")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="write into the page's table")
    asked = parser.parse_args()
    wanted = [c for c in cases() if asked.word in c.name and (c.quick or not asked.quick)]
    rows = results(wanted, told=not asked.json and sys.stderr.isatty())
    if asked.update:
        page = update(asked.update.read_text(encoding="utf-8"), rows)
        asked.update.write_text(scores.update(page, every_score(page)), encoding="utf-8")
    if asked.json:
        narrowed = asked.word or asked.quick
        others = [] if narrowed else [*scores.models(), *scores.collectives()]
        listed = [asdict(r) | {"error": r.error} for r in rows]
        print(json.dumps(summary(rows, others) | {"rows": listed}))
        return
    if not asked.summary:
        print(HEAD, *map(line, rows), sep="\n")
    print(summary_line(rows))


if __name__ == "__main__":
    main()
