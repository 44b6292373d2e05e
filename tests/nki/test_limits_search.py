"""Limits of gathers, searches, random numbers and registers, as the API reference states them."""

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
u16 = nl.uint16
T3 = "trn3"
V = nisa.engine.vector
S = nisa.engine.scalar
G = nisa.engine.gpsimd


# local_gather


def lg(P=128, F=64, IP=None, columns=4, idt=u16, n=1, dd=f32, sd=f32, out=None, **kw):
    nisa.local_gather(
        raw(P, out or 16 * columns * n, dtype=dd),
        tile(P, F, dtype=sd),
        tile(IP or P, columns, dtype=idt, fill=0),
        num_elem_per_idx=n,
        **kw,
    )


@CASES.legal("local_gather", "plain")
def _():
    lg()


@CASES.refused("local_gather", "uint16 index", "local_gather.index.dtype")
def _():
    lg(idt=u32)


@CASES.refused("local_gather", "dtype kept", "local_gather.rules")
def _():
    lg(dd=bf16)


@CASES.refused("local_gather", "P multiple of 16", "local_gather.P")
def _():
    lg(P=24)


@CASES.refused("local_gather", "P of index", "local_gather.index")
def _():
    lg(IP=64)


@CASES.refused("local_gather", "num_elem 3", "local_gather.rules")
def _():
    lg(n=3)


@CASES.refused("local_gather", "num_valid too many", "local_gather.rules")
def _():
    lg(num_valid_indices=65)


@CASES.refused("local_gather", "more than 4096 indices", "local_gather.rules")
def _():
    lg(columns=257)


# nc_n_gather


@CASES.refused("nc_n_gather", "SBUF", "nc_n_gather.data")
def _():
    nisa.nc_n_gather(raw(128, 4), tile(128, 16, psum=True), tile(128, 4, dtype=u32, fill=0))


@CASES.refused("nc_n_gather", "dtype kept", "nc_n_gather.rules")
def _():
    nisa.nc_n_gather(raw(128, 4, dtype=bf16), tile(128, 16), tile(128, 4, dtype=u32, fill=0))


@CASES.refused("nc_n_gather", "uint32", "nc_n_gather.indices.dtype")
def _():
    nisa.nc_n_gather(raw(128, 4), tile(128, 16), tile(128, 4, dtype=i32, fill=0))


@CASES.refused("nc_n_gather", "range", "nc_n_gather.indices")
def _():
    nisa.nc_n_gather(raw(128, 4), tile(128, 16), tile(128, 4, dtype=u32, fill=16))


@CASES.refused("nc_n_gather", "dst count", "nc_n_gather.indices")
def _():
    nisa.nc_n_gather(raw(128, 8), tile(128, 16), tile(128, 4, dtype=u32, fill=0))


# nc_stream_shuffle


@CASES.refused("nc_stream_shuffle", "dtype", "nc_stream_shuffle.rules")
def _():
    nisa.nc_stream_shuffle(tile(32, 8, dtype=bf16), tile(32, 8), list(range(32)))


@CASES.refused("nc_stream_shuffle", "count", "nc_stream_shuffle.src")
def _():
    nisa.nc_stream_shuffle(tile(32, 4), tile(32, 8), list(range(32)))


@CASES.refused("nc_stream_shuffle", "mask 32", "nc_stream_shuffle.rules")
def _():
    nisa.nc_stream_shuffle(tile(32, 8), tile(32, 8), list(range(31)))


@CASES.refused("nc_stream_shuffle", "mask values", "nc_stream_shuffle.rules")
def _():
    nisa.nc_stream_shuffle(tile(32, 8), tile(32, 8), [32] * 32)


@CASES.legal("nc_stream_shuffle", "mask 255")
def _():
    nisa.nc_stream_shuffle(tile(32, 8), tile(32, 8), [255] * 32)


@CASES.refused("nc_stream_shuffle", "64 active at 32", "nc_stream_shuffle.start_partition")
def _():
    t = tile(128, 8)
    nisa.nc_stream_shuffle(t[32:96], tile(64, 8), list(range(32)))


@CASES.legal("nc_stream_shuffle", "64 active at 64")
def _():
    t = tile(128, 8)
    nisa.nc_stream_shuffle(t[64:128], tile(64, 8), list(range(32)))


