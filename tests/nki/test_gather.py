"""Addresses known at run time: gathers, scatters, and what happens outside the tensor."""

import ml_dtypes
import numpy as np
import pytest

from opentrn import nki
from opentrn.base import BoundsError, TrnError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.sim import Replay
from tests.nki.tiles import BF16

TABLE = np.arange(50 * 7, dtype=np.float32).reshape(50, 7)


def column(*rows):
    return np.array(rows, np.int32).reshape(-1, 1)


def gather(table, rows, mode=nisa.oob_mode.error, fill=-1):
    """out[p] = table[rows[p]]; rows outside stay `fill` where they are skipped."""
    count, width = rows.shape[0], table.shape[1]
    out = nl.ndarray((count, width), table.dtype, buffer=nl.shared_hbm)
    index, t = nl.load(rows), nl.full((count, width), fill, table.dtype)
    source = table.ap([[width, count], [1, width]], vector_offset=index, indirect_dim=0)
    nisa.dma_copy(t, source, oob_mode=mode)
    nisa.dma_copy(out, t)
    return out


def scatter(values, rows, height, mode=nisa.oob_mode.error):
    """out[rows[p]] = values[p] over zeros."""
    count, width = values.shape
    out = nl.zeros((height, width), values.dtype, buffer=nl.shared_hbm)
    index, t = nl.load(rows), nl.load(values)
    target = out.ap([[width, count], [1, width]], vector_offset=index, indirect_dim=0)
    nisa.dma_copy(target, t, oob_mode=mode)
    return out


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int16, np.uint8])
def test_rows_are_gathered(dtype):
    rows = column(3, 49, 0, 3, 17)
    fill = 255 if dtype is np.uint8 else -1  # -1 is no uint8, which would be noticed
    run = nki.run(gather, (TABLE % 200).astype(dtype), rows, fill=fill)
    assert np.array_equal(run.outputs, (TABLE % 200).astype(dtype)[rows[:, 0]])
    assert run.findings == ()


def test_vector_select_is_the_same_gather():
    def kernel(table, rows):
        out = nl.ndarray((4, 7), table.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((4, 7), table.dtype)
        nisa.dma_copy(t, table.vector_select(0, nl.load(rows)))
        nisa.dma_copy(out, t)
        return out

    rows = column(9, 9, 48, 1)
    assert np.array_equal(nki.run(kernel, TABLE, rows).outputs, TABLE[rows[:, 0]])


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int16])
def test_rows_are_scattered_and_the_last_of_equal_ones_stays(dtype):
    values = np.arange(6 * 5).reshape(6, 5).astype(dtype) + dtype(1)
    rows = column(4, 0, 4, 9, 0, 4)
    wanted = np.zeros((10, 5), dtype)
    for row, value in zip(rows[:, 0], values, strict=True):
        wanted[row] = value
    run = nki.run(scatter, values, rows, 10)
    assert np.array_equal(run.outputs, wanted)
    replay = Replay(run.program, run.chip)
    again = column(1, 2, 3, 3, 2, 1)
    wanted = np.zeros((10, 5), dtype)
    for row, value in zip(again[:, 0], values, strict=True):
        wanted[row] = value
    assert np.array_equal(replay([values, again])[0], wanted)


def test_single_elements_are_gathered_and_scattered():
    def kernel(flat, rows):
        out = nl.zeros((20,), flat.dtype, buffer=nl.shared_hbm)
        index, t = nl.load(rows), nl.ndarray((4, 1), flat.dtype)
        nisa.dma_copy(t, flat.ap([[1, 4], [1, 1]], vector_offset=index, indirect_dim=0))
        nisa.dma_copy(out.ap([[1, 4], [1, 1]], vector_offset=index, indirect_dim=0), t)
        return out

    flat, rows = np.arange(100, 120, dtype=np.float32), column(19, 3, 0, 7)
    wanted = np.where(np.isin(np.arange(20), rows), flat, 0)
    assert np.array_equal(nki.run(kernel, flat, rows).outputs, wanted)


@pytest.mark.parametrize("bad", [50, -1, 2**31 - 1])
def test_an_index_outside_raises_at_the_kernels_line(bad):
    with pytest.raises(BoundsError) as caught:
        nki.run(gather, TABLE, column(3, bad))
    error = caught.value
    assert (error.code, error.neuron) == ("sim.dynamic_bounds", "NRT_EXEC_OOB 1006")
    assert str(bad) in error.what
    assert "0 to 49" in error.what
    assert error.at.file == __file__
    assert error.at.text == "nisa.dma_copy(t, source, oob_mode=mode)"


def test_an_index_outside_raises_at_the_kernels_line_in_a_replay_too():
    run = nki.run(gather, TABLE, column(3, 4))
    with pytest.raises(BoundsError) as caught:
        Replay(run.program, run.chip)([TABLE, column(3, 50)])
    assert caught.value.at.text == "nisa.dma_copy(t, source, oob_mode=mode)"


