"""What a program computes: each instruction bound to memory, run when issued or replayed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.base import (
    BoundsError,
    NotBuiltError,
    UnwrittenError,
    UsageError,
    explanation,
    numerics,
)
from opentrn.isa import Buffer, Instruction, Loop, Register, View
from opentrn.sim.memory import Storage, fresh_rows, fresh_values, put
from opentrn.sim.strict import Finding, Strict

# A device loop of more iterations than this is taken for one that never ends.
STEP_LIMIT = 10_000_000
# Arrays kept for reuse: allocating and page-faulting a fresh tile costs more than filling one.
POOL_BYTES = 256 << 20


class Machine:
    """One NeuronCore's memory and registers, running instructions of a program.

    `execute` runs one instruction now, with every check of `Strict`; `bind` returns a callable
    that runs it again and again without checks, for replay.
    """

    def __init__(self, chip, strict: Strict | None = None):
        self.chip, self.strict = chip, strict or Strict()
        self.storages: dict[Buffer, Storage] = {}
        self.registers: dict[int, int] = {}
        self.accumulators: dict[str, np.ndarray] = {}
        self.findings: list[Finding] = []
        self.trips: list[tuple[Loop, int]] = []
        self._pool: dict[tuple, list[np.ndarray]] = {}
        self._pooled = 0
        self._arenas: dict[str, np.ndarray] = {}

    # ------------------------------------------------------------ memory

    def allocate(self, buffer: Buffer, raw: bool = False) -> Storage:
        """Give the buffer memory that reads as uninitialised."""
        if buffer.on_chip and buffer.address is not None:
            storage = self._fixed(buffer)
        elif buffer.on_chip and not raw:
            storage = Storage(buffer, self._rows(buffer), raw=False)
        elif buffer.on_chip:
            row = buffer.free * buffer.dtype.itemsize
            storage = Storage(buffer, fresh_rows(buffer.shape[0], row), raw=True)
        else:
            storage = self._in_hbm(buffer)
        self.storages[buffer] = storage
        return storage

    def _rows(self, buffer: Buffer) -> np.ndarray:
        free = self._pool.get((buffer.shape[0], buffer.free, buffer.dtype))
        if free:
            array = free.pop()
            self._pooled -= array.nbytes
            array.fill(_blank_value(buffer))
            return array
        return fresh_values(buffer)

    def _fixed(self, buffer: Buffer) -> Storage:
        """Buffers with explicit addresses really alias: all share one array of bytes."""
        core = self.chip.core
        size = core.sbuf_partition if buffer.space == "sbuf" else core.psum_partition
        if buffer.space not in self._arenas:
            self._arenas[buffer.space] = fresh_rows(core.partitions, size)
        arena = self._arenas[buffer.space]
        origin = buffer.partition * arena.strides[0] + buffer.address
        return Storage(buffer, arena, raw=True, origin=origin)

    def _in_hbm(self, buffer: Buffer) -> Storage:
        dtype = buffer.dtype
        raw = dtype.storage != dtype.carrier
        array = np.empty(buffer.free, dtype.storage)
        if not raw:
            array.fill(_blank_value(buffer))
            return Storage(buffer, array, raw=False)
        array.fill(0)
        return Storage(buffer, array.view(np.uint8), raw=True)

    def adopt(self, buffer: Buffer, array: np.ndarray) -> Storage:
        """Use the caller's contiguous array (of the buffer's storage dtype) as its memory."""
        flat = array.reshape(-1)
        raw = buffer.dtype.storage != buffer.dtype.carrier
        storage = Storage(buffer, flat.view(np.uint8) if raw else flat, raw, written=True)
        self.storages[buffer] = storage
        return storage

    def release(self, buffer: Buffer) -> None:
        """Forget the buffer's memory; its array may serve another buffer of the same form."""
        storage = self.storages.pop(buffer, None)
        if storage is None or storage.raw or not buffer.on_chip:
            return
        if self._pooled + storage.array.nbytes <= POOL_BYTES:
            key = (buffer.shape[0], buffer.free, buffer.dtype)
            self._pool.setdefault(key, []).append(storage.array)
            self._pooled += storage.array.nbytes

    def storage(self, buffer: Buffer) -> Storage:
        """The buffer's memory, allocated at first use."""
        return self.storages.get(buffer) or self.allocate(buffer)

    def value(self, view: View) -> np.ndarray:
        """A copy of what the view holds, as carrier values."""
        return np.array(self.storage(view.buffer).read(view))

    # ------------------------------------------------------------ running now

    def execute(self, instruction: Instruction) -> None:
        """Run one instruction now: check what it reads, compute, store, record what it wrote."""
        operands, form = instruction.operands, instruction.form
        for n in form.inputs:
            view = operands[n]
            if type(view) is View:
                storage = self.storages.get(view.buffer) or self.allocate(view.buffer)
                if storage.written is not True:
                    self._check_read(storage, view, instruction, n)
                if storage.touched is not None:
                    storage.group_read = True
        self.bind(instruction)()
        for n in form.writes:
            view = operands[n]
            if type(view) is View:
                storage = self.storages[view.buffer]
                if storage.written is not True:
                    storage.mark(view)

    def _check_read(self, storage: Storage, view: View, instruction, n: int) -> None:
        form = instruction.form
        role = form.operands[form.operand_names[n]].role
        if role != "in" or view.index is not None or storage.is_written(view):
            return
        name = view.buffer.name or instruction.form.operand_names[n]
        self.notice(
            "uninitialised",
            f"{instruction.opcode}: `{name}` is read before it is fully written",
            instruction.where,
        )

    def notice(self, check: str, what: str, where) -> None:
        """Raise, record or ignore, as `Strict` says for this check."""
        action = getattr(self.strict, check)
        if action == "ignore":
            return
        known = explanation(f"sim.{check}")
        if action == "error":
            raise UnwrittenError(
                what, code=f"sim.{check}", rule=known.rule, fix=known.fix, at=where
            )
        self.findings.append(Finding(f"sim.{check}", what, where, known.rule, known.fix))

    # ------------------------------------------------------------ binding

    def bind(self, instruction: Instruction) -> Callable[[], None]:
        """A callable that runs the instruction on this machine's memory."""
        form, operands = instruction.form, instruction.operands
        given: dict[str, Any] = dict(zip(form.value_names, instruction.values, strict=True))
        moving: list[tuple[str, Callable]] = []
        writers: list[tuple[str, Callable]] = []
        skipped: list[np.ndarray] = []
        for name, declared, operand in zip(
            form.operand_names, form.operands.values(), operands, strict=True
        ):
            role = getattr(declared, "role", None)
            if role is None:
                self._bind_register(name, declared, operand, given, moving, writers)
                continue
            if role in ("in", "inout"):
                self._bind_input(name, operand, given, moving, form, skipped)
            if role != "in" and operand is not None:
                writers.append((name, self._writer(role, operand, instruction, skipped)))
        if form.state:
            self._bind_state(form, given, writers)
        return _step(form, given, moving, writers)

    def _bind_register(self, name, declared, operand, given, moving, writers) -> None:
        registers = self.registers
        if type(declared).__name__ == "RegOut":
            if operand is not None:
                writers.append((name, lambda v: registers.__setitem__(operand.number, int(v))))
        elif isinstance(operand, Register):
            moving.append((name, lambda: self.register(operand)))
        else:
            given[name] = operand

    def _bind_input(self, name, operand, given, moving, form, skipped) -> None:
        if isinstance(operand, View):
            storage = self.storages.get(operand.buffer) or self.allocate(operand.buffer)
            storage.settle(operand)
            if operand.index is None and not storage.raw:
                given[name] = storage.window(operand)
            elif operand.index is None:
                moving.append((name, lambda: storage.read(operand)))
            else:
                skip = _skips(form)
                moving.append((name, lambda: self._gather(storage, operand, skipped, skip)))
        elif isinstance(operand, Register):
            moving.append((name, lambda: self.register(operand)))
        else:
            given[name] = operand

    def _bind_state(self, form, given, writers) -> None:
        engine, state = form.engine_name, form.state
        if engine not in self.accumulators:
            self.accumulators[engine] = np.zeros(self.chip.core.partitions, np.float32)
        given[state] = self.accumulators[engine]
        writers.append((state, lambda value: np.copyto(self.accumulators[engine], value)))

    def register(self, register: Register | int) -> int:
        """The register's value now; UsageError when nothing was moved into it."""
        if not isinstance(register, Register):
            return int(register)
        if register.number not in self.registers:
            raise UsageError(
                f"register {register!r} is read before it holds a value",
                code="sim.register",
                rule="a register must be set by register_move or register_load first",
                fix="give register_alloc a start value",
            )
        return self.registers[register.number]

    # ------------------------------------------------------------ storing

    def _writer(self, role: str, view: View, instruction: Instruction, skipped: list) -> Callable:
        storage = self.storages.get(view.buffer) or self.allocate(view.buffer)
        storage.settle(view)
        if role == "acc":
            return lambda value: self._accumulate(storage, view, value, instruction)
        if view.index is not None:
            return lambda value: self._scatter(storage, view, value, instruction)
        window, dtype, raw = storage.window(view), view.dtype, storage.raw
        known = dtype if instruction.form.exact() else None
        if _skips(instruction.form):
            return lambda value: _put_rows(window, value, dtype, raw, skipped)
        if view.buffer.space != "psum":
            return lambda value: put(window, value, dtype, raw, known)

        def into_psum(value):
            if storage.touched is not None:
                self._close_group(storage, view, instruction)
            put(window, value, dtype, raw, known)

        return into_psum

    def _close_group(self, storage: Storage, view: View, instruction: Instruction) -> None:
        """Something else than a matmul overwrites matmul results."""
        if not storage.group_read and storage.group(view) is not None:
            self.notice(
                "reset_in_reduction",
                f"{instruction.opcode}: PSUM tile `{view.buffer.name or view.buffer.id}` is "
                "overwritten before its matmul results were read",
                instruction.where,
            )
        storage.untouch(view)
        storage.group_read = False

    def _accumulate(self, storage: Storage, view: View, value, instruction) -> None:
        """PSUM semantics: overwrite, add, or (accumulate=None) first touch per location."""
        mode, group = instruction.form.accumulate, storage.group(view)
        if mode is True and group is not True:
            self.notice(
                "accumulate_unset",
                f"{instruction.opcode}: accumulate=True, but no matmul has initialised "
                f"`dst` {list(view.shape)}",
                instruction.where,
            )
            group = True
        if mode is False:
            group = None
        if group is not None and storage.group_read:
            self.notice(
                "read_open_group",
                f"{instruction.opcode}: adds to PSUM that was read after the previous matmul",
                instruction.where,
            )
        storage.group_read = False
        window = storage.window(view)
        value = value.reshape(window.shape)
        if group is not None:
            old = storage.read(view)
            if group is True and old is window or old.dtype == np.float32 == window.dtype:
                np.add(window, value, out=value)
            else:
                value = _added(old, value, group)
        put(window, value, view.dtype, storage.raw)
        if storage.touched is not True:
            storage.touch(view)

    # ------------------------------------------------------------ dynamic addresses

    def _gather(self, storage: Storage, view: View, skipped: list, skip: bool):
        """Read through an index: one dynamic offset, or one for each partition."""
        offsets, bad = self._offsets(view, skip)
        base, rows = self._base(storage, view, offsets)
        if rows is None:
            return base
        if bad is not None:
            # A skipped transfer leaves its destination row as it was.
            rows = np.where(bad[: len(rows)], 0, rows)
            skipped[:] = [bad[: len(rows)]]
        picked = base[rows]
        return numerics.decode(picked, view.dtype) if storage.raw else picked

    def _scatter(self, storage: Storage, view: View, value, instruction) -> None:
        offsets, bad = self._offsets(view, _skips(instruction.form))
        value = np.asarray(value)
        base, rows = self._base(storage, view, offsets, write=True)
        if rows is None:
            put(base, value, view.dtype, storage.raw)
            return
        value = value.reshape(view.shape)
        if bad is not None:
            keep = ~bad[: len(rows)]
            rows, value = rows[keep], value[keep]
        # Row by row: with duplicate rows the last one wins, as transfers complete in order.
        for row, data in zip(rows, value, strict=True):
            put(base[row], data, view.dtype, storage.raw)

    def _offsets(self, view: View, skip: bool):
        """Dynamic indices of the view and a mask of those outside (only when skipping)."""
        index = view.index
        source = index.offset
        raw = self.register(source) if isinstance(source, Register) else self.value(source)
        found = np.asarray(raw).reshape(-1).astype(np.int64)
        outside = (found < 0) | (found >= index.limit)
        if not outside.any():
            return found, None
        if skip:
            return found, outside
        raise BoundsError(
            f"dynamic index {int(found[outside][0])} is outside `{view.buffer.name}` "
            f"(legal: 0 to {index.limit - 1})",
            code="sim.dynamic_bounds",
            rule="with oob_mode.error every dynamic index must be inside its dimension",
            fix="check the indices, or pass oob_mode=nisa.oob_mode.skip",
            neuron="NRT_EXEC_OOB 1006",
        )

    def _base(self, storage: Storage, view: View, offsets, write: bool = False):
        """The window a dynamic access moves over, and the row numbers to take from it.

        For a scalar offset the window itself (rows None); for vector offsets a window whose
        first dimension runs over all legal positions.
        """
        index = view.index
        if index.kind == "tensor":
            raise NotBuiltError("`.indirect()` is not simulated yet", code="sim.tensor_indirection")
        if index.kind == "scalar":
            offset = view.offset + index.stride * int(offsets[0])
            moved = View(view.buffer, offset, view.steps, view.dtype)
            return (storage.window(moved) if write else storage.read(moved)), None
        steps = ((index.stride, index.limit), *view.steps[1:])
        window = storage.window(View(view.buffer, view.offset, steps, view.dtype))
        return window, offsets[: view.shape[0]]

    # ------------------------------------------------------------ loops

    def bind_body(self, body: list) -> Callable[[], None]:
        """A callable that runs a list of instructions and loops in order."""
        steps = [
            self._bind_loop(node) if isinstance(node, Loop) else self.bind(node) for node in body
        ]

        def run():
            for step in steps:
                step()

        return run

    def _bind_loop(self, loop: Loop) -> Callable[[], None]:
        body = self._bind_iteration(loop)
        return lambda: self._run_loop(loop, body, None)

    def _bind_iteration(self, loop: Loop) -> Callable[[], None]:
        """One iteration: PSUM tiles made in the body begin as untouched by any matmul."""
        body = self.bind_body(loop.body)
        tiles = [self.storage(b) for b in loop.local if b.space == "psum"]

        def iteration():
            for tile in tiles:
                tile.touched, tile.group_read = None, False
            body()

        return iteration if tiles else body

    def finish_loop(self, loop: Loop, low: int, high: int) -> None:
        """Run the iterations after the first, which ran while the body was recorded."""
        if low < high:
            self._run_loop(loop, self._bind_iteration(loop), low + loop.step)
        else:
            self.trips.append((loop, 0))

    def _run_loop(self, loop: Loop, body: Callable[[], None], start: int | None) -> None:
        """Run a loop from `start` (None: its own first value) and note its trip count."""
        trips = 0 if start is None else 1
        place = len(self.trips)
        self.trips.append((loop, 0))
        if loop.while_true is not None:
            while self.register(loop.while_true):
                body()
                trips = self._count(trips, loop)
        else:
            first = self.register(loop.start) if start is None else start
            for value in range(first, self.register(loop.stop), loop.step):
                self.registers[loop.counter.number] = value
                body()
                trips = self._count(trips, loop)
        self.trips[place] = (loop, trips)

    def _count(self, trips: int, loop: Loop) -> int:
        if trips >= STEP_LIMIT:
            raise UsageError(
                f"a device loop ran {trips} times and did not end",
                code="sim.step_limit",
                rule="a loop that never ends would hang the chip",
                fix="make the loop's register reach zero",
                at=loop.where,
            )
        return trips + 1


