"""A program of another language as one op: a kernel written by hand between ops of the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.base import UsageError, declare
from opentrn.graph import carriers
from opentrn.graph.ops.define import Op, Traffic, TupleType, Type, Wrong, stream

ABSENT = declare("graph.foreign_absent", "a program that was read from text calls a kernel",
                 "text holds a kernel's name and types, never its code",
                 "trace the program again, where the kernel is")


@dataclasses.dataclass(frozen=True)
class Callee:
    """What a `foreign` op calls: two that are equal compute the same.

    `kernel` is what the compiler links in its place, called with tensors of the types `takes`; it
    returns tensors of the types `gives`.  `run` is its meaning on NumPy arrays of these types and
    returns a sequence of arrays.  `flops` counts one call.  Read back from text a callee has only a
    name and types (`kernel` and `run` are None)."""

    name: str
    takes: tuple[Type, ...]
    gives: tuple[Type, ...]
    kernel: Callable[..., Any] | None = None
    run: Callable[..., Any] | None = dataclasses.field(default=None, compare=False)
    flops: int = 0


class Foreign(Op):
    """The results of a program that is not made of ops, as a tuple.

    Its cost is what its `callee` says of itself; all operands are read and all results written."""

    operands = ("*operands",)
    law = "the operands have the types the callee takes; the result is a tuple of those it gives"
    callee: Callee

    def __post_init__(self) -> None:
        if not isinstance(self.callee, Callee):
            raise Wrong(f"foreign: `callee` should be a Callee, got {self.callee!r}",
                        kind="attribute")

    def result(self, *args: Type) -> TupleType:
        if args != self.callee.takes:
            raise Wrong(f"{self.callee.name} takes ({', '.join(map(str, self.callee.takes))}), it "
                        f"would be given ({', '.join(map(str, args))})")
        return TupleType(self.callee.gives)

    def evaluate(self, out: Any, *args: np.ndarray) -> tuple[np.ndarray, ...]:
        name, gives = self.callee.name, self.callee.gives
        if self.callee.run is None:
            raise UsageError(f"{name} has no code here", code=ABSENT)
        given = [carriers.leave(a, t.dtype)
                 for a, t in zip(args, self.callee.takes, strict=True)]
        made = self.callee.run(*given)
        return tuple(carriers.enter(np.asarray(a).reshape(t.shape), t.dtype)
                     for a, t in zip(made, gives, strict=True))

    def flops(self, out: Any, *args: Type) -> int:
        return self.callee.flops

    def traffic(self, out: Any, *args: Type) -> Traffic:
        return stream(out, *args)
