"""One program instance: arguments become tensors, the function runs, results become arrays."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.base import UsageError, declare, numerics
from opentrn.isa import View
from opentrn.nki import arrays
from opentrn.nki.session import Session
from opentrn.nki.tensor import MemoryRegion, NkiTensor

declare(
    "nki.output_space",
    "A kernel returned a tensor that is not in shared HBM.",
    rule="outputs are allocated with buffer=nl.shared_hbm and returned",
    fix="store the result into nl.ndarray(..., buffer=nl.shared_hbm) and return that",
)
declare(
    "nki.return",
    "A kernel returned something that is not a tensor.",
    rule="a kernel returns tensors in shared HBM, or tuples and lists of them",
    fix="return the output tensors",
)


def call(session: Session, func: Callable, bound: inspect.BoundArguments) -> Any:
    """Run `func` in the (entered) session: arrays among the arguments become input tensors."""
    given: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            given[name] = {key: arrays.argument(session, key, one) for key, one in value.items()}
        else:
            given[name] = arrays.argument(session, name, value)
    own = inspect.BoundArguments(bound.signature, given)
    return func(*own.args, **own.kwargs)


def check_inputs(session: Session, program) -> None:
    """Notice inputs that the program wrote and did not return."""
    for buffer in program.mutated:
        if buffer not in program.outputs:
            session.machine.notice(
                "mutated_input",
                f"input `{buffer.name}` is written in place and not returned",
                None,
            )


def any_torch(args: tuple, kwargs: dict) -> bool:
    """Whether some argument (containers included) is a torch tensor."""

    def found(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return any(found(v) for v in value)
        if isinstance(value, dict):
            return any(found(v) for v in value.values())
        return arrays.is_torch(value)

    return found(list(args)) or found(kwargs)


def results(session: Session, result: Any, like_torch: bool) -> Any:
    """Returned tensors as arrays; records them as the program's outputs."""
    if result is None:
        return None
    if isinstance(result, list | tuple):
        return type(result)(results(session, r, like_torch) for r in result)
    if not isinstance(result, NkiTensor):
        raise UsageError(
            f"the kernel returned a {type(result).__name__}",
            code="nki.return",
            rule="a kernel returns tensors in shared HBM, or tuples and lists of them",
            fix="return the output tensors",
        )
    buffer = result._view.buffer
    if result.buffer not in (MemoryRegion.shared_hbm,):
        raise UsageError(
            f"the kernel returned `{buffer.name or 'a tensor'}` in {result.buffer.value}",
            code="nki.output_space",
            rule="outputs are allocated with buffer=nl.shared_hbm and returned",
            fix="store the result into nl.ndarray(..., buffer=nl.shared_hbm) and return that",
        )
    session.builder.outputs.append(buffer)
    _check_output(session, result._view)
    values = session.machine.storage(buffer).read(result._view)
    array = numerics.encode(values, result.dtype).reshape(result.shape)
    return arrays.from_numpy(np.array(array), like_torch)


def _check_output(session: Session, view: View) -> None:
    buffer = view.buffer
    missing = session.machine.storage(buffer).written.missing(view)
    name = buffer.name or f"output {len(session.builder.outputs) - 1}"
    if missing == 1.0:
        session.machine.notice("unwritten_output", f"output `{name}`: 100% unwritten", buffer.where)
    elif missing > 0:
        what = f"output `{name}`: {missing:.1%} unwritten"
        session.machine.notice("partial_output", what, buffer.where)
