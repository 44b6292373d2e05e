"""Ops that combine many elements into one: reduce, pooling windows, running totals, argmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from opentrn.base import DType
from opentrn.graph import carriers
from opentrn.graph.ops.define import (
    Ints,
    Op,
    Pairs,
    Traffic,
    Type,
    Wrong,
    axes_of,
    axis_of,
    count,
    stream,
)

COMBINE: dict[str, Any] = {
    "add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "and": np.logical_and, "or": np.logical_or,
}


def identity(kind: str, dtype: DType) -> Any:
    """The value that changes nothing when combined: 0, 1, ∓∞ or the integer's end, True, False."""
    held = carriers.work(dtype)
    if kind in ("maximum", "minimum"):
        if held.kind == "b":
            return kind == "minimum"
        if held.kind == "f":
            return -np.inf if kind == "maximum" else np.inf
        return np.iinfo(held).min if kind == "maximum" else np.iinfo(held).max
    return {"add": 0, "multiply": 1, "and": True, "or": False}[kind]


def check_kind(kind: str, operand: Type) -> None:
    """`and`/`or` combine bool; the others combine numbers (max and min also bool)."""
    logical = kind in ("and", "or")
    if logical != (operand.dtype.kind == "bool") and kind not in ("maximum", "minimum"):
        raise Wrong(f"cannot reduce {operand.dtype} with {kind}",
                    fix="use and/or for bool, add/multiply for numbers", kind="dtype")


class Reduce(Op):
    """Combine all elements along `dimensions`, which disappear.

    Floats of at most 32 bits are summed in float32 and rounded once.  Of no elements the result
    is the kind's identity (0 for add)."""

    operands = ("operand",)
    law = "dimensions are distinct axes of the operand"
    choices: ClassVar = {"kind": tuple(COMBINE)}
    kind: str
    dimensions: Ints

    def settle(self, operand: Type) -> Reduce:
        axes = axes_of(self.dimensions, len(operand.shape), "dimensions")
        return Reduce(self.kind, tuple(sorted(axes)))

    def result(self, operand: Type) -> Type:
        check_kind(self.kind, operand)
        kept = (n for i, n in enumerate(operand.shape) if i not in self.dimensions)
        return Type(tuple(kept), operand.dtype)

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        combine = COMBINE[self.kind]
        extra = {} if self.kind in ("and", "or") else {"dtype": operand.dtype}
        return np.asarray(combine.reduce(operand, axis=self.dimensions,
                                         initial=identity(self.kind, out.dtype), **extra))

    def flops(self, out: Type, operand: Type) -> int:
        return max(operand.size - out.size, 0)

    def traffic(self, out: Type, operand: Type) -> Traffic:
        return stream(out, operand)


def windows(grown: np.ndarray, window: Ints, strides: Ints, dilation: Ints) -> np.ndarray:
    """Every window of an array, as (place in the window, *places of the window)."""
    rank = grown.ndim
    if not rank:
        return grown.reshape(1)
    reach = tuple((w - 1) * d + 1 for w, d in zip(window, dilation, strict=True))
    every = np.lib.stride_tricks.sliding_window_view(grown, reach)
    steps = (*(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilation))
    picked = every[steps]
    order = (*range(rank, 2 * rank), *range(rank))
    return picked.transpose(order).reshape(count(window), *picked.shape[:rank])


class ReduceWindow(Op):
    """Combine the elements under a window that slides over every axis (pooling).

    The padding is filled with the kind's identity."""

    operands = ("operand",)
    law = "one window size, stride, padding and dilation for each axis; all at least 1"
    choices: ClassVar = {"kind": ("add", "maximum", "minimum")}
    kind: str
    window: Ints
    strides: Ints = ()
    padding: Pairs = ()
    dilation: Ints = ()

    def settle(self, operand: Type) -> ReduceWindow:
        rank = len(operand.shape)
        return ReduceWindow(self.kind, self.window, self.strides or (1,) * rank,
                            self.padding or ((0, 0),) * rank, self.dilation or (1,) * rank)

    def result(self, operand: Type) -> Type:
        rank = len(operand.shape)
        for given in (self.window, self.strides, self.padding, self.dilation):
            if len(given) != rank:
                raise Wrong(f"{given} should have {rank} entries", kind="attribute")
        check_kind(self.kind, operand)
        if min((*self.window, *self.strides, *self.dilation), default=1) < 1:
            raise Wrong("window, strides and dilation are at least 1", kind="attribute")
        if min((p for both in self.padding for p in both), default=0) < 0:
            raise Wrong("padding is at least 0", fix="slice first", kind="attribute")
        sizes = []
        for n, w, s, (lo, hi), d in zip(operand.shape, self.window, self.strides, self.padding,
                                        self.dilation, strict=True):
            room = n + lo + hi - ((w - 1) * d + 1)
            sizes.append(room // s + 1 if room >= 0 else 0)
        return Type(tuple(sizes), operand.dtype)

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        rank = operand.ndim
        fill = identity(self.kind, out.dtype)
        if not out.size:
            return np.zeros(out.shape, dtype=operand.dtype)
        grown = np.pad(operand, self.padding, constant_values=fill) if rank else operand
        rows = windows(grown, self.window, self.strides, self.dilation)
        return COMBINE[self.kind].reduce(rows, axis=0)

    def flops(self, out: Type, operand: Type) -> int:
        return out.size * (count(self.window) - 1)

    def traffic(self, out: Type, operand: Type) -> Traffic:
        return stream(out, operand)


CUMULATE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add.accumulate, "multiply": np.multiply.accumulate,
    "maximum": np.maximum.accumulate, "minimum": np.minimum.accumulate,
}


class Cumulative(Op):
    """Element i of the result combines elements 0…i of the operand along `dimension`."""

    operands = ("operand",)
    law = "the operand is a number; dimension is one of its axes"
    choices: ClassVar = {"kind": tuple(CUMULATE)}
    kind: str
    dimension: int

    def settle(self, operand: Type) -> Cumulative:
        return Cumulative(self.kind, axis_of(self.dimension, len(operand.shape), "dimension"))

    def result(self, operand: Type) -> Type:
        check_kind(self.kind, operand)
        return operand

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        return CUMULATE[self.kind](operand, axis=self.dimension)

    def flops(self, out: Type, operand: Type) -> int:
        length = operand.shape[self.dimension]
        return operand.size - operand.size // max(length, 1)

    def traffic(self, out: Type, operand: Type) -> Traffic:
        return stream(out, operand)


class Argmax(Op):
    """The index of the largest element along `dimension`, the first of equals; NaN is largest."""

    operands = ("operand",)
    law = "the operand is a number, not empty along `dimension`; `dtype` is an integer"
    dimension: int
    dtype: DType = "int32"

    def settle(self, operand: Type) -> Argmax:
        return type(self)(axis_of(self.dimension, len(operand.shape), "dimension"), self.dtype)

    def result(self, operand: Type) -> Type:
        if self.dtype.kind not in ("int", "uint"):
            raise Wrong(f"an index cannot be {self.dtype}", fix="use int32", kind="dtype")
        if not operand.shape[self.dimension]:
            raise Wrong(f"axis {self.dimension} is empty")
        kept = (n for i, n in enumerate(operand.shape) if i != self.dimension)
        return Type(tuple(kept), self.dtype)

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        found = np.argmax(operand, axis=self.dimension)
        return np.asarray(found).astype(carriers.work(self.dtype))

    def flops(self, out: Type, operand: Type) -> int:
        return max(operand.size - out.size, 0)

    def traffic(self, out: Type, operand: Type) -> Traffic:
        return stream(out, operand)
