"""Element-wise arithmetic on tiles: operands, broadcasting, dtypes and masks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.base import DType, ShapeError, UsageError, declare, float32, uint8
from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki.beta1 import masks
from opentrn.nki.beta1.grids import broadcast
from opentrn.nki.beta1.pending import current
from opentrn.nki.beta1.tile import Tensor, produce
from opentrn.nki.language import math, memory

declare(
    "beta1.reduce",
    "A reduction along an axis that instructions do not reduce.",
    rule="reductions run along free axes; axis 0 is the partition",
    fix="transpose first, or multiply with ones on the Tensor Engine",
)
declare(
    "beta1.operand",
    "An instruction was given something that is neither a tile nor a number.",
    rule="operands are tiles in SBUF or PSUM and, where the instruction allows it, numbers",
    fix="nl.load the data into a tile first",
)

NUMBERS = (bool, int, float, np.number)


def operator_name(op: Any) -> str:
    """The name `nki.isa` knows for an operator: a function of nl, NumPy, or a name."""
    name = getattr(op, "nki_op", None) or getattr(op, "__name__", op)
    return OPERATORS.get(name, name)


OPERATORS = {
    "amax": "maximum",
    "max": "maximum",
    "amin": "minimum",
    "min": "minimum",
    "sum": "add",
    "prod": "multiply",
    "absolute": "abs",
    "true_divide": "divide",
    "logical_not": "logical_not",
    "negative": "negative",
    "mean": "average",
}


def tile(value: Any, name: str = "data") -> Tensor:
    """`value` as a tile; UsageError `beta1.operand` when it is none."""
    if isinstance(value, Tensor):
        return value
    raise UsageError(f"`{name}` is a {type(value).__name__}", code="beta1.operand")


def operand(value: Any, spans: masks.Ranges | None = None, shape: tuple = ()) -> Any:
    """What an instruction reads: a number as it is, a tile cut to the spans of the mask.

    `shape` is the shape the spans belong to; a column [P, 1] is cut along partitions only.
    """
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, Tensor):
        return value
    if spans is None:
        return value.read()
    if value.ndim != len(spans):
        if value.size == value.shape[0]:
            return value.read((spans[0], *((0, 1),) * (value.ndim - 1)))
        value = value.squeezed(shape)
    return value.read(spans)


def masked(
    shape: tuple[int, ...],
    dtype: Any,
    mask: Any,
    issue: Callable[[Any, masks.Ranges | None], None],
    space: str = "sbuf",
    **more: Any,
) -> Tensor:
    """The result of `issue(dst, spans)`, computed where the mask says so and nowhere else.

    A mask that is no rectangle is computed everywhere and copied under a predicate.
    """
    shape = tuple(shape)
    return produce(shape, dtype, lambda t: under_mask(t, shape, dtype, mask, issue), space, **more)


def under_mask(target: Tensor, shape, dtype, mask: Any, issue: Callable) -> None:
    """Run `issue(dst, spans)` into a tile, under a mask."""
    if mask is None or mask is True:
        issue(target.write(), None)
        return
    spans = masks.rectangle(mask, shape)
    if spans is not None:
        if all(low < high for low, high in spans):
            issue(target.write(spans), spans)
        return
    whole = memory.ndarray(shape, as_dtype(dtype), memory.sbuf)
    issue(whole, None)
    nisa.tensor_copy_predicated(target.write(), whole, predicate(mask, shape))


def predicate(mask: Any, shape: tuple[int, ...]) -> Any:
    """A uint8 tile: 1 where the mask holds."""
    chosen = memory.full(shape, 1.0, float32)
    for offset, steps in masks.aligned_conditions(mask, shape):
        nisa.affine_select(
            chosen,
            **affine(shape, steps),
            on_true_tile=chosen,
            on_false_value=0.0,
            cmp_op="greater_equal",
            offset=offset,
        )
    out = memory.ndarray(shape, uint8, memory.sbuf)
    nisa.tensor_copy(out, chosen)
    return out


def affine(shape: tuple[int, ...], steps: tuple[int, ...]) -> dict:
    """The pattern arguments of iota and affine_select for steps along each dimension."""
    pattern = [[s, n] for s, n in zip(steps[1:], shape[1:], strict=True)] or [[0, 1]]
    return {"pattern": pattern, "channel_multiplier": steps[0]}


# ---------------------------------------------------------------------- dtypes

_ORDER = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32")


def promoted(*values: Any) -> DType:
    """The dtype of a result: the widest of the tiles; float numbers make integers float32."""
    kinds = [v.element for v in values if isinstance(v, Tensor)]
    floats = [k for k in kinds if k.kind == "float"]
    if not floats:
        if any(isinstance(v, float | np.floating) for v in values):
            return float32
        return max(kinds, key=lambda k: _ORDER.index(k) if k in _ORDER else len(_ORDER))
    widest = max(k.itemsize for k in floats)
    best = list(dict.fromkeys(k for k in floats if k.itemsize == widest))
    return best[0] if len(best) == 1 else float32


# ---------------------------------------------------------------------- broadcasting


def repeat_partition(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tile of one partition repeated to the partitions of `shape`."""
    source = x.squeezed((1, *((1,) * (len(shape) - x.ndim)), *x.shape[1:]))
    return produce(shape, x.element, lambda t: _repeat(t, source, shape))


