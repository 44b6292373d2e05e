"""Ops that put elements in order.

Every graph value is one array, so an op that finds both values and indices has an attribute
`part` saying which of the two this value is; a compiler that wants both makes them together.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from opentrn.graph.ops.define import INT32, Op, Traffic, Type, Wrong, axis_of, stream

PARTS = ("values", "indices")


def order(operand: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Stable order along one axis; NaN counts as the largest."""
    if not descending:
        return np.argsort(operand, axis=axis, kind="stable")
    # Reversing twice keeps equal elements in their first order.
    back = np.argsort(np.flip(operand, axis), axis=axis, kind="stable")
    return operand.shape[axis] - 1 - np.flip(back, axis)


class Sort(Op):
    """The operand in rising (or falling) order along `dimension`; equal elements keep their order.

    As `indices`: for each place, where its element came from."""

    operands = ("operand",)
    law = "the operand is not a scalar"
    choices: ClassVar = {"part": PARTS}
    dimension: int
    descending: bool = False
    part: str = "values"

    def settle(self, operand: Type) -> Sort:
        axis = axis_of(self.dimension, len(operand.shape), "dimension")
        return Sort(axis, self.descending, self.part)

    def result(self, operand: Type) -> Type:
        return operand if self.part == "values" else Type(operand.shape, INT32)

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        found = order(operand, self.dimension, self.descending)
        if self.part == "indices":
            return found.astype(np.int32)
        return np.take_along_axis(operand, found, self.dimension)

    def flops(self, out: Type, operand: Type) -> int:
        length = max(operand.shape[self.dimension], 1)
        return operand.size * max(length - 1, 0).bit_length()  # n·⌈log₂ n⌉ comparisons

    def traffic(self, out: Type, operand: Type) -> Traffic:
        return stream(out, operand)


class TopK(Op):
    """The `k` largest elements along the last axis, largest first; of equals the first.

    As `indices`: where they are."""

    operands = ("operand",)
    law = "0 ≤ k ≤ the size of the last axis"
    choices: ClassVar = {"part": PARTS}
    k: int
    part: str = "values"

    def result(self, operand: Type) -> Type:
        if not operand.shape or not 0 <= self.k <= operand.shape[-1]:
            raise Wrong(f"cannot take {self.k} elements from {list(operand.shape)}")
        shape = (*operand.shape[:-1], self.k)
        return Type(shape, operand.dtype if self.part == "values" else INT32)

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        found = order(operand, operand.ndim - 1, True)[..., :self.k]
        if self.part == "indices":
            return found.astype(np.int32)
        return np.take_along_axis(operand, found, -1)

    def flops(self, out: Type, operand: Type) -> int:
        return operand.size * max(self.k, 1).bit_length()  # one pass with a heap of k

    def traffic(self, out: Type, operand: Type) -> Traffic:
        return stream(out, operand)
