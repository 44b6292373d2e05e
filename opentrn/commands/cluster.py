"""`opentrn simulate`: a planned job on a fleet in simulated time, with what goes wrong there."""

import json as jsonlib
import math
from typing import Any

import click

from opentrn.commands.plan import DEGREES, WHOLE, Duration, listed, one_kind, useless
from opentrn.commands.results import NewFile
from opentrn.commands.waiting import waiting

_fleet = (
    click.option("--on", "target", default="trn2.48xlarge", show_default=True, metavar="MACHINE",
                 help="Instance, UltraServer, or a system such as p5."),
    click.option("--count", type=WHOLE, default=1, show_default=True,
                 help="Machines of the job."),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
                 help="The same seed gives the same run."),
    click.option("--page", type=NewFile(), metavar="FILE.html",
                 help="Also write a page with charts."),
    click.option("--json", is_flag=True, help="Print JSON, for programs."),
)  # fmt: skip

_train = (
    click.option("--spares", type=click.IntRange(0), default=0, show_default=True,
                 help="Machines beyond those of the job."),
    click.option("--time", "seconds", type=Duration(), help="How long to simulate: 90d."),
    click.option("--tokens", type=float, help="Tokens of the whole training run: 15e12."),
    click.option("--batch", type=WHOLE, help="Sequences in one training step."),
    click.option("--sequence", type=WHOLE, help="Tokens of one sequence."),
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
    click.option("--runs", type=WHOLE, default=1, show_default=True,
                 help="Runs with seeds one after the other; shows the spread."),
)  # fmt: skip


_ALWAYS = {"train", "serve", "target", "count", "seed", "json", "page", "tp", "pp", "model"}


def _names(options: tuple) -> set[str]:
    """The parameters that options make."""
    probe = listed(options)(lambda: None)
    return {parameter.name for parameter in probe.__click_params__}


def _numbers(pairs: tuple[str, ...], option: str) -> dict[str, float]:
    """NAME=VALUE pairs as numbers."""
    found = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name.strip() in found:
            raise click.BadParameter(f"{name.strip()} is given twice", param_hint=option)
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise click.BadParameter(f"{pair!r} is not NAME=NUMBER", param_hint=option) from None
    return found


_serve = (
    click.option("--rate", type=float, help="Requests a second."),
    click.option("--requests", type=WHOLE, default=2000, show_default=True,
                 help="How many requests."),
    click.option("--trace", metavar="FILE.csv",
                 help="Requests from a file: arrival, prompt, answer."),
    click.option("--prompt", type=WHOLE, default=1024, show_default=True,
                 help="Mean prompt tokens."),
    click.option("--answer", type=WHOLE, default=256, show_default=True,
                 help="Mean answered tokens."),
    click.option("--spread", default=0.5, show_default=True,
                 help="Spread of both, as a share of the mean."),
    click.option("--burst", default=1.0, show_default=True,
                 help="Spread of the gaps between requests; 1 is Poisson."),
    click.option("--ttft", type=float, help="Objective: seconds until the first token."),
    click.option("--tpot", type=float, default=0.05, show_default=True,
                 help="Objective: seconds for each later token."),
    click.option("--slots", type=WHOLE, help="Most answers at once of a replica."),
    click.option("--chunk", type=click.IntRange(0), default=0, show_default=True,
                 help="Prompt tokens read beside each token; 0 reads prompts alone."),
    click.option("--prefill-replicas", type=click.IntRange(0), default=0, show_default=True,
                 help="Replicas that only read prompts."),
    click.option("--weight-bytes", type=float, default=2.0, show_default=True,
                 help="Bytes of one weight."),
)  # fmt: skip


@click.option("--train", is_flag=True, help="Simulate training; the default.")
@click.option("--serve", is_flag=True, help="Simulate serving.")
@listed(_fleet)
@listed(_train)
@listed(_serve)
@click.option("--tp", type=WHOLE, help="Tensor parallelism.")
@click.option("--pp", type=WHOLE, help="Pipeline parallelism.")
@click.argument("model")
def simulate(model: str, json: bool, **given: Any) -> None:
    """Train or serve MODEL on a fleet in simulated time.

    Training: faults, checkpoints, restarts, spares, goodput; rates of faults are those published
    for GPUs until --mtbf says better. Serving: continuous batching of arriving requests, TTFT,
    TPOT, throughput and the objectives kept. The split is the best plan (see `opentrn plan`).
    """
    from opentrn.workloads import model as find_model

    kind = one_kind(given)
    useless(kind, {*_ALWAYS, *_names(_serve if kind == "serve" else _train)})
    m = find_model(model)
    wanted = {name: given[name] for name in DEGREES if given.get(name) is not None}
    with waiting("simulating"):
        found = (_serving if kind == "serve" else _training)(m, wanted, given)
    if json:
        click.echo(jsonlib.dumps({"plan": found[0].json(), **found[1]}))
    else:
        click.echo("\n".join([f"plan: {found[0]}", *found[2]]))


