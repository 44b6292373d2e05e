"""Two levels: an algorithm among the ranks of a unit (chip, node), another across the units.

    all-gather      across, then within       (the slow level carries less)
    reduce-scatter  within, then across
    all-reduce      reduce-scatter within, all-reduce across, all-gather within

(AWS Neuron, inter-node collectives.)  The rank at place y of unit x is x * within + y.  Mesh on a
fabric of chips is a mesh across chips with a mesh within each; recursive doubling and halving runs
across chips with a mesh within (AWS Neuron, intra-node collectives).
"""

from collections.abc import Callable, Iterable, Sequence

from opentrn.comm.schedule import Schedule, Send

Make = Callable[[int], Schedule]
Order = Callable[[int], Sequence[int]]


class Stage:
    """Sends of smaller collectives put side by side on the ranks of a larger one."""

    def __init__(self) -> None:
        """An empty schedule: no step yet."""
        self.sends: list[Send] = []
        self.steps = 0

    def add(
        self, small: Schedule, groups: Iterable[Sequence[int]], chunks: Callable[[int], list[int]]
    ) -> None:
        """Run `small` in each group at once, after all that was added before.

        Rank i of it is the i-th of the group, chunk i stands for `chunks(that rank)`.
        """
        for group in groups:
            for s in small.sends:
                step, source, target = self.steps + s.step, group[s.source], group[s.target]
                for c in chunks(group[s.chunk]):
                    self.sends.append(Send(step, source, target, c, c, s.reduce))
        self.steps += small.steps


def _groups(across: int, within: int, order: Order | None):
    """(groups within units, groups across them, chunks of a place, chunk of a rank)."""
    units = [range(x * within, (x + 1) * within) for x in range(across)]
    places = []
    for y in range(within):
        along = order(y) if order is not None else range(across)
        places.append([x * within + y for x in along])
    return units, places, lambda rank: list(range(rank % within, across * within, within))


def _schedule(name: str, ranks: int, stage: Stage, every: bool) -> Schedule:
    whole = tuple(range(ranks))
    keeps = (whole,) * ranks if every else tuple((rank,) for rank in whole)
    return Schedule(name, ranks, ranks, tuple(stage.sends), keeps)


def all_gather(
    across: int, within: int, outer: Make, inner: Make, order: Order | None = None
) -> Schedule:
    """All-gather of `across` units of `within` ranks by the all-gathers `outer` and `inner`.

    `order(place)` lists the units in the order the outer algorithm numbers them.
    """
    units, places, column = _groups(across, within, order)
    stage = Stage()
    stage.add(outer(across), places, lambda rank: [rank])
    stage.add(inner(within), units, column)
    return _schedule("all_gather.hier", across * within, stage, every=True)


def reduce_scatter(
    across: int, within: int, outer: Make, inner: Make, order: Order | None = None
) -> Schedule:
    """Reduce-scatter by the reduce-scatters `inner` within units and `outer` across them."""
    units, places, column = _groups(across, within, order)
    stage = Stage()
    stage.add(inner(within), units, column)
    stage.add(outer(across), places, lambda rank: [rank])
    return _schedule("reduce_scatter.hier", across * within, stage, every=False)


def all_reduce(
    across: int,
    within: int,
    outer: Make,
    inner: tuple[Make, Make],
    order: Order | None = None,
) -> Schedule:
    """All-reduce: `inner` is (reduce-scatter, all-gather) within units, `outer` reduces across."""
    units, places, column = _groups(across, within, order)
    stage = Stage()
    stage.add(inner[0](within), units, column)
    stage.add(outer(across), places, lambda rank: [rank])
    stage.add(inner[1](within), units, column)
    return _schedule("all_reduce.hier", across * within, stage, every=True)
