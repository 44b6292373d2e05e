"""`torch_neuronx`: the ways a script makes a torch function of a kernel."""

from collections.abc import Callable
from typing import Any

from opentrn import nki
from opentrn.dropin.standins.absent import refuse


def nki_jit(kernel: Callable | None = None, **options: Any) -> Any:
    """A kernel that takes and returns torch tensors; with options only, a decorator."""
    return nki.jit(kernel, **options)


def wrap_nki(kernel: Callable) -> Any:
    """A kernel that takes and returns torch tensors."""
    return nki.jit(kernel)


def nki_op(name: str, mutates_args: Any = ()) -> Callable[[Callable], Callable]:
    """A decorator for a torch function that calls kernels; the function runs as it is."""
    return lambda function: function


def __getattr__(name: str) -> Any:
    """Say what to do about what is not here."""
    fix = "use opentrn.compiler.compile(model, args)" if name == "trace" else ""
    refuse("torch_neuronx", name, fix)


__all__ = ["nki_jit", "nki_op", "wrap_nki"]
