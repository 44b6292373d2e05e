"""Tensor indirection in running kernels against plain loops: gathers, scatters, matmuls."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn import isa, nki
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.session import use_strict, use_target
from opentrn.sim import Strict
from opentrn.sim.replay import Replay


def load(x, **more):
    made = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf, **more)
    nisa.dma_copy(made, x)
    return made


def run(kernel, *inputs):
    with use_target("trn3"):
        return nki.run(kernel, *inputs)


def columns(index, p, count, group):
    """The documented snake: offset i is index[i % G, i // G] of the rows beside the partition."""
    first = p // group * group
    return [int(index[first + i % group, i // group]) for i in range(count)]


@nki.jit
def gather(x, index, count):
    data, ids = load(x), load(index)
    found = nl.ndarray((x.shape[0], count), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(found, data.indirect(ids, count))
    out = nl.ndarray(found.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, found)
    return out


@given(
    st.sampled_from([16, 32, 64, 128]),
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(1, 48),
    st.sampled_from([np.float32, ml_dtypes.bfloat16, np.int32, np.uint8]),
)
@settings(max_examples=30, deadline=None)
def test_a_gather_takes_the_columns_of_each_group(p, f, k, count, kind):
    count = min(count, 16 * k)
    rng = np.random.default_rng(p + f + count)
    x = rng.integers(0, 100, (p, f)).astype(kind)
    index = rng.integers(0, f, (p, k)).astype(np.uint32)
    done = run(gather, x, index, count)
    want = np.array([x[row, columns(index, row, count, 16)] for row in range(p)])
    np.testing.assert_array_equal(done.outputs, want)
    assert done.findings == ()


@nki.jit
def scatter(x, index, width):
    data, ids = load(x), load(index)
    held = nl.ndarray((x.shape[0], width), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(held, 7.0)
    nisa.tensor_scalar(held.indirect(ids, x.shape[1]), data, op0=nl.multiply, operand0=2.0)
    out = nl.ndarray(held.shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)
    nisa.dma_copy(out, held)
    return out


def test_a_scatter_rounds_and_leaves_the_other_columns():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((32, 20)).astype(np.float32)
    index = np.concatenate([rng.permutation(50)[:32].reshape(16, 2) for _ in range(2)])
    index = index.astype(np.int32)
    done = run(scatter, x, index, 50)
    want = np.full((32, 50), 7, ml_dtypes.bfloat16)
    for p in range(32):
        for i, c in enumerate(columns(index, p, 20, 16)):
            want[p, c] = np.float32(2 * x[p, i])
    np.testing.assert_array_equal(done.outputs, want)
    again = isa.parse_program(isa.program_text(done.program))
    replayed = Replay(again, done.chip)([x, index])[0]
    np.testing.assert_array_equal(replayed, want)


def test_of_equal_columns_the_last_stays():
    x = np.arange(16 * 16, dtype=np.float32).reshape(16, 16)
    index = np.full((16, 1), 3, np.int32)
    got = run(scatter, x, index, 5).outputs.astype(np.float32)
    assert got[2].tolist() == [7, 7, 7, float(ml_dtypes.bfloat16(2 * x[2, 15])), 7]


@pytest.mark.parametrize("bad", [-1, 40])
def test_a_column_outside_is_refused(bad):
    index = np.zeros((16, 1), np.int32)
    index[5] = bad
    with pytest.raises(IndexError) as caught:
        run(gather, np.zeros((16, 40), np.float32), index, 16)
    assert caught.value.code == "sim.dynamic_bounds"


@nki.jit
def partly(x, index):
    data, ids = load(x), load(index)
    held = nl.ndarray((16, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(held.indirect(ids, 2), data)
    out = nl.ndarray((16, 8), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out[:, 3:5], held[:, 3:5])
    return out


def test_a_scatter_writes_its_columns_and_no_others():
    index = np.full((16, 1), 3, np.int32)
    index[1::2] = 4
    x = np.ones((16, 2), np.float32)
    with use_strict(Strict(partial_output="ignore")):
        assert run(partly, x, index).findings == ()
        found = run(partly, x, index * 0 + 3).findings
    assert [f.code for f in found] == ["sim.uninitialised"]


# ---------------------------------------------------------------------- matmuls


@nki.jit
def gathered_product(a, b, index, n):
    left, right, ids = load(a), load(b), load(index)
    acc = nl.ndarray((a.shape[1], n), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(acc, left, right.indirect(ids, n))
    held = nl.ndarray(acc.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(held, acc)
    out = nl.ndarray(acc.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, held)
    return out


def test_the_tensor_engine_reads_groups_of_32():
    rng = np.random.default_rng(8)
    a = rng.standard_normal((64, 12)).astype(ml_dtypes.bfloat16)
    b = rng.standard_normal((64, 30)).astype(ml_dtypes.bfloat16)
    index = rng.integers(0, 30, (64, 2)).astype(np.uint32)
    got = run(gathered_product, a, b, index, 40).outputs
    picked = np.array([b[p, columns(index, p, 40, 32)] for p in range(64)]).astype(np.float64)
    np.testing.assert_allclose(got, a.astype(np.float64).T @ picked, rtol=1e-5, atol=1e-5)


@nki.jit
def scattered_products(a, b, index, width):
    left, right, ids = load(a), load(b), load(index)
    acc = nl.ndarray((32, width), dtype=nl.bfloat16, buffer=nl.psum)
    n = b.shape[1]
    nisa.nc_matmul(acc, left, load(b[:, :width]))
    nisa.nc_matmul(acc.indirect(ids, n), left, right)
    held = nl.ndarray(acc.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(held, acc)
    out = nl.ndarray(acc.shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)
    nisa.dma_copy(out, held)
    return out


def test_a_product_is_added_where_an_earlier_one_has_written():
    a = np.eye(32, dtype=ml_dtypes.bfloat16)
    b = np.arange(32 * 6, dtype=np.float32).reshape(32, 6).astype(ml_dtypes.bfloat16)
    index = np.arange(32, dtype=np.int32)[::-1].reshape(32, 1) % 4
    index[:6, 0] = [3, 1, 0, 2, 3, 1]  # the last of equal columns stays
    got = run(scattered_products, a, b, index, 4).outputs.astype(np.float32)
    first = b[:, :4].astype(np.float32)
    want = first.copy()
    for i, c in enumerate([3, 1, 0, 2, 3, 1]):
        want[:, c] = first[:, c] + b[:, i].astype(np.float32)
    np.testing.assert_array_equal(got, want.astype(ml_dtypes.bfloat16).astype(np.float32))
