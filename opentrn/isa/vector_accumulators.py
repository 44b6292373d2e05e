"""The Vector Engine's accumulator registers: one float32 number for each lane.

They are shared by all instructions that have `reduce_cmd` (NKI 0.6 API reference, "accumulator
behavior").  Lanes are numbered by the partition of the instruction's input.
"""

import numpy as np

from opentrn.isa.enums import reduce_cmd
from opentrn.isa.operands import OperandForm
from opentrn.isa.operators import Op

FILLING = (reduce_cmd.reduce, reduce_cmd.reset_reduce, reduce_cmd.load_reduce)


def accumulator_laws(i, allowed: tuple[reduce_cmd, ...]):
    """Rules on `reduce_cmd`, and on reading a register that holds nothing."""
    names = ", ".join(c.name for c in allowed)
    yield (
        i.reduce_cmd in allowed,
        f"reduce_cmd must be one of {names}: it is {i.reduce_cmd.name}",
        "choose another reduce_cmd",
    )
    yield (
        i.reduce_res is None or i.reduce_cmd in FILLING,
        f"`reduce_res` reads the accumulators, which hold no result with {i.reduce_cmd.name}",
        "pass reduce_cmd=nisa.reduce_cmd.reset_reduce, or leave `reduce_res` out",
    )


def initial_laws(i, name: str):
    """Rules on the start value: with load_reduce, and only then."""
    loads, given = i.reduce_cmd is reduce_cmd.load_reduce, getattr(i, name) is not None
    yield (
        given or not loads,
        f"load_reduce needs `{name}`",
        f"pass `{name}`: a number, or a float32 tile with one element for each partition",
    )
    yield (
        loads or not given,
        f"`{name}` is ignored with {i.reduce_cmd.name}",
        f"pass reduce_cmd=nisa.reduce_cmd.load_reduce, or leave `{name}` out",
    )


def lanes(tile: OperandForm) -> slice:
    """The lanes an input tile streams through."""
    return slice(tile.partition, tile.partition + tile.partitions)


def start(i, which: Op, held: np.ndarray, initial) -> np.ndarray:
    """What accumulation begins with: the identity of the operator, the register, or `initial`."""
    if i.reduce_cmd is reduce_cmd.reduce:
        return held
    if i.reduce_cmd is reduce_cmd.load_reduce:
        value = initial.reshape(-1) if isinstance(initial, np.ndarray) else initial
    else:
        value = which.identity
    return np.full_like(held, value)


def accumulate_part(
    i, tile: OperandForm, accumulators: np.ndarray, which: Op, part: np.ndarray, initial=None
) -> np.ndarray:
    """The registers after an instruction whose own reduction is `part`, one value a lane.

    idle leaves them undefined ("the accumulator state may still be modified"): NaN here.
    """
    after, at = accumulators.copy(), lanes(tile)
    if i.reduce_cmd is reduce_cmd.idle:
        after[at] = np.nan
        return after
    begin = start(i, which, accumulators[at], initial)
    after[at] = which(begin, part.reshape(-1)) if i.reduce_cmd in FILLING else begin
    return after
