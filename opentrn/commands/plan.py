"""`opentrn plan` and `opentrn compare`: how to split a job over a fleet, and what it costs."""

import json as jsonlib
from typing import Any

import click
from click.core import ParameterSource

from opentrn.commands.results import NewFile
from opentrn.commands.waiting import waiting

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Duration(click.ParamType):
    """Seconds from text such as 30d, 12h, 45m or 90s."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Seconds above zero."""
        if isinstance(value, int | float):
            return float(value)
        number, unit = value[:-1], value[-1:]
        try:
            seconds = float(number) * _SECONDS[unit]
        except (ValueError, KeyError):
            self.fail(f"{value!r} is no duration; write 30d, 12h, 45m or 90s", param, ctx)
        if not 0 < seconds < float("inf"):
            self.fail(f"{value!r} is no time", param, ctx)
        return seconds


WHOLE = click.IntRange(1)
DEGREES = ("tp", "cp", "pp", "dp", "ep", "micro_batch", "chunks", "zero", "recompute")

_job = (
    click.option("--tokens", type=float, help="Tokens of the whole training run: 15e12."),
    click.option("--batch", type=WHOLE, help="Sequences in one training step."),
    click.option("--sequence", type=WHOLE, help="Tokens of one sequence."),
    click.option("--optimizer", default="adamw", show_default=True, help="adamw, adamw-bf16, ..."),
    click.option("--dtype", default="bfloat16", show_default=True, help="bfloat16 or float8."),
    click.option("--prompt", type=WHOLE, default=1024, show_default=True,
                 help="Prompt tokens, serving."),
    click.option("--answer", type=WHOLE, default=1024, show_default=True,
                 help="Answered tokens, serving."),
    click.option("--tpot", type=float, default=0.05, show_default=True,
                 help="Most seconds for each answered token."),
    click.option("--ttft", type=float, help="Most seconds until the first token."),
    click.option("--weight-bytes", type=float, default=2.0, show_default=True,
                 help="Bytes of one weight, serving: 1 for float8 and int8."),
    click.option("--basis", help="on-demand, capacity-block, spot or ri-3yr."),
    click.option("--region", help="Region of the price."),
    click.option("--prices", metavar="FILE.toml", help="A price file of your own (docs/fleet.md)."),
)  # fmt: skip

_TRAIN = ("tokens", "batch", "sequence", "optimizer", "dtype", "basis", "region", "prices")
_SERVE = ("prompt", "answer", "tpot", "ttft", "weight_bytes", "basis", "region", "prices")


_KINDS = ("train", "serve", "fit")
_ALWAYS = {*_KINDS, "target", "count", "json", "page", "lnc", "keep", "model"}
_USED = {
    "train": {*_ALWAYS, *_TRAIN, *DEGREES, "deadline", "budget"},
    "serve": {*_ALWAYS, *_SERVE, "tp", "pp", "ep"},
    "fit": {*_ALWAYS, "context", "weight_bytes", "tp"} - {"page", "keep", "count"},
}
"""Options that mean something, for each kind of job."""


