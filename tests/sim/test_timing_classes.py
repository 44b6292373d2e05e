"""Classes of service of transfers: by hand, laws, and one class as without any."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opentrn.base import float32
from opentrn.hw import chip
from opentrn.sim import timeline, timing, timing_classes
from opentrn.sim.timing import QUEUE
from tests.sim.programs import Writer
from tests.sim.test_timing import COLD, LOAD, RATES, columns, random_columns

PACKETS = RATES._replace(packet_ns=100.0)
STORE = timing.queue_number(4, 1)


def load(priority, **more):
    return {"stream": LOAD, "busy": 10, "move": 1000, "count": 1, "priority": priority, **more}


def test_an_urgent_transfer_takes_over_behind_the_packet():
    """The first moves from 10; the second asks at 260 while packet 3 ends at 310, and takes 300."""
    first, second = load(3), load(0, move=300, stream=STORE, lead=240)
    found = timing.schedule(columns(first, second), PACKETS)
    assert found.start == [10.0, 310.0]
    # 300 ns of the first were done; the other 700 follow from 610 on.
    assert found.end == [1310.0, 610.0]
    assert (found.reason[1], found.binding[1], found.since[1]) == (QUEUE, 0, 310.0)


def test_a_less_urgent_one_waits_and_equals_keep_their_order():
    first, later = load(1), load(3, move=100, lead=50)
    again = load(1, move=200, lead=100)
    found = timing.schedule(columns(first, later, again), PACKETS)
    assert found.start == [10.0, 1210.0, 1010.0]
    assert found.end == [1010.0, 1310.0, 1210.0]


def test_two_urgent_ones_that_ask_within_one_packet():
    """Class 1 asks at 130, class 0 at 150: the ring is free for another at 210, for class 0."""
    rows = load(3), load(1, move=50, lead=110), load(0, move=50, stream=STORE, lead=120)
    found = timing.schedule(columns(*rows), PACKETS)
    assert (found.start[2], found.end[2]) == (210.0, 260.0)
    assert (found.start[1], found.end[1]) == (260.0, 310.0)
    assert found.end[0] == pytest.approx(1110.0)


def test_the_last_packet_is_not_cut_short():
    found = timing.schedule(columns(load(3), load(0, stream=STORE, move=50, lead=930)), PACKETS)
    assert found.end == [1010.0, 1060.0]


@example(187)  # two transfers reach the rings at one time, the later row first
@example(211)
@example(874)
@given(st.integers(0, 10**9))
@settings(max_examples=40, deadline=None)
def test_one_class_is_served_as_without_classes(seed):
    """Apart from HBM, which serves transfers as they arrive or as they end, and from rings that a
    transfer keeps free for its later shares.
    """
    c, rates = random_columns(seed, 80), COLD._replace(stagger_ns=0.0)
    c = c._replace(hbm=[0.0] * len(c.hbm))
    plain, classes = timing.schedule(c, rates), timing_classes.schedule(c, rates)
    for name in ("start", "end", "visible", "issue"):
        assert getattr(classes, name) == pytest.approx(getattr(plain, name))


@given(st.integers(0, 10**9), st.integers(0, 10**9))
@settings(max_examples=40, deadline=None)
def test_rings_do_the_same_work_whoever_goes_first(seed, classes):
    c = random_columns(seed, 80)
    rng = np.random.default_rng(classes)
    c = c._replace(priority=rng.integers(0, 4, len(c.stream)).tolist())
    found = timing.schedule(c, COLD._replace(packet_ns=50.0))
    moved = [n for n, count in enumerate(c.count) if timing.is_queue(c.stream[n]) and count]
    for n in moved:
        assert found.end[n] >= found.start[n] + c.move[n] - 1e-6
        assert found.visible[n] == pytest.approx(found.end[n] + c.finish[n])
    for ring in range(COLD.dma_engines):
        on = [n for n in moved if (ring - c.first[n]) % COLD.dma_engines < c.count[n]]
        if on:
            span = max(found.end[n] for n in on) - min(found.start[n] for n in on)
            assert span >= sum(c.move[n] for n in on) - 1e-6


def streams(priority):
    """Sixteen large loads, and a small one behind them that a copy waits for."""
    trn3 = chip("trn3")
    w = Writer(trn3)
    far, near = w.buffer("hbm", (128, 8192), float32), w.buffer("hbm", (128, 8), float32)
    w.builder.inputs = [far, near]
    for _ in range(4):
        w.load(w.buffer("sbuf", (128, 8192), float32), far)
    tile = w.buffer("sbuf", (128, 8), float32)
    w.add("dma_copy", dst=tile, src=near, priority=priority)
    copy = w.copy(w.buffer("sbuf", (128, 8), float32), tile)
    timed = timeline(w.program(), trn3)
    return timed.visible[timed.instructions.index(copy)], timed


def test_a_small_urgent_load_on_trn3_does_not_queue_behind_large_ones():
    last, plain = streams(None)
    first, urgent = streams(0)
    assert first < last / 4
    # Nothing is lost: the large ones end later by the small one's share at most.
    assert urgent.total_ns == pytest.approx(plain.total_ns, rel=0.05)
    assert urgent.schedule.binding is not None
    assert np.array_equal(timeline(plain.program, plain.chip).visible, plain.visible)
