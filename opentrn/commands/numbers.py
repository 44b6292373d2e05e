"""What numbers of the command line may be: finite, and in their range."""

import math
from typing import Any

import click

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Finite(click.ParamType):
    """A finite number above `least`, or from `least` on (`closed`)."""

    name = "number"

    def __init__(self, least: float = 0.0, *, closed: bool = False):
        """Numbers above zero unless told otherwise."""
        self.least, self.closed = least, closed

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """The number; click's BadParameter for text, NaN, infinities and numbers out of range."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is no number", param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not finite", param, ctx)
        if number < self.least or (number == self.least and not self.closed):
            bound = f"at least {self.least:g}" if self.closed else f"above {self.least:g}"
            self.fail(f"{value!r} is not {bound}", param, ctx)
        return number


class Duration(click.ParamType):
    """Seconds from text such as 30d, 12h, 45m or 90s."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Finite seconds above zero."""
        if isinstance(value, int | float):
            return float(value)
        number, unit = value[:-1], value[-1:]
        try:
            seconds = float(number) * _SECONDS[unit]
        except (ValueError, KeyError):
            self.fail(f"{value!r} is no duration; write 30d, 12h, 45m or 90s", param, ctx)
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is no time", param, ctx)
        return seconds


ABOVE_ZERO = Finite()
FROM_ZERO = Finite(closed=True)
COUNT = click.IntRange(1)
"""Things there is at least one of."""

__all__ = ["ABOVE_ZERO", "COUNT", "FROM_ZERO", "Duration", "Finite"]
