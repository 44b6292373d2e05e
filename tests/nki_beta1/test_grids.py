"""Index grids and masks against NumPy fancy indexing, with random shapes, steps and offsets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import ShapeError, TrnError, UsageError
from opentrn.nki import beta1 as nki
from opentrn.nki.beta1 import language as nl
from opentrn.nki.beta1.masks import Mask, rectangle, rectangles

FEW = settings(max_examples=40, deadline=None)


def values(mask: Mask, shape) -> np.ndarray:
    """A mask by its definition, position by position."""
    held = np.ones(shape, bool)
    for size, offset, steps in mask.conditions:
        full = np.broadcast_to(np.zeros(size), shape).shape
        assert full == tuple(shape)
        pad = len(shape) - len(size)
        moves = [0] * pad + [0 if n == 1 else s for n, s in zip(size, steps, strict=True)]
        held &= offset + sum(s * i for s, i in zip(moves, np.indices(shape), strict=True)) >= 0
    return held


def covered(pieces, shape) -> np.ndarray:
    """How many of the rectangles contain each position."""
    count = np.zeros(shape, int)
    for piece in pieces:
        count[tuple(slice(low, high) for low, high in piece)] += 1
    return count


@FEW
@given(st.data())
def test_arithmetic_is_that_of_numpy_arrays(data):
    n, m = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    a, b = nl.arange(n)[:, None], nl.arange(m)[None, :]
    x, y = np.arange(n)[:, None], np.arange(m)[None, :]
    k, j = data.draw(st.integers(-7, 7)), data.draw(st.integers(-7, 7))
    np.testing.assert_array_equal((a * k + b - j).numpy(), x * k + y - j)
    np.testing.assert_array_equal((j - a + 2 * b).numpy(), j - x + 2 * y)
    np.testing.assert_array_equal((-(a + b) * 3).numpy(), -(x + y) * 3)


def test_mgrid_has_the_values_of_numpy_mgrid():
    p, f, g = nl.mgrid[0:3, 2:8:2, 0:2]
    for ours, theirs in zip((p, f, g), np.mgrid[0:3, 2:8:2, 0:2], strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)
    mesh = nl.mgrid[0:3, 0:4]
    assert (mesh.p.shape, mesh.x.shape) == ((3, 4), (3, 4))


def test_exact_division_and_remainder_stay_affine():
    grid = nl.arange(4)[:, None] * 6 + 12
    np.testing.assert_array_equal((grid // 3).numpy(), [[4], [6], [8], [10]])
    np.testing.assert_array_equal((grid % 6).numpy(), [[0]] * 4)


@pytest.mark.parametrize(
    "use",
    [
        lambda g: g // 2,
        lambda g: g % 2,
        lambda g: g * g,
        lambda g: g / 2,
        lambda g: g**2,
        lambda g: g != 1,
        lambda g: bool(g),
    ],
)
def test_what_is_not_affine_is_refused(use):
    with pytest.raises(UsageError) as refused:
        use(nl.arange(4)[:, None])
    assert refused.value.code == "beta1.affine"
    assert len(str(refused.value).splitlines()) in (4, 5)


@FEW
@given(st.data())
def test_masks_are_cut_into_disjoint_rectangles(data):
    shape = tuple(data.draw(st.integers(1, most)) for most in (8, 8, 4))
    grids = nl.mgrid[0 : shape[0], 0 : shape[1], 0 : shape[2]]
    steps = [data.draw(st.integers(-2, 2)) for _ in shape]
    start, limit = data.draw(st.integers(-6, 6)), data.draw(st.integers(-3, 9))
    mask = (sum(s * g for s, g in zip(steps, grids, strict=True)) + start < limit) & (
        grids[1] >= data.draw(st.integers(-1, 4))
    )
    where = sum(s * i for s, i in zip(steps, np.indices(shape), strict=True)) + start < limit
    held = values(mask, shape)
    assert not (held & ~where).any()
    np.testing.assert_array_equal(covered(rectangles(mask, shape), shape), held)
    whole = rectangle(mask, shape)
    if whole is not None:
        np.testing.assert_array_equal(covered([whole], shape), held)


def test_and_and_chained_comparisons_join_masks():
    i, j = nl.mgrid[0:6, 0:7]
    both = i < 3 and j < 4
    np.testing.assert_array_equal(values(both, (6, 7)), values((i < 3) & (j < 4), (6, 7)))
    three = i < 3 and j < 4 and j > 1
    assert values(three, (6, 7)).sum() == 3 * 2
    between = 1 <= i < 4
    np.testing.assert_array_equal(rectangle(between, (6, 7)), ((1, 4), (0, 7)))
    alone = j < 2
    assert rectangle(alone, (6, 7)) == ((0, 6), (0, 2))


def test_equality_and_inversion():
    i, j = nl.mgrid[0:5, 0:5]
    np.testing.assert_array_equal(values(i == j, (5, 5)), np.eye(5, dtype=bool))
    np.testing.assert_array_equal(values(~(i < 2), (5, 5)), np.indices((5, 5))[0] >= 2)


@pytest.mark.parametrize(
    "use",
    [lambda m: 1 if m else 2, lambda m: not m, lambda m: m or True, lambda m: m | m],
)
def test_masks_are_no_truth_values(use):
    with pytest.raises(UsageError) as refused:
        use(nl.arange(4)[:, None] < 2)
    assert refused.value.code in ("beta1.mask_truth", "beta1.mask_or")


def test_a_mask_must_fit_its_tile():
    with pytest.raises(ShapeError) as refused:
        rectangle(nl.arange(5)[:, None] < 3, (4, 4))
    assert refused.value.code == "beta1.mask_shape"


@nki.jit
def picked(x, rows, columns, mask):
    """The part of x that the grids name, where the mask holds, over a tile of -1."""
    tile = nl.full((rows.shape[0], columns.shape[1]), -1.0, nl.float32)
    tile[...] = nl.load(x[rows, columns], mask=mask)
    out = nl.ndarray(tile.shape, nl.float32, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


@FEW
@given(st.data())
def test_masked_loads_are_numpy_fancy_indexing(data):
    x = np.arange(7 * 11, dtype=np.float32).reshape(7, 11)
    n, m = data.draw(st.integers(1, 6)), data.draw(st.integers(2, 8))
    a, b = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    p, f = np.arange(n)[:, None] * a, np.arange(m)[None, :] * b + np.arange(n)[:, None]
    i, j = nl.arange(n)[:, None], nl.arange(m)[None, :]
    inside = (p < 7) & (f < 11)
    expected = np.where(inside, x[np.minimum(p, 6), np.minimum(f, 10)], -1)
    got = picked(x, i * a, j * b + i, (i * a < 7) & (j * b + i < 11))
    np.testing.assert_array_equal(got, expected)


@nki.jit
def scattered(values_, rows, columns, mask, shape):
    """The values stored at the positions of the grids into zeros, where the mask holds."""
    out = nl.zeros(shape, nl.float32, buffer=nl.shared_hbm)
    nl.store(out[rows, columns], nl.load(values_), mask=mask)
    return out


@FEW
@given(st.data())
def test_masked_stores_write_what_numpy_writes(data):
    n, m = data.draw(st.integers(2, 6)), data.draw(st.integers(2, 6))
    v = np.arange(1, n * m + 1, dtype=np.float32).reshape(n, m)
    i, j = nl.arange(n)[:, None], nl.arange(m)[None, :]
    p, f = np.indices((n, m))
    limit = data.draw(st.integers(1, n + m))
    expected = np.zeros((9, 13), np.float32)
    keep = p + f < limit
    expected[(p + 1)[keep], (2 * f)[keep]] = v[keep]
    got = scattered(v, i + 1, j * 2, i + j < limit, (9, 13))
    np.testing.assert_array_equal(got, expected)


@nki.jit
def part_of(x, key):
    """A tile of x read by the key that key() gives, written to a tensor of the tile's shape."""
    tile = nl.load(x[key()])
    out = nl.ndarray(tile.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


@pytest.mark.parametrize(
    ("ours", "numpys"),
    [
        ((1, slice(None), slice(2, 9)), np.s_[1, :, 2:9]),
        ((slice(0, 3), 2, slice(0, 12, 5)), np.s_[0:3, 2, 0:12:5]),
        ((Ellipsis, slice(-4, None)), np.s_[..., -4:]),
        ((nl.arange(4)[:, None], 3, nl.arange(6)[None, :] * 2), np.s_[0:4, 3, 0:12:2]),
        ((2, nl.ds(1, 4), nl.ds(3, 5)), np.s_[2, 1:5, 3:8]),
        ((nl.mgrid[0:4, 0:3, 0:5].p, nl.mgrid[0:4, 0:3, 0:5].x, nl.mgrid[0:4, 0:3, 0:5].y),
         np.s_[0:4, 0:3, 0:5]),
        ((np.arange(3)[:, None], np.array([[4]]), np.arange(0, 10, 3)[None, :]),
         np.s_[0:3, 4, 0:10:3]),
    ],
)  # fmt: skip
def test_every_form_of_index(ours, numpys):
    x = np.arange(4 * 6 * 12, dtype=np.float32).reshape(4, 6, 12)
    np.testing.assert_array_equal(part_of(x, lambda: ours), x[numpys])


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ((nl.arange(6)[:, None], 0, nl.arange(4)[None, :]), "beta1.bounds"),
        ((0, 0, nl.arange(13)[None, :]), "beta1.bounds"),
        ((0, 0, 0, 0), "beta1.index"),
        ((0, 0.5), "beta1.index"),
        ((nl.arange(3)[:, None], nl.arange(4)[:, None], 0), "beta1.grid"),
        ((np.array([[0], [1], [3]]), 0, 0), "beta1.affine"),
        ((slice(2, 2),), "beta1.bounds"),
    ],
)
def test_bad_indices_name_their_rule(key, code):
    x = np.zeros((4, 6, 12), np.float32)
    with pytest.raises(TrnError) as refused:
        part_of(x, lambda: key)
    assert refused.value.code == code
    assert "test_grids.py" in str(refused.value)
