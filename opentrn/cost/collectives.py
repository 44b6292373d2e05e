"""Closed-form seconds of collectives over nested tiers; arrays of group sizes are welcome.

A group of n ranks, `stride` apart, has m members inside a unit of a tier. It works inside the
smallest unit first, so that each rank carries bytes / m over the next tier:

    seconds = sum over tiers of  factor (k - 1)/k  (bytes / m below) / (bandwidth efficiency)
                                 + factor steps hop,     k = m here / m below

factor is 1 for all-gather and reduce-scatter, 2 for all-reduce (AWS Neuron, inter-node collectives:
traffic (N - 1) C and 2 (N - 1) C). Steps are k - 1 for a ring, at most 2 log2 k (halving and
doubling takes over where it is faster).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opentrn.cost.platform import NETWORK, Platform

Array = Any


def _shares(platform: Platform, size: Array, stride: Array):
    """(tier, members of the group in a unit below it, units joined by it) for each tier."""
    below = 1.0
    for tier in platform.tiers:
        inside = np.clip(tier.size / stride, 1.0, size) if tier.size < NETWORK else size * 1.0
        yield tier, below, inside / below
        below = inside


def _stages(platform: Platform, size: Array, stride: Array):
    """(members below, units joined, byte/s, hop) one after the other; torus axes work as one."""
    shares = list(_shares(platform, size, stride))
    axes = [share for share in shares if share[0].axis]
    for tier, below, joined in shares:
        if not tier.axis:
            yield below, joined, _rate(platform, tier), tier.hop
        elif tier is axes[0][0]:
            every, rate = 1.0, 0.0
            for axis, _, along in axes:
                every = every * along
                rate = rate + np.where(along > 1.0, _rate(platform, axis), 0.0)
            yield below, every, np.where(every > 1.0, rate, 1.0), tier.hop


def _rate(platform: Platform, tier) -> float:
    return tier.bandwidth * platform.eff("network" if tier.size == NETWORK else "link")


def ring_seconds(
    platform: Platform, nbytes: Array, size: Array, stride: Array, factor: float = 1.0
) -> Array:
    """Seconds of an all-gather or reduce-scatter of `nbytes` (all ranks' together); all-reduce
    with factor 2. Ranks of the group are `stride` devices apart.
    """
    total = 0.0
    for below, joined, rate, hop in _stages(platform, size, stride):
        moved = factor * (joined - 1.0) / joined * nbytes / below
        steps = np.minimum(joined - 1.0, 2.0 * np.log2(joined))
        total = total + moved / rate + factor * steps * hop
    return total


def all_to_all_seconds(platform: Platform, nbytes: Array, size: Array, stride: Array) -> Array:
    """Seconds in which each rank sends `nbytes`, an equal part to every rank of the group."""
    total = 0.0
    for below, joined, rate, hop in _stages(platform, size, stride):
        leaving = nbytes * (joined - 1.0) * below / size
        total = total + leaving / rate + np.minimum(joined - 1.0, 1.0) * hop
    return total


def send_seconds(platform: Platform, nbytes: Array, stride: Array) -> Array:
    """Seconds of a send to the rank `stride` devices on, while every device sends."""
    total = 0.0
    inner = 1.0
    for tier in platform.tiers:
        here = (stride >= inner) & (stride < tier.size)
        total = total + here * (nbytes / _rate(platform, tier) + tier.hop)
        inner = tier.size
    return total


def sync_seconds(platform: Platform, size: Array) -> Array:
    """Seconds that one collective waits beyond its bytes; none in a group of one."""
    return np.where(np.asarray(size) > 1, platform.eff("sync"), 0.0)
