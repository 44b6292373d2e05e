"""Order and places on the chip, each against NumPy: sorts, the k largest, scatters, angles."""

import ml_dtypes
import numpy as np
import pytest

from opentrn import nki
from opentrn.base import LimitError
from opentrn.graph import g
from opentrn.nki import kernels
from tests.compiler.running import normal, on_chip, whole

RNG = np.random.default_rng(3)


def stable(x, descending):
    """Places of the elements of each row in order; NaN last, equal elements as they were."""
    wide = x.astype(np.float64)
    if not descending:
        return np.argsort(wide, 1, kind="stable")
    return x.shape[1] - 1 - np.argsort(wide[:, ::-1], 1, kind="stable")[:, ::-1]


def rows_of(kind, count):
    if kind.startswith(("int", "uint")):
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        found = RNG.integers(low, high, (5, count), np.int64, endpoint=True).astype(kind)
        found[:, count // 2] = found[:, 0]
        return found
    found = (RNG.standard_normal((5, count)) * 3).round(1).astype(kind)
    if count > 6:
        found[0, 2], found[1, 3], found[1, 4] = np.nan, np.inf, -np.inf
        found[2, 2], found[2, 5], found[3, 3] = -0.0, 0.0, -np.nan
    return found


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "int32", "uint8", "uint32"])
def test_the_sorting_kernel(kind, descending):
    kind = getattr(ml_dtypes, kind) if kind == "bfloat16" else kind
    for count in (1, 2, 3, 8, 37, 130):
        x = rows_of(np.dtype(kind).name, count).astype(kind)
        wanted = stable(x, descending)
        found = nki.simulate(kernels.sort)(x, descending, "indices")
        np.testing.assert_array_equal(found, wanted)
        values = nki.simulate(kernels.sort)(x, descending)
        assert values.dtype == x.dtype
        np.testing.assert_array_equal(
            values.astype(np.float64), np.take_along_axis(x, wanted, 1).astype(np.float64)
        )


def test_every_step_of_the_network_is_needed_and_enough():
    """The 0-1 principle: a network that sorts all rows of zeros and ones sorts everything."""
    for width in (2, 4, 8):
        every = (np.arange(2**width)[:, None] >> np.arange(width)) & 1
        found = nki.simulate(kernels.sort)(every.astype(np.int32))
        np.testing.assert_array_equal(found, np.sort(every, 1))


def test_long_rows_are_refused():
    with pytest.raises(LimitError, match="5000"):
        nki.simulate(kernels.sort)(normal(2, 5000))


def test_sorts_along_any_axis():
    x = normal(4, 5, 6)
    for axis in range(3):
        (values, places), _ = on_chip(
            lambda v, axis=axis: (g.sort(v, axis), g.sort(v, axis, True, "indices")), x
        )
        np.testing.assert_array_equal(values, np.sort(x, axis))
        np.testing.assert_array_equal(places, np.argsort(-x, axis, kind="stable"))


@pytest.mark.parametrize("k", [3, 16, 40])
def test_the_k_largest(k):
    x = normal(3, 50)
    (values, places), _ = on_chip(lambda v: (g.top_k(v, k), g.top_k(v, k, "indices")), x)
    wanted = np.argsort(-x, 1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, 1))


@pytest.mark.parametrize("kind", ["set", "add"])
def test_the_scattering_kernel(kind):
    table, rows = normal(40, 700), normal(300, 700, seed=1)
    ids = RNG.integers(0, 40, (300, 1)).astype(np.int32)
    wanted = table.astype(np.float64)
    if kind == "add":
        np.add.at(wanted, ids[:, 0], rows)
    else:
        wanted[ids[:, 0]] = rows
    found = nki.simulate(kernels.scatter_rows)(table, ids, rows, kind)
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


def test_scattered_elements_slices_and_places_outside():
    x, updates = normal(4, 5, 3), normal(6, 5, seed=2)
    places = np.array([[0, 1], [3, 2], [0, 1], [4, 0], [-1, 2], [2, 0]], np.int32)
    wanted = x.astype(np.float64)
    for (a, b), row in zip(places, updates, strict=True):
        if 0 <= a < 4:
            wanted[a, :, b] += row
    options = {"update_window_dims": (1,), "inserted_window_dims": (0, 2),
               "scatter_dims": (0, 2), "index_vector_dim": 1}  # fmt: skip
    (found,), _ = on_chip(
        lambda v, p, u: g.scatter(v, p, u, kind="add", **options), x, places, updates
    )
    np.testing.assert_allclose(found, wanted, 1e-6, 1e-6)
    integers = RNG.integers(-9, 9, (4, 5)).astype(np.int32)
    pairs = np.array([[0, 1], [3, 2], [0, 1]], np.int32)
    single = {"update_window_dims": (), "inserted_window_dims": (0, 1), "scatter_dims": (0, 1),
             "index_vector_dim": 1}  # fmt: skip
    (found,), _ = on_chip(
        lambda v, p, u: g.scatter(v, p, u, kind="set", **single),
        integers, pairs, np.array([7, 8, 9], np.int32),
    )  # fmt: skip
    wanted = integers.copy()
    wanted[3, 2], wanted[0, 1] = 8, 9
    np.testing.assert_array_equal(found, wanted)


COMBINE = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}


