"""Reading the text form of a program back: every line checked, nothing in it ever executed.

The grammar is in `isa.text`.  A view outside its buffer, an instruction its chip refuses, an
unknown name: each is a FileFormatError `isa.text` that names the line.
"""

import json
import re
from typing import Any, NoReturn

from opentrn import hw
from opentrn.base import Bug, FileFormatError, TrnError, Where, dtype
from opentrn.isa import enums
from opentrn.isa.buffer import Buffer
from opentrn.isa.define import form, instruction_class
from opentrn.isa.index import Indirect
from opentrn.isa.operands import ImmediateForm, RegIn, RegisterForm, RegOut, operand_form
from opentrn.isa.operators import act, op
from opentrn.isa.program import Instruction, Loop, Program, Register
from opentrn.isa.text import HEADER, INDENT, VERSION, defaults
from opentrn.isa.view import View

STRING = r'"(?:[^"\\]|\\.)*"'
_NUMBER = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|inf|nan)(?![\w.])")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*(?:\.[A-Za-z_][A-Za-z_0-9]*)?")
_STRING = re.compile(STRING)
_VIEW = re.compile(r"%([0-9]+)\[(-?[0-9]+); (-?[0-9]+:[0-9]+(?:, -?[0-9]+:[0-9]+)*)\]:(\w+)")
_REGISTER = re.compile(r"r([0-9]+)(?![\w.])")
_PARAMETER = re.compile(r" ([A-Za-z_][A-Za-z_0-9]*)=")
_PLACE = re.compile(rf" ; ({STRING}|[^\s\";]+):([0-9]+)(?: in ({STRING}|[^\s\";]+))?$")
_BUFFER = re.compile(
    r"buffer %([0-9]+) ([a-z]+) \[([0-9]+(?:, [0-9]+)*)\] (\w+) ([a-z_]+) "
    rf"({STRING})(?: at ([0-9]+))?(?: partition ([0-9]+))?( ; .*)?$"
)
_REST = r"(?: local((?: %[0-9]+)+))?( ; .*)?$"
_LOOP = re.compile(r"loop r([0-9]+) from (r?-?[0-9]+) to (r?-?[0-9]+) step (-?[0-9]+)" + _REST)
_WHILE = re.compile(r"while r([0-9]+)" + _REST)

WORDS = {"none": None, "true": True, "false": False}
# Nobody has this much memory: larger sizes in a text are damage or mischief.
MOST_BYTES = 1 << 50
MOST_REGISTERS = 1 << 20
# What arbitrary numbers and names in the right places can make our own code raise.
MISFITS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError, Bug)


def parse_program(text: str, file: str = "program.txt") -> Program:
    """The program a text describes, its forms made anew for the chip it names.

    `file` is only named in errors.  Values of constants are not in the text: `constants` stays
    empty.  Raises FileFormatError `isa.text` with the number of the offending line.
    """
    return _Reader(text, file).program()


