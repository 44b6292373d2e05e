"""Integers and bits on the chip, each against Python's own arithmetic of whole numbers."""

import ml_dtypes
import numpy as np
import pytest

from opentrn.base import UnsupportedError
from opentrn.graph import g
from tests.compiler.running import normal, on_chip

KINDS = ["int8", "uint8", "int16", "uint16", "int32", "uint32"]


def edges(kind, seed=0):
    """The ends of a dtype, small numbers, and some at random."""
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    some = np.random.default_rng(seed).integers(low, high, 40, np.int64, endpoint=True)
    near = [low, low + 1, high, high - 1, high // 2, high // 2 + 1, 0, 1, 2, 3, 7]
    near += [-1, -2, -7] if low < 0 else []
    return np.array([*near, *some], np.int64)


def pairs(kind):
    a, b = (v.reshape(-1) for v in np.meshgrid(edges(kind), edges(kind, 1)))
    return a, b


def wrapped(number, kind):
    """A whole number as a dtype holds it."""
    bits, low = np.iinfo(kind).bits, np.iinfo(kind).min
    return (int(number) - low) % (1 << bits) + low


@pytest.mark.parametrize("kind", KINDS)
def test_quotients_and_what_is_left(kind):
    """Truncated towards zero; by zero every bit is set, and all is left."""
    a, b = pairs(kind)
    quotient, left = [], []
    for n, d in zip(a.tolist(), b.tolist(), strict=True):
        q = abs(n) // abs(d) * (1 if (n < 0) == (d < 0) else -1) if d else -1
        quotient.append(wrapped(q, kind))
        left.append(n - q * d if d else n)
    (found, rest), _ = on_chip(lambda x, y: (g.divide(x, y), g.remainder(x, y)),
                               a.astype(kind), b.astype(kind))  # fmt: skip
    np.testing.assert_array_equal(found.astype(np.int64), quotient)
    np.testing.assert_array_equal(rest.astype(np.int64), left)


@pytest.mark.parametrize("kind", KINDS)
def test_shifts(kind):
    """By any number of places, read as unsigned."""
    bits = np.iinfo(kind).bits
    a, b = pairs(kind)
    b = np.concatenate([b[: b.size // 2], np.arange(b.size - b.size // 2) % (bits + 3)])
    up, down, signed = [], [], []
    for n, places in zip(a.tolist(), b.tolist(), strict=True):
        places %= 1 << bits
        by = min(places, bits)
        top = n % (1 << bits)
        negative = top - (1 << bits) * (top >> (bits - 1))
        up.append(wrapped(n << by, kind))
        down.append(wrapped(top >> by, kind))
        signed.append(wrapped(negative >> by, kind))
    found, _ = on_chip(
        lambda x, y: (g.shift_left(x, y), g.shift_right_logical(x, y),
                      g.shift_right_arithmetic(x, y)),
        a.astype(kind), b.astype(kind),
    )  # fmt: skip
    for one, wanted in zip(found, (up, down, signed), strict=True):
        np.testing.assert_array_equal(one.astype(np.int64), wanted)


def test_shifts_by_one_number_known_beforehand():
    x = edges("uint32").astype(np.uint32)
    found, _ = on_chip(
        lambda v: tuple(g.shift_left(v, g.like(v, n)) for n in (0, 13, 31, 32)), x
    )
    for places, one in zip((0, 13, 31, 32), found, strict=True):
        np.testing.assert_array_equal(one, (x.astype(np.uint64) << places).astype(np.uint32))


@pytest.mark.parametrize("kind", [*KINDS, "int64"])
def test_counts_of_bits(kind):
    x = edges("int32" if kind == "int64" else kind)
    bits = np.iinfo(kind).bits
    wanted = [bin(n % (1 << bits)).count("1") for n in x.tolist()]
    (found,), _ = on_chip(lambda v: g.popcnt(v), x.astype(kind))
    np.testing.assert_array_equal(found.astype(int), wanted)
    if kind != "int64":
        zeros = [bits - (n % (1 << bits)).bit_length() for n in x.tolist()]
        (found,), _ = on_chip(lambda v: g.count_leading_zeros(v), x.astype(kind))
        np.testing.assert_array_equal(found.astype(int), zeros)


def test_bits_of_64_are_refused():
    x = np.zeros(4, np.int64)
    with pytest.raises(UnsupportedError, match="32 of the bits of int64"):
        on_chip(lambda v: g.shift_right_logical(v, v), x)
    with pytest.raises(UnsupportedError, match="other bits than those of int64"):
        on_chip(lambda v: g.bitcast_convert(v, "int32"), x)


@pytest.mark.parametrize(("old", "new"), [
    ("float32", "int32"), ("bfloat16", "uint16"), ("float32", "uint8"), ("int8", "float32"),
    ("uint16", "int32"), ("int32", "float16"),
])  # fmt: skip
def test_other_readings_of_bits(old, new):
    """Parts of an element lie one after the other, lowest first, of a transposed operand too."""
    old, new = (np.dtype(getattr(ml_dtypes, n, n)) for n in (old, new))
    x = np.random.default_rng(0).integers(0, 120, (6, 4 * 16), np.uint8)
    x = x.view(np.uint8).reshape(-1)[: 4 * 3 * 4 * 4].view(old).reshape(4, 3, -1)
    if new.itemsize > old.itemsize:
        x = x[..., : new.itemsize // old.itemsize]
    x = np.ascontiguousarray(x)
    (found, turned), _ = on_chip(
        lambda v: (g.bitcast_convert(v, str(new)),
                   g.bitcast_convert(g.transpose(v, (1, 0, 2)), str(new))), x,
    )  # fmt: skip
    wanted = x.view(new)
    shape = {-1: (*x.shape, -1), 0: x.shape, 1: x.shape[:2]}[
        (new.itemsize > old.itemsize) - (new.itemsize < old.itemsize)]  # fmt: skip
    wanted = wanted.reshape(shape)
    assert found.tobytes() == wanted.tobytes()
    assert turned.tobytes() == np.ascontiguousarray(np.swapaxes(wanted, 0, 1)).tobytes()


def test_halves_go_away_from_zero():
    x = np.array([0.5, -0.5, 1.5, -2.5, 0.49999997, -0.49999997, 8388607.5, 3e9, np.inf, -np.inf,
                  np.nan, 0.0, 2.4999998], np.float32)  # fmt: skip
    wanted = np.sign(x) * np.floor(np.abs(x.astype(np.float64)) + 0.5)
    (found,), _ = on_chip(lambda v: g.round_nearest_afz(v), x)
    np.testing.assert_array_equal(found, wanted)


def test_cube_roots():
    x = np.concatenate([normal(500) * 1e3, [0.0, np.inf, -np.inf, np.nan, 3e38, -1e-40, 1e-30]])
    x = x.astype(np.float32)
    (found,), _ = on_chip(lambda v: g.cbrt(v), x)
    np.testing.assert_allclose(found, np.cbrt(x.astype(np.float64)), 3e-7, 0)


@pytest.mark.parametrize(("exponent", "mantissa", "like"), [
    (8, 7, ml_dtypes.bfloat16), (5, 10, np.float16), (5, 2, ml_dtypes.float8_e5m2),
])  # fmt: skip
def test_fewer_bits_are_those_of_the_format(exponent, mantissa, like):
    """Where the format has full precision; below that StableHLO gives zero."""
    x = np.concatenate([normal(1000), normal(100) * 1e5, [np.inf, -np.inf, np.nan, 0.0]])
    x = x.astype(np.float32)
    (found,), _ = on_chip(lambda v: g.reduce_precision(v, exponent, mantissa), x)
    with np.errstate(over="ignore"):
        wanted = x.astype(like).astype(np.float32)
    least = 2.0 ** (2 - 2 ** (exponent - 1))
    plain = ~(np.abs(x) < 2 * least)
    np.testing.assert_array_equal(found[plain], wanted[plain])
    assert not found[np.abs(found) < least].any()


@pytest.mark.parametrize("new", [*KINDS, "int64"])
@pytest.mark.parametrize("old", [*KINDS, "int64"])
def test_integers_of_other_sizes_and_signs_wrap_around(old, new):
    x = edges("int32" if old == "int64" else old)
    if new == "int64":
        x = x[x <= np.iinfo(np.int32).max]
    (found,), _ = on_chip(lambda v: g.convert(v, dtype=new), x.astype(old))
    np.testing.assert_array_equal(found.astype(np.int64), [wrapped(n, new) for n in x.tolist()])


@pytest.mark.parametrize(("left", "right", "result"), [
    ("int32", "int32", "int32"), ("uint32", "uint32", "uint32"), ("int8", "int8", "int32"),
    ("int8", "uint32", "uint32"), ("int16", "uint8", "int16"), ("uint16", "int16", "int32"),
])  # fmt: skip
def test_products_of_integers_are_exact(left, right, result):
    """Over 300 products, of the largest numbers too, modulo what the result holds."""
    random = np.random.default_rng(0)
    ends = [np.iinfo(kind) for kind in (left, right)]
    x, y = (random.integers(e.min, e.max, shape, np.int64, endpoint=True)
            for e, shape in zip(ends, ((3, 300), (300, 4)), strict=True))  # fmt: skip
    x[0], y[:, 0] = ends[0].min, ends[1].max
    exact = x.astype(object) @ y.astype(object)
    wanted = np.vectorize(lambda n: wrapped(n, result))(exact)
    (found,), _ = on_chip(
        lambda a, b: g.dot_general(g.cast(a, result), g.cast(b, result), lhs_contracting=1,
                                   rhs_contracting=0),
        x.astype(left), y.astype(right), integer_products=True,
    )  # fmt: skip
    np.testing.assert_array_equal(found.astype(np.int64), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_powers(kind):
    """Wrapped around; of a negative power the whole part, as the data say and as a known one."""
    a, b = pairs(kind)
    small = np.arange(a.size) % 40 - (8 if np.iinfo(kind).min < 0 else 0)
    b = np.where(np.arange(a.size) % 3 == 0, b, small)

    def whole(n, power):
        if power >= 0:
            return wrapped(pow(n % 2**32, power, 2**32), kind)
        return {1: 1, -1: 1 if power % 2 == 0 else -1}.get(n, 0)

    known = (0, 1, 5, 40) + ((-3, -2) if np.iinfo(kind).min < 0 else ())

    def build(x, y):
        return g.power(x, y), *(g.power(x, g.like(x, n)) for n in known)

    found, _ = on_chip(build, a.astype(kind), b.astype(kind))
    for have, power in zip(found, (b, *known), strict=True):
        powers = np.broadcast_to(power, a.shape).tolist()
        want = [whole(n, p) for n, p in zip(a.tolist(), powers, strict=True)]
        np.testing.assert_array_equal(have.astype(np.int64), want)


@pytest.mark.parametrize(("kind", "result"), [("int8", "int32"), ("uint8", "uint32"),
                                              ("int16", "int16"), ("uint8", "uint8")])
def test_convolutions_of_integers_are_exact(kind, result):
    """With padding, strides, gaps and groups, modulo what the result holds."""
    random, ends = np.random.default_rng(0), np.iinfo(kind)
    image = random.integers(ends.min, ends.max, (2, 4, 7, 6), np.int64, endpoint=True)
    kernel = random.integers(ends.min, ends.max, (6, 2, 3, 2), np.int64, endpoint=True)
    padded = np.pad(image, ((0, 0), (0, 0), (1, 2), (0, 1)))
    want = np.zeros((2, 6, 3, 4), np.int64)
    for out, row, column in np.ndindex(6, 3, 4):
        group = slice(2 * (out // 3), 2 * (out // 3) + 2)
        seen = padded[:, group, 2 * row: 2 * row + 5: 2, column: column + 4: 3]
        want[:, out, row, column] = (seen * kernel[out]).sum((1, 2, 3))
    (found,), _ = on_chip(
        lambda x, k: g.convolution(g.cast(x, result), g.cast(k, result), strides=(2, 1),
                                   padding=((1, 2), (0, 1)), rhs_dilation=(2, 3), groups=2),
        image.astype(kind), kernel.astype(kind),
    )  # fmt: skip
    np.testing.assert_array_equal(found.astype(np.int64), np.vectorize(wrapped)(want, result))


@pytest.mark.parametrize("kind", ["int32", "uint32", "int64"])
def test_products_of_long_integers_are_refused_as_by_the_neuron_compiler(kind):
    x = np.ones((2, 2), kind)
    with pytest.raises(UnsupportedError) as error:
        on_chip(lambda a, b: g.dot_general(a, b, lhs_contracting=1, rhs_contracting=0), x, x)
    assert (error.value.code, error.value.neuron) == ("compiler.integer_product", "NCC_EVRF035")
    image, kernel = np.ones((1, 2, 4, 4), kind), np.ones((2, 2, 2, 2), kind)
    with pytest.raises(UnsupportedError, match="1 × convolution of"):
        on_chip(lambda x, k: g.convolution(x, k, strides=(1, 1), padding=((0, 0),) * 2),
                image, kernel)  # fmt: skip
