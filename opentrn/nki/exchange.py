"""Collectives carried out: who meets whom, that all call the same, and what each receives."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from opentrn import hw
from opentrn.base import LimitError, OrderError, UsageError, declare, explanation
from opentrn.comm import Group
from opentrn.isa import Instruction, View
from opentrn.sim import Finding, Machine, Piece, exchanged, landing, overlapping

declare(
    "nki.ranks",
    "A collective names ranks that this run does not have.",
    rule="replica groups name ranks 0 to N - 1 of the N that run",
    fix="run with nki.simulate(kernel, ranks=N) or nki.run_ranks, or name the ranks there are",
)
declare(
    "nki.rank_calls",
    "Ranks of one group call different collectives.",
    rule="all ranks of a list make the same collective calls in the same order, with equal flags, "
    "shapes and dtypes",
    fix="take the call out of the condition, or make its tensors alike",
)
declare(
    "nki.rank_places",
    "The ranks of a collective do not lie where it needs them.",
    rule="some collectives run only within a chip, across chips or across nodes, and with ranks "
    "of two cores",
    fix="launch kernel[2] with as many ranks as the rule asks for, spread over nodes=...",
)

# The largest instance of each chip: how many chips one node has.
NODES = {
    "inf2": "inf2.48xlarge",
    "trn1": "trn1.32xlarge",
    "trn2": "trn2.48xlarge",
    "trn3": "trn3-gen1-ultraserver",
}


declare(
    "nki.collective_io",
    "A collective works on a tensor the kernel was given or returns.",
    rule="on the chip collectives work on the kernel's own tensors: not on inputs, not on outputs",
    fix="copy with nisa.dma_copy into nl.ndarray(..., buffer=nl.shared_hbm), and back afterwards",
    fault="undefined",
)


@dataclass(frozen=True)
class World:
    """The ranks that run together: how many, of how many cores each, and where they lie.

    Ranks fill a chip, then the next one of their node; `nodes` spreads them evenly over that many
    nodes (0: as many as the largest instance of the chip needs).
    """

    chip: Any
    ranks: int = 1
    cores: int = 1
    nodes: int = 0

    @cached_property
    def per_chip(self) -> int:
        """Ranks of one chip."""
        return max(1, int(self.chip.cores) // self.cores)

    @cached_property
    def chips_of_node(self) -> int:
        """Chips of one node."""
        found = hw.instance(NODES[self.chip.name])
        return int(found.chips) // int(getattr(found, "servers", None) or 1)

    @cached_property
    def per_node(self) -> int:
        """Ranks of one node."""
        if self.nodes:
            return -(-self.ranks // self.nodes)
        return self.chips_of_node * self.per_chip

    def node(self, rank: int) -> int:
        """The node a rank lies on."""
        return rank // self.per_node

    def device(self, rank: int) -> tuple[int, int]:
        """(node, chip of that node) a rank lies on."""
        node, inside = divmod(rank, self.per_node)
        return node, inside // self.per_chip


@dataclass(frozen=True)
class Offer:
    """What one program instance brings to a collective."""

    rank: int
    machine: Machine
    instruction: Instruction
    called: str


def party(instruction: Instruction, rank: int, world: World) -> tuple[int, ...]:
    """The ranks that take part together with `rank`, in order; empty when it takes no part.

    Raises UsageError `nki.ranks`, `comm.group`, LimitError `nki.rank_places`.
    """
    form = instruction.form
    lists = form.lists()
    if form.parameters.get("replica_group"):
        lists = Group.of(lists).lists
    beyond = max(max(one) for one in lists)
    if beyond >= world.ranks:
        raise UsageError(
            f"{instruction.opcode}: the group names rank {beyond}, but "
            + ("there is 1 rank" if world.ranks == 1 else f"there are {world.ranks} ranks"),
            code="nki.ranks",
            rule="replica groups name ranks 0 to N - 1 of the N that run",
            fix=f"run with nki.simulate(kernel, ranks={beyond + 1}), or name the ranks there are",
            at=instruction.where,
        )
    for holds, rule, fix in PLACES.get(instruction.opcode, _anywhere)(form, lists, world):
        if not holds:
            raise LimitError(
                f"{instruction.opcode}: {rule}",
                code="nki.rank_places",
                rule=rule,
                fix=fix,
                at=instruction.where,
            )
    return next((one for one in lists if rank in one), ())


def _anywhere(form, lists, world: World):
    return iter(())


def _channels(form, lists, world: World):
    """Four channels where the group covers a whole node, else two."""
    devices = {world.device(rank) for rank in lists[0]}
    most = 4 if len(devices) >= world.chips_of_node else 2
    count = len(form.channel_ids)
    yield (
        count <= most,
        f"{count} channels; a group has at most 2, or 4 when it covers all chips of a node "
        f"({world.chips_of_node} of {world.chip.name})",
        "use fewer channels",
    )


def _two_cores(world: World):
    return (
        world.cores == 2,
        f"it runs with ranks of two cores (LNC=2); these have {world.cores}",
        "launch kernel[2]",
    )


def _one_chip(form, lists, world: World):
    """all_gather_v: two cores, and each list on one chip."""
    yield _two_cores(world)
    for one in lists:
        yield (
            len({world.device(rank) for rank in one}) == 1,
            f"the ranks of a list lie on one chip; {list(one)} do not",
            f"group ranks by {world.per_chip}: [0, 1, …], as they lie on chips",
        )


def _across(form, lists, world: World):
    """all_to_all_v: whole chips where there is NeuronSwitch, elsewhere one rank of each node."""
    if world.chip.generation >= 4:
        yield _two_cores(world)
        yield from _whole_chips(lists, world)
        return
    for one in lists:
        nodes = [world.node(rank) for rank in one]
        inside = {rank % world.per_node for rank in one}
        yield (
            len(set(nodes)) == len(nodes) and len(inside) == 1,
            f"on {world.chip.name} a list holds same-indexed ranks of different nodes, one of "
            f"each; {list(one)} are on nodes {nodes}",
            "use all_to_all inside a node, or run with nodes= as many as a list has ranks",
        )


def _whole_chips(lists, world: World):
    for one in lists:
        devices = {world.device(rank) for rank in one}
        yield (
            len(devices) > 1 or len(one) == 1,
            f"more than one chip takes part; ranks {list(one)} are on one",
            f"use groups of at least {2 * world.per_chip} ranks, or all_to_all",
        )
        whole = list(range(one[0], one[0] + len(one))) == list(one)
        yield (
            whole and len(one) == len(devices) * world.per_chip,
            f"a list holds sequential ranks, all {world.per_chip} of every chip in it; it is "
            f"{list(one)}",
            "keep idle ranks in the group and set their send counts to 0",
        )


PLACES = {
    "all_gather_v": _one_chip,
    "all_to_all_v": _across,
    "collective_permute_implicit": _channels,
    "collective_permute_implicit_reduce": _channels,
}


# ------------------------------------------------------------------------ carrying it out


def settle(ranks: list[list[Offer]]) -> None:
    """Move the data of one list of ranks, given in its order; every rank's `dsts` are written.

    Each rank offers once, or once for each of its cores, which then name the same tensors.  Raises
    OrderError `nki.rank_calls` naming two that call different things.
    """
    offers = [own[0] for own in ranks]
    _must_agree(offers)
    for own in ranks:
        _must_agree(own)
        _must_share(own)
    form = offers[0].instruction.form
    held = [_given(offer) for offer in offers]
    senders = [(offer.called, offer.instruction.where) for offer in offers]
    for place, (offer, found) in enumerate(zip(offers, exchanged(form, held), strict=True)):
        if len(offers) > 1:
            _notice(offer, overlapping(offer.instruction, place))
        for name, value in found.items():
            if isinstance(value, list):
                _notice(offer, landing(offer.instruction, name, value, senders))
            _store(offer, name, value)


def _notice(offer: Offer, found: Iterable[Finding]) -> None:
    """Keep findings for the rank, each once."""
    known = offer.machine.findings
    known += [one for one in dict.fromkeys(found) if one not in known]


def _must_agree(offers: list[Offer]) -> None:
    first = offers[0]
    for other in offers[1:]:
        one, two = first.instruction, other.instruction
        if one.form is two.form:
            continue
        difference = _difference(one, two)
        if difference:
            raise OrderError(
                f"{first.called} calls {one.opcode} at {one.where}, {other.called} calls "
                f"{two.opcode} at {two.where}: {difference}",
                code="nki.rank_calls",
                at=two.where,
            )


def _must_share(cores: list[Offer]) -> None:
    """The cores of a rank call one collective together: on the same tensors."""
    first = cores[0]
    for other in cores[1:]:
        if first.instruction.operands != other.instruction.operands:
            raise OrderError(
                f"{first.called} at {first.instruction.where} and {other.called} name different "
                "parts of shared tensors",
                code="nki.rank_calls",
                rule="in shared HBM both cores of a rank call one collective on the same tensors",
                fix="pass the whole tensors on both cores: the collective divides the work itself",
                at=other.instruction.where,
            )


def _difference(one: Instruction, two: Instruction) -> str:
    """How two calls differ; empty when they go together (where tensors lie does not matter)."""
    a, b = one.form, two.form
    if type(a) is not type(b):
        return "they are different collectives"
    for name in a.flags:
        if getattr(a, name) != getattr(b, name):
            return f"`{name}` is {_words(getattr(a, name))} and {_words(getattr(b, name))}"
    for name, left, right in zip(a.operand_names, a.given, b.given, strict=True):
        if (left is None) != (right is None):
            return f"`{name}` is given by one of them"
        if left is not None and _kind(left) != _kind(right):
            return f"`{name}` is {' and '.join(map(_kind, (left, right)))}"
    return ""


def _kind(tile: Any) -> str:
    return f"{tile.space} {tile.dtype}{list(tile.shape)}"


def _words(value: Any) -> str:
    if isinstance(value, tuple):
        return str([list(v) if isinstance(v, tuple) else v for v in value])
    return str(value)


def _given(offer: Offer) -> dict[str, np.ndarray]:
    """Copies of what a rank's operands hold; what nobody wrote is noticed."""
    one, machine, found = offer.instruction, offer.machine, {}
    for n in one.form.inputs:
        name, view = one.form.operand_names[n], one.operands[n]
        if view is None:
            continue
        for part in one.form.parts(name, view):
            machine.check_read(machine.storage(view.buffer), part, one, name)
        found[name] = machine.value(view)
    return found


