"""Chips with facts replaced on request."""

import pytest

from opentrn import hw
from opentrn.base import FactError, UnknownNameError, UsageError


def test_settings_are_read_as_people_type_them():
    typed = ["trn2.hbm_bandwidth=4TB/s", "tensor.clock = 3 GHz", "trn1.dma.engines=8", "cores=2"]
    assert hw.settings_of(typed) == (
        ("trn2", "chip.hbm_bandwidth", "4TB/s"),
        ("", "tensor.clock", "3 GHz"),
        ("trn1", "dma.engines", "8"),
        ("", "chip.cores", "2"),
    )


def test_a_variant_has_the_new_values_and_says_so():
    known = hw.chip("trn2")
    made = hw.variant(
        known, ["trn2.hbm_bandwidth=4TB/s", "dma.engines=8", "trn1.tensor.clock=9GHz"]
    )
    assert (made.hbm_bandwidth, made.dma.engines) == (4e12, 8)
    assert made.tensor.clock == known.tensor.clock
    assert made.fact("chip.hbm_bandwidth").grade == "assumed"
    assert (
        made.fact("chip.hbm_bandwidth").because
        == f"changed from {known.fact('chip.hbm_bandwidth').text}"
    )
    assert made.name == "trn2 with hbm_bandwidth=4TB/s, dma.engines=8"
    assert made != known
    assert hw.variant(known, ["trn1.tensor.clock=9GHz"]) is known


@pytest.mark.parametrize(
    ("setting", "kind"),
    [
        ("hbm_bandwidth", UsageError), ("=4TB/s", UsageError), ("a.b.c=1", UsageError),
        ("trn2.hbm_bandwidth=", UsageError), ("nothing.here=1", UnknownNameError),
        ("hbm_bandwidth=4", FactError), ("hbm_bandwidth=4GHz", FactError),
        ("hbm_bandwidth=0TB/s", FactError), ("dma.engines=1.5", FactError),
        ("dma.engines=-1", FactError),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(setting, kind):
    with pytest.raises(kind):
        hw.variant(hw.chip("trn2"), [setting])
