"""Real training: the digits example reaches the accuracy it promises."""

import pytest

pytest.importorskip("torch", reason="the extra `torch` is not installed")
pytest.importorskip("sklearn", reason="the extra `demo` is not installed")


def test_a_network_learns_handwritten_digits():
    from examples import digits

    losses: list[float] = []
    share, step = digits.train(epochs=12, losses=losses)
    assert share >= 0.97
    assert losses[-1] < 0.1 < 1.5 < losses[0]
    assert "<polyline" in digits.plot(losses, share)
    assert step.steps == 12 * (1437 // digits.BATCH)
    assert 1e-5 < step.device_seconds < 1e-2
