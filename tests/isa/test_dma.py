"""How DMA transfers are cut into descriptors and spread over the engines."""

import pytest

from opentrn.hw import chip
from opentrn.isa.dma import dma_copy, dma_transpose
from tests.isa.vector_forms import BF16, make, tile

DMA = chip("trn2").dma


def hbm(*shape, run, t=BF16):
    return tile(*shape, t=t, space="hbm", run=run)


def nanoseconds(count, nbytes, rate=1.0):
    """Time of one engine for so many descriptors of so many bytes."""
    return count * (DMA.descriptor + nbytes / (DMA.engine_rate * rate)) * 1e9


def test_a_dense_copy_in_hbm_is_cut_into_pieces_for_all_engines():
    size = 16 << 15
    move = make(dma_copy, dst=hbm(size, run=size), src=hbm(size, run=size)).move
    assert (move.descriptors, move.descriptor_bytes, move.engines) == (16, 65536, 16)
    assert move.busy_ns == pytest.approx(nanoseconds(1, 65536))
    twice = make(dma_copy, dst=hbm(2 * size, run=2 * size), src=hbm(2 * size, run=2 * size)).move
    assert twice.busy_ns == pytest.approx(nanoseconds(2, 65536))


def test_a_tile_takes_one_descriptor_for_each_row():
    rows = hbm(128, 512, run=128 * 512)
    move = make(dma_copy, dst=tile(128, 512, t=BF16, run=512), src=rows).move
    assert (move.descriptors, move.descriptor_bytes, move.engines) == (128, 1024, 16)
    assert move.busy_ns == pytest.approx(nanoseconds(8, 1024))


def test_scattered_elements_take_a_descriptor_each():
    columns = hbm(128, 512, run=1)
    move = make(dma_copy, dst=tile(128, 512, t=BF16, run=512), src=columns).move
    assert (move.descriptors, move.descriptor_bytes) == (128 * 512, 2)


def test_a_transpose_reads_row_by_row():
    source, target = hbm(256, 128, run=256 * 128), tile(128, 256, t=BF16, run=256)
    move = make(dma_transpose, dst=target, src=source).move
    assert (move.descriptors, move.descriptor_bytes, move.engines) == (256, 256, 16)
    assert move.busy_ns == pytest.approx(nanoseconds(16, 256, DMA.transpose_rate))
