"""Writing values into tiles: `t[...] = value` and `t += value`."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.base import LimitError, SpaceError, UsageError, declare, float32
from opentrn.nki import isa as nisa
from opentrn.nki.beta1.pending import current
from opentrn.nki.language import memory

declare(
    "beta1.assign",
    "A tile was assigned something that is neither a tile on chip nor a number.",
    rule="t[...] = value takes results of instructions, tiles in SBUF or PSUM, and numbers",
    fix="nl.load tensors in HBM first; write to HBM with nl.store",
)


class _Probe:
    """Counts the references to a value that only an assignment holds."""

    count = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        self.count = sys.getrefcount(value)


def _held_by_assignment() -> int:
    probe = _Probe()
    probe[0] = object()
    return probe.count


# References to a value no variable holds, as __setitem__ counts them; the session holds one more.
UNNAMED = _held_by_assignment() + 1


def unnamed(count: int) -> bool:
    """Whether `count` references mean that no variable holds the value."""
    return count <= UNNAMED


def into(target: Callable[[], Any], value: Any, fresh: bool) -> None:
    """Write `value` into the tile `target()`; `fresh` says that nobody else will read the value.

    A fresh result is computed in place: its instruction writes into the tile.
    """
    where = target()
    if isinstance(value, bool | int | float | np.number):
        current().flush()
        fill(where, value)
    elif not hasattr(value, "settle"):
        raise UsageError(f"a tile = {type(value).__name__}", code="beta1.assign")
    elif where.space == "hbm":
        from opentrn.nki.beta1.language import store

        store(where, value)
    elif value._waiting is not None and fresh and _fits(where, value):
        waiting = value._waiting
        value._leave()
        place = where.squeezed(value.shape)
        waiting.issue(place, "merge" if waiting.merge else "run")
        value._memory, value._offset, value._steps = place._memory, place._offset, place._steps
    else:
        value.settle()
        if not _same(where, value):
            current().flush()
            copy(where, value)


def _fits(where: Any, value: Any) -> bool:
    """Whether the instruction of `value` can write into `where` and gives the same there."""
    waiting = value._waiting
    ones = [n for n in where.shape if n != 1] == [n for n in value.shape if n != 1]
    same_rows = where.shape[0] == value.shape[0]
    if not ones or not same_rows or waiting.space != where.space:
        return False
    if value.element == where.element or waiting.moves:
        return True
    return waiting.casts and value.element == float32


def _same(where: Any, value: Any) -> bool:
    return (
        where._memory is value._memory
        and where._offset == value._offset
        and where.size == value.size
        and where.element == value.element
    )


def fill(where: Any, number: Any) -> None:
    """Write one number everywhere in a tile or HBM tensor."""
    number = number.item() if isinstance(number, np.number) else number
    if where.space == "hbm":
        memory.fill(where.write(), number)
        return
    target = where.write()
    if engine_reaches(target):
        nisa.memset(target, number)
        return
    source = memory.ndarray(target.shape, target.dtype, memory.sbuf)
    nisa.memset(source, number)
    nisa.dma_copy(target, source)


def engine_reaches(tensor: Any) -> bool:
    """Whether engines may begin at the partition where this tile begins."""
    form = tensor.form()
    quarter = 32 if form.partitions <= 32 else 64 if form.partitions <= 64 else 128
    return form.partition % quarter == 0 and form.partition_step <= 1


def copy(where: Any, value: Any) -> None:
    """Copy a settled tile into another: by an engine, by DMA where engines cannot reach."""
    if value.space == "hbm":
        raise SpaceError("a tile = tensor in HBM", code="beta1.assign")
    if where.size != value.size or where.shape != value.shape:
        value = value.squeezed(where.shape)
    source, target = value.read(), where.write()
    if engine_reaches(source) and engine_reaches(target):
        nisa.tensor_copy(target, source)
    else:
        nisa.dma_copy(target, source)


def add_into(tile: Any, value: Any, op: str, fresh: bool) -> Any:
    """`tile op= value`, in place; a matmul adds straight into PSUM."""
    from opentrn.nki.beta1 import elements

    waiting = getattr(value, "_waiting", None)
    if (
        waiting is not None
        and waiting.add is not None
        and op == "add"
        and fresh
        and tile.space == "psum"
        and tile.memory.plain
        and tile.element == float32
        and tile.size == value.size
    ):
        value._leave()
        waiting.issue(tile.squeezed(value.shape), "add")
        value._memory, value._offset, value._steps = tile._memory, tile._offset, tile._steps
        return tile
    if tile.space == "hbm":
        raise LimitError("arithmetic on a tensor in HBM", code="beta1.assign")
    return elements.update(tile, op, value)


__all__ = ["add_into", "copy", "fill", "into", "unnamed"]
