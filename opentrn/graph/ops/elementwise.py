"""Ops that compute each element of the result from the same element of the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from opentrn.base import DType
from opentrn.graph import carriers
from opentrn.graph.ops import functions
from opentrn.graph.ops.define import (
    BOOL,
    LaterDType,
    Op,
    Traffic,
    Type,
    Wrong,
    floating,
    same_dtype,
    stream,
)

NUMBERS = ("float", "int", "uint")
FIELDS = (*NUMBERS, "complex")  # numbers that can be added, multiplied and divided
ANALYTIC = ("float", "complex")


class Elementwise(Op, abstract=True):
    """Operands and result share one shape; one operation for each element."""

    def flops(self, out: Type, *args: Type) -> int:
        return out.size

    def traffic(self, out: Type, *args: Type) -> Traffic:
        return stream(out, *args)


class Unary(Elementwise, abstract=True):
    """One number in, one out, of the same dtype."""

    operands = ("operand",)
    law = "the operand is a number; the result has its shape and dtype"
    kinds: ClassVar[tuple[str, ...]] = NUMBERS
    compute: ClassVar[Callable[[np.ndarray], np.ndarray]]

    def result(self, operand: Type) -> Type:
        if operand.dtype.kind not in self.kinds:
            raise Wrong(f"the operand is {operand.dtype}, not {' or '.join(self.kinds)}",
                        fix="convert it first", kind="dtype")
        return operand

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        return type(self).compute(operand)


class Analytic(Unary, abstract=True):
    """A smooth function of one float."""

    law = "the operand is a float or complex; the result has its shape and dtype"
    kinds = ANALYTIC

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        if operand.dtype == np.complex64:  # NumPy's functions of these lose digits
            operand = operand.astype(np.complex128)
        return type(self).compute(operand)


class OfFloats(Unary, abstract=True):
    """A function of one float."""

    law = "the operand is a float; the result has its shape and dtype"
    kinds = ("float",)


class Negate(Unary):
    """-x"""

    kinds = FIELDS
    compute = np.negative


class Abs(Unary):
    """|x|; a float of a complex number."""

    kinds = FIELDS
    compute = np.abs

    def result(self, operand: Type) -> Type:
        checked = super().result(operand)
        return Type(checked.shape, checked.dtype.element or checked.dtype)


class Sign(Unary):
    """-1, 0 or 1; x/|x| of a complex number; NaN stays NaN."""

    kinds = FIELDS
    compute = np.sign


class Exponential(Analytic):
    """eˣ"""

    compute = functions.exp


class ExponentialMinusOne(Analytic):
    """eˣ - 1, exact near 0."""

    compute = np.expm1


class Log(Analytic):
    """Natural logarithm."""

    compute = functions.log


class LogPlusOne(Analytic):
    """log(1 + x), exact near 0."""

    compute = np.log1p


class Sqrt(Analytic):
    """√x"""

    compute = np.sqrt


class Rsqrt(Analytic):
    """1/√x"""

    compute = functions.rsqrt


def _cbrt(x: np.ndarray) -> np.ndarray:
    return np.cbrt(x) if x.dtype.kind == "f" else np.exp(np.log(x) / 3.0)


class Cbrt(Analytic):
    """∛x, also of negative x; of a complex number the root of the least angle."""

    compute = _cbrt


class Tanh(Analytic):
    """Hyperbolic tangent."""

    compute = functions.tanh


class Logistic(Analytic):
    """1 / (1 + e⁻ˣ)"""

    compute = functions.logistic


class Sine(Analytic):
    """sin x, x in radians."""

    compute = functions.sin


class Cosine(Analytic):
    """cos x, x in radians."""

    compute = functions.cos


class Tan(Analytic):
    """tan x, x in radians."""

    compute = np.tan


class Erf(OfFloats):
    """2/√π ∫₀ˣ exp(-t²) dt"""

    compute = functions.erf


class Floor(OfFloats):
    """The largest whole number ≤ x."""

    compute = np.floor


class Ceil(OfFloats):
    """The smallest whole number ≥ x."""

    compute = np.ceil


class RoundNearestEven(OfFloats):
    """The nearest whole number; halves go to the even one."""

    compute = np.rint


def _away(x: np.ndarray) -> np.ndarray:
    whole = np.trunc(x)
    return whole + np.copysign(np.abs(x - whole) >= 0.5, x)


class RoundNearestAfz(OfFloats):
    """The nearest whole number; halves go away from zero."""

    compute = _away


class IsFinite(Elementwise):
    """True where x is neither infinite nor NaN."""

    operands = ("operand",)
    law = "the operand is a float; the result is bool"

    def result(self, operand: Type) -> Type:
        floating(operand)
        return Type(operand.shape, BOOL)

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        return np.isfinite(operand)


class Convert(Elementwise):
    """The same numbers in another dtype: floats round to nearest even, float to integer drops the
    fraction and saturates, integers wrap, a number is True unless it is 0."""

    operands = ("operand",)
    law = "any dtype to any dtype"
    dtype: DType
    source: LaterDType = ""  # filled in by `settle`

    def settle(self, operand: Type) -> Convert:
        return self if self.source == operand.dtype else Convert(self.dtype, operand.dtype)

    def result(self, operand: Type) -> Type:
        return Type(operand.shape, self.dtype)

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        return carriers.convert(operand, self.source, self.dtype)

    def flops(self, out: Type, operand: Type) -> int:
        return 0  # a change of format, no arithmetic


class Binary(Elementwise, abstract=True):
    """Two numbers of one dtype and shape."""

    operands = ("lhs", "rhs")
    law = "both operands have one shape and one dtype; nothing is broadcast by itself"
    kinds: ClassVar[tuple[str, ...]] = NUMBERS
    compute: ClassVar[Callable[[np.ndarray, np.ndarray], np.ndarray]]

    def result(self, lhs: Type, rhs: Type) -> Type:
        kind = same_dtype(lhs, rhs)
        same_shape(lhs, rhs)
        if kind.kind not in self.kinds:
            raise Wrong(f"the operands are {kind}, not {' or '.join(self.kinds)}",
                        fix="convert them first", kind="dtype")
        return lhs

    def evaluate(self, out: Type, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return type(self).compute(lhs, rhs)


def same_shape(*args: Type) -> None:
    """Refuse operands of different shapes."""
    for other in args[1:]:
        if other.shape != args[0].shape:
            raise Wrong(f"operands have shapes {list(args[0].shape)} and {list(other.shape)}",
                        fix="broadcast one: g.broadcast(x, shape)")


class Add(Binary):
    """lhs + rhs; integers wrap, on bool it is `or`."""

    commutative = True
    kinds = (*FIELDS, "bool")
    compute = np.add


class Subtract(Binary):
    """lhs - rhs; integers wrap."""

    kinds = FIELDS
    compute = np.subtract


class Multiply(Binary):
    """lhs · rhs; integers wrap, on bool it is `and`."""

    commutative = True
    kinds = (*FIELDS, "bool")
    compute = np.multiply


class Divide(Binary):
    """lhs / rhs; integers drop the fraction, and n / 0 is -1 (unsigned: the largest)."""

    kinds = FIELDS
    compute = functions.divide


class Maximum(Binary):
    """The larger of both; NaN if one is NaN; on bool it is `or`.

    Complex numbers are ordered by their real parts, then by their imaginary parts."""

    commutative = True
    kinds = (*FIELDS, "bool")
    compute = np.maximum


class Minimum(Binary):
    """The smaller of both; NaN if one is NaN; on bool it is `and`.

    Complex numbers are ordered by their real parts, then by their imaginary parts."""

    commutative = True
    kinds = (*FIELDS, "bool")
    compute = np.minimum


class Power(Binary):
    """lhs to the power rhs; a negative power of an integer is 0, or ±1 of ±1."""

    kinds = FIELDS
    compute = functions.power


class Remainder(Binary):
    """What is left of lhs / rhs when the quotient drops its fraction; has the sign of lhs."""

    compute = functions.remainder


def _atan2(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    if y.dtype.kind == "f":
        return np.arctan2(y, x)
    return -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y))


class Atan2(Binary):
    """The angle of the point (rhs, lhs), in (-π, π].

    Of complex numbers, with x = rhs and y = lhs: -i·log((x + iy)/√(x² + y²))."""

    law = "both operands are floats or complex, of one shape and dtype"
    kinds = ANALYTIC
    compute = _atan2


class And(Binary):
    """Logical on bool, bit by bit on integers."""

    law = "both operands are bool, or integers of one dtype, of one shape"
    commutative = True
    kinds = ("bool", "int", "uint")
    compute = np.bitwise_and


class Or(Binary):
    """Logical on bool, bit by bit on integers."""

    law = "both operands are bool, or integers of one dtype, of one shape"
    commutative = True
    kinds = ("bool", "int", "uint")
    compute = np.bitwise_or


class Xor(Binary):
    """Logical on bool, bit by bit on integers."""

    law = "both operands are bool, or integers of one dtype, of one shape"
    commutative = True
    kinds = ("bool", "int", "uint")
    compute = np.bitwise_xor


class Not(Unary):
    """Logical on bool, bit by bit on integers."""

    law = "the operand is bool or an integer"
    kinds = ("bool", "int", "uint")
    compute = np.invert


COMPARE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal,
    "GT": np.greater, "GE": np.greater_equal,
}


class Compare(Elementwise):
    """True where `lhs direction rhs`; any comparison with NaN is False except NE."""

    operands = ("lhs", "rhs")
    law = "both operands have one shape and one dtype; the result is bool"
    choices: ClassVar = {"direction": tuple(COMPARE)}
    direction: str

    def result(self, lhs: Type, rhs: Type) -> Type:
        kind = same_dtype(lhs, rhs)
        same_shape(lhs, rhs)
        if kind.kind == "complex" and self.direction not in ("EQ", "NE"):
            raise Wrong(f"complex numbers have no order: {self.direction}", kind="dtype")
        return Type(lhs.shape, BOOL)

    def evaluate(self, out: Type, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return COMPARE[self.direction](lhs, rhs)


class Select(Elementwise):
    """on_true where pred, else on_false."""

    operands = ("pred", "on_true", "on_false")
    law = "pred is bool; all three have one shape; the choices have one dtype"

    def result(self, pred: Type, on_true: Type, on_false: Type) -> Type:
        if pred.dtype.kind != "bool":
            raise Wrong(f"pred is {pred.dtype}, not bool", fix="compare it with 0", kind="dtype")
        same_dtype(on_true, on_false)
        same_shape(pred, on_true, on_false)
        return on_true

    def evaluate(self, out: Type, pred: np.ndarray, on_true: np.ndarray,
                 on_false: np.ndarray) -> np.ndarray:
        return np.where(pred, on_true, on_false)


class Clamp(Elementwise):
    """operand held between low and high."""

    operands = ("low", "operand", "high")
    law = "all three are numbers of one shape and one dtype"

    def result(self, low: Type, operand: Type, high: Type) -> Type:
        same_dtype(low, operand, high)
        same_shape(low, operand, high)
        return operand

    def evaluate(self, out: Type, low: np.ndarray, operand: np.ndarray,
                 high: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(operand, low), high)

    def flops(self, out: Type, low: Type, operand: Type, high: Type) -> int:
        return 2 * out.size
