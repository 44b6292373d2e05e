"""The summary of a run: metrics, what bounds it, idle time, source lines, grades and advice."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from opentrn.base import (
    GRADES,
    Trace,
    UnknownNameError,
    declare,
    explanation,
    nearest,
)
from opentrn.hw import Chip, target
from opentrn.isa import Program
from opentrn.profiler.advice import Advice, advise
from opentrn.profiler.bounds import Bound, active, bound_of, idle
from opentrn.profiler.details import details, matched
from opentrn.profiler.gains import Case
from opentrn.profiler.metrics import ABSENT, METRICS, NS, measure
from opentrn.profiler.path import Path, critical_path
from opentrn.profiler.reloads import Reload, queued, reloads_of
from opentrn.profiler.source import Line, lines_of
from opentrn.profiler.table import Table, table

SCHEMA = "opentrn.summary/1"
TOP = 10
MUCH = 0.25  # of the time on assumed numbers is worth a word

declare(
    "profiler.metric",
    "A summary has only the metrics that it lists.",
    rule="metrics have the names of the Neuron Explorer summary table",
    fix="`summary.absent` says why one is missing",
)
declare(
    "profiler.unvalidated",
    "Much of a predicted time rests on numbers of the chip that nobody has measured.",
    rule="such numbers are graded `assumed`; `opentrn show <chip>` lists them with their reasons",
    fix="measure a few kernels on the chip and give the times to `opentrn calibrate`",
    fault="unvalidated",
)


class Metric(NamedTuple):
    """A value and its unit ("" for a plain count)."""

    value: Any
    unit: str


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a trace says, ready to print (`str`), compare, and save (`json`).

    `metrics` by name; `path` is the share of the critical path by resource, `idle` the seconds of
    idle time by resource and cause, `grades` the share of the device time that rests on each grade
    of knowledge; `lines` the costliest source lines; `absent` names what cannot be known, and why;
    `reloads` the HBM buffers read more than once.  `assumed` maps facts of the machine that were
    replaced for this run to their values; it is empty for a machine as it is known.  `findings` are
    what was noticed about the program, as plain data (code, what, at, rule, fix, fault).
    """

    program: str
    target: str
    metrics: Mapping[str, Metric]
    bound: Bound
    path: Mapping[str, float]
    idle: Mapping[str, Mapping[str, float]]
    grades: Mapping[str, float]
    opcodes: Mapping[str, int]
    lines: tuple[Line, ...]
    advice: tuple[Advice, ...]
    absent: Mapping[str, str]
    reloads: tuple[Reload, ...] = ()
    assumed: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Mapping[str, Any], ...] = ()

    def __getitem__(self, name: str) -> Any:
        """The value of a metric; UnknownNameError `profiler.metric` with the nearest names."""
        found = self.metrics.get(name)
        if found is None:
            why = self.absent.get(name)
            close = ", ".join(nearest(name, self.metrics)) or "none"
            raise UnknownNameError(
                f"the summary has no metric {name!r}" + (f": {why}" if why else ""),
                code="profiler.metric",
                fix="" if why else f"nearest: {close}",
            )
        return found.value

    def __contains__(self, name: str) -> bool:
        """Whether the metric is there."""
        return name in self.metrics

    def __iter__(self) -> Iterator[str]:
        """The names of the metrics, sorted."""
        return iter(sorted(self.metrics))

    def __str__(self) -> str:
        """The report for people."""
        from opentrn.profiler.report import report

        return report(self)

    def flat(self) -> dict[str, Any]:
        """`{metric: value}` without units, as `--output-format summary-json` prints it."""
        return {name: self.metrics[name].value for name in self}

    def json(self) -> dict[str, Any]:
        """The summary as plain data, keys sorted; `saved.from_json` reads it back."""
        return {
            "absent": dict(sorted(self.absent.items())),
            "advice": [one._asdict() for one in self.advice],
            "assumed": dict(sorted(self.assumed.items())),
            "bound": self.bound._asdict(),
            "critical_path": dict(sorted(self.path.items())),
            "findings": [dict(one) for one in self.findings],
            "grades": dict(self.grades),
            "idle": {lane: dict(sorted(self.idle[lane].items())) for lane in sorted(self.idle)},
            "metrics": {name: self.metrics[name]._asdict() for name in self},
            "opcodes": dict(sorted(self.opcodes.items())),
            "program": self.program,
            "reloads": [_reload_json(one) for one in self.reloads],
            "schema": SCHEMA,
            "target": self.target,
            "top_lines": [_line_json(line) for line in self.lines],
        }


