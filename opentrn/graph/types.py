"""Data types only graphs know, beside the machine's: complex numbers, integers of 2 and 4 bits.

No engine has them, so `base.dtype` refuses their names; `graph_dtype` finds both kinds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opentrn.base import DType, dtype


class GraphDType(DType):
    """A data type without a place on the chip; what is known about it is what a `DType` knows.

    `kind` is "complex" (`element` is the dtype of its real part), "int" or "uint"."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return graph_dtype, (self.name,)


def _complex(element: str) -> GraphDType:
    part = dtype(element)
    name = f"complex{2 * part.bits}"
    return GraphDType(name, kind="complex", bits=2 * part.bits, storage_name=name,
                      carrier=np.dtype(name), max=part.max, min=part.min,
                      smallest_normal=part.smallest_normal, mantissa=part.mantissa,
                      exponent=part.exponent, has_inf=True, has_nan=True, on_chip=False,
                      element=part, narrow=None)


def _small(bits: int, signed: bool) -> GraphDType:
    """An integer of less than a byte, held in a whole one."""
    held = dtype("int8" if signed else "uint8")
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return GraphDType(f"{'' if signed else 'u'}int{bits}", kind=held.kind, bits=bits,
                      storage_name=str(held), carrier=held.carrier, max=high, min=low,
                      smallest_normal=0, mantissa=0, exponent=0, has_inf=False, has_nan=False,
                      on_chip=False, element=None, narrow=None)


COMPLEX64, COMPLEX128 = _complex("float32"), _complex("float64")
SMALL_INTS = tuple(_small(bits, signed) for bits in (2, 4) for signed in (True, False))

_BY_NAME = {str(each): each for each in (COMPLEX64, COMPLEX128, *SMALL_INTS)}


def graph_dtype(x: Any) -> DType:
    """The DType that `x` names, as `base.dtype` does, or one of those only graphs know.

    Raises DtypeError `base.dtype`."""
    if isinstance(x, DType):
        return x
    name = x if isinstance(x, str) else getattr(x, "name", None) or getattr(x, "__name__", "")
    found = _BY_NAME.get(name)
    return found if found is not None else dtype(x)


def complex_of(kind: DType) -> DType:
    """The complex type whose parts are float32 or float64."""
    return COMPLEX128 if kind.bits == 64 else COMPLEX64
