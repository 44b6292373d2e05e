"""The `opentrn` command: one sub-command for each thing the rooms can do.

Nothing but click is imported until a command runs, so that `opentrn --help` answers at once.
"""

import functools
import json as jsonlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import click

from opentrn import __version__, commands

DEFAULT_TARGET = "trn2"

# Findings that `opentrn run` prints.
MOST_FINDINGS = 20
# What each extra of pyproject.toml brings; `built` is False while nothing here uses it yet.
EXTRAS: dict[str, tuple[str, bool]] = {
    "fast": ("compiled loops for the timing model (the results are the same)", True),
    "torch": ("PyTorch: torch.compile, traces, training steps on a simulated chip", True),
    "jax": ("JAX: jit for a simulated chip; StableHLO programs as input", True),
    "tensorflow": ("TensorFlow functions as input", False),
    "onnx": ("ONNX files as input", False),
    "ray": ("runs spread over several machines", False),
    "jobs": ("managed training jobs", False),
    "report": ("instruction tables as Parquet (the HTML page needs nothing)", True),
    "demo": ("what the examples run: PyTorch, a tokenizer, a sentence encoder, digits", True),
    "test": ("what `make test` runs", True),
}


class _Command(click.Command):
    """A command that shows refusals as five lines (or as JSON) instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a TrnError ends it with status 1, a UsageError with status 2."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            from opentrn.base import TrnError, UsageError

            if not isinstance(error, TrnError):
                raise
            _show_refusal(error, as_json=bool(ctx.params.get("json")))
            ctx.exit(2 if isinstance(error, UsageError) else 1)


def _show_refusal(error: Any, *, as_json: bool) -> None:
    """Print a TrnError on stderr, placed on the command line when no script's line caused it."""
    if error.at is None or _is_runner(error.at.file):
        error.at = _command_line()
    click.echo(jsonlib.dumps(error.json()) if as_json else str(error), err=True)
    for note in () if as_json else getattr(error, "__notes__", ()):
        click.echo(note, err=True)


def _is_runner(file: str) -> bool:
    """Whether a source file belongs to those who run commands: click, or the entry script."""
    click_home = os.path.dirname(click.__file__) + os.sep
    return file.startswith(click_home) or os.path.abspath(file) == os.path.abspath(sys.argv[0])


def _command_line() -> Any:
    """What the user typed, as a place in a source file."""
    import linecache
    import shlex

    from opentrn.base import Where

    typed = shlex.join(["opentrn", *sys.argv[1:]])
    linecache.cache["command line"] = (len(typed), None, [typed + "\n"], "command line")
    return Where("command line", 1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="opentrn")
def main() -> None:
    """A Trainium you can pip install."""


main.command_class = _Command

json_option = click.option("--json", is_flag=True, help="Print JSON, for programs.")


# ------------------------------------------------------------------------------------------- run


