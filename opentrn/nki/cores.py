"""Several program instances of one kernel: cores that share HBM and meet at barriers.

Instances run in lockstep (`sim.lockstep`), each on a machine of its own; inputs and shared_hbm
tensors are one memory for all, matched by the order in which they are made.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from opentrn.base import NotBuiltError, OrderError, declare
from opentrn.isa import Buffer, Builder, Instruction, View
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
)


@dataclass
class Shared:
    """What the instances of a launch have in common."""

    lockstep: Lockstep
    buffers: list[Buffer] = field(default_factory=list)
    storages: dict[Buffer, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    reported: set = field(default_factory=set)
    # For each core the accesses to shared memory since it last met the others.
    since: list[list[tuple[View, bool, Any]]] = field(default_factory=list)


@dataclass(slots=True)
class Member(Session):
    """One instance of a launch; its number is its place in the grid, row-major."""

    number: int = 0
    shared: Shared | None = None
    made: int = 0

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
                f"core {self.number} makes a shared {dtype}{list(shape)} where another made "
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
        """Run the instruction, with the other cores where it meets them."""
        if not instruction.form.meets or self.recording_only:
            Session.issue(self, instruction)
            self._note(instruction)
            return
        opcode = instruction.opcode
        if opcode == "core_barrier":
            self._meet(("core_barrier",), instruction, None)
        else:
            self._exchange(instruction)
        self.builder.body.append(instruction)

    def _meet(self, key: tuple, instruction: Instruction, offer: Any) -> dict[int, Any]:
        shared = self.shared
        everyone = range(shared.lockstep.count)
        offers = shared.lockstep.meet(self.number, key, everyone, offer, instruction.where)
        if self.number == min(offers):
            _races(shared)
            for accesses in shared.since:
                accesses.clear()
        return offers

    def _exchange(self, instruction: Instruction) -> None:
        form = instruction.form
        source, target = instruction.operands[:2]
        send, receive = int(form.send_to_rank), int(form.recv_from_rank)
        value = self.machine.value(source)
        key = ("sendrecv", form.pipe_id)
        offers = self._meet(key, instruction, (send, form.src, value))
        there, shape, arrived = offers[receive]
        if there != self.number or shape.shape != form.dst.shape or shape.dtype != form.dst.dtype:
            raise OrderError(
                f"core {self.number} receives {form.dst.dtype}{list(form.dst.shape)} from core "
                f"{receive}, which sends {shape.dtype}{list(shape.shape)} to core {there}",
                code="nki.exchange",
                at=instruction.where,
            )
        storage = self.machine.storage(target.buffer)
        storage.write(target, arrived)
        storage.written.add(target)

    def _note(self, instruction: Instruction) -> None:
        """Remember accesses to shared memory until the cores meet."""
        shared = self.shared
        for views, writes in ((instruction.reads(), False), (instruction.writes(), True)):
            for view in views:
                if view.buffer.kind == "output" and view.buffer in shared.buffers:
                    shared.since[self.number].append((view, writes, instruction.where))


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


def together(
    func: Callable, grid: tuple[int, ...], chip, bound: inspect.BoundArguments, like: str
) -> Run:
    """Run one instance for each place of the grid; results are those of the first.

    Raises NotBuiltError for more instances than a logical NeuronCore has cores, OrderError
    `sim.deadlock` when instances wait for each other for ever.
    """
    places = list(product(*map(range, grid)))
    most = int(chip.logical_cores)
    if len(places) > most:
        raise NotBuiltError(
            f"kernel{list(grid)} asks for {len(places)} cores; a logical NeuronCore of {chip.name} "
            f"has {most}",
            code="nki.cores",
        )
    shared = Shared(Lockstep(len(places)), since=[[] for _ in places])
    members = [
        Member(
            func.__name__,
            chip,
            new_machine(chip),
            Builder(func.__name__, chip.name),
            program_ids=place,
            grid=grid,
            number=number,
            shared=shared,
        )
        for number, place in enumerate(places)
    ]
    with one_blas_thread():
        returned = shared.lockstep.run([_body(member, func, bound) for member in members])
    _races(shared)
    with entered(members[0]):
        outputs = results(members[0], returned[0], like)
    for member in members[1:]:
        member.builder.outputs = list(members[0].builder.outputs)
    programs = tuple(member.builder.program() for member in members)
    check_inputs(members[0], programs[0])
    findings = [f for member in members for f in member.machine.findings]
    trips = tuple(tuple(member.machine.trips) for member in members)
    return Run(func.__name__, outputs, programs, chip, (*findings, *shared.findings), trips)


def _body(member: Member, func: Callable, bound: inspect.BoundArguments) -> Callable[[], Any]:
    def body() -> Any:
        with entered(member):
            return call(member, func, bound)

    return body
