"""`neuron_dtypes`: NumPy dtypes of the chip's formats and conversion between them.

The packed types (four values in one word) are NumPy records of one field named as the type, so
that an array of them says what it holds; kernels take such arrays as arguments.
"""

from typing import Any

import ml_dtypes
import numpy as np

from opentrn.base import DType, float32, numerics
from opentrn.base import dtype as as_dtype

bfloat16 = np.dtype(ml_dtypes.bfloat16)
float8_e3m4 = np.dtype(ml_dtypes.float8_e3m4)
float8_e4m3 = np.dtype(ml_dtypes.float8_e4m3)
float8_e4m3fn = np.dtype(ml_dtypes.float8_e4m3fn)
float8_e5m2 = np.dtype(ml_dtypes.float8_e5m2)
float8_e8m0fnu = np.dtype(ml_dtypes.float8_e8m0fnu)


def _packed(name: str) -> np.dtype:
    return np.dtype([(name, as_dtype(name).storage)])


float8_e4m3fn_x4 = _packed("float8_e4m3fn_x4")
float8_e5m2_x4 = _packed("float8_e5m2_x4")
float4_e2m1fn_x4 = _packed("float4_e2m1fn_x4")


def _to_numpy(kind: DType) -> np.dtype:
    return _packed(kind.name) if kind.kind == "packed" else kind.storage


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


def finfo(dtype: Any) -> Any:
    """Limits of a floating-point format, as `numpy.finfo` gives them."""
    return ml_dtypes.finfo(_to_numpy(as_dtype(dtype)))


def is_float_type(dtype: Any) -> bool:
    """Whether the dtype holds floating-point values."""
    return as_dtype(dtype).kind in ("float", "packed")


__all__ = [
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
