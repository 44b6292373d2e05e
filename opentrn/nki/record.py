"""Record a kernel's program from shapes alone: nothing is computed."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from opentrn.base import Bug
from opentrn.isa import Buffer, Builder, Program, View
from opentrn.nki.arrays import rebuilt
from opentrn.nki.jit import jit
from opentrn.nki.one_core import take_turns
from opentrn.nki.session import Session, entered, new_machine
from opentrn.nki.tensor import Handle, MemoryRegion, NkiTensor


@dataclass(frozen=True)
class Recording:
    """A kernel's program with its parameters left open.

    `parameters` are the HBM buffers standing for the tensor arguments, in the order the arguments
    were given; `results` the views the kernel returned.
    """

    program: Program
    parameters: tuple[Buffer, ...]
    results: tuple[View, ...]


def record(kernel: Callable, chip, *args: Any, **kwargs: Any) -> Recording:
    """Trace `kernel` on `chip`; every `isa.View` among the arguments stands for an HBM tensor.

    A kernel with a launch grid (`kernel[2]`) becomes the program of one core, on which its
    instances take turns (`nki.one_core`).  Raises what the chip would refuse, at the kernel's line.
    The kernel must not look at values.
    """
    made, grid = jit(kernel), getattr(kernel, "grid", (1,))
    parameters: list[Buffer] = []

    def body(session: Session) -> list[View]:
        parameters.clear()
        given = [_open(session, parameters, a) for a in args]
        named = {k: _open(session, parameters, v) for k, v in kwargs.items()}
        return _views(made.func(*given, **named))

    if prod(grid) > 1:
        program, held, results = take_turns(made.__name__, chip, grid, body)
        return Recording(program, tuple(held[p] for p in parameters), tuple(results))
    machine = new_machine(chip)
    session = Session(made.__name__, chip, machine, Builder(made.__name__, chip.name))
    session.recording_only = 1
    with entered(session):
        views = body(session)
    for view in views:
        if view.buffer not in session.builder.outputs:
            session.builder.outputs.append(view.buffer)
    session.builder.results += views
    return Recording(session.builder.program(), tuple(parameters), tuple(views))


def _open(session: Session, parameters: list[Buffer], value: Any) -> Any:
    """Views become tensors over fresh parameter buffers; containers are walked."""
    if isinstance(value, View):
        held = value.buffer
        made = session.buffer("hbm", held.shape, held.dtype, name=held.name, kind="input")
        session.builder.inputs.append(made)
        parameters.append(made)
        view = View(made, value.offset, value.steps, value.dtype)
        return NkiTensor(view, Handle(session.machine, made, MemoryRegion.shared_hbm))
    if isinstance(value, list | tuple):
        return rebuilt(value, [_open(session, parameters, v) for v in value])
    return value


def _views(result: Any) -> list[View]:
    if isinstance(result, NkiTensor):
        return [result._view]
    if isinstance(result, list | tuple):
        return [view for part in result for view in _views(part)]
    raise Bug(f"a kernel of the library returned {type(result).__name__}")
