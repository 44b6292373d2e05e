"""Every collective gives every rank the right data and moves no fewer bytes than it must."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import Bug, UsageError
from opentrn.comm import Group, Schedule, Send, mesh, ring, run

RANKS = st.integers(2, 9)


def data(ranks: int, chunks: int, seed: int) -> list[list[np.ndarray]]:
    """Small integers, so that sums are exact in any order."""
    random = np.random.default_rng(seed)
    return [[random.integers(-9, 9, 3).astype(float) for _ in range(chunks)] for _ in range(ranks)]


@pytest.mark.parametrize("family", [ring, mesh])
@given(ranks=RANKS, seed=st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_all_reduce_gives_every_rank_every_sum(family, ranks, seed):
    held = data(ranks, ranks, seed)
    wanted = [sum(held[r][c] for r in range(ranks)) for c in range(ranks)]
    for own in run(family.all_reduce(ranks), held, np.add):
        assert np.array_equal(own, wanted)


@pytest.mark.parametrize("family", [ring, mesh])
@given(ranks=RANKS, seed=st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_reduce_scatter_gives_each_rank_its_sum(family, ranks, seed):
    held = data(ranks, ranks, seed)
    for rank, own in enumerate(run(family.reduce_scatter(ranks), held, np.add)):
        assert np.array_equal(own, [sum(held[r][rank] for r in range(ranks))])


@pytest.mark.parametrize("family", [ring, mesh])
@given(ranks=RANKS, seed=st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_all_gather_gives_every_rank_every_chunk(family, ranks, seed):
    own = data(ranks, 1, seed)
    blank = np.full(3, np.nan)
    held = [[own[r][0] if c == r else blank for c in range(ranks)] for r in range(ranks)]
    for found in run(family.all_gather(ranks), held):
        assert np.array_equal(found, [own[r][0] for r in range(ranks)])


@given(ranks=RANKS, seed=st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_all_to_all_transposes(ranks, seed):
    held = data(ranks, ranks, seed)
    padded = [own + [np.full(3, np.nan)] * ranks for own in held]
    for rank, found in enumerate(run(mesh.all_to_all(ranks), padded)):
        assert np.array_equal(found, [held[s][rank] for s in range(ranks)])


def test_permute_by_hand():
    held = [[np.array([float(r)]), np.array([np.nan])] for r in range(3)]
    found = run(mesh.permute(3, ((0, 1), (1, 2), (2, 0))), held)
    assert [own[0][0] for own in found] == [2.0, 0.0, 1.0]


@given(ranks=RANKS)
@settings(deadline=None)
def test_ring_traffic_is_the_bound_and_steps_are_as_published(ranks):
    # Each rank must send (N-1)/N of the data for all-gather and reduce-scatter, twice for
    # all-reduce; a chunk is 1/N of the data.
    assert ring.all_gather(ranks).most_sent() == ranks - 1
    assert ring.reduce_scatter(ranks).most_sent() == ranks - 1
    assert ring.all_reduce(ranks).most_sent() == 2 * (ranks - 1)
    assert ring.all_reduce(ranks).steps == 2 * (ranks - 1)
    assert mesh.all_reduce(ranks).steps == 2
    assert mesh.all_reduce(ranks).most_sent() == 2 * (ranks - 1)


def test_the_arrays_given_are_left_alone():
    held = data(3, 3, 0)
    before = [[c.copy() for c in own] for own in held]
    run(ring.all_reduce(3), held, np.add)
    assert np.array_equal(held, before)


def test_a_schedule_refuses_other_data():
    with pytest.raises(Bug):
        run(ring.all_gather(3), data(2, 3, 0))
    with pytest.raises(Bug):
        run(ring.all_reduce(2), data(2, 2, 0))


def test_a_step_reads_what_lay_there_before_it():
    swap = Schedule("swap", 2, 1, (Send(0, 0, 1, 0, 0), Send(0, 1, 0, 0, 0)), ((0,), (0,)))
    found = run(swap, [[np.array([1.0])], [np.array([2.0])]])
    assert (found[0][0][0], found[1][0][0]) == (2.0, 1.0)


def test_groups_of_ranks():
    group = Group.of([[0, 1], [2, 3]])
    assert group.size == 2
    assert group.of_rank(3) == (2, 3)
    for wrong in ([], [[]], [[0, 0]], [[0, 1], [1, 2]], [[0], [1, 2]], [[-1, 0]]):
        with pytest.raises(UsageError):
            Group.of(wrong)
    with pytest.raises(UsageError):
        group.of_rank(4)
