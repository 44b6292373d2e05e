"""Dollars by hand: hourly / 3600 x seconds x share of the cores."""

import pytest

from opentrn.base.errors import LimitError, UnknownNameError, UsageError
from opentrn.cost import Estimate, best_price, dollars, dollars_per_million
from opentrn.hw import price


def test_an_hour_of_an_instance_is_its_price():
    bill = dollars(3600, "trn1.32xlarge")
    assert (bill.value, bill.whole) == (21.5, 21.5)
    assert (bill.cores_used, bill.cores) == (32, 32)
    assert bill.price.date == "2026-07-20"
    assert bill.filling == "all 32 cores of the instance work on it"


def test_some_cores_pay_their_share_and_the_whole_stands_beside_it():
    bill = dollars(1800, "trn1.32xlarge", cores_used=8)
    assert bill.value == pytest.approx(21.5 / 2 / 4)
    assert bill.whole == pytest.approx(21.5 / 2)
    assert bill.filling == (
        "8 of 32 cores, the others filled with other paid work; $10.75 if they idle"
    )


def test_the_text_names_basis_region_date_and_source():
    text = str(dollars(3600, "trn2.48xlarge", basis="capacity-block", region="us-east-2"))
    for part in ("$35.76", "35.7608 $/h", "capacity-block", "us-east-2", "2026-05-21", "loka"):
        assert part in text


def test_an_estimate_is_a_duration():
    assert dollars(Estimate(3600.0, "s", {"fitted": 1.0}), "inf2.xlarge").value == 0.7582


def test_per_million():
    """19.6 ms a token on a whole trn2.48xlarge: 35.7608 / 3600 x 0.0196 x 1e6 = 194.697 $."""
    bill = dollars_per_million(
        19.6e-3, 1, "trn2.48xlarge", basis="capacity-block", region="us-east-2", item="tokens"
    )
    assert bill.value == pytest.approx(194.6976888888889)
    assert bill.seconds == pytest.approx(19600)
    assert "per million tokens" in str(bill)


def test_per_million_of_a_batch_on_two_cores():
    """Two of eight cores, 16 items a call of 8 ms: 2.235 / 3600 x 8e-3 / 16 x 1e6 x 2/8."""
    bill = dollars_per_million(
        8e-3, 16, "trn2.3xlarge", cores_used=2, basis=best_price("trn2.3xlarge")
    )
    assert bill.value == pytest.approx(0.0776041666667)
    assert bill.whole == pytest.approx(4 * 0.0776041666667)
    assert bill.price.basis == "capacity-block"


def test_aliases_are_instances_too():
    assert dollars(3600, "ml.trn1.2xlarge").value == 1.34375


@pytest.mark.parametrize("name", ["trn2.3xlarge", "trn2.48xlarge", "u-trn2x64"])
def test_no_silent_basis(name):
    with pytest.raises(UnknownNameError) as caught:
        dollars(1, name)
    assert caught.value.code == "hw.price"


def test_a_price_belongs_to_its_instance():
    with pytest.raises(UsageError, match=r"trn1\.2xlarge, not inf2\.xlarge"):
        dollars(1, "inf2.xlarge", basis=price("trn1.2xlarge"))


def test_refusals():
    with pytest.raises(LimitError, match="2 cores, not 3"):
        dollars(1, "trn1.2xlarge", cores_used=3)
    with pytest.raises(LimitError):
        dollars(1, "trn1.2xlarge", cores_used=0)
    with pytest.raises(UsageError):
        dollars(-1, "trn1.2xlarge")
    with pytest.raises(UsageError):
        dollars_per_million(1, 0, "trn1.2xlarge")
