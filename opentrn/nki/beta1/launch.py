"""Running a kernel of the older API: arguments, program instances, outputs, written arguments."""

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from opentrn.base import OrderError, UsageError, declare, numerics, user_line
from opentrn.isa import Buffer, Builder, Instruction, quiet, view_of
from opentrn.nki import arrays, exchange, refusals
from opentrn.nki.again import Launch, launch_of, remember, replayed
from opentrn.nki.beta1 import language, typing
from opentrn.nki.beta1.blocks import Blocks
from opentrn.nki.beta1.pending import OlderSession
from opentrn.nki.beta1.tile import Tensor
from opentrn.nki.language import memory
from opentrn.nki.launch import kind_of, results
from opentrn.nki.session import Run, entered, new_machine, report
from opentrn.nki.tensor import NkiTensor
from opentrn.sim import Finding, Lockstep, one_blas_thread

declare(
    "beta1.returned_tile",
    "A kernel returned a tile instead of a tensor in HBM.",
    rule="a device returns tensors in HBM only; simulation returns tiles too",
    fix="nl.store it into nl.ndarray(..., buffer=nl.shared_hbm) and return that",
)


@dataclass(frozen=True)
class Ranks:
    """The place of a rank among those that run the same kernel."""

    world: exchange.World
    crew: Lockstep
    rank: int


@dataclass(slots=True)
class Instances(OlderSession):
    """Program instances that run one after another and share inputs and shared HBM tensors."""

    crew: Lockstep | None = None
    ranks: Ranks | None = None

    def meet(self, instruction: Instruction) -> None:
        """Carry out a collective with the other ranks, where there are any."""
        if self.ranks is None:
            OlderSession.meet(self, instruction)
            return
        self.collectives.append(instruction)
        world, rank, crew = self.ranks.world, self.ranks.rank, self.ranks.crew
        party = exchange.party(instruction, rank, world)
        if not party:
            return
        offer = exchange.Offer(rank, self.machine, instruction, crew.names[rank])

        def settle(offers: dict[int, exchange.Offer]) -> None:
            exchange.settle([[offers[one]] for one in party])

        key = ("a collective of ranks", list(party))
        crew.meet(rank, key, party, offer, instruction.where, settle)

    def meet_programs(self, key: Any, places: list[tuple[int, ...]], offer: Any) -> dict:
        """Wait for the instances at these places of the grid; what each of them offers."""
        everyone = list(product(*map(range, self.grid)))
        numbers = [everyone.index(place) for place in places]
        mine, where = everyone.index(self.program_ids), self.line or user_line()
        offers = self.crew.meet(mine, key, numbers, offer, where)
        return {everyone[number]: given for number, given in offers.items()}

    def buffer(self, space: str, shape, dtype, **more: Any) -> Buffer:
        """A new buffer, or (shared HBM) the one the first instance made at this point."""
        if more.get("kind") != "output":
            return OlderSession.buffer(self, space, shape, dtype, **more)
        place, self.made = self.made, self.made + 1
        if place == len(self.shared):
            self.shared.append(OlderSession.buffer(self, space, shape, dtype, **more))
        found = self.shared[place]
        if (found.shape, found.dtype) != (tuple(shape), dtype):
            raise OrderError(
                f"instance {self.program_ids} makes {dtype}{list(shape)} where another made "
                f"{found.dtype}{list(found.shape)}",
                code="nki.shared_tensors",
            )
        return found

    def allocate(self, buffer: Buffer) -> None:
        """Give the buffer memory, once."""
        if buffer not in self.machine.storages:
            OlderSession.allocate(self, buffer)


def run_ranks(
    func: Callable, grid: tuple[int, ...], sets: list[tuple[tuple, dict]], chip: Any, nodes: int
) -> tuple[Run, ...]:
    """Run the kernel on as many ranks as there are (positional, named) arguments; a Run for each.

    An array that several ranks are given is not written back to.
    """
    world = exchange.World(chip, len(sets), 1, nodes)
    crew = Lockstep([f"rank {rank}" for rank in range(len(sets))])
    given = [{id(a) for a in _arrays([list(args), named])} for args, named in sets]
    counts = Counter(one for own in given for one in own)
    several = frozenset(one for one, times in counts.items() if times > 1)
    bodies = [
        partial(run, func, grid, args, named, chip, Ranks(world, crew, rank), several)
        for rank, (args, named) in enumerate(sets)
    ]
    return tuple(crew.run(bodies))


def run(
    func: Callable,
    grid: tuple[int, ...],
    args: tuple,
    kwargs: dict,
    chip: Any,
    ranks: Ranks | None = None,
    kept: frozenset[int] = frozenset(),
) -> Run:
    """Run every instance of the kernel; arrays among the arguments that it writes are written.

    `ranks` is the place of this rank among others; arrays whose id is in `kept` stay as they are.
    """
    args, kwargs = typing.filled(args), typing.filled(kwargs)
    bound = inspect.signature(func).bind(*args, **kwargs)
    like = kind_of(args, kwargs)
    same = None if ranks else launch_of(func, bound.arguments, grid, chip, like)
    done = replayed(same, _write_back)
    if done is None:
        done = _traced(func, grid, bound, like, chip, ranks, kept, same)
    report(done)
    return done


