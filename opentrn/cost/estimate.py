"""A number that tells which share of it rests on which grade of fact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from opentrn.base import units
from opentrn.base.errors import Bug, UsageError, declare
from opentrn.hw import GRADES, Fact

declare(
    "cost.unit",
    "Only estimates of the same unit add up.",
    rule="both sides of a sum are measured in one unit",
    fix="add times to times and bytes to bytes",
)

_TEXT = {
    "s": units.seconds_text,
    "byte": units.bytes_text,
    "byte/s": units.rate_text,
    "flop/s": units.flops_text,
    "$": units.dollars_text,
}


def weakest(grades: Iterable[str]) -> str:
    """The least sure of some grades: a number is as good as the worst fact it is made from."""
    return max(grades, key=GRADES.index)


@dataclass(frozen=True)
class Estimate:
    """`value` in `unit` (SI), and for each grade the share of the value that rests on it.

    Shares are given as a mapping grade -> share (or pairs) and add up to 1. Estimates of one unit
    add, and the shares of a sum are weighted by value; an estimate times a plain number keeps its
    shares. Shares of an unknown grade, or that do not add up, are a Bug of the caller.
    """

    value: float
    unit: str
    grade_shares: Mapping[str, float] | tuple[tuple[str, float], ...]

    def __post_init__(self):
        shares = dict(self.grade_shares)
        if shares.keys() - set(GRADES) or abs(sum(shares.values()) - 1) > 1e-9:
            raise Bug(f"grade shares must be of {GRADES} and add up to 1: {shares}")
        rows = tuple((grade, shares[grade]) for grade in GRADES if shares.get(grade))
        object.__setattr__(self, "grade_shares", rows)

    @classmethod
    def resting_on(cls, value: float, unit: str, *facts: Fact) -> Estimate:
        """A value computed from these facts: it rests wholly on the weakest of their grades."""
        return cls(value, unit, {weakest(fact.grade for fact in facts): 1.0})

    @property
    def shares(self) -> MappingProxyType:
        """The shares as a mapping, surest grade first; grades without share are left out."""
        return MappingProxyType(dict(self.grade_shares))

    @property
    def grade(self) -> str:
        """The weakest grade that any of the value rests on."""
        return weakest(grade for grade, _ in self.grade_shares)

    def __float__(self) -> float:
        return float(self.value)

    def __add__(self, other: Estimate) -> Estimate:
        if not isinstance(other, Estimate):
            return NotImplemented
        return total([self, other])

    def __mul__(self, factor: float) -> Estimate:
        if isinstance(factor, Estimate):
            return NotImplemented
        return Estimate(self.value * factor, self.unit, self.grade_shares)

    __rmul__ = __mul__

    def __str__(self) -> str:
        told = ", ".join(f"{share:.0%} {grade}" for grade, share in self.grade_shares)
        text = _TEXT.get(self.unit)
        number = text(self.value) if text else f"{self.value:g} {self.unit}"
        return f"{number} ({told})"


def total(parts: Iterable[Estimate]) -> Estimate:
    """The sum of estimates of one unit; UsageError `cost.unit` for mixed units or none."""
    parts = list(parts)
    kinds = {part.unit for part in parts}
    if len(kinds) != 1:
        raise UsageError(
            f"cannot add up {sorted(kinds)}" if kinds else "nothing to add up", code="cost.unit"
        )
    value = sum(part.value for part in parts)
    shares: dict[str, float] = {}
    for part in parts:
        weight = part.value / value if value else 1 / len(parts)
        for grade, share in part.grade_shares:
            shares[grade] = shares.get(grade, 0.0) + share * weight
    return Estimate(value, kinds.pop(), shares)
