"""Optimizer steps as functions: parameters, gradients and state in, new parameters and state out.

Formulas are those of torch.optim's documentation.  What changes from step to step (the learning
rate, bias corrections) comes in as numbers on the device, so that one program serves all steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentrn.base import UnsupportedError, declare

OPTIMIZER = declare(
    "frameworks.optimizer",
    "The optimizer, or one of its settings, has no functional form here.",
    rule="a train step takes torch.optim.SGD, Adam and AdamW, without dampening, amsgrad, maximize",
    fix="use one of these, or torch.compile the forward and let the optimizer run eagerly",
)


@dataclass(frozen=True)
class Rule:
    """How an optimizer changes one parameter.

    `state` names its state tensors; `numbers(group, step)` are the numbers that change from step
    to step; `update(group, numbers, p, grad, *state)` returns (new p, new state…).
    """

    state: Callable[[dict], tuple[str, ...]]
    numbers: Callable[[dict, int], tuple[float, ...]]
    update: Callable[..., tuple]


def _sgd_state(group: dict) -> tuple[str, ...]:
    return ("momentum_buffer",) if group["momentum"] else ()


def _sgd(group: dict, numbers: Any, p: Any, grad: Any, *state: Any) -> tuple:
    """v ← momentum·v + g; p ← p - lr·v, where g = grad + decay·p (Nesterov: g + momentum·v)."""
    (rate,) = numbers
    if group["weight_decay"]:
        grad = grad + group["weight_decay"] * p
    if not state:
        return (p - rate * grad,)
    moved = group["momentum"] * state[0] + grad
    step = grad + group["momentum"] * moved if group["nesterov"] else moved
    return p - rate * step, moved


def _adam_numbers(group: dict, step: int) -> tuple[float, ...]:
    first, second = group["betas"]
    return (
        float(group["lr"]),
        float(group["lr"]) / (1 - first**step),
        1 / math.sqrt(1 - second**step),
    )


def _adam(group: dict, numbers: Any, p: Any, grad: Any, mean: Any, square: Any) -> tuple:
    """m ← β₁m + (1-β₁)g, v ← β₂v + (1-β₂)g²; p ← p - lr·m̂/(√v̂ + ε)."""
    import torch

    rate, corrected, root = numbers
    first, second = group["betas"]
    if group["decoupled_weight_decay"]:
        p = p * (1 - rate * group["weight_decay"])
    elif group["weight_decay"]:
        grad = grad + group["weight_decay"] * p
    mean = first * mean + (1 - first) * grad
    square = second * square + (1 - second) * grad * grad
    return p - corrected * mean / (torch.sqrt(square) * root + group["eps"]), mean, square


SGD = Rule(_sgd_state, lambda group, step: (float(group["lr"]),), _sgd)
ADAM = Rule(lambda group: ("exp_avg", "exp_avg_sq"), _adam_numbers, _adam)


def rule_of(optimizer: Any) -> Rule:
    """The functional form of a torch optimizer; UnsupportedError `frameworks.optimizer`."""
    import torch

    rules = {torch.optim.SGD: SGD, torch.optim.Adam: ADAM, torch.optim.AdamW: ADAM}
    found = rules.get(type(optimizer))
    if found is None:
        raise UnsupportedError(f"a train step with {type(optimizer).__name__}", code=OPTIMIZER)
    for group in optimizer.param_groups:
        for setting in ("dampening", "amsgrad", "maximize"):
            if group.get(setting):
                name = type(optimizer).__name__
                raise UnsupportedError(f"{name} with {setting}={group[setting]}", code=OPTIMIZER)
        # torch before 2.8 tells Adam from AdamW by its class only
        group.setdefault("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW))
    return found


__all__ = ["Rule", "rule_of"]
