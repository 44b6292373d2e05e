"""The character GPT learns on the chip as it does in eager bfloat16."""

import math

import pytest

pytest.importorskip("torch", reason="the extra `torch` is not installed")


def test_losses_follow_eager_bfloat16():
    from examples import character_gpt

    curves, others, seconds = character_gpt.compare(steps=6, count=4)
    plain, ours = curves.values()
    _, letters = character_gpt.text()
    assert plain[0] == pytest.approx(math.log(len(letters)), abs=0.5)  # it knows nothing yet
    assert ours == pytest.approx(plain, abs=2e-3)
    assert ours[-1] < ours[0] - 0.3
    assert 1e-5 < seconds < 1e-1
    picture = character_gpt.plot(curves, others)
    assert (picture.count("<polyline"), picture.count("<polygon")) == (2, 1)


def test_noise_is_what_eager_runs_differ_by():
    from examples import character_gpt

    runs = [[3.0, 2.0, 1.0], [3.0, 2.0, 1.1], [3.0, 2.0, 0.9]]
    # The second is 0.15 from the mean of the others at one of three steps.
    assert max(character_gpt.spread(runs)) == pytest.approx(0.15 / 3**0.5)
    away, most = character_gpt.within([3.0, 2.0, 1.05], runs)
    assert (away, most) == pytest.approx((0.05 / 3**0.5, 0.15 / 3**0.5))
    away, most = character_gpt.within([3.0, 2.0, 1.4], runs)
    assert away > most
