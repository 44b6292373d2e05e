"""ONNX rules: functions of each element.

Where torch has the same function, its rule is used: a function is spelled out in one place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from opentrn.graph.importers.onnx_call import Node, onnx_op
from opentrn.graph.importers.torch_rules import RULES as TORCH
from opentrn.graph.ir import Value

PLAIN = {
    "Abs": "abs", "Neg": "negate", "Exp": "exponential", "Log": "log", "Sqrt": "sqrt",
    "Floor": "floor", "Ceil": "ceil", "Round": "round_nearest_even", "Sign": "sign", "Sin": "sine",
    "Cos": "cosine", "Tan": "tan", "Erf": "erf", "Sigmoid": "logistic", "Tanh": "tanh",
    "Not": "not_", "BitwiseNot": "not_",
}
AS_IN_TORCH = {
    "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan",
    "Atanh": "atanh", "Cosh": "cosh", "Sinh": "sinh", "IsNaN": "isnan", "Mish": "mish",
    "Reciprocal": "reciprocal", "Relu": "relu", "HardSwish": "hardswish", "Softplus": "softplus",
}
PAIRS = {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "And": "and_",
    "Or": "or_", "Xor": "xor", "BitwiseAnd": "and_", "BitwiseOr": "or_", "BitwiseXor": "xor",
}
COMPARISONS = {
    "Equal": "EQ", "Greater": "GT", "GreaterOrEqual": "GE", "Less": "LT", "LessOrEqual": "LE",
}
SEVERAL = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def torch_rule(n: Node, name: str, *args: Any, **given: Any) -> Any:
    """What the rule of a torch op makes."""
    return TORCH[f"aten::{name}"].make(n.g, *args, **given)


def _plain(n: Node, op: str) -> Value:
    if n.x.dtype.kind in ("int", "uint") and op in ("floor", "ceil", "round_nearest_even"):
        return n.x
    return getattr(n.g, op)(n.x)


def _as_in_torch(n: Node, name: str) -> Value:
    return torch_rule(n, name, n.x)


def _pair(n: Node, op: str) -> Value:
    return getattr(n.g, op)(*n.pair())


def _comparison(n: Node, direction: str) -> Value:
    return n.g.compare(*n.pair(), direction=direction)


def _several(n: Node, op: str) -> Value:
    return functools.reduce(getattr(n.g, op), n.together(*n.values))


def _enter(table: dict[str, str], make: Callable[[Node, str], Value]) -> None:
    for name, word in table.items():
        onnx_op(name)(functools.partial(make, op=word) if make in (_plain, _pair, _several)
                      else functools.partial(_worded, make, word))


def _worded(make: Callable[[Node, str], Value], word: str, n: Node) -> Value:
    return make(n, word)


for _table, _make in ((PLAIN, _plain), (AS_IN_TORCH, _as_in_torch), (PAIRS, _pair),
                      (COMPARISONS, _comparison), (SEVERAL, _several)):
    _enter(_table, _make)


@onnx_op("Identity")
def identity(n: Node) -> Any:
    """The input, whatever it is."""
    return n.given(0)


@onnx_op("Mean")
def mean(n: Node) -> Value:
    """The mean of the inputs, element by element."""
    return _several(n, "add") / float(len(n.args))


@onnx_op("Pow")
def power(n: Node) -> Value:
    """base ^ exponent in the base's dtype."""
    x, y = n.pair()
    if x.dtype == y.dtype:
        return n.g.power(x, y)
    if x.dtype.kind == "float":
        return n.g.power(x, n.g.cast(y, x.dtype))
    if y.dtype.kind == "float":
        return n.g.cast(n.g.power(n.g.cast(x, y.dtype), y), x.dtype)
    return n.g.power(x, n.g.cast(y, x.dtype))


