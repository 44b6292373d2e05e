"""ONNX models as graphs: one rule for each op, and ONNX's own function bodies for the rest.

The package `onnx` parses the file and knows the ops' schemas; it is imported inside the functions.
What depends on shapes and constants alone is computed here, so that shape arithmetic leaves no
trace in the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from opentrn.base import TrnError, UnsupportedError, UsageError, Where, declare
from opentrn.graph.build import Builder
from opentrn.graph.data import Data
from opentrn.graph.evaluate import evaluate
from opentrn.graph.importers import (
    onnx_rules_control,
    onnx_rules_detect,
    onnx_rules_elementwise,
    onnx_rules_index,
    onnx_rules_linear,
    onnx_rules_norm,
    onnx_rules_quantized,
    onnx_rules_recurrent,
    onnx_rules_reduce,
    onnx_rules_resample,
    onnx_rules_sample,
    onnx_rules_shape,
    onnx_rules_window,
)
from opentrn.graph.importers.missing import unsupported
from opentrn.graph.importers.onnx_call import RULES, Node
from opentrn.graph.importers.onnx_file import (
    DOMAINS,
    LARGEST,
    data_of,
    dtype_of,
    fits,
    opsets_of,
    parse_model,
    place_of,
    refuse_file,
    refuse_shape,
    shape_of,
    sizes_of,
    tensor_dtype,
)
from opentrn.graph.importers.onnx_functions import Functions
from opentrn.graph.ir import Graph, Value, region_input
from opentrn.graph.ops.define import Type

FAMILIES = (onnx_rules_control, onnx_rules_detect, onnx_rules_elementwise, onnx_rules_index,
            onnx_rules_linear, onnx_rules_norm, onnx_rules_quantized, onnx_rules_recurrent,
            onnx_rules_reduce, onnx_rules_resample, onnx_rules_sample, onnx_rules_shape,
            onnx_rules_window)
FOLDED = 1 << 14  # elements: larger results are computed by the program, not beforehand
COMPUTED = 1 << 26  # elements: nothing larger is computed on the way to what has to be known
DEEPEST = 50  # graphs and functions inside each other
# What a rule may stumble over when a file's attributes and shapes do not fit each other.
STUMBLES = (ArithmeticError, IndexError, KeyError, MemoryError, TypeError, ValueError)

declare("graph.onnx_fixed", "an input of an ONNX model was given a shape or value it cannot have",
        "`shapes`, `dims` and `fixed` name what the model has")


def from_onnx(source: Any, *, dims: Mapping[str, int] | None = None,
              shapes: Mapping[str, Sequence[int]] | None = None,
              fixed: Mapping[str, Any] | None = None) -> Graph:
    """The graph of an ONNX model: a path, the bytes of a file, or a ModelProto; opsets 6 to 28.

    Inputs and outputs keep their names (a sequence `y` is `y.0`, `y.1`, …), initializers become
    named constants.  `dims` gives sizes
    to named axes ({"batch": 1}), `shapes` whole shapes to inputs; `fixed` gives inputs their
    values for good, as arrays: they then are no inputs.  Loops stay loops where each turn has the
    same shapes.

    Raises FileFormatError `graph.onnx_file`; UnsupportedError `graph.unsupported_op`, which names
    all ops without a rule at once, `graph.onnx_opset`, `graph.onnx_type`, `graph.onnx_use` and
    `graph.onnx_unknown`; NotBuiltError `graph.dynamic_shape`; UsageError `graph.onnx_fixed`."""
    model, name, folder = parse_model(source)
    return Importer(model, name, folder).graph(dims or {}, shapes or {}, fixed or {})


class Scope:
    """The values of one graph by their names; `outer` is what it may read besides.

    In the graph of a loop or branch (`captured` given) a value of outside becomes a further input.
    """

    __slots__ = ("attributes", "captured", "given", "opsets", "outer", "values")

    def __init__(self, opsets: dict[str, int], outer: Scope | None = None, given: int = 0,
                 captured: dict[Value, Value] | None = None,
                 attributes: Mapping[str, Any] | None = None) -> None:
        self.values: dict[str, Any] = {}
        self.opsets, self.outer, self.given, self.captured = opsets, outer, given, captured
        self.attributes = attributes if attributes is not None else (
            outer.attributes if outer is not None else {})

    def find(self, name: str) -> Any:
        """The value of a name, KeyError if there is none."""
        if name in self.values:
            return self.values[name]
        if self.outer is None:
            raise KeyError(name)
        found = self.outer.find(name)
        if isinstance(found, list):
            return [self._inside(v) for v in found]
        return self._inside(found)

    def _inside(self, value: Any) -> Any:
        if self.captured is None or not isinstance(value, Value) or value.op == "constant":
            return value
        inside = self.captured.get(value)
        if inside is None:
            inside = region_input(self.given + len(self.captured), value.type)
            self.captured[value] = inside
        return inside


class Importer:
    """One walk over a model."""

    def __init__(self, model: Any, name: str, folder: str) -> None:
        self.model, self.name, self.folder = model, name, folder
        if not len(model.opset_import):
            raise refuse_file("it does not say which version of the operators it uses")
        self.opsets = opsets_of(model.opset_import)
        self.functions = Functions(model)
        self.inputs: list[Value] = []
        self.constants: dict[str, Value] = {}
        self.numbers: dict[Value, np.ndarray | None] = {}
        self.fixed: set[Value] = set()
        self.counted = 0
        self.depth = 0

    def graph(self, dims: Mapping[str, int], shapes: Mapping[str, Sequence[int]],
              fixed: Mapping[str, Any]) -> Graph:
        """Check that every op has a rule, then build."""
        self.check()
        graph = self.model.graph
        scope = Scope(self.opsets)
        self._initializers(graph, scope)
        self._inputs(graph, scope, dict(dims), shapes, fixed)
        outputs = self.run(graph.node, [o.name for o in graph.output], scope)
        named: list[tuple[str, Value]] = []
        for info, value in zip(graph.output, outputs, strict=True):
            if isinstance(value, list):  # a sequence is several outputs
                named += [(f"{info.name}.{i}", v) for i, v in enumerate(value)]
            else:
                self._agree(info, value)
                named.append((info.name, value))
        return Graph(self.inputs, [v for _, v in named], self.constants, name=self.name,
                     output_names=[name for name, _ in named])

    def _agree(self, info: Any, value: Any) -> None:
        """Refuse an output that is left out, or not of the dtype and sizes the model says."""
        if value is None:
            raise UnsupportedError(f"the output {info.name} is left out", code="graph.onnx_type",
                                   fix="let the model give tensors, one output each")
        number = info.type.tensor_type.elem_type
        if number and dtype_of(tensor_dtype(number)) != value.dtype:
            raise refuse_file(f"the output {info.name} is {value.dtype}, the model says "
                              f"{tensor_dtype(number)}")
        told = sizes_of(info)
        if told is not None and not fits(told, value.shape):
            text = ", ".join("?" if n is None else str(n) for n in told)
            raise refuse_file(f"the output {info.name} is {list(value.shape)}, the model says "
                              f"[{text}]")

    # ------------------------------------------------------------------------------------ inputs

    def _initializers(self, graph: Any, scope: Scope) -> None:
        if len(graph.sparse_initializer):
            raise UnsupportedError("the model has sparse weights", code="graph.onnx_type")
        for tensor in graph.initializer:
            value = Builder().constant(data_of(tensor, None, self.folder))
            scope.values[tensor.name] = value
            self.constants.setdefault(tensor.name, value)
            self.fixed.add(value)

    def _inputs(self, graph: Any, scope: Scope, dims: dict[str, int],
                shapes: Mapping[str, Sequence[int]], fixed: Mapping[str, Any]) -> None:
        free = [i.name for i in graph.input if i.name not in scope.values]
        for name in (*shapes, *fixed):
            if name not in free:
                raise UsageError(f"the model has no input {name}; it has {', '.join(free) or '—'}",
                                 code="graph.onnx_fixed")
        axes = {d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim} - {""}
        for name in set(dims) - axes:
            raise UsageError(f"no axis of an input is called {name}; there are "
                             f"{', '.join(sorted(axes)) or 'none with a name'}",
                             code="graph.onnx_fixed")
        for info in graph.input:
            if info.name in scope.values:
                continue  # an initializer that old files list as an input too
            if info.name in fixed:
                scope.values[info.name] = self._fixed(info, fixed[info.name])
                continue
            shape = (tuple(map(int, shapes[info.name])) if info.name in shapes
                     else shape_of(info, dims))
            refuse_shape(info, shape)
            if info.type.WhichOneof("value") != "tensor_type":
                shape_of(info, dims)  # refuses it
            kind = dtype_of(tensor_dtype(info.type.tensor_type.elem_type))
            if min(shape, default=0) < 0 or math.prod(shape) > LARGEST:
                raise refuse_file(f"the input {info.name} says it is {list(shape)}")
            value = Builder().input(info.name, shape, kind)
            self.inputs.append(value)
            scope.values[info.name] = value

    def _fixed(self, info: Any, given: Any) -> Any:
        """The value an input has for good; a list is a sequence, None an optional left out."""
        if given is None or isinstance(given, (list, tuple)):
            return None if given is None else [self._fixed(info, each) for each in given]
        array = np.asarray(given)
        kind = info.type.WhichOneof("value")
        if kind == "tensor_type":
            want = tensor_dtype(info.type.tensor_type.elem_type)
            if array.dtype != want:
                raise UsageError(f"the input {info.name} is {want}, it was given {array.dtype}",
                                 code="graph.onnx_fixed")
            refuse_shape(info, array.shape)
        value = Builder().constant(Data.of(array, str(dtype_of(array.dtype))))
        self.fixed.add(value)
        return value

    # ---------------------------------------------------------------------------------- checking

    def check(self) -> None:
        """Raise one error that names every op without a rule."""
        missing: dict[str, list[Where]] = {}
        total = 0
        for number, node in enumerate(self._nodes(self.model.graph, 0), 1):
            total += 1
            name = self.functions.missing(node, self.opsets, RULES)
            if name:
                missing.setdefault(name, []).append(place_of(self.name, number, node))
        if missing:
            raise _unsupported(missing, total)

    def _nodes(self, graph: Any, depth: int) -> Iterable[Any]:
        if depth > DEEPEST:
            raise refuse_file(f"graphs lie more than {DEEPEST} deep inside each other")
        for node in graph.node:
            yield node
            for attribute in node.attribute:
                for inner in (attribute.g, *attribute.graphs):
                    yield from self._nodes(inner, depth + 1)

    # ---------------------------------------------------------------------------------- building

    def run(self, nodes: Iterable[Any], outputs: Iterable[str], scope: Scope) -> list[Any]:
        """Build nodes in order; the values of the names in `outputs`."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise refuse_file(f"functions or graphs lie more than {DEEPEST} deep")
        try:
            for proto in nodes:
                self.counted += 1
                self._node(proto, scope, place_of(self.name, self.counted, proto))
        finally:  # a loop that cannot be one op is tried again turn by turn
            self.depth -= 1
        return [self._find(scope, name, None) for name in outputs]

    def _find(self, scope: Scope, name: str, where: Where | None) -> Any:
        if not name:
            return None
        try:
            return scope.find(name)
        except KeyError:
            raise refuse_file(f"`{name}` is read before it is made", where) from None

    def _node(self, proto: Any, scope: Scope, where: Where) -> None:
        args = [self._find(scope, name, where) for name in proto.input]
        node = Node(self, scope, proto, args, where)
        self.functions.verify(node)
        try:
            results = node.made(self._made(node))
        except TrnError:
            raise
        except STUMBLES as problem:
            raise node.refuse("its attributes and inputs do not fit each other "
                              f"({type(problem).__name__}: {problem})") from problem
        if len(results) < len(proto.output):
            last = next((n for n in proto.output[len(results):] if n), "")
            if last:
                raise node.refuse(f"its result `{last}` is not computed")
        known = all(v is None or v in self.fixed for v in args if not isinstance(v, list))
        for name, value in zip(proto.output, results, strict=False):
            if name and name in scope.values:
                raise refuse_file(f"`{name}` is made twice", where)
            scope.values[name] = self._folded(value, known) if name else None

    def _made(self, node: Node) -> Any:
        domain = DOMAINS.get(node.proto.domain, node.proto.domain)
        body = self.functions.local(node.proto)
        if body is None and not domain and node.op in RULES:
            return RULES[node.op](node)
        return self.spelled(node) if body is None else tuple(self._called(body, node))

    def _called(self, body: Any, node: Node) -> list[Any]:
        """The results of a function for a node's inputs and attributes."""
        attributes = {a.name: a for a in body.attribute_proto}
        if node.schema is not None:
            attributes |= {name: a.default_value for name, a in node.schema.attributes.items()
                           if a.default_value.type}
        attributes |= node.attributes
        opsets = opsets_of(body.opset_import) if len(body.opset_import) else node.scope.opsets
        scope = Scope({**node.scope.opsets, **opsets}, attributes=attributes)
        given = [*node.args, *[None] * (len(body.input) - len(node.args))]
        scope.values.update(zip(body.input, given, strict=False))
        self.run(body.node, (), scope)
        # A function written for a node does not make results the node leaves out.
        return [self._find(scope, name, node.where) if node.wants(i) else None
                for i, name in enumerate(body.output)]

    def spelled(self, node: Node) -> tuple[Any, ...]:
        """The results of a node as ONNX's own function says it."""
        body = self.functions.body(node)
        if body is None:
            raise node.refuse(f"version {node.opset} of it has no rule for this")
        return tuple(self._called(body, node))

    def inside(self, graph: Any, scope: Scope, given: Sequence[Any]) -> list[Any]:
        """The results of a node's graph built in place, for these values of its inputs."""
        inner = Scope(scope.opsets, scope)
        return self._graph(graph, inner, given)

    def _graph(self, graph: Any, inner: Scope, given: Sequence[Any]) -> list[Any]:
        if len(graph.input) != len(given):
            raise refuse_file(f"the graph {graph.name} takes {len(graph.input)} inputs, it is "
                              f"given {len(given)}")
        self._initializers(graph, inner)
        inner.values.update(zip((i.name for i in graph.input), given, strict=True))
        return self.run(graph.node, [o.name for o in graph.output], inner)

    def region(self, graph: Any, scope: Scope, types: Sequence[Type],
               captured: dict[Value, Value]) -> tuple[list[Value], list[Any]]:
        """(inputs, outputs) of a node's graph as a region; what it reads of outside is added to
        `captured`."""
        own = [region_input(i, kind) for i, kind in enumerate(types)]
        inner = Scope(scope.opsets, scope, len(types), captured)
        return own, self._graph(graph, inner, own)

    # ------------------------------------------------------------------------------------- known

    def known(self, value: Value) -> np.ndarray | None:
        """The numbers of a value that depends on no input; None if it depends on one."""
        if value.op == "constant":
            return value.attrs.data.numbers()  # type: ignore[attr-defined]
        if value not in self.numbers:
            self.numbers[value] = self._computed(value)
        return self.numbers[value]

    def _computed(self, value: Value) -> np.ndarray | None:
        stack, seen = [value], set()
        while stack:
            each = stack.pop()
            if each.op == "input" or each.attrs.drawn or each.size > COMPUTED:
                return None
            for arg in each.args:
                if arg not in seen:
                    seen.add(arg)
                    stack.append(arg)
        return evaluate(Graph((), (value,)))[0]

    def _folded(self, value: Any, known: bool) -> Any:
        """A small value that depends on constants alone, as a constant."""
        if isinstance(value, list):
            return [self._folded(each, known) for each in value]
        if not isinstance(value, Value) or not (known or value.op == "constant"):
            return value
        if value.op != "constant" and value.size <= FOLDED:
            numbers = self.known(value)
            if numbers is None:
                return value
            value = Builder(value.where).constant(Data.of(numbers, str(value.dtype)))
        self.fixed.add(value)
        return value


def _unsupported(missing: dict[str, list[Where]], total: int) -> UnsupportedError:
    return unsupported(
        "model uses {} op", missing, total, RULES,
        "export the model in other ops, or compute it outside the model",
    )  # fmt: skip
