"""`neuron_dtypes`: NumPy dtypes of the chip's formats and conversion between them.

The packed types (four values in one word) are NumPy records of one field named as the type, so
that an array of them says what it holds; kernels take such arrays as arguments.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from opentrn.base import DType, ShapeError, declare, float32, numerics
from opentrn.base import dtype as as_dtype

bfloat16 = as_dtype("bfloat16").storage
float8_e3m4 = as_dtype("float8_e3m4").storage
float8_e4m3 = as_dtype("float8_e4m3").storage
float8_e4m3fn = as_dtype("float8_e4m3fn").storage
float8_e5m2 = as_dtype("float8_e5m2").storage
float8_e8m0fnu = as_dtype("float8_e8m0fnu").storage


def _packed(name: str) -> np.dtype:
    return np.dtype([(name, as_dtype(name).storage)])


float8_e4m3fn_x4 = _packed("float8_e4m3fn_x4")
float8_e5m2_x4 = _packed("float8_e5m2_x4")
float4_e2m1fn_x4 = _packed("float4_e2m1fn_x4")


declare(
    "standins.static_cast",
    "An array does not fill words of a packed type.",
    rule="four values along the last axis become one word",
    fix="pad the last axis to a multiple of 4",
)

# Elements converted at once: conversion makes up to nine float32 arrays of what it is given.
_BLOCK = 1 << 18


@dataclass(frozen=True)
class Limits:
    """What `numpy.finfo` tells of a floating-point format."""

    bits: int
    max: float
    min: float
    eps: float
    smallest_normal: float
    tiny: float


def static_cast(array: Any, dtype: Any) -> np.ndarray:
    """The array's values in another format, rounded to nearest even.

    To a packed type four values along the last axis become one word; from one, one word four.
    Takes the memory of its result and little more.  Raises ShapeError where the last
    axis does not fill words, DtypeError for an unknown dtype.
    """
    given, dst = np.asarray(array), as_dtype(dtype)
    if as_dtype(given.dtype) == dst and given.dtype != np.float64:
        return given
    if dst.kind == "packed" and (not given.shape or given.shape[-1] % 4):
        raise ShapeError(
            f"static_cast: an array of shape {given.shape} does not fill words of {dst}",
            code="standins.static_cast",
            rule="four values along the last axis become one word",
            fix="pad the last axis to a multiple of 4",
        )
    if given.size <= _BLOCK:
        return _converted(given, dst)
    flat = given.reshape(-1)
    first = _converted(flat[:_BLOCK], dst)
    made = np.empty(given.size * first.size // _BLOCK, first.dtype)
    for start in range(0, given.size, _BLOCK):
        part = _converted(flat[start : start + _BLOCK], dst)
        at = start * first.size // _BLOCK
        made[at : at + part.size] = part
    return made.reshape(*given.shape[:-1], -1)


def _converted(given: np.ndarray, dst: DType) -> np.ndarray:
    """`static_cast` of an array in one piece."""
    if given.dtype == np.float64:
        given = np.asarray(given, dtype=float32.storage)
    src = as_dtype(given.dtype)
    if src == dst:
        return given
    if src.kind == "packed":
        values, src = numerics.unpack_x4(given.view(src.storage), src), float32
    else:
        values = numerics.decode(given, src)
    if dst.kind == "packed":
        words = numerics.pack_x4(numerics.cast(values, src, float32), dst)
        return np.ascontiguousarray(words).view(_packed(dst.name))
    if not dst.on_chip:
        return np.asarray(values, dtype=dst.storage)
    return numerics.encode(numerics.cast(values, src, dst), dst)


def sizeinbytes(dtype: Any) -> int:
    """Bytes of one element (of one packed word for the x4 types)."""
    return as_dtype(dtype).itemsize


def finfo(dtype: Any) -> Limits:
    """Limits of a floating-point format; of its elements for a packed type."""
    kind = as_dtype(dtype)
    kind = kind.element or kind
    normal = kind.smallest_normal
    return Limits(kind.bits, kind.max, kind.min, 2.0**-kind.mantissa, normal, normal)


def is_float_type(dtype: Any) -> bool:
    """Whether the dtype holds floating-point values."""
    return as_dtype(dtype).kind in ("float", "packed")


__all__ = [
    "Limits",
    "bfloat16",
    "finfo",
    "float4_e2m1fn_x4",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e4m3fn_x4",
    "float8_e5m2",
    "float8_e5m2_x4",
    "float8_e8m0fnu",
    "is_float_type",
    "sizeinbytes",
    "static_cast",
]
