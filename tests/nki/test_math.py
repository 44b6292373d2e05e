"""Every element-wise function of nki.language against float64."""

import math

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import ShapeError, TrnError, UsageError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from tests.nki.tiles import BF16, applied, close

RNG = np.random.default_rng(7)
X = RNG.uniform(-3, 3, (64, 40)).astype(np.float32)
Y = RNG.uniform(-3, 3, (64, 40)).astype(np.float32)
POSITIVE = np.abs(X) + np.float32(0.01)
SMALL = RNG.uniform(-1.5, 1.5, (64, 40)).astype(np.float32)
SPECIAL = np.array(
    [[0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999997, -0.49999997, 1.0, -1.0,
      8388607.5, -8388607.5, 8388608.0, 16777217.0, 2147483648.0, -3e9, 1e20, -1e20,
      np.inf, -np.inf, np.nan]], np.float32,
)  # fmt: skip

erf = np.vectorize(math.erf, otypes=[np.float64])


def phi(x):
    return 0.5 * (1 + erf(x / math.sqrt(2)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu_slope(x, k=1.0):
    s = sigmoid(k * x)
    return s + k * x * s * (1 - s)


UNARY = {
    "exp": (np.exp, X), "log": (np.log, POSITIVE), "sqrt": (np.sqrt, POSITIVE),
    "rsqrt": (lambda x: 1 / np.sqrt(x), POSITIVE), "reciprocal": (lambda x: 1 / x, POSITIVE),
    "tanh": (np.tanh, X), "sigmoid": (sigmoid, X), "relu": (lambda x: np.maximum(x, 0), X),
    "gelu": (lambda x: x * phi(x), X), "gelu_apprx_tanh": (gelu_tanh, X),
    "gelu_apprx_sigmoid": (lambda x: x * sigmoid(1.702 * x), X),
    "gelu_dx": (lambda x: phi(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi), X),
    "gelu_apprx_sigmoid_dx": (lambda x: silu_slope(x, 1.702), X),
    "silu": (lambda x: x * sigmoid(x), X), "silu_dx": (silu_slope, X),
    "softplus": (softplus, X), "mish": (lambda x: x * np.tanh(softplus(x)), X),
    "erf": (erf, X), "erf_dx": (lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x), X),
    "square": (np.square, X), "sin": (np.sin, X), "cos": (np.cos, X), "tan": (np.tan, SMALL * 0.9),
    "arctan": (np.arctan, SMALL), "sign": (np.sign, X), "abs": (np.abs, X),
    "copy": (lambda x: x, X), "negative": (np.negative, X), "floor": (np.floor, X),
    "ceil": (np.ceil, X), "trunc": (np.trunc, X), "logical_not": (np.logical_not, np.round(X)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions_follow_float64(name):
    reference, x = UNARY[name]
    close(applied(getattr(nl, name), x), reference(x.astype(np.float64)))


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions_cast_to_the_asked_dtype(name):
    reference, x = UNARY[name]
    found = applied(lambda t: getattr(nl, name)(t, dtype=nl.bfloat16), x)
    assert found.dtype == BF16
    close(found, reference(x.astype(np.float64)), relative=2**-8)


BINARY = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "maximum": np.maximum, "minimum": np.minimum, "fmod": np.fmod, "mod": np.mod,
    "equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
    "greater": np.greater, "greater_equal": np.greater_equal, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_xor": np.logical_xor,
}  # fmt: skip
ROUNDED = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"} | {
    name for name in BINARY if name.startswith("logical")
}


@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_follow_float64_for_tiles_columns_and_numbers(name):
    reference, function = BINARY[name], getattr(nl, name)
    x, y = (np.round(X), np.round(Y)) if name in ROUNDED else (X, Y)
    wide, other = x.astype(np.float64), y.astype(np.float64)
    close(applied(function, x, y), reference(wide, other))
    close(applied(function, x, y[:, :1]), reference(wide, other[:, :1]))
    close(applied(lambda t: function(t, 2.0), x), reference(wide, 2.0))
    nonzero = np.where(x == 0, np.float32(1), x)
    close(applied(lambda t: function(2.0, t), nonzero), reference(2.0, nonzero.astype(np.float64)))


def test_power_of_tiles_and_numbers():
    p, q = POSITIVE.astype(np.float64), Y.astype(np.float64)
    close(applied(nl.power, POSITIVE, Y), p**q)
    close(applied(lambda t: nl.power(t, 3.0), X), X.astype(np.float64) ** 3)
    close(applied(lambda t: nl.power(2.0, t), X), 2.0 ** X.astype(np.float64))


def test_the_one_of_larger_magnitude_with_ties_for_the_second():
    x = np.array([[-5, 1, 2, -2, 0.5]], np.float32)
    y = np.array([[3, -1, -2, 2, 4]], np.float32)
    assert applied(nl.abs_max, x, y, target="trn3").tolist() == [[-5, -1, -2, 2, 4]]
    assert applied(nl.abs_min, x, y, target="trn3").tolist() == [[3, -1, -2, 2, 0.5]]


BITS = {
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int16, np.uint8])
def test_bit_functions_are_exact(dtype):
    limits = np.iinfo(dtype)
    x, y = (RNG.integers(limits.min, limits.max, (8, 9), dtype, True) for _ in range(2))
    for name, reference in BITS.items():
        assert np.array_equal(applied(getattr(nl, name), x, y), reference(x, y))
    assert np.array_equal(applied(nl.invert, x), np.invert(x))


