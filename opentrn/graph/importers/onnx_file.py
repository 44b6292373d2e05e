"""ONNX files as Python sees them: parsing, tensors, types, attributes and places.

The `onnx` package is imported inside the functions; of a file only its messages are read, and
weights that lie beside it only from its own folder.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from opentrn.base import (
    DType,
    DtypeError,
    FileFormatError,
    MissingFileError,
    NotBuiltError,
    UnsupportedError,
    UsageError,
    Where,
    declare,
)
from opentrn.graph.carriers import storage
from opentrn.graph.data import Data
from opentrn.graph.types import graph_dtype

FIRST_OPSET, LAST_OPSET = 6, 28
"""The versions of ONNX's operator set that are read."""
LARGEST = 1 << 34  # bytes of a tensor: more is a damaged file, not a weight
DOMAINS = {"": "", "ai.onnx": ""}

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')

declare("graph.onnx_missing", "ONNX models cannot be read without the package `onnx`",
        "the package reads the file", "pip install 'opentrn[onnx]'")
declare("graph.onnx_file", "a file is no ONNX model, or a damaged one",
        "an ONNX file is a ModelProto whose nodes come after what they read",
        "export it again; onnx.checker.check_model(path) may say more")
declare("graph.onnx_opset", "an ONNX model is written in a version of the operators not read here",
        f"versions {FIRST_OPSET} to {LAST_OPSET} of ONNX's operators are read",
        f"export with opset_version={LAST_OPSET} or less, or use onnx.version_converter")
declare("graph.onnx_type", "an ONNX model has a type that graphs do not have",
        "tensors of numbers, and sequences of them inside the model",
        "let the model take and give tensors of numbers")
declare("graph.onnx_external", "weights beside an ONNX model cannot be read",
        "external data lies in the model's own folder", "keep the files together and give a path")


def parse_model(source: Any) -> tuple[Any, str, str]:
    """(ModelProto, name, the folder of its weights) of a path, bytes or a ModelProto.

    Raises MissingFileError or FileFormatError `graph.onnx_file`; UnsupportedError
    `graph.onnx_missing`."""
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        raise UnsupportedError("the package onnx is not installed",
                               code="graph.onnx_missing") from None
    if isinstance(source, onnx.ModelProto):
        return source, source.graph.name or "model", ""
    name, folder, data = "model", "", source
    if not isinstance(source, (bytes, bytearray, memoryview)):
        path = os.fspath(source)
        name, folder = os.path.splitext(os.path.basename(path))[0], os.path.dirname(path) or "."
        if not os.path.isfile(path):
            raise MissingFileError(f"there is no file {path}", code="graph.onnx_file",
                                   fix="check the path; it is read relative to the current "
                                       "directory")
        with open(path, "rb") as file:
            data = file.read()
    model = onnx.ModelProto()
    try:
        model.ParseFromString(bytes(data))
    except DecodeError as problem:
        raise refuse_file(f"{name} is no ONNX model, or it is cut off ({problem})") from None
    _refuse_odd_names(model, name)
    if not model.ir_version or not model.HasField("graph"):
        raise refuse_file(f"{name} is no ONNX model: it has no "
                          f"{'graph' if model.ir_version else 'ir_version'}")
    return model, name, folder


def _refuse_odd_names(message: Any, name: str) -> None:
    """Names are text: protobuf hands out what is none as bytes."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            each = [value] if isinstance(value, (str, bytes)) else value
            if not all(isinstance(text, str) for text in each):
                raise refuse_file(f"{name} is damaged: a {field.name} is no text")
        elif field.type == field.TYPE_MESSAGE:
            each = [value] if hasattr(value, "ListFields") else value
            for inner in each:
                _refuse_odd_names(inner, name)


def refuse_file(what: str, where: Where | None = None) -> FileFormatError:
    """The error of a file that breaks ONNX's own rules."""
    return FileFormatError(what, code="graph.onnx_file", at=where)


