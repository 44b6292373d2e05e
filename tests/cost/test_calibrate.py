"""Refitting facts: against the minimum by hand, and laws of what is moved and what is told."""

import math

import numpy as np
import pytest

from opentrn.base import UnknownNameError, UsageError
from opentrn.cost import Sample, calibrate
from opentrn.cost.calibrate import FOLDS, PRIOR, movable
from opentrn.hw import chip

TRN2 = chip("trn2")
COUNTS = (3, 10, 40, 100, 300, 1000, 3000)


def transfers(on):
    """So many transfers, each as long as its issue."""
    return [n * on.dma.static_issue for n in COUNTS]


def samples(scale, predict=transfers, use="fit"):
    return [Sample(f"n{k}", scale * s, use) for k, s in enumerate(predict(TRN2))]


def test_one_fact_lands_on_the_minimum_by_hand():
    """N rows ask for x = log 1.4, the prior for x = 0: x = N log 1.4 / (N + PRIOR)."""
    found = calibrate(TRN2, samples(1.4), transfers)
    (change,) = found.changes
    count = len(COUNTS)
    want = math.exp(count * math.log(1.4) / (count + PRIOR))
    assert change.fact == "dma.static_issue"
    assert found.chip.dma.static_issue / TRN2.dma.static_issue == pytest.approx(want, rel=1e-3)
    assert found.before == pytest.approx([1 / 1.4 - 1] * count)
    assert found.after == pytest.approx([want / 1.4 - 1] * count, abs=1e-3)


def test_left_out_rows_are_predicted_by_the_others_alone():
    """One row of seven says 1.4 x, the others 1 x: whoever leaves it out predicts it 29 % low."""
    odd = [Sample(s.name, s.measured * (1.4 if n == 2 else 1.0)) for n, s in enumerate(samples(1))]
    found = calibrate(TRN2, odd, transfers, ["dma.static_issue"])
    assert found.cross[2] == pytest.approx(1 / 1.4 - 1, abs=1e-3)
    # The fold of row 0 is rows 0 and 5: the five others have one that asks for log 1.4.
    fold = len(COUNTS[0::FOLDS])
    left = len(COUNTS) - fold
    want = math.exp(math.log(1.4) / (left + PRIOR)) - 1
    assert found.cross[0] == pytest.approx(want, abs=2e-3)


def test_rows_to_check_move_nothing():
    wrong = [Sample("far off", 1.0, "check")]
    predict = lambda on: [*transfers(on), 5 * on.dma.static_issue]  # noqa: E731
    found = calibrate(TRN2, [*samples(1.2), *wrong], predict)
    alone = calibrate(TRN2, samples(1.2), transfers)
    assert found.changes == alone.changes
    assert [s.name for s in found.checks] == ["far off"]
    assert found.checked == pytest.approx([5 * found.chip.dma.static_issue - 1])


def test_what_explains_nothing_is_not_moved():
    found = calibrate(TRN2, samples(1.0), transfers)
    assert found.changes == ()
    assert found.chip is TRN2


def test_two_facts_are_told_apart_and_no_more_are_moved_than_rows_allow():
    def predict(on):
        return [n * on.dma.static_issue + (3000 - n) * on.vector.latency for n in COUNTS]

    slower = TRN2.changed("slower", dma__static_issue="0.7 us", vector__latency="100 ns")
    rows = [Sample(str(n), s) for n, s in zip(COUNTS, predict(slower), strict=True)]
    found = calibrate(TRN2, rows, predict)
    moved = {change.fact: change.setting for change in found.changes}
    assert set(moved) == {"dma.static_issue", "vector.latency"}
    assert found.chip.dma.static_issue == pytest.approx(0.7e-6, rel=0.05)
    assert found.chip.vector.latency == pytest.approx(100e-9, rel=0.05)
    (only,) = calibrate(TRN2, rows[:5], lambda on: predict(on)[:5]).changes
    assert only.fact in moved
    assert np.median(np.abs(found.cross)) < np.median(np.abs(found.before)) / 4


def test_only_what_nobody_states_may_move():
    paths = {fact.path for fact in movable(TRN2)}
    assert {"dma.static_issue", "vector.issue", "semaphore.wait"} <= paths
    assert not {"tensor.clock", "dma.start", "launch.graph", "vector.wide_32bit"} & paths


@pytest.mark.parametrize(
    ("rows", "facts", "said"),
    [
        (samples(1.0)[:2], (), "2 measurements to fit, at least 3"),
        (samples(1.0, use="try"), (), "use is 'try'"),
        ([*samples(1.0)[:6], Sample("zero", 0.0)], (), "zero: 0.0 s is no time"),
        (samples(1.0), ("tensor.clock",), "tensor.clock of trn2 is stated"),
        (samples(1.0), ("dma.finish", "dma.stagger", "dma.descriptor"), "3 facts and 7"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(rows, facts, said):
    with pytest.raises(UsageError, match=said) as refusal:
        calibrate(TRN2, rows, transfers, facts)
    assert refusal.value.code == "cost.calibrate"


def test_an_unknown_fact_is_refused_by_name():
    with pytest.raises(UnknownNameError, match="no fact 'dma.sttic_issue'"):
        calibrate(TRN2, samples(1.0), transfers, ["dma.sttic_issue"])