def _store(offer: Offer, name: str, value: Any) -> None:
    """Write one result: an array for the whole operand, or pieces of it."""
    one = offer.instruction
    view = one.operands[one.form.operand_names.index(name)]
    pieces = value if isinstance(value, list) else [value]
    for piece in pieces:
        part = view
        if isinstance(piece, Piece):
            part = View(view.buffer, view.offset + piece.start, _flat(view, piece), view.dtype)
            piece = piece.values
        storage = offer.machine.storage(part.buffer)
        storage.own()
        storage.write(part, piece.reshape(part.shape))
        storage.written.add(part)


def _flat(view: View, piece: Piece) -> tuple[tuple[int, int], ...]:
    """Steps of consecutive elements, within the one partition on chip."""
    dense = ((1, piece.values.size),)
    return (view.steps[0], *dense) if view.buffer.on_chip else dense


def notice_io(collectives: list[Instruction], program, machine: Machine) -> None:
    """Note collectives on inputs and outputs: they run here, the compiler refuses them."""
    outside = {*program.inputs, *program.outputs}
    seen = set()
    for one in collectives:
        for view in one.views():
            key = (view.buffer, one.where)
            if view.buffer not in outside or key in seen:
                continue
            seen.add(key)
            kind = "input" if view.buffer in program.inputs else "output"
            known = explanation("nki.collective_io")
            what = f"{one.opcode}: works on {kind} `{view.buffer.name or view.buffer.id}` itself"
            machine.findings.append(
                Finding("nki.collective_io", what, one.where, known.rule, known.fix)
            )


