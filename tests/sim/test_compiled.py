"""When compiled code is used: after enough was done in plain Python, and not for a handful."""

import pytest

from opentrn.base import UsageError
from opentrn.sim import compiled
from opentrn.sim.compiled import Choice


@pytest.fixture
def numba(monkeypatch):
    """Numba is there, its code not stored yet."""
    monkeypatch.setattr(compiled, "installed", lambda: True)
    monkeypatch.setattr(compiled, "stored", lambda: False)


def test_a_long_program_is_compiled_at_once_and_short_ones_after_as_much(numba):
    assert Choice().compiled(300_000, None)
    assert not Choice().compiled(299_999, None)
    choice = Choice()
    assert [choice.compiled(250_000, None) for _ in range(5)] == [False] * 3 + [True] * 2
    assert choice.compiled(300, None)
    assert not choice.compiled(299, None)


def test_what_is_stored_is_loaded_sooner(numba, monkeypatch):
    monkeypatch.setattr(compiled, "stored", lambda: True)
    choice = Choice()
    assert [choice.compiled(10_000, None) for _ in range(6)] == [False] * 4 + [True] * 2


def test_what_was_asked_for_is_done_and_counts_as_loaded(numba):
    choice = Choice()
    assert not choice.compiled(10**9, False)
    assert not choice.loaded
    assert choice.compiled(1, True)
    assert choice.compiled(300, None)


def test_without_numba_everything_is_plain_and_asking_is_refused(monkeypatch):
    monkeypatch.setattr(compiled, "installed", lambda: False)
    choice = Choice()
    assert not choice.compiled(10**9, None)
    assert not choice.compiled(10**9, None)
    with pytest.raises(UsageError, match="Numba is not installed") as found:
        choice.compiled(5, True)
    assert found.value.code == "sim.fast"
