"""The reduce kernel over any axes against NumPy."""

import itertools

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import UnsupportedError
from opentrn.nki import kernels
from tests.nki.kernel_checks import close, every_dtype, every_target, exact, numbers, run, sums

FUNCTIONS = {"add": np.sum, "multiply": np.prod, "maximum": np.max, "minimum": np.min}
AXES = [c for n in (1, 2, 3) for c in itertools.combinations(range(3), n)]


@every_target
@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("axes", AXES)
def test_every_choice_of_axes(target, op, axes):
    x = numbers(0, 3, 130, 70)
    x = (1 + x * 0.01).astype(np.float32) if op == "multiply" else x
    want = np.atleast_1d(FUNCTIONS[op](exact(x), axis=axes))
    found = run(kernels.reduce, x, op, axes, target=target)
    count = x.size // want.size
    close(found, want, sums(count) * (count if op == "multiply" else 4))


@every_dtype
@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (1, 129), (300, 513)])
def test_sums_of_any_size_are_rounded_once(shape, dtype):
    x = np.abs(numbers(0, *shape, dtype=dtype))
    for axis in (0, 1):
        found = run(kernels.reduce, x, "add", axis)
        close(found, exact(x).sum(axis), 1.1 if dtype == "bfloat16" else sums(shape[axis]))
    wide = run(kernels.reduce, x, "add", -1, out_dtype="float32")
    close(wide, exact(x).sum(-1), sums(shape[1]))


def test_long_rows():
    x = numbers(0, 3, 20001)
    assert np.array_equal(run(kernels.reduce, x, "maximum", 1), x.max(1))
    close(run(kernels.reduce, np.abs(x), "add", 1), np.abs(exact(x)).sum(1), sums(20001))


@pytest.mark.parametrize(("shape", "axes"), [
    ((300, 1001), (0, 1)),  # every element: pieces of rows on all lanes
    ((1000003,), (0,)),  # a prime number of them: what is left over is combined by itself
    ((7, 99999), (1,)),  # a few long rows
    ((3, 129, 400), (1, 2)),
    ((5, 4, 64, 128), (1,)),  # a few planes, element by element
    ((5, 2, 3, 64, 128), (1, 2)),
])  # fmt: skip
def test_few_long_rows_and_few_planes(shape, axes):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    length = np.prod([shape[a] for a in axes])
    kept = exact(x).sum(axes).reshape(-1)
    found = run(kernels.reduce, np.abs(x), "add", axes).reshape(-1)
    close(found, np.abs(exact(x)).sum(axes).reshape(kept.shape), sums(length))
    for op, meant in (("maximum", np.max), ("minimum", np.min)):
        assert np.array_equal(run(kernels.reduce, x, op, axes).reshape(-1),
                              meant(x, axes).reshape(-1))  # fmt: skip
    whole = (x * 1000).astype(np.int32)
    assert np.array_equal(run(kernels.reduce, whole, "add", axes).reshape(-1),
                          whole.sum(axes, dtype=np.int32).reshape(-1))  # fmt: skip
    assert np.array_equal(run(kernels.reduce, x > 4, "or", axes).reshape(-1),
                          (x > 4).any(axes).reshape(-1))  # fmt: skip


def test_integers_are_exact():
    x = np.random.default_rng(0).integers(-(2**30), 2**30, (37, 133)).astype(np.int32)
    for axis in (0, 1):
        found = run(kernels.reduce, x, "add", axis)
        assert np.array_equal(found, x.sum(axis, dtype=np.int32))
        assert np.array_equal(run(kernels.reduce, x, "maximum", axis), x.max(axis))


def test_booleans():
    x = np.random.default_rng(0).random((9, 5)) > 0.7
    assert np.array_equal(run(kernels.reduce, x, "or", 1), x.any(1))
    assert np.array_equal(run(kernels.reduce, x, "and", 0), x.all(0))


@nki.jit
def _of_a_turned_view(x):
    return kernels.reduce(x.permute((2, 0, 1)), "add", (1,))


def test_views():
    x = numbers(0, 5, 140, 30)
    close(run(_of_a_turned_view, x), exact(x).sum(0).T, sums(5))


def test_other_operators_are_refused():
    with pytest.raises(UnsupportedError, match="median"):
        nki.run(kernels.reduce, numbers(0, 3, 3), "median", 0)
