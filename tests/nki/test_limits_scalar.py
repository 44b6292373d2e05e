"""Limits of activations, patterns and selections, as the API reference states them."""

import pytest

from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from tests.nki.limits import Cases, raw, tile

CASES = Cases()
f32 = nl.float32
bf16 = nl.bfloat16
i32 = nl.int32
u32 = nl.uint32
u8 = nl.uint8
T3 = "trn3"
RC = nisa.reduce_cmd


# activation


@CASES.refused("activation", "reduce_op add only", "activation.rules")
def _():
    nisa.activation(
        raw(128, 8),
        nl.exp,
        tile(128, 8),
        reduce_op=nl.maximum,
        reduce_res=raw(128, 1),
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


@CASES.refused("activation", "scale float32", "activation.scale.dtype")
def _():
    nisa.activation(raw(128, 8), nl.exp, tile(128, 8), scale=tile(128, 1, dtype=bf16))


@CASES.refused("activation", "bias not tfloat32", "activation.bias.dtype")
def _():
    nisa.activation(raw(128, 8), nl.exp, tile(128, 8), bias=tile(128, 1, dtype=nl.tfloat32))


@CASES.legal("activation", "bias bf16")
def _():
    nisa.activation(raw(128, 8), nl.exp, tile(128, 8), bias=tile(128, 1, dtype=bf16))


@CASES.refused("activation", "scalar bias on v2", "activation.rules", on="trn1")
def _():
    nisa.activation(raw(128, 8), nl.exp, tile(128, 8), bias=1.0)


@CASES.legal("activation", "scalar bias on v3")
def _():
    nisa.activation(raw(128, 8), nl.exp, tile(128, 8), bias=1.0)


@CASES.refused("activation", "bias (N,1)", "activation.bias")
def _():
    nisa.activation(raw(128, 8), nl.exp, tile(128, 8), bias=tile(128, 8))


@CASES.refused("activation", "bias partitions", "activation.bias")
def _():
    nisa.activation(raw(128, 8), nl.exp, tile(128, 8), bias=tile(64, 1))


@CASES.refused("activation", "size mismatch", "activation.data")
def _():
    nisa.activation(raw(128, 4), nl.exp, tile(128, 8))


@CASES.refused("activation", "op not an activation", "isa.unknown_operator")
def _():
    nisa.activation(raw(128, 8), nl.divide, tile(128, 8))


@CASES.refused("activation", "reduce_res (P,1)", "activation.reduce_res")
def _():
    nisa.activation(
        raw(128, 8),
        nl.exp,
        tile(128, 8),
        reduce_op=nl.add,
        reduce_res=raw(128, 2),
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


@CASES.refused("activation", "load_reduce not listed", "activation.rules")
def _():
    nisa.activation(
        raw(128, 8),
        nl.exp,
        tile(128, 8),
        reduce_op=nl.add,
        reduce_res=raw(128, 1),
        reduce_cmd=nisa.reduce_cmd.load_reduce,
    )


@CASES.refused("activation_reduce", "reduce_op add on v2", "activation_reduce.rules", on="trn1")
def _():
    nisa.activation_reduce(raw(128, 8), nl.exp, tile(128, 8), nl.maximum, raw(128, 1))


# activate2


def a2(op0=nl.multiply, op1=nl.add, i0=1.0, i1=0.0, **kw):
    nisa.activate2(raw(128, 8), nl.exp, tile(128, 8), i0, i1, op0, op1, **kw)


@CASES.refused("activate2", "v4 only", "activate2.generation")
def _():
    a2()


@CASES.legal("activate2", "multiply, add", on=T3)
def _():
    a2()


@CASES.legal("activate2", "the six pairs", on=T3)
def _():
    for p in (
        (nl.multiply, nl.add),
        (nl.multiply, nl.subtract),
        (nl.multiply, nl.bypass),
        (nl.add, nl.bypass),
        (nl.subtract, nl.bypass),
        (nl.bypass, nl.bypass),
    ):
        a2(*p)


@CASES.refused("activate2", "pair not listed (add, multiply)", "activate2.rules", on=T3)
def _():
    a2(nl.add, nl.multiply)


@CASES.refused("activate2", "op1 requires op0", "activate2.rules", on=T3)
def _():
    a2(nl.bypass, nl.add)


@CASES.refused("activate2", "reverse0 requires op0", "activate2.rules", on=T3)
def _():
    a2(nl.bypass, nl.bypass, reverse0=True)


@CASES.refused("activate2", "reverse1 requires op1", "activate2.rules", on=T3)
def _():
    a2(nl.multiply, nl.bypass, reverse1=True)


@CASES.refused("activate2", "imm dtypes alike", "activate2.rules", on=T3)
def _():
    a2(i0=tile(128, 1), i1=tile(128, 1, dtype=bf16))


@CASES.legal("activate2", "reduce max", on=T3)
def _():
    a2(reduce_op=nl.maximum, reduce_res=raw(128, 1), reduce_cmd=nisa.reduce_cmd.reset_reduce)


@CASES.refused("activate2", "reduce multiply", "activate2.rules", on=T3)
def _():
    a2(reduce_op=nl.multiply, reduce_res=raw(128, 1), reduce_cmd=nisa.reduce_cmd.reset_reduce)


# exponential


@CASES.refused("exponential", "v4", "exponential.generation")
def _():
    nisa.exponential(raw(128, 8), tile(128, 8))


@CASES.legal("exponential", "v4", on=T3)
def _():
    nisa.exponential(raw(128, 8), tile(128, 8))


@CASES.refused("exponential", "reduce_init without load", "exponential.reduce_init", on=T3)
def _():
    nisa.exponential(
        raw(128, 8),
        tile(128, 8),
        reduce_res=raw(128, 1),
        reduce_cmd=RC.reset_reduce,
        reduce_init=2.0,
    )


@CASES.refused("exponential", "max_value fp32", "exponential.max_value.dtype", on=T3)
def _():
    nisa.exponential(raw(128, 8), tile(128, 8), max_value=tile(128, 1, dtype=bf16))


@CASES.refused("exponential", "dst uint32", "exponential.dst.dtype", on=T3)
def _():
    nisa.exponential(raw(128, 8, dtype=u32), tile(128, 8))


@CASES.refused("exponential", "reduce_res int", "exponential.reduce_res.dtype", on=T3)
def _():
    nisa.exponential(
        raw(128, 8), tile(128, 8), reduce_res=raw(128, 1, dtype=i32), reduce_cmd=RC.reset_reduce
    )


@CASES.refused("exponential", "reset not supported", "exponential.rules", on=T3)
def _():
    nisa.exponential(raw(128, 8), tile(128, 8), reduce_cmd=RC.reset)


@CASES.refused("exponential", "5-D", "exponential.rules", on=T3)
def _():
    nisa.exponential(raw(128, 2, 2, 2, 2), tile(128, 2, 2, 2, 2))


# bn


@CASES.refused("bn_stats", "512", "bn_stats.F")
def _():
    nisa.bn_stats(raw(128, 6), tile(128, 513))


@CASES.refused("bn_stats", "6 out", "bn_stats.dst")
def _():
    nisa.bn_stats(raw(128, 8), tile(128, 512))


@CASES.refused("bn_aggr", "modulo 3", "bn_aggr.F")
def _():
    nisa.bn_aggr(raw(128, 2), tile(128, 7))


@CASES.refused("bn_aggr", "2 out", "bn_aggr.dst")
def _():
    nisa.bn_aggr(raw(128, 3), tile(128, 6))


# range_select


def rs(target=None, td=f32, bd=f32, op0=nl.greater_equal, op1=nl.less, res=None, b=None, **kw):
    nisa.range_select(
        raw(128, 64),
        tile(128, 64, dtype=td),
        op0,
        op1,
        b if b is not None else tile(128, 1, dtype=bd),
        tile(128, 1, dtype=bd),
        reduce_res=res,
        **kw,
    )


@CASES.refused("range_select", "v3", "range_select.generation", on="trn1")
def _():
    rs(res=raw(128, 1))


@CASES.legal("range_select", "v3")
def _():
    rs(res=raw(128, 1))


@CASES.refused("range_select", "fp data", "range_select.on_true_tile.dtype")
def _():
    rs(td=i32)


@CASES.refused("range_select", "bounds fp32", "range_select.bound0.dtype")
def _():
    rs(bd=bf16)


@CASES.refused("range_select", "comparison ops", "range_select.rules")
def _():
    rs(op0=nl.not_equal)


@CASES.refused("range_select", "max only", "range_select.rules")
def _():
    rs(reduce_op=nl.add, res=raw(128, 1))


@CASES.refused("range_select", "on_false FP32_MIN", "range_select.rules")
def _():
    rs(on_false_value=0.0)


@CASES.refused("range_select", "range within 2^24", "range_select.rules")
def _():
    rs(range_start=2**24)


@CASES.refused("range_select", "bound (P,1)", "range_select.bound0")
def _():
    rs(b=tile(128, 2))


# select_reduce


def sr(pd=u8, td=f32, F=0.0, res=None, ppsum=False, tpsum=False, **kw):
    nisa.select_reduce(
        raw(128, 8),
        tile(128, 8, dtype=pd, psum=ppsum),
        tile(128, 8, dtype=td, psum=tpsum),
        F,
        reduce_res=res,
        **kw,
    )


@CASES.legal("select_reduce", "plain")
def _():
    sr()


@CASES.refused("select_reduce", "both PSUM", "select_reduce.rules")
def _():
    sr(ppsum=True, tpsum=True)


@CASES.refused("select_reduce", "int32 on_true", "select_reduce.on_true.dtype")
def _():
    sr(td=i32)


@CASES.refused("select_reduce", "tfloat32 on_true", "select_reduce.on_true.dtype")
def _():
    sr(td=nl.tfloat32)


@CASES.refused("select_reduce", "uint32 predicate", "select_reduce.predicate.dtype")
def _():
    sr(pd=u32)


@CASES.refused("select_reduce", "float predicate", "select_reduce.predicate.dtype")
def _():
    sr(pd=f32)


@CASES.refused("select_reduce", "max only", "select_reduce.rules")
def _():
    sr(res=raw(128, 1), reduce_cmd=RC.reset_reduce, reduce_op=nl.add)


@CASES.refused("select_reduce", "res int", "select_reduce.reduce_res.dtype")
def _():
    sr(res=raw(128, 1, dtype=i32), reduce_cmd=RC.reset_reduce)


@CASES.refused("select_reduce", "res shape", "select_reduce.reduce_res")
def _():
    sr(res=raw(128, 2), reduce_cmd=RC.reset_reduce)


@CASES.refused("select_reduce", "on_false vector shape", "select_reduce.on_false")
def _():
    sr(F=tile(128, 8))


# iota, affine_select


@CASES.refused("iota", "dst in SBUF", "iota.dst")
def _():
    nisa.iota(raw(128, 8, dtype=i32, psum=True), [[1, 8]])


@CASES.refused("iota", "pattern count = elements", "iota.rules")
def _():
    nisa.iota(raw(128, 8, dtype=i32), [[1, 4]])


@CASES.refused("iota", "at most 4 dims", "isa.pattern")
def _():
    nisa.iota(raw(128, 32, dtype=i32), [[1, 2]] * 5)


@CASES.legal("iota", "4 dims, 2D dst")
def _():
    nisa.iota(raw(128, 16, dtype=i32), [[1, 2]] * 4)


@CASES.refused("iota", "offset int32", "isa.pattern")
def _():
    nisa.iota(raw(128, 8, dtype=i32), [[1, 8]], offset=2**31)


@CASES.refused("affine_select", "SBUF src", "affine_select.on_true_tile")
def _():
    nisa.affine_select(raw(128, 8), [[1, 8]], 1, tile(128, 8, psum=True), 0.0)


@CASES.refused("affine_select", "SBUF dst", "affine_select.dst")
def _():
    nisa.affine_select(raw(128, 8, psum=True), [[1, 8]], 1, tile(128, 8), 0.0)


@CASES.refused("affine_select", "count", "affine_select.rules")
def _():
    nisa.affine_select(raw(128, 8), [[1, 4]], 1, tile(128, 8), 0.0)


@CASES.refused("affine_select", "cmp_op comparison", "affine_select.rules")
def _():
    nisa.affine_select(raw(128, 8), [[1, 8]], 1, tile(128, 8), 0.0, cmp_op=nl.add)


@CASES.refused("affine_select", "partitions", "affine_select.on_true_tile")
def _():
    nisa.affine_select(raw(64, 8), [[1, 8]], 1, tile(128, 8), 0.0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_documented_limit(case):
    case.check()
