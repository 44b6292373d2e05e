"""One program instance: arguments become tensors, the function runs, results become arrays."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from opentrn.base import UsageError, declare
from opentrn.isa import View
from opentrn.nki import arrays, exchange, refusals, versions
from opentrn.nki.session import Session
from opentrn.nki.tensor import MemoryRegion, NkiTensor, refuse_foreign

declare(
    "nki.output_space",
    "A kernel returned a tensor that is not in shared HBM.",
    rule="outputs are allocated with buffer=nl.shared_hbm and returned",
    fix="store the result into nl.ndarray(..., buffer=nl.shared_hbm) and return that",
)
declare(
    "nki.migrate.output",
    "An output lies in nl.hbm.",
    rule="since NKI 0.3 outputs must be in nl.shared_hbm (update guide)",
    fix="allocate it with buffer=nl.shared_hbm",
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
    for look in session.lookers:
        look.begin(session)
    own = inspect.BoundArguments(bound.signature, given)
    with refusals.refused():
        result = func(*own.args, **own.kwargs)
    session.machine.catch_up()
    return result


def check_inputs(session: Session, program) -> None:
    """Write back inputs that the program wrote; notice those it did not return, and collectives
    on inputs and outputs.
    """
    exchange.notice_io(session.collectives, program, session.machine)
    held = session.machine.stored
    session.findings += arrays.write_back(session.arguments, program.mutated, held)
    for buffer in program.mutated:
        if buffer not in program.outputs:
            session.machine.notice(
                "mutated_input",
                f"input `{buffer.name}` is written in place and not returned",
                None,
            )


def kind_of(args: tuple, kwargs: dict) -> str:
    """The kind of array results come back in, and the device of torch's where it is not the CPU:
    those of the first array that is not NumPy's."""

    def kinds(value: Any) -> Iterator[str]:
        if isinstance(value, list | tuple):
            for one in value:
                yield from kinds(one)
        elif isinstance(value, dict):
            for one in value.values():
                yield from kinds(one)
        else:
            yield arrays.home(value)

    found = [kind for kind in kinds([list(args), kwargs]) if kind not in ("", "numpy")]
    return found[0] if found else "numpy"


def results(session: Session, result: Any, like: str) -> Any:
    """Returned tensors as arrays; records them as the program's outputs."""
    if result is None:
        return None
    if isinstance(result, list | tuple):
        return arrays.rebuilt(result, [results(session, r, like) for r in result])
    if not isinstance(result, NkiTensor):
        raise UsageError(
            f"the kernel returned a {type(result).__name__}",
            code="nki.return",
            rule="a kernel returns tensors in shared HBM, or tuples and lists of them",
            fix="return the output tensors",
        )
    refuse_foreign(result, session.machine)
    buffer = result._view.buffer
    older = result.buffer is MemoryRegion.private_hbm and versions.before("0.3")
    if older and buffer.kind != "input":
        what = f"output `{buffer.name or 'of the kernel'}` lies in private HBM"
        session.findings.append(versions.finding("nki.migrate.output", what, buffer.where))
    elif result.buffer is not MemoryRegion.shared_hbm and buffer.kind != "input":
        what = f"`{buffer.name}`" if buffer.name else "a tensor"
        raise UsageError(
            f"the kernel returned {what} {result.dtype}{list(result.shape)} "
            f"in {result.buffer.value}",
            code="nki.output_space",
            at=buffer.where,
            rule="outputs are allocated with buffer=nl.shared_hbm and returned",
            fix="store the result into nl.ndarray(..., buffer=nl.shared_hbm) and return that",
        )
    last = buffer not in session.builder.outputs
    session.builder.outputs.append(buffer)
    session.builder.results.append(result._view)
    _check_output(session, result._view)
    return arrays.from_numpy(session.machine.storage(buffer).stored(result._view, last), like)


def _check_output(session: Session, view: View) -> None:
    buffer = view.buffer
    missing = session.machine.storage(buffer).written.missing(view)
    name = buffer.name or f"output {len(session.builder.outputs) - 1}"
    if missing == 1.0:
        session.machine.notice("unwritten_output", f"output `{name}`: 100% unwritten", buffer.where)
    elif missing > 0:
        what = f"output `{name}`: {missing:.1%} unwritten"
        session.machine.notice("partial_output", what, buffer.where)
