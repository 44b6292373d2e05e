"""GpSimd gathers: plain loops over the documented offsets, refusals, costs by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import BoundsError, DtypeError, LimitError
from opentrn.isa.gpsimd_gather import local_gather, nc_n_gather
from tests.isa.vector_forms import cycles, make, refuse, tile


def gather_form(p=128, f=64, columns=4, run=1, valid=None, kind="float32", **more):
    count = (16 * columns if valid is None else valid) * run
    given = {
        "dst": tile(p, count, t=kind),
        "src_buffer": tile(p, f, t=kind),
        "index": tile(p, columns, t="uint16"),
        "num_elem_per_idx": run,
        "num_valid_indices": valid,
    }
    return make(local_gather, **(given | more))


@given(
    st.sampled_from([16, 32, 128]),
    st.integers(1, 4),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 64),
)
@settings(max_examples=40, deadline=None)
def test_local_gather_follows_each_core(partitions, columns, run, valid):
    valid = min(valid, 16 * columns)
    rng = np.random.default_rng(partitions * columns + valid)
    source = rng.standard_normal((partitions, 40)).astype(np.float32)
    index = rng.integers(0, 41 - run, (partitions, columns)).astype(np.uint16)
    got = gather_form(partitions, 40, columns, run, valid).run(src_buffer=source, index=index)[
        "dst"
    ]
    for p in range(partitions):
        core = p // 16 * 16
        want = []
        for n in range(valid):
            offset = index[core + n % 16, n // 16]
            want.extend(source[p, offset : offset + run])
        assert got[p].tolist() == want


def test_all_indices_count_by_default_and_shapes_are_free():
    i = gather_form(16, 12, 2, src_buffer=tile(16, 3, 4), dst=tile(16, 2, 16))
    source = np.arange(16 * 12, dtype=np.float32).reshape(16, 3, 4)
    index = np.arange(32, dtype=np.uint16).reshape(16, 2) % 12
    got = i.run(src_buffer=source, index=index)["dst"]
    assert got.shape == (16, 2, 16)
    # flattened along the partitions first: 0, 2, 4, … then 1, 3, 5, …
    assert got[0, 0].tolist() == [n % 12 for n in range(0, 32, 2)]
    assert got[0, 1].tolist() == [n % 12 for n in range(1, 32, 2)]


def test_an_index_outside_is_refused():
    i = gather_form(16, 8, 1, run=4)
    index = np.full((16, 1), 4, np.uint16)
    source = np.zeros((16, 8), np.float32)
    assert i.run(src_buffer=source, index=index)["dst"].shape == (16, 64)
    index[3] = 5
    text = refuse(BoundsError, "local_gather.index", lambda: i.run(src_buffer=source, index=index))
    assert "holds 5, at most 4" in text


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("P", {"p": 24}),
        ("rules", {"run": 3}),
        ("rules", {"columns": 257}),
        ("rules", {"valid": 65}),
        ("rules", {"dst": tile(128, 63)}),
        ("rules", {"dst": tile(128, 64, t="bfloat16")}),
    ],
)
def test_what_local_gather_refuses(code, more):
    refuse(LimitError, f"local_gather.{code}", lambda: gather_form(**more))


def test_local_gather_takes_uint16_indices():
    refuse(
        DtypeError, "local_gather.index.dtype", lambda: gather_form(index=tile(128, 4, t="uint32"))
    )


def test_cost_of_local_gather_by_hand():
    # 64 runs of 4 float32: (28 + 16) / 16 / min(1, 4) = 2.75 cycles an element
    assert cycles(gather_form(run=4)) == pytest.approx(150 + 64 * 4 * 2.75)
    # one bfloat16: (28 + 4) / 4 / min(2, 1) = 8
    assert cycles(gather_form(kind="bfloat16")) == pytest.approx(150 + 64 * 8)


@given(
    st.integers(1, 5), st.integers(1, 9), st.integers(1, 20), st.sampled_from(["float32", "int8"])
)
@settings(max_examples=30, deadline=None)
def test_n_gather_works_within_a_partition(p, f, g, kind):
    rng = np.random.default_rng(p * f * g)
    i = make(
        nc_n_gather, dst=tile(p, g, t=kind), data=tile(p, f, t=kind), indices=tile(p, g, t="uint32")
    )
    data = rng.integers(-100, 100, (p, f)).astype(i.data.dtype.carrier)
    places = rng.integers(0, f, (p, g)).astype(np.uint32)
    got = i.run(data=data, indices=places)["dst"]
    assert got.tolist() == [[data[r, c] for c in places[r]] for r in range(p)]


def test_n_gather_refusals_and_cost():
    words = tile(4, 6, t="uint32")
    i = make(nc_n_gather, dst=tile(4, 6), data=tile(4, 3), indices=words)
    places = np.full((4, 6), 3, np.uint32)
    refuse(
        BoundsError,
        "nc_n_gather.indices",
        lambda: i.run(data=np.zeros((4, 3), np.float32), indices=places),
    )
    refuse(
        LimitError,
        "nc_n_gather.rules",
        lambda: make(nc_n_gather, dst=tile(4, 6, t="int32"), data=tile(4, 3), indices=words),
    )
    wide = tile(128, 1025, t="uint32")
    i = make(nc_n_gather, dst=tile(128, 1025), data=tile(128, 3), indices=wide)
    assert cycles(i) == pytest.approx(3 * 150 + 1025)
