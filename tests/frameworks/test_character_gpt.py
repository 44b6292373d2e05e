"""The character GPT learns on the chip as it does in eager bfloat16."""

import math

import pytest

pytest.importorskip("torch", reason="the extra `torch` is not installed")


def test_losses_follow_eager_bfloat16():
    from examples import character_gpt

    curves, seconds = character_gpt.compare(steps=6)
    plain, ours = curves.values()
    _, letters = character_gpt.text()
    assert plain[0] == pytest.approx(math.log(len(letters)), abs=0.5)  # it knows nothing yet
    assert ours == pytest.approx(plain, abs=0.03)
    assert ours[-1] < ours[0] - 0.3
    assert 1e-5 < seconds < 1e-1
    assert character_gpt.plot(curves).count("<polyline") == 2
