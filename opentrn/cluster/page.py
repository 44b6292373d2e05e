"""Simulated runs as one offline page: where the time went, how late requests were."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from opentrn.base import seconds_text
from opentrn.cluster.job import expected_goodput
from opentrn.cluster.run import Run
from opentrn.cluster.served import Served
from opentrn.plan import (
    Curve,
    Point,
    count_text,
    curves,
    stacked,
    table,
    time_unit,
    whole_page,
)

SHARES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
"""Shares of requests that are at least as late as what is drawn."""


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def training_page(runs: Sequence[Run], title: str, assumptions: Sequence[str] = ()) -> str:
    """The page of training runs that differ in their seeds."""
    return whole_page(title, training_body(runs) + _notes(assumptions))


def training_body(runs: Sequence[Run]) -> str:
    """Where the time of runs went, goodput over the time between checkpoints, faults."""
    rows = [(f"seed {run.world.seed}: goodput {run.goodput:.1%}", dict(run.parts)) for run in runs]
    body = stacked("Where the time went", rows, _days)
    first = runs[0]
    size, unit = time_unit(first.interval_s)
    every = [first.interval_s * 2.0**k for k in range(-4, 5)]
    expected = [
        Point(every_s / size, expected_goodput(replace(first.job, every_s=every_s), first.world),
              f"every {seconds_text(every_s)}")
        for every_s in every
    ]  # fmt: skip
    taken = [Point(run.interval_s / size, run.goodput, f"seed {run.world.seed}") for run in runs]
    body += curves("Goodput over the time between checkpoints",
                   [Curve("closed form, spares without end", expected),
                    Curve("simulated", taken, line=False)],
                   (f"{unit} between checkpoints", "goodput"), (count_text, _percent),
                   most=1.0)  # fmt: skip
    kinds = sorted({kind for run in runs for kind in run.faults})
    head = ("seed", *kinds, *first.counts)
    return body + "<h2>Faults, and what was done</h2>" + table(head, (
        (run.world.seed, *(run.faults.get(kind, 0) for kind in kinds), *run.counts.values())
        for run in runs
    ))  # fmt: skip


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.3g} days" if seconds >= 86400 else seconds_text(seconds)


def _late(name: str, column: np.ndarray) -> Curve:
    """How large a share of requests was at least so late."""
    column = column[~np.isnan(column)]
    least = 1 / max(len(column), 1)
    points = [
        Point(float(np.quantile(column, 1 - share)), share)
        for share in SHARES
        if share >= least and len(column)
    ]
    return Curve(name, points)


def serving_page(served: Served, title: str, assumptions: Sequence[str] = ()) -> str:
    """The page of served traffic: for each latency, how many requests were at least so late."""
    return whole_page(title, serving_body(served) + _notes(assumptions))


def serving_body(served: Served) -> str:
    """Latencies as a table and as curves, and the rates."""
    found = [_late("first token", served.ttft), _late("each later token", served.tpot),
             _late("whole answer", served.latency)]  # fmt: skip
    body = curves("Requests at least so late", found, ("seconds", "share of requests"),
                  (seconds_text, _percent))  # fmt: skip
    words = "".join(f"<p>{html.escape(line)}</p>" for line in served.notes())
    return table(*served.table()) + words + body


def _notes(assumptions: Sequence[str]) -> str:
    return "<h2>Assumed</h2>" + table(("",), ((note,) for note in assumptions))
