"""The algebra of `[stride, count]` steps: which reshapes and merges a view can express."""

from math import prod
from typing import Any

from opentrn.base import ShapeError, UsageError
from opentrn.isa.index import integers, refuse

Steps = tuple[tuple[int, int], ...]


def row_major(shape: tuple[int, ...]) -> Steps:
    """The steps of a dense row-major tensor."""
    steps, stride = [], 1
    for count in reversed(shape):
        steps.append((stride, count))
        stride *= count
    steps.reverse()
    return tuple(steps)


def dense(steps: Steps) -> bool:
    """Whether the steps cover one stretch in row-major order; size-1 dimensions do not matter."""
    expected = 1
    for stride, count in reversed(steps):
        if count != 1:
            if stride != expected:
                return False
            expected *= count
    return True


def merged(steps: Steps) -> tuple[int, int] | None:
    """The one step that walks all of `steps` in order, or None when there is none."""
    stride, total = steps[-1][0], 1
    for step, count in reversed(steps):
        if count == 1:
            continue
        if total == 1:
            stride = step
        elif step != stride * total:
            return None
        total *= count
    return stride, total


def split(step: tuple[int, int], shape: tuple[int, ...]) -> Steps:
    """The steps that walk one step as the dimensions `shape` (same number of elements)."""
    return tuple((step[0] * stride, count) for stride, count in row_major(shape))


def reshaped(steps: Steps, shape: tuple[int, ...]) -> Steps | None:
    """The steps of the same elements with sizes `shape`, or None when that needs a copy.

    Old and new sizes are cut into the shortest groups with equal products; every old group must
    merge into one step, which is then split.
    """
    result, old, new = [], 0, 0
    while old < len(steps) or new < len(shape):
        old_end, new_end, have, want = old, new, 1, 1
        while old_end == old or new_end == new or have != want:
            if old_end < len(steps) and (have <= want or new_end == len(shape)):
                have *= steps[old_end][1]
                old_end += 1
            elif new_end < len(shape):
                want *= shape[new_end]
                new_end += 1
            else:
                break
        group = merged(steps[old:old_end]) if old_end > old else (1, 1)
        if group is None:
            return None
        result.extend(split(group, shape[new:new_end]))
        old, new = old_end, new_end
    return tuple(result)


def fill_unknown(method: str, shape: Any, total: int) -> tuple[int, ...]:
    """Replace one -1 in `shape` so that its product is `total`; ShapeError when it cannot be."""
    shape = integers(method, shape)
    if shape.count(-1) == 1:
        known = -prod(shape)
        if known > 0 and total % known == 0:
            shape = tuple(total // known if n == -1 else n for n in shape)
    if any(n < 1 for n in shape) or prod(shape) != total:
        refuse(
            ShapeError,
            method,
            f"{list(shape)} does not hold {total} elements",
            "the product of the new sizes is the old size; at most one size is -1",
            f"choose sizes whose product is {total}",
        )
    return shape


def _names(pattern: Any) -> list[tuple[str, ...]]:
    """One tuple of names for each dimension of a rearrange pattern."""
    groups = [(p,) if isinstance(p, str) else tuple(p) for p in pattern]
    flat = [n for g in groups for n in g]
    if len(set(flat)) != len(flat) or not all(groups) or not all(type(n) is str for n in flat):
        refuse(
            UsageError,
            "rearrange",
            f"the pattern {pattern!r}",
            "a pattern is a tuple of different names, or of groups of different names",
            "name every dimension once, for example ('b', ('h', 'w'))",
        )
    return groups


def rearrangement(shape: tuple[int, ...], source: Any, target: Any, sizes: dict[str, int] | None):
    """Plan of a rearrange: splits (dim, sizes), the order of the split dimensions, merges.

    Splits are given last dimension first, merges as (first, last) of the reordered dimensions,
    last first.  Raises UsageError or ShapeError when patterns and sizes do not fit `shape`.
    """
    before, after = _names(source), _names(target)
    flat = [n for g in before for n in g]
    wanted = [n for g in after for n in g]
    if len(before) != len(shape) or sorted(flat) != sorted(wanted):
        refuse(
            UsageError,
            "rearrange",
            f"{source!r} → {target!r} on a tensor with {len(shape)} dimensions",
            "the source names each dimension, the target uses the same names",
            "make both sides name the same dimensions",
        )
    unknown = set(sizes or {}) - set(flat)
    if unknown:
        refuse(
            UsageError,
            "rearrange",
            f"fixed_sizes names {sorted(unknown)}",
            f"the pattern has the names {flat}",
            "remove the extra sizes",
        )
    known = dict.fromkeys(flat, -1) | (sizes or {})
    splits = []
    for dim, group in enumerate(before):
        inner = fill_unknown("rearrange", [known[n] for n in group], shape[dim])
        if len(group) > 1:
            splits.append((dim, inner))
    merges, start = [], 0
    for group in after:
        if len(group) > 1:
            merges.append((start, start + len(group) - 1))
        start += len(group)
    return splits[::-1], tuple(flat.index(n) for n in wanted), merges[::-1]
