"""Python operators on tiles: arithmetic and comparison, element by element, and in-place forms."""

import sys
from collections.abc import Callable
from typing import Any

from opentrn.base import uint8


class _Probe:
    """Counts the references to the right side of `+=` that no variable holds."""

    count = 0

    def __iadd__(self, other: Any) -> "_Probe":
        self.count = sys.getrefcount(other)
        return self


def _held_by_operator() -> int:
    probe = _Probe()
    probe += object()
    return probe.count


# The session holds a waiting value too.
UNNAMED = _held_by_operator() + 1


def _binary(op: str, dtype: Any = None) -> Callable:
    def method(self, other: Any) -> Any:
        from opentrn.nki.beta1 import elements, grids

        if op == "add" and isinstance(other, grids.Grid):
            return NotImplemented  # the grid knows what a tile does to it
        return elements.binary(op, self, other, dtype)

    return method


def _reversed(op: str) -> Callable:
    def method(self, other: Any) -> Any:
        from opentrn.nki.beta1 import elements

        return elements.binary(op, other, self)

    return method


def _in_place(op: str) -> Callable:
    def method(self, other: Any) -> Any:
        from opentrn.nki.beta1 import assign

        fresh = sys.getrefcount(other) <= UNNAMED
        return assign.add_into(self, other, op, fresh)

    return method


def _compared(op: str) -> Callable:
    def method(self, other: Any) -> Any:
        from opentrn.nki.beta1 import elements

        if not isinstance(other, (type(self), *elements.NUMBERS)):
            return NotImplemented
        return elements.binary(op, self, other, uint8)

    return method


class Arithmetic:
    """What `+ - * / ** & | ^ << >> %`, comparisons and `+=` mean for a tile."""

    __slots__ = ()

    __add__, __radd__ = _binary("add"), _reversed("add")
    __sub__, __rsub__ = _binary("subtract"), _reversed("subtract")
    __mul__, __rmul__ = _binary("multiply"), _reversed("multiply")
    __truediv__, __rtruediv__ = _binary("divide"), _reversed("divide")
    __pow__, __rpow__ = _binary("power"), _reversed("power")
    __mod__, __rmod__ = _binary("mod"), _reversed("mod")
    __and__, __rand__ = _binary("bitwise_and"), _reversed("bitwise_and")
    __or__, __ror__ = _binary("bitwise_or"), _reversed("bitwise_or")
    __xor__, __rxor__ = _binary("bitwise_xor"), _reversed("bitwise_xor")
    __lshift__, __rshift__ = _binary("left_shift"), _binary("right_shift")
    __iadd__, __isub__ = _in_place("add"), _in_place("subtract")
    __imul__, __itruediv__ = _in_place("multiply"), _in_place("divide")
    __lt__, __le__ = _compared("less"), _compared("less_equal")
    __gt__, __ge__ = _compared("greater"), _compared("greater_equal")
    __eq__, __ne__ = _compared("equal"), _compared("not_equal")
    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return self * -1.0 if self.element.kind == "float" else self * -1

    def __pos__(self) -> Any:
        return self

    def __invert__(self) -> Any:
        from opentrn.nki.beta1 import language

        return language.invert(self)


__all__ = ["Arithmetic"]