@CASES.refused(
    "nc_stream_shuffle", "src 40 partitions at 32 (64 active)", "nc_stream_shuffle.start_partition"
)
def _():
    t = tile(128, 8)
    nisa.nc_stream_shuffle(tile(40, 8), t[32:72], list(range(32)))


@CASES.legal("nc_stream_shuffle", "1 partition broadcast src to 32")
def _():
    t = tile(32, 8)
    nisa.nc_stream_shuffle(tile(32, 8), t[0:1], [0] * 32)


# max8


@CASES.refused("max8", "8 out", "max8.dst")
def _():
    nisa.max8(raw(128, 4), tile(128, 16))


@CASES.refused("max8", ">= 8", "max8.F")
def _():
    nisa.max8(raw(128, 8), tile(128, 7))


@CASES.legal("max8", "16384")
def _():
    nisa.max8(raw(128, 8), tile(128, 16384))


@CASES.refused("max8", "<= 16384", "max8.F")
def _():
    nisa.max8(raw(128, 8), tile(128, 16385))


@CASES.refused("max8", "3-D at most", "max8.rules")
def _():
    nisa.max8(raw(128, 8), tile(128, 2, 2, 8))


@CASES.legal("max8", "3-D")
def _():
    nisa.max8(raw(128, 8), tile(128, 2, 8))


@CASES.refused("max8", "dst 2-D", "max8.rules")
def _():
    nisa.max8(raw(128, 2, 4), tile(128, 16))


# sequence_bounds


@CASES.legal("sequence_bounds", "plain")
def _():
    nisa.sequence_bounds(raw(1, 2, 16), tile(1, 16))


@CASES.refused("sequence_bounds", "one partition", "sequence_bounds.dst")
def _():
    nisa.sequence_bounds(raw(2, 2, 16), tile(2, 16))


@CASES.refused("sequence_bounds", "dtype", "sequence_bounds.dst.dtype")
def _():
    nisa.sequence_bounds(raw(1, 2, 16, dtype=bf16), tile(1, 16, dtype=bf16))


@CASES.refused("sequence_bounds", "shape", "sequence_bounds.dst")
def _():
    nisa.sequence_bounds(raw(1, 16), tile(1, 16))


# find_index8, match_replace8


@CASES.refused("nc_find_index8", "vals 8", "nc_find_index8.vals")
def _():
    nisa.nc_find_index8(raw(128, 8, dtype=u32), tile(128, 16), tile(128, 4))


@CASES.refused("nc_find_index8", "dst u16/u32", "nc_find_index8.dst.dtype")
def _():
    nisa.nc_find_index8(raw(128, 8, dtype=i32), tile(128, 16), tile(128, 8))


@CASES.refused("nc_find_index8", ">= 8", "nc_find_index8.F")
def _():
    nisa.nc_find_index8(raw(128, 8, dtype=u32), tile(128, 7), tile(128, 8))


@CASES.refused("nc_find_index8", "<= 16384", "nc_find_index8.F")
def _():
    nisa.nc_find_index8(raw(128, 8, dtype=u32), tile(128, 16385), tile(128, 8))


@CASES.refused("nc_find_index8", "data 3-D", "nc_find_index8.rules")
def _():
    nisa.nc_find_index8(raw(128, 8, dtype=u32), tile(128, 2, 2, 8), tile(128, 8))


@CASES.refused("nc_match_replace8", "vals 8", "nc_match_replace8.vals")
def _():
    nisa.nc_match_replace8(raw(128, 16), tile(128, 16), tile(128, 4), 0.0)


@CASES.refused("nc_match_replace8", "dst count", "nc_match_replace8.data")
def _():
    nisa.nc_match_replace8(raw(128, 8), tile(128, 16), tile(128, 8), 0.0)


@CASES.refused("nc_match_replace8", "dst_idx type", "nc_match_replace8.dst_idx.dtype")
def _():
    nisa.nc_match_replace8(raw(128, 16), tile(128, 16), tile(128, 8), 0.0, dst_idx=raw(128, 8))


# nonzero_with_count


@CASES.refused("nonzero_with_count", "v3", "nonzero_with_count.generation", on="trn1")
def _():
    nisa.nonzero_with_count(raw(128, 9, dtype=i32), tile(128, 8))


