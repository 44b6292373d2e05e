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
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from opentrn import dropin, hw, nki
from opentrn.base import dtype
from opentrn.isa import Buffer, view_of
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
    with nki.tracing():
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
def small_instructions(x, turns=SMALL):
    """Many instructions on [128, 1] tiles, whose arithmetic costs next to nothing."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    a = nl.load(x)
    b = nl.ndarray(a.shape, nl.float32)
    for _ in range(turns):
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
    with nki.tracing():
        eager, again = medians(lambda: nki.run(small_instructions, x), lambda: replay([x]))
    each = 1e6 / len(run.program)
    return [
        Figure("overhead.eager", eager * each, "us/instruction", 25, "less", "check and record"),
        Figure("overhead.replay", again * each, "us/instruction", 5, "less", ""),
    ]


RATE = "M instructions/s"


def most_memory() -> int:
    """The most bytes this process had at a time.

    What `getrusage` says counts the process it was forked from, too; Linux knows it better.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def timing() -> list[Figure]:
    """Instructions the timing side handles in a second: the schedule alone, and end to end.

    End to end is a program never seen before: placed, its waits found, scheduled.  The product is
    recorded anew each time (not counted), so that nothing about its views is known yet.
    """
    run = nki.run(small_instructions, np.ones((128, 1), np.float32))
    program, chip = run.program, run.chip
    fast, plain, first, first_plain = medians(
        lambda: timeline(program, chip, fast=True),
        lambda: timeline(program, chip, fast=False),
        lambda: timeline(replace(program), chip, fast=True),
        lambda: timeline(replace(program), chip, fast=False),
    )
    count = len(program) / 1e6
    product, cold, cold_plain = fresh_products(chip)
    return [
        Figure("timing.schedule", count / fast, RATE, 1, "more", "schedule only, with Numba"),
        Figure("timing.schedule.plain", count / plain, RATE, 0, "more", "schedule only"),
        Figure("timing.first", count / first, RATE, 10, "more", "end to end, with Numba"),
        Figure("timing.first.plain", count / first_plain, RATE, 2, "more", "end to end"),
        Figure("timing.product", product / cold, RATE, 10, "more", "unrolled tiles, with Numba"),
        Figure("timing.product.plain", product / cold_plain, RATE, 2, "more", "unrolled tiles"),
    ]


def fresh_products(chip) -> tuple[float, float, float]:
    """M instructions of a tiled product, seconds end to end with Numba, and without."""
    kernels = example_kernels()
    square = (4096, 4096)
    given = [view_of(Buffer(n, "hbm", square, dtype("bfloat16"), kind="input")) for n in range(2)]
    times: dict[bool, list[float]] = {True: [], False: []}
    held = []  # taking a program apart is no part of timing another
    for _ in range(3):
        for fast, found in times.items():
            program = nki.record(kernels.matmul, chip, *given).program
            found.append(seconds(lambda p=program, f=fast: timeline(p, chip, fast=f)))
            held.append(program)
    return len(program) / 1e6, statistics.median(times[True]), statistics.median(times[False])


