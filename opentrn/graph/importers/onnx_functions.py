"""What ONNX knows of its ops: schemas, and functions that say an op in simpler ones."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opentrn.graph.importers.onnx_file import DOMAINS, refuse_file
from opentrn.graph.ir import Value

if TYPE_CHECKING:
    from opentrn.graph.importers.onnx_call import Node


@functools.lru_cache(1 << 12)
def schema_of(name: str, version: int, domain: str) -> Any:
    """The schema of an op as of a version of its domain, None if there is none."""
    import onnx

    try:
        return onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None


def qualified(node: Any) -> str:
    """"Conv", or "com.example.Conv" for another domain than ONNX's own."""
    domain = DOMAINS.get(node.domain, node.domain)
    return f"{domain}.{node.op_type}" if domain else node.op_type


class Functions:
    """The functions of a model and of ONNX itself."""

    def __init__(self, model: Any) -> None:
        self.own = {(f.domain, f.name, f.overload): f for f in model.functions}
        self.checking: list[Any] = []

    def schema(self, node: Any, opsets: Mapping[str, int]) -> Any:
        """The schema of a node's op, None where it has none."""
        domain = DOMAINS.get(node.domain, node.domain)
        return schema_of(node.op_type, opsets.get(domain, 1), domain)

    def local(self, node: Any) -> Any:
        """The model's own function a node calls, or None."""
        return self.own.get((node.domain, node.op_type, node.overload))

    def missing(self, node: Any, opsets: Mapping[str, int], rules: Mapping[str, Any]) -> str:
        """The name of what has no rule, "" for a node that can be built."""
        own = self.local(node)
        if own is not None:
            key = (own.domain, own.name, own.overload)
            if key in self.checking:
                raise refuse_file(f"the function {own.name} calls itself")
            self.checking.append(key)
            found = self._missing_in(own, opsets, rules)
            self.checking.pop()
            return found
        if qualified(node) in rules:
            return ""
        schema = self.schema(node, opsets)
        if schema is None:
            return qualified(node)
        if schema.has_context_dependent_function:
            return ""  # what it stands for is seen when the types are known
        version = latest(schema.function_opset_versions, opsets, schema)
        if version is None:
            return qualified(node)
        body = parsed(schema.get_function_with_opset_version(version))
        return qualified(node) if self._missing_in(body, opsets, rules) else ""

    def _missing_in(self, body: Any, opsets: Mapping[str, int], rules: Mapping[str, Any]) -> str:
        inside = {**opsets, **{DOMAINS.get(o.domain, o.domain): o.version
                               for o in body.opset_import}}
        for node in body.node:
            found = self.missing(node, inside, rules)
            if found:
                return found
        return ""

    def body(self, node: Node) -> Any:
        """The function that ONNX says an op stands for, for these inputs; None if there is none."""
        schema = node.schema
        if schema is None:
            return None
        version = latest(schema.function_opset_versions, node.scope.opsets, schema)
        if version is not None:
            return parsed(schema.get_function_with_opset_version(version))
        version = latest(schema.context_dependent_function_opset_versions, node.scope.opsets,
                         schema)
        if version is None:
            return None
        types = [type_text(v) for v in node.args]
        proto = type(node.proto)()
        proto.CopyFrom(node.proto)
        del proto.attribute[:]
        proto.attribute.extend(node.attributes.values())
        text = schema.get_context_dependent_function_with_opset_version(
            version, proto.SerializeToString(), types)
        return parsed(text)

    def verify(self, node: Node) -> None:
        """Refuse a node that breaks its schema: inputs, results, attributes."""
        schema, proto = node.schema, node.proto
        if schema is None or self.local(proto) is not None:
            return
        for what, count, least, most in (
                ("inputs", len(proto.input), schema.min_input, schema.max_input),
                ("results", len(proto.output), schema.min_output, schema.max_output)):
            if not least <= count <= most:
                raise refuse_file(f"{proto.op_type} has {count} {what}, it takes {least} to "
                                  f"{most}", node.where)
        if any(v is None for v in node.args[:schema.min_input]) and not _optional(schema):
            raise refuse_file(f"{proto.op_type} lacks an input it needs", node.where)
        for name, attribute in node.attributes.items():
            declared = schema.attributes.get(name)
            if declared is None:
                raise refuse_file(f"{proto.op_type} has no attribute `{name}` in version "
                                  f"{node.opset}", node.where)
            if int(declared.type.value) != attribute.type:
                raise refuse_file(f"the attribute `{name}` of {proto.op_type} has the wrong type",
                                  node.where)
        for name, declared in schema.attributes.items():
            if declared.required and name not in node.attributes:
                raise refuse_file(f"{proto.op_type} lacks its attribute `{name}`", node.where)


def _optional(schema: Any) -> bool:
    """Whether a needed input may be an optional that holds nothing."""
    return schema.name in ("OptionalHasElement", "OptionalGetElement", "Loop", "Scan")


def latest(versions: Any, opsets: Mapping[str, int], schema: Any) -> int | None:
    """The newest of a function's versions that a model may use."""
    most = opsets.get(schema.domain, 1)
    return max((v for v in versions if v <= most or v == schema.since_version), default=None)


def parsed(text: bytes) -> Any:
    """The FunctionProto of its bytes."""
    import onnx

    body = onnx.FunctionProto()
    body.ParseFromString(text)
    return body


def type_text(value: Any) -> bytes:
    """The bytes of the TypeProto of an input."""
    import onnx

    made = onnx.TypeProto()
    inner, first = made, value
    if isinstance(value, list):
        inner, first = made.sequence_type.elem_type, value[0] if value else None
    if isinstance(first, Value):
        from opentrn.graph.carriers import storage

        held = storage(first.dtype)
        inner.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(held)
        for n in first.shape:
            inner.tensor_type.shape.dim.add().dim_value = n
    return made.SerializeToString()