@CASES.legal("nonzero_with_count", "v3")
def _():
    nisa.nonzero_with_count(raw(128, 9, dtype=i32), tile(128, 8))


@CASES.refused("nonzero_with_count", "bf16 src", "nonzero_with_count.src.dtype")
def _():
    nisa.nonzero_with_count(raw(128, 9, dtype=i32), tile(128, 8, dtype=bf16))


@CASES.refused("nonzero_with_count", "dst int32", "nonzero_with_count.dst.dtype")
def _():
    nisa.nonzero_with_count(raw(128, 9), tile(128, 8))


@CASES.refused("nonzero_with_count", "T+1", "nonzero_with_count.rules")
def _():
    nisa.nonzero_with_count(raw(128, 8, dtype=i32), tile(128, 8))


@CASES.refused("nonzero_with_count", "psum", "nonzero_with_count.src")
def _():
    nisa.nonzero_with_count(raw(128, 9, dtype=i32), tile(128, 8, psum=True))


@CASES.refused("nonzero_with_count", "index_offset int32", "nonzero_with_count.index_offset")
def _():
    nisa.nonzero_with_count(raw(128, 9, dtype=i32), tile(128, 8), index_offset=2**31)


# topk


def tk(P=16, X=4, n=42, K=8, sd=bf16, vd=bf16, idt=u32):
    nisa.topk(raw(P, K, dtype=vd), raw(P, K, dtype=idt), tile(P, X, dtype=sd), n)


@CASES.legal("topk", "plain")
def _():
    tk()


@CASES.refused("topk", "src bf16", "topk.src.dtype")
def _():
    tk(sd=f32)


@CASES.refused("topk", "val bf16", "topk.val_dst.dtype")
def _():
    tk(vd=f32)


@CASES.refused("topk", "idx uint32", "topk.idx_dst.dtype")
def _():
    tk(idt=i32)


@CASES.refused("topk", "n >= 8", "topk.rules")
def _():
    tk(n=7, K=4)


@CASES.refused("topk", "K <= n", "topk.rules")
def _():
    tk(X=1, n=9, K=10)


@CASES.refused("topk", "src free", "topk.rules")
def _():
    tk(X=2)


@CASES.refused("topk", "P multiple of 16", "topk.P")
def _():
    tk(P=24)


# rng


@CASES.refused("rng", "float dst", "rng.dst.dtype")
def _():
    nisa.rng(raw(128, 8))


@CASES.refused("rng", "gpsimd from v3", "rng.rules", on="trn1")
def _():
    nisa.rng(raw(128, 8, dtype=u32), engine=G)


@CASES.legal("rng", "gpsimd on v3")
def _():
    nisa.rng(raw(128, 8, dtype=u32), engine=G)


@CASES.refused("rng", "gpsimd psum", "rng.rules")
def _():
    nisa.rng(raw(128, 8, dtype=u32, psum=True), engine=G)


@CASES.refused("rng", "scalar engine", "rng.engine")
def _():
    nisa.rng(raw(128, 8, dtype=u32), engine=S)


# dropout


@CASES.refused("dropout", "dtype of dst", "dropout.rules")
def _():
    nisa.dropout(raw(128, 8, dtype=bf16), tile(128, 8), 0.5)


@CASES.refused("dropout", "int data float32 prob", "dropout.rules")
def _():
    nisa.dropout(raw(128, 8, dtype=i32), tile(128, 8, dtype=i32), tile(128, 1, dtype=bf16))


@CASES.legal("dropout", "bf16 data fp16 prob")
def _():
    nisa.dropout(raw(128, 8, dtype=bf16), tile(128, 8, dtype=bf16), tile(128, 1, dtype=f16))


@CASES.refused("dropout", "prob int", "dropout.rules")
def _():
    nisa.dropout(raw(128, 8), tile(128, 8), tile(128, 1, dtype=i32))


@CASES.refused("dropout", "prob (P,1)", "dropout.prob")
def _():
    nisa.dropout(raw(128, 8), tile(128, 8), tile(128, 8))


@CASES.refused("dropout", "prob in 0..1", "dropout.prob")
def _():
    nisa.dropout(raw(128, 8), tile(128, 8), 1.5)


# seeds


