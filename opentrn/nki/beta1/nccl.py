"""`neuronxcc.nki.nccl`: collectives between ranks, on tensors of the older API."""

from typing import Any

from opentrn.base import NotBuiltError, declare

declare(
    "beta1.collectives",
    "A collective of the older API was called.",
    rule="kernels of the older API run on one rank; collectives need several",
    fix="write the kernel with nki.collectives and run it with nki.simulate(kernel, ranks=N)",
)


# Imported under its older name it is a package: `.collectives` lies below it.
__path__: list[str] = []


def _refused(name: str) -> Any:
    def function(*args: Any, **kwargs: Any) -> None:
        raise NotBuiltError(f"nccl.{name} is not built", code="beta1.collectives")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Refused: `{name}` of the older API (NotBuiltError `beta1.collectives`)."
    return function


all_gather = _refused("all_gather")
all_reduce = _refused("all_reduce")
all_to_all = _refused("all_to_all")
collective_permute = _refused("collective_permute")
collective_permute_implicit = _refused("collective_permute_implicit")
reduce_scatter = _refused("reduce_scatter")

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective_permute",
    "collective_permute_implicit",
    "reduce_scatter",
]