@onnx_op("Mod")
def mod(n: Node) -> Value:
    """The rest of a division: with the divisor's sign, or the dividend's with `fmod`."""
    x, y = n.together(n.arg(0), n.arg(1))
    if n.attr("fmod"):
        return n.g.remainder(x, y)
    if x.dtype.kind == "float" and n.opset < 28:
        raise n.refuse("floats need fmod=1")
    return torch_rule(n, "remainder.Tensor", x, y)


@onnx_op("BitShift")
def bit_shift(n: Node) -> Value:
    """Whole numbers shifted LEFT or RIGHT; what is shifted out is lost."""
    x, y = n.together(n.arg(0), n.arg(1))
    direction = n.attr("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise n.refuse(f"`direction` is {direction!r}")
    if direction == "LEFT":
        return n.g.shift_left(x, y)
    signed = x.dtype.kind == "int"
    return n.g.shift_right_arithmetic(x, y) if signed else n.g.shift_right_logical(x, y)


@onnx_op("BitCast")
def bit_cast(n: Node) -> Value:
    """The same bits read as another dtype of the same width."""
    kind = n.kind(n.attr("to"))
    # A bool is a byte here, whose value is 0 or 1.
    x = n.g.cast(n.x, "uint8") if n.x.dtype.kind == "bool" else n.x
    if kind.kind == "bool":
        return n.g.cast(n.g.bitcast_convert(x, dtype="uint8"), kind)
    return n.g.bitcast_convert(x, dtype=kind)


@onnx_op("IsInf")
def isinf(n: Node) -> Value:
    """Which elements are infinite, of one sign or of both."""
    x, found = n.x, []
    for name, size in (("detect_negative", -math.inf), ("detect_positive", math.inf)):
        if n.attr(name):
            found.append(n.g.compare(x, n.g.like(x, size), direction="EQ"))
    if not found:
        return n.g.full(x.shape, False, "bool")
    return functools.reduce(n.g.or_, found)


@onnx_op("Where")
def where(n: Node) -> Value:
    """The second input where the first is true, else the third."""
    return n.g.select(*n.together(n.arg(0), n.arg(1), n.arg(2)))


@onnx_op("Clip")
def clip(n: Node) -> Value:
    """Numbers no lower than min and no higher than max (which wins)."""
    x = n.x
    low = n.arg(1) if n.has(1) else n.attr("min") if n.opset < 11 else None
    high = n.arg(2) if n.has(2) else n.attr("max") if n.opset < 11 else None
    for bound, op in ((low, n.g.maximum), (high, n.g.minimum)):
        if bound is not None:
            edge = bound if isinstance(bound, Value) else n.g.like(x, bound)
            x = op(x, n.g.broadcast(edge, x.shape))
    return x


@onnx_op("Dropout")
def dropout(n: Node) -> tuple[Value, ...]:
    """The input as it is: nothing is dropped outside training."""
    if n.opset < 7 and not n.attr("is_test"):
        raise n.refuse("dropping draws random numbers", "export the model for inference")
    if n.has(2):
        training = bool(n.known(2, "training_mode").item())
        ratio = float(n.known(1, "ratio").item()) if n.has(1) else 0.5
        if training and ratio:
            raise n.refuse("dropping draws random numbers", "export the model for inference")
    return n.x, n.g.full(n.x.shape, True, "bool")


# -------------------------------------------------------------------------------------- activations


@onnx_op("LeakyRelu")
def leaky_relu(n: Node) -> Value:
    """x, times alpha where it is negative."""
    return torch_rule(n, "leaky_relu", n.x, n.attr("alpha"))


@onnx_op("PRelu")
def prelu(n: Node) -> Value:
    """x, times slope where it is negative."""
    x, slope = n.x, n.arg(1)
    if n.opset < 7 and slope.rank == 1 and x.rank > 1:  # one for each channel
        slope = n.g.reshape(slope, (slope.size, *(1,) * (x.rank - 2)))
    slope = n.g.broadcast(slope, x.shape)
    return n.g.select(n.g.compare(x, n.g.like(x, 0), direction="LT"), x * slope, x)


@onnx_op("Elu")
def elu(n: Node) -> Value:
    """x, alpha·(eˣ - 1) where it is negative."""
    return torch_rule(n, "elu", n.x, n.attr("alpha"))


@onnx_op("Celu")
def celu(n: Node) -> Value:
    """x, alpha·(e^(x/alpha) - 1) where it is negative."""
    alpha = n.attr("alpha")
    return torch_rule(n, "elu", n.x, alpha, 1, 1 / alpha)


@onnx_op("Selu")
def selu(n: Node) -> Value:
    """gamma·x, gamma·alpha·(eˣ - 1) where x is negative."""
    return torch_rule(n, "elu", n.x, n.attr("alpha"), n.attr("gamma"))


@onnx_op("HardSigmoid")
def hard_sigmoid(n: Node) -> Value:
    """alpha·x + beta, kept between 0 and 1."""
    line = n.x * n.attr("alpha") + n.attr("beta")
    return n.g.minimum(n.g.maximum(line, n.g.like(line, 0.0)), n.g.like(line, 1.0))


@onnx_op("Softsign")
def softsign(n: Node) -> Value:
    """x / (1 + |x|)"""
    return n.x / (n.g.abs(n.x) + 1.0)


@onnx_op("ThresholdedRelu")
def thresholded_relu(n: Node) -> Value:
    """x where it is above alpha, else 0."""
    x = n.x
    above = n.g.compare(x, n.g.like(x, n.attr("alpha")), direction="GT")
    return n.g.select(above, x, n.g.like(x, 0.0))


@onnx_op("Shrink")
def shrink(n: Node) -> Value:
    """x - bias above lambd, x + bias below -lambd, 0 between."""
    x, g, bias, edge = n.x, n.g, n.attr("bias"), n.attr("lambd")
    kind = x.dtype
    x = x if kind.kind == "float" else g.cast(x, "float32")
    low = g.select(g.compare(x, g.like(x, -edge), direction="LT"), x + bias, g.like(x, 0.0))
    made = g.select(g.compare(x, g.like(x, edge), direction="GT"), x - bias, low)
    return g.cast(made, kind)


@onnx_op("Gelu")
def gelu(n: Node) -> Value:
    """x·Φ(x), or its approximation by tanh."""
    return n.g.gelu(n.x, approximate=n.attr("approximate") == "tanh")


@onnx_op("Swish")
def swish(n: Node) -> Value:
    """x·σ(alpha·x)"""
    alpha = n.attr("alpha")
    return n.g.silu(n.x) if alpha == 1 else n.x * n.g.logistic(n.x * alpha)


# -------------------------------------------------------------------------------------------- casts


def cast_to(n: Node, x: Value, kind: Any) -> Value:
    """A convert with the node's `saturate`: floats of 8 bits that are too large become the largest
    number (1), or infinity or NaN (0)."""
    if kind == "float8_e8m0fnu" and x.dtype != kind:
        raise n.refuse("scales of 8 bits are not rounded here as ONNX says",
                       "give the model scales that are powers of 2")
    if kind.kind != "float" or kind.bits > 8 or x.dtype == kind:
        return n.g.cast(x, kind)
    wide = x if x.dtype.kind == "float" else n.g.cast(x, "float32")
    if n.attr("saturate", 1):
        edge = n.g.like(wide, float(kind.max))
        kept = n.g.minimum(n.g.maximum(wide, n.g.negate(edge)), edge)
        # Infinities saturate too; NaN stays.
        wide = n.g.select(n.g.compare(wide, wide, direction="EQ"), kept, wide)
    return n.g.cast(wide, kind)


@onnx_op("Cast")
def cast(n: Node) -> Value:
    """Numbers in another dtype; fractions are dropped."""
    return cast_to(n, n.x, n.kind(n.attr("to")))


@onnx_op("CastLike")
def cast_like(n: Node) -> Value:
    """Numbers in the dtype of another input."""
    return cast_to(n, n.x, n.arg(1).dtype)
