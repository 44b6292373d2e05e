"""Pipeline schedules: every piece once, in an order that can run, with the bubble they promise."""

import pytest

from opentrn.base import UsageError
from opentrn.workloads import Pipeline

SHAPES = [(1, 3, 1), (4, 4, 1), (4, 8, 1), (3, 7, 1), (8, 3, 1), (4, 8, 2), (4, 4, 3), (2, 6, 5)]


def makespan(p: Pipeline, forward: float, backward: float) -> float:
    """Run the orders of all stages: a piece waits for its neighbour's; returns the last end."""
    orders = [list(p.order(stage)) for stage in range(p.stages)]
    end, clock, at = {}, [0.0] * p.stages, [0] * p.stages
    total = sum(map(len, orders))
    while len(end) < total:
        moved = False
        for stage in range(p.stages):
            while at[stage] < len(orders[stage]):
                work = orders[stage][at[stage]]
                need = before(p, stage, work)
                if need is not None and need not in end:
                    break
                start = max(clock[stage], end.get(need, 0.0))
                clock[stage] = start + (forward if work.forward else backward)
                end[stage, work] = clock[stage]
                at[stage] += 1
                moved = True
        assert moved, "deadlock"
    return max(clock)


def before(p: Pipeline, stage: int, work):
    last = p.stages - 1
    if work.forward:
        if stage:
            return stage - 1, work
        return (last, work._replace(chunk=work.chunk - 1)) if work.chunk else None
    if stage < last:
        return stage + 1, work
    if work.chunk < p.chunks - 1:
        return 0, work._replace(chunk=work.chunk + 1)
    return stage, work._replace(forward=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_piece_is_done_once_each_way(shape):
    p = Pipeline(*shape)
    wanted = {(f, b, c) for f in (True, False) for b in range(p.batches) for c in range(p.chunks)}
    for stage in range(p.stages):
        order = p.order(stage)
        assert len(order) == len(wanted)
        assert {tuple(work) for work in order} == wanted


@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_takes_work_plus_bubble(shape):
    p = Pipeline(*shape)
    if p.batches < p.stages:
        return
    work = p.batches * p.chunks * 3.0
    assert makespan(p, 1.0, 2.0) == pytest.approx(work * (1 + p.bubble))


def test_in_flight_is_what_a_walk_through_the_order_holds():
    for shape in SHAPES:
        p = Pipeline(*shape)
        for stage in range(p.stages):
            held = most = 0
            for work in p.order(stage):
                held += 1 if work.forward else -1
                most = max(most, held)
            assert most == p.in_flight(stage)


def test_impossible_schedules_are_refused():
    with pytest.raises(UsageError):
        Pipeline(4, 6, 2)
    with pytest.raises(UsageError):
        Pipeline(0, 6)