def test_shifts():
    x = np.array([[1, 2, 3, 0x40000000, 0x7FFFFFFF]], np.int32)
    by = np.array([[0, 3, 4, 1, 31]], np.int32)
    assert applied(nl.left_shift, x, by).tolist() == np.left_shift(x, by).tolist()
    unsigned = x.astype(np.uint32)
    found = applied(nl.right_shift, unsigned, by.astype(np.uint32))
    assert found.tolist() == [[1, 0, 0, 0x20000000, 0]]


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc"])
def test_rounding_of_halves_zeros_large_values_and_specials(name):
    found = applied(getattr(nl, name), SPECIAL)
    np.testing.assert_array_equal(found, getattr(np, name)(SPECIAL))


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc"])
def test_rounding_leaves_integers_exact(name):
    x = np.array([[16777217, -16777217, 2147483647, -2147483648, 0]], np.int32)
    assert applied(getattr(nl, name), x).tolist() == x.tolist()
    low = np.array([[1.5, -1.5, 200.0, -0.25]], BF16)
    found = applied(getattr(nl, name), low)
    assert found.dtype == BF16
    assert found.astype(float).tolist() == getattr(np, name)(low.astype(float)).tolist()


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        (nl.int8, [0, 2, 2, 0, -2, 126, 127, 127, -128]),
        (nl.uint8, [0, 2, 2, 0, 0, 126, 128, 255, 0]),
    ],
)
def test_casts_to_integers_round_to_even_and_clamp(dtype, wanted):
    x = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 300, -300]], np.float32)
    assert applied(lambda t: nl.copy(t, dtype), x).tolist() == [wanted]


def test_free_dimensions_of_size_one_broadcast():
    x = RNG.normal(size=(16, 3, 5)).astype(np.float32)
    y = RNG.normal(size=(16, 1, 5)).astype(np.float32)
    z = RNG.normal(size=(16, 5)).astype(np.float32)
    close(applied(nl.add, x, y), x.astype(np.float64) + y)
    close(applied(nl.multiply, y, x), x.astype(np.float64) * y)
    close(applied(nl.subtract, x, z), x.astype(np.float64) - z[:, None, :])


def test_a_half_precision_column_is_an_operand_too():
    column = X[:, :1].astype(BF16)
    found = applied(lambda t, c: nl.add(t, c, dtype=nl.float32), Y, column)
    close(found, Y.astype(np.float64) + column.astype(np.float64))


def test_tiles_that_do_not_broadcast_are_refused():
    with pytest.raises(ShapeError) as caught:
        applied(nl.add, X, Y[:, :7])
    assert caught.value.code == "nki.broadcast"
    with pytest.raises(ShapeError):
        applied(nl.add, X, Y[:32])


def test_numbers_alone_are_refused():
    with pytest.raises(UsageError) as caught:
        applied(lambda t: nl.add(1.0, 2.0), X)
    assert caught.value.code == "nki.no_tile"
    with pytest.raises(UsageError) as caught:
        applied(lambda t: nl.average(t), X)
    assert caught.value.code == "nki.no_tile"


def test_copies_keep_every_bit_and_reach_psum():
    x = np.array([[2**24 + 1, -(2**31) + 1, 2**31 - 1]], np.int32)  # none is a float32
    assert applied(nl.copy, x).tolist() == x.tolist()

    def through_psum(tile):
        held = nl.ndarray(tile.shape, nl.float32, buffer=nl.psum)
        nisa.tensor_copy(held, tile)
        return nl.copy(held)

    y = np.array([[1.5, -0.0, np.inf]], np.float32)
    assert applied(through_psum, y).tobytes() == y.tobytes()


def test_rsqrt_runs_on_gpsimd_which_does_not_reach_psum():
    def kernel(x, buffer):
        tile = nl.ndarray(x.shape, nl.float32, buffer=buffer)
        nisa.tensor_copy(tile, nl.load(x))
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.rsqrt(tile))
        return out

    x = np.array([[4.0, 16.0]], np.float32)
    run = nki.run(kernel, x, nl.sbuf)
    assert run.outputs.tolist() == [[0.5, 0.25]]
    engines = [i.form.engine_name for i in run.program.instructions() if i.opcode != "dma_copy"]
    assert engines == ["vector", "gpsimd"]
    with pytest.raises(TrnError, match="PSUM|psum"):
        nki.run(kernel, x, nl.psum)
