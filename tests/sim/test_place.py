"""Placement: by hand, and its laws on random programs."""

import random
from itertools import combinations
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import CapacityError, UsageError, bfloat16, float32
from opentrn.isa import reduce_cmd, view_of
from opentrn.sim.place import lifetimes, place
from tests.sim.programs import TRN2, Writer

SBUF, BANK = 212984, 2048


def small(sbuf: int = SBUF, psum_banks: int = 8):
    """trn2 with less memory on chip."""
    core = SimpleNamespace(
        sbuf_usable=sbuf,
        sbuf_partition=229376,
        sbuf_alignment=4,
        psum_partition=16384,
        psum_banks=psum_banks,
        psum_bank=BANK,
        psum_alignment=4,
    )
    return SimpleNamespace(core=core, name="trn2")


def chain(w: Writer, count: int, space="sbuf", shape=(128, 512), dtype=bfloat16):
    """`count` tiles, each a copy of the one before: two live at a time."""
    tiles = [w.buffer(space, shape, dtype) for _ in range(count)]
    w.add("memset", dst=tiles[0], value=0.0)
    for a, b in zip(tiles, tiles[1:], strict=False):
        w.copy(b, a)
    return tiles


def test_tiles_are_placed_around_the_ring_before_bytes_are_used_again():
    w = Writer()
    tiles = chain(w, 12)  # 1,024 bytes per partition each
    found = place(w.program(), small(sbuf=4 * 1024))
    assert [found.slots[t].address for t in tiles] == [0, 1024, 2048, 3072] * 3
    assert found.peak_bytes["sbuf"] == 2048


def test_sizes_are_rounded_to_the_alignment():
    w = Writer()
    tiles = chain(w, 3, shape=(128, 3))
    found = place(w.program(), TRN2)
    assert [found.slots[t].address for t in tiles] == [0, 8, 16]


def test_accumulators_do_not_straddle_banks_and_large_ones_take_whole_banks():
    w = Writer()
    sizes = (300, 300, 512, 700, 10)  # float32: 1200, 1200, 2048, 2800, 40 bytes
    tiles = [w.buffer("psum", (128, n), float32) for n in sizes]
    for t in tiles:
        w.add("memset", dst=t, value=0.0)
    for t in tiles:
        w.add("memset", dst=t, value=0.0)
    found = place(w.program(), TRN2)
    assert [found.slots[t].address for t in tiles] == [0, 2048, 4096, 6144, 10240]
    assert [len(found.banks(t)) for t in tiles] == [1, 1, 1, 2, 1]
    growing = [(0, 1), (1, 2), (2, 3), (3, 5), (4, 6)]
    assert found.banks_used() == [*growing, (6, 5), (7, 4), (8, 3), (9, 1), (10, 0)]


def test_small_accumulators_share_a_bank():
    w = Writer()
    tiles = [w.buffer("psum", (128, 128), float32) for _ in range(4)]
    for t in tiles + tiles:
        w.add("memset", dst=t, value=0.0)
    assert place(w.program(), TRN2).banks_used() == [(0, 1), (8, 0)]


def test_sbuf_that_is_too_small_names_the_largest_tiles_alive():
    w = Writer()
    tiles = [w.buffer("sbuf", (128, 8192 + n), name=f"tile{n}") for n in range(14)]
    for t in tiles + tiles:
        w.add("memset", dst=t, value=0.0)
    with pytest.raises(CapacityError) as caught:
        place(w.program(), TRN2)
    error = caught.value
    assert error.code == "sim.sbuf_capacity"
    total = sum(2 * (8192 + n) + (2 * (8192 + n)) % 4 for n in range(14))
    lines = error.what.splitlines()
    assert f"{total:,} bytes per partition, 212,984 are usable" in lines[0]
    assert "16,412 B  tile13 [128, 8205] bfloat16" in lines[1]
    assert "kernel.py:14" in lines[1]
    assert lines[9].strip() == "… and 6 more"
    assert len(lines) == 10
    # The error points at the instruction at which the most is alive: the 14th memset.
    assert error.at.line == 14 + 14