def opsets_of(imports: Any) -> dict[str, int]:
    """Domain -> version of a model's or function's operator sets, checked."""
    found = {DOMAINS.get(each.domain, each.domain): each.version for each in imports}
    version = found.get("")
    if version is not None and not FIRST_OPSET <= version <= LAST_OPSET:
        raise UnsupportedError(f"the model uses version {version} of ONNX's operators",
                               code="graph.onnx_opset")
    return found


def place_of(name: str, number: int, node: Any) -> Where:
    """Where a node stands: the line of the exported program, where its exporter wrote it down
    (torch does), else the node's number in the file, from 1."""
    for entry in node.metadata_props:
        if entry.key.endswith("stack_trace"):
            frames = _FRAME.findall(entry.value)
            own = [f for f in frames if "/torch/" not in f[0].replace("\\", "/")]
            if own:
                file, line, function = own[-1]
                return Where(file, int(line), function)
    return Where(f"<{name}.onnx>", number, f"{node.op_type} {node.name}".strip())


# -------------------------------------------------------------------------------------------- types


def tensor_dtype(number: int, where: Where | None = None) -> np.dtype:
    """NumPy's dtype for ONNX's number of an element type."""
    from onnx import TensorProto, helper

    if number == TensorProto.STRING:
        raise UnsupportedError("a tensor holds text", code="graph.onnx_type", at=where,
                               fix="process text before the model")
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(number))
    except (KeyError, ValueError, TypeError):
        raise UnsupportedError(f"there is no element type {number}", code="graph.onnx_type",
                               at=where) from None


def dtype_of(kind: np.dtype, where: Where | None = None) -> DType:
    """A graph's dtype for NumPy's."""
    try:
        return graph_dtype(kind)
    except DtypeError:
        raise UnsupportedError(f"graphs have no {kind}", code="graph.onnx_type", at=where) from None


def refuse_shape(info: Any, shape: tuple[int, ...]) -> None:
    """UsageError `graph.onnx_fixed` for a shape that is not one of those an input declares."""
    told = sizes_of(info)
    if told is not None and not fits(told, shape):
        dims = info.type.tensor_type.shape.dim
        text = ", ".join(str(d.dim_value) if t is not None else d.dim_param or "?"
                         for t, d in zip(told, dims, strict=True))  # fmt: skip
        raise UsageError(f"the input {info.name} is [{text}], it was given {list(shape)}",
                         code="graph.onnx_fixed")


def sizes_of(info: Any) -> list[int | None] | None:
    """The sizes a graph input or output declares, None for each that varies; None without any."""
    kind = info.type.tensor_type
    if info.type.WhichOneof("value") != "tensor_type" or not kind.HasField("shape"):
        return None
    return [int(d.dim_value) if d.HasField("dim_value") else None for d in kind.shape.dim]


def fits(told: list[int | None], shape: tuple[int, ...]) -> bool:
    """Whether a shape is one of those declared."""
    return len(told) == len(shape) and all(t in (None, n) for t, n in zip(told, shape, strict=True))


