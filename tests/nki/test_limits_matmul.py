"""Limits of the Tensor Engine, as the API reference states them."""

import pytest

from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from tests.nki.limits import Cases, raw, tile

CASES = Cases()
f32 = nl.float32
bf16 = nl.bfloat16
f16 = nl.float16
i32 = nl.int32
u32 = nl.uint32
i8 = nl.int8
u8 = nl.uint8
e4 = nl.float8_e4m3
e5 = nl.float8_e5m2
e4fn = nl.float8_e4m3fn
T3 = "trn3"


# nc_matmul


def mm(M=128, K=128, N=512, sd=bf16, md=None, dd=f32, K2=None, **kw):
    nisa.nc_matmul(
        raw(M, N, dtype=dd, psum=True), tile(K, M, dtype=sd), tile(K2 or K, N, dtype=md or sd), **kw
    )


@CASES.refused("nc_matmul", "no double_row on v2", "nc_matmul.rules", on="trn1")
def _():
    nisa.nc_matmul(
        raw(64, 64, psum=True),
        tile(64, 2, 64, dtype=e4),
        tile(64, 2, 64, dtype=e4),
        perf_mode=nisa.matmul_perf_mode.double_row,
    )


@CASES.legal("nc_matmul", "double_row on v3")
def _():
    nisa.nc_matmul(
        raw(64, 64, psum=True),
        tile(64, 2, 64, dtype=e4),
        tile(64, 2, 64, dtype=e5),
        perf_mode=nisa.matmul_perf_mode.double_row,
    )


@CASES.refused("nc_matmul", "double_row fp8 only", "nc_matmul.rules")
def _():
    nisa.nc_matmul(
        raw(64, 64, psum=True),
        tile(64, 2, 64, dtype=bf16),
        tile(64, 2, 64, dtype=bf16),
        perf_mode=nisa.matmul_perf_mode.double_row,
    )


@CASES.refused("nc_matmul", "double_row first free dim 2", "nc_matmul.stationary")
def _():
    nisa.nc_matmul(
        raw(64, 64, psum=True),
        tile(64, 4, 64, dtype=e4),
        tile(64, 4, 64, dtype=e4),
        perf_mode=nisa.matmul_perf_mode.double_row,
    )


@CASES.refused("nc_matmul", "double_row not with column tiling", "nc_matmul.rules")
def _():
    nisa.nc_matmul(
        raw(64, 64, psum=True),
        tile(64, 2, 64, dtype=e4),
        tile(64, 2, 64, dtype=e4),
        perf_mode=nisa.matmul_perf_mode.double_row,
        tile_position=(0, 0),
        tile_size=(128, 64),
    )


@CASES.refused("nc_matmul", "row tiles of 32 from v3", "nc_matmul.rules", on="trn1")
def _():
    mm(32, 32, 64, tile_position=(32, 0), tile_size=(32, 128))


@CASES.legal("nc_matmul", "row tiles of 64 on v2", on="trn1")
def _():
    s, m = tile(128, 32, dtype=bf16), tile(128, 64, dtype=bf16)
    nisa.nc_matmul(
        raw(32, 64, psum=True), s[64:128], m[64:128], tile_position=(64, 0), tile_size=(64, 128)
    )


@CASES.legal("nc_matmul", "row tiles of 32 on v3")
def _():
    s, m = tile(128, 32, dtype=bf16), tile(128, 64, dtype=bf16)
    nisa.nc_matmul(
        raw(32, 64, psum=True), s[32:64], m[32:64], tile_position=(32, 0), tile_size=(32, 128)
    )


@CASES.refused("nc_matmul", "stationary within tile_size rows", "nc_matmul.K")
def _():
    mm(32, 64, 64, tile_position=(0, 0), tile_size=(32, 128))


@CASES.refused("nc_matmul", "stationary within tile_size columns", "nc_matmul.M")
def _():
    mm(64, 64, 64, tile_position=(0, 0), tile_size=(64, 32))


@CASES.refused("nc_matmul", "start_row a multiple of row_size", "nc_matmul.rules")
def _():
    s, m = tile(128, 32, dtype=bf16), tile(128, 64, dtype=bf16)
    nisa.nc_matmul(
        raw(32, 64, psum=True), s[32:64], m[32:64], tile_position=(32, 0), tile_size=(64, 128)
    )


