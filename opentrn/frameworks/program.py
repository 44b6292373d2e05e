"""A function of JAX or TensorFlow as a program on a simulated NeuronCore: compiled, run, timed."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from opentrn import compiler, hw, nki, runtime
from opentrn.frameworks import rounding
from opentrn.frameworks.judge import refusing, warn_of_narrowed
from opentrn.graph import straighten


@dataclass(eq=False)
class Program:
    """A function compiled for one set of shapes and dtypes.

    `lowered` holds its graph and what the framework knows of its arguments and results; `model` is
    the program on its device (`model.time()`, `model.memory`); `executable` can be saved; `calls`
    counts how often it ran.
    """

    lowered: Any
    executable: Any
    model: Any
    compile_seconds: float
    calls: int = 0

    @classmethod
    def of(cls, lowered: Any, target: str, precision: str) -> Self:
        """Compiled for a NeuronCore of `target` ("": the one in force), loops of known length
        written out.

        Warns as `frameworks.judge.warn_of_narrowed` does, and raises as `refusing` there does.
        """
        begin = time.perf_counter()
        chip = hw.target(target).name if target else nki.current_chip().name
        graph = straighten(lowered.graph)
        with refusing(graph, chip, precision):
            executable = compiler.compile(graph, target=chip, dtype=precision)
        warn_of_narrowed(graph)
        model = runtime.load(executable)
        return cls(lowered, executable, model, time.perf_counter() - begin)

    @property
    def device_seconds(self) -> float:
        """Simulated time of one call on the device."""
        return self.model.time().total_ns * 1e-9

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs of the graph for these inputs, as NumPy arrays."""
        found = rounding.call(self.model, 0, *arrays)
        self.calls += 1
        return list(found) if isinstance(found, tuple) else [found]


__all__ = ["Program"]
