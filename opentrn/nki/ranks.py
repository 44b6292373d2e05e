"""Kernels on several simulated ranks: `nki.simulate(kernel, ranks=N)` and `nki.run_ranks`."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from opentrn.base import UsageError, declare
from opentrn.nki.arrays import rebuilt
from opentrn.nki.cores import launch
from opentrn.nki.exchange import World
from opentrn.nki.jit import AnyKernel, Kernel, bind, jit, run
from opentrn.nki.launch import kind_of
from opentrn.nki.refusals import PlainTracebacks
from opentrn.nki.session import Run, chosen_chip, report
from opentrn.nki.typing import check_declared

declare(
    "nki.per_rank",
    "Arguments that differ by rank do not fit the number of ranks.",
    rule="nki.PerRank holds one value for each rank; nki.run_ranks takes one set of arguments each",
    fix="pass as many values as there are ranks",
)


class PerRank:
    """An argument of `nki.simulate(kernel, ranks=N)` that differs by rank: one value for each."""

    def __init__(self, values: Iterable[Any]):
        self.values = tuple(values)

    def __repr__(self) -> str:
        return f"PerRank({len(self.values)} values)"


def _at(value: Any, rank: int, ranks: int) -> Any:
    """The value for one rank; containers are walked."""
    if isinstance(value, PerRank):
        if len(value.values) != ranks:
            raise UsageError(
                f"PerRank holds {len(value.values)} values for {ranks} ranks",
                code="nki.per_rank",
                rule="nki.PerRank holds one value for each rank",
                fix=f"pass {ranks} values, or run on {len(value.values)} ranks",
            )
        return value.values[rank]
    if isinstance(value, list | tuple):
        return rebuilt(value, [_at(one, rank, ranks) for one in value])
    if type(value) is dict:
        return {key: _at(one, rank, ranks) for key, one in value.items()}
    return value


def _arguments(given: Any) -> tuple[tuple, dict[str, Any]]:
    """(positional, named) arguments of one rank."""
    if isinstance(given, Mapping):
        return (), dict(given)
    if isinstance(given, tuple | list):
        return tuple(given), {}
    raise UsageError(
        f"the arguments of a rank are a {type(given).__name__}",
        code="nki.per_rank",
        rule="each rank has a tuple of positional or a dict of named arguments",
        fix="pass nki.run_ranks(kernel, [(x0,), (x1,)])",
    )


def run_ranks(
    kernel: Callable, per_rank_args: Sequence[tuple | Mapping[str, Any]], nodes: int = 0
) -> tuple[Run, ...]:
    """Run a kernel on as many ranks as there are sets of arguments; one `Run` for each.

    A set is a tuple of positional or a dict of named arguments.  Ranks advance in lockstep and
    exchange data in `nki.collectives` only; with kernel[2] each of them has two cores.  Ranks fill
    chips in order; `nodes` spreads them evenly over that many nodes.  Raises what the chip would
    refuse, OrderError `sim.deadlock` and `nki.rank_calls`.
    """
    with PlainTracebacks():
        return _together(_made(kernel), [_arguments(given) for given in per_rank_args], nodes)


def _made(kernel: Callable) -> AnyKernel:
    """A kernel of `nki` or of the older `neuronxcc.nki`; plain functions become the former."""
    return kernel if isinstance(kernel, AnyKernel) else jit(kernel)


def _together(made: AnyKernel, sets: list[tuple[tuple, dict]], nodes: int) -> tuple[Run, ...]:
    if not sets or nodes < 0:
        raise UsageError(f"a run on {len(sets)} ranks and {nodes} nodes", code="nki.per_rank")
    if not isinstance(made, Kernel):
        return made.launch_ranks(sets, nodes)
    bounds = [bind(made, args, named) for args, named in sets]
    for bound in bounds:
        check_declared(bound)
    like = kind_of(*sets[0])
    world = World(
        chosen_chip(made.options.get("platform_target")), len(sets), made.instances, nodes
    )
    runs = launch(made.func, made.grid, world, bounds, like)
    for one in runs:
        report(one)
    return runs


def simulate(kernel: Callable, ranks: int | None = None, nodes: int = 0) -> Callable:
    """A callable that runs `kernel` on the simulator; plain functions are wrapped.

    With `ranks` it runs on that many, arguments wrapped in `PerRank` differing by rank and all
    others the same, and returns a list with the results of each rank; see `run_ranks`.
    """
    made = _made(kernel)

    @functools.wraps(made.func)
    def simulated(*args: Any, **kwargs: Any) -> Any:
        with PlainTracebacks():
            if ranks is None and not isinstance(made, Kernel):
                return made(*args, **kwargs)
            if ranks is None:
                return run(made, *args, **kwargs).outputs
            sets = [(_at(args, rank, ranks), _at(kwargs, rank, ranks)) for rank in range(ranks)]
            runs = _together(made, sets, nodes)
            return [one.outputs for one in runs]

    return simulated