def _training(m: Any, wanted: dict, given: dict[str, Any]) -> tuple[Any, dict, list[str]]:
    """(plan, JSON, lines) of simulated training runs."""
    from opentrn.cluster import Job, World, runs_text, train, training_page
    from opentrn.plan import plan, save_page

    options = {name: given[name] for name in ("tokens", "batch", "sequence", "optimizer")}
    found = plan(m, given["target"], given["count"], wanted=wanted, **options)
    best = found.best
    job = Job.of(best, m, tokens=given["tokens"], step_tokens=found.step_tokens,
                 kind=given["optimizer"], every_s=given["every"],
                 blocking=given["blocking"])  # fmt: skip
    hours, changed = _numbers(given["hours"], "--mtbf"), _numbers(given["changed"], "--set")
    machines = given["count"] + given["spares"]
    runs = []
    for seed in range(given["seed"], given["seed"] + given["runs"]):
        world = World.of(best.machine, machines, seed=seed, hours=hours, **changed)
        runs.append(train(world, job, seconds=given["seconds"])[0])
    lines = runs_text(runs).splitlines()
    told: dict[str, Any] = {}
    if best.cost_usd is not None:
        hourly = best.cost_usd / best.hours / best.count
        seconds = sum(run.seconds for run in runs) / len(runs)
        told["cost_usd"] = hourly * machines * seconds / 3600
        several = f", on average of {len(runs)} runs" if len(runs) > 1 else ""
        cost = f"${told['cost_usd']:,.0f} for {machines:,} machines all that time{several}"
        lines.append(f"{cost}; {best.price}")
    notes = [
        "rates of faults as of GPUs, of which another run saw 3.7 times as many, "
        "and times of recovery",
        *found.assumptions,
    ]
    lines += [f"assumed: {note}" for note in notes]
    if given["page"]:
        title = f"training {m.name} on {given['count']} x {best.machine}, simulated"
        save_page(given["page"], training_page(runs, title, notes))
    return best, {"runs": [run.json() for run in runs], "assumptions": notes} | told, lines


def _serving(m: Any, wanted: dict, given: dict[str, Any]) -> tuple[Any, dict, list[str]]:
    """(plan, JSON, lines) of simulated serving."""
    from opentrn.base import UsageError
    from opentrn.cluster import Service, serve, serving_page
    from opentrn.cost import platform
    from opentrn.plan import plan_serving, save_page
    from opentrn.workloads import Traffic

    if given["trace"]:
        traffic = Traffic.read(given["trace"])
    elif given["rate"] is None:
        raise UsageError("no requests arrive", code="workloads.traffic",
                         fix="give --rate or --trace")  # fmt: skip
    else:
        lengths = {name: given[name] for name in ("prompt", "answer", "spread", "burst", "seed")}
        traffic = Traffic.random(given["rate"], given["requests"], **lengths)
    mean = {
        "prompt": round(float(traffic.prompt.mean())),
        "answer": round(float(traffic.answer.mean())),
    }
    # A plan reads all prompts of its batch at once; here they come one by one, so that TTFT is an
    # objective of the simulation alone.
    found = plan_serving(m, given["target"], given["count"], wanted=wanted, tpot_s=given["tpot"],
                         weight_bytes=given["weight_bytes"], **mean)  # fmt: skip
    best = found.best
    own = {name: given[name] for name in ("slots", "chunk", "weight_bytes", "prefill_replicas")}
    service = Service.of(best, m, platform(best.machine, best.lnc), **own)
    served = serve(service, traffic, tpot_s=given["tpot"], ttft_s=given["ttft"])
    notes = ["each request has room for its whole answer", *found.assumptions]
    offered = traffic.rate if math.isfinite(traffic.rate) else None  # all at once: JSON has no inf
    told = {"serving": served.json(), "offered_requests_per_s": offered, "assumptions": notes}
    lines = [str(served), f"offered: {traffic.rate:,.3g} requests/s"]
    if served.overloaded:
        lines.append("more arrives than is served: the queue grows, and latencies with the run")
    if best.cost_usd is not None and served.tokens_per_s:
        hourly = best.cost_usd / best.hours
        each = hourly / 3600 / served.tokens_per_s * 1e6
        told["dollars_per_million_tokens"] = each
        lines.append(f"${each:,.2f} per million answered tokens; {best.price}")
    if given["page"]:
        save_page(given["page"], serving_page(served, f"serving {service.name}, simulated", notes))
    return best, told, lines + [f"assumed: {note}" for note in notes]
