"""Programs that are timed and accounted for, and compute nothing."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, NoReturn, Protocol

from opentrn.base import UsageError, declare
from opentrn.hw import target
from opentrn.isa import Buffer, Program, Spec
from opentrn.runtime.device import Device, devices
from opentrn.runtime.memory import MemoryUse, check_memory, memory_of, ring_bytes

declare(
    "runtime.no_numbers",
    "Numbers were asked for of a program that is only timed.",
    rule="with numerics 'none' nothing is computed: results have a shape and a dtype",
    fix="compile it with numerics='fast' or 'exact', or do not read its results",
)


class Part(Protocol):
    """A kernel of an outline: its program, the tensors outside of it, how often it is called."""

    program: Program
    outside: frozenset[Buffer]
    calls: int


class Outlined(Protocol):
    """What is known of a program that was not linked, as `compiler.Outline` has it."""

    name: str
    target: str
    parts: Sequence[Part]
    hbm_bytes: dict[str, int]
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    instructions: int
    nanoseconds: float


class Duration(NamedTuple):
    """How long a program takes: its kernels one after another."""

    total_ns: float


class TimedOnly:
    """An outline on a device: it has a time and takes memory; calling it is refused.

    Raises CapacityError `runtime.hbm` when it does not fit the device.
    """

    numerics = "none"

    def __init__(self, outline: Outlined, device: Device | None = None) -> None:
        self.outline, self.name = outline, outline.name
        self.device = devices(target(outline.target))[0] if device is None else device
        self.inputs, self.outputs = outline.inputs, outline.outputs
        check_memory(self.memory, self.name)

    @cached_property
    def memory(self) -> MemoryUse:
        """What the program would take of the device's memory, by category."""
        io = spill = 0
        for part in self.outline.parts:
            each = ring_bytes(part.program, part.outside)
            io, spill = io + each[0] * part.calls, spill + each[1] * part.calls
        sizes = self.outline.hbm_bytes
        return memory_of(self.outline.instructions, sizes, (io, spill), self.device)

    def time(self) -> Duration:
        """The time of one run."""
        return Duration(self.outline.nanoseconds)

    def __call__(self, *inputs: Any) -> NoReturn:
        """Always UsageError `runtime.no_numbers`."""
        raise UsageError(f"{self.name} is only timed", code="runtime.no_numbers")


__all__ = ["TimedOnly"]
