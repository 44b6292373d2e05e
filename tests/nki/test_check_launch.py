"""Checks of every program instance of a launch, of both languages, and of orders that are luck."""

import numpy as np
import pytest

from opentrn import nki
from opentrn.nki import Shaped, beta1, check
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.beta1 import language as ol
from tests.nki.tiles import applied

TILE = Shaped(nl.float32, (128, 64))


def codes(found):
    return [one.code for one in found]


def halves(a, rows=64, ordered=False, extra=False):
    """Each core doubles 64 rows; then core 0 reads a row of core 1."""
    me = nl.program_id(0)
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm, name="out")
    mine = nl.ds(me * 64, rows)
    nl.store(out[mine, :], nl.multiply(nl.load(a[mine, :]), 2.0))
    if ordered:
        nisa.core_barrier(out, (0, 1))
    if extra and me == 0:
        nisa.core_barrier(out, (0, 1))
    last = nl.ndarray((1, 64), nl.float32, buffer=nl.shared_hbm, name="last")
    if me == 0:
        nl.store(last, nl.load(out[127:128, :]))
    return out, last


def test_a_check_of_two_cores_sees_both():
    found = check(halves, "trn2", {"a": TILE, "ordered": True}, grid=2)
    assert (found.status, found.complete) == ("clean", True)
    assert found.instructions == 2 * 4 + 2
    alone = check(halves, "trn2", {"a": TILE, "ordered": False}, grid=1)
    assert codes(alone.findings)[:1] == ["sim.uninitialised"]


def test_a_race_of_two_cores_is_found_without_running():
    found = check(halves, "trn2", {"a": TILE}, grid=2)
    # In the other order of the two, core 0 reads what nobody has written.
    assert codes(found.findings) == ["nki.core_race", "sim.uninitialised"]
    assert "core 0 reads" in found.findings[0].what
    assert "core 1 writes" in found.findings[0].what
    x = np.ones((128, 64), np.float32)
    run = nki.run(nki.jit(halves)[2], x)
    assert codes(run.findings).count("nki.core_race") == 1


def test_rows_that_no_core_writes_are_told_once():
    found = check(halves, "trn2", {"a": TILE, "rows": 32, "ordered": True}, grid=2)
    assert "output `out`: 50.0% unwritten" in [f.what for f in found.findings]


def test_cores_that_meet_a_different_number_of_times_wait_for_ever():
    found = check(halves, "trn2", {"a": TILE, "ordered": True, "extra": True}, grid=2)
    assert codes(found.refusals) == ["sim.deadlock"]
    assert "core 1 has ended" in found.refusals[0].what


def test_a_refusal_of_the_second_core_alone_is_found():
    def kernel(a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(a))
        if nl.program_id(0) == 1:
            nisa.tensor_copy(nl.ndarray((128, 64), nl.float32), a)
        return out

    assert check(kernel, "trn2", {"a": TILE}).status == "clean"
    assert codes(check(kernel, "trn2", {"a": TILE}, grid=2).refusals) == ["tensor_copy.src"]


@pytest.mark.parametrize(("target", "grid"), [("trn1", 2), ("trn2", 3), ("trn2", (2, 2))])
def test_more_cores_than_there_are(target, grid):
    assert codes(check(halves, target, {"a": TILE}, grid=grid).refusals) == ["nki.cores"]


def test_the_grid_of_the_kernel_itself_counts():
    assert check(nki.jit(halves)[2], "trn2", {"a": TILE, "ordered": True}).status == "clean"


@beta1.jit
def squares(a):
    """One tile of 128 rows for each program instance, stored by the older language."""
    out = ol.ndarray(a.shape, dtype=a.dtype, buffer=ol.shared_hbm)
    row = ol.program_id(0) * 128 + ol.arange(128)[:, None]
    column = ol.arange(64)[None, :]
    tile = ol.load(a[row, column])
    ol.store(out[row, column], tile * tile)
    return out


def test_kernels_of_the_older_language_are_checked_with_their_grid():
    rows = Shaped(nl.float32, (512, 64))
    found = check(squares[4], "trn2", {"a": rows})
    assert (found.status, found.complete, found.instructions) == ("clean", True, 4 * 3)
    half = check(squares, "trn2", {"a": rows}, grid=2)
    assert [f.what for f in half.findings] == ["output `output 0`: 50.0% unwritten"]
    beyond = check(squares, "trn2", {"a": rows}, grid=5)
    assert beyond.status == "refused"
    assert not beyond.complete
    x = np.arange(512 * 64, dtype=np.float32).reshape(512, 64)
    np.testing.assert_array_equal(squares[4](x), x * x)


def test_refusals_of_the_older_language_have_their_line():
    @beta1.jit
    def kernel(a):
        tile = ol.load(a)
        ol.store(a, ol.matmul(tile, tile, transpose_x=True))

    found = check(kernel, "trn2", {"a": Shaped(nl.float32, (128, 600))})
    assert found.status == "refused"
    assert "ol.matmul" in found.refusals[0].at.text


# ------------------------------------------------------------------- order, not luck


def in_order(x, engines="two", ordered=True):
    tile = nl.load(x)
    second = nisa.engine.scalar if engines == "one" else nisa.engine.vector

    if ordered:
        with nl.no_reorder():
            both(tile, second)
    else:
        both(tile, second)
    return tile


def both(tile, second):
    nisa.activation(dst=tile, op=nl.exp, data=tile)
    nisa.tensor_copy(dst=tile, src=tile, engine=second)


X = np.zeros((4, 4), np.float32)


def test_two_engines_on_one_tile_in_a_no_reorder_block():
    def kernel(x, engines, ordered):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, in_order(x, engines, ordered))
        return out

    run = nki.run(kernel, X, "two", True)
    assert (run.outputs == 1).all()  # the number comes out right
    assert codes(run.findings) == ["nki.unordered_pair"]
    told = run.findings[0].what
    assert "activation on scalar writes it" in told
    assert "tensor_copy on vector reads it" in told
    given = {"x": Shaped(nl.float32, (4, 4)), "engines": "two", "ordered": True}
    assert codes(check(kernel, "trn2", given).findings) == ["nki.unordered_pair"]
    assert nki.run(kernel, X, "one", True).findings == ()
    assert nki.run(kernel, X, "two", False).findings == ()


def test_separate_parts_and_reads_alone_are_no_pair():
    def apart(tile):
        left, right = nl.copy(tile), nl.copy(tile)
        with nl.no_reorder():
            nisa.activation(dst=left[:, 0:2], op=nl.exp, data=tile[:, 0:2])
            nisa.tensor_scalar(dst=left[:, 2:4], data=tile[:, 2:4], op0=nl.add, operand0=1.0)
            nisa.tensor_scalar(dst=right, data=tile, op0=nl.add, operand0=1.0)
        return nl.multiply(left, right)

    assert (applied(apart, X) == 1).all()
