"""Launches that repeat: from the third on, what was recorded is replayed.

On the chip a kernel is traced and compiled once for its arguments' shapes, and then run.  Here a
launch traces it instruction by instruction, which costs more than the arithmetic.  So when two
launches saw the same (`nki.reads`), the second one's program is bound to memory, and later ones
run that: the same instructions on the same values, so the same bits.  A launch is traced as ever
when anything it sees changed, when its program depends on values, and when somebody looks on
(`nki.debug`).
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from opentrn.base import dtype as as_dtype
from opentrn.base import numerics
from opentrn.isa import Buffer, Instruction, Program
from opentrn.nki import arrays, versions
from opentrn.nki.reads import Opaque, key_of
from opentrn.nki.session import Run, Session, looked_at, strict_now
from opentrn.sim import OutOfRange, Replay, plan_of

# What is kept: programs of so many instructions, of which each takes about so many bytes, launches
# of so many bytes together, and keys of launches that happened once.
LONGEST, BYTES_EACH, BYTES, ONCE = 50_000, 2_000, 256 << 20, 256
WriteBack = Callable[
    [Iterable[tuple[Buffer, Any]], Collection[Buffer], Callable[[Buffer], np.ndarray]], Any
]
_VALUE = "an array"
_TRACING: ContextVar[bool] = ContextVar("opentrn_tracing", default=False)


@contextmanager
def tracing() -> Iterator[None]:
    """Trace every launch inside the block, also those that repeat."""
    token = _TRACING.set(True)
    try:
        yield
    finally:
        _TRACING.reset(token)


class _Array:
    """Begins the description of what a kernel may know of an array among its arguments."""


@dataclass(frozen=True)
class Launch:
    """One call: what it sees, and the arrays it is given, in order.

    `context` is what it sees besides `function` and `arguments`; `key` is all of it.
    """

    function: Callable
    arguments: Any
    context: tuple
    arrays: list
    key: Any

    def unchanged(self) -> bool:
        """Whether a launch now would still see the same."""
        try:
            return (*self.context, key_of(self.function, self.arguments)) == self.key
        except Opaque:
            return False

    def inputs(self) -> list[np.ndarray]:
        """The arrays as the program's inputs."""
        found = [arrays.to_numpy(one) for one in self.arrays]
        return [a.view(as_dtype(a.dtype).storage) if a.dtype.names else a for a in found]


def launch_of(
    function: Callable, arguments: dict, grid: tuple[int, ...], chip: Any, like: str
) -> Launch | None:
    """The launch, or None when nobody can say whether another one is like it."""
    strict = strict_now()
    by_chance = numerics.DRAW.get() is not None
    if _TRACING.get() or looked_at() or by_chance or not strict.precise:
        return None
    given: list = []
    context = grid, chip, strict, versions.current_version(), like
    try:
        known = _described(arguments, given)
        key = (*context, key_of(function, known))
        hash(key)
    except (Opaque, TypeError):
        return None
    return Launch(function, known, context, given, key)


def _described(value: Any, given: list) -> Any:
    """The arguments with a description in each array's place; the arrays go to `given`."""
    kind = arrays.framework(value)
    if kind:
        given.append(value)
        writeable = kind != "numpy" or value.flags.writeable
        try:
            return _Array, kind, tuple(value.shape), str(value.dtype), writeable
        except RuntimeError:  # a nested tensor of torch, which has no shape
            raise Opaque("an array without a shape") from None
    if isinstance(value, list | tuple):
        parts = [_described(one, given) for one in value]
        return arrays.rebuilt(value, parts)
    if isinstance(value, dict):
        return {name: _described(one, given) for name, one in value.items()}
    return value


@dataclass(frozen=True)
class Kept:
    """A launch bound to memory: its replay, and the run it was made of (outputs without values)."""

    replay: Replay
    run: Run
    busy: Any

    @property
    def size(self) -> int:
        """Bytes of the memory it is bound to, and about those of the program."""
        return self.replay.size + BYTES_EACH * len(self.run.program.body)

    def __call__(self, launch: Launch, write_back: WriteBack) -> Run | None:
        """The run of a launch like it; None where it must be traced."""
        if not self.busy.acquire(blocking=False):  # another thread's, in the same memory
            return None
        try:
            inputs, program = launch.inputs(), self.run.program
            made = self.replay(inputs)
            pairs = zip(program.inputs, launch.arrays, strict=True)
            write_back(pairs, program.mutated, self.replay.read)
        except OutOfRange:  # traced, it is noticed with every circumstance
            return None
        finally:
            self.busy.release()
        outputs = _filled(self.run.outputs, iter(made), like=launch.context[-1])
        findings = (*versions.waiting(), *self.run.findings)
        return replace(self.run, outputs=outputs, findings=findings)


