"""Loops that run as often as their data say, on the chip: the counts known by hand."""

import numpy as np
import pytest

from opentrn import compiler, runtime
from opentrn.base import UnsupportedError
from opentrn.graph import Graph, Region, Type, g, graph_dtype
from tests.compiler.running import normal, on_chip


def kinds(*values):
    return [v.type for v in values]


def looped(cond, body, *state, fixed=()):
    """The parts of a loop on these values."""
    given = kinds(*state, *fixed)
    made = g.while_(*state, *fixed, cond=Region.of(cond, *given), body=Region.of(body, *given))
    return tuple(g.get_tuple_element(made, n) for n in range(len(state)))


def steps_of_collatz(n):
    count = 0
    while n != 1:
        n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
    return count


@pytest.mark.parametrize("start", [1, 2, 27, 97])
def test_a_loop_of_unknown_length(start):
    """Also one that does not run at all."""
    def cond(n, count):
        return g.compare(n, g.like(n, 1), direction="NE")

    def body(n, count):
        even = g.compare(g.remainder(n, g.like(n, 2)), g.like(n, 0), direction="EQ")
        half, more = g.divide(n, g.like(n, 2)), n * 3 + 1
        return g.select(even, half, more), count + 1

    found, _ = on_chip(lambda n: looped(cond, body, n, g.full((), 0, "int32")),
                       np.int32(start).reshape(()))  # fmt: skip
    assert [int(x) for x in found] == [1, steps_of_collatz(start)]


def test_states_change_places_and_read_what_stays():
    """Two arrays swap in each turn, a third grows by what the loop is given; 5 turns."""
    x, y, step = normal(3, 4), normal(3, 4, seed=1), normal(4, 3, seed=2)

    def cond(n, a, b, total, given):
        return g.compare(n, g.like(n, 5), direction="LT")

    def body(n, a, b, total, given):
        return n + g.cast(g.full((), 1, "int32"), "int32"), b, a, total + given

    def build(a, b, given):
        # A limit that is no constant, so that the loop is not copied out.
        start = g.cast(g.reduce(given * 0.0, kind="maximum", dimensions=(0, 1)), "int32")
        total = g.full(given.shape, 0.0)
        return looped(cond, body, start, a, b, total, fixed=(given,))

    found, _ = on_chip(build, x, y, step)
    assert int(found[0]) == 5
    np.testing.assert_array_equal(found[1], y)
    np.testing.assert_array_equal(found[2], x)
    np.testing.assert_allclose(found[3], 5.0 * step.astype(np.float64), 1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loop_in_a_loop_until_it_converges(dtype):
    """The square root of each number by Newton's method, all in turn; floats stored narrowly
    between ops stay what the loop hands on."""
    x = np.array([2.0, 9.0, 1e4], np.float32)

    def build(v):
        def outer_cond(i, roots, given):
            return g.compare(i, g.like(i, 3), direction="LT")

        def outer(i, roots, given):
            one = g.dynamic_slice(given, i, sizes=(1,))

            def away(root, n):
                rest = g.abs(root * root - one_in(n)) / one_in(n)
                return g.reshape(g.compare(rest, g.like(rest, 1e-2), direction="GT"), ())

            def one_in(n):
                return n

            def newton(root, n):
                return (root + n / root) * 0.5
            (root,) = looped(away, newton, g.full((1,), 50.0), fixed=(one,))
            hit = g.compare(g.iota((3,), 0, "int32"), g.broadcast_in_dim(i, (3,), ()), "EQ")
            return i + 1, g.select(hit, g.broadcast(root, (3,)), roots)
        start = g.cast(g.reduce(v * 0.0, kind="maximum", dimensions=(0,)), "int32")
        return looped(outer_cond, outer, start, g.full((3,), 0.0), fixed=(v,))

    found, _ = on_chip(build, x, dtype=dtype)
    np.testing.assert_allclose(found[1], np.sqrt(x), 1.5e-2)


def test_time_counts_the_turns_of_the_last_run():
    def build(n):
        return looped(lambda k: g.compare(k, g.like(k, 0), direction="GT"),
                      lambda k: k - 1, n)[0]  # fmt: skip

    n = g.input("n", (), "int32")
    model = runtime.load(compiler.compile(Graph([n], [build(n)])))
    times = []
    for turns in (1, 2, 11):
        assert int(model(np.int32(turns))) == 0
        times.append(model.time().total_ns)
    np.testing.assert_allclose(times[2] - times[1], 9 * (times[1] - times[0]), 0.1)


def test_ops_inside_are_refused_with_those_outside():
    kind = Type((4,), graph_dtype("int64"))

    def body(x):
        return g.shift_right_logical(x, x)

    def cond(x):
        return g.compare(g.reduce(x, kind="add", dimensions=(0,)), g.full((), 0, "int64"), "GT")

    x = g.input("x", kind.shape, kind.dtype)
    graph = Graph([x], [looped(cond, body, x)[0], g.popcnt(g.cast(x, "uint64"))])
    with pytest.raises(UnsupportedError, match=r"(?s)popcnt.*shift_right_logical"):
        compiler.compile(graph)
