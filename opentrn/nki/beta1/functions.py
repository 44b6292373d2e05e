"""`neuronxcc.nki.language`: element-wise math, reductions and random numbers that return tiles.

A function of this module is also an operator: `nl.add` may be passed as `op=` to an instruction.
"""

from collections.abc import Callable
from math import prod as _product
from typing import Any

from opentrn.base import NotBuiltError, bool_, dtypes, float32, int32, uint32
from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki.beta1 import blocks, elements, masks
from opentrn.nki.beta1.pending import current
from opentrn.nki.beta1.tile import Tensor, produce
from opentrn.nki.language import math, memory
from opentrn.nki.tensor import NkiTensor

# ---------------------------------------------------------------------- math


def _named(function: Callable, name: str, doc: str) -> Callable:
    function.__name__ = function.__qualname__ = name
    function.__doc__, function.nki_op = doc, elements.OPERATORS.get(name, name)
    return function


def _binary(name: str, doc: str, kind: Any = None) -> Callable:
    def function(x, y, *, dtype=kind, mask=None):
        return elements.binary(name, x, y, dtype, mask)

    return _named(function, name, doc)


def _unary(name: str, doc: str) -> Callable:
    def function(x, *, dtype=None, mask=None):
        return elements.unary(name, x, dtype, mask)

    return _named(function, name, doc)


def _through(name: str, doc: str) -> Callable:
    """A function of `nki.language` on one tile, several instructions long."""
    compute = getattr(math, name)

    def function(x, *, dtype=None, mask=None):
        x = elements.tile(x, "x")
        kind = as_dtype(dtype or x.element)
        return elements.composite(
            x.shape, kind, mask, lambda spans: compute(elements.operand(x, spans), kind)
        )

    return _named(function, name, doc)


add = _binary("add", "x + y.")
subtract = _binary("subtract", "x - y.")
multiply = _binary("multiply", "x · y.")
divide = _binary("divide", "x / y.")
power = _binary("power", "x to the power y.")
maximum = _binary("maximum", "The larger of x and y.")
minimum = _binary("minimum", "The smaller of x and y.")
mod = _binary("mod", "Remainder with the sign of y.")
fmod = _binary("fmod", "Remainder with the sign of x.")
bitwise_and = _binary("bitwise_and", "Bits set in both.")
bitwise_or = _binary("bitwise_or", "Bits set in either.")
bitwise_xor = _binary("bitwise_xor", "Bits set in exactly one.")
left_shift = _binary("left_shift", "x shifted left by y bits.")
right_shift = _binary("right_shift", "x shifted right by y bits.")
equal = _binary("equal", "1 where x = y.", bool_)
not_equal = _binary("not_equal", "1 where x ≠ y.", bool_)
less = _binary("less", "1 where x < y.", bool_)
less_equal = _binary("less_equal", "1 where x ≤ y.", bool_)
greater = _binary("greater", "1 where x > y.", bool_)
greater_equal = _binary("greater_equal", "1 where x ≥ y.", bool_)
logical_and = _binary("logical_and", "1 where both are not zero.", bool_)
logical_or = _binary("logical_or", "1 where either is not zero.", bool_)
logical_xor = _binary("logical_xor", "1 where exactly one is not zero.", bool_)

exp = _unary("exp", "e to the power x.")
log = _unary("log", "Natural logarithm.")
sqrt = _unary("sqrt", "Square root.")
rsqrt = _unary("rsqrt", "1 / √x.")
tanh = _unary("tanh", "Hyperbolic tangent.")
sigmoid = _unary("sigmoid", "1 / (1 + e⁻ˣ).")
relu = _unary("relu", "max(x, 0).")
gelu = _unary("gelu", "x · Φ(x).")
gelu_dx = _unary("gelu_dx", "Derivative of GELU.")
gelu_apprx_tanh = _unary("gelu_apprx_tanh", "GELU by its tanh approximation.")
gelu_apprx_sigmoid = _unary("gelu_apprx_sigmoid", "x · sigmoid(1.702 x).")
silu = _unary("silu", "x · sigmoid(x).")
silu_dx = _unary("silu_dx", "Derivative of SiLU.")
softplus = _unary("softplus", "log(1 + eˣ).")
mish = _unary("mish", "x · tanh(softplus(x)).")
erf = _unary("erf", "Error function.")
erf_dx = _unary("erf_dx", "Derivative of the error function.")
square = _unary("square", "x².")
sin = _unary("sin", "Sine on [-π, π].")
arctan = _unary("arctan", "Arc tangent on [-π/2, π/2].")
sign = _unary("sign", "-1, 0 or 1.")
abs = _unary("abs", "Magnitude.")

cos = _through("cos", "Cosine on [-π, π].")
tan = _through("tan", "Tangent.")
floor = _through("floor", "The largest integer ≤ x.")
ceil = _through("ceil", "The smallest integer ≥ x.")
trunc = _through("trunc", "x without its fraction.")
invert = _through("invert", "Every bit of an integer flipped.")


def reciprocal(x, *, dtype=None, mask=None):
    """1 / x."""
    from opentrn.nki.beta1 import isa

    return isa.reciprocal(x, dtype=dtype, mask=mask)


reciprocal.nki_op = "reciprocal"


def negative(x, *, dtype=None, mask=None):
    """-x."""
    return elements.binary("multiply", x, -1.0, dtype or x.element, mask)


def logical_not(x, *, dtype=bool_, mask=None):
    """1 where x is zero."""
    return elements.binary("equal", x, 0.0, dtype, mask)


