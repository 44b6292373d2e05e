"""The timeline: a tiny program by hand, the trace, the critical path, slower chips."""

import importlib.util

import numpy as np
import pytest

from opentrn.base import CapacityError, UsageError, float32
from opentrn.isa import Register, view_of
from opentrn.isa import engine as engines
from opentrn.sim import timing
from opentrn.sim.timeline import prepare, timeline
from tests.sim.programs import TRN2, Writer, matmul

SEMAPHORE = 36.0  # trn2 [semaphore] wait
FINISH = 355.0  # trn2 [dma] finish
LAST_ENGINE = 15 * 10.0  # trn2 [dma] stagger: the sixteenth engine begins so much later


def load_copy_store():
    w = Writer()
    source, target = w.buffer("hbm", (128, 2048), float32), w.buffer("hbm", (128, 2048), float32)
    a, b = w.buffer("sbuf", (128, 2048), float32), w.buffer("sbuf", (128, 2048), float32)
    w.builder.inputs, w.builder.outputs = [source], [target]
    w.load(a, source)
    w.copy(b, a, engine=engines.gpsimd)
    w.load(target, b)
    return w.program()


def test_three_steps_add_up():
    program = load_copy_store()
    load, copy, store = program.body
    t = timeline(program, TRN2)
    # 128 descriptors of 8 KiB over 16 engines, 7.5 ns + 8192 B / 23 B/ns each; the core's HBM stack
    # gives 2.9 TB/s / 4, which is faster: 1 MiB / 725 B/ns.
    assert load.form.move.busy_ns == pytest.approx(8 * (7.5 + 8192 / 23))
    move = 8 * (7.5 + 8192 / 23) + LAST_ENGINE
    assert t.start[0] == pytest.approx(1300)  # [dma] start: 1.3 us from the wait to the first byte
    assert t.end[0] == pytest.approx(1300 + move)
    assert t.start[1] == pytest.approx(t.end[0] + FINISH + SEMAPHORE)
    cost = copy.form.cost
    assert t.end[1] - t.start[1] == pytest.approx(cost.busy_ns)
    assert t.start[2] == pytest.approx(t.end[1] + cost.latency_ns + SEMAPHORE + 1300)
    assert t.total_ns == pytest.approx(
        2 * (1300 + move + FINISH + SEMAPHORE) + cost.busy_ns + cost.latency_ns
    )


def test_a_run_on_the_device_begins_before_its_kernel():
    t = timeline(load_copy_store(), TRN2)
    assert t.run_ns == pytest.approx(13500 + t.total_ns + 1700)  # trn2 [launch] begin, end


def test_critical_path_explains_the_whole_time():
    t = timeline(load_copy_store(), TRN2)
    path = t.critical_path()
    assert [(step.instruction.opcode, step.reason) for step in path] == [
        ("dma_copy", ""),
        ("tensor_copy", "dma"),
        ("dma_copy", "semaphore"),
    ]
    assert path[0].begin == 0.0
    assert path[-1].end == t.total_ns
    shares = t.grade_shares()
    assert sum(shares.values()) == pytest.approx(1.0)
    grades = [step.instruction.form.cost.grade for step in path]
    spent = [step.end - step.begin for step in path]
    for grade in set(grades) | {"fitted"}:
        want = sum(ns for g, ns in zip(grades, spent, strict=True) if g == grade)
        want += 2 * SEMAPHORE if grade == "fitted" else 0.0  # [semaphore] wait is fitted
        assert shares[grade] == pytest.approx(want / t.total_ns)


def test_engine_busy_time_is_what_the_forms_cost():
    program = matmul(m=256, k=256, n=512)
    t = timeline(program, TRN2)
    want = dict.fromkeys(("tensor", "vector", "scalar", "gpsimd", "sync"), 0.0)
    moved = 0.0
    for one in program.body:
        if one.opcode == "dma_copy":
            move = one.form.move
            want[move.issuer] += move.issue_ns
            moved += move.busy_ns * move.engines / 16
        elif one.engine != "tensor":
            # 62 cycles lie between one copy's last element and the next one's first.
            want[one.engine] += one.form.cost.busy_ns + 62 / 0.96
    busy = t.engine_busy_ns
    assert busy["dma"] == pytest.approx(moved)
    # Cold: the Tensor Engine's first window is half over when it begins, so it does little in it.
    matmuls = [one for one in program.body if one.opcode == "nc_matmul"]
    assert busy["tensor"] == pytest.approx(2 * sum(one.form.cost.busy_ns for one in matmuls))
    for engine in ("vector", "scalar", "gpsimd", "sync"):
        assert busy[engine] == pytest.approx(want[engine])


def test_a_compute_bound_matmul_keeps_the_tensor_engine_busy():
    w = Writer()
    a, b = w.buffer("sbuf", (128, 128)), w.buffer("sbuf", (128, 512))
    for tile in (a, b):
        w.add("memset", dst=tile, value=0.0)
    acc = w.buffer("psum", (128, 512), float32)
    for _ in range(200):
        w.add("nc_matmul", dst=acc, stationary=a, moving=b)
    t = timeline(w.program(), TRN2)
    # 200 x 512 cycles at 2.4 GHz; half speed to the end of the first window of 3413 ns, of which
    # more than 3/8 · 2 are used, costs half of what is left of it.
    first = t.start[2]
    assert first < 3413 / 4
    assert t.end[-1] - first == pytest.approx(200 * 512 / 2.4 + (3413 - first) / 2)


