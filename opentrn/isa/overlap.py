"""Whether two strided regions of memory share a byte, exactly.

A region is `base + Σ kᵢ·strideᵢ + [0, run)` with `0 ≤ kᵢ < countᵢ`.  Two regions meet when some
difference of their start addresses is small enough for their runs to touch; that is one bounded
linear inequality, searched outermost (largest) stride first.  Strides of real access patterns are
nested, so each level leaves one or two candidates.
"""

from functools import lru_cache
from math import gcd
from typing import Any

Steps = tuple[tuple[int, int], ...]


def normal(steps: Steps, itemsize: int) -> tuple[int, int, Steps]:
    """`(lowest, run, dims)` of element steps: bytes, positive strides, largest stride first.

    `lowest` is the byte distance of the lowest byte from the base (≤ 0 for negative strides);
    `run` the bytes of one dense stretch; dims that are dense or overlapping are merged into it.
    """
    lowest, dims = 0, []
    for stride, count in steps:
        if count == 1 or stride == 0:
            continue
        if stride < 0:
            lowest += stride * (count - 1) * itemsize
            stride = -stride
        dims.append((stride * itemsize, count))
    dims.sort()
    run, rest = itemsize, []
    for stride, count in dims:
        if not rest and stride <= run:
            run += stride * (count - 1)
        elif rest and stride == rest[-1][0] * rest[-1][1]:
            rest[-1] = (rest[-1][0], rest[-1][1] * count)
        else:
            rest.append((stride, count))
    rest.reverse()
    return lowest, run, tuple(rest)


def meets(gap: int, run_a: int, dims_a: Steps, run_b: int, dims_b: Steps) -> bool:
    """Whether region A, `gap` bytes above region B, shares a byte with it (both normal).

    A and B share a byte when an address difference d of their runs obeys `-run_a < d < run_b`.
    """
    if not dims_a and not dims_b:
        return -run_a < gap < run_b
    return _meets(gap, run_a, dims_a, run_b, dims_b)


@lru_cache(maxsize=65536)
def _meets(gap: int, run_a: int, dims_a: Steps, run_b: int, dims_b: Steps) -> bool:
    ranges: dict[int, list[int]] = {}
    for stride, count in dims_a:
        ranges.setdefault(stride, [0, 0])[1] += count - 1
    for stride, count in dims_b:
        ranges.setdefault(stride, [0, 0])[0] -= count - 1
    terms = [(s, lo, hi) for s, (lo, hi) in sorted(ranges.items(), reverse=True)]
    tails = [(0, 0, 0)]
    for stride, lo, hi in reversed(terms):
        low, high, common = tails[-1]
        tails.append((low + stride * lo, high + stride * hi, gcd(common, stride)))
    tails.reverse()
    return _reach(gap, 1 - run_a, run_b - 1, terms, tails, 0)


def _reach(value: int, least: int, most: int, terms: list, tails: list, at: int) -> bool:
    """Whether `value + Σ k·stride` over the terms from `at` can land in [least, most]."""
    low, high, common = tails[at]
    if value + high < least or value + low > most:
        return False
    if at == len(terms):
        return True
    first = least + (value - least) % common  # the smallest reachable residue not below `least`
    if first > most:
        return False
    stride, lo, hi = terms[at]
    low, high, _ = tails[at + 1]
    lo = max(lo, -((value + high - least) // stride))
    hi = min(hi, (most - value - low) // stride)
    return any(
        _reach(value + k * stride, least, most, terms, tails, at + 1) for k in range(lo, hi + 1)
    )


def views_meet(a: Any, b: Any) -> bool:
    """See `View.overlaps`."""
    gap_p = gap = 0
    if a.buffer is not b.buffer:
        mine, theirs = a.buffer, b.buffer
        if mine.space != theirs.space or mine.address is None or theirs.address is None:
            return False
        gap_p, gap = mine.partition - theirs.partition, mine.address - theirs.address
    a0, a1, a_parts, a_low, a_high, a_run, a_dims = a._region
    b0, b1, b_parts, b_low, b_high, b_run, b_dims = b._region
    if a0 + gap_p >= b1 or b0 >= a1 + gap_p or a_low + gap >= b_high or b_low >= a_high + gap:
        return False
    if a_parts or b_parts:
        run_a = 1 if a_parts else a1 - a0
        run_b = 1 if b_parts else b1 - b0
        if not meets(a0 + gap_p - b0, run_a, a_parts, run_b, b_parts):
            return False
    return meets(a_low + gap - b_low, a_run, a_dims, b_run, b_dims)
