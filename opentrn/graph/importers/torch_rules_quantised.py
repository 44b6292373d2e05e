"""Torch rules for products of 8-bit floats with scales."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from opentrn.base import dtype, float8_e8m0fnu, numerics
from opentrn.graph.build import Builder
from opentrn.graph.importers.torch_rules import refuse, torch_op
from opentrn.graph.ir import Value
from opentrn.graph.ops.define import Type
from opentrn.graph.ops.foreign import Callee


@torch_op("aten::_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, "
          "Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None, "
          "bool use_fast_accum=False) -> Tensor")
def scaled_mm(g: Builder, self: Value, mat2: Value, scale_a: Value, scale_b: Value,
              bias: Value | None = None, scale_result: Value | None = None, out_dtype: Any = None,
              use_fast_accum: bool = False) -> Value:
    """(self · mat2)·scale_a·scale_b + bias: 8-bit floats multiplied, summed and scaled in float32.

    Scales are one number, or one for each row of self and each column of mat2; or those of MX
    blocks, as bytes in the order GPUs read them (SWIZZLE_32_4_4)."""
    if scale_result is not None:
        raise refuse("_scaled_mm with scale_result", g.where)
    if scale_a.dtype == "uint8" and scale_b.dtype == "uint8":
        total = _mx(g, self, mat2, scale_a, scale_b)
        return _finished(g, total, bias, out_dtype or self.dtype)
    total = g.dot_general(self, mat2, lhs_contracting=1, rhs_contracting=0, dtype="float32")
    for scale, lined in ((scale_a, (total.shape[0], 1)), (scale_b, (1, total.shape[1]))):
        if scale.size != 1 and scale.shape != lined:
            raise refuse(f"_scaled_mm with scales {list(scale.shape)} of {scale.dtype}: blocks "
                         "have scales of float8_e8m0fnu", g.where)
        shape = (1, 1) if scale.size == 1 else lined
        total = total * g.broadcast(g.reshape(g.cast(scale, "float32"), shape), total.shape)
    return _finished(g, total, bias, out_dtype or self.dtype)


def _finished(g: Builder, total: Value, bias: Value | None, out_dtype: Any) -> Value:
    if bias is not None:
        total = total + g.broadcast(g.cast(bias, "float32"), total.shape)
    return g.cast(total, out_dtype)


@torch_op("aten::_scaled_mm_v2(Tensor self, Tensor mat2, Tensor[] scale_a, int[] recipe_a, "
          "int[] swizzle_a, Tensor[] scale_b, int[] recipe_b, int[] swizzle_b, Tensor? bias, "
          "ScalarType? out_dtype, int[] contraction_dim=[], bool use_fast_accum=False) -> Tensor")
def scaled_mm_v2(g: Builder, self: Value, mat2: Value, scale_a: list[Value], recipe_a: list[int],
                 swizzle_a: list[int], scale_b: list[Value], recipe_b: list[int],
                 swizzle_b: list[int], bias: Value | None, out_dtype: Any,
                 contraction_dim: Any = (), use_fast_accum: bool = False) -> Value:
    """`_scaled_mm` with recipes (torch.nn.functional.scaled_mm): of tensors, rows, or MX blocks."""
    if [*recipe_a] != [*recipe_b] or [*recipe_a] not in ([0], [1], [BLOCKWISE_32]):
        raise refuse(f"scaled_mm with the recipes {recipe_a} and {recipe_b}: TensorWise, RowWise "
                     "and BlockWise1x32 are built", g.where)
    return scaled_mm(g, self, mat2, scale_a[0], scale_b[0], bias, None, out_dtype)


# ---------------------------------------------------------------------- MX

BLOCK, BLOCKWISE_32 = 32, 3
"""Numbers that share a scale, and PyTorch's number of that recipe."""
ROWS, LINES, GROUPS = 128, 32, 4
"""GPUs read scales in tiles of 128 rows and 4 blocks: row 32·g + i of them lies in line i."""
FP4, PER_BYTE = "float4_e2m1fn", 2


def _mx(g: Builder, x: Value, y: Value, x_scale: Value, y_scale: Value) -> Value:
    """x · y of MX formats in float32: one kernel, for the Tensor Engine scales as it multiplies."""
    formats = [FP4 if v.dtype == "uint8" else str(v.dtype) for v in (x, y)]
    left, right = (g.bitcast_convert(v, dtype="uint8") if v.dtype != "uint8" else v
                   for v in (x, g.transpose(y, (1, 0))))
    inner = [v.shape[1] * (PER_BYTE if f == FP4 else 1)
             for v, f in zip((left, right), formats, strict=True)]
    if inner[0] != inner[1] or inner[0] % BLOCK:
        raise refuse(f"_scaled_mm of MX blocks of {inner[0]} and {inner[1]} numbers", g.where)
    scales = [_rows(g, scale, v.shape[0], inner[0] // BLOCK)
              for scale, v in ((x_scale, left), (y_scale, right))]
    m, n = left.shape[0], right.shape[0]
    operands = left, right, *scales
    callee = Callee(f"matmul_mx.{formats[0]}.{formats[1]}", tuple(v.type for v in operands),
                    (Type((m, n), dtype("float32")),), None, functools.partial(_product, formats),
                    2 * m * n * inner[0])
    return g.get_tuple_element(g.foreign(*operands, callee=callee), index=0)


def _rows(g: Builder, scale: Value, rows: int, blocks: int) -> Value:
    """Scales in the order GPUs read them as [rows, blocks]."""
    tall, wide = -(-rows // ROWS), -(-blocks // GROUPS)
    if scale.size != tall * ROWS * wide * GROUPS:
        raise refuse(f"_scaled_mm with {scale.size} scales of {rows} rows of {blocks} blocks: in "
                     f"tiles of {ROWS} × {GROUPS} they are {tall * ROWS * wide * GROUPS}", g.where)
    tiles = g.reshape(scale, (tall, wide, LINES, ROWS // LINES, GROUPS))
    plain = g.reshape(g.transpose(tiles, (0, 3, 2, 1, 4)), (tall * ROWS, wide * GROUPS))
    return g.slice(plain, starts=(0, 0), limits=(rows, blocks), strides=(1, 1))


def _product(formats: list[str], x: np.ndarray, y: np.ndarray, x_scale: np.ndarray,
             y_scale: np.ndarray) -> tuple[np.ndarray]:
    """What the kernel computes."""
    left, right = (_decoded(v, f).T for v, f in zip((x, y), formats, strict=True))
    scales = (numerics.decode(s, float8_e8m0fnu).T for s in (x_scale, y_scale))
    return (numerics.dot_mx(left, next(scales), right, next(scales)),)


def _decoded(held: np.ndarray, kind: str) -> np.ndarray:
    """Bytes as float32 numbers; of fp4 the low half first."""
    held = held.astype(np.uint8)
    if kind == FP4:
        halves = np.stack([held & 15, held >> 4], axis=-1)
        held = halves.reshape(held.shape[0], PER_BYTE * held.shape[1])
    return numerics.decode(held, dtype(kind))


__all__ = ["scaled_mm", "scaled_mm_v2"]
