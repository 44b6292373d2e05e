"""Programs: instructions in program order, each with its source line; device loops stay loops.

A program is the narrow waist between what writes instructions (nki, compiler) and what runs or
times them (sim, runtime, profiler).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opentrn.base import UsageError, Where, declare
from opentrn.isa.buffer import Buffer
from opentrn.isa.define import Instr
from opentrn.isa.view import View

declare(
    "isa.open_loop",
    "The body of a device loop was left by `break`, `return` or an exception.",
    rule="a device loop is built once and runs on the chip, which does not see Python's `break`",
    fix="use nl.while_loop with a register as the condition, or a static range",
)


class Register:
    """A 32-bit integer register of an engine's sequencer.

    `number` identifies it within its program; the running machine holds its value.
    """

    __slots__ = ("name", "number")
    is_register = True  # isa.index knows a register by this, for it lies below this module

    def __init__(self, number: int, name: str = ""):
        self.number, self.name = number, name

    def __repr__(self) -> str:
        return f"r{self.number}"


class Instruction:
    """One instruction of a program: a form with its actual operands.

    `operands` holds, in declared order, a View, a number, a Register or None; `values` the
    compile-time numbers; `after` the instructions it must wait for by explicit request.
    Treated as frozen once made (plain slots, because making one is on the hot path).
    """

    __slots__ = ("after", "form", "name", "operands", "values", "where")

    def __init__(
        self,
        form: Instr,
        operands: tuple,
        values: tuple,
        where: Where | None,
        name: str | None = None,
        after: tuple = (),
    ):
        self.form, self.operands, self.values = form, operands, values
        self.where, self.name, self.after = where, name, after

    @property
    def opcode(self) -> str:
        """Name of the instruction, as in `nki.isa`."""
        return type(self.form).__name__

    @property
    def engine(self) -> str:
        """The engine that runs it."""
        return self.form.engine_name

    def reads(self) -> list[View]:
        """Views whose memory it reads (indices of indirect views included)."""
        views = [self.operands[n] for n in self.form.reads if isinstance(self.operands[n], View)]
        return views + [v for o in self.operands for v in _index_views(o)]

    def writes(self) -> list[View]:
        """Views whose memory it writes."""
        return [self.operands[n] for n in self.form.writes if isinstance(self.operands[n], View)]

    def views(self) -> list[View]:
        """Every view it touches."""
        direct = [o for o in self.operands if isinstance(o, View)]
        return direct + [v for o in direct for v in _index_views(o)]

    def __repr__(self) -> str:
        return f"<{self.opcode} on {self.engine}>"


def _index_views(operand: Any) -> list[View]:
    index = getattr(operand, "index", None)
    offset = getattr(index, "offset", None)
    return [offset] if isinstance(offset, View) else []


@dataclass(slots=True, eq=False)
class Loop:
    """A loop whose trip count only the device knows.

    `counter` runs from `start` to `stop` by `step` (each a number or a Register); with
    `while_true` set instead, the body repeats as long as that register is not zero.
    """

    body: list["Instruction | Loop"]
    counter: Register | None = None
    start: int | Register = 0
    stop: int | Register = 0
    step: int = 1
    while_true: Register | None = None
    where: Where | None = None
    local: list[Buffer] = field(default_factory=list)


@dataclass(slots=True)
class Program:
    """Instructions in program order over named buffers; frozen once built.

    `inputs` and `outputs` are HBM buffers in the kernel's argument and return order; `mutated`
    are inputs the program writes.  `registers` counts the registers used.  `results` are the views
    of the outputs that are returned, one each, where some are not whole buffers; else it is empty.
    """

    name: str
    target: str
    body: list[Instruction | Loop]
    buffers: list[Buffer]
    inputs: list[Buffer]
    outputs: list[Buffer]
    registers: int = 0
    constants: dict[Buffer, Any] = field(default_factory=dict)
    mutated: list[Buffer] = field(default_factory=list)
    results: list[View] = field(default_factory=list)

    def instructions(self) -> Iterator[Instruction]:
        """Every instruction once, loop bodies included, in program order."""
        yield from _walk(self.body)

    def __len__(self) -> int:
        return sum(1 for _ in self.instructions())

    def counts(self) -> dict[str, int]:
        """How often each opcode occurs in the text of the program."""
        found: dict[str, int] = {}
        for one in self.instructions():
            found[one.opcode] = found.get(one.opcode, 0) + 1
        return found


def _is_whole(view: View) -> bool:
    """Whether a view is its buffer as it was declared."""
    buffer = view.buffer
    same = (view.shape, view.dtype, view.offset) == (buffer.shape, buffer.dtype, 0)
    return same and view.index is None and view.is_contiguous()


def _written_in_hbm(body) -> set[Buffer]:
    """The HBM buffers that a body writes; which operands those are is asked once for each form."""
    places: dict[Instr, tuple[int, ...]] = {}
    found: set[Buffer] = set()
    for one in _walk(body):
        form = one.form
        known = places.get(form)
        if known is None:
            spaces = [getattr(given, "space", None) for given in form.given]
            known = places[form] = tuple(n for n in form.writes if spaces[n] == "hbm")
        for n in known:
            found.add(one.operands[n].buffer)
    return found


def _walk(body) -> Iterator[Instruction]:
    for node in body:
        if isinstance(node, Loop):
            yield from _walk(node.body)
        else:
            yield node


class Builder:
    """Collects one program while its kernel runs."""

    def __init__(self, name: str, target: str):
        self.name, self.target = name, target
        self.buffers: list[Buffer] = []
        self.inputs: list[Buffer] = []
        self.outputs: list[Buffer] = []
        self.results: list[View] = []
        self.constants: dict[Buffer, Any] = {}
        self.body: list[Instruction | Loop] = []
        self.registers = 0
        self._open: list[tuple[list[Instruction | Loop], int]] = []

    def buffer(self, space: str, shape, dtype, **more) -> Buffer:
        """Declare a buffer; it gets the next number of this program."""
        made = Buffer(len(self.buffers), space, tuple(shape), dtype, **more)
        self.buffers.append(made)
        return made

    def register(self, name: str = "") -> Register:
        """Declare a register."""
        made = Register(self.registers, name)
        self.registers += 1
        return made

    def append(self, node: Instruction | Loop) -> None:
        """Add an instruction or a finished loop to the innermost open body."""
        self.body.append(node)

    def open_loop(self) -> None:
        """Begin the body of a device loop: what follows belongs to it."""
        self._open.append((self.body, len(self.buffers)))
        self.body = []

    def close_loop(self, **loop) -> Loop:
        """End the innermost loop body; the finished loop joins the enclosing body."""
        body = self.body
        self.body, first = self._open.pop()
        made = Loop(body, local=self.buffers[first:], **loop)
        self.body.append(made)
        return made

    def program(self) -> Program:
        """The finished program; UsageError `isa.open_loop` when a loop body was left early."""
        if self._open:
            raise UsageError("the body of a device loop was left early", code="isa.open_loop")
        written = _written_in_hbm(self.body) if self.inputs else set()
        return Program(
            name=self.name,
            target=self.target,
            body=self.body,
            buffers=self.buffers,
            inputs=self.inputs,
            outputs=self.outputs,
            registers=self.registers,
            constants=self.constants,
            mutated=[buffer for buffer in self.inputs if buffer in written],
            results=self.results if any(not _is_whole(view) for view in self.results) else [],
        )
