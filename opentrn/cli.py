"""The `opentrn` command: one sub-command for each thing the rooms can do.

Nothing but click is imported until a command runs, so that `opentrn --help` answers at once.
"""

import contextlib
import json as jsonlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click
from click.core import ParameterSource

from opentrn import __version__, commands
from opentrn.commands import ending, results

DEFAULT_TARGET = "trn2"

WIDTH = 100  # of lines that list things

# Findings that `opentrn run` prints.
MOST_FINDINGS = 20


@click.group(cls=ending.Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="opentrn")
def main() -> None:
    """A Trainium you can pip install."""

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

    if not module:
        _show_passed_on(script, args)
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
            sys.exit(ending.show_users_error(error))
        finally:
            _show_findings(list(found), as_json=json)
            _save(kept, dumped)
            _show_ignored(as_json=json)


def _show_passed_on(script: str, args: tuple[str, ...]) -> None:
    """Say on standard error which options of `run` stand after the script, which gets them.

    Not of a script whose text has an option of that name, nor of one given before it too.
    """
    context = click.get_current_context()
    try:
        with open(script, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return  # run_script says what is wrong with it
    for option in ("--target", "--nki", "--find-nan", "--dump", "--numerics"):
        given = any(arg.partition("=")[0] == option for arg in args)
        known = next(p for p in context.command.params if option in p.opts)
        before = context.get_parameter_source(known.name) is not ParameterSource.DEFAULT
        if given and option not in text and not before:
            click.echo(
                f"note: {option} stands after {script} and is passed on to it; "
                f"`opentrn run {option} ... {script}` gives it to opentrn",
                err=True,
            )


def _show_ignored(*, as_json: bool) -> None:
    """Say on standard error which variables of the Neuron SDK are set and mean nothing here."""
    from opentrn.commands.environment import ignored

    names = ignored()
    if names and as_json:
        click.echo(jsonlib.dumps({"kind": "Note", "ignored_variables": names}), err=True)
    elif names:
        told = f"{', '.join(names)} {'means' if len(names) == 1 else 'mean'} nothing here"
        click.echo(f"\nnote: {told}; `opentrn doctor` lists the variables that do", err=True)


def _save(tensors: dict[str, Any], wanted: tuple[str, ...]) -> None:
    """Write arrays as NAME.npy into the current directory, and say so; say which had no tensor."""
    import fnmatch

    import numpy

    from opentrn.base import writing

    for name in wanted:
        if not fnmatch.filter(tensors, name):
            told = "a tensor is called as nl.ndarray(..., name=...) or its argument says"
            click.echo(f"note: --dump {name}: no kernel wrote a tensor of that name; {told}",
                       err=True)  # fmt: skip
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
    for refusal in (each for one in checked for each in one.refusals):
        refusal.at = refusal.at or ending.command_line()  # about the launch that was asked for
    told = nki.document(kernel, checked)
    click.echo(jsonlib.dumps(told) if json else "\n\n".join(map(str, checked)))
    sys.exit({"clean": 0, "refused": 1, "unchecked": 2, "findings": 3}[told["status"]])


# ------------------------------------------------------------------------------ compile, profile


@main.command("compile")
@click.option("--target", default=DEFAULT_TARGET, show_default=True, help="Chip to compile for.")
@click.option("--dtype", "--auto-cast-type", default="bfloat16", show_default=True,
              help="What floats are stored as.")  # fmt: skip
@click.option("-o", "--output", type=results.NewFile(), metavar="FILE",
              help="Executable to write [default: NAME.trn].")  # fmt: skip
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
    from opentrn.base import refuse_no_folder
    from opentrn.graph import Graph

    if output is None:
        refuse_no_folder(os.curdir)
    module, args = commands.load_model(model, dict(map(commands.read_shape, shapes)))
    refusing: Any = contextlib.nullcontext()
    if isinstance(module, Graph):
        from opentrn.frameworks import jax

        refusing = jax.refusing(module, target, dtype)
    shown: list[str] = []
    states: list[Any] = []

    def watch(name: str, state: Any) -> None:
        shown.append(_stage_line(name, state))
        states[:] = [state]

    with commands.waiting("compiling"), refusing:
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
    import textwrap

    counts = state.graph.histogram() if state.program is None else state.program.counts()
    most = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    ops = ", ".join(f"{count:,} {op}" for op, count in most)
    return textwrap.fill(f"{name:10} {ops}", WIDTH, subsequent_indent=" " * 11,
                         break_long_words=False)  # fmt: skip


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
