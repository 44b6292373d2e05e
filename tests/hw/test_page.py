"""The page of a machine shows every fact, reading and source, and stays inside 100 columns."""

import pytest

from opentrn import hw
from opentrn.base.errors import UnknownNameError

FINDERS = {hw.chips: hw.chip, hw.instances: hw.instance, hw.fabrics: hw.fabric}
ALL = [(name, find) for names, find in FINDERS.items() for name in names()]


@pytest.mark.parametrize(("name", "find"), ALL)
def test_everything_is_on_the_page(name, find):
    text = hw.page(name)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert text.startswith(name)
    flat = " ".join(text.split())
    machine = find(name)
    for fact in machine:
        row = next(line for line in lines if f" {fact.path.split('.')[1]} " in line)
        assert row
        assert fact.text in flat
        assert fact.because in flat
        for reading in fact.also:
            assert f"{reading.text} {reading.source} says otherwise" in flat
    for key, cited in machine.sources.items():
        assert f"{key} " in text
        assert cited.split()[-1].rstrip(")") in flat


def test_a_row_has_mark_value_source_and_meaning():
    rows = [line.split() for line in hw.page("trn2").splitlines()]
    assert [
        "clock",
        "2.4",
        "GHz",
        "nki-trn2-guide",
        "one",
        "moving",
        "column",
        "a",
        "cycle",
    ] in rows
    assert any(row[:4] == ["~", "table_load", "1283", "ns"] for row in rows)
    assert any(row[:2] == ["?", "tdp"] for row in rows)


def test_the_dma_note_is_shown_with_its_residuals():
    text = hw.page("trn2")
    assert "t(d) = descriptor + d / engine_rate" in text
    assert "Residuals" in text


def test_prices_are_on_the_page_of_an_instance():
    text = hw.page("trn2.48xlarge")
    assert "35.7608 $/h" in text
    assert "ap-south-2" in text
    assert "none is published" in hw.page("u-trn2x64")


def test_the_list_of_names():
    text = hw.page("targets")
    assert all(
        name in text for name in (*hw.chips(), *hw.instances(), *hw.fabrics(), "gen3 = trn2")
    )


def test_unknown_page():
    with pytest.raises(UnknownNameError) as caught:
        hw.page("trn2-tours")
    assert caught.value.code == "hw.target"
    assert "trn2-torus" in caught.value.fix
