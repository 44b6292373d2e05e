"""DMA engines that take turns among queues: by hand, laws, and one queue as without turns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import UsageError, float32
from opentrn.sim import timeline, timeline_together, timing
from tests.sim.programs import TRN2, Writer
from tests.sim.test_timing import LOAD, RATES, columns, random_columns

TURNS = RATES._replace(packet_ns=100.0, turns=True)
STORE, OTHER = timing.queue_number(4, 1), timing.queue_number(2, 0)


def load(**more):
    return {"stream": LOAD, "busy": 10, "move": 1000, "count": 1, "priority": 0, **more}


def test_two_queues_take_turns_packet_by_packet():
    """The first moves from 10; the second asks at 260 while packet 3 ends at 310; then each has a
    packet: 310 to 410, 510 to 610 and 710 to 810 are the second's, the rest the first's."""
    rows = load(), load(move=300, stream=STORE, lead=240)
    found = timing.schedule(columns(*rows), TURNS)
    assert found.start == [10.0, 310.0]
    assert found.end == [1310.0, 810.0]
    # In order of arrival the second waits for the whole of the first.
    assert timing.schedule(columns(*rows), TURNS._replace(turns=False)).end == [1010.0, 1310.0]


def test_three_queues_go_round():
    rows = load(move=200), load(move=200, stream=STORE), load(move=200, stream=OTHER)
    found = timing.schedule(columns(*rows), TURNS._replace(stagger_ns=0.0))
    assert sorted(found.end) == [410.0, 510.0, 610.0]


def test_an_urgent_class_goes_before_the_turns():
    rows = (
        load(priority=1),
        load(priority=1, stream=STORE),
        load(stream=OTHER, move=200, lead=240),
    )
    found = timing.schedule(columns(*rows), TURNS)
    urgent = found.end[2] - found.start[2]
    assert urgent == 200.0  # nobody comes between


@given(st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_the_rings_do_the_same_work(seed):
    """The last ring ends when it would without turns, where nothing follows the transfers."""
    rng = np.random.default_rng(seed)
    rows = [
        load(stream=int(rng.choice([LOAD, STORE, OTHER])), busy=0.0,
             move=float(rng.integers(1, 900)), lead=float(rng.integers(0, 500)))
        for _ in range(8)
    ]  # fmt: skip
    turns = timing.schedule(columns(*rows), TURNS)
    plain = timing.schedule(columns(*rows), TURNS._replace(turns=False))
    assert max(turns.end) == pytest.approx(max(plain.end))


@given(st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_everything_runs_and_no_earlier_than_it_is_issued(seed):
    given = random_columns(seed)
    found, plain = (timing.schedule(given, TURNS._replace(turns=how)) for how in (True, False))
    assert [time > 0.0 for time in found.visible] == [time > 0.0 for time in plain.visible]
    assert all(end >= start for start, end in zip(found.start, found.end, strict=True))


def large_load_and_small_store():
    w = Writer(TRN2)
    x, out = w.buffer("hbm", (128, 8192), float32), w.buffer("hbm", (128, 64), float32)
    w.builder.inputs, w.builder.outputs = [x], [out]
    large, small = w.buffer("sbuf", (128, 8192), float32), w.buffer("sbuf", (128, 64), float32)
    w.add("memset", dst=small, value=1.0)
    w.load(large, x)
    w.load(out, small)
    return w.program()


def test_a_small_store_does_not_wait_for_a_large_load():
    program = large_load_and_small_store()
    arrival, turns = (timeline(program, TRN2, queues=how) for how in ("arrival", "turns"))
    assert turns.end[2] < arrival.end[2] - 5000  # 32 KiB of each partition take 11.5 us
    assert turns.total_ns == pytest.approx(arrival.total_ns, rel=0.01)
    with pytest.raises(UsageError) as raised:
        timeline(program, TRN2, queues="luck")
    assert raised.value.code == "sim.queues"


def test_each_core_of_a_launch_has_its_own_turns():
    program = large_load_and_small_store()
    alone = timeline(program, TRN2, queues="turns")
    pair = timeline_together((program, program), TRN2, queues="turns")
    for one in pair:
        assert one.end[2] == pytest.approx(alone.end[2], rel=0.05)  # HBM has room for both
    with pytest.raises(UsageError) as raised:
        timeline_together((program, program), TRN2, queues="luck")
    assert raised.value.code == "sim.queues"
