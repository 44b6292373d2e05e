"""Graphs as text and back: one line for each value, in the generic form MLIR made known.

The first line carries the version of the form.  Small constants are written out in hexadecimal;
larger ones are named by the digest of their content and travel beside the text (`constants`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from opentrn.base import DType, FileFormatError, Where, declare
from opentrn.graph.carriers import storage
from opentrn.graph.data import Data
from opentrn.graph.ir import Graph, Region, Value, make
from opentrn.graph.ops.define import OPS, TupleType, Type, Wrong
from opentrn.graph.ops.foreign import Callee
from opentrn.graph.types import graph_dtype

VERSION = 1
INLINE_BYTES = 64
HEAD = "opentrn.graph"

declare("graph.text", "a graph's text cannot be read", "the text was written by `graph.write`",
        "write the graph again with this version of the package")

_LINE = re.compile(
    r'%(\d+) = "([a-z0-9_]+)"\(((?:%\d+(?:, %\d+)*)?)\) (\{.*\}) : ([^ ]+)(?: loc\((.*)\))?')
_TYPE = re.compile(r"tensor<((?:\d+x)*)([A-Za-z_][A-Za-z0-9_]*)>")
_RETURN = re.compile(r"return((?: %\d+(?:, %\d+)*)?)")


def write(graph: Graph, places: bool = True) -> str:
    """The graph as text; `places` adds each value's source line."""
    numbers = {value: i for i, value in enumerate(_order(graph))}
    lines = [f"{HEAD} {VERSION} {json.dumps(graph.name)}"]
    lines += [_value_line(value, numbers, places) for value in numbers]
    lines.append("return" + _names(graph.outputs, numbers, " "))
    lines.append(f"inputs {json.dumps([numbers[v] for v in graph.inputs])}")
    lines.append(f"outputs {json.dumps(list(graph.output_names))}")
    named = {name: numbers[v] for name, v in graph.constants.items()}
    lines.append(f"constants {json.dumps(named)}")
    return "\n".join(lines) + "\n"


def constants(graph: Graph) -> dict[str, np.ndarray]:
    """Digest -> stored array of every constant the text does not hold itself."""
    found: dict[str, np.ndarray] = {}
    for value in graph:
        if value.op == "constant":
            data = value.attrs.data
            if not _inline(data) and data.array is not None:
                found[data.digest] = data.numbers()
        for region in value.attrs.regions:
            found |= constants(region)
    return found


def _order(graph: Graph) -> list[Value]:
    """All values; inputs nobody reads first."""
    live = set(graph)
    return [*(v for v in graph.inputs if v not in live), *graph]


def _names(values: tuple[Value, ...], numbers: dict[Value, int], before: str = "") -> str:
    return before * bool(values) + ", ".join(f"%{numbers[v]}" for v in values)


def _value_line(value: Value, numbers: dict[Value, int], places: bool) -> str:
    attributes = ", ".join(f"{k} = {_attribute(v)}" for k, v in value.attrs.attributes.items())
    line = (f'%{numbers[value]} = "{value.op}"({_names(value.args, numbers)}) '
            f"{{{attributes}}} : {type_text(value.type)}")
    if places and value.where is not None:
        where = value.where
        line += f" loc({json.dumps([where.portable, where.line, where.function])})"
    return line


def type_text(kind: Type | TupleType) -> str:
    """A shape and dtype as `tensor<4x8xfloat32>`; a tuple's in parentheses."""
    if isinstance(kind, TupleType):
        return f"({','.join(map(type_text, kind.parts))})"
    return f"tensor<{''.join(f'{n}x' for n in kind.shape)}{kind.dtype}>"


def _inline(data: Data) -> bool:
    return data.array is not None and data.array.nbytes <= INLINE_BYTES


def _attribute(given: Any) -> str:
    """An attribute as JSON; a float as its exact hexadecimal form."""
    if isinstance(given, Data):
        return _data_text(given)
    if isinstance(given, Callee):
        return json.dumps({"name": given.name, "takes": [type_text(t) for t in given.takes],
                           "gives": [type_text(t) for t in given.gives], "flops": given.flops})
    if isinstance(given, Region):
        return json.dumps({"region": write(given, places=False).splitlines()})
    if isinstance(given, tuple) and given and isinstance(given[0], Region):
        return f"[{', '.join(map(_attribute, given))}]"
    if isinstance(given, DType):
        return json.dumps(str(given))
    if isinstance(given, float):
        return json.dumps(given.hex())
    return json.dumps(given)


def _data_text(data: Data) -> str:
    held = {"type": type_text(Type(data.shape, data.dtype))}
    if data.array is None:
        held["name"] = data.name
    elif _inline(data):
        held["hex"] = np.ascontiguousarray(data.array).tobytes().hex()
    else:
        held["digest"] = data.digest
    return json.dumps(held)


def read(text: str, stored: Mapping[str, np.ndarray] | None = None) -> Graph:
    """The graph of a text made by `write`; `stored` maps digests to the larger constants.

    Every value passes the same checks as one built by hand.  Raises FileFormatError `graph.text`
    for anything `write` would not have written."""
    lines = text.splitlines()
    head = lines[0].split(" ", 2) if lines else []
    if len(head) != 3 or head[0] != HEAD:
        raise _bad("the first line does not say that this is a graph")
    if head[1] != str(VERSION):
        raise _bad(f"this is version {head[1]} of the form; version {VERSION} can be read")
    values: list[Value] = []
    rest = iter(enumerate(lines[1:], 2))
    for number, line in rest:
        if line.startswith("return"):
            break
        values.append(_parse(line, number, values, stored or {}))
    else:
        raise _bad("there is no `return`")
    return _assemble(_json(head[2], 1), line, rest, values)


