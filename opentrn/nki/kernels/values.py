"""Values of element-wise work: tiles in SBUF, and arithmetic with one number a row put off until
the next operation, which one instruction can do along with it.
"""

from typing import Any

from opentrn.nki import isa as nisa
from opentrn.nki import language as nl


def fresh(like, dtype):
    """A new SBUF tile of the shape of `like`."""
    return nl.ndarray(like.shape, dtype, nl.sbuf)


def cast(tile, dtype):
    """The tile as another dtype, as engines convert: to the nearest, saturating."""
    if tile.dtype == dtype:
        return tile
    made = fresh(tile, dtype)
    nisa.tensor_copy(made, tile)
    return made


class Value:
    """An SBUF tile [P, F] and what its numbers are: "float", "int", "uint" or "bool".

    `column` is the [P, 1] float32 tile that a tile of floats repeats along its rows, if it does.
    """

    def __init__(self, tile: Any, kind: str, column: Any = None) -> None:
        self.tile, self.kind, self.column = tile, kind, column

    @staticmethod
    def read(tile, dtype) -> "Value":
        """A loaded tile of a tensor of `dtype` (booleans as bytes); integers widen to 32 bits."""
        if dtype.kind == "float":
            repeated = tile.shape[1] > 1 and not any(s for s, _ in tile.get_pattern()[1:])
            return Value(tile, "float", cast(tile[:, 0:1], nl.float32) if repeated else None)
        if dtype.kind == "bool":
            return Value(tile, "bool")
        wide = nl.uint32 if dtype == nl.uint32 else nl.int32
        return Value(cast(tile, wide), wide.kind)


class Late(Value):
    """x <op> number, or number <op> x, for floats: computed in float32 by whoever needs it.

    The number is one of Python's or a [P, 1] tile.  An instruction that computes with x takes such
    an operator along at no cost.
    """

    def __init__(self, x: Value, op: Any, number: Any, reverse: bool) -> None:
        self.x, self.op, self.number, self.reverse = x, op, number, reverse
        self.kind, self.column, self.made = "float", None, None

    @property
    def tile(self) -> Any:
        """The numbers, written by an instruction of their own."""
        if self.made is None:
            self.made = fresh(self.x.tile, nl.float32)
            nisa.tensor_scalar(
                self.made, self.x.tile, self.op, self.number, reverse0=self.reverse
            )
        return self.made


def number_of(operand) -> Any:
    """The operand as one number a row, a Python number or a [P, 1] tile, or None."""
    return operand.column if isinstance(operand, Value) else operand


def write(op, a, b, dst) -> None:
    """dst = a <op> b for values of floats and numbers, by one instruction where an operand is
    `Late`."""
    swap = _is_second(a, b)
    x, y = (b, a) if swap else (a, b)
    number = number_of(y)
    if number is None and isinstance(x, Late) and x.made is None:
        nisa.scalar_tensor_tensor(
            dst, x.x.tile, x.op, x.number, op, y.tile, reverse0=x.reverse, reverse1=swap
        )
    elif number is None:
        nisa.tensor_tensor(dst, a.tile, b.tile, op)
    elif isinstance(x, Late) and x.made is None:
        nisa.tensor_scalar(
            dst, x.x.tile, x.op, x.number, reverse0=x.reverse, op1=op, operand1=number,
            reverse1=swap,
        )  # fmt: skip
    else:
        nisa.tensor_scalar(dst, x.tile, op, number, reverse0=swap)


def _is_second(a, b) -> bool:
    """Whether b is to be streamed and a its operand: b alone is a tile, or alone is late."""
    if not isinstance(a, Value) or number_of(b) is not None:
        return not isinstance(a, Value)
    return number_of(a) is not None or (isinstance(b, Late) and not isinstance(a, Late))


__all__ = ["Late", "Value", "cast", "fresh", "number_of", "write"]
