"""Sums by the DMA engines: lists of sources, read-modify-write by indices, refusals, costs."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn import isa, nki
from opentrn.base import LimitError, SpaceError, UsageError
from opentrn.hw import chip
from opentrn.isa.dma_compute import dma_compute
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.sim.replay import Replay
from tests.isa.vector_forms import make, refuse, tile


def form(sources=2, shape=(128, 64), space="hbm", on="trn2", **more):
    given = {f"srcs{n}": tile(*shape, space=space, run=shape[1]) for n in range(sources)}
    given |= {"dst": tile(*shape, run=shape[1]), "reduce_op": "add"}
    return make(dma_compute, on=on, **(given | more))


@given(st.integers(1, 16), st.sampled_from(["float32", "bfloat16", "int32"]))
@settings(max_examples=30, deadline=None)
def test_the_sum_is_float32_in_the_order_of_the_list(count, kind):
    rng = np.random.default_rng(count)
    i = form(count, (4, 6), **{f"srcs{n}": tile(4, 6, t=kind) for n in range(count)})
    values = rng.integers(-99, 99, (count, 4, 6)).astype(i.srcs0.dtype.carrier)
    got = i.run(**{f"srcs{n}": v for n, v in enumerate(values)})["dst"]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, values.astype(np.float64).sum(0))


def test_float32_rounds_after_each_source():
    i = form(3, (1, 1))
    big, one = np.full((1, 1), 2.0**24, np.float32), np.ones((1, 1), np.float32)
    assert i.run(srcs0=big, srcs1=one, srcs2=one)["dst"] == 2.0**24
    assert i.run(srcs0=one, srcs1=one, srcs2=big)["dst"] == 2.0**24 + 2


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("rules", {"reduce_op": "maximum"}),
        ("rules", {"scales": [1.0, 2.0]}),
        ("rules", {"scales": [1.0]}),
        ("rules", {"srcs1": tile(128, 63, space="hbm")}),
        ("rules", {"srcs1": tile(128, 64, space="hbm", indirect="scalar")}),
        (
            "rules",
            {"srcs1": tile(128, 64, space="hbm", indirect="vector"), "unique_indices": False},
        ),
        ("rules", {"sources": 3, "srcs1": tile(128, 64, space="hbm", indirect="vector")}),
        (
            "rules",
            {
                "dst": tile(128, 64, space="hbm"),
                "srcs1": tile(128, 64, space="hbm", indirect="vector"),
            },
        ),
    ],
)
def test_what_it_refuses(code, more):
    refuse(LimitError, f"dma_compute.{code}", lambda: form(**more))


def test_psum_is_refused():
    refuse(SpaceError, "dma_compute.srcs1", lambda: form(srcs1=tile(128, 64, space="psum")))


def test_cost_by_hand():
    # trn2: 128 rows over 16 DMA engines, 8 descriptors each for each of three sources; sums run
    # at the share accumulate_rate of the engines' rate
    dma = chip("trn2").dma
    move = form(3, (128, 512)).move
    one = dma.descriptor + 2048 / (dma.engine_rate * dma.accumulate_rate)
    assert move.busy_ns == pytest.approx(3 * 8 * one * 1e9)
    assert move.nbytes == 3 * 128 * 2048
    assert move.issuer == "sync"
    gathered = form(srcs1=tile(128, 64, space="hbm", indirect="vector", run=64))
    assert gathered.move.issuer == "gpsimd"


# ---------------------------------------------------------------------- in kernels


@nki.jit
def add_all(a, b, c):
    out = nl.ndarray(a.shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)
    tile_ = nl.ndarray(c.shape, dtype=c.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile_, c)
    nisa.dma_compute(out, [a, b, tile_], reduce_op=nl.add, scales=[1.0, 1.0, 1.0])
    return out


def test_a_list_goes_through_programs_text_and_replay():
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((64, 40)).astype(np.float32) for _ in range(3)]
    done = nki.run(add_all, *inputs)
    want = (inputs[0] + inputs[1] + inputs[2]).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(done.outputs, want)
    text = isa.program_text(done.program)
    assert "srcs2=" in text
    assert "srcs3=" not in text
    again = isa.parse_program(text)
    assert isa.program_text(again) == text
    np.testing.assert_array_equal(Replay(again, done.chip)(inputs)[0], want)
    assert done.timeline().total_ns > 0


@pytest.mark.parametrize("srcs", [[], "three", None, list(range(17))])
def test_what_is_no_list_of_sources(srcs):
    @nki.jit
    def kernel(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        nisa.dma_compute(out, srcs, reduce_op=nl.add)
        return out

    with pytest.raises(UsageError) as caught:
        nki.run(kernel, np.zeros((4, 4), np.float32))
    assert caught.value.code == "dma_compute.srcs"


@nki.jit
def scatter_add(table, rows, data, mode=nisa.oob_mode.error, other=False):
    ids = nl.ndarray(rows.shape, dtype=rows.dtype, buffer=nl.sbuf)
    values = nl.ndarray(data.shape, dtype=data.dtype, buffer=nl.sbuf)
    out = nl.ndarray(table.shape, dtype=table.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(ids, rows)
    nisa.dma_copy(values, data)
    nisa.dma_copy(out, table)
    n, f = data.shape
    to = out.ap([[f, n], [1, f]], vector_offset=ids, indirect_dim=0)
    source = out.ap([[f, n], [1, f]]) if other else to
    nisa.dma_compute(to, [source, values], reduce_op=nl.add, oob_mode=mode)
    return out


def test_scatter_adds_to_the_rows_named():
    rng = np.random.default_rng(2)
    table = rng.standard_normal((50, 8)).astype(np.float32)
    rows = rng.permutation(50)[:20].astype(np.int32).reshape(20, 1)
    data = rng.standard_normal((20, 8)).astype(np.float32)
    want = table.copy()
    for n, row in enumerate(rows[:, 0]):
        want[row] += data[n]
    done = nki.run(scatter_add, table, rows, data)
    np.testing.assert_array_equal(done.outputs, want)
    assert done.findings == ()


def test_rows_outside_are_refused_or_skipped():
    table, data = np.zeros((5, 4), np.float32), np.ones((3, 4), np.float32)
    rows = np.array([[1], [7], [4]], np.int32)
    with pytest.raises(IndexError):
        nki.run(scatter_add, table, rows, data)
    got = nki.run(scatter_add, table, rows, data, mode=nisa.oob_mode.skip).outputs
    assert got.sum(1).tolist() == [0, 4, 0, 0, 4]


def test_rows_named_twice_are_noticed():
    table, data = np.zeros((5, 4), np.float32), np.ones((3, 4), np.float32)
    done = nki.run(scatter_add, table, np.array([[1], [1], [4]], np.int32), data)
    assert [f.code for f in done.findings] == ["sim.duplicate_indices"]


def test_one_source_must_be_the_destination():
    table, data = np.zeros((5, 4), np.float32), np.ones((3, 4), np.float32)
    rows = np.array([[0], [1], [2]], np.int32)
    with pytest.raises(UsageError) as caught:
        nki.run(scatter_add, table, rows, data, other=True)
    assert caught.value.code == "dma_compute.srcs"


@nki.jit
def gather_add(table, rows, data, mode=nisa.oob_mode.error):
    ids = nl.ndarray(rows.shape, dtype=rows.dtype, buffer=nl.sbuf)
    values = nl.ndarray(data.shape, dtype=data.dtype, buffer=nl.sbuf)
    out = nl.ndarray(data.shape, dtype=data.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(ids, rows)
    nisa.dma_copy(values, data)
    n, f = data.shape
    found = table.ap([[f, n], [1, f]], vector_offset=ids, indirect_dim=0)
    nisa.dma_compute(values, [values, found], reduce_op=nl.add, oob_mode=mode)
    nisa.dma_copy(out, values)
    return out


def test_gather_adds_rows_and_skips_those_outside():
    rng = np.random.default_rng(3)
    table = rng.standard_normal((9, 6)).astype(np.float32)
    data = rng.standard_normal((4, 6)).astype(np.float32)
    rows = np.array([[8], [0], [8], [3]], np.int32)
    got = nki.run(gather_add, table, rows, data).outputs
    np.testing.assert_array_equal(got, data + table[rows[:, 0]])
    rows[1] = 9
    got = nki.run(gather_add, table, rows, data, mode=nisa.oob_mode.skip).outputs
    want = data + table[[8, 0, 8, 3]]
    want[1] = data[1]
    np.testing.assert_array_equal(got, want)