@CASES.refused("nc_matmul", "start_column a multiple of column_size", "nc_matmul.rules")
def _():
    mm(32, 64, 64, tile_position=(0, 32), tile_size=(64, 64))


@CASES.refused("nc_matmul", "tile_position needs tile_size", "nc_matmul.rules")
def _():
    mm(32, 64, 64, tile_position=(0, 0))


@CASES.refused("nc_matmul", "tile_size needs tile_position", "nc_matmul.rules")
def _():
    mm(32, 64, 64, tile_size=(64, 128))


@CASES.refused("nc_matmul", "tile_size 128/64/32 only", "nc_matmul.rules")
def _():
    mm(16, 16, 64, tile_position=(0, 0), tile_size=(16, 128))


@CASES.refused("nc_matmul", "position within the array", "nc_matmul.rules")
def _():
    mm(32, 64, 64, tile_position=(128, 0), tile_size=(64, 128))


@CASES.refused("nc_matmul", "accumulate=True on memory never written", "sim.accumulate_unset")
def _():
    mm(accumulate=True)


@CASES.refused("nc_matmul", "accumulate onto memset undefined on v2/v3", "sim.accumulate_unset")
def _():
    d = tile(128, 512, psum=True, fill=0)
    nisa.nc_matmul(d, tile(128, 128, dtype=bf16), tile(128, 512, dtype=bf16), accumulate=True)


@CASES.legal("nc_matmul", "accumulate onto memset on v4", on=T3)
def _():
    d = tile(128, 512, psum=True, fill=0)
    nisa.nc_matmul(d, tile(128, 128, dtype=bf16), tile(128, 512, dtype=bf16), accumulate=True)


@CASES.refused("nc_matmul", "moving from SBUF", "nc_matmul.moving")
def _():
    nisa.nc_matmul(
        raw(128, 64, psum=True), tile(128, 128, dtype=bf16), tile(128, 64, dtype=bf16, psum=True)
    )


@CASES.refused("nc_matmul", "stationary from SBUF", "nc_matmul.stationary")
def _():
    nisa.nc_matmul(
        raw(128, 64, psum=True), tile(128, 128, dtype=bf16, psum=True), tile(128, 64, dtype=bf16)
    )


@CASES.refused("nc_matmul", "dst in PSUM", "nc_matmul.dst")
def _():
    nisa.nc_matmul(raw(128, 64), tile(128, 128, dtype=bf16), tile(128, 64, dtype=bf16))


@CASES.refused("nc_matmul", "no int operands", "nc_matmul.stationary.dtype")
def _():
    mm(sd=i32)


@CASES.refused("nc_matmul", "no int8 operands", "nc_matmul.stationary.dtype")
def _():
    mm(sd=i8)


@CASES.refused("nc_matmul", "e4m3fn from v4", "memset.dst.dtype")
def _():
    mm(sd=e4fn)


@CASES.legal("nc_matmul", "e4m3fn on v4", on=T3)
def _():
    mm(sd=e4fn)


@CASES.refused("nc_matmul", "e4m3 and e4m3fn not mixed", "nc_matmul.rules", on=T3)
def _():
    mm(sd=e4fn, md=e4)


@CASES.refused("nc_matmul", "float32 only with float32", "nc_matmul.rules")
def _():
    mm(sd=f32, md=bf16)


@CASES.legal("nc_matmul", "float32 with tfloat32")
def _():
    mm(sd=f32, md=nl.tfloat32)


@CASES.legal("nc_matmul", "bf16 with fp8")
def _():
    mm(sd=bf16, md=e4)


@CASES.refused("nc_matmul", "dst float32 on v3", "nc_matmul.rules")
def _():
    mm(dd=bf16)


@CASES.legal("nc_matmul", "dst bf16 on v4", on=T3)
def _():
    mm(dd=bf16)


@CASES.refused("nc_matmul", "dst float16 never", "nc_matmul.rules", on=T3)
def _():
    mm(dd=f16)


