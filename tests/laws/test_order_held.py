"""Less machine takes no less time: exactly, with the order of service held; and why only then.

An engine, a port, a ring or HBM serves who asks first.  What is slower asks later and may let
another pass, who may be the one the end waits for: list scheduling has such anomalies by nature
(Graham 1966), and so has every machine that serves those who ask without knowing what comes.  With
the order of service held, every time is the larger of others plus a duration, so that no
instruction ends sooner where durations grow.  The current limiter is the one other exception: it
judges whole windows, and a delay may gather work in one of them.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.isa import for_chip
from opentrn.sim.timeline import prepare
from opentrn.sim.timing import SEEN, Columns
from tests.laws.held import held, noted
from tests.laws.test_time import SMALLER, TRN2, total
from tests.sim.test_depend import random_program
from tests.sim.test_repeats import random_loop
from tests.sim.test_timing import (
    GPSIMD,
    LOAD,
    RATES,
    SCALAR,
    STORE,
    VECTOR,
    columns,
    random_columns,
)

TENSOR = 0
TIMES = ("busy", "latency", "background", "setup", "lead", "move", "finish", "hbm")
# Fewer DMA engines are another assignment of transfers to them; the limiter is set apart.
HELD = sorted({*SMALLER} - {"dma.engines=8", "tensor.cold_rate=0.25", "tensor.warm_share=0.7"})


def of_program(program, chip):
    """What the clock is told of `program` on `chip`, without the current limiter."""
    ready = prepare(for_chip(program, chip), chip)
    return Columns(*(c.tolist() for c in ready.columns)), ready.rates._replace(cold_rate=1.0)


def drawn(seed):
    return random_program(seed) if seed % 3 else random_loop(seed)


def no_sooner(more, less):
    """Whether nothing begins, ends or is seen sooner in `less` than in `more`."""
    return all(
        a <= b
        for name in ("start", "end", "visible", "issue")
        for a, b in zip(getattr(more, name), getattr(less, name), strict=True)
    )


@given(st.integers(0, 10**9), st.sampled_from(HELD))
@settings(max_examples=80, deadline=None)
def test_less_machine_lets_nothing_end_sooner_in_the_same_order(seed, setting):
    program = drawn(seed)
    slow = noted(*of_program(program, SMALLER[setting]))
    assert no_sooner(held(*of_program(program, TRN2), slow.served), slow.result)


@given(st.integers(0, 10**9), st.sampled_from(TIMES), st.data())
@settings(max_examples=80, deadline=None)
def test_one_longer_duration_lets_nothing_end_sooner_in_the_same_order(seed, name, data):
    given = random_columns(seed)
    rates = RATES._replace(cold_rate=1.0, cores=1 + max(given.stream) // 20)
    longer = list(getattr(given, name))
    longer[data.draw(st.integers(0, len(longer) - 1))] += data.draw(st.integers(1, 500))
    slow = noted(given._replace(**{name: longer}), rates)
    assert no_sooner(held(given, rates, slow.served), slow.result)


@pytest.mark.parametrize("seed", range(5))
def test_a_schedule_held_to_its_own_order_is_itself(seed):
    given = random_columns(seed)
    rates = RATES._replace(cores=1 + max(given.stream) // 20)
    run = noted(given, rates)
    assert held(given, rates, run.served) == run.result


# 1639: a store asks the engine that issues it later, so the move that the end waits for goes first.
# 5232: the Vector Engine comes to a PSUM bank before the Scalar Engine does, not after.
@pytest.mark.parametrize(
    ("seed", "setting", "less"),
    [(1639, "vector.latency=300 ns", 0.078), (5232, "tensor.clock=1.4GHz", 0.032)],
)
def test_known_falls_come_of_the_order_alone(seed, setting, less):
    program = drawn(seed)
    fall = 1 - total(program, SMALLER[setting]) / total(program)
    assert fall == pytest.approx(less, abs=0.001)
    slow = noted(*of_program(program, SMALLER[setting]))
    same = held(*of_program(program, TRN2), slow.served)
    assert no_sooner(same, slow.result)
    assert max(same.visible) <= max(slow.result.visible)


# --------------------------------------------------------------------- by hand


def ends(rows, rates=RATES):
    return noted(columns(*rows), rates)


def test_who_asks_later_for_a_port_lets_the_urgent_one_pass():
    """Vector asks for the port at 40, Scalar at 50; GpSimd needs 100 after Scalar's result.

    Vector has it from 40 to 70, Scalar to 100, seen at 110, GpSimd to 210.  With 60 for Vector's
    first instruction Scalar has it from 50 to 80, seen at 90, GpSimd to 190: 20 less.
    """

    def rows(first):
        return (
            {"stream": VECTOR, "busy": first},
            {"stream": SCALAR, "busy": 50},
            {"stream": VECTOR, "busy": 30, "ports": 1},
            {"stream": SCALAR, "busy": 30, "ports": 1},
            {"stream": GPSIMD, "busy": 100, "after": [(3, SEEN)]},
        )

    quick, slow = ends(rows(40)), ends(rows(60))
    assert quick.result.end == [40, 50, 70, 100, 210]
    assert slow.result.end == [60, 50, 110, 80, 190]
    # In the slower one's order the quicker one ends with it: the port was free at 50 either way.
    same = held(columns(*rows(40)), RATES, slow.served)
    assert same.end == [40, 50, 110, 80, 190]


def test_who_asks_later_to_be_issued_lets_the_urgent_transfer_pass():
    """Sync issues a store asked for at 110 (Vector's result) and a load asked for at 120.

    Issuing takes 50, moving 100 and finishing 200 for the load, nothing more for the store; with
    16 engines each both move one after the other.  The store goes from 160 to 260, the load from
    260 to 360 and is seen at 560.  Where Vector takes 20 longer, the load is issued from 120 to
    170, moves to 270 and is seen at 470.
    """

    def rows(vector):
        moves = {"busy": 50, "move": 100}
        return (
            {"stream": VECTOR, "busy": vector},
            {"stream": SCALAR, "busy": 110},
            {**moves, "stream": STORE, "after": [(0, SEEN)]},
            {**moves, "stream": LOAD, "finish": 200, "after": [(1, SEEN)]},
        )

    assert ends(rows(100)).result.visible == [100, 110, 260, 560]
    assert ends(rows(120)).result.visible == [120, 110, 370, 470]


def test_a_delay_may_gather_work_in_one_window_of_the_limiter():
    """Windows of 100; half rate while cold; 50 of full-speed work in a window warm the next.

    The first multiply needs 50, the second 100 from 200 on.  Begun at 80 the first does 10 of its
    work in window 0 and 40 in window 1 (to 180): window 2 is cold, the second does 50 in it, which
    warms window 3, and ends at 350.  Begun at 100 it does 50 in window 1: the second ends at 300.
    """
    rates = RATES._replace(window_ns=100.0, warm_share=0.5, cold_rate=0.5)

    def rows(first):
        return (
            {"stream": VECTOR, "busy": first, "latency": 0},
            {"stream": VECTOR, "busy": 190 - first},
            {"stream": TENSOR, "busy": 50, "after": [(0, SEEN)]},
            {"stream": TENSOR, "busy": 100, "after": [(1, SEEN)]},
        )

    early, late = ends(rows(70), rates).result, ends(rows(90), rates).result
    assert (early.end[2:], late.end[2:]) == ([180, 350], [200, 300])
