"""The `opentrn` command: one sub-command for each thing the rooms can do.

Nothing but click is imported until a command runs, so that `opentrn --help` answers at once.
"""

import json as jsonlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from opentrn import __version__, commands

DEFAULT_TARGET = "trn2"

# Findings that `opentrn run` prints.
MOST_FINDINGS = 20


class _Command(click.Command):
    """A command that shows refusals as five lines (or as JSON) instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a TrnError ends it with status 1, a UsageError with status 2."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)
        except Exception as error:
            from opentrn.base import TrnError, UsageError

            if not isinstance(error, TrnError):
                if ctx.command.name not in _LOADERS or not _show_users_error(error):
                    raise
                ctx.exit(1)
            _show_refusal(error, as_json=bool(ctx.params.get("json")))
            ctx.exit(2 if isinstance(error, UsageError) else 1)


def _show_refusal(error: Any, *, as_json: bool) -> None:
    """Print a TrnError on stderr, placed on the command line when no script's line caused it."""
    if error.at is None or _is_runner(error.at.file):
        error.at = _command_line()
    if _full_tracebacks() and not as_json:
        return _show_traceback(error)
    click.echo(jsonlib.dumps(error.json()) if as_json else str(error), err=True)
    for note in () if as_json else getattr(error, "__notes__", ()):
        click.echo(note, err=True)


_LOADERS = ("analyze", "calibrate", "check", "compile", "diff", "profile")
"""Commands that import a user's file; what it raises is shown without our part of the traceback."""


def _show_users_error(error: Exception) -> bool:
    """Show an error of a user's file as Python would; False when no line of theirs took part."""
    package = os.path.dirname(os.path.abspath(__file__)) + os.sep
    library = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        standard = file.startswith(library) and "-packages" not in file
        if not (standard or file.startswith((package, "<frozen ")) or _is_runner(file)):
            break
        trace = trace.tb_next
    if trace is None and not isinstance(error, SyntaxError):
        return False
    error.__context__ = None if isinstance(error, SyntaxError) else error.__context__
    _show_traceback(error if _full_tracebacks() else error.with_traceback(trace))
    return True


def _show_traceback(error: BaseException) -> None:
    """Show an error as Python would, with the user's lines only unless all were asked for."""
    from opentrn.base import hide_frames

    if not _full_tracebacks():
        hide_frames(error)
    sys.excepthook(type(error), error, error.__traceback__)


def _full_tracebacks() -> bool:
    return os.environ.get("OPENTRN_TRACEBACK", "").strip().lower() == "full"


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
shape_option = click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=SIZES",
    help="Sizes of an input that an ONNX file or a SavedModel leaves open: x=1,3,224,224.",
)  # fmt: skip
cast_option = click.option(
    "--auto-cast", type=click.Choice(("none", "matmult", "all")), default="all", show_default=True,
    help="What --dtype holds for: nothing, operands of products, or all that is stored.",
)  # fmt: skip
numerics_option = click.option(
    "--numerics", type=click.Choice(("auto", "exact", "fast", "none")), default="auto",
    show_default=True, help="Who computes: every instruction, vectorised code, or nobody.",
)  # fmt: skip
# ------------------------------------------------------------------------------------------- run


