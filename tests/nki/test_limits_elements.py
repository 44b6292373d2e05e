"""Limits of element-wise and reducing instructions, as the API reference states them."""

import pytest

from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from tests.nki.limits import Cases, hbm, raw, tile

CASES = Cases()
f32 = nl.float32
bf16 = nl.bfloat16
i32 = nl.int32
u32 = nl.uint32
i8 = nl.int8
u8 = nl.uint8
i16 = nl.int16
T3 = "trn3"
V = nisa.engine.vector
S = nisa.engine.scalar
G = nisa.engine.gpsimd
RC = nisa.reduce_cmd


# tensor_copy


@CASES.refused("tensor_copy", "same partitions", "tensor_copy.src")
def _():
    nisa.tensor_copy(raw(64, 8), tile(128, 8))


@CASES.refused("tensor_copy", "same elements per partition", "tensor_copy.src")
def _():
    nisa.tensor_copy(raw(128, 4), tile(128, 8))


@CASES.legal("tensor_copy", "shapes may differ, count alike")
def _():
    nisa.tensor_copy(raw(128, 2, 4), tile(128, 8))


@CASES.refused("tensor_copy", "gpsimd cannot access PSUM", "tensor_copy.rules")
def _():
    nisa.tensor_copy(raw(128, 4), tile(128, 4, psum=True), engine=nisa.engine.gpsimd)


@CASES.refused("tensor_copy", "not on the Tensor Engine", "tensor_copy.engine")
def _():
    nisa.tensor_copy(raw(128, 4), tile(128, 4), engine=nisa.engine.tensor)


@CASES.refused("tensor_copy", "not from HBM", "tensor_copy.src")
def _():
    nisa.tensor_copy(raw(128, 4), hbm(128, 4))


# memset


@CASES.refused("memset", "x4 only 0", "memset.rules", on=T3)
def _():
    nisa.memset(raw(128, 4, dtype=nl.float8_e4m3fn_x4), 1)


@CASES.legal("memset", "x4 0", on=T3)
def _():
    nisa.memset(raw(128, 4, dtype=nl.float8_e4m3fn_x4), 0)


@CASES.refused("memset", "not on the Scalar Engine", "memset.engine")
def _():
    nisa.memset(raw(128, 4), 0, engine=nisa.engine.scalar)


@CASES.refused("memset", "gpsimd not PSUM", "memset.rules")
def _():
    nisa.memset(raw(128, 4, psum=True), 0, engine=nisa.engine.gpsimd)


# tensor_copy_predicated


@CASES.refused(
    "tensor_copy_predicated", "src and predicate not both PSUM", "tensor_copy_predicated.rules"
)
def _():
    nisa.tensor_copy_predicated(
        tile(128, 4), tile(128, 4, psum=True), tile(128, 4, dtype=u8, psum=True)
    )


@CASES.refused(
    "tensor_copy_predicated", "predicate uint8/16/32", "tensor_copy_predicated.predicate.dtype"
)
def _():
    nisa.tensor_copy_predicated(tile(128, 4), tile(128, 4), tile(128, 4, dtype=f32))


@CASES.refused(
    "tensor_copy_predicated", "predicate not int8", "tensor_copy_predicated.predicate.dtype"
)
def _():
    nisa.tensor_copy_predicated(tile(128, 4), tile(128, 4), tile(128, 4, dtype=i8))


@CASES.legal("tensor_copy_predicated", "uint32 predicate")
def _():
    nisa.tensor_copy_predicated(tile(128, 4), tile(128, 4), tile(128, 4, dtype=u32))


@CASES.refused("tensor_copy_predicated", "src and dst one dtype", "tensor_copy_predicated.rules")
def _():
    nisa.tensor_copy_predicated(tile(128, 4, dtype=bf16), tile(128, 4), tile(128, 4, dtype=u8))


@CASES.refused("tensor_copy_predicated", "same partitions", "tensor_copy_predicated.predicate")
def _():
    nisa.tensor_copy_predicated(tile(128, 4), tile(128, 4), tile(64, 4, dtype=u8))


@CASES.legal("tensor_copy_predicated", "scalar src")
def _():
    nisa.tensor_copy_predicated(tile(128, 4), 3.0, tile(128, 4, dtype=u8))


# tensor_tensor


@CASES.refused("tensor_tensor", "both in PSUM", "tensor_tensor.rules")
def _():
    nisa.tensor_tensor(raw(128, 4), tile(128, 4, psum=True), tile(128, 4, psum=True), nl.add)


@CASES.legal("tensor_tensor", "one in PSUM")
def _():
    nisa.tensor_tensor(raw(128, 4), tile(128, 4), tile(128, 4, psum=True), nl.add)


