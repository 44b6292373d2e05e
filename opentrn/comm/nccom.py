"""`nccom-test`: the time of a collective over sizes, in the table users of the real tool know.

Sizes and bandwidths are binary (GB is 2**30 bytes), as in the real tool.  Times come from
`comm.time`; `--check` runs the schedule itself on data, rounding as the data type does.
"""

import argparse
import json
import time as clock
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from opentrn.base import (
    UsageError,
    bfloat16,
    declare,
    dtypes,
    numerics,
    refuse_unwritable,
    write_whole,
)
from opentrn.comm.build import MOST, build
from opentrn.comm.choose import bandwidths
from opentrn.comm.schedule import Schedule, run
from opentrn.comm.timing import Timing, time
from opentrn.comm.topology import Topology, place

declare(
    "comm.nccom",
    "nccom-test was called in a way it does not understand.",
    rule="an operation, the number of ranks (-r), and options of nccom-test",
    fix="`opentrn nccom-test --help` lists operations and options",
)

OPERATIONS = {
    "allr": "all_reduce", "all_reduce": "all_reduce", "allg": "all_gather",
    "all_gather": "all_gather", "redsct": "reduce_scatter", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "permute": "permute", "sendrecv": "permute",
}  # fmt: skip
DTYPES = {
    "uint8": dtypes.uint8, "int8": dtypes.int8, "uint16": dtypes.uint16, "int16": dtypes.int16,
    "fp8": dtypes.float8_e4m3, "fp8e4": dtypes.float8_e4m3, "fp16": dtypes.float16,
    "bf16": bfloat16, "int32": dtypes.int32, "uint32": dtypes.uint32, "fp32": dtypes.float32,
}  # fmt: skip
CHECKED = 4096
"""Elements of a rank that `--check` computes at most."""
CHECKS = ("random", "all_ones")
GIB = float(1 << 30)


# ---------------------------------------------------------------------------------------- arguments


class _Parser(argparse.ArgumentParser):
    """Refuses with a UsageError instead of leaving the process."""

    def error(self, message: str) -> None:
        """Raise UsageError `comm.nccom`."""
        raise UsageError(f"nccom-test: {message}", code="comm.nccom")


def size(text: str) -> int:
    """Bytes of a size as people type it: 8, 2kb, 32M, 1GB (binary); ValueError otherwise."""
    plain = text.strip().lower().removesuffix("b")
    scale = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(plain[-1:], 1)
    number = float(plain[:-1] if scale > 1 else plain) * scale
    if not number < float("inf"):
        raise ValueError(f"{text!r} is no size")
    return int(number)


def whole(text: str) -> int:
    """A number from 1 on."""
    return _from(1, text)


def count(text: str) -> int:
    """A number from 0 on."""
    return _from(0, text)


def _from(least: int, text: str) -> int:
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is below {least}")
    return number


def _parser() -> _Parser:
    p = _Parser(prog="opentrn nccom-test", description="Time a collective on a simulated fabric.")
    p.add_argument("operation", choices=OPERATIONS, metavar="OPERATION",
                   help=f"one of {', '.join(OPERATIONS)}")  # fmt: skip
    p.add_argument("-r", "--nworkers", type=int, required=True, help="ranks in all")
    p.add_argument("-N", "--nnodes", type=int, default=1, help="instances")
    p.add_argument("-b", "--minbytes", type=size, default=32 << 20, metavar="SIZE")
    p.add_argument("-e", "--maxbytes", type=size, default=None, metavar="SIZE")
    p.add_argument("-i", "--stepbytes", type=size, default=None, metavar="SIZE")
    p.add_argument("-f", "--stepfactor", type=float, default=None, metavar="FACTOR")
    p.add_argument("-d", "--datatype", choices=DTYPES, default="uint8", metavar="DTYPE",
                   help=f"one of {', '.join(DTYPES)}")  # fmt: skip
    p.add_argument("-n", "--iters", type=whole, default=20, help="the model has no jitter: ignored")
    p.add_argument("-w", "--warmup_iters", type=count, default=5, help="ignored, as --iters is")
    p.add_argument("-c", "--check", nargs="?", const="random", choices=CHECKS, help="check results")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("-t", "--stats", nargs="+", default=["avg"], help="avg, p50, ...: all equal")
    p.add_argument("--show-algorithm", action="store_true")
    p.add_argument("--show-input-output-size", action="store_true")
    p.add_argument("--report-to-json-file", metavar="FILE")
    p.add_argument("--non-interactive", action="store_true", help="always so")
    p.add_argument("-s", "--hosts", nargs="+", default=[], help="names only; nothing is contacted")
    p.add_argument("-S", "--slurm-mode", action="store_true", help="nothing is scheduled")
    p.add_argument("--instance", default=None, metavar="NAME",
                   help="machine to simulate [trn2.48xlarge]")  # fmt: skip
    p.add_argument("--lnc", type=int, default=None, help="physical cores of a rank")
    p.add_argument("--algorithm", default=None, help="instead of the one chosen by size")
    return p


