"""`jit`, `simulate_kernel`, `baremetal`, `benchmark`, `profile`, `trace` of the older API.

There is one way to run: the simulated chip.  Modes that need a device run there too, and latency
is simulated device time.  Source: NKI API reference v2.26.1 (nki).
"""

import sys
from collections.abc import Callable
from typing import Any

from opentrn.base import NotBuiltError, UsageError, declare
from opentrn.nki.beta1 import launch, launch_grid
from opentrn.nki.jit import AnyKernel
from opentrn.nki.refusals import PlainTracebacks
from opentrn.nki.session import Run, chosen_chip
from opentrn.nki.traced import any_traced

declare(
    "beta1.not_run",
    "The latency of a kernel was asked for before it ran.",
    rule="benchmark_result belongs to a call",
    fix="call the benchmarked kernel first",
)
TRACED = declare(
    "beta1.jax_traced",
    "A kernel of the older API was called inside jax.jit, jax.vmap or another function that JAX "
    "traces.",
    rule="kernels of `neuronxcc.nki` run on arrays with values; those of `nki` are traced by JAX",
    fix="write the kernel for `nki`, or call it outside of the traced function",
)


class Kernel(AnyKernel):
    """A kernel that runs when called, on a launch grid: `kernel[4, 2](a, b)`.

    `options` holds what the decorator was given (mode, platform_target, warmup, iters, …).
    """

    def __init__(self, func: Callable, grid: tuple[int, ...] = (1,), **options: Any):
        super().__init__(func, grid, **options)
        self.last: Run | None = None

    def __getitem__(self, grid: Any) -> "Kernel":
        """The same kernel on a launch grid."""
        return Kernel(self.func, launch_grid.sizes(grid), **self.options)

    def _launch(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run on arrays, and remember the run.

        Raises NotBuiltError `beta1.jax_traced` inside what JAX traces."""
        if "jax" in sys.modules and any_traced(args, kwargs):
            raise NotBuiltError(f"{self.__name__} was called on arrays that JAX traces",
                                code=TRACED)  # fmt: skip
        chip = chosen_chip(self.options.get("platform_target"))
        self.last = launch.run(self.func, self.grid, args, kwargs, chip)
        return self.last.outputs

    def launch_ranks(self, sets: list[tuple[tuple, dict]], nodes: int) -> tuple[Run, ...]:
        """Run on as many ranks as there are (positional, named) arguments (`nki.run_ranks`)."""
        chip = chosen_chip(self.options.get("platform_target"))
        return launch.run_ranks(self.func, self.grid, sets, chip, nodes)

    @property
    def benchmark_result(self) -> "BenchmarkResult":
        """Latency of the last call, in simulated device time."""
        if self.last is None:
            raise UsageError(f"{self.__name__} has not run", code="beta1.not_run")
        return BenchmarkResult(self.last)


class BenchmarkResult:
    """`.nc_latency` of a benchmarked kernel."""

    def __init__(self, run: Run):
        self.nc_latency = Latency(run)


class Latency:
    """Device time of a kernel: simulated, so every percentile is the same."""

    def __init__(self, run: Run):
        self._run = run
        self._total_us: float | None = None

    def get_latency_percentile(self, percentile: int) -> float:
        """Microseconds of one execution."""
        if self._total_us is None:
            self._total_us = self._run.timeline().total_ns / 1e3
        return self._total_us


def jit(func: Callable | None = None, mode: str = "auto", **options: Any) -> Any:
    """Make a kernel of a function; usable as `@nki.jit` and `@nki.jit(...)`."""
    if func is None:
        return lambda given: jit(given, mode, **options)
    if isinstance(func, Kernel):
        return Kernel(func.func, func.grid, **{**func.options, "mode": mode, **options})
    return Kernel(func, mode=mode, **options)


def _decorator(mode: str, doc: str) -> Callable:
    def decorate(kernel: Callable | None = None, **options: Any) -> Any:
        return jit(kernel, mode, **options)

    decorate.__name__, decorate.__doc__ = mode, doc
    return decorate


baremetal = _decorator("baremetal", "A kernel that runs on arrays, without a framework.")
benchmark = _decorator("benchmark", "A kernel whose calls measure simulated device time.")
profile = _decorator("profile", "A kernel whose calls can be profiled.")
trace = _decorator("trace", "A kernel, undecorated by a framework.")


def simulate_kernel(kernel: Callable, *args: Any, **kwargs: Any) -> Any:
    """Run a kernel on arrays: outputs come back, written arguments are written."""
    made = kernel if isinstance(kernel, Kernel) else jit(kernel)
    with PlainTracebacks():
        return made(*args, **kwargs)


__all__ = ["Kernel", "baremetal", "benchmark", "jit", "profile", "simulate_kernel", "trace"]
