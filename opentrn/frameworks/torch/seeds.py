"""Random numbers of compiled code: the Vector Engine's generators, seeded by inputs of the program.

Each draw of a graph becomes a kernel that seeds the generators from an input of its own and fills a
tensor.  Seeds come from PyTorch's generators at each call, so `torch.manual_seed` and saved states
repeat them, a new seed compiles nothing, and numbers drawn in the forward are what its backward
reads.  The bits are those of the simulated engine (see `isa.random`), not those of the host.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from opentrn import nki
from opentrn.base import DType, dtype
from opentrn.graph import Builder, Callee, Graph, Traced, Type, Value, inline
from opentrn.nki import language as nl

# Columns of a tile of random numbers: 8 KiB of a partition as float32.
COLUMNS = 2048
HIGHEST = 2**31
FLOAT_BITS = 24
"""Bits of a uniform float32 number in [0, 1)."""

_generators: dict[int, Any] = {}


def generator(index: int) -> Any:
    """The generator of one device, which gives the seeds."""
    import torch

    if index not in _generators:
        _generators[index] = torch.Generator()
        _generators[index].manual_seed(torch.initial_seed())
    return _generators[index]


def seeded(traced: Traced, chip: str) -> tuple[Traced, int]:
    """A traced graph whose draws are made on the device, and how many seeds it takes instead.

    The seeds, int32[1] each, follow the graph's other inputs."""
    count = len(traced.draws)
    if not count:
        return traced, 0
    graph = traced.graph
    own = graph.inputs[: len(graph.inputs) - count]
    seeds: list[Value] = []

    def seed() -> Value:
        seeds.append(Builder().input(f"seed{len(seeds)}", (1,), dtype("int32")))
        return seeds[-1]

    made = [
        _drawn(value, draw.function, seed, chip)
        for draw, value in zip(traced.draws, graph.inputs[len(own) :], strict=True)
    ]
    outputs = inline(graph, [*own, *made])
    whole = Graph([*own, *seeds], outputs, graph.constants, name=graph.name,
                  output_names=graph.output_names)  # fmt: skip
    return replace(traced, graph=whole, draws=()), len(seeds)


def _drawn(value: Value, function: str, seed: Callable[[], Value], chip: str) -> Value:
    """Uniform numbers in [0, 1), or normal ones, in place of an input."""
    g = Builder(value.where)
    u = _uniform(g, value, seed(), chip)
    if function == "rand":
        return g.cast(_on_grid(g, u, value.dtype), value.dtype)
    # Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958.
    angle = _uniform(g, value, seed(), chip) * (2 * math.pi)
    radius = g.sqrt(g.log(1.0 - u) * -2.0)
    return g.cast(radius * g.cosine(angle), value.dtype)


def _on_grid(g: Builder, u: Value, kind: DType) -> Value:
    """Numbers in [0, 1) with as many bits as `kind` keeps: rounded to it some would be 1."""
    digits = kind.mantissa + 1
    if digits >= FLOAT_BITS:
        return u
    return g.floor(u * 2.0**digits) * 2.0**-digits


def _uniform(g: Builder, value: Value, seed: Value, chip: str) -> Value:
    gives = (Type(value.shape or (1,), dtype("float32")),)
    kernel = uniform(gives[0].shape)
    callee = Callee("uniform", (seed.type,), gives, kernel,
                    functools.partial(_run, kernel, chip), value.size)  # fmt: skip
    made = g.get_tuple_element(g.foreign(seed, callee=callee), index=0)
    return made if value.shape else g.reshape(made, ())


def _run(kernel: Any, chip: str, seed: np.ndarray) -> tuple[np.ndarray]:
    """What the kernel computes."""
    with nki.use_target(chip):
        return (nki.simulate(kernel)(seed),)


@functools.cache
def uniform(shape: tuple[int, ...]) -> Any:
    """The kernel that fills a float32 tensor of this shape, uniform in [0, 1), from a seed."""

    @nki.jit
    def uniform(seed):
        rows = nl.tile_size.pmax
        held = nl.load(seed.reshape((1, 1)))
        nl.random_seed(held)
        out = nl.ndarray(shape, nl.float32, nl.shared_hbm)
        flat, size = out.reshape((math.prod(shape),)), math.prod(shape)
        for first in range(0, size, rows * COLUMNS):
            _fill(flat, first, min(size, first + rows * COLUMNS), rows)
        return out

    return uniform


def _fill(flat: Any, first: int, last: int, rows: int) -> None:
    """Fill a stretch of memory: whole rows of partitions, then what is left in one."""
    columns = (last - first) // rows
    if columns:
        tile = nl.rand((rows, columns), nl.float32)
        part = flat[first : first + rows * columns].reshape((rows, columns))
        nl.store(part, tile)
    done = first + rows * columns
    if done < last:
        nl.store(flat[done:last].reshape((1, last - done)), nl.rand((1, last - done), nl.float32))


def fresh(count: int, home: int | None = None) -> list[Any]:
    """Seeds from the generator of the device `home`, or else PyTorch's own; [1] int32 each."""
    import torch

    if not count:
        return []
    source = None if home is None else generator(home)
    made = torch.randint(0, HIGHEST, (count, 1), generator=source, dtype=torch.int32)
    return list(made)


__all__ = ["fresh", "generator", "seeded", "uniform"]
