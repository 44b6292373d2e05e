"""JAX on a simulated Trainium: `jit(f)` compiles what `jax.jit(f)` would, for a NeuronCore."""

from opentrn.frameworks.jax.jit import Jitted, Program, jit, jit_as_jax
from opentrn.frameworks.jax.lower import (
    Lowered,
    as_on_neuron,
    from_jax,
    lower,
)
from opentrn.frameworks.judge import analyze, refusing

__all__ = [
    "Jitted",
    "Lowered",
    "Program",
    "analyze",
    "as_on_neuron",
    "from_jax",
    "jit",
    "jit_as_jax",
    "lower",
    "refusing",
]
