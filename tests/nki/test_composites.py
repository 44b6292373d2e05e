"""Reductions and composites of nki.language against float64."""

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import BoundsError, LimitError, ShapeError, TrnError, UsageError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from tests.nki.tiles import BF16, applied, close

RNG = np.random.default_rng(11)
X = RNG.normal(size=(32, 4, 6)).astype(np.float32)
WIDE = X.astype(np.float64)
REDUCTIONS = {
    "sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "mean": np.mean,
}  # fmt: skip


@pytest.mark.parametrize("axis", [1, 2, -1, -2, (1, 2), [2, 1]])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_over_any_free_axes(name, axis, keepdims):
    axes = tuple(axis) if isinstance(axis, list) else axis
    wanted = REDUCTIONS[name](WIDE, axis=axes, keepdims=keepdims)
    found = applied(lambda t: getattr(nl, name)(t, axis, keepdims=keepdims), X)
    close(found, wanted.reshape(found.shape))
    assert found.shape == (wanted.shape if wanted.ndim > 1 else (32, 1))


def test_a_sum_over_the_middle_axis_is_not_one_over_the_last():
    x = np.tile(np.arange(8, dtype=np.float32).reshape(1, 2, 4), (128, 1, 1))
    assert applied(lambda t: nl.sum(t, 1), x)[5].tolist() == [4, 6, 8, 10]
    assert applied(lambda t: nl.sum(t, 2), x)[5].tolist() == [6, 22]
    assert applied(lambda t: nl.sum(t, (1, 2)), x)[5].tolist() == [28]


def test_variance_keeps_sizes_of_one():
    close(applied(lambda t: nl.var(t, 2), X), WIDE.var(2, keepdims=True), least=2e-6)
    close(applied(lambda t: nl.var(t, (1, 2)), X), WIDE.var((1, 2), keepdims=True), least=2e-6)
    flat = X.reshape(32, 24)
    close(applied(lambda t: nl.var(t, 1), flat), WIDE.reshape(32, 24).var(1, keepdims=True))


def test_all_is_one_where_nothing_is_zero():
    x = np.ones((4, 5), np.float32)
    x[1, 3], x[2], x[3, 0] = 0, -0.0, np.nan
    assert applied(lambda t: nl.all(t, 1), x)[:, 0].tolist() == [1, 0, 0, 1]


def test_sums_of_low_precision_are_rounded_once():
    x = np.full((2, 300), 1.0, BF16)
    assert applied(lambda t: nl.sum(t, 1), x).astype(float).tolist() == [[300.0]] * 2
    x = np.full((2, 257), 1.0, BF16)
    assert applied(lambda t: nl.sum(t, 1), x).astype(float).tolist() == [[256.0]] * 2
    assert applied(lambda t: nl.sum(t, 1, dtype=nl.float32), x).tolist() == [[257.0]] * 2


@pytest.mark.parametrize("axis", [0, (0, 1), 3, -4, ()])
def test_axes_that_cannot_be_reduced_are_refused(axis):
    with pytest.raises((BoundsError, UsageError)) as caught:
        applied(lambda t: nl.sum(t, axis), X)
    assert caught.value.code == "nki.axis"
    assert caught.value.at.file == __file__


@pytest.mark.parametrize("axis", [1, 2, -1, (1, 2)])
def test_softmax(axis):
    grown = np.exp(WIDE - WIDE.max(axis, keepdims=True))
    close(applied(lambda t: nl.softmax(t, axis), X), grown / grown.sum(axis, keepdims=True))


def test_softmax_of_large_values_does_not_overflow():
    x = np.array([[1000.0, 999.0, -1000.0], [-88.0, -89.0, -90.0]], np.float32)
    grown = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    close(applied(nl.softmax, x), grown / grown.sum(1, keepdims=True))


def test_softmax_in_bfloat16_computes_in_float32():
    x = RNG.normal(size=(128, 200)).astype(BF16)
    grown = np.exp(x.astype(np.float64))
    found = applied(lambda t: nl.softmax(t, 1, dtype=nl.float32), x)
    close(found, grown / grown.sum(1, keepdims=True))


def test_rms_norm():
    x, w = X.reshape(32, 24), RNG.normal(size=(32, 24)).astype(np.float32)
    root = np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-3)
    found = applied(lambda t, u: nl.rms_norm(t, u, axis=1, n=24, epsilon=1e-3), x, w)
    close(found, x / root * w)