@CASES.refused("nc_matmul", "equal partition sizes", "nc_matmul.moving")
def _():
    mm(K=64, K2=128)


@CASES.refused("nc_matmul", "stationary free <= 128", "nc_matmul.stationary")
def _():
    nisa.nc_matmul(raw(128, 64, psum=True), tile(128, 256, dtype=bf16), tile(128, 64, dtype=bf16))


@CASES.refused("nc_matmul", "moving free <= 512 on v3", "nc_matmul.N")
def _():
    mm(N=1024)


@CASES.legal("nc_matmul", "moving free 4096 fp32 on v4", on=T3)
def _():
    mm(N=4096)


@CASES.refused("nc_matmul", "moving free > 4096 fp32 on v4", "nc_matmul.moving", on=T3)
def _():
    nisa.nc_matmul(
        raw(128, 4096, psum=True), tile(128, 128, dtype=bf16), tile(128, 4608, dtype=bf16)
    )


@CASES.legal("nc_matmul", "moving free 8192 bf16 on v4", on=T3)
def _():
    mm(N=8192, dd=bf16)


@CASES.refused("nc_matmul", "dst partitions = stationary free", "nc_matmul.stationary")
def _():
    nisa.nc_matmul(raw(64, 64, psum=True), tile(128, 128, dtype=bf16), tile(128, 64, dtype=bf16))


@CASES.refused("nc_matmul", "dst free = moving free", "nc_matmul.moving")
def _():
    nisa.nc_matmul(raw(128, 32, psum=True), tile(128, 128, dtype=bf16), tile(128, 64, dtype=bf16))


@CASES.refused("nc_matmul", "dst within one bank (crossing)", "nc_matmul.rules")
def _():
    d = raw(128, 1024, psum=True)
    nisa.nc_matmul(d[:, 256:768], tile(128, 128, dtype=bf16), tile(128, 512, dtype=bf16))


# indirection


@CASES.refused("nc_matmul", "indirect from v4", "nc_matmul.rules")
def _():
    s = tile(128, 128, dtype=bf16)
    i = tile(128, 1, dtype=u32, fill=0)
    nisa.nc_matmul(raw(128, 64, psum=True), s.indirect(i), tile(128, 64, dtype=bf16))


# nc_matmul_mx


def mx(K=128, M=128, N=512, dt=nl.float8_e4m3fn_x4, sc=u8, dd=f32, **kw):
    nisa.nc_matmul_mx(
        raw(M, N, dtype=dd, psum=True),
        tile(K, M, dtype=dt, fill=0),
        tile(K, N, dtype=dt, fill=0),
        tile(K, M, dtype=sc, fill=127 if sc == u8 else 1),
        tile(K, N, dtype=sc, fill=127 if sc == u8 else 1),
        **kw,
    )


@CASES.refused("nc_matmul_mx", "v4 only", "nc_matmul_mx.stationary.dtype")
def _():
    mx(dt=i32)


@CASES.legal("nc_matmul_mx", "fp8 x4", on=T3)
def _():
    mx()


@CASES.legal("nc_matmul_mx", "fp4 x4", on=T3)
def _():
    mx(dt=nl.float4_e2m1fn_x4)


@CASES.legal("nc_matmul_mx", "e8m0 scales", on=T3)
def _():
    mx(sc=nl.float8_e8m0fnu)


@CASES.refused(
    "nc_matmul_mx", "scales uint8/e8m0 only", "nc_matmul_mx.stationary_scale.dtype", on=T3
)
def _():
    mx(sc=bf16)


@CASES.refused("nc_matmul_mx", "data x4 only", "nc_matmul_mx.stationary.dtype", on=T3)
def _():
    mx(dt=bf16)


@CASES.refused("nc_matmul_mx", "K multiple of 32", "nc_matmul_mx.K", on=T3)
def _():
    mx(K=48)


@CASES.refused("nc_matmul_mx", "stationary free even", "nc_matmul_mx.M", on=T3)
def _():
    mx(M=63)


@CASES.refused("nc_matmul_mx", "column_size 128", "nc_matmul_mx.rules", on=T3)
def _():
    mx(K=32, M=32, tile_position=(0, 0), tile_size=(32, 32))


