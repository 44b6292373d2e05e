"""Stochastic rounding as the Neuron runtime has it: a mode of the device, with a seed of its own.

NEURON_RT_STOCHASTIC_ROUNDING_EN makes every cast of float32 to float16, bfloat16, fp8 or tf32 go up
or down with the probability of its distance; NEURON_RT_STOCHASTIC_ROUNDING_SEED (0 where it is not
set) seeds the generator it draws from, so that a process repeats (Neuron documentation, "Neuron
Rounding Modes" and "PyTorch Neuron environment variables").  Assumed, for nothing says it: the
generator is XORWOW, as that of the engines (see `isa.random`), with one stream for each core.  So
numbers repeat exactly, but are not bit by bit those of the chip.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from opentrn.base import numerics
from opentrn.isa import random

# States of the generator: one word of each is a step, so many of them make large draws quick.
LANES = 4096


class Generator:
    """Random words of one core, from a seed."""

    def __init__(self, seed: int) -> None:
        self.state = random.seeded(seed, LANES, 1)
        self.left = np.empty(0, np.uint32)

    def __call__(self, count: int) -> np.ndarray:
        """The next `count` words, uint32."""
        if count > self.left.size:
            steps = -(-(count - self.left.size) // LANES)
            words, self.state = random.xorwow(self.state, steps)
            self.left = np.concatenate([self.left, words.T.reshape(-1)])
        given, self.left = self.left[:count], self.left[count:]
        return given


_generators: dict[tuple[int, int], Generator] = {}


@contextmanager
def stochastic_rounding(seed: int = 0, core: int = 0, fresh: bool = True) -> Iterator[None]:
    """Inside, models round floats up or down by chance, with the generator of a core and a seed.

    The generator begins anew, or with `fresh` False goes on where it was."""
    key = (core, seed)
    if fresh or key not in _generators:
        _generators[key] = Generator(seed)
    with numerics.stochastic(_generators[key]):
        yield


__all__ = ["Generator", "stochastic_rounding"]
