"""Loops that run as often as their data say: the state lies in HBM, the condition in a register."""

from typing import TYPE_CHECKING

from opentrn.compiler.choose import Repeat, Use
from opentrn.isa import Buffer, Call, Register, View
from opentrn.nki import kernels, record

if TYPE_CHECKING:
    from opentrn.compiler.emit import Emitter


def emit_loop(emitter: "Emitter", repeat: Repeat) -> list[View]:
    """Emit a loop; returns the views of its last state.

    The first state is copied, for the loop writes it.  Each turn computes the next state, then puts
    it in the place of the last one, then computes the condition again."""
    value, builder = repeat.value, emitter.builder
    begin = len(builder.body)
    count = len(value.attrs.body.outputs)
    state = [
        emitter.call(Use(arg, kernels.copy, (arg,), {}, "the first state of a loop"))
        for arg in value.args[:count]
    ]
    given = [*state, *(emitter.views[arg] for arg in value.args[count:])]
    before = emitter.inside(repeat.cond, given)
    again = _condition(before)
    condition = _register(before, again)
    turn = emitter.inside(repeat.body, given)
    after = emitter.inside(repeat.cond, given)
    builder.open_loop()
    turn.emit_values()
    _replace(turn, state)
    _register(after, _condition(after), condition)
    builder.close_loop(while_true=condition, where=value.where)
    for part in (before, turn, after):
        emitter.calls += part.calls
    del emitter.starts[len(emitter.starts) - count :]
    emitter.starts.append(begin)
    return state


def _condition(emitter: "Emitter") -> View:
    """The view of a condition, 1 while the loop goes on."""
    emitter.emit_values()
    return emitter.views[emitter.graph.outputs[0]]


def _replace(turn: "Emitter", state: list[View]) -> None:
    """Put the next state in the place of the last one; parts of the last one are kept before."""
    held: set[Buffer] = {view.buffer for view in state}
    following = []
    for value, place in zip(turn.graph.outputs, state, strict=True):
        view = turn.views[value]
        if view.buffer in held and view != place:
            view = turn.call(Use(value, kernels.copy, (view,), {}, "kept while it is replaced"))
        following.append(view)
    for value, view, place in zip(turn.graph.outputs, following, state, strict=True):
        if view != place:
            turn.call(Use(value, kernels.write, (place, view), {}, "the next state of a loop"))


def _register(emitter: "Emitter", view: View, into: Register | None = None) -> Register:
    """The number at a view, in a new register or in the one given."""
    recording = record(kernels.to_register, emitter.chip, view)
    call = Call(emitter.builder, recording.program, {recording.parameters[0]: view.buffer})
    named = recording.program.body[-1].operands[0]
    if into is not None:
        call.registers[named.number] = into
    call.run()
    return call.registers[named.number]


__all__ = ["emit_loop"]
