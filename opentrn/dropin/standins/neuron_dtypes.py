"""`neuron_dtypes`: NumPy dtypes of the chip's formats and conversion between them.

The packed types (four values in one word) are NumPy records of one field named as the type, so
that an array of them says what it holds; kernels take such arrays as arguments.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from opentrn.base import dtype as as_dtype
from opentrn.base import float32, numerics

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
    Raises DtypeError for an unknown dtype.
    """
    given = np.asarray(array)
    if given.dtype == np.float64:
        given = np.asarray(given, dtype=float32.storage)
    src, dst = as_dtype(given.dtype), as_dtype(dtype)
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
