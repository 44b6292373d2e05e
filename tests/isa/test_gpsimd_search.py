"""GpSimd searches: non-zeros, top-k snakes and segments by plain loops, refusals, costs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import DtypeError, LimitError, UsageError
from opentrn.isa.gpsimd_search import nonzero_with_count, sequence_bounds, topk
from tests.isa.vector_forms import cycles, make, refuse, tile


def nonzero(src, dst, kind="int32", on="trn2", **more):
    p, f = src.shape
    i = make(nonzero_with_count, on=on, dst=tile(p, f + 1, t="int32"), src=tile(p, f, t=kind))
    numbers = {"index_offset": 0, "padding_val": -1} | more
    return i.run(src=src, dst=dst, **numbers)["dst"]


def test_the_documented_example():
    src = np.array([[0, 1, 1, 0, 0, 1, 0, 0]], np.int32)
    got = nonzero(src, np.zeros((1, 9), np.int32), index_offset=16)
    assert got.tolist() == [[17, 18, 21, -1, -1, -1, -1, -1, 3]]


@given(
    st.integers(1, 40),
    st.integers(1, 30),
    st.integers(-50, 50),
    st.sampled_from(["float32", "int32"]),
)
@settings(max_examples=40, deadline=None)
def test_only_the_first_partition_of_each_core_is_used(p, f, offset, kind):
    rng = np.random.default_rng(p * f)
    src = rng.integers(-1, 2, (p, f)).astype(kind)
    dst = rng.integers(100, 200, (p, f + 1)).astype(np.int32)
    got = nonzero(src, dst, kind, index_offset=offset, padding_val=7)
    for row in range(p):
        if row % 16:
            assert got[row].tolist() == dst[row].tolist()
            continue
        found = [c + offset for c in range(f) if src[row, c] != 0]
        assert got[row].tolist() == [*found, *[7] * (f - len(found)), len(found)]


def test_what_nonzero_refuses():
    one = np.zeros((1, 9), np.int32)
    i = make(nonzero_with_count, dst=tile(1, 9, t="int32"), src=tile(1, 8))
    for name in ("index_offset", "padding_val"):
        numbers = {"index_offset": 0, "padding_val": -1, name: 2.5}
        refuse(
            UsageError,
            f"nonzero_with_count.{name}",
            lambda n=numbers: i.run(src=np.zeros((1, 8), np.float32), dst=one, **n),
        )
    refuse(
        LimitError,
        "nonzero_with_count.rules",
        lambda: make(nonzero_with_count, dst=tile(1, 8, t="int32"), src=tile(1, 8)),
    )
    refuse(
        UsageError,
        "nonzero_with_count.generation",
        lambda: make(nonzero_with_count, on="trn1", dst=tile(1, 9, t="int32"), src=tile(1, 8)),
    )
    refuse(
        DtypeError,
        "nonzero_with_count.dst.dtype",
        lambda: make(nonzero_with_count, dst=tile(1, 9), src=tile(1, 8)),
    )
    assert cycles(i) == pytest.approx(158)


# ---------------------------------------------------------------------- top k


def largest(p, f, k, n, on="trn2", **more):
    given = {
        "val_dst": tile(p, k, t="bfloat16"),
        "idx_dst": tile(p, k, t="uint32"),
        "src": tile(p, f, t="bfloat16"),
        "n": n,
    }
    return make(topk, on=on, **(given | more))


@given(st.sampled_from([16, 32, 128]), st.integers(8, 60), st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_topk_of_a_snake_by_sorting(p, n, k):
    k, f = min(n, k), -(-n // 16) + 1
    rng = np.random.default_rng(n * k)
    src = rng.integers(-9, 9, (p, f)).astype(np.float32)  # many ties
    kept = np.full((p, k), 55, np.float32), np.full((p, k), 55, np.uint32)
    made = largest(p, f, k, n).run(val_dst=kept[0], idx_dst=kept[1], src=src)
    for core in range(0, p, 16):
        snake = [src[core + s % 16, s // 16] for s in range(n)]
        best = sorted(range(n), key=lambda s: (-snake[s], s))[:k][::-1]
        values, places = np.full((16, k), 55.0), np.full((16, k), 55)
        for j, s in enumerate(best):
            values[j % 16, j // 16], places[j % 16, j // 16] = snake[s], s
        assert made["val_dst"][core : core + 16].tolist() == values.tolist()
        assert made["idx_dst"][core : core + 16].tolist() == places.tolist()


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("P", {"p": 8}),
        ("rules", {"n": 7}),
        ("rules", {"n": 65536, "f": 4097}),
        ("rules", {"n": 8.0}),
        ("rules", {"n": 33}),
        ("rules", {"n": 9, "k": 10}),
        ("K", {"k": 32768, "n": 40000, "f": 2500}),
    ],
)
def test_what_topk_refuses(code, more):
    given = {"p": 16, "f": 2, "k": 8, "n": 32}
    refuse(LimitError, f"topk.{code}", lambda: largest(**(given | more)))


def test_topk_takes_bfloat16_and_costs_four_cycles_a_number():
    refuse(DtypeError, "topk.src.dtype", lambda: largest(16, 2, 8, 32, src=tile(16, 2)))
    assert cycles(largest(128, 64, 100, 1000)) == pytest.approx(4100)


# ---------------------------------------------------------------------- segments


def bounds(ids, kind="int32"):
    n = len(ids)
    i = make(sequence_bounds, dst=tile(1, 2, n, t=kind), segment_ids=tile(1, n, t=kind))
    return i.run(segment_ids=np.array([ids], i.segment_ids.dtype.carrier))["dst"]


def test_the_documented_segments():
    got = bounds([0, 1, 1, 2, 2, 2, 0, 3, 3])
    assert got.tolist() == [[[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.sampled_from(["int32", "float32"]))
@settings(max_examples=60, deadline=None)
def test_segments_by_looking_left_and_right(ids, kind):
    got = bounds(ids, kind)
    n = len(ids)
    for at, one in enumerate(ids):
        start, end = at, at
        while start > 0 and ids[start - 1] == one:
            start -= 1
        while end < n and ids[end] == one:
            end += 1
        want = (n, -1) if one == 0 else (start, end)
        assert (got[0, 0, at], got[0, 1, at]) == want


def test_what_segments_refuse():
    refuse(UsageError, "sequence_bounds.segment_ids", lambda: bounds([1, -1]))
    refuse(
        DtypeError,
        "sequence_bounds.segment_ids.dtype",
        lambda: make(sequence_bounds, dst=tile(1, 2, 8), segment_ids=tile(1, 8, t="int16")),
    )
