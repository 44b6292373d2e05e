"""Operands of instructions that return tiles: columns, destinations given by the caller, masks."""

from typing import Any

from opentrn.base import NotBuiltError, uint8
from opentrn.nki.beta1 import masks
from opentrn.nki.beta1.elements import operand, tile
from opentrn.nki.beta1.pending import current
from opentrn.nki.beta1.tile import Tensor


def column(value: Any, spans: Any) -> Any:
    """An operand with one element for each partition, cut to the partitions of the mask."""
    if not isinstance(value, Tensor):
        return operand(value)
    if value.size == value.shape[0]:
        value = value.squeezed((value.shape[0], 1))
    return value.read() if spans is None else value.read((spans[0], (0, value.shape[1])))


def void(mask: Any, shape: tuple[int, ...], what: str) -> masks.Ranges | None:
    """The rectangle of a mask for an instruction that writes into tiles it is given."""
    current().flush()
    if mask is None or mask is True:
        return None
    spans = masks.rectangle(mask, shape)
    if spans is None:
        raise NotBuiltError(f"{what} under a mask that is no rectangle", code="beta1.mask")
    return spans


def nothing(spans: Any) -> bool:
    """Whether a mask leaves nothing to do."""
    return spans is not None and any(low >= high for low, high in spans)


def result(value: Tensor | None, spans: Any) -> Any:
    """A given destination [P, …] of a reduction, cut to the partitions of the mask."""
    if value is None:
        return None
    return value.write() if spans is None else value.write((spans[0], *whole(value)[1:]))


def bytes_of(predicate: Any) -> Tensor:
    """A predicate whose truth values are read as the bytes they are."""
    chosen = tile(predicate, "predicate")
    return chosen.view(uint8) if chosen.element == "bool" else chosen


def whole(value: Tensor) -> tuple:
    """The ranges that cover a tile."""
    return tuple((0, n) for n in value.shape)
