"""Masks of the older API: which positions of a tile an instruction computes or moves.

A mask is a conjunction of affine conditions `offset + Σ steps[d] · i[d] ≥ 0`.  What the hardware
runs are rectangles of it: most masks are one, others are cut into several.
Source: NKI API reference v2.26.1, NKI mask (nki.api.shared).
"""

import dis
import sys
from contextvars import ContextVar
from typing import Any, NamedTuple

from opentrn.base import ShapeError, UsageError, declare

declare(
    "beta1.mask_truth",
    "A mask was used as a Python truth value.",
    rule="a mask says yes or no for every position of a tile; only `and` means something for it",
    fix="combine masks with `&`; use Python numbers and loop variables in `if`",
)
declare(
    "beta1.mask_shape",
    "A mask does not fit the tile it is given for.",
    rule="the dimensions of a mask are those of the tile; sizes are equal, or 1 in the mask",
    fix="build the mask from the grids that index the tile",
)
declare(
    "beta1.mask_or",
    "Masks were joined with `|`, or a joint mask was inverted.",
    rule="a mask is a conjunction of affine conditions: a < b, combined with `&`",
    fix="issue one instruction for each alternative, or use nl.where on tiles",
)


class Condition(NamedTuple):
    """`offset + Σ steps[d] · i[d] ≥ 0` over positions of `shape`."""

    shape: tuple[int, ...]
    offset: int
    steps: tuple[int, ...]


Ranges = tuple[tuple[int, int], ...]

# The left side of an `and` (or of a chained comparison) that waits for its right side.
_LEFT: ContextVar["Mask | None"] = ContextVar("opentrn_beta1_left", default=None)


class Mask:
    """A conjunction of conditions; `a & b` is both."""

    __slots__ = ("conditions",)
    __array_ufunc__ = None

    def __init__(self, conditions: tuple[Condition, ...]):
        self.conditions = conditions

    @classmethod
    def single(cls, shape: tuple[int, ...], offset: int, steps: tuple[int, ...]) -> "Mask":
        """One condition, joined with what stands to the left of a Python `and`."""
        made = cls((Condition(shape, offset, steps),))
        left = _LEFT.get()
        if left is not None:
            _LEFT.set(None)
            made = left & made
        return made

    def __and__(self, other: Any) -> Any:
        if isinstance(other, Mask):
            return Mask(self.conditions + other.conditions)
        if isinstance(other, bool | int) or hasattr(other, "dtype"):
            return self if other else False
        return NotImplemented

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        if isinstance(other, bool):
            return True if other else self
        raise UsageError("masks joined with `|`", code="beta1.mask_or")

    __ror__ = __or__

    def __invert__(self) -> "Mask":
        if len(self.conditions) != 1:
            raise UsageError("the inverse of a joint mask", code="beta1.mask_or")
        shape, offset, steps = self.conditions[0]
        return Mask((Condition(shape, -offset - 1, tuple(-s for s in steps)),))

    def __bool__(self) -> bool:
        """True for `mask and …`, which means `&`; UsageError anywhere else."""
        if not _joins(sys._getframe(1)):
            raise UsageError("a mask used as a truth value", code="beta1.mask_truth")
        _LEFT.set(self)
        return True

    @property
    def shape(self) -> tuple[int, ...]:
        """The broadcast shape of the conditions."""
        ndim = max(len(c.shape) for c in self.conditions)
        full = [(1,) * (ndim - len(c.shape)) + c.shape for c in self.conditions]
        return tuple(max(sizes) for sizes in zip(*full, strict=True))

    def __repr__(self) -> str:
        texts = [f"{c.offset} + {list(c.steps)}·i ≥ 0" for c in self.conditions]
        return f"Mask({' & '.join(texts)})"


def _joins(frame: Any) -> bool:
    """Whether the frame asks for the truth of the left side of an `and` or a chained comparison.

    Such code keeps the value: it jumps and pops (3.11), or copies it first (3.12 and later).
    """
    before = ""
    for step in dis.get_instructions(frame.f_code):
        if step.offset >= frame.f_lasti:
            keeps = before == "COPY" and "JUMP_IF_FALSE" in _jump_after(frame)
            return step.opname == "JUMP_IF_FALSE_OR_POP" or keeps
        before = step.opname
    return False


