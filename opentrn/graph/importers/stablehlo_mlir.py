"""MLIR as Python sees it through jaxlib: parsing, types, attributes, constants and source lines.

jaxlib is imported inside the functions.  Text and bytecode come from anywhere, and MLIR's parser
stops the whole process on some malformed inputs, so a process of its own reads them first (see
`stablehlo_guard`).  Numbers jaxlib cannot hand over as arrays (complex, bfloat16, 8 bits and
fewer) are read from the printed form of their constant.
"""

from __future__ import annotations

import functools
import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from opentrn.base import (
    DType,
    FileFormatError,
    NotBuiltError,
    UnsupportedError,
    UsageError,
    Where,
    declare,
)
from opentrn.graph.carriers import storage
from opentrn.graph.data import Data
from opentrn.graph.importers.stablehlo_guard import Guard
from opentrn.graph.ops.define import Type
from opentrn.graph.types import graph_dtype

declare("graph.stablehlo_text", "a StableHLO program cannot be read",
        "the input is MLIR text, generic text, bytecode or a portable artifact of StableHLO",
        "write it again, for example with jax.jit(f).lower(x).as_text()")
declare("graph.stablehlo_type", "a StableHLO program has a type that graphs do not have",
        "values are tensors of fixed shape of bool, integers, floats or complex numbers",
        "convert the values before they come here; dequantise quantised ones")
declare("graph.stablehlo_jaxlib", "reading StableHLO needs jaxlib, which is not installed",
        "MLIR is read through jaxlib's bindings", "pip install 'opentrn[jax]'")

BYTECODE = b"ML\xefR"
PORTABLE = b"StableHLO_v"  # the producer named at the head of a portable artifact

_DTYPES = {
    "i1": "bool", "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "tf32": "tfloat32", "f8E5M2": "float8_e5m2", "f8E4M3": "float8_e4m3",
    "f8E3M4": "float8_e3m4", "f8E4M3FN": "float8_e4m3fn", "f4E2M1FN": "float4_e2m1fn",
    "f8E8M0FNU": "float8_e8m0fnu",
    "complex<f32>": "complex64", "complex<f64>": "complex128",
    **{f"{mark}{bits}": f"{'u' if mark == 'ui' else ''}int{bits}"
       for mark in ("i", "si", "ui") for bits in (2, 4, 8, 16, 32, 64)},
}
_FILE = re.compile(r'(?:"([^"]*)"\()?"([^"]+)":(\d+):\d+')
_PLACE = re.compile(r'error: (?:loc\()?"([^"]*)":(\d+):(\d+)\)?: (.*)')
# Frames of installed packages, and of this one, are not the user's.
_THEIRS = ("site-packages", "dist-packages", str(Path(__file__).resolve().parents[2]))
_TOKEN = re.compile(r"0x[0-9A-Fa-f]+|[-+]?[0-9.]+(?:[eE][-+]?\d+)?|true|false|[-+]?(?:nan|inf)")


def bindings() -> Any:
    """jaxlib's `mlir.ir`; UsageError `graph.stablehlo_jaxlib` where it is not installed."""
    try:
        from jaxlib.mlir import ir
    except ImportError:
        raise UsageError("jaxlib is not installed", code="graph.stablehlo_jaxlib") from None
    return ir


def context() -> Any:
    """A new MLIR context that knows the dialects JAX and TensorFlow write."""
    from opentrn.graph.importers.stablehlo_guard import make_context
    bindings()
    return make_context()


def parse(source: Any) -> Any:
    """The MLIR module of text, bytes, or a module (as JAX lowers to), which is taken as it is.

    Raises FileFormatError `graph.stablehlo_text` with the line of the text, whatever the input:
    what would stop MLIR's parser is tried in another process first."""
    if hasattr(source, "operation"):
        return source
    if not isinstance(source, (str, bytes)):
        raise UsageError(f"{type(source).__name__} is not a StableHLO program",
                         code="graph.stablehlo_text", fix="give text, bytes or an MLIR module")
    bindings()
    data = source.encode() if isinstance(source, str) else source
    data = data if data.startswith(BYTECODE) else _PACKED.sub(_unpacked, data)
    problem = Guard.shared().check(data)
    if problem:
        raise _refused(problem)
    from opentrn.graph.importers.stablehlo_guard import parse_module
    return parse_module(data, context())