@CASES.refused("nc_matmul_mx", "start_column 0", "nc_matmul_mx.rules", on=T3)
def _():
    mx(K=32, M=32, tile_position=(0, 32), tile_size=(32, 128))


@CASES.legal("nc_matmul_mx", "row tiling", on=T3)
def _():
    mx(K=32, M=32, tile_position=(0, 0), tile_size=(32, 128))


@CASES.legal("nc_matmul_mx", "bf16 dst", on=T3)
def _():
    mx(dd=bf16)


@CASES.refused("nc_matmul_mx", "fp16 dst", "nc_matmul_mx.dst.dtype", on=T3)
def _():
    mx(dd=f16)


@CASES.legal("nc_matmul_mx", "N 4096", on=T3)
def _():
    mx(N=4096)


# nc_transpose


@CASES.legal("nc_transpose", "tensor engine 128x128 to PSUM")
def _():
    nisa.nc_transpose(raw(128, 128, dtype=bf16, psum=True), tile(128, 128, dtype=bf16))


@CASES.legal("nc_transpose", "vector 32x32 SBUF")
def _():
    nisa.nc_transpose(raw(32, 32), tile(32, 32), engine=nisa.engine.vector)


@CASES.refused("nc_transpose", "vector up to 32x32", "nc_transpose.F")
def _():
    nisa.nc_transpose(raw(64, 32), tile(32, 64), engine=nisa.engine.vector)


@CASES.refused("nc_transpose", "tensor writes PSUM", "nc_transpose.rules")
def _():
    nisa.nc_transpose(
        raw(128, 128, dtype=bf16), tile(128, 128, dtype=bf16), engine=nisa.engine.tensor
    )


@CASES.refused("nc_transpose", "tensor reads SBUF", "nc_transpose.rules")
def _():
    nisa.nc_transpose(
        raw(128, 128, psum=True), tile(128, 128, psum=True), engine=nisa.engine.tensor
    )


@CASES.refused("nc_transpose", "one dtype", "nc_transpose.rules")
def _():
    nisa.nc_transpose(raw(128, 128, psum=True), tile(128, 128, dtype=bf16))


@CASES.refused("nc_transpose", "dst shape is data transposed", "nc_transpose.data")
def _():
    nisa.nc_transpose(raw(64, 128, psum=True), tile(64, 128))


@CASES.refused("nc_transpose", "data free <= 128", "nc_transpose.data")
def _():
    nisa.nc_transpose(raw(128, 128, psum=True), tile(128, 256))


@CASES.refused("nc_transpose", "not on Scalar", "nc_transpose.engine")
def _():
    nisa.nc_transpose(raw(32, 32), tile(32, 32), engine=nisa.engine.scalar)


# quantize_mx


def q(P=128, F=64, sd=bf16, dd=nl.float8_e4m3fn_x4, sc=u8, dF=None, psum=False):
    nisa.quantize_mx(
        raw(P, dF or F // 4, dtype=dd),
        tile(P, F, dtype=sd, psum=psum),
        tile(P, F // 4, dtype=sc, fill=127 if sc == u8 else 1),
    )


@CASES.refused("quantize_mx", "v4", "quantize_mx.dst.dtype")
def _():
    q(dd=i32)


@CASES.legal("quantize_mx", "v4", on=T3)
def _():
    q()


@CASES.refused("quantize_mx", "fp32 src", "quantize_mx.src.dtype", on=T3)
def _():
    q(sd=f32)


@CASES.refused("quantize_mx", "fp4 dst", "quantize_mx.dst.dtype", on=T3)
def _():
    q(dd=nl.float4_e2m1fn_x4)


@CASES.refused("quantize_mx", "P multiple of 32", "quantize_mx.P", on=T3)
def _():
    q(P=48)


@CASES.refused("quantize_mx", "F multiple of 4", "quantize_mx.F", on=T3)
def _():
    q(F=62)


@CASES.refused("quantize_mx", "PSUM", "quantize_mx.src", on=T3)
def _():
    q(psum=True)


@CASES.refused("quantize_mx", "scale dtype", "quantize_mx.dst_scale.dtype", on=T3)
def _():
    q(sc=i32)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_documented_limit(case):
    case.check()
