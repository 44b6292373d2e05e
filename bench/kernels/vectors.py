"""Additions and activations of long vectors, by the size of their transfers."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def add_rows(a, b, rows=128):
    """a + b, vectors in columns of `rows` partitions: one element to a partition in each DMA."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for start in range(0, a.shape[0], rows):
        part = slice(start, start + rows)
        left = nl.ndarray((rows, 1), dtype=a.dtype, buffer=nl.sbuf)
        right = nl.ndarray((rows, 1), dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=a[part, 0:1])
        nisa.dma_copy(dst=right, src=b[part, 0:1])
        result = nl.ndarray((rows, 1), dtype=a.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=result, data=left, op0=nl.add, operand0=right)
        nisa.dma_copy(dst=out[part, 0:1], src=result)
    return out


@nki.jit
def add_tiles(a, b, width=1000):
    """a + b, vectors as [128, n / 128] in tiles of `width` columns."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for start in range(0, a.shape[1], width):
        part = slice(start, start + width)
        left = nl.ndarray((P, width), dtype=a.dtype, buffer=nl.sbuf)
        right = nl.ndarray((P, width), dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=a[:, part])
        nisa.dma_copy(dst=right, src=b[:, part])
        result = nl.ndarray((P, width), dtype=a.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=result, data1=left, data2=right, op=nl.add)
        nisa.dma_copy(dst=out[:, part], src=result)
    return out


@nki.jit
def silu(x, width=3584):
    """x · sigmoid(x) of a matrix, in tiles of 128 rows and `width` columns."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], P):
        for column in range(0, x.shape[1], width):
            part = (slice(row, row + P), slice(column, column + width))
            tile = nl.ndarray((P, width), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[part])
            result = nl.ndarray((P, width), dtype=x.dtype, buffer=nl.sbuf)
            nisa.activation(dst=result, op=nl.silu, data=tile)
            nisa.dma_copy(dst=out[part], src=result)
    return out
