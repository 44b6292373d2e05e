"""What a program knows of its events and the trace does not: memories, PE work, time at full speed.

Events and instructions meet by what both know (name, line, flops, bytes), so loops need no special
care: all turns of a loop have the same key.
"""

from collections.abc import Iterable
from typing import NamedTuple

from opentrn.isa import Instruction, Program
from opentrn.profiler.table import Table

# BF16-equivalent work of one flop (profile schema, adjusted_hardware_flops): fp8 and the MX
# formats by NeuronCore generation.
_WIDE = {"float32": 4.0}
_FP8 = {2: 1.0, 3: 0.5, 4: 0.5}
_MX = 0.25


class Detail(NamedTuple):
    """What is known of one kind of event: bytes by memory, and how it uses its engine.

    `transpose` says that a matmul only passes its stationary operand through; `busy_ns` is the
    engine time at full speed (0 for a transfer); `dtype` the moving operand's on the Tensor Engine,
    `weight` its BF16-equivalent; `dynamic` who generates a transfer's descriptors: "static",
    "hardware", "software", or "" for engine work.
    """

    read: dict[str, int]
    written: dict[str, int]
    transpose: bool
    busy_ns: float
    dtype: str
    weight: float
    dynamic: str


def details(program: Program | None) -> dict[tuple, Detail]:
    """Detail by event key; empty without a program."""
    if program is None:
        return {}
    forms: dict = {}
    found: dict[tuple, Detail] = {}
    for one in program.instructions():
        known = forms.get(one.form)
        if known is None:
            known = forms[one.form] = _of(one)
        key, detail = known
        found[(one.opcode, one.where, *key)] = detail
    return found


def _of(one: Instruction) -> tuple[tuple, Detail]:
    form = one.form
    read = _bytes(form, ("in", "inout"))
    written = _bytes(form, ("out", "inout", "acc"))
    dtype = _tensor_dtype(form)
    detail = Detail(
        read,
        written,
        bool(getattr(form, "is_transpose", False)),
        form.cost.busy_ns,
        dtype,
        _weight(dtype, form.chip.generation),
        _dynamic(form),
    )
    return (float(form.flop_count), float(sum(read.values())), float(sum(written.values()))), detail


def _bytes(form, roles: Iterable[str]) -> dict[str, int]:
    """Bytes of the operands of these roles by memory."""
    found: dict[str, int] = {}
    for name, side in form.tiles():
        if form.operands[name].role in roles:
            found[side.space] = found.get(side.space, 0) + side.nbytes
    return found


def _tensor_dtype(form) -> str:
    if form.engine_name != "tensor":
        return ""
    side = getattr(form, "moving", None) or getattr(form, "data", None)
    return str(getattr(side, "dtype", ""))


def _weight(dtype: str, generation: int) -> float:
    if dtype.endswith("_x4"):
        return _MX
    if dtype.startswith("float8") and dtype != "float8_e3m4":
        return _FP8[generation]
    return _WIDE.get(dtype, 1.0)


def _dynamic(form) -> str:
    """Who generates the descriptors, by the mode (and, for `unknown`, the operands)."""
    if getattr(form, "move", None) is None:
        return ""
    mode = getattr(getattr(form, "dge_mode", None), "name", "unknown")
    if mode == "swdge" or form.move.issuer == "gpsimd":
        return "software"
    indirect = any(side.indirect for _, side in form.tiles())
    return "hardware" if mode == "hwdge" or indirect else "static"


def matched(table: Table, known: dict[tuple, Detail]) -> list[Detail | None]:
    """The detail of each event; None where the program does not know it, and for issue events."""
    if not known:
        return [None] * len(table)
    numbers = zip(table.flops.tolist(), table.read.tolist(), table.written.tolist(), strict=True)
    keys = zip(table.name, table.where, numbers, table.issue.tolist(), strict=True)
    return [
        None if issue else known.get((name, where, *three)) for name, where, three, issue in keys
    ]
