"""`opentrn profile`: where the time goes, as text, tables, traces and a page to open."""

import contextlib
import io
import json as jsonlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from opentrn.commands.results import NewFile, NewFolder
from opentrn.commands.waiting import waiting

if TYPE_CHECKING:
    from opentrn.profiler import Profile, Summary

FORMATS = ("summary-text", "summary-json", "perfetto", "json", "csv", "parquet")
DEFAULT_TARGET = "trn2"
_ENDINGS = {
    "summary-text": "summary.txt", "summary-json": "summary.json", "perfetto": "perfetto.json",
    "json": "json", "csv": "csv", "parquet": "parquet",
}  # fmt: skip


@click.option(
    "--target", metavar="NAME[,NAME]", envvar="NEURON_PLATFORM_TARGET_OVERRIDE",
    help="Chips, generations or instances; several are set side by side.",
)  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="FACT=VALUE",
              help="What if: trn2.hbm_bandwidth=4TB/s, tensor.clock=3GHz.")  # fmt: skip
@click.option("--queues", type=click.Choice(("arrival", "turns")), default="arrival",
              help="DMA engines serve in order of arrival, or queues in turn.")  # fmt: skip
@click.option("--compare", "other", metavar="OTHER", help="A second script, executable or summary.")
@click.option("--report", type=NewFile(), metavar="FILE.html",
              help="Write one page to open in a browser, offline.")  # fmt: skip
@click.option("--memory", is_flag=True, help="Show the tiles alive at the peak of SBUF and PSUM.")
@click.option("--format", "--output-format", "form", type=click.Choice(FORMATS),
              help="What to print or write, instead of the report.")  # fmt: skip
@click.option("-o", "--output", type=NewFile(), metavar="FILE", help="Where to write the --format.")
@click.option("--out", type=NewFolder(), metavar="DIR",
              help="Write a Perfetto trace and a summary JSON for each.")  # fmt: skip
@click.option("--kernel", metavar="WORD", default="", help="Only kernels whose name contains WORD.")
@click.option("--json", is_flag=True, help="Print JSON, for programs.")
@click.argument("file")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def profile(
    target: str | None, settings: tuple[str, ...], queues: str, other: str | None,
    report: str | None,
    memory: bool, form: str | None, output: str | None, out: str | None, kernel: str, json: bool,
    file: str, args: tuple[str, ...],
) -> None:  # fmt: skip
    """Say where the time goes in FILE: a script (.py) that calls kernels, or an executable.

    For each kernel call: device time, what bounds it, how busy each engine is, the source lines
    that cost most, and what to do about it with the gain to expect. Options may follow FILE; what
    is no option of this command, and all that follows `--`, is passed on to the script.
    """
    if output is not None and form is None:
        raise _usage("-o is where the --format goes, and none is given",
                     f"add --format, one of {', '.join(FORMATS)}; --out DIR writes a trace and a "
                     "summary of each kernel")  # fmt: skip
    quiet = json or (form is not None and output is None)
    if other is not None:
        _refuse_missing(other)
    ran: list[str] = []
    take = _taker(args, kernel, quiet, ran, queues)
    if other is not None or settings or (target and "," in target):
        columns = _columns(take, file, other, target, settings)
        _show_columns(columns, json=json)
        chosen = [each for _, found in columns for each in found if not isinstance(each, str)]
    else:
        chosen = take(file, target, ())
        if not chosen:
            raise _nothing(file, kernel, ran)
        if form is None:
            _show(chosen, json=json, memory=memory)
    if form is not None:
        _write_format(form, chosen, output, out)
    elif out is not None:
        _save_folder(chosen, out, quiet=json)
    if report is not None:
        _write_report(chosen, report, quiet=json)


# --------------------------------------------------------------------------- what is profiled


