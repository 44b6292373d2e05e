"""Cases that users of the chip reported, small, with the values and refusals that are right.

TC-03, 05, 07, 08 and 13 have tests beside the part they are about (test_room, test_instructions,
test_composites, test_findings, test_check_launch, tests/isa), TC-14 and 16 in tests/profiler.
"""

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import BoundsError, LimitError, ShapeError, UnwrittenError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl

TARGETS = pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
X = np.ones((256, 512), np.float32)


def stored(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


@TARGETS
@pytest.mark.parametrize("shape", [(256, 512), (256, 1)])
def test_tc01_more_partitions_than_the_chip_has(target, shape):
    def kernel(x):
        tile = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[:, 0 : shape[1]])
        return x

    with nki.use_target(target), pytest.raises(ShapeError) as caught:
        nki.run(kernel, X)
    text = str(caught.value)
    assert "256 partitions" in text
    assert "at most 128" in text
    assert caught.value.at.text == "tile = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)"


@TARGETS
@pytest.mark.parametrize(
    ("count", "start", "fine"),
    [(48, 32, 0), (48, 64, 1), (36, 48, 0), (32, 96, 1), (33, 96, 0), (65, 64, 0), (128, 0, 1)],
)
def test_tc02_where_partitions_may_start(target, count, start, fine):
    def kernel(x):
        tile = nl.full((128, 4), 0.0, nl.float32)
        nisa.memset(tile[start : start + count, :], 1.0)
        return stored(tile)

    with nki.use_target(target):
        if fine:
            wanted = np.zeros((128, 4))
            wanted[start : start + count] = 1
            np.testing.assert_array_equal(nki.run(kernel, X).outputs, wanted)
            return
        with pytest.raises((LimitError, BoundsError)) as caught:
            nki.run(kernel, X)
    inside = start + count <= 128
    assert caught.value.code == ("memset.start_partition" if inside else "view.index")
    if inside:
        assert "33 to 64 from 0 or 64" in caught.value.rule
        assert "up to 32 from 0, 32, 64 or 96" in caught.value.rule


@TARGETS
def test_tc02_the_dma_starts_anywhere(target):
    def kernel(x):
        tile = nl.full((128, 4), 0.0, nl.float32)
        nisa.dma_copy(dst=tile[36:84, :], src=x[0:48, 0:4])
        return stored(tile)

    with nki.use_target(target):
        found = nki.run(kernel, X).outputs
    assert found[:36].sum() == found[84:].sum() == 0
    assert (found[36:84] == 1).all()


def twice(x, accumulate=None):
    """Two products of ones, 128 deep, in one PSUM tile."""
    w, m = nl.full((128, 128), 1.0, nl.float32), nl.full((128, 512), 1.0, nl.float32)
    acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum, name="acc")
    nisa.nc_matmul(dst=acc, stationary=w, moving=m, accumulate=accumulate)
    nisa.nc_matmul(dst=acc, stationary=w, moving=m)
    return stored(nl.copy(acc))


@TARGETS
def test_tc11_the_first_touch_overwrites_and_the_next_adds(target):
    def overlapping(x):
        one, ones = nl.full((1, 1), 1.0, nl.float32), nl.full((1, 4), 1.0, nl.float32)
        row = nl.ndarray((1, 6), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=row[:, 0:4], stationary=one, moving=ones)
        nisa.nc_matmul(dst=row[:, 2:6], stationary=one, moving=ones)
        return stored(nl.copy(row))

    with nki.use_target(target):
        assert nki.run(overlapping, X).outputs.tolist() == [[1, 1, 2, 2, 1, 1]]
        assert (nki.run(twice, X).outputs == 256).all()
        with pytest.raises(UnwrittenError) as caught:
            nki.run(twice, X, True)
    assert "`acc`" in caught.value.what