def shape_of(info: Any, dims: dict[str, int], where: Where | None = None) -> tuple[int, ...]:
    """The fixed shape of a graph input; `dims` gives sizes to names.

    Raises NotBuiltError `graph.dynamic_shape` for a size that is nowhere given."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        told = (kind or "value without a type").removesuffix("_type").replace("_", " ")
        raise UnsupportedError(f"the input {info.name} is a {told}", code="graph.onnx_type",
                               at=where, fix="give the model tensors")
    if not info.type.tensor_type.HasField("shape"):
        raise NotBuiltError(f"the input {info.name} has no shape", code="graph.dynamic_shape",
                            fix=f"from_onnx(model, shapes={{{info.name!r}: (1, 3, 224, 224)}})",
                            at=where)
    sizes, free = [], []
    for place, dim in enumerate(info.type.tensor_type.shape.dim):
        if dim.HasField("dim_value"):
            sizes.append(int(dim.dim_value))
        elif dim.dim_param in dims:
            sizes.append(int(dims[dim.dim_param]))
        else:
            free.append(dim.dim_param or f"axis {place}")
    if free:
        raise NotBuiltError(f"the input {info.name} has sizes that vary: {', '.join(free)}",
                            code="graph.dynamic_shape", at=where,
                            fix=f"fix them: from_onnx(model, dims={{{free[0]!r}: 1}}) or "
                                f"shapes={{{info.name!r}: (…)}}; on the command line "
                                f"--shape {info.name}=…")
    if min(sizes, default=0) < 0:
        raise refuse_file(f"the input {info.name} has a negative size", where)
    return tuple(sizes)


# ------------------------------------------------------------------------------------------ tensors


def data_of(tensor: Any, where: Where | None = None, folder: str = "") -> Data:
    """The numbers of a TensorProto.

    Raises FileFormatError `graph.onnx_file` if it holds more or fewer than its shape says,
    UnsupportedError `graph.onnx_type` or `graph.onnx_external`."""
    from onnx import TensorProto, numpy_helper

    held = tensor_dtype(tensor.data_type, where)
    kind = dtype_of(held, where)
    shape = tuple(int(n) for n in tensor.dims)
    size = 1
    for n in shape:
        size *= n
    if min(shape, default=0) < 0 or size * held.itemsize > LARGEST:
        raise refuse_file(f"the tensor {tensor.name} says it is {list(shape)}", where)
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external(tensor, kind, shape, where, folder)
    try:
        array = np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, OverflowError) as problem:
        raise refuse_file(f"the tensor {tensor.name} is damaged ({problem})", where) from None
    if array.shape != shape:
        raise refuse_file(f"the tensor {tensor.name} holds {list(array.shape)}, it says it is "
                          f"{list(shape)}", where)
    return Data.of(array.astype(storage(kind), copy=False), str(kind))


def _external(tensor: Any, kind: DType, shape: tuple[int, ...], where: Where | None,
              folder: str) -> Data:
    """A tensor whose bytes lie in a file of the model's folder, mapped and not read."""
    told = {entry.key: entry.value for entry in tensor.external_data}
    place = os.path.normpath(told.get("location", ""))
    path = os.path.join(folder, place)
    outside = os.path.isabs(place) or place.split(os.sep)[0] == os.pardir
    if not folder or outside or not os.path.isfile(path) or kind.bits < 8:
        why = "it lies outside" if outside else "it is not there"
        raise FileFormatError(f"the weights {tensor.name} are in {place or 'no file'}: "
                              f"{why}", code="graph.onnx_external", at=where)
    held = storage(kind)
    offset = _whole(told.get("offset", "0"), tensor, where)
    needed = held.itemsize * int(np.prod(shape, dtype=object))
    if offset < 0 or offset + needed > os.path.getsize(path):
        raise FileFormatError(f"the weights {tensor.name} end after the end of {place}",
                              code="graph.onnx_external", at=where)
    if not needed:
        return Data.of(np.zeros(shape, held), str(kind))
    raw = np.memmap(path, np.uint8, "r", offset, (needed,))
    return Data.of(np.asarray(raw).view(held).reshape(shape), str(kind))


def _whole(text: str, tensor: Any, where: Where | None) -> int:
    try:
        return int(text)
    except ValueError:
        raise refuse_file(f"the tensor {tensor.name} has the offset {text!r}", where) from None


def attribute_of(attribute: Any, where: Where | None = None) -> Any:
    """An attribute as plain Python: numbers, text, lists of them, or a message as it is."""
    from onnx import AttributeProto

    kind = attribute.type
    if kind == AttributeProto.FLOAT:
        return float(attribute.f)
    if kind == AttributeProto.INT:
        return int(attribute.i)
    if kind == AttributeProto.STRING:
        return attribute.s.decode(errors="replace")
    if kind == AttributeProto.FLOATS:
        return [float(v) for v in attribute.floats]
    if kind == AttributeProto.INTS:
        return [int(v) for v in attribute.ints]
    if kind == AttributeProto.STRINGS:
        return [v.decode(errors="replace") for v in attribute.strings]
    if kind == AttributeProto.TENSOR:
        return attribute.t
    if kind == AttributeProto.GRAPH:
        return attribute.g
    raise UnsupportedError(f"the attribute {attribute.name} has a type that is not read",
                           code="graph.onnx_type", at=where)
