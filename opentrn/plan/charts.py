"""Charts as SVG text: stacked bars, and curves on logarithmic axes. No script draws them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, log10
from typing import NamedTuple

COLOURS = (
    "#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5",
    "#9c6b4e", "#9498a0",
)  # fmt: skip
"""Colours of parts and curves, in this order."""

WIDTH, BAR, GAP, LEFT = 860, 24, 12, 250
HEIGHT, EDGE = 300, 60


class Point(NamedTuple):
    """A point of a curve and what is told when the pointer is on it."""

    x: float
    y: float
    told: str = ""


class Curve(NamedTuple):
    """Points of one kind; joined by a line, or not."""

    name: str
    points: Sequence[Point]
    line: bool = True


def text(x: float, y: float, said: str, anchor: str = "start") -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(said)}</text>'


def _legend(names: Iterable[str], colours: Mapping[str, str]) -> str:
    items = "".join(
        f'<span><i style="background:{colours[name]}"></i>{html.escape(name)}</span>'
        for name in names
    )
    return f'<p class="legend">{items}</p>'


def _picture(height: float, inside: Iterable[str], title: str) -> str:
    body = "".join(inside)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{html.escape(title)}">'
        f"{body}</svg>"
    )


def stacked(
    title: str,
    rows: Sequence[tuple[str, Mapping[str, float]]],
    show,
    limit: float | None = None,
) -> str:
    """Horizontal bars of (name, {part: value}), one scale for all; `show` writes a value.

    `limit` is marked by a line, and belongs to the scale. Parts of nothing are left out.
    """
    names = [n for n in dict.fromkeys(n for _, row in rows for n in row)
             if any(row.get(n, 0) > 0 for _, row in rows)]  # fmt: skip
    colours = {name: COLOURS[k % len(COLOURS)] for k, name in enumerate(names)}
    most = max([sum(row.values()) for _, row in rows] + ([limit] if limit else []) or [1.0]) or 1.0
    scale = (WIDTH - LEFT - 90) / most
    height = len(rows) * (BAR + GAP) + (22 if limit else 6)
    drawn = []
    if limit:  # first, so that words lie over it
        at = LEFT + limit * scale
        drawn.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height - 20}"/>')
        drawn.append(text(at, height - 5, f"{show(limit)} there are", "middle"))
    for place, (name, row) in enumerate(rows):
        y, x = place * (BAR + GAP) + 4, float(LEFT)
        drawn.append(text(LEFT - 8, y + 17, name, "end"))
        for part in names:
            wide = row.get(part, 0.0) * scale
            if wide > 0:
                told = html.escape(f"{part}: {show(row[part])}")
                drawn.append(f'<rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{BAR}" '
                             f'fill="{colours[part]}"><title>{told}</title></rect>')  # fmt: skip
            x += wide
        drawn.append(text(x + 6, y + 17, show(sum(row.values()))))
    return f"<h2>{html.escape(title)}</h2>{_legend(names, colours)}{_picture(height, drawn, title)}"


def ticks(low: float, high: float) -> list[float]:
    """Three or more round numbers between two positive ones: powers of ten and parts of them, or
    equal steps where the two are near each other.
    """
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for digits in ((1,), (1, 2, 5)):
        found = [d * 10.0**n for n in powers for d in digits]
        found = [s for s in found if low * 0.999 <= s <= high * 1.001]
        if len(found) >= 3:
            return found
    rough = (high - low) / 3
    power = 10.0 ** floor(log10(rough))
    step = max(d * power for d in (1, 2, 5) if d * power <= rough)
    return [n * step for n in range(ceil(low / step * 0.999), floor(high / step * 1.001) + 1)]


def _span(values: Sequence[float], most: float | None = None) -> tuple[float, float]:
    """Limits of a logarithmic axis: some room left on both sides, nothing beyond `most`."""
    low, high = min(values), max(values)
    if most is not None:
        room = max((high / low) ** 0.3, 1.01)
        return low / room, most
    return low / 1.25, high * 1.25


def curves(
    title: str, found: Sequence[Curve], labels: tuple[str, str], shows: tuple,
    most: float | None = None,
) -> str:  # fmt: skip
    """Curves over two logarithmic axes; `labels` and `shows` are of x and y; `most` ends y."""
    every = [p for curve in found for p in curve.points if p.x > 0 and p.y > 0]
    if not every:
        return f"<h2>{html.escape(title)}</h2><p>nothing to draw</p>"
    (x0, x1), (y0, y1) = _span([p.x for p in every]), _span([p.y for p in every], most)

    def at(p: Point) -> tuple[float, float]:
        across = (log10(p.x) - log10(x0)) / (log10(x1) - log10(x0))
        up = (log10(p.y) - log10(y0)) / (log10(y1) - log10(y0))
        return 90 + across * (WIDTH - 120), HEIGHT - EDGE + 10 - up * (HEIGHT - EDGE - 20)

    drawn = []
    for value in ticks(x0, x1):
        x, _ = at(Point(value, y0))
        drawn.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{HEIGHT - 50}"/>')
        drawn.append(text(x, HEIGHT - 34, shows[0](value), "middle"))
    for value in ticks(y0, y1):
        _, y = at(Point(x0, value))
        drawn.append(f'<line class="grid" x1="90" x2="{WIDTH - 30}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(text(82, y + 4, shows[1](value), "end"))
    drawn.append(text((90 + WIDTH) / 2, HEIGHT - 12, labels[0], "middle"))
    drawn.append(text(90, 12, labels[1]))
    colours = {curve.name: COLOURS[k % len(COLOURS)] for k, curve in enumerate(found)}
    for curve in found:
        drawn += _drawn(curve, colours[curve.name], at)
    legend = _legend([curve.name for curve in found], colours)
    return f"<h2>{html.escape(title)}</h2>{legend}{_picture(HEIGHT, drawn, title)}"


def _drawn(curve: Curve, colour: str, at) -> Iterable[str]:
    """The line and the dots of a curve."""
    places = [(at(p), p.told) for p in curve.points if p.x > 0 and p.y > 0]
    if curve.line and len(places) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for (x, y), _ in places)
        yield f'<polyline points="{path}" stroke="{colour}"/>'
    for (x, y), told in places:
        title = f"<title>{html.escape(told)}</title>" if told else ""
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}">{title}</circle>'
