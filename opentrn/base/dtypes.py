"""The data types of the machine: each one a string that knows its bits, limits and storage.

Two representations of a tensor exist. *Storage* is the bytes that lie in HBM. The *carrier* is the
array that holds values on chip: float32 numbers already rounded to the type, for every float of at
most 32 bits; the integer itself for integers; uint8 for booleans; the raw bits for packed types.
`base.numerics` converts between the two.

The library ml_dtypes, which gives NumPy the low precision types, takes up to 0.6 s to import; it is
imported when the first `storage` of such a type is asked for, or by `register()`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from opentrn.base.errors import Bug, DtypeError, declare, nearest

declare(
    "base.dtype",
    "A data type is named by an NKI dtype, its name, a NumPy, ml_dtypes or torch dtype.",
    rule="every tensor has one of the data types of the machine",
    fix="use one of opentrn.base.dtypes, for example `bfloat16`",
)

_FIELDS = (
    "kind", "bits", "storage_name", "carrier", "max", "min", "smallest_normal", "mantissa",
    "exponent", "has_inf", "has_nan", "on_chip", "element", "narrow",
)  # fmt: skip


class DType(str):
    """A data type: equal to its name as text, with what is known about it as attributes.

    `kind` is "float", "int", "uint", "bool", "packed" or "scale"; `bits` the size of one element;
    `storage` and `carrier` are NumPy dtypes (see the module). `max` and `min` are the finite
    limits, `mantissa` and `exponent` the field widths in bits (0 for integers). `on_chip` is False
    for the 64-bit types, which only graphs know. `element` is the type inside a packed type;
    `narrow` the type whose place a widened one takes (see `widened`). `itemsize` is the number of
    bytes of one element in storage.
    """

    __slots__ = (*_FIELDS, "itemsize")

    def __new__(cls, name: str, **fields: Any):
        """Make a type once, in this module; elsewhere `dtype(name)` finds it."""
        self = super().__new__(cls, name)
        for field in _FIELDS:
            object.__setattr__(self, field, fields[field])
        object.__setattr__(self, "itemsize", (self.bits + 7) // 8)
        return self

    def __setattr__(self, name, value):
        """Refuse: types are shared by everything."""
        raise Bug(f"attempt to change {name!r} of data type {self}")

    @property
    def name(self) -> str:
        """The plain name, e.g. `"bfloat16"`."""
        return str.__str__(self)

    @property
    def storage(self) -> np.dtype:
        """The NumPy dtype of the bytes in HBM."""
        return _storage(self.storage_name)

    @property
    def is_float(self) -> bool:
        """Whether values are floating point numbers (scales included)."""
        return self.kind in ("float", "scale")

    @property
    def is_integer(self) -> bool:
        """Whether values are signed or unsigned integers (booleans are not)."""
        return self.kind in ("int", "uint")

    @property
    def lanes(self) -> int:
        """Elements packed into one: 4 for the x4 types, else 1."""
        return 4 if self.kind == "packed" else 1

    @property
    def bias(self) -> int:
        """Exponent bias: the smallest normal is 2**(1 - bias). Floats only."""
        return 1 - int(np.frexp(np.float64(self.smallest_normal))[1] - 1)

    def __reduce__(self):
        """Pickle and copy as the one shared type."""
        return dtype, (self.name,)


@functools.cache
def _storage(name: str) -> np.dtype:
    """The NumPy dtype of a name, asking ml_dtypes for the names NumPy does not have itself."""
    if name.startswith(("bfloat", "float8", "float4")):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def register() -> None:
    """Teach NumPy the names of the low precision types, so that `np.dtype(bfloat16)` works."""
    _storage("bfloat16")


_DEFAULTS: dict[str, Any] = {
    "max": 0, "min": 0, "smallest_normal": 0, "mantissa": 0, "exponent": 0, "has_inf": False,
    "has_nan": False, "on_chip": True, "element": None, "narrow": None,
}  # fmt: skip


def _make(name: str, kind: str, bits: int, storage: str, carrier: Any, **fields: Any) -> DType:
    """A DType with the fields that most types share filled in."""
    fields = _DEFAULTS | fields
    return DType(
        name, kind=kind, bits=bits, storage_name=storage, carrier=np.dtype(carrier), **fields
    )


def _integer(bits: int, signed: bool) -> DType:
    """The two's complement or unsigned integer of a width."""
    name = f"{'' if signed else 'u'}int{bits}"
    info = np.iinfo(name)
    kind = "int" if signed else "uint"
    on_chip = bits <= 32
    return _make(name, kind, bits, name, name, max=info.max, min=info.min, on_chip=on_chip)


def _float(name, exponent, mantissa, *, storage="", bits=0, top=0.0, has_inf=True, has_nan=True):
    """A binary float: IEEE-like unless `top` (the largest finite value) and `has_inf` say else."""
    bias = 2 ** (exponent - 1) - 1
    largest = top or (2.0 - 2.0**-mantissa) * 2.0**bias
    bits = bits or 1 + exponent + mantissa
    return _make(
        name, "float", bits, storage or name, np.float64 if bits == 64 else np.float32,
        max=largest, min=-largest, smallest_normal=2.0 ** (1 - bias), mantissa=mantissa,
        exponent=exponent, has_inf=has_inf, has_nan=has_nan, on_chip=bits <= 32,
    )  # fmt: skip


