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
    if work(dtype) == storage(dtype) or dtype.kind == "complex":
        return np.asarray(carrier)
    return numerics.encode(np.ascontiguousarray(carrier), dtype).reshape(carrier.shape)


def settle(value: np.ndarray, dtype: DType) -> np.ndarray:
    """What an op computed, rounded to the dtype of its result."""
    if dtype.kind == "float" and dtype not in ("float32", "float64"):
        return numerics.round_to(_narrowed(np.asarray(value)), dtype)
    if dtype.kind in ("int", "uint") and dtype.bits < 8:
        return _wrapped(np.asarray(value, dtype=work(dtype)), dtype)
    return np.asarray(value, dtype=work(dtype))


def convert(value: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """Carrier to carrier with StableHLO's meaning.

    Float to integer drops the fraction and saturates (NaN becomes 0); integers wrap; any number
    becomes True unless it is zero; a complex number loses its imaginary part on the way to a real
    one.  (Engines round to nearest instead: see `numerics.cast`.)"""
    if source == target:
        return value
    if source.kind == "complex" and target.kind != "complex":
        return convert(value.real, source.element, target)
    if target.kind == "bool":
        return value != 0
    if source.kind == "float" and target.kind in ("int", "uint"):
        return _truncate(value, target)
    return settle(value.astype(work(target)) if target.kind != "float" else value, target)


def _truncate(value: np.ndarray, target: DType) -> np.ndarray:
    """Round towards zero, saturating at the integer's ends."""
    whole = np.trunc(np.nan_to_num(value, nan=0.0).astype(np.float64))
    low, high = float(target.min), float(target.max)
    inside = np.where(whole >= high, 0, np.maximum(whole, low)).astype(work(target))
    return np.where(whole >= high, np.asarray(target.max, dtype=work(target)), inside)


def _wrapped(value: np.ndarray, dtype: DType) -> np.ndarray:
    """Integers held in a byte, reduced to the bits their dtype has."""
    mask = value.dtype.type((1 << dtype.bits) - 1)
    low = value & mask
    if dtype.kind == "uint":
        return low
    sign = value.dtype.type(1 << dtype.bits - 1)
    return (low ^ sign) - sign


def _narrowed(value: np.ndarray) -> np.ndarray:
    """Numbers as float32 on their way to a narrower float.

    What float32 does not hold is rounded to the neighbour with an odd last bit, so that the next
    rounding, to fewer digits, sees on which side of a tie the number lay (Boldo and Melquiond,
    "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd")."""
    if value.dtype.kind == "f" and value.dtype.itemsize <= 4 or value.dtype.kind == "b":
        return value.astype(np.float32, copy=False)
    if value.dtype.kind in "iu" and value.dtype.itemsize <= 2:
        return value.astype(np.float32)
    wide = value.astype(np.float64)
    near = wide.astype(np.float32)
    held = near.astype(np.float64)
    even = (near.view(np.uint32) & 1) == 0
    odd = (held != wide) & even & np.isfinite(near)
    towards = np.where(wide > held, np.float32(np.inf), np.float32(-np.inf))
    return np.where(odd, np.nextafter(near, towards), near)
