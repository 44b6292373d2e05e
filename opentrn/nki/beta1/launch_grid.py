"""Launch grids of the older API: sizes, `nl.nc(2)` for physical cores, `nl.spmd_dim` for both.

How instances are spread over cores does not change what they compute: here they run one after
another.  Source: NKI API reference v2.26.1 (nl.nc, nl.spmd_dim).
"""

from math import prod
from typing import Any

from opentrn.base import UsageError, declare

declare(
    "beta1.launch",
    "A launch grid has a size it cannot have, or an axis that is not there.",
    rule="kernel[n, m](...) takes positive integers, nl.nc(n) and nl.spmd_dim(...)",
    fix="launch with kernel[4, 2](...); nl.program_id(axis) counts axes from 0",
)


class spmd_dim(int):
    """One dimension of a launch grid, made of parts: integers and `nc(n)`."""

    def __new__(cls, *parts: Any) -> "spmd_dim":
        """The dimension whose size is the product of its parts."""
        return super().__new__(cls, prod(size(p) for p in parts))

    def __mul__(self, other: Any) -> "spmd_dim":
        return spmd_dim(self, other)

    def __rmul__(self, other: Any) -> "spmd_dim":
        return spmd_dim(other, self)


class nc(spmd_dim):
    """A dimension spread over `n` physical cores."""


def size(value: Any) -> int:
    """A size of a launch grid; UsageError `beta1.launch` when it is none."""
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"{value!r} in a launch grid", code="beta1.launch")
    return int(value)


def sizes(grid: Any) -> tuple[int, ...]:
    """The sizes of a launch grid as written between the brackets."""
    return tuple(size(g) for g in (grid if isinstance(grid, tuple | list) else (grid,)))


__all__ = ["nc", "sizes", "spmd_dim"]
