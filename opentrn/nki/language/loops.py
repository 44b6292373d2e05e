"""Ranges and loops: static ones are Python's, device loops stay loops in the program."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opentrn.base import UsageError, declare, user_line
from opentrn.isa import Register
from opentrn.nki import isa as nisa
from opentrn.nki.session import current
from opentrn.nki.tensor import VirtualRegister

declare(
    "nki.loop",
    "A loop has bounds it cannot have.",
    rule="static ranges take integers; a device loop's step is a positive integer constant",
    fix="use nl.fori_loop or nl.dynamic_range for bounds held in registers",
)


def _static(start, stop, step) -> range:
    if any(isinstance(x, Register) for x in (start, stop, step)):
        raise UsageError("a register bounds a static loop", code="nki.loop")
    return range(start) if stop is None else range(start, stop, step)


def affine_range(start, stop=None, step=1) -> range:
    """A loop without dependencies between iterations, unrolled when the kernel is built."""
    return _static(start, stop, step)


def sequential_range(start, stop=None, step=1) -> range:
    """A loop whose iterations depend on each other, unrolled when the kernel is built."""
    return _static(start, stop, step)


def static_range(start, stop=None, step=1) -> range:
    """A loop unrolled when the kernel is built."""
    return _static(start, stop, step)


@contextmanager
def no_reorder() -> Iterator[None]:
    """Keep the operations of the block in program order (which is always kept here)."""
    yield


def _check_step(step: Any) -> None:
    if not isinstance(step, int) or step < 1:
        raise UsageError(f"step {step!r} of a device loop", code="nki.loop")


def _record(session, counter: VirtualRegister, first: int, runs: bool) -> Iterator[VirtualRegister]:
    """Open a loop body, let the caller build it once, running it as the first iteration."""
    session.builder.open_loop()
    session.machine.registers[counter.number] = first
    session.recording_only += not runs
    try:
        yield counter
    finally:
        session.recording_only -= not runs


def _bounds(session, lower, upper) -> tuple[int, int]:
    return session.machine.register(lower), session.machine.register(upper)


def dynamic_range(start, stop=None, step=1) -> Iterator[VirtualRegister]:
    """Iterate on the device: the body is built once, with the counter as a register.

    Bounds may be registers; `step` is a positive constant.
    """
    _check_step(step)
    session = current()
    lower, upper = (0, start) if stop is None else (start, stop)
    low, high = _bounds(session, lower, upper)
    counter = VirtualRegister(session.builder.register().number, session.machine, "i", loop=True)
    yield from _record(session, counter, low, low < high)
    _finish(session, counter, lower, upper, step, low, high)


def _finish(session, counter, lower, upper, step, low: int, high: int) -> None:
    loop = session.builder.close_loop(
        counter=counter, start=lower, stop=upper, step=step, where=user_line()
    )
    session.machine.finish_loop(loop, low, high)


def fori_loop(lower, upper, body_fun: Callable, step=1) -> None:
    """Run `body_fun(i)` on the device for i from lower to upper (exclusive) by step."""
    _check_step(step)
    session = current()
    low, high = _bounds(session, lower, upper)
    counter = VirtualRegister(session.builder.register().number, session.machine, "i", loop=True)
    for i in _record(session, counter, low, low < high):
        body_fun(i)
    _finish(session, counter, lower, upper, step, low, high)


def while_loop(init, body_fun: Callable) -> None:
    """Run `r = body_fun(r)` on the device as long as register r is not zero."""
    session = current()
    condition = VirtualRegister(session.builder.register().number, session.machine, "while")
    nisa.register_move(condition, init)
    runs = session.machine.register(condition) != 0
    session.builder.open_loop()
    session.recording_only += not runs
    try:
        given = VirtualRegister(session.builder.register().number, session.machine, "r")
        nisa.register_move(given, condition)
        result = body_fun(given)
        nisa.register_move(condition, result)
    finally:
        session.recording_only -= not runs
    loop = session.builder.close_loop(while_true=condition, where=user_line())
    session.machine.finish_loop(loop, 0, 1 if runs else 0)
