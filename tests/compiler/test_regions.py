"""Reductions, windows, sorts by a function of the program's own, on the chip, against loops."""

import itertools

import numpy as np
import pytest

from opentrn.base import UnsupportedError
from opentrn.graph import Region, Type, g, graph_dtype
from tests.compiler.running import normal, on_chip, whole


def scalar(kind):
    return Type((), graph_dtype(kind))


def region(function, *kinds):
    return Region.of(function, *map(scalar, kinds))


def log_sum(a, b):
    top = g.maximum(a, b)
    return top + g.log(g.exponential(a - top) + g.exponential(b - top))


def test_a_reduction_over_several_axes():
    x = normal(3, 5, 7)
    body = region(log_sum, "float32", "float32")
    (found,), _ = on_chip(
        lambda v: g.get_tuple_element(
            g.reduce_with(v, g.full((), -1e30), dimensions=(0, 2), body=body), 0), x,
    )  # fmt: skip
    wanted = np.log(np.exp(x.astype(np.float64)).sum((0, 2)))
    np.testing.assert_allclose(found, wanted, 1e-5)


def test_elements_are_combined_in_their_order():
    """a ∘ b = b keeps the last; a product of matrices, held as four arrays, tells every order."""
    x = whole(4, 11, low=-1, high=1, seed=2)

    def product(a, b, c, d, e, f, h, i):
        return a * e + b * h, a * f + b * i, c * e + d * h, c * f + d * i

    body = region(product, *["int32"] * 8)

    def build(v):
        parts = [g.reshape(g.slice(v, (n, 0), (n + 1, 11), (1, 1)), (11,)) for n in range(4)]
        ends = [g.full((), n, "int32") for n in (1, 0, 0, 1)]
        call = g.reduce_with(*parts, *ends, dimensions=(0,), body=body)
        return tuple(g.get_tuple_element(call, n) for n in range(4))

    found, _ = on_chip(build, x)
    wanted = np.eye(2, dtype=np.int64)
    for n in range(11):
        wanted = wanted @ x[:, n].reshape(2, 2)
    np.testing.assert_array_equal(np.array(found).reshape(2, 2), wanted)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
def test_windows_of_any_width(width):
    """Strided, dilated, padded with what begins each result."""
    x = normal(2, 19)
    body = region(log_sum, "float32", "float32")
    (found,), _ = on_chip(
        lambda v: g.get_tuple_element(g.reduce_window_with(
            v, g.full((), -30.0), body=body, window=(1, width), strides=(1, 2),
            base_dilation=(1, 1), dilation=(1, 2), padding=((0, 0), (2, 1))), 0), x,
    )  # fmt: skip
    padded = np.pad(x.astype(np.float64), ((0, 0), (2, 1)), constant_values=-30.0)
    count = (22 - 2 * (width - 1) - 1) // 2 + 1
    wanted = [
        np.log(np.exp(-30.0) + np.exp(padded[:, 2 * n : 2 * n + 2 * width : 2]).sum(1))
        for n in range(count)
    ]
    np.testing.assert_allclose(found, np.array(wanted).T, 1e-5)


@pytest.mark.parametrize("kind", ["float32", "int16"])
@pytest.mark.parametrize("padding", [((0, 0), (0, 0)), ((1, 0), (1, 2))])
def test_the_gradient_of_pooling(kind, padding):
    """Overlapping windows with ties: each gives its number to its first largest element."""
    x = whole(6, 9, low=-3, high=3).astype(kind)
    size = [(n + sum(p) - w) // s + 1
            for n, p, w, s in zip(x.shape, padding, (3, 2), (2, 1), strict=True)]  # fmt: skip
    source = whole(*size, seed=1).astype(kind)
    (found,), _ = on_chip(
        lambda v, s: g.select_and_scatter(
            v, s, g.full((), 2, kind), window=(3, 2), strides=(2, 1), padding=padding,
            select=region(lambda a, b: g.compare(a, b, direction="GE"), kind, kind),
            scatter=region(lambda a, b: a + b, kind, kind)),
        x, source,
    )  # fmt: skip
    wanted = np.full(x.shape, 2.0)
    for i, j in np.ndindex(*size):
        places = [
            (r, c)
            for r, c in itertools.product(range(2 * i - padding[0][0], 2 * i - padding[0][0] + 3),
                                          range(j - padding[1][0], j - padding[1][0] + 2))
            if 0 <= r < 6 and 0 <= c < 9
        ]  # fmt: skip
        if places:
            best = max(places, key=lambda p: (x[p], -p[0], -p[1]))
            wanted[best] += source[i, j]
    np.testing.assert_array_equal(found, wanted)


def test_sorts_by_two_keys():
    """By the first falling, then by the second rising; equal pairs stay as they were."""
    first, second = whole(3, 40, low=0, high=3), whole(3, 40, low=0, high=2, seed=1)
    third = np.arange(120, dtype=np.int32).reshape(3, 40)

    def before(a, b, c, d, e, f):
        same = g.and_(g.compare(a, b, direction="EQ"), g.compare(c, d, direction="LT"))
        return g.or_(g.compare(a, b, direction="GT"), same)

    body = region(before, *["int32"] * 6)

    def build(*lines):
        call = g.sort_with(*lines, dimension=1, results=3, comparator=body)
        return tuple(g.get_tuple_element(call, n) for n in range(3))

    found, _ = on_chip(build, first, second, third)
    for row in range(3):
        order = sorted(range(40), key=lambda n: (-first[row, n], second[row, n], n))
        for one, given in zip(found, (first, second, third), strict=True):
            np.testing.assert_array_equal(one[row], given[row][order])


def test_what_is_refused_says_why():
    kind = scalar("float32")
    less = Region.of(lambda a, b: g.compare(a, b, direction="LT"), kind, kind)
    with pytest.raises(UnsupportedError, match="does not take this many elements"):
        on_chip(
            lambda v: g.get_tuple_element(
                g.sort_with(v, dimension=0, results=1, comparator=less), 0), normal(1 << 13),
        )  # fmt: skip


def test_padding_that_cuts_at_one_end_and_grows_at_the_other_is_chosen_from_by_no_window():
    """Windows of two of [-2 … -6, padding]: the last has -6 alone to choose from."""
    x = -np.arange(1, 7, dtype=np.float32)
    source = np.array([10, 20, 30], np.float32)

    def build(v, s):
        return g.select_and_scatter(
            v, s, g.full((), 0.0), window=(2,), strides=(2,), padding=((-1, 1),),
            select=region(lambda a, b: g.compare(a, b, direction="GE"), "float32", "float32"),
            scatter=region(lambda a, b: a + b, "float32", "float32"),
        )  # fmt: skip

    (found,), _ = on_chip(build, x, source)
    np.testing.assert_array_equal(found, [0, 10, 0, 20, 0, 30])