class Launches:
    """The launches of this process that are replayed, and those that were traced once."""

    def __init__(self):
        # Whether a launch that was traced may be kept at the next one like it.
        self.once: OrderedDict[Any, bool] = OrderedDict()
        self.kept: OrderedDict[Any, Kept] = OrderedDict()
        self.lock = threading.Lock()

    def find(self, launch: Launch) -> Kept | None:
        """The replay of this launch, which becomes the one used last."""
        with self.lock:
            found = self.kept.get(launch.key)
            if found is not None:
                self.kept.move_to_end(launch.key)
            return found

    def repeats(self, launch: Launch) -> bool:
        """Whether the launch was traced before and is not kept; remembers that it was traced."""
        with self.lock:
            if launch.key in self.kept:
                return False
            if launch.key in self.once:
                return self.once[launch.key]
            self.once[launch.key] = True
            if len(self.once) > ONCE:
                self.once.popitem(last=False)
            return False

    def never(self, launch: Launch) -> None:
        """A launch like this one will not be kept."""
        with self.lock:
            self.once[launch.key] = False

    def keep(self, launch: Launch, kept: Kept) -> None:
        """Keep a replay, and no more of the oldest ones than there is room for."""
        with self.lock:
            self.once.pop(launch.key, None)
            self.kept[launch.key] = kept
            while sum(one.size for one in self.kept.values()) > BYTES:
                self.kept.popitem(last=False)


LAUNCHES = Launches()


def replayed(launch: Launch | None, write_back: WriteBack = arrays.write_back) -> Run | None:
    """The run of the launch by a replay, or None when it is to be traced.

    `write_back` is given (input, caller's array) pairs, which of them the program writes, and what
    says what a buffer holds.
    """
    kept = LAUNCHES.find(launch) if launch is not None else None
    return kept(launch, write_back) if kept is not None else None


def remember(launch: Launch | None, run: Run, session: Session) -> None:
    """Remember a launch that was traced; bind it to memory when it is the second like it."""
    machine, program = session.machine, run.program
    if launch is None or machine.looked or not LAUNCHES.repeats(launch):
        return
    if not _repeatable(program, launch) or not launch.unchanged():
        return LAUNCHES.never(launch)
    findings = (*session.findings, *machine.findings)
    replay = Replay(program, run.chip, ranges=True, lasting=True)
    held = replace(run, outputs=_emptied(run.outputs), findings=findings)
    LAUNCHES.keep(launch, Kept(replay, held, threading.Lock()))


def _repeatable(program: Program, launch: Launch) -> bool:
    """Whether what the program does, and what it would notice, does not depend on values.

    But for ranges of activations, which the replay looks at.
    """
    hbm = [buffer for buffer in program.buffers if buffer.space == "hbm"]
    return (
        len(program.body) <= LONGEST
        and sum(buffer.free * buffer.dtype.itemsize for buffer in hbm) <= BYTES // 4
        and [a.dtype for a in launch.inputs()] == [b.dtype.storage for b in program.inputs]
        and all(map(_fixed, program.body))
    )


def _fixed(node: Any) -> bool:
    """Whether it is an instruction whose addresses and values all lie in static views."""
    if not isinstance(node, Instruction):
        return False
    plan = plan_of(node.form)
    return (plan.plain or plan.sums) and all(view.index is None for view in node.views())


def _emptied(outputs: Any) -> Any:
    """The shape of what a kernel returned, without the arrays."""
    if isinstance(outputs, list | tuple):
        return arrays.rebuilt(outputs, [_emptied(one) for one in outputs])
    return None if outputs is None else _VALUE


def _filled(places: Any, made: Iterator[np.ndarray], like: str) -> Any:
    """The arrays in the places they came from, in the caller's kind."""
    if isinstance(places, list | tuple):
        return arrays.rebuilt(places, [_filled(one, made, like) for one in places])
    return None if places is None else arrays.from_numpy(next(made), like)


__all__ = ["Launch", "launch_of", "remember", "replayed", "tracing"]
