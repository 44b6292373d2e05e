"""Numbers with units: read `"27.2 GB/s"` as an SI value and a dimension, and write them back.

Decimal prefixes are powers of 1000 (`GB` = 10^9 B), binary ones powers of 1024 (`GiB` = 2^30 B).
Dimensions are short words: `"byte"`, `"byte/s"`, `"byte/cycle"`, `"Hz"`, `"s"`, `"cycle"`,
`"flop"`, `"flop/s"`, `"W"`, `"$"`, `"$/h"` and `"1"` for plain counts, ratios and per cent.
Values are SI (bytes, seconds, hertz); money stays in dollars and dollars per hour.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from opentrn.base.errors import FactError, declare, nearest

declare(
    "base.unit",
    "A quantity is written as a number, a space and a unit of the known list.",
    rule="a quantity is `<number> <unit>`; a plain count has no unit",
    fix="write the unit as one of the list, for example `GiB`, `GB/s`, `GHz`, `us`, `TFLOP/s`",
)

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}


def _table() -> dict[str, tuple[Fraction, str]]:
    """Unit -> (exact factor to SI, dimension)."""
    units = {
        "": (1, "1"), "%": (Fraction(1, 100), "1"), "cycle": (1, "cycle"), "cycles": (1, "cycle"),
        "h": (3600, "s"), "min": (60, "s"), "s": (1, "s"), "W": (1, "W"), "kW": (1000, "W"),
        "$": (1, "$"), "$/h": (1, "$/h"), "B/ns": (10**9, "byte/s"), "B/cycle": (1, "byte/cycle"),
    }  # fmt: skip
    for unit, power in (("ms", 3), ("us", 6), ("µs", 6), ("ns", 9), ("ps", 12)):
        units[unit] = (Fraction(1, 10**power), "s")
    for prefix, factor in _DECIMAL.items():
        units[f"{prefix}FLOP"] = (factor, "flop")
        units[f"{prefix}FLOP/s"] = (factor, "flop/s")
        units[f"{prefix}Hz"] = (factor, "Hz")
        units[f"{prefix}bps"] = (Fraction(factor, 8), "byte/s")
    for prefix, factor in (_DECIMAL | _BINARY).items():
        units[f"{prefix}B"] = (factor, "byte")
        units[f"{prefix}B/s"] = (factor, "byte/s")
    return {unit: (Fraction(factor), dimension) for unit, (factor, dimension) in units.items()}


UNITS = _table()
"""Every unit that `parse` knows: unit -> (exact factor to SI, dimension)."""

_NUMBER = r"[+-]?(?:\d+(?:[_,]\d{3})*|\d*)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*([^\d\s]\S*)?")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value in SI units, its dimension, and the text it was read from."""

    value: float
    dimension: str
    text: str = ""

    def __float__(self) -> float:
        """The SI value."""
        return self.value

    def __str__(self) -> str:
        """The text it was read from."""
        return self.text or f"{self.value:g} {self.dimension}"


def parse(text: str) -> Quantity:
    """Read `"<number> <unit>"`, e.g. `"24 MiB"`, `"1_024"`, `"1,299 TFLOP/s"`, `"87.5 %"`.

    Raises FactError `base.unit` for anything else: no number, an unknown unit, inf or nan.
    """
    if not isinstance(text, str):
        raise FactError(f"{text!r} is not a quantity: it must be text", code="base.unit")
    match = _QUANTITY.fullmatch(text.strip())
    digits = match.group(1).replace("_", "").replace(",", "") if match else ""
    try:
        finite = math.isfinite(1e20 * float(digits))  # room for every unit of the table
    except ValueError:
        finite = False
    if not finite:
        raise FactError(f"{text!r} is not a quantity: no number to read", code="base.unit")
    unit = match.group(2) or ""
    known = UNITS.get(unit)
    if known is None:
        close = ", ".join(nearest(unit, UNITS)) or "none"
        raise FactError(
            f"{text!r}: unknown unit {unit!r}",
            code="base.unit",
            fix=f"known units like it: {close}",
        )
    factor, dimension = known
    # Exact until the last step, so that "1.1 ns" is the float 1.1e-9.
    return Quantity(float(Fraction(digits) * factor), dimension, text.strip())


def _digits(value: float) -> str:
    """Three significant digits, without exponent, for values below 1000."""
    size = abs(value)
    if size >= 99.95 or value == 0:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    """`value` in the largest step it reaches once rounded (steps in falling order)."""
    factor, unit = steps[-1]
    if not math.isfinite(value):
        return f"{value} {unit}"
    reached = (step for step in steps if abs(value) >= 0.9995 * step[0])
    factor, unit = next(reached, (factor, unit))
    return f"{_digits(value / factor)} {unit}"


_BYTES = tuple((2.0 ** (10 * n), u) for n, u in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")))
_RATES = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))
_SECONDS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def bytes_text(size_bytes: float) -> str:
    """A size in bytes with a binary prefix: `24.0 MiB`."""
    return _scaled(size_bytes, (*_BYTES, (1.0, "B")))


def seconds_text(seconds: float) -> str:
    """A duration in seconds: `1.30 us`, `2.50 h`."""
    return _scaled(seconds, _SECONDS)


def rate_text(bytes_per_second: float) -> str:
    """A bandwidth in bytes per second with a decimal prefix: `27.2 GB/s`."""
    return _scaled(bytes_per_second, (*_RATES, (1.0, "B/s")))


def flops_text(flops: float, unit: str = "FLOP/s") -> str:
    """A rate (or with `unit="FLOP"` a count) of floating point operations: `91.8 TFLOP/s`."""
    steps = tuple((_DECIMAL[p], f"{p}{unit}") for p in ("P", "T", "G", "M", "k", ""))
    return _scaled(flops, steps)


def dollars_text(dollars: float) -> str:
    """An amount of money: `$1,234.50`; below a dollar with three significant digits."""
    if dollars == 0 or abs(dollars) >= 1 or not math.isfinite(dollars):
        return f"{'-' if dollars < 0 else ''}${abs(dollars):,.2f}"
    digits = max(2, 2 - math.floor(math.log10(abs(dollars))))
    return f"{'-' if dollars < 0 else ''}${abs(dollars):.{digits}f}"
