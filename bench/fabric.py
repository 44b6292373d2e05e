"""Our times of collectives beside those that others measured, good or bad.

    python -m bench.fabric                 a line for each curve
    python -m bench.fabric --points        every point of every curve
    python -m bench.fabric --json          all of it, for programs
    python -m bench.fabric --update docs/accuracy.md     write the lines into that page's table

`bench/published/nccom` holds the measurements.  Only points above 1 MB count in the summary: below,
what was measured is mostly how the tool times.
"""

import argparse
import json
import statistics
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from opentrn import hw
from opentrn.comm import Topology, place, time

HERE = Path(__file__).resolve().parent / "published" / "nccom"
BEGIN, END = "<!-- collectives -->", "<!-- end of collectives -->"
COUNTED = 1_000_000
HEAD = (
    "| measurement | machine | points | median error | largest | grade | use |\n"
    "|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Point:
    """One size of a curve: seconds published and predicted."""

    nbytes: int
    published: float
    predicted: float
    algorithm: str

    @property
    def error(self) -> float:
        """How far off, as a share of the published number."""
        return self.predicted / self.published - 1.0


@dataclass(frozen=True)
class Curve:
    """A measured curve beside ours."""

    name: str
    machine: str
    use: str
    grade: str
    stated: bool
    conditions: str
    points: tuple[Point, ...]

    @property
    def counted(self) -> list[Point]:
        """The points above 1 MB."""
        return [p for p in self.points if p.nbytes > COUNTED]

    @property
    def middle(self) -> float:
        """The median of the errors that count."""
        return statistics.median(abs(p.error) for p in self.counted)

    @property
    def worst(self) -> float:
        """The error farthest from zero, of those that count."""
        return max((p.error for p in self.counted), key=abs)


def curves(directory: Path = HERE) -> Iterator[Curve]:
    """Every curve and every peak of the files, timed."""
    for path in sorted(directory.glob("*.toml")):
        page = tomllib.loads(path.read_text(encoding="utf-8"))
        yield from map(_curve, page["curve"])
        yield from map(_peak, page["peak"])


def _topology(row: dict) -> Topology:
    return place(row["ranks"], row["machine"], row.get("nodes", 1), row.get("lnc"))


def _curve(row: dict) -> Curve:
    topology = _topology(row)
    launch = float(hw.target(row["machine"]).launch.graph) if row.get("host") else 0.0
    points = []
    for nbytes, published in row["points"]:
        timing = time(row["collective"], nbytes, topology, row.get("algorithm"))
        seconds = timing.seconds + launch
        points.append(Point(nbytes, published * 1e-6, seconds, timing.algorithm))
    return _made(row, points)


def _peak(row: dict) -> Curve:
    """The best bus bandwidth over sizes, as a curve of one point: the time of its size."""
    topology = _topology(row)
    timings = [time("all_reduce", 1 << k, topology, row.get("algorithm")) for k in range(20, 31)]
    best = max(timings, key=lambda t: t.bus)
    published = best.seconds * best.bus / (row["gigabytes"] * 1e9)
    return _made(row | {"name": f"{row['name']} best"}, [
        Point(int(best.nbytes), published, best.seconds, best.algorithm)
    ])  # fmt: skip


def _made(row: dict, points: list[Point]) -> Curve:
    return Curve(
        row["name"], row["machine"], row["use"], row["grade"], row.get("stated", True),
        row["conditions"], tuple(points),
    )  # fmt: skip


def line(curve: Curve) -> str:
    """The row of the table."""
    cells = (
        curve.name, curve.machine, str(len(curve.counted)), f"{curve.middle:.0%}",
        f"{curve.worst:+.0%}", curve.grade, curve.use,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def summary(found: list[Curve]) -> str:
    """How many points above 1 MB of curves whose machine is known are within a quarter."""
    parts = []
    for name, chosen in (
        ("nccom-test, configuration stated or inferred from the curve",
         [c for c in found if c.stated and not c.name.startswith(("trn2.nki", "trn2.torch"))]),
        ("all", found),
    ):  # fmt: skip
        errors = [abs(p.error) for c in chosen for p in c.counted]
        near = sum(error <= 0.25 for error in errors)
        parts.append(
            f"{name}: {len(errors)} points, median {statistics.median(errors):.0%}, "
            f"{near} within 25 %"
        )
    return "; ".join(parts)


def main() -> None:
    """Time the curves and print them."""
    parser = argparse.ArgumentParser(description="collectives beside published measurements")
    parser.add_argument("--points", action="store_true", help="every point")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="write into the page's table")
    asked = parser.parse_args()
    found = list(curves())
    if asked.update:
        page = asked.update.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        body = "\n".join(map(line, found))
        after = rest.partition(END)[2]
        told = f"{before}{BEGIN}\n{HEAD}\n{body}\n\n{summary(found)}.\n{END}{after}"
        asked.update.write_text(told, encoding="utf-8")
    if asked.json:
        print(json.dumps([asdict(curve) for curve in found]))
        return
    print(HEAD)
    for curve in found:
        print(line(curve))
        for p in curve.points if asked.points else ():
            print(f"    {p.nbytes:>11} B {p.published * 1e6:10.1f} us {p.predicted * 1e6:10.1f} us "
                  f"{p.error:+5.0%} {p.algorithm}")  # fmt: skip
    print(summary(found))


if __name__ == "__main__":
    main()
