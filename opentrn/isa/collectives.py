"""Collectives: instructions by which ranks exchange data, each rank a logical NeuronCore.

They are functions of the public module `nki.collectives`; limits are those of its reference
(NKI 0.6).  The DMA engines carry them, directed by the CC cores.  What they do needs all ranks of
a group, so whoever runs the ranks together carries them out (`sim.collectives`); `run` says what a
rank alone in its group computes.
"""

from typing import Any

from opentrn.base import UsageError, declare, float32, numerics
from opentrn.isa import collective_laws
from opentrn.isa.define import Instr
from opentrn.isa.operands import REQUIRED, Flag, In, OperandForm, Out, Several
from opentrn.isa.operators import op as find_op

declare(
    "isa.ranks",
    "Ranks of a collective are not given as they must be.",
    rule="replica groups are lists of lists of ranks, source-target pairs are pairs of ranks",
    fix="pass ReplicaGroup([[0, 1], [2, 3]]), or source_target_pairs=[(0, 1), (1, 0)]",
)

MOST = 16  # tensors of one coalesced collective; the reference gives no number
REDUCTIONS = ("add", "minimum", "maximum")


def rank_lists(value: Any) -> tuple[tuple[int, ...], ...]:
    """A ReplicaGroup (or the lists it holds, or pairs) as tuples of integers.

    Raises UsageError `isa.ranks` for anything else.
    """
    lists = getattr(value, "groups", value)
    try:
        found = tuple(tuple(int(rank) for rank in one) for one in lists)
    except (TypeError, ValueError):
        found = ()
    if not found or any(not one for one in found):
        raise UsageError(
            f"{type(value).__name__} is no list of lists of ranks",
            code="isa.ranks",
            rule="replica groups are lists of lists of ranks, source-target pairs pairs of ranks",
            fix="pass ReplicaGroup([[0, 1], [2, 3]])",
        )
    return found


def inputs(spaces: str, most: int, nested: bool = False) -> Several:
    """The sources of a collective: up to `most` tensors."""
    return Several(In(spaces, "*", engine_side=False), most, nested=nested)


def outputs(spaces: str, most: int, nested: bool = False) -> Several:
    """The targets of a collective: up to `most` tensors."""
    return Several(Out(spaces, "*", engine_side=False), most, nested=nested)


def group() -> Flag:
    """The `replica_group` of a collective."""
    return Flag(REQUIRED, "which ranks take part together", read=rank_lists)


def priority_flag() -> Flag:
    """The `priority` of a collective."""
    return Flag(None, "quality of service 0 (high) to 3, NeuronCore-v4 and later")


def reduction() -> Flag:
    """The `op` of a collective."""
    return Flag(REQUIRED, "nl.add, nl.minimum or nl.maximum", read=find_op)


class Collective(Instr, abstract=True):
    """What all collectives share: where their tensors may lie, and that ranks meet in them."""

    engines = ("dma",)
    meets = True
    module = "nki.collectives"
    sources, targets = "srcs", "dsts"

    def listed(self, name: str) -> list[tuple[str, OperandForm]]:
        """The tensors given for a list parameter, by operand name."""
        names = type(self).parameters[name].operands(name)
        pairs = ((n, getattr(self, n)) for n in names)
        return [(n, tile) for n, tile in pairs if tile is not None]

    def pairs(self) -> list[tuple[str, str]]:
        """Operand names (source, target) that belong together."""
        given = zip(self.listed(self.sources), self.listed(self.targets), strict=False)
        return [(source[0], target[0]) for source, target in given]

    def lists(self) -> tuple[tuple[int, ...], ...]:
        """The lists of ranks that take part together, in order."""
        return self.replica_group

    @property
    def ranks(self) -> int:
        """Ranks of one list."""
        return len(self.lists()[0])

    def size(self) -> int:
        """Bytes of the larger side: what is called the collective's size."""
        sides = (self.sources, self.targets)
        return max(sum(tile.nbytes for _, tile in self.listed(side)) for side in sides)

    def rules(self):
        """Every rule: places, dtypes, priority, then those of the kind."""
        yield from _common_rules(self)
        yield from self.own_rules()

    def own_rules(self):
        """Rules of one kind of collective."""
        return iter(())

    def run(self, **given):
        """A rank alone in its group keeps what it has."""
        return {target: given[source] for source, target in self.pairs()}


def _common_rules(i: Collective):
    sources, targets = i.listed(i.sources), i.listed(i.targets)
    tiles = [tile for _, tile in i.tiles()]
    sides = [tile for _, tile in (*sources, *targets)]
    yield (
        len(sources) == len(targets),
        f"there are {len(sources)} sources and {len(targets)} targets; each source has its target",
        "give as many `dsts` as `srcs`",
    )
    yield (
        len({tile.space for tile in sides}) == 1,
        "all tensors are in HBM, or all in SBUF",
        "move the tensors into one memory with nisa.dma_copy",
    )
    yield (
        len(sources) == 1 or sides[0].space == "hbm" or i.sources != "srcs",
        "in SBUF a collective takes exactly one tensor; several are for HBM",
        "issue one collective for each tensor, or keep them in HBM",
    )
    yield (
        not any(tile.indirect for tile in tiles),
        "addresses are known when compiling",
        "copy the part with nisa.dma_copy first",
    )
    for (a, source), (b, target) in zip(sources, targets, strict=False):
        yield (
            source.dtype == target.dtype,
            f"`{a}` and `{b}` have one dtype, not {source.dtype} and {target.dtype}",
            "cast with nisa.dma_copy or nisa.tensor_copy before or after",
        )
    yield (
        len({len(one) for one in i.lists()}) == 1,
        "the lists of a replica group are equally long",
        "give every list as many ranks",
    )
    yield from _priority_rules(i)