@CASES.refused("set_rng_seed", "[1,1]", "set_rng_seed.P")
def _():
    nisa.set_rng_seed(tile(2, 1, dtype=u32))


@CASES.refused("set_rng_seed", "32-bit", "set_rng_seed.src_seeds.dtype")
def _():
    nisa.set_rng_seed(tile(1, 1, dtype=u16))


@CASES.refused("rand_set_state", "v3", "rand_set_state.generation", on="trn1")
def _():
    nisa.rand_set_state(tile(128, 6, dtype=u32))


@CASES.legal("rand_set_state", "gpsimd 6")
def _():
    nisa.rand_set_state(tile(128, 6, dtype=u32))


@CASES.refused("rand_set_state", "vector from v4", "rand_set_state.rules")
def _():
    nisa.rand_set_state(tile(128, 24, dtype=u32), engine=V)


@CASES.legal("rand_set_state", "vector 24 on v4", on=T3)
def _():
    nisa.rand_set_state(tile(128, 24, dtype=u32), engine=V)


@CASES.refused("rand_set_state", "vector 6", "rand_set_state.rules", on=T3)
def _():
    nisa.rand_set_state(tile(128, 6, dtype=u32), engine=V)


@CASES.refused("rand_set_state", "gpsimd 24", "rand_set_state.rules")
def _():
    nisa.rand_set_state(tile(128, 24, dtype=u32))


@CASES.refused("rand_set_state", "uint32", "rand_set_state.src_seeds.dtype")
def _():
    nisa.rand_set_state(tile(128, 6, dtype=i32))


@CASES.refused("rand_set_state", "psum", "rand_set_state.src_seeds", on=T3)
def _():
    nisa.rand_set_state(tile(128, 24, dtype=u32, psum=True), engine=V)


@CASES.refused("rand_get_state", "psum v3", "rand_get_state.rules")
def _():
    nisa.rand_get_state(raw(128, 6, dtype=u32, psum=True))


@CASES.legal("rand_get_state", "psum vector v4", on=T3)
def _():
    nisa.rand_get_state(raw(128, 24, dtype=u32, psum=True), engine=V)


@CASES.refused("rand_get_state", "uint32", "rand_get_state.dst.dtype")
def _():
    nisa.rand_get_state(raw(128, 6))


@CASES.refused("rand2", "v4", "rand2.generation")
def _():
    nisa.rand2(raw(128, 6), 0.0, 1.0)


@CASES.legal("rand2", "v4", on=T3)
def _():
    nisa.rand2(raw(128, 6), 0.0, 1.0)


@CASES.refused("rand2", "min<max", "rand2.max", on=T3)
def _():
    nisa.rand2(raw(128, 6), 1.0, 0.0)


@CASES.refused("rand2", "min tile fp32", "rand2.min.dtype", on=T3)
def _():
    nisa.rand2(raw(128, 6), tile(128, 1, dtype=bf16), 2.0)


# registers


@CASES.refused("register_load", "one element", "register_load.F")
def _():
    nisa.register_load(nisa.register_alloc(), tile(1, 2, dtype=i32))


@CASES.refused("register_load", "psum", "register_load.src")
def _():
    nisa.register_load(nisa.register_alloc(), tile(1, 1, dtype=i32, psum=True))


@CASES.refused("register_store", "one element", "register_store.F")
def _():
    nisa.register_store(tile(1, 2, dtype=i32), nisa.register_alloc(1))


@CASES.refused("register_store", "uninitialised register", "sim.register")
def _():
    nisa.register_store(tile(1, 1, dtype=i32), nisa.register_alloc())


def _():
    nisa.register_alloc(tile(1, 1, dtype=i32))


@CASES.refused("register_move", "float", "register_move.src")
def _():
    nisa.register_move(nisa.register_alloc(), 1.5)


# sendrecv, barrier on one core


@CASES.refused("sendrecv", "needs two cores", "nki.exchange")
def _():
    nisa.sendrecv(tile(128, 8), raw(128, 8), 1, 1, 0)


@CASES.refused("core_barrier", "needs two cores", "nki.exchange")
def _():
    nisa.core_barrier(nl.ndarray((4, 4), f32, buffer=nl.shared_hbm), (0, 1))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_documented_limit(case):
    case.check()
