"""How arrays of each dtype are held while a graph is evaluated, and how they enter and leave.

A carrier is float32 for every float of at most 32 bits, float64 for float64, the integer type
itself for integers, and NumPy bool for bool.  All rounding is `base.numerics`' doing.
"""

from __future__ import annotations

import numpy as np

from opentrn.base import DType, numerics


def work(dtype: DType) -> np.dtype:
    """The NumPy dtype that holds values of `dtype` while evaluating."""
    if dtype.kind == "bool":
        return np.dtype(np.bool_)
    if dtype == "float64":
        return np.dtype(np.float64)
    return np.dtype(dtype.carrier)


def storage(dtype: DType) -> np.dtype:
    """The NumPy dtype of constants, inputs and outputs."""
    return np.dtype(np.bool_) if dtype.kind == "bool" else np.dtype(dtype.storage)


def enter(array: np.ndarray, dtype: DType) -> np.ndarray:
    """A stored array as its carrier; no copy where the two are the same."""
    if array.dtype == work(dtype):
        return array
    return np.asarray(numerics.decode(array, dtype), dtype=work(dtype))


def leave(carrier: np.ndarray, dtype: DType) -> np.ndarray:
    """A carrier as a stored array; no copy where the two are the same."""
    if work(dtype) == storage(dtype):
        return np.asarray(carrier)
    return numerics.encode(np.ascontiguousarray(carrier), dtype).reshape(carrier.shape)


def settle(value: np.ndarray, dtype: DType) -> np.ndarray:
    """What an op computed, rounded to the dtype of its result."""
    if dtype.kind == "float" and dtype not in ("float32", "float64"):
        return numerics.round_to(np.asarray(value, dtype=np.float32), dtype)
    return np.asarray(value, dtype=work(dtype))


def convert(value: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """Carrier to carrier with StableHLO's meaning.

    Float to integer drops the fraction and saturates (NaN becomes 0); integers wrap; any number
    becomes True unless it is zero.  (Engines round to nearest instead: see `numerics.cast`.)"""
    if source == target:
        return value
    if target.kind == "bool":
        return value != 0
    if source.kind == "float" and target.kind in ("int", "uint"):
        return _truncate(value, target)
    return settle(value, target) if target.kind == "float" else value.astype(work(target))


def _truncate(value: np.ndarray, target: DType) -> np.ndarray:
    """Round towards zero, saturating at the integer's ends."""
    limits = np.iinfo(work(target))
    whole = np.trunc(np.nan_to_num(value, nan=0.0).astype(np.float64))
    low, high = float(limits.min), float(limits.max)
    inside = np.where(whole >= high, 0, np.maximum(whole, low)).astype(work(target))
    return np.where(whole >= high, np.asarray(limits.max, dtype=work(target)), inside)
