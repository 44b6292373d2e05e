"""Named arrays as bytes in the safetensors format, written piece by piece and read without a copy.

Formats that NumPy itself does not have (bfloat16, the FP8 formats) are stored as unsigned integers
of the same size, so that every reader of safetensors can read the file; the true formats are kept
by the caller.  Layout: 8 bytes of header length, a JSON header, the data without holes.
Source: github.com/huggingface/safetensors, README, "Format".
"""

import json
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from opentrn.base import DType

# Alignment of the data: enough for any vector load.
ALIGNMENT = 64

_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bool": "BOOL",
}  # fmt: skip
_TYPES = {code: np.dtype(name) for name, code in _CODES.items()}


def _plain(array: np.ndarray) -> np.ndarray:
    """The array, contiguous and little-endian, in a type that safetensors names."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    if array.dtype.name not in _CODES:
        array = array.view(f"u{array.dtype.itemsize}")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def pieces(arrays: Mapping[str, np.ndarray], offset: int = 0) -> Iterator[Any]:
    """The bytes of the file, one piece for each array, largest elements first.

    `offset` is where the bytes will begin in the file around them: the header is padded so that
    the data is aligned there.
    """
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header, at = {}, 0
    for name in order:
        plain = _plain(arrays[name])
        end = at + plain.nbytes
        header[name] = {
            "dtype": _CODES[plain.dtype.name],
            "shape": list(plain.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(offset + 8 + len(text)) % ALIGNMENT)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        plain = _plain(arrays[name])
        if plain.nbytes:
            yield memoryview(plain.reshape(-1)).cast("B")


def read(data: np.ndarray, kinds: Mapping[str, DType]) -> dict[str, np.ndarray]:
    """The arrays in `data` (uint8), as views of it, in the storage types that `kinds` names.

    Raises ValueError (or what wrong JSON types lead to) when the bytes are not what they claim.
    """
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > len(data) - 8:
        raise ValueError("the header of the constants is longer than the file")
    header = json.loads(data[8 : 8 + length].tobytes())
    if set(header) != set(kinds):
        raise ValueError("the constants are not those of the manifest")
    body = data[8 + length :]
    return {name: _array(name, header[name], body, kind) for name, kind in kinds.items()}


def _array(name: str, row: Mapping[str, Any], body: np.ndarray, kind: DType) -> np.ndarray:
    stored, shape = _TYPES[row["dtype"]], tuple(row["shape"])
    start, end = row["data_offsets"]
    if any(type(n) is not int or n < 0 for n in (*shape, start, end)):
        raise ValueError(f"constant {name!r} has an impossible shape or place")
    size = prod(shape) * stored.itemsize
    if end - start != size or end > len(body) or stored.itemsize != kind.storage.itemsize:
        raise ValueError(f"constant {name!r} does not fill its place")
    return body[start:end].view(kind.storage).reshape(shape)


__all__ = ["pieces", "read"]
