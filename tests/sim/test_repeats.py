"""Long repetitions: found without unrolling them, timed without running them, and both exactly."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import float32
from opentrn.hw import target
from opentrn.isa import engine as engines
from opentrn.isa import view_of
from opentrn.sim import repeats, steady, timeline
from opentrn.sim.depend import dependencies
from opentrn.sim.flatten import columns_of
from opentrn.sim.place import place
from opentrn.sim.tape import Flow
from opentrn.sim.timeline import Timeline, alone, prepare, rates_of, scheduled
from opentrn.sim.timing import Columns, Schedule
from tests.sim.programs import TRN2, Writer

FLOW = ("position", "row", "dep_start", "dep", "bank_at", "bank_bits")


@pytest.fixture(scope="module", autouse=True)
def eager():
    """Try repetitions that are too short to be worth it."""
    kept = steady._WORTH, repeats._WORTH
    steady._WORTH = repeats._WORTH = 100
    yield
    steady._WORTH, repeats._WORTH = kept


def unrolled(program, chip=TRN2):
    """The flow found turn by turn."""
    kept, steady._WORTH = steady._WORTH, 10**9
    try:
        return dependencies(program, place(program, chip), chip)
    finally:
        steady._WORTH = kept


def both(program, chip=TRN2):
    """(flow by repetition, its schedule), (flow turn by turn, its schedule)."""
    short = dependencies(program, place(program, chip), chip)
    ready = prepare(program, chip)
    full = unrolled(program, chip)
    return (short, alone(ready, False)), (
        full,
        scheduled(columns_of(full, chip), ready.rates, None),
    )


def same(program, chip=TRN2):
    """The flow by repetition, after comparing everything with what turn by turn gives."""
    (short, found), (full, wanted) = both(program, chip)
    for name in FLOW:
        assert np.array_equal(getattr(short, name), getattr(full, name)), name
    assert all(a is b for a, b in zip(short.instances, full.instances, strict=True))
    for name in Schedule._fields:
        assert np.array_equal(getattr(found, name), getattr(wanted, name)), name
    return short, found


def pipeline(turns: int, multiplies: int = 0, width: int = 512):
    """Load, work on three engines, store, `turns` times; then one more store."""
    w = Writer()
    x, y = w.buffer("hbm", (128, width), float32), w.buffer("hbm", (128, width), float32)
    w.builder.inputs = [x]
    weights = w.buffer("sbuf", (128, 128))
    w.add("memset", dst=weights, value=1.0)
    w.builder.open_loop()
    a, b = (w.buffer("sbuf", (128, width)) for _ in range(2))
    w.load(a, x)
    w.copy(b, a, engine=engines.scalar)
    if multiplies:
        acc = w.buffer("psum", (128, 512), float32)
        for _ in range(multiplies):
            w.add("nc_matmul", dst=acc, stationary=weights, moving=b)
        w.copy(b, acc, engine=engines.vector)
    w.load(y, b)
    w.builder.close_loop(start=0, stop=turns)
    w.load(y, b)
    return w.program()


@pytest.mark.parametrize("multiplies", [0, 1])
def test_a_pipeline_of_many_turns_is_one_repetition(multiplies):
    flow, found = same(pipeline(300, multiplies))
    (repeat,) = flow.repeats
    assert repeat.count > 290
    assert isinstance(found, repeats.Prolonged)


def test_its_length_does_not_cost_anything():
    few, many = (timeline(pipeline(turns, 1), TRN2) for turns in (1_000, 50_000))
    each = (few.total_ns - timeline(pipeline(500, 1), TRN2).total_ns) / 500
    assert many.total_ns - few.total_ns == pytest.approx(49_000 * each, rel=1e-12)
    # Branches of the four engines that take part, and 5 instructions a turn.
    assert len(many) == 50_000 * 9 + 2


def test_a_limiter_that_changes_its_mind_is_timed_turn_by_turn():
    """Bursts of work between waits: some of a turn's multiplies are fast, others half as fast."""
    flow, found = same(pipeline(300, 40))
    assert flow.repeats
    assert not isinstance(found, repeats.Prolonged)


@pytest.mark.parametrize(("multiplies", "rate"), [(30, 1.0), (1, 0.5)])
def test_a_limiter_that_stays_as_it_is_is_steady(multiplies, rate):
    """Beside 1400 ns of branch, 30 x 213 ns of work keep every window warm, 213 ns none."""
    w = Writer()
    a, b = w.buffer("sbuf", (128, 128)), w.buffer("sbuf", (128, 512))
    for tile in (a, b):
        w.add("memset", dst=tile, value=0.0)
    acc = w.buffer("psum", (128, 512), float32)
    w.builder.open_loop()
    for _ in range(multiplies):
        w.add("nc_matmul", dst=acc, stationary=a, moving=b)
    w.builder.close_loop(start=0, stop=1000)
    _, found = same(w.program())
    assert isinstance(found, repeats.Prolonged)
    assert found.end[-1] - found.start[-1] == pytest.approx(512 / 2.4 / rate, rel=1e-6)


