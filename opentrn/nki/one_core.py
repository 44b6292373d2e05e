"""A launch on several cores as the program of one core: its instances take turns.

Between two meetings no instance depends on what the others do.  So all of them run up to their
first meeting, one after another, then all up to the second, and so on.  A `core_barrier` is nothing
then, a `sendrecv` a copy from a tile of one instance to a tile of the other.  Every instance keeps
tiles of its own: together they must fit the one core.  The numbers are those of the launch, the
time is that of one core.
"""

from collections.abc import Callable, Iterator
from itertools import product, zip_longest
from math import prod
from typing import Any

from opentrn.base import NotBuiltError, OrderError, Where, declare
from opentrn.isa import Buffer, Builder, Call, Instruction, Program, View
from opentrn.nki import exchange
from opentrn.nki import isa as nisa
from opentrn.nki.check_record import Core, Recorded, compare
from opentrn.nki.cores import Crew
from opentrn.nki.language.memory import ndarray, sbuf
from opentrn.nki.session import Session, entered, new_machine
from opentrn.nki.tensor import Handle, MemoryRegion, NkiTensor

TURNS = declare(
    "nki.one_core",
    "A kernel launched on several cores cannot run as part of a program of one core.",
    rule="its instances take turns there: they meet outside device loops, no tile lies at an "
    "address the kernel chose, and no engine keeps a random generator or a running total of theirs",
    fix="call the kernel by itself, or write it for one core",
)
# What begins a total anew, or leaves it alone: nothing another instance left is read.
FRESH = ("idle", "reset", "reset_reduce", "load_reduce")


def recorded(
    name: str, chip: Any, grid: tuple[int, ...], body: Callable[[Session], Any]
) -> tuple[list[Core], list[Any]]:
    """Every instance of a launch on `grid`, recorded by `body` in its (entered) session, and what
    `body` returned for each.

    Raises NotBuiltError `nki.cores`, and what the chip would refuse, at the kernel's line.
    """
    if prod(grid) > max(1, int(chip.logical_cores)):
        raise NotBuiltError(
            f"kernel{list(grid)} asks for {prod(grid)} cores; a logical NeuronCore of {chip.name} "
            f"has {chip.logical_cores}",
            code="nki.cores",
        )
    crew = Crew.of(exchange.World(chip, cores=prod(grid)))
    places = product(*map(range, grid))
    cores = [Core(name, chip, new_machine(chip), Builder(name, chip.name), program_ids=place,
                  grid=grid, core=number, shared=crew.ranks[0], crew=crew)
             for number, place in enumerate(places)]  # fmt: skip
    found = []
    for core in cores:
        core.recording_only = 1
        with entered(core):
            found.append(body(core))
    return cores, found


def take_turns(
    name: str, chip: Any, grid: tuple[int, ...], body: Callable[[Session], list[View]]
) -> tuple[Program, dict[Buffer, Buffer], list[View]]:
    """The program in which the instances of a launch take turns.

    `body` makes the inputs in the session it is given, and returns the views of its results.
    Returned are the program, what the inputs and shared tensors of the first instance are in it,
    and its results.  Raises as `recorded` does, NotBuiltError `nki.one_core`, and OrderError
    `sim.deadlock`, `nki.exchange` and `nki.core_race`.
    """
    cores, found = recorded(name, chip, grid, body)
    programs = [core.builder.program() for core in cores]
    _refuse_meetings(cores)
    for program in programs:
        _refuse_program(program)
    merged = Session(name, chip, new_machine(chip), Builder(name, chip.name))
    merged.recording_only = 1
    held = {buffer: _same(merged.builder, buffer) for buffer in cores[0].shared.buffers}
    calls = [Call(merged.builder, program, held) for program in programs]
    for call in calls:
        call.reserve()
    _interleave(merged, calls, [list(_phases(program)) for program in programs])
    results = [calls[0].view(view) for view in found[0]]
    merged.builder.outputs += dict.fromkeys(view.buffer for view in results)
    merged.builder.results += results
    return merged.builder.program(), held, results


def _same(builder: Builder, buffer: Buffer) -> Buffer:
    """A shared tensor of the instances as a tensor of the one program."""
    made = builder.buffer(buffer.space, buffer.shape, buffer.dtype, name=buffer.name,
                          where=buffer.where, kind=buffer.kind)  # fmt: skip
    if buffer.kind == "input":
        builder.inputs.append(made)
    return made


