"""From a call of an `nki.isa` function to one instruction of the running program."""

from typing import Any

import numpy as np

from opentrn.base import TrnError, UsageError, user_line
from opentrn.isa import (
    REQUIRED,
    ImmediateForm,
    Instr,
    Instruction,
    Register,
    RegisterForm,
    Several,
)
from opentrn.isa import form as make_form
from opentrn.nki.axes import check_axes
from opentrn.nki.session import _CURRENT, current
from opentrn.nki.tensor import NKIObject, NkiTensor, VirtualRegister, refuse_foreign

NUMBER = ImmediateForm()
REGISTER = RegisterForm()


class NkiInstruction(NKIObject):
    """Handle of a recorded instruction; add scheduling dependencies with `depends_on`."""

    __slots__ = ("instruction",)

    def __init__(self, handle: Instruction | None):
        self.instruction = handle

    def depends_on(self, *producers: "NkiInstruction") -> "NkiInstruction":
        """This instruction runs after every producer; returns itself.

        A producer that comes later is refused once the kernel has returned (`sim.order_ahead`).
        """
        if self.instruction is None:  # it was refused, and the recording goes on without it
            return self
        after = tuple(p.instruction for p in producers if p.instruction is not None)
        self.instruction.after = self.instruction.after + after
        current().waits = True
        return self


def operand(cls, position: int, given: Any) -> tuple[Any, Any]:
    """(what the instruction keeps, what its form sees) of one operand."""
    if given is None:
        return None, None
    if isinstance(given, bool | int | float | np.number):
        return float(given) if isinstance(given, float | np.floating) else int(given), NUMBER
    if isinstance(given, Register):
        return given, REGISTER
    if isinstance(given, NkiTensor):  # a pattern beyond its tensor raises here
        return given._view, given._view.form
    name = cls.operand_names[position]
    raise UsageError(
        f"{cls.__name__}: `{name}` is a {type(given).__name__}, not a tile",
        code="nki.operand",
        rule=f"`{name}` must be an NkiTensor",
        fix="allocate a tile with nl.ndarray and load the data into it",
    )


def issue(cls, operands: tuple, flags: tuple, values: tuple, name: str | None) -> NkiInstruction:
    """Check, run and record one instruction; errors carry the user's line."""
    session = _CURRENT.get() or current()
    machine, kept, seen = session.machine, [], []
    for position, given in enumerate(operands):
        if type(given) is NkiTensor:
            if given._handle.machine is not machine or given._indices:
                refuse_foreign(given, machine)
            view = given._view
            kept.append(view)
            seen.append(view.form)
        elif given is REQUIRED:
            _missing(cls, cls.operand_names[position])
        else:
            refuse_foreign(given, machine)
            what, shape = operand(cls, position, given)
            kept.append(what)
            seen.append(shape)
    try:
        made = make_form(cls, session.chip, tuple(seen), flags)
        if cls.relate is not Instr.relate:
            made.relate(tuple(kept))
    except TrnError as error:
        if session.refused is None:
            raise
        session.refused.append((error, kept))
        return NkiInstruction(None)
    instruction = Instruction(made, tuple(kept), values, session.line or user_line(3), name)
    if session.axes:
        check_axes(session, instruction)
    session.issue(instruction)
    return NkiInstruction(instruction)


def _missing(cls, name: str) -> None:
    raise UsageError(
        f"{cls.__name__}: `{name}` is missing",
        code=f"{cls.__name__}.{name}",
        rule=f"`{name}` has no default",
        fix=f"pass `{name}=`",
    )


def spread(cls, name: str, given: Any) -> tuple:
    """A list parameter as its operands, filled up with None; UsageError when it is no such list."""
    declared = cls.parameters[name]
    most = declared.most
    if declared.nested and isinstance(given, list | tuple):
        given = [_only(cls, name, inner) for inner in given]
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= most:
        count = len(given) if isinstance(given, list | tuple) else type(given).__name__
        raise UsageError(
            f"{cls.__name__}: `{name}` has {count} tiles"
            if isinstance(count, int)
            else f"{cls.__name__}: `{name}` is a {count}",
            code=f"{cls.__name__}.{name}",
            rule=f"`{name}` is a list of 1 to {most} tiles",
            fix=f"pass {name}=[first, second]",
        )
    return (*given, *[None] * (most - len(given)))


def _only(cls, name: str, inner: Any) -> Any:
    """The one tile of an inner list; UsageError when there is not exactly one."""
    if isinstance(inner, list | tuple) and len(inner) == 1:
        return inner[0]
    count = len(inner) if isinstance(inner, list | tuple) else 0
    raise UsageError(
        f"{cls.__name__}: an element of `{name}` is "
        + (f"a list of {count} tiles" if count != 0 else f"a {type(inner).__name__}"),
        code=f"{cls.__name__}.{name}",
        rule=f"each element of `{name}` is a list of exactly one tile",
        fix=f"pass {name}=[[first], [second]]",
    )


def new_register() -> VirtualRegister:
    """A register of the running program that holds nothing yet."""
    session = current()
    return VirtualRegister(session.builder.register().number, session.machine)


def function_of(cls, module: str):
    """The public function of an instruction class: its exact signature, its docstring.

    Made from the class, so that the two can never differ; compiled from text because a real
    signature is faster to call than binding `*args, **kwargs`.
    """
    scope: dict[str, Any] = {"_issue": issue, "_cls": cls}
    parameters = []
    for name, declared in cls.parameters.items():
        if declared.default is REQUIRED:
            parameters.append(name)
        else:
            scope[f"_default_{name}"] = declared.default
            parameters.append(f"{name}=_default_{name}")
    named = {n: n for n in cls.operands}
    for name, declared in cls.parameters.items():
        if isinstance(declared, Several):
            named = {n: w for n, w in named.items() if n not in declared.operands(name)}
            named[name] = f"*_spread(_cls, '{name}', {name})"
            scope["_spread"] = spread
    ordered = [named[n] for n in cls.parameters if n in named]
    lines = "    return _issue("
    if cls.returned:
        ordered.insert(0, cls.returned)
        scope["_register"] = new_register
        lines = f"    {cls.returned} = _register()\n    _issue("
    parts = [
        "(" + "".join(f"{n}, " for n in group) + ")" for group in (ordered, cls.flags, cls.values)
    ]
    label = "name" if cls.named else "None"
    if cls.named:
        parameters.append("name=None")
    text = (
        f"def {cls.__name__}({', '.join(parameters)}):\n"
        f"{lines}_cls, {parts[0]}, {parts[1]}, {parts[2]}, {label})\n"
    )
    if cls.returned:
        text += f"    return {cls.returned}\n"
    exec(compile(text, __file__, "exec"), scope)
    made = scope[cls.__name__]
    made.__doc__, made.__module__ = cls.__doc__, module
    return made


__all__ = ["NkiInstruction", "function_of", "issue", "operand"]
