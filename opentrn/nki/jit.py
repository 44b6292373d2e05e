"""`nki.jit` and `nki.simulate`: call a kernel on arrays, get arrays back."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.base import NotBuiltError, UsageError, declare, numerics
from opentrn.isa import Buffer, Builder
from opentrn.nki import arrays
from opentrn.nki.session import (
    Run,
    Session,
    current_chip,
    entered,
    new_machine,
    report,
    running,
)
from opentrn.nki.tensor import MemoryRegion, NkiTensor
from opentrn.nki.typing import check_declared
from opentrn.sim import one_blas_thread

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
declare(
    "nki.grid",
    "A launch grid is not supported.",
    rule="a kernel is launched on one program instance: kernel(...) or kernel[1](...)",
    fix="call the kernel without a grid",
)


class Kernel:
    """A kernel function that can be called on arrays, inspected, and launched on a grid.

    Called inside another kernel it runs as part of that one.  `func` is the Python function.
    """

    def __init__(self, func: Callable, grid: tuple[int, ...] = (1,), **options: Any):
        functools.update_wrapper(self, func)
        self.func, self.grid, self.options = func, grid, options

    def __getitem__(self, grid) -> "Kernel":
        """The same kernel launched on `grid` program instances."""
        sizes = grid if isinstance(grid, tuple) else (grid,)
        sizes = tuple(int(s) for s in sizes)
        if any(s != 1 for s in sizes):
            raise NotBuiltError(
                f"kernel[{', '.join(map(str, sizes))}] asks for several program instances",
                code="nki.grid",
                rule="this version runs one program instance: kernel(...) or kernel[1](...)",
                fix="call the kernel without a grid; two-core launches are not built yet",
            )
        return Kernel(self.func, sizes, **self.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays (NumPy or torch); results come back in the same kind."""
        if running():
            return self.func(*args, **kwargs)
        return run(self, *args, **kwargs).outputs

    def __repr__(self) -> str:
        return f"<nki kernel {self.__name__}>"


def jit(fn: Callable | None = None, **kwargs: Any) -> Any:
    """Make a kernel of a Python function; usable as `@nki.jit` and `@nki.jit(...)`.

    Keyword arguments of older releases (mode, platform_target, …) are kept in `Kernel.options`.
    """
    if fn is None:
        return lambda func: jit(func, **kwargs)
    return fn if isinstance(fn, Kernel) else Kernel(fn, **kwargs)


def simulate(kernel: Callable) -> Callable:
    """A callable that runs `kernel` on the simulator; plain functions are wrapped."""
    made = jit(kernel)

    @functools.wraps(made.func)
    def simulated(*args: Any, **kwargs: Any) -> Any:
        return run(made, *args, **kwargs).outputs

    return simulated


def run(kernel: Callable, *args: Any, **kwargs: Any) -> Run:
    """Run a kernel once on the current target: outputs, the recorded program, findings.

    Arrays among the arguments become HBM inputs in order; other arguments pass through.  Raises
    what the chip would refuse, at the kernel's line.
    """
    made = jit(kernel)
    chip = current_chip()
    machine = new_machine(chip)
    session = Session(made.__name__, chip, machine, Builder(made.__name__, chip.name))
    session.grid = made.grid
    bound = inspect.signature(made.func).bind(*args, **kwargs)
    check_declared(made.func, bound.arguments)
    with entered(session), one_blas_thread():
        given = [
            _arguments(session, kind, name, value)
            for name, (kind, value) in _parts(made.func, bound).items()
        ]
        positional = [v for kind, _, v in given if kind == "one"]
        positional += [x for kind, _, v in given if kind == "many" for x in v]
        named = {n: v for kind, n, v in given if kind == "keyword"}
        named.update({k: x for kind, _, v in given if kind == "named" for k, x in v.items()})
        result = made.func(*positional, **named)
        outputs = _results(session, result, any_torch(args, kwargs))
    program = session.builder.program()
    _check_inputs(session, program)
    done = Run(
        made.__name__, outputs, program, chip, tuple(machine.findings), tuple(machine.trips)
    )
    report(done)
    return done


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


def _arguments(session: Session, kind: str, name: str, value: Any) -> tuple[str, str, Any]:
    return kind, name, arrays.argument(session, name, value)


def any_torch(args: tuple, kwargs: dict) -> bool:
    """Whether some argument (containers included) is a torch tensor."""

    def found(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return any(found(v) for v in value)
        if isinstance(value, dict):
            return any(found(v) for v in value.values())
        return arrays.is_torch(value)

    return found(list(args)) or found(kwargs)


def _results(session: Session, result: Any, like_torch: bool) -> Any:
    """Returned tensors as arrays; records them as the program's outputs."""
    if result is None:
        return None
    if isinstance(result, list | tuple):
        return type(result)(_results(session, r, like_torch) for r in result)
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
    missing = session.machine.storage(buffer).unwritten_share()
    name = buffer.name or f"output {len(session.builder.outputs) - 1}"
    if missing == 1.0:
        session.machine.notice("unwritten_output", f"output `{name}`: 100% unwritten", buffer.where)
    elif missing > 0:
        what = f"output `{name}`: {missing:.1%} unwritten"
        session.machine.notice("partial_output", what, buffer.where)


def _check_inputs(session: Session, program) -> None:
    for buffer in program.mutated:
        if buffer not in program.outputs:
            session.machine.notice(
                "mutated_input",
                f"input `{buffer.name}` is written in place and not returned",
                None,
            )
