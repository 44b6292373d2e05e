"""The trace keeps its columns together; the clock and the agenda keep time and order."""

import math
from dataclasses import fields

import numpy as np
import pytest

from opentrn.base import Agenda, Bug, Clock, Event, EventKey, FactError, Trace, Where
from opentrn.base.trace import COLUMNS


def example():
    trace = Trace({"target": "trn2"})
    trace.add("tensor", "nc_matmul", 10.0, 223.5, flops=16777216, where=Where("k.py", 3))
    trace.add(
        "dma.q0", "dma_copy", 0, 50, bytes_read=4096, bytes_written=2048, source="hbm",
        target="sbuf", waited_for="dma.q0", wait_ns=7.5, grade="stated", label="x", args={"n": 2},
    )  # fmt: skip
    trace.add("tensor", "nc_matmul", 223.5, 223.5)
    return trace


def test_columns_are_as_long_as_the_trace():
    trace = example()
    assert len(trace) == 3
    for name in COLUMNS:
        assert len(trace.column(name)) == 3, name
    assert trace.column("start").tolist() == [10.0, 0.0, 223.5]
    assert trace.column("start").dtype == np.float64
    assert trace.column("flops").tolist() == [16777216, 0, 0]
    assert trace.column("track") == ["tensor", "dma.q0", "tensor"]
    assert trace.column("wait_ns").tolist() == [0, 7.5, 0]
    assert trace.column("args") == [None, {"n": 2}, None]
    with pytest.raises(Bug, match="no column"):
        trace.column("color")


def test_a_column_is_a_copy_that_does_not_stop_the_trace():
    trace = example()
    start = trace.column("start")
    start[0] = -1
    trace.column("track")[0] = "nobody"
    trace.add("sync", "wait", 1, 2)
    assert trace.column("start").tolist() == [10.0, 0.0, 223.5, 1.0]
    assert trace.tracks == ["tensor", "dma.q0", "sync"]


def test_rows_are_events():
    events = list(example().rows())
    assert events == list(example())
    assert events[1] == Event(
        track="dma.q0", name="dma_copy", start=0, end=50, bytes_read=4096, bytes_written=2048,
        source="hbm", target="sbuf", waited_for="dma.q0", wait_ns=7.5, grade="stated", label="x",
        args={"n": 2},
    )  # fmt: skip
    assert events[0].duration == 213.5
    assert events[0].where == Where("k.py", 3)
    assert events[2].grade == "derived"
    assert example().row(-2) == events[1]
    assert {each.name for each in fields(Event)} == set(COLUMNS)
    with pytest.raises(AttributeError):
        events[0].start = 1


def test_end_meta_and_counters():
    trace = example()
    assert trace.end == 223.5
    assert Trace().end == 0.0
    assert Trace().tracks == []
    assert trace.meta == {"target": "trn2"}
    trace.count("sbuf_bytes", 0.0, 4096)
    trace.count("sbuf_bytes", 9.0, 0)
    assert trace.counters == {"sbuf_bytes": [(0.0, 4096), (9.0, 0)]}


def test_impossible_events_are_bugs_and_leave_no_half_row():
    trace = example()
    for start, end in ((5, 4), (0, math.nan), (math.nan, 1)):
        with pytest.raises(Bug, match="ends at"):
            trace.add("tensor", "x", start, end)
    with pytest.raises(Bug, match="has grade 'guess'"):
        trace.add("tensor", "x", 0, 1, grade="guess")
    with pytest.raises(TypeError):
        trace.add("tensor", "x", 0, 1, flops="many")
    assert [len(trace.column(name)) for name in COLUMNS] == [3] * len(COLUMNS)


def test_clock_converts_cycles_and_nanoseconds():
    clock = Clock(1.4e9)
    assert clock.ns(1400) == 1000.0
    assert clock.cycles(1000.0) == 1400.0
    assert Clock(2.4e9).ns(64) == pytest.approx(26.6666666666666)
    assert Clock(1e9).period_ns == 1.0
    assert clock == Clock(1.4e9)


@pytest.mark.parametrize("hz", [0, -1.0, math.inf, math.nan])
def test_a_clock_must_tick(hz):
    with pytest.raises(FactError) as caught:
        Clock(hz)
    assert caught.value.code == "base.clock"


def test_events_come_by_time_then_priority_then_sequence():
    agenda = Agenda()
    agenda.add(5.0, "late")
    agenda.add(1.0, "second", priority=1)
    agenda.add(1.0, "third", priority=1)
    agenda.add(1.0, "first", priority=0)
    agenda.add(0.5, {"not": "comparable"})
    assert len(agenda) == 5
    keys, items = zip(*(agenda.pop() for _ in range(5)), strict=True)
    assert items == ({"not": "comparable"}, "first", "second", "third", "late")
    assert list(keys) == sorted(keys)
    assert keys[1] == EventKey(1.0, 0, 3)
    with pytest.raises(IndexError):
        agenda.pop()
    with pytest.raises(Bug, match="no time"):
        agenda.add(math.nan, "never")
