"""Ops on the bits of numbers: shifts, counts, other readings of the same bits, fewer bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from opentrn.base import DType
from opentrn.graph import carriers
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
from opentrn.graph.ops.elementwise import Binary, Elementwise, Unary, same_shape

WHOLE = ("int", "uint")


def _unsigned(x: np.ndarray) -> np.ndarray:
    """The same bits as unsigned integers."""
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}").reshape(x.shape)


class Shift(Binary, abstract=True):
    """The bits of lhs moved by rhs places, read as an unsigned number."""

    law = "both operands are integers of one dtype and shape"
    kinds = WHOLE

    def evaluate(self, out: Type, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        places = _unsigned(rhs)
        inside = places < out.dtype.bits
        moved = self.move(out.dtype, lhs, np.where(inside, places, 0).astype(lhs.dtype))
        return np.where(inside, moved, self.beyond(lhs)).astype(lhs.dtype)

    def move(self, kind: DType, lhs: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The shift by fewer places than there are bits."""
        raise LookupError(self.name)

    def beyond(self, lhs: np.ndarray) -> Any:
        """The result of a shift by all places or more."""
        return 0


class ShiftLeft(Shift):
    """lhs · 2^rhs, what passes the highest bit is lost; 0 if rhs is not less than the bits."""

    def move(self, kind: DType, lhs: np.ndarray, places: np.ndarray) -> np.ndarray:
        return np.left_shift(lhs, places)


class ShiftRightLogical(Shift):
    """The bits of lhs moved down by rhs places, zeros above; 0 if rhs is not less than the bits."""

    def move(self, kind: DType, lhs: np.ndarray, places: np.ndarray) -> np.ndarray:
        bits = _unsigned(lhs)
        if kind.bits < 8:
            bits = bits & np.array((1 << kind.bits) - 1, bits.dtype)
        return np.right_shift(bits, _unsigned(places)).astype(lhs.dtype)