def _step(form, given: dict, moving: list, writers: list) -> Callable[[], None]:
    """The fastest closure for this mix of inputs and outputs."""
    run = form.run
    if not moving and len(writers) == 1:
        name, write = writers[0]
        return lambda: write(run(**given)[name])

    def step():
        for name, read in moving:
            given[name] = read()
        result = run(**given)
        for name, write in writers:
            if name in result:
                write(result[name])

    return step


def _added(old, value, group):
    """Old contents plus the product where the group is open, the product elsewhere."""
    if group is None:
        return value
    if group is True:
        return old + value.reshape(old.shape)
    return np.where(group.reshape(old.shape), old + value.reshape(old.shape), value)


def _put_rows(window, value, dtype, raw: bool, skipped: list) -> None:
    """Store the rows of a gather, leaving alone those whose index was outside."""
    if not skipped:
        put(window, value, dtype, raw)
        return
    keep = ~skipped.pop()
    old = window[~keep].copy()
    put(window, value, dtype, raw)
    window[~keep] = old


def _skips(form) -> bool:
    """Whether the instruction drops transfers whose dynamic address is outside."""
    return getattr(getattr(form, "oob_mode", None), "name", "error") == "skip"


def _blank_value(buffer: Buffer):
    return numerics.uninitialised(buffer.dtype)
