"""Who computes a compiled program's numbers: its instructions, vectorised code, or nobody."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from opentrn.base import UsageError, bytes_text, declare
from opentrn.graph import Graph

declare(
    "compiler.numerics",
    "There are no such numerics, or a program cannot be computed so.",
    rule="numerics are exact (every instruction), fast (vectorised code with the same rounding "
    "points), none (time only), or auto (by size)",
    fix="pass numerics='exact', or leave it out",
)

MODES = ("auto", "exact", "fast", "none")
# What the simulator interprets in about a second on one processor core: arithmetic operations, at
# 10 to 30 G/s in large tiles, and instructions, at about 10 us each.
EXACT_FLOPS = 10**10
EXACT_INSTRUCTIONS = 10**5
# The share of a machine's memory that tensors may take while they are computed.
ROOM = 0.5


_in_force: ContextVar[str] = ContextVar("numerics", default="auto")


@contextmanager
def use_numerics(mode: str) -> Iterator[None]:
    """Make `mode` the numerics of models that front doors compile and that name none themselves.

    Raises UsageError `compiler.numerics`."""
    token = _in_force.set(check_mode(mode))
    try:
        yield
    finally:
        _in_force.reset(token)


def numerics_in_force() -> str:
    """The numerics of `use_numerics`, "auto" outside of it."""
    return _in_force.get()


class Choice(NamedTuple):
    """The numerics of a program, and why these."""

    mode: str
    why: str


def check_mode(mode: str) -> str:
    """The mode; UsageError `compiler.numerics` for a name that is none."""
    if mode not in MODES:
        raise UsageError(f"there are no numerics {mode!r}", code="compiler.numerics",
                         fix=f"one of {', '.join(MODES)}")  # fmt: skip
    return mode


def before_linking(mode: str, graph: Graph) -> Choice | None:
    """The choice where the graph alone tells it: `none`, asked for or because nothing else can be.

    Raises UsageError `compiler.numerics`.
    """
    if check_mode(mode) == "none":
        return Choice("none", "it was asked for")
    if mode != "auto":
        return None
    absent = [v for v in graph if v.op == "constant" and v.attrs.data.array is None]
    if absent:
        return Choice("none", f"{len(absent)} constants have no numbers")
    needed, room = tensor_bytes(graph), machine_bytes() * ROOM
    if needed > room:
        why = f"its tensors take {bytes_text(needed)}, this machine has room for "
        return Choice("none", why + bytes_text(int(room)))
    return None


def after_linking(mode: str, graph: Graph, instructions: int) -> Choice:
    """The choice for a chosen graph and the length of its program.

    Raises UsageError `compiler.numerics` for fast numerics of a program whose time depends on data,
    and for a mode that is none, or that computes nothing: a linked program computes.
    """
    if check_mode(mode) == "none":
        raise UsageError("numerics 'none' of a linked program", code="compiler.numerics",
                         fix="compiler.outline times it without linking")  # fmt: skip
    loops = any(v.op == "while" for v in graph)
    if loops and mode == "fast":
        why = "fast numerics do not count how often, and its time depends on it"
        raise UsageError(f"the program loops as often as its data say: {why}",
                         code="compiler.numerics")  # fmt: skip
    if loops:
        return Choice("exact", "its time depends on how often it loops")
    if mode != "auto":
        return Choice(mode, "it was asked for")
    flops = sum(v.flops for v in graph)
    size = f"{instructions:,} instructions, {flops / 1e9:.2g} GFLOP"
    if flops <= EXACT_FLOPS and instructions <= EXACT_INSTRUCTIONS:
        return Choice("exact", f"{size}: interpreted in about a second at most")
    return Choice("fast", f"{size}: more than a second to interpret")


def tensor_bytes(graph: Graph) -> int:
    """Bytes of inputs, constants and outputs, each once."""
    ends = dict.fromkeys([*graph.inputs, *graph.outputs])
    ends |= dict.fromkeys(v for v in graph if v.op == "constant")
    return sum(v.nbytes for v in ends)


def machine_bytes() -> int:
    """Memory of the machine this runs on."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


__all__ = ["MODES", "Choice", "after_linking", "before_linking", "check_mode",
           "numerics_in_force", "use_numerics"]  # fmt: skip
