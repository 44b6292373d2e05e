"""Systems of other makers: facts with sources, as their data sheets state them."""

import pytest

from opentrn import hw
from opentrn.base import FactError, UnknownNameError
from opentrn.hw.accelerator import read_accelerator


@pytest.mark.parametrize("name", hw.accelerators())
def test_every_fact_has_a_source_and_a_grade(name):
    found = hw.accelerator(name)
    for fact in found:
        assert fact.source in found.sources
        assert fact.grade in hw.GRADES
    assert found.memory > 30e9
    for price in hw.accelerator_prices(name):
        assert price.hourly > 0
        assert price.cited


def test_peaks_are_the_dense_ones():
    # NVIDIA's sheets print the sparse rate, twice these.
    assert hw.accelerator("h100").peak_bf16 == 989e12
    assert hw.accelerator("a100").peak_bf16 == 312e12
    assert hw.accelerator("b200").peak_bf16 == 2250e12
    assert hw.accelerator("tpu-v5p").peak_bf16 == 459e12
    assert hw.accelerator("p5").system.network == 3200e9 / 8


def test_unknown_and_incomplete_systems_are_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="p5x"):
        hw.accelerator("p5x")
    file = tmp_path / "x.toml"
    file.write_text('[accelerator]\nname = ["X", "a", "stated"]\n[sources]\na = "b"\n')
    with pytest.raises(FactError, match="lacks"):
        read_accelerator(file)
    file.write_text('[accelerator]\ncolour = ["X", "a", "stated"]\n[sources]\na = "b"\n')
    with pytest.raises(FactError, match="colour"):
        read_accelerator(file)