def _given(arguments: Sequence[str]) -> list[str]:
    """The words of a command, with `--check` followed by its default before another word."""
    found: list[str] = []
    for word, after in zip(arguments, [*arguments, ""][1:], strict=True):
        found.append(word)
        if word in ("-c", "--check") and after not in CHECKS:
            found.append("random")
    return found


def _sizes(asked: argparse.Namespace) -> Iterator[int]:
    """Every size to time; UsageError for ranges that never end or are not ones."""
    now, last = asked.minbytes, asked.maxbytes if asked.maxbytes is not None else asked.minbytes
    factor, step = asked.stepfactor, asked.stepbytes
    each = DTYPES[asked.datatype].itemsize
    if now % each:
        raise UsageError(
            f"{now} bytes are no whole number of {asked.datatype} elements",
            code="comm.nccom",
            rule=f"an element of {asked.datatype} has {each} bytes",
            fix="give --minbytes a multiple of it",
        )
    grows = factor is None or 1 < factor < float("inf")
    if now < 1 or last < now or not grows or (step or 1) < 1:
        raise UsageError(
            f"sizes from {now} to {last}, factor {factor}, step {step}",
            code="comm.nccom",
            rule="1 <= minbytes <= maxbytes, stepfactor > 1, stepbytes > 0",
        )
    step = step or max(1, (last - now) // 10)
    exact = float(now)
    while now <= last:
        yield now - now % each  # sizes in between are cut to whole elements
        exact = exact * factor if factor else exact + step
        now = int(exact)


# --------------------------------------------------------------------------------------- one line


@dataclass(frozen=True)
class Line:
    """One size: `seconds`, bandwidths in GiB/s, the algorithm, and whether the data was right."""

    nbytes: int
    count: int
    dtype: str
    seconds: float
    algbw: float
    busbw: float
    timing: Timing
    wrong: int | None

    def json(self, asked: argparse.Namespace) -> dict:
        """The keys of the real tool's report."""
        found = {
            "size(B)": self.nbytes,
            "count(elems)": self.count,
            "type": self.dtype,
            "time(us)": self.seconds * 1e6,
            **{f"time:{stat}(us)": self.seconds * 1e6 for stat in asked.stats},
            "algbw(GB/s)": self.algbw,
            "busbw(GB/s)": self.busbw,
        }
        if asked.show_algorithm:
            found["algorithm"] = self.timing.algorithm
        if asked.show_input_output_size:
            into, out = _buffers(self)
            found |= {"total_input_size(B)": into, "total_output_size(B)": out}
        if self.wrong is not None:
            found["check"] = "passed" if self.wrong == 0 else f"{self.wrong} wrong elements"
        return found


def _buffers(line: Line) -> tuple[int, int]:
    """Bytes a rank puts in and gets out."""
    part = max(1, line.nbytes // line.timing.ranks)
    kinds = {"all_gather": (part, line.nbytes), "reduce_scatter": (line.nbytes, part)}
    return kinds.get(line.timing.collective, (line.nbytes, line.nbytes))


def measure(asked: argparse.Namespace, topology: Topology) -> Iterator[Line]:
    """Time every size, and check it where asked."""
    collective, dtype = OPERATIONS[asked.operation], DTYPES[asked.datatype]
    for nbytes in _sizes(asked):
        count = nbytes // dtype.itemsize
        timing = time(collective, nbytes, topology, asked.algorithm)
        algbw, busbw = bandwidths(collective, nbytes, timing.seconds, topology.ranks)
        wrong = None
        if asked.check:
            made = build(collective, topology, asked.algorithm, nbytes)
            wrong = check(made, count, dtype, asked.check, asked.seed)
        yield Line(
            nbytes, count, asked.datatype, timing.seconds, algbw / GIB, busbw / GIB, timing, wrong
        )


# ----------------------------------------------------------------------------------------- checking


def check(made: Schedule, count: int, dtype, mode: str = "random", seed: int = 0) -> int:
    """Run a schedule on data of a type; how many elements differ from what they must be.

    At most CHECKED elements of a rank are computed.  Sums are compared with float64 sums, within
    the roundings of the type; data that only moves must be equal.
    """
    kind = made.name.split(".")[0]
    chunks = made.chunks // 2 if kind in ("all_to_all", "permute") else made.chunks
    each = max(1, -(-min(count, CHECKED) // chunks))
    held = _data(made.ranks, chunks, each, dtype, mode, seed)
    blank = [np.zeros(each)] * (made.chunks - chunks)
    found = run(made, [[*own, *blank] for own in held], _adder(dtype))
    wanted = _WANTED[kind](held, made)
    slack = _slack(dtype, made.ranks, held) if kind in ("all_reduce", "reduce_scatter") else 0.0
    wrong = 0
    for got, should in zip(found, wanted, strict=True):
        wrong += int((np.abs(np.asarray(got) - np.asarray(should)) > slack).sum())
    return wrong


def _data(ranks: int, chunks: int, each: int, dtype, mode: str, seed: int):
    """Values of the type as float64: ones, or small ones that integers can add up."""
    if mode == "all_ones":
        return [[np.ones(each)] * chunks for _ in range(ranks)]
    random = np.random.default_rng(seed)
    if dtype.kind in ("int", "uint"):
        most = max(1, int(dtype.max) // max(1, ranks))
        draw = random.integers(0, most, (ranks, chunks, each), endpoint=True).astype(np.float64)
    else:
        draw = numerics.round_to(random.random((ranks, chunks, each), dtype=np.float32), dtype)
        draw = draw.astype(np.float64)
    return [list(own) for own in draw]


def _adder(dtype) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Addition as the hardware does it: in float32, stored in the type."""
    if dtype.kind in ("int", "uint"):
        return np.add

    def add(mine: np.ndarray, arriving: np.ndarray) -> np.ndarray:
        total = np.asarray(mine + arriving, dtype=np.float32)
        return numerics.round_to(total, dtype).astype(np.float64)

    return add


def _slack(dtype, ranks: int, held) -> float:
    """How far sums may be off: half a unit of the type's last place for each addition."""
    if dtype.kind in ("int", "uint"):
        return 0.0
    largest = max(float(np.abs(chunk).max()) for own in held for chunk in own)
    return ranks * largest * ranks * 2.0 ** -(dtype.mantissa + 1)


def _sums(held, made: Schedule):
    total = [sum(np.asarray(own[c]) for own in held) for c in range(len(held[0]))]
    return [[total[c] for c in kept] for kept in made.keeps]


def _gathered(held, made: Schedule):
    share = made.chunks // made.ranks
    return [[held[c // share][c] for c in kept] for kept in made.keeps]


def _transposed(held, made: Schedule):
    return [[held[s][rank] for s in range(made.ranks)] for rank in range(made.ranks)]


def _passed(held, made: Schedule):
    return [[held[(rank - 1) % made.ranks][0]] for rank in range(made.ranks)]


_WANTED = {
    "all_reduce": _sums,
    "reduce_scatter": _sums,
    "all_gather": _gathered,
    "all_to_all": _transposed,
    "permute": _passed,
}


# ------------------------------------------------------------------------------------------ telling


def table(lines: Sequence[Line], asked: argparse.Namespace) -> Iterator[str]:
    """The lines under the names of their columns, right-aligned; then the mean bus bandwidth."""
    stats = ["time(us)"] if asked.stats == ["avg"] else [f"time:{s}(us)" for s in asked.stats]
    head = ["size(B)", "count(elems)"]
    if asked.show_input_output_size:
        head += ["total_input_size(B)", "total_output_size(B)"]
    head += ["type", *stats, "algbw(GB/s)", "busbw(GB/s)"]
    head += ["algorithm"] if asked.show_algorithm else []
    rows = [head]
    for line in lines:
        sizes = map(str, _buffers(line)) if asked.show_input_output_size else ()
        took = f"{line.seconds * 1e6:.2f}"
        row = [str(line.nbytes), str(line.count), *sizes, line.dtype, *[took] * len(stats),
               f"{line.algbw:.2f}", f"{line.busbw:.2f}"]  # fmt: skip
        rows.append([*row, line.timing.algorithm] if asked.show_algorithm else row)
    widths = [max(len(row[n]) for row in rows) + 4 for n in range(len(head))]
    for row in rows:
        yield "".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    yield f"Avg bus bandwidth:\t{sum(x.busbw for x in lines) / len(lines):.4f}GB/s"


def _closing(lines: Sequence[Line], asked: argparse.Namespace, t: Topology) -> Iterator[str]:
    """Where it was timed, what the times rest on, what was checked."""
    total = sum(line.seconds for line in lines)
    shares: dict[str, float] = {}
    for line in lines:
        for grade, share in line.timing.grades.items():
            shares[grade] = shares.get(grade, 0.0) + share * line.seconds / total
    rests = ", ".join(f"{grade} {share:.0%}" for grade, share in shares.items())
    yield (
        f"Simulated: {t.nodes} x {t.machine}, {t.chips} chips x {t.per_chip} ranks; "
        f"rests on {rests}"
    )
    if asked.check:
        wrong = sum(1 for line in lines if line.wrong)
        yield (
            f"{wrong} errors found - test failed" if wrong else
            f"Checked: {asked.check} data, {len(lines)} sizes right "
            f"(at most {CHECKED} elements of a rank)"
        )  # fmt: skip


def main(arguments: Sequence[str], tell: Callable[[str], None] = print) -> int:
    """Run the tool; the status to end with.

    Raises UsageError `comm.nccom`, and what `place` and `time` raise.
    """
    asked = _parser().parse_args(_given(list(arguments)))
    machine = asked.instance or "trn2.48xlarge"
    topology = place(asked.nworkers, machine, asked.nnodes, asked.lnc)
    if asked.check and topology.ranks > MOST:
        raise UsageError(f"--check with {topology.ranks} ranks, at most {MOST}", code="comm.nccom")
    if asked.report_to_json_file:
        refuse_unwritable(asked.report_to_json_file)
    began = clock.perf_counter()
    lines = list(measure(asked, topology))
    for text in (*table(lines, asked), *_closing(lines, asked, topology)):
        tell(text)
    if asked.report_to_json_file:
        report = {
            "results": [line.json(asked) for line in lines],
            "config": {k: v for k, v in vars(asked).items() if k != "report_to_json_file"},
            "simulated": {"machine": topology.machine, "ranks": topology.ranks,
                          "seconds": clock.perf_counter() - began},
        }  # fmt: skip
        write_whole(asked.report_to_json_file, [json.dumps(report, indent=4)])
    return 1 if any(line.wrong for line in lines) else 0
