"""Rings along cycles, KangaRing, trees and hierarchies give every rank the right data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import Bug, TrnError, UnknownNameError, UsageError
from opentrn.comm import build, hierarchical, kangaring, mesh, place, rdh, ring, run, time, tree


def held_by(ranks: int, chunks: int, seed: int) -> list[list[np.ndarray]]:
    """Small integers, so that sums are exact in any order."""
    random = np.random.default_rng(seed)
    return [[random.integers(-9, 9, 2).astype(float) for _ in range(chunks)] for _ in range(ranks)]


def sums(held: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [sum(own[c] for own in held) for c in range(len(held[0]))]


def reduces(schedule, seed: int = 1) -> None:
    """Every rank gets every sum."""
    held = held_by(schedule.ranks, schedule.chunks, seed)
    for own in run(schedule, held, np.add):
        assert np.array_equal(own, sums(held))


def scatters(schedule, seed: int = 2) -> None:
    """Each rank gets the sums of its own share of the chunks."""
    held = held_by(schedule.ranks, schedule.chunks, seed)
    each = schedule.chunks // schedule.ranks
    for rank, own in enumerate(run(schedule, held, np.add)):
        assert np.array_equal(own, sums(held)[rank * each : (rank + 1) * each])


def gathers(schedule, seed: int = 3) -> None:
    """Every rank gets the chunks of all; what is not its own is NaN before."""
    each = schedule.chunks // schedule.ranks
    true = held_by(1, schedule.chunks, seed)[0]
    blank = np.full(2, np.nan)
    held = [
        [true[c] if c // each == r else blank for c in range(schedule.chunks)]
        for r in range(schedule.ranks)
    ]
    for own in run(schedule, held):
        assert np.array_equal(own, true)


@st.composite
def some_orders(draw, even: bool = False):
    """One to three orders of 2 to 8 ranks."""
    ranks = 2 * draw(st.integers(1, 4)) if even else draw(st.integers(2, 7))
    return [draw(st.permutations(range(ranks))) for _ in range(draw(st.integers(1, 3)))]


@given(orders=some_orders())
@settings(deadline=None, max_examples=25)
def test_several_rings_carry_a_slice_each(orders):
    ranks, count = len(orders[0]), len(orders)
    reduces(ring.all_reduce_along(orders))
    scatters(ring.reduce_scatter_along(orders))
    gathers(ring.all_gather_along(orders))
    made = ring.all_reduce_along(orders)
    assert made.steps == 2 * (ranks - 1)
    assert made.most_sent() == 2 * (ranks - 1) * count


@given(orders=some_orders(even=True))
@settings(deadline=None, max_examples=25)
def test_kangaring_is_a_ring_of_pairs(orders):
    pairs = len(orders[0]) // 2
    reduces(kangaring.all_reduce(orders))
    scatters(kangaring.reduce_scatter(orders))
    gathers(kangaring.all_gather(orders))
    assert kangaring.all_gather(orders).steps == pairs  # half of what a ring needs, and one
    assert kangaring.reduce_scatter(orders).steps == pairs + 1


def test_kangaring_reads_once_what_goes_to_two():
    # One ring of 8 ranks: in the middle of an all-gather each primary sends two chunks, each both
    # to its secondary and downstream; secondaries send nothing after the first step.
    made = kangaring.all_gather([range(8)])
    middle = [s for s in made.sends if s.step == 1]
    assert {s.source for s in middle} == {0, 2, 4, 6}
    assert sorted(s.target for s in middle if s.source == 0) == [1, 1, 2, 2]


def test_kangaring_needs_pairs_and_rings_need_every_rank():
    with pytest.raises(UsageError) as caught:
        kangaring.all_reduce([range(3)])
    assert caught.value.code == "comm.ranks"
    with pytest.raises(Bug):
        ring.all_reduce_along([(0, 1, 1)])


@given(ranks=st.integers(1, 17))
@settings(deadline=None, max_examples=17)
def test_a_tree_reduces_in_twice_the_logarithm(ranks):
    reduces(tree.all_reduce(ranks))
    assert tree.all_reduce(ranks).steps == 2 * int(np.ceil(np.log2(ranks)))


@given(ranks=st.integers(1, 9))
@settings(deadline=None, max_examples=9)
def test_a_single_step_mesh_sends_everything_to_everybody(ranks):
    made = mesh.all_reduce_once(ranks)
    reduces(made)
    assert made.steps == (1 if ranks > 1 else 0)
    assert made.most_sent() == ranks - 1  # whole buffers: (N - 1) N chunks of a ring


@given(across=st.integers(1, 4), within=st.integers(1, 4), turn=st.integers(0, 3))
@settings(deadline=None, max_examples=30)
def test_hierarchies_of_any_two_levels(across, within, turn):
    def order(place):
        return [(x + place * turn) % across for x in range(across)]

    reduces(
        hierarchical.all_reduce(
            across, within, ring.all_reduce, (mesh.reduce_scatter, ring.all_gather), order
        )
    )
    scatters(
        hierarchical.reduce_scatter(
            across, within, mesh.reduce_scatter, ring.reduce_scatter, order
        )
    )
    gathers(hierarchical.all_gather(across, within, mesh.all_gather, mesh.all_gather, order))


def test_a_hierarchy_sends_less_over_the_slow_level():
    # 4 nodes of 8 ranks: across nodes a rank sends 2 (X - 1)/X of 1/8 of the data.
    made = hierarchical.all_reduce(
        4, 8, rdh.all_reduce, (mesh.reduce_scatter, mesh.all_gather)
    )
    crossing = [s for s in made.sends if s.source == 0 and s.target // 8 != 0]
    assert len(crossing) == 2 * (4 - 1)  # chunks of 1/32: 2 * 3/4 * 1/8
    assert made.steps == 1 + 4 + 1


PLACES = [("trn1.32xlarge", 32, 1), ("trn2.48xlarge", 64, 1), ("trn2.48xlarge", 12, 1),
          ("trn2.48xlarge", 128, 2), ("trn2.48xlarge", 2, 1), ("trn2.48xlarge", 1, 1),
          ("trn2-ultraserver", 256, 1), ("trn3-gen2-ultraserver", 64, 1)]  # fmt: skip
NAMES = (None, "mesh", "mesh1", "rdh", "ring", "kangaring", "tree", "hier", "flat", "fast")


@pytest.mark.parametrize(("machine", "ranks", "nodes"), PLACES)
def test_what_can_be_built_can_be_timed_and_the_reverse(machine, ranks, nodes):
    where = place(ranks, machine, nodes)

    def refusal(ask):
        try:
            ask()
        except TrnError as error:
            return error.code
        return ""

    seen = set()
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"):
        for name in NAMES:
            timed = refusal(lambda c=collective, n=name: time(c, 1e6, where, n))
            assert refusal(lambda c=collective, n=name: build(c, where, n, 1e6)) == timed
            seen.add(timed)
    assert "" in seen


@pytest.mark.parametrize(("machine", "ranks", "nodes"), PLACES)
def test_an_algorithm_that_a_collective_does_not_have_is_refused_everywhere(machine, ranks, nodes):
    where = place(ranks, machine, nodes)
    one_way = {"all_to_all": "mesh", "permute": "permute"}
    for collective in ("all_reduce", "all_gather", "reduce_scatter", *one_way):
        wrong = {"fast", "permute", "mesh", "ring", "tree"} - {one_way.get(collective)}
        for name in wrong if collective in one_way else ("fast", "permute"):
            with pytest.raises(UnknownNameError, match=f"no algorithm `{name}` of {collective}"):
                time(collective, 1e6, where, name)
    for collective, name in one_way.items():
        assert time(collective, 1e6, where, name) == time(collective, 1e6, where)
    with pytest.raises(UnknownNameError, match="no collective `dance`"):
        time("dance", 1e6, where, "mesh")