def test_where_takes_tiles_and_numbers():
    x, y = X.reshape(32, 24), -X.reshape(32, 24) * 2
    chosen = (x > 0).astype(np.float32)
    close(applied(nl.where, chosen, x, y), np.where(chosen != 0, x, y))
    close(applied(lambda c, t: nl.where(c, t, 0.5), chosen, x), np.where(chosen != 0, x, 0.5))
    close(applied(lambda c, t: nl.where(c, 7.0, t), chosen, x), np.where(chosen != 0, 7, x))
    close(applied(lambda c: nl.where(c, 7.0, -1.0), chosen), np.where(chosen != 0, 7, -1))
    bits = applied(lambda c, t: nl.where(c, t, 0.0), chosen.astype(np.uint8), x.astype(BF16))
    assert bits.dtype == BF16
    assert np.array_equal(bits, np.where(chosen != 0, x.astype(BF16), BF16(0)))


def test_where_broadcasts_its_choices():
    chosen = (X > 0).astype(np.float32).reshape(32, 24)
    column, row = X[:, 0, :1], X.reshape(32, 24)
    close(applied(nl.where, chosen, column, row), np.where(chosen != 0, column, row))


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int32, np.uint32, np.int16, np.uint8])
def test_broadcast_of_a_partition_is_exact(dtype):
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        x = RNG.integers(limits.min, limits.max, (1, 700), dtype, True)
    else:
        x = RNG.normal(size=(1, 700)).astype(dtype)
    found = applied(lambda t: nl.broadcast_to(t, (128, 700)), x)
    assert found.dtype == x.dtype
    assert np.array_equal(found, np.broadcast_to(x, (128, 700)))


def test_broadcast_of_free_dimensions_and_dtypes():
    x = RNG.normal(size=(8, 1, 3)).astype(np.float32)
    found = applied(lambda t: nl.broadcast_to(t, (8, 5, 3), dtype=nl.bfloat16), x)
    assert np.array_equal(found, np.broadcast_to(x, (8, 5, 3)).astype(BF16))
    for shape in [(8, 3), (8, 5, 4), (16, 5, 3)]:
        with pytest.raises(ShapeError) as caught:
            applied(lambda t, shape=shape: nl.broadcast_to(t, shape), x)
        assert caught.value.code == "nki.broadcast"


def test_broadcast_to_its_own_shape_is_the_tile_itself():
    def kernel(x):
        t = nl.load(x)
        assert nl.broadcast_to(t, t.shape) is t
        out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    assert np.array_equal(nki.simulate(kernel)(X), X)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_transpose(dtype):
    x = RNG.normal(size=(128, 40)).astype(dtype)
    assert np.array_equal(applied(nl.transpose, x), x.T)


def test_matmul_with_and_without_a_transposed_left_side():
    x, y = RNG.normal(size=(64, 96)), RNG.normal(size=(96, 200))
    x, y = x.astype(np.float32), y.astype(np.float32)

    def product(left, right, **more):
        out = nl.ndarray((64, 200), nl.float32)
        nisa.tensor_copy(out, nl.matmul(left, right, **more))
        return out

    wanted = x.astype(np.float64) @ y
    close(applied(product, x, y), wanted, least=1e-4)
    turned = np.ascontiguousarray(x.T)
    close(applied(lambda a, b: product(a, b, transpose_x=True), turned, y), wanted, least=1e-4)


def test_matmul_contracts_the_partitions():
    w = np.array([[1, 2], [3, 4]], np.float32)
    x = np.array([[1], [0]], np.float32)

    def kernel(a, b):
        out = nl.ndarray((2, 1), nl.float32)
        nisa.tensor_copy(out, nl.matmul(a, b, transpose_x=True))
        return out

    assert applied(kernel, w, x)[:, 0].tolist() == [1, 2]


def test_matmul_of_integers_and_of_too_many_columns_is_refused():
    with pytest.raises(TrnError) as caught:
        applied(lambda t: nl.matmul(t, t, transpose_x=True), np.ones((4, 4), np.int32))
    assert caught.value.code == "nc_matmul.stationary.dtype"
    with pytest.raises(ShapeError) as caught:
        applied(nl.transpose, np.ones((4, 129), np.float32))
    assert caught.value.code == "nki.partitions"
    with pytest.raises(LimitError) as caught:
        applied(lambda t: nl.matmul(t[:, 0:4], t, transpose_x=True), np.ones((4, 513), np.float32))
    assert caught.value.code == "nc_matmul.N"


def test_views_of_other_shapes():
    x = RNG.normal(size=(16, 6)).astype(np.float32)
    found = applied(lambda t: nl.copy(nl.expand_dims(t, 1)), x)
    assert np.array_equal(found, x[:, None])
    assert np.array_equal(applied(lambda t: nl.copy(nl.expand_dims(t, -1)), x), x[..., None])
