"""Random numbers: XORWOW word by word in Python integers, states, ranges, dropout, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import DtypeError, LimitError, UsageError
from opentrn.isa.enums import engine
from opentrn.isa.random import (
    dropout,
    rand2,
    rand_get_state,
    rand_set_state,
    rng,
    seeded,
    set_rng_seed,
    xorwow,
)
from tests.isa.vector_forms import NUMBER, cycles, make, refuse, tile

MASK = 0xFFFFFFFF
# The start values of the published example (Marsaglia 2003, page 5).
PUBLISHED = (123456789, 362436069, 521288629, 88675123, 5783321, 6615241)


def by_hand(state, count):
    """The published C function, one word after the other."""
    x, y, z, w, v, d = state
    words = []
    for _ in range(count):
        t = x ^ (x >> 2)
        x, y, z, w = y, z, w, v
        v = (v ^ (v << 4) & MASK) ^ (t ^ (t << 1) & MASK)
        d = (d + 362437) & MASK
        words.append((d + v) & MASK)
    return words, [x, y, z, w, v, d]


@given(st.lists(st.tuples(*[st.integers(0, MASK)] * 6), min_size=1, max_size=4), st.integers(1, 23))
@settings(max_examples=60, deadline=None)
def test_xorwow_is_the_published_function(states, count):
    words, after = xorwow(np.array([PUBLISHED, *states], np.uint32), count)
    for n, state in enumerate([PUBLISHED, *states]):
        want, end = by_hand(state, count)
        assert words[n].tolist() == want
        assert after[n].tolist() == end


def drawn(i, generator):
    made = i.run(generator=generator)
    return made["dst"], made["generator"]


def test_gpsimd_lanes_are_independent_streams_and_bits_are_cut_low():
    state = seeded(3, 128, 1)
    for kind, bits in (("uint32", 32), ("int32", 32), ("uint16", 16), ("int8", 8)):
        i = make(rng, dst=tile(64, 3, 5, t=kind, partition=64), engine=engine.gpsimd)
        got, after = drawn(i, state)
        for lane in (0, 63):
            want, end = by_hand([int(s) for s in state[64 + lane]], 15)
            cut = (got.reshape(64, 15)[lane].astype(np.int64) & (2**bits - 1)).tolist()
            assert cut == [w & (2**bits - 1) for w in want]
            assert after[64 + lane].tolist() == end
        np.testing.assert_array_equal(after[:64], state[:64])


def test_the_vector_engine_of_v4_takes_turns_between_four_states():
    state = seeded(9, 128, 4)
    i = make(rng, on="trn3", dst=tile(2, 6, t="uint32"))
    got, after = drawn(i, state)
    own = [[int(s) for s in state[1, 6 * k : 6 * k + 6]] for k in range(4)]
    words = [by_hand(s, 2)[0] for s in own]
    assert got[1].tolist() == [words[n % 4][n // 4] for n in range(6)]
    assert after[1].tolist() == sum((by_hand(s, 2)[1] for s in own), [])


def test_streams_go_on_and_repeat_from_a_restored_state():
    i = make(rng, dst=tile(128, 7, t="uint32"), engine=engine.gpsimd)
    keep = make(rand_get_state, dst=tile(128, 6, t="uint32"))
    put = make(rand_set_state, src_seeds=tile(128, 6, t="uint32"))
    first, state = drawn(i, i.fresh())
    saved = keep.run(generator=state)["dst"]
    second, state = drawn(i, state)
    assert not np.array_equal(first, second)
    restored = put.run(src_seeds=saved, generator=state)["generator"]
    np.testing.assert_array_equal(drawn(i, restored)[0], second)


def test_a_seed_gives_one_stream_and_another_seed_another():
    seed = make(set_rng_seed, src_seeds=tile(1, 1, t="uint32"))
    same = make(set_rng_seed, src_seeds=tile(1, 1, t="float32"))
    a = seed.run(src_seeds=np.array([[42]], np.uint32), generator=seed.fresh())["generator"]
    b = seed.run(src_seeds=np.array([[43]], np.uint32))["generator"]
    bits = np.array([[42]], np.uint32).view(np.float32)
    np.testing.assert_array_equal(same.run(src_seeds=bits)["generator"], a)
    i = make(rng, dst=tile(128, 64, t="uint32"))
    one, other = drawn(i, a)[0], drawn(i, b)[0]
    assert not np.array_equal(one, other)
    assert np.unique(one).size > 128 * 64 - 20  # no lanes alike
    bits = np.unpackbits(np.ascontiguousarray(one).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.01


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int32"])
def test_uniform_numbers_fill_their_range(kind):
    i = make(rand2, on="trn3", dst=tile(128, 400, t=kind), min=NUMBER, max=tile(128, 1))
    high = np.linspace(1, 128, 128, dtype=np.float32).reshape(128, 1)
    got, _ = i.run(min=-2.0, max=high, generator=i.fresh()).values()
    assert got.dtype == np.float32
    assert (got >= -2).all()
    assert (got <= high).all()
    middle = (high[:, 0] - 2) / 2
    assert (np.abs(got.mean(1) - middle) < 0.12 * (high[:, 0] + 2)).all()
    unit = (got + 2) / (high + 2)
    assert abs(unit.mean() - 0.5) < 0.01
    assert abs(unit.var() - 1 / 12) < 0.002


def test_uniform_needs_min_below_max():
    i = make(rand2, on="trn3", dst=tile(4, 8), min=NUMBER, max=NUMBER)
    refuse(UsageError, "rand2.max", lambda: i.run(min=1.0, max=1.0, generator=i.fresh()))
    refuse(
        UsageError, "rand2.generation", lambda: make(rand2, dst=tile(4, 8), min=NUMBER, max=NUMBER)
    )


@pytest.mark.parametrize("on", ["trn1", "trn2", "trn3"])
def test_dropout_drops_by_probability_and_keeps_the_rest_unscaled(on):
    data = np.arange(1, 128 * 512 + 1, dtype=np.float32).reshape(128, 512)
    i = make(dropout, on=on, dst=tile(128, 512), data=tile(128, 512), prob=tile(128, 1))
    chance = np.linspace(0, 1, 128, dtype=np.float32).reshape(128, 1)
    got = i.run(data=data, prob=chance, generator=i.fresh())["dst"]
    assert ((got == 0) | (got == data)).all()
    assert (got[0] == data[0]).all()
    assert (got[-1] == 0).all()
    share = (got == 0).mean(1)
    assert (np.abs(share - chance[:, 0]) < 0.12).all()
    assert abs(share.mean() - 0.5) < 0.01


def test_dropout_of_integers_moves_bits():
    i = make(dropout, dst=tile(2, 64, t="int16"), data=tile(2, 64, t="int16"), prob=NUMBER)
    data = np.full((2, 64), -300, np.int16)
    got = i.run(data=data, prob=0.5, generator=i.fresh())["dst"]
    assert got.dtype == np.int16
    assert set(np.unique(got)) == {-300, 0}


def test_what_random_numbers_refuse():
    refuse(
        LimitError,
        "rng.rules",
        lambda: make(rng, on="trn1", dst=tile(4, 4, t="uint8"), engine=engine.gpsimd),
    )
    refuse(
        LimitError,
        "rng.rules",
        lambda: make(rng, dst=tile(4, 4, t="uint8", space="psum"), engine=engine.gpsimd),
    )
    refuse(
        UsageError, "rng.engine", lambda: make(rng, dst=tile(4, 4, t="uint8"), engine=engine.scalar)
    )
    refuse(DtypeError, "rng.dst.dtype", lambda: make(rng, dst=tile(4, 4)))
    refuse(
        LimitError, "set_rng_seed.F", lambda: make(set_rng_seed, src_seeds=tile(1, 2, t="uint32"))
    )
    refuse(
        DtypeError,
        "set_rng_seed.src_seeds.dtype",
        lambda: make(set_rng_seed, src_seeds=tile(1, 1, t="int16")),
    )
    state = tile(128, 24, t="uint32")
    assert make(rand_set_state, on="trn3", src_seeds=state, engine=engine.vector).F == 24
    for on, words, which in (
        ("trn2", 24, engine.vector),
        ("trn3", 6, engine.vector),
        ("trn2", 24, engine.gpsimd),
    ):
        refuse(
            LimitError,
            "rand_set_state.rules",
            lambda o=on, w=words, e=which: make(
                rand_set_state, on=o, src_seeds=tile(128, w, t="uint32"), engine=e
            ),
        )
    refuse(
        UsageError,
        "rand_get_state.generation",
        lambda: make(rand_get_state, on="trn1", dst=tile(1, 6, t="uint32")),
    )
    refuse(
        LimitError,
        "rand_get_state.rules",
        lambda: make(rand_get_state, dst=tile(1, 6, t="uint32", space="psum")),
    )


def test_what_dropout_refuses():
    refuse(
        LimitError,
        "dropout.rules",
        lambda: make(dropout, dst=tile(4, 4), data=tile(4, 4, t="int32"), prob=NUMBER),
    )
    refuse(
        LimitError,
        "dropout.rules",
        lambda: make(
            dropout,
            dst=tile(4, 4, t="int32"),
            data=tile(4, 4, t="int32"),
            prob=tile(4, 1, t="bfloat16"),
        ),
    )


def test_costs_by_hand():
    assert cycles(make(rng, dst=tile(128, 512, t="uint32"))) == pytest.approx(512)
    assert cycles(make(rng, on="trn3", dst=tile(128, 512, t="uint32"))) == pytest.approx(128)
    assert cycles(
        make(rand2, on="trn3", dst=tile(128, 4096), min=NUMBER, max=NUMBER)
    ) == pytest.approx(1024)
    i = make(dropout, dst=tile(128, 30), data=tile(128, 30), prob=NUMBER)
    assert cycles(i) == pytest.approx(64)