def test_skipped_rows_stay_as_they_were():
    rows = column(3, 50, -1, 7)
    run = nki.run(gather, TABLE, rows, mode=nisa.oob_mode.skip)
    assert np.array_equal(run.outputs[[0, 3]], TABLE[[3, 7]])
    assert (run.outputs[1:3] == -1).all()
    again = Replay(run.program, run.chip)
    for given in (rows, column(1, 2, 3, 99), column(99, 99, 99, 99), column(0, 1, 2, 3)):
        wanted = np.where(given < 50, TABLE[np.minimum(given[:, 0], 49) % 50], -1)
        wanted = np.where(given < 0, -1, wanted)
        assert np.array_equal(again([TABLE, given])[0], wanted)


def test_skipped_rows_of_a_scatter_write_nothing():
    values = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    run = nki.run(scatter, values, column(1, 9, 3, -2), 5, mode=nisa.oob_mode.skip)
    wanted = np.zeros((5, 2), np.float32)
    wanted[1], wanted[3] = values[0], values[2]
    assert np.array_equal(run.outputs, wanted)
    run = nki.run(scatter, values, column(9, 9, 9, 9), 5, mode=nisa.oob_mode.skip)
    assert (run.outputs == 0).all()


@pytest.mark.parametrize("mode", [nisa.oob_mode.error, nisa.oob_mode.skip])
def test_a_scalar_offset_outside_raises_or_moves_nothing(mode):
    def kernel(x, where):
        out = nl.zeros((4, 7), x.dtype, buffer=nl.shared_hbm)
        at, t = nisa.register_alloc(nl.load(where)), nl.full((1, 7), -1.0, x.dtype)
        nisa.dma_copy(t, x.ap([[7, 1], [1, 7]], scalar_offset=at), oob_mode=mode)
        nisa.dma_copy(out[0:1], t)
        nisa.dma_copy(out.ap([[7, 1], [1, 7]], scalar_offset=at), t, oob_mode=mode)
        return out

    found = nki.run(kernel, TABLE, column(2)).outputs
    assert np.array_equal(found[[0, 2]], TABLE[[2, 2]])
    if mode is nisa.oob_mode.error:
        with pytest.raises(BoundsError):
            nki.run(kernel, TABLE, column(60))
    else:
        found = nki.run(kernel, TABLE, column(60)).outputs
        assert (found[0] == -1).all()
        assert (found[1:] == 0).all()


def test_an_unused_index_beyond_the_rows_does_not_matter():
    def kernel(table, rows):
        out = nl.ndarray((2, 7), table.dtype, buffer=nl.shared_hbm)
        index, t = nl.load(rows), nl.ndarray((2, 7), table.dtype)
        nisa.dma_copy(t, table.ap([[7, 2], [1, 7]], vector_offset=index))
        nisa.dma_copy(out, t)
        return out

    assert np.array_equal(nki.run(kernel, TABLE, column(5, 6, 999)).outputs, TABLE[5:7])


def test_a_gather_by_an_index_nobody_wrote_is_found():
    def kernel(table):
        out = nl.ndarray((4, 7), table.dtype, buffer=nl.shared_hbm)
        index, t = nl.ndarray((4, 1), nl.int32, name="rows"), nl.ndarray((4, 7), table.dtype)
        nisa.memset(index[0:1], 0)
        nisa.dma_copy(t, table.vector_select(0, index), oob_mode=nisa.oob_mode.skip)
        nisa.dma_copy(out, nl.where(nl.equal(t, t), t, 0.0))
        return out

    run = nki.run(kernel, TABLE)
    assert run.findings[0].code == "sim.uninitialised"
    assert "rows" in run.findings[0].what


@pytest.mark.parametrize(("count", "columns"), [(128, 1), (256, 2), (240, 2), (384, 3)])
def test_a_gathered_transpose_takes_the_columns_of_its_index_in_turn(count, columns):
    """flat = index.T.flatten()[:count]; dst = src[flat].T (NKI ISA reference, dma_transpose)."""
    width = 32

    def kernel(table, index):
        turned = nl.ndarray((width, count), table.dtype, buffer=nl.sbuf)
        rows = nl.load(index)
        source = table.ap([[width, count], [1, width]], vector_offset=rows, indirect_dim=0)
        nisa.dma_transpose(turned, source, axes=(1, 0))
        out = nl.ndarray((width, count), table.dtype, buffer=nl.shared_hbm)
        nl.store(out, turned)
        return out

    draw = np.random.default_rng(columns)
    table = draw.integers(-100, 100, (512, width)).astype(ml_dtypes.bfloat16)
    index = draw.integers(0, 512, (128, columns)).astype(np.uint32)
    flat = index.T.flatten()[:count]
    found = nki.simulate(kernel)(table, index)
    np.testing.assert_array_equal(found.astype(float), table[flat].T.astype(float))


def test_a_copy_gathers_by_one_column_of_an_index():
    def kernel(table, index):
        t, rows = nl.ndarray((128, 8), table.dtype), nl.load(index)
        nisa.dma_copy(t, table.ap([[8, 128], [1, 8]], vector_offset=rows, indirect_dim=0))
        return t

    with pytest.raises(TrnError, match="one column") as caught:
        nki.run(kernel, np.ones((512, 8), np.float32), np.zeros((128, 2), np.uint32))
    assert caught.value.code == "dma_copy.rules"