@main.command(context_settings={"allow_interspersed_args": False})
@click.option("--target", metavar="NAME", help="Chip, generation or instance to simulate.")
@click.option("--nki", "version", metavar="VERSION", help="NKI it was written for: 0.1 to 0.6.")
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@click.option("--find-nan", is_flag=True, help="Name the lines where NaN and infinities begin.")
@click.option("--dump", "dumped", multiple=True, metavar="NAME", help="Save tensors as NAME.npy.")
@click.option("--json", is_flag=True, help="Print a refusal as JSON, for programs.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    target: str | None,
    version: str | None,
    module: bool,
    find_nan: bool,
    dumped: tuple[str, ...],
    json: bool,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT unmodified on a simulated Trainium.

    `import nki` and its sub-modules mean OpenTrn while the script runs. The target is --target,
    else what the kernel says (nki.jit(platform_target=...)), else the environment's
    NEURON_PLATFORM_TARGET_OVERRIDE (the script may set it), else trn2. NKI_SIMULATOR=1 is set for
    scripts that ask for it, unless the environment already says something.  What was noticed in
    kernels is printed at the end, on standard error. --dump saves what tensors of that name (`*`
    and `?` stand for others) held last, in the current directory.
    """
    import contextlib

    from opentrn import nki
    from opentrn.base import TrnError
    from opentrn.dropin import run_script, script_traceback

    os.environ.setdefault("NKI_SIMULATOR", "1")
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(nki.watch_findings())
        kept = stack.enter_context(nki.dump(*dumped)) if dumped else {}
        if find_nan:
            stack.enter_context(nki.find_nonfinite())
        try:
            run_script(script, args, target, module=module, version=version)
        except (SystemExit, TrnError):
            raise
        except BaseException as error:
            sys.excepthook(type(error), error.with_traceback(script_traceback(error)), None)
            sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)
        finally:
            _show_findings(list(found), as_json=json)
            _save(kept)


def _save(tensors: dict[str, Any]) -> None:
    """Write arrays as NAME.npy into the current directory, and say so."""
    import numpy

    for name, array in tensors.items():
        path = f"{name.replace(os.sep, '_')}.npy"
        # bfloat16 and the 8-bit floats are no types of the file format: their values as float32.
        known = array.dtype.kind in "biuf"
        numpy.save(path, array if known else array.astype("float32"))
        click.echo(f"wrote {path}: {array.dtype}{list(array.shape)}", err=True)


def _show_findings(found: list[Any], *, as_json: bool) -> None:
    """Print what was noticed in kernels on standard error, at most MOST_FINDINGS of them."""
    for one in found[:MOST_FINDINGS]:
        click.echo(jsonlib.dumps(one.json()) if as_json else f"\nnoticed: {one}", err=True)
    if len(found) > MOST_FINDINGS and not as_json:
        click.echo(f"\n{len(found) - MOST_FINDINGS} more were noticed", err=True)


# ----------------------------------------------------------------------------------------- check


@main.command()
@click.option("--target", default=DEFAULT_TARGET, show_default=True, help="Chips: trn2,trn3.")
@click.option("--arg", "args", multiple=True, metavar="NAME=VALUE", help="a=float32[128,512] n=2")
@click.option("--cores", "--grid", "grid", default="", help="Launch grid: 2 or 4,2.")
@click.option("--nki", "version", metavar="VERSION", help="NKI it was written for: 0.1 to 0.6.")
@json_option
@click.argument("kernel", metavar="FILE.py[:KERNEL]")
def check(
    target: str, args: tuple[str, ...], grid: str, version: str | None, json: bool, kernel: str
) -> None:
    """Say whether the chip and its compiler would take a kernel, without running it.

    Kernels of nki and neuronxcc.nki; every program instance of the launch grid is checked.

    Shapes come from --arg, from example_inputs in the file, or from annotations. Ends with status
    0 when clean, 1 when something is refused, 2 when a kernel's arguments are not known, and 3
    when there are findings only. --json prints the schema opentrn.check/1.
    """
    import contextlib

    from opentrn import nki
    from opentrn.dropin import check_file

    given = dict(map(nki.read_pair, args))
    with contextlib.redirect_stdout(sys.stderr):  # what the kernel prints is not the report
        checked = check_file(kernel, target.split(","), given, nki.read_grid(grid), version)
    told = nki.document(kernel, checked)
    click.echo(jsonlib.dumps(told) if json else "\n\n".join(map(str, checked)))
    sys.exit({"clean": 0, "refused": 1, "unchecked": 2, "findings": 3}[told["status"]])


# ------------------------------------------------------------------------------ compile, profile


@main.command("compile")
@click.option("--target", default=DEFAULT_TARGET, show_default=True, help="Chip to compile for.")
@click.option("--dtype", default="bfloat16", show_default=True, help="What floats are stored as.")
@click.option("-o", "--output", metavar="FILE", help="Executable to write [default: NAME.trn].")
@click.option("--steps", is_flag=True, help="Show the ops after each stage, and why each kernel.")
@json_option
@click.argument("model", metavar="FILE.py:NAME|FILE.mlir")
def compile_command(
    target: str, dtype: str, output: str | None, steps: bool, json: bool, model: str
) -> None:
    """Compile a PyTorch model, a JAX function or a StableHLO program to an executable.

    NAME in FILE.py is a function that returns the module (or JAX function) and its example
    arguments, `(module, (tensor, ...))`. The executable runs with `opentrn.load`, and `opentrn
    profile` times it.
    """
    from opentrn import compiler, runtime
    from opentrn.graph import Graph

    module, args = commands.load_model(model)
    if isinstance(module, Graph):
        from opentrn.frameworks.jax import refuse_numbers

        refuse_numbers(module)
    shown: list[str] = []
    states: list[Any] = []

    def watch(name: str, state: Any) -> None:
        shown.append(_stage_line(name, state))
        states[:] = [state]

    executable = compiler.compile(
        module, args, target=target, dtype=dtype, watch=watch if steps else None
    )
    shown += ["", compiler.why(states[0]), ""] if steps else []
    runtime.load(executable)  # refuses what does not fit in the memory of a core
    path = executable.save(output or f"{executable.name}.trn")
    click.echo(jsonlib.dumps(_compiled(executable, path)) if json else "\n".join(
        [*shown, *_compiled_lines(executable, path)]
    ))


def _stage_line(name: str, state: Any) -> str:
    ops = ", ".join(f"{count} {op}" for op, count in state.graph.histogram().items())
    if state.program is not None:
        ops = ", ".join(f"{count} {op}" for op, count in state.program.counts().items())
    return f"{name:10} {ops}"


def _compiled(executable: Any, path: Any) -> dict[str, Any]:
    return {
        "file": str(path),
        "bytes": os.path.getsize(path),
        "target": executable.target,
        "instructions": len(executable.program),
        "content_hash": executable.content_hash,
        "inputs": [f"{s.name}: {s.dtype}{list(s.shape)}" for s in executable.inputs],
        "outputs": [f"{s.name}: {s.dtype}{list(s.shape)}" for s in executable.outputs],
        **executable.meta,
    }


def _compiled_lines(executable: Any, path: Any) -> Iterator[str]:
    from opentrn.base import bytes_text

    facts = _compiled(executable, path)
    yield f"{path} for {facts['target']}: {bytes_text(facts['bytes'])}, {facts['dtype']}"
    yield f"  inputs       {', '.join(facts['inputs'])}"
    yield f"  outputs      {', '.join(facts['outputs'])}"
    yield (
        f"  instructions {facts['instructions']:,}, from {facts['kernel_calls']} kernel calls "
        f"({facts['kernels_traced']} kernels traced)"
    )
    sizes = ", ".join(f"{use} {bytes_text(n)}" for use, n in facts["hbm_bytes"].items())
    yield f"  HBM          {sizes}"
    yield f"  time         `opentrn profile {path}` says how long it takes, and why"


@main.command()
@click.option("--target", default=DEFAULT_TARGET, show_default=True, help="Chip to judge for.")
@click.option("--dtype", default="keep", show_default=True, help="What floats are stored as.")
@click.option("--train", is_flag=True, help="Judge the gradients too.")
@json_option
@click.argument("model", metavar="FILE.py:NAME|FILE.mlir")
def analyze(target: str, dtype: str, train: bool, json: bool, model: str) -> None:
    """Say which ops of a model run on the chip, as what, and how to write the others.

    NAME in FILE.py is a function that returns a PyTorch module (or JAX function) and its example
    arguments, `(module, (tensor, ...))`; FILE.mlir is a StableHLO program. Nothing is computed.
    Ends with status 0 when every op runs, else with 1. --json prints the schema
    opentrn.analysis/1.
    """
    from opentrn.graph import Graph

    module, args = commands.load_model(model)
    if isinstance(module, Graph):
        from opentrn.frameworks.jax import analyze as judge_graph

        found = judge_graph(module, target=target, dtype=dtype)
    else:
        from opentrn.frameworks.torch import analyze as judge

        found = judge(module, args, target=target, dtype=dtype, train=train)
    click.echo(jsonlib.dumps(found.json()) if json else str(found))
    sys.exit(0 if found.runs else 1)


@main.command()
@click.option("--target", default=DEFAULT_TARGET, show_default=True, help="Chip to run on.")
@click.option("--dtype", default="bfloat16", show_default=True, help="What floats are stored as.")
@json_option
@click.argument("model", metavar="FILE.py:NAME")
def diff(target: str, dtype: str, json: bool, model: str) -> None:
    """Compare a PyTorch model on the chip with eager float32, layer by layer.

    NAME in FILE.py is a function that returns a module and its example arguments. Says which layer
    departs first, which op's rounding is to blame, and where numbers stop being finite. Ends with
    status 0 when every layer agrees, else with 1. --json prints the schema opentrn.diff/1.
    """
    from opentrn.frameworks.torch import diff as compare_layers

    module, args = commands.load_model(model)
    found = compare_layers(module, args, target=target, dtype=dtype)
    click.echo(jsonlib.dumps(found.json()) if json else str(found))
    sys.exit(0 if found.agrees else 1)


main.command("profile", context_settings={"ignore_unknown_options": True})(commands.profile)
main.command("calibrate")(commands.calibrate)
main.command("plan")(commands.plan)
main.command("compare")(commands.compare)
main.command("simulate")(commands.simulate)
main.command(
    "nccom-test", context_settings={"ignore_unknown_options": True, "help_option_names": []}
)(commands.nccom_test)
main.command("claims")(commands.claims)


# ---------------------------------------------------------------------------------- show, explain


@main.command()
@click.argument("name", default="targets")
def show(name: str) -> None:
    """Show a chip, an instance or a fabric; without NAME, list them.

    Each number comes with its unit, its source and its grade, and with what other sources say.
    """
    from opentrn import hw

    click.echo(hw.page(name))


@main.command()
@click.argument("code", required=False)
@json_option
def explain(code: str | None, json: bool) -> None:
    """Explain an error CODE; without one, list the codes.

    A code the Neuron tools print (NCC_..., NRT_...) finds the refusals here that mean the same.
    """
    found = _explanations(code)
    if json:
        click.echo(jsonlib.dumps(found))
        return
    if code is None:
        width = max(len(each["code"]) for each in found)
        for each in found:
            click.echo(f"{each['code']:{width}}  {each['meaning'].splitlines()[0]}")
        return
    click.echo("\n\n".join(map(_explanation_text, found)))


def _explanation_text(found: dict[str, str]) -> str:
    lines = [found["code"] + (f"  ({found['neuron']})" if found["neuron"] else "")]
    parts = (("", found["meaning"]), ("rule  ", found["rule"]), ("fix   ", found["fix"]))
    if found["fault"]:
        from opentrn.base import FAULTS

        parts = (*parts, ("chip  ", f"{found['fault']}: {FAULTS[found['fault']]}"))
    return "\n".join([*lines, *(f"  {name}{text}" for name, text in parts if text)])


def _explanations(code: str | None) -> list[dict[str, str]]:
    """The explanations of one code, of all that share a Neuron code, or (None) of every code."""
    import dataclasses

    from opentrn import base

    neuron = code is not None and "." not in code
    _load_rooms(None if code is None or neuron else code.partition(".")[0])
    every = base.codes()
    if code is None:
        found = [base.explanation(each) for each in every]
    elif neuron:
        found = [base.explanation(each) for each in every]
        found = [each for each in found if code in each.neuron.split()]
    else:
        found = [base.explanation(code) or _instruction_explanation(code)]
    found = [dataclasses.asdict(each) for each in found if each is not None]
    if not found:
        _refuse_code(code, every)
    return found


def _instruction_explanation(code: str) -> Any:
    from opentrn import isa

    return isa.explain(code)


@functools.cache
def _unknown_code() -> str:
    from opentrn.base import declare

    return declare(
        "cli.code",
        "There is no explanation under this code.",
        rule="a code is <instruction>.<part>, <room>.<name>, or a code the Neuron tools print",
        fix="`opentrn explain` without a code lists them",
    )


def _refuse_code(code: str | None, known: list[str]) -> None:
    from opentrn.base import UnknownNameError, nearest

    like = nearest(str(code), known)
    also = f"; did you mean {' or '.join(like)}?" if like else ""
    raise UnknownNameError(f"there is no error code {code}{also}", code=_unknown_code())


def _load_rooms(room: str | None) -> None:
    """Import every module of one room, or of all for None or another word, to declare its codes."""
    import importlib.util
    import pkgutil

    _unknown_code()
    prefix = f"opentrn.{room}"
    if room is None or importlib.util.find_spec(prefix) is None:
        prefix = "opentrn"
    top = importlib.import_module(prefix)
    for found in pkgutil.walk_packages(getattr(top, "__path__", []), f"{prefix}."):
        if found.name == "opentrn.__main__":
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:  # a part that needs an extra which is not installed
            if str(error.name).startswith("opentrn"):
                raise


# ---------------------------------------------------------------------------------------- doctor


@main.command()
@json_option
def doctor(json: bool) -> None:
    """Say what is installed, what each extra would add, and what stands in the way."""
    report = examine()
    click.echo(jsonlib.dumps(report) if json else "\n".join(_doctor_lines(report)))
    if report["problems"]:
        sys.exit(1)


def examine() -> dict[str, Any]:
    """Look at this machine: versions, threads, memory and disk in bytes, extras, problems."""
    core, extras = _requirements()
    missing = [name for name in core if _version(name) is None]
    problems = [f"{name} is missing: pip install {name}" for name in missing]
    if not core:
        problems.append("opentrn runs from its sources and is not installed: pip install -e .")
    return {
        "opentrn": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cores": _cores(),
        "memory_bytes": _memory(),
        "disk_free_bytes": shutil.disk_usage(".").free,
        "blas": _blas(),
        "core": {name: _version(name) for name in core},
        "extras": extras,
        "problems": problems,
    }


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(package: str) -> str | None:
    """The installed version of a package, or None."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> tuple[list[str], dict[str, Any]]:
    """Core packages, and for each extra its packages' versions, from the installed metadata."""
    import re
    from importlib import metadata

    core: list[str] = []
    extras: dict[str, Any] = {}
    for name, (adds, built) in EXTRAS.items():
        extras[name] = {"adds": adds, "built": built, "packages": {}}
        extras[name]["install"] = f"pip install 'opentrn[{name}]'"
    try:
        lines = metadata.requires("opentrn") or []
    except metadata.PackageNotFoundError:
        return core, extras
    for line in lines:
        package = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0]
        extra = re.search(r"extra == [\"'](\w+)[\"']", line)
        if extra is None:
            core.append(package)
        elif extra[1] in extras:
            extras[extra[1]]["packages"][package] = _version(package)
    return core, extras