@CASES.refused("tensor_tensor", "power not in PSUM", "tensor_tensor.rules")
def _():
    nisa.tensor_tensor(raw(128, 4), tile(128, 4), tile(128, 4, psum=True), nl.power)


@CASES.legal("tensor_tensor", "power on gpsimd")
def _():
    nisa.tensor_tensor(raw(128, 4), tile(128, 4), tile(128, 4), nl.power)


@CASES.refused("tensor_tensor", "power not on Vector", "tensor_tensor.rules")
def _():
    nisa.tensor_tensor(raw(128, 4), tile(128, 4), tile(128, 4), nl.power, engine=V)


@CASES.refused("tensor_tensor", "not on Scalar", "tensor_tensor.engine")
def _():
    nisa.tensor_tensor(raw(128, 4), tile(128, 4), tile(128, 4), nl.add, engine=S)


@CASES.refused("tensor_tensor", "bitvec on floats", "tensor_tensor.rules")
def _():
    nisa.tensor_tensor(raw(128, 4), tile(128, 4), tile(128, 4), nl.bitwise_and)


@CASES.refused("tensor_tensor", "unary op", "tensor_tensor.rules")
def _():
    nisa.tensor_tensor(raw(128, 4), tile(128, 4), tile(128, 4), nl.rsqrt)


@CASES.refused("tensor_tensor", "same partitions", "tensor_tensor.data2")
def _():
    nisa.tensor_tensor(raw(128, 4), tile(128, 4), tile(64, 4), nl.add)


@CASES.refused("tensor_tensor", "same elements", "tensor_tensor.data2")
def _():
    nisa.tensor_tensor(raw(128, 4), tile(128, 4), tile(128, 8), nl.add)


@CASES.refused("tensor_tensor", "int32 on gpsimd PSUM explicit", "tensor_tensor.rules")
def _():
    nisa.tensor_tensor(
        raw(128, 4, dtype=i32),
        tile(128, 4, dtype=i32),
        tile(128, 4, dtype=i32, psum=True),
        nl.add,
        engine=G,
    )


@CASES.refused("tensor_tensor", "indirect from v4", "tensor_tensor.data1")
def _():
    i = tile(128, 1, dtype=u32, fill=0)
    nisa.tensor_tensor(raw(128, 4), tile(128, 4).indirect(i), tile(128, 4), nl.add)


@CASES.refused("tensor_tensor", "data2 not indirect", "tensor_tensor.data2", on=T3)
def _():
    i = tile(128, 1, dtype=u32, fill=0)
    nisa.tensor_tensor(raw(128, 4), tile(128, 4), tile(128, 4).indirect(i), nl.add)


# tensor_scalar


@CASES.refused("tensor_scalar", "op1 None when unused", "tensor_scalar.rules")
def _():
    nisa.tensor_scalar(raw(128, 4), tile(128, 4), nl.add, 1.0, operand1=2.0)


@CASES.refused("tensor_scalar", "bitvec and arithmetic mixed", "tensor_scalar.rules")
def _():
    nisa.tensor_scalar(
        raw(128, 4, dtype=i32), tile(128, 4, dtype=i32), nl.bitwise_and, 3, op1=nl.add, operand1=1.0
    )


@CASES.refused("tensor_scalar", "bitvec on Vector only", "tensor_scalar.rules")
def _():
    nisa.tensor_scalar(raw(128, 4, dtype=i32), tile(128, 4, dtype=i32), nl.bitwise_and, 3, engine=G)


@CASES.refused("tensor_scalar", "scalar engine: multiply+add only", "tensor_scalar.rules")
def _():
    nisa.tensor_scalar(
        raw(128, 4), tile(128, 4), nl.add, 1.0, op1=nl.multiply, operand1=2.0, engine=S
    )


@CASES.refused("tensor_scalar", "scalar engine: no subtract", "tensor_scalar.rules")
def _():
    nisa.tensor_scalar(raw(128, 4), tile(128, 4), nl.subtract, 1.0, engine=S)


@CASES.legal("tensor_scalar", "scalar engine multiply, add on trn2")
def _():
    nisa.tensor_scalar(
        raw(128, 4), tile(128, 4), nl.multiply, 2.0, op1=nl.add, operand1=1.0, engine=S
    )


@CASES.refused("tensor_scalar", "gpsimd only rsqrt", "tensor_scalar.rules")
def _():
    nisa.tensor_scalar(raw(128, 4), tile(128, 4), nl.add, 1.0, engine=G)


@CASES.legal("tensor_scalar", "gpsimd rsqrt")
def _():
    nisa.tensor_scalar(raw(128, 4), tile(128, 4), nl.rsqrt, None, engine=G)


@CASES.refused("tensor_scalar", "operand0 float32", "tensor_scalar.rules")
def _():
    nisa.tensor_scalar(raw(128, 4), tile(128, 4), nl.add, tile(128, 1, dtype=bf16))


