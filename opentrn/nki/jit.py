"""`nki.jit` and `nki.run`: call a kernel on arrays, get arrays back."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from types import FunctionType
from typing import Any

import numpy as np

from opentrn.base import Bug, UsageError, declare
from opentrn.isa import Builder, quiet
from opentrn.nki import traced, versions
from opentrn.nki.again import Launch, launch_of, remember, replayed
from opentrn.nki.cores import launch as launch_cores
from opentrn.nki.exchange import World
from opentrn.nki.launch import call, check_inputs, kind_of, results
from opentrn.nki.refusals import PlainTracebacks
from opentrn.nki.session import (
    Run,
    Session,
    chosen_chip,
    entered,
    new_machine,
    report,
    running,
)
from opentrn.nki.typing import check_declared
from opentrn.sim import one_blas_thread

declare(
    "nki.grid",
    "A launch grid has a size that is not a positive integer.",
    rule="kernel[n] runs n program instances, n ≥ 1",
    fix="launch with kernel[2](...), or kernel(...) for one",
)
declare(
    "nki.migrate.jit",
    "nki.jit is given an option that NKI 0.3 dropped.",
    rule="since NKI 0.3 `platform_target` is an error and `mode` is ignored (update guide); here "
    "platform_target names the chip where nothing else does",
    fix="leave the option out; set NEURON_PLATFORM_TARGET_OVERRIDE, call nki.simulate(kernel)",
)


declare(
    "nki.call",
    "A kernel is called with arguments that its signature does not take, or is no function.",
    rule="a kernel is a Python function, and its call fits its signature",
    fix="pass the arguments the kernel's `def` names",
)


_TAKER: ContextVar[Callable[..., Any] | None] = ContextVar("taker", default=None)


@contextmanager
def taking_launches(taker: Callable[[Any, tuple, dict[str, Any]], Any]) -> Iterator[None]:
    """Within it, a launch of a kernel is what `taker(kernel, args, kwargs)` returns.

    So a framework that traces a function makes operations of the kernels it launches."""
    token = _TAKER.set(taker)
    try:
        yield
    finally:
        _TAKER.reset(token)


class CallError(UsageError, TypeError):
    """A call that does not fit: also the TypeError that Python raises for one."""


class AnyKernel:
    """A kernel of `nki` or of the older `neuronxcc.nki`: a function, a launch grid, options."""

    def __init__(self, func: Callable, grid: tuple[int, ...] = (1,), **options: Any):
        functools.update_wrapper(self, func)
        self.func, self.grid, self.options = func, grid, options
        self.known: tuple[tuple, inspect.Signature] | None = None

    @property
    def instances(self) -> int:
        """How many program instances a call runs."""
        return prod(self.grid)

    def __repr__(self) -> str:
        return f"<nki kernel {self.__name__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays; inside another kernel, as part of that one."""
        if running():
            return self.func(*args, **kwargs)
        taker = _TAKER.get()
        if taker is not None:
            return taker(self, args, kwargs)
        with PlainTracebacks():
            return self._launch(args, kwargs)

    def _launch(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run on arrays; results come back in the same kind."""
        raise Bug("a kernel without a way to run")

    def launch_ranks(self, sets: list[tuple[tuple, dict]], nodes: int) -> tuple[Run, ...]:
        """Run on as many ranks as there are (positional, named) arguments."""
        raise Bug("a kernel without a way to run on ranks")


class Kernel(AnyKernel):
    """A kernel function that can be called on arrays, inspected, and launched on a grid.

    Called inside another kernel it runs as part of that one.  `func` is the Python function.
    """

    def __getitem__(self, grid) -> "Kernel":
        """The same kernel launched on `grid` program instances (cores of a logical NeuronCore).

        Raises UsageError `nki.grid` for sizes that are not positive integers.
        """
        sizes = grid if isinstance(grid, tuple) else (grid,)
        whole = all(isinstance(s, int | np.integer) and s >= 1 for s in sizes)
        if not sizes or not whole:
            raise UsageError(f"a launch grid {list(sizes)}", code="nki.grid")
        return Kernel(self.func, tuple(int(s) for s in sizes), **self.options)

    def _launch(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run on arrays (NumPy, torch or JAX); results come back in the same kind.

        Inside jax.jit and jax.vmap the kernel is one operation (`nki.traced`).
        """
        if "jax" in sys.modules and traced.any_traced(args, kwargs):
            return traced.call(self, lambda a, k: run(self, *a, **k).outputs, args, kwargs)
        return run(self, *args, **kwargs).outputs


def jit(fn: Callable | None = None, **kwargs: Any) -> Any:
    """Make a kernel of a Python function; usable as `@nki.jit` and `@nki.jit(...)`.

    Options of older releases are kept in `Kernel.options`: `platform_target` names the chip the
    kernel runs for where nothing else does; `mode` and the rest change nothing here.
    """
    if fn is None:
        _note_options(kwargs)
        return lambda func: _kernel(func, kwargs)
    if kwargs:
        _note_options(kwargs)
    return _kernel(fn, kwargs)


def _kernel(func: Callable, options: dict[str, Any]) -> "Kernel":
    if not callable(func):
        raise CallError(f"nki.jit({func!r}): this is no function", code="nki.call")
    return func if isinstance(func, Kernel) else Kernel(func, **options)


def bind(kernel: Kernel, args: tuple, kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """The arguments by the names of the kernel's parameters; CallError when they do not fit."""
    try:
        return _signature(kernel).bind(*args, **kwargs)
    except TypeError as error:
        raise CallError(f"{kernel.__name__}: {error}", code="nki.call") from None


def _signature(kernel: AnyKernel) -> inspect.Signature:
    """The signature of the kernel's function, kept as long as nothing it is read from changes."""
    func = kernel.func
    if type(func) is not FunctionType or func.__kwdefaults__ or func.__dict__:
        return inspect.signature(func)
    source = func.__code__, func.__defaults__, tuple(func.__annotations__.items())
    if kernel.known is None or kernel.known[0] != source:
        kernel.known = source, inspect.signature(func)
    return kernel.known[1]


def _note_options(options: dict[str, Any]) -> None:
    """Options that NKI 0.3 dropped, at the line of the decorator."""
    for name in ("mode", "platform_target"):
        if name in options:
            what = f"nki.jit({name}={options[name]!r})"
            versions.wait(versions.finding("nki.migrate.jit", what))


def run(kernel: Callable, *args: Any, **kwargs: Any) -> Run:
    """Run a kernel once on the current target: outputs, the recorded program, findings.

    Arrays among the arguments become HBM inputs in order; other arguments pass through.  A kernel
    with a launch grid runs its instances together (`nki.cores`).  Raises what the chip would
    refuse, at the kernel's line.
    """
    made = jit(kernel)
    with PlainTracebacks():
        chip = chosen_chip(made.options.get("platform_target"))
        bound = bind(made, args, kwargs)
        check_declared(bound)
        like = kind_of(args, kwargs)
        if made.instances > 1:
            world = World(chip, cores=made.instances)
            (done,) = launch_cores(made.func, made.grid, world, [bound], like)
        else:
            launch = launch_of(made.func, bound.arguments, made.grid, chip, like)
            done = replayed(launch) or _alone(made, chip, bound, like, launch)
    report(done)
    return done


def _alone(
    kernel: Kernel, chip, bound: inspect.BoundArguments, like: str, launch: Launch | None
) -> Run:
    """Trace a kernel of one program instance, instruction by instruction."""
    machine = new_machine(chip)
    name = kernel.__name__
    session = Session(name, chip, machine, Builder(name, chip.name), grid=kernel.grid)
    with entered(session), one_blas_thread(), quiet():
        outputs = results(session, call(session, kernel.func, bound), like)
    program = session.finished()
    check_inputs(session, program)
    findings, trips = (*session.noticed(), *machine.findings), tuple(machine.trips)
    run = Run(name, outputs, (program,), chip, findings, (trips,))
    remember(launch, run, session)
    return run
