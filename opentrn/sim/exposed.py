"""Which memory of a program may be read, or returned, before the program has written it.

Such memory must read as uninitialised at the start of every replay; for all other memory it does
not matter what an earlier replay left there.
"""

from collections.abc import Iterable

from opentrn.isa import Buffer, Instruction, Loop, Program, Register, View, view_of
from opentrn.sim.dynamic import skips
from opentrn.sim.memory import Arena, Marks


def exposed(program: Program, chip) -> set[Buffer]:
    """Buffers some element of which may be read or returned unwritten; inputs are never."""
    finder = _Finder(program, chip)
    finder.walk(program.body)
    for buffer in program.outputs:
        finder.read(view_of(buffer))
    return finder.found


class _Finder:
    """What is certainly written so far, and what was found to be read without that."""

    def __init__(self, program: Program, chip):
        self.core, self.found = chip.core, set()
        self.marks: dict[Buffer, Marks] = {}
        self.arenas: dict[str, Arena] = {}
        for buffer in [*program.inputs, *program.constants]:
            self.of(buffer).cells = True

    def of(self, buffer: Buffer) -> Marks:
        """The marks of a buffer; those with addresses share theirs."""
        known = self.marks.get(buffer)
        if known is None:
            known = self.marks[buffer] = self._new(buffer)
        return known

    def _new(self, buffer: Buffer) -> Marks:
        if not buffer.on_chip or buffer.address is None:
            return Marks(buffer)
        if buffer.space not in self.arenas:
            core = self.core
            size = core.sbuf_partition if buffer.space == "sbuf" else core.psum_partition
            self.arenas[buffer.space] = Arena(int(core.partitions), int(size))
        return self.arenas[buffer.space].storage(buffer).written

    def walk(self, body: Iterable[Instruction | Loop]) -> None:
        """Follow a body once, in order."""
        for node in body:
            if not isinstance(node, Loop):
                self.instruction(node)
            elif _runs(node):
                self.walk(node.body)
            else:
                before = {buffer: marks.saved() for buffer, marks in self.marks.items()}
                self.walk(node.body)
                for buffer, marks in self.marks.items():
                    if buffer in before:
                        marks.restore(before[buffer])
                    else:
                        marks.clear()

    def instruction(self, one: Instruction) -> None:
        """Reads are judged, then static writes are marked."""
        form, operands = one.form, one.operands
        for n in form.reads:
            view = operands[n]
            overwrites = n not in form.inputs and getattr(form, "accumulate", None) is not True
            if type(view) is View and not overwrites:
                self.read(view)
        for view in operands:
            if type(view) is View and view.index is not None and type(view.index.offset) is View:
                self.read(view.index.offset)
        if skips(form):
            return
        for view in one.writes():
            if view.index is None:
                self.of(view.buffer).add(view)

    def read(self, view: View) -> None:
        """Judge one read; a runtime index may reach everything."""
        marks = self.of(view.buffer)
        whole = view if view.index is None else view_of(view.buffer)
        if view.buffer not in self.found and not marks.all_of(whole):
            self.found.add(view.buffer)


def _runs(loop: Loop) -> bool:
    """Whether the loop certainly runs at least once."""
    bounds = (loop.start, loop.stop)
    return (
        loop.while_true is None
        and not any(isinstance(b, Register) for b in bounds)
        and loop.start < loop.stop
    )
