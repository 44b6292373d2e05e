"""How fast the simulator is, as ratios measured in one run on one thread.

    python bench/speed.py            every measurement, as a table
    python bench/speed.py --json     the same for programs
    python bench/speed.py matmul     those whose name contains a word

Machines differ and are shared, so what counts is the ratio to NumPy (or to nothing) in the same
run; each figure is the median of several rounds, measured in turn with its partner.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from opentrn import dropin, nki
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.sim import Replay, one_blas_thread, timeline

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@dataclass(frozen=True)
class Figure:
    """One measured number beside the number asked for; `better` is "more" or "less"."""

    name: str
    value: float
    unit: str
    goal: float
    better: str
    note: str

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.value >= self.goal if self.better == "more" else self.value <= self.goal


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def medians(*calls: Callable[[], object], rounds: int = 5) -> list[float]:
    """Median seconds of each call, measured in turn so that disturbances hit all alike."""
    for call in calls:
        call()
    times = [[seconds(call) for call in calls] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def example_kernels():
    """The kernels of examples/matmul_attention.py, imported as a script would be."""
    spec = importlib.util.spec_from_file_location("kernels", EXAMPLES / "matmul_attention.py")
    module = importlib.util.module_from_spec(spec)
    with dropin.install("trn2"):
        spec.loader.exec_module(module)
    return module


def matmul() -> list[Figure]:
    """A tiled 2048³ bfloat16 product, interpreted and replayed, against NumPy's float32 GEMM."""
    kernels = example_kernels()
    (lhsT, rhs), _ = kernels.inputs(size=2048)
    a, b = lhsT.astype(np.float32), rhs.astype(np.float32)
    run = nki.run(kernels.matmul, lhsT, rhs)
    replay = Replay(run.program, run.chip)
    plain, eager, again = medians(
        lambda: a.T @ b,
        lambda: nki.run(kernels.matmul, lhsT, rhs),
        lambda: replay([lhsT, rhs]),
    )
    rate = 2 * 2048**3 / 1e9
    note = f"NumPy {rate / plain:.0f} GFLOP/s, interpreted {rate / eager:.0f}"
    return [
        Figure("matmul.interpreted", plain / eager, "of NumPy's rate", 0.5, "more", note),
        Figure("matmul.replayed", plain / again, "of NumPy's rate", 0.5, "more", ""),
    ]


SMALL = 2000


@nki.jit
def small_instructions(x):
    """Many instructions on [128, 1] tiles, whose arithmetic costs next to nothing."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    a = nl.load(x)
    b = nl.ndarray(a.shape, nl.float32)
    for _ in range(SMALL):
        nisa.tensor_scalar(b, a, nl.add, 1.0)
        nisa.tensor_tensor(b, b, a, nl.add)
        nisa.tensor_copy(b, a)
    nl.store(out, b)
    return out


def overhead() -> list[Figure]:
    """Time for each small instruction, run eagerly and replayed."""
    x = np.ones((128, 1), np.float32)
    run = nki.run(small_instructions, x)
    replay = Replay(run.program, run.chip)
    eager, again = medians(lambda: nki.run(small_instructions, x), lambda: replay([x]))
    each = 1e6 / len(run.program)
    return [
        Figure("overhead.eager", eager * each, "us/instruction", 25, "less", "check and record"),
        Figure("overhead.replay", again * each, "us/instruction", 5, "less", ""),
    ]


def timing() -> list[Figure]:
    """Instructions the timing side handles in a second: scheduling, and preparing anew."""
    run = nki.run(small_instructions, np.ones((128, 1), np.float32))
    program, chip = run.program, run.chip
    fast, plain, first = medians(
        lambda: timeline(program, chip, fast=True),
        lambda: timeline(program, chip, fast=False),
        lambda: timeline(replace(program), chip, fast=True),
    )
    count = len(program) / 1e6
    unit = "M instructions/s"
    return [
        Figure("timing.schedule", count / fast, unit, 1, "more", "with Numba"),
        Figure("timing.plain", count / plain, unit, 0, "more", "plain Python"),
        Figure("timing.first", count / first, unit, 0, "more", "a program never seen: placed too"),
    ]


def startup() -> list[Figure]:
    """Seconds until `import opentrn` and `opentrn --help` are done, in processes of their own."""

    def process(*args: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *args], check=True, capture_output=True)

    bare, package, command = medians(
        process("-c", "pass"),
        process("-c", "import opentrn"),
        process("-m", "opentrn", "--help"),
        rounds=7,
    )
    note = f"python alone {bare:.3f} s"
    return [
        Figure("startup.import", package, "s", 0.5, "less", note),
        Figure("startup.help", command, "s", 0.5, "less", note),
    ]


MEASUREMENTS = {"matmul": matmul, "overhead": overhead, "timing": timing, "startup": startup}


def report(measurements: dict[str, Callable[[], list[Figure]]], about: str) -> int:
    """Measure what the command line asks for, print, and give 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only measurements whose name contains a word")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures: list[Figure] = []
    for name, measure in measurements.items():
        if not given.words or any(word in name for word in given.words):
            with one_blas_thread():
                found = measure()
            figures += found
            for figure in () if given.json else found:
                print(line(figure), flush=True)
    if given.json:
        print(json.dumps([{**asdict(f), "met": f.met} for f in figures], indent=1))
    return 0 if all(f.met for f in figures) else 1


def line(figure: Figure) -> str:
    """One row of the table."""
    sign = "≥" if figure.better == "more" else "≤"
    goal = f"{sign} {figure.goal:g}" if figure.goal else ""
    mark = ("yes" if figure.met else "NO") if figure.goal else ""
    measured = f"{figure.name:24} {figure.value:9.3g} {figure.unit:18}"
    return f"{measured} goal {goal:8} {mark:4} {figure.note}"


if __name__ == "__main__":
    sys.exit(report(MEASUREMENTS, __doc__))
