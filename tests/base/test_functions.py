"""Elementwise functions against float64, point by point over their whole range."""

import math

import numpy as np
import pytest

from opentrn.base import FUNCTIONS, numerics

ERF, ERFC = np.vectorize(math.erf), np.vectorize(math.erfc)


def phi(x):
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def normal(x):
    return 0.5 * ERFC(-x / math.sqrt(2))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu_dx(x, a=1.0):
    s, t = sigmoid(a * x), sigmoid(-a * x)
    return s + a * x * s * t


def gelu_tanh(x):
    # ½(1 + tanh u) without its cancellation, in the widest float there is
    wide = x.astype(np.longdouble)
    u = np.sqrt(np.longdouble(2) / np.longdouble(math.pi)) * (wide + 0.044715 * wide**3)
    return wide / (1 + np.exp(-2 * u))


CASES = {
    "exp": (np.exp, "small"),
    "expm1": (np.expm1, "small"),
    "tanh": (np.tanh, "everywhere"),
    "sin": (np.sin, "turns"),
    "cos": (np.cos, "turns"),
    "tan": (np.tan, "turns"),
    "arctan": (np.arctan, "everywhere"),
    "sqrt": (np.sqrt, "positive"),
    "rsqrt": (lambda x: 1 / np.sqrt(x), "positive"),
    "reciprocal": (lambda x: 1 / x, "everywhere"),
    "square": (lambda x: x * x, "everywhere"),
    "log": (np.log, "positive"),
    "log1p": (np.log1p, "positive"),
    "erf": (ERF, "everywhere"),
    "erf_dx": (lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x), "small"),
    "sigmoid": (sigmoid, "small"),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), "small"),
    "mish": (lambda x: x * np.tanh(np.log1p(np.exp(np.longdouble(x)))), "small"),
    "silu": (lambda x: x * sigmoid(x), "small"),
    "gelu": (lambda x: x * normal(x), "small"),
    "gelu_apprx_tanh": (gelu_tanh, "small"),
    "gelu_apprx_sigmoid": (lambda x: x * sigmoid(1.702 * x), "small"),
    "abs": (np.abs, "everywhere"),
    "sign": (np.sign, "everywhere"),
    "negative": (np.negative, "everywhere"),
    "relu": (lambda x: np.where(x > 0, x, 0), "everywhere"),
    "copy": (lambda x: x, "everywhere"),
    "ceil": (np.ceil, "everywhere"),
    "floor": (np.floor, "everywhere"),
    "trunc": (np.trunc, "everywhere"),
    "rint": (np.rint, "everywhere"),
}
DERIVATIVES = {
    "gelu_dx": (
        lambda x: normal(x) + x * phi(x),
        lambda x: np.maximum(normal(x), np.abs(x) * phi(x)),
    ),
    "silu_dx": (silu_dx, lambda x: np.maximum(1, np.abs(x)) * sigmoid(x)),
    "gelu_apprx_sigmoid_dx": (
        lambda x: silu_dx(x, 1.702),
        lambda x: np.maximum(1, 1.702 * np.abs(x)) * sigmoid(1.702 * x),
    ),
}


def points(kind):
    """20 000 float32 numbers: even over an interval, and of every magnitude."""
    generator = np.random.default_rng(7)
    even = generator.uniform(-12, 12, 10_000)
    magnitude = 10.0 ** generator.uniform(-37, 37, 10_000)
    if kind == "small":
        even = np.concatenate([even, generator.uniform(-87, 87, 10_000)])
        magnitude = 10.0 ** generator.uniform(-37, 1.9, 10_000)
    if kind == "turns":
        magnitude = 10.0 ** generator.uniform(-37, 5, 10_000)
    x = np.concatenate([even, magnitude, -magnitude])
    x = np.abs(x) if kind == "positive" else x
    return x.astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_function_agrees_with_float64(name):
    reference, kind = CASES[name]
    x = points(kind)
    with np.errstate(all="ignore"):
        want = np.asarray(reference(x.astype(np.float64)), np.float64)
    got = FUNCTIONS[name](x)
    assert got.dtype == np.float32
    overflow = np.abs(want) > 3.4028e38
    assert (np.abs(got[overflow]) >= 3.4e38).all()
    tolerance = 2.2e-7 if name == "exp" else 2e-7
    error = np.abs(got.astype(np.float64) - want)[~overflow]
    bound = np.maximum(tolerance * np.abs(want[~overflow]), 1.5e-45)
    worst = np.argmax(error / bound)
    assert (error <= bound).all(), (name, x[~overflow][worst], want[~overflow][worst])


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivative_agrees_with_float64(name):
    reference, largest_term = DERIVATIVES[name]
    x = points("small")
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        want, scale = reference(wide), largest_term(wide)
    error = np.abs(FUNCTIONS[name](x).astype(np.float64) - want)
    assert (error <= np.maximum(2e-7 * scale, 1.5e-45)).all()


