"""What a rule sees of one ONNX node, and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from opentrn.base import DType, UnsupportedError, Where, declare
from opentrn.graph.build import Builder
from opentrn.graph.importers.onnx_file import (
    attribute_of,
    data_of,
    dtype_of,
    refuse_file,
    tensor_dtype,
)
from opentrn.graph.importers.torch_types import broadcast_shape
from opentrn.graph.ir import Value, relocate

if TYPE_CHECKING:
    from opentrn.graph.importers.onnx import Importer, Scope

Made = Any  # a value, a list of values (a sequence), or a tuple of results
Rule = Callable[["Node"], Made]

RULES: dict[str, Rule] = {}

declare("graph.onnx_use", "an ONNX op is used in a way its rule does not cover",
        "each op has a rule for what exporters write",
        "export the model for inference, or write this op in others")
declare("graph.onnx_unknown", "a shape, axis or count depends on the numbers a model is given",
        "sizes are fixed when a graph is built",
        "give the input it comes from beforehand: from_onnx(model, fixed={name: array})")


def onnx_op(*names: str) -> Callable[[Rule], Rule]:
    """Enter a function as the rule of these ops; it returns the result, or a tuple of results."""
    def enter(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function
    return enter


class Node:
    """One node: its inputs as values (None where left out), its attributes as Python.

    Attributes that are left out have the default of the op's schema.  `g` builds at `where`."""

    __slots__ = ("args", "attributes", "g", "importer", "op",
                 "proto", "schema", "scope", "where")

    def __init__(self, importer: Importer, scope: Scope, proto: Any, args: list[Any],
                 where: Where) -> None:
        self.importer, self.scope, self.proto, self.args = importer, scope, proto, args
        self.op = proto.op_type
        self.where = where
        self.g = Builder(where)
        self.schema = importer.functions.schema(proto, scope.opsets)
        self.attributes = dict(self._resolved(proto, scope.attributes))

    @staticmethod
    def _resolved(proto: Any, outer: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
        """The attributes by name; one of a function that names the caller's is that one."""
        for each in proto.attribute:
            if not each.ref_attr_name:
                yield each.name, each
            elif each.ref_attr_name in outer:
                found = type(each)()
                found.CopyFrom(outer[each.ref_attr_name])
                found.name = each.name
                yield each.name, found

    @property
    def opset(self) -> int:
        """The version of the operator set the node is written in."""
        return self.scope.opsets.get(self.proto.domain, 0)

    @property
    def results(self) -> int:
        """How many results the node names, trailing ones it leaves out not counted."""
        return len(self.proto.output)

    def wants(self, index: int) -> bool:
        """Whether the node names a result."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.args) and self.args[index] is not None

    def given(self, index: int) -> Any:
        """An input as it is: a value, a sequence, or None."""
        return self.args[index] if index < len(self.args) else None

    def arg(self, index: int) -> Value:
        """An input that is one array."""
        found = self.given(index)
        if not isinstance(found, Value):
            raise self.refuse("has no input" if found is None else "takes a sequence as input"
                              f" {index}")
        return found

    @property
    def values(self) -> list[Value]:
        """All inputs, each of them an array."""
        return [self.arg(i) for i in range(len(self.args))]

    @property
    def x(self) -> Value:
        """The first input."""
        return self.arg(0)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, the schema's default, or `default`."""
        found = self.attributes.get(name)
        if found is None and self.schema is not None and name in self.schema.attributes:
            found = self.schema.attributes[name].default_value
            if not found.type:
                found = None
        return default if found is None else attribute_of(found, self.where)

    def graph(self, name: str) -> Any:
        """An attribute that is a graph."""
        found = self.attributes.get(name)
        if found is None or not found.HasField("g"):
            raise refuse_file(f"{self.op} has no graph `{name}`", self.where)
        return found.g

    def known(self, index: int, what: str = "") -> np.ndarray:
        """The numbers of an input that must be known before the program runs."""
        found = self.importer.known(self.arg(index))
        if found is None:
            raise self.unknown(index, f"it needs `{what}` for its shape" if what else "")
        return found

    def unknown(self, index: int, why: str = "") -> UnsupportedError:
        """The error for an input that would have to be known before the program runs."""
        name = self.proto.input[index] if index < len(self.proto.input) else ""
        told = f"{self.op}: its input {index} (`{name}`) is not known before the program runs"
        return UnsupportedError(f"{told}; {why}" if why else told, code="graph.onnx_unknown",
                                at=self.where)

    def ints(self, index: int, what: str = "") -> list[int]:
        """An input of whole numbers that must be known, as a list."""
        return [int(n) for n in self.known(index, what).reshape(-1)]

    def ints_of(self, name: str, index: int, default: Any = None) -> Any:
        """Whole numbers that older versions have as an attribute, newer ones as an input."""
        if self.has(index):
            return self.ints(index, name)
        return self.attr(name, default)

    def kind(self, number: int) -> DType:
        """The dtype of ONNX's number for it."""
        return dtype_of(tensor_dtype(number, self.where), self.where)

    def constant(self, tensor: Any) -> Value:
        """A tensor attribute as a value."""
        return self.g.constant(data_of(tensor, self.where, self.importer.folder))

    def axis(self, name: str = "axis", rank: int | None = None, default: int = 0) -> int:
        """An axis attribute, counted from the front; refuses one outside."""
        rank = self.x.rank if rank is None else rank
        return self.inside(int(self.attr(name, default)), rank, name)

    def inside(self, axis: int, rank: int, name: str = "axis") -> int:
        """`axis` counted from the front; refuses one outside `rank` axes."""
        if not -rank <= axis < rank:
            raise self.refuse(f"`{name}` is {axis}, there are {rank} axes")
        return axis % rank

    def axes(self, given: Iterable[int] | None, rank: int) -> tuple[int, ...]:
        """Axes counted from the front; None means all."""
        if given is None:
            return tuple(range(rank))
        found = [self.inside(int(a), rank, "axes") for a in given]
        if len(set(found)) != len(found):
            raise self.refuse("`axes` names an axis twice")
        return tuple(found)

    def pair(self) -> list[Value]:
        """The first two inputs broadcast against each other; before version 7 only the second is,
        and only where the node says so: its axes are those of the first from `axis` on."""
        x, y = self.arg(0), self.arg(1)
        if self.opset >= 7 or self.proto.domain:
            return self.together(x, y)
        if self.attr("broadcast", 0):
            axis = self.attr("axis")
            first = x.rank - y.rank if axis is None else self.inside(axis, x.rank + 1)
            axes = tuple(range(first, first + y.rank))
            y = self.g.broadcast_in_dim(y, shape=x.shape, dimensions=axes)
        if x.shape != y.shape:
            raise self.refuse(f"{list(x.shape)} and {list(y.shape)} without `broadcast`")
        return [x, y]

    def together(self, *values: Value) -> list[Value]:
        """The values broadcast against each other, as NumPy does; their dtypes are their own."""
        shape = broadcast_shape(*(v.shape for v in values))
        return [self.g.broadcast(v, shape) for v in values]

    def refuse(self, why: str, fix: str = "") -> UnsupportedError:
        """The error for a node whose op has a rule, but not for this."""
        return UnsupportedError(f"{self.op}: {why}", code="graph.onnx_use", fix=fix, at=self.where)

    def made(self, result: Made) -> list[Any]:
        """A rule's results as a list, each with the node's line."""
        found = list(result) if isinstance(result, tuple) else [result]
        relocate((v for v in found if isinstance(v, Value)), self.where)
        return found