def _packed(element: DType, carrier: str) -> DType:
    """Four elements in one word, first element in the lowest bits; what nc_matmul_mx reads."""
    bits = 4 * element.bits
    return _make(
        f"{element.name}_x4", "packed", bits, carrier, carrier,
        max=element.max, min=element.min, element=element,
    )  # fmt: skip


bool_ = _make("bool", "bool", 8, "bool", "uint8", max=1, min=0)
int8, int16, int32, int64 = (_integer(bits, True) for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_integer(bits, False) for bits in (8, 16, 32, 64))

# Field widths: AWS Neuron documentation, "Data types"; OCP 8-bit and Microscaling specifications.
float64 = _float("float64", 11, 52)
float32 = _float("float32", 8, 23)
tfloat32 = _float("tfloat32", 8, 10, storage="float32", bits=32)
bfloat16 = _float("bfloat16", 8, 7)
float16 = _float("float16", 5, 10)
float8_e5m2 = _float("float8_e5m2", 5, 2)
float8_e4m3 = _float("float8_e4m3", 4, 3)
float8_e3m4 = _float("float8_e3m4", 3, 4)
float8_e4m3fn = _float("float8_e4m3fn", 4, 3, top=448.0, has_inf=False)
float4_e2m1fn = _float("float4_e2m1fn", 2, 1, top=6.0, has_inf=False, has_nan=False)
float8_e8m0fnu = _make(
    "float8_e8m0fnu", "scale", 8, "float8_e8m0fnu", "float32", max=2.0**127,
    min=2.0**-127, smallest_normal=2.0**-127, exponent=8, has_nan=True,
)  # fmt: skip

float8_e5m2_x4 = _packed(float8_e5m2, "uint32")
float8_e4m3fn_x4 = _packed(float8_e4m3fn, "uint32")
float4_e2m1fn_x4 = _packed(float4_e2m1fn, "uint16")

FLOATS = (
    float64, float32, tfloat32, bfloat16, float16, float8_e5m2, float8_e4m3, float8_e3m4,
    float8_e4m3fn, float4_e2m1fn,
)  # fmt: skip
"""Every floating point type, widest first (the scale type is not one of them)."""

INTS = (int8, int16, int32, int64, uint8, uint16, uint32, uint64)
"""Every integer type."""

PACKED = (float8_e5m2_x4, float8_e4m3fn_x4, float4_e2m1fn_x4)
"""The types that hold four elements in one."""

ALL = (bool_, *INTS, *FLOATS, float8_e8m0fnu, *PACKED)
"""Every type."""

ON_CHIP = tuple(each for each in ALL if each.on_chip)
"""The types that an engine can read or write."""

_ALIASES = {
    "bool_": bool_, "boolean": bool_, "fp32": float32, "fp16": float16, "bf16": bfloat16,
    "tf32": tfloat32, "fp64": float64,
}  # fmt: skip
_BY_NAME: dict[str, DType] = {each.name: each for each in ALL} | _ALIASES
_BY_NUMPY: dict[np.dtype, DType] = {}  # those asked for: reading a name is slow


@functools.cache
def widened(kind: DType) -> DType:
    """A type of the same name and size whose values are float32 and never rounded.

    For low-precision floats, in the machine's high-precision mode; other types are themselves.
    """
    if kind.kind != "float" or kind.mantissa >= 23 or kind.narrow is not None:
        return kind
    fields = {field: getattr(kind, field) for field in _FIELDS}
    wide = {"storage_name": "float32", "exponent": 8, "mantissa": 23, "narrow": kind}
    return DType(kind.name, **(fields | wide))


def dtype(x: Any) -> DType:
    """Find the DType that `x` names.

    `x` is a DType, a name (`"bfloat16"`, also `"bf16"`, `"fp32"`, ...), a NumPy or ml_dtypes dtype
    or scalar type, or a torch dtype (recognised by its text: torch is not imported). Raises
    DtypeError `base.dtype` for anything else, None and Python's own number types included.
    """
    if type(x) is DType:
        return x
    if isinstance(x, np.dtype) and x in _BY_NUMPY:
        return _BY_NUMPY[x]
    name = _name_of(x)
    found = _BY_NAME.get(name)
    if found is None:
        close = ", ".join(nearest(name, _BY_NAME)) or "none"
        raise DtypeError(
            f"{x!r} is not a data type of the machine",
            code="base.dtype",
            fix=f"known names like it: {close}; all: {', '.join(each.name for each in ALL)}",
        )
    if isinstance(x, np.dtype):
        _BY_NUMPY[x] = found
    return found


def _name_of(x: Any) -> str:
    """The name by which to look up `x`; one that is not known if it names no type."""
    if isinstance(x, str):
        return str.__str__(x)
    if isinstance(x, np.dtype):
        # A record of one field is an x4 type under the field's name (dropin's neuron_dtypes).
        return x.names[0] if x.names is not None and len(x.names) == 1 else x.name
    if isinstance(x, type) and x.__module__ not in ("builtins", "typing"):
        try:
            return np.dtype(x).name
        except TypeError:
            return x.__name__
    text = str(x)
    return text.removeprefix("torch.") if text.startswith("torch.") else text
