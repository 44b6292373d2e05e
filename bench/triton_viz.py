"""The NKI interpreters of triton-viz and ours on the example kernels of triton-viz.

    python bench/triton_viz.py PATH     a checkout of Deep-Learning-Profiling-Tools/triton-viz

Needs what triton-viz needs (triton, z3-solver, pyarrow and others).  Each example is run with the
arguments its own demo makes, and with the tracer its demo uses but without the compiler's check
before it (`pre_trace`); the outputs of both must agree.  Its code is used where it lies, never
copied.  Figures are ratios of medians of runs in turn, on one thread: of launches as they come
(ours replays what repeats, see `opentrn.nki.again`; theirs interprets each), and of launches that
are traced anew like the first (`.traced`).
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from bench.speed import Figure, medians, report
from opentrn import dropin, nki
from opentrn.base import Bug
from opentrn.nki import beta1

# examples/nki_beta2; `add` uses the names of NKI before 0.1 (`sbuf.view`).
NEWER = ("matmul", "mlp", "rmsnorm", "rope", "softmax", "tiled_attention")
# examples/nki, of neuronxcc.nki.  The others are not legal there: `rmsnorm` adds an axis to a sum
# that keeps two dimensions, `rope` writes 128 partitions into a tile without `par_dim`, `softmax`
# joins masks by `|`.
OLDER = ("matmul",)
GOAL = 3.0


@dataclass
class Demo:
    """What an example launches: the kernel, its grid and its arguments."""

    kernel: Callable
    grid: tuple[int, ...]
    args: tuple

    def fresh(self) -> tuple:
        """The arguments, arrays copied, so that a kernel may write into them."""
        return tuple(np.array(a) if isinstance(a, np.ndarray) else a for a in self.args)


class Stop(Exception):
    """Ends a demo once it has launched."""


def demo_of(module: Any, viz: Any) -> Demo:
    """The launch of an example's demo, caught where it asks triton-viz to trace the kernel."""
    caught: list[Demo] = []

    def trace(*options: Any, **more: Any) -> Callable:
        class Traced:
            def __init__(self, kernel: Callable) -> None:
                self.kernel = kernel

            def __getitem__(self, grid: tuple) -> Callable:
                def launch(*args: Any, **settings: Any) -> None:
                    caught.append(Demo(self.kernel, tuple(grid), args))
                    raise Stop

                return launch

        return Traced

    known, viz.trace = viz.trace, trace
    try:
        module._run_demo()
    except Stop:
        pass
    finally:
        viz.trace = known
    return caught[0]


def theirs(demo: Demo, viz: Any, frontend: str) -> Callable[[tuple], None]:
    """A run by triton-viz, writing into the arrays it is given."""
    traced = viz.trace("tracer", frontend=frontend)(demo.kernel)
    more = {"pre_trace": False} if frontend == "nki_beta2" else {}
    return lambda args: traced[demo.grid](*args, **more)


def ours(demo: Demo, frontend: str) -> Callable[[tuple], Any]:
    """A run by OpenTrn: what the kernel returned, or the arrays it wrote into."""
    if frontend == "nki":
        made = beta1.jit(demo.kernel, kernel_return=False)[demo.grid]
        return lambda args: beta1.simulate_kernel(made, *args)
    made = nki.jit(demo.kernel)
    return lambda args: nki.run(made, *args).outputs


def compared(folder: str, name: str, viz: Any) -> list[Figure]:
    """One example by both, after their outputs have been compared."""
    module = importlib.import_module(f"examples.{folder}.{name}")
    demo = demo_of(module, viz)
    frontend = "nki" if folder == "nki" else "nki_beta2"
    run, other = ours(demo, frontend), theirs(demo, viz, frontend)
    mine, wanted = demo.fresh(), demo.fresh()
    returned = run(mine)
    other(wanted)
    found = mine if frontend == "nki" else (*mine[: len(mine) - 1], returned)
    arrays = [n for n, a in enumerate(wanted) if isinstance(a, np.ndarray)]
    changed = [n for n in arrays if not np.array_equal(wanted[n], demo.args[n])]
    if frontend != "nki" and not isinstance(returned, tuple):
        found = tuple(returned if n in changed else a for n, a in enumerate(mine))
    for n in changed:
        if not np.allclose(found[n], wanted[n], rtol=1e-4, atol=1e-4):
            raise Bug(f"{folder}.{name}: argument {n} differs from what triton-viz computes")
    args = demo.fresh()
    name = f"{folder}.{name}"
    figures = [measured(name, lambda: other(args), lambda: run(args))]
    with nki.tracing():
        return [*figures, measured(f"{name}.traced", lambda: other(args), lambda: run(args))]


def measured(name: str, theirs: Callable, ours: Callable) -> Figure:
    """How many times as fast ours is."""
    they, we = medians(theirs, ours, rounds=25)
    note = f"{1e3 * they:.1f} ms there, {1e3 * we:.1f} ms here"
    return Figure(name, they / we, "times as fast", GOAL, "more", note)


def main(path: str) -> int:
    """Measure every example."""
    sys.path.insert(0, path)
    with dropin.install("trn2"):
        viz = importlib.import_module("triton_viz")
        names = [("nki_beta2", n) for n in NEWER] + [("nki", n) for n in OLDER]
        measures = {f"{f}.{n}": lambda f=f, n=n: compared(f, n, viz) for f, n in names}
        return report(measures, __doc__)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv.pop(1)))
