"""`torch_neuronx` as scripts import it: kernels as torch functions, and tracing ahead of time."""

from collections.abc import Callable, Iterable
from typing import Any

from opentrn import nki
from opentrn.base import NotBuiltError, declare
from opentrn.frameworks.torch import NkiOp, analyze, load, save, trace, wrap_nki
from opentrn.frameworks.torch import nki_op as _nki_op

ABSENT = declare(
    "frameworks.neuronx",
    "A script asked torch_neuronx for something that is not built.",
    rule="torch_neuronx has nki_jit, nki_op, wrap_nki, trace, save, load and analyze here",
    fix="leave the call out, or compile the model with torch.compile(backend='neuron')",
)


def nki_jit(kernel: Callable | None = None, **options: Any) -> Any:
    """A kernel that takes and returns torch tensors; with options only, a decorator."""
    return nki.jit(kernel, **options)


def nki_op(name: str, mutates_args: Iterable[str] = ()) -> Callable[[Callable], NkiOp]:
    """A decorator: a function of tensors that calls kernels becomes the torch op `name`."""
    return _nki_op(name, mutates_args)


def __getattr__(name: str) -> Any:
    """Say what to do about what is not here."""
    if name.startswith("_"):
        raise AttributeError(f"module 'torch_neuronx' has no attribute {name!r}")
    raise NotBuiltError(f"torch_neuronx.{name} is not built", code=ABSENT)


__all__ = ["analyze", "load", "nki_jit", "nki_op", "save", "trace", "wrap_nki"]
