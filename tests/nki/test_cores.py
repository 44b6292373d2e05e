"""Launches on two cores: shared memory, barriers, exchanges, races, deadlocks."""

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import LimitError, NotBuiltError, OrderError, ShapeError, TrnError, UsageError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl


@nki.jit
def swap_halves(x):
    """Each core adds the other's half to its own and writes its part of the output."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    me, count = nl.program_id(0), nl.num_programs(0)
    height = x.shape[0] // count
    mine = nl.load(x[nl.ds(me * height, height), :])
    theirs = nl.ndarray(mine.shape, mine.dtype)
    nisa.sendrecv(mine, theirs, 1 - me, 1 - me, 0)
    nl.store(out[nl.ds(me * height, height), :], nl.add(mine, theirs))
    nisa.core_barrier(out, (0, 1))
    return out


def test_two_cores_exchange_tiles_and_share_the_output():
    x = np.arange(64 * 4, dtype=np.float32).reshape(64, 4)
    run = nki.run(swap_halves[2], x)
    assert np.array_equal(run.outputs, np.concatenate([x[:32] + x[32:]] * 2))
    assert run.findings == ()
    assert len(run.programs) == 2
    for program in run.programs:
        assert program.counts()["sendrecv"] == program.counts()["core_barrier"] == 1


def test_what_one_core_wrote_the_other_reads_behind_the_barrier():
    @nki.jit
    def relay(x):
        out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        if me == 0:
            nl.store(out[0], nl.add(nl.load(x), 1.0))
        nisa.core_barrier(out, (0, 1))
        if me == 1:
            nl.store(out[1], nl.multiply(nl.load(out[0]), 2.0))
        return out

    x = np.full((4, 3), 5.0, np.float32)
    run = nki.run(relay[2], x)
    assert np.array_equal(run.outputs, np.stack([np.full((4, 3), 6.0), np.full((4, 3), 12.0)]))
    assert run.findings == ()


def test_a_barrier_may_name_a_tile_and_refuses_other_cores_than_the_two():
    @nki.jit
    def relay(x, cores):
        out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        if nl.program_id(0) == 0:
            nl.store(out[0], nl.add(tile, 1.0))
        nisa.core_barrier(tile, cores)
        if nl.program_id(0) == 1:
            nl.store(out[1], nl.multiply(nl.load(out[0]), 2.0))
        return out

    x = np.full((4, 3), 5.0, np.float32)
    run = nki.run(relay[2], x, [0, 1])
    assert np.array_equal(run.outputs, np.stack([np.full((4, 3), 6.0), np.full((4, 3), 12.0)]))
    assert run.findings == ()
    for cores, said in ((0, "`cores` is (0,)"), ((0, 2), "`cores` is (0, 2)")):
        with pytest.raises(LimitError) as caught:
            nki.run(relay[2], x, cores)
        assert said in caught.value.rule


def test_an_unordered_write_and_read_is_a_race_with_both_lines():
    @nki.jit
    def race(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
        tile = nl.load(x)
        if nl.program_id(0) == 0:
            nl.store(out, tile)
        else:
            nl.load(out)
        return out

    (finding,) = nki.run(race[2], np.ones((4, 4), np.float32)).findings
    assert finding.code == "nki.core_race"
    assert "core 0 writes" in finding.what
    assert "nl.store(out, tile)" in finding.what
    assert "core 1 reads" in finding.what
    assert "nl.load(out)" in finding.what


def test_disjoint_writes_are_no_race():
    @nki.jit
    def rows(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        nl.store(out[nl.ds(me * 2, 2), :], nl.load(x[nl.ds(me * 2, 2), :]))
        return out

    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    run = nki.run(rows[2], x)
    assert np.array_equal(run.outputs, x)
    assert run.findings == ()


def test_a_barrier_only_one_core_reaches_is_a_deadlock_at_its_line():
    @nki.jit
    def alone(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        if nl.program_id(0) == 1:
            nisa.core_barrier(out, (0, 1))
        return out

    with pytest.raises(OrderError) as caught:
        nki.run(alone[2], np.ones((4, 4), np.float32))
    assert caught.value.code == "sim.deadlock"
    assert "core 0 has ended" in caught.value.what
    assert "core 1 waits in core_barrier" in caught.value.what
    assert "nisa.core_barrier(out, (0, 1))" in str(caught.value)


def test_cores_that_wait_in_different_meetings_are_a_deadlock():
    @nki.jit
    def crossed(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        if nl.program_id(0) == 0:
            nisa.core_barrier(out, (0, 1))
        else:
            nisa.sendrecv(tile, nl.ndarray(tile.shape, tile.dtype), 0, 0, 7)
        return out

    with pytest.raises(OrderError) as caught:
        nki.run(crossed[2], np.ones((4, 4), np.float32))
    assert "core 0 waits in core_barrier" in caught.value.what
    assert "core 1 waits in sendrecv 7" in caught.value.what


def test_an_error_of_one_core_ends_both_and_keeps_its_line():
    @nki.jit
    def broken(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        if nl.program_id(0) == 1:
            nl.ndarray((129, 1), nl.float32)
        nisa.core_barrier(out, (0, 1))
        return out

    with pytest.raises(ShapeError) as caught:
        nki.run(broken[2], np.ones((4, 4), np.float32))
    assert "nl.ndarray((129, 1), nl.float32)" in str(caught.value)


def test_exchanges_that_do_not_fit_are_refused():
    @nki.jit
    def unlike(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        width = 2 + nl.program_id(0)
        tile = nl.full((4, width), 1.0, nl.float32)
        nisa.sendrecv(tile, nl.ndarray(tile.shape, tile.dtype), *[1 - nl.program_id(0)] * 2, 0)
        return out

    with pytest.raises(OrderError) as caught:
        nki.run(unlike[2], np.ones((4, 4), np.float32))
    assert caught.value.code == "nki.exchange"


def test_shared_tensors_must_agree():
    @nki.jit
    def differ(x):
        return nl.zeros((4, 2 + nl.program_id(0)), nl.float32, buffer=nl.shared_hbm)

    with pytest.raises(OrderError) as caught:
        nki.run(differ[2], np.ones((4, 4), np.float32))
    assert caught.value.code == "nki.shared_tensors"


def test_a_logical_core_has_two_cores_on_trn2_and_one_on_trn1():
    x = np.ones((64, 4), np.float32)
    with pytest.raises(NotBuiltError, match="has 2"):
        nki.run(swap_halves[4], x)
    with nki.use_target("trn1"), pytest.raises(NotBuiltError, match="has 1"):
        nki.run(swap_halves[2], x)
    with pytest.raises(UsageError):
        swap_halves[0]


def test_a_gpsimd_exchange_carries_a_kilobyte_of_float32_at_most():
    @nki.jit
    def wide(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile, other = nl.load(x), 1 - nl.program_id(0)
        there = nl.ndarray(tile.shape, tile.dtype)
        nisa.sendrecv(tile, there, other, other, 0, nisa.dma_engine.gpsimd_dma)
        if nl.program_id(0) == 0:
            nl.store(out, there)
        return out

    x = np.ones((4, 256), np.float32)
    assert np.array_equal(nki.run(wide[2], x).outputs, x)
    with pytest.raises(TrnError, match="1024 bytes"):
        nki.run(wide[2], np.ones((4, 257), np.float32))


def test_runs_are_the_same_every_time():
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    first = nki.run(swap_halves[2], x)
    for _ in range(5):
        again = nki.run(swap_halves[2], x)
        assert np.array_equal(first.outputs, again.outputs)
        assert [p.counts() for p in first.programs] == [p.counts() for p in again.programs]


def test_both_cores_of_a_launch_are_timed_together():
    @nki.jit
    def relay(x):
        out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        if me == 0:
            nl.store(out[0], nl.add(nl.load(x), 1.0))
        nisa.core_barrier(out, (0, 1))
        if me == 1:
            nl.store(out[1], nl.multiply(nl.load(out[0]), 2.0))
        return out

    run = nki.run(relay[2], np.full((128, 512), 5.0, np.float32))
    first, second = run.timelines()
    stored = [k for k, one in enumerate(first.instructions) if one.opcode == "dma_copy"][-1]
    loaded = next(k for k, one in enumerate(second.instructions) if one.opcode == "dma_copy")
    # What core 0 stored, core 1 begins to load only behind the barrier.
    assert second.schedule.issue[loaded] >= first.visible[stored]
    assert run.timeline(1).total_ns == second.total_ns > first.total_ns


@pytest.mark.parametrize("meeting", ["core_barrier", "sendrecv"])
def test_one_core_meets_nobody(meeting):
    def kernel(x):
        t = nl.load(x)
        if meeting == "core_barrier":
            nisa.core_barrier(t, (0, 1))
        else:
            nisa.sendrecv(t, nl.ndarray(x.shape, x.dtype), 1, 1, 0)
        return t

    with pytest.raises(OrderError, match=f"{meeting} waits for another core") as caught:
        nki.run(kernel, np.ones((4, 4), np.float32))
    assert caught.value.code == "nki.exchange"
    assert f"nisa.{meeting}(" in str(caught.value)
