"""Quantities: what is read, what is refused, and how numbers are written."""

import pytest

from opentrn.base import FactError, parse, units


@pytest.mark.parametrize(
    ("text", "value", "dimension"),
    [
        ("27.2 GB/s", 27.2e9, "byte/s"), ("2.9 TB/s", 2.9e12, "byte/s"),
        ("1 GiB/s", 2**30, "byte/s"), ("100 Gbps", 12.5e9, "byte/s"),
        ("17 B/ns", 17e9, "byte/s"), ("24 MiB", 24 * 2**20, "byte"), ("2 KiB", 2048, "byte"),
        ("96 GiB", 96 * 2**30, "byte"), ("96 GB", 96e9, "byte"), ("512 B", 512, "byte"),
        ("1 KB", 1000, "byte"), ("1 kB", 1000, "byte"), ("2.4 GHz", 2.4e9, "Hz"),
        ("1400 MHz", 1.4e9, "Hz"), ("32 kHz", 32e3, "Hz"), ("5 Hz", 5, "Hz"),
        ("1.3 us", 1.3e-6, "s"), ("1.3 µs", 1.3e-6, "s"), ("107 ns", 107e-9, "s"),
        ("3 ms", 3e-3, "s"), ("2 s", 2, "s"), ("1.5 h", 5400, "s"), ("64 cycle", 64, "cycle"),
        ("64 cycles", 64, "cycle"), ("4 B/cycle", 4, "byte/cycle"),
        ("91.8 TFLOP/s", 91.8e12, "flop/s"), ("1,299 TFLOP/s", 1.299e15, "flop/s"),
        ("2 FLOP", 2, "flop"), ("1.25 PFLOP/s", 1.25e15, "flop/s"), ("500 W", 500, "W"),
        ("1.34 $/h", 1.34, "$/h"), ("12 $", 12, "$"), ("87.5 %", 0.875, "1"), ("50%", 0.5, "1"),
        ("128", 128, "1"), ("0.5", 0.5, "1"), ("1_024", 1024, "1"), ("-3", -3, "1"),
        (".5 s", 0.5, "s"), ("1e-6 s", 1e-6, "s"), ("  8 B ", 8, "byte"), ("0 B", 0, "byte"),
    ],
)  # fmt: skip
def test_read(text, value, dimension):
    quantity = parse(text)
    assert quantity.value == pytest.approx(value, rel=1e-15)
    assert quantity.dimension == dimension
    assert float(quantity) == quantity.value
    assert str(quantity) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "", "GB", "five GB", "5 gb", "5 GBs", "5 GB s", "5 m", "5 GHZ", "5 Tflops", "nan B",
        "inf s", "1e999 s", "1e308 TB", "1e9999999 s",
        "1,2 B", "1,,000 B", "--1", "5 $/hour", "1 2", "0x10 B", ".", "e5",
        "5 GiB/h", "5 Mib", None, 5, 5.0, True,
    ],
)  # fmt: skip
def test_refuse(text):
    with pytest.raises(FactError) as caught:
        parse(text)
    assert caught.value.code == "base.unit"
    assert caught.value.fix


def test_a_refusal_names_the_units_like_it():
    with pytest.raises(FactError) as caught:
        parse("5 gib")
    assert "GiB" in caught.value.fix
    assert "unknown unit 'gib'" in caught.value.what


def test_decimal_small_units_are_the_floats_python_reads():
    for number in ("600", "1.3", "107", "0.6", "1.1"):
        assert parse(f"{number} ns").value == float(f"{number}e-9")
        assert parse(f"{number} us").value == float(f"{number}e-6")


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (units.bytes_text, 24 * 2**20, "24.0 MiB"), (units.bytes_text, 512, "512 B"),
        (units.bytes_text, 0, "0 B"), (units.bytes_text, 1536, "1.50 KiB"),
        (units.bytes_text, 96 * 2**30, "96.0 GiB"), (units.bytes_text, 3 * 2**40, "3.00 TiB"),
        (units.bytes_text, -2048, "-2.00 KiB"), (units.seconds_text, 1.3e-6, "1.30 us"),
        (units.seconds_text, 0.25, "250 ms"), (units.seconds_text, 9000, "2.50 h"),
        (units.seconds_text, 90, "1.50 min"), (units.seconds_text, 4e-10, "0.40 ns"),
        (units.seconds_text, 0, "0 ns"), (units.rate_text, 27.2e9, "27.2 GB/s"),
        (units.rate_text, 2.9e12, "2.90 TB/s"), (units.rate_text, 12, "12.0 B/s"),
        (units.flops_text, 91.8e12, "91.8 TFLOP/s"), (units.flops_text, 2.517e15, "2.52 PFLOP/s"),
        (units.dollars_text, 1234.5, "$1,234.50"), (units.dollars_text, 0, "$0.00"),
        (units.dollars_text, 0.00123, "$0.00123"), (units.dollars_text, 0.5, "$0.500"),
        (units.dollars_text, -3, "-$3.00"), (units.bytes_text, float("inf"), "inf B"),
        (units.bytes_text, 1023.99 * 2**20, "1.00 GiB"), (units.seconds_text, 999.9e-6, "1.00 ms"),
        (units.rate_text, 99.96e9, "100 GB/s"), (units.seconds_text, 59.99, "1.00 min"),
    ],
)  # fmt: skip
def test_write(function, value, text):
    assert function(value) == text


def test_a_count_of_operations():
    assert units.flops_text(2e9, unit="FLOP") == "2.00 GFLOP"


@pytest.mark.parametrize("unit", units.UNITS)
def test_every_unit_reads_back(unit):
    factor, dimension = units.UNITS[unit]
    quantity = parse(f"3 {unit}")
    assert quantity.dimension == dimension
    assert quantity.value == pytest.approx(3 * factor, rel=1e-15)