@main.command(context_settings={"allow_interspersed_args": False})
@click.option("--target", metavar="NAME", help="Chip, generation or instance to simulate.")
@click.option("--nki", "version", metavar="VERSION", help="NKI it was written for: 0.1 to 0.7.")
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@click.option("--find-nan", is_flag=True, help="Name the lines where NaN and infinities begin.")
@click.option("--dump", "dumped", multiple=True, metavar="NAME", help="Save tensors as NAME.npy.")
@click.option("--json", is_flag=True, help="Print a refusal as JSON, for programs.")
@numerics_option
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    target: str | None,
    version: str | None,
    module: bool,
    find_nan: bool,
    dumped: tuple[str, ...],
    json: bool,
    numerics: str,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT unmodified on a simulated Trainium.

    `import nki` and its sub-modules mean OpenTrn while the script runs. The target is --target,
    else what the kernel says (nki.jit(platform_target=...)), else the environment's
    NEURON_PLATFORM_TARGET_OVERRIDE (the script may set it), else trn2. NKI_SIMULATOR=1 is set for
    scripts that ask for it, unless the environment already says something.  What was noticed in
    kernels is printed at the end, on standard error. --dump saves what tensors of that name (`*`
    and `?` stand for others) held last, in the current directory. --numerics holds for models that
    torch.compile(backend="neuron") compiles; kernels are always computed instruction by
    instruction.
    """
    import contextlib

    from opentrn import compiler, nki
    from opentrn.base import TrnError
    from opentrn.dropin import run_script

    os.environ.setdefault("NKI_SIMULATOR", "1")
    with contextlib.ExitStack() as stack:
        stack.enter_context(compiler.use_numerics(numerics))
        found = stack.enter_context(nki.watch_findings())
        kept = stack.enter_context(nki.dump(*dumped)) if dumped else {}
        if find_nan:
            stack.enter_context(nki.find_nonfinite())
        try:
            run_script(script, args, target, module=module, version=version)
        except (SystemExit, TrnError):
            raise
        except BaseException as error:
            _show_traceback(error)
            sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)
        finally:
            _show_findings(list(found), as_json=json)
            _save(kept)
            _show_ignored(as_json=json)


def _show_ignored(*, as_json: bool) -> None:
    """Say on standard error which variables of the Neuron SDK are set and mean nothing here."""
    from opentrn.commands.environment import ignored

    names = ignored()
    if names and as_json:
        click.echo(jsonlib.dumps({"kind": "Note", "ignored_variables": names}), err=True)
    elif names:
        told = f"{', '.join(names)} {'means' if len(names) == 1 else 'mean'} nothing here"
        click.echo(f"\nnote: {told}; `opentrn doctor` lists the variables that do", err=True)


def _save(tensors: dict[str, Any]) -> None:
    """Write arrays as NAME.npy into the current directory, and say so."""
    import numpy

    from opentrn.base import writing

    for name, array in tensors.items():
        path = f"{name.replace(os.sep, '_')}.npy"  # in the current directory
        # bfloat16 and the 8-bit floats are no types of the file format: their values as float32.
        known = array.dtype.kind in "biuf"
        with writing(path) as file:
            numpy.save(file, array if known else array.astype("float32"))
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
@click.option("--nki", "version", metavar="VERSION", help="NKI it was written for: 0.1 to 0.7.")
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
@click.option("--dtype", "--auto-cast-type", default="bfloat16", show_default=True,
              help="What floats are stored as.")  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Executable to write [default: NAME.trn].")
@click.option("--steps", is_flag=True, help="Show the ops after each stage, and why each kernel.")
@cast_option
@numerics_option
@shape_option
@json_option
@click.argument("model", metavar="FILE.py:NAME|FILE.mlir|FILE.onnx|FOLDER")
def compile_command(
    target: str, dtype: str, output: str | None, steps: bool, auto_cast: str, numerics: str,
    shapes: tuple[str, ...], json: bool, model: str,
) -> None:
    """Compile a model of PyTorch, JAX, TensorFlow, ONNX or StableHLO to an executable.

    NAME in FILE.py (or in a module) is a function that returns the module (or a function of JAX or
    TensorFlow) and its example arguments, `(module, (tensor, ...))`; FOLDER is a SavedModel. The
    executable runs with `opentrn.load`, and `opentrn profile` times it.
    """
    from opentrn import compiler, runtime
    from opentrn.graph import Graph

    module, args = commands.load_model(model, dict(map(commands.read_shape, shapes)))
    if isinstance(module, Graph):
        from opentrn.frameworks.jax import refuse_numbers

        refuse_numbers(module)
    shown: list[str] = []
    states: list[Any] = []

    def watch(name: str, state: Any) -> None:
        shown.append(_stage_line(name, state))
        states[:] = [state]

    with commands.waiting("compiling"):
        executable = compiler.compile(
            module, args, target=target, dtype=dtype, auto_cast=auto_cast, numerics=numerics,
            watch=watch if steps else None,
        )  # fmt: skip
    if isinstance(executable, compiler.Outline):
        return _show_outline(executable, output, json=json)
    shown += ["", compiler.why(states[0]), ""] if steps else []
    runtime.load(executable)  # refuses what does not fit in the memory of a core
    path = executable.save(output or f"{executable.name}.trn")
    click.echo(jsonlib.dumps(_compiled(executable, path)) if json else "\n".join(
        [*shown, *_compiled_lines(executable, path)]
    ))


def _show_outline(outline: Any, output: str | None, *, json: bool) -> None:
    """Time and memory of a model that was not linked; UsageError when a file was asked for."""
    from opentrn import runtime
    from opentrn.base import UsageError, bytes_text, seconds_text

    if output is not None:
        raise UsageError(
            f"there is no program to write: {outline.name} is only timed ({outline.why})",
            code="runtime.no_numbers", fix="leave -o out, or --numerics fast",
        )  # fmt: skip
    memory = runtime.TimedOnly(outline).memory
    told = {
        "model": outline.name, "target": outline.target, "instructions": outline.instructions,
        "device_seconds": outline.nanoseconds * 1e-9, "memory_bytes": memory.total,
        "numerics": {"mode": "none", "why": outline.why},
    }  # fmt: skip
    lines = (
        f"{outline.name} for {outline.target}: {outline.instructions:,} instructions, not linked",
        f"numerics none: {outline.why}",
        f"device time {seconds_text(outline.nanoseconds * 1e-9)}, "
        f"memory {bytes_text(memory.total)}",
    )
    click.echo(jsonlib.dumps(told) if json else "\n".join(lines))


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
    choice = facts["numerics"]
    yield f"  numerics     {choice['mode']} ({choice['why']}); loaded from the file: exact"
    yield f"  time         `opentrn profile {path}` says how long it takes, and why"


@main.command()
@click.option("--target", default=DEFAULT_TARGET, show_default=True, help="Chip to judge for.")
@click.option("--dtype", default="keep", show_default=True, help="What floats are stored as.")
@click.option("--train", is_flag=True, help="Judge the gradients too.")
@shape_option
@json_option
@click.argument("model", metavar="FILE.py:NAME|FILE.mlir|FILE.onnx|FOLDER")
def analyze(
    target: str, dtype: str, train: bool, shapes: tuple[str, ...], json: bool, model: str
) -> None:
    """Say which ops of a model run on the chip, as what, and how to write the others.

    NAME in FILE.py (or in a module) is a function that returns a PyTorch module (or a function of
    JAX or TensorFlow) and its example arguments, `(module, (tensor, ...))`; FILE.mlir is a
    StableHLO program, FILE.onnx an ONNX model, FOLDER a SavedModel. Nothing is computed.
    Ends with status 0 when every op runs, else with 1. --json prints the schema
    opentrn.analysis/1.
    """
    from opentrn.graph import Graph

    module, args = commands.load_model(model, dict(map(commands.read_shape, shapes)))
    if isinstance(module, Graph):
        from opentrn.frameworks.jax import analyze as judge_graph

        with commands.waiting("judging ops"):
            found = judge_graph(module, target=target, dtype=dtype)
    else:
        from opentrn.frameworks.torch import analyze as judge

        with commands.waiting("judging ops"):
            found = judge(module, args, target=target, dtype=dtype, train=train)
    click.echo(jsonlib.dumps(found.json()) if json else str(found))
    sys.exit(0 if found.runs else 1)


@main.command()
@click.option("--target", default=DEFAULT_TARGET, show_default=True, help="Chip to run on.")
@click.option("--dtype", "--auto-cast-type", default="bfloat16", show_default=True,
              help="What floats are stored as.")  # fmt: skip
@cast_option
@numerics_option
@json_option
@click.argument("model", metavar="FILE.py:NAME")
def diff(
    target: str, dtype: str, auto_cast: str, numerics: str, json: bool, model: str
) -> None:
    """Compare a PyTorch model on the chip with eager float32, layer by layer.

    NAME in FILE.py is a function that returns a module and its example arguments. Says which layer
    departs first, which op's rounding is to blame, and where numbers stop being finite. Ends with
    status 0 when every layer agrees, else with 1. --json prints the schema opentrn.diff/1.
    """
    from opentrn.frameworks.torch import diff as compare_layers

    module, args = commands.load_model(model)
    with commands.waiting("comparing layers"):
        found = compare_layers(
            module, args, target=target, dtype=dtype, auto_cast=auto_cast, numerics=numerics
        )
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


# -------------------------------------------------------------------------- show, explain, doctor


@main.command()
@click.argument("name", default="targets")
def show(name: str) -> None:
    """Show a chip, an instance or a fabric; without NAME, list them.

    Each number comes with its unit, its source and its grade, and with what other sources say.
    """
    from opentrn import hw

    click.echo(hw.page(name))


main.command("explain")(commands.explain)
main.command("doctor")(commands.doctor)
