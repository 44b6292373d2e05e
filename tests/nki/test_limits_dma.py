"""Limits of DMA copies, transposes and sums, as the API reference states them."""

import pytest

from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from tests.nki.limits import Cases, hbm, raw, tile

CASES = Cases()
f32 = nl.float32
bf16 = nl.bfloat16
f16 = nl.float16
i32 = nl.int32
u32 = nl.uint32
T3 = "trn3"


# dma_copy


@CASES.refused("dma_copy", "element counts match", "dma_copy.rules")
def _():
    nisa.dma_copy(raw(128, 4), hbm(128, 8))


@CASES.refused("dma_copy", "src in HBM or SBUF, not PSUM", "dma_copy.src")
def _():
    nisa.dma_copy(raw(128, 4), tile(128, 4, psum=True))


@CASES.refused("dma_copy", "dst not PSUM", "dma_copy.dst")
def _():
    nisa.dma_copy(raw(128, 4, psum=True), tile(128, 4))


@CASES.refused("dma_copy", "priority on v4 only", "dma_copy.rules")
def _():
    nisa.dma_copy(raw(128, 4), hbm(128, 4), priority=1)


@CASES.legal("dma_copy", "priority 0-3 on v4", on=T3)
def _():
    for p in range(4):
        nisa.dma_copy(raw(128, 4), hbm(128, 4), priority=p)


@CASES.refused("dma_copy", "priority at most 3", "dma_copy.rules", on=T3)
def _():
    nisa.dma_copy(raw(128, 4), hbm(128, 4), priority=4)


@CASES.refused("dma_copy", "hwdge from v3", "dma_copy.rules", on="trn1")
def _():
    nisa.dma_copy(raw(128, 4), hbm(128, 4), dge_mode=nisa.dge_mode.hwdge)


@CASES.legal("dma_copy", "hwdge on v3 with engine sync")
def _():
    nisa.dma_copy(raw(128, 4), hbm(128, 4), dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.sync)


@CASES.refused("dma_copy", "engine only with hwdge", "dma_copy.rules")
def _():
    nisa.dma_copy(raw(128, 4), hbm(128, 4), engine=nisa.engine.sync)


@CASES.refused("dma_copy", "engine sync or scalar", "dma_copy.rules")
def _():
    nisa.dma_copy(raw(128, 4), hbm(128, 4), dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.vector)


@CASES.refused("dma_copy", "vector_offset tensor must be in HBM", "view.ap")
def _():
    idx = tile(16, 1, dtype=u32, fill=0)
    nisa.dma_copy(raw(16, 8), tile(16, 8).ap([[8, 16], [1, 8]], vector_offset=idx, indirect_dim=0))


@CASES.legal("dma_copy", "vector_offset gather from HBM")
def _():
    idx = tile(16, 1, dtype=u32, fill=0)
    nisa.dma_copy(raw(16, 8), hbm(64, 8).ap([[8, 16], [1, 8]], vector_offset=idx, indirect_dim=0))


@CASES.refused("dma_copy", "vector_offset (P, 1) in SBUF, not HBM", "view.ap")
def _():
    idx = hbm(16, 1, dtype=u32, fill=0)
    nisa.dma_copy(raw(16, 8), hbm(64, 8).ap([[8, 16], [1, 8]], vector_offset=idx, indirect_dim=0))


@CASES.refused("dma_copy", "vector_offset and scalar_offset exclude each other", "view.ap")
def _():
    idx = tile(16, 1, dtype=u32, fill=0)
    one = tile(1, 1, dtype=u32, fill=0)
    nisa.dma_copy(
        raw(16, 8),
        hbm(64, 8).ap([[8, 16], [1, 8]], vector_offset=idx, scalar_offset=one, indirect_dim=0),
    )


@CASES.refused("dma_copy", "index out of bounds raises", "sim.dynamic_bounds")
def _():
    idx = tile(16, 1, dtype=u32, fill=64)
    nisa.dma_copy(raw(16, 8), hbm(64, 8).ap([[8, 16], [1, 8]], vector_offset=idx, indirect_dim=0))


@CASES.legal("dma_copy", "oob_mode.skip leaves rows")
def _():
    idx = tile(16, 1, dtype=u32, fill=64)
    nisa.dma_copy(
        tile(16, 8),
        hbm(64, 8).ap([[8, 16], [1, 8]], vector_offset=idx, indirect_dim=0),
        oob_mode=nisa.oob_mode.skip,
    )


# dma_transpose


@CASES.legal("dma_transpose", "2-d hwdge 16 rows")
def _():
    nisa.dma_transpose(
        raw(128, 16, dtype=bf16), hbm(16, 128, dtype=bf16), dge_mode=nisa.dge_mode.hwdge
    )


@CASES.refused("dma_transpose", "hwdge 2-d needs 16 rows", "dma_transpose.rules")
def _():
    nisa.dma_transpose(
        raw(128, 32, dtype=bf16), hbm(32, 128, dtype=bf16), dge_mode=nisa.dge_mode.hwdge
    )


@CASES.refused("dma_transpose", "hwdge src.shape[-1] <= 128", "dma_transpose.rules")
def _():
    nisa.dma_transpose(
        raw(256, 16, dtype=bf16) if False else raw(128, 2, 16, dtype=bf16),
        hbm(16, 256, dtype=bf16),
        dge_mode=nisa.dge_mode.hwdge,
    )


@CASES.refused("dma_transpose", "hwdge 2-byte dtype", "dma_transpose.rules")
def _():
    nisa.dma_transpose(raw(128, 16), hbm(16, 128), dge_mode=nisa.dge_mode.hwdge)