def test_psum_that_is_too_small_is_refused():
    w = Writer()
    tiles = [w.buffer("psum", (128, 512), float32) for _ in range(9)]
    for t in tiles + tiles:
        w.add("memset", dst=t, value=0.0)
    with pytest.raises(CapacityError) as caught:
        place(w.program(), TRN2)
    assert caught.value.code == "sim.psum_capacity"


def test_holes_are_avoided_when_the_ring_would_leave_some():
    w = Writer()
    keep, pass_by = [], []
    for _ in range(4):  # ring order leaves the long-lived tiles 1 KiB apart
        pass_by.append(w.buffer("sbuf", (128, 512)))
        w.add("memset", dst=pass_by[-1], value=0.0)
        keep.append(w.buffer("sbuf", (128, 512)))
        w.add("memset", dst=keep[-1], value=0.0)
    large = w.buffer("sbuf", (128, 2048))
    w.add("memset", dst=large, value=0.0)
    for t in keep:
        w.add("memset", dst=t, value=0.0)
    found = place(w.program(), small(sbuf=8 * 1024))
    assert [found.slots[t].address for t in keep] == [0, 1024, 2048, 3072]
    assert found.slots[large].address == 4096


def test_a_stretch_that_needs_the_lowest_addresses_leaves_others_their_ring():
    w = Writer()
    before = chain(w, 8, shape=(128, 1024))  # 2 KiB per partition each
    keep = []
    for _ in range(4):  # as in the test before: the ring would leave no 4 KiB in one piece
        w.add("memset", dst=w.buffer("sbuf", (128, 512)), value=0.0)
        keep.append(w.buffer("sbuf", (128, 512)))
        w.add("memset", dst=keep[-1], value=0.0)
    for t in [w.buffer("sbuf", (128, 2048)), *keep]:
        w.add("memset", dst=t, value=0.0)
    found = place(w.program(), small(sbuf=8 * 1024))
    assert [found.slots[t].address // 2048 for t in before] == [0, 1, 2, 3] * 2
    assert [found.slots[t].address for t in keep] == [0, 1024, 2048, 3072]


def test_explicit_addresses_are_kept_and_avoided():
    w = Writer()
    fixed = w.buffer("sbuf", (128, 512), address=512)
    loose = w.buffer("sbuf", (128, 512))
    for t in (fixed, loose, fixed):
        w.add("memset", dst=t, value=0.0)
    found = place(w.program(), TRN2)
    assert found.slots[fixed].address == 512
    assert found.slots[loose].address == 1536
    assert found.findings == []


def test_a_small_explicit_tile_does_not_hide_a_large_one_from_the_ring():
    w = Writer()
    large = w.buffer("sbuf", (128, 512), address=0)
    small_one = w.buffer("sbuf", (128, 8), address=16)
    before, loose = w.buffer("sbuf", (128, 128)), w.buffer("sbuf", (128, 128))
    for t in (before, loose, large, small_one, loose):
        w.add("memset", dst=t, value=0.0)
    found = place(w.program(), TRN2)
    assert found.slots[large].address == 0
    assert found.slots[before].address == 0
    assert found.slots[loose].address >= found.slots[large].nbytes


def test_explicit_tiles_that_alias_while_alive_are_reported():
    w = Writer()
    one = w.buffer("sbuf", (32, 512), address=0, partition=0, name="one")
    two = w.buffer("sbuf", (32, 512), address=1000, partition=0, name="two")
    other_rows = w.buffer("sbuf", (32, 512), address=0, partition=32)
    for t in (one, two, other_rows, one):
        w.add("memset", dst=t, value=0.0)
    (finding,) = place(w.program(), TRN2).findings
    assert finding.code == "sim.address_overlap"
    assert "`one` and `two`" in finding.what


def test_tiles_without_a_name_are_told_apart_by_their_lines():
    w = Writer()
    a, b = (w.buffer("sbuf", (128, 64), address=64 * n) for n in range(2))
    for tile in (a, b, a):
        w.add("memset", dst=tile, value=0.0)
    (found,) = place(w.program(), TRN2).findings
    assert "the tile [128, 64] bfloat16 of kernel.py:1 and the tile" in found.what
    assert "kernel.py:2 overlap in sbuf" in found.what


def test_an_address_outside_the_memory_is_refused():
    w = Writer()
    w.add("memset", dst=w.buffer("psum", (128, 512), float32, address=15000), value=0.0)
    with pytest.raises(UsageError) as caught:
        place(w.program(), TRN2)
    assert caught.value.code == "sim.address_range"


def test_what_a_loop_carries_lives_through_it():
    w = Writer()
    outside, carried, partly, local, after = (w.buffer("sbuf", (128, 64)) for _ in range(5))
    w.add("memset", dst=outside, value=0.0)  # 0
    w.builder.open_loop()
    declared = w.buffer("sbuf", (128, 64))
    w.add("memset", dst=local, value=0.0)  # 1
    w.copy(view_of(partly)[:, 0:32], view_of(local)[:, 0:32])  # 2
    w.copy(local, outside)  # 3
    w.copy(outside, carried)  # 4: reads what the iteration before wrote
    w.copy(carried, local)  # 5
    w.add("memset", dst=after, value=0.0)  # 6
    w.copy(view_of(declared)[:, 0:32], view_of(after)[:, 0:32])  # 7
    w.builder.close_loop(start=0, stop=4)
    w.copy(outside, after)  # 8
    lives = lifetimes(w.program())
    assert lives[outside] == (0, 8)
    assert lives[carried] == (1, 7)
    assert lives[partly] == (1, 7)
    assert lives[local] == (1, 5)
    assert lives[after] == (6, 8)
    assert lives[declared] == (7, 7)


# ---------------------------------------------------------------------- beside each other


def alive_together(w: Writer, tiles) -> None:
    """Every tile written, then written again: all live at the same time."""
    for t in (*tiles, *tiles):
        w.add("memset", dst=t, value=0.0)


def all_of(chip, partitions: int, count: int, share: int = 1):
    """The placement of so many tiles of this many partitions and the SBUF's bytes / share."""
    w = Writer()
    tiles = [w.buffer("sbuf", (partitions, SBUF // share // 4), float32) for _ in range(count)]
    alive_together(w, tiles)
    return place(w.program(), chip), tiles


@pytest.mark.parametrize(
    ("partitions", "most"), [(1, 4), (32, 4), (33, 2), (64, 2), (65, 1), (128, 1)]
)
def test_so_many_tiles_of_a_whole_column_fit_and_no_more(partitions, most):
    # SBUF has 128 partitions: 4 quadrants of 32.  Starts 0/32/64/96, 0/64 from 33 partitions on,
    # 0 from 65 on: so 4, 2 and 1 tiles that take every byte of a partition.
    found, tiles = all_of(TRN2, partitions, most)
    starts = {4: [0, 32, 64, 96], 2: [0, 64], 1: [0]}[most]
    assert sorted(found.slots[t].partition for t in tiles) == starts
    assert {found.slots[t].address for t in tiles} == {0}
    assert found.peak_bytes["sbuf"] == SBUF
    with pytest.raises(CapacityError, match="SBUF is full"):
        all_of(TRN2, partitions, most + 1)


def test_small_tiles_stay_at_partition_0_where_they_fit():
    found, tiles = all_of(TRN2, 32, 2, share=2)
    assert [found.slots[t].partition for t in tiles] == [0, 0]
    assert [found.slots[t].address for t in tiles] == [0, SBUF // 2]


def test_tiles_of_one_two_and_four_quadrants_share_the_columns():
    w = Writer()
    half = SBUF // 4  # bfloat16 elements in half a partition
    wide = w.buffer("sbuf", (128, half))
    rows = [w.buffer("sbuf", (n, half)) for n in (64, 32, 17)]
    alive_together(w, [wide, *rows])
    found = place(w.program(), TRN2)
    assert found.slots[wide].partition == 0
    assert {found.slots[t].address for t in rows} == {SBUF // 2 - found.slots[wide].address}
    assert found.slots[rows[0]].partition in (0, 64)
    assert len({found.slots[t].partition for t in rows}) == 3
    assert found.peak_bytes["sbuf"] == SBUF


def test_what_one_instruction_reads_begins_together():
    w = Writer()
    half = SBUF // 4
    a, b, out, other = (w.buffer("sbuf", (32, half)) for _ in range(4))
    alive_together(w, [a, b, out, other])
    w.add("tensor_tensor", dst=out, data1=a, data2=b, op="add")
    w.copy(other, out)
    found = place(w.program(), TRN2)
    assert found.slots[a].partition == found.slots[b].partition
    # a and b fill one quadrant together.  One more tile read with them does not fit there.
    w = Writer()
    a, b, c, out = (w.buffer("sbuf", (32, half)) for _ in range(4))
    alive_together(w, [a, b, c, out])
    w.add("tensor_tensor", dst=out, data1=a, data2=b, op="add")
    w.add("tensor_tensor", dst=out, data1=c, data2=b, op="add")
    with pytest.raises(CapacityError, match="3 tiles alive"):
        place(w.program(), TRN2)


def test_tiles_of_instructions_that_use_accumulators_stay_at_partition_0():
    def placed(command):
        w = Writer()
        tiles = [w.buffer("sbuf", (64, SBUF // 4), float32) for _ in range(2)]
        alive_together(w, tiles)
        for t in tiles:
            flat = view_of(t)[:, 0:64]
            w.add("activation", dst=flat, data=flat, op="exp", reduce_op="add",
                  reduce_cmd=command, bias=None, scale=1.0, reduce_res=None)  # fmt: skip
        return place(w.program(), TRN2)

    assert {slot.partition for slot in placed(reduce_cmd.idle).slots.values()} == {0, 64}
    with pytest.raises(CapacityError, match="SBUF is full: 2 tiles"):
        placed(reduce_cmd.reduce)


def test_what_the_tensor_engine_writes_stays_at_partition_0():
    def program(*, matmul: bool):
        w = Writer()
        k, m = w.buffer("sbuf", (32, 32)), w.buffer("sbuf", (32, 512))
        alive_together(w, [k, m])
        sums = [w.buffer("psum", (32, 512), float32) for _ in range(9)]  # one more than banks
        for t in sums:
            if matmul:
                w.add("nc_matmul", dst=t, stationary=k, moving=m)
            else:
                w.add("memset", dst=t, value=0.0)
        for t in sums:
            w.copy(m, t)
        return w.program()

    with pytest.raises(CapacityError, match="PSUM is full: 9 tiles"):
        place(program(matmul=True), TRN2)
    slots = place(program(matmul=False), TRN2).slots
    assert len({(s.partition, s.address) for b, s in slots.items() if b.space == "psum"}) == 9


def test_explicit_tiles_keep_their_partitions_among_others():
    w = Writer()
    half = SBUF // 4
    fixed = w.buffer("sbuf", (32, half), float32, address=0, partition=64)
    loose = [w.buffer("sbuf", (32, half)) for _ in range(6)]
    alive_together(w, [fixed, *loose])
    found = place(w.program(), TRN2)
    assert found.slots[fixed].partition == 64
    assert sorted({found.slots[t].partition for t in loose}) == [0, 32, 96]


def rows_of(buffer, slot) -> range:
    """The partitions of a placed tile."""
    return range(slot.partition, slot.partition + buffer.partitions)


@given(st.integers(0, 10**9), st.sampled_from([2048, 4096, 16384]))
@settings(max_examples=80, deadline=None)
def test_no_two_live_tiles_of_any_height_share_a_byte_of_a_partition(seed, sbuf):
    rng = random.Random(seed)
    w, pool = Writer(), []
    for _ in range(50):
        if len(pool) < 3 or rng.random() < 0.35:
            rows = rng.choice([1, 16, 32, 33, 64, 65, 128])
            pool.append(w.buffer("sbuf", (rows, rng.randrange(1, 400)), float32))
            w.add("memset", dst=pool[-1], value=0.0)
            continue
        tile, other = rng.sample(pool, 2)
        n = min(tile.shape[0], other.shape[0])
        m = min(tile.shape[1], other.shape[1])
        a, b = view_of(tile)[0:n, 0:m], view_of(other)[0:n, 0:m]
        if rng.random() < 0.3:
            w.add("tensor_tensor", dst=a, data1=a, data2=b, op="add")
        else:
            w.copy(a, b)
        if rng.random() < 0.6:
            pool.remove(tile)
    program = w.program()
    lives = lifetimes(program)
    # No placement needs less than the bytes alive, taken over all 128 partitions.
    area = max(
        sum(b.partitions * b.partition_bytes for b, (f, e) in lives.items() if f <= at <= e)
        for at in range(50)
    )
    # Tiles that all lie on top of each other need this much.
    piled = max(
        sum(-(-b.partition_bytes // 4) * 4 for b, (f, e) in lives.items() if f <= at <= e)
        for at in range(50)
    )
    try:
        found = place(program, small(sbuf=sbuf))
    except CapacityError:
        assert piled > 0.7 * sbuf  # refused for room, or for the holes between tiles
        return
    assert area <= sbuf * 128
    assert area <= 128 * found.peak_bytes["sbuf"] <= 128 * sbuf
    for buffer, slot in found.slots.items():
        starts = {4: (0, 32, 64, 96), 2: (0, 64)}.get(
            128 // (-(-buffer.partitions // 32) * 32), (0,)
        )
        assert slot.partition in starts
        assert 0 <= slot.address <= sbuf - buffer.partition_bytes
    for (a, one), (b, two) in combinations(found.slots.items(), 2):
        if one.first <= two.last and two.first <= one.last:
            rows = set(rows_of(a, one)) & set(rows_of(b, two))
            apart = one.address + a.partition_bytes <= two.address
            assert not rows or apart or two.address + b.partition_bytes <= one.address


@given(st.integers(0, 10**9))
@settings(max_examples=50, deadline=None)
def test_no_two_live_tiles_share_bytes_and_capacity_holds(seed):
    rng = random.Random(seed)
    w = Writer()
    pool = []
    for _ in range(60):
        if len(pool) < 2 or rng.random() < 0.4:
            space = rng.choice(["sbuf", "psum"])
            pool.append(w.buffer(space, (128, rng.randrange(1, 700)), float32))
            w.add("memset", dst=pool[-1], value=0.0)
        else:
            tile = rng.choice(pool)
            w.add("memset", dst=tile, value=0.0)
            if rng.random() < 0.6:
                pool.remove(tile)
    program, chip = w.program(), small(sbuf=24 * 1024)
    try:
        found = place(program, chip)
    except CapacityError:
        return
    slots = list(found.slots.items())
    for n, (a, one) in enumerate(slots):
        limit = 24 * 1024 if a.space == "sbuf" else 8 * BANK
        assert one.address >= 0
        assert one.address + a.partition_bytes <= limit
        if a.space == "psum":
            size = a.partition_bytes
            inside = one.address % BANK + size <= BANK
            assert inside if size <= BANK else one.address % BANK == 0
        for b, two in slots[:n]:
            if a.space == b.space and one.first <= two.last and two.first <= one.last:
                apart = one.address + a.partition_bytes <= two.address
                assert apart or two.address + b.partition_bytes <= one.address
