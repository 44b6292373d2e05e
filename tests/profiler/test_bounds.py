"""What bounds a program, on traces whose answer is known by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import Trace
from opentrn.profiler import summarize
from opentrn.profiler.bounds import active, idle
from opentrn.profiler.path import critical_path
from opentrn.profiler.table import table
from tests.profiler import traces

# (trace, kind, resource, share, {what the critical path spends: ns})
CASES = {
    "engine": (
        traces.engine_bound, "engine", "tensor", 100 / 112,
        {"dma issue": 2, "latency": 4, "dma": 6, "tensor": 100},
    ),
    "dma": (
        traces.dma_bound, "dma", "dma", 100 / 103,
        {"dma issue": 1, "latency": 1, "dma": 100, "tensor": 1},
    ),
    "issue": (
        traces.issue_bound, "engine", "sync", 100 / 104, {"dma issue": 100, "latency": 3, "dma": 1},
    ),
    "latency": (
        # issue 3, start 15, bytes 2, wait 5, copy 1, wait 4, issue 3, start 15, bytes 2
        traces.latency_bound, "latency", "sync", 45 / 50,
        {"dma issue": 6, "latency": 39, "dma": 4, "vector": 1},
    ),
    "dependency": (
        traces.dependency_bound, "dependency", "dma", 1.0, {"dma": 100, "tensor": 60, "vector": 40},
    ),
    "two full": (
        traces.two_full, "engine", "tensor", 0.9, {"tensor": 90, "vector": 10},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_bounds_a_trace(case):
    make, kind, resource, share, path = CASES[case]
    trace = make()
    found = summarize(trace, "trn2")
    assert (found.bound.kind, found.bound.resource) == (kind, resource)
    assert found.bound.share == pytest.approx(share)
    total = trace.end
    assert {k: v * total for k, v in found.path.items()} == pytest.approx(path)


def test_issue_is_told_apart_from_work():
    issue = summarize(traces.issue_bound(), "trn2")
    assert "mostly to issue DMA transfers" in issue.bound.reason
    assert "issue" not in summarize(traces.engine_bound(), "trn2").bound.reason
    assert [one.code for one in issue.advice] == ["issue", "small_transfers"]


def test_an_empty_trace_is_bound_by_nothing():
    found = summarize(Trace(), "trn2")
    assert found.bound.kind == "none"
    assert found["total_time"] == 0.0
    assert found["tensor_engine_active_time_percent"] == 0.0


def test_without_causes_quiet_time_counts_as_latency():
    made = Trace()
    made.add("tensor", "nc_matmul", 10, 30, waited_for="dma: dma_copy")
    made.add("vector", "tensor_copy", 90, 100, waited_for="semaphore: nc_matmul")
    found = summarize(made, "trn2")
    assert found.bound.kind == "latency"  # 70 of 100 ns nothing works
    assert found.bound.share == pytest.approx(0.7)
    assert found.path["unknown"] == pytest.approx(0.9)


def test_the_total_may_be_later_than_the_last_event():
    made = traces.Maker(total_ns=125.0)
    made.matmul(0, 100)
    found = summarize(made.trace, "trn2")
    assert found["total_time"] == pytest.approx(125e-9)
    assert found.path == pytest.approx({"tensor": 0.8, "latency": 0.2})
    assert found.idle["tensor"] == pytest.approx({"done": 25e-9})


def test_idle_time_by_cause():
    found = summarize(traces.engine_bound(), "trn2").idle
    assert found["tensor"] == pytest.approx({"dma": 12e-9})
    assert found["sync"] == pytest.approx({"done": 110e-9})
    assert found["dma"] == pytest.approx({"start": 4e-9, "done": 102e-9})
    found = summarize(traces.dependency_bound(), "trn2").idle
    # 0-30 dma, 30-60 tensor, 60-80 vector, 80-100 dma, and again from 100 on
    assert found["tensor"] == pytest.approx({"dma": 100e-9, "done": 40e-9})
    assert found["vector"] == pytest.approx({"tensor": 140e-9, "done": 20e-9})
    assert found["dma"] == pytest.approx({"vector": 100e-9})
    found = summarize(traces.issue_bound(), "trn2").idle
    # bytes at 13-14, 23-24, ... 103-104
    assert found["dma"] == pytest.approx({"start": 13e-9, "dma issue": 81e-9})


def test_a_ring_that_is_full_is_a_cause_of_its_own():
    made = traces.Maker()
    first = made.move(0, 10, 64)
    made.move(20, 30, 64, ("hbm", first))
    assert summarize(made.trace, "trn2").idle["dma"] == pytest.approx({"dma rings": 10e-9})


events = st.lists(
    st.tuples(
        st.sampled_from(["tensor", "vector", "sync", "dma.q0", "dma.q1"]),
        st.integers(0, 50),
        st.integers(0, 20),
        st.sampled_from(["engine", "data", "semaphore", "dma", "queue", "hbm"]),
        st.integers(0, 30),
    ),
    max_size=25,
)


@given(events)
@settings(max_examples=150, deadline=None)
def test_every_ns_is_told_once(rows):
    made = traces.Maker()
    for number, (track, start, length, reason, before) in enumerate(rows):
        after = (reason, before) if before < number else None
        made.work(track, start, start + length, after)
    read = table(made.trace)
    busy, gaps, path = active(read), idle(read), critical_path(read)
    for lane, causes in gaps.items():
        assert busy[lane] + sum(causes.values()) == pytest.approx(read.total)
        marks = [0] * int(read.total)
        for track, start, length, _, _ in rows:
            if track.split(".")[0] == lane:
                marks[start : start + length] = [1] * length
        assert busy[lane] == sum(marks)
    assert sum(path.spent.values()) == pytest.approx(read.total)
    assert all(ns >= 0.0 for ns in path.spent.values())
    begin = [piece.begin for piece in path.pieces]
    assert begin == sorted(begin)
