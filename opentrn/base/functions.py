"""Elementwise functions of float32: what activation tables and graph operations evaluate.

A seventh file of this room because `numerics`, with the rounding, would pass the size limit; it is
part of it (`numerics` shows these names too). Each function takes float32 numbers of any shape, an
optional `out` (which may be the input itself) and returns float32. Against float64 the relative
error is at most 2e-7 (exp 2.2e-7; `cos`, `sin` and `tan` for |x| < 1e5); derivatives near their
zeros are exact to 2e-7 of their largest term. Infinities give the limit, NaN gives NaN, without
warnings.

Where NumPy's own float32 function keeps the bound it is used; the others are evaluated in float64,
a block that fits the cache at a time, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_BLOCK = 8192  # float64 temporaries of 64 KiB stay in the second-level cache
_F32, _F64 = np.float32, np.float64

# erf(x) = x·P(x²)/Q(x²) for |x| ≤ 4 (beyond, erf is 1 in float32), relative error 2.1e-9; and
# erfc(z)·exp(z²) = P(z)/Q(z) for 0 ≤ z ≤ 10.5, relative error 6.2e-9. Lowest power first. Source:
# our own weighted least squares rational fit (Loeb's iteration with Lawson's weights) to math.erf
# and math.erfc on 4000 Chebyshev nodes; the tests measure the error again.
_ERF_P = (
    1.1283791693667e+00, 1.8520419692610e-01, 5.4316953872441e-02, 3.8496406835003e-03,
    3.7960580801837e-04, 4.6846700653781e-06, -1.3201736325976e-08,
)
_ERF_Q = (
    1.0000000000000e+00, 4.9746635972673e-01, 1.1395874240223e-01, 1.5462136823546e-02,
    1.3075717924682e-03, 6.3109576196848e-05,
)
_ERFC_P = (
    1.0000000061801e+00, 1.2416506718358e+00, 7.3500348736105e-01, 2.3084122226800e-01,
    3.3137805995792e-02,
)
_ERFC_Q = (
    1.0000000000000e+00, 2.3700304587770e+00, 2.4092865289606e+00, 1.3317149603605e+00,
    4.0918026620234e-01, 5.8734586884449e-02,
)

FUNCTIONS: dict[str, Callable] = {}
"""Every function of this module by its NKI name, and by the names graphs use for the same."""


def _register(name: str, doc: str, function: Callable, aliases: tuple) -> Callable:
    """Enter one function under its names."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    for each in (name, *aliases):
        FUNCTIONS[each] = function
    return function


def _single(kernel: Callable, name: str, doc: str, *aliases: str) -> Callable:
    """A function that `kernel(x, out=...)` computes well enough in float32 itself."""

    def function(x, out=None):
        x = np.asarray(x, _F32)
        if out is None:
            out = np.empty(x.shape, _F32)
        with np.errstate(all="ignore"):
            kernel(x, out=out)
        return out

    return _register(name, doc, function, aliases)


def _double(kernel: Callable, name: str, doc: str, *aliases: str) -> Callable:
    """A function that `kernel(x)` computes in float64, block by block, rounded once."""

    def function(x, out=None):
        x = np.asarray(x, _F32)
        if out is None:
            out = np.empty(x.shape, _F32)
        with np.errstate(all="ignore"):
            if x.size <= _BLOCK:
                out[...] = kernel(np.atleast_1d(x).astype(_F64)).reshape(x.shape)
                return out
            flat = np.ascontiguousarray(x).reshape(-1)
            direct = out.flags.c_contiguous and out.shape == x.shape
            result = out.reshape(-1) if direct else np.empty(flat.shape, _F32)
            for start in range(0, flat.size, _BLOCK):
                block = slice(start, start + _BLOCK)
                result[block] = kernel(flat[block].astype(_F64))
            if not direct:
                out[...] = result.reshape(x.shape)
        return out

    return _register(name, doc, function, aliases)


def _polynomial(x: np.ndarray, coefficients: tuple) -> np.ndarray:
    """Σ c[i]·x^i by Horner's rule, in one new array."""
    total = x * coefficients[-1]
    for c in coefficients[-2:0:-1]:
        total += c
        total *= x
    total += coefficients[0]
    return total


def _erf(x):
    np.clip(x, -4.0, 4.0, out=x)
    s = x * x
    x *= _polynomial(s, _ERF_P)
    x /= _polynomial(s, _ERF_Q)
    return x


def _upper_tail(z):
    """½·erfc(z) for z ≥ 0, the weight of the normal distribution beyond √2·z."""
    tail = _polynomial(z, _ERFC_P)
    tail /= _polynomial(z, _ERFC_Q)
    z2 = z * z
    np.negative(z2, out=z2)
    tail *= np.exp(z2, out=z2)
    tail *= 0.5
    return tail


def _gelu(x):
    size = np.minimum(np.abs(x), 60.0)  # beyond, the tail is 0 in float64 too
    tail = _upper_tail(size * np.sqrt(0.5))
    tail *= size
    np.maximum(x, 0.0, out=x)
    x -= tail
    return x


def _gelu_dx(x):
    z = np.clip(x, -60.0, 60.0)
    tail = _upper_tail(np.abs(z) * np.sqrt(0.5))
    below = np.where(z < 0, tail, 1.0 - tail)
    return below + z * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)


