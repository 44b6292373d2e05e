"""Closed-form seconds of collectives over nested tiers; arrays of group sizes are welcome.

For planners, who ask about thousands of group sizes at once: what `timing` says of one placed
group, reduced to bytes over the bandwidth of each level. A group of n ranks, `stride` apart, has m
members inside a unit of a tier. It works inside the smallest unit first, so that each rank carries
bytes / m over the next tier:

    seconds = sum over tiers of  bus factor (k) (bytes / m below) / bandwidth + steps hop,
              k = m here / m below

Bus factors are those of `bus_factor`. Steps are those of a ring, at most those of halving and
doubling, which takes over where it is faster (`steps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opentrn.comm.choose import bus_factor, steps

Array = Any

NETWORK = 1 << 40
"""Size of the outermost tier: as many devices as there are."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Units of `size` devices joined so that each device sends `bandwidth` byte/s, one direction.

    `hop` is the seconds of one step, or, with `once`, of a whole collective, however many steps it
    has. An `axis` of a torus adds its bandwidth to that of the other axes when a group spans both;
    other tiers are gone through one after the other.
    """

    name: str
    size: int
    bandwidth: float
    hop: float
    grade: str
    axis: bool = False
    once: bool = False


def _shares(tiers: Sequence[Tier], size: Array, stride: Array):
    """(tier, members of the group in a unit below it, units joined by it) for each tier."""
    below = 1.0
    for tier in tiers:
        inside = np.clip(tier.size / stride, 1.0, size) if tier.size < NETWORK else size * 1.0
        yield tier, below, inside / below
        below = inside


def _stages(tiers: Sequence[Tier], size: Array, stride: Array):
    """(tier, members below, units joined, byte/s) one after the other; torus axes work as one."""
    shares = list(_shares(tiers, size, stride))
    axes = [share for share in shares if share[0].axis]
    for tier, below, joined in shares:
        if not tier.axis:
            yield tier, below, joined, tier.bandwidth
        elif tier is axes[0][0]:
            every, rate = 1.0, 0.0
            for axis, _, along in axes:
                every = every * along
                rate = rate + np.where(along > 1.0, axis.bandwidth, 0.0)
            yield tier, below, every, np.where(every > 1.0, rate, 1.0)


def tiered_seconds(
    collective: str, tiers: Sequence[Tier], nbytes: Array, size: Array, stride: Array = 1.0
) -> Array:
    """Seconds of an all_reduce, all_gather or reduce_scatter of `nbytes` (the larger buffer).

    Ranks of the group are `stride` devices apart. Raises what `bus_factor` raises.

    Source: bus factors of AWS Neuron's nccom-test guide, bandwidths of the tiers.
    """
    total = 0.0
    for tier, below, joined, rate in _stages(tiers, size, stride):
        moved = bus_factor(collective, joined) * nbytes / below
        count = np.minimum(joined - 1.0, 1.0) if tier.once else steps(collective, joined)
        total = total + moved / rate + count * tier.hop
    return total


def tiered_all_to_all(tiers: Sequence[Tier], nbytes: Array, size: Array, stride: Array) -> Array:
    """Seconds in which each rank sends `nbytes`, an equal part to every rank of the group.

    Source: bytes that leave a unit over its bandwidth (module).
    """
    total = 0.0
    for tier, below, joined, rate in _stages(tiers, size, stride):
        leaving = nbytes * (joined - 1.0) * below / size
        total = total + leaving / rate + np.minimum(joined - 1.0, 1.0) * tier.hop
    return total


def tiered_send(tiers: Sequence[Tier], nbytes: Array, stride: Array) -> Array:
    """Seconds of a send to the rank `stride` devices on, while every device sends.

    Source: bytes over the bandwidth of the tier that both ranks share, and its hop.
    """
    total = 0.0
    inner = 1.0
    for tier in tiers:
        here = (stride >= inner) & (stride < tier.size)
        total = total + here * (nbytes / tier.bandwidth + tier.hop)
        inner = tier.size
    return total
