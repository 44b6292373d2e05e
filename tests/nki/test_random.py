"""nl.rand, nl.random_seed, nl.dropout and nl.gather_flattened."""

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import BoundsError, ShapeError, UsageError
from opentrn.nki import language as nl
from tests.nki.tiles import applied


def numbers(shape, dtype=nl.float32, buffer=nl.sbuf, seed=None, target="trn2", times=1):
    """`times` tensors of random numbers, drawn one after the other after seeding."""

    def kernel():
        made = []
        for _ in range(times):
            if seed is not None:
                nl.random_seed(nl.full((1, 1), seed, dtype=nl.int32))
            drawn = nl.rand(shape, dtype, buffer)
            if nl.is_hbm(buffer):
                made.append(drawn)
                continue
            out = nl.ndarray(drawn.shape, drawn.dtype, buffer=nl.shared_hbm)
            nl.store(out, drawn)
            made.append(out)
        return tuple(made)

    with nki.use_target(target):
        run = nki.run(kernel)
    assert run.findings == ()
    return run.outputs


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.shared_hbm])
def test_numbers_are_uniform_between_0_and_1(target, buffer):
    shape = (300, 40) if buffer is nl.shared_hbm else (128, 100)
    (found,) = numbers(shape, buffer=buffer, target=target)
    assert found.shape == shape
    assert found.dtype == np.float32
    assert found.min() >= 0
    assert found.max() < 1
    # Ten classes of n/10 expected each: chi-squared with 9 degrees of freedom is below 27.9
    # with probability 0.999.
    counts, _ = np.histogram(found, 10, (0, 1))
    expected = found.size / 10
    assert ((counts - expected) ** 2 / expected).sum() < 27.9
    assert len(np.unique(found)) > 0.99 * found.size


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_one_seed_gives_one_sequence_and_another_seed_another(target):
    first, again = numbers((64, 32), seed=42, target=target, times=2)
    np.testing.assert_array_equal(first, again)
    (other,) = numbers((64, 32), seed=43, target=target)
    assert (first != other).mean() > 0.99
    one, two = numbers((64, 32), target=target, times=2)
    assert (one != two).mean() > 0.99


def test_low_precision_numbers_are_rounded():
    (found,) = numbers((128, 64), nl.bfloat16)
    assert found.dtype.name == "bfloat16"
    wide = found.astype(np.float64)
    assert wide.min() >= 0
    assert wide.max() <= 1
    assert abs(wide.mean() - 0.5) < 0.02


def test_a_seed_is_a_tile_of_one_word():
    def with_seed(make):
        def kernel():
            nl.random_seed(make())

        return kernel

    wrong = (
        lambda: 42,
        lambda: nl.zeros((1, 2), nl.int32),
        lambda: nl.zeros((1, 1), nl.float16),
        lambda: nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm),
    )
    for make in wrong:
        with pytest.raises(UsageError) as caught:
            nki.run(with_seed(make))
        assert caught.value.code == "nki.seed"


def test_dropout_zeroes_a_share_and_keeps_the_rest_as_it_is():
    x = np.arange(1, 128 * 200 + 1, dtype=np.float32).reshape(128, 200)
    for rate in (0.0, 0.25, 1.0):
        found = applied(lambda t, rate=rate: nl.dropout(t, rate), x)
        kept = found != 0
        np.testing.assert_array_equal(found[kept], x[kept])
        assert abs(1 - kept.mean() - rate) < 0.012  # four deviations of 25,600 draws
    rates = np.repeat(np.float32([0, 1]), 64).reshape(128, 1)
    found = applied(lambda t, r: nl.dropout(t, r), x, rates)
    np.testing.assert_array_equal(found[:64], x[:64])
    assert not found[64:].any()


def test_dropout_casts_to_the_dtype_asked_for():
    x = np.full((4, 4), 1.0078125, np.float32)  # between two bfloat16 numbers: 1 + 2⁻⁷ is one
    found = applied(lambda t: nl.dropout(t, 0.0, dtype=nl.bfloat16), x)
    assert found.dtype.name == "bfloat16"
    assert (found.astype(np.float32) == 1.0078125).all()


DATA = np.arange(4 * 3 * 5, dtype=np.float32).reshape(4, 3, 5)


@pytest.mark.parametrize("kind", [np.uint32, np.int32, np.uint16, np.int8])
def test_a_gather_counts_the_free_dimensions_as_one(kind):
    index = np.random.default_rng(3).integers(0, 15, (4, 2, 4)).astype(kind)
    wanted = np.take_along_axis(DATA.reshape(4, 15), index.reshape(4, 8).astype(int), 1)
    found = applied(nl.gather_flattened, DATA, index)
    np.testing.assert_array_equal(found, wanted.reshape(4, 2, 4))
    cast = applied(lambda d, i: nl.gather_flattened(d, i, dtype=nl.int32), DATA, index)
    np.testing.assert_array_equal(cast, wanted.reshape(4, 2, 4).astype(np.int32))


def test_a_gather_of_other_rows_or_outside_is_refused():
    for kind in (np.uint32, np.int32):
        for bad in (15, -1 if kind is np.int32 else 99):
            with pytest.raises(BoundsError):
                applied(nl.gather_flattened, DATA, np.full((4, 2), bad, kind))
    cases = (
        (ShapeError, lambda d, i: nl.gather_flattened(d, i[0:2])),
        (ShapeError, nl.gather_flattened),
        (UsageError, lambda d, i: nl.gather_flattened(d, i, axis=1)),
    )
    indices = (np.uint32, np.float32, np.uint32)
    for (error, function), kind in zip(cases, indices, strict=True):
        with pytest.raises(error) as caught:
            applied(function, DATA, np.zeros((4, 2), kind))
        assert caught.value.code == "nki.gather"
