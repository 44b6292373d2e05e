"""Which mistakes the simulated machine refuses, which it reports, and what it does by default."""

from dataclasses import dataclass
from typing import Literal

from opentrn.base import FAULTS, Where, declare, explanation

Action = Literal["error", "report", "ignore"]


@dataclass(frozen=True, kw_only=True)
class Strict:
    """Every check of the functional machine, with its default.

    "error" raises at the instruction, "report" adds a Finding and goes on, "ignore" is silent.

    uninitialised      reading memory nobody wrote (it reads as NaN, or the largest integer)
    unwritten_output   an output of which no element was written by the end
    partial_output     an output of which some elements were never written
    accumulate_unset   `accumulate=True` on PSUM that no matmul initialised
    reset_in_reduction PSUM overwritten between the matmuls of one accumulation group, unread
    read_open_group    PSUM read between the matmuls of one accumulation group
    unread_alias       a PSUM tile placed by address over unread matmul results of a live tile
    mutated_input      an input is written but not returned, so the caller may not see it
    ignored_operand    an operand the hardware does not use for this operator
    disputed_operand   an operand that users saw a chip not use, against the specification
    undefined_operand  an operand of which nothing says what the chip makes of it
    activation_range   inputs of an activation function outside the range where it is defined
    duplicate_indices  rows named more than once where unique_indices promises they are not

    precise            low-precision floats are rounded to their format; without, they keep float32
                       values, which shows what of an error is rounding (NKI_PRECISE_FP=0)
    as_observed        where users saw a chip do something else than its specification says, do as
                       they saw (`nki.QUIRKS`), not as specified (OPENTRN_BEHAVIOUR=as-observed)
    """

    uninitialised: Action = "report"
    unwritten_output: Action = "error"
    partial_output: Action = "report"
    accumulate_unset: Action = "error"
    reset_in_reduction: Action = "report"
    read_open_group: Action = "report"
    unread_alias: Action = "report"
    mutated_input: Action = "report"
    ignored_operand: Action = "report"
    disputed_operand: Action = "report"
    undefined_operand: Action = "report"
    activation_range: Action = "report"
    duplicate_indices: Action = "report"
    precise: bool = True
    as_observed: bool = False


@dataclass(frozen=True)
class Finding:
    """Something the machine noticed and went on: a stable code, what, where, rule and fix."""

    code: str
    what: str
    where: Where | None
    rule: str = ""
    fix: str = ""

    def json(self) -> dict:
        """A plain dictionary for programs."""
        at = self.where
        place = None if at is None else {"file": at.file, "line": at.line, "text": at.text}
        return {
            "code": self.code,
            "what": self.what,
            "at": place,
            "rule": self.rule,
            "fix": self.fix,
            "fault": self.fault,
        }

    @property
    def fault(self) -> str:
        """What it means for the chip: a key of `base.FAULTS`, or "" where none was declared."""
        declared = explanation(self.code)
        return declared.fault if declared is not None else ""

    def __str__(self) -> str:
        lines = [self.what, f"  at    {self.where}" if self.where else ""]
        lines += [f"  rule  {self.rule}", f"  fix   {self.fix}"]
        if self.fault:
            lines.append(f"  chip  {self.fault}: {FAULTS[self.fault]}")
        return "\n".join([x for x in lines if x] + [f"  more  opentrn explain {self.code}"])


