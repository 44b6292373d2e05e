"""Kernels of the user's among those of the library: linked into the program like any other.

Such a kernel sees its operands as it would if it were called alone: each a whole tensor.  What it
writes into an operand stays its own, since values never change: it is given a copy.
"""

from math import prod
from typing import TYPE_CHECKING

from opentrn.compiler.choose import Use, choice, no
from opentrn.graph import Value
from opentrn.isa import View
from opentrn.nki import kernels

if TYPE_CHECKING:
    from opentrn.compiler.emit import Emitter


@choice("foreign")
def _foreign(value: Value) -> Use | no:
    """The kernel of the callee."""
    callee = value.attrs.callee
    name, *formats = callee.name.split(".")
    if callee.kernel is None and name == "matmul_mx":
        return Use(value, kernels.matmul_mx(*formats), value.args, {}, "scaled as it multiplies")
    if callee.kernel is None:
        return no(f"{callee.name} was read from text, which holds its name alone")
    count = prod(getattr(callee.kernel, "grid", (1,)))
    turns = f", its {count} instances in turn on one core" if count > 1 else ""
    return Use(value, callee.kernel, value.args, {}, f"a kernel of the user's{turns}")


def emit_foreign(emitter: "Emitter", use: Use) -> list[View]:
    """Link one call; the views of its results, in order."""
    given = [_whole(emitter, value) for value in use.args]
    recording = emitter.recorded(use, tuple(given))
    written = [n for n, p in enumerate(recording.parameters) if p in recording.program.mutated]
    for n in written:
        given[n] = _copy(emitter, use.args[n])
    call = emitter.link_call(use, recording, given)
    return [call.view(result) for result in recording.results]


def _whole(emitter: "Emitter", value: Value) -> View:
    """A value's memory if it lies there row by row and alone, else a copy."""
    view, shape = emitter.views[value], value.shape or (1,)
    buffer = view.buffer
    alone = view.whole and buffer.shape == shape and view.dtype == buffer.dtype
    return view if alone else _copy(emitter, value)


def _copy(emitter: "Emitter", value: Value) -> View:
    return emitter.call(Use(value, kernels.copy, (value,), {}, "a tensor of its own"))


__all__ = ["emit_foreign"]