def _taker(
    args: tuple[str, ...], kernel: str, quiet: bool, names: list[str], queues: str
) -> Callable:
    """A function `(file, target, settings) -> profiles of the kernels that were asked for`.

    `names` gets the names of all kernels that ran.
    """
    ran: dict[tuple, list] = {}
    printed: dict[str, str] = {}

    def take(file: str, target: str | None, settings: tuple[str, ...]) -> list[Any]:
        script = file.endswith(".py")
        if args and not script:
            raise _usage(f"{file} is no script and takes no arguments: {' '.join(args)}",
                         "leave them out, or check the spelling of the options")  # fmt: skip
        if file.endswith(".json"):
            if queues != "arrival":
                raise _usage(f"{file} has been timed already: --queues changes nothing of it",
                             "leave --queues out, or profile the script again")  # fmt: skip
            found = _summaries(file)
            names.extend(one.program for one in found)
            return [one for one in found if kernel in one.program]
        runs = ran.get((file, target))
        if runs is None:
            if script:
                with _printing(file, target, quiet, printed):
                    found = _script(file, args, target)
            else:
                found = _executable(file)
            names.extend(run[0][0].name for run in found)
            runs = [run for run in found if kernel in run[0][0].name]
            runs = ran[file, target] = _with_work(file, runs)
        where = None if script else target
        with waiting("timing"):
            return [core for run in runs for core in _timed(*run, where, settings, queues)]

    return take


def _with_work(file: str, runs: list[tuple]) -> list[tuple]:
    """The runs in which some core has an instruction; the others are named on standard error.

    UsageError `profiler.empty` where there is no other.
    """
    from opentrn import profiler  # noqa: F401 - declares the code
    from opentrn.base import UsageError

    full = [run for run in runs if any(program.body for program in run[0])]
    names = ", ".join(dict.fromkeys(run[0][0].name for run in runs if run not in full))
    if runs and not full:
        raise UsageError(f"the kernel of {file} has no instructions: {names}",
                         code="profiler.empty")  # fmt: skip
    if names:
        click.echo(f"left out, for they have no instructions: {names}", err=True)
    return full


def _script(path: str, args: tuple[str, ...], target: str | None) -> list[tuple]:
    """Run a script; `(programs, chip, trip counts of each core)` of each kernel call."""
    from opentrn import nki
    from opentrn.dropin import run_script

    with nki.watch() as runs:
        run_script(path, args, target)
    return [(run.programs, run.chip, run.trips or None) for run in runs]


class _Kept:
    """Standard output, kept as well."""

    def __init__(self, out: Any):
        self.out, self.text = out, ""

    def write(self, text: str) -> int:
        """Write through."""
        self.text += text
        return self.out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.out, name)


@contextlib.contextmanager
def _printing(file: str, target: str | None, quiet: bool, printed: dict) -> Iterator[None]:
    """What a script prints is shown once; for another target again only where it differs."""
    first = file not in printed
    kept = _Kept(sys.stdout if first and not quiet else io.StringIO())
    try:
        with contextlib.redirect_stdout(kept):
            yield
    finally:
        if first:
            printed[file] = kept.text
        elif not quiet and kept.text != printed[file]:
            click.echo(f"on {target} the script printed:\n{kept.text}")


def _executable(path: str) -> list[tuple]:
    from opentrn import hw, isa

    executable = isa.load(path)
    return [((executable.program,), hw.target(executable.target), None)]


def _timed(
    programs: tuple, chip: Any, trips: Any, target: str | None, settings: tuple, queues: str
) -> list["Profile"]:
    """Time the programs of a launch, a profile for each core.

    On another chip, or a variant of theirs, they are moved there first.
    """
    from opentrn import hw, isa, profiler, sim

    wanted = hw.variant(hw.target(target) if target else chip, settings)
    if wanted != chip:
        moved = tuple(isa.for_chip(one, wanted) for one in programs)
        if trips:
            trips = list(map(sim.moved_trips, trips, programs, moved))
        programs = moved
    found = sim.timeline_together(programs, wanted, trips=trips, queues=queues)
    single = len(found) == 1
    profiles = []
    for number, (one, program) in enumerate(zip(found, programs, strict=True)):
        counts = trips[number] if trips else ()
        noticed = (*one.placement.findings, *sim.races(one.program, wanted, trips=counts))
        name = "" if single else f"{program.name} core {number}"
        profiles.append(profiler.profile(one, name, [x.json() for x in noticed]))
    return profiles


