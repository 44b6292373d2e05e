"""Recording a kernel from shapes: every program instance of its launch, in both languages.

Instances are recorded one after another.  Those of `nki` are cores: each has a program of its own,
inputs and shared_hbm tensors are one memory, and the places where they meet are compared.  Those of
`neuronxcc.nki` run one after another, so they make one program.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product, zip_longest
from math import prod
from typing import Any

from opentrn.base import NotBuiltError, OrderError, TrnError, UsageError, Where, declare
from opentrn.isa import Buffer, Builder, Instruction, Program, View
from opentrn.nki import exchange
from opentrn.nki.arrays import rebuilt, whole
from opentrn.nki.check_arguments import Shaped
from opentrn.nki.cores import Crew, Member
from opentrn.nki.session import Session, entered, new_machine
from opentrn.nki.tensor import MemoryRegion, NkiTensor
from opentrn.sim import Finding

RAISED = declare(
    "nki.check_raised",
    "The kernel's own Python raised an error for these arguments.",
    rule="a kernel must build for the shapes it is given",
    fix="pass arguments the kernel is written for, or correct it",
)


@dataclass
class Recorded:
    """What one recording gave: `program` is None when the end was not reached.

    `touched` are buffers that refused instructions would have used; `stop` is what ended it early.
    """

    program: Program | None = None
    results: list[View] = field(default_factory=list)
    refused: list[TrnError] = field(default_factory=list)
    touched: set[Buffer] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    stop: Exception | None = None


@dataclass(slots=True)
class Core(Member):
    """One core of a launch, recorded: shared tensors are those of the first core.

    `phases` holds its accesses to shared memory between one meeting of the cores and the next,
    `meetings` where it met them.
    """

    phases: list[list[tuple[View, bool, Where | None]]] = field(default_factory=lambda: [[]])
    meetings: list[Instruction] = field(default_factory=list)

    def allocate(self, buffer: Buffer) -> None:
        """Nothing runs, so nothing needs memory."""

    def issue(self, instruction: Instruction) -> None:
        """Record it, and what it does to memory that the cores share."""
        Session.issue(self, instruction)
        if instruction.form.meets and instruction.opcode not in exchange.QUESTIONS:
            self.meetings.append(instruction)
            self.phases.append([])
            return
        for views, writes in ((instruction.reads(), False), (instruction.writes(), True)):
            for view in views:
                if view.buffer.kind == "output" and view.buffer in self.shared.buffers:
                    self.phases[-1].append((view, writes, instruction.where))


def record_cores(made: Any, chip, bound, grid: tuple[int, ...]) -> list[Recorded]:
    """A kernel of `nki` on every core of its launch; NotBuiltError for more than a core pair."""
    wanted = prod(grid)  # before they are listed: there may be very many
    if wanted > max(1, int(chip.logical_cores)):
        what = f"kernel{list(grid)} asks for {wanted} cores"
        raise NotBuiltError(
            f"{what}; a logical NeuronCore of {chip.name} has {chip.logical_cores}",
            code="nki.cores",
        )
    places = list(product(*map(range, grid)))
    crew = Crew.of(exchange.World(chip, cores=len(places)))
    cores, found = [], []
    for number, place in enumerate(places):
        core = Core(
            made.__name__,
            chip,
            new_machine(chip),
            Builder(made.__name__, chip.name),
            program_ids=place,
            grid=grid,
            core=number,
            shared=crew.ranks[0],
            crew=crew,
        )
        cores.append(core)
        found.append(_record(core, lambda core=core: _called(core, made, bound)))
    if len(cores) > 1 and all(one.program for one in found):
        for one in found[1:]:
            one.program.outputs = list(found[0].program.outputs)
        compare(cores, found[0])
    return found


def _called(core: Core, made: Any, bound) -> Any:
    own = {name: opened(core, name, value) for name, value in bound.arguments.items()}
    return _call(made.func, bound, own)


def _call(func: Any, bound, own: dict[str, Any]) -> Any:
    call = type(bound)(bound.signature, own)
    return func(*call.args, **call.kwargs)


def record_older(made: Any, chip, bound, grid: tuple[int, ...]) -> list[Recorded]:
    """A kernel of `neuronxcc.nki` with every instance of its launch grid."""
    from opentrn.nki.beta1 import launch

    builder = Builder(made.__name__, chip.name)
    session = launch.Instances(made.__name__, chip, new_machine(chip), builder, grid=grid)

    def call() -> Any:
        own = {n: launch.own(opened(session, n, v)) for n, v in bound.arguments.items()}
        given = type(bound)(bound.signature, own)
        return launch.plain(session, launch.instances(session, made.func, given))

    recorded = _record(session, call)
    recorded.findings += session.machine.findings
    return [recorded]


def _record(session: Session, call: Any) -> Recorded:
    """Run a kernel's Python in a session that computes nothing and collects refusals."""
    session.recording_only, session.refused = 1, []
    found = Recorded()
    with entered(session):
        try:
            found.results = list(returned(call(), found))
            session.builder.outputs += list(dict.fromkeys(v.buffer for v in found.results))
            found.program = session.builder.program()
        except Exception as error:
            found.stop = error
    if found.stop is None:
        try:
            session.check_order(found.program)
        except OrderError as error:
            found.refused.append(error)
    found.findings += session.noticed()
    found.refused[:0] = [error for error, _ in session.refused]
    operands = [view for _, given in session.refused for view in given]
    found.touched = {view.buffer for view in operands if isinstance(view, View)}
    return found


def opened(session: Session, name: str, value: Any) -> Any:
    """Shaped values become input tensors; containers are walked."""
    if isinstance(value, Shaped):
        made = session.buffer("hbm", value.shape, value.dtype, name=name, kind="input")
        session.builder.inputs.append(made)
        return whole(session, made, MemoryRegion.shared_hbm)
    if isinstance(value, list | tuple):
        return rebuilt(value, [opened(session, f"{name}_{n}", v) for n, v in enumerate(value)])
    if type(value) is dict:
        return {key: opened(session, f"{name}_{key}", v) for key, v in value.items()}
    return value


def returned(result: Any, found: Recorded) -> Iterable[View]:
    """The views a kernel returned; tensors elsewhere than in shared HBM are refused."""
    if isinstance(result, list | tuple):
        for part in result:
            yield from returned(part, found)
    elif isinstance(result, NkiTensor) and result.buffer is MemoryRegion.shared_hbm:
        yield result._view
    elif isinstance(result, NkiTensor):
        what = f"the kernel returned a tensor in {result.buffer.value}"
        where = result._view.buffer.where
        found.refused.append(UsageError(what, code="nki.output_space", at=where))
    elif result is not None:
        what = f"the kernel returned a {type(result).__name__}"
        found.refused.append(UsageError(what, code="nki.return"))


def compare(cores: list[Core], found: Recorded) -> None:
    """Enter into `found` where the cores meet differently, and what they do to shared memory in
    between without an order."""
    for met in zip_longest(*(core.meetings for core in cores)):
        if len({one.opcode if one else "" for one in met}) > 1:
            told = ", ".join(
                f"core {n} {f'meets at {one.where}' if one else 'has ended'}"
                for n, one in enumerate(met)
            )
            where = next(one.where for one in met if one)
            found.refused.append(OrderError(told, code="sim.deadlock", at=where))
            return
    shared = cores[0].shared
    for phases in zip(*(core.phases for core in cores), strict=True):
        shared.since = [list(phase) for phase in phases]
        shared.met()
    found.findings += shared.findings