class ShiftRightArithmetic(Shift):
    """The bits of lhs moved down by rhs places, the sign repeated above."""

    def move(self, kind: DType, lhs: np.ndarray, places: np.ndarray) -> np.ndarray:
        return self._signed(kind, lhs, places)

    @staticmethod
    def _signed(kind: DType, lhs: np.ndarray, places: np.ndarray) -> np.ndarray:
        if kind.bits < 8:
            spare = 8 - kind.bits
            raised = (_unsigned(lhs) << np.uint8(spare)).view(np.int8)
            return ((raised >> places.view(np.int8)) >> np.int8(spare)).astype(lhs.dtype)
        signed = _unsigned(lhs).view(f"i{lhs.dtype.itemsize}")
        return np.right_shift(signed, places.astype(signed.dtype)).astype(lhs.dtype)

    def evaluate(self, out: Type, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        most = np.minimum(_unsigned(rhs), out.dtype.bits - 1).astype(lhs.dtype)
        return self._signed(out.dtype, lhs, most)


class Popcnt(Unary):
    """How many bits are 1."""

    law = "the operand is an integer"
    kinds = WHOLE

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        bits = _unsigned(operand)
        if out.dtype.bits < 8:
            bits = bits & np.array((1 << out.dtype.bits) - 1, bits.dtype)
        return np.bitwise_count(bits).astype(operand.dtype)


class CountLeadingZeros(Unary):
    """How many bits above the highest 1 are 0; of 0, all."""

    law = "the operand is an integer"
    kinds = WHOLE

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        bits = _unsigned(operand).astype(np.uint64) & np.uint64((1 << out.dtype.bits) - 1)
        for shift in (1, 2, 4, 8, 16, 32):
            bits = bits | bits >> np.uint64(shift)
        return (out.dtype.bits - np.bitwise_count(bits).astype(np.int64)).astype(operand.dtype)


def bits_of(kind: DType) -> int:
    """The bits that tell the values of a dtype apart."""
    return 1 if kind.kind == "bool" else kind.bits


def _unpacked(x: np.ndarray, kind: DType) -> np.ndarray:
    """The bits of all elements in a row, lowest first."""
    stored = np.ascontiguousarray(carriers.leave(x, kind)).reshape(-1)
    every = np.unpackbits(stored.view(np.uint8).reshape(stored.size, -1), axis=1,
                          bitorder="little")
    return every[:, :bits_of(kind)].reshape(-1)


def _packed(bits: np.ndarray, out: Type) -> np.ndarray:
    """Elements of so many bits each, lowest first."""
    held = carriers.storage(out.dtype)
    size = bits_of(out.dtype)
    rows = np.zeros((out.size, 8 * held.itemsize), np.uint8)
    rows[:, :size] = bits.reshape(-1, size)
    if out.dtype.kind == "int" and size < 8:
        rows[:, size:] = rows[:, size - 1:size]  # the sign fills the byte
    stored = np.packbits(rows, axis=1, bitorder="little").reshape(-1).view(held)
    return carriers.enter(stored.reshape(out.shape), out.dtype)


class BitcastConvert(Op):
    """The same bits read as another dtype; a bool is one bit.

    To a narrower dtype, a last axis appears with the parts of each element, lowest bits first; to a
    wider one, the last axis disappears."""

    exact = True
    operands = ("operand",)
    law = "the last axis holds as many narrow elements as make a wide one"
    dtype: DType
    source: LaterDType = ""  # filled in by `settle`

    def settle(self, operand: Type) -> BitcastConvert:
        return BitcastConvert(self.dtype, operand.dtype)

    def result(self, operand: Type) -> Type:
        old, new = operand.dtype, self.dtype
        if (old.kind == "complex") != (new.kind == "complex"):
            raise Wrong(f"cannot read {old} as {new}", kind="dtype")
        size, wanted = bits_of(old), bits_of(new)
        if size == wanted:
            return Type(operand.shape, new)
        if size > wanted:
            return Type((*operand.shape, size // wanted), new)
        parts = wanted // size
        if not operand.shape or operand.shape[-1] != parts:
            raise Wrong(f"{parts} elements of {old} make one {new}; the last axis of "
                        f"{list(operand.shape)} does not have that size")
        return Type(operand.shape[:-1], new)

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        if min(bits_of(self.source), bits_of(out.dtype)) < 8:
            return _packed(_unpacked(operand, self.source), out)
        stored = np.ascontiguousarray(carriers.leave(operand, self.source))
        if stored.dtype.itemsize < out.dtype.itemsize:
            held = stored.reshape(-1).view(carriers.storage(out.dtype))
        else:
            held = np.atleast_1d(stored).view(carriers.storage(out.dtype))
        return carriers.enter(held.reshape(out.shape), out.dtype)

    def flops(self, out: Type, operand: Type) -> int:
        return 0  # no arithmetic

    def traffic(self, out: Type, operand: Type) -> Traffic:
        return stream(out, operand)


class ReducePrecision(Unary):
    """Rounded to the nearest number that a float with these many exponent and mantissa bits has,
    ties to even; too large becomes infinite, too small zero.

    A format without mantissa bits has no NaN, which becomes infinite."""

    law = "the operand is a float; at least 1 exponent bit, at least 0 mantissa bits"
    kinds = ("float",)
    exponent_bits: int
    mantissa_bits: int

    def result(self, operand: Type) -> Type:
        if self.exponent_bits < 1 or self.mantissa_bits < 0:
            raise Wrong(f"{self.exponent_bits} exponent and {self.mantissa_bits} mantissa bits",
                        kind="attribute")
        return super().result(operand)

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        wide = operand.dtype == np.float64
        held, mantissa = (np.uint64, 52) if wide else (np.uint32, 23)
        bits = np.ascontiguousarray(operand).view(held).reshape(operand.shape)
        drop = mantissa - self.mantissa_bits
        if drop > 0:
            one = held(1)
            last = bits >> held(drop) & one
            bits = (bits + (held(1 << drop - 1) - one + last)) & ~held((1 << drop) - 1)
        rounded = bits.view(operand.dtype).reshape(operand.shape)
        if self.exponent_bits < out.dtype.exponent:
            most = (1 << self.exponent_bits - 1) - 1
            size = np.abs(rounded)
            zero = np.copysign(operand.dtype.type(0), operand)
            endless = np.copysign(operand.dtype.type(np.inf), operand)
            rounded = np.where(size >= 2.0 ** (most + 1), endless, rounded)
            rounded = np.where(size < 2.0 ** (1 - most), zero, rounded)
        endless = np.isnan(operand) & (self.mantissa_bits == 0)
        kept = np.where(endless, np.copysign(np.inf, operand), operand).astype(operand.dtype)
        return np.where(np.isfinite(operand), rounded, kept)


def _total(x: np.ndarray) -> np.ndarray:
    """Floats as integers in the same order: -NaN < -∞ < … < -0 < 0 < … < ∞ < NaN."""
    held, top = (np.int64, 63) if x.dtype == np.float64 else (np.int32, 31)
    bits = np.ascontiguousarray(x).view(held).reshape(x.shape)
    return bits ^ (bits >> held(top) & np.iinfo(held).max)


ORDER: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal,
    "GT": np.greater, "GE": np.greater_equal,
}


class CompareTotalOrder(Elementwise):
    """True where `lhs direction rhs` in IEEE 754's total order: -0 before 0, NaN at the ends.

    StableHLO's `compare` with the type TOTALORDER."""

    operands = ("lhs", "rhs")
    law = "both operands are floats of one shape and dtype; the result is bool"
    choices: ClassVar = {"direction": tuple(ORDER)}
    direction: str

    def result(self, lhs: Type, rhs: Type) -> Type:
        same_dtype(lhs, rhs)
        floating(lhs)
        same_shape(lhs, rhs)
        return Type(lhs.shape, BOOL)

    def evaluate(self, out: Type, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return ORDER[self.direction](_total(lhs), _total(rhs))
