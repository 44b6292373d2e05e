"""Ops that make, take apart and transform complex numbers."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from opentrn.graph.ops.define import Ints, Op, Traffic, Type, Wrong, count, same_dtype, stream
from opentrn.graph.ops.elementwise import Binary, Elementwise
from opentrn.graph.types import complex_of


class Part(Elementwise, abstract=True):
    """One part of a complex number."""

    operands = ("operand",)
    law = "the operand is complex or a float"

    def result(self, operand: Type) -> Type:
        if operand.dtype.kind not in ("complex", "float"):
            raise Wrong(f"the operand is {operand.dtype}", kind="dtype")
        return Type(operand.shape, operand.dtype.element or operand.dtype)


class Real(Part):
    """The real part; of a float, the float."""

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        return operand.real


class Imag(Part):
    """The imaginary part; of a float, 0."""

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        return operand.imag


class Complex(Binary):
    """lhs + i·rhs"""

    law = "both operands are float32, or both float64, of one shape"
    kinds = ("float",)

    def result(self, lhs: Type, rhs: Type) -> Type:
        kind = same_dtype(lhs, rhs)
        if kind not in ("float32", "float64"):
            raise Wrong(f"the parts are {kind}", fix="convert them to float32", kind="dtype")
        return Type(super().result(lhs, rhs).shape, complex_of(kind))

    def evaluate(self, out: Type, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        made = np.empty(np.broadcast_shapes(lhs.shape, rhs.shape), out.dtype.carrier)
        made.real, made.imag = lhs, rhs
        return made


class Fft(Op):
    """The discrete Fourier transform of the last axes, whose sizes are `fft_length`.

    FFT and IFFT take and give complex numbers (IFFT divides by the size); RFFT takes floats and
    gives the first n/2 + 1 complex numbers of the last axis, IRFFT the other way."""

    operands = ("operand",)
    law = ("1 to 3 lengths, those of the operand's last axes (IRFFT: of the result's); FFT, IFFT "
           "and IRFFT take complex numbers, RFFT float32 or float64")
    choices: ClassVar = {"fft_type": ("FFT", "IFFT", "RFFT", "IRFFT")}
    fft_type: str
    fft_length: Ints

    def result(self, operand: Type) -> Type:
        lengths = self.fft_length
        lead = operand.shape[:len(operand.shape) - len(lengths)]
        if not 1 <= len(lengths) <= 3 or len(lengths) > len(operand.shape):
            raise Wrong(f"{len(lengths)} lengths for {list(operand.shape)}", kind="attribute")
        half = (*lengths[:-1], lengths[-1] // 2 + 1 if lengths[-1] else 0)
        want = half if self.fft_type == "IRFFT" else lengths
        if operand.shape[len(lead):] != want:
            raise Wrong(f"the last axes of {list(operand.shape)} are not {list(want)}")
        real = self.fft_type == "RFFT"
        fits = operand.dtype in ("float32", "float64") if real else operand.dtype.kind == "complex"
        if not fits:
            raise Wrong(f"{self.fft_type} cannot take {operand.dtype}", kind="dtype")
        if real:
            return Type((*lead, *half), complex_of(operand.dtype))
        kind = operand.dtype.element if self.fft_type == "IRFFT" else operand.dtype
        return Type((*lead, *lengths), kind)

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        if not out.size:
            return np.zeros(out.shape, out.dtype.carrier)
        axes = tuple(range(operand.ndim - len(self.fft_length), operand.ndim))
        wide = operand.astype(np.float64 if self.fft_type == "RFFT" else np.complex128)
        run = {"FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn,
               "IRFFT": np.fft.irfftn}[self.fft_type]
        return run(wide, s=self.fft_length, axes=axes)

    def flops(self, out: Type, operand: Type) -> int:
        size = count(self.fft_length)
        lines = max(out.size, operand.size) // max(size, 1) or 1
        return 5 * lines * size * max(size - 1, 0).bit_length()  # 5·n·⌈log₂ n⌉, radix 2

    def traffic(self, out: Type, operand: Type) -> Traffic:
        return stream(out, operand)