def _repeat(target: Tensor, source: Tensor, shape: tuple[int, ...]) -> None:
    row = source.broadcast_to((1, *shape[1:])).read()
    if source.element.kind == "float":
        repeated = math.broadcast_to(row, shape, source.element)
        nisa.tensor_copy(target.write(), repeated)
        return
    # Integers of any size survive only a transfer.
    to = target.write()
    for p in range(shape[0]):
        nisa.dma_copy(to[p : p + 1], row)


def together(*tiles: Tensor) -> list[Tensor]:
    """Tiles of one number of dimensions and of partitions that broadcast to each other."""
    ndim = max(t.ndim for t in tiles)
    shape = broadcast([t.shape for t in tiles])
    made = []
    for t in tiles:
        if t.ndim < ndim:
            t = t.squeezed((*((1,) * (ndim - t.ndim)), *t.shape))
        if t.shape[0] == 1 != shape[0]:
            t = repeat_partition(t, (shape[0], *t.shape[1:]))
        made.append(t)
    return made


# ---------------------------------------------------------------------- operators


def binary(op: Any, x: Any, y: Any, dtype: Any = None, mask: Any = None) -> Tensor:
    """`x op y` on tiles and numbers, broadcasting free dimensions and single partitions."""
    tiles = [v for v in (x, y) if isinstance(v, Tensor)]
    for v in (x, y):
        if not isinstance(v, (Tensor, *NUMBERS)):
            tile(v, "x" if v is x else "y")
    if not tiles:
        raise UsageError("arithmetic without a tile", code="beta1.operand")
    name = operator_name(op)
    kind = as_dtype(dtype or promoted(x, y))
    if dtype is None and name == "divide" and kind.kind != "float":
        kind = float32
    if len(tiles) == 2:
        x, y = together(x, y)
        shape = broadcast([x.shape, y.shape])
    else:
        shape = tiles[0].shape
    return masked(shape, kind, mask, lambda dst, spans: apply(dst, name, x, y, spans, shape))


def apply(dst: Any, op: str, x: Any, y: Any, spans: Any = None, shape: tuple = ()) -> None:
    """One instruction for `dst = x op y`."""
    a, b = operand(x, spans, shape), operand(y, spans, shape)
    if not isinstance(x, Tensor):
        nisa.tensor_scalar(dst, b, op, a, reverse0=True)
    elif not isinstance(y, Tensor) or _column(b) and not _column(a):
        nisa.tensor_scalar(dst, a, op, b)
    elif _column(a) and not _column(b):
        nisa.tensor_scalar(dst, b, op, a, reverse0=True)
    else:
        a, b = math._matched(a, b)
        if a.buffer is memory.psum is b.buffer:
            b = math.copy(b, float32)
        nisa.tensor_tensor(dst, a, b, op)


def _column(x: Any) -> bool:
    return x.size == x.shape[0] and x.dtype == float32


def update(t: Tensor, op: str, value: Any) -> Tensor:
    """`t op= value` in place."""
    if isinstance(value, Tensor):
        value.settle()
        if value.shape != t.shape:
            value = together(t, value)[1]
        if broadcast([t.shape, value.shape]) != t.shape:
            what = f"{list(value.shape)} into a tile {list(t.shape)}"
            raise ShapeError(what, code="beta1.grid")
    current().flush()
    t.read()
    apply(t.write(), op, t, value)
    return t


def unary(name: str, x: Any, dtype: Any = None, mask: Any = None) -> Tensor:
    """An activation function of a tile."""
    x = tile(x, "x")
    return masked(
        x.shape,
        dtype or x.element,
        mask,
        lambda dst, spans: nisa.activation(dst, name, operand(x, spans, x.shape)),
    )


def copied(x: Tensor, dtype: Any = None, mask: Any = None, engine: Any = None) -> Tensor:
    """A copy of a tile."""
    more = {} if engine is None else {"engine": engine}
    same = dtype is None or as_dtype(dtype) == x.element
    return masked(
        x.shape,
        dtype or x.element,
        mask,
        lambda dst, spans: nisa.tensor_copy(dst, operand(x, spans, x.shape), **more),
        moves=same,
    )


def composite(shape, dtype, mask: Any, compute: Callable[[Any], Any]) -> Tensor:
    """The result of several instructions: `compute(spans)` gives a tile of `nki`."""

    def issue(dst: Any, spans: Any) -> None:
        nisa.tensor_copy(dst, compute(spans))

    if mask is None:
        current().flush()
        return Tensor.of(compute(None))
    return masked(shape, dtype, mask, issue)


__all__ = [
    "apply",
    "binary",
    "composite",
    "copied",
    "masked",
    "operand",
    "operator_name",
    "promoted",
    "tile",
    "unary",
]
