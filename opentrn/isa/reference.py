"""Reference pages and worked explanations of instructions, made from their classes.

Examples are found, not written: a small legal form of the instruction is searched for, then changed
in one place until the instruction refuses it with the very code that is to be explained.
"""

import inspect
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

from opentrn import hw
from opentrn.base import (
    ON_CHIP,
    Explanation,
    TrnError,
    UnknownNameError,
    declare,
    dtype,
    explanation,
    nearest,
)
from opentrn.isa import explanations
from opentrn.isa.define import INSTRUCTIONS, Instr, instruction_class, legal_starts, signature
from opentrn.isa.enums import engine
from opentrn.isa.operands import (
    REQUIRED,
    Dim,
    ImmediateForm,
    Operand,
    OperandForm,
    RegisterForm,
    Several,
    Transfer,
)

declare(
    "isa.unknown_code",
    "There is no error with this code.",
    rule="a code is `<instruction>.<part>` or `<room>.<name>`",
    fix="copy the code from the last line of the error",
)

# What a search for a legal form tries, likeliest first: sizes of (first, other) dimensions, one
# dtype for all operands that allow it, values for flags that have no default.
SIZES = (
    (128, 8), (32, 8), (16, 8), (1, 8), (8, 8), (32, 32), (128, 64), (128, 6), (128, 1), (1, 1),
)  # fmt: skip
DTYPES = tuple(map(dtype, ("float32", "bfloat16", "uint32", "int32", "uint16", "float8_e4m3fn_x4")))
ANY_PART = "start_partition"
CANDIDATES: dict[str, tuple] = {
    "op": ("add", "exp"),
    "op0": ("multiply", "add"),
    "op1": ("add",),
    "reduce_op": ("add",),
    "comp_op0": ("greater_equal",),
    "comp_op1": ("less",),
    "axis": (1, (1,)),
    "value": (0.0,),
    "shuffle_mask": (tuple(range(32)),),
    "n": (8,),
    "cores": ((0, 1),),
    "send_to_rank": (1,),
    "recv_from_rank": (1,),
    "pipe_id": (0,),
    "replica_group": (((0,),), ((0, 1, 2, 3),)),
    "collective_dim": (0,),
    "source_target_pairs": (((0, 1), (1, 0)),),
}


# ---------------------------------------------------------------------- a legal form


def _flags(cls: type[Instr], free: int) -> Iterator[tuple]:
    """Values for the flags: defaults, and candidates where there is none."""
    choices = []
    for name, flag in cls.flags.items():
        if flag.default is not REQUIRED:
            choices.append((flag.default,))
        else:
            choices.append((*CANDIDATES.get(name, ()), "add", 8, ((1, free),), ((1, 0),)))
    return product(*choices)


def _operand(declared, text: str, sizes: dict[str, int], kind, space: int) -> Any:
    """The form of one operand; None where it may be left out."""
    if not isinstance(declared, Operand):
        return RegisterForm()
    if declared.default is None or (declared.nullable and not declared.immediate):
        return None
    if declared.immediate:
        return ImmediateForm()
    return _tile(declared, text, sizes, kind, space)


def _tile(declared: Operand, text: str, sizes: dict[str, int], kind, space: int) -> OperandForm:
    """An operand as a tile of these sizes."""
    names = ("P", "F") if text == "*" else text.split()
    shape = tuple(int(n) if n.isdigit() else sizes.get(n, 8) for n in names)
    allowed = declared.dtypes or ON_CHIP
    chosen = kind if kind in allowed else allowed[0]
    spaces = declared.spaces
    return OperandForm(spaces[min(space, len(spaces) - 1)], shape, chosen, run=shape[-1])


def _dims_of(cls: type[Instr], chip, flags: tuple) -> dict[str, str]:
    """The dimension names of each operand, for these flags."""
    blank = object.__new__(cls)
    blank.chip, blank.sizes = chip, {}
    blank._read_flags(flags)
    found = {}
    for name, declared in cls.operands.items():
        dims = getattr(declared, "dims", "")
        found[name] = dims(blank) if callable(dims) else dims
    return found