class _Reader:
    """Reads the lines of one text in order; `n` is the number of the current line, from 1."""

    def __init__(self, text: str, file: str):
        self.lines, self.file, self.n = text.split("\n"), file, 0
        self.line, self.at = "", 0
        self.chip: Any = None
        self.buffers: list[Buffer] = []
        self.registers: list[Register] = []
        self.made: list[Instruction] = []
        self.after: list[tuple[Instruction, tuple, int]] = []
        self.views: dict[str, View] = {}
        self.forms: dict[View, Any] = {}

    # ------------------------------------------------------------ lines

    def fail(self, what: str, rule: str = "", fix: str = "") -> NoReturn:
        """FileFormatError at the current line."""
        raise FileFormatError(
            f"{self.file}, line {self.n}: {what}",
            code="isa.text",
            rule=rule,
            fix=fix,
            at=Where(self.file, self.n),
        )

    def take(self) -> str:
        """Go to the next line."""
        if self.n >= len(self.lines):
            self.fail("the text ends too early")
        self.line, self.at = self.lines[self.n], 0
        self.n += 1
        return self.line

    def peek(self) -> str:
        """The next line, without going there."""
        return self.lines[self.n] if self.n < len(self.lines) else ""

    def after_word(self, word: str) -> str:
        """What follows `word` on the next line, which must begin with it."""
        line = self.take()
        if line != word and not line.startswith(word + " "):
            self.fail(f"`{word}` is expected here, not {line[:40]!r}")
        return line[len(word) + 1 :]

    # ------------------------------------------------------------ the program

    def program(self) -> Program:
        """The whole text."""
        version = self.after_word(HEADER)
        if version != str(VERSION):
            self.fail(f"version {version[:20]!r} of the text form", f"this is version {VERSION}")
        name, target = self.string(self.after_word("name")), self.string(self.after_word("target"))
        try:
            self.chip = hw.target(target)
        except TrnError as error:
            self.fail(error.what, error.rule, error.fix)
        self.read_registers()
        while self.peek().startswith("buffer "):
            self.buffers.append(self.read_buffer())
        inputs, outputs, mutated = (
            self.listed(self.after_word(word)) for word in ("inputs", "outputs", "mutated")
        )
        results = []
        while self.peek().startswith("result "):
            self.line, self.at = self.after_word("result"), 0
            results.append(self.view())
        if self.take() != "begin":
            self.fail(f"`begin` is expected here, not {self.line[:40]!r}")
        body = self.read_body()
        if any(self.lines[self.n :]):
            self.n += 1
            self.fail("there is more text after `end`")
        return Program(
            name=name,
            target=target,
            body=body,
            buffers=self.buffers,
            inputs=inputs,
            outputs=outputs,
            registers=len(self.registers),
            mutated=mutated,
            results=results,
        )

    def read_registers(self) -> None:
        """How many registers there are, and the names of some."""
        count = self.integer(self.after_word("registers"))
        if not 0 <= count <= MOST_REGISTERS:
            self.fail(f"{count} registers")
        self.registers = [Register(number) for number in range(count)]
        while self.peek().startswith("register r"):
            number, _, name = self.after_word("register").partition(" ")
            self.register(self.integer(number[1:])).name = self.string(name)

    def read_buffer(self) -> Buffer:
        """One buffer line."""
        match = _BUFFER.match(self.take())
        if match is None:
            self.fail("this is no buffer")
        number, space, sizes, kind_of_data, kind, name, address, partition, where = match.groups()
        if self.integer(number) != len(self.buffers):
            self.fail(f"buffer %{number} stands where %{len(self.buffers)} is expected")
        try:
            made = Buffer(
                len(self.buffers),
                space,
                tuple(self.integer(size) for size in sizes.split(", ")),
                dtype(kind_of_data),
                name=self.string(name),
                where=self.place(where or ""),
                address=None if address is None else self.integer(address),
                partition=0 if partition is None else self.integer(partition),
                kind=kind,
            )
        except FileFormatError:
            raise
        except TrnError as error:
            self.fail(error.what, error.rule, error.fix)
        rows = made.partition + made.partitions
        if made.nbytes > MOST_BYTES or (made.on_chip and rows > int(self.chip.core.partitions)):
            self.fail("the buffer is larger than any memory", "it fits the chip")
        return made

    def listed(self, text: str) -> list[Buffer]:
        """The buffers of a list like `%0 %3`."""
        return [self.buffer(word[1:]) if word[0] == "%" else self.fail(f"{word!r} is no buffer")
                for word in text.split()]  # fmt: skip

    def read_body(self) -> list[Instruction | Loop]:
        """The lines between `begin` and `end`; indentation says which loop a line belongs to."""
        open_bodies: list[list[Instruction | Loop]] = [[]]
        while self.take() != "end":
            depth, odd = divmod(len(self.line) - len(self.line.lstrip(" ")), len(INDENT))
            if odd or not 1 <= depth <= len(open_bodies):
                self.fail("the indentation does not fit any open loop")
            del open_bodies[depth:]
            self.line = self.line.lstrip(" ")
            if self.line.startswith(("loop ", "while ")):
                loop = self.read_loop()
                open_bodies[-1].append(loop)
                open_bodies.append(loop.body)
            else:
                open_bodies[-1].append(self.read_instruction())
        self.connect()
        return open_bodies[0]

    def read_loop(self) -> Loop:
        """The first line of a loop."""
        match = _WHILE.match(self.line)
        if match is not None:
            flag = self.register(self.integer(match[1]))
            return Loop([], while_true=flag, **self.loop_rest(match[2], match[3]))
        match = _LOOP.match(self.line)
        if match is None:
            self.fail("this is no loop")
        start, stop = (
            self.register(self.integer(t[1:])) if t[0] == "r" else self.integer(t)
            for t in (match[2], match[3])
        )
        step = self.integer(match[4])
        if step == 0:
            self.fail("a loop with step 0 never ends")
        counter = self.register(self.integer(match[1]))
        return Loop([], counter, start, stop, step, **self.loop_rest(match[5], match[6]))

    def loop_rest(self, local: str | None, where: str | None) -> dict[str, Any]:
        """The buffers that belong to the body of a loop, and its source line."""
        return {"local": self.listed(local or ""), "where": self.place(where or "")}

    # ------------------------------------------------------------ instructions

    def read_instruction(self) -> Instruction:
        """One instruction line, checked by its class."""
        opcode, given = self.parameters()
        name, after = given.pop("name", None), given.pop("after", ())
        where = self.place(self.line[self.at :])
        try:
            cls = instruction_class(opcode)
            made = self.bind(cls, given, where, name)
        except FileFormatError:
            raise
        except TrnError as error:
            self.fail(error.what, error.rule, error.fix)
        except MISFITS as error:
            self.fail(f"these parameters do not fit {opcode}: {error}")
        self.made.append(made)
        if after != ():
            self.after.append((made, after, self.n))
        return made

    def parameters(self) -> tuple[str, dict[str, Any]]:
        """The opcode and the parameters of the current line."""
        match = _WORD.match(self.line)
        if match is None:
            self.fail("an instruction is expected here")
        self.at, given = match.end(), {}
        while found := _PARAMETER.match(self.line, self.at):
            self.at = found.end()
            if found[1] in given:
                self.fail(f"`{found[1]}` is given twice")
            try:
                given[found[1]] = self.value()
            except RecursionError:
                self.fail(f"`{found[1]}` is nested too deeply")
        return match[0], given

    def bind(self, cls, given: dict[str, Any], where: Where | None, name) -> Instruction:
        """The instruction of these parameters; what is missing has its default."""
        unknown = given.keys() - cls.parameters.keys() - cls.operands.keys()
        if unknown:
            self.fail(f"{cls.__name__} has no parameter `{sorted(unknown)[0]}`")
        if name is not None and not isinstance(name, str):
            self.fail("`name` is a string")
        usual = defaults(cls)
        for wanted in (*cls.flags, *cls.values):
            if wanted not in given and wanted not in usual:
                self.fail(f"{cls.__name__} needs `{wanted}`")
        operands = tuple(given.get(n) for n in cls.operand_names)
        forms = tuple(
            self.form_of(declared, operand)
            for declared, operand in zip(cls.operands.values(), operands, strict=True)
        )
        flags = tuple(given.get(n, usual.get(n)) for n in cls.flags)
        values = tuple(given.get(n, usual.get(n)) for n in cls.values)
        return Instruction(form(cls, self.chip, forms, flags), operands, values, where, name)

    def form_of(self, declared, operand):
        """What checks may know of an operand."""
        if operand is None:
            return None
        if isinstance(operand, View) and not isinstance(declared, RegIn | RegOut):
            if operand not in self.forms:
                self.forms[operand] = operand_form(operand, int(self.chip.core.psum_bank))
            return self.forms[operand]
        if isinstance(operand, Register):
            return RegisterForm()
        if isinstance(operand, int | float) and not isinstance(declared, RegOut):
            return ImmediateForm()
        self.fail("an operand is a view, a register or a number")

    def connect(self) -> None:
        """Replace the numbers of `after=` by the instructions they name."""
        for one, numbers, line in self.after:
            ok = isinstance(numbers, tuple) and all(type(n) is int for n in numbers)
            if not ok or not all(0 <= n < len(self.made) for n in numbers):
                self.n = line
                self.fail("`after` lists numbers of instructions of this program")
            one.after = tuple(self.made[n] for n in numbers)

    # ------------------------------------------------------------ values

    def value(self) -> Any:
        """The value at the current position of the line."""
        line, at = self.line, self.at
        first = line[at : at + 1]
        if first == "%":
            return self.view()
        if first in ("(", "["):
            return self.sequence(first)
        if match := _NUMBER.match(line, at):
            self.at = match.end()
            text = match[0]
            return float(text) if set(text) & set(".en") else self.integer(text)
        if match := _STRING.match(line, at):
            self.at = match.end()
            return self.string(match[0])
        if match := _REGISTER.match(line, at):
            self.at = match.end()
            return self.register(self.integer(match[1]))
        if match := _WORD.match(line, at):
            self.at = match.end()
            return self.word(match[0])
        self.fail(f"a value is expected at column {at + 1}")

    def sequence(self, left: str) -> Any:
        """A tuple `(…)` or a list `[…]`."""
        right, found = {"(": ")", "[": "]"}[left], []
        self.at += 1
        while not self.line.startswith(right, self.at):
            if found:
                self.expect(", ")
            found.append(self.value())
        self.at += 1
        return tuple(found) if left == "(" else found

    def expect(self, text: str) -> None:
        """Step over `text`, which must stand here."""
        if not self.line.startswith(text, self.at):
            self.fail(f"{text!r} is expected at column {self.at + 1}")
        self.at += len(text)

    def word(self, text: str) -> Any:
        """none, true, false, or a member of a family: `op.add`, `engine.vector`, …"""
        if text in WORDS:
            return WORDS[text]
        family, _, member = text.partition(".")
        known = {"op": op, "act": act, "dtype": dtype}.get(family)
        kind = getattr(enums, family, None)
        try:
            if known is not None:
                return known(member)
            if isinstance(kind, enums.Enum.__class__):
                return kind[member]
        except (TrnError, KeyError):
            self.fail(f"there is no {family} {member!r}")
        self.fail(f"{text!r} has no meaning here")

    def view(self) -> View:
        """A view, checked to lie inside its buffer."""
        match = _VIEW.match(self.line, self.at)
        if match is None:
            self.fail(f"the view at column {self.at + 1} is not complete")
        self.at = match.end()
        known = self.views.get(match[0])
        if known is not None and not self.line.startswith("@", self.at):
            return known
        number, offset, steps, kind = match.groups()
        pairs = (step.split(":") for step in steps.split(", "))
        index = self.index() if self.line.startswith("@", self.at) else None
        try:
            made = View(
                self.buffer(number),
                self.integer(offset),
                tuple((self.integer(stride), self.integer(count)) for stride, count in pairs),
                dtype(kind),
                index,
            )
            inside = _lies_inside(made)
        except TrnError as error:
            self.fail(error.what.rpartition(": ")[2], error.rule, error.fix)
        except MISFITS:
            inside = False
        if not inside:
            self.fail(f"view {match[0]} is not inside its buffer", "a view lies inside its buffer")
        if index is None:
            self.views[match[0]] = made
        return made

    def index(self) -> Indirect:
        """`@kind(index, dim, stride, limit)` after a view."""
        self.at += 1
        kind = _WORD.match(self.line, self.at)
        if kind is None or kind[0] not in ("scalar", "vector", "tensor"):
            self.fail("a runtime index is scalar, vector or tensor")
        self.at = kind.end()
        self.expect("(")
        parts = [self.value()]
        for _ in range(3):
            self.expect(", ")
            parts.append(self.value())
        self.expect(")")
        offset, dim, stride, limit = parts
        numbers = (stride, limit, 0 if dim is None and kind[0] == "scalar" else dim)
        register = kind[0] == "scalar" and isinstance(offset, Register)
        if any(type(n) is not int for n in numbers) or not (register or _is_index(offset)):
            self.fail("the runtime index is not complete", "(index, dimension, stride, limit)")
        return Indirect(kind[0], offset, dim, stride, limit)

    # ------------------------------------------------------------ small parts

    def integer(self, text: str) -> int:
        """An integer of at most 64 bits."""
        try:
            number = int(text)
        except ValueError:
            self.fail(f"{text[:40]!r} is no integer")
        if not -(1 << 63) <= number < 1 << 64:
            self.fail(f"{text[:40]} has more than 64 bits")
        return number

    def string(self, text: str) -> str:
        """A quoted string."""
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, str):
            self.fail(f"{text[:40]!r} is no quoted string")
        return found

    def place(self, text: str) -> Where | None:
        """The source line at the end of a line; anything else there is an error."""
        if not text:
            return None
        match = _PLACE.match(text)
        if match is None:
            self.fail(f"{text[:40]!r} has no meaning here")
        file, line, function = match.groups()
        names = [self.string(n) if n and n[0] == '"' else n or "" for n in (file, function)]
        return Where(names[0], self.integer(line), names[1])

    def buffer(self, number: str) -> Buffer:
        """The buffer of that number."""
        n = self.integer(number)
        if not 0 <= n < len(self.buffers):
            self.fail(f"there is no buffer %{number}")
        return self.buffers[n]

    def register(self, number: int) -> Register:
        """The register of that number."""
        if not 0 <= number < len(self.registers):
            self.fail(f"there is no register r{number}")
        return self.registers[number]


def _is_index(offset: Any) -> bool:
    return isinstance(offset, View) and offset.space == "sbuf" and offset.dtype.is_integer


def _lies_inside(view: View) -> bool:
    """Whether every element the view can reach belongs to its buffer."""
    buffer, index = view.buffer, view.index
    if any(count < 1 for _, count in view.steps) or view.size * 4 > MOST_BYTES:
        return False
    if index is not None:
        axes = range(view.ndim)
        if index.limit < 1 or (index.dim is not None and index.dim not in axes):
            return False
    if buffer.on_chip:
        stride, count = view.steps[0]
        if view.offset < 0 or (count > 1 and stride % view.pitch):
            return False
    first, last, low, high = view.box()
    size = buffer.partition_bytes if buffer.on_chip else buffer.nbytes
    return first >= 0 and last <= buffer.partitions and low >= 0 and high <= size


__all__ = ["parse_program"]
