"""Arrays that never change, compared by content: what the `constant` op holds."""

from __future__ import annotations

import hashlib

import numpy as np

from opentrn.base import DType, UsageError, declare
from opentrn.graph.carriers import storage
from opentrn.graph.types import graph_dtype

SAMPLE_BYTES = 4096

declare("graph.no_data", "a constant's numbers are needed, but only its shape is known",
        "a graph imported from a module without weights can be costed and compiled, not run",
        "import the module with its weights loaded")


class Data:
    """An array (or only its type, if `array` is None) that is equal to any other of one content.

    Hashing a model's weights costs seconds, so `hash()` looks at 4 KiB spread over the array and
    two arrays are compared in full only if those agree.  The array is shared, not copied: whoever
    made it must not write to it afterwards."""

    __slots__ = ("_digest", "_hash", "array", "dtype", "name", "shape")

    def __init__(self, array: np.ndarray | None, dtype: DType, shape: tuple[int, ...],
                 name: str = "") -> None:
        self.array = array
        self.dtype = dtype
        self.shape = shape
        self.name = name
        self._digest = ""
        self._hash = hash((dtype, shape, name if array is None else self._sample()))

    @classmethod
    def of(cls, array: np.ndarray, as_dtype: str = "") -> Data:
        """The data of a NumPy array; `as_dtype` names its dtype where NumPy's is not enough."""
        kind = graph_dtype(as_dtype or array.dtype)
        if array.dtype != storage(kind):
            array = np.asarray(array, dtype=storage(kind))
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        view = array.view()
        view.flags.writeable = False
        return cls(view, kind, array.shape)

    @classmethod
    def absent(cls, name: str, dtype: DType, shape: tuple[int, ...]) -> Data:
        """Only the type of an array whose numbers are elsewhere; equal by name and type."""
        return cls(None, dtype, shape, name)

    def _sample(self) -> bytes:
        flat = self._bytes()
        step = max(1, flat.size // SAMPLE_BYTES)
        return flat[::step].tobytes()

    def _bytes(self) -> np.ndarray:
        return self.numbers().reshape(-1).view(np.uint8)

    def numbers(self) -> np.ndarray:
        """The stored array (read only); UsageError `graph.no_data` if there is none."""
        if self.array is None:
            raise UsageError(f"constant `{self.name}` has no numbers", code="graph.no_data",
                             fix="import the module with its weights loaded")
        return self.array

    @property
    def digest(self) -> str:
        """BLAKE2b-128 of dtype, shape and bytes, in hexadecimal; computed once."""
        if not self._digest:
            mark = hashlib.blake2b(f"{self.dtype}{self.shape}".encode(), digest_size=16)
            mark.update(self._bytes() if self.array is not None else self.name.encode())
            self._digest = mark.hexdigest()
        return self._digest

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Data) or self._hash != other._hash:
            return False
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            return False
        if self.array is None or other.array is None:
            return self.array is other.array and self.name == other.name
        return self.array is other.array or bool(np.array_equal(self._bytes(), other._bytes()))

    def __repr__(self) -> str:
        if self.array is not None and self.array.size == 1:
            return str(self.array.reshape(-1)[0])
        return f"<{self.dtype}{list(self.shape)}>"