def _jump_after(frame: Any) -> str:
    """The jump that follows the truth test (`TO_BOOL` may stand between)."""
    later = [s.opname for s in dis.get_instructions(frame.f_code) if s.offset >= frame.f_lasti]
    return next((name for name in later[:2] if "JUMP" in name), "")


def aligned_conditions(mask: Mask, shape: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
    """(offset, one step for each dimension of a tile of `shape`); ShapeError when it misfits."""
    made = []
    for size, offset, steps in mask.conditions:
        extra = len(size) - len(shape)
        moving = [(n, s) for n, s in zip(size, steps, strict=True)]
        if extra > 0 and all(n == 1 or not s for n, s in moving[:extra]):
            moving, extra = moving[extra:], 0
        full = [(1, 0)] * -extra + moving
        if extra > 0 or any(s and n not in (1, t) for (n, s), t in zip(full, shape, strict=True)):
            raise ShapeError(
                f"a mask of shape {list(size)} on a tile of shape {list(shape)}",
                code="beta1.mask_shape",
            )
        made.append((offset, tuple(s if n > 1 else 0 for n, s in full)))
    return made


def _narrow(conditions: list, ranges: list) -> list | None:
    """Apply the conditions on one dimension to `ranges`; return those on several, None if void."""
    rest = []
    for offset, steps in conditions:
        moving = [d for d, step in enumerate(steps) if step]
        if len(moving) > 1:
            rest.append((offset, steps))
        elif not moving:
            if offset < 0:
                return None
        else:
            (dim,) = moving
            low, high = ranges[dim]
            step = steps[dim]
            if step > 0:
                low = max(low, -(offset // step))
            else:
                high = min(high, offset // -step + 1)
            if low >= high:
                return None
            ranges[dim] = (low, high)
    return rest


def rectangle(mask: Any, shape: tuple[int, ...]) -> Ranges | None:
    """The mask as one range for each dimension; None when it is no rectangle.

    An empty rectangle has empty ranges.  `mask` may be None or a Python truth value.
    """
    everything = tuple((0, n) for n in shape)
    if mask is None or mask is True:
        return everything
    if not isinstance(mask, Mask):
        return everything if mask else tuple((0, 0) for _ in shape)
    ranges = list(everything)
    rest = _narrow(aligned_conditions(mask, shape), ranges)
    if rest is None:
        return tuple((0, 0) for _ in shape)
    return None if _several(rest, ranges) else tuple(ranges)


def _several(conditions: list, ranges: list) -> bool:
    """Whether some condition on several dimensions still cuts the ranges."""
    for offset, steps in conditions:
        ends = ((s * low, s * (high - 1)) for s, (low, high) in zip(steps, ranges, strict=True))
        if offset + sum(min(pair) for pair in ends) < 0:
            return True
    return False


def rectangles(mask: Any, shape: tuple[int, ...]) -> list[Ranges]:
    """The mask as disjoint rectangles: neighbouring equal rows are one."""
    whole = rectangle(mask, shape)
    if whole is not None:
        return [] if any(low >= high for low, high in whole) else [whole]
    ranges = [(0, n) for n in shape]
    return [tuple(r) for r in _cut(aligned_conditions(mask, shape), ranges, 0)]


def _cut(conditions: list, ranges: list, dim: int) -> list[list]:
    ranges = list(ranges)
    rest = _narrow(conditions, ranges)
    if rest is None:
        return []
    if not _several(rest, ranges):
        return [ranges]
    found: list[list] = []
    previous: list[list] = []
    for i in range(*ranges[dim]):
        fixed = [
            (offset + steps[dim] * i, (*steps[:dim], 0, *steps[dim + 1 :]))
            for offset, steps in rest
        ]
        ranges[dim] = (i, i + 1)
        here = _cut(fixed, ranges, dim + 1)
        if previous and _same(previous, here, dim):
            for piece in previous:
                piece[dim] = (piece[dim][0], i + 1)
        else:
            found += previous
            previous = here
    return found + previous


def _same(one: list[list], two: list[list], dim: int) -> bool:
    """Whether two lists of pieces differ only along `dim`."""

    def others(side: list[list]) -> list:
        return [[r for d, r in enumerate(piece) if d != dim] for piece in side]

    return others(one) == others(two)


__all__ = ["Condition", "Mask", "Ranges", "rectangle", "rectangles"]
