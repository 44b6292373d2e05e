"""The text form of a program: one line for each buffer and instruction, loops as indented blocks.

    opentrn program 1
    name "scale"
    target "trn2"
    registers 0
    buffer %0 hbm [128, 512] bfloat16 input "x" ; kernel.py:12 in scale
    buffer %1 sbuf [128, 512] float32 temp ""
    inputs %0
    outputs
    mutated
    begin
      dma_copy dst=%1[0; 512:128, 1:512]:float32 src=%0[0; 512:128, 1:512]:bfloat16
      loop r0 from 0 to r1 step 1 local %1
        memset dst=%1[0; 512:128, 1:512]:float32 value=0.0 ; kernel.py:14 in scale
    end

A view is `%buffer[offset; stride:count, …]:dtype`, with `@kind(index, dim, stride, limit)` when
part of its address is known only at run time.  Lines `result VIEW` after `mutated` name what of
the outputs is returned, where that is not all of each.  Parameters that have their default are
left out.  Values of constants are not part of the text: an `isa.exe.Executable` carries them.
"""

import json
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np

from opentrn.base import Bug, DType, Where, declare
from opentrn.isa.define import Instr
from opentrn.isa.operands import REQUIRED
from opentrn.isa.operators import Act, Op
from opentrn.isa.program import Instruction, Loop, Program, Register
from opentrn.isa.view import View

VERSION = 1
HEADER = "opentrn program"
INDENT = "  "

declare(
    "isa.text",
    "A text is not the text form of a program, or the program it describes is not possible.",
    rule="the text has the form that `opentrn.isa.program_text` writes",
    fix="write the text anew from the program, or correct the named line",
)


def program_text(program: Program) -> str:
    """The program as text; `isa.read.parse_program` makes the same program from it again."""
    return "\n".join(_Writer(program).lines()) + "\n"


def defaults(cls: type[Instr]) -> dict[str, Any]:
    """The canonical default of every flag and value that has one."""
    found = cls.__dict__.get("_text_defaults")
    if found is None:
        found = {}
        for name, declared in (*cls.flags.items(), *cls.values.items()):
            if declared.default is not REQUIRED:
                read = getattr(declared, "read", None)
                found[name] = read(declared.default) if read else declared.default
        cls._text_defaults = found
    return found