def _summaries(path: str) -> list["Summary"]:
    """Summaries of a file that `--out` or `--json` wrote."""
    from opentrn import profiler

    try:
        with open(path, encoding="utf-8") as file:
            data = jsonlib.load(file)
    except (OSError, ValueError):
        return [profiler.load_summary(path)]  # says what is wrong with it
    return [profiler.from_json(one) for one in (data if isinstance(data, list) else [data])]


def _summary(one: Any) -> "Summary":
    return getattr(one, "summary", one)


# --------------------------------------------------------------------------- side by side


def _columns(
    take: Callable, file: str, other: str | None, target: str | None, settings: tuple[str, ...]
) -> list[tuple[str, list]]:
    """`(title, profiles)`: one column for each target, variant and file."""
    from opentrn import hw

    targets: list[str | None] = list((target or "").split(",")) if target else [None]
    owners = {owner for owner, _, _ in hw.settings_of(settings)} - {""}
    script = file.endswith(".py")
    chips = [hw.target(one or DEFAULT_TARGET) for one in targets if one or script]
    named = {hw.variant(chip, settings) and chip.name for chip in chips}  # refused before a run
    if owners and named and not owners & named:
        raise _usage(f"--set is about {', '.join(sorted(owners))}, which is not profiled here",
                     f"--target {','.join(sorted(owners))}")  # fmt: skip
    found = []
    for one in targets:
        title = one or os.path.basename(file)
        found.append((title, _column(take, file, one, (), alone=len(targets) == 1)))
        if settings:
            found.append((f"{title} as assumed", _column(take, file, one, settings, alone=False)))
    if other is not None:
        found.append((os.path.basename(other), take(other, targets[0], settings)))
    return found


def _column(take: Callable, file: str, target: str | None, settings: tuple, *, alone: bool) -> list:
    """The profiles of one column; where a target refuses the program, why (unless it is alone)."""
    from opentrn.base import TrnError, UsageError

    try:
        return take(file, target, settings)
    except TrnError as error:
        if alone or settings or isinstance(error, UsageError):
            raise
        return [f"{target}: refused: {error.what}" + (f"\n  at    {error.at}" if error.at else "")]


def _show_columns(columns: list[tuple[str, list]], *, json: bool) -> None:
    from opentrn import profiler

    refused = [each for _, found in columns for each in found if isinstance(each, str)]
    whole = [(title, list(map(_summary, found))) for title, found in columns
             if not any(isinstance(each, str) for each in found)]  # fmt: skip
    if json:
        told = {title: [one.json() for one in found] for title, found in whole}
        click.echo(jsonlib.dumps({"columns": told, "refused": refused}))
        return
    rows = [found for _, found in whole]
    for kernel in zip(*rows, strict=False):
        text = profiler.compare(*kernel) if len(kernel) == 2 else profiler.side_by_side(kernel)
        click.echo(text)
        if len(kernel) == 2 and kernel[1].assumed and not _moved(*kernel):
            click.echo("the time of this kernel does not depend on what was set\n")
    if len({len(found) for found in rows}) > 1:
        counts = ", ".join(f"{len(found)} in {title}" for title, found in whole)
        click.echo(f"kernels without a counterpart were left out: {counts}")
    for text in refused:
        click.echo(text)


def _moved(one: "Summary", two: "Summary") -> bool:
    return one["total_time"] != two["total_time"]


# --------------------------------------------------------------------------- what is shown


def _show(chosen: list, *, json: bool, memory: bool) -> None:
    from opentrn import profiler

    if json:
        click.echo(jsonlib.dumps([_summary(one).json() for one in chosen]))
        return
    for one in chosen:
        click.echo(f"{_summary(one)}\n")
        if memory:
            click.echo(profiler.memory_text(_profile(one).tiles, one.chip))


def _profile(one: Any) -> "Profile":
    """A profile; UsageError for what was read from a summary file and has no events."""
    if not hasattr(one, "trace"):
        raise _usage("a saved summary holds no events", "profile the script or the executable")
    return one


