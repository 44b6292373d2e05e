"""The kernel being run: its machine, the program it records, its place in the launch grid.

`nki` functions are free functions, so the session they belong to is held in a context variable:
set by `run`, read by every call, never a module global.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from opentrn.base import OrderError, UsageError, Where, declare, user_line, widened
from opentrn.hw import target as find_target
from opentrn.isa import Buffer, Builder, Instruction, Loop, Program
from opentrn.nki import exchange, versions
from opentrn.nki.room import Room, check_room
from opentrn.nki.target import told_target
from opentrn.sim import Finding, Machine, Strict, Timeline, check_waits, timeline_together

declare(
    "nki.outside_kernel",
    "An nki function was called outside a kernel.",
    rule="nki.language and nki.isa functions record instructions of the kernel that is running",
    fix="call it from a function decorated with @nki.jit",
)

_TARGET: ContextVar[str | None] = ContextVar("opentrn_target", default=None)
_STRICT: ContextVar[Strict | None] = ContextVar("opentrn_strict", default=None)
_LOOKERS: ContextVar[tuple[Any, ...]] = ContextVar("opentrn_lookers", default=())
_CURRENT: ContextVar["Session | None"] = ContextVar("opentrn_session", default=None)
_WATCHERS: ContextVar[tuple[Callable[["Run"], None], ...]] = ContextVar(
    "opentrn_watchers", default=()
)


@dataclass(slots=True)
class Session:
    """One program instance of a running kernel.

    `program_ids` and `grid` are its place and the sizes of the launch grid; `recording_only`
    counts the enclosing device loops that do not run, `ordered` the enclosing no_reorder blocks,
    and `block` holds the instructions of the outermost of these.
    `findings` are what was noticed about the kernel's Python, each once; `asked` counts how often
    a register was asked whether it is zero.  `lookers` look after every instruction (`nki.debug`).
    `room` counts the bytes of live tiles, `fits` holds the sorts of buffer known to fit the chip;
    `waits` says whether an instruction was told to wait; `axes` names partition axes (`nki.axes`).
    `refused` collects (error, operands) of refused instructions, which are then left out; with
    None they are raised.
    `line` replaces the user's line for instructions that were written earlier than they are issued.
    `prepared` is the collective that waits for its trigger (`nki.newer`).
    `arguments` are the caller's arrays with the buffers that stand for them, `collectives` the
    collectives that ran.
    """

    name: str
    chip: Any
    machine: Machine
    builder: Builder
    program_ids: tuple[int, ...] = (0,)
    grid: tuple[int, ...] = (1,)
    recording_only: int = 0
    ordered: int = 0
    line: Where | None = None
    refused: list[tuple] | None = None
    arguments: list[tuple[Buffer, Any]] = field(default_factory=list)
    collectives: list[Instruction] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    asked: int = 0
    block: list[Instruction] = field(default_factory=list)
    lookers: tuple[Any, ...] = ()
    room: Room = field(default_factory=Room)
    fits: set[Any] = field(default_factory=set)
    waits: bool = False
    axes: dict[Buffer, str] = field(default_factory=dict)
    prepared: Any = None

    def note(self, code: str, what: str, fix: str = "") -> None:
        """Notice something about the line being run; each thing once for each line."""
        found = versions.finding(code, what, self.line, fix)
        if found not in self.findings:
            self.findings.append(found)

    def finished(self) -> Program:
        """The program, once the kernel has returned; CapacityError when its tiles do not fit
        and cannot be spilled, OrderError when an instruction waits for a later one."""
        program = self.builder.program()
        self.check_order(program)
        if self.machine.strict.precise:
            self.findings += check_room(self.room, program, self.chip)
        return program

    def check_order(self, program: Program) -> None:
        """OrderError for a wait that leads ahead, and for a collective prepared and not begun."""
        if self.waits:
            check_waits(program)
        if self.prepared is not None:
            what = f"{self.prepared.function}_prepare without a trigger"
            raise OrderError(what, code="nki.prepared")

    def noticed(self) -> list[Finding]:
        """What was noticed of the kernel's Python, and before it in decorators and imports."""
        return [*versions.waiting(), *self.findings]

    def issue(self, instruction: Instruction) -> None:
        """Run the instruction now and record it (in a loop of no iterations, only record)."""
        if not self.recording_only:
            self.machine.execute(instruction)
        else:
            self.machine.unseen.add(instruction)
        self.builder.body.append(instruction)
        if self.ordered or self.lookers:
            self._watched(instruction)

    def _watched(self, instruction: Instruction) -> None:
        """Keep it for the check of a no_reorder block, and let lookers look."""
        if self.ordered:
            self.block.append(instruction)
        for look in self.lookers:
            if not self.recording_only:
                look.after(self, instruction)

    def meet(self, instruction: Instruction) -> None:
        """Carry out an instruction that needs other cores or ranks: here there are none."""
        self.collectives.append(instruction)
        exchange.alone(instruction, self.machine)

    def allocate(self, buffer: Buffer) -> None:
        """Give the buffer memory, unless nothing runs; by address at first use, as in a replay."""
        if not self.recording_only and buffer.address is None:
            self.machine.allocate(buffer)

    def adopt(self, buffer: Buffer, array) -> None:
        """Use the caller's array as the buffer's memory."""
        self.machine.adopt(buffer, array)

    def buffer(self, space: str, shape, dtype, **more) -> Buffer:
        """A new buffer of this program, at the user's line."""
        where = self.line or user_line()
        if not self.machine.strict.precise:
            dtype = widened(dtype)
        return self.builder.buffer(space, shape, dtype, where=where, **more)

    def own(self, space: str, shape, dtype, name: str, partition: int, address) -> Buffer:
        """As `buffer`, for one that no other instance shares."""
        if not self.machine.strict.precise:
            dtype = widened(dtype)
        # called by ndarray, and that by the user at the nearest
        known, where = self.builder.buffers, self.line or user_line(3)
        made = Buffer(len(known), space, shape, dtype, name, where, address, partition)
        known.append(made)
        return made


