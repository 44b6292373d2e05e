"""The report of a plan: one HTML page that asks no network, and what a notebook shows of it.

Step breakdown, memory map, scaling curve, cost curve, and the efficient points of time and cost.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from opentrn.base.errors import TrnError
from opentrn.base.files import write_whole
from opentrn.base.units import bytes_text, seconds_text
from opentrn.plan.answer import DAY, HOUR, Plan, Plans, part_name, time_text
from opentrn.plan.charts import Curve, Point, curves, stacked
from opentrn.plan.search import plan
from opentrn.plan.serve import plan_serving
from opentrn.plan.versus import Versus, mixed_bases, versus_table

STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 900px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .3rem; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: currentColor;
paint-order: stroke; stroke: Canvas; stroke-width: 3px; }
.grid { stroke: currentColor; opacity: .15; } .limit { stroke: #d22; stroke-dasharray: 4 3; }
polyline { fill: none; stroke-width: 2; }
.legend { margin: 0 0 .4rem; } .legend span { margin-right: 1.1em; white-space: nowrap; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .35em; }
table { border-collapse: collapse; font-size: 13px; } td, th { padding: .15rem .7rem .15rem 0;
text-align: left; vertical-align: top; } th { border-bottom: 1px solid; } .n { text-align: right; }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def count_text(number: float) -> str:
    """A count with a short suffix: 16, 1.5 k, 15 T."""
    for scale, suffix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= scale:
            return f"{number / scale:.4g}{suffix}"
    return f"{number:.4g}"


def money_text(dollars: float) -> str:
    """Dollars with a short suffix: $17.8 M."""
    return f"${count_text(dollars)}"


UNITS = ((DAY, "days"), (HOUR, "hours"), (60.0, "minutes"), (1.0, "seconds"), (1e-3, "ms"))


def time_unit(longest: float) -> tuple[float, str]:
    """The largest unit that so many seconds reach, in seconds, and its name: for an axis."""
    return next(unit for unit in UNITS if longest >= unit[0] or unit is UNITS[-1])


def scaling(what: Any, target: str, counts: Iterable[int], *, serve: bool = False,
            **options: Any) -> list[Plan]:  # fmt: skip
    """The best plan for each number of machines on which there is one, in the order given.

    Options go to `plan`, or with `serve` to `plan_serving`. Counts on which nothing fits or divides
    are left out; other refusals are raised. Step times are seconds, costs dollars.

    Source: `plan` and `plan_serving`.
    """
    found = []
    for count in counts:
        try:
            found.append((plan_serving if serve else plan)(what, target, count, **options).best)
        except TrnError as error:
            if error.code not in ("plan.memory", "plan.limit", "plan.request"):
                raise
    return found


def around(count: int) -> list[int]:
    """Numbers of machines from an eighth to eight times as many, by doubling."""
    return [c for k in range(-3, 4) if (c := round(count * 2.0**k)) >= 1 and c * 8 >= count]


def efficient(plans: Sequence[Plan]) -> list[Plan]:
    """Those plans that no other beats in time and in cost, fastest first."""
    best, kept = float("inf"), []
    priced = (one for one in plans if one.cost_usd is not None)
    for one in sorted(priced, key=lambda p: (p.hours * _share(p), p.cost_usd)):
        if one.cost_usd * _share(one) < best:
            best = one.cost_usd * _share(one)
            kept.append(one)
    return kept


def _name(number: int, one: Plan) -> str:
    return f"{number}. {one.split.degrees}"


def _seconds(one: Plan) -> dict[str, float]:
    """Seconds of a step by what they are called."""
    return {part_name(name): float(part) for name, part in one.step.parts.items()}


def bars(found: Plans) -> str:
    """Step breakdown and memory map of the plans."""
    rows = list(enumerate(found.plans, 1))
    step = [(_name(n, p), _seconds(p)) for n, p in rows]
    held = [(_name(n, p), dict(p.step.memory)) for n, p in rows]
    room = max(p.step.capacity for p in found.plans)
    return stacked("Step breakdown", step, seconds_text) + stacked(
        "Memory of a core", held, bytes_text, room
    )


def _told(one: Plan) -> str:
    return f"{one.count} x {one.machine}: {one.split}; {time_text(one.hours * HOUR)}, {one.cost}"


def _speed(one: Plan) -> float:
    """Tokens a second."""
    return one.extra.get("tokens_per_s") or one.extra["step_tokens"] / one.step_time_s


def _share(one: Plan) -> float:
    """What a plan's time and cost are multiplied with to compare them with those of others.

    Steps may differ in their tokens: without the tokens of a run they count by a million tokens.
    """
    return 1e6 / one.extra["step_tokens"] if one.cost_for == "a step" else 1.0


def over_counts(found: Plans, scaled: Sequence[Plan]) -> str:
    """Scaling curve, cost curve, and the efficient points of time and cost."""
    per = "per million tokens" if found.best.cost_for == "a step" else found.best.cost_for
    speed = [Point(p.count, _speed(p), _told(p)) for p in scaled]
    first = speed[0] if speed else Point(1, 1)
    ideal = [Point(p.x, first.y * p.x / first.x) for p in speed]
    out = curves("Scaling: tokens a second over machines",
                 [Curve("predicted", speed), Curve("in proportion", ideal)],
                 ("machines", "tokens/s"), (count_text, count_text))  # fmt: skip
    priced = [p for p in scaled if p.cost_usd is not None]
    if not priced:
        return (
            out + "<h2>Cost</h2><p>No price of this machine is known; a price file gives one.</p>"
        )
    cost = [Point(p.count, p.cost_usd * _share(p), _told(p)) for p in priced]
    out += curves("Cost over machines", [Curve(f"cost {per}", cost)],
                  ("machines", f"$ {per}"), (count_text, money_text))  # fmt: skip
    every = [*priced, *(p for p in found.plans if p.cost_usd is not None)]
    size, unit = time_unit(max(p.hours * _share(p) for p in every) * HOUR)

    def point(p: Plan) -> Point:
        return Point(p.hours * _share(p) * HOUR / size, p.cost_usd * _share(p), _told(p))

    others = Curve("all plans", [point(p) for p in every], line=False)
    best = Curve("efficient", [point(p) for p in efficient(every)])
    labels = (f"time, {unit}", f"$ {per}")
    title = "Time and cost: what nothing beats in both"
    return out + curves(title, [others, best], labels, (count_text, money_text))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows of cells, escaped."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"


def summary(found: Plans) -> str:
    """The plans in a table."""
    return table(*found.summary())


def _reasons(found: Plans) -> str:
    rejected = table(("choice", "why not"), ((r.choice, r.reason) for r in found.rejected))
    legal = "; ".join(f"{n} {', '.join(map(str, v))}" for n, v in found.legal.items())
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in found.assumptions)
    price = html.escape(found.best.price or "no price known")
    return (
        f"<h2>Why not</h2>{rejected}<h2>What it rests on</h2><p>Legal degrees: "
        f"{html.escape(legal)}. The step time is {html.escape(found.best.grades)}. "
        f"Price: {price}.</p>"
        f"<ul>{notes}</ul>"
    )


def fragment(found: Plans) -> str:
    """What a notebook shows: the table and the bars, with their style."""
    return styled(summary(found) + bars(found))


def styled(body: str) -> str:
    """A part of a page with the style it needs, for notebooks."""
    return f"<style>{STYLE}</style>{body}"


def page(found: Plans, scaled: Sequence[Plan], title: str) -> str:
    """The whole page as text; `scaled` are best plans over numbers of machines (see `scaling`)."""
    body = summary(found) + bars(found) + over_counts(found, scaled) + _reasons(found)
    return whole_page(title, body)


def save_page(path: str | os.PathLike, text: str) -> Path:
    """Write a page, whole or not at all; raises what `base.write_whole` raises."""
    return write_whole(path, [text])


def comparison(rows: Sequence[Versus], title: str) -> str:
    """The page of `compare`: step breakdown, memory, time and cost of each machine, what each
    assumes.
    """
    fitting = [row for row in rows if row.plan is not None]
    named = [(f"{row.chips} chips, {row.machine}", row.plan) for row in fitting]
    body = table(*versus_table(rows))
    body += "".join(f"<p>{html.escape(note)}</p>" for note in mixed_bases(rows))
    step = [(n, _seconds(p)) for n, p in named]
    body += stacked("Step breakdown", step, seconds_text)
    held = [(n, {k: v / p.step.capacity for k, v in p.step.memory.items()}) for n, p in named]
    body += stacked("Shares of a core's memory", held, lambda share: f"{share:.1%}")
    priced = [(f"{n}, {p.basis}", p) for n, p in named if p.cost_usd is not None]
    if priced:
        body += stacked("Cost", [(n, {p.cost_for: p.cost_usd}) for n, p in priced], money_text)
        size, unit = time_unit(max(p.hours for _, p in priced) * HOUR)
        points = [
            Curve(n, [Point(p.hours * HOUR / size, p.cost_usd, _told(p))], line=False)
            for n, p in priced
        ]
        body += curves("Time and cost", points, (f"time, {unit}", "$"), (count_text, money_text))
    told = [(row.machine, "; ".join(row.assumptions) or row.refused) for row in rows]
    return whole_page(title, body + "<h2>What each assumes</h2>" + table(("machine", ""), told))


def whole_page(title: str, body: str) -> str:
    """A page around a body, with its style and a policy that forbids every request."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><h1>{html.escape(title)}</h1>{body}</body></html>\n"
    )
