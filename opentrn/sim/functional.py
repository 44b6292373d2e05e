"""What a program computes: each instruction run when issued, or bound to memory for replay."""

from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.base import UnwrittenError, UsageError, explanation
from opentrn.isa import Buffer, Instruction, Loop, Register, Sort, View
from opentrn.sim import dynamic, groups
from opentrn.sim.collectives import by_itself
from opentrn.sim.columns import Columns, access
from opentrn.sim.late import put_off
from opentrn.sim.memory import (
    Arena,
    Slab,
    Storage,
    catch_up,
    fresh_bytes,
    fresh_rows,
    move,
    put,
    writer,
)
from opentrn.sim.plan import Plan, check_range, plan_of
from opentrn.sim.states import EngineStates
from opentrn.sim.strict import Finding, Strict

# A device loop of more iterations than this is taken for one that never ends.
STEP_LIMIT = 1_000_000
# Arrays kept for reuse: allocating and page-faulting a fresh tile costs more than filling one.
POOL_BYTES = 256 << 20
# Checks about how an instruction is used; the others are about what is in memory.
MISUSES = (
    "ignored_operand", "disputed_operand", "undefined_operand", "activation_range",
    "duplicate_indices",
)  # fmt: skip


class Machine:
    """One NeuronCore's memory and registers, running instructions of a program.

    `execute` runs one instruction now, with every check of `Strict`; `bind` returns a callable
    that runs it again and again.  Without `checking` (replay) nothing is noticed.  A `lasting` one
    is kept, so that its memory is its own.
    """

    def __init__(
        self, chip, strict: Strict | None = None, checking: bool = True, lasting: bool = False
    ):
        self.chip, self.strict, self.checking = chip, strict or Strict(), checking
        self.storages: dict[Buffer, Storage] = {}
        self.registers: dict[int, int] = {}
        self.states = EngineStates()
        self.findings: list[Finding] = []
        self.trips: list[tuple[Loop, int]] = []
        # Instructions recorded in a loop body that no iteration has reached yet.
        self.unseen: set[Instruction] = set()
        self._noticed: set[tuple] = set()
        self._pool: dict[Sort, list[np.ndarray]] = {}
        self._pooled, self._slab = 0, Slab(lasting)
        self._arenas: dict[str, Arena] = {}
        # Work that was checked and recorded and is still to be computed (see `sim.late`).
        self.late: list[Callable[[], Any]] = []
        self.products: dict[tuple[int, int], np.ndarray] = {}
        # Whether values were handed out: then what runs may depend on them.
        self.looked = False
        self._held: list[Buffer] = []
        self._holding = 0
        # Carries out instructions that need other cores or ranks; set by who runs them together.
        self.meet: Callable[[Instruction], None] = by_itself

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
        storage.late = self.late
        self.storages[buffer] = storage
        return storage

    def _rows(self, buffer: Buffer) -> np.ndarray:
        free = self._pool.get(buffer.sort)
        if free:
            array = free.pop()
            self._pooled -= array.nbytes
            return array
        return self._slab.values(buffer)

    def _fixed(self, buffer: Buffer) -> Storage:
        """Buffers with explicit addresses really alias: all share one array of bytes."""
        self.catch_up()
        if buffer.space not in self._arenas:
            core = self.chip.core
            size = core.sbuf_partition if buffer.space == "sbuf" else core.psum_partition
            self._arenas[buffer.space] = Arena(int(core.partitions), int(size))
        arena = self._arenas[buffer.space]
        if buffer.space == "psum" and arena.unread(buffer):
            self._lose_unread(buffer)
        storage = arena.storage(buffer)
        storage.blank()
        return storage

    def _lose_unread(self, buffer: Buffer) -> None:
        """Notice that a tile begins over results of another one that is alive and was not read."""
        for other in self.storages:
            if other.space == "psum" and other.address is not None and other.overlaps(buffer):
                what = f"`{buffer.name or 'a tile'}` begins over unread results of "
                what += f"`{other.name or 'a tile'}`, made at {other.where}"
                self.notice("unread_alias", what, buffer.where)

    def _in_hbm(self, buffer: Buffer) -> Storage:
        dtype = buffer.dtype
        raw = dtype.storage != dtype.carrier
        array = fresh_bytes(buffer.free * dtype.storage.itemsize)
        return Storage(buffer, array if raw else array.view(dtype.storage), raw)

    def adopt(self, buffer: Buffer, array: np.ndarray) -> Storage:
        """Use the caller's contiguous array (of the buffer's storage dtype) as its memory.

        The caller's values never change: the first write makes a copy.
        """
        flat = array.reshape(-1)
        raw = buffer.dtype.storage != buffer.dtype.carrier
        storage = Storage(buffer, flat.view(np.uint8) if raw else flat, raw)
        storage.written.cells, storage.borrowed = True, True
        storage.late = self.late
        self.storages[buffer] = storage
        return storage

    def release(self, buffer: Buffer) -> None:
        """Forget the buffer's memory; its array may serve another buffer of the same form.

        While a device loop is open its later iterations may still need it, so it waits.
        """
        if self._holding:
            self._held.append(buffer)
            return
        storage = self.storages.pop(buffer, None)
        if storage is None or storage.raw:
            return
        if self._pooled + storage.array.nbytes <= POOL_BYTES:
            self._pool.setdefault(buffer.sort, []).append(storage.array)
            self._pooled += storage.array.nbytes

    def hold(self) -> None:
        """Begin a device loop: memory released in it is kept until it ends."""
        self._holding += 1

    def let_go(self) -> None:
        """End a device loop; the outermost one gives back what was released in it."""
        self._holding -= 1
        if not self._holding:
            held, self._held = self._held, []
            for buffer in held:
                self.release(buffer)

    def storage(self, buffer: Buffer) -> Storage:
        """The buffer's memory, allocated at first use."""
        return self.storages.get(buffer) or self.allocate(buffer)

    def catch_up(self) -> None:
        """Compute the products that were put off."""
        if self.late:
            catch_up(self.late)

    def value(self, view: View) -> np.ndarray:
        """A copy of what the view holds, as carrier values; a scalar runtime index is followed."""
        self.looked = True
        return self.held(view)

    def held(self, view: View) -> np.ndarray:
        """As `value`, for the machine itself: no program depends on it."""
        self.catch_up()
        storage = self.storage(view.buffer)
        storage.settle(view)
        if view.index is not None:
            return np.array(access(self, storage, view, None).read())
        return np.array(storage.read(view))

    def stored(self, buffer: Buffer) -> np.ndarray:
        """What an HBM buffer holds, in its storage dtype and shape."""
        flat = self.storage(buffer).array.view(buffer.dtype.storage)
        return flat.reshape(buffer.shape)

    # ------------------------------------------------------------ running now

    def execute(self, instruction: Instruction) -> None:
        """Run one instruction now: check what it reads, compute, store, record what it wrote."""
        form = instruction.form
        plan = form.plan or plan_of(form)
        for kind, what in plan.ignored:
            self.notice(kind, what, instruction.where)
        if form.limited and self.strict.activation_range != "ignore":
            check_range(self, instruction, plan)
        if plan.sums:
            return self._run_sum(instruction, plan)
        if self.late:
            if put_off(self, instruction, plan):
                return
            self.catch_up()
        if plan.moves:
            self._run_move(instruction)
        elif plan.plain:
            self._run_plain(instruction, plan)
        else:
            self._run_bound(instruction, plan)

    def _run_plain(self, instruction: Instruction, plan: Plan) -> None:
        """The short way for static operands; `bind` is its specification."""
        form, operands, room = instruction.form, instruction.operands, None
        given = self._inputs(instruction, plan)
        if form.state:
            given[form.state] = self.states.of(form)
        if plan.direct:
            storage = self._room(instruction)
            if storage is not None:
                room = given["out"] = storage.window(operands[0])
        result = form.run(**given)
        if form.state:
            self.states.keep(form, result)
        for n, name in plan.outputs:
            view, value = operands[n], result.get(name)
            if view is None or value is None:
                continue
            if value is not room:
                storage = self.target(instruction, view)
                known = view.dtype if plan.exact else None
                put(storage.window(view), value, view.dtype, storage.raw, known)
            if storage.written.cells is not True:
                storage.written.add(view)

    def _inputs(self, instruction: Instruction, plan: Plan) -> dict[str, Any]:
        """The numbers and values an instruction takes, by name."""
        form, operands, storages = instruction.form, instruction.operands, self.storages
        given = {}
        if instruction.values:
            given.update(zip(form.value_names, instruction.values, strict=True))
        for n, name in plan.inputs:
            view = given[name] = operands[n]
            if type(view) is not View:
                continue
            storage = storages.get(view.buffer) or self.allocate(view.buffer)
            known = storage.windows.get(id(view))
            ready = storage.written.cells is True and storage.touched.cells is None
            if known is not None and ready and not storage.raw:  # nothing is left to ask
                given[name] = known[1]
            else:
                given[name] = self.source(instruction, view, name).read(view)
        return given

    def _room(self, instruction: Instruction) -> Storage | None:
        """Where the result may be written while it is computed: memory that is not read."""
        view, *others = instruction.operands
        buffer = view.buffer
        for other in others:
            if type(other) is View and other.buffer is buffer:
                return None
        storage = self.target(instruction, view)
        return None if storage.raw else storage

    def _run_sum(self, instruction: Instruction, plan: Plan) -> None:
        """The short way for matmuls of static operands; `bind` is its specification."""
        operands, given = instruction.operands, {}
        for n, name in plan.inputs:
            view = operands[n]
            given[name] = self.source(instruction, view, name).coming(view)
        view = operands[plan.outputs[0][0]]
        storage = self.storages.get(view.buffer) or self.allocate(view.buffer)
        storage.settle(view)
        groups.add(self, instruction, storage, view, given, late=True)

    def _run_move(self, instruction: Instruction) -> None:
        """The short way for copies that convert nothing."""
        to, view = instruction.operands
        source = self.source(instruction, view, "src")
        source.settle(view)
        target = self.target(instruction, to)
        move(target.window(to), source.window(view), view.dtype, target.raw, source.raw)
        target.written.add(to)

    def source(self, instruction: Instruction, view: View, name: str) -> Storage:
        """The storage of a view that is about to be read."""
        storage = self.storages.get(view.buffer) or self.allocate(view.buffer)
        if storage.written.cells is not True:
            self.check_read(storage, view, instruction, name)
        if storage.touched.cells is not None:
            storage.seen.add(view)
        return storage

    def target(self, instruction: Instruction, view: View) -> Storage:
        """The storage of a view that is about to be overwritten."""
        storage = self.storages.get(view.buffer) or self.allocate(view.buffer)
        if view.dtype is not storage.buffer.dtype:
            storage.settle(view)
        if storage.borrowed:
            storage.own()
        if storage.touched.cells is not None:
            groups.close(self, storage, view, instruction)
        return storage

    def _run_bound(self, instruction: Instruction, plan: Plan) -> None:
        form, operands = instruction.form, instruction.operands
        if form.meets:  # what it reads is checked when all have come
            return self.meet(instruction)
        for n, name in plan.checked:
            view = operands[n]
            if type(view) is View and view.index is None:
                for part in form.parts(name, view):
                    self.check_read(self.storage(view.buffer), part, instruction, name)
        for view in operands:
            if type(view) is View and view.index is not None:
                index = view.index.offset
                if type(index) is View:
                    self.check_read(self.storage(index.buffer), index, instruction, "index")
        self.bind(instruction)()

    def check_read(self, storage: Storage, view: View, instruction, name: str) -> None:
        """Notice when some element of a static view was never written."""
        if storage.written.cells is not True and not storage.written.all_of(view):
            storage.blank()
            self.unwritten(view, instruction, name)

    def unwritten(self, view: View, instruction, name: str) -> None:
        """Notice a read of memory that nobody wrote."""
        self.notice(
            "uninitialised",
            f"{instruction.opcode}: `{view.buffer.name or name}` is read before it is fully "
            "written",
            instruction.where,
        )

    def notice(self, check: str, what: str, where) -> None:
        """Raise, record (once for each line) or ignore, as `Strict` says for this check."""
        action = getattr(self.strict, check)
        key = (check, what, where)
        if action == "ignore" or not self.checking or key in self._noticed:
            return
        known = explanation(f"sim.{check}")
        if action == "error":
            kind = UsageError if check in MISUSES else UnwrittenError
            raise kind(what, code=f"sim.{check}", rule=known.rule, fix=known.fix, at=where)
        self._noticed.add(key)
        self.findings.append(Finding(f"sim.{check}", what, where, known.rule, known.fix))

    # ------------------------------------------------------------ binding

    def bind(self, instruction: Instruction) -> Callable[[], None]:
        """A callable that runs the instruction on this machine's memory."""
        form, operands = instruction.form, instruction.operands
        plan = plan_of(form)
        if form.meets:
            return lambda: self.meet(instruction)
        if plan.moves:
            source = self.storage(operands[1].buffer)
            source.settle(operands[1])
            return self._mover(instruction, source)
        given: dict[str, Any] = dict(zip(form.value_names, instruction.values, strict=True))
        moving: list[tuple[str, Callable]] = []
        writers: list[tuple[str, Callable]] = []
        links = dynamic.Link()
        for name, declared, operand in zip(
            form.operand_names, form.operands.values(), operands, strict=True
        ):
            role = getattr(declared, "role", None)
            if role is None:
                self._bind_register(name, declared, operand, given, moving, writers)
                continue
            if role in ("in", "inout"):
                self._bind_input(name, operand, given, moving, instruction, links)
            if role == "acc":
                return self._accumulator(instruction, operand, given, moving)
            if role != "in" and operand is not None:
                writers.append((name, self._writer(name, operand, instruction, links)))
        if form.state:
            known = given[form.state] = self.states.of(form)
            writers.append((form.state, lambda v: None if v is known else np.copyto(known, v)))
        return dynamic.step(form, given, moving, writers, links)

    def _mover(self, instruction: Instruction, source: Storage) -> Callable[[], None]:
        to, view = instruction.operands
        target = self.target(instruction, to)
        given = target.window(to), source.window(view), view.dtype, target.raw, source.raw
        if to.buffer.space != "psum":
            return lambda: move(*given)

        def into_psum():
            if target.touched.cells is not None:
                groups.close(self, target, to, instruction)
            move(*given)

        return into_psum

    def _bind_register(self, name, declared, operand, given, moving, writers) -> None:
        registers = self.registers
        if type(declared).__name__ == "RegOut":
            if operand is not None:
                writers.append((name, lambda v: registers.__setitem__(operand.number, int(v))))
        elif isinstance(operand, Register):
            moving.append((name, lambda: self.register(operand)))
        else:
            given[name] = operand

    def _bind_input(self, name, operand, given, moving, instruction, links) -> None:
        if isinstance(operand, View):
            storage = self.storages.get(operand.buffer) or self.allocate(operand.buffer)
            storage.settle(operand)
            if operand.index is not None:
                found = access(self, storage, operand, instruction, name, links)
                moving.append((name, found.read))
            elif operand.buffer.space == "psum" and self.checking:
                moving.append((name, lambda: storage.watched(operand)))
            elif storage.raw:
                moving.append((name, lambda: storage.read(operand)))
            else:
                given[name] = storage.window(operand)
        elif isinstance(operand, Register):
            moving.append((name, lambda: self.register(operand)))
        else:
            given[name] = operand

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

    def _writer(self, name: str, view: View, instruction: Instruction, links) -> Callable:
        storage = self.storages.get(view.buffer) or self.allocate(view.buffer)
        storage.settle(view)
        storage.own()
        if view.index is not None:
            return access(self, storage, view, instruction, name, links).write
        window, dtype, raw, written = storage.window(view), view.dtype, storage.raw, storage.written
        known = dtype if instruction.form.exact() else None
        if dynamic.skips(instruction.form):
            return lambda value: dynamic.put_rows(storage, view, value, links)
        in_psum = view.buffer.space == "psum"
        parts = instruction.form.parts(name, view)

        def write(value):
            """With the marks that plain SBUF and HBM tiles do not need."""
            if in_psum and storage.touched.cells is not None:
                groups.close(self, storage, view, instruction)
            put(window, value, dtype, raw, known)
            if written.cells is not True:
                for part in parts:
                    written.add(part)

        if in_psum or written.cells is not True:
            return write
        return writer(window, dtype, raw, known)

    # ------------------------------------------------------------ accumulating

    def _accumulator(self, instruction, view: View, given: dict, moving: list) -> Callable:
        """A matmul: overwrite, add, or (accumulate=None) first touch for each location.

        `dst` is declared first, so the inputs are bound here.
        """
        storage = self.storage(view.buffer)
        storage.settle(view)
        for n, name in plan_of(instruction.form).inputs:
            self._bind_input(name, instruction.operands[n], given, moving, instruction, None)
        found = access(self, storage, view, instruction, "dst") if view.index is not None else None
        if isinstance(found, Columns):
            return lambda: found.matmul(given, moving)

        def add():
            for name, read in moving:
                given[name] = read()
            here = view if found is None else found.here()
            groups.add(self, instruction, storage, here, given)

        return add

    # ------------------------------------------------------------ loops

    def bind_body(self, body: list) -> Callable[[], None]:
        """A callable that runs a list of instructions and loops in order."""
        self._prepare(body)
        steps = [self.bind_node(node) for node in body]

        def run():
            for step in steps:
                step()

        return run

    def _prepare(self, body: list) -> None:
        """Bring memory into its final form, so that no bound window is left behind."""
        for node in body:
            if isinstance(node, Loop):
                self._prepare(node.body)
                continue
            for view in node.views():
                storage = self.storage(view.buffer)
                storage.settle(view)
                storage.blank()
            for view in node.writes():
                self.storage(view.buffer).own()

    def bind_node(self, node: Instruction | Loop) -> Callable[[], None]:
        """A callable that runs one instruction, or a whole loop."""
        if isinstance(node, Loop):
            body = self._bind_iteration(node)
            return lambda: self._run_loop(node, body, None)
        return self._first_checked(node) if node in self.unseen else self.bind(node)

    def _first_checked(self, instruction: Instruction) -> Callable[[], None]:
        """Run with every check when it is reached for the first time, bound from then on."""
        bound: list[Callable[[], None]] = []

        def step():
            if bound:
                bound[0]()
            elif instruction in self.unseen:
                self.unseen.discard(instruction)
                self.execute(instruction)
                self.catch_up()
            else:
                bound.append(self.bind(instruction))
                bound[0]()

        return step

    def _bind_iteration(self, loop: Loop) -> Callable[[], None]:
        """One iteration: PSUM tiles made in the body begin as untouched by any matmul."""
        body = self.bind_body(loop.body)
        tiles = [self.storage(b) for b in loop.local if b.space == "psum"]

        def iteration():
            for tile in tiles:
                tile.ungroup()
            body()

        return iteration if tiles else body

    def finish_loop(self, loop: Loop, low: int, high: int) -> None:
        """Run the iterations after the first, which ran while the body was recorded."""
        self.catch_up()
        second = low + loop.step
        if low >= high:
            self.trips.append((loop, 0))
        elif self.register(loop.while_true) if loop.while_true is not None else second < high:
            self._run_loop(loop, self._bind_iteration(loop), second)
        else:
            self.trips.append((loop, 1))

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