def _blas() -> dict[str, Any]:
    """NumPy's linear algebra library and the number of threads it was told to use (None: all)."""
    if _version("numpy") is None:
        return {"name": None, "threads": None}
    import numpy

    built = numpy.show_config(mode="dicts").get("Build Dependencies", {})
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
    told = [os.environ[name] for name in names if os.environ.get(name, "").isdigit()]
    return {
        "name": built.get("blas", {}).get("name", "unknown"),
        "threads": int(told[0]) if told else None,
    }


def _doctor_lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"opentrn {report['opentrn']} on Python {report['python']} ({report['executable']})"
    yield f"  {report['platform']}"
    yield (
        f"  {report['cores']} cores, {report['memory_bytes'] / 2**30:.1f} GiB of memory, "
        f"{report['disk_free_bytes'] / 2**30:.1f} GiB of disk free here"
    )
    blas = report["blas"]
    threads = blas["threads"]
    yield f"  BLAS: {blas['name']}, " + (
        f"{threads} thread{'s' * (threads > 1)}"
        if threads
        else "as many threads as cores (OPENBLAS_NUM_THREADS=1 is faster while others compute)"
    )
    yield ""
    for name, version in report["core"].items():
        yield f"  {name:12} {version or 'MISSING'}"
    yield ""
    yield "extras"
    for name, extra in report["extras"].items():
        yield f"  {name:12} {extra['adds']}" + ("" if extra["built"] else " (not built yet)")
        if extra["built"]:
            yield f"  {'':12} {_extra_state(extra)}"
    yield ""
    yield from (report["problems"] or ["No problem found."])


def _extra_state(extra: dict[str, Any]) -> str:
    packages = extra["packages"]
    have = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    lack = ", ".join(name for name, version in packages.items() if not version)
    if not lack:
        return f"installed: {have}"
    return f"{extra['install']}   ({'also ' if have else ''}brings {lack})"
