"""What `opentrn explain <instruction>.<part>` shows, read from the instruction's class."""

from opentrn.base import Explanation, declare
from opentrn.isa.define import INSTRUCTIONS, Instr
from opentrn.isa.operands import Dim, Flag, Operand, RegIn, RegOut, Several, Value

# Parts that are laws of every instruction, not names of its own: (meaning, rule, fix).
PARTS = {
    "start_partition": (
        "A tile begins at a partition the engine cannot start from.",
        "more than 64 partitions start at 0, 33 to 64 at 0 or 64, up to 32 at 0, 32, 64 or 96",
        "begin the tile at a legal partition, or use fewer partitions",
    ),
    "generation": (
        "The target's NeuronCore does not have this instruction.",
        "an instruction exists from one generation on",
        "choose another target or another instruction",
    ),
    "engine": (
        "The instruction does not run on the engine that was asked for.",
        "each engine runs its own instructions",
        "leave `engine` out, or name one of the engines above",
    ),
    "rules": (
        "Each operand is legal, but not this combination.",
        "the refusal names the rule that is broken",
        "",
    ),
    "operands": (
        "An operand does not suit the operator or the mode that was chosen.",
        "the refusal names the operand and what it must be",
        "",
    ),
}


declare(
    "isa.fp8_format",
    "An operand has an 8-bit or MX format that the target does not have; refused as "
    "<instruction>.<operand>.dtype.",
    rule="float8_e4m3fn, float8_e8m0fnu and the x4 formats exist from NeuronCore-v4 (trn3) on",
    fix="use float8_e4m3 (max 240) or float8_e5m2, or target trn3",
    neuron="NCC_EVRF051",
)


def explain(code: str) -> Explanation | None:
    """Explain a code of the form `<instruction>.<part>`; None when nothing is called so.

    A part is a dimension, an operand, an operand's `.dtype`, a flag, or a law of PARTS.
    """
    name, _, part = code.partition(".")
    kind = INSTRUCTIONS.get(name)
    if kind is None:
        return None
    found = _own_part(kind, name, part) or PARTS.get(part)
    if found is None:
        return None
    meaning, rule, fix = found
    formula = (kind.__doc__ or "").strip().splitlines()[0]
    runs = f"It runs on {' or '.join(kind.engines)}: {formula}"
    return Explanation(code, f"{meaning}\n  {runs}", rule, fix)


def explain_all(name: str) -> list[Explanation]:
    """Explanations of every code of an instruction; none when nothing is called so."""
    kind = INSTRUCTIONS.get(name)
    if kind is None:
        return []
    dtypes = (f"{operand}.dtype" for operand in kind.operands)
    parts = dict.fromkeys([*kind.dims, *kind.operands, *dtypes, *kind.parameters, *PARTS])
    found = (explain(f"{name}.{part}") for part in parts)
    return [each for each in found if each is not None]


def _own_part(kind: type[Instr], name: str, part: str) -> tuple[str, str, str] | None:
    """Meaning, rule and fix of a dimension or parameter of this instruction."""
    if part in kind.dims:
        return _dimension(kind.dims[part], name)
    operand, _, dtype = part.partition(".")
    declared = kind.operands.get(operand) or kind.parameters.get(operand)
    if dtype not in ("", "dtype") or declared is None:
        return None
    if isinstance(declared, Operand):
        return _dtypes(declared, operand, name) if dtype else _operand(declared, operand, name)
    if isinstance(declared, Several) and not dtype:
        return (
            f"`{operand}` of {name} is no list it can take.",
            f"`{operand}` is a list of 1 to {declared.most} tiles",
            "",
        )
    if isinstance(declared, Flag | Value | RegIn | RegOut) and not dtype:
        return f"{name} does not accept what `{operand}` was given.", declared.why, ""
    return None


def _dimension(law: Dim, name: str) -> tuple[str, str, str]:
    more = f", a multiple of {law.multiple}" * (law.multiple > 1)
    more += f", at least {law.least}" * (law.least > 1)
    return (
        f"{law.name}, a size of {name}'s tiles, is outside its limit.",
        f"{law.name}{more}: {law.why}",
        f"cut the tiles along {law.name}; the refusal says into how many",
    )


def _operand(declared: Operand, operand: str, name: str) -> tuple[str, str, str]:
    dims = declared.dims
    form = f"[{', '.join(dims.split())}] " if isinstance(dims, str) and dims != "*" else ""
    rule = f"`{operand}` is a tile {form}in {' or '.join(declared.spaces)}"
    if declared.immediate:
        rule += ", or a number"
    return f"`{operand}` of {name} has the wrong place or shape, or is missing.", rule, ""


def _dtypes(declared: Operand, operand: str, name: str) -> tuple[str, str, str]:
    allowed = ", ".join(declared.dtypes) or "a dtype the chip has"
    return (
        f"`{operand}` of {name} has a dtype that the instruction or the chip does not take.",
        f"`{operand}` is {allowed}",
        "copy it into a tile of another dtype with nisa.tensor_copy, which casts",
    )