def _sigmoid(x):
    np.negative(x, out=x)
    np.exp(x, out=x)
    x += 1.0
    return np.reciprocal(x, out=x)


def _times_sigmoid(x, inner):
    """x·sigmoid(inner), with the limit 0 where x is -inf."""
    return np.maximum(x, -1e300) * _sigmoid(inner)


def _silu_like_dx(x, rate):
    """d/dx of x·sigmoid(rate·x) = s + rate·x·s·(1 - s)."""
    z = np.clip(x * rate, -700.0, 700.0)
    s = _sigmoid(z.copy())
    return s * (1.0 + z * _sigmoid(-z))


def _gelu_apprx_tanh(x):
    # ½(1 + tanh u) = sigmoid(2u): no cancellation for negative x.
    inner = np.sqrt(8 / np.pi) * (x + 0.044715 * x * x * x)
    return _times_sigmoid(x, inner)


def _softplus(x):
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _mish(x):
    # tanh(log(1 + e)) = e(e + 2) / (e(e + 2) + 2) with e = exp(x)
    np.maximum(x, -700.0, out=x)
    e = np.exp(np.minimum(x, 300.0))
    e *= e + 2.0
    x *= e / (e + 2.0)
    return x


def _relu(x, out):
    np.maximum(x, _F32(0), out=out)


def _rsqrt(x, out):
    np.sqrt(x, out=out)
    np.reciprocal(out, out=out)


def _copy(x, out):
    np.copyto(out, x)


exp = _single(np.exp, "exp", "e^x.", "exponential")
tanh = _single(np.tanh, "tanh", "Hyperbolic tangent.")
sin = _single(np.sin, "sin", "Sine of x in radians, for any x.", "sine")
cos = _single(np.cos, "cos", "Cosine of x in radians, for any x.", "cosine")
arctan = _single(np.arctan, "arctan", "Inverse tangent in radians, in [-π/2, π/2].", "atan")
sqrt = _single(np.sqrt, "sqrt", "√x; NaN below zero.")
rsqrt = _single(_rsqrt, "rsqrt", "1/√x; inf at 0, NaN below.")
reciprocal = _single(np.reciprocal, "reciprocal", "1/x; ±inf at ±0.")
square = _single(np.square, "square", "x².")
abs_ = _single(np.abs, "abs", "|x|.")
sign = _single(np.sign, "sign", "-1, 0 or 1; NaN of NaN.")
negative = _single(np.negative, "negative", "-x.", "negate")
relu = _single(_relu, "relu", "max(x, 0); NaN stays NaN.")
copy = _single(_copy, "copy", "x itself.", "bypass", "identity")
ceil = _single(np.ceil, "ceil", "The smallest integer not below x.")
floor = _single(np.floor, "floor", "The largest integer not above x.")
trunc = _single(np.trunc, "trunc", "x without its fraction.")
rint = _single(np.rint, "rint", "The nearest integer, ties to even.", "round_nearest_even")

log = _double(np.log, "log", "Natural logarithm; -inf at 0, NaN below.")
log1p = _double(np.log1p, "log1p", "log(1 + x), exact near 0.", "log_plus_one")
expm1 = _double(np.expm1, "expm1", "e^x - 1, exact near 0.", "exponential_minus_one")
tan = _double(np.tan, "tan", "Tangent of x in radians, for any x.")
erf = _double(_erf, "erf", "Error function 2/√π·∫₀ˣ exp(-t²) dt.")
erf_dx = _double(lambda x: np.exp(-x * x) * (2 / np.sqrt(np.pi)), "erf_dx", "2/√π·exp(-x²).")
sigmoid = _double(_sigmoid, "sigmoid", "1/(1 + e^-x).", "logistic")
softplus = _double(_softplus, "softplus", "log(1 + e^x).")
mish = _double(_mish, "mish", "x·tanh(softplus(x)).")
silu = _double(lambda x: _times_sigmoid(x, x.copy()), "silu", "x·sigmoid(x).", "swish")
silu_dx = _double(lambda x: _silu_like_dx(x, 1.0), "silu_dx", "Derivative of silu.")
gelu = _double(_gelu, "gelu", "x·Φ(x) with the normal distribution Φ, i.e. ½x(1 + erf(x/√2)).")
gelu_dx = _double(_gelu_dx, "gelu_dx", "Φ(x) + x·φ(x), the derivative of gelu.")
gelu_tanh = _double(
    _gelu_apprx_tanh, "gelu_apprx_tanh", "½x(1 + tanh(√(2/π)(x + 0.044715x³))).", "gelu_tanh"
)
gelu_sigmoid = _double(
    lambda x: _times_sigmoid(x, 1.702 * x), "gelu_apprx_sigmoid", "x·sigmoid(1.702x).",
    "gelu_sigmoid",
)  # fmt: skip
gelu_sigmoid_dx = _double(
    lambda x: _silu_like_dx(x, 1.702), "gelu_apprx_sigmoid_dx",
    "Derivative of x·sigmoid(1.702x).", "gelu_sigmoid_dx",
)  # fmt: skip
gelu_apprx_tanh, gelu_apprx_sigmoid = gelu_tanh, gelu_sigmoid
gelu_apprx_sigmoid_dx = gelu_sigmoid_dx
