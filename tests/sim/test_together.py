"""Launches on two cores in time: meetings, shared HBM, refusals, the compiled twin."""

import importlib.util

import numpy as np
import pytest

from opentrn.base import OrderError, UsageError, float32
from opentrn.isa import engine as engines
from opentrn.sim import timeline_together
from opentrn.sim.timeline import timeline
from tests.sim.programs import TRN2, Writer

SEMAPHORE = 36.0  # trn2 [semaphore] wait


def core(work: int, barriers: int = 1, exchange: bool = False):
    """`work` copies on the Vector Engine, then meetings, then one more copy."""
    w = Writer(TRN2)
    shared = w.buffer("hbm", (128, 64), float32)
    a, b = w.buffer("sbuf", (128, 512), float32), w.buffer("sbuf", (128, 512), float32)
    w.add("memset", dst=a, value=0.0, engine=engines.vector)
    for _ in range(work):
        w.copy(b, a, engine=engines.vector)
    for _ in range(barriers):
        w.add("core_barrier", data=shared, cores=(0, 1), engine=engines.vector)
    if exchange:
        w.add("sendrecv", src=a, dst=b, send_to_rank=1, recv_from_rank=1, pipe_id=0)
    w.copy(a, b, engine=engines.vector)
    return w.program()


def index_of(t, opcode: str) -> int:
    return next(k for k, one in enumerate(t.instructions) if one.opcode == opcode)


def test_the_early_core_waits_at_the_barrier_for_the_late_one():
    early, late = timeline_together((core(1), core(40)), TRN2)
    mine, theirs = index_of(early, "core_barrier"), index_of(late, "core_barrier")
    # Cores meet when the late one's engine has done its copies and their results are visible.
    arrival = late.visible[theirs - 1]
    assert early.start[mine] == pytest.approx(arrival + SEMAPHORE)
    assert early.binding[mine] == (-1, "core")
    told = {e.args["index"]: e.waited_for for e in early.trace().rows() if e.label != "issue"}
    assert told[mine] == "core: another core"
    assert late.start[theirs] <= early.start[mine]
    # Alone, the early core would not have waited.
    alone = timeline(core(1), TRN2)
    assert alone.start[mine] < 2000 < early.start[mine]
    assert early.start[mine + 1] >= early.end[mine]


def test_the_late_core_is_bound_by_its_own_work():
    _, late = timeline_together((core(1), core(40)), TRN2)
    steps = late.critical_path()
    assert steps[0].begin == 0.0
    assert steps[-1].end == late.total_ns
    assert len(steps) > 20


def test_an_exchange_waits_for_both_tiles():
    early, late = timeline_together((core(1, exchange=True), core(40, exchange=True)), TRN2)
    mine, theirs = index_of(early, "sendrecv"), index_of(late, "sendrecv")
    written = late.visible[index_of(late, "core_barrier") - 1]  # the last copy on the late core
    assert early.start[mine] >= written
    assert late.start[theirs] >= written


def streaming():
    """Eight loads of 4 MiB."""
    w = Writer(TRN2)
    source = w.buffer("hbm", (128, 8192), float32)
    w.builder.inputs = [source]
    for _ in range(8):
        w.load(w.buffer("sbuf", (128, 8192), float32), source)
    return w.program()


def test_cores_of_a_launch_share_the_bandwidth_of_their_hbm_stack():
    program, nbytes = streaming(), 8 * 4 * 2**20
    alone = timeline(program, TRN2)
    both = timeline_together((program, streaming()), TRN2)
    # Alone the DMA engines are the limit, 16 x 23 GB/s less descriptors; together the stack is.
    assert nbytes / alone.total_ns > 0.95 * 16 * 23
    span = max(t.total_ns for t in both)
    assert 2 * nbytes / span == pytest.approx(2.9e12 / 4 / 1e9, rel=0.02)
    assert max(t.total_ns for t in both) > alone.total_ns


def test_each_core_alone_is_as_its_own_timeline():
    program = core(3)
    (one,) = timeline_together((program,), TRN2)
    assert np.array_equal(one.start, timeline(program, TRN2).start)
    first, second = timeline_together((core(3, barriers=0), core(9, barriers=0)), TRN2)
    assert np.array_equal(first.start, timeline(core(3, barriers=0), TRN2).start)
    assert np.array_equal(second.visible, timeline(core(9, barriers=0), TRN2).visible)


def test_cores_that_do_not_meet_are_refused():
    with pytest.raises(OrderError, match="core 0 comes to 1 core_barrier, core 1 to 2"):
        timeline_together((core(1), core(1, barriers=2)), TRN2)
    with pytest.raises(OrderError, match="sendrecv of pipe 0"):
        timeline_together((core(1), core(1, exchange=True)), TRN2)
    with pytest.raises(UsageError):
        timeline_together((), TRN2)


def crossed(first: str):
    """Two exchanges on GpSimd, over pipe 0 and 1, in either order."""
    w = Writer(TRN2)
    for pipe in (0, 1) if first == "0" else (1, 0):
        a, b = w.buffer("sbuf", (128, 8), float32), w.buffer("sbuf", (128, 8), float32)
        w.add("memset", dst=a, value=0.0, engine=engines.vector)
        w.add("sendrecv", src=a, dst=b, send_to_rank=1, recv_from_rank=1, pipe_id=pipe)
    return w.program()


def test_cores_that_wait_for_each_other_are_refused():
    timeline_together((crossed("0"), crossed("0")), TRN2)
    with pytest.raises(OrderError, match="no core comes to"):
        timeline_together((crossed("0"), crossed("1")), TRN2)


def test_the_compiled_schedule_of_a_launch_is_the_same():
    if importlib.util.find_spec("numba") is None:
        pytest.skip("the extra `fast` is not installed")
    programs = core(5, 3, exchange=True), core(30, 3, exchange=True)
    plain = timeline_together(programs, TRN2, fast=False)
    fast = timeline_together(programs, TRN2, fast=True)
    for a, b in zip(plain, fast, strict=True):
        for one, other in zip(a.schedule, b.schedule, strict=True):
            assert np.array_equal(one, other)
        assert a.trace().end > 0.0