def product(w, v, names=()):
    stationary, moving = nl.load(w), nl.load(v)
    if names:
        nki.name_axes(stationary, *names[0])
        nki.name_axes(moving, *names[1])
    acc = nl.ndarray((2, 1), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=stationary[:, 0:2], moving=moving)
    return stored(nl.copy(acc))


W, V = np.float32([[1, 2], [3, 4]]), np.float32([[1], [0]])


def test_tc12_a_matmul_contracts_the_partitions():
    assert nki.run(product, W, V).outputs.ravel().tolist() == [1, 2]  # Wᵀ v, not W v = [1, 3]


def test_tc12_named_axes_tell_a_contraction_over_the_wrong_one():
    fine = (("in", "out"), ("in", "batch"))
    assert nki.run(product, W, V, fine).outputs.ravel().tolist() == [1, 2]
    with pytest.raises(ShapeError) as caught:
        nki.run(product, W, V, (("out", "in"), ("in", "batch")))
    assert "stationary partition axis 'out' != moving partition axis 'in'" in caught.value.what
    assert caught.value.at.text.startswith("nisa.nc_matmul(dst=acc")
    with pytest.raises(ValueError, match="1 names for 2 axes"):
        nki.run(product, W, V, (("in",), ("in", "batch")))


@TARGETS
def test_tc10_the_places_of_eight_values(target):
    def kernel(data, values):
        found = nl.ndarray((1, 8), nl.uint32)
        nisa.nc_find_index8(dst=found, data=nl.load(data), vals=nl.load(values))
        return stored(found)

    data, values = np.float32([[5, 3, 5, 1, 0, 0, 0, 0]]), np.float32([[5, 5, 3, 1, 9, 9, 9, 9]])
    with nki.use_target(target):
        found = nki.run(kernel, data, values).outputs
    assert found.tolist() == [[0, 2, 1, 3, *[0xFFFFFFFF] * 4]]


def test_tc20_an_output_never_written_and_an_input_written_in_place():
    def silent(x):
        return nl.ndarray((4, 4), nl.float32, buffer=nl.shared_hbm, name="o")

    with pytest.raises(UnwrittenError, match="output `o`: 100% unwritten"):
        nki.run(silent, X)

    def in_place(x):
        tile = nl.load(x[0:128, :])
        nl.store(x[0:128, :], nl.multiply(tile, 2.0))
        return stored(tile)

    run = nki.run(in_place, X.copy())
    assert [f.code for f in run.findings] == ["sim.mutated_input"]
    assert "written in place and not returned" in run.findings[0].what


@pytest.mark.parametrize(("target", "fine"), [("trn1", 0), ("trn2", 0), ("trn3", 1)])
def test_tc21_which_dtypes_a_matmul_takes_and_gives(target, fine):
    def kernel(x, left, right, result):
        a, b = nl.full((16, 16), 1.0, left), nl.full((16, 16), 1.0, right)
        acc = nl.ndarray((16, 16), result, buffer=nl.psum)
        nisa.nc_matmul(dst=acc, stationary=a, moving=b)
        return stored(nl.copy(acc))

    with nki.use_target(target):
        assert (nki.run(kernel, X, nl.bfloat16, nl.bfloat16, nl.float32).outputs == 16).all()
        if fine:
            narrow = nki.run(kernel, X, nl.bfloat16, nl.bfloat16, nl.bfloat16).outputs
            assert (narrow.astype(np.float32) == 16).all()
            with pytest.raises(LimitError, match="float8_e4m3 and float8_e4m3fn do not mix"):
                nki.run(kernel, X, nl.float8_e4m3, nl.float8_e4m3fn, nl.float32)
            return
        with pytest.raises(LimitError, match=f"`dst` must be float32 on {target}"):
            nki.run(kernel, X, nl.bfloat16, nl.bfloat16, nl.bfloat16)
        with pytest.raises(TypeError, match="NCC_EVRF051"):
            nki.run(kernel, X, nl.float8_e4m3fn, nl.float8_e4m3fn, nl.float32)
