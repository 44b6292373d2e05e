"""Ops without operands: inputs, constants, and counting."""

from __future__ import annotations

import numpy as np

from opentrn.base import DType
from opentrn.graph import carriers
from opentrn.graph.data import Data
from opentrn.graph.ops.define import Ints, Op, Traffic, Type, Wrong, axis_of


class Input(Op):
    """An array given when the program is called, told apart by its name (`label`)."""

    law = "every size is at least 0"
    label: str
    shape: Ints
    dtype: DType

    def result(self) -> Type:
        if any(size < 0 for size in self.shape):
            raise Wrong(f"input `{self.label}` has shape {self.shape}")
        return Type(self.shape, self.dtype)

    def evaluate(self, out: Type) -> np.ndarray:
        raise LookupError(self.label)  # evaluate.py binds inputs before any op runs

    def flops(self, out: Type) -> int:
        return 0  # the array is there already

    def traffic(self, out: Type) -> Traffic:
        return Traffic(0, 0)  # its readers count its bytes


class Constant(Op):
    """An array known when the graph is built, identified by its content."""

    exact = True
    law = "dtype and shape are those of the data"
    data: Data

    def result(self) -> Type:
        return Type(self.data.shape, self.data.dtype)

    def evaluate(self, out: Type) -> np.ndarray:
        return carriers.enter(self.data.numbers(), out.dtype)

    def flops(self, out: Type) -> int:
        return 0  # the array is there already

    def traffic(self, out: Type) -> Traffic:
        return Traffic(0, 0)  # its readers count its bytes

    @property
    def label(self) -> str:
        """The number itself for a scalar, else the type."""
        return repr(self.data)


class Iota(Op):
    """0, 1, 2, … along one axis, the same along all others."""

    law = "`dimension` is an axis of `shape`; the dtype is a number"
    shape: Ints
    dimension: int
    dtype: DType

    def settle(self) -> Iota:
        axis = axis_of(self.dimension, len(self.shape), "dimension")
        return self if axis == self.dimension else Iota(self.shape, axis, self.dtype)

    def result(self) -> Type:
        if self.dtype.kind not in ("int", "uint", "float", "complex"):
            raise Wrong(f"cannot count in {self.dtype}", fix="use int32", kind="dtype")
        return Type(self.shape, self.dtype)

    def evaluate(self, out: Type) -> np.ndarray:
        line = np.arange(self.shape[self.dimension]).astype(carriers.work(self.dtype))
        view = [1] * len(self.shape)
        view[self.dimension] = -1
        return np.broadcast_to(line.reshape(view), self.shape)

    def flops(self, out: Type) -> int:
        return 0  # counting is addressing, not arithmetic on data

    def traffic(self, out: Type) -> Traffic:
        return Traffic(0, out.nbytes)
