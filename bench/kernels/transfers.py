"""Transfers between HBM and SBUF of several shapes."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def load(x):
    """One DMA from HBM into SBUF, and a small one back so that there is an output."""
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    out = nl.ndarray((1, 1), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile[0:1, 0:1])
    return out


@nki.jit
def stream(x, width=512):
    """Load and store tiles [128, width] of `x`, one after the other, without any arithmetic."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, x.shape[1], width):
        part = slice(start, start + width)
        tile = nl.ndarray((x.shape[0], width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[:, part])
        nisa.dma_copy(dst=out[:, part], src=tile)
    return out


@nki.jit
def again(x, count=12):
    """The same load, `count` times, each into a tile of its own."""
    for _ in range(count):
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
    out = nl.ndarray((1, 1), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile[0:1, 0:1])
    return out
