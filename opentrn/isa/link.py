"""Join programs: a recorded program is called with actual buffers in place of its parameters."""

from collections.abc import Iterable, Mapping

from opentrn.base import Where
from opentrn.isa.buffer import Buffer
from opentrn.isa.index import Indirect
from opentrn.isa.program import Builder, Instruction, Loop, Program, Register
from opentrn.isa.view import View


class Call:
    """One call of `program` inside `builder`: copies its instructions onto new buffers.

    `bound` maps parameter buffers (and outputs, where the caller owns them) to buffers of the
    builder; every other buffer is made anew, constants with their data.  After `run`, `bound`
    maps every buffer of the program.  `moved` says by how many elements views of a parameter lie
    further on in what it is bound to.
    """

    def __init__(
        self, builder: Builder, program: Program, bound: Mapping[Buffer, Buffer],
        moved: Mapping[Buffer, int] | None = None,
    ):  # fmt: skip
        self.builder, self.program, self.bound = builder, program, dict(bound)
        self.moved = dict(moved or {})
        self.where: Where | None = None  # of every instruction, in place of its own
        self.registers: dict[int, Register] = {}
        self._views: dict[View, View] = {}

    def run(self) -> None:
        """Append the program's body to the builder."""
        self.reserve()
        self.extend(self.program.body)

    def extend(self, nodes: Iterable[Instruction | Loop]) -> None:
        """Append some of the program's instructions and loops, whose buffers are reserved."""
        for node in nodes:
            self.builder.append(self._node(node))

    def reserve(self, space: str = "") -> None:
        """Make the buffers that are not bound yet (of one space, or all)."""
        for buffer in self.program.buffers:
            if buffer not in self.bound and space in ("", buffer.space):
                self.bound[buffer] = self._fresh(buffer)

    def _fresh(self, buffer: Buffer) -> Buffer:
        kind = "temp" if buffer.kind == "output" else buffer.kind
        made = self.builder.buffer(
            buffer.space,
            buffer.shape,
            buffer.dtype,
            name=buffer.name,
            where=buffer.where,
            address=buffer.address if buffer.on_chip else None,
            partition=buffer.partition,
            kind=kind,
        )
        held = self.program.constants.get(buffer)
        if held is not None:
            self.builder.constants[made] = held
        return made

    def _node(self, node: Instruction | Loop) -> Instruction | Loop:
        if isinstance(node, Instruction):
            operands = tuple([self._operand(o) for o in node.operands])
            where = self.where or node.where
            return Instruction(node.form, operands, node.values, where, node.name)
        return Loop(
            [self._node(inner) for inner in node.body],
            self._operand(node.counter),
            self._operand(node.start),
            self._operand(node.stop),
            node.step,
            self._operand(node.while_true),
            self.where or node.where,
            [self.bound[b] for b in node.local],
        )

    def _operand(self, operand):
        if type(operand) is View:
            return self.view(operand)
        if isinstance(operand, Register):
            if operand.number not in self.registers:
                self.registers[operand.number] = self.builder.register(operand.name)
            return self.registers[operand.number]
        return operand

    def view(self, view: View) -> View:
        """The same view over the bound buffer."""
        made = self._views.get(view)
        if made is None:
            index = view.index
            if index is not None:
                offset = self._operand(index.offset)
                index = Indirect(index.kind, offset, index.dim, index.stride, index.limit)
            buffer, offset = self.bound[view.buffer], view.offset
            if self.moved:
                further = self.moved.get(view.buffer, 0)
                offset += further * view.buffer.dtype.itemsize // view.dtype.itemsize
            made = View(buffer, offset, view.steps, view.dtype, index)
            self._views[view] = made
        return made
