"""Tiles in place and time, and bytes read again, against plain counting."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import opentrn.nki as nki
from opentrn import hw
from opentrn.base import dtypes
from opentrn.isa import Buffer, View
from opentrn.profiler import Tile, memory_text, peak_of, profile
from opentrn.profiler.reloads import _traffic
from tests.profiler import pairs


def tile(begin, end, nbytes, address=0, space="sbuf"):
    return Tile(space, "t", (128, nbytes), "uint8", None, 128, address, nbytes, begin, end)


def test_the_peak_is_where_most_bytes_live_at_once():
    tiles = [
        tile(0, 10, 100),
        tile(10, 20, 150, 100),
        tile(5, 12, 30, 300),
        tile(0, 30, 9, 0, "psum"),
    ]
    peak = peak_of(tiles, "sbuf")
    # At 10 the first has gone and the second has come: 150 + 30.
    assert (peak.time, peak.nbytes) == (10, 180)
    assert [one.address for one in peak.tiles] == [100, 300]
    assert peak_of(tiles, "psum").nbytes == 9
    assert peak_of([], "psum") is None


def test_tiles_beside_each_other_do_not_add_up():
    def quarter(partition, nbytes, address=0):
        return Tile("sbuf", "t", (32, nbytes), "uint8", None, 32, address, nbytes, 0, 10, partition)

    tiles = [quarter(32 * n, 100 + n) for n in range(4)]
    assert peak_of(tiles, "sbuf").nbytes == 103
    assert [one.partition for one in peak_of(tiles, "sbuf").tiles] == [96]
    # One more in the second quadrant, and one of all partitions on top: 101 + 50 + 10.
    more = [*tiles, quarter(32, 50, address=200), tile(0, 10, 10, 300)]
    assert peak_of(more, "sbuf").nbytes == 161
    assert [one.nbytes for one in peak_of(more, "sbuf").tiles] == [101, 50, 10]


def test_tiles_live_from_first_to_last_use_where_they_were_placed():
    made = profile(
        nki.run(pairs.product, pairs.numbers(256, 128), pairs.numbers(256, 512)).timeline()
    )
    timed = made.timed
    uses = {}
    for one, start, end in zip(timed.instructions, timed.start, timed.end, strict=True):
        for view in one.views():
            if view.on_chip:
                first, last = uses.get(view.buffer, (np.inf, 0.0))
                uses[view.buffer] = (min(first, start), max(last, end))
    assert len(made.tiles) == len(uses) == len(timed.placement.slots)
    wanted = sorted(
        (*uses[buffer], slot.address, slot.nbytes, buffer.space)
        for buffer, slot in timed.placement.slots.items()
    )
    assert sorted((t.begin, t.end, t.address, t.nbytes, t.space) for t in made.tiles) == wanted
    text = memory_text(made.tiles, made.chip)
    assert max(map(len, text.splitlines())) <= 100
    assert "stationary [128, 2, 128] bfloat16" not in text  # made by a function: it has a number
    assert "#3 [128, 2, 128] bfloat16  pairs.py:" in text


def test_many_tiles_are_cut_short_and_counted():
    tiles = [tile(0, 10, 8 * (n + 1), 1000 * n) for n in range(40)]
    text = memory_text(tiles, hw.chip("trn2"), most=10)
    # The 30 smallest: 8 x (1 + ... + 30) bytes.
    assert "and 30 smaller ones with 3.63 KiB" in text
    assert text.count("t [128, ") == 10


steps = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), steps, st.integers(1, 3)), min_size=1, max_size=4))
def test_bytes_read_and_distinct_bytes_are_those_of_a_plain_count(described):
    buffer = Buffer(0, "hbm", (128,), dtypes.float32)
    seen, times = {}, np.zeros(128, int)
    for offset, pattern, count in described:
        view = View(buffer, offset, tuple(pattern), dtypes.float32)
        seen[view] = seen.get(view, 0) + count
        places = np.array([offset])
        for stride, size in pattern:
            places = (places[:, None] + stride * np.arange(size)).ravel()
        np.add.at(times, places, count)
    assert _traffic(seen) == (4 * times.sum(), 4 * np.count_nonzero(times))
