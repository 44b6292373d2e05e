"""One program instance: arguments become tensors, the function runs, results become arrays."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.base import UsageError, declare, numerics
from opentrn.isa import Buffer, view_of
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
    given = [
        (kind, name, arrays.argument(session, name, value))
        for name, (kind, value) in _parts(func, bound).items()
    ]
    positional = [v for kind, _, v in given if kind == "one"]
    positional += [x for kind, _, v in given if kind == "many" for x in v]
    named = {n: v for kind, n, v in given if kind == "keyword"}
    named.update({k: x for kind, _, v in given if kind == "named" for k, x in v.items()})
    return func(*positional, **named)


def check_inputs(session: Session, program) -> None:
    """Notice inputs that the program wrote and did not return."""
    for buffer in program.mutated:
        if buffer not in program.outputs:
            session.machine.notice(
                "mutated_input",
                f"input `{buffer.name}` is written in place and not returned",
                None,
            )


def _parts(func: Callable, bound: inspect.BoundArguments) -> dict[str, tuple[str, Any]]:
    """Each parameter's way of being passed ("one", "many", "keyword", "named") and its value."""
    kinds = {
        inspect.Parameter.POSITIONAL_ONLY: "one",
        inspect.Parameter.POSITIONAL_OR_KEYWORD: "keyword",
        inspect.Parameter.VAR_POSITIONAL: "many",
        inspect.Parameter.KEYWORD_ONLY: "keyword",
        inspect.Parameter.VAR_KEYWORD: "named",
    }
    parameters = inspect.signature(func).parameters
    ways = {name: kinds[parameters[name].kind] for name in bound.arguments}
    if "many" in ways.values():
        ways = {name: "one" if way == "keyword" else way for name, way in ways.items()}
    return {name: (ways[name], value) for name, value in bound.arguments.items()}


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
    _check_output(session, buffer)
    values = session.machine.storage(buffer).read(result._view)
    array = numerics.encode(values, result.dtype).reshape(result.shape)
    return arrays.from_numpy(np.array(array), like_torch)


def _check_output(session: Session, buffer: Buffer) -> None:
    missing = session.machine.storage(buffer).written.missing(view_of(buffer))
    name = buffer.name or f"output {len(session.builder.outputs) - 1}"
    if missing == 1.0:
        session.machine.notice("unwritten_output", f"output `{name}`: 100% unwritten", buffer.where)
    elif missing > 0:
        what = f"output `{name}`: {missing:.1%} unwritten"
        session.machine.notice("partial_output", what, buffer.where)