@cache
def sample(cls: type[Instr], chip) -> tuple[tuple, tuple] | None:
    """`(operand forms, flags)` of a small form this chip accepts; None when none was found."""
    if chip.generation not in cls.generations:
        return None
    for (first, other), kind, space in product(SIZES, DTYPES, (0, 1)):
        sizes = dict.fromkeys(cls.dims, other) | {"P": first, "K": first} | cls.example
        for flags in _flags(cls, other):
            try:
                dims = _dims_of(cls, chip, flags)
                operands = tuple(
                    _operand(declared, dims[name], sizes, kind, space)
                    for name, declared in cls.operands.items()
                )
                cls(chip, operands, flags)
            except (TrnError, TypeError, ValueError, AttributeError, LookupError):
                continue
            return operands, flags
    return None


def _first_sample(cls: type[Instr]):
    """A chip and a legal form on it: trn2, else any chip that has the instruction."""
    for name in ("trn2", *hw.chips()):
        chip = hw.chip(name)
        found = sample(cls, chip)
        if found is not None:
            return chip, *found
    return None


def _made(cls: type[Instr], chip) -> Instr | None:
    found = sample(cls, chip)
    return cls(chip, *found) if found is not None else None


# ---------------------------------------------------------------------- pages


def page(name: str) -> str:
    """The reference page of an instruction as plain text; UnknownNameError for no such name."""
    cls = instruction_class(name)
    forms = {n: _made(cls, hw.chip(n)) for n in hw.chips()}
    parts = [
        f"{name}{_signature_text(cls)}",
        inspect.cleandoc(cls.__doc__ or ""),
        _where_it_runs(cls),
        _section("Operands", _operand_rows(cls)),
        _section("Choices", _choice_rows(cls)),
        _section("Sizes", _size_rows(cls, forms)),
        _section("Rules", _rule_rows(forms)),
        _section("Cost", _cost_rows(cls, forms)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _signature_text(cls: type[Instr]) -> str:
    """The parameters with their defaults, as one would write them."""
    shown = []
    for name, parameter in signature(cls).parameters.items():
        if parameter.default is inspect.Parameter.empty:
            shown.append(name)
        else:
            shown.append(f"{name}={plain(parameter.default)}")
    return f"({', '.join(shown)})"


def plain(value: Any) -> str:
    """A flag, default or number as a user would write it (members and operators by name)."""
    if isinstance(value, str):
        return str.__str__(value)
    named = getattr(value, "name", None)
    return named if isinstance(named, str) else repr(value)


def _section(title: str, rows: list[tuple[str, ...]]) -> str:
    """A title and aligned columns below it."""
    if not rows:
        return ""
    widths = [max(len(row[n]) for row in rows if len(row) > n) for n in range(max(map(len, rows)))]
    lines = [
        "  " + "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False))
        for row in rows
    ]
    return "\n".join([title, *(line.rstrip() for line in lines)])


def _where_it_runs(cls: type[Instr]) -> str:
    chips = [n for n in hw.chips() if hw.chip(n).generation in cls.generations]
    return f"Runs on the {' or '.join(cls.engines)} engine of {', '.join(chips)}."


def _operand_rows(cls: type[Instr]) -> list[tuple[str, ...]]:
    rows = []
    for name, declared in _shown_operands(cls):
        if not isinstance(declared, Operand):
            rows.append((name, "register", declared.why))
            continue
        dims = declared.dims if isinstance(declared.dims, str) else "(depends on the flags)"
        shape = "any shape" if dims == "*" else f"[{', '.join(dims.split())}]"
        shape = dims if dims.startswith("(") else shape
        space = " or ".join(declared.spaces) + (", or a number" if declared.immediate else "")
        kinds = _kinds(declared.dtypes)
        role = {"in": "read", "out": "written", "inout": "changed", "acc": "accumulated"}
        rows.append((name, role[declared.role], space, shape, kinds))
    return rows


def _shown_operands(cls: type[Instr]) -> Iterator[tuple[str, Any]]:
    """The operands by name, those of a list parameter as one row."""
    hidden = set()
    for name, declared in cls.parameters.items():
        if isinstance(declared, Several):
            first, *others = declared.operands(name)
            hidden.update(others)
            yield f"{first} … {declared.most - 1}", declared.operand
            hidden.add(first)
    yield from ((n, declared) for n, declared in cls.operands.items() if n not in hidden)


def _kinds(allowed: tuple) -> str:
    """The dtypes, or the few that are missing."""
    missing = [kind for kind in ON_CHIP if allowed and kind not in allowed]
    if not missing:
        return "any dtype of the chip"
    return ", ".join(allowed) if len(allowed) <= 8 else f"any dtype but {', '.join(missing)}"


def _choice_rows(cls: type[Instr]) -> list[tuple[str, ...]]:
    return [
        (name, "" if d.default is REQUIRED else f"= {plain(d.default)}", d.why)
        for name, d in (*cls.flags.items(), *cls.values.items())
    ]


def _limit(law: Dim, form: Instr | None) -> int | None:
    if form is None:
        return None
    try:
        return law.limit(form, form.chip)
    except (TrnError, TypeError, ValueError, AttributeError, LookupError):
        return None


def _size_rows(cls: type[Instr], forms: dict[str, Instr | None]) -> list[tuple[str, ...]]:
    rows = []
    for name, law in cls.dims.items():
        limits = {chip: _limit(law, form) for chip, form in forms.items() if form is not None}
        limits = {chip: most for chip, most in limits.items() if most is not None}
        text = f"≥ {law.least}" if law.least > 1 else ""
        if law.multiple > 1:
            text += f", a multiple of {law.multiple}"
        if limits and len(set(limits.values())) == 1:
            text += f", ≤ {next(iter(limits.values()))}"
        elif limits:
            text += ", ≤ " + ", ".join(f"{most} on {chip}" for chip, most in limits.items())
        rows.append((name, text.removeprefix(", ") or "no limit of its own", law.why))
    return rows


def _rule_rows(forms: dict[str, Instr | None]) -> list[tuple[str, ...]]:
    """The rules as they read for the example on trn2, or the first chip that has one."""
    form = forms.get("trn2") or next((f for f in forms.values() if f is not None), None)
    found = dict.fromkeys(rule for _, rule, _ in form.rules()) if form is not None else {}
    return [(rule,) for rule in found]


def _cost_rows(cls: type[Instr], forms: dict[str, Instr | None]) -> list[tuple[str, ...]]:
    law = getattr(cls, "cycles", None) or cls.transfer
    rows = [(law.grade, law.source)]
    for chip, form in forms.items():
        if form is not None:
            rows.append((chip, f"{_time(form)} for {call(cls, form.given, _given_flags(form))}"))
    return rows


def _given_flags(form: Instr) -> tuple:
    return tuple(getattr(form, name) for name in form.flags)


def _time(form: Instr) -> str:
    move = getattr(form, "move", None)
    if isinstance(move, Transfer):
        return f"{move.issue_ns + move.start_ns + move.busy_ns:.0f} ns"
    return f"{form.cost.busy_ns:.1f} ns busy, {form.cost.latency_ns:.1f} ns more to the result"


def call(cls: type[Instr], operands: tuple, flags: tuple) -> str:
    """A form as a call: tiles by space, shape and dtype, flags that are not the default."""
    shown = []
    for name, given in zip(cls.operand_names, operands, strict=True):
        if isinstance(given, OperandForm):
            start = f" from partition {given.partition}" if given.partition else ""
            shown.append(f"{name}={given.space}{list(given.shape)} {given.dtype}{start}")
        elif given is not None:
            shown.append(f"{name}=<{given.kind}>")
    for (name, flag), value in zip(cls.flags.items(), flags, strict=True):
        usual = flag.default is not REQUIRED and plain(flag.default) == plain(value)
        shown.extend([] if usual else [f"{name}={plain(value)}"])
    return f"{cls.__name__}({', '.join(shown)})"


# ---------------------------------------------------------------------- explanations


def explain(code: str) -> str:
    """What an error code means, its rule and fix, with a wrong and a right example if derivable.

    Knows `<instruction>.<part>` and every declared code; UnknownNameError for others.
    """
    found = explanations.explain(code) or explanation(code)
    if found is None:
        known = [f"{name}.{part}" for name, cls in INSTRUCTIONS.items() for part in _parts(cls)]
        raise UnknownNameError(
            f"there is no error code {code!r}",
            code="isa.unknown_code",
            fix=f"nearest codes: {', '.join(nearest(code, known)) or 'none'}",
        )
    return "\n".join([_explanation_text(found), *_example_lines(code)])


def _parts(cls: type[Instr]) -> list[str]:
    return [*cls.dims, *cls.parameters, *(f"{name}.dtype" for name in cls.operands)]


def _explanation_text(found: Explanation) -> str:
    lines = [found.code + (f"  ({found.neuron})" if found.neuron else "")]
    parts = (("", found.meaning), ("rule  ", found.rule), ("fix   ", found.fix))
    return "\n".join([*lines, *(f"  {name}{text}" for name, text in parts if text)])


def _example_lines(code: str) -> list[str]:
    found = example(code)
    if found is None:
        return []
    wrong, why, right = found
    return [f"  wrong {wrong}", f"        {why}", f"  right {right}"]


@cache
def example(code: str) -> tuple[str, str, str] | None:
    """`(wrong call, what is said about it, right call)` for an instruction's code, or None.

    The wrong call differs from the right one in one place and is refused with exactly this code.
    """
    name, _, part = code.partition(".")
    cls = INSTRUCTIONS.get(name)
    legal = _first_sample(cls) if cls is not None else None
    if legal is None:
        return None
    chip, operands, flags = legal
    for other, wrong, changed in _variants(cls, part, chip, operands, flags):
        try:
            cls(other, wrong, changed)
        except TrnError as error:
            if error.code == code:
                on = "" if other is chip else f" on {other.name}"
                right = call(cls, operands, flags) + (f" on {chip.name}" if on else "")
                return call(cls, wrong, changed) + on, error.what, right
        except (TypeError, ValueError, AttributeError, LookupError):
            continue
    return None


def _variants(cls, part: str, chip, operands: tuple, flags: tuple) -> Iterator[tuple]:
    """Changed forms that may break the law `part`: (chip, operands, flags)."""
    if part in cls.dims:
        yield from ((chip, o, flags) for o in _other_sizes(cls, part, chip, operands, flags))
    if part == "generation":
        yield from ((hw.chip(n), operands, flags) for n in hw.chips())
    if part == "engine" and "engine" in cls.flags:
        at = list(cls.flags).index("engine")
        for one in engine:
            yield chip, operands, (*flags[:at], one, *flags[at + 1 :])
    dims, sizes = _dims_of(cls, chip, flags), cls(chip, operands, flags).sizes
    for at, (name, declared) in enumerate(cls.operands.items()):
        if not isinstance(declared, Operand) or part not in (name, f"{name}.dtype", ANY_PART):
            continue
        form = operands[at]
        if not isinstance(form, OperandForm):
            form = _tile(declared, dims[name], sizes, DTYPES[0], 0)
        for changed in _other_tiles(part, name, form):
            yield chip, (*operands[:at], changed, *operands[at + 1 :]), flags


def _other_tiles(part: str, name: str, form: OperandForm) -> Iterator[OperandForm]:
    """One operand in another memory, of another dtype, or starting at another partition."""
    if part == name:
        yield from (form._replace(space=space) for space in ("hbm", "psum", "sbuf"))
    if part == f"{name}.dtype":
        yield from (form._replace(dtype=kind) for kind in ON_CHIP)
    if part == ANY_PART:
        later = (p for p in (32, 8, 5) if p not in legal_starts(form.partitions))
        yield from (form._replace(partition=start) for start in later)


def _other_sizes(cls, dim: str, chip, operands: tuple, flags: tuple) -> Iterator[tuple]:
    """The operands with one dimension beyond its limit, or not a multiple of what it must be."""
    law, form = cls.dims[dim], cls(chip, operands, flags)
    most = _limit(law, form)
    sizes = [most + law.multiple] if most is not None else []
    sizes += [law.least - 1, form.sizes.get(dim, 1) + 1]
    dims = _dims_of(cls, chip, flags)
    for size in (s for s in sizes if s > 0):
        yield tuple(
            _resized(given, dims[name].split(), dim, size)
            for name, given in zip(cls.operand_names, operands, strict=True)
        )


def _resized(given: Any, names: list[str], dim: str, size: int) -> Any:
    if not isinstance(given, OperandForm) or dim not in names:
        return given
    shape = tuple(size if n == dim else s for n, s in zip(names, given.shape, strict=True))
    return given._replace(shape=shape, run=shape[-1])


__all__ = ["call", "example", "explain", "page", "plain", "sample"]
