"""Torch rules: functions of each element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from opentrn.base import dtype
from opentrn.graph.build import Builder
from opentrn.graph.importers.torch_rules import refuse, torch_op
from opentrn.graph.importers.torch_types import (
    Operand,
    broadcast_shape,
    common_dtype,
    floated,
    together,
)
from opentrn.graph.ir import Value

FLOAT_UNARY = {
    "exp": "exponential", "expm1": "exponential_minus_one", "log": "log", "log1p": "log_plus_one",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "tanh": "tanh", "sigmoid": "logistic", "sin": "sine",
    "cos": "cosine", "tan": "tan", "erf": "erf",
}
KIND_KEPT = {"abs": "abs", "neg": "negate", "sign": "sign"}
WHOLE = {"floor": "floor", "ceil": "ceil", "round": "round_nearest_even"}
COMPARISONS = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}
LOGICAL = {"and": "and", "or": "or", "xor": "xor"}


def _unary(op: str, floats: bool = False, whole: bool = False) -> Callable[..., Value]:
    def rule(g: Builder, self: Value) -> Value:
        if whole and self.dtype.kind != "float":
            return self
        x = g.cast(self, floated(self.dtype)) if floats else self
        return getattr(g, op)(x)
    rule.__doc__ = f"`{op}` of each element."
    rule.__name__ = op
    return rule


for _torch, _op in FLOAT_UNARY.items():
    torch_op(f"aten::{_torch}(Tensor self) -> Tensor")(_unary(_op, floats=True))
for _torch, _op in KIND_KEPT.items():
    torch_op(f"aten::{_torch}(Tensor self) -> Tensor")(_unary(_op))
for _torch, _op in WHOLE.items():
    torch_op(f"aten::{_torch}(Tensor self) -> Tensor")(_unary(_op, whole=True))


def _comparison(direction: str) -> Callable[..., Value]:
    def rule(g: Builder, self: Operand, other: Operand) -> Value:
        return g.compare(*together(g, self, other), direction=direction)
    rule.__doc__ = f"True where self {direction} other."
    rule.__name__ = direction
    return rule


for _torch, _op in COMPARISONS.items():
    torch_op(f"aten::{_torch}.Tensor(Tensor self, Tensor other) -> Tensor",
             f"aten::{_torch}.Scalar(Tensor self, Scalar other) -> Tensor")(_comparison(_op))


def _truth(g: Builder, x: Operand) -> Operand:
    return g.cast(x, "bool") if isinstance(x, Value) else bool(x)


def _logical(op: str) -> Callable[..., Value]:
    def rule(g: Builder, self: Operand, other: Operand) -> Value:
        return getattr(g, op + "_")(*together(g, _truth(g, self), _truth(g, other)))
    rule.__doc__ = f"`{op}` of the truth of each element."
    rule.__name__ = f"logical_{op}"
    return rule


def _bitwise(op: str) -> Callable[..., Value]:
    def rule(g: Builder, self: Operand, other: Operand) -> Value:
        return getattr(g, op + "_")(*together(g, self, other))
    rule.__doc__ = f"`{op}` bit by bit; logical on bool."
    rule.__name__ = f"bitwise_{op}"
    return rule


for _op in LOGICAL:
    torch_op(f"aten::logical_{_op}(Tensor self, Tensor other) -> Tensor")(_logical(_op))
    torch_op(f"aten::bitwise_{_op}.Tensor(Tensor self, Tensor other) -> Tensor",
             f"aten::bitwise_{_op}.Scalar(Tensor self, Scalar other) -> Tensor")(_bitwise(_op))


def _shift(left: bool) -> Callable[..., Value]:
    def rule(g: Builder, self: Operand, other: Operand) -> Value:
        x, n = together(g, self, other)
        if x.dtype.kind not in ("int", "uint"):
            raise refuse(f"a shift of {x.dtype}", g.where)
        right = "shift_right_arithmetic" if x.dtype.kind == "int" else "shift_right_logical"
        return getattr(g, "shift_left" if left else right)(x, n)
    rule.__doc__ = "Bits moved; to the right the sign fills in, zeros in unsigned numbers."
    rule.__name__ = "shift_left" if left else "shift_right"
    return rule


for _torch, _left in (("lshift", True), ("rshift", False)):
    _word = "left" if _left else "right"
    torch_op(f"aten::__{_torch}__.Tensor(Tensor self, Tensor other) -> Tensor",
             f"aten::__{_torch}__.Scalar(Tensor self, Scalar other) -> Tensor",
             f"aten::bitwise_{_word}_shift.Tensor(Tensor self, Tensor other) -> Tensor",
             f"aten::bitwise_{_word}_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor",
             f"aten::bitwise_{_word}_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor",
             )(_shift(_left))


@torch_op("aten::logical_not(Tensor self) -> Tensor")
def logical_not(g: Builder, self: Value) -> Value:
    """True where self is 0."""
    return g.not_(_truth(g, self))


@torch_op("aten::bitwise_not(Tensor self) -> Tensor")
def bitwise_not(g: Builder, self: Value) -> Value:
    """Every bit turned; logical on bool."""
    return g.not_(self)


@torch_op("aten::isnan(Tensor self) -> Tensor")
def isnan(g: Builder, self: Value) -> Value:
    """Only NaN differs from itself."""
    return g.compare(self, self, direction="NE")


@torch_op("aten::isinf(Tensor self) -> Tensor")
def isinf(g: Builder, self: Value) -> Value:
    """|self| = ∞"""
    if self.dtype.kind != "float":
        return g.full(self.shape, False, "bool")
    return g.compare(g.abs(self), math.inf, direction="EQ")


@torch_op("aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
          "aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor")
def add(g: Builder, self: Operand, other: Operand, alpha: Any = 1) -> Value:
    """self + alpha·other"""
    x, y = together(g, self, other)
    return x + (y if alpha == 1 else y * alpha)


@torch_op("aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
          "aten::sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor")
def sub(g: Builder, self: Operand, other: Operand, alpha: Any = 1) -> Value:
    """self - alpha·other"""
    x, y = together(g, self, other)
    return x - (y if alpha == 1 else y * alpha)


@torch_op("aten::rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor",
          "aten::rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor")
def rsub(g: Builder, self: Operand, other: Operand, alpha: Any = 1) -> Value:
    """other - alpha·self"""
    return sub(g, other, self, alpha)


@torch_op("aten::mul.Tensor(Tensor self, Tensor other) -> Tensor",
          "aten::mul.Scalar(Tensor self, Scalar other) -> Tensor")
def mul(g: Builder, self: Operand, other: Operand) -> Value:
    """self·other"""
    return g.multiply(*together(g, self, other))


@torch_op("aten::div.Tensor(Tensor self, Tensor other) -> Tensor",
          "aten::div.Scalar(Tensor self, Scalar other) -> Tensor")
def div(g: Builder, self: Operand, other: Operand) -> Value:
    """self / other; integers are divided as float32."""
    kind = floated(common_dtype(self, other))
    return g.divide(*together(g, self, other, kind=kind))


@torch_op("aten::div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor",
          "aten::div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor")
def div_mode(g: Builder, self: Operand, other: Operand, rounding_mode: str | None) -> Value:
    """self / other, rounded down ("floor"), towards 0 ("trunc") or not at all."""
    if rounding_mode is None:
        return div(g, self, other)
    x, y = together(g, self, other)
    if x.dtype.kind == "float":
        quotient = x / y
        return g.floor(quotient) if rounding_mode == "floor" else truncate(g, quotient)
    quotient = x / y
    if rounding_mode == "trunc" or x.dtype.kind == "uint":
        return quotient
    rest = g.compare(g.remainder(x, y), 0, direction="NE")
    apart = g.xor(g.compare(x, 0, direction="LT"), g.compare(y, 0, direction="LT"))
    return quotient - g.cast(g.and_(rest, apart), x.dtype)


@torch_op("aten::floor_divide(Tensor self, Tensor other) -> Tensor")
def floor_divide(g: Builder, self: Operand, other: Operand) -> Value:
    """self / other, rounded down."""
    return div_mode(g, self, other, "floor")


def truncate(g: Builder, x: Value) -> Value:
    """Round towards 0."""
    return g.select(g.compare(x, 0.0, direction="LT"), g.ceil(x), g.floor(x))


@torch_op("aten::trunc(Tensor self) -> Tensor")
def trunc(g: Builder, self: Value) -> Value:
    """Round towards 0."""
    return truncate(g, self) if self.dtype.kind == "float" else self


@torch_op("aten::remainder.Scalar(Tensor self, Scalar other) -> Tensor",
          "aten::remainder.Tensor(Tensor self, Tensor other) -> Tensor")
def remainder(g: Builder, self: Operand, other: Operand) -> Value:
    """self - other·⌊self/other⌋: has the sign of other."""
    x, y = together(g, self, other)
    rest = g.remainder(x, y)
    apart = g.xor(g.compare(rest, 0, direction="LT"), g.compare(y, 0, direction="LT"))
    fix = g.and_(apart, g.compare(rest, 0, direction="NE"))
    return g.select(fix, rest + y, rest)


@torch_op("aten::fmod.Scalar(Tensor self, Scalar other) -> Tensor",
          "aten::fmod.Tensor(Tensor self, Tensor other) -> Tensor")
def fmod(g: Builder, self: Operand, other: Operand) -> Value:
    """What is left of self / other rounded towards 0: has the sign of self."""
    return g.remainder(*together(g, self, other))


@torch_op("aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor",
          "aten::pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor",
          "aten::pow.Scalar(Scalar self, Tensor exponent) -> Tensor")
def power(g: Builder, self: Operand, exponent: Operand) -> Value:
    """self to the power exponent; the common powers as products and roots."""
    if isinstance(self, Value) and not isinstance(exponent, Value):
        x = g.cast(self, common_dtype(self, exponent))
        if exponent == 1:
            return x
        if exponent in (2, 3):
            return x * x if exponent == 2 else x * x * x
        if exponent in (0.5, -0.5) and x.dtype.kind == "float":
            return g.sqrt(x) if exponent == 0.5 else g.rsqrt(x)
        if exponent == -1 and x.dtype.kind == "float":
            return 1.0 / x
    return g.power(*together(g, self, exponent))


@torch_op("aten::square(Tensor self) -> Tensor")
def square(g: Builder, self: Value) -> Value:
    """self²"""
    return self * self


@torch_op("aten::reciprocal(Tensor self) -> Tensor")
def reciprocal(g: Builder, self: Value) -> Value:
    """1/self"""
    return 1.0 / g.cast(self, floated(self.dtype))


@torch_op("aten::exp2(Tensor self) -> Tensor")
def exp2(g: Builder, self: Value) -> Value:
    """2 to the power self."""
    x = g.cast(self, floated(self.dtype))
    return g.power(2.0, x)


@torch_op("aten::log2(Tensor self) -> Tensor")
def log2(g: Builder, self: Value) -> Value:
    """log(self)/log 2"""
    return g.log(g.cast(self, floated(self.dtype))) * (1.0 / math.log(2.0))


@torch_op("aten::log10(Tensor self) -> Tensor")
def log10(g: Builder, self: Value) -> Value:
    """log(self)/log 10"""
    return g.log(g.cast(self, floated(self.dtype))) * (1.0 / math.log(10.0))


@torch_op("aten::erfc(Tensor self) -> Tensor")
def erfc(g: Builder, self: Value) -> Value:
    """1 - erf(self); far out on the right, where erf is 1 to the last bit, this is 0."""
    return 1.0 - g.erf(g.cast(self, floated(self.dtype)))


@torch_op("aten::maximum(Tensor self, Tensor other) -> Tensor")
def maximum(g: Builder, self: Operand, other: Operand) -> Value:
    """The larger of both; NaN wins."""
    return g.maximum(*together(g, self, other))


@torch_op("aten::minimum(Tensor self, Tensor other) -> Tensor")
def minimum(g: Builder, self: Operand, other: Operand) -> Value:
    """The smaller of both; NaN wins."""
    return g.minimum(*together(g, self, other))


@torch_op("aten::atan2(Tensor self, Tensor other) -> Tensor")
def atan2(g: Builder, self: Operand, other: Operand) -> Value:
    """The angle of the point (other, self)."""
    return g.atan2(*together(g, self, other, kind=floated(common_dtype(self, other))))


@torch_op("aten::clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor",
          "aten::clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor")
def clamp(g: Builder, self: Value, min: Operand | None = None,
          max: Operand | None = None) -> Value:
    """self held between min and max; max wins where they cross."""
    given = [x for x in (min, max) if x is not None]
    kind = common_dtype(self, *given)
    x = g.cast(self, kind)
    if min is not None:
        x = g.maximum(*together(g, x, min, kind=kind))
    return x if max is None else g.minimum(*together(g, x, max, kind=kind))


@torch_op("aten::clamp_min(Tensor self, Scalar min) -> Tensor")
def clamp_min(g: Builder, self: Value, min: Operand) -> Value:
    """The larger of self and min."""
    return clamp(g, self, min=min)


@torch_op("aten::clamp_max(Tensor self, Scalar max) -> Tensor")
def clamp_max(g: Builder, self: Value, max: Operand) -> Value:
    """The smaller of self and max."""
    return clamp(g, self, max=max)


@torch_op("aten::where.self(Tensor condition, Tensor self, Tensor other) -> Tensor",
          "aten::where.ScalarOther(Tensor condition, Tensor self, Scalar other) -> Tensor",
          "aten::where.ScalarSelf(Tensor condition, Scalar self, Tensor other) -> Tensor")
def where(g: Builder, condition: Value, self: Operand, other: Operand) -> Value:
    """self where condition, else other."""
    kind = common_dtype(self, other)
    chosen = together(g, self, other, kind=kind)
    shape = broadcast_shape(condition.shape, chosen[0].shape)
    return g.select(*(g.broadcast(x, shape) for x in (g.cast(condition, "bool"), *chosen)))


@torch_op("aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor",
          "aten::masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor")
def masked_fill(g: Builder, self: Value, mask: Value, value: Operand) -> Value:
    """value where mask, else self."""
    if isinstance(value, Value):
        value = g.cast(value, self.dtype)
    filled = where(g, mask, value, self)
    return g.cast(filled, self.dtype)


@torch_op("aten::relu(Tensor self) -> Tensor")
def relu(g: Builder, self: Value) -> Value:
    """max(self, 0)"""
    return g.maximum(self, 0)


@torch_op("aten::gelu(Tensor self, *, str approximate=\"none\") -> Tensor")
def gelu(g: Builder, self: Value, approximate: str = "none") -> Value:
    """self·Φ(self), with tanh for Φ if approximate is "tanh"."""
    return g.gelu(self, approximate=approximate == "tanh")


@torch_op("aten::silu(Tensor self) -> Tensor")
def silu(g: Builder, self: Value) -> Value:
    """self·logistic(self)"""
    return g.silu(self)


@torch_op("aten::mish(Tensor self) -> Tensor")
def mish(g: Builder, self: Value) -> Value:
    """self·tanh(softplus(self))"""
    return self * g.tanh(g.softplus(self))


@torch_op("aten::softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor")
def softplus(g: Builder, self: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    """log(1 + e^(beta·self))/beta; self itself where beta·self > threshold."""
    scaled = self * beta
    soft = g.softplus(scaled) / beta
    return g.select(g.compare(scaled, threshold, direction="GT"), self, soft)


@torch_op("aten::leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor")
def leaky_relu(g: Builder, self: Value, negative_slope: float = 0.01) -> Value:
    """self, times negative_slope where it is negative."""
    return g.select(g.compare(self, 0.0, direction="GT"), self, self * negative_slope)


@torch_op("aten::elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor")
def elu(g: Builder, self: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    """scale·self where positive, else scale·alpha·(e^(input_scale·self) - 1)."""
    low = g.exponential_minus_one(self * input_scale) * alpha
    return g.select(g.compare(self, 0.0, direction="GT"), self, low) * scale


@torch_op("aten::hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor")
def hardtanh(g: Builder, self: Value, min_val: Any = -1, max_val: Any = 1) -> Value:
    """self held between min_val and max_val."""
    return clamp(g, self, min_val, max_val)


@torch_op("aten::hardsigmoid(Tensor self) -> Tensor")
def hardsigmoid(g: Builder, self: Value) -> Value:
    """(self + 3)/6 held between 0 and 1."""
    return clamp(g, self + 3.0, 0, 6) / 6.0


@torch_op("aten::hardswish(Tensor self) -> Tensor")
def hardswish(g: Builder, self: Value) -> Value:
    """self·(self + 3)/6, the factor held between 0 and 1."""
    return self * clamp(g, self + 3.0, 0, 6) / 6.0


@torch_op("aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? "
          "device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? "
          "memory_format=None) -> Tensor")
def to_copy(g: Builder, self: Value, dtype: str | None = None) -> Value:
    """The same numbers, in another dtype if one is given."""
    return self if dtype is None else g.cast(self, dtype)


@torch_op("prims::convert_element_type(Tensor a, ScalarType dtype) -> Tensor")
def convert_element_type(g: Builder, a: Value, dtype: str) -> Value:
    """The same numbers in another dtype; a number of Python's that became an input is one."""
    return g.cast(a, dtype)