def summarize(
    trace: Trace,
    chip: Chip | str,
    *,
    program: Program | None = None,
    grades: Mapping[str, float] | None = None,
    instructions: Iterable | None = None,
    findings: Iterable[Mapping[str, Any]] = (),
) -> Summary:
    """Turn a trace of one core of `chip` into answers.

    With the `program` more can be known: bytes of operands in two memories exactly, dtypes, weight
    sizes, throttling, reloads.  `grades` are the timeline's shares of the device time by grade;
    without them each event on the critical path counts with its own grade.  `instructions` are the
    executed ones, where loops make them more than those of the program's text.  `findings` of the
    program are kept, and one is added where much of the time rests on numbers nobody has measured.
    """
    chip = target(chip)
    read = table(trace)
    path = critical_path(read)
    busy = active(read)
    known = matched(read, details(program))
    found = measure(read, chip, known, program)
    if program is not None:
        ran = list(program.instructions()) if instructions is None else instructions
        reloads = reloads_of(ran)
        found |= queued(program, ran)
        found["hbm_reload_bytes"] = sum(one.again for one in reloads)
    else:
        reloads = ()
    bound = bound_of(read, busy, path)
    lines = tuple(lines_of(read, path))
    shares = dict(grades) if grades is not None else _grades(read, path)
    unmeasured = shares.get("assumed", 0.0)
    noticed = (*findings, *((_unvalidated(chip, unmeasured),) if unmeasured >= MUCH else ()))
    case = Case(chip=chip, table=read, path=path, busy=busy, bound=bound, found=found, lines=lines,
                known=known, reloads=reloads)  # fmt: skip
    return Summary(
        program=str(trace.meta.get("program", "")),
        target=str(trace.meta.get("target", chip.name)),
        metrics={name: Metric(value, METRICS[name].unit) for name, value in found.items()},
        bound=bound,
        path={what: ns / read.total for what, ns in path.spent.items()} if read.total else {},
        idle={
            lane: {cause: ns * NS for cause, ns in causes.items()}
            for lane, causes in idle(read).items()
        },
        grades={grade: shares[grade] for grade in GRADES if shares.get(grade)},
        opcodes=_opcodes(read),
        lines=lines[:TOP],
        advice=tuple(advise(case)),
        absent={name: why for name, why in ABSENT.items() if name not in found},
        reloads=tuple(one for one in reloads if one.again)[:TOP],
        assumed=trace.meta.get("assumed", {}),
        findings=noticed,
    )


def _unvalidated(chip: Chip, share: float) -> dict[str, Any]:
    """The finding that a time rests on assumed numbers."""
    known = explanation("profiler.unvalidated")
    what = f"{share:.0%} of the time rests on numbers of {chip.name} that nobody has measured"
    return {"code": known.code, "what": what.replace("%", " %"), "at": None, "rule": known.rule,
            "fix": known.fix, "fault": known.fault}  # fmt: skip


def _grades(read: Table, path: Path) -> dict[str, float]:
    """Share of the path that each grade answers for."""
    spent: dict[str, float] = {}
    for piece in path.pieces:
        grade = read.grade[piece.row]
        spent[grade] = spent.get(grade, 0.0) + piece.end - piece.begin
    whole = sum(spent.values())
    return {grade: ns / whole for grade, ns in spent.items()} if whole else {}


def _opcodes(read: Table) -> dict[str, int]:
    """How many instructions of each name ran."""
    found: dict[str, int] = {}
    for name, issue in zip(read.name, read.issue.tolist(), strict=True):
        if not issue:
            found[name] = found.get(name, 0) + 1
    return found


def _line_json(line: Line) -> dict[str, Any]:
    where = line.where
    return {
        "busy": line.busy,
        "bytes": line.nbytes,
        "count": line.count,
        "critical_path": line.path,
        "file": where.file if where else "",
        "flops": line.flops,
        "line": where.line if where else 0,
        "resource": line.resource,
        "text": where.text if where else "",
    }


def _reload_json(one: Reload) -> dict[str, Any]:
    where = one.where
    named = {"file": where.file if where else "", "line": where.line if where else 0}
    return {**one._asdict(), "where": named}