@pytest.mark.parametrize(
    ("function", "derivative"),
    [
        ("gelu", "gelu_dx"),
        ("silu", "silu_dx"),
        ("erf", "erf_dx"),
        ("gelu_apprx_sigmoid", "gelu_apprx_sigmoid_dx"),
    ],
)
def test_derivative_is_the_slope_of_its_function(function, derivative):
    x = np.linspace(-5, 5, 401)
    reference = CASES[function][0]
    slope = (reference(x + 1e-5) - reference(x - 1e-5)) / 2e-5
    np.testing.assert_allclose(FUNCTIONS[derivative](x), slope, atol=1e-6)


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("name", "at_minus_inf", "at_inf"),
    [
        ("exp", 0, INF), ("tanh", -1, 1), ("arctan", -math.pi / 2, math.pi / 2), ("erf", -1, 1),
        ("erf_dx", 0, 0), ("sigmoid", 0, 1), ("softplus", 0, INF), ("mish", 0, INF),
        ("silu", 0, INF), ("silu_dx", 0, 1), ("gelu", 0, INF), ("gelu_dx", 0, 1),
        ("gelu_apprx_tanh", 0, INF), ("gelu_apprx_sigmoid", 0, INF),
        ("gelu_apprx_sigmoid_dx", 0, 1), ("relu", 0, INF), ("log", NAN, INF), ("sqrt", NAN, INF),
        ("rsqrt", NAN, 0), ("reciprocal", 0, 0), ("square", INF, INF), ("sign", -1, 1),
        ("abs", INF, INF), ("sin", NAN, NAN), ("expm1", -1, INF),
    ],
)  # fmt: skip
def test_infinities_give_the_limit_and_nan_gives_nan(name, at_minus_inf, at_inf):
    got = FUNCTIONS[name](np.float32([-INF, INF, NAN]))
    np.testing.assert_allclose(got, np.float32([at_minus_inf, at_inf, NAN]), rtol=2e-7)


def test_zeros_and_poles():
    zeros = np.float32([0.0, -0.0])
    for name in ("erf", "gelu", "silu", "tanh", "sin", "sqrt", "mish", "expm1"):
        got = FUNCTIONS[name](zeros)
        assert (got == 0).all(), name
    assert FUNCTIONS["reciprocal"](zeros).tolist() == [INF, -INF]
    assert FUNCTIONS["log"](zeros).tolist() == [-INF, -INF]
    assert FUNCTIONS["rsqrt"](np.float32([0.0])).tolist() == [INF]
    assert FUNCTIONS["rint"](np.float32([0.5, 1.5, 2.5, -0.5])).tolist() == [0, 2, 2, 0]


@pytest.mark.parametrize("name", ["gelu", "exp", "erf", "rsqrt"])
def test_shapes_strides_and_output(name):
    function = FUNCTIONS[name]
    x = np.abs(np.random.default_rng(8).standard_normal((130, 100))).astype(np.float32)
    flat = np.array([function(row) for row in x])
    np.testing.assert_array_equal(function(x), flat)
    np.testing.assert_array_equal(function(x[::-1, ::3]), flat[::-1, ::3])
    np.testing.assert_array_equal(function(x.T), flat.T)
    window = np.zeros((130, 120), np.float32)
    out = window[:, 10:110]
    assert function(x, out=out) is out
    np.testing.assert_array_equal(out, flat)
    assert not window[:, :10].any()
    assert not window[:, 110:].any()
    assert function(0.5).shape == ()
    assert function(np.empty((0, 3))).shape == (0, 3)
    function(x, out=x)
    np.testing.assert_array_equal(x, flat)


def test_input_is_not_changed():
    x = np.linspace(-5, 5, 20_000).astype(np.float32)
    before = x.copy()
    for function in FUNCTIONS.values():
        function(x)
    np.testing.assert_array_equal(x, before)


NKI_ACTIVATIONS = [
    "copy", "square", "sigmoid", "relu", "gelu", "gelu_dx", "gelu_apprx_tanh", "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx", "silu", "silu_dx", "tanh", "softplus", "mish", "erf", "erf_dx", "exp",
    "log", "sin", "cos", "tan", "arctan", "sqrt", "rsqrt", "reciprocal", "sign", "abs", "ceil",
    "floor", "trunc", "negative", "bypass",
]  # fmt: skip


@pytest.mark.parametrize("name", NKI_ACTIVATIONS)
def test_every_activation_of_the_kernel_language_is_here(name):
    assert callable(FUNCTIONS[name])
    assert FUNCTIONS[name].__doc__


def test_numerics_shows_the_functions_too():
    assert numerics.FUNCTIONS is FUNCTIONS
    for name in ("erf", "gelu", "gelu_tanh", "silu", "exp", "rsqrt"):
        assert getattr(numerics, name) is FUNCTIONS[name]
