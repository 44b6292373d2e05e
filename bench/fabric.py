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

from opentrn.comm import Topology, bus_factor, place, time

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
    points = []
    for nbytes, published in row["points"]:
        timing = time(row["collective"], nbytes, topology, row.get("algorithm"))
        seconds = _as_timed(row, topology, nbytes, timing.seconds)
        points.append(Point(nbytes, published * 1e-6, seconds, timing.algorithm))
    return _made(row, points)


def _as_timed(row: dict, topology: Topology, nbytes: float, seconds: float) -> float:
    """Seconds as the row's method of timing shows them.

    `host` is microseconds of the launch in them: published, of a message so small that nothing else
    is in it.  A kernel's own copies of its input and output, `copied` bytes for each byte, are read
    and written at a core's share of the HBM.  Launches that are `queued` run ahead: the longer of
    launch and device counts.
    """
    launch = row.get("host", 0.0) * 1e-6
    if not row.get("queued"):
        return launch + seconds
    chip = topology.chip
    share = float(chip.hbm_bandwidth) / int(chip.cores) * topology.cores
    edges = float(chip.launch.begin) + float(chip.launch.end)
    return max(launch, edges + seconds + row.get("copied", 0.0) * nbytes * 2.0 / share)


def _peak(row: dict) -> Curve:
    """The best bus bandwidth over sizes, as a curve of one point: the time of its size."""
    topology = _topology(row)
    sizes = [1 << k for k in range(20, int(row.get("largest", 1 << 30)).bit_length())]
    timings = [time("all_reduce", size, topology, row.get("algorithm")) for size in sizes]
    rated = [(_as_timed(row, topology, t.nbytes, t.seconds), t) for t in timings]
    seconds, best = min(rated, key=lambda found: found[0] / found[1].nbytes)
    published = bus_factor("all_reduce", best.ranks) * best.nbytes / (row["gigabytes"] * 1e9)
    return _made(row | {"name": f"{row['name']} best"}, [
        Point(int(best.nbytes), published, seconds, best.algorithm)
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
    """How many points above 1 MB are within a quarter: of the tool itself, and of all."""
    parts = []
    others = ("trn2.nki", "trn2.torch", "unknown")
    for name, chosen in (
        ("nccom-test on a machine stated, or inferred from the curve",
         [c for c in found if not c.name.startswith(others)]),
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
