"""The compiled search for waits finds the waits of the plain one, one by one."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import CapacityError, bfloat16, float32, int32
from opentrn.isa import engine as engines
from opentrn.isa import view_of
from opentrn.sim import timeline
from opentrn.sim.accesses import accesses_of
from opentrn.sim.depend import dependencies
from opentrn.sim.place import lifetimes, place
from opentrn.sim.timeline import prepare
from tests.sim.programs import TRN2, Writer, matmul
from tests.sim.test_depend import Small, random_program

pytest.importorskip("numba", reason="the extra `fast` is not installed")

ON = (engines.vector, engines.scalar, engines.gpsimd)


def part(rng, buffer):
    """All of a buffer or a part: rows, columns, every second column."""
    view, (rows, columns) = view_of(buffer), buffer.shape
    kind = rng.randrange(5)
    if kind < 2:
        return view
    low = rng.randrange(0, columns, 8)
    high = rng.randrange(low + 8, columns + 8, 8)
    top = rng.choice([n for n in (0, 32, 64, 96) if n < rows])
    cut = view[top : min(rows, top + 32)] if kind > 2 else view
    return cut.slice(1, low % 2, high - low, 2) if kind == 4 else cut[:, low:high]


def mixed_program(seed: int):
    """Copies between parts of tiles of all heights, transfers, and products in PSUM."""
    rng, w = random.Random(seed), Writer()
    hbm = [w.buffer("hbm", (128, 64)) for _ in range(2)]
    given = w.buffer("hbm", (128, 64), kind="input")
    w.builder.inputs = [given]
    pool, sums = [], []
    for _ in range(rng.randrange(10, 90)):
        if len(pool) < 3 or rng.random() < 0.2:
            rows = rng.choice([32, 64, 128])
            pool.append(w.buffer("sbuf", (rows, 64), rng.choice([bfloat16, float32])))
        del pool[: max(0, len(pool) - 5)]
        one, other = part(rng, rng.choice(pool)), part(rng, rng.choice(pool))
        what = rng.random()
        if what < 0.25:
            left, right = (w.buffer("sbuf", (32, 64)) for _ in range(2))
            if not sums or rng.random() < 0.5:
                sums = [w.buffer("psum", (64, 64), float32)]
            w.load(left, view_of(given)[0:32])
            w.load(right, view_of(rng.choice(hbm))[0:32])
            for _ in range(rng.randrange(1, 3)):
                w.add("nc_matmul", dst=sums[0], stationary=left, moving=right)
            w.copy(pool[-1] if pool[-1].shape == (64, 64) else w.buffer("sbuf", (64, 64)), sums[0])
            continue
        far = part(rng, rng.choice([*hbm, given]))
        rows = min(one.shape[0], (far if what < 0.5 else other).shape[0])
        columns = min(one.shape[1], (far if what < 0.5 else other).shape[1])
        one, other, far = (v[0:rows, 0 : min(columns, v.shape[1])] if v.shape[0] >= rows else v
                           for v in (one, other, far))  # fmt: skip
        if what < 0.5 and far.shape == one.shape:
            writes = far.buffer is not given and rng.random() < 0.5
            w.load(far, one) if writes else w.load(one, far)
        elif what >= 0.5 and one.shape == other.shape:
            w.copy(one, other, engine=rng.choice(ON))
    return w.program()


def check(program, chip) -> None:
    """Tables and compiled code say what the plain search says."""
    from opentrn.sim import accesses_fast, place_fast, waits_fast

    try:
        placement = place(program, chip)
    except CapacityError:
        return
    table, plain = accesses_fast.accesses_of(program), accesses_of(program)
    assert table.lifetimes() == lifetimes(program) == plain.lifetimes()
    assert list(table.views) == list(plain.views)
    assert list(table.buffers) == [table.buffers[n] for n in range(len(table.buffers))]
    assert list(table.buffers) == plain.buffers
    for name in ("forms", "sorts", "fixed"):
        assert getattr(table, name) == getattr(plain, name), name
    for name in ("form", "start", "writes", "way", "buffer", "sort", "ids", "first", "last"):
        assert np.array_equal(getattr(table, name), getattr(plain, name)), name
    tabled = place_fast.place(program, chip, table)
    for name in ("slots", "peak_bytes", "peak_at", "findings", "bank", "apart"):
        assert getattr(tabled, name) == getattr(placement, name), name
    plain = dependencies(program, placement, chip)
    fast = waits_fast.dependencies(program, tabled, chip, table)
    assert [one is two for one, two in zip(plain.instances, fast.instances, strict=True)]
    assert plain.rows == fast.rows
    for name in ("row", "position", "dep_start", "dep", "bank_at", "bank_bits"):
        assert np.array_equal(getattr(plain, name), getattr(fast, name)), name


@given(st.integers(0, 10**9), st.sampled_from([512, 1024, 4096]))
@settings(max_examples=100, deadline=None)
def test_the_waits_are_equal_where_bytes_are_used_again(seed, sbuf):
    check(random_program(seed), Small(sbuf))


@given(st.integers(0, 10**9), st.sampled_from([1024, 2048, 4096, 65536]))
@settings(max_examples=100, deadline=None)
def test_the_waits_are_equal_for_parts_transfers_and_products(seed, sbuf):
    check(mixed_program(seed), Small(sbuf))


def wide_products(seed: int):
    """Products into parts of tiles of one bank and of several, and copies from them."""
    rng, w = random.Random(seed), Writer()
    left = w.buffer("sbuf", (128, 128))
    w.add("memset", dst=left, value=1.0)
    sums = []
    for _ in range(rng.randrange(4, 24)):
        if not sums or rng.random() < 0.3:
            sums.append(w.buffer("psum", (128, rng.choice([256, 512, 1024, 2048])), float32))
        tile = rng.choice(sums[-2:])
        columns = tile.shape[1]
        low = rng.randrange(0, columns, 256)
        view = view_of(tile)[:, low : min(columns, low + rng.choice([128, 256]))]
        right = w.buffer("sbuf", (128, view.shape[1]))
        w.add("memset", dst=right, value=2.0)
        w.add("nc_matmul", dst=view, stationary=left, moving=right)
        if rng.random() < 0.5:
            w.copy(w.buffer("sbuf", (128, columns), float32), tile, engine=rng.choice(ON[:2]))
    return w.program()


@given(st.integers(0, 10**9))
@settings(max_examples=50, deadline=None)
def test_the_banks_are_equal_for_tiles_of_several(seed):
    check(wide_products(seed), Small(65536))


def test_a_tiled_product_has_the_same_trace():
    plain = timeline(matmul(), TRN2, fast=False)
    fast = timeline(matmul(), TRN2, fast=True)  # another program: nothing is remembered
    for a, b in zip(plain.schedule, fast.schedule, strict=True):
        assert np.array_equal(a, b)
    assert list(map(repr, plain.trace().rows())) == list(map(repr, fast.trace().rows()))


def test_where_objects_are_laid_out_otherwise_they_are_asked(monkeypatch):
    from opentrn.sim import accesses_fast

    read = timeline(matmul(), TRN2, fast=True)
    monkeypatch.setattr(accesses_fast, "layout", lambda: None)
    asked = timeline(matmul(), TRN2, fast=True)
    for a, b in zip(read.schedule, asked.schedule, strict=True):
        assert np.array_equal(a, b)


def test_a_slot_that_cannot_be_told_from_another_is_not_read():
    """None and small integers are held in many places: no word of the object is surely theirs."""
    from opentrn.sim.words import _place, layout

    pair, item = (7, 7), object()
    assert _place(pair, tuple.__basicsize__ + 16, 7) is None
    assert _place((item, 7), tuple.__basicsize__ + 16, item) == layout().items
    assert _place((item, 7), tuple.__basicsize__ + 16, object()) is None


def test_the_items_of_a_list_and_the_value_of_an_integer_are_where_they_are_read():
    from opentrn.sim.words import integers, layout, listed

    where, objects = layout(), [object() for _ in range(5)]
    assert listed(objects, where).tolist() == [id(one) for one in objects]
    values = [0, 1, 256, 77_777_777, 2**30 - 1, 2**30, 2**45 + 3, 2**60 - 1, 2**60, -1, -(2**40)]
    found, known = integers(np.array([id(one) for one in values]), where)
    assert known.tolist() == [True] * 8 + [False] * 3
    assert found[:8].tolist() == values[:8]


def test_what_the_table_does_not_know_is_left_to_the_plain_search():
    w = Writer()
    a = w.buffer("sbuf", (128, 64))
    w.add("memset", dst=a, value=0.0)
    w.builder.open_loop()
    w.copy(a, a)
    w.builder.close_loop(start=0, stop=4)
    program = w.program()
    assert accesses_of(program) is None
    assert len(prepare(program, TRN2, fast=True).flow) == len(prepare(w.program(), TRN2).flow) == 9

    w = Writer()
    low, high = (w.buffer("sbuf", (128, 64), address=64 * n) for n in range(2))
    w.add("memset", dst=low, value=0.0)
    w.copy(high, low)
    w.copy(low, high)
    program = w.program()
    fast, plain = (
        prepare(program, TRN2, fast=True),
        dependencies(program, place(program, TRN2), TRN2),
    )
    assert fast.flow.dep.tolist() == plain.dep.tolist() != []


def test_whoever_gathers_by_an_index_waits_for_its_writer_in_compiled_code_too():
    """A view with a runtime index reads the index as well, so the table does not know it."""
    from opentrn.sim import accesses_fast

    def gather():
        w = Writer()
        far = w.buffer("hbm", (256, 64), kind="input")
        w.builder.inputs = [far]
        rows, near = w.buffer("sbuf", (128, 1), int32), w.buffer("sbuf", (128, 64))
        w.add("memset", dst=rows, value=3)
        w.load(near, view_of(far).vector_select(0, view_of(rows)))
        return w.program()

    program = gather()
    assert accesses_of(program) is accesses_fast.accesses_of(program) is None
    flow = prepare(program, TRN2, fast=True).flow
    assert [int(code) >> 2 for code in flow.dep] == [0]
    assert flow.dep.tolist() == prepare(gather(), TRN2, fast=False).flow.dep.tolist()
