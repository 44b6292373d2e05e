"""Ops that decide what runs: loops and branches, whose bodies are regions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from opentrn.graph.ops.define import BOOL, Op, Traffic, TupleType, Type, Wrong

if TYPE_CHECKING:
    from opentrn.graph.ir import Region

    Regions = tuple[Region, ...]

UNKNOWN = -1


class GetTupleElement(Op):
    """One of the results of an op that has several."""

    exact = True
    takes_tuples = True
    operands = ("operand",)
    law = "the operand is a tuple that has a part of this index"
    index: int

    def result(self, operand: TupleType) -> Type:  # type: ignore[override]
        if not isinstance(operand, TupleType):
            raise Wrong(f"{operand} is one array, not a tuple", kind="dtype")
        if not 0 <= self.index < len(operand.parts):
            raise Wrong(f"the tuple has {len(operand.parts)} parts, none is {self.index}",
                        kind="attribute")
        return operand.parts[self.index]

    def evaluate(self, out: Type, operand: Any) -> np.ndarray:
        return operand[self.index]

    def flops(self, out: Type, operand: Type) -> int:
        return 0  # the array is there already

    def traffic(self, out: Type, operand: Type) -> Traffic:
        return Traffic(0, 0)  # its readers count its bytes


def takes(region: Region, given: tuple[Type, ...], name: str) -> None:
    """Refuse a region whose inputs have other types than what it is given."""
    if region.takes != given:
        raise Wrong(f"{name} takes ({', '.join(map(str, region.takes))}), it would be given "
                    f"({', '.join(map(str, given))})")


def _decides(region: Region, name: str) -> None:
    if region.gives != (Type((), BOOL),):
        raise Wrong(f"{name} gives ({', '.join(map(str, region.gives))}), not one bool scalar")


class While(Op):
    """Run `body` on the state as long as `cond` holds; a tuple of the last state.

    The operands are the first state, then what both regions also read and no turn changes.  Both
    take all operands; `body` gives the next state.  `trips` is how often the body runs, where that
    is known (-1: it is not)."""

    operands = ("*operands",)
    law = ("cond and body take the operands' types; cond gives one bool scalar; body gives the "
           "types of the first operands")
    cond: Region
    body: Region
    trips: int = UNKNOWN

    def result(self, *args: Type) -> TupleType:
        takes(self.cond, args, "cond")
        takes(self.body, args, "body")
        _decides(self.cond, "cond")
        state = self.body.gives
        if state != args[:len(state)] or not state:
            raise Wrong(f"body gives ({', '.join(map(str, state))}), the state is "
                        f"({', '.join(map(str, args[:len(state)]))})")
        return TupleType(state)

    def evaluate(self, out: Type, *args: np.ndarray) -> tuple[np.ndarray, ...]:
        state, fixed = args[:len(self.body.outputs)], args[len(self.body.outputs):]
        while bool(self.cond.apply(*state, *fixed)[0]):
            state = tuple(self.body.apply(*state, *fixed))
        return tuple(state)

    def _times(self, once: int) -> int:
        if self.trips == UNKNOWN:
            raise Wrong("how often the loop runs is not known before it runs",
                        fix="loop a fixed number of times (jax.lax.fori_loop, scan)")
        return self.trips * once

    def flops(self, out: Type, *args: Type) -> int:
        return self._times(self.body.flops + self.cond.flops)

    def traffic(self, out: Type, *args: Type) -> Traffic:
        parts = [v.traffic for v in (*self.body, *self.cond)]
        return Traffic(self._times(sum(p.read for p in parts)),
                       self._times(sum(p.written for p in parts)))


class Branches(Op, abstract=True):
    """Several regions of one type, of which one runs."""

    def choices_of(self) -> tuple[Region, ...]:
        """The regions in order."""
        return self.regions

    def _result(self, args: tuple[Type, ...]) -> TupleType:
        regions = self.choices_of()
        if not regions:
            raise Wrong("there is no branch", kind="attribute")
        for i, region in enumerate(regions):
            takes(region, args, f"branch {i}")
            if region.gives != regions[0].gives:
                raise Wrong(f"branch {i} gives ({', '.join(map(str, region.gives))}), branch 0 "
                            f"({', '.join(map(str, regions[0].gives))})")
        return TupleType(regions[0].gives)

    def flops(self, out: Type, *args: Type) -> int:
        return max(r.flops for r in self.choices_of())  # of the costliest branch

    def traffic(self, out: Type, *args: Type) -> Traffic:
        each = [[v.traffic for v in r] for r in self.choices_of()]
        return max((Traffic(sum(p.read for p in parts), sum(p.written for p in parts))
                    for parts in each), key=sum)


class If(Branches):
    """`true_branch` where pred holds, else `false_branch`, on the other operands; a tuple."""

    operands = ("pred", "*operands")
    law = "pred is one bool scalar; both branches take the other operands and give one type"
    true_branch: Region
    false_branch: Region

    def result(self, pred: Type, *args: Type) -> TupleType:  # type: ignore[override]
        if pred != Type((), BOOL):
            raise Wrong(f"pred is {pred}, not a bool scalar", kind="dtype")
        return self._result(args)

    def evaluate(self, out: Type, pred: np.ndarray, *args: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple((self.true_branch if bool(pred) else self.false_branch).apply(*args))


class Case(Branches):
    """The branch of number `index` (the last if there is none) on the other operands; a tuple."""

    operands = ("index", "*operands")
    law = "index is one int32 scalar; all branches take the other operands and give one type"
    branches: Regions

    def result(self, index: Type, *args: Type) -> TupleType:  # type: ignore[override]
        if index.shape or index.dtype != "int32":
            raise Wrong(f"index is {index}, not an int32 scalar", kind="dtype")
        return self._result(args)

    def evaluate(self, out: Type, index: np.ndarray, *args: np.ndarray) -> tuple[np.ndarray, ...]:
        number = int(index)
        last = len(self.branches) - 1
        return tuple(self.branches[number if 0 <= number <= last else last].apply(*args))