def _assemble(name: str, returned: str, rest: Iterator[tuple[int, str]],
              values: list[Value]) -> Graph:
    found = _RETURN.fullmatch(returned)
    if found is None:
        raise _bad(f"not a return: {returned}")
    parts: dict[str, Any] = {}
    for number, line in rest:
        key, _, tail = line.partition(" ")
        parts[key] = _json(tail, number)
    try:
        outputs = [values[i] for i in _references(found[1])]
        inputs = [values[i] for i in parts["inputs"]]
        named = {k: values[i] for k, i in parts["constants"].items()}
        return Graph(inputs, outputs, named, name=name, output_names=parts["outputs"])
    except (IndexError, KeyError, TypeError, AttributeError) as problem:
        raise _bad(f"the end is not complete ({problem})") from None


def _parse(line: str, number: int, values: list[Value],
           stored: Mapping[str, np.ndarray]) -> Value:
    found = _LINE.fullmatch(line)
    if found is None or int(found[1]) != len(values):
        raise _bad(f"line {number} is not value %{len(values)}: {line[:60]}")
    cls = OPS.get(found[2])
    if cls is None:
        raise _bad(f"line {number}: there is no op `{found[2]}`")
    given = _attributes(found[4], number)
    if set(given) != set(cls.fields):
        raise _bad(f"line {number}: {found[2]} has the attributes {', '.join(cls.fields) or '—'}")
    attributes = {k: _restore(cls.fields[k], v, stored) for k, v in given.items()}
    try:
        args = tuple(values[i] for i in _references(found[3]))
    except IndexError:
        raise _bad(f"line {number} reads a value that is not there yet") from None
    try:
        op = cls(**attributes)
    except Wrong as wrong:
        raise _bad(f"line {number}: {wrong.what}") from None
    value = make(op, args, _place(found[6], number))
    if type_text(value.type) != found[5]:
        raise _bad(f"line {number} says {found[5]}; it is {type_text(value.type)}")
    return value


def _references(text: str) -> list[int]:
    return [int(part.strip()[1:]) for part in text.split(",") if part.strip()]


def _attributes(text: str, number: int) -> dict[str, Any]:
    """`{kind = "add", dimensions = [1]}` by name, scanned value by value."""
    scan = json.JSONDecoder().raw_decode
    found, at, end = {}, 1, len(text) - 1
    while at < end:
        name, _, _ = text[at:].partition(" = ")
        at += len(name) + 3
        try:
            found[name], at = scan(text, at)
        except ValueError:
            raise _bad(f"line {number}: attribute `{name}` cannot be read") from None
        at += 2 * text.startswith(", ", at)
    return found


def _restore(kind: str, given: Any, stored: Mapping[str, np.ndarray]) -> Any:
    restore: dict[str, Callable[[Any], Any]] = {
        "float": float.fromhex,
        "Callee": _restore_callee,
        "Data": lambda held: _restore_data(held, stored),
        "Region": lambda held: _restore_region(held, stored),
        "Regions": lambda held: tuple(_restore_region(each, stored) for each in held),
    }
    try:
        return restore[kind](given) if kind in restore else given
    except (TypeError, ValueError, KeyError) as problem:
        raise _bad(f"attribute {given!r} is not a {kind} ({problem})") from None


def _restore_region(held: dict[str, list[str]], stored: Mapping[str, np.ndarray]) -> Region:
    graph = read("\n".join(held["region"]), stored)
    return Region(graph.inputs, graph.outputs)


def _restore_callee(held: dict[str, Any]) -> Callee:
    takes, gives = (tuple(map(_restore_type, held[part])) for part in ("takes", "gives"))
    return Callee(str(held["name"]), takes, gives, flops=int(held["flops"]))


def _restore_type(text: str) -> Type:
    found = _TYPE.fullmatch(text)
    if found is None:
        raise _bad(f"not a type: {text}")
    return Type(tuple(int(n) for n in found[1].split("x") if n), graph_dtype(found[2]))


def _restore_data(held: dict[str, str], stored: Mapping[str, np.ndarray]) -> Data:
    shape, kind = _restore_type(held["type"])
    if "name" in held:
        return Data.absent(held["name"], kind, shape)
    if "hex" in held:
        flat = np.frombuffer(bytes.fromhex(held["hex"]), dtype=storage(kind))
        return Data.of(flat.reshape(shape), kind)
    if held["digest"] not in stored:
        raise _bad(f"constant {held['digest']} is not among the stored arrays")
    data = Data.of(stored[held["digest"]], kind)
    if data.digest != held["digest"] or data.shape != shape:
        raise _bad(f"stored array {held['digest']} has other content than its name says")
    return data


def _place(text: str | None, number: int) -> Where | None:
    if text is None:
        return None
    given = _json(text, number)
    if not isinstance(given, list) or len(given) != 3:
        raise _bad(f"line {number}: a place is [file, line, function]")
    return Where(*given)


def _json(text: str, number: int) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise _bad(f"line {number} cannot be read: {text[:60]}") from None


def _bad(what: str) -> FileFormatError:
    return FileFormatError(what, code="graph.text")
