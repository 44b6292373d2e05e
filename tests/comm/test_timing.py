"""Times of collectives: closed forms against the schedules themselves, and against arithmetic."""

import time as clock

import numpy as np
import pytest

from opentrn.base import LimitError, UnknownNameError, UsageError
from opentrn.comm import build, pick, place, run, time, wire_seconds
from opentrn.comm.timing import PHASES

KINDS = tuple(PHASES)


def moving(topology, collective, algorithm, nbytes=1e12):
    """Seconds of the wires alone: a size beside which latency is nothing, at full link speed."""
    made = build(collective, topology, algorithm)
    return wire_seconds([(made, range(topology.ranks))], topology, nbytes)


@pytest.mark.parametrize("machine", ["trn1.32xlarge", "trn2.48xlarge"])
@pytest.mark.parametrize("collective", KINDS)
def test_loads_of_the_schedules_are_those_of_the_theory(machine, collective):
    # 16 chips, unit bandwidth b: rings send phases (N - 1)/N over 4 links; a mesh loads each link
    # with half the data (32 hops of 1/16 over 4 links); doubling sends 15/16 over 4 links.
    t = place(32 if machine == "trn1.32xlarge" else 64, machine)
    b, phases = {"trn1.32xlarge": 48e9, "trn2.48xlarge": 128e9}[machine], PHASES[collective]
    n = t.ranks
    assert moving(t, collective, "ring") == pytest.approx(phases * 1e12 * (n - 1) / n / 4 / b)
    assert moving(t, collective, "mesh") == pytest.approx(phases * 1e12 / 2 / b)
    if machine == "trn2.48xlarge":  # 4 ranks of a chip on 4 axes
        assert moving(t, collective, "rdh") == pytest.approx(phases * 1e12 * 15 / 16 / 4 / b)
        pairs = n // 2
        assert moving(t, collective, "kangaring") == pytest.approx(
            phases * 1e12 * (pairs - 1) / pairs / 4 / b
        )


@pytest.mark.parametrize("algorithm", ["mesh", "rdh", "ring", "kangaring", "tree", "mesh1"])
@pytest.mark.parametrize("ranks", [8, 16])
def test_every_algorithm_reduces_on_a_real_topology(algorithm, ranks):
    t = place(ranks, "trn2.48xlarge")
    made = build("all_reduce", t, algorithm)
    random = np.random.default_rng(0)
    held = [[random.integers(-9, 9, 2).astype(float) for _ in range(made.chunks)]
            for _ in range(ranks)]  # fmt: skip
    sums = [sum(own[c] for own in held) for c in range(made.chunks)]
    for own in run(made, held, np.add):
        assert np.array_equal(own, sums)


def test_groups_that_share_links_share_their_speed():
    # Two rings through the same four chips of a row at once need twice the time of one.
    t = place(8, "trn1.32xlarge")
    one = build("all_gather", place(8, "trn1.32xlarge"), "ring")
    alone = wire_seconds([(one, range(8))], t, 8e9)
    assert wire_seconds([(one, range(8)), (one, range(8))], t, 8e9) == pytest.approx(2 * alone)
    # and on another row they need no more
    other = [rank + 8 for rank in range(8)]
    assert wire_seconds([(one, range(8)), (one, other)], t, 8e9) == pytest.approx(alone)


def test_a_ring_of_large_messages_reaches_its_share_of_the_links():
    # trn1, 16 ranks: two rings of 48 GB/s; 2 15/16 of the data, half on each; 69 % of the links.
    t = place(16, "trn1.32xlarge")
    seconds = time("all_reduce", 1 << 30, t, "ring").seconds
    assert seconds == pytest.approx(2 * 15 / 16 * (1 << 30) / 2 / 48e9 / 0.69, rel=1e-6)
    assert time("all_reduce", 1 << 30, t).bus == pytest.approx(2 * 48e9 * 0.69, rel=1e-6)
    # on all chips there are four rings, and a core passes on 130 GB/s at most
    both = time("all_reduce", 1 << 30, place(32, "trn1.32xlarge"))
    assert both.bus == pytest.approx(min(4 * 48e9 * 0.69, 130e9), rel=1e-6)


def test_small_messages_cost_the_latency_of_their_steps():
    # trn1: two steps in a chip (1.05 us), two across 16 chips, four links far (0.6 + 4 * 0.7 us)
    t = place(32, "trn1.32xlarge")
    assert time("all_reduce", 8, t, "mesh").seconds == pytest.approx(8.9e-6, rel=1e-3)
    # trn2, KangaRing of 32 pairs: 2 * 31 steps on the ring and one in the chip for each half
    kanga = time("all_reduce", 8, place(64), "kangaring")
    assert kanga.parts[0].steps == 2 * 31 + 2
    assert kanga.seconds == pytest.approx(64 * 1.5e-6, rel=1e-3)


def test_nodes_add_the_network():
    # 2 x trn2.48xlarge: half the data leaves and half comes, twice: B over 75 % of 400 GB/s.
    both = time("all_reduce", 1 << 30, place(128, "trn2.48xlarge", 2))
    assert both.algorithm == "hier"
    network = both.parts[-1]
    assert network.name == "network"
    assert network.moving == pytest.approx((1 << 30) / (0.75 * 400e9))
    assert network.latency == pytest.approx(2 * 15e-6)
    inside = time("all_reduce", 1 << 30, place(64, "trn2.48xlarge"))
    assert both.seconds == pytest.approx(inside.seconds + network.seconds)


