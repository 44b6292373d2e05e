"""`neuronxcc.nki.isa.constants` and `neuronxcc.nki.language.constants`: enumerations and sizes."""

from typing import Any

from opentrn.base import dtype as as_dtype
from opentrn.isa import dge_mode, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd


def sizeinbytes(kind: Any) -> int:
    """Bytes of one element of a dtype."""
    return as_dtype(kind).itemsize


__all__ = [
    "dge_mode",
    "engine",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
    "sizeinbytes",
]
