"""Torch rules for products of 8-bit floats with scales."""

from __future__ import annotations

from typing import Any

from opentrn.graph.build import Builder
from opentrn.graph.importers.torch_rules import refuse, torch_op
from opentrn.graph.ir import Value


@torch_op("aten::_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, "
          "Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None, "
          "bool use_fast_accum=False) -> Tensor")
def scaled_mm(g: Builder, self: Value, mat2: Value, scale_a: Value, scale_b: Value,
              bias: Value | None = None, scale_result: Value | None = None, out_dtype: Any = None,
              use_fast_accum: bool = False) -> Value:
    """(self · mat2)·scale_a·scale_b + bias: 8-bit floats multiplied, summed and scaled in float32.

    Scales are one number, or one for each row of self and each column of mat2."""
    if scale_result is not None:
        raise refuse("_scaled_mm with scale_result", g.where)
    total = g.dot_general(self, mat2, lhs_contracting=1, rhs_contracting=0, dtype="float32")
    for scale, lined in ((scale_a, (total.shape[0], 1)), (scale_b, (1, total.shape[1]))):
        if scale.size != 1 and scale.shape != lined:
            raise refuse(f"_scaled_mm with scales {list(scale.shape)} of blocks: the MX formats "
                         "have kernels of nki only", g.where)
        shape = (1, 1) if scale.size == 1 else lined
        total = total * g.broadcast(g.reshape(g.cast(scale, "float32"), shape), total.shape)
    if bias is not None:
        total = total + g.broadcast(g.cast(bias, "float32"), total.shape)
    return g.cast(total, out_dtype or self.dtype)


__all__ = ["scaled_mm"]
