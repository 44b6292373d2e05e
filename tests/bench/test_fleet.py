"""The fleet rows keep the errors that docs/accuracy.md shows, and the aims."""

from pathlib import Path

from bench import fleet

PAGE = Path(__file__).resolve().parents[2] / "docs" / "accuracy.md"


def found():
    return {name: list(make()) for name, make in fleet.TABLES.items()}


def test_the_page_shows_what_a_fresh_run_says():
    text = PAGE.read_text(encoding="utf-8").split(fleet.BEGIN)[1].split(fleet.END)[0]
    fresh = "\n".join(fleet.lines(found()))
    assert text.strip() == fresh, "run `python -m bench.fleet --update docs/accuracy.md`"


def test_the_aims_are_met():
    rows = {name: fleet.summary(rows) for name, rows in found().items()}
    assert rows["megatron"]["mean"] <= 0.05
    assert rows["megatron"]["max"] <= 0.10
    assert rows["training"]["median"] <= 0.20
    assert rows["decode"]["median"] <= 0.25
    assert rows["prefill"]["median"] <= 0.25
    assert rows["training"]["rows"] == 85
    assert rows["decode"]["rows"] + rows["prefill"]["rows"] == 193
