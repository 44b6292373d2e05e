"""A function of JAX or TensorFlow as a program on a simulated NeuronCore: compiled, run, timed."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from opentrn import compiler, hw, nki, runtime
from opentrn.base import DType, UnsupportedError, declare
from opentrn.graph import Graph, straighten

PRECISIONS = {
    "keep": "float32", "float32": "float32", "bfloat16": "bfloat16", "float16": "float16",
}  # fmt: skip
"""What `dtype=` may be, and what floats of 32 bits are then stored as between ops."""

NUMBERS = declare(
    "frameworks.jax_numbers",
    "A program computes with complex numbers, or with integers of less than a byte.",
    rule="NeuronCores have no complex numbers and no integers of less than 8 bits",
    fix="carry real and imaginary parts as two arrays; unpack small integers into int8",
    neuron="NCC_EVRF004",
)


def has_numbers(kind: DType) -> bool:
    """Whether the chip has numbers of a dtype, itself or as 32 bits."""
    return kind.kind != "complex" and kind.bits >= 8


def refuse_numbers(graph: Graph) -> None:
    """Raise UnsupportedError `frameworks.jax_numbers` naming all ops that make complex numbers or
    integers of less than a byte."""
    found: dict[tuple[str, str], list[Any]] = {}
    for value in graph:
        kind = getattr(value, "dtype", None)
        if kind is not None and not has_numbers(kind):
            found.setdefault((value.op, str(kind)), []).append(value)
    if found:
        total = sum(map(len, found.values()))
        rows = [f"{total} of {len(graph)} values have a dtype the chip does not have"]
        rows += [f"  {len(values):4d} × {op}: {kind}" for (op, kind), values in found.items()]
        first = next(iter(found.values()))[0]
        raise UnsupportedError("\n".join(rows), code=NUMBERS, at=first.where)


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

        Raises what `refuse_numbers` and `compiler.compile` raise.
        """
        begin = time.perf_counter()
        refuse_numbers(lowered.graph)
        chip = hw.target(target).name if target else nki.current_chip().name
        graph = straighten(lowered.graph)
        executable = compiler.compile(graph, target=chip, dtype=precision)
        model = runtime.load(executable)
        return cls(lowered, executable, model, time.perf_counter() - begin)

    @property
    def device_seconds(self) -> float:
        """Simulated time of one call on the device."""
        return self.model.time().total_ns * 1e-9

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs of the graph for these inputs, as NumPy arrays."""
        found = self.model(*arrays)
        self.calls += 1
        return list(found) if isinstance(found, tuple) else [found]


__all__ = ["NUMBERS", "PRECISIONS", "Program", "has_numbers", "refuse_numbers"]
