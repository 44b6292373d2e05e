"""Models of front doors run with the rounding the environment asks for (see `runtime.rounding`)."""

from typing import Any

from opentrn import nki, runtime


def call(model: Any, core: int, *inputs: Any) -> Any:
    """What the model gives for these inputs on a core: rounded by chance where
    NEURON_RT_STOCHASTIC_ROUNDING_EN says so.

    Raises UsageError `nki.rounding`, and what the model raises."""
    seed = nki.told_rounding()
    if seed is None:
        return model(*inputs)
    with runtime.stochastic_rounding(seed, core, fresh=False):
        return model(*inputs)


__all__ = ["call"]
