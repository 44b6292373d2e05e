"""Estimates add up, and so do the grades they rest on."""

import pytest

from opentrn import hw
from opentrn.base.errors import Bug, UsageError
from opentrn.cost import Estimate, total, weakest


def test_sum_weights_the_shares_by_value():
    sure = Estimate(3.0, "s", {"stated": 1.0})
    guess = Estimate(1.0, "s", {"fitted": 0.5, "assumed": 0.5})
    both = sure + guess
    assert both.value == 4.0
    assert dict(both.shares) == pytest.approx({"stated": 0.75, "fitted": 0.125, "assumed": 0.125})
    assert (sure.grade, guess.grade, both.grade) == ("stated", "assumed", "assumed")


def test_a_multiple_keeps_its_shares():
    one = Estimate(2e-6, "s", {"derived": 0.25, "stated": 0.75})
    assert (3 * one).value == pytest.approx(6e-6)
    assert (3 * one).grade_shares == (("stated", 0.75), ("derived", 0.25))
    assert float(one * 2) == pytest.approx(4e-6)


def test_the_text_tells_value_and_shares():
    text = str(Estimate(1.5e-3, "s", {"stated": 0.62, "fitted": 0.38}))
    assert text == "1.50 ms (62% stated, 38% fitted)"


def test_it_rests_on_the_weakest_fact():
    chip = hw.chip("trn2")
    stated, fitted = chip.fact("dma.engine_rate"), chip.fact("dma.descriptor")
    assert Estimate.resting_on(1.0, "s", stated).grade_shares == (("stated", 1.0),)
    assert Estimate.resting_on(1.0, "s", stated, fitted).grade_shares == (("fitted", 1.0),)
    assert weakest(["stated", "assumed", "derived"]) == "assumed"


def test_units_do_not_mix():
    with pytest.raises(UsageError) as caught:
        Estimate(1.0, "s", {"stated": 1.0}) + Estimate(1.0, "byte", {"stated": 1.0})
    assert caught.value.code == "cost.unit"
    with pytest.raises(UsageError):
        total([])


def test_parts_of_no_time_still_have_shares():
    nothing = total([Estimate(0.0, "s", {"stated": 1.0}), Estimate(0.0, "s", {"fitted": 1.0})])
    assert nothing.value == 0
    assert sum(nothing.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("shares", [{"stated": 0.5}, {"sure": 1.0}, {"stated": 0.7, "fitted": 0.7}])
def test_broken_shares_are_our_bug(shares):
    with pytest.raises(Bug):
        Estimate(1.0, "s", shares)
