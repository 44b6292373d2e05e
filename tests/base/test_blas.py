"""A product added in one pass is, to the last bit, the product added afterwards."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import blas, numerics

SIZES = st.integers(1, 40)


def padded(random, rows: int, columns: int, extra: int) -> np.ndarray:
    """A float32 matrix whose rows lie `extra` elements apart."""
    return random.normal(size=(rows, columns + extra)).astype(np.float32)[:, :columns]


@given(SIZES, SIZES, SIZES, st.integers(0, 3), st.integers(0, 999))
@settings(deadline=None, max_examples=60)
def test_one_pass_is_the_same_as_two(k, m, n, extra, seed):
    random = np.random.default_rng(seed)
    a, b = padded(random, k, m, extra), padded(random, k, n, extra)
    out = padded(random, m, n, extra)
    wide = a.astype(np.float64).T @ b.astype(np.float64) + out
    numerics.dot(a, b, out, add=True)
    scale = np.abs(a).astype(np.float64).T @ np.abs(b) + 1
    assert (np.abs(out - wide) <= 2**-22 * k * scale).all()


def test_bits_of_a_tensor_engine_tile():
    random = np.random.default_rng(0)
    a, b, held = (padded(random, 128, n, 16) for n in (128, 512, 512))
    out = held.copy()
    if not blas.product(a, b, out, add=True):
        pytest.skip("NumPy's BLAS does not show its GEMM here")
    assert np.array_equal(out, held + np.matmul(a.T, b))


def test_layouts_blas_does_not_take_are_done_by_numpy():
    random = np.random.default_rng(1)
    a, b = random.normal(size=(2, 6, 12)).astype(np.float32)
    turned, sparse = np.asfortranarray(a), b[:, ::2]
    out = np.zeros((12, 6), np.float32)
    assert not blas.product(turned, sparse, out, add=True)
    assert not out.any()
    numerics.dot(turned, sparse, out, add=True)
    np.testing.assert_allclose(out, a.T @ sparse, rtol=1e-5, atol=1e-6)
    assert not blas.product(a.astype(np.float64), b, out, add=False)


@given(SIZES, SIZES, SIZES, st.integers(0, 3), st.integers(0, 999))
@settings(deadline=None, max_examples=60)
def test_without_add_nothing_of_the_old_remains(k, m, n, extra, seed):
    random = np.random.default_rng(seed)
    a, b = padded(random, k, m, extra), padded(random, k, n, extra)
    out = np.full((m, n + extra), np.nan, np.float32)
    numerics.dot(a, b, out[:, :n])
    wide = a.astype(np.float64).T @ b.astype(np.float64)
    scale = np.abs(a).astype(np.float64).T @ np.abs(b)
    assert (np.abs(out[:, :n] - wide) <= 2**-22 * k * scale).all()
    assert np.isnan(out[:, n:]).all()


def test_infinities_and_nan_pass_through():
    out = np.array([[1.0, np.inf], [np.nan, 1.0]], np.float32)
    numerics.dot(np.ones((1, 2), np.float32), np.ones((1, 2), np.float32), out, add=True)
    assert np.array_equal(out, [[2, np.inf], [np.nan, 2]], equal_nan=True)


NEIGHBOURS = st.permutations(range(4))


@given(NEIGHBOURS, NEIGHBOURS, SIZES, SIZES, st.integers(1, 9), st.booleans(), st.integers(0, 99))
@settings(deadline=None, max_examples=80)
def test_several_products_are_each_of_them(lefts, places, k, n, m, add, seed):
    """Wherever the stationary matrices and the results lie: neighbours on both sides or not."""
    random = np.random.default_rng(seed)
    wide = random.integers(-8, 9, (k, 4 * m)).astype(np.float32)
    right = random.integers(-8, 9, (k, n)).astype(np.float32)
    held = random.integers(-8, 9, (4 * m, n)).astype(np.float32)
    out = held.copy()
    stationary = [wide[:, i * m : (i + 1) * m] for i in lefts]
    numerics.dots(stationary, right, [out[i * m : (i + 1) * m] for i in places], add)
    wanted = held.astype(np.float64) * add
    for left, i in zip(stationary, places, strict=True):
        wanted[i * m : (i + 1) * m] += left.astype(np.float64).T @ right
    assert np.array_equal(out, wanted)


def test_neighbours_are_one_product_to_the_last_bit():
    random = np.random.default_rng(3)
    wide, right = padded(random, 128, 512, 16), padded(random, 128, 512, 16)
    out = np.zeros((512, 512), np.float32)
    parts = [slice(128 * i, 128 * (i + 1)) for i in range(4)]
    if not blas.products([wide[:, p] for p in parts], right, [out[p] for p in parts], False):
        pytest.skip("NumPy's BLAS does not show its GEMM here")
    for p in parts:
        assert np.array_equal(out[p], np.matmul(wide[:, p].T, right))


def test_rows_that_hold_no_neighbour_are_taken_one_by_one():
    """A matrix that begins where the first row of another ends is its second row, no neighbour."""
    flat = np.arange(24, dtype=np.float32)
    left, below = flat[:16].reshape(4, 4), flat[4:20].reshape(4, 4)
    out, right = np.zeros((8, 2), np.float32), np.ones((4, 2), np.float32)
    numerics.dots([left, below], right, [out[:4], out[4:]])
    assert np.array_equal(out[:, 0], np.concatenate([left.sum(0), below.sum(0)]))
