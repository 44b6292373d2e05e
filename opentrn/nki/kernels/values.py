"""Values of element-wise work: tiles in SBUF, and arithmetic with one number a row put off until
the next operation, which one instruction can do along with it.

Two tiles together go through the Vector Engine at half a lane's pace, so a chain of such work is
shared with GpSimd and the Scalar Engine: each operation goes where it ends first.  All three
compute in float32 and round once, so who computes does not change a number.
"""

from math import prod
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


class Shares:
    """Nanoseconds of work each engine was given by a chain so far, on trn2's clocks."""

    # Of an instruction besides its elements, and of an element.
    START = {"vector": 65.0, "scalar": 50.0, "gpsimd": 125.0}
    EACH = {"vector": 1 / 0.96, "scalar": 1 / 1.2, "gpsimd": 1 / 1.2}

    def __init__(self) -> None:
        self.done = dict.fromkeys(self.START, 0.0)
        # On NeuronCore-v2 GpSimd and the Vector Engine cannot access SBUF at a time.
        self.apart = nisa.get_nc_version() >= nisa.nc_version.gen3

    def add(self, *work: tuple[str, float]) -> None:
        """Count (engine, elements that pass it) for each instruction."""
        self.done = self._after(work)

    def best(self, *ways: tuple[tuple[str, float], ...]) -> int:
        """Which of some ways to do a thing leaves the engines' work most even; it is counted."""
        after = [self._after(work) for work in ways]
        rank = [sum(ns * ns for ns in one.values()) for one in after]
        chosen = rank.index(min(rank)) if self.apart else 0
        self.done = after[chosen]
        return chosen

    def _after(self, work) -> dict[str, float]:
        done = dict(self.done)
        for engine, elements in work:
            done[engine] += self.START[engine] + elements * self.EACH[engine]
        return done


class Value:
    """An SBUF tile [P, F] and what its numbers are: "float", "int", "uint" or "bool".

    `column` is the [P, 1] float32 tile that a tile of floats repeats along its rows, if it does;
    `shares` counts the work of the chain it belongs to, if it does.
    """

    shares: Shares | None = None

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
            nisa.tensor_scalar(self.made, self.x.tile, self.op, self.number, reverse0=self.reverse)
        return self.made

    def scaled(self) -> None:
        """Write x · number by the Scalar Engine."""
        self.made = fresh(self.x.tile, nl.float32)
        nisa.activation(self.made, nl.copy, self.x.tile, scale=self.number)


# What GpSimd computes of two tiles as the Vector Engine does.
SHARED = (nl.add, nl.subtract, nl.multiply, nl.maximum, nl.minimum)


def number_of(operand) -> Any:
    """The operand as one number a row, a Python number or a [P, 1] tile, or None."""
    return operand.column if isinstance(operand, Value) else operand


def write(op, a, b, dst) -> None:
    """dst = a <op> b for values of floats and numbers, by one instruction where an operand is
    `Late`."""
    swap = _is_second(a, b)
    x, y = (b, a) if swap else (a, b)
    number = number_of(y)
    if number is None:
        _write_pair(op, x, y, dst, swap)
        return
    if x.shares is not None:
        x.shares.add(("vector", prod(dst.shape[1:]) / 2))
    if isinstance(x, Late) and x.made is None:
        nisa.tensor_scalar(
            dst, x.x.tile, x.op, x.number, reverse0=x.reverse, op1=op, operand1=number,
            reverse1=swap,
        )  # fmt: skip
    else:
        nisa.tensor_scalar(dst, x.tile, op, number, reverse0=swap)


def _write_pair(op, x, y, dst, swap: bool) -> None:
    """dst = x <op> y, or y <op> x with `swap`, for two tiles; x alone may be `Late`."""
    late = isinstance(x, Late) and x.made is None
    way = _way(op, x, y, late, prod(dst.shape[1:]))
    if way == "square":
        nisa.activation(dst, nl.square, x.tile)
    elif late and way == "vector":
        nisa.scalar_tensor_tensor(
            dst, x.x.tile, x.op, x.number, op, y.tile, reverse0=x.reverse, reverse1=swap
        )
    else:
        if way == "scaled":
            x.scaled()
        engine = nisa.vector_engine if way == "vector" else nisa.gpsimd_engine
        first, second = (y, x) if swap else (x, y)
        nisa.tensor_tensor(dst, first.tile, second.tile, op, engine=engine)


def _way(op, x, y, late: bool, elements: int) -> str:
    """Who computes with two tiles: "vector", "gpsimd" (what is `Late` written by the Vector
    Engine), "scaled" (written by the Scalar Engine), or "square" on the Scalar Engine."""
    shares = x.shares or y.shares
    if shares is None or op not in SHARED:
        return "vector"
    pair = ("gpsimd", 2.0 * elements)
    ways = {"vector": (("vector", 2.0 * elements),)}
    if x is y and op is nl.multiply and not late:
        ways["square"] = (("scalar", elements),)
    ways["gpsimd"] = (pair, ("vector", elements / 2)) if late else (pair,)
    if late and x.op is nl.multiply:
        ways["scaled"] = (pair, ("scalar", elements))
    return list(ways)[shares.best(*ways.values())]


def _is_second(a, b) -> bool:
    """Whether b is to be streamed and a its operand: b alone is a tile, or alone is late."""
    if not isinstance(a, Value) or number_of(b) is not None:
        return not isinstance(a, Value)
    return number_of(a) is not None or (isinstance(b, Late) and not isinstance(a, Late))


__all__ = ["Late", "Shares", "Value", "cast", "fresh", "number_of", "write"]
