"""Several program instances of one kernel: cores that share HBM, ranks that exchange data.

Instances run in lockstep (`sim.lockstep`), each on a machine of its own.  Those of one rank share
inputs and shared_hbm tensors, matched by the order in which they are made; ranks share nothing and
meet in collectives.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from opentrn.base import NotBuiltError, OrderError, declare
from opentrn.isa import Buffer, Builder, Instruction, View
from opentrn.nki import arrays, exchange
from opentrn.nki.launch import call, check_inputs, results
from opentrn.nki.session import Run, Session, entered, new_machine
from opentrn.sim import Finding, Lockstep, one_blas_thread

declare(
    "nki.cores",
    "A kernel is launched on more cores than a logical NeuronCore has.",
    rule="a logical NeuronCore has at most two physical cores (trn2 and later; one on trn1)",
    fix="launch with kernel[2](...) on trn2 or trn3",
)
declare(
    "nki.shared_tensors",
    "The cores of a launch make different shared tensors.",
    rule="every core makes the same shared_hbm tensors in the same order: they are one memory",
    fix="allocate shared tensors outside conditions on nl.program_id",
)
declare(
    "nki.exchange",
    "Two cores disagree about an exchange.",
    rule="what core a sends to b, core b must receive from a, with equal tiles and one pipe_id",
    fix="pass send_to_rank=recv_from_rank=1 - nl.program_id(0) on both",
)
declare(
    "nki.core_race",
    "Two cores touch the same shared memory without an order between them.",
    rule="after one core writes, the other may read only behind a core_barrier or an exchange",
    fix="put nisa.core_barrier(tensor, (0, 1)) between the write and the read",
    fault="unpredictable",
)


@dataclass
class Shared:
    """What the cores of one rank have in common."""

    rank: int = 0
    buffers: list[Buffer] = field(default_factory=list)
    storages: dict[Buffer, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    reported: set = field(default_factory=set)
    # For each core the accesses to shared memory since it last met the others.
    since: list[list[tuple[View, bool, Any]]] = field(default_factory=list)

    def met(self) -> None:
        """All cores have met: look at what they did before, and begin anew."""
        _races(self)
        for accesses in self.since:
            accesses.clear()


@dataclass(frozen=True)
class Crew:
    """All program instances of a launch: `cores` of each rank, numbered rank by rank."""

    world: exchange.World
    ranks: tuple[Shared, ...]
    lockstep: Lockstep

    @staticmethod
    def of(world: exchange.World) -> "Crew":
        """A crew that has done nothing yet."""
        names = [_called(world, r, c) for r in range(world.ranks) for c in range(world.cores)]
        ranks = tuple(
            Shared(rank, since=[[] for _ in range(world.cores)]) for rank in range(world.ranks)
        )
        return Crew(world, ranks, Lockstep(names))


def _called(world: exchange.World, rank: int, core: int) -> str:
    """What errors call a program instance."""
    if world.ranks == 1:
        return f"core {core}"
    return f"rank {rank}" if world.cores == 1 else f"rank {rank} core {core}"


@dataclass(slots=True)
class Member(Session):
    """One instance of a launch: a core (its place in the grid, row-major) of a rank."""

    core: int = 0
    shared: Shared | None = None
    crew: Crew | None = None
    made: int = 0

    @property
    def number(self) -> int:
        """Its number in the lockstep."""
        return self.shared.rank * self.crew.world.cores + self.core

    @property
    def called(self) -> str:
        """What errors call it."""
        return self.crew.lockstep.names[self.number]

    def buffer(self, space: str, shape, dtype, **more) -> Buffer:
        """A buffer of its own, or (inputs and shared HBM) the one the first core made."""
        if more.get("kind") not in ("input", "output"):
            return Session.buffer(self, space, shape, dtype, **more)
        shared, place = self.shared, self.made
        self.made += 1
        if place == len(shared.buffers):
            shared.buffers.append(Session.buffer(self, space, shape, dtype, **more))
            return shared.buffers[place]
        found = shared.buffers[place]
        if (found.shape, found.dtype, found.kind) != (tuple(shape), dtype, more["kind"]):
            raise OrderError(
                f"{self.called} makes a shared {dtype}{list(shape)} where another made "
                f"{found.dtype}{list(found.shape)}",
                code="nki.shared_tensors",
            )
        self.builder.buffers.append(found)
        return found

    def allocate(self, buffer: Buffer) -> None:
        """Give the buffer memory; shared ones get the same on every core."""
        if buffer not in self.shared.buffers:
            Session.allocate(self, buffer)
            return
        known = self.shared.storages.get(buffer)
        if known is None:
            known = self.shared.storages[buffer] = self.machine.allocate(buffer)
        self.machine.storages[buffer] = known

    def adopt(self, buffer: Buffer, array) -> None:
        """Use the caller's array: the one the first core was given."""
        known = self.shared.storages.get(buffer)
        if known is None:
            known = self.shared.storages[buffer] = self.machine.adopt(buffer, array)
        self.machine.storages[buffer] = known

    def issue(self, instruction: Instruction) -> None:
        """Run the instruction, with the other instances where it meets them."""
        Session.issue(self, instruction)
        if not instruction.form.meets:
            self._note(instruction)

    def meet(self, instruction: Instruction) -> None:
        """Carry out an instruction that needs other cores or ranks."""
        if instruction.opcode in exchange.QUESTIONS:
            exchange.answer(instruction, self.shared.rank, self.machine)
        elif instruction.opcode == "core_barrier":
            self._meet_cores(("core_barrier",), instruction, None)
        elif instruction.opcode == "sendrecv":
            self._swap(instruction)
        else:
            self._collective(instruction)

    def _meet_cores(self, key: tuple, instruction: Instruction, offer: Any) -> dict[int, Any]:
        """Meet the other cores of this rank; what each offers, by core."""
        cores = self.crew.world.cores
        first = self.number - self.core
        shared = self.shared

        def settle(offers: dict[int, Any]) -> dict[int, Any]:
            shared.met()
            return {number - first: given for number, given in offers.items()}

        everyone = range(first, first + cores)
        lockstep, where = self.crew.lockstep, instruction.where
        return lockstep.meet(self.number, key, everyone, offer, where, settle)

    def _swap(self, instruction: Instruction) -> None:
        if self.crew.world.cores == 1:
            exchange.alone(instruction, self.machine)
        form = instruction.form
        source, target = instruction.operands[:2]
        send, receive = int(form.send_to_rank), int(form.recv_from_rank)
        machine = self.machine
        machine.check_read(machine.storage(source.buffer), source, instruction, "src")
        value = machine.value(source)
        key = ("sendrecv", form.pipe_id)
        offers = self._meet_cores(key, instruction, (send, form.src, value))
        there, shape, arrived = offers[receive]
        if there != self.core or shape.shape != form.dst.shape or shape.dtype != form.dst.dtype:
            raise OrderError(
                f"core {self.core} receives {form.dst.dtype}{list(form.dst.shape)} from core "
                f"{receive}, which sends {shape.dtype}{list(shape.shape)} to core {there}",
                code="nki.exchange",
                at=instruction.where,
            )
        storage = machine.storage(target.buffer)
        storage.write(target, arrived)
        storage.written.add(target)

    def _collective(self, instruction: Instruction) -> None:
        """Meet the ranks of the group: each core by itself, or both where all memory is shared."""
        world = self.crew.world
        self.collectives.append(instruction)
        ranks = exchange.party(instruction, self.shared.rank, world)
        if not ranks:
            return
        both = all(view.buffer in self.shared.buffers for view in instruction.views())
        cores = tuple(range(world.cores)) if both else (self.core,)
        if not both:
            self._note(instruction)
        numbers = [rank * world.cores + core for rank in ranks for core in cores]
        key = ("a collective of ranks", list(ranks))
        if len(cores) < world.cores:
            key = (*key, "of core", self.core)
        offer = exchange.Offer(self.shared.rank, self.machine, instruction, self.called)
        crew = self.crew

        def settle(offers: dict[int, exchange.Offer]) -> None:
            exchange.settle([[offers[r * world.cores + c] for c in cores] for r in ranks])
            for rank in ranks if both else ():
                crew.ranks[rank].met()

        crew.lockstep.meet(self.number, key, numbers, offer, instruction.where, settle)

    def _note(self, instruction: Instruction) -> None:
        """Remember accesses to shared memory until the cores meet."""
        shared = self.shared
        for views, writes in ((instruction.reads(), False), (instruction.writes(), True)):
            for view in views:
                if view.buffer.kind == "output" and view.buffer in shared.buffers:
                    shared.since[self.core].append((view, writes, instruction.where))