def _priority_rules(i: Collective):
    yield (
        i.priority is None or i.chip.generation >= 4,
        f"DMA priority exists from NeuronCore-v4 (trn3) on, not on {i.chip.name}",
        "leave `priority` out",
    )
    yield (
        i.priority is None or i.priority in (0, 1, 2, 3),
        "priority is 0 (highest) to 3",
        "choose one of 0, 1, 2, 3",
    )


def reduction_rule(i: Collective):
    """The reductions there are."""
    yield (
        i.op.name in REDUCTIONS,
        f"`op` is nl.add, nl.minimum or nl.maximum, not {i.op}",
        "gather with all_gather and combine with nisa.tensor_tensor",
    )


def sizes(i: Collective, times_source: int, times_target: int, words: str):
    """Each target has so many elements for so many of its source's."""
    for a, b in i.pairs():
        source, target = getattr(i, a), getattr(i, b)
        yield (
            source.size * times_source == target.size * times_target,
            f"{words}: `{a}` has {source.size} elements {list(source.shape)}, `{b}` has "
            f"{target.size} {list(target.shape)}, among {i.ranks} ranks",
            "give both the sizes this asks for",
        )


def _dimension_rules(i: Collective, most_on_chip: int):
    on_chip = i.srcs0.space == "sbuf"
    yield (
        i.collective_dim in range(most_on_chip + 1 if on_chip else 1),
        f"`collective_dim` is {i.collective_dim}; it is 0 for tensors in HBM"
        + (", 0 or 1 in SBUF" if most_on_chip else " and in SBUF"),
        "permute the tensor so that the dimension comes first",
    )
    two = all(len(tile.shape) == 2 for _, tile in i.tiles())
    yield (
        not on_chip or two,
        "in SBUF the tensors have two dimensions, one of them free",
        "flatten the free dimensions into one",
    )


def reduced(op, dtype, left, right):
    """op of two carrier arrays as an accumulating DMA computes it: in float32, then rounded."""
    wide = (numerics.cast(side, dtype, float32) for side in (left, right))
    return numerics.cast(op(*wide), float32, dtype)


class all_reduce(Collective):
    """dsts[i] = op over all ranks of the group of srcs[i], the same on every rank.

    Each step adds in float32 and rounds to the tensors' dtype, as a DMA that accumulates does.
    """

    srcs = inputs("hbm|sbuf", MOST)
    dsts = outputs("hbm|sbuf", MOST)
    replica_group = group()
    op = reduction()
    priority = priority_flag()

    def own_rules(i):
        """Reduction and equal sizes."""
        yield from reduction_rule(i)
        yield from sizes(i, 1, 1, "a target is as large as its source")

    transfer = collective_laws.priced("all_reduce", Collective.lists, Collective.size)


class all_gather(Collective):
    """dsts[i] = srcs[i] of every rank of the group, one after the other along `collective_dim`."""

    srcs = inputs("hbm|sbuf", MOST)
    dsts = outputs("hbm|sbuf", MOST)
    replica_group = group()
    collective_dim = Flag(REQUIRED, "the dimension of `dsts` that grows: 0, in SBUF 0 or 1")
    priority = priority_flag()

    def own_rules(i):
        """Dimension and sizes."""
        yield from _dimension_rules(i, 1)
        yield from sizes(i, i.ranks, 1, "a target holds the source of every rank")
        if i.srcs0.space == "sbuf":
            other = 1 - i.collective_dim
            yield (
                i.srcs0.shape[other] == i.dsts0.shape[other],
                f"dimension {other} of `srcs` and `dsts` is the same",
                "only the collective dimension grows",
            )

    transfer = collective_laws.priced("all_gather", Collective.lists, Collective.size)


class reduce_scatter(Collective):
    """dsts[i] = this rank's part, along dimension 0, of op over all ranks of srcs[i].

    The n-th rank of a list gets the n-th part.  Each step adds in float32 and rounds to the
    tensors' dtype.
    """

    srcs = inputs("hbm|sbuf", MOST)
    dsts = outputs("hbm|sbuf", MOST)
    replica_group = group()
    collective_dim = Flag(REQUIRED, "the dimension of `srcs` that is split: 0")
    op = reduction()
    priority = priority_flag()

    def own_rules(i):
        """Reduction, dimension and sizes."""
        yield from reduction_rule(i)
        yield from _dimension_rules(i, 0)
        yield from sizes(i, 1, i.ranks, "a target is one rank's part of its source")
        if i.srcs0.space == "sbuf":
            yield (
                i.srcs0.shape[1] == i.dsts0.shape[1],
                "dimension 1 of `srcs` and `dsts` is the same",
                "only the partitions are split",
            )

    transfer = collective_laws.priced("reduce_scatter", Collective.lists, Collective.size)


class all_to_all(Collective):
    """Part t (along dimension 0) of srcs[i] of rank s becomes part s of dsts[i] of rank t."""

    srcs = inputs("hbm", MOST)
    dsts = outputs("hbm", MOST)
    replica_group = group()
    collective_dim = Flag(REQUIRED, "the dimension that is split and joined: 0")
    priority = priority_flag()

    def own_rules(i):
        """Dimension, equal sizes, and parts of equal size."""
        yield from _dimension_rules(i, 0)
        yield from sizes(i, 1, 1, "a target is as large as its source")
        for name, tile in i.listed("srcs"):
            yield (
                tile.size % i.ranks == 0,
                f"`{name}` has {tile.size} elements, no multiple of the {i.ranks} ranks",
                "pad it so that every rank gets an equal part",
            )

    transfer = collective_laws.priced("all_to_all", Collective.lists, Collective.size)


__all__ = ["Collective", "all_gather", "all_reduce", "all_to_all", "rank_lists", "reduce_scatter"]
