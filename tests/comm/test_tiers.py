"""Closed-form seconds of collectives over nested tiers, beside arithmetic by hand."""

import numpy as np
import pytest

from opentrn.comm import NETWORK, Tier, tiered_all_to_all, tiered_seconds

LINK = Tier("instance", 8, 1e9, 1e-5, "stated", once=True)
NET = Tier("network", NETWORK, 1e8, 2e-5, "stated")


def test_a_latency_of_the_whole_collective_is_counted_once():
    for size in (2, 4, 8):
        for name, factor in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)):
            found = tiered_seconds(name, (LINK, NET), 1e6, size)
            assert float(found) == pytest.approx(1e-5 + factor * (size - 1) / size * 1e-3)
    assert float(tiered_seconds("all_reduce", (LINK, NET), 1e6, 1)) == 0


def test_a_latency_of_each_step_grows_with_the_group():
    steps = Tier("instance", 8, 1e9, 1e-5, "stated")
    empty = [float(tiered_seconds("all_gather", (steps, NET), 0.0, n)) for n in (1, 2, 4, 8)]
    assert empty[0] == 0
    assert empty[1] == pytest.approx(1e-5)
    assert empty == sorted(empty)
    assert empty[3] > empty[2]
    # 2 x 7 steps of a ring, or 2 x 2 x 3 of halving and doubling, whichever are fewer
    found = float(tiered_seconds("all_reduce", (steps, NET), 1e6, 8))
    assert found == pytest.approx(2 * 7 / 8 * 1e-3 + 2 * min(7, 2 * 3) * 1e-5)


def test_a_group_over_two_instances_carries_an_eighth_over_the_network():
    # 8 ranks inside: 7/8 of the bytes; then 2 instances: half of each rank's eighth.
    inside = 1e-5 + 7 / 8 * 1e-3
    between = 2e-5 + 1 / 2 * (1e6 / 8) / 1e8
    found = tiered_seconds("all_gather", (LINK, NET), 1e6, np.array([16]))
    assert found == pytest.approx([inside + between])


def test_all_to_all_sends_what_leaves():
    # Of 8 parts one stays: 7/8 of the bytes over the links, one latency.
    found = float(tiered_all_to_all((LINK, NET), 1e6, 8, 1))
    assert found == pytest.approx(7 / 8 * 1e-3 + 1e-5)
