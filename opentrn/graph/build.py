"""The builder: every op as a method, and the few conveniences all importers and rules share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.base import DType, UnknownNameError, Where, declare, nearest
from opentrn.graph.data import Data
from opentrn.graph.ir import Value, full, lift, make, refusal
from opentrn.graph.ops.define import OPS, Op, Shape, Wrong, arity, count
from opentrn.graph.types import graph_dtype

declare("graph.op", "there is no graph op of this name", "ops have StableHLO names",
        "see `opentrn.graph.OPS` for all names")


class Builder:
    """`g.add(x, y)`, `g.transpose(x, (1, 0))`: one method for each op in `OPS`.

    Operands come first, then attributes in order or by name.  A Python number among the operands
    takes shape and dtype of its neighbour.  `where` is the source line given to what is built; left
    out, it is the user's line.  Operands of different shapes are refused, as in StableHLO; use
    `g.broadcast`.  Names that are Python words have a trailing underscore: `g.and_`."""

    def __init__(self, where: Where | None = None) -> None:
        self.where = where

    def __getattr__(self, name: str) -> Callable[..., Value]:
        cls = OPS.get(name.rstrip("_"))
        if cls is None:
            if name.startswith("_"):
                raise AttributeError(name)
            close = ", ".join(nearest(name, OPS))
            raise UnknownNameError(f"no graph op `{name}`", code="graph.op", at=self.where,
                                   fix=f"did you mean {close}?" if close else "")
        return functools.partial(self.apply, cls)

    def apply(self, cls: type[Op], *given: Any, **attributes: Any) -> Value:
        """An op of class `cls` on the operands, then attributes, in `given`."""
        least, most = arity(cls)
        operands = 0
        while operands < len(given) and (most is None or operands < most) and (
                operands < least or isinstance(given[operands], Value)):
            operands += 1
        args = self._operands(given[:operands])
        names = list(cls.fields)
        positional = dict(zip(names, given[operands:], strict=False))
        try:
            if len(given) - operands > len(names) or positional.keys() & attributes.keys():
                raise Wrong(f"takes the attributes ({', '.join(names)})", kind="attribute")
            attrs = self._attributes(cls, positional | attributes)
        except Wrong as wrong:
            raise refusal(cls, wrong, (), self.where) from None
        return make(attrs, args, self.where)

    @staticmethod
    def _attributes(cls: type[Op], attributes: dict[str, Any]) -> Op:
        try:
            return cls(**attributes)
        except TypeError as problem:
            what = str(problem).partition("__init__() ")[2] or str(problem)
            raise Wrong(what, kind="attribute") from None

    def _operands(self, given: tuple[Any, ...]) -> tuple[Value, ...]:
        like = next((x for x in given if isinstance(x, Value)), None)
        if like is None and given:
            like = self.constant(given[0])
        return tuple(lift(x, like, self.where) for x in given)

    def input(self, name: str, shape: Shape, kind: str = "float32") -> Value:
        """An array given when the program runs."""
        return self.apply(OPS["input"], label=name, shape=shape, dtype=kind)

    def constant(self, array: Any, kind: str = "") -> Value:
        """A known array; without `kind` it has NumPy's dtype (a Python float is float32)."""
        if not kind and isinstance(array, (float, int)) and not isinstance(array, bool):
            kind = "float32" if isinstance(array, float) else "int32"
        data = array if isinstance(array, Data) else Data.of(np.asarray(array), kind)
        return self.apply(OPS["constant"], data=data)

    def full(self, shape: Shape, number: Any, kind: str = "float32") -> Value:
        """An array that holds `number` everywhere."""
        return full(tuple(shape), number, graph_dtype(kind), self.where)

    def like(self, x: Value, number: Any) -> Value:
        """`number` everywhere, with the shape and dtype of `x`."""
        return full(x.shape, number, x.dtype, self.where)

    def broadcast(self, x: Value, shape: Shape) -> Value:
        """NumPy's broadcast: axes are matched from the last; sizes of 1 are repeated."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        axes = tuple(range(len(shape) - x.rank, len(shape)))
        return self.broadcast_in_dim(x, shape=shape, dimensions=axes)

    def matmul(self, x: Value, y: Value) -> Value:
        """NumPy's matmul of two values with at least two axes and equal leading axes, or a
        matrix on the right."""
        if y.rank == 2:
            return self.dot_general(x, y, lhs_contracting=x.rank - 1, rhs_contracting=0)
        lead = tuple(range(y.rank - 2))
        return self.dot_general(x, y, lhs_contracting=x.rank - 1, rhs_contracting=y.rank - 2,
                                lhs_batch=lead, rhs_batch=lead)

    def sum(self, x: Value, axes: Any, keep: bool = False) -> Value:
        """Sum over axes; `keep` leaves them with size 1."""
        return self._kept(x, self.reduce(x, kind="add", dimensions=axes), keep, axes)

    def mean(self, x: Value, axes: Any, keep: bool = False) -> Value:
        """Mean over axes, summed in float32 and rounded once."""
        wide = x if x.dtype == "float64" else self.cast(x, "float32")
        total = self.sum(wide, axes, keep)
        share = count(total.shape) / max(x.size, 1)
        return self.cast(total * share, x.dtype)

    def _kept(self, x: Value, reduced: Value, keep: bool, axes: Any) -> Value:
        if not keep:
            return reduced
        gone = {a % x.rank for a in (axes if isinstance(axes, (tuple, list)) else (axes,))}
        return self.reshape(reduced, tuple(1 if i in gone else n for i, n in enumerate(x.shape)))

    def take(self, x: Value, indices: Value, axis: int = 0) -> Value:
        """x[..., indices, ...] along one axis, as an embedding looks rows up."""
        lead = indices.rank
        offsets = (*range(axis), *range(axis + lead, x.rank - 1 + lead))
        sizes = tuple(1 if a == axis else n for a, n in enumerate(x.shape))
        return self.gather(x, indices, offset_dims=offsets, collapsed_slice_dims=(axis,),
                           start_index_map=(axis,), index_vector_dim=lead, slice_sizes=sizes)

    def cast(self, x: Value, kind: str | DType) -> Value:
        """`convert`, or `x` itself when it has the dtype already."""
        return x if x.dtype == graph_dtype(kind) else self.convert(x, dtype=kind)


g = Builder()