@CASES.refused("tensor_scalar", "operand0 (P, 1)", "tensor_scalar.operand0")
def _():
    nisa.tensor_scalar(raw(128, 4), tile(128, 4), nl.add, tile(128, 2))


@CASES.refused("tensor_scalar", "operand0 same P", "tensor_scalar.operand0")
def _():
    nisa.tensor_scalar(raw(128, 4), tile(128, 4), nl.add, tile(64, 1))


@CASES.refused("tensor_scalar", "unary operand not 0", "tensor_scalar.operand0")
def _():
    nisa.tensor_scalar(raw(128, 4), tile(128, 4), nl.abs, 3.0)


@CASES.legal("tensor_scalar", "unary operand 0")
def _():
    nisa.tensor_scalar(raw(128, 4), tile(128, 4), nl.abs, 0)


# tensor_reduce


@CASES.refused("tensor_reduce", "axis 0", "tensor_reduce.data")
def _():
    nisa.tensor_reduce(raw(1, 8), nl.add, tile(128, 8), 0)


@CASES.refused("tensor_reduce", "axes last contiguous", "tensor_reduce.rules")
def _():
    nisa.tensor_reduce(raw(128, 8), nl.add, tile(128, 4, 8), (1,))


@CASES.legal("tensor_reduce", "axes (2,)")
def _():
    nisa.tensor_reduce(raw(128, 4), nl.add, tile(128, 4, 8), (2,))


@CASES.refused("tensor_reduce", "dst size", "tensor_reduce.rules")
def _():
    nisa.tensor_reduce(raw(128, 2), nl.add, tile(128, 8), 1)


@CASES.refused("tensor_reduce", "negate with bitvec", "tensor_reduce.rules")
def _():
    nisa.tensor_reduce(
        raw(128, 1, dtype=i32), nl.bitwise_and, tile(128, 8, dtype=i32), 1, negate=True
    )


@CASES.refused("tensor_reduce", "bitvec floats", "tensor_reduce.rules")
def _():
    nisa.tensor_reduce(raw(128, 1), nl.bitwise_or, tile(128, 8), 1)


@CASES.refused("tensor_reduce", "op is_equal no reduction", "tensor_reduce.rules")
def _():
    nisa.tensor_reduce(raw(128, 1), nl.rsqrt, tile(128, 8), 1)


# tensor_partition_reduce


@CASES.legal("tensor_partition_reduce", "add")
def _():
    nisa.tensor_partition_reduce(raw(1, 8), nl.add, tile(128, 8))


@CASES.refused("tensor_partition_reduce", "multiply not", "tensor_partition_reduce.rules")
def _():
    nisa.tensor_partition_reduce(raw(1, 8), nl.multiply, tile(128, 8))


@CASES.refused("tensor_partition_reduce", "PSUM", "tensor_partition_reduce.data")
def _():
    nisa.tensor_partition_reduce(raw(1, 8), nl.add, tile(128, 8, psum=True))


# tensor_scalar_cumulative


@CASES.refused("tensor_scalar_cumulative", "op0 bitvec", "tensor_scalar_cumulative.rules")
def _():
    nisa.tensor_scalar_cumulative(
        raw(128, 8, dtype=i16), tile(128, 8, dtype=i16), nl.bitwise_and, nl.add, 1
    )


@CASES.refused("tensor_scalar_cumulative", "op1 limited", "tensor_scalar_cumulative.rules")
def _():
    nisa.tensor_scalar_cumulative(raw(128, 8), tile(128, 8), nl.add, nl.divide, 1.0)


@CASES.refused("tensor_scalar_cumulative", "int32 src", "tensor_scalar_cumulative.src.dtype")
def _():
    nisa.tensor_scalar_cumulative(raw(128, 8), tile(128, 8, dtype=i32), nl.add, nl.add, 1.0)


@CASES.refused("tensor_scalar_cumulative", "uint32 dst", "tensor_scalar_cumulative.dst.dtype")
def _():
    nisa.tensor_scalar_cumulative(raw(128, 8, dtype=u32), tile(128, 8), nl.add, nl.add, 1.0)


@CASES.refused(
    "tensor_scalar_cumulative", "imm1 without load_reduce", "tensor_scalar_cumulative.rules"
)
def _():
    nisa.tensor_scalar_cumulative(raw(128, 8), tile(128, 8), nl.add, nl.add, 1.0, 2.0)


@CASES.refused(
    "tensor_scalar_cumulative", "load_reduce needs imm1", "tensor_scalar_cumulative.rules"
)
def _():
    nisa.tensor_scalar_cumulative(
        raw(128, 8), tile(128, 8), nl.add, nl.add, 1.0, reduce_cmd=nisa.reduce_cmd.load_reduce
    )