@nki.jit
def looped(x, turns):
    """A device loop: a load, 150 instructions on three engines, a store."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)

    def turn(_):
        a, b, c = (nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf) for _ in range(3))
        nisa.dma_copy(dst=a, src=x)
        for _ in range(50):
            nisa.tensor_scalar(b, a, nl.add, 1.0)
            nisa.activation(c, nl.exp, b)
            nisa.tensor_tensor(a, b, c, nl.add)
        nisa.dma_copy(dst=out, src=a)

    nl.fori_loop(0, turns, turn)
    return out


def loop() -> list[Figure]:
    """Ten million instructions in a device loop, end to end, all starts and ends looked at.

    A process of its own tells how much memory that takes.
    """
    script = "from bench.speed import ten_million; print(*ten_million())"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True,
                          text=True, cwd=Path(__file__).resolve().parent.parent)  # fmt: skip
    fast, plain, memory = map(float, done.stdout.split())
    return [
        Figure("loop.10M", fast, RATE, 10, "more", "end to end, with Numba"),
        Figure("loop.10M.plain", plain, RATE, 2, "more", "end to end"),
        Figure("loop.10M.memory", memory, "GB", 4, "less", "most memory of the process"),
    ]


def ten_million() -> tuple[float, float, float]:
    """M instructions a second with Numba and without, and the most memory in GB."""
    chip = hw.target("trn2")
    given = view_of(Buffer(0, "hbm", (128, 512), dtype("float32"), kind="input"))
    program = nki.record(looped, chip, given, 65_000).program
    timeline(nki.record(looped, chip, given, 50).program, chip, fast=True)  # compiled by now
    rates: dict[bool, float] = {}
    for fast in (True, False, True, False):  # the first ones also ask the system for their memory
        fresh, start = replace(program), time.perf_counter()
        found = timeline(fresh, chip, fast=fast)
        busy = float((found.end - found.start).sum())
        rate = len(found) / 1e6 / (time.perf_counter() - start)
        rates[fast] = max(rate, rates.get(fast, 0.0))
        if not busy > 0.0:
            raise SystemExit("nothing ran")
    memory = most_memory() / 1e9
    return rates[True], rates[False], memory


def straight() -> list[Figure]:
    """A million instructions without a loop, never seen before, recorded in a process of its own.

    Memory is that of recording and timing, without what Python and the packages take.
    """
    script = "from bench.speed import million; print(*million())"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True,
                          text=True, cwd=Path(__file__).resolve().parent.parent)  # fmt: skip
    fast, plain, memory = map(float, done.stdout.split())
    return [
        Figure("straight.1M", fast, RATE, 10, "more", "end to end, with Numba"),
        Figure("straight.1M.plain", plain, RATE, 2, "more", "end to end"),
        Figure("straight.1M.memory", memory, "B/instruction", 400, "less", "4 GB for ten million"),
    ]


def million() -> tuple[float, float, float]:
    """M instructions a second with Numba and without, and bytes an instruction."""
    chip = hw.target("trn2")
    given = view_of(Buffer(0, "hbm", (128, 1), dtype("float32"), kind="input"))
    timeline(nki.record(small_instructions, chip, given).program, chip, fast=True)  # compiled
    before = most_memory()
    program = nki.record(small_instructions, chip, given, 333_333).program
    fast = [seconds(lambda: timeline(program, chip, fast=True))]
    memory = most_memory() - before
    fast += [seconds(lambda: timeline(replace(program), chip, fast=True)) for _ in range(2)]
    plain = seconds(lambda: timeline(replace(program), chip, fast=False))
    count = len(program)
    return count / 1e6 / min(fast), count / 1e6 / plain, memory / count


@nki.jit
def unrolled(x, w, turns, width=512):
    """Rows of x through two products and what follows them, every tile its own.

    `width` columns a product: with 512 the Tensor Engine is busy all the time, with 256 now and
    then, so that its current limiter cannot make up its mind.
    """
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    weights = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights, src=w)
    for turn in range(turns):
        rows = slice(turn * 128, turn * 128 + 128)
        a, b, c = (nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf) for _ in range(3))
        nisa.dma_copy(dst=a, src=x[rows, :])
        for half in (slice(0, 256), slice(256, 512)):
            acc = nl.ndarray((128, width), nl.float32, buffer=nl.psum)
            for k in range(0, 512, 128):
                nisa.nc_matmul(acc, weights[:, k : k + 128], a[:, 512 - width : 512])
            e = nl.ndarray((128, 256), x.dtype, buffer=nl.sbuf)
            share = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
            nisa.activation(e, nl.exp, acc[:, 0:256])
            nisa.tensor_reduce(share, nl.add, e, axis=1)
            nisa.reciprocal(share, share)
            nisa.tensor_scalar(b[:, half], e, nl.multiply, share)
        nisa.tensor_tensor(c, b, a, nl.add)
        nisa.dma_copy(dst=out[rows, :], src=c)
    return out


def tiles() -> list[Figure]:
    """A million instructions of a kernel whose loop is unrolled: five engines, tiles made anew.

    Never seen before, recorded in a process of its own, whose memory is that of recording and all
    timing.  The last figure is of one that does not repeat itself in time.
    """
    script = "from bench.speed import million_on_tiles; print(*million_on_tiles())"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True,
                          text=True, cwd=Path(__file__).resolve().parent.parent)  # fmt: skip
    fast, plain, memory, aperiodic, slowest = map(float, done.stdout.split())
    return [
        Figure("tiles.1M", fast, RATE, 10, "more", "end to end, with Numba"),
        Figure("tiles.1M.plain", plain, RATE, 2, "more", "end to end"),
        Figure("tiles.1M.memory", memory, "B/instruction", 400, "less", "4 GB for ten million"),
        Figure("tiles.aperiodic", aperiodic, RATE, 10, "more", "end to end, with Numba"),
        Figure("tiles.aperiodic.plain", slowest, RATE, 2, "more", "end to end"),
    ]


def million_on_tiles() -> tuple[float, float, float, float, float]:
    """Rates with Numba and without, bytes an instruction; both rates for the other width."""
    chip, turns = hw.target("trn2"), 52_631
    given = [view_of(Buffer(n, "hbm", (rows, 512), dtype("bfloat16"), kind="input"))
             for n, rows in enumerate((turns * 128, 128))]  # fmt: skip
    timeline(nki.record(unrolled, chip, *given, 1000).program, chip, fast=True)  # compiled
    before, found = most_memory(), []
    for width in (512, 256):
        program = nki.record(unrolled, chip, *given, turns, width).program
        for fast in (True, False):

            def fresh(program=program, fast=fast) -> float:
                return timeline(replace(program), chip, fast=fast).total_ns

            took = min(seconds(fresh) for _ in range(2 if fast else 1))
            found.append(len(program) / 1e6 / took)
        if width == 512:
            memory = most_memory() - before
            found.append(memory / len(program))
    return tuple(found)


@nki.jit
def irregular(x, w, turns):
    """Rows of x through products and what follows them, never the same steps for long."""
    out, chance = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), random.Random(0)
    weights = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights, src=w)
    for turn in range(turns):
        rows = slice(turn * 128, turn * 128 + 128)
        a = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[rows, :])
        for _ in range(chance.randrange(1, 4)):
            acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            for k in range(0, 128 * chance.randrange(1, 5), 128):
                nisa.nc_matmul(acc, weights[:, k : k + 128], a)
            b = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
            nisa.activation(b, chance.choice((nl.exp, nl.tanh)), acc)
            for _ in range(chance.randrange(3)):
                nisa.tensor_tensor(b, a, b, nl.add)
            a = b
        nisa.dma_copy(dst=out[rows, :], src=a)
    return out


def unlike() -> list[Figure]:
    """A quarter of a million instructions on new tiles of which no stretch comes again."""
    script = "from bench.speed import quarter_of_a_million; print(*quarter_of_a_million())"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True,
                          text=True, cwd=Path(__file__).resolve().parent.parent)  # fmt: skip
    fast, plain = map(float, done.stdout.split())
    return [
        Figure("unlike.250k", fast, RATE, 10, "more", "end to end, with Numba"),
        Figure("unlike.250k.plain", plain, RATE, 2, "more", "end to end"),
    ]


def quarter_of_a_million() -> tuple[float, float]:
    """M instructions a second with Numba and without."""
    chip, turns = hw.target("trn2"), 20_500
    given = [view_of(Buffer(n, "hbm", (rows, 512), dtype("bfloat16"), kind="input"))
             for n, rows in enumerate((turns * 128, 128))]  # fmt: skip
    timeline(nki.record(irregular, chip, *given, 500).program, chip, fast=True)  # compiled
    program = nki.record(irregular, chip, *given, turns).program

    def took(fast: bool) -> float:
        return seconds(lambda: timeline(replace(program), chip, fast=fast).total_ns)

    best = min(took(True) for _ in range(4)), took(False)
    return len(program) / 1e6 / best[0], len(program) / 1e6 / best[1]


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


def fast() -> list[Figure]:
    """Fast numerics of compiled models beside eager bfloat16 on the CPU, on one thread."""
    if importlib.util.find_spec("transformers") is None:
        return []
    import torch
    import transformers

    torch.set_num_threads(1)
    bert = transformers.BertModel(transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
    ))  # fmt: skip
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=4096, hidden_size=512, intermediate_size=1408, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4,
    ))  # fmt: skip
    return [beside_eager("minilm", bert, (8, 128)), beside_eager("llama", llama, (2, 256))]


def beside_eager(name: str, model, shape: tuple[int, int]) -> Figure:
    """One model of transformers, its ids of this shape."""
    import torch

    from opentrn import compiler, runtime
    from opentrn.graph import from_torch

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(input_ids=ids)[0]

    model.config.use_cache = False
    given, held = (torch.randint(0, 4096, shape),), Plain().eval()
    graph = from_torch(held, given, pure=True)
    device = runtime.load(compiler.compile(graph, dtype="bfloat16", numerics="fast"))
    half = held.bfloat16()
    with torch.no_grad():
        eager, ours = medians(lambda: half(*given), lambda: device(*given))
    note = f"{ours * 1e3:.0f} ms beside {eager * 1e3:.0f} ms"
    return Figure(f"fast.{name}", ours / eager, "x eager bfloat16", 2.5, "less", note)


MEASUREMENTS = {
    "matmul": matmul, "overhead": overhead, "timing": timing, "loop": loop,
    "straight": straight, "tiles": tiles, "unlike": unlike, "startup": startup, "fast": fast,
}  # fmt: skip


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