class _Writer:
    """Writes one program; buffers are numbered by their place in `program.buffers`."""

    def __init__(self, program: Program):
        self.program = program
        self.numbers = {buffer: n for n, buffer in enumerate(program.buffers)}
        self.order = {id(one): n for n, one in enumerate(program.instructions())}
        self.known: dict[View, str] = {}

    def lines(self) -> Iterator[str]:
        """Every line of the text."""
        program = self.program
        yield f"{HEADER} {VERSION}"
        yield f"name {json.dumps(program.name)}"
        yield f"target {json.dumps(program.target)}"
        yield f"registers {program.registers}"
        for number, name in sorted(self.register_names().items()):
            yield f"register r{number} {json.dumps(name)}"
        for number, buffer in enumerate(program.buffers):
            yield self.buffer(number, buffer)
        for word in ("inputs", "outputs", "mutated"):
            numbers = [f"%{self.number(b)}" for b in getattr(program, word)]
            yield " ".join([word, *numbers])
        for view in program.results:
            yield f"result {self.view(view)}"
        yield "begin"
        yield from self.block(program.body, INDENT)
        yield "end"

    def register_names(self) -> dict[int, str]:
        """The names of registers that have one."""
        found: dict[int, str] = {}
        for register in _registers(self.program.body):
            if register.name:
                found.setdefault(register.number, register.name)
        return found

    def number(self, buffer) -> int:
        """The place of a buffer in the program; Bug when the program does not list it."""
        number = self.numbers.get(buffer)
        if number is None:
            raise Bug(f"program {self.program.name!r} uses {buffer!r} without declaring it")
        return number

    def buffer(self, number: int, buffer) -> str:
        """One buffer."""
        sizes = ", ".join(map(str, buffer.shape))
        line = f"buffer %{number} {buffer.space} [{sizes}] {buffer.dtype.name} {buffer.kind} "
        line += json.dumps(buffer.name or "")
        if buffer.address is not None:
            line += f" at {buffer.address}"
        if buffer.partition:
            line += f" partition {buffer.partition}"
        return line + place(buffer.where)

    def block(self, body, indent: str) -> Iterator[str]:
        """A body and the loops in it."""
        for node in body:
            if isinstance(node, Loop):
                yield indent + self.loop(node)
                yield from self.block(node.body, indent + INDENT)
            else:
                yield indent + self.instruction(node)

    def loop(self, loop: Loop) -> str:
        """The first line of a loop, with the buffers that belong to its body."""
        if loop.while_true is not None:
            head = f"while r{loop.while_true.number}"
        else:
            start, stop, step = (self.value(v) for v in (loop.start, loop.stop, loop.step))
            head = f"loop r{loop.counter.number} from {start} to {stop} step {step}"
        if loop.local:
            head += " local " + " ".join(f"%{self.number(b)}" for b in loop.local)
        return head + place(loop.where)

    def instruction(self, one: Instruction) -> str:
        """One instruction: operands that are given, flags and values that are not the default."""
        cls, parts = type(one.form), [one.opcode]
        for name, operand in zip(one.form.operand_names, one.operands, strict=True):
            if operand is not None:
                parts.append(f"{name}={self.value(operand)}")
        usual = defaults(cls)
        chosen = [(name, getattr(one.form, name)) for name in cls.flags]
        for name, value in (*chosen, *zip(one.form.value_names, one.values, strict=True)):
            text = self.value(value)
            if name not in usual or text != self.value(usual[name]):
                parts.append(f"{name}={text}")
        if one.name is not None:
            parts.append(f"name={json.dumps(str(one.name))}")
        if one.after:
            parts.append(f"after={self.value(tuple(self.order[id(a)] for a in one.after))}")
        return " ".join(parts) + place(one.where)

    def value(self, x: Any) -> str:
        """One operand, flag or number."""
        if type(x) is View:
            return self.view(x)
        if isinstance(x, Register):
            return f"r{x.number}"
        if isinstance(x, np.ndarray):
            x = x.tolist()
        if isinstance(x, tuple | list):
            left, right = "()" if isinstance(x, tuple) else "[]"
            return left + ", ".join(self.value(v) for v in x) + right
        return _plain(x)

    def view(self, view: View) -> str:
        """`%buffer[offset; stride:count, …]:dtype@kind(index, dim, stride, limit)`."""
        text = self.known.get(view)
        if text is not None:
            return text
        steps = ", ".join(f"{stride}:{count}" for stride, count in view.steps)
        text = f"%{self.number(view.buffer)}[{view.offset}; {steps}]:{view.dtype.name}"
        index = view.index
        if index is not None:
            rest = (index.offset, index.dim, index.stride, index.limit)
            text += f"@{index.kind}({', '.join(self.value(v) for v in rest)})"
        self.known[view] = text
        return text


def _plain(x: Any) -> str:
    """A value that is not a tile, a register or a sequence."""
    if x is None:
        return "none"
    if isinstance(x, bool | np.bool_):
        return "true" if x else "false"
    if isinstance(x, int | np.integer):
        return str(int(x))
    if isinstance(x, float | np.floating):
        return repr(float(x))
    for kind, prefix in ((Op, "op"), (Act, "act"), (DType, "dtype")):
        if isinstance(x, kind):
            return f"{prefix}.{x.name}"
    if isinstance(x, Enum):
        return f"{type(x).__name__}.{x.name}"
    if isinstance(x, str):
        return json.dumps(str.__str__(x))
    raise Bug(f"a {type(x).__name__} has no text form in a program")


def _word(text: str) -> str:
    """The text itself, or a quoted string where it would be ambiguous."""
    plain = text.isprintable() and text.split() == [text] and not set(text) & set('"\\;')
    return text if plain else json.dumps(text)


def place(where: Where | None) -> str:
    """` ; file:line in function` with the portable name of the file, or nothing."""
    if where is None:
        return ""
    inside = f" in {_word(where.function)}" if where.function else ""
    return f" ; {_word(where.portable)}:{where.line}{inside}"


def _registers(body) -> Iterator[Register]:
    """Every register that occurs, in program order."""
    for node in body:
        if isinstance(node, Loop):
            near = (node.counter, node.start, node.stop, node.while_true)
            yield from (r for r in near if isinstance(r, Register))
            yield from _registers(node.body)
        else:
            for operand in node.operands:
                index = getattr(operand, "index", None)
                for found in (operand, getattr(index, "offset", None)):
                    if isinstance(found, Register):
                        yield found


__all__ = ["program_text"]
