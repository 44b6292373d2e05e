"""Permutes: each rank sends to one other, given by pairs or by the order of its list.

With them the questions a rank asks about itself.  Limits are those of the `nki.collectives`
reference (NKI 0.6).
"""

from typing import Any

from opentrn.isa.collective_laws import priced
from opentrn.isa.collectives import (
    Collective,
    group,
    inputs,
    outputs,
    priority_flag,
    rank_lists,
    reduced,
    reduction,
    reduction_rule,
    sizes,
)
from opentrn.isa.define import Instr
from opentrn.isa.operands import REQUIRED, Flag, RegIn, RegOut, assumed
from opentrn.isa.registers import fits

CHANNELS = 4  # NKI 0.6 reference: at most 4 channels


def channels(value: Any) -> tuple[int, ...]:
    """Channel numbers as a tuple."""
    return tuple(int(number) for number in value)


class collective_permute(Collective):
    """dsts of each target = srcs of its source, for explicit (source, target) pairs of ranks."""

    srcs = inputs("hbm", 1)
    dsts = outputs("hbm", 1)
    source_target_pairs = Flag(REQUIRED, "(source, target) ranks: a ring", read=rank_lists)
    priority = priority_flag()

    def lists(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of the pairs, in ascending order."""
        return (tuple(sorted({rank for pair in self.source_target_pairs for rank in pair})),)

    def own_rules(i):
        """Pairs that form rings, equal sizes."""
        pairs = i.source_target_pairs
        yield (
            all(len(pair) == 2 for pair in pairs),
            "source_target_pairs are pairs of ranks",
            "pass for example [(0, 1), (1, 0)]",
        )
        sources, targets = ([pair[n] for pair in pairs] for n in (0, -1))
        yield (
            len(set(sources)) == len(sources) and sorted(sources) == sorted(targets),
            "every rank of the pairs sends once and receives once: only circular patterns run",
            "close the circle, for example [(0, 1), (1, 2), (2, 0)]",
        )
        yield from sizes(i, 1, 1, "a target is as large as its source")

    transfer = priced("permute", lambda i: i.lists(), Collective.size)


class Ring(Collective, abstract=True):
    """Permutes to the next rank of each list, on one or more channels."""

    targets = "dsts_by_channel"

    def own_rules(i):
        """Channels, equal sizes."""
        count = len(i.listed(i.targets))
        yield (
            i.channel_ids == tuple(range(count)),
            f"channel_ids are 0 to {count - 1} in order for {count} channels, not "
            f"{list(i.channel_ids)}",
            f"pass channel_ids={list(range(count))}",
        )
        yield from sizes(i, 1, 1, "a target is as large as its source")


class collective_permute_implicit(Ring):
    """dsts of each rank = srcs of the rank before it in its list, which is a ring."""

    sources = "srcs_by_channel"
    srcs_by_channel = inputs("hbm|sbuf", CHANNELS, nested=True)
    dsts_by_channel = outputs("hbm|sbuf", CHANNELS, nested=True)
    replica_group = group()
    channel_ids = Flag([0], "channels that carry a tensor each, from 0 on", read=channels)
    priority = priority_flag()

    transfer = priced("permute", Collective.lists, Collective.size)


class collective_permute_implicit_reduce(Ring):
    """dsts of each rank = op(srcs0, srcs1) of the rank before it in its list, which is a ring.

    op computes in float32 and rounds to the tensors' dtype.
    """

    sources = "srcs0_by_channel"
    srcs0_by_channel = inputs("hbm|sbuf", CHANNELS, nested=True)
    srcs1_by_channel = inputs("hbm|sbuf", CHANNELS, nested=True)
    dsts_by_channel = outputs("hbm|sbuf", CHANNELS, nested=True)
    replica_group = group()
    op = reduction()
    channel_ids = Flag([0], "channels that carry a tensor each, from 0 on", read=channels)
    priority = priority_flag()

    def own_rules(i):
        """Reduction; both sources alike."""
        yield from reduction_rule(i)
        yield from Ring.own_rules(i)
        left, right = i.listed("srcs0_by_channel"), i.listed("srcs1_by_channel")
        same = [(a.shape, a.dtype, a.space) for _, a in left]
        yield (
            same == [(b.shape, b.dtype, b.space) for _, b in right],
            "srcs0_by_channel and srcs1_by_channel are alike: channels, shapes, dtypes, memory",
            "make both lists alike",
        )

    def run(i, **given):
        """What a rank alone sends to itself."""
        found = {}
        for n, (_, target) in enumerate(i.pairs()):
            left, right = (given[f"srcs{side}_by_channel{n}"] for side in (0, 1))
            found[target] = reduced(i.op, getattr(i, target).dtype, left, right)
        return found

    transfer = priced("permute", Collective.lists, Collective.size)


_SLOT = assumed(
    "no public figure; one minimum initiation interval (64 cycles, ISA v2.26.1)",
    lambda i, chip: 64.0,
)


class rank_id(Instr):
    """The number of this rank, in a register."""

    engines = ("sync",)
    meets = True
    module = "nki.collectives"
    dst = RegOut("the register that is returned", returned=True)

    def run(i):
        """A rank alone is number 0."""
        return {"dst": 0}

    cycles = _SLOT


class collective_permute_implicit_current_processing_rank_id(Instr):
    """The rank whose data is here after `iteration_id` steps of a ring, in a register.

    At iteration 0 this rank itself, then the one before it in its list, and so on round the ring.
    """

    engines = ("sync",)
    meets = True
    module = "nki.collectives"
    dst = RegOut("the register that is returned", returned=True)
    iteration_id = RegIn("steps of the ring so far: a number or a register")
    replica_group = group()
    channel_id = Flag(0, "the channel: 0 to 3")

    def rules(i):
        """The channel exists."""
        yield (
            i.channel_id in range(CHANNELS),
            f"channel_id is 0 to {CHANNELS - 1}, not {i.channel_id}",
            "use the channel of the permute",
        )

    def relate(self, operands: tuple) -> None:
        """The number fits a register."""
        fits(self, "iteration_id", operands[1])

    def run(i, iteration_id):
        """A rank alone always has its own data."""
        return {"dst": i.replica_group[0][0]}

    cycles = _SLOT


__all__ = [
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
]
