"""What claims of features are tried with: each function does the thing, here and now.

They stand beside the commands because they use every room; `cost`, which checks the claims, may
not. Each returns (whether it works, what was done and what came of it).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator

import numpy as np

Tried = tuple[bool, str]


def _near(found, wanted, within: float) -> Tried:
    """Whether two arrays agree within a share of the largest number, and how far they are apart."""
    apart = float(np.abs(np.asarray(found, float) - wanted).max() / np.abs(wanted).max())
    return apart <= within, f"off by {apart:.1e} of the largest, at most {within:g}"


def precision() -> Tried:
    """One product in each of the four kinds of numbers, beside float64."""
    from opentrn import nki
    from opentrn.base import dtype
    from opentrn.nki import kernels

    rng = np.random.default_rng(0)
    x, w = (rng.uniform(-1, 1, (64, 64)) for _ in range(2))
    told, fine = [], True
    # Each operand is rounded once: half a unit in the last place of either, times the depth's root.
    for name, within in (("float32", 1e-5), ("float16", 2e-3), ("bfloat16", 2e-2),
                         ("float8_e4m3", 2e-1)):  # fmt: skip
        given = [one.astype(np.float32).astype(dtype(name).storage) for one in (x, w)]
        found = nki.simulate(kernels.linear)(*given, out_dtype=dtype("float32"))
        good, how = _near(found, x @ w, within)
        told.append(f"{name} {how}")
        fine &= good
    return fine, "products: " + "; ".join(told)


def torch_model() -> Tried:
    """A PyTorch module becomes an executable, runs, and is profiled."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return False, "PyTorch is not installed here"
    from opentrn import compiler, profiler, runtime
    from opentrn.base import seconds_text

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    x = torch.randn(4, 64)
    executable = compiler.compile(module, (x,), target="trn2", dtype="float32")
    model = runtime.load(executable)
    good, how = _near(model(x.numpy()), module(x).detach().numpy(), 1e-5)
    taken = profiler.profile(model.time()).summary["total_time"]
    return good, f"two linear layers compiled, run ({how}) and profiled ({seconds_text(taken)})"


def tensorflow_model() -> Tried:
    """A TensorFlow function becomes an executable and runs."""
    if importlib.util.find_spec("tensorflow") is None:
        return False, "TensorFlow is not installed here"
    with _without_chatter():
        return _traced()


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Nothing on stderr for a while: TensorFlow's C++ writes there whatever its settings say."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _traced() -> Tried:
    tf = importlib.import_module("tensorflow")
    from opentrn.frameworks.tensorflow import trace

    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 64), (64, 8)))
    weights = tf.Variable(w)
    traced = trace(tf.function(lambda given: tf.nn.relu(given @ weights)), x, target="trn2")
    wanted = np.maximum(x.astype(float) @ w.astype(float), 0)
    good, how = _near(traced(x).numpy(), wanted, 1e-5)
    return good, f"a tf.function traced, compiled and run ({how})"


def split_model() -> Tried:
    """A model that fits no single chip is split over instances with nothing but its name given."""
    from opentrn.plan import plan

    best = plan("llama-3.1-70b", "trn2.48xlarge", 4).best
    return best.split.devices > 1 and best.step.fits, f"llama-3.1-70b on 4 x trn2.48xlarge: {best}"


def split_compilation() -> Tried:
    """Whether the compiler divides a program over chips."""
    from opentrn.compiler import PIPELINE

    stages = [getattr(stage, "name", "") for stage in PIPELINE]
    if "shard" not in stages:
        return False, f"the compiler has no stage that divides a program ({', '.join(stages)})"
    return True, "the compiler's stage shard"


def managed_jobs() -> Tried:
    """Whether training jobs start through SageMaker's interface."""
    try:
        jobs = importlib.import_module("opentrn.jobs")
    except ModuleNotFoundError:
        return False, "there is no opentrn.jobs"
    there = hasattr(jobs, "TrainingJob")
    return there, "opentrn.jobs.TrainingJob" if there else "opentrn.jobs has no TrainingJob"


def attention_kernel() -> Tried:
    """An attention kernel beside float64, and its length beside the one call it stands for."""
    from opentrn import nki
    from opentrn.nki import kernels

    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 128, 64)).astype(np.float32) for _ in range(3))
    found = nki.simulate(kernels.attention)(q, k, v)
    scores = q.astype(float) @ k.astype(float).swapaxes(-1, -2) / 8.0
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    good, how = _near(found, weights / weights.sum(-1, keepdims=True) @ v.astype(float), 1e-4)
    text = inspect.getsource(importlib.import_module("opentrn.nki.kernels.attention"))
    lines = [line for line in map(str.strip, text.splitlines()) if line and line[0] != "#"]
    return good, f"attention of 128 queries: {how}; {len(lines)} lines for one call of a framework"


OURS = ("trn1.32xlarge", "trn2.48xlarge")
THEIRS = ("p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge")
TRAINED = ("llama-3.1-8b", "llama-3.1-70b")


def training_savings() -> Tried:
    """Dollars of the same training on ours and on GPUs, by the best plan on 64 chips of each."""
    from opentrn import hw
    from opentrn.plan import plan

    found: list[tuple[float, str]] = []
    for name in TRAINED:
        run = {"tokens": 1e12, "batch": 512, "sequence": 4096, "keep": 1}
        hours = {m: plan(name, m, 64 // _chips(m), **run).best.hours * (64 // _chips(m))
                 for m in (*OURS, *THEIRS)}  # fmt: skip
        for basis in hw.BASES:
            cost = {m: hours[m] * p.hourly for m in hours if (p := _priced(m, basis))}
            found += [(1 - cost[ours] / cost[gpu], f"{name}, {ours} for {gpu}, {basis}")
                      for ours in OURS for gpu in THEIRS if {ours, gpu} <= set(cost)]  # fmt: skip
    (low, worst), (high, best) = min(found), max(found)
    enough = sum(saved >= 0.5 for saved, _ in found)
    return True, (
        f"by the best plans of {' and '.join(TRAINED)} on 64 chips, sequences of 4,096 tokens, "
        f"512 a step: saves {low:.0%} ({worst}) to {high:.0%} ({best}); {enough} of {len(found)} "
        "reach 50%"
    )


def _chips(machine: str) -> int:
    from opentrn.cost import platform

    return platform(machine).chips


def _priced(machine: str, basis: str):
    """The newest price of a machine on a basis, or None."""
    from opentrn import hw

    listed = (hw.prices if machine in hw.instances() else hw.accelerator_prices)(machine)
    return max((p for p in listed if p.basis == basis), key=lambda p: p.date, default=None)


FEATURES: dict[str, Callable[[], Tried]] = {
    "precision": precision, "torch": torch_model, "tensorflow": tensorflow_model,
    "split": split_model, "split-compilation": split_compilation, "jobs": managed_jobs,
    "kernel": attention_kernel, "training-savings": training_savings,
}  # fmt: skip
"""The names that the file of claims uses."""
