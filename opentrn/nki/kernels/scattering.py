"""Rows written to, or added at, places that the data say."""

from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.tiles import sheet, spans

# Columns of a table worked on together: one PSUM bank of float32.
COLUMNS = 512


@jit
def scatter_rows(table, ids, rows, kind="set"):
    """A copy of `table` [V, D] in which row ids[n] is rows[n] ("set"), or has it added ("add").

    ids are [N, 1] integers in 0 … V - 1.  Of rows with one place, "set" keeps the last; "add" adds
    all of them, in float32 for each 128 of them."""
    out = nl.ndarray(table.shape, table.dtype, nl.shared_hbm)
    nisa.dma_copy(out, table)
    given, numbers = sheet(rows), sheet(ids)
    for span in spans(given.rows, nl.tile_size.pmax):
        chosen = numbers.tile(span)
        same = None if kind == "set" else _equal_places(chosen)
        for columns in spans(given.columns, COLUMNS):
            tile = given.tile(span, columns)
            target = out[:, columns[0] : columns[1]].vector_select(0, chosen)
            if kind == "add":
                tile = _added(target, tile, same)
            nisa.dma_copy(target, tile)
    return out


def _equal_places(chosen):
    """[N, N] of ones where two of a tile's rows go to one place, and zeros."""
    height = chosen.shape[0]
    numbers = nl.ndarray((height, 1), nl.float32, nl.sbuf)
    nisa.tensor_copy(numbers, chosen)
    wide = nl.ndarray((height, height), nl.float32, nl.sbuf)
    nisa.tensor_copy(wide, numbers.broadcast(1, height))
    turned = nl.ndarray((height, height), nl.float32, nl.psum)
    nisa.nc_transpose(turned, wide)
    same = nl.ndarray((height, height), nl.float32, nl.sbuf)
    nisa.tensor_tensor(same, wide, turned, nl.equal)
    return same


def _added(target, tile, same):
    """What a tile's places hold, plus all rows of the tile that go there."""
    height, width = tile.shape
    moving = nl.ndarray((height, width), nl.float32, nl.sbuf)
    nisa.tensor_copy(moving, tile)
    total = nl.ndarray((height, width), nl.float32, nl.psum)
    nisa.nc_matmul(total, same, moving, accumulate=False)
    before = nl.ndarray((height, width), tile.dtype, nl.sbuf)
    nisa.dma_copy(before, target)
    made = nl.ndarray((height, width), tile.dtype, nl.sbuf)
    nisa.tensor_tensor(made, before, total, nl.add)
    return made


__all__ = ["scatter_rows"]