def _races(shared: Shared) -> None:
    """Report pairs of accesses by two cores, at least one a write, to the same bytes."""
    for (a, mine), (b, theirs) in _pairs(shared.since):
        for view, writes, where in mine:
            for other, also, there in theirs:
                if (writes or also) and view.buffer is other.buffer and view.overlaps(other):
                    _report(shared, (a, writes, where), (b, also, there), view.buffer)


def _pairs(lists: list) -> Iterator[tuple]:
    numbered = list(enumerate(lists))
    return ((x, y) for x, y in product(numbered, numbered) if x[0] < y[0])


def _report(shared: Shared, one: tuple, two: tuple, buffer: Buffer) -> None:
    key = (one[2], two[2])
    if key in shared.reported:
        return
    shared.reported.add(key)
    words = [f"core {n} {'writes' if w else 'reads'} at {where}" for n, w, where in (one, two)]
    shared.findings.append(
        Finding(
            "nki.core_race",
            f"shared tensor `{buffer.name or buffer.id}`: {words[0]}, {words[1]}, unordered",
            two[2],
            "after one core writes, the other may touch it only behind a meeting of the cores",
            "put nisa.core_barrier(tensor, (0, 1)) between them",
        )
    )


def launch(
    func: Callable,
    grid: tuple[int, ...],
    world: exchange.World,
    bounds: Sequence[inspect.BoundArguments],
    like: str,
) -> tuple[Run, ...]:
    """Run the instances of `grid` for every rank, each rank with its own arguments.

    Results of a rank are those of its first core.  Raises NotBuiltError for more cores than a
    logical NeuronCore has, OrderError `sim.deadlock` when instances wait for each other for ever.
    """
    chip, places = world.chip, list(product(*map(range, grid)))
    most = int(chip.logical_cores)
    if len(places) > most:
        raise NotBuiltError(
            f"kernel{list(grid)} asks for {len(places)} cores; a logical NeuronCore of {chip.name} "
            f"has {most}",
            code="nki.cores",
        )
    crew = Crew.of(world)
    members = [
        Member(
            func.__name__,
            chip,
            new_machine(chip),
            Builder(func.__name__, chip.name),
            program_ids=place,
            grid=grid,
            core=core,
            shared=shared,
            crew=crew,
        )
        for shared in crew.ranks
        for core, place in enumerate(places)
    ]
    bodies = [_body(member, func, bounds[member.shared.rank]) for member in members]
    with one_blas_thread():
        returned = crew.lockstep.run(bodies)
    cores = len(places)
    _keep_apart(members[::cores])
    firsts = range(0, len(members), cores)
    return tuple(_finish(members[n : n + cores], returned[n], like) for n in firsts)