def _traced(
    func: Callable,
    grid: tuple[int, ...],
    bound: inspect.BoundArguments,
    like: str,
    chip: Any,
    ranks: Ranks | None,
    kept: frozenset[int],
    same: Launch | None,
) -> Run:
    """Run every instance instruction by instruction."""
    name, machine = func.__name__, new_machine(chip)
    session = Instances(name, chip, machine, Builder(name, chip.name), grid=grid, ranks=ranks)
    with entered(session), one_blas_thread(), quiet():
        given = _arguments(session, bound)
        for look in session.lookers:
            look.begin(session)
        returned = instances(session, func, given)
        outputs = results(session, plain(session, returned), like)
        program = session.finished()
        exchange.notice_io(session.collectives, program, machine)
        given = [a for v in bound.arguments.values() for a in _arrays(v)]
        pairs = zip(session.builder.inputs, given, strict=True)
        pairs = [(buffer, array) for buffer, array in pairs if id(array) not in kept]
        _write_back(pairs, program.mutated, partial(_held, machine))
    done = Run(
        name,
        outputs,
        (program,),
        chip,
        (*session.noticed(), *machine.findings),
        (tuple(machine.trips),),
    )
    remember(same, done, session)
    return done


def instances(session: Instances, func: Callable, given: inspect.BoundArguments) -> Any:
    """Run every instance of the session's launch grid in turn; what the last one returned.

    An instance runs to its end, or to where it must wait for others (`nl.all_reduce`).
    """
    places = list(product(*map(range, session.grid)))
    if len(places) == 1:
        session.program_ids = places[0]
        return _instance(session, func, given)
    crew = Lockstep([f"program instance {list(place)}" for place in places])
    members = [replace(session, program_ids=p, loops=[], sums={}, crew=crew) for p in places]
    return crew.run([partial(_instance, member, func, given) for member in members])[-1]


def _instance(session: Instances, func: Callable, given: inspect.BoundArguments) -> Any:
    with entered(session), refusals.refused():
        returned = func(*given.args, **given.kwargs)
        session.flush()
        _check_loops(session)
    return returned


def _check_loops(session: OlderSession) -> None:
    """Refuse a kernel that left a loop early: a device would not have."""
    if session.left:
        index, where = session.left[0]
        what = f"this loop was left at index {index}"
        raise UsageError(what, code="beta1.left_loop", at=where)


def _arguments(session: OlderSession, bound: inspect.BoundArguments) -> inspect.BoundArguments:
    given = {}
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            given[name] = {k: own(arrays.argument(session, k, v)) for k, v in value.items()}
        else:
            given[name] = own(arrays.argument(session, name, value))
    return inspect.BoundArguments(bound.signature, given)


def own(value: Any) -> Any:
    """Tensors of `nki` among an argument as tensors of this API."""
    if isinstance(value, NkiTensor):
        return Tensor.of(value)
    if isinstance(value, list | tuple):
        parts = [own(v) for v in value]
        return arrays.rebuilt(value, parts)
    if isinstance(value, dict):
        return {k: own(v) for k, v in value.items()}
    return value


def plain(session: OlderSession, value: Any) -> Any:
    """Returned tensors as tensors of `nki`; tiles through HBM, with a finding."""
    if isinstance(value, Tensor):
        return value.read() if value.space == "hbm" else _unloaded(session, value)
    if isinstance(value, Blocks):
        value.settle()
    if isinstance(value, list | tuple):
        return arrays.rebuilt(value, [plain(session, v) for v in value])
    return value


def _unloaded(session: OlderSession, tile: Tensor) -> NkiTensor:
    """A returned tile, stored to HBM as the simulator of this age does."""
    out = memory.ndarray(tile.shape, tile.element, memory.shared_hbm)
    language.store(Tensor.of(out), tile)
    session.machine.findings.append(
        Finding(
            "beta1.returned_tile",
            f"the kernel returned a tile in {tile.space}",
            None,
            "a device returns tensors in HBM only; simulation returns tiles too",
            "nl.store it into nl.ndarray(..., buffer=nl.shared_hbm) and return that",
        )
    )
    return out


def _arrays(value: Any) -> list:
    """The arrays of an argument in the order in which they become inputs."""
    if arrays.is_array(value):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(value, list | tuple | dict):
        return [array for part in parts for array in _arrays(part)]
    return []


def _held(machine: Any, buffer: Buffer) -> np.ndarray:
    """What an input holds after the run, in its storage dtype."""
    return np.array(numerics.encode(machine.storage(buffer).read(view_of(buffer)), buffer.dtype))


def _write_back(
    pairs: Iterable[tuple[Buffer, Any]],
    mutated: Collection[Buffer],
    held: Callable[[Buffer], np.ndarray],
) -> None:
    """Copy what the kernel wrote into its arguments to the caller's arrays."""
    for buffer, array in pairs:
        if buffer not in mutated:
            continue
        values = held(buffer).reshape(array.shape)
        if arrays.is_torch(array):
            array.copy_(arrays.from_numpy(values, "torch"))
        else:
            np.copyto(array, values)


__all__ = ["run", "run_ranks"]