def _refuse_meetings(cores: list[Core]) -> None:
    """Raise for instances that meet differently, and for accesses without an order."""
    found = Recorded()
    compare(cores, found)
    for refused in found.refused:
        raise refused
    for race in found.findings:
        raise OrderError(race.what, code=race.code, at=race.where, rule=race.rule, fix=race.fix)


def _refuse_program(program: Program) -> None:
    """NotBuiltError `nki.one_core` for what the instances would spoil for each other."""
    for buffer in program.buffers:
        if buffer.on_chip and buffer.address is not None:
            raise _refused("a tile lies at an address of the kernel's", buffer.where)
    outside = {one for one in program.body if isinstance(one, Instruction)}
    for one in program.instructions():
        if one.form.meets and one not in outside:
            raise _refused(f"{one.opcode} is inside a device loop", one.where)
        if one.form.meets and one.opcode not in ("core_barrier", "sendrecv", *exchange.QUESTIONS):
            raise _refused(f"{one.opcode} meets other ranks", one.where)
        command = getattr(one.form, "reduce_cmd", None)
        if one.form.state and getattr(command, "name", "") not in FRESH:
            raise _refused(f"{one.opcode} goes on from what the {one.engine} engine holds",
                           one.where)  # fmt: skip


def _refused(what: str, where: Where | None) -> NotBuiltError:
    return NotBuiltError(f"a launch on several cores in turn: {what}", code=TURNS, at=where)


def _phases(program: Program) -> Iterator[tuple[list, Instruction | None]]:
    """(the nodes up to a meeting, the meeting), the last with None."""
    nodes: list = []
    for node in program.body:
        if isinstance(node, Instruction) and node.opcode in ("core_barrier", "sendrecv"):
            yield nodes, node
            nodes = []
        else:
            nodes.append(node)
    yield nodes, None


def _interleave(merged: Session, calls: list[Call], phases: list) -> None:
    """Append every phase of all instances, in their order, and what they exchange after it."""
    for turn in zip_longest(*phases):
        for call, (nodes, _) in zip(calls, turn, strict=True):
            call.extend(nodes)
        meetings = [meeting for _, meeting in turn]
        if meetings[0] is not None and meetings[0].opcode == "sendrecv":
            _exchange(merged, calls, meetings)


def _exchange(merged: Session, calls: list[Call], meetings: list[Instruction]) -> None:
    """Copy what each instance sends to where the other receives it."""
    with entered(merged):
        merged.line = meetings[0].where
        sent = []
        for number, (call, one) in enumerate(zip(calls, meetings, strict=True)):
            source, target = (call.view(view) for view in one.operands[:2])
            other = meetings[int(one.form.recv_from_rank)]
            _refuse_unlike(number, one, other)
            sent.append(_staged(merged, source) if source.overlaps(target)
                        else _tensor(merged, source))  # fmt: skip
        for call, one in zip(calls, meetings, strict=True):
            target = _tensor(merged, call.view(one.operands[1]))
            nisa.dma_copy(target, sent[int(one.form.recv_from_rank)])
        merged.line = None


def _refuse_unlike(number: int, one: Instruction, other: Instruction) -> None:
    """OrderError `nki.exchange` when an instance does not receive what the other sends to it."""
    mine, theirs = one.form, other.form
    alike = (theirs.src.shape, theirs.src.dtype) == (mine.dst.shape, mine.dst.dtype)
    if int(theirs.send_to_rank) != number or not alike or mine.pipe_id != theirs.pipe_id:
        raise OrderError(
            f"core {number} receives {mine.dst.dtype}{list(mine.dst.shape)} in pipe {mine.pipe_id} "
            f"from core {int(mine.recv_from_rank)}, which sends "
            f"{theirs.src.dtype}{list(theirs.src.shape)} to core {int(theirs.send_to_rank)} in "
            f"pipe {theirs.pipe_id}",
            code="nki.exchange", at=one.where,
        )  # fmt: skip


def _tensor(session: Session, view: View) -> NkiTensor:
    return NkiTensor(view, Handle(session.machine, view.buffer, MemoryRegion.sbuf))


def _staged(session: Session, view: View) -> NkiTensor:
    """A copy of a tile that is received into while it is sent."""
    copy = ndarray(view.shape, view.dtype, buffer=sbuf)
    nisa.dma_copy(copy, _tensor(session, view))
    return copy


__all__ = ["recorded", "take_turns"]
