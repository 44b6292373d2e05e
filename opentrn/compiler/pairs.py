"""uint64 as pairs of 32-bit words, where a program computes with its bits.

The chip holds the lower 32 bits of a 64-bit integer.  Keys and counters of random generators are
made by shifts, products and concatenations of uint64, and read back as words of 32 bits; between
those ends every value is exact here as two words.  What has no rule keeps its 64-bit ops, which
are refused or narrowed as before.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from opentrn.compiler.wide import Words
from opentrn.graph import Builder, Graph, Note, Value, remake, splat_of

HALF = 32
WHOLE = ("int", "uint", "bool")


class Pair(NamedTuple):
    """The lower and the upper word of each element, both uint32; None stands for zeros."""

    low: Value
    high: Value | None

    def words(self, g: Builder) -> tuple[Value, Value]:
        """Both, zeros spelled out."""
        return self.low, g.like(self.low, 0) if self.high is None else self.high


def in_pairs(graph: Graph, notes: list[Note]) -> Graph:
    """The graph with those uint64 values as pairs of words that are made of known ones."""
    if not any(getattr(v, "dtype", None) == "uint64" for v in graph):
        return graph
    pairs: dict[Value, Pair] = {}  # by the value of the given graph

    def change(value: Value, args: tuple[Value, ...]) -> Value:
        g = Builder(value.where)
        own = [pairs.get(a) for a in value.args]
        made = _pair(g, value, args, own)
        if made is not None:
            pairs[value] = made
        read = _read(g, value, args, own)
        if read is None:
            return remake(value, args)
        notes.append(Note("pairs", repr(value), "rewrote", "uint64 as two words", value.where))
        return read

    for value in graph.inputs:
        # A region's inputs are what a loop carries, of which the chip has the lower words alone.
        if value.dtype == "uint64" and not value.attrs.label.startswith("%"):
            pairs[value] = Pair(Builder(value.where).cast(value, "uint32"), None)
    return graph.rebuild(change)


# ------------------------------------------------------------------------- what leaves the pairs


def _read(g: Builder, value: Value, args: tuple[Value, ...], own: list) -> Value | None:
    """What is no uint64 any more, from the pairs of its operands; None where it needs none."""
    if _is_next(value, args):
        return g.bitcast_convert(g.reshape(remake(value, args), (*value.shape, 2)), "uint64")
    if not own or own[0] is None or getattr(value, "dtype", None) == "uint64":
        return None
    if value.op == "convert" and value.dtype.kind in ("int", "uint"):
        return _narrowed(g, own[0].low, value)
    if value.op == "bitcast_convert":
        if value.dtype == "uint32":
            return g.reshape(_side_by_side(g, args[0], own[0]), value.shape)
        return _narrowed(g, own[0].low, value) if value.dtype == "int64" else None
    if value.op == "compare" and own[1] is not None:
        return _compared(g, value.attrs.direction, own[0].words(g), own[1].words(g))
    if value.op == "rng_bit_generator":
        state, a = _side_by_side(g, args[0], own[0]), value.attrs
        return g.rng_bit_generator(state, a.algorithm, a.shape, a.dtype)
    return None


def _side_by_side(g: Builder, value: Value, pair: Pair) -> Value:
    """All words in memory's order, the lower one of each element first."""
    if value.op == "bitcast_convert" and value.args[0].dtype == "uint32":
        return g.reshape(value.args[0], (2 * value.size,))
    if value.op == "constant":
        return g.constant(np.ascontiguousarray(value.attrs.data.array).view(np.uint32).reshape(-1))
    low, high = (g.reshape(word, (word.size, 1)) for word in pair.words(g))
    return g.reshape(g.concatenate(low, high, dimension=1), (2 * value.size,))


def _narrowed(g: Builder, low: Value, value: Value) -> Value:
    """The lower word as an integer of the value's dtype, wrapped around."""
    return g.cast(g.bitcast_convert(low, "int32") if value.dtype.kind == "int" else low,
                  value.dtype)  # fmt: skip


def _compared(g: Builder, direction: str, one: tuple, other: tuple) -> Value:
    """Unsigned numbers compared by their upper words, then by their lower ones."""
    same = g.compare(one[1], other[1], direction="EQ")
    low = g.compare(one[0], other[0], direction=direction)
    if direction in ("EQ", "NE"):
        differs = g.compare(one[1], other[1], direction="NE")
        return g.and_(same, low) if direction == "EQ" else g.or_(differs, low)
    return g.select(same, low, g.compare(one[1], other[1], direction=direction))


# ----------------------------------------------------------------------- what makes and keeps them


def _pair(g: Builder, value: Value, args: tuple[Value, ...], own: list) -> Pair | None:
    """The two words of a value, None where they are not to be had."""
    kind = str(getattr(value, "dtype", ""))
    if kind == "int64" and value.op == "bitcast_convert":
        return own[0]
    if kind != "uint64":
        return None
    rule = MADE.get(value.op)
    if rule is not None:
        return rule(g, value, args, own)
    held = own[1:] if value.op == "select" else own
    if any(pair is None for pair in held):
        return None
    if value.op in BITS:
        return BITS[value.op](g, value, *held)
    return _moved(g, value, args, held) if value.op in MOVES else None


MOVES = ("reshape", "broadcast_in_dim", "slice", "concatenate", "transpose", "reverse", "select")


def _moved(g: Builder, value: Value, args: tuple[Value, ...], held: list[Pair]) -> Pair:
    """Each word moved as the numbers are."""
    lead = args[:1] if value.op == "select" else ()
    low = remake(value, (*lead, *(pair.low for pair in held)))
    if all(pair.high is None for pair in held):
        return Pair(low, None)
    return Pair(low, remake(value, (*lead, *(pair.words(g)[1] for pair in held))))


