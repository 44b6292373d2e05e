"""What a rule sees of one StableHLO op, and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from opentrn.base import UnsupportedError, Where
from opentrn.graph.build import Builder
from opentrn.graph.importers.stablehlo_mlir import python_of
from opentrn.graph.ir import Region, Value
from opentrn.graph.ops.define import Type

if TYPE_CHECKING:
    from opentrn.graph.importers.stablehlo import Importer, Scope

Made = Value | Iterable[Value] | None
Rule = Callable[["Call"], Made]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a function as the rule of these ops; it returns the op's results."""
    def enter(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function
    return enter


class Call:
    """One op: its operands as values, its attributes as Python, its results' types.

    `g` builds at the op's source line, `where`."""

    __slots__ = ("_results", "args", "g", "importer", "op", "scope", "where")

    def __init__(self, importer: Importer, scope: Scope, op: Any, args: list[Any],
                 where: Where | None) -> None:
        self.importer, self.scope, self.op, self.args = importer, scope, op, args
        self.where = where
        self.g = Builder(where)
        self._results: list[Type | None] | None = None

    @property
    def name(self) -> str:
        """The op's name without its dialect."""
        return self.op.name.partition(".")[2]

    @property
    def results(self) -> list[Type | None]:
        """The types of the results; None for tokens."""
        if self._results is None:
            read = self.importer.reader.type_of
            self._results = [read(r.type, self.where) for r in self.op.results]
        return self._results

    @property
    def result(self) -> Type:
        """The type of the one result."""
        kind = self.results[0]
        if kind is None:
            raise self.refuse("its result is a token")
        return kind

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as plain Python, or `default` where it is left out."""
        attributes = self.op.attributes
        return python_of(attributes[name]) if name in attributes else default

    def raw(self, name: str) -> Any:
        """An attribute as MLIR has it."""
        return self.op.attributes[name]

    def regions(self) -> tuple[list[Region], list[Value]]:
        """All regions of the op, and the values of outside that they read, which they take after
        their own arguments."""
        return self.importer.regions(self.op, self.scope, self.where)

    def parts(self, value: Value) -> list[Value]:
        """The results of an op that makes a tuple."""
        count = len(value.type.parts)  # type: ignore[attr-defined]
        return [self.g.get_tuple_element(value, i) for i in range(count)]

    def refuse(self, why: str, fix: str = "") -> UnsupportedError:
        """The error for an op of this kind that has a rule, but not for this."""
        return UnsupportedError(f"{self.op.name}: {why}", code="graph.stablehlo_op", fix=fix,
                                at=self.where)


CustomCalls = Mapping[str, Rule]
