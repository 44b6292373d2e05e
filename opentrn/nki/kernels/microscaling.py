"""Products of matrices in MX formats: 8- or 4-bit floats, 32 of which share a power of two.

OCP Microscaling Formats (MX) Specification 1.0; the layout on the chip is that of `isa.mx`: four
numbers that follow each other along the contraction are a word of one partition, and the scales of
a quadrant of 32 partitions lie in its first four.
"""

import functools
from collections.abc import Callable
from typing import Any

from opentrn.base import UnsupportedError, declare
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.tiles import cover, spans
from opentrn.nki.session import current_chip

MX = declare(
    "nki.mx",
    "A product of MX formats (blocks of 32 with a shared scale) was asked of a chip without them.",
    rule="nc_matmul_mx exists from NeuronCore-v4 (trn3) on",
    fix="target trn3; or dequantise: (values.bfloat16() * scale of each 32) and multiply these",
)
FIRST = 4
"""The first generation of cores with MX products."""
ELEMENTS = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
BLOCK, PACK, QUADRANT, SCALES = 32, 4, 32, 4
ONE = 127
"""The byte of a scale of 1."""
COLUMNS = 512
"""Columns of a result of float32 that fit a bank of PSUM."""


@functools.cache
def matmul_mx(left: str, right: str) -> Callable:
    """The kernel that multiplies matrices of these element formats: x · yᵀ as float32 [M, N].

    It takes the bytes of x [M, K] and y [N, K] (two numbers a byte for fp4, the first in the low
    half) as uint8, and the bytes of their scales [M, K/32] and [N, K/32]; K is a multiple of 32.
    Raises UnsupportedError `nki.mx` on chips without such products."""

    @jit
    def matmul_mx(x, y, x_scale, y_scale):
        refuse_mx(current_chip())
        m, n, blocks = x.shape[0], y.shape[0], x_scale.shape[1]
        out = nl.ndarray((m, n), nl.float32, buffer=nl.shared_hbm)
        lefts, rights = _words(x, left), _words(y, right)
        for rows in spans(m, nl.tile_size.pmax):
            kept = [_loaded(lefts, x_scale, rows, part) for part in _parts(blocks)]
            for columns in spans(n, COLUMNS):
                _tile(out, kept, rights, y_scale, rows, columns)
        return out

    return matmul_mx


def refuse_mx(chip: Any) -> None:
    """UnsupportedError `nki.mx` for a chip without MX products."""
    if chip.generation < FIRST:
        raise UnsupportedError(f"{chip.name} has no products of MX formats", code=MX)


def _parts(blocks: int) -> list[tuple[int, int]]:
    """Blocks of 32 numbers that are multiplied at once: 8 partitions for each."""
    return list(spans(blocks, nl.tile_size.pmax * PACK // BLOCK))


def _words(bytes_: Any, element: str) -> Any:
    """Bytes in HBM as words of four numbers."""
    return bytes_.view(getattr(nl, f"{element}_x4"))


def _loaded(words: Any, scales: Any, rows: tuple[int, int], blocks: tuple[int, int]) -> tuple:
    """Some rows of a matrix with the words of these blocks along partitions, and their scales.

    Whole quadrants are multiplied and columns come in pairs: what is more is zero."""
    (first, last), count = rows, rows[1] - rows[0]
    quadrants = cover((blocks[1] - blocks[0]) * BLOCK // PACK, QUADRANT)
    shape = quadrants * QUADRANT, count + count % 2
    whole = shape == ((blocks[1] - blocks[0]) * BLOCK // PACK, count)
    plain = nl.uint32 if words.dtype != nl.float4_e2m1fn_x4 else nl.uint16
    raw = nl.ndarray(shape, plain, buffer=nl.sbuf)
    held = nl.ndarray(shape, nl.uint8, buffer=nl.sbuf)
    if not whole:
        nisa.memset(raw, 0)
        nisa.memset(held, ONE)
    tile, begin = raw.view(words.dtype), blocks[0] * BLOCK // PACK
    end = blocks[1] * BLOCK // PACK
    nisa.dma_copy(tile[0 : end - begin, 0:count], words[first:last, begin:end].permute((1, 0)))
    for place, (low, high) in enumerate(spans(blocks[1] - blocks[0], SCALES)):
        part = scales[first:last, blocks[0] + low : blocks[0] + high].permute((1, 0))
        row = place * QUADRANT
        nisa.dma_copy(held[row : row + high - low, 0:count], part)
    return tile, held


def _tile(out: Any, kept: list[tuple], words: Any, scales: Any, rows: tuple[int, int],
          columns: tuple[int, int]) -> None:  # fmt: skip
    """One tile of the result, summed over all blocks in PSUM."""
    m, n = rows[1] - rows[0], columns[1] - columns[0]
    total = nl.ndarray((m + m % 2, n + n % 2), nl.float32, buffer=nl.psum)
    for (left, left_scale), part in zip(kept, _parts(scales.shape[1]), strict=True):
        right, right_scale = _loaded(words, scales, columns, part)
        nisa.nc_matmul_mx(total, left, right, left_scale, right_scale)
    done = nl.ndarray((m, n), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(done, total[0:m, 0:n])
    nisa.dma_copy(out[rows[0] : rows[1], columns[0] : columns[1]], done)


__all__ = ["ELEMENTS", "MX", "matmul_mx", "refuse_mx"]