def where(condition, x, y, *, dtype=None, mask=None):
    """x where the condition is not zero, y elsewhere."""
    condition = elements.tile(condition, "condition")
    tiles = [v for v in (x, y) if isinstance(v, Tensor)]
    kind = as_dtype(dtype or (elements.promoted(*tiles) if tiles else float32))

    def compute(spans: Any) -> NkiTensor:
        first, second = (elements.operand(v, spans, condition.shape) for v in (x, y))
        return math.where(elements.operand(condition, spans), first, second, kind)

    return elements.composite(condition.shape, kind, mask, compute)


# ---------------------------------------------------------------------- reductions


def _reduction(name: str, op: str, doc: str) -> Callable:
    def function(x, axis, *, dtype=None, mask=None, keepdims=False):
        from opentrn.nki.beta1 import isa

        return isa.tensor_reduce(op, x, axis, dtype=dtype, mask=mask, keepdims=keepdims)

    return _named(function, name, doc)


sum = _reduction("sum", "add", "Sum along free axes.")
max = _reduction("max", "maximum", "Maximum along free axes.")
min = _reduction("min", "minimum", "Minimum along free axes.")
prod = _reduction("prod", "multiply", "Product along free axes.")


def _axes(x: Tensor, axis: Any) -> list[int]:
    return [a % x.ndim for a in (axis if isinstance(axis, list | tuple) else [axis])]


def mean(x, axis, *, dtype=None, mask=None, keepdims=False):
    """Arithmetic mean along free axes, of the positions in the mask."""
    x = elements.tile(x, "x")
    spans = masks.rectangle(mask, x.shape)
    if spans is None:
        raise NotBuiltError("a mask that is no rectangle on nl.mean", code="beta1.mask")
    count = _product(spans[a][1] - spans[a][0] for a in _axes(x, axis))
    total = sum(x, axis, dtype=float32, mask=mask, keepdims=keepdims)
    return elements.binary("multiply", total, 1.0 / count, dtype or x.element)


def var(x, axis, *, dtype=None, mask=None):
    """Population variance along free axes."""
    x = elements.tile(x, "x")
    apart = elements.binary(
        "subtract", x, mean(x, axis, dtype=float32, mask=mask, keepdims=True), float32, mask
    )
    return mean(square(apart, mask=mask), axis, dtype=dtype or x.element, mask=mask, keepdims=True)


def all(x, axis, *, dtype=bool_, mask=None):
    """1 where no element along the axes is zero."""
    return min(not_equal(x, 0.0, dtype=float32, mask=mask), axis, dtype=dtype, mask=mask)


def softmax(x, axis, *, dtype=None, compute_dtype=None, mask=None):
    """exp(x - max) / Σ exp(x - max) along free axes."""
    x = elements.tile(x, "x")
    kind = as_dtype(dtype or x.element)
    axes = tuple(_axes(x, axis))
    return elements.composite(
        x.shape, kind, mask, lambda spans: math.softmax(elements.operand(x, spans), axes, kind)
    )


def rms_norm(x, w, axis, n, epsilon=1e-06, *, dtype=None, compute_dtype=None, mask=None):
    """x · w / √(mean(x²) + ε) along free axes, n elements long."""
    x = elements.tile(x, "x")
    total = sum(square(x, dtype=float32, mask=mask), axis, dtype=float32, mask=mask, keepdims=True)
    average = elements.binary("multiply", total, 1.0 / n, float32)
    scale = rsqrt(elements.binary("add", average, epsilon, float32))
    scaled = elements.binary("multiply", x, scale, float32, mask)
    return elements.binary("multiply", scaled, w, dtype or x.element, mask)


# ---------------------------------------------------------------------- random numbers


def rand(shape, dtype=float32):
    """A tile of random numbers from [0, 1)."""
    _, tile = blocks.split(shape, on_chip=True)

    def run(t: Tensor) -> None:
        bits = memory.ndarray(tile, uint32, memory.sbuf)
        nisa.rng(bits)
        # The upper 24 bits are exact in float32, so the result stays below 1.
        nisa.tensor_scalar(bits, bits, "right_shift", 8)
        nisa.tensor_scalar(t.write(), bits, "multiply", 2.0**-24)

    return produce(tile, dtype, run)


def random_seed(seed, *, mask=None):
    """Seed the random numbers: an integer, or a tile with one."""
    current().flush()
    if not isinstance(seed, Tensor):
        seed = Tensor.of(memory.full((1, 1), int(seed), int32))
    nisa.set_rng_seed(seed.view(dtypes.uint32).read())


def dropout(x, rate, *, dtype=None, mask=None):
    """x with elements set to zero with probability `rate`; the others are not scaled."""
    from opentrn.nki.beta1 import isa

    return isa.dropout(x, rate, dtype=dtype, mask=mask)


__all__ = [
    "abs",
    "add",
    "all",
    "arctan",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "ceil",
    "cos",
    "divide",
    "dropout",
    "equal",
    "erf",
    "erf_dx",
    "exp",
    "floor",
    "fmod",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_tanh",
    "gelu_dx",
    "greater",
    "greater_equal",
    "invert",
    "left_shift",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "mod",
    "multiply",
    "negative",
    "not_equal",
    "power",
    "prod",
    "rand",
    "random_seed",
    "reciprocal",
    "relu",
    "right_shift",
    "rms_norm",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "silu_dx",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "subtract",
    "sum",
    "tan",
    "tanh",
    "trunc",
    "var",
    "where",
]
