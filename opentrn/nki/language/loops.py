"""Ranges and loops: static ones are Python's, device loops stay loops in the program."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from opentrn.base import UsageError, declare, user_line
from opentrn.isa import Register
from opentrn.nki import isa as nisa
from opentrn.nki.ordered import unordered_pairs
from opentrn.nki.session import current
from opentrn.nki.tensor import VirtualRegister

declare(
    "nki.loop",
    "A loop has bounds it cannot have.",
    rule="static ranges take integers, device loops integers and registers; a device loop's step "
    "is a positive integer constant",
    fix="use nl.fori_loop or nl.dynamic_range for bounds held in registers",
)

declare(
    "nki.migrate.dynamic_range",
    "A loop over nl.dynamic_range.",
    rule="NKI 0.6 deprecates it; it will be removed (migration guide, 0.5 to 0.6)",
    fix="nl.fori_loop(lower, upper, body), with the body as a function of the counter",
)
declare(
    "nki.no_reorder",
    "A device loop stands inside a no_reorder block.",
    rule="inside nl.no_reorder() only static ranges are allowed",
    fix="put the no_reorder block inside the loop body, or use nl.static_range",
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
    """Keep the operations of the block in program order (which is always kept here).

    Device loops inside are refused (UsageError `nki.no_reorder`).  Two engines that touch one SBUF
    tile inside are noticed (`nki.unordered_pair`).
    """
    session = current()
    session.ordered += 1
    try:
        yield
    finally:
        session.ordered -= 1
    if not session.ordered:
        session.findings += unordered_pairs(session.block)
        session.block.clear()


@contextmanager
def _body(session, runs: bool) -> Iterator[None]:
    """Open a loop body that is built once, and run meanwhile as the first iteration if `runs`.

    Memory that the body releases is kept: later iterations use the same tiles.
    """
    if session.ordered:
        raise UsageError("a device loop inside nl.no_reorder()", code="nki.no_reorder")
    session.builder.open_loop()
    session.machine.hold()
    session.recording_only += not runs
    try:
        yield
    finally:
        session.recording_only -= not runs


def _bounds(session, lower, upper, step: Any) -> tuple[int, int]:
    """First and last value known now; an empty range where nothing runs."""
    if not isinstance(step, int) or step < 1:
        raise UsageError(f"step {step!r} of a device loop", code="nki.loop")
    for bound in (lower, upper):
        if not isinstance(bound, int | np.integer | Register):
            raise UsageError(f"{bound!r} bounds a device loop", code="nki.loop")
    if session.recording_only:
        return 0, 0
    return session.machine.register(lower), session.machine.register(upper)


def _counter(session, first: int) -> VirtualRegister:
    made = VirtualRegister(session.builder.register().number, session.machine, "i", loop=True)
    session.machine.registers[made.number] = first
    return made


def _finish(session, low: int, high: int, **loop) -> None:
    made = session.builder.close_loop(where=user_line(), **loop)
    if not session.recording_only:
        session.machine.finish_loop(made, low, high)
        for look in session.lookers:
            look.after_loop(session, made)
    session.machine.let_go()


def dynamic_range(start, stop=None, step=1) -> Iterator[VirtualRegister]:
    """Iterate on the device: the body is built once, with the counter as a register.

    Bounds may be registers; `step` is a positive constant.  The body may not `break` or `return`:
    the device would not see it (UsageError `isa.open_loop` when the kernel ends).
    """
    session = current()
    session.note("nki.migrate.dynamic_range", "a loop over nl.dynamic_range")
    lower, upper = (0, start) if stop is None else (start, stop)
    low, high = _bounds(session, lower, upper, step)
    counter = _counter(session, low)
    with _body(session, low < high):
        yield counter
    _finish(session, low, high, counter=counter, start=lower, stop=upper, step=step)


def fori_loop(lower, upper, body_fun: Callable, step=1) -> None:
    """Run `body_fun(i)` on the device for i from lower to upper (exclusive) by step."""
    session = current()
    low, high = _bounds(session, lower, upper, step)
    counter = _counter(session, low)
    with _body(session, low < high):
        body_fun(counter)
    _finish(session, low, high, counter=counter, start=lower, stop=upper, step=step)


def while_loop(init, body_fun: Callable) -> None:
    """Run `r = body_fun(r)` on the device as long as register r is not zero."""
    session = current()
    condition = VirtualRegister(session.builder.register().number, session.machine, "while")
    nisa.register_move(condition, init)
    runs = not session.recording_only and session.machine.register(condition) != 0
    with _body(session, runs):
        given = VirtualRegister(session.builder.register().number, session.machine, "r")
        nisa.register_move(given, condition)
        result = body_fun(given)
        if not isinstance(result, Register):
            raise UsageError(
                f"the body of a while_loop returned {result!r}",
                code="nki.loop",
                rule="the body returns the register that is the next condition",
                fix="return the register it was given, or another one",
            )
        nisa.register_move(condition, result)
    _finish(session, 0, 1 if runs else 0, while_true=condition)