@CASES.refused(
    "tensor_scalar_cumulative", "imm0 tile float32", "tensor_scalar_cumulative.imm0.dtype"
)
def _():
    nisa.tensor_scalar_cumulative(
        raw(128, 8), tile(128, 8), nl.add, nl.add, tile(128, 1, dtype=bf16)
    )


# scalar_tensor_tensor


@CASES.refused("scalar_tensor_tensor", "bitvec", "scalar_tensor_tensor.rules")
def _():
    nisa.scalar_tensor_tensor(
        raw(128, 8, dtype=i32),
        tile(128, 8, dtype=i32),
        nl.bitwise_and,
        1,
        nl.add,
        tile(128, 8, dtype=i32),
    )


@CASES.refused("scalar_tensor_tensor", "both PSUM", "scalar_tensor_tensor.rules")
def _():
    nisa.scalar_tensor_tensor(
        raw(128, 8), tile(128, 8, psum=True), nl.add, 1.0, nl.add, tile(128, 8, psum=True)
    )


@CASES.refused("scalar_tensor_tensor", "operand0 (P,1)", "scalar_tensor_tensor.operand0")
def _():
    nisa.scalar_tensor_tensor(raw(128, 8), tile(128, 8), nl.add, tile(128, 8), nl.add, tile(128, 8))


@CASES.refused("scalar_tensor_tensor", "operand1 scalar", "scalar_tensor_tensor.operand1")
def _():
    nisa.scalar_tensor_tensor(raw(128, 8), tile(128, 8), nl.add, 1.0, nl.add, 2.0)


# tensor_scalar_reduce


@CASES.refused("tensor_scalar_reduce", "reduce_op", "tensor_scalar_reduce.rules")
def _():
    nisa.tensor_scalar_reduce(raw(128, 8), tile(128, 8), nl.add, 1.0, nl.subtract, raw(128, 1))


@CASES.refused("tensor_scalar_reduce", "bitvec", "tensor_scalar_reduce.rules")
def _():
    nisa.tensor_scalar_reduce(
        raw(128, 8, dtype=i32), tile(128, 8, dtype=i32), nl.bitwise_and, 1, nl.add, raw(128, 1)
    )


@CASES.refused("tensor_scalar_reduce", "load without init", "tensor_scalar_reduce.rules")
def _():
    nisa.tensor_scalar_reduce(
        raw(128, 8), tile(128, 8), nl.add, 1.0, nl.add, raw(128, 1), reduce_cmd=RC.load_reduce
    )


@CASES.refused("tensor_scalar_reduce", "init without load", "tensor_scalar_reduce.rules")
def _():
    nisa.tensor_scalar_reduce(
        raw(128, 8), tile(128, 8), nl.add, 1.0, nl.add, raw(128, 1), reduce_init=1.0
    )


@CASES.refused("tensor_scalar_reduce", "reverse0 not supported", "tensor_scalar_reduce.rules")
def _():
    nisa.tensor_scalar_reduce(
        raw(128, 8), tile(128, 8), nl.subtract, 1.0, nl.add, raw(128, 1), reverse0=True
    )


@CASES.refused("tensor_scalar_reduce", "idle", "tensor_scalar_reduce.rules")
def _():
    nisa.tensor_scalar_reduce(
        raw(128, 8), tile(128, 8), nl.add, 1.0, nl.add, raw(128, 1), reduce_cmd=RC.idle
    )


# reciprocal


@CASES.refused("reciprocal", "count", "reciprocal.data")
def _():
    nisa.reciprocal(raw(128, 4), tile(128, 8))


# scan


@CASES.refused("tensor_tensor_scan", "both psum", "tensor_tensor_scan.rules")
def _():
    nisa.tensor_tensor_scan(
        raw(128, 8), tile(128, 8, psum=True), tile(128, 8, psum=True), 0.0, nl.multiply, nl.add
    )


@CASES.refused("tensor_tensor_scan", "bitvec", "tensor_tensor_scan.rules")
def _():
    nisa.tensor_tensor_scan(
        raw(128, 8, dtype=i32),
        tile(128, 8, dtype=i32),
        tile(128, 8, dtype=i32),
        0.0,
        nl.bitwise_and,
        nl.add,
    )


@CASES.refused("tensor_tensor_scan", "initial (P,1)", "tensor_tensor_scan.initial")
def _():
    nisa.tensor_tensor_scan(
        raw(128, 8), tile(128, 8), tile(128, 8), tile(128, 2), nl.multiply, nl.add
    )


@CASES.refused("tensor_tensor_scan", "sizes", "tensor_tensor_scan.data1")
def _():
    nisa.tensor_tensor_scan(raw(128, 8), tile(128, 8), tile(128, 4), 0.0, nl.multiply, nl.add)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_documented_limit(case):
    case.check()