@pytest.mark.parametrize("kind", COMBINE)
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "int16"])
def test_rows_of_one_place_are_combined_in_turn(kind, dtype):
    """150 rows, so two tiles of them, at 7 places and some outside; integers wrap around."""
    table, rows = whole(7, 3, kind=dtype), whole(150, 3, low=-4, high=4, seed=1, kind=dtype)
    ids = RNG.integers(-2, 9, (150, 1)).astype(np.int32)
    options = {"update_window_dims": (1,), "inserted_window_dims": (0,), "scatter_dims": (0,),
               "index_vector_dim": 1}  # fmt: skip
    wanted = table.astype(np.float64 if dtype == "float32" else np.int64)
    with np.errstate(over="ignore"):
        for place, row in zip(ids[:, 0], rows, strict=True):
            if 0 <= place < 7:
                made = COMBINE[kind](wanted[place], row)
                wanted[place] = made if dtype == "float32" else made.astype(dtype)
    (found,), _ = on_chip(lambda v, p, u: g.scatter(v, p, u, kind=kind, **options),
                          table, ids, rows)  # fmt: skip
    np.testing.assert_allclose(found, wanted, 1e-6 * (dtype == "float32"), 0)


def test_rows_of_index_vectors_of_one_number():
    """The result has the axes of the indices without that of the vectors, for its readers too."""
    table, ids = normal(9, 4), RNG.integers(0, 9, (2, 3, 1)).astype(np.int32)
    flags = normal(2, 3) > 0

    def build(t, i, f):
        rows = g.gather(t, i, offset_dims=(2,), collapsed_slice_dims=(0,), start_index_map=(0,),
                        index_vector_dim=2, slice_sizes=(1, 4))
        return g.select(g.broadcast_in_dim(f, (2, 3, 4), (0, 1)), rows, g.full((2, 3, 4), 7.0))
    (found,), _ = on_chip(build, table, ids, flags)
    np.testing.assert_array_equal(found, np.where(flags[..., None], table[ids[..., 0]], 7.0))


def test_windows_are_cut_and_written_where_the_data_say():
    """Windows of two axes at index vectors, pushed inside when cut, and left out element by element
    when written: against loops over them."""
    x, parts = normal(6, 5, 4), normal(4, 2, 3, 4, seed=2)
    corners = np.array([[0, 1], [4, 2], [5, 4], [-1, 3]], np.int32)
    cut = np.stack([
        x[a : a + 2, b : b + 3]
        for a, b in zip(np.clip(corners[:, 0], 0, 4), np.clip(corners[:, 1], 0, 2), strict=True)
    ])  # fmt: skip
    (found,), _ = on_chip(
        lambda v, p: g.gather(v, p, offset_dims=(1, 2, 3), collapsed_slice_dims=(),
                              start_index_map=(0, 1), index_vector_dim=1, slice_sizes=(2, 3, 4)),
        x, corners,
    )  # fmt: skip
    np.testing.assert_array_equal(found, cut)
    wanted = x.copy()
    for (a, b), part in zip(corners, parts, strict=True):
        for i, j in np.ndindex(2, 3):
            if 0 <= a + i < 6 and 0 <= b + j < 5:
                wanted[a + i, b + j] = np.maximum(wanted[a + i, b + j], part[i, j])
    (found,), _ = on_chip(
        lambda v, p, u: g.scatter(v, p, u, kind="maximum", update_window_dims=(1, 2, 3),
                                  inserted_window_dims=(), scatter_dims=(0, 1), index_vector_dim=1),
        x, corners, parts,
    )  # fmt: skip
    np.testing.assert_array_equal(found, wanted)


def test_angles_of_points():
    corners = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, 1e-30, 3.5, -2.0, 1e30]
    y, x = (v.reshape(-1).astype(np.float32) for v in np.meshgrid(corners, corners))
    (found,), _ = on_chip(lambda a, b: g.atan2(a, b), y, x)
    np.testing.assert_allclose(
        found, np.arctan2(y.astype(np.float64), x.astype(np.float64)), 3e-7, 3e-7
    )
    np.testing.assert_array_equal(np.signbit(found), np.signbit(np.arctan2(y, x)))


@pytest.mark.parametrize("kind", ["float32", "uint8", "bool"])
def test_a_slice_is_written_where_the_data_say(kind):
    """Pushed inside at both ends; the places in three integer dtypes."""
    x = whole(4, 5, 6, kind=kind) if kind != "bool" else normal(4, 5, 6) > 0
    part = whole(2, 5, 3, seed=1, kind=kind) if kind != "bool" else normal(2, 5, 3, seed=1) > 0
    for first, last in ((0, 0), (1, 2), (3, 9), (-4, 3)):
        a, b = min(max(first, 0), 2), min(max(last, 0), 3)
        wanted = x.copy()
        wanted[a : a + 2, :, b : b + 3] = part
        (found,), _ = on_chip(
            lambda v, p, i, j, k: g.dynamic_update_slice(v, p, i, j, k), x, part,
            np.int32(first).reshape(()), np.int32(7).reshape(()), np.int32(last).reshape(()),
        )  # fmt: skip
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_places_in_narrow_integers_reach_into_axes_they_cannot_count(kind):
    x = np.arange(5000, dtype=np.float32).reshape(1000, 5)
    places = np.array([[np.iinfo(kind).max - 1, 1], [3, 9], [100, 2]], kind)

    def build(v, at):
        return g.gather(v, at, offset_dims=(), collapsed_slice_dims=(0, 1), slice_sizes=(1, 1),
                        start_index_map=(0, 1), index_vector_dim=1)  # fmt: skip

    (found,), _ = on_chip(build, x, places)
    rows, columns = places.astype(int).T
    np.testing.assert_array_equal(found, x[rows, np.minimum(columns, 4)])
