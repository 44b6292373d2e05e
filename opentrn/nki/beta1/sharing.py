"""What program instances of a launch have in common: reductions over them, atomic updates of HBM.

Source: NKI API reference v2.26.1 (nki.language.all_reduce, nki.language.atomic_rmw).
"""

import operator
from itertools import product
from typing import Any

from opentrn.base import NotBuiltError, UsageError, declare
from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki.beta1 import elements, masks
from opentrn.nki.beta1.pending import current
from opentrn.nki.beta1.tile import Tensor
from opentrn.nki.language import memory

declare(
    "beta1.program_axes",
    "A reduction over program instances names axes the launch grid does not have.",
    rule="program_axes are dimensions of the launch grid: kernel[4, 2] has 0 and 1",
    fix="pass axes below nl.program_ndim(), and launch on a grid",
)
declare(
    "beta1.atomic",
    "An atomic update of another sort than the hardware has.",
    rule="atomic_rmw adds (np.add) to rows of a tensor in HBM that an index tile selects",
    fix="nl.atomic_rmw(tensor[indices, ix], value=tile, op=np.add); otherwise load, add and store",
)


def _peers(session: Any, program_axes: Any) -> list[tuple[int, ...]]:
    """The instances that differ from this one along `program_axes` only, in order."""
    axes = program_axes if isinstance(program_axes, list | tuple) else [program_axes]
    grid, own = session.grid, session.program_ids
    try:
        axes = {operator.index(axis) for axis in axes}
    except TypeError:
        axes = {-1}
    if not axes <= set(range(len(grid))):
        what = f"program_axes {program_axes!r} of a launch grid {list(grid)}"
        raise UsageError(what, code="beta1.program_axes")
    lines = [range(n) if d in axes else [own[d]] for d, n in enumerate(grid)]
    return list(product(*lines))


def all_reduce(
    x, op, program_axes, *, dtype=None, mask=None, parallel_reduce=True, asynchronous=False
):
    """`op` over the same tile of every program instance along `program_axes`, on each of them.

    The tiles go through HBM, one after another in the order of the instances; each step rounds to
    `dtype`.  Both ways of `parallel_reduce` and `asynchronous` give the same numbers.
    """
    session, x = current(), elements.tile(x, "x")
    kind = as_dtype(dtype or x.element)
    peers = _peers(session, program_axes)
    if mask is not None and mask is not True:
        raise NotBuiltError("a mask on all_reduce", code="beta1.mask")
    total = elements.copied(x)
    total.settle()
    if len(peers) == 1:
        return elements.copied(total, kind)
    shared = Tensor.of(memory.ndarray(total.shape, total.element, memory.private_hbm))
    nisa.dma_copy(shared.write(), total.read())
    offers = session.meet_programs(("all_reduce", peers), peers, shared)
    for n, peer in enumerate(peers):
        theirs = Tensor.of(memory.ndarray(x.shape, x.element, memory.sbuf))
        nisa.dma_copy(theirs.write(), offers[peer].read())
        total = theirs if n == 0 else elements.binary(op, total, theirs, kind)
        total.settle()
    return total


def atomic_rmw(dst, value, op, *, mask=None):
    """`dst = op(dst, value)` on rows of HBM that an index tile selects, row after row.

    So rows that are selected twice are added to twice.
    """
    dst = elements.tile(dst, "dst")
    current().flush()
    if elements.operator_name(op) != "add" or dst._index is None or dst.space != "hbm":
        what = f"atomic_rmw({elements.operator_name(op)}) on a part of {dst.space}"
        raise UsageError(what, code="beta1.atomic")
    if isinstance(value, elements.NUMBERS):
        value = Tensor.of(memory.full(dst.shape, value, dst.element))
    value = elements.tile(value, "value").squeezed(dst.shape)
    if value.space == "psum":
        value = elements.copied(value)
    for (low, high), *rest in masks.rectangles(mask, dst.shape):
        for row in range(low, high):
            spans = ((row, row + 1), *rest)
            sources = [dst.read(spans), value.read(spans)]
            nisa.dma_compute(dst.write(spans), sources, "add", unique_indices=True)


__all__ = ["all_reduce", "atomic_rmw"]