# TensorFlow 2.21 writes larger arrays of i1 as bits, lowest first; jaxlib's MLIR reads bytes.
_PACKED = re.compile(rb'dense<"0x([0-9A-Fa-f]+)">(?=\s*:\s*tensor<((?:\d{1,10}x){1,12})i1>)')


def _unpacked(found: re.Match[bytes]) -> bytes:
    """An array of i1 written as bits, as the parser reads it; anything else as it is."""
    number = prod(int(size) for size in found[2].split(b"x")[:-1])
    if len(found[1]) != 2 * -(-number // 8) or number < 2:
        return found[0]
    held = np.frombuffer(bytes.fromhex(found[1].decode()), np.uint8)
    bits = np.unpackbits(held, count=number, bitorder="little")
    return b'dense<"0x%s">' % bits.tobytes().hex().encode()


def _refused(problem: str) -> FileFormatError:
    found = _PLACE.search(problem)
    if found is None:
        lines = [line for line in problem.splitlines() if line.strip()]
        return FileFormatError(f"not a StableHLO program: {lines[-1] if lines else problem}",
                               code="graph.stablehlo_text")
    file, line, column, what = found.groups()
    where = Where(file if file != "-" else "StableHLO text", int(line))
    return FileFormatError(f"not a StableHLO program: line {line}, column {column}: {what}",
                           code="graph.stablehlo_text", at=where)


# ------------------------------------------------------------------------------------------- types


class Reader:
    """Types and places of one module, each kind read once."""

    def __init__(self) -> None:
        self.types: dict[Any, Type | None] = {}

    def type_of(self, kind: Any, where: Where | None = None) -> Type | None:
        """A tensor's shape and dtype; None for a token.  Raises UnsupportedError
        `graph.stablehlo_type` and NotBuiltError `graph.dynamic_shape`."""
        found = self.types.get(kind, self)
        if found is self:
            found = self.types[kind] = read_type(kind, where)
        return found  # type: ignore[return-value]


def read_type(kind: Any, where: Where | None) -> Type | None:
    """The Type of an MLIR type."""
    text = str(kind)
    if text == "!stablehlo.token":
        return None
    if not text.startswith("tensor<") or "quant" in text:
        raise UnsupportedError(f"there are no values of type {text}", code="graph.stablehlo_type",
                               at=where)
    if "?" in text or "*" in text:
        raise NotBuiltError(f"a value has the varying shape {text}", code="graph.dynamic_shape",
                            at=where)
    inside = text[len("tensor<"):text.rindex(">")].split(", ")[0]
    *sizes, name = re.split(r"x(?=\d|[a-z])", inside) if "x" in inside else [inside]
    while sizes and not sizes[-1].isdigit():  # an `x` inside the element's name
        name = f"{sizes.pop()}x{name}"
    return Type(tuple(map(int, sizes)), element(name, where))


def element(name: str, where: Where | None = None) -> DType:
    """The dtype of an MLIR element type such as `bf16`."""
    if name not in _DTYPES:
        raise UnsupportedError(f"there is no data type {name}", code="graph.stablehlo_type",
                               at=where)
    return graph_dtype(_DTYPES[name])


# -------------------------------------------------------------------------------------- attributes


def python_of(attribute: Any) -> Any:
    """An attribute as plain Python: numbers, text, tuples, arrays, dicts; an enum's word."""
    kind = type(attribute).__name__
    if kind in ("IntegerAttr", "BoolAttr", "FloatAttr", "StringAttr", "FlatSymbolRefAttr"):
        return attribute.value
    if kind.startswith("Dense") and kind.endswith("ArrayAttr"):
        return tuple(attribute)
    if kind == "ArrayAttr":
        return tuple(map(python_of, attribute))
    if kind == "DictAttr":
        return {named.name: python_of(named.attr) for named in attribute}
    if kind == "DenseIntElementsAttr":
        return np.array(attribute).tolist()
    word = re.fullmatch(r"#\w+<\w+ (\w+)>", str(attribute))
    return word[1] if word else attribute


def pairs(given: Any, rank: int) -> tuple[tuple[int, int], ...]:
    """Padding as (low, high) pairs; none given means none."""
    if given is None:
        return ((0, 0),) * rank
    return tuple((int(low), int(high)) for low, high in np.reshape(given, (rank, 2)))


# --------------------------------------------------------------------------------------- constants


def constant(value: Any, kind: Type) -> tuple[Any, bool]:
    """(the data of a constant, False), or (its one number, True) if all elements are equal.

    `value` is its attribute; of complex numbers, which have none jaxlib can give, the whole op."""
    if kind.dtype.kind != "complex":
        if getattr(value, "is_splat", False) and kind.size != 1:
            return _number(value.get_splat_value(), kind), True
        if "Resource" not in type(value).__name__:
            held = _as_array(value, kind)
            if held is not None:
                return Data.of(held.reshape(kind.shape), str(kind.dtype)), False
        text = str(value)
    else:
        text = str(value)
    found = numbers_in(text, kind)
    if found.size == 1 and kind.size != 1:
        return found.reshape(()), True
    return Data.of(found.reshape(kind.shape), str(kind.dtype)), False


def _number(value: Any, kind: Type) -> Any:
    number = value.value
    if kind.dtype.kind == "bool":
        return bool(number)
    if kind.dtype.kind == "uint":
        return int(number) & (1 << kind.dtype.bits) - 1
    return number


def _as_array(value: Any, kind: Type) -> np.ndarray | None:
    """What the buffer of a constant holds; None for types that have none."""
    if kind.dtype.bits < 8 or kind.dtype in ("bfloat16", "tfloat32") or (
            kind.dtype.is_float and kind.dtype.bits == 8):
        return None
    return np.array(value).astype(storage(kind.dtype), copy=False)


def numbers_in(text: str, kind: Type) -> np.ndarray:
    """The numbers of a printed constant, `dense<…>`: a list, one for all, or bytes in hex."""
    held = storage(kind.dtype)
    begin = text.find("dense<") + len("dense<")
    inside = text[begin:text.rindex("> : ")]
    if begin < len("dense<") or "dense_resource" in text:
        raise FileFormatError("the numbers of a constant are not in the program",
                              code="graph.stablehlo_text",
                              fix="write the program with its resources")
    if inside.startswith('"0x'):
        raw = bytes.fromhex(inside[3:inside.index('"', 1)])
        return np.frombuffer(raw, held)
    tokens = _TOKEN.findall(inside)
    part = kind.dtype.element or kind.dtype
    flat = np.array([_token(t, part) for t in tokens])
    if kind.dtype.kind == "complex":
        return flat.astype(storage(part)).view(held)
    if flat.size and flat.dtype.kind == "U":
        raise FileFormatError(f"cannot read {inside[:40]}", code="graph.stablehlo_text")
    return flat.astype(held)


def _token(text: str, kind: DType) -> Any:
    """One number; floats that have no short decimal form are printed as their bits."""
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("0x") and kind.is_float:
        bits = int(text, 16).to_bytes(storage(kind).itemsize, "little")
        return np.frombuffer(bits, storage(kind)).astype(np.float64)[0]
    if kind.kind in ("int", "uint"):
        return int(text, 0)
    return float(text)


# ------------------------------------------------------------------------------------------ places


class Places:
    """The source lines of locations; those of one line are looked at once."""

    def __init__(self) -> None:
        self.known: dict[Any, Where | None] = {}

    def __call__(self, location: Any) -> Where | None:
        """As `where_of`."""
        inner = getattr(location, "child_loc", None)
        if inner is None:
            return where_of(location)
        key = inner.attr
        found = self.known.get(key, self)
        if found is self:
            found = self.known[key] = where_of(inner)
        return found  # type: ignore[return-value]


def where_of(location: Any) -> Where | None:
    """The innermost line of a location that is no installed package's; None if it names none."""
    return _where(str(location))


@functools.lru_cache(1 << 14)
def _where(text: str) -> Where | None:
    frames = _FILE.findall(text)
    if not frames:
        return None
    own = [f for f in frames if not any(part in f[1] for part in _THEIRS)]
    function, file, line = (own or frames)[0]
    return Where(file, int(line), function)
