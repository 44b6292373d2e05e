"""Vector Engine searches, selections and shuffles against plain loops and documented examples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn import nki
from opentrn.base import DtypeError, LimitError, ShapeError, UsageError
from opentrn.isa.enums import reduce_cmd
from opentrn.isa.vector_search import (
    FP32_MIN,
    max8,
    nc_find_index8,
    nc_match_replace8,
    nc_stream_shuffle,
    range_select,
    select_reduce,
)
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from tests.isa.vector_forms import BF16, NUMBER, cycles, make, refuse, stored, tile

F = np.float32
NONE32, NONE16 = 2**32 - 1, 2**16 - 1
BIG, COLUMN = tile(128, 512), tile(128, 1)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def few_values(rows, free, seed):
    """Small integers with many duplicates."""
    return np.random.default_rng(seed).integers(0, 5, (rows, free)).astype(F)


# ------------------------------------------------------------------ max8


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(8, 40), st.integers(0, 99))
def test_max8_is_the_head_of_a_descending_sort(rows, free, seed):
    x = few_values(rows, free, seed)
    i = make(max8, dst=tile(rows, 8), src=tile(rows, free))
    want = [sorted(row, reverse=True)[:8] for row in x.tolist()]
    np.testing.assert_array_equal(i.run(src=x)["dst"], want)


def test_max8_of_three_dimensions_and_integers():
    x = np.arange(24, dtype=np.int16).reshape(1, 4, 6)
    i = make(max8, dst=tile(1, 8, t="int16"), src=tile(1, 4, 6, t="int16"))
    got = stored(i, "dst", i.run(src=x)["dst"])
    np.testing.assert_array_equal(got, [[23, 22, 21, 20, 19, 18, 17, 16]])


def test_max8_limits_and_cost():
    refuse(LimitError, "max8.F", lambda: make(max8, dst=tile(4, 8), src=tile(4, 7)))
    text = refuse(LimitError, "max8.F", lambda: make(max8, dst=tile(4, 8), src=tile(4, 16385)))
    assert "at most 16384" in text
    refuse(ShapeError, "max8.dst", lambda: make(max8, dst=tile(4, 9), src=tile(4, 16)))
    refuse(LimitError, "max8.rules", lambda: make(max8, dst=tile(4, 8), src=tile(4, 2, 2, 4)))
    refuse(LimitError, "max8.rules", lambda: make(max8, dst=tile(4, 2, 4), src=tile(4, 16)))
    assert cycles(make(max8, dst=tile(128, 8), src=tile(128, 1000))) == pytest.approx(1000)
    assert cycles(make(max8, dst=tile(128, 8), src=tile(128, 8))) == pytest.approx(64)


# ------------------------------------------------------------------ nc_find_index8


def find(data, vals, t="uint32"):
    i = make(
        nc_find_index8, dst=tile(len(data), 8, t=t), data=tile(*data.shape), vals=tile(*vals.shape)
    )
    return i.run(data=data, vals=vals)["dst"]


def test_tc10_find_index8():
    data = np.array([[5, 3, 5, 1, 0, 0, 0, 0]], F)
    vals = np.array([[5, 5, 3, 1, 9, 9, 9, 9]], F)
    got = find(data, vals)
    np.testing.assert_array_equal(got, [[0, 2, 1, 3, *[NONE32] * 4]])
    assert got.dtype == np.uint32
    short = find(data, vals, "uint16")
    np.testing.assert_array_equal(short, [[0, 2, 1, 3, *[NONE16] * 4]])
    assert short.dtype == np.uint16


def plain_find(row, vals, order):
    """Positions served in `order`; equal values take the next occurrence, -1 without one."""
    used, out = set(), [-1] * 8
    for slot in order:
        for at, value in enumerate(row):
            if value == vals[slot] and at not in used:
                used.add(at)
                out[slot] = at
                break
    return out


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(8, 30), st.integers(0, 999))
def test_find_index8_advances_through_duplicates(rows, free, seed):
    data, vals = few_values(rows, free, seed), few_values(rows, 8, seed + 1)
    want = [plain_find(r, v, range(8)) for r, v in zip(data.tolist(), vals.tolist(), strict=True)]
    got = find(data, vals).astype(np.int64)
    np.testing.assert_array_equal(np.where(got == NONE32, -1, got), want)


def test_find_index8_with_max8_is_top_8():
    x = numbers(16, 3, 50)
    top = make(max8, dst=tile(16, 8), src=tile(16, 3, 50)).run(src=x)["dst"]
    got = find(x, top)
    want = np.argsort(-x.reshape(16, 150), axis=1, kind="stable")[:, :8]
    np.testing.assert_array_equal(got, want)


def test_find_index8_limits_and_cost():
    base = {"dst": tile(4, 8, t="uint32"), "data": tile(4, 16), "vals": tile(4, 8)}
    refuse(
        DtypeError,
        "nc_find_index8.dst.dtype",
        lambda: make(nc_find_index8, **dict(base, dst=tile(4, 8, t="int32"))),
    )
    refuse(
        LimitError, "nc_find_index8.F", lambda: make(nc_find_index8, **dict(base, data=tile(4, 7)))
    )
    refuse(
        ShapeError,
        "nc_find_index8.vals",
        lambda: make(nc_find_index8, **dict(base, vals=tile(4, 4))),
    )
    refuse(
        LimitError,
        "nc_find_index8.rules",
        lambda: make(nc_find_index8, **dict(base, data=tile(4, 2, 2, 4))),
    )
    wide = dict(base, data=tile(4, 4096))
    assert cycles(make(nc_find_index8, **wide)) == pytest.approx(4096)


# ------------------------------------------------------------------ nc_match_replace8


def replace(data, vals, imm, t="float32", idx="uint32"):
    i = make(
        nc_match_replace8,
        dst=tile(*data.shape, t=t),
        data=tile(*data.shape, t=t),
        vals=tile(*vals.shape, t=t),
        dst_idx=tile(len(data), 8, t=idx) if idx else None,
    )
    out = i.run(data=data, vals=vals, imm=imm)
    return out["dst"].reshape(data.shape), out.get("dst_idx")


def test_match_replace8_documented_example():
    data = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], F)
    vals = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], F)
    before = data.copy()
    got, at = replace(data, vals, -1.0)
    np.testing.assert_array_equal(at, [[2, 10, 9, 8, 7, 6, 5, 4]])
    np.testing.assert_array_equal(got, [[1, 2, -1, 4, -1, -1, -1, -1, -1, -1, -1]])
    np.testing.assert_array_equal(data, before)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(8, 30), st.integers(0, 999))
def test_match_replace8_serves_values_from_the_last(rows, free, seed):
    data, vals = few_values(rows, free, seed), few_values(rows, 8, seed + 1)
    got, at = replace(data, vals, 100.0)
    want = data.copy()
    for p in range(rows):
        places = plain_find(data[p].tolist(), vals[p].tolist(), range(7, -1, -1))
        shown = np.where(at[p] == NONE32, -1, at[p].astype(np.int64))
        np.testing.assert_array_equal(shown, places)
        want[p, [q for q in places if q >= 0]] = 100.0
    np.testing.assert_array_equal(got, want)


def test_match_replace8_with_a_replacement_that_is_also_searched():
    data = np.array([[5, 0, 0, 7]], F)
    vals = np.array([[7, 5, 0, 0, 9, 9, 9, 9]], F)
    got, at = replace(data, vals, 0.0)
    np.testing.assert_array_equal(got, [[0, 0, 0, 0]])
    np.testing.assert_array_equal(at, [[3, 0, 2, 1, *[NONE32] * 4]])


def test_match_replace8_keeps_integers_and_needs_no_indices():
    data = np.array([[16777217, 4, 5]], np.int32)
    vals = np.array([[4, 4, 9, 9, 9, 9, 9, 9]], np.int32)
    got, at = replace(data, vals, -7.0, t="int32", idx=None)
    np.testing.assert_array_equal(got, [[16777217, -7, 5]])
    assert at is None


def test_match_replace8_limits_and_cost():
    base = {"dst": tile(4, 16), "data": tile(4, 16), "vals": tile(4, 8)}
    wide = {"dst": tile(4, 16385), "data": tile(4, 16385)}
    refuse(LimitError, "nc_match_replace8.F", lambda: make(nc_match_replace8, **dict(base, **wide)))
    refuse(
        DtypeError,
        "nc_match_replace8.dst_idx.dtype",
        lambda: make(nc_match_replace8, dst_idx=tile(4, 8), **base),
    )
    assert cycles(make(nc_match_replace8, **base)) == pytest.approx(64)
    wide = {"dst": tile(4, 1000), "data": tile(4, 1000)}
    assert cycles(make(nc_match_replace8, **dict(base, **wide))) == pytest.approx(1000)


# ------------------------------------------------------------------ range_select


def ranged(shape=(4, 6), res=True, t="float32", dst="float32", **more):
    return make(
        range_select,
        on=more.pop("on", "trn2"),
        dst=tile(*shape, t=dst),
        on_true_tile=tile(*shape, t=t),
        comp_op0=more.pop("comp_op0", "greater_equal"),
        comp_op1=more.pop("comp_op1", "less"),
        bound0=tile(shape[0], 1),
        bound1=tile(shape[0], 1),
        reduce_res=tile(shape[0], 1) if res else None,
        **more,
    )


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["equal", "less", "less_equal", "greater", "greater_equal"]),
    st.sampled_from(["equal", "less", "less_equal", "greater", "greater_equal"]),
    st.integers(-3, 8),
)
def test_range_select_is_the_published_formula(op0, op1, begin):
    x, low, high = (
        numbers(4, 6),
        np.array([[0], [1], [2], [9]], F),
        np.array([[3], [6], [2], [9]], F),
    )
    place = begin + np.arange(6)
    keep = getattr(np, op0)(place, low) & getattr(np, op1)(place, high)
    want = np.where(keep, x, F(FP32_MIN))
    i = ranged(comp_op0=op0, comp_op1=op1, range_start=begin)
    out = i.run(on_true_tile=x, bound0=low, bound1=high, accumulators=np.full(128, 99, F))
    np.testing.assert_array_equal(out["dst"], want)
    np.testing.assert_array_equal(out["reduce_res"][:, 0], want.max(1))
    np.testing.assert_array_equal(out["accumulators"][4:], 99)


def test_range_select_chains_through_the_accumulators():
    low, high = np.zeros((4, 1), F), np.full((4, 1), 100, F)
    x, y = numbers(4, 6), numbers(4, 6, seed=1)
    bounds = {"bound0": low, "bound1": high}
    first = ranged(res=False).run(on_true_tile=x, accumulators=np.zeros(128, F), **bounds)
    again = ranged(reduce_cmd=reduce_cmd.reduce, range_start=6)
    out = again.run(on_true_tile=y, accumulators=first["accumulators"], **bounds)
    want = np.concatenate([x, y], axis=1).max(1)
    np.testing.assert_array_equal(out["reduce_res"][:, 0], want)
    reset = ranged(res=False, reduce_cmd=reduce_cmd.reset)
    cleared = reset.run(on_true_tile=x, accumulators=out["accumulators"], **bounds)
    np.testing.assert_array_equal(cleared["accumulators"][:4], -np.inf)


def test_range_select_rounds_only_the_output():
    i = ranged(t=BF16, dst=BF16)
    nothing = np.full((4, 1), -1, F)
    out = i.run(
        on_true_tile=np.ones((4, 6), F),
        bound0=nothing,
        bound1=nothing,
        accumulators=np.zeros(128, F),
    )
    assert np.all(stored(i, "dst", out["dst"]) == -np.inf)
    assert np.all(stored(i, "reduce_res", out["reduce_res"]) == F(FP32_MIN))


def test_range_select_refusals_and_cost():
    for case in (
        {"comp_op0": "not_equal"},
        {"comp_op1": "add"},
        {"reduce_op": "add"},
        {"range_start": 2**24},
        {"range_start": 0.5},
        {"on_false_value": 0.0},
        {"on_false_value": float("-inf")},
        {"reduce_cmd": reduce_cmd.load_reduce},
        {"reduce_cmd": reduce_cmd.idle},
    ):
        refuse(LimitError, "range_select.rules", lambda c=case: ranged(**c))
    assert ranged(on_false_value=-3.4028235e38).F == 6
    assert ranged(reduce_cmd=reduce_cmd.idle, res=False).F == 6
    refuse(UsageError, "range_select.generation", lambda: ranged(on="trn1"))
    refuse(DtypeError, "range_select.on_true_tile.dtype", lambda: ranged(t="int16"))
    for on, ns in (("trn2", 512 / 0.96), ("trn3", 512 / 1.2)):
        assert ranged(shape=(128, 512), on=on).cost.busy_ns == pytest.approx(ns)


# ------------------------------------------------------------------ select_reduce


def selected(shape=(2, 4), on_false=NUMBER, res=False, t="float32", mask="uint8", **more):
    return make(
        select_reduce,
        on=more.pop("on", "trn2"),
        dst=tile(*shape),
        predicate=tile(*shape, t=mask, space=more.pop("mask_space", "sbuf")),
        on_true=tile(*shape, t=t, space=more.pop("true_space", "sbuf")),
        on_false=on_false,
        reduce_res=tile(shape[0], 1, t=more.pop("res_t", "float32")) if res else None,
        **more,
    )


def test_select_reduce_by_hand():
    x = np.array([[1, 2, 3, 4], [-5, -6, -7, -8]], F)
    mask = np.array([[1, 0, 200, 0], [0, 0, 1, 0]], np.uint8)
    held = np.zeros(128, F)
    out = selected().run(predicate=mask, on_true=x, on_false=-1.0, accumulators=held)
    np.testing.assert_array_equal(out["dst"], [[1, -1, 3, -1], [-1, -1, -7, -1]])
    # idle leaves the registers of its lanes undefined
    assert np.isnan(out["accumulators"][:2]).all()
    np.testing.assert_array_equal(out["accumulators"][2:], 0)
    vector = np.array([[10], [-20]], F)
    i = selected(on_false=tile(2, 1), reverse_pred=True)
    out = i.run(predicate=mask, on_true=x, on_false=vector, accumulators=held)
    np.testing.assert_array_equal(out["dst"], [[10, 2, 10, 4], [-5, -6, -20, -8]])


def test_select_reduce_accumulates_the_maximum():
    x = np.array([[1, 2, 3, 4], [-5, -6, -7, -8]], F)
    mask = np.array([[1, 0, 0, 0], [0, 0, 1, 0]], np.uint8)
    given = {"predicate": mask, "on_true": x, "on_false": -9.0}
    first = selected(res=True, reduce_cmd=reduce_cmd.reset_reduce)
    out = first.run(accumulators=np.full(128, 50, F), **given)
    np.testing.assert_array_equal(out["reduce_res"], [[1], [-7]])
    again = selected(res=True, reduce_cmd=reduce_cmd.reduce, reverse_pred=True)
    out = again.run(accumulators=out["accumulators"], **given)
    np.testing.assert_array_equal(out["reduce_res"], [[4], [-5]])
    np.testing.assert_array_equal(out["accumulators"][2:], 50)


def test_select_reduce_of_other_ranks_and_types():
    forms = {"dst": tile(1, 2, 2), "predicate": tile(1, 4, t="int16")}
    i = make(select_reduce, on_true=tile(1, 4, 1, t="int8"), on_false=NUMBER, **forms)
    out = i.run(
        predicate=np.array([[-1, 0, 0, 1]], np.int16),
        on_true=np.array([[[1], [2], [3], [4]]], np.int8),
        on_false=0.5,
        accumulators=np.zeros(128, F),
    )
    np.testing.assert_array_equal(stored(i, "dst", out["dst"]), [[[1, 0.5], [0.5, 4]]])


def test_select_reduce_refusals_and_cost():
    for case in (
        {"reduce_op": "add"},
        {"reduce_cmd": reduce_cmd.load_reduce},
        {"reduce_cmd": reduce_cmd.reset},
        {"res": True},
        {"mask_space": "psum", "true_space": "psum"},
    ):
        refuse(LimitError, "select_reduce.rules", lambda c=case: selected(**c))
    for name, case in (
        ("on_true", {"t": "int32"}),
        ("on_true", {"t": "tfloat32"}),
        ("predicate", {"mask": "uint32"}),
        ("predicate", {"mask": "float32"}),
        ("reduce_res", {"res": True, "res_t": "int8"}),
    ):
        refuse(DtypeError, f"select_reduce.{name}.dtype", lambda c=case: selected(**c))
    refuse(UsageError, "select_reduce.generation", lambda: selected(on="trn1"))
    assert cycles(selected(shape=(128, 512))) == pytest.approx(1024)
    assert cycles(selected(shape=(128, 512), mask_space="psum")) == pytest.approx(512)


# ------------------------------------------------------------------ nc_stream_shuffle


def shuffle(mask, dst, src, t="float32", **more):
    i = make(
        nc_stream_shuffle,
        dst=tile(*dst.shape, t=t, partition=more.pop("to", 0)),
        src=tile(*src.shape, t=t, partition=more.pop("start", 0)),
        shuffle_mask=mask,
    )
    return i.run(dst=dst, src=src)["dst"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([*range(32), 255]), min_size=32, max_size=32))
def test_shuffle_moves_rows_within_each_quadrant(mask):
    src = np.arange(128 * 3, dtype=F).reshape(128, 3)
    dst = -src - 1
    got = shuffle(mask, dst, src)
    for p in range(128):
        source = mask[p % 32]
        want = dst[p] if source == 255 else src[p // 32 * 32 + source]
        np.testing.assert_array_equal(got[p], want)


def test_shuffle_broadcasts_one_partition_and_keeps_bits():
    src = np.array([[16777217, -1]], np.int32)
    dst = np.zeros((32, 2), np.int32)
    got = shuffle([0] * 32, dst, src, t="int32", start=96, to=32)
    np.testing.assert_array_equal(got, np.repeat(src, 32, axis=0))
    assert not dst.any()


def test_shuffle_in_place():
    tile_ = np.arange(64, dtype=F).reshape(32, 2)
    got = shuffle([(p + 1) % 32 for p in range(32)], tile_, tile_)
    np.testing.assert_array_equal(got, np.roll(np.arange(64).reshape(32, 2), -1, axis=0))


def test_shuffle_refusals():
    zeros = [0] * 32
    src = tile(32, 4)

    def form(dst=src, src=src, mask=zeros):
        return make(nc_stream_shuffle, dst=dst, src=src, shuffle_mask=mask)

    for case in (
        {"mask": [0] * 31},
        {"mask": [32] + [0] * 31},
        {"mask": [-1] + [0] * 31},
        {"dst": tile(32, 4, t=BF16)},
        {"src": tile(16, 4), "mask": list(range(32))},
        # 96 active partitions start at 0, 64 at 0 or 64, whichever tile is the larger
        {"dst": tile(65, 4), "src": tile(32, 4, partition=32)},
        {"dst": tile(33, 4), "src": tile(32, 4, partition=32)},
    ):
        refuse(LimitError, "nc_stream_shuffle.rules", lambda c=case: form(**c))
    assert form(dst=tile(33, 4), src=tile(33, 4, partition=64)).P == 33
    keep = [*range(16), *[255] * 16]
    assert len(form(src=tile(16, 4), mask=keep).moves()) == 16
    refuse(ShapeError, "nc_stream_shuffle.src", lambda: form(src=tile(32, 5)))
    refuse(UsageError, "nc_stream_shuffle.shuffle_mask", lambda: form(mask=[0.5] * 32))


def test_shuffle_cost():
    for on, clock in (("trn1", 1.12), ("trn2", 0.96), ("trn3", 1.2)):
        i = make(nc_stream_shuffle, on=on, dst=BIG, src=BIG, shuffle_mask=[0] * 32)
        assert i.cost.busy_ns == pytest.approx(512 / clock)
    i = make(nc_stream_shuffle, dst=COLUMN, src=COLUMN, shuffle_mask=[0] * 32)
    assert cycles(i) == pytest.approx(64)


def test_a_mask_that_keeps_every_partition_moves_nothing():
    def kernel(x, y):
        t, u = nl.load(x), nl.load(y)
        nisa.nc_stream_shuffle(t, u, [255] * 32)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    x, y = np.arange(256, dtype=np.float32).reshape(32, 8), np.ones((32, 8), np.float32)
    np.testing.assert_array_equal(nki.run(kernel, x, y).outputs, x)