# ------------------------------------------------------------------------ questions


def answer(instruction: Instruction, rank: int, machine: Machine) -> None:
    """Put into the register what `rank_id` and its sibling ask for."""
    form, operands = instruction.form, instruction.operands
    found = rank
    if instruction.opcode != "rank_id":
        ring = Group.of(form.replica_group).of_rank(rank)
        step = machine.register(operands[1])
        found = ring[(ring.index(rank) - step) % len(ring)]
    machine.registers[operands[0].number] = found


QUESTIONS = ("rank_id", "collective_permute_implicit_current_processing_rank_id")


def alone(instruction: Instruction, machine: Machine) -> None:
    """Carry out an instruction that meets others where there is one rank of one core."""
    if instruction.opcode in QUESTIONS:
        answer(instruction, 0, machine)
    elif instruction.opcode in ("core_barrier", "sendrecv"):
        raise OrderError(
            f"{instruction.opcode} waits for another core, but the kernel runs on one",
            code="nki.exchange",
            rule="cores (0, 1) meet in a barrier, and what core a sends to b, core b must receive "
            "from a",
            fix="launch kernel[2](...), or ask nl.num_programs(0) > 1 first",
            at=instruction.where,
        )
    else:
        ranks = party(instruction, 0, World(machine.chip))
        if ranks:
            settle([[Offer(0, machine, instruction, "rank 0")]])


__all__ = ["QUESTIONS", "Offer", "World", "alone", "answer", "notice_io", "party", "settle"]