def test_a_flat_ring_goes_round_all_nodes():
    # 2 x trn1.32xlarge: 2 * 63 steps of 3.6 us and 0.77 us for each of 8 cycles, four crossings of
    # 15 us; 2 63/64 of the data over 53 % of the 100 GB/s of a node.
    t = place(64, "trn1.32xlarge", 2)
    flat = time("all_reduce", 1 << 30, t, "flat")
    assert flat.algorithm == "flat"
    assert flat.parts[0].latency == pytest.approx(126 * (3.6e-6 + 8 * 0.77e-6) + 4 * 15e-6)
    assert flat.parts[0].moving == pytest.approx(2 * 63 / 64 * (1 << 30) / (0.53 * 100e9))
    levels = time("all_reduce", 1 << 30, t, "hier")
    best = time("all_reduce", 1 << 30, t)
    assert best.seconds == min(flat.seconds, levels.seconds)
    assert time("all_reduce", 1 << 30, place(128, "trn2.48xlarge", 2)).algorithm == "hier"
    with pytest.raises(UsageError, match="several nodes"):
        time("all_reduce", 1 << 30, place(32, "trn1.32xlarge"), "flat")
    with pytest.raises(UsageError, match="one level"):
        time("all_reduce", 1 << 30, place(32, "trn1.32xlarge"), "hier")


def test_one_ring_does_not_fill_the_links_of_trn2():
    # 59 GB/s on each ring, 86 GB/s of each core: two rings of four chips 118, four rings of sixteen
    # 172; two chips have two rings on one link of 128 GB/s, of which they get 69 %.
    for ranks, bus in ((8, 0.69 * 128e9), (16, 118e9), (64, 172e9)):
        found = time("all_reduce", 1 << 33, place(ranks), "ring").bus
        assert found == pytest.approx(bus, rel=1e-6)


@pytest.mark.parametrize("collective", KINDS)
def test_the_schedule_of_a_flat_ring_is_right(collective):
    from opentrn.comm.nccom import DTYPES, check

    made = build(collective, place(64, "trn1.32xlarge", 2), "flat")
    assert check(made, 256, DTYPES["int32"]) == 0


@pytest.mark.parametrize(
    ("nbytes", "ranks", "name"),
    [
        (999_999, 64, "mesh"), (1_000_000, 64, "rdh"), (56_000_000, 64, "rdh"),
        (56_000_001, 64, "kangaring"), (1 << 30, 4, "ring"), (1 << 30, 48, "kangaring"),
    ],
)  # fmt: skip
def test_the_published_ranges_hold_on_a_whole_trn2(nbytes, ranks, name):
    assert pick("all_reduce", nbytes, place(ranks)) == name


def test_more_bytes_never_take_less_time_within_an_algorithm_and_nothing_beats_the_links():
    for machine, ranks in (("trn1.32xlarge", 16), ("trn2.48xlarge", 64),
                           ("trn3-gen1-ultraserver", 256)):  # fmt: skip
        t = place(ranks, machine)
        for name in ("mesh", "rdh", "ring", "kangaring"):
            if name == "kangaring" and t.per_chip % 2:
                continue
            times = [time("all_reduce", 1 << k, t, name).seconds for k in range(3, 31, 3)]
            assert times == sorted(times)
            if machine != "trn3-gen1-ultraserver":
                assert times[-1] > moving(t, "all_reduce", name, 2.0**30)


def test_a_hundred_thousand_ranks_cost_nothing_to_time():
    t = place(131_072, "trn2.48xlarge", 2_048)
    time("all_reduce", 1 << 30, t)
    begin = clock.perf_counter()
    found = time("all_reduce", 1 << 30, t)
    assert clock.perf_counter() - begin < 0.5
    # the network carries 2 (X - 1)/X of the data of a node, in 2 log2 X steps of 15 us
    assert found.parts[-1].moving == pytest.approx(2 * 2047 / 2048 * (1 << 30) / (0.75 * 400e9))
    assert found.parts[-1].latency == pytest.approx(22 * 15e-6)
    with pytest.raises(LimitError):
        build("all_reduce", t)


def test_grades_add_up_to_one_and_lone_ranks_copy():
    for machine, ranks in (("trn1.32xlarge", 32), ("trn2-ultraserver", 256), ("inf2.48xlarge", 24)):
        shares = time("all_gather", 1 << 24, place(ranks, machine)).grades
        assert sum(shares.values()) == pytest.approx(1.0)
    assert time("all_gather", 1 << 24, place(24, "inf2.48xlarge")).grades.keys() == {"assumed"}
    assert time("all_reduce", 104_000, place(1, lnc=1)).seconds == pytest.approx(1e-6)


def test_permute_and_all_to_all():
    # sendrecv on one die of trn2: 12 us and 104 GB/s
    t = place(2, "trn2.3xlarge", lnc=1)
    assert time("permute", 104_000_000, t).seconds == pytest.approx(12e-6 + 1e-3)
    # all-to-all on 4 chips of a trn1 row: every chip pair carries 2 * 2 parts of 1/8; two hops to
    # the opposite chip, half each way: (1 + 2/2) of 4/8 on each link, at 53 % of 48 GB/s.
    t = place(8, "trn1.32xlarge")
    assert time("all_to_all", 48e9, t).parts[0].moving == pytest.approx(1.0 / 0.53)


def test_unknown_names_and_impossible_algorithms():
    with pytest.raises(UnknownNameError) as caught:
        time("all_reduced", 1, place(4))
    assert caught.value.code == "comm.collective"
    with pytest.raises(UnknownNameError) as caught:
        time("all_reduce", 1, place(4), "rings")
    assert caught.value.code == "comm.algorithm"
    for ranks, name in ((12, "rdh"), (4, "kangaring")):
        with pytest.raises(UsageError):
            time("all_reduce", 1, place(ranks), name)
