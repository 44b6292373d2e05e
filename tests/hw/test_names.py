"""Names people type, and prices they ask for."""

import pytest

from opentrn import hw
from opentrn.base.errors import UnknownNameError


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("trn1", "trn1"), ("gen2", "trn1"), ("inf2", "inf2"), ("trn2", "trn2"), ("gen3", "trn2"),
        ("trn3", "trn3"), ("gen4", "trn3"), ("Trainium2", "trn2"), (" TRN3 ", "trn3"),
        ("NeuronCore-v3", "trn2"), ("trn1n", "trn1"), ("trn1.32xlarge", "trn1"),
        ("trn2u.48xlarge", "trn2"), ("u-trn2x64", "trn2"), ("ml.trn1.32xlarge", "trn1"),
        ("inf2.48xlarge", "inf2"), ("trn3-gen2", "trn3"),
    ],
)  # fmt: skip
def test_target(name, chip):
    found = hw.target(name)
    assert found is hw.chip(chip)
    assert hw.target(found) is found


def test_target_takes_an_instance():
    assert hw.target(hw.instance("trn2.3xlarge")).name == "trn2"


@pytest.mark.parametrize(
    ("typo", "meant"), [("tnr2", "trn2"), ("gen5", "gen"), ("trn2.48xl", "trn2.48xlarge")]
)
def test_unknown_target_names_the_nearest(typo, meant):
    with pytest.raises(UnknownNameError) as caught:
        hw.target(typo)
    assert caught.value.code == "hw.target"
    assert meant in caught.value.fix


def test_nothing_near_lists_the_chips():
    with pytest.raises(LookupError, match="trn1"):
        hw.target("qqqq")


@pytest.mark.parametrize("find", [hw.chip, hw.instance, hw.fabric, hw.prices])
def test_every_lookup_refuses_unknown_names(find):
    with pytest.raises(UnknownNameError) as caught:
        find("../chips/trn2")
    assert caught.value.code == "hw.target"


@pytest.mark.parametrize(
    ("name", "hourly"),
    [
        ("trn1.2xlarge", 1.34375), ("trn1.32xlarge", 21.50), ("trn1n.32xlarge", 24.78),
        ("inf2.xlarge", 0.7582), ("inf2.8xlarge", 1.96786), ("inf2.24xlarge", 6.49063),
        ("inf2.48xlarge", 12.98127),
    ],
)  # fmt: skip
def test_on_demand(name, hourly):
    price = hw.price(name)
    assert (price.hourly, price.region, price.date) == (hourly, "us-east-1", "2026-07-20")
    assert price.basis == "on-demand"
    assert "karpenter" in price.cited


@pytest.mark.parametrize(
    ("name", "basis", "region", "hourly", "date"),
    [
        ("trn2.48xlarge", "capacity-block", "us-east-2", 35.7608, "2026-05-21"),
        ("trn2.48xlarge", "capacity-block", "ap-south-2", 35.7608, "2026-10-03"),
        ("trn2.48xlarge", "spot", "us-east-2", 14.5593, "2026-10-03"),
        ("trn2.3xlarge", "capacity-block", None, 2.235, "2026-05-21"),
        ("trn2.3xlarge", "spot", "sa-east-1", 2.569, "2026-10-03"),
        ("trn1.32xlarge", "capacity-block", None, 9.532, "2026-10-08"),
        ("trn1.32xlarge", "spot", None, 2.15, "2026-10-03"),
        ("trn1.32xlarge", "ri-3yr", None, 8.197, "2026-08-21"),
        ("inf2.xlarge", "ri-3yr", None, 0.328, "2026-08-21"),
    ],
)
def test_other_bases(name, basis, region, hourly, date):
    price = hw.price(name, basis, region)
    assert (price.hourly, price.date) == (hourly, date)
    assert region in (None, price.region)


@pytest.mark.parametrize("name", ["trn2.3xlarge", "trn2.48xlarge"])
def test_trn2_has_no_on_demand_price(name):
    with pytest.raises(UnknownNameError, match="no on-demand price") as caught:
        hw.price(name)
    assert caught.value.code == "hw.price"
    assert "capacity-block" in caught.value.fix


def test_prices_that_are_not_published():
    assert hw.prices("trn3-gen2-ultraserver") == ()
    with pytest.raises(UnknownNameError, match="no price of it is published"):
        hw.best_price("trn3-gen2")
    with pytest.raises(UnknownNameError, match="us-west-2"):
        hw.price("trn1.32xlarge", "on-demand", "us-west-2")
    with pytest.raises(UnknownNameError, match="on-demand, capacity-block, spot, ri-3yr"):
        hw.price("trn1.32xlarge", "cheap")


def test_best_price_names_its_basis():
    assert hw.best_price("trn1.32xlarge").basis == "on-demand"
    best = hw.best_price("trn2.3xlarge")
    assert (best.basis, best.hourly) == ("capacity-block", 2.235)
    assert "capacity-block" in str(best)
    assert "2026-05-21" in str(best)


def test_a_capacity_block_of_16_chips_is_16_of_one():
    one, sixteen = hw.best_price("trn2.3xlarge").hourly, hw.best_price("trn2.48xlarge").hourly
    assert sixteen == pytest.approx(16 * one, rel=1e-4)
    assert sixteen == pytest.approx(858.26 / 24, abs=1e-3)
