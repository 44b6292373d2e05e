"""Whole kernels beside the same mathematics in plain NumPy, and the memory a launch needs.

    python bench/against_numpy.py            every measurement, as a table
    python bench/against_numpy.py softmax    those whose name contains a word

Each figure is a ratio of medians, measured in turn in one run on one thread.  The NumPy side is
float32 throughout; kernels of bfloat16 inputs round as the chip does, which NumPy does not.
"""

import math
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ml_dtypes
import numpy as np

from bench.speed import Figure, example_kernels, medians, report
from opentrn import dropin, nki
from opentrn.base import Bug

GOAL = 3.0
GB = 1 << 30


def compared(name: str, kernel, plain, given, tolerance: float, note: str) -> Figure:
    """Time of a launch over that of `plain`; the results must agree first."""
    wanted, found = plain(*given), nki.run(kernel, *given).outputs
    error = np.abs(np.asarray(found, np.float64) - wanted).max() / np.abs(wanted).max()
    if not error <= tolerance:
        raise Bug(f"{name}: the kernel differs from NumPy by {error:.1e} of the largest value")
    with nki.tracing():  # as at the first launch
        ours, theirs = medians(lambda: nki.run(kernel, *given), lambda: plain(*given))
    said = f"{note}; {1e3 * ours:.0f} ms, NumPy {1e3 * theirs:.0f} ms"
    return Figure(name, ours / theirs, "x NumPy's time", GOAL, "less", said)


def kernels_of(module: str):
    """A module of bench/kernels, imported as a script would be."""
    with dropin.install("trn2"):
        return __import__(f"bench.kernels.{module}", fromlist=[module])


def numpy_softmax(x):
    """Softmax along rows."""
    x = x.astype(np.float32)
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def numpy_rmsnorm(x, gain):
    """RMSNorm along rows."""
    x = x.astype(np.float32)
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(1e-6)) * gain


def numpy_attention(q, k, v):
    """Softmax attention of one head."""
    q, k, v = (each.astype(np.float32) for each in (q, k, v))
    scores = q @ k.T * np.float32(1 / math.sqrt(q.shape[1]))
    return numpy_softmax(scores) @ v


def numpy_scan(delta, u, A, B, C):
    """Mamba's state-space layer: every channel and state at once, one step after another."""
    inputs = delta * u
    state = np.zeros(A.shape, np.float32)
    out = np.empty_like(delta)
    for t in range(delta.shape[1]):
        state *= np.exp(delta[:, t, None] * A)
        state += inputs[:, t, None] * B[:, t]
        out[:, t] = state @ C[:, t]
    return out


def random(*shape: int, kind=np.float32, seed: int = 0) -> np.ndarray:
    """Normally distributed values."""
    return np.random.default_rng(seed).normal(size=shape).astype(kind)


def softmax() -> list[Figure]:
    """Softmax of 4096 rows of 2048."""
    kernel, bf16 = kernels_of("rows").softmax, ml_dtypes.bfloat16
    wide, narrow = (random(4096, 2048),), (random(4096, 2048, kind=bf16),)
    return [
        compared("softmax.float32", kernel, numpy_softmax, wide, 1e-5, "4096x2048"),
        compared("softmax.bfloat16", kernel, numpy_softmax, narrow, 8e-3, "4096x2048"),
    ]


def rmsnorm() -> list[Figure]:
    """RMSNorm of 4096 rows of 2048."""
    kernel, bf16 = kernels_of("rows").rmsnorm, ml_dtypes.bfloat16
    wide = (random(4096, 2048), random(1, 2048, seed=1))
    narrow = (random(4096, 2048, kind=bf16), random(1, 2048, kind=bf16, seed=1))
    return [
        compared("rmsnorm.float32", kernel, numpy_rmsnorm, wide, 1e-5, "4096x2048"),
        compared("rmsnorm.bfloat16", kernel, numpy_rmsnorm, narrow, 8e-3, "4096x2048"),
    ]


def attention() -> list[Figure]:
    """Attention of one head over 2048 positions."""
    kernel, bf16 = example_kernels().attention, ml_dtypes.bfloat16
    wide = tuple(random(2048, 128, seed=n) for n in range(3))
    narrow = tuple(each.astype(bf16) for each in wide)
    return [
        compared("attention.float32", kernel, numpy_attention, wide, 1e-4, "2048x128"),
        compared("attention.bfloat16", kernel, numpy_attention, narrow, 2e-2, "2048x128"),
    ]


def scan() -> list[Figure]:
    """Mamba's state-space layer, 512 channels and 16 states over 2048 steps.

    Before the measurement enough is scanned for the compiled recurrence to be loaded.
    """
    channels, states, length = 512, 16, 2048
    given = (
        np.abs(random(channels, length)) * np.float32(0.1),
        random(channels, length, seed=1),
        -np.abs(random(channels, states, seed=2)),
        random(states, length, seed=3),
        random(states, length, seed=4),
    )
    kernel = kernels_of("mamba").spreading
    for _ in range(8):
        nki.run(kernel, *given)
    note = f"{channels} channels, {states} states, {length} steps"
    return [compared("mamba.scan", kernel, numpy_scan, given, 1e-4, note)]


def launch_of_a_gigabyte() -> None:
    """Softmax of one gigabyte; prints the peak memory over that of before, and bytes of both."""
    import resource

    kernel = kernels_of("rows").softmax
    nki.run(kernel, random(128, 64))
    x = np.ones((GB // 4 // 2048, 2048), np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out = nki.run(kernel, x).outputs
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scale = 1 if sys.platform == "darwin" else 1024
    print((after - before) * scale + x.nbytes, x.nbytes + out.nbytes)


def memory() -> list[Figure]:
    """Peak memory of a launch on 1 GiB of input, in a process of its own, inputs included."""
    code = "from bench.against_numpy import launch_of_a_gigabyte as run; run()"
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=root)
    used, arrays = map(int, done.stdout.split())
    note = f"{used / GB:.2f} GiB for {arrays / GB:.2f} GiB of inputs and outputs"
    return [Figure("memory.softmax", used / arrays, "x its arrays", 2.5, "less", note)]


MEASUREMENTS = {
    "softmax": softmax,
    "rmsnorm": rmsnorm,
    "attention": attention,
    "scan": scan,
    "memory": memory,
}

if __name__ == "__main__":
    sys.exit(report(MEASUREMENTS, __doc__))
