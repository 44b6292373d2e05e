"""Ops the compiler keeps whole: activations, softmax and norms.

A composite's `evaluate` is its meaning: computed in float32 (float64 for float64) and rounded
once.  `decompose` spells the same in primitive ops, for back ends without a kernel; it widens
narrow floats first, so both round in the same place.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from opentrn.graph.ops import functions
from opentrn.graph.ops.define import (
    Op,
    Traffic,
    Type,
    Wrong,
    axis_of,
    count,
    floating,
    same_dtype,
    stream,
)

if TYPE_CHECKING:
    from opentrn.graph.build import Builder
    from opentrn.graph.ir import Value


class Composite(Op, abstract=True):
    """An op that is also a small program of primitive ops."""

    composite = True

    def decompose(self, g: Builder, *args: Value) -> Value:
        """The same result from primitive ops."""
        raise NotImplementedError

    def traffic(self, out: Type, *args: Type) -> Traffic:
        return stream(out, *args)


class Activation(Composite, abstract=True):
    """A smooth function of each element."""

    operands = ("operand",)
    law = "the operand is a float; the result has its shape and dtype"

    def result(self, operand: Type) -> Type:
        floating(operand)
        return operand


def widen(g: Builder, x: Value) -> Value:
    """Narrow floats as float32."""
    return x if x.dtype == "float64" else g.cast(x, "float32")


class Gelu(Activation):
    """x·Φ(x), Φ the normal distribution; `approximate` uses tanh (x + 0.044715·x³) for Φ."""

    approximate: bool = False

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        return functions.gelu_tanh(operand) if self.approximate else functions.gelu(operand)

    def flops(self, out: Type, operand: Type) -> int:
        return (9 if self.approximate else 5) * out.size

    def decompose(self, g: Builder, operand: Value) -> Value:
        """0.5·x·(1 + erf(x/√2)), or with tanh(√(2/π)·(x + 0.044715·x³))."""
        x = widen(g, operand)
        if self.approximate:
            cube = x * x * x
            phi = g.tanh((x + cube * 0.044715) * math.sqrt(2.0 / math.pi))
        else:
            phi = g.erf(x * math.sqrt(0.5))
        return g.cast(x * 0.5 * (phi + 1.0), operand.dtype)


class Silu(Activation):
    """x·logistic(x), also called swish."""

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        return functions.silu(operand)

    def flops(self, out: Type, operand: Type) -> int:
        return 2 * out.size

    def decompose(self, g: Builder, operand: Value) -> Value:
        """x·logistic(x)"""
        x = widen(g, operand)
        return g.cast(x * g.logistic(x), operand.dtype)


class Softplus(Activation):
    """log(1 + eˣ), without overflow."""

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        return functions.softplus(operand)

    def flops(self, out: Type, operand: Type) -> int:
        return 6 * out.size

    def decompose(self, g: Builder, operand: Value) -> Value:
        """max(x, 0) + log(1 + exp(-|x|))"""
        x = widen(g, operand)
        tail = g.log_plus_one(g.exponential(g.negate(g.abs(x))))
        return g.cast(g.maximum(x, 0.0) + tail, operand.dtype)


class AlongAxis(Composite, abstract=True):
    """A function of whole lines along one axis."""

    operands = ("operand",)
    law = "the operand is a float and not a scalar; axis is one of its axes"
    axis: int = -1

    def settle(self, operand: Type) -> AlongAxis:
        return type(self)(axis_of(self.axis, len(operand.shape)))

    def result(self, operand: Type) -> Type:
        floating(operand)
        return operand


def _spread(g: Builder, x: Value, axis: int, shape: tuple[int, ...]) -> Value:
    """A value without `axis`, repeated along it."""
    kept = tuple(i for i in range(len(shape)) if i != axis)
    return g.broadcast_in_dim(x, shape=shape, dimensions=kept)


class Softmax(AlongAxis):
    """eˣ / Σ eˣ along `axis`; the largest element is subtracted first."""

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        if not out.size:
            return operand
        grown = functions.exp(operand - operand.max(axis=self.axis, keepdims=True))
        return grown / grown.sum(axis=self.axis, keepdims=True, dtype=grown.dtype)

    def flops(self, out: Type, operand: Type) -> int:
        length = operand.shape[self.axis]
        lines = operand.size // max(length, 1)
        return 3 * operand.size + 2 * lines * max(length - 1, 0)

    def decompose(self, g: Builder, operand: Value) -> Value:
        """exp(x - max x) / Σ exp(x - max x)"""
        x = widen(g, operand)
        top = g.reduce(x, kind="maximum", dimensions=self.axis)
        grown = g.exponential(x - _spread(g, top, self.axis, x.shape))
        total = g.reduce(grown, kind="add", dimensions=self.axis)
        return g.cast(grown / _spread(g, total, self.axis, x.shape), operand.dtype)


class LogSoftmax(AlongAxis):
    """x - log Σ eˣ along `axis`; the largest element is subtracted first."""

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        if not out.size:
            return operand
        moved = operand - operand.max(axis=self.axis, keepdims=True)
        total = functions.exp(moved).sum(axis=self.axis, keepdims=True, dtype=moved.dtype)
        return moved - functions.log(total)

    def flops(self, out: Type, operand: Type) -> int:
        length = operand.shape[self.axis]
        lines = operand.size // max(length, 1)
        return 3 * operand.size + lines * (2 * max(length - 1, 0) + 1)

    def decompose(self, g: Builder, operand: Value) -> Value:
        """(x - max x) - log Σ exp(x - max x)"""
        x = widen(g, operand)
        top = g.reduce(x, kind="maximum", dimensions=self.axis)
        moved = x - _spread(g, top, self.axis, x.shape)
        total = g.log(g.reduce(g.exponential(moved), kind="add", dimensions=self.axis))
        return g.cast(moved - _spread(g, total, self.axis, x.shape), operand.dtype)


class Norm(Composite, abstract=True):
    """Normalise over the axes from `axis` to the last."""

    axis: int = -1
    epsilon: float = 1e-5

    def settle(self, operand: Type, *rest: Type) -> Norm:
        return type(self)(axis_of(self.axis, len(operand.shape)), self.epsilon)

    def result(self, operand: Type, *rest: Type) -> Type:
        floating(operand)
        same_dtype(operand, *rest)
        for other in rest:
            if other.shape != operand.shape[self.axis:]:
                raise Wrong(f"weight or bias is {list(other.shape)}, the normalised axes are "
                            f"{list(operand.shape[self.axis:])}")
        return operand

    def over(self, operand: Type) -> tuple[int, ...]:
        """The normalised axes."""
        return tuple(range(self.axis, len(operand.shape)))

    def lines(self, operand: Type) -> tuple[int, int]:
        """(how many lines, how many elements each)."""
        length = count(operand.shape[self.axis:])
        return operand.size // max(length, 1), length

    def _tail(self, g: Builder, x: Value, like: Value) -> Value:
        """A weight or bias repeated over the leading axes."""
        return g.broadcast_in_dim(widen(g, x), shape=like.shape, dimensions=self.over(like.type))

    def _lead(self, g: Builder, x: Value, like: Value) -> Value:
        """One number for each line, repeated along the line."""
        return g.broadcast_in_dim(x, shape=like.shape, dimensions=tuple(range(self.axis)))


class LayerNorm(Norm):
    """(x - mean) / √(variance + epsilon) · weight + bias, over the axes from `axis` on."""

    operands = ("operand", "weight?", "bias?")
    law = ("the operand is a float; weight and bias have its dtype and the shape of the axes from "
           "`axis` on")

    def evaluate(self, out: Type, operand: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        if not operand.size:
            return operand  # of lines without elements there is no mean
        over = self.over(out)
        moved = operand - operand.mean(axis=over, keepdims=True, dtype=operand.dtype)
        variance = np.mean(moved * moved, axis=over, keepdims=True, dtype=operand.dtype)
        result = moved * functions.rsqrt(variance + operand.dtype.type(self.epsilon))
        if rest:
            result = result * rest[0]
        return result + rest[1] if len(rest) > 1 else result

    def flops(self, out: Type, operand: Type, *rest: Type) -> int:
        lines, length = self.lines(operand)
        return operand.size * (3 + len(rest)) + lines * (2 * max(length - 1, 0) + 4)

    def decompose(self, g: Builder, operand: Value, *rest: Value) -> Value:
        """Mean and variance by sums divided by the count."""
        x = widen(g, operand)
        over = self.over(x.type)
        share = 1.0 / max(self.lines(x.type)[1], 1)
        mean = g.reduce(x, kind="add", dimensions=over) * share
        moved = x - self._lead(g, mean, x)
        variance = g.reduce(moved * moved, kind="add", dimensions=over) * share
        result = moved * self._lead(g, g.rsqrt(variance + self.epsilon), x)
        if rest:
            result = result * self._tail(g, rest[0], x)
        if len(rest) > 1:
            result = result + self._tail(g, rest[1], x)
        return g.cast(result, operand.dtype)


class RmsNorm(Norm):
    """x / √(mean x² + epsilon) · weight, over the axes from `axis` on."""

    operands = ("operand", "weight?")
    law = ("the operand is a float; weight has its dtype and the shape of the axes from `axis` on")

    def evaluate(self, out: Type, operand: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        if not operand.size:
            return operand  # of lines without elements there is no mean
        square = np.mean(operand * operand, axis=self.over(out), keepdims=True,
                         dtype=operand.dtype)
        result = operand * functions.rsqrt(square + operand.dtype.type(self.epsilon))
        return result * rest[0] if rest else result

    def flops(self, out: Type, operand: Type, *rest: Type) -> int:
        lines, length = self.lines(operand)
        return operand.size * (2 + len(rest)) + lines * (max(length - 1, 0) + 3)

    def decompose(self, g: Builder, operand: Value, *rest: Value) -> Value:
        """Mean square by a sum divided by the count."""
        x = widen(g, operand)
        share = 1.0 / max(self.lines(x.type)[1], 1)
        square = g.reduce(x * x, kind="add", dimensions=self.over(x.type)) * share
        result = x * self._lead(g, g.rsqrt(square + self.epsilon), x)
        if rest:
            result = result * self._tail(g, rest[0], x)
        return g.cast(result, operand.dtype)
