"""What an optimizer keeps for each parameter, by data type."""

from __future__ import annotations

from dataclasses import dataclass

from opentrn.base import UnknownNameError, declare, nearest

declare(
    "workloads.optimizer",
    "Optimizers are known by name.",
    rule="a name whose bytes for each parameter are listed",
    fix="one of adamw, adamw-bf16, adamw-fp32, lamb, sgd",
)


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Bytes for each parameter: the weight used, its gradient, and `states` (master copy, moments).

    ZeRO (arXiv 1910.02054) divides `states` from level 1 on, `gradient` from 2, `weight` from 3.
    """

    name: str
    weight: int
    gradient: int
    states: int
    meaning: str

    @property
    def total(self) -> int:
        """Bytes for each parameter, nothing divided."""
        return self.weight + self.gradient + self.states


OPTIMIZERS = {
    one.name: one
    for one in (
        Optimizer("adamw", 2, 4, 12, "16-bit weights, float32 gradients, master copy and moments"),
        Optimizer("adamw-bf16", 2, 2, 4, "all in bfloat16, with stochastic rounding"),
        Optimizer("adamw-fp32", 4, 4, 8, "all in float32; no second copy of the weights"),
        Optimizer("lamb", 2, 4, 12, "as adamw"),
        Optimizer("sgd", 2, 4, 8, "16-bit weights, float32 gradients, master copy and momentum"),
    )
}
"""The optimizers, by name."""


def optimizer(name: str | Optimizer) -> Optimizer:
    """The optimizer of that name; UnknownNameError `workloads.optimizer`."""
    if isinstance(name, Optimizer):
        return name
    if name not in OPTIMIZERS:
        close = ", ".join(nearest(name, OPTIMIZERS)) or ", ".join(OPTIMIZERS)
        raise UnknownNameError(
            f"no optimizer is called {name!r}", code="workloads.optimizer", fix=f"try {close}"
        )
    return OPTIMIZERS[name]
