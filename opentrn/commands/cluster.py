"""`opentrn simulate`: a planned job on a fleet in simulated time, with what goes wrong there."""

import json as jsonlib
from typing import Any

import click

from opentrn.commands.plan import DEGREES, Duration, listed

_fleet = (
    click.option("--on", "target", default="trn2.48xlarge", show_default=True, metavar="MACHINE",
                 help="Instance, UltraServer, or a system such as p5."),
    click.option("--count", default=1, show_default=True, help="Machines of the job."),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
                 help="The same seed gives the same run."),
    click.option("--json", is_flag=True, help="Print JSON, for programs."),
)  # fmt: skip

_train = (
    click.option("--spares", type=click.IntRange(0), default=0, show_default=True,
                 help="Machines beyond those of the job."),
    click.option("--time", "seconds", type=Duration(), help="How long to simulate: 90d."),
    click.option("--tokens", type=float, help="Tokens of the whole training run: 15e12."),
    click.option("--batch", type=int, help="Sequences in one training step."),
    click.option("--sequence", type=int, help="Tokens of one sequence."),
    click.option("--optimizer", default="adamw", show_default=True, help="adamw, adamw-bf16, ..."),
    click.option("--checkpoint", "every", type=Duration(),
                 help="Time between checkpoints: 30m.  [default: Daly's best]"),
    click.option("--blocking", is_flag=True, help="Stand while a checkpoint is written."),
    click.option("--mtbf", "hours", multiple=True, metavar="KIND=HOURS",
                 help="Mean hours between failures of one chip (chip, link, software) or machine "
                      "(host, maintenance, straggler)."),
    click.option("--set", "changed", multiple=True, metavar="NAME=VALUE",
                 help="Seconds: detect, replace, restart, notice, repair; byte/s: snapshot, "
                      "write, read; a share: jitter."),
    click.option("--runs", type=click.IntRange(1), default=1, show_default=True,
                 help="Runs with seeds one after the other; shows the spread."),
)  # fmt: skip


def _numbers(pairs: tuple[str, ...], option: str) -> dict[str, float]:
    """NAME=VALUE pairs as numbers."""
    found = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise click.BadParameter(f"{pair!r} is not NAME=NUMBER", param_hint=option) from None
    return found


@listed(_fleet)
@listed(_train)
@click.option("--tp", type=int, help="Tensor parallelism.")
@click.option("--pp", type=int, help="Pipeline parallelism.")
@click.argument("model")
def simulate(model: str, target: str, count: int, json: bool, **given: Any) -> None:
    """Train MODEL on a fleet in simulated time: faults, checkpoints, restarts, spares, goodput.

    The job is the best plan for it (see `opentrn plan`). Rates of faults are those published for
    GPUs until --mtbf says better.
    """
    from opentrn.cluster import Job, World, train
    from opentrn.plan import plan
    from opentrn.workloads import model as find_model

    m = find_model(model)
    wanted = {name: given[name] for name in DEGREES if given.get(name) is not None}
    options = {name: given[name] for name in ("tokens", "batch", "sequence", "optimizer")}
    found = plan(m, target, count, wanted=wanted, **options)
    best = found.best
    job = Job.of(best, m, tokens=given["tokens"], step_tokens=found.step_tokens,
                 kind=given["optimizer"], every_s=given["every"],
                 blocking=given["blocking"])  # fmt: skip
    hours, changed = _numbers(given["hours"], "--mtbf"), _numbers(given["changed"], "--set")
    runs = []
    for seed in range(given["seed"], given["seed"] + given["runs"]):
        world = World.of(best.machine, count + given["spares"], seed=seed, hours=hours, **changed)
        runs.append(train(world, job, seconds=given["seconds"])[0])
    if json:
        told = {"plan": best.json(), "runs": [run.json() for run in runs],
                "assumptions": list(found.assumptions)}  # fmt: skip
        click.echo(jsonlib.dumps(told))
        return
    click.echo(f"plan: {best}")
    for run in runs:
        click.echo(str(run))
    if len(runs) > 1:
        goods = sorted(run.goodput for run in runs)
        mean = sum(goods) / len(goods)
        click.echo(
            f"goodput of {len(runs)} runs: mean {mean:.2%}, {goods[0]:.2%} to {goods[-1]:.2%}"
        )
    click.echo("assumed: rates of faults as of GPUs, times of recovery, and what the plan assumes")
