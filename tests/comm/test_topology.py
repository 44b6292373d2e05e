"""Links, routes and cycles of the fabrics, by hand."""

import pytest

from opentrn.base import LimitError, UsageError
from opentrn.comm import cycles, links, loads, orders, place
from opentrn.comm.topology import busiest, diameter, routes


def test_a_torus_has_four_links_a_chip_as_neuron_ls_lists_them():
    found = links(place(64, "trn2.48xlarge"))
    assert len(found) == 16 * 4
    assert {b for a, b in found if a == 0} == {12, 3, 4, 1}
    assert {b for a, b in found if a == 1} == {13, 0, 5, 2}
    assert set(found.values()) == {128e9}  # one direction of 256 GB/s


def test_an_ultraserver_has_slower_links_between_its_instances():
    found = links(place(256, "trn2-ultraserver"))
    assert len(found) == 64 * 6
    assert {b for a, b in found if a == 0} == {1, 3, 4, 12, 16, 48}
    assert found[0, 16] == found[0, 48] == 64e9
    assert found[0, 1] == found[0, 4] == 128e9


def test_lines_and_rings_of_inferentia():
    assert {b for a, b in links(place(24, "inf2.48xlarge")) if a == 0} == {1, 11}
    assert {b for a, b in links(place(12, "inf2.24xlarge")) if a == 0} == {1}
    assert diameter(place(24, "inf2.48xlarge")) == 6
    assert diameter(place(12, "inf2.24xlarge")) == 5


def test_messages_take_the_shorter_way_and_both_where_they_are_equal():
    t = place(32, "trn1.32xlarge")
    assert routes(t, 0, 3) == ((1.0, ((0, 3),)),)
    assert routes(t, 0, 5) == ((1.0, ((0, 1), (1, 5))),)
    assert sorted(routes(t, 0, 2)) == [(0.5, ((0, 1), (1, 2))), (0.5, ((0, 3), (3, 2)))]
    assert len(routes(t, 0, 10)) == 4


def test_loads_add_up_on_the_links_they_share():
    # 0 -> 1 and 3 -> 1 (half of it by 0): 1 + 1/2 units on 0 -> 1.
    found = loads(place(32, "trn1.32xlarge"), [(0, 1, 8.0), (3, 1, 8.0)])
    assert found[0, 1] == 12.0
    assert found[3, 0] == found[3, 2] == found[2, 1] == 4.0
    t = place(32, "trn1.32xlarge")
    assert busiest(t, [(0, 1, 48e9)]) == pytest.approx(1.0)


def test_switches_carry_what_is_on_no_direct_link():
    t = place(576, "trn3-gen2-ultraserver")
    found = links(t)
    # 144 chips, 36 switches of servers and 2 of racks; two links up and one across for each chip
    assert len(found) == 144 * 2 * 2 + 144
    assert routes(t, 0, 1) == ((1.0, ((0, 144), (144, 1))),)
    assert routes(t, 0, 4) == ((1.0, ((0, 180), (180, 4))),)
    assert routes(t, 0, 72) == ((1.0, ((0, 72),)),)
    assert routes(t, 0, 73) == ((1.0, ((0, 144), (144, 1), (1, 73))),)
    assert found[0, 144] == 256e9
    assert found[0, 180] == 320e9
    assert found[0, 72] == 128e9


@pytest.mark.parametrize(
    ("ranks", "count", "directions"), [(4, 1, 2), (8, 1, 2), (16, 1, 2), (24, 1, 2), (32, 2, 4)]
)
def test_disjoint_cycles_of_parts_of_a_torus(ranks, count, directions):
    t = place(ranks, "trn1.32xlarge")
    found = cycles(t)
    assert len(found) == count
    assert len(orders(t)) == directions
    used = []
    for order in found:
        assert sorted(order) == list(range(t.chips))
        edges = list(zip(order, order[1:] + order[:1], strict=True))
        assert all(edge in links(t) for edge in edges)
        used += [frozenset(edge) for edge in edges]
    assert len(set(used)) == len(used) or t.chips == 2


def test_places_and_their_refusals():
    t = place(128, "trn2.48xlarge", 2)
    assert (t.chips, t.per_chip, t.cores, t.here, t.ranks) == (16, 4, 2, 64, 128)
    assert t.network == 400e9  # 3,200 Gbps
    assert place(8, "trn2.48xlarge", lnc=1).chips == 1
    for wrong in ((0, "trn2.48xlarge"), (6, "trn2.48xlarge"), (9, "trn2.48xlarge", 2)):
        with pytest.raises(UsageError) as caught:
            place(*wrong)
        assert caught.value.code == "comm.place"
    with pytest.raises(LimitError) as caught:
        place(65)
    assert "-N 2" in caught.value.fix
    with pytest.raises(UsageError):
        place(24, "inf2.48xlarge", 2, 2)
    with pytest.raises(UsageError):
        place(48, "inf2.48xlarge", 2)
