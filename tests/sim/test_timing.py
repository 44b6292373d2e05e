"""The schedule: hand-computed cases, its laws on random columns, and the compiled twin."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.sim import timing
from opentrn.sim.timing import DMA, ENGINE, FREED, HBM, OWN, QUEUE, SEEN, SEMAPHORE, Columns, Rates

TENSOR, VECTOR, SCALAR, GPSIMD, SYNC = range(5)
LOAD, STORE = timing.queue_number(SYNC, 0), timing.queue_number(SYNC, 1)
# No current limiter unless a test is about it.
RATES = Rates(
    semaphore_ns=10.0, window_ns=1000.0, warm_share=0.4, cold_rate=1.0, issue_ns=25.0,
    stagger_ns=0.0, dma_engines=16,
)  # fmt: skip


def columns(*rows) -> Columns:
    """Columns from dictionaries; `after` lists (producer, kind)."""
    found = {name: [] for name in Columns._fields}
    found["dep_start"].append(0)
    zero = dict.fromkeys(("latency", "background", "setup", "lead", "move", "finish", "hbm"), 0)
    whole = {"first": 0, "count": 16, "ports": 0, "cells": 0, "priority": 0}
    for row in rows:
        row = {**zero, **whole, "share": 1, "after": (), **row}
        for name in Columns._fields[:-2]:
            value = row[name]
            found[name].append(value if name in ("stream", *whole) else float(value))
        found["dep"] += [4 * producer + kind for producer, kind in row["after"]]
        found["dep_start"].append(len(found["dep"]))
    return Columns(**found)


def run(*rows, rates=RATES):
    return timing.schedule(columns(*rows), rates)


# ---------------------------------------------------------------------- by hand


def test_one_engine_runs_in_order_without_gaps():
    s = run({"stream": VECTOR, "busy": 100}, {"stream": VECTOR, "busy": 50})
    assert s.start == [0, 100]
    assert s.end == [100, 150]
    assert (s.binding[1], s.reason[1]) == (0, ENGINE)


def test_a_transfer_does_not_pass_the_one_before_it_in_its_queue():
    slow = {"stream": LOAD, "busy": 50, "lead": 900, "move": 100}
    quick = {"busy": 50, "lead": 100, "move": 100}
    assert run(slow, {**quick, "stream": LOAD}).start == [950, 1050]  # behind it, as rings are full
    assert run(slow, {**quick, "stream": STORE}).start == [950, 200]  # of another queue: it may


def test_a_result_is_seen_after_latency_and_across_engines_a_semaphore():
    first = {"stream": VECTOR, "busy": 100, "latency": 30}
    s = run(
        first,
        {"stream": VECTOR, "busy": 10, "after": [(0, OWN)]},
        {"stream": SCALAR, "busy": 10, "after": [(0, SEEN)]},
        {"stream": GPSIMD, "busy": 10, "after": [(0, FREED)]},
    )
    assert s.start == [0, 140, 140, 110]
    assert s.reason[1:] == [timing.DATA, SEMAPHORE, SEMAPHORE]


def test_results_of_one_engine_become_visible_in_order():
    s = run(
        {"stream": VECTOR, "busy": 10, "latency": 500},
        {"stream": VECTOR, "busy": 10},
        {"stream": SCALAR, "busy": 1, "after": [(1, SEEN)]},
    )
    assert s.visible[1] == 510
    assert s.start[2] == 520


def test_a_stationary_load_hides_behind_the_multiply_before_it():
    short = [{"stream": TENSOR, "busy": 100, "background": 30}] * 3
    assert run(*short).start == [30, 130, 230]
    # Loads longer than multiplies: the chain of loads sets the pace.
    long = [{"stream": TENSOR, "busy": 20, "background": 50}] * 3
    assert run(*long).start == [50, 100, 150]


def test_the_current_limiter_follows_the_work_of_the_window_before():
    rates = RATES._replace(cold_rate=0.5)
    # A fully used cold window of 1000 ns does 500 ns of work, more than 400: then full speed.
    s = run(*[{"stream": TENSOR, "busy": 400}] * 3, rates=rates)
    assert s.end == [800, 1000 + (400 - 100), 1300 + 400]
    # Only 380 ns of work in the first window: the second is cold as well.
    late = {"stream": VECTOR, "busy": 1990}
    s = run(
        late, {"stream": TENSOR, "busy": 380},
        {"stream": TENSOR, "busy": 100, "after": [(0, SEEN)]}, rates=rates,
    )  # fmt: skip
    assert (s.end[1], s.start[2], s.end[2]) == (760, 2000, 2200)


def test_a_window_with_too_little_work_slows_the_next_one():
    rates = RATES._replace(cold_rate=0.5)
    for work, expected in ((390, 200), (410, 100)):
        # 500 ns in window 0 (cold), then `work` in window 1 (warm), then 100 ns in window 2.
        late = {"stream": VECTOR, "busy": 1990}
        s = run(
            late, {"stream": TENSOR, "busy": 500 + work},
            {"stream": TENSOR, "busy": 100, "after": [(0, SEEN)]}, rates=rates,
        )  # fmt: skip
        assert s.end[1] == 1000 + work
        assert s.end[2] - s.start[2] == expected


def test_work_on_few_rows_counts_less():
    rates = RATES._replace(cold_rate=0.5)
    whole, quarter = ({"stream": TENSOR, "busy": 600, "share": share} for share in (1.0, 0.25))
    # 500 ns of work end the first window; then 100 ns at full or at half speed.
    assert run(whole, rates=rates).end == [1100]
    assert run(quarter, rates=rates).end == [1200]


# ---------------------------------------------------------------------- ports, cells, tables


def test_engines_take_turns_at_a_shared_port():
    s = run(
        {"stream": VECTOR, "busy": 100, "ports": 1},
        {"stream": GPSIMD, "busy": 300, "ports": 1},
        {"stream": VECTOR, "busy": 50},
        {"stream": VECTOR, "busy": 50, "ports": 1},
        {"stream": SCALAR, "busy": 70, "ports": 2},
    )
    assert s.start == [0, 100, 100, 400, 0]
    assert (s.binding[1], s.reason[1], s.since[1]) == (0, timing.PORT, 100)
    assert (s.binding[3], s.reason[3], s.since[3]) == (1, timing.PORT, 400)


def test_an_instruction_asks_for_a_port_when_its_engine_has_come_to_it():
    # The Vector Engine's second instruction is ready at 0 but reached at 200; GpSimd is first.
    s = run(
        {"stream": VECTOR, "busy": 200},
        {"stream": VECTOR, "busy": 50, "ports": 1},
        {"stream": SYNC, "busy": 140},
        {"stream": GPSIMD, "busy": 100, "ports": 1, "after": [(2, SEEN)]},
    )
    assert s.start == [0, 250, 0, 150]
    assert s.reason[1] == timing.PORT


def test_multiplies_on_different_cells_run_side_by_side():
    left, right = 0x3333, 0xCCCC  # columns 0 and 1, columns 2 and 3 of four rows of cells
    one = {"stream": TENSOR, "busy": 100}
    s = run({**one, "cells": left}, {**one, "cells": right}, {**one, "cells": left},
            {**one, "cells": 0xFFFF})  # fmt: skip
    # Starts are at least 25 ns apart; the third needs the first one's cells, the last all.
    assert s.start == [0, 25, 100, 200]
    assert s.end[3] == 300


def test_loading_a_table_needs_the_engine_but_not_the_data():
    load = {"stream": SCALAR, "busy": 100, "setup": 1000}
    first = {"stream": VECTOR, "busy": 700}
    s = run(first, {**load, "after": [(0, SEEN)]}, {"stream": SCALAR, "busy": 10}, load)
    assert s.start[1:] == [1000, 1100, 1110 + 1000]
    s = run({**first, "busy": 3000}, {**load, "after": [(0, SEEN)]})
    assert s.start[1] == 3010


def test_cores_have_their_own_engines_and_share_hbm():
    rates = RATES._replace(cores=2)
    other = timing.STREAMS
    load = {"busy": 100, "lead": 0, "move": 200, "count": 1, "hbm": 300}
    s = run(
        {"stream": VECTOR, "busy": 100, "ports": 1},
        {"stream": LOAD, **load},
        {"stream": other + GPSIMD, "busy": 50, "ports": 1},
        {"stream": other + LOAD, **load},
        {"stream": other + VECTOR, "busy": 5, "after": [(0, SEEN)]},
        rates=rates,
    )
    assert s.start[:4] == [0, 100, 0, 100]
    assert s.end == [100, 400, 50, 700, 115]
    assert (s.binding[3], s.reason[3]) == (1, HBM)


def test_a_transfer_is_issued_then_started_then_moved():
    s = run(
        {"stream": LOAD, "busy": 100, "lead": 900, "move": 400, "finish": 50},
        {"stream": VECTOR, "busy": 10, "after": [(0, SEEN)]},
    )
    assert (s.issue[0], s.start[0], s.end[0], s.visible[0]) == (0, 1000, 1400, 1450)
    assert (s.start[1], s.reason[1]) == (1460, DMA)


def test_dma_engines_serve_in_order_of_arrival():
    one = {"stream": LOAD, "busy": 100, "lead": 0, "move": 1000}
    s = run({**one, "count": 8}, {**one, "count": 4, "first": 6}, {**one, "count": 4, "first": 12})
    # The second needs engines 6 to 9: two are busy until 1100, two are free when it arrives.
    assert s.end == [1100, 2100, 1300]
    assert s.start == [100, 200, 300]
    assert (s.binding[1], s.reason[1], s.since[1]) == (0, QUEUE, 1100)


def test_the_engines_of_a_transfer_begin_one_after_another():
    rates = RATES._replace(stagger_ns=10.0)
    one = {"stream": LOAD, "busy": 100, "move": 400}
    s = run({**one, "count": 4}, {**one, "count": 2, "first": 3}, rates=rates)
    # Engine 3 begins 30 ns after engine 0, at 130, and is busy until 530 for the second transfer.
    assert (s.start[0], s.end[0]) == (100, 530)
    assert (s.start[1], s.end[1], s.since[1]) == (210, 930, 530)


def test_a_store_that_waits_does_not_hold_back_a_later_load():
    move = {"busy": 100, "lead": 0, "move": 500}
    s = run(
        {"stream": VECTOR, "busy": 5000},
        {"stream": STORE, **move, "after": [(0, SEEN)]},
        {"stream": LOAD, **move},
    )
    assert s.end[2] == 600
    assert s.issue[1] == 5010


def test_hbm_serves_the_bytes_of_all_transfers():
    one = {"stream": LOAD, "busy": 0, "move": 100, "count": 1, "hbm": 300}
    s = run(one, {**one, "first": 1})
    assert s.end == [300, 600]
    assert (s.binding[1], s.reason[1]) == (0, HBM)


def test_issuing_takes_time_of_the_engine():
    issue = {"stream": timing.queue_number(SCALAR, 0), "busy": 500, "move": 10}
    s = run(issue, {"stream": SCALAR, "busy": 100}, issue)
    assert (s.issue[0], s.start[1], s.issue[2]) == (0, 500, 600)


def test_an_empty_program_takes_no_time():
    assert timing.schedule(columns(), RATES).end == []


# ---------------------------------------------------------------------- laws on random columns


def random_columns(seed: int, n: int = 60) -> Columns:
    rng = random.Random(seed)
    rows = []
    for i in range(n):
        stream = rng.choice([0, 0, 1, 1, 2, 3, 4, LOAD, STORE, timing.queue_number(SCALAR, 0)])
        dma = stream >= 5
        row = {
            "stream": stream,
            "busy": rng.choice([0, 64, 100, 533.3]),
            "latency": 0 if dma else rng.choice([0, 60, 165.5]),
            "background": rng.choice([0, 13.3, 200]) if stream == 0 else 0,
            "setup": rng.choice([0, 0, 0, 320.7]) if stream == 2 else 0,
            "ports": rng.choice([0, 0, 1, 2, 5]) if stream in (1, 2, 3) else 0,
            "share": rng.choice([1, 1, 0.25]) if stream == 0 else 1,
            "lead": rng.choice([0, 750, 1180]) if dma else 0,
            "move": rng.choice([97, 186.7, 900]) if dma else 0,
            "hbm": rng.choice([0, 90, 700]) if dma else 0,
            "finish": rng.choice([0, 40]) if dma else 0,
            "first": rng.randrange(16),
            "count": rng.choice([1, 4, 16]),
        }
        after = {rng.randrange(max(0, i - 12), i) for _ in range(rng.randrange(3))} if i else ()
        kinds = []
        for producer in sorted(after):
            same = rows[producer]["stream"] == stream and not dma
            kinds.append((producer, OWN if same else rng.choice([SEEN, SEEN, FREED])))
        rows.append({**row, "after": kinds})
    return columns(*rows)


def waits(c: Columns):
    """(consumer, producer, kind) of every dependence."""
    for i in range(len(c.stream)):
        for code in c.dep[c.dep_start[i] : c.dep_start[i + 1]]:
            yield i, code >> 2, code & 3


def occupations(c: Columns, s) -> dict[int, list[tuple[float, float]]]:
    """When each engine works or issues."""
    found = {engine: [] for engine in range(5)}
    for i, stream in enumerate(c.stream):
        end = s.issue[i] + c.busy[i] if stream >= 5 else s.end[i]
        found[timing.engine_of(stream)].append((s.issue[i], end))
    return found


COLD = RATES._replace(cold_rate=0.5, stagger_ns=9.7)


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_every_dependence_is_respected(seed):
    c = random_columns(seed)
    for columns_, rates in ((c, COLD), (doubled(c), COLD._replace(cores=2))):
        s = timing.schedule(columns_, rates)
        for i, p, kind in waits(columns_):
            engine = not timing.is_queue(columns_.stream[p])
            end = s.end[p] if kind == FREED and engine else s.visible[p]
            assert s.issue[i] >= end + rates.semaphore_ns


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_engines_run_one_at_a_time_and_streams_in_order(seed):
    c = random_columns(seed)
    s = timing.schedule(c, COLD)
    for spans in occupations(c, s).values():
        spans.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    for stream in set(c.stream):
        starts = [s.issue[i] for i in range(len(c.stream)) if c.stream[i] == stream]
        assert starts == sorted(starts)


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_total_is_no_less_than_any_resource_or_path_needs(seed):
    c = random_columns(seed)
    s = timing.schedule(c, COLD)
    total, n = max(s.visible), len(c.stream)
    for engine in range(5):
        own = [c.busy[i] for i in range(n) if timing.engine_of(c.stream[i]) == engine]
        assert total >= sum(own) - 1e-6
    rings = np.zeros(16)
    for i in range(n):
        if c.stream[i] >= 5:
            rings[[k % 16 for k in range(c.first[i], c.first[i] + c.count[i])]] += c.move[i]
    assert total >= rings.max() - 1e-6
    assert total >= sum(c.hbm) - 1e-6
    longest = [0.0] * n
    for i, p, _ in waits(c):
        longest[i] = max(longest[i], longest[p] + c.busy[p] + c.lead[p] + c.move[p])
    assert total >= max(longest) - 1e-6


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_what_bound_an_instruction_explains_its_start(seed):
    c = random_columns(seed)
    s = timing.schedule(c, COLD)
    for i, (p, reason) in enumerate(zip(s.binding, s.reason, strict=True)):
        assert s.since[i] <= s.end[i]
        if reason == timing.NOTHING:
            assert s.since[i] == 0.0
        elif reason in (SEMAPHORE, DMA, timing.DATA):
            passed = (s.end[p] + COLD.semaphore_ns, s.visible[p] + COLD.semaphore_ns)
            assert s.since[i] in passed
        elif reason == timing.PORT:
            assert s.since[i] == s.end[p]
            assert c.ports[i] & c.ports[p]
        elif reason == ENGINE:
            assert s.since[i] in (s.end[p], s.issue[p], s.issue[p] + c.busy[p])


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_a_port_serves_one_instruction_at_a_time(seed):
    c = random_columns(seed)
    s = timing.schedule(c, COLD)
    for bit in range(3):
        users = [i for i in range(len(c.stream)) if c.ports[i] >> bit & 1]
        spans = sorted((s.start[i], s.end[i]) for i in users)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_cells_serve_one_multiply_at_a_time_and_starts_are_in_order(seed):
    c = tiled(random_columns(seed), seed)
    s = timing.schedule(c, COLD)
    multiplies = [i for i in range(len(c.stream)) if c.stream[i] == TENSOR]
    starts = [s.start[i] for i in multiplies]
    assert all(b - a >= COLD.issue_ns - 1e-6 for a, b in pairwise(starts))
    for bit in range(16):
        spans = sorted((s.start[i], s.end[i]) for i in multiplies if c.cells[i] >> bit & 1)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def tiled(c: Columns, seed: int) -> Columns:
    """The same columns with every multiply on some part of the PE array."""
    rng = random.Random(seed)
    cells = [rng.choice([0xFFFF, 0x3333, 0xCCCC, 0x00FF, 1, 2]) if s == 0 else 0 for s in c.stream]
    return c._replace(cells=cells)


def doubled(c: Columns) -> Columns:
    """The columns on two cores, each one's row 20 waiting for the other's row 10."""
    n = len(c.stream)
    twice = {name: column + column for name, column in zip(c._fields, c, strict=True)}
    twice["stream"] = c.stream + [s + timing.STREAMS for s in c.stream]
    dep, starts = [], [0]
    for core in range(2):
        for i in range(n):
            own = c.dep[c.dep_start[i] : c.dep_start[i + 1]]
            dep += [code + 4 * n * core for code in own]
            if i == 20:
                dep.append(4 * (10 + n * (1 - core)) + SEEN)
            starts.append(len(dep))
    return Columns(**{**twice, "dep_start": starts, "dep": dep})


@given(st.integers(0, 10**9))
@settings(max_examples=40, deadline=None)
def test_compiled_and_plain_schedules_are_equal_bit_by_bit(seed):
    pytest.importorskip("numba", reason="the extra `fast` is not installed")
    from opentrn.sim import timing_fast

    c = random_columns(seed, 120)
    two = COLD._replace(cores=2)
    for columns_, rates in ((c, COLD), (tiled(c, seed), COLD), (doubled(c), two)):
        plain, fast = timing.schedule(columns_, rates), timing_fast.schedule(columns_, rates)
        for name, a, b in zip(plain._fields, plain, fast, strict=True):
            assert np.array_equal(np.asarray(a), b), name