@CASES.refused("dma_transpose", "swdge direct not valid", "dma_transpose.rules")
def _():
    nisa.dma_transpose(
        raw(128, 16, dtype=bf16), hbm(16, 128, dtype=bf16), dge_mode=nisa.dge_mode.swdge
    )


def _():
    nisa.dma_transpose(
        raw(128, 16, dtype=bf16), hbm(16, 128, dtype=bf16), dge_mode=nisa.dge_mode.none
    )


@CASES.refused("dma_transpose", "axes other than documented", "dma_transpose.rules")
def _():
    nisa.dma_transpose(raw(4, 16, 8, dtype=bf16), hbm(4, 8, 16, dtype=bf16), axes=(0, 2, 1))


@CASES.legal("dma_transpose", "3-d (2,1,0)")
def _():
    nisa.dma_transpose(raw(16, 8, 4, dtype=bf16), hbm(4, 8, 16, dtype=bf16), axes=(2, 1, 0))


@CASES.legal("dma_transpose", "4-d (3,1,2,0)")
def _():
    nisa.dma_transpose(
        raw(16, 2, 8, 4, dtype=bf16), hbm(4, 2, 8, 16, dtype=bf16), axes=(3, 1, 2, 0)
    )


@CASES.refused("dma_transpose", "src.dtype == dst.dtype", "dma_transpose.rules")
def _():
    nisa.dma_transpose(raw(16, 16, dtype=bf16), hbm(16, 16, dtype=f16))


@CASES.refused("dma_transpose", "dst in SBUF", "dma_transpose.dst")
def _():
    nisa.dma_transpose(nl.ndarray((16, 16), bf16, buffer=nl.private_hbm), hbm(16, 16, dtype=bf16))


@CASES.refused("dma_transpose", "oob skip only indirect", "dma_transpose.rules")
def _():
    nisa.dma_transpose(
        raw(16, 16, dtype=bf16), hbm(16, 16, dtype=bf16), oob_mode=nisa.oob_mode.skip
    )


@CASES.refused("dma_transpose", "priority v4 only", "dma_transpose.rules")
def _():
    nisa.dma_transpose(raw(16, 16, dtype=bf16), hbm(16, 16, dtype=bf16), priority=1)


def gt(n=128, f=128, P=128, C=1, dt=bf16, idt=u32, **kw):
    idx = tile(P, C, dtype=idt, fill=0)
    src = hbm(max(n, 128), f, dtype=dt)
    nisa.dma_transpose(
        tile(f, n, dtype=dt),
        src.ap([[f, n], [1, f]], vector_offset=idx, indirect_dim=0),
        axes=(1, 0),
        **kw,
    )


@CASES.legal("dma_transpose", "indirect 128")
def _():
    gt()


@CASES.legal("dma_transpose", "indirect 2 columns of indices")
def _():
    gt(n=256, C=2)


@CASES.refused("dma_transpose", "indirect trn2+", "dma_transpose.rules", on="trn1")
def _():
    gt()


@CASES.refused("dma_transpose", "indirect hwdge not valid", "dma_transpose.rules")
def _():
    gt(dge_mode=nisa.dge_mode.hwdge)


@CASES.refused("dma_transpose", "indirect 2 bytes", "dma_transpose.rules")
def _():
    gt(dt=f32)


@CASES.refused("dma_transpose", "indirect indices uint32", "dma_transpose.rules")
def _():
    gt(idt=i32)


@CASES.refused("dma_transpose", "indirect rows divisible by 16", "dma_transpose.rules")
def _():
    gt(n=24)


@CASES.refused("dma_transpose", "indices*cols >= rows", "view.ap")
def _():
    gt(n=256, C=1)


@CASES.refused("dma_transpose", "indices.shape[0]=128 when several columns", "dma_transpose.rules")
def _():
    gt(n=128, P=64, C=2)


@CASES.refused("dma_transpose", "indices.shape[0] >= 16 and divisible by 16", "view.ap")
def _():
    gt(n=16, P=8, C=1)


@CASES.refused("dma_transpose", "indirect src.shape[-1] <= 128", "dma_transpose.rules")
def _():
    idx = tile(128, 1, dtype=u32, fill=0)
    nisa.dma_transpose(
        tile(128, 2, 128, dtype=bf16),
        hbm(128, 256, dtype=bf16).ap([[256, 128], [1, 256]], vector_offset=idx, indirect_dim=0),
        axes=(1, 0),
    )


# dma_compute


@CASES.refused("dma_compute", "add only", "dma_compute.rules")
def _():
    nisa.dma_compute(raw(128, 8), [tile(128, 8), tile(128, 8)], nl.multiply)


@CASES.refused("dma_compute", "scales 1", "dma_compute.rules")
def _():
    nisa.dma_compute(raw(128, 8), [tile(128, 8), tile(128, 8)], nl.add, scales=[1.0, 2.0])


@CASES.refused("dma_compute", "16 sources", "dma_compute.srcs")
def _():
    nisa.dma_compute(raw(128, 8), [tile(128, 8)] * 17, nl.add)


@CASES.refused("dma_compute", "PSUM", "dma_compute.dst")
def _():
    nisa.dma_compute(raw(128, 8, psum=True), [tile(128, 8), tile(128, 8)], nl.add)


@CASES.refused("dma_compute", "counts", "dma_compute.rules")
def _():
    nisa.dma_compute(raw(128, 8), [tile(128, 8), tile(128, 4)], nl.add)


@CASES.refused("dma_compute", "unique_indices False with vector_offset", "dma_compute.rules")
def _():
    idx = tile(16, 1, dtype=u32, fill=0)
    h = hbm(64, 8)
    v = h.ap([[8, 16], [1, 8]], vector_offset=idx, indirect_dim=0)
    nisa.dma_compute(v, [v, tile(16, 8)], nl.add, unique_indices=False)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_documented_limit(case):
    case.check()
