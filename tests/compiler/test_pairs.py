"""uint64 between words of 32 bits, against NumPy's uint64; generators against the graph's."""

import numpy as np
import pytest

from opentrn import compiler
from opentrn.base import UnsupportedError
from opentrn.graph import Graph, g
from opentrn.graph.ops.random import philox
from tests.compiler.running import on_chip

WORDS = np.array([[0, 0], [1, 0], [0xFFFFFFFF, 0], [0, 1], [0xFFFFFFFF, 0xFFFFFFFF],
                  [5, 0x80000000], [0x80000000, 0x7FFFFFFF], [123456789, 987654321]], np.uint32)
ONE, OTHER = (np.ascontiguousarray(v) for v in (np.repeat(WORDS, 8, 0), np.tile(WORDS, (8, 1))))


def wide(words):
    return np.ascontiguousarray(words).view(np.uint64).reshape(-1)


def computed(build, *arrays):
    """What the chip makes of uint64 given and read as words, and as NumPy's uint64."""
    def whole(*values):
        return g.bitcast_convert(build(*(g.bitcast_convert(v, "uint64") for v in values)), "uint32")

    (found,), _ = on_chip(whole, *arrays)
    return wide(found)


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "and", "or", "xor"])
def test_arithmetic_of_two(op):
    names = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
    own = g.and_ if op == "and" else g.or_ if op == "or" else getattr(g, op)
    with np.errstate(over="ignore"):
        want = getattr(np, names.get(op, op))(wide(ONE), wide(OTHER))
    np.testing.assert_array_equal(computed(own, ONE, OTHER), want)


@pytest.mark.parametrize("places", [0, 1, 13, 31, 32, 33, 63, 64, 70])
def test_shifts_by_known_places(places):
    up = computed(lambda x: g.shift_left(x, g.like(x, places)), WORDS)
    down = computed(lambda x: g.shift_right_logical(x, g.like(x, places)), WORDS)
    numbers = [int(n) for n in wide(WORDS)]
    np.testing.assert_array_equal(up, [np.uint64(n << places & (1 << 64) - 1) for n in numbers])
    np.testing.assert_array_equal(down, [np.uint64(n >> places) for n in numbers])


@pytest.mark.parametrize("direction", ["EQ", "NE", "LT", "LE", "GT", "GE"])
def test_comparisons(direction):
    def build(x, y):
        x, y = (g.bitcast_convert(v, "uint64") for v in (x, y))
        return g.compare(x, y, direction=direction)
    names = {"EQ": "equal", "NE": "not_equal", "LT": "less", "LE": "less_equal", "GT": "greater",
             "GE": "greater_equal"}  # fmt: skip
    (found,), _ = on_chip(build, ONE, OTHER)
    np.testing.assert_array_equal(found, getattr(np, names[direction])(wide(ONE), wide(OTHER)))


def test_moves_and_constants():
    """Slices, joins, turns and choices move both words; an inverse turns both."""
    known = np.array([7, 2**63 + 3, 2**40], np.uint64)

    def build(x, y):
        joined = g.concatenate(g.slice(x, (2,), (7,), (1,)), g.constant(known), dimension=0)
        square = g.transpose(g.reshape(joined, (2, 4)), (1, 0))
        other = g.not_(g.reshape(y, (4, 2)))
        return g.reshape(g.select(g.compare(square, other, direction="LT"), square, other), (8,))
    x, y = wide(WORDS), wide(WORDS[::-1])
    square = np.concatenate([x[2:7], known]).reshape(2, 4).T
    want = np.minimum(square, ~y.reshape(4, 2)).reshape(-1)
    np.testing.assert_array_equal(computed(build, WORDS, WORDS[::-1].copy()), want)


def test_counters_are_numbers_of_64_bits():
    """What counts along an axis, multiplied beyond 32 bits, as JAX makes its counters."""
    def build(x):
        counted = g.iota((3, 4), 0, "uint64") * g.full((3, 4), 2**33 + 5, "uint64")
        high = g.shift_right_logical(counted, g.like(counted, 32))
        return g.cast(high, "uint32"), g.cast(counted, "uint32") + x
    (high, low), _ = on_chip(build, np.zeros((3, 4), np.uint32))
    np.testing.assert_array_equal(high, np.repeat([[0], [2], [4]], 4, 1))
    np.testing.assert_array_equal(low, np.repeat([[0], [5], [10]], 4, 1))


def test_signs_are_extended_and_halves_multiplied():
    """int32 and int64 to uint64 keep their sign; the upper half of a product is read by a shift."""
    x = np.array([-1, 5, -(2**31), 2**31 - 1], np.int32)

    def build(a):
        long = g.multiply(g.cast(a, "uint64"), g.full((4,), 0xD2511F53, "uint64"))
        again = g.bitcast_convert(g.cast(a, "int64"), "uint64")
        return tuple(g.cast(g.shift_right_logical(v, g.like(v, 32)), "uint32")
                     for v in (long, again))  # fmt: skip
    (high, sign), _ = on_chip(build, x)
    numbers = [int(n) % 2**64 for n in x]
    np.testing.assert_array_equal(high, [(n * 0xD2511F53 % 2**64) >> 32 for n in numbers])
    np.testing.assert_array_equal(sign, [n >> 32 for n in numbers])


def test_a_counter_of_128_bits_carries_over():
    """Philox of a key and two numbers that count on: all words of each block by the published
    rounds, and the next state read back."""
    key, low, high = 0x123456789ABCDEF, 2**64 - 2, 2**40 + 5
    words = np.array([key, low, high], np.uint64).view(np.uint32).reshape(3, 2)

    def build(w):
        call = g.rng_bit_generator(g.bitcast_convert(w, "uint64") + g.full((3,), 0, "uint64"),
                                   "PHILOX", (4, 4), "uint32")
        state = g.slice(g.get_tuple_element(call, 0), (1,), (3,), (1,))
        return g.get_tuple_element(call, 1), g.bitcast_convert(state, "uint32")
    (bits, after), _ = on_chip(build, words)
    at = [(low + n + (high << 64)) % 2**128 for n in range(4)]
    counters = [np.array([c >> 32 * i & 0xFFFFFFFF for c in at], np.uint32) for i in range(4)]
    want = np.stack(philox(counters, (key & 0xFFFFFFFF, key >> 32)), axis=1)
    np.testing.assert_array_equal(bits, want)
    np.testing.assert_array_equal(wide(after), np.array([2, high + 1], np.uint64))


def test_what_has_no_rule_stays_refused():
    """Shifts by places the data say, and what a region or a quotient makes, are not guessed."""
    x = g.bitcast_convert(g.input("x", (8, 2), "uint32"), "uint64")
    third = g.divide(x, g.like(x, 3))
    for made in (g.shift_left(x, x), g.shift_right_logical(third, g.like(x, 32))):
        with pytest.raises(UnsupportedError, match="32 of the bits of uint64"):
            compiler.compile(Graph([x.args[0]], [g.cast(made, "uint32")]))
