"""`jax.jit` on the simulated device, for scripts that set JAX_PLATFORMS=neuron."""

import contextlib
import functools
import importlib
from collections.abc import Iterator

from opentrn.dropin import environment


@contextlib.contextmanager
def on_neuron(target: str | None) -> Iterator[None]:
    """`jax.jit` means `opentrn.frameworks.jax.jit`, and keys are of the kind "rbg", as JAX's plugin
    for Trainium has them.  What is not jitted runs on the CPU.  Both are put back afterwards."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(environment.jax_on_cpu())
        jax = importlib.import_module("jax")
        ours = importlib.import_module("opentrn.frameworks.jax")
        stack.enter_context(ours.as_on_neuron())
        before = jax.jit
        jax.jit = functools.partial(ours.jit_as_jax, target=target or "")
        stack.callback(setattr, jax, "jit", before)
        yield


__all__ = ["on_neuron"]