@dataclass(frozen=True)
class Run:
    """What one kernel call did: outputs in the caller's kind, programs, what was noticed.

    `programs` holds the program of each core; `trips` the device loops each ran, with their trip
    counts, in order.
    """

    name: str
    outputs: Any
    programs: tuple[Program, ...]
    chip: Any
    findings: tuple[Finding, ...]
    trips: tuple[tuple[tuple[Loop, int], ...], ...] = ()

    @property
    def program(self) -> Program:
        """The program of the first (mostly the only) core."""
        return self.programs[0]

    def timeline(self, core: int = 0, fast: bool | None = None) -> Timeline:
        """When each instruction of one core runs on the chip, beside the launch's other cores."""
        return self.timelines(fast)[core]

    def timelines(self, fast: bool | None = None) -> tuple[Timeline, ...]:
        """The timeline of every core of the launch."""
        return timeline_together(self.programs, self.chip, trips=self.trips or None, fast=fast)


def current() -> Session:
    """The running session; UsageError outside a kernel."""
    session = _CURRENT.get()
    if session is None:
        raise UsageError(
            "this nki function needs a running kernel",
            code="nki.outside_kernel",
            rule="nki.language and nki.isa functions record instructions of the running kernel",
            fix="call it from a function decorated with @nki.jit",
        )
    return session


def running() -> bool:
    """Whether a kernel is running in this context."""
    return _CURRENT.get() is not None


def noticed(code: str, what: str, fix: str = "") -> None:
    """Notice something in the running kernel, else for the next that runs."""
    session = _CURRENT.get()
    if session is not None:
        session.note(code, what, fix)
    else:
        versions.wait(versions.finding(code, what, fix=fix))


@contextmanager
def entered(session: Session) -> Iterator[Session]:
    """Make `session` the current one inside the block, which its machine meets others through."""
    token = _CURRENT.set(session)
    machine, before = session.machine, session.machine.meet
    machine.meet = session.meet
    session.lookers = _LOOKERS.get()
    try:
        yield session
    finally:
        machine.meet = before
        _CURRENT.reset(token)


@contextmanager
def looking(look: Any) -> Iterator[None]:
    """Have `look` look into every kernel inside the block: begin, after, after_loop."""
    token = _LOOKERS.set((*_LOOKERS.get(), look))
    try:
        yield
    finally:
        _LOOKERS.reset(token)


@contextmanager
def use_target(name: str) -> Iterator[Any]:
    """Run kernels for this chip inside the block; UnknownNameError for an unknown name."""
    chip = find_target(name)
    token = _TARGET.set(chip.name)
    try:
        yield chip
    finally:
        _TARGET.reset(token)


@contextmanager
def use_strict(strict: Strict) -> Iterator[None]:
    """Run kernels under these checks inside the block."""
    token = _STRICT.set(strict)
    try:
        yield
    finally:
        _STRICT.reset(token)


def current_chip():
    """The chip of the running kernel, or the chosen target outside one."""
    session = _CURRENT.get()
    return session.chip if session is not None else chosen_chip()


def chosen_chip(platform: str | None = None):
    """The chip a kernel runs for: that of `use_target`, else `platform`, else the environment's.

    Raises UnknownNameError for a name that is no target.
    """
    return find_target(_TARGET.get() or platform or told_target())


def new_machine(chip) -> Machine:
    """A machine under the checks in force."""
    return Machine(chip, _STRICT.get())


def strict_now() -> Strict:
    """The checks in force."""
    return _STRICT.get() or Strict()


def looked_at() -> bool:
    """Whether somebody looks into the kernels that run here (`looking`)."""
    return bool(_LOOKERS.get())


@contextmanager
def watch() -> Iterator[list[Run]]:
    """Collect the `Run` of every kernel called inside the block, in order."""
    runs: list[Run] = []
    with _watching(runs.append):
        yield runs


@contextmanager
def watch_findings() -> Iterator[dict[Finding, None]]:
    """Collect what was noticed in every kernel called inside the block, each finding once."""
    found: dict[Finding, None] = {}
    with _watching(lambda run: found.update(dict.fromkeys(run.findings))):
        yield found


@contextmanager
def _watching(watcher: Callable[[Run], None]) -> Iterator[None]:
    token = _WATCHERS.set((*_WATCHERS.get(), watcher))
    try:
        yield
    finally:
        _WATCHERS.reset(token)


def report(run: Run) -> None:
    """Hand a finished run to whoever watches."""
    for watcher in _WATCHERS.get():
        watcher(run)