def _constant(g: Builder, value: Value, args: tuple[Value, ...], own: list) -> Pair | None:
    array = value.attrs.data.array
    if array is None:
        return None
    numbers = array.astype(np.uint64)
    low, high = numbers & np.uint64(0xFFFFFFFF), numbers >> np.uint64(HALF)
    return Pair(g.constant(low.astype(np.uint32)),
                g.constant(high.astype(np.uint32)) if high.any() else None)  # fmt: skip


def _counted(g: Builder, value: Value, args: tuple[Value, ...], own: list) -> Pair:
    return Pair(g.iota(value.shape, value.attrs.dimension, "uint32"), None)


def _converted(g: Builder, value: Value, args: tuple[Value, ...], own: list) -> Pair | None:
    """From a shorter integer, or from int64, whose upper word is its sign on the chip."""
    source = args[0]
    if own[0] is not None:
        return own[0]
    if source.dtype.kind not in WHOLE or source.dtype == "uint64":
        return None
    if source.dtype.kind != "int":
        return Pair(g.cast(source, "uint32"), None)
    short = g.cast(source, "int32")
    sign = g.shift_right_arithmetic(short, g.like(short, HALF - 1))
    return Pair(g.bitcast_convert(short, "uint32"), g.bitcast_convert(sign, "uint32"))


def _reread(g: Builder, value: Value, args: tuple[Value, ...], own: list) -> Pair | None:
    """bitcast_convert to uint64: of 64 bits, or of two words of 32."""
    source = args[0]
    if own[0] is not None or source.dtype == "int64":
        return _converted(g, value, args, own)
    if source.dtype != "uint32":
        return None
    axis, shape = source.rank - 1, value.shape

    def part(n: int) -> Value:
        starts, limits = [0] * axis + [n], [*source.shape[:-1], n + 1]
        return g.reshape(g.slice(source, starts, limits, [1] * source.rank), shape)

    return Pair(part(0), part(1))


def _next(g: Builder, value: Value, args: tuple[Value, ...], own: list) -> Pair | None:
    """The next state of a generator whose state is a pair."""
    if not _is_next(value, args):
        return None
    count = value.size
    words = g.reshape(g.get_tuple_element(args[0], 0), (count, 2))
    low, high = (g.reshape(g.slice(words, (0, n), (count, n + 1), (1, 1)), (count,))
                 for n in (0, 1))  # fmt: skip
    return Pair(low, high)


def _is_next(value: Value, args: tuple[Value, ...]) -> bool:
    """Whether it is the next state of a generator whose state became words of 32 bits."""
    return (value.op == "get_tuple_element" and value.attrs.index == 0
            and value.args[0].op == "rng_bit_generator"
            and args[0].args[0].dtype != value.args[0].args[0].dtype)  # fmt: skip


MADE: dict[str, Callable] = {
    "constant": _constant, "iota": _counted, "convert": _converted, "bitcast_convert": _reread,
    "get_tuple_element": _next,
}  # fmt: skip


# ------------------------------------------------------------------------------------ arithmetic


def _both(name: str) -> Callable:
    def rule(g: Builder, value: Value, one: Pair, other: Pair) -> Pair:
        low = getattr(g, name)(one.low, other.low)
        if one.high is None and other.high is None:
            return Pair(low, None)
        return Pair(low, getattr(g, name)(one.words(g)[1], other.words(g)[1]))

    return rule


def _not(g: Builder, value: Value, one: Pair) -> Pair:
    low, high = one.words(g)
    return Pair(g.not_(low), g.not_(high))


def _add(g: Builder, value: Value, one: Pair, other: Pair) -> Pair:
    (a, b), (c, d) = one.words(g), other.words(g)
    low = a + c
    return Pair(low, b + d + Words(g, low.shape).carry(low, a))


def _subtract(g: Builder, value: Value, one: Pair, other: Pair) -> Pair:
    (a, b), (c, d) = one.words(g), other.words(g)
    return Pair(a - c, b - d - Words(g, a.shape).carry(a, c))


def _multiply(g: Builder, value: Value, one: Pair, other: Pair) -> Pair:
    low = one.low * other.low
    high = Words(g, low.shape).upper(one.low, other.low)
    for word, by in ((one.low, other.high), (other.low, one.high)):
        if by is not None:
            high = high + word * by
    return Pair(low, high)


def _shift(left: bool) -> Callable:
    def rule(g: Builder, value: Value, one: Pair, by: Pair) -> Pair | None:
        places = splat_of(value.args[1])
        if places is None:
            return None
        n, zero = int(places), g.like(one.low, 0)
        if n >= 2 * HALF:
            return Pair(zero, None)
        low, high = one.words(g)
        if n >= HALF:
            return Pair(zero, _by(g, low, HALF - n)) if left else Pair(_by(g, high, n - HALF), None)
        if n == 0:
            return one
        if left:
            return Pair(_by(g, low, -n), g.or_(_by(g, high, -n), _by(g, low, HALF - n)))
        return Pair(g.or_(_by(g, low, n), _by(g, high, n - HALF)), _by(g, high, n))

    return rule


def _by(g: Builder, word: Value, places: int) -> Value:
    """A word moved down so many places, up where they are negative."""
    if places == 0:
        return word
    move = g.shift_right_logical if places > 0 else g.shift_left
    return move(word, g.like(word, abs(places)))


BITS: dict[str, Callable] = {
    "and": _both("and_"), "or": _both("or_"), "xor": _both("xor"), "not": _not, "add": _add,
    "subtract": _subtract, "multiply": _multiply, "shift_left": _shift(True),
    "shift_right_logical": _shift(False),
}  # fmt: skip

__all__ = ["Pair", "in_pairs"]
