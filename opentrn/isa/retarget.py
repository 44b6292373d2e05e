"""The same program on another chip: every instruction checked and priced again."""

from dataclasses import replace

from opentrn.isa.define import Instr, form
from opentrn.isa.program import Instruction, Loop, Program


def for_chip(program: Program, chip) -> Program:
    """A copy of `program` whose instructions are those of `chip`; buffers are shared.

    Raises what `chip` would refuse, at the line of the instruction.
    """
    move = _Move(chip)
    body = [move.node(node) for node in program.body]
    for made, old in move.waiting:
        made.after = tuple(move.made[id(one)] for one in old.after)
    return replace(program, target=chip.name, body=body)


class _Move:
    """Copies instructions, each form made once."""

    def __init__(self, chip):
        self.chip = chip
        self.forms: dict[Instr, Instr] = {}
        self.made: dict[int, Instruction] = {}  # by id of the old instruction, for `after`
        self.waiting: list[tuple[Instruction, Instruction]] = []

    def node(self, node: Instruction | Loop) -> Instruction | Loop:
        if isinstance(node, Loop):
            return replace(node, body=[self.node(inner) for inner in node.body])
        made = Instruction(self.form(node), node.operands, node.values, node.where, node.name)
        self.made[id(node)] = made
        if node.after:
            self.waiting.append((made, node))
        return made

    def form(self, one: Instruction) -> Instr:
        old = one.form
        new = self.forms.get(old)
        if new is None:
            flags = tuple(getattr(old, name) for name in old.flags)
            try:
                new = form(type(old), self.chip, old.given, flags)
            except Exception as error:
                if one.where is not None and hasattr(error, "at"):
                    error.at = one.where
                raise
            self.forms[old] = new
        return new


__all__ = ["for_chip"]
