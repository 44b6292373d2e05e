"""Scalar functions on carriers: the house's in float32, NumPy's in float64; integer division."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from opentrn.base import FUNCTIONS

Function = Callable[[np.ndarray], np.ndarray]


def _by_width(name: str, wide: Function) -> Function:
    """The house's float32 function, or `wide` for float64."""
    def function(x: np.ndarray) -> np.ndarray:
        if x.dtype.kind == "c" or x.dtype == np.float64:
            return wide(x)
        return FUNCTIONS[name](x)
    return function


exp = _by_width("exp", np.exp)
log = _by_width("log", np.log)
rsqrt = _by_width("rsqrt", lambda x: 1.0 / np.sqrt(x))
tanh = _by_width("tanh", np.tanh)
logistic = _by_width("sigmoid", lambda x: 0.5 * (1.0 + np.tanh(0.5 * x)))
sin = _by_width("sin", np.sin)
cos = _by_width("cos", np.cos)
erf = _by_width("erf", lambda x: np.vectorize(math.erf, otypes=[np.float64])(x))
gelu = _by_width("gelu", lambda x: 0.5 * x * (1.0 + erf(x / math.sqrt(2.0))))
gelu_tanh = _by_width("gelu_tanh", lambda x: 0.5 * x * (
    1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x))))
silu = _by_width("silu", lambda x: x * logistic(x))
softplus = _by_width("softplus", lambda x: np.logaddexp(x, 0.0))


def divide(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """lhs / rhs; integers drop the fraction, n / 0 has every bit set."""
    if lhs.dtype.kind in "fc":
        return lhs / rhs
    safe = np.where(rhs == 0, 1, rhs).astype(lhs.dtype)
    floored, rest = lhs // safe, lhs % safe
    truncated = floored + ((rest != 0) & ((lhs < 0) != (safe < 0)))
    return np.where(rhs == 0, np.invert(np.zeros_like(lhs)), truncated).astype(lhs.dtype)


def remainder(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """lhs - rhs·trunc(lhs / rhs); an integer's remainder by 0 is the integer itself."""
    if lhs.dtype.kind == "f":
        return np.fmod(lhs, rhs)
    return np.where(rhs == 0, lhs, np.fmod(lhs, np.where(rhs == 0, 1, rhs).astype(lhs.dtype)))


def power(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """lhs to the power rhs; of integers with a negative power, the whole part of the result."""
    if lhs.dtype.kind != "i":
        return np.power(lhs, rhs)
    up = np.power(lhs, np.maximum(rhs, 0))
    odd = np.where(rhs % 2 == 0, 1, lhs)
    down = np.where(lhs == 1, 1, np.where(lhs == -1, odd, 0))
    return np.where(rhs < 0, down, up).astype(lhs.dtype)
