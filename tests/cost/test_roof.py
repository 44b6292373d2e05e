"""The roofline against arithmetic by hand, and its laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opentrn import hw
from opentrn.base.errors import DtypeError, LimitError, UnsupportedError, UsageError
from opentrn.cost import roofline

N = 4096
FLOPS, BYTES = 2 * N**3, 3 * 2 * N**2


@pytest.mark.parametrize(
    ("chip", "dtype", "cores", "tera"),
    [
        ("trn1", "bfloat16", 1, 92), ("trn1", "float32", 1, 23), ("trn1", "bf16", None, 190),
        ("trn2", "bfloat16", 1, 79), ("trn2", "float16", 2, 158), ("trn2", "tfloat32", None, 667),
        ("trn2", "float8_e4m3", 1, 158), ("trn2", "float8_e3m4", 1, 79),
        ("trn2", "fp8", None, 1299), ("trn2", "fp32", None, 181), ("trn3", "mxfp8", None, 2517),
        ("trn3", "float8_e4m3fn_x4", 1, 315), ("inf2", "fp16", None, 190),
    ],
)  # fmt: skip
def test_compute_bound(chip, dtype, cores, tera):
    roof = roofline(FLOPS, BYTES, chip, dtype, cores=cores)
    assert roof.bound == "compute"
    assert float(roof.seconds) == pytest.approx(FLOPS / (tera * 1e12))
    assert roof.seconds.unit == "s"
    assert roof.intensity == pytest.approx(N / 3)


@pytest.mark.parametrize(
    ("chip", "cores", "giga"),
    [
        ("trn1", 1, 272), ("trn1", 2, 544), ("trn1", None, 544), ("trn2", 1, 368),
        ("trn2", 4, 1472), ("trn2", 8, 2900), ("trn2", None, 2900), ("trn3", 1, 528),
        ("trn3", None, 4224),
    ],
)  # fmt: skip
def test_memory_bound(chip, cores, giga):
    """The DMA engines of the cores carry 272 / 368 / 528 GB/s each; the HBM gives 2.9 TB/s."""
    roof = roofline(1e9, 1e9, chip, cores=cores)
    assert roof.bound == "memory"
    assert float(roof.seconds) == pytest.approx(1e9 / (giga * 1e9))
    assert roof.memory_seconds > roof.compute_seconds


def test_4096_cubed_on_one_core_of_trn2():
    """The published ideal is 1,748 us at 78.6 TF; the stated peak of 79 is 0.5 % more."""
    roof = roofline(FLOPS, BYTES, "trn2", cores=1)
    assert float(roof.seconds) == pytest.approx(1748e-6, rel=0.006)
    assert roof.ridge == pytest.approx(79e12 / 368e9)
    assert "compute bound" in str(roof)


def test_the_bound_rests_on_the_roof_it_hits():
    assert roofline(FLOPS, BYTES, "trn3", "fp8").seconds.grade == "derived"
    assert roofline(1, BYTES, "trn3", "fp8").seconds.grade == "stated"
    guess = hw.chip("trn2").changed("guess", dma__engine_rate="5 GB/s")
    assert roofline(1, BYTES, guess, cores=1).seconds.grade == "assumed"


@given(
    st.floats(0, 1e18), st.floats(0, 1e15), st.sampled_from(hw.chips()), st.integers(1, 2),
    st.floats(0.1, 1.0),
)  # fmt: skip
def test_laws(flops, nbytes, name, cores, factor):
    """More work never takes less time, and a slower memory never helps."""
    chip = hw.chip(name)
    base = float(roofline(flops, nbytes, chip, cores=cores).seconds)
    assert float(roofline(flops * 2, nbytes * 2, chip, cores=cores).seconds) >= base
    rate = f"{chip.dma.engine_rate / 1e9 * factor} GB/s"
    slow = chip.changed("slow", dma__engine_rate=rate)
    assert float(roofline(flops, nbytes, slow, cores=cores).seconds) >= base * (1 - 1e-12)


def test_refusals():
    with pytest.raises(UnsupportedError, match="trn2 has no mxfp8") as caught:
        roofline(1, 1, "trn2", "mxfp8")
    assert caught.value.code == "cost.dtype"
    with pytest.raises(DtypeError):
        roofline(1, 1, "trn2", "int32")
    with pytest.raises(LimitError, match="8 cores, not 9"):
        roofline(1, 1, "trn2", cores=9)
    with pytest.raises(LimitError):
        roofline(1, 1, "trn2", cores=0)
    with pytest.raises(UsageError):
        roofline(-1, 1, "trn2")