def test_trace_has_every_event_on_its_track():
    program = load_copy_store()
    t = timeline(program, TRN2)
    trace = t.trace()
    events = list(trace.rows())
    assert [(e.track, e.name, e.label) for e in events] == [
        ("sync", "dma_copy", "issue"),
        ("dma.q0", "dma_copy", ""),
        ("gpsimd", "tensor_copy", ""),
        ("sync", "dma_copy", "issue"),
        ("dma.q1", "dma_copy", ""),
    ]
    load, copy = events[1], events[2]
    assert (load.bytes_read, load.source, load.target) == (2**20, "hbm", "sbuf")
    assert copy.waited_for == "dma: dma_copy #0"
    assert copy.wait_ns == pytest.approx(copy.start)
    assert (load.where.file, load.where.line) == ("kernel.py", 5)
    assert trace.end == pytest.approx(t.total_ns - FINISH)  # the last semaphore is no event
    # Both tiles are 1 MiB; the first lives from the load to the copy, the second to the store.
    counted = trace.counters["sbuf_bytes"]
    assert [value for _, value in counted] == [2**20, 2**21, 2**20, 0]
    assert [time for time, _ in counted] == pytest.approx(
        [t.start[0], t.start[1], t.end[1], t.end[2]]
    )
    assert trace.meta["target"] == "trn2"


def test_psum_banks_are_counted():
    trace = timeline(matmul(m=128, k=128, n=512), TRN2).trace()
    assert [value for _, value in trace.counters["psum_banks"]] == [1, 0]


def test_matmul_flops_are_in_the_trace():
    trace = timeline(matmul(m=256, k=256, n=512), TRN2).trace()
    assert sum(e.flops for e in trace.rows()) == 2 * 256 * 256 * 512


@pytest.mark.parametrize("name", ["move", "hbm", "busy", "lead", "latency"])
def test_slower_parts_never_make_this_kernel_faster(name):
    # Not a law of every program: claims in order of arrival can, like any list schedule, get
    # lucky when something is late.  It holds on kernels of the usual form.
    ready = prepare(matmul(m=512, k=1024, n=1024), TRN2)
    columns = timing.Columns(*(column.tolist() for column in ready.columns))
    before = 0.0
    for slower in (1.0, 1.1, 1.5, 2.0, 4.0):
        scaled = [value * slower for value in getattr(columns, name)]
        s = timing.schedule(columns._replace(**{name: scaled}), ready.rates)
        assert max(s.visible) >= before
        before = max(s.visible)


def test_compiled_schedule_gives_the_same_timeline():
    if importlib.util.find_spec("numba") is None:
        pytest.skip("the extra `fast` is not installed")
    program = matmul(m=256, k=512, n=1024)
    plain, fast = timeline(program, TRN2, fast=False), timeline(program, TRN2, fast=True)
    assert plain.total_ns == fast.total_ns
    for a, b in zip(plain.schedule, fast.schedule, strict=True):
        assert np.array_equal(a, b)
    assert plain.binding == fast.binding


def test_a_prepared_program_is_remembered():
    program = matmul(m=128, k=128, n=512)
    assert prepare(program, TRN2) is prepare(program, TRN2)
    assert prepare(matmul(m=128, k=128, n=512), TRN2) is not prepare(program, TRN2)


def test_device_loops_are_timed_by_their_trip_counts():
    w = Writer()
    a, b = w.buffer("sbuf", (128, 64)), w.buffer("sbuf", (128, 64))
    w.add("memset", dst=a, value=0.0)
    w.builder.open_loop()
    w.copy(b, a)
    loop = w.builder.close_loop(start=0, stop=Register(0))
    program = w.program()
    with pytest.raises(UsageError):
        timeline(program, TRN2)
    few, many = (timeline(program, TRN2, trips=[(loop, n)]) for n in (10, 30))
    copy = program.body[1].body[0].form.cost.busy_ns
    # Each iteration costs its engine one branch of 1.4 us and the copy: 16 cycles of stream, 64 at
    # least, here 62 more than the stream before the next can begin.
    assert copy == pytest.approx(64 / 0.96)
    assert many.total_ns - few.total_ns == pytest.approx(20 * ((16 + 62) / 0.96 + 1400))
    names = {e.name for e in few.trace().rows()}
    assert names == {"memset", "tensor_copy", "loop"}


def test_tiles_that_do_not_fit_are_refused():
    w = Writer()
    tiles = [w.buffer("sbuf", (128, 65536)) for _ in range(2)]
    for t in tiles:
        w.add("memset", dst=view_of(t)[:, 0:64], value=0.0)
    w.copy(view_of(tiles[0])[:, 0:64], view_of(tiles[1])[:, 0:64])
    with pytest.raises(CapacityError):
        timeline(w.program(), TRN2)


def test_an_empty_program_takes_no_time():
    t = timeline(Writer().program(), TRN2)
    assert (t.total_ns, len(t), t.critical_path(), t.grade_shares()) == (0.0, 0, [], {})
    assert len(t.trace()) == 0