declare(
    "sim.uninitialised",
    "An instruction read memory that nothing had written.",
    rule="on the chip such memory holds whatever was there before; here it reads as NaN, or as "
    "the largest integer",
    fix="write the tile (nisa.memset, a load, an instruction) before reading it",
    fault="undefined",
)
declare(
    "sim.unwritten_output",
    "The kernel returned an output it never wrote.",
    rule="every output must be written by the kernel; on the chip the caller would read leftovers",
    fix="store the result into the returned tensor before `return`",
    fault="undefined",
)
declare(
    "sim.partial_output",
    "Some elements of an output were never written.",
    rule="unwritten elements hold leftovers on the chip; here they are NaN or the largest integer",
    fix="write every element, or return a smaller tensor",
    fault="undefined",
)
declare(
    "sim.accumulate_unset",
    "A matmul accumulates onto PSUM that no matmul has initialised.",
    rule="accumulate=True is defined only after a matmul with accumulate=False on that location "
    "(from NeuronCore-v4 on also after another instruction wrote it)",
    fix="pass accumulate=(k > 0), or leave accumulate out",
    fault="undefined",
)
declare(
    "sim.reset_in_reduction",
    "PSUM was overwritten inside an accumulation group, before anything read it.",
    rule="the partial sums of the earlier matmuls are lost",
    fix="move the reset out of the contraction loop",
    fault="defined",
)
declare(
    "sim.read_open_group",
    "PSUM was read between two matmuls of one accumulation group.",
    rule="the value is a partial sum, and on the chip the read is not ordered with the group",
    fix="read the PSUM tile after the last matmul of the group",
    fault="unpredictable",
)
declare(
    "sim.unread_alias",
    "A PSUM tile at an explicit address begins where another tile's results are still unread.",
    rule="tiles alive at the same time must not share memory (allocation guide): the results of "
    "the other tile are lost here, and on the chip nothing orders the two",
    fix="read the other tile first, or give this one an address of its own",
    fault="unpredictable",
)
declare(
    "sim.mutated_input",
    "The kernel wrote into an input tensor without returning it.",
    rule="frameworks pass inputs by value: the caller of the real kernel may not see the write",
    fix="return the tensor, or write into an output",
    fault="undefined",
)
declare(
    "sim.ignored_operand",
    "The hardware ignores an operand for this operator.",
    rule="some operators bypass an operand, and reductions need a command",
    fix="leave the operand out",
    fault="defined",
)
declare(
    "sim.disputed_operand",
    "Users saw a chip ignore an operand that its specification applies.",
    rule="the specification holds here, unless behaviour as observed is asked for",
    fix="use an operator of which nobody doubts it, e.g. nl.relu or a tensor_scalar",
    fault="disputed",
)
declare(
    "sim.undefined_operand",
    "Nothing says what the chip makes of an operand.",
    rule="a number fits the dtype it is written as",
    fix="pass a number the dtype has",
    fault="undefined",
)
declare(
    "sim.dynamic_bounds",
    "A dynamic address fell outside its tensor.",
    rule="with oob_mode.error every dynamic address must stay inside the tensor",
    fix="check the indices, or pass oob_mode=nisa.oob_mode.skip",
    neuron="NRT_EXEC_OOB 1006",
)
declare(
    "sim.step_limit",
    "A device loop ran longer than the step limit.",
    rule="a loop that never ends would hang the chip",
    fix="make the loop's register reach zero",
    neuron="NRT_TIMEOUT",
)
declare(
    "sim.register",
    "A register is read before anything was moved into it.",
    rule="a register must be set by register_move or register_load first",
    fix="give register_alloc a start value",
)
declare(
    "sim.activation_range",
    "An activation function was given values outside its valid range.",
    rule="outside its range the hardware's approximation is not defined",
    fix="bring the values into the range first, for sin by x - 2π·round(x / 2π) (nl.mod); nl.sin, "
    "nl.cos and nl.arctan do not",
    fault="undefined",
)
declare(
    "sim.precise_bits",
    "In high-precision mode a tile was used as bits.",
    rule="without rounding (NKI_PRECISE_FP=0) low-precision floats have no bits: tiles cannot be "
    "reinterpreted as another dtype or share explicit addresses",
    fix="run this kernel with NKI_PRECISE_FP=1, the default",
    fault="unsupported",
)
declare(
    "sim.duplicate_indices",
    "A read-modify-write transfer names a row more than once.",
    rule="unique_indices=True promises that it does not; equal rows race",
    fix="sum equal rows first",
    fault="unpredictable",
)
