"""Register instructions: constants, loads from and stores to on-chip memory.

Registers are 32-bit and belong to an engine's sequencer; moving one costs a sequencer slot.
"""

from typing import Any

import numpy as np

from opentrn.base import UsageError, int32, uint32
from opentrn.isa.define import Instr
from opentrn.isa.operands import Dim, In, Out, RegIn, RegOut, assumed

_SLOT = assumed(
    "no public figure; one minimum initiation interval (64 cycles, ISA v2.26.1)",
    lambda i, chip: 64.0,
)
_WORDS = (int32, uint32)


def wrapped(value) -> int:
    """`value` as a signed 32-bit integer, as the register keeps it."""
    return int(np.int64(value) & 0xFFFFFFFF) - (1 << 32 if int(value) & 0x80000000 else 0)


def fits(instr: Instr, name: str, given: Any) -> None:
    """Refuse a number a register cannot hold; UsageError `<instruction>.<name>`."""
    number = isinstance(given, int | float)
    if number and not (isinstance(given, int) and -(2**31) <= given < 2**32):
        instr.bad(
            UsageError,
            f"`{name}` is {given}",
            "a register holds a whole number of 32 bits, -2^31 to 2^32 - 1",
            "pass an integer in that range, or keep the number in a tile",
            name,
        )


class register_move(Instr):
    """dst = src, where `src` is a number or another register."""

    engines = ("sync",)
    named = False
    dst = RegOut("the register that is set")
    src = RegIn("a number or a register")

    def relate(self, operands: tuple) -> None:
        """The number fits a register."""
        fits(self, "src", operands[1])

    def run(i, src):
        """The value as 32 bits."""
        return {"dst": wrapped(src)}

    cycles = _SLOT


class register_load(Instr):
    """dst = the one element of the tile `src`."""

    engines = ("sync",)
    named = False
    dst = RegOut("the register that is set")
    src = In("sbuf|hbm", "P F", *_WORDS, engine_side=False)
    P = Dim(1, "a register holds one element")
    F = Dim(1, "a register holds one element")

    def run(i, src):
        """The element."""
        return {"dst": wrapped(src.reshape(-1)[0])}

    cycles = _SLOT


class register_store(Instr):
    """The one element of the tile `dst` = src."""

    engines = ("sync",)
    named = False
    dst = Out("sbuf|hbm", "P F", *_WORDS, engine_side=False)
    src = RegIn("a number or a register")
    P = Dim(1, "a register holds one element")
    F = Dim(1, "a register holds one element")

    def relate(self, operands: tuple) -> None:
        """The number fits a register."""
        fits(self, "src", operands[1])

    def run(i, src):
        """The register's 32 bits, as the dtype of the tile reads them."""
        value = wrapped(src)
        return {"dst": np.int64(value % 2**32 if i.dst.dtype == uint32 else value)}

    cycles = _SLOT


__all__ = ["fits", "register_load", "register_move", "register_store"]