def test_a_register_that_counts_keeps_its_wait_in_every_turn():
    from opentrn.isa import Register

    w = Writer()
    x, a = w.buffer("hbm", (400, 128, 64)), w.buffer("sbuf", (128, 64))
    w.builder.inputs = [x]
    counter = Register(0)
    w.builder.registers = 1
    w.builder.open_loop()
    w.load(a, view_of(x).select(0, counter))
    w.copy(a, a, engine=engines.vector)
    w.builder.close_loop(start=0, stop=400, counter=counter)
    flow, _ = same(w.program())
    assert flow.repeats


def test_an_accumulating_output_is_no_repetition_and_still_right():
    """Each turn reads what stays in HBM: ever more transfers to remember, never the same state."""
    w = Writer()
    x, a, b = w.buffer("hbm", (128, 64)), w.buffer("sbuf", (128, 64)), w.buffer("sbuf", (128, 64))
    w.load(x, a)
    w.builder.open_loop()
    w.load(b, x)
    w.builder.close_loop(start=0, stop=200)
    same(w.program())


def test_one_repetition_behind_another_and_one_inside_another():
    w = Writer()
    x = w.buffer("hbm", (128, 256))
    w.builder.inputs = [x]
    for _ in range(2):
        w.builder.open_loop()
        a = w.buffer("sbuf", (128, 256))
        w.load(a, x)
        w.builder.open_loop()
        for chosen in (engines.vector, engines.scalar):
            w.copy(a, a, engine=chosen)
        w.builder.close_loop(start=0, stop=40)
        w.builder.close_loop(start=0, stop=60)
    flow, _ = same(w.program())
    assert len(flow.repeats) >= 2


def random_loop(seed: int):
    """Loops of random instructions on a few tiles, some nested, with something around them."""
    rng = random.Random(seed)
    w = Writer()
    hbm = [w.buffer("hbm", (128, 256)) for _ in range(2)]
    w.builder.inputs = hbm[:1]
    outside = [w.buffer("sbuf", (128, 256)) for _ in range(2)]
    acc = w.buffer("psum", (128, 256), float32)

    def part(tiles, length):
        for _ in range(length):
            kind = rng.random()
            src, dst = rng.choice(tiles), rng.choice(tiles)
            if kind < 0.2:
                w.load(src, rng.choice(hbm))
            elif kind < 0.35:
                w.load(rng.choice(hbm), src)
            elif kind < 0.5:
                w.add("nc_matmul", dst=acc, stationary=view_of(src)[:, 0:128], moving=dst)
            elif kind < 0.6:
                w.copy(dst, acc, engine=rng.choice([engines.vector, engines.scalar]))
            else:
                low = rng.choice([0, 128])
                half = slice(low, low + 128)
                chosen = rng.choice([engines.vector, engines.scalar, engines.gpsimd])
                w.copy(view_of(dst)[:, half], view_of(src)[:, half], engine=chosen)

    part(outside, rng.randrange(4))
    for _ in range(rng.randrange(1, 3)):
        w.builder.open_loop()
        tiles = outside + [w.buffer("sbuf", (128, 256)) for _ in range(rng.randrange(3))]
        part(tiles, rng.randrange(1, 9))
        if rng.random() < 0.3:
            w.builder.open_loop()
            part(tiles, rng.randrange(1, 4))
            w.builder.close_loop(start=0, stop=rng.randrange(1, 12))
        w.builder.close_loop(start=0, stop=rng.randrange(1, 130))
        part(outside, rng.randrange(3))
    return w.program()


@given(st.integers(0, 10**9))
@settings(max_examples=40, deadline=None)
def test_any_loops_give_what_turn_by_turn_gives(seed):
    program = random_loop(seed)
    same(program)


@pytest.mark.parametrize("name", ["trn1", "trn2", "trn3"])
def test_every_chip(name):
    chip = target(name)
    same(random_loop(7), chip)
    same(random_loop(8), chip)


def test_a_rate_that_is_no_power_of_two_is_timed_turn_by_turn():
    """Sums are rounded then, and copies would not agree to the last bit."""
    program = pipeline(200, 40)
    ready = prepare(program, TRN2)
    rates = ready.rates._replace(cold_rate=0.3)
    found = repeats.schedule(
        ready.flow, rates, lambda flow: scheduled(columns_of(flow, TRN2), rates, False)
    )
    wanted = scheduled(ready.columns, rates, False)
    for name in Schedule._fields:
        assert np.array_equal(getattr(found, name), getattr(wanted, name))


def test_the_trace_and_the_path_of_a_prolonged_timeline():
    program = pipeline(300)
    ready = prepare(program, TRN2)
    long, full = (
        Timeline(ready, alone(ready, None)),
        Timeline(ready, scheduled(ready.columns, ready.rates, False)),
    )
    assert long.critical_path() == full.critical_path()
    assert long.binding == full.binding
    assert list(long.trace().rows()) == list(full.trace().rows())
    assert rates_of(TRN2) == ready.rates
    assert isinstance(ready.flow, Flow)
    assert isinstance(ready.columns, Columns)