def _save_folder(chosen: list, folder: str, *, quiet: bool) -> None:
    """A Perfetto trace and a summary JSON for each kernel."""
    from opentrn import profiler
    from opentrn.base import folder as make_folder

    make_folder(folder)
    for number, one in enumerate(chosen):
        base = _base(folder, number, one)
        profiler.save_summary(_summary(one), f"{base}.summary.json")
        profiler.save_perfetto(_profile(one).trace, f"{base}.perfetto.json")
        if not quiet:
            click.echo(f"wrote {base}.perfetto.json (open it at ui.perfetto.dev) and .summary.json")


def _base(folder: str, number: int, one: Any) -> str:
    return os.path.join(folder, f"{number}-{_summary(one).program}")


def _write_format(form: str, chosen: list, output: str | None, folder: str | None) -> None:
    """Print or write one format; each kernel to a file of its own in a folder."""
    if folder is not None:
        from opentrn.base import folder as make_folder

        make_folder(folder)
        for number, one in enumerate(chosen):
            path = f"{_base(folder, number, one)}.{_ENDINGS[form]}"
            _write_one(form, [one], path)
            click.echo(f"wrote {path}")
        return
    if len(chosen) != 1 and not form.startswith("summary"):
        raise _usage(f"{len(chosen)} kernels ran, and --format {form} is of one",
                     "choose one with --kernel WORD, or write all with --out DIR")  # fmt: skip
    if output is None and form == "parquet":
        raise _usage("a Parquet table is not text to print", "name a file with -o FILE")
    _write_one(form, chosen, output)


def _write_one(form: str, chosen: list, output: str | None) -> None:
    from opentrn import profiler
    from opentrn.base import write_whole

    if form == "parquet":
        profiler.save_parquet(_profile(chosen[0]), output)
    elif output is not None:
        write_whole(output, _pieces(form, chosen))
    else:
        for piece in _pieces(form, chosen):
            sys.stdout.write(piece)


def _pieces(form: str, chosen: list) -> Iterator[str]:
    """The text of one format."""
    from opentrn import profiler

    if form == "summary-text":
        yield from (f"{_summary(one)}\n" for one in chosen)
    elif form == "summary-json":
        flat = [_summary(one).flat() for one in chosen]
        yield jsonlib.dumps(flat[0] if len(flat) == 1 else flat, indent=1) + "\n"
    elif form == "perfetto":
        yield from profiler.perfetto_pieces(_profile(chosen[0]).trace)
    elif form == "csv":
        yield from profiler.csv_pieces(_profile(chosen[0]))
    else:
        yield from profiler.json_pieces(_profile(chosen[0]))


def _write_report(chosen: list, path: str, *, quiet: bool) -> None:
    from opentrn import profiler

    profiler.save_page([_profile(one) for one in chosen], path)
    if not quiet:
        size = os.path.getsize(path)
        click.echo(f"wrote {path}: {size / 1e6:.1f} MB, opens in a browser without a network")


def _nothing(file: str, kernel: str, ran: list[str]) -> Exception:
    """Why nothing was profiled: no kernel ran, or none of that name."""
    from opentrn import profiler  # noqa: F401 - declares the code
    from opentrn.base import UnknownNameError

    names = ", ".join(dict.fromkeys(ran))
    if ran:
        what, fix = f"no kernel named *{kernel}* ran in {file}", f"kernels that ran: {names}"
    else:
        what, fix = f"no kernel ran in {file}", "profile a script that calls its kernels when run"
    return UnknownNameError(what, code="profiler.no_kernel", fix=fix)


def _refuse_missing(file: str) -> None:
    """Refuse a second file that is not there before the first one runs."""
    from opentrn.base import MissingFileError

    if not os.path.isfile(file):
        raise MissingFileError(
            f"there is no file {file} to compare with", code="profiler.options",
            rule="--compare takes a script, an executable or a summary", fix="check the path",
        )  # fmt: skip


def _usage(what: str, fix: str) -> Exception:
    from opentrn import profiler  # noqa: F401 - declares the code
    from opentrn.base import UsageError

    return UsageError(what, code="profiler.options", fix=fix)


__all__ = ["DEFAULT_TARGET", "FORMATS", "profile"]