def _keep_apart(firsts: list[Member]) -> None:
    """An array given to several ranks is not written back to: each rank wrote its own copy."""
    given = [{_address(array) for _, array in member.arguments} for member in firsts]
    for member, own in zip(firsts, given, strict=True):
        others = set().union(*(found for found in given if found is not own))
        member.arguments = [pair for pair in member.arguments if _address(pair[1]) not in others]


def _address(array: Any) -> int:
    return array.data_ptr() if arrays.is_torch(array) else array.__array_interface__["data"][0]


def _body(member: Member, func: Callable, bound: inspect.BoundArguments) -> Callable[[], Any]:
    def body() -> Any:
        with entered(member):
            return call(member, func, bound)

    return body


def _finish(members: list[Member], returned: Any, like: str) -> Run:
    """The run of one rank, of which these are the cores."""
    first, shared = members[0], members[0].shared
    shared.met()
    with entered(first):
        outputs = results(first, returned, like)
    for member in members[1:]:
        member.builder.outputs = list(first.builder.outputs)
        member.builder.results = list(first.builder.results)
    programs = tuple(member.finished() for member in members)
    check_inputs(first, programs[0])
    findings = [f for member in members for f in (*member.noticed(), *member.machine.findings)]
    findings = list(dict.fromkeys(findings))
    trips = tuple(tuple(member.machine.trips) for member in members)
    return Run(first.name, outputs, programs, first.chip, (*findings, *shared.findings), trips)
