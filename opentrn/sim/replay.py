"""Run a recorded program again on new inputs: every instruction bound to memory once."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from opentrn.base import ShapeError, declare, numerics
from opentrn.isa import Buffer, Instruction, Loop, Program, View, quiet
from opentrn.sim.exposed import exposed
from opentrn.sim.functional import Machine
from opentrn.sim.memory import Storage
from opentrn.sim.plan import outside, plan_of
from opentrn.sim.threads import one_blas_thread

declare(
    "sim.input",
    "An input does not fit the program.",
    rule="inputs have the number, shapes and dtypes the program was made for",
    fix="pass arrays of the shapes and dtypes shown",
)


class OutOfRange(Exception):
    """An input of a replay lies where the function of an activation is not defined."""


class Replay:
    """A program bound to one machine's memory; call it with inputs to get outputs.

    Checks ran when the program was recorded; a replay repeats only those that depend on values
    (dynamic addresses).  On-chip tiles whose lives do not meet share host memory.  With `ranges` a
    replay ends with OutOfRange where the machine would notice `activation_range`.  `lasting` is for
    one of many that are kept (see `Machine`).
    """

    def __init__(self, program: Program, chip, ranges: bool = False, lasting: bool = False):
        self.program, self.machine = program, Machine(chip, checking=False, lasting=lasting)
        self._ranges = ranges
        self._reinterpreted = _reinterpreted(program)
        self._exposed = exposed(program, chip)
        self._written = {v.buffer for one in program.instructions() for v in one.writes()}
        self._wipes: list[Callable[[], None]] = []
        for buffer in program.buffers:
            if buffer.space == "hbm":
                self._hbm(buffer)
        self._steps = self._bind()
        storages = self.machine.storages.values()
        self._psum = [storage for storage in storages if storage.buffer.space == "psum"]

    def _hbm(self, buffer: Buffer) -> None:
        held = self.program.constants.get(buffer)
        if held is None or buffer in self._written:
            storage = self.machine.allocate(buffer)
        else:
            storage = self.machine.adopt(buffer, np.ascontiguousarray(held))
        if held is not None and buffer in self._written:
            self._wipes.append(lambda: _fill(storage, held))
        if buffer in self._reinterpreted and not storage.raw:
            storage.to_bytes()
        if buffer in self._exposed:
            self._wipes.append(storage.wipe)
        storage.written.cells = True

    def _bind(self) -> list[Callable[[], None]]:
        """Bind node by node; a tile's array serves the next tile once its last node is bound."""
        body = self.program.body
        last = _last_uses(body)
        free: dict[tuple, list[np.ndarray]] = {}
        steps: list[Callable[[], None]] = []
        for number, node in enumerate(body):
            buffers = _buffers(node)
            for buffer in buffers:
                if buffer not in self.machine.storages:
                    self._tile(buffer, free, steps)
            if self._ranges and not isinstance(node, Loop) and node.form.limited:
                steps.append(partial(self._in_range, node))
            steps.append(self.machine.bind_node(node))
            for buffer in buffers:
                if buffer.on_chip and last[buffer] == number:
                    storage = self.machine.storages[buffer]
                    if not storage.raw:
                        free.setdefault(_kind(buffer), []).append(storage.array)
        return steps

    def _in_range(self, instruction: Instruction) -> None:
        if outside(self.machine, instruction, plan_of(instruction.form)):
            raise OutOfRange

    def _tile(self, buffer: Buffer, free: dict, steps: list) -> None:
        raw = buffer in self._reinterpreted
        known = free.get(_kind(buffer))
        if known and not raw and buffer.address is None:
            storage = self.machine.storages[buffer] = Storage(buffer, known.pop(), False)
        else:
            storage = self.machine.allocate(buffer, raw=raw)
            if buffer.space == "psum" and buffer.address is not None:
                steps.append(storage.ungroup)
        storage.written.cells = True
        if buffer in self._exposed:
            # Aliases by address may have been written before this tile's first use.
            (self._wipes if buffer.address is not None else steps).append(storage.wipe)

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs (storage dtypes) for these inputs; ShapeError when one does not fit."""
        self._load(inputs)
        self.machine.trips.clear()
        for wipe in self._wipes:
            wipe()
        for storage in self._psum:
            storage.touched.clear()
        self.machine.states.reset()
        with one_blas_thread(), quiet():
            for step in self._steps:
                step()
        if self.program.results:
            return [self.read_view(view) for view in self.program.results]
        return [self.read(buffer) for buffer in self.program.outputs]

    def _load(self, inputs: Sequence[np.ndarray]) -> None:
        wanted = self.program.inputs
        if len(inputs) != len(wanted):
            raise ShapeError(
                f"{self.program.name} takes {len(wanted)} inputs, {len(inputs)} were given",
                code="sim.input",
            )
        for buffer, array in zip(wanted, inputs, strict=True):
            if tuple(array.shape or (1,)) != buffer.shape or array.dtype != buffer.dtype.storage:
                raise ShapeError(
                    f"input `{buffer.name}` is {array.dtype}{list(array.shape)}",
                    code="sim.input",
                    rule=f"it must be {buffer.dtype}{list(buffer.shape)}",
                )
            _fill(self.machine.storages[buffer], array)

    def read(self, buffer: Buffer) -> np.ndarray:
        """A copy of what an HBM buffer holds, in its storage dtype and shape."""
        return np.array(self.machine.stored(buffer))

    def read_view(self, view: View) -> np.ndarray:
        """A copy of what a view of an HBM buffer holds, in its storage dtype and shape."""
        return np.array(numerics.encode(self.machine.held(view), view.dtype))

    @property
    def size(self) -> int:
        """Bytes of the memory it is bound to, and keeps from others."""
        roots = [_root(storage.array) for storage in self.machine.storages.values()]
        return sum({id(root): root.nbytes for root in roots}.values())


def _root(array: np.ndarray) -> np.ndarray:
    """The array whose memory this one is part of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _fill(storage: Storage, array: np.ndarray) -> None:
    """Copy an array of the buffer's shape and storage dtype into HBM."""
    flat = np.ascontiguousarray(array).reshape(-1)
    np.copyto(storage.array, flat.view(storage.array.dtype))


def _kind(buffer: Buffer) -> tuple:
    return buffer.shape[0], buffer.free, buffer.dtype


def _buffers(node: Instruction | Loop) -> list[Buffer]:
    if isinstance(node, Loop):
        found = [b for inner in node.body for b in _buffers(inner)]
    else:
        found = [v.buffer for v in node.views()]
    return list(dict.fromkeys(found))


def _last_uses(body: list) -> dict[Buffer, int]:
    return {buffer: n for n, node in enumerate(body) for buffer in _buffers(node)}


def _reinterpreted(program: Program) -> set[Buffer]:
    """Buffers that some view reads as another dtype: these are kept as bytes."""
    found = set()
    for instruction in program.instructions():
        for view in instruction.views():
            if type(view) is View and view.dtype != view.buffer.dtype:
                found.add(view.buffer)
    return found


__all__ = ["OutOfRange", "Replay"]
