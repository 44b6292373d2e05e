"""The algorithm by size, recursive doubling and halving, and bus bandwidths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import UnknownNameError, UsageError
from opentrn.comm import bandwidths, bus_factor, choose, rdh, run

POWERS = st.sampled_from([1, 2, 4, 8, 16])


def data(ranks: int, seed: int) -> list[list[np.ndarray]]:
    """Small integers, so that sums are exact in any order."""
    random = np.random.default_rng(seed)
    return [[random.integers(-9, 9, 3).astype(float) for _ in range(ranks)] for _ in range(ranks)]


@given(ranks=POWERS, seed=st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_recursive_doubling_and_halving_give_the_right_data(ranks, seed):
    held = data(ranks, seed)
    sums = [sum(held[r][c] for r in range(ranks)) for c in range(ranks)]
    for own in run(rdh.all_reduce(ranks), held, np.add):
        assert np.array_equal(own, sums)
    for rank, own in enumerate(run(rdh.reduce_scatter(ranks), held, np.add)):
        assert np.array_equal(own, [sums[rank]])
    alone = [[held[r][r] if c == r else None for c in range(ranks)] for r in range(ranks)]
    for own in run(rdh.all_gather(ranks), alone):
        assert np.array_equal(own, [held[c][c] for c in range(ranks)])


@given(ranks=POWERS)
@settings(deadline=None)
def test_recursive_doubling_takes_few_steps_and_the_least_traffic(ranks):
    logarithm = ranks.bit_length() - 1
    assert rdh.all_gather(ranks).steps == rdh.reduce_scatter(ranks).steps == logarithm
    assert rdh.all_reduce(ranks).steps == 2 * logarithm
    # (N - 1)/N of the data for each half; a chunk is 1/N of it.
    assert rdh.all_gather(ranks).most_sent() == ranks - 1
    assert rdh.reduce_scatter(ranks).most_sent() == ranks - 1
    assert rdh.all_reduce(ranks).most_sent() == 2 * (ranks - 1)


@pytest.mark.parametrize("make", [rdh.all_gather, rdh.reduce_scatter, rdh.all_reduce])
def test_recursive_doubling_needs_a_power_of_two(make):
    for ranks in (0, 3, 6, 12):
        with pytest.raises(UsageError) as caught:
            make(ranks)
        assert caught.value.code == "comm.ranks"


@pytest.mark.parametrize(
    ("collective", "nbytes", "ranks", "name"),
    [
        ("all_reduce", 999_999, 16, "all_reduce.mesh"),
        ("all_reduce", 1_000_000, 16, "all_reduce.rdh"),
        ("all_reduce", 1_000_000, 12, "all_reduce.ring"),
        ("all_gather", 56_000_000, 64, "all_gather.rdh"),
        ("reduce_scatter", 56_000_001, 64, "reduce_scatter.ring"),
        ("all_to_all", 1 << 30, 8, "all_to_all.mesh"),
    ],
)
def test_the_published_ranges(collective, nbytes, ranks, name):
    assert choose(collective, nbytes, ranks).name == name


def test_unknown_collectives_name_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        choose("all_reduced", 1, 2)
    assert caught.value.code == "comm.collective"
    assert "all_reduce" in caught.value.fix
    with pytest.raises(UnknownNameError):
        bus_factor("broadcast", 2)


def test_the_example_of_the_nccom_test_guide():
    # 32 MiB in 768 us on 2 ranks: 40.69 GiB/s in both columns
    both = bandwidths("all_reduce", 32 << 20, 768e-6, 2)
    assert [round(b / 2**30, 2) for b in both] == [40.69, 40.69]


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all", 0.875),
        ("all_to_all_v", 0.875),
        ("sendrecv", 1.0),
        ("permute", 1.0),
    ],
)
def test_bus_factors_of_eight_ranks(collective, factor):
    assert bus_factor(collective, 8) == factor
    if collective in ("all_reduce", "all_gather", "reduce_scatter"):
        # What the factor means: the bytes a rank sends for each byte of the collective's size.
        assert choose(collective, 1 << 30, 8).most_sent() / 8 == factor
