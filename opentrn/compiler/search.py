"""How a kernel is cut into tiles: a few ways are timed on the chip, and the quickest is taken.

What is found for a kernel, its operands as they lie in memory, its options and a chip is kept for
the rest of the process: it depends on nothing else.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from opentrn.base import CapacityError, DType
from opentrn.hw import target as find_target
from opentrn.isa import Buffer, View
from opentrn.nki import Recording, kernels, record
from opentrn.nki.kernels import Tiling
from opentrn.sim import spills_of, timeline

LANES = tuple([(count, size << 10) for count, size in ((1, 16), (1, 48), (2, 24), (4, 16))])
# By kernel: the option, what it may be (the kernel's own default is compared with these), and the
# most instructions of a program that is searched.  Longer ones take long to write anew, and their
# first and last tiles, where ways differ most, are a small part of them.
CUTS: dict[Callable, tuple[str, tuple, int]] = {
    kernels.linear: ("tiling", (Tiling(banks=1, first=1, columns=2048), Tiling(rows=3)), 2000),
    kernels.attention: ("cut", ((24 << 10, 512), (24 << 10, 768), (8 << 10, 512)), 8000),
    kernels.elementwise: ("cut", LANES, 4000),
    kernels.elementwise_together: ("cut", LANES, 4000),
}
# Programs of fewer instructions have no tiles to choose.
LEAST_INSTRUCTIONS = 8
# What takes so few ns is latency, whatever the tiles.
LEAST_TIME = 10_000.0


class Laid(NamedTuple):
    """How an operand lies in memory: all of a view that a kernel's program depends on."""

    shape: tuple[int, ...]
    dtype: DType
    offset: int
    steps: tuple
    read_as: DType


def laid(argument: Any) -> Any:
    """Arguments of a kernel with each view as a `Laid`; they can be compared and remembered."""
    if isinstance(argument, View):
        held = argument.buffer
        return Laid(held.shape, held.dtype, argument.offset, argument.steps, argument.dtype)
    if isinstance(argument, tuple | list):
        return tuple([laid(a) for a in argument])
    return argument


def _views(argument: Any, count: list[int]) -> Any:
    """Views of new buffers for every `Laid`."""
    if isinstance(argument, Laid):
        count[0] += 1
        buffer = Buffer(count[0], "hbm", argument.shape, argument.dtype, kind="input")
        return View(buffer, argument.offset, argument.steps, argument.read_as)
    return tuple([_views(a, count) for a in argument]) if isinstance(argument, tuple) else argument


@lru_cache(maxsize=4096)
def best_cut(kernel: Callable, args: tuple, named: tuple, options: tuple, chip: str) -> Any:
    """The quickest value of the kernel's option, None for its default.

    `args` and the values of `named` are as `laid` gives them, `options` (name, value) pairs.
    """
    name, ways, _ = CUTS[kernel]
    machine, best, least = find_target(chip), None, float("inf")
    for way in (None, *ways):
        count = [0]
        given = [_views(a, count) for a in args]
        extra = {key: _views(a, count) for key, a in named}
        chosen = {} if way is None else {name: way}
        try:
            made = record(kernel, machine, *given, **dict(options), **extra, **chosen)
            found = timeline(made.program, machine)
        except CapacityError:  # tiles so large do not fit
            continue
        if not any(spills_of(found.program).values()) and found.total_ns < least:
            best, least = way, found.total_ns
    return best


def cut_options(use, args: tuple, named: dict, first: Recording, chip) -> dict[str, Any]:
    """The option that makes a call quicker than its `first` recording does, if there is one."""
    name, _, most = CUTS.get(use.kernel, ("", (), 0))
    if name in use.options or not LEAST_INSTRUCTIONS <= len(first.program) <= most:
        return {}
    if timeline(first.program, chip).total_ns < LEAST_TIME:
        return {}
    options = tuple(sorted(use.options.items()))
    best = best_cut(use.kernel, laid(args), laid(tuple(named.items())), options, chip.name)
    return {} if best is None else {name: best}


__all__ = ["CUTS", "best_cut", "cut_options", "laid"]
