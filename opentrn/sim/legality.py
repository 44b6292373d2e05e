"""What the machine would notice about a program, found without computing anything.

`examine` walks a program once, keeping only the marks of memory (written, touched by a matmul,
read since): never-written operands and outputs, operands the hardware ignores, mistakes with PSUM
accumulation, inputs written in place.  What depends on values (dynamic addresses, ranges of
activation functions) is left to a run.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from opentrn.isa import Buffer, Instruction, Loop, Program, View, view_of
from opentrn.sim import groups
from opentrn.sim.functional import Machine
from opentrn.sim.memory import Marks
from opentrn.sim.plan import plan_of
from opentrn.sim.strict import Finding, Strict

# Everything is reported, so that the walk goes on to the end of the program.
_REPORT = Strict(unwritten_output="report", accumulate_unset="report")


def examine(
    program: Program, chip, results: Sequence[View] = (), written: Iterable[Buffer] = ()
) -> list[Finding]:
    """The findings of a program, in program order; `results` are the views the kernel returned.

    A device loop is walked once, as if its body ran.  Buffers in `written` are taken as written
    before the program begins, as its inputs and constants are.
    """
    machine = _Marker(chip)
    for buffer in (*program.inputs, *program.constants, *written):
        machine.storage(buffer).written.cells = True
    machine.walk(program.body)
    for number, view in enumerate(results or map(view_of, program.outputs)):
        machine.check_output(number, view)
    for buffer in program.mutated:
        if buffer not in program.outputs:
            what = f"input `{buffer.name}` is written in place and not returned"
            machine.notice("mutated_input", what, machine.first_write.get(buffer))
    return machine.findings


class _Marks:
    """A buffer's marks without its memory; answers what `Machine` asks of a `Storage`."""

    raw = True

    def __init__(self, buffer: Buffer, shared: tuple[Marks, ...] = ()):
        self.buffer = buffer
        marks = shared or (Marks(buffer), Marks(buffer), Marks(buffer))
        self.written, self.touched, self.seen = marks

    def unread_group(self, view: View) -> bool:
        """Whether the view holds matmul results of which nothing has been read."""
        return self.touched.some_of(view) is not None and self.seen.some_of(view) is None

    def settle(self, view: View) -> None:
        """There are no values to turn into bytes."""

    def own(self) -> None:
        """There is no memory to copy."""

    def blank(self) -> None:
        """There are no values to blank."""


class _Marker(Machine):
    """A machine that marks what each instruction reads and writes, and computes nothing."""

    def __init__(self, chip):
        super().__init__(chip, _REPORT)
        self.first_write: dict[Buffer, Any] = {}

    def allocate(self, buffer: Buffer, raw: bool = False) -> _Marks:
        """Marks for a buffer; those with explicit addresses share the marks of their memory."""
        fixed = buffer.on_chip and buffer.address is not None
        if fixed:
            held = self._fixed(buffer)
            made = _Marks(buffer, (held.written, held.touched, held.seen))
        else:
            made = _Marks(buffer)
        self.storages[buffer] = made
        return made

    def walk(self, body: list) -> None:
        """Every instruction of a body in order."""
        for node in body:
            if isinstance(node, Loop):
                self.walk(node.body)
            else:
                self.execute(node)

    def execute(self, instruction: Instruction) -> None:
        """Check what the instruction reads and mark what it writes."""
        form, operands = instruction.form, instruction.operands
        plan = plan_of(form)
        for kind, what in plan.ignored:
            self.notice(kind, what, instruction.where)
        for n, name in plan.inputs:
            if type(operands[n]) is View:
                self._read(instruction, operands[n], name, (n, name) in plan.checked)
        for n, name in plan.outputs:
            view = operands[n]
            if type(view) is View:
                self.first_write.setdefault(view.buffer, instruction.where)
                self._write(instruction, view, name)

    def _read(self, instruction: Instruction, view: View, name: str, checked: bool) -> None:
        storage = self.storage(view.buffer)
        if view.index is None and checked:
            for part in instruction.form.parts(name, view):
                self.check_read(storage, part, instruction, name)
        if storage.touched.cells is not None:
            storage.seen.add(_reach(view))

    def _write(self, instruction: Instruction, view: View, name: str) -> None:
        storage = self.storage(view.buffer)
        accumulates = getattr(instruction.form.operands.get(name), "role", "") == "acc"
        if accumulates and view.index is None:
            groups.opened(self, storage, view, instruction)
            storage.touched.add(view)
        elif storage.touched.cells is not None and view.index is None:
            groups.close(self, storage, view, instruction)
        if view.index is not None:
            storage.written.add(_reach(view))  # any of it may be written
            return
        for part in instruction.form.parts(name, view):
            storage.written.add(part)

    def check_output(self, number: int, view: View) -> None:
        """Notice a returned tensor of which some or all was never written."""
        buffer = view.buffer
        missing = self.storage(buffer).written.missing(view)
        name = buffer.name or f"output {number}"
        if missing == 1.0:
            self.notice("unwritten_output", f"output `{name}`: 100% unwritten", buffer.where)
        elif missing > 0:
            what = f"output `{name}`: {missing:.1%} unwritten"
            self.notice("partial_output", what, buffer.where)


def _reach(view: View) -> View:
    """All that a view with a runtime index may touch: its whole buffer."""
    return view if view.index is None else view_of(view.buffer)


__all__ = ["examine"]
