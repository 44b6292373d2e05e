"""Races through explicit addresses: unordered pairs reported with both lines, ordered ones not."""

from opentrn.base import float32
from opentrn.isa import engine as engines
from opentrn.isa import view_of
from opentrn.sim import races
from tests.sim.programs import TRN2, Writer, matmul


def two_tiles(second_at: int, ordered: bool = False, engine=engines.scalar, columns=64):
    """`a` is copied out by the Vector Engine while another engine copies into `b`."""
    w = Writer(TRN2)
    out = w.buffer("sbuf", (128, 64), float32, address=65536, name="out")
    source = w.buffer("sbuf", (128, 64), float32, address=32768, name="source")
    a = w.buffer("sbuf", (128, 64), float32, address=0, name="a")
    b = w.buffer("sbuf", (128, 64), float32, address=second_at, name="b")
    for tile in (source, a):
        w.add("memset", dst=tile, value=0.0, engine=engines.gpsimd)
    first = w.copy(out, a, engine=engines.vector)
    second = w.copy(view_of(b)[:, 0:columns], view_of(source)[:, 0:columns], engine=engine)
    if ordered:
        second.after = (first,)
    w.copy(out, a, engine=engines.vector)  # a is alive until here
    w.copy(view_of(out)[:, 0:columns], view_of(b)[:, 0:columns], engine=engine)
    return w.program(), first, second


def test_a_write_through_another_tile_is_a_race_with_both_lines():
    program, first, second = two_tiles(second_at=128)
    found = races(program, TRN2)
    assert {one.code for one in found} == {"sim.race"}
    texts = [one.what for one in found]
    pair = next(t for t in texts if f"at {first.where}" in t and f"at {second.where}" in t)
    assert "tensor_copy on vector reads `a`" in pair
    assert "tensor_copy on scalar writes `b`" in pair


def test_an_edge_of_the_schedule_orders_the_pair():
    program, first, second = two_tiles(second_at=128, ordered=True)
    texts = [one.what for one in races(program, TRN2)]
    assert not any(f"at {first.where}" in t and f"at {second.where}" in t for t in texts)


def test_one_engine_is_in_order_and_tiles_apart_do_not_race():
    program, first, second = two_tiles(second_at=128, engine=engines.vector)
    texts = [one.what for one in races(program, TRN2)]
    assert not any(f"at {first.where}" in t and f"at {second.where}" in t for t in texts)
    # The memset of `a` on GpSimd comes before the copy by way of a dependence, so none is left.
    assert texts == []
    assert races(two_tiles(second_at=256)[0], TRN2) == []


def test_tiles_that_share_columns_but_touch_others_do_not_race():
    # b begins 64 columns (256 B) below the end of out; only its first 8 columns are written.
    program, _, _ = two_tiles(second_at=65536 - 128, columns=8)
    assert races(program, TRN2) == []


def test_a_load_into_bytes_that_an_engine_still_reads_is_a_race():
    w = Writer(TRN2)
    source = w.buffer("hbm", (128, 64), float32)
    w.builder.inputs = [source]
    a = w.buffer("sbuf", (128, 64), float32, address=0, name="a")
    b = w.buffer("sbuf", (128, 64), float32, address=0, name="b")
    out = w.buffer("sbuf", (128, 64), float32, name="out")
    w.add("memset", dst=a, value=0.0, engine=engines.vector)
    w.load(b, source)
    w.copy(out, a, engine=engines.vector)
    found = races(w.program(), TRN2)
    assert any("dma_copy on a DMA queue writes `b`" in one.what for one in found)


def test_tiles_that_follow_each_other_in_the_same_bytes_are_the_compilers_to_order():
    w = Writer(TRN2)
    out = w.buffer("sbuf", (128, 64), float32)
    for engine in (engines.vector, engines.scalar):
        tile = w.buffer("sbuf", (128, 64), float32, address=0)
        w.add("memset", dst=tile, value=0.0, engine=engines.gpsimd)
        w.copy(out, tile, engine=engine)
    assert races(w.program(), TRN2) == []


def test_automatic_placement_never_races():
    assert races(matmul(m=256, k=512, n=512), TRN2) == []
