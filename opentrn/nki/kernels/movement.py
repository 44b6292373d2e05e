"""Data movement: copies of any view, and rows gathered from a table."""


from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.tiles import sheet, spans

# A gathered row is cut into tiles of at most this many bytes of a partition.
ROW_BYTES = 64 << 10


@jit
def copy(x, out_dtype=None):
    """x, whatever its view, as a dense tensor of `out_dtype` (by default that of x)."""
    out = nl.ndarray(x.shape, as_dtype(out_dtype or x.dtype), nl.shared_hbm)
    nisa.dma_copy(out, x)
    return out


@jit
def embedding(table, ids):
    """Rows of `table` [V, D] for integer `ids` [...]: a tensor [..., D], gathered by DMA."""
    pmax, width = nl.tile_size.pmax, table.shape[1]
    out = nl.ndarray((*ids.shape, width), table.dtype, nl.shared_hbm)
    result = sheet(out)
    numbers = sheet(ids.expand_dim(ids.ndim))
    for rows in spans(result.rows, pmax):
        chosen = numbers.tile(rows)
        for first, last in spans(width, ROW_BYTES // table.dtype.itemsize):
            tile = nl.ndarray((rows[1] - rows[0], last - first), table.dtype, nl.sbuf)
            nisa.dma_copy(tile, table[:, first:last].vector_select(0, chosen))
            result.store(tile, rows[0], first)
    return out