def _options(names: tuple[str, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Those options that a kind of job takes, under the names the API has."""
    renamed = {"tpot": "tpot_s", "ttft": "ttft_s"}
    return {renamed.get(name, name): given[name] for name in names}


def one_kind(given: dict[str, Any]) -> str:
    """The kind of job whose flag was given, by default training; UsageError of click for several.

    Takes the flags out of `given`.
    """
    found = [name for name in _KINDS if given.pop(name, False)]
    if len(found) > 1:
        raise click.UsageError(f"give one of {', '.join(f'--{name}' for name in found)}")
    return found[0] if found else "train"


def useless(kind: str, known: set[str]) -> None:
    """Refuse options that were given and do nothing for this kind of job; UsageError of click."""
    context = click.get_current_context()
    given = [
        parameter for parameter in context.command.params
        if context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]  # fmt: skip
    idle = [p.opts[0] for p in given if isinstance(p, click.Option) and p.name not in known]
    if idle:
        raise click.UsageError(f"{', '.join(idle)} does nothing with --{kind}")


def listed(options: tuple) -> Any:
    """Several options as one decorator."""

    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@click.option("--train", is_flag=True, help="Plan a training run; the default.")
@click.option("--serve", is_flag=True, help="Plan serving.")
@click.option("--fit", is_flag=True, help="Only say whether one machine holds it.")
@click.option("--on", "target", default="trn2.48xlarge", show_default=True, metavar="MACHINE",
              help="Instance, UltraServer, or a system such as p5, tpu-v5p.")  # fmt: skip
@click.option("--count", type=WHOLE, default=1, show_default=True,
              help="How many of them.")  # fmt: skip
@listed(_job)
@click.option("--context", type=click.IntRange(1),
              help="Cached tokens, with --fit.  [default: the model's, 8192 at most]")  # fmt: skip
@click.option("--tp", type=WHOLE, help="Tensor parallelism.")
@click.option("--cp", type=WHOLE, help="Context parallelism.")
@click.option("--pp", type=WHOLE, help="Pipeline parallelism.")
@click.option("--dp", type=WHOLE, help="Data parallelism.")
@click.option("--ep", type=WHOLE, help="Expert parallelism.")
@click.option("--micro-batch", type=WHOLE, help="Sequences of one micro-batch.")
@click.option("--chunks", type=WHOLE, help="Interleaved model chunks of a pipeline stage.")
@click.option("--zero", type=click.IntRange(0, 3), help="ZeRO level, 3 for FSDP.")
@click.option("--recompute", type=click.Choice(["none", "selective", "full"]),
              help="What is computed again in the backward pass.")  # fmt: skip
@click.option("--lnc", type=WHOLE, help="Physical cores in one logical core.")
@click.option("--deadline", type=Duration(), help="Longest run: 30d.")
@click.option("--budget", type=float, help="Most dollars for the run.")
@click.option("--keep", type=click.IntRange(1), default=5, show_default=True,
              help="How many plans to show.")  # fmt: skip
@click.option("--page", type=NewFile(), metavar="FILE.html",
              help="Also write a page with charts, up to eight times the count.")  # fmt: skip
@click.option("--json", is_flag=True, help="Print JSON, for programs.")
@click.argument("model")
def plan(model: str, target: str, count: int, json: bool, **given: Any) -> None:
    """Split MODEL over machines: the fastest plans, what their time is made of, why others lost.

    MODEL is a name (llama-3.1-70b, deepseek-v3, ...) or the path of a Hugging Face config.json.
    With --fit the status is 1 when no degree fits.
    """
    from opentrn.plan import Limits, fits, plan_serving
    from opentrn.plan import plan as plan_training

    kind = one_kind(given)
    useless(kind, _USED[kind])
    wanted = {name: given[name] for name in DEGREES if given[name] is not None}
    if kind == "fit":
        found: Any = fits(model, target, context=given["context"], lnc=given["lnc"],
                          weight_bytes=given["weight_bytes"], tp=given["tp"])  # fmt: skip
    else:
        serve = kind == "serve"
        options = _options(_SERVE if serve else _TRAIN, given)
        options |= {"wanted": wanted, "lnc": given["lnc"]}
        limits = Limits(deadline_s=given["deadline"], budget_usd=given["budget"])
        only = {} if serve else {"limits": limits}
        with waiting("planning"):
            found = (plan_serving if serve else plan_training)(
                model, target, count, keep=given["keep"], **options, **only
            )
        if given["page"]:
            _page(given["page"], found, (model, target, count), serve, options)
    click.echo(jsonlib.dumps(found.json()) if json else str(found))
    if kind == "fit" and not found.fits:
        click.get_current_context().exit(1)


def _page(file: str, found: Any, job: tuple[str, str, int], serve: bool, options: dict) -> None:
    """Write the page of a plan, with plans of fewer and of more machines."""
    from opentrn.plan import around, page, save_page, scaling

    model, target, count = job
    with waiting("planning with fewer and more machines"):
        scaled = scaling(model, target, around(count), serve=serve, keep=1, **options)
    doing = "serving" if serve else "training"
    save_page(file, page(found, scaled, f"{doing} {model} on {count} x {found.best.machine}"))


@click.option("--job", "model", required=True, metavar="MODEL", help="A model, or a config.json.")
@click.option("--serve", is_flag=True, help="Compare serving instead of training.")
@click.option("--chips", type=WHOLE, default=64, show_default=True,
              help="At least so many chips of each.")  # fmt: skip
@listed(_job)
@click.option("--page", type=NewFile(), metavar="FILE.html", help="Also write a page with charts.")
@click.option("--json", is_flag=True, help="Print JSON, for programs.")
@click.argument("machines", nargs=-1, required=True)
def compare(
    model: str, serve: bool, chips: int, json: bool, machines: tuple[str, ...], **given: Any
) -> None:
    """One job on several MACHINES: time, cost, memory fit, each with its grade and assumptions."""
    from opentrn.plan import compare as compare_machines
    from opentrn.plan import comparison, save_page, versus_text

    names = _SERVE if serve else _TRAIN
    useless("serve" if serve else "train", {*names, "model", "serve", "chips", "page", "json"})
    options = _options(names, given)
    with waiting("comparing machines"):
        rows = compare_machines(model, list(machines), chips=chips, serve=serve, **options)
    if given["page"]:
        doing = "serving" if serve else "training"
        save_page(given["page"], comparison(rows, f"{doing} {model} on several machines"))
    if json:
        click.echo(jsonlib.dumps({"job": model, "machines": [row.json() for row in rows]}))
        return
    click.echo(versus_text(rows))
