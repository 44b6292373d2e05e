"""How the machine runs the instructions of one form, worked out once for each form."""

from typing import Any, NamedTuple

from opentrn.base import float32
from opentrn.isa import Instruction, RegisterForm, View
from opentrn.sim import dynamic


class Plan(NamedTuple):
    """How instructions of one form run: what they read and write, by operand position.

    `plain` forms have static operands in memory and nothing else; they run without closures.
    `sums` are such forms that add to their output; `direct` such whose `run` may write its result
    straight into a float32 tile.  `waits`: may be put off behind a matmul (see `sim.late`).
    `inputs` and `outputs` are (position, name).  `exact`: `run` does no arithmetic; `moves`: its
    result is the source, in the source's dtype and shape; `checked`: inputs whose memory must have
    been written (what an instruction only leaves as it was need not).  `ignored` are (check, what
    it says) of operands without effect, or of which nobody knows whether they have one.
    """

    plain: bool
    sums: bool
    direct: bool
    waits: bool
    inputs: tuple[tuple[int, str], ...]
    outputs: tuple[tuple[int, str], ...]
    exact: bool
    moves: bool
    checked: tuple[tuple[int, str], ...]
    ignored: tuple[tuple[str, str], ...]


def plan_of(form) -> Plan:
    """The plan of a form, made once and kept on it."""
    if form.plan is None:
        form.plan = _plan(form)
    return form.plan


def _plan(form) -> Plan:
    roles = [getattr(o, "role", "register") for o in form.operands.values()]
    names = list(enumerate(form.operand_names))
    tiles = [tile for _, tile in form.tiles()]
    registers = any(isinstance(given, RegisterForm) for given in form.given)
    special = "register" in roles or registers or form.partial or form.meets
    special = special or dynamic.skips(form) or any(t.indirect for t in tiles)
    plain = not special and "acc" not in roles
    outputs = tuple((n, name) for n, name in names if roles[n] in ("out", "inout", "acc"))
    moves = plain and type(form).__name__ == "dma_copy" and _alike(tiles)
    return Plan(
        plain=plain,
        sums=not special and "acc" in roles,
        direct=plain and form.delivers and _same(tiles),
        waits=moves or plain and form.waits and not form.state and len(outputs) == 1,
        inputs=tuple((n, name) for n, name in names if roles[n] in ("in", "inout")),
        outputs=outputs,
        exact=form.exact(),
        moves=moves,
        checked=tuple(
            (n, name)
            for n, name in names
            if roles[n] == "in" or roles[n] == "inout" and not form.partial
        ),
        ignored=(
            *_noticed("ignored_operand", form, form.ignored()),
            *_noticed("disputed_operand", form, form.disputed()),
            *_noticed("undefined_operand", form, form.undefined()),
        ),
    )


def _noticed(check: str, form, found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """(check, text) for each (operand, reason) of a form."""
    return [(check, f"{type(form).__name__}: `{n}`: {why}") for n, why in found]


def _alike(tiles: list) -> bool:
    """Whether the two tiles have one shape and dtype."""
    return tiles[0].shape == tiles[1].shape and tiles[0].dtype == tiles[1].dtype


def _same(tiles: list) -> bool:
    """Whether `dst` is float32 and has the shape of the first input, as its result will.

    And is dense: what is computed into elements that lie on each other cannot be read back whole.
    """
    dst = tiles[0]
    dense = dst.span == 0 and dst.repeats == 1
    return dst.dtype is float32 and dst.shape == tiles[1].shape and dense


def check_range(machine, instruction: Instruction, plan: Plan) -> None:
    """Notice inputs for which the instruction's function is not defined."""
    found = outside(machine, instruction, plan)
    if found:
        what = f"{instruction.opcode}: {instruction.form.range_text(found)}"
        machine.notice("activation_range", what, instruction.where)


def outside(machine, instruction: Instruction, plan: Plan) -> Any:
    """What of the inputs lies where the instruction's function is not defined, if anything."""
    given = {}
    for n, name in plan.inputs:
        operand = instruction.operands[n]
        given[name] = machine.held(operand) if isinstance(operand, View) else operand
    return instruction.form.outside(**given)


__all__ = ["Plan", "check_range", "outside", "plan_of"]
