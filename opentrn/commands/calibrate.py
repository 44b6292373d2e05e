"""`opentrn calibrate`: a chip's unstated numbers refitted to a table of measured times."""

import csv
import json as jsonlib
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import click

from opentrn.commands.waiting import waiting

COLUMNS = ("program", "latency")
MORE = ("kernel", "use", "measure")
MEASURES = ("run", "kernel")
TABLE = "a table is a CSV file in UTF-8"


@click.option("--target", metavar="NAME", default="trn2", show_default=True,
              help="The chip the times were measured on.")  # fmt: skip
@click.option("--fact", "facts", multiple=True, metavar="FACT",
              help="Refit this fact (dma.static_issue), not those that explain most.")  # fmt: skip
@click.option("--json", is_flag=True, help="Print JSON, for programs.")
@click.argument("table", type=click.Path(dir_okay=False))
def calibrate(target: str, facts: tuple[str, ...], json: bool, table: str) -> None:
    """Refit the numbers nobody states to the measured times in TABLE, and say how well that works.

    TABLE is a CSV file with the columns `program` (a script or an executable, from the table's
    folder) and `latency` (a time with its unit: 84.2 us), and, where needed: `kernel` (a word of
    the kernel's name, when a script runs several), `use` (fit, or check for rows that are only
    compared) and `measure` (run, the default: with start and end of the device's run, or kernel).

    The cross-validated error is the one to believe: each row predicted by a fit that did not see
    it. The settings at the end can be given to `opentrn profile --set`.
    """
    from opentrn import cost, hw
    from opentrn.base import UsageError, Where

    chip = hw.target(target)
    rows = list(_rows(table))
    samples = [cost.Sample(row["name"], row["seconds"], row["use"]) for row in rows]
    try:
        with waiting("fitting"):
            found = cost.calibrate(chip, samples, _predictor(rows, target), facts)
    except UsageError as error:
        if not facts:  # then it is the table that does not do
            error.at = error.at or Where(table, 1)
        raise
    if json:
        told = {name: value for name, value in asdict(found).items() if name != "chip"}
        click.echo(jsonlib.dumps({"target": chip.name, **told}))
    else:
        click.echo("\n".join(_lines(chip, found)))


# --------------------------------------------------------------------------- the table


