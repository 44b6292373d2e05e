"""Torch's rules of dtype promotion and broadcasting, written out in graph ops."""

from __future__ import annotations

from typing import Any

from opentrn.base import DType, dtype
from opentrn.graph.build import Builder
from opentrn.graph.ir import Value

# Widest last; torch calls these categories and lets a higher one win over any lower.
RANKS = {"bool": 0, "uint": 1, "int": 1, "float": 2}
DEFAULT = {"bool": "bool", "int": "int64", "float": "float32"}

# What graphs hold as the bytes it is: pairs of 4-bit floats, and the scales of MX blocks.
BYTES = ("torch.float4_e2m1fn_x2", "torch.float8_e8m0fnu")

Operand = Value | float | int | bool


def torch_dtype(given: Any) -> DType:
    """The dtype of a torch tensor's elements in a graph."""
    return dtype("uint8") if str(given) in BYTES else dtype(given)


def kind_of(number: Any) -> str:
    """The category of a Python number: bool, int or float."""
    if isinstance(number, bool):
        return "bool"
    return "int" if isinstance(number, int) else "float"


def wider(a: DType, b: DType) -> DType:
    """The dtype two arrays of equal standing are promoted to."""
    if a == b:
        return a
    ranks = RANKS[a.kind], RANKS[b.kind]
    if ranks[0] != ranks[1]:
        return a if ranks[0] > ranks[1] else b
    if a.kind == "float":
        return dtype("float32") if a.bits == b.bits else max(a, b, key=lambda t: t.bits)
    if a.kind != b.kind:  # uint8 with intN: the integer that holds both
        signed, unsigned = (a, b) if a.kind == "int" else (b, a)
        return signed if signed.bits > unsigned.bits else dtype(f"int{2 * unsigned.bits}")
    return max(a, b, key=lambda t: t.bits)


def common_dtype(*operands: Operand) -> DType:
    """What torch computes in: arrays with axes decide, then scalars arrays, then Python numbers,
    the latter two only if their category is higher."""
    arrays = [x.dtype for x in operands if isinstance(x, Value) and x.shape]
    scalars = [x.dtype for x in operands if isinstance(x, Value) and not x.shape]
    numbers = [dtype(DEFAULT[kind_of(x)]) for x in operands if not isinstance(x, Value)]
    found: DType | None = None
    for group in (arrays, scalars, numbers):
        if not group:
            continue
        mine = group[0]
        for other in group[1:]:
            mine = wider(mine, other)
        if found is None or RANKS[mine.kind] > RANKS[found.kind]:
            found = mine
    return found or dtype("float32")


def floated(kind: DType) -> DType:
    """The dtype of a function that is only defined on floats."""
    return kind if kind.kind == "float" else dtype("float32")


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's shape of several operands used together."""
    rank = max(map(len, shapes), default=0)
    sizes = []
    for axis in range(-rank, 0):
        here = [s[axis] for s in shapes if len(s) >= -axis]
        sizes.append(next((n for n in here if n != 1), 1))
    return tuple(sizes)


def together(g: Builder, *operands: Operand, kind: DType | None = None) -> list[Value]:
    """The operands in one dtype (torch's, or `kind`) and one shape."""
    kind = kind or common_dtype(*operands)
    shape = broadcast_shape(*(x.shape for x in operands if isinstance(x, Value)))
    return [g.broadcast(g.cast(x, kind), shape) if isinstance(x, Value) else
            g.full(shape, x, kind) for x in operands]


def axes(dims: Any, rank: int) -> tuple[int, ...]:
    """Torch's `dim` as axes counted from the front; None or [] means all."""
    if dims is None or dims == []:
        return tuple(range(rank))
    if not rank:
        return ()  # a scalar has no axes, although torch lets one be named
    listed = dims if isinstance(dims, (list, tuple)) else [dims]
    return tuple(d % rank for d in listed)


def restored(g: Builder, x: Value, shape: tuple[int, ...], gone: tuple[int, ...],
             keep: bool) -> Value:
    """A reduced value with its lost axes back as size 1, if `keep`."""
    if not keep:
        return x
    return g.reshape(x, tuple(1 if i in gone else n for i, n in enumerate(shape)))


NOT_NEGATIVE = ("reshape", "broadcast_in_dim", "convert", "slice", "transpose", "concatenate",
                "reverse", "and")


def not_negative(x: Value) -> bool:
    """Whether an integer value is provably at least 0 (counts and constants, moved about)."""
    while x.op in NOT_NEGATIVE and len(x.args) == 1:
        x = x.args[0]
    if x.op == "constant":
        array = x.attrs.data.array
        return array is not None and bool((array >= 0).all())
    if x.op in ("iota", "argmax") or x.dtype.kind == "uint":
        return True
    return x.op in ("add", "multiply", "maximum") and all(map(not_negative, x.args))


def wrapped(g: Builder, index: Value, size: int) -> Value:
    """Indices with torch's negative ones counted from the end."""
    if not_negative(index):
        return index
    low = g.compare(index, 0, direction="LT")
    return g.select(low, index + size, index)
