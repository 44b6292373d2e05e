"""How DMA transfers are cut into descriptors and spread over the engines."""

import pytest

from opentrn.hw import chip
from opentrn.isa import dge_mode
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


def issued_on(name, source, target, mode):
    """Engine that issues a copy, ns it is busy with that, ns from its wait to the first byte."""
    move = make(dma_copy, name, dst=target, src=source, dge_mode=mode).move
    return move.issuer, move.issue_ns, move.issue_ns + move.start_ns


@pytest.mark.parametrize("name", ["trn1", "trn2", "trn3"])
def test_who_makes_the_descriptors_pays_for_them(name):
    dma = chip(name).dma
    rows, held = hbm(128, 512, run=128 * 512), tile(128, 512, t=BF16, run=512)
    load = issued_on(name, rows, held, dge_mode.swdge)
    store = issued_on(name, held, rows, dge_mode.swdge)
    assert (load[0], store[0]) == ("gpsimd", "gpsimd")
    assert load[1] == store[1] == pytest.approx(dma.swdge_issue * 1e9)
    assert store[2] == pytest.approx(1950.0)
    assert load[2] == pytest.approx(1950.0 + 406.0)  # its first packet waits for descriptors
    known = issued_on(name, rows, held, dge_mode.none)
    assert known == ("sync", pytest.approx(dma.static_issue * 1e9), pytest.approx(1300.0))
    if dma.hwdge:
        hardware = issued_on(name, rows, held, dge_mode.hwdge)
        assert hardware == ("sync", pytest.approx(600.0), pytest.approx(1300.0))