def _rows(path: str) -> Iterator[dict[str, Any]]:
    """The rows of the table, checked.

    Raises UsageError `cost.calibrate` at the row's line, MissingFileError for a table that is none.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            names = tuple(reader.fieldnames or ())
            if not set(COLUMNS) <= set(names) <= {*COLUMNS, *MORE}:
                raise _refuse(path, 1, f"the columns are {', '.join(names) or 'missing'}",
                              f"{', '.join(COLUMNS)}; and if needed {', '.join(MORE)}")  # fmt: skip
            for row in reader:
                yield _row(path, reader.line_num, row)
    except OSError as error:
        from opentrn.base import MissingFileError

        what = f"cannot read the table {path}: {error.strerror or error}"
        fix = "check the path; it is read relative to the current directory"
        raise MissingFileError(what, code="cost.calibrate", rule=TABLE, fix=fix) from error
    except (UnicodeError, csv.Error) as error:
        raise _refuse(path, 1, f"the table cannot be read: {error}", TABLE) from error


def _row(path: str, line: int, row: dict) -> dict[str, Any]:
    from opentrn.base import FactError
    from opentrn.base.units import parse

    if None in row or None in row.values():
        raise _refuse(path, line, "the row has not as many cells as the head", "one cell a column")
    try:
        latency = parse(row["latency"])
    except FactError as error:
        raise _refuse(path, line, error.what, "a time with its unit: 84.2 us") from error
    if latency.dimension != "s":
        raise _refuse(path, line, f"{row['latency']!r} is no time", "a time with its unit: 84.2 us")
    measure, use = row.get("measure") or "run", row.get("use") or "fit"
    if measure not in MEASURES:
        raise _refuse(path, line, f"measure is {measure!r}", f"one of {', '.join(MEASURES)}")
    kernel = row.get("kernel") or ""
    program = os.path.join(os.path.dirname(path), row["program"])
    name = f"{row['program']} {kernel}".strip()
    return {"name": name, "program": program, "kernel": kernel, "seconds": latency.value,
            "measure": measure, "use": use, "line": line, "table": path}  # fmt: skip


def _refuse(path: str, line: int, what: str, rule: str) -> Exception:
    from opentrn.base import UsageError, Where

    return UsageError(
        what, at=Where(path, line), rule=rule, fix="see `opentrn calibrate --help` for the columns",
        code="cost.calibrate",
    )  # fmt: skip


# --------------------------------------------------------------------------- predictions


def _predictor(rows: list[dict], target: str) -> Callable[[Any], list[float]]:
    """A function that gives the seconds of every row on a chip; programs are recorded once."""
    from opentrn import isa, sim

    taken: dict[str, list] = {}
    for row in rows:
        if row["program"] not in taken:
            taken[row["program"]] = _launches(row["program"], target)
    chosen = [_one(row, taken[row["program"]]) for row in rows]

    def seconds(chip: Any) -> list[float]:
        found = []
        for row, (programs, trips) in zip(rows, chosen, strict=True):
            moved = tuple(isa.for_chip(program, chip) for program in programs)
            counts = list(map(sim.moved_trips, trips, programs, moved)) if trips else None
            times = sim.timeline_together(moved, chip, trips=counts)
            run = row["measure"] == "run"
            found.append(max(t.run_ns if run else t.total_ns for t in times) * 1e-9)
        return found

    return seconds


def _launches(path: str, target: str) -> list[tuple]:
    """`(programs, trip counts)` of each kernel a script runs, or of an executable."""
    import contextlib
    import io

    from opentrn import isa, nki
    from opentrn.dropin import run_script

    if not path.endswith(".py"):
        return [((isa.load(path).program,), None)]
    with nki.watch() as runs, contextlib.redirect_stdout(io.StringIO()):
        run_script(path, (), target)
    return [(run.programs, run.trips) for run in runs]


def _one(row: dict, launches: list[tuple]) -> tuple:
    """The launch a row is about."""
    word = row["kernel"]
    named = [one for one in launches if word == one[0][0].name]
    named = named or [one for one in launches if word in one[0][0].name]
    if len(named) != 1:
        names = ", ".join(one[0][0].name for one in named) or "none"
        raise _refuse(row["table"], row["line"], f"{len(named)} kernels of {row['name']}: {names}",
                      "a row is about one kernel: name it in the column `kernel`")  # fmt: skip
    return named[0]


# --------------------------------------------------------------------------- what is told


def _lines(chip: Any, found: Any) -> Iterator[str]:
    width = max(len(s.name) for s in (*found.fitted, *found.checks))
    yield f"{'to fit':{width}} {'measured':>12} {'before':>8} {'after':>8} {'unseen':>8}"
    for row in zip(found.fitted, found.before, found.after, found.cross, strict=True):
        yield _told(width, *row)
    for row in zip(found.checks, found.checked_before, found.checked, strict=True):
        yield _told(width, *row) + "  only checked"
    yield ""
    before, after, unseen = map(median, (found.before, found.after, found.cross))
    yield (
        f"median error of {len(found.fitted)} rows to fit: {before:.1%} before, {after:.1%} after, "
        f"{unseen:.1%} cross-validated"
    )
    if found.checks:
        before, after = median(found.checked_before), median(found.checked)
        yield (
            f"median error of {len(found.checks)} rows only checked: {before:.1%} before, "
            f"{after:.1%} after"
        )
    yield ""
    if not found.changes:
        yield f"no number of {chip.name} that nobody states would explain more: nothing was moved"
    for change in found.changes:
        yield f"{change.fact:24} {change.before:>10} -> {change.after:<10} --set '{change.setting}'"
    if found.changes and median(found.cross) >= median(found.before):
        yield "rows left out are predicted no better than before: do not use these numbers"


def median(errors: Any) -> float:
    """The median of the absolute errors."""
    return statistics.median(map(abs, errors))


def _told(width: int, sample: Any, *errors: float) -> str:
    cells = " ".join(f"{error:>+8.1%}" for error in errors)
    return f"{sample.name:{width}} {sample.measured * 1e6:>9.2f} us {cells}"


__all__ = ["calibrate"]
