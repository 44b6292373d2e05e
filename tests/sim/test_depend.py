"""Waits: by hand, and against an oracle that looks at every byte."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import CapacityError, OrderError, UsageError, bfloat16, float32, int32
from opentrn.hw import chip as hw_chip
from opentrn.isa import Register, for_chip, view_of
from opentrn.isa import engine as engines
from opentrn.sim import timing
from opentrn.sim.depend import dependencies
from opentrn.sim.flatten import columns_of
from opentrn.sim.place import place
from opentrn.sim.timeline import rates_of
from opentrn.sim.timing import FREED, OWN, SEEN
from tests.sim.programs import TRN2, Writer, matmul


def flow_of(program, chip=TRN2, trips=()):
    return dependencies(program, place(program, chip), chip, trips)


def waits(flow) -> list[list[tuple[int, int]]]:
    """[(producer, kind)] of each instance."""
    codes = [flow.dep[a:b] for a, b in zip(flow.dep_start, flow.dep_start[1:], strict=False)]
    return [[(code >> 2, code & 3) for code in one] for one in codes]


# ---------------------------------------------------------------------- by hand


def test_read_after_write_and_write_after_read():
    w = Writer()
    a, b, c = (w.buffer("sbuf", (128, 64)) for _ in range(3))
    w.add("memset", dst=a, value=0.0)  # 0 vector
    w.copy(b, a, engine=engines.scalar)  # 1 reads a
    w.copy(c, a, engine=engines.vector)  # 2 reads a on the writer's engine
    w.add("memset", dst=a, value=0.0)  # 3 overwrites what 1 read
    assert waits(flow_of(w.program())) == [[], [(0, SEEN)], [(0, OWN)], [(1, FREED)]]


def test_disjoint_halves_do_not_wait():
    w = Writer()
    a, b = w.buffer("sbuf", (128, 64)), w.buffer("sbuf", (128, 64))
    left, right = view_of(a)[:, 0:32], view_of(a)[:, 32:64]
    w.add("memset", dst=left, value=0.0)  # 0 vector
    w.add("memset", dst=right, value=0.0, engine=engines.gpsimd)  # 1
    w.copy(view_of(b)[:, 0:32], left, engine=engines.scalar)  # 2
    w.copy(view_of(b)[:, 32:64], right, engine=engines.scalar)  # 3
    w.copy(a, b)  # 4 vector: all of both
    found = waits(flow_of(w.program()))
    assert found[:4] == [[], [], [(0, SEEN)], [(1, SEEN)]]
    assert found[4] == [(1, SEEN), (3, SEEN), (3, FREED)]


def test_interleaved_columns_do_not_wait():
    w = Writer()
    a, b = w.buffer("sbuf", (128, 64)), w.buffer("sbuf", (128, 32))
    w.add("memset", dst=view_of(a).slice(1, 0, 64, 2), value=0.0)
    w.copy(b, view_of(a).slice(1, 1, 64, 2), engine=engines.scalar)
    w.copy(b, view_of(a).slice(1, 0, 64, 2), engine=engines.scalar)
    assert waits(flow_of(w.program()))[1:] == [[], [(0, SEEN)]]


def test_accumulating_matmuls_follow_each_other_freely():
    found = waits(flow_of(matmul(m=128, k=256, n=512)))
    # 0 1 load, 2 matmul, 3 4 load, 5 matmul, 6 copy out of PSUM, 7 store
    assert found[2] == [(0, SEEN), (1, SEEN)]
    assert found[5] == [(3, SEEN), (4, SEEN)]
    assert found[6] == [(5, SEEN)]
    assert found[7] == [(6, SEEN)]


def test_a_stream_that_has_waited_once_does_not_wait_again():
    w = Writer()
    a = w.buffer("sbuf", (128, 64))
    w.load(a, w.buffer("hbm", (128, 64)))
    for _ in range(3):
        w.copy(w.buffer("sbuf", (128, 64)), a)
    assert waits(flow_of(w.program()))[1:] == [[(0, SEEN)], [], []]


def test_bytes_used_again_wait_for_their_last_accesses():
    w = Writer()
    a, b, c = (w.buffer("sbuf", (128, 64)) for _ in range(3))
    out = w.buffer("hbm", (128, 64))
    w.add("memset", dst=a, value=0.0)  # 0 vector
    w.load(out, a)  # 1 a dies
    w.add("memset", dst=b, value=0.0)  # 2 vector
    w.add("memset", dst=c, value=0.0, engine=engines.gpsimd)  # 3: c lies where a was
    w.copy(b, c)
    program = w.program()
    core = SimpleNamespace(sbuf_usable=256, sbuf_alignment=4, psum_banks=8, psum_bank=2048,
                           psum_alignment=4, sbuf_partition=256, psum_partition=16384)  # fmt: skip
    found = place(program, SimpleNamespace(core=core, name="small"))
    assert found.slots[a].address == found.slots[c].address != found.slots[b].address
    assert waits(dependencies(program, found, TRN2))[3] == [(1, FREED)]


def test_tiles_beside_each_other_do_not_wait_and_those_that_take_over_do():
    w = Writer()
    # Each takes all bytes of a quadrant: three lie beside each other.
    low, middle, high = (w.buffer("sbuf", (32, 128), bfloat16) for _ in range(3))
    for tile in (low, middle, high, low, middle, high):  # instructions 0 to 5
        w.add("memset", dst=tile, value=0.0, engine=engines.gpsimd)
    wide = w.buffer("sbuf", (128, 128), bfloat16)
    w.add("memset", dst=wide, value=0.0, engine=engines.vector)  # 6 takes all of them over
    again = w.buffer("sbuf", (32, 128), bfloat16)
    w.add("memset", dst=again, value=0.0, engine=engines.gpsimd)  # 7
    program, chip = w.program(), Small(256)
    placement = place(program, chip)
    starts = {placement.slots[tile].partition for tile in (low, middle, high)}
    assert len(starts) == 3
    flow = dependencies(program, placement, chip)
    waits = [{code >> 2 for code in flow.dep[a:b]}
             for a, b in zip(flow.dep_start, flow.dep_start[1:], strict=False)]  # fmt: skip
    assert waits == [set(), set(), set(), set(), set(), set(), {5}, {6}]


def test_a_tile_of_a_loop_takes_its_bytes_back_in_each_iteration():
    w = Writer()
    a, b = (w.buffer("sbuf", (128, 64)) for _ in range(2))
    out = w.buffer("hbm", (128, 64))
    w.builder.open_loop()
    w.add("memset", dst=a, value=0.0)  # 0 vector
    w.load(out, a)  # 1
    w.add("memset", dst=b, value=0.0, engine=engines.gpsimd)  # 2: b lies where a was
    w.load(out, b)  # 3
    w.builder.close_loop(start=0, stop=2)
    program = w.program()
    core = SimpleNamespace(sbuf_usable=128, sbuf_alignment=4, psum_banks=8, psum_bank=2048,
                           psum_alignment=4, sbuf_partition=128, psum_partition=16384)  # fmt: skip
    flow = dependencies(program, place(program, SimpleNamespace(core=core, name="small")), TRN2)
    assert flow.position.tolist() == [-1, -1, -1, 0, 1, 2, 3] * 2
    # The second memset of a waits for the store that reads b (which waited for b's memset).
    assert waits(flow)[7 + 3] == [(6, FREED)]


def test_explicit_addresses_really_alias():
    w = Writer()
    a = w.buffer("sbuf", (128, 64), float32, address=0)
    b = w.buffer("sbuf", (128, 128), bfloat16, address=0)
    for _ in range(2):
        w.add("memset", dst=a, value=0.0)  # vector
        w.copy(w.buffer("sbuf", (128, 128)), b, engine=engines.scalar)
        w.copy(w.buffer("sbuf", (128, 128)), b, engine=engines.gpsimd)
    found = waits(flow_of(w.program()))
    assert found[1:3] == [[(0, SEEN)], [(0, SEEN)]]
    assert found[3] == [(1, FREED), (2, FREED)]
    assert found[4:] == [[(3, SEEN)], [(3, SEEN)]]


def test_hbm_written_and_read_back_waits_tile_by_tile():
    w = Writer()
    scratch = w.buffer("hbm", (256, 1024))
    tiles = [(r, c) for r in (0, 128) for c in range(0, 1024, 64)]
    for r, c in tiles:
        w.load(view_of(scratch)[r : r + 128, c : c + 64], w.buffer("sbuf", (128, 64)))
    for r, c in tiles:
        w.load(w.buffer("sbuf", (128, 64)), view_of(scratch)[r : r + 128, c : c + 64])
    found = waits(flow_of(w.program()))
    assert all(not one for one in found[:32])
    assert found[32:] == [[(n, SEEN)] for n in range(32)]


def test_hbm_read_back_in_other_tiles_waits_for_those_it_meets():
    w = Writer()
    scratch = w.buffer("hbm", (128, 2048))
    for c in range(0, 2048, 64):
        w.load(view_of(scratch)[:, c : c + 64], w.buffer("sbuf", (128, 64)))
    for c in (32, 512, 2016):
        end = min(c + 64, 2048)
        w.load(w.buffer("sbuf", (128, end - c)), view_of(scratch)[:, c:end])
    w.load(w.buffer("sbuf", (16, 2048)), view_of(scratch)[16:32, :])
    found = waits(flow_of(w.program()))
    # One queue, in order: what it has waited for once it does not wait for again.
    assert found[32:35] == [[(0, SEEN), (1, SEEN)], [(8, SEEN)], [(31, SEEN)]]
    assert found[35] == [(n, SEEN) for n in range(32) if n not in (0, 1, 8, 31)]


def test_registers_and_runtime_indices_order_instructions():
    w = Writer()
    table, row = w.buffer("hbm", (16, 128)), w.buffer("sbuf", (1, 1), int32)
    out = w.buffer("sbuf", (1, 128))
    register = Register(0)
    w.add("memset", dst=row, value=3)  # 0 vector
    w.add("register_load", dst=register, src=row)  # 1 sync
    w.load(out, view_of(table).select(0, register))  # 2 issued by sync
    found = waits(flow_of(w.program()))
    assert found[1] == [(0, SEEN)]
    assert (1, OWN) in found[2]


def test_an_explicit_dependence_is_a_wait():
    w = Writer()
    a, b = w.buffer("sbuf", (128, 64)), w.buffer("sbuf", (128, 64))
    first = w.add("memset", dst=a, value=0.0)
    second = w.add("memset", dst=b, value=0.0, engine=engines.gpsimd)
    second.after = (first,)
    assert waits(flow_of(w.program()))[1] == [(0, SEEN)]


def looped(**bounds):
    w = Writer()
    a, b, source = (w.buffer(s, (128, 64)) for s in ("sbuf", "sbuf", "hbm"))
    w.builder.open_loop()
    w.load(a, source)
    w.copy(b, a)
    loop = w.builder.close_loop(**bounds)
    return w.program(), loop


@pytest.mark.parametrize("circle", [False, True])
def test_a_wait_for_what_comes_later_is_refused(circle):
    w = Writer()
    a, b = (w.buffer("sbuf", (128, 64)) for _ in range(2))
    first = w.add("memset", dst=a, value=0.0)
    second = w.add("memset", dst=b, value=0.0, engine=engines.gpsimd)
    first.after = (second,)
    second.after = (first,) if circle else ()
    with pytest.raises(OrderError, match="memset waits for memset at kernel.py:4") as refusal:
        flow_of(w.program())
    assert refusal.value.code == "sim.order_ahead"
    second.after, first.after = (second,), ()
    with pytest.raises(OrderError, match="does not come before it"):
        flow_of(w.program())


def test_explicit_waits_move_to_another_chip():
    w = Writer()
    a, b = (w.buffer("sbuf", (128, 64)) for _ in range(2))
    first = w.add("memset", dst=a, value=0.0)
    second = w.add("memset", dst=b, value=0.0, engine=engines.gpsimd)
    second.after = (first,)
    moved = for_chip(w.program(), hw_chip("trn3"))
    assert moved.body[1].after == (moved.body[0],)


def test_a_static_loop_is_unrolled_by_its_bounds():
    program, _ = looped(start=2, stop=8, step=3)
    flow = flow_of(program)
    # Each iteration: one branch for each engine that takes part (vector, sync), load, copy.
    assert flow.position.tolist() == [-1, -1, 0, 1] * 2
    found = waits(flow)
    branch = {2: 1, 6: 5}
    assert [found[n] for n in (2, 3)] == [[(branch[2], OWN)], [(2, SEEN)]]
    # The second load waits for its branch, the first load and the copy that read its tile.
    assert found[6] == [(2, SEEN), (3, FREED), (5, OWN)]


def test_a_loop_bounded_by_a_register_needs_its_trip_counts():
    program, loop = looped(start=0, stop=Register(0))
    with pytest.raises(UsageError) as caught:
        flow_of(program)
    assert caught.value.code == "sim.trips"
    assert len(flow_of(program, trips=[3]).instances) == 12
    assert len(flow_of(program, trips=[(loop, 2)]).instances) == 8


# ---------------------------------------------------------------------- against every byte


class Small:
    """trn2 with so little SBUF that bytes are used again and again."""

    def __init__(self, sbuf: int):
        self.core = SimpleNamespace(
            sbuf_usable=sbuf, sbuf_alignment=4, psum_banks=8, psum_bank=2048, psum_alignment=4,
            sbuf_partition=sbuf, psum_partition=16384,
        )  # fmt: skip

    def __getattr__(self, name):
        return getattr(TRN2, name)


def random_view(rng, buffer):
    """A whole tile, a range of columns, every second column, or (in HBM) a block."""
    view, n = view_of(buffer), buffer.shape[1]
    kind = rng.randrange(4)
    if kind == 0:
        return view
    low = rng.randrange(0, n, 8)
    high = rng.randrange(low + 8, n + 8, 8)
    if kind == 1 or buffer.on_chip:
        cut = view[:, low:high]
        return cut.slice(1, kind % 2, high - low, 2) if kind > 1 else cut
    rows = sorted(rng.sample(range(0, 33, 8), 2))
    return view[rows[0] : rows[1], low:high]


def random_program(seed: int):
    rng = random.Random(seed)
    w = Writer()
    hbm = [w.buffer("hbm", (32, 64)) for _ in range(2)]
    pool = []
    for _ in range(rng.randrange(20, 60)):
        if len(pool) < 3 or rng.random() < 0.25:
            pool.append(w.buffer("sbuf", (32, 64), rng.choice([bfloat16, float32])))
        if len(pool) > 5:
            pool.pop(0)
        src, dst = random_view(rng, rng.choice(pool)), random_view(rng, rng.choice(pool))
        if rng.random() < 0.4:
            src, dst = (src, dst) if rng.random() < 0.5 else (dst, src)
            far = random_view(rng, rng.choice(hbm))
            dst = far if rng.random() < 0.5 else dst
            src = far if dst is not far else src
        if src.shape[0] != dst.shape[0] or src.size > dst.size:
            continue
        dst = dst[:, 0 : src.shape[1]] if dst.shape != src.shape else dst
        if "hbm" in (src.space, dst.space):
            w.load(dst, src)
        else:
            chosen = rng.choice([engines.vector, engines.scalar, engines.gpsimd])
            w.copy(dst, src, engine=chosen)
    return w.program()


def bytes_of(view, slots) -> np.ndarray:
    """Physical bytes of a view, numbered (buffer or space apart)."""
    index = np.zeros(1, np.int64) + view.offset
    for stride, count in view.steps:
        index = (index[:, None] + stride * np.arange(count)).reshape(-1)
    item = view.dtype.itemsize
    flat = (index[:, None] * item + np.arange(item)).reshape(-1)
    buffer = view.buffer
    if buffer.space == "hbm":
        return flat + (buffer.id + 1) * 10**9
    row = buffer.free * buffer.dtype.itemsize
    partition, byte = np.divmod(flat, row)
    slot = slots[buffer]
    return (partition + slot.partition) * 10**5 + byte + slot.address


def required(program, slots) -> set[tuple[int, int, str]]:
    """(consumer, producer, why) for every conflict on a byte with the last accesses of it.

    What another tile left in a byte is not read by anybody who cares: no RAW between tiles.
    """
    writer, readers, found, owner = {}, {}, set(), {}
    for i, one in enumerate(program.instructions()):
        read_by = {b: v.buffer for v in one.reads() for b in bytes_of(v, slots).tolist()}
        written_by = {b: v.buffer for v in one.writes() for b in bytes_of(v, slots).tolist()}
        reads, writes = set(read_by), set(written_by)
        for byte in reads:
            if owner.get(byte) is read_by[byte]:
                found.add((i, writer[byte], "RAW"))
        for byte in writes:
            if byte in writer:
                found.add((i, writer[byte], "WAW"))
            found |= {(i, r, "WAR") for r in readers.get(byte, ())}
        owner.update(written_by)
        for byte in writes:
            writer[byte], readers[byte] = i, set()
        for byte in reads - writes:
            readers.setdefault(byte, set()).add(i)
    return found


@given(st.integers(0, 10**9), st.sampled_from([512, 1024, 4096]))
@settings(max_examples=60, deadline=None)
def test_every_conflict_on_a_byte_is_respected_in_time(seed, sbuf):
    program, chip = random_program(seed), Small(sbuf)
    try:
        found = place(program, chip)
    except CapacityError:
        return
    flow = dependencies(program, found, chip)
    c = columns_of(flow, chip)
    s = timing.schedule(timing.Columns(*(x.tolist() for x in c)), rates_of(chip))
    for i, p, why in required(program, found.slots):
        same = c.stream[i] == c.stream[p] and c.stream[i] < 5
        done = s.end[p] if why == "WAR" or (same and why == "WAW") else s.visible[p]
        assert s.issue[i] >= done + (0.0 if same else 35.9), (i, p, why)


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_without_reuse_every_wait_is_a_conflict_on_a_byte(seed):
    program = random_program(seed)
    found = place(program, TRN2)
    touched = {
        i: [
            ({b for v in views for b in bytes_of(v, found.slots).tolist()})
            for views in (one.reads(), one.writes())
        ]
        for i, one in enumerate(program.instructions())
    }
    for i, edges in enumerate(waits(dependencies(program, found, TRN2))):
        for p, kind in edges:
            reads, writes = touched[i]
            if kind == FREED:
                assert touched[p][0] & writes
            else:
                assert touched[p][1] & (reads | writes)