@torch_op("aten::to.dtype(Tensor(a) self, ScalarType dtype, bool non_blocking=False, bool "
          "copy=False, MemoryFormat? memory_format=None) -> Tensor(a)")
def to_dtype(g: Builder, self: Value, dtype: str) -> Value:
    """The same numbers in another dtype."""
    return g.cast(self, dtype)


@torch_op("aten::dropout(Tensor input, float p, bool train) -> Tensor")
def dropout(g: Builder, input: Value, p: float, train: bool) -> Value:
    """Nothing when not training."""
    if train and p:
        raise refuse("dropout draws random numbers", g.where, "call module.eval() first")
    return input


@torch_op("aten::addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor")
def addcmul(g: Builder, self: Value, tensor1: Value, tensor2: Value, value: Any = 1) -> Value:
    """self + value·tensor1·tensor2"""
    return add(g, self, mul(g, tensor1, tensor2), value)


@torch_op("prims::fma(Tensor a, Tensor b, Tensor c) -> Tensor")
def fma(g: Builder, a: Value, b: Value | float, c: Value) -> Value:
    """a·b + c, which Dynamo writes for `addcmul`; the product is rounded, as the chip rounds it."""
    return add(g, mul(g, a, b), c)


@torch_op("aten::addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor")
def addcdiv(g: Builder, self: Value, tensor1: Value, tensor2: Value, value: Any = 1) -> Value:
    """self + value·tensor1/tensor2"""
    return add(g, self, div(g, tensor1, tensor2), value)


@torch_op("aten::view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)")
def view_dtype(g: Builder, self: Value, dtype: str) -> Value:
    """Refused unless the dtype stays: the bytes of another dtype have no StableHLO meaning here."""
    if self.dtype != _known(dtype):
        raise refuse(f"view of {self.dtype} bytes as {dtype}", g.where)
    return self


def _known(name: str) -> str:
    return dtype(name)
