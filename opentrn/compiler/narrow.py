"""Integers of other sizes than the engines': 8 and 16 bits in 32, and what int64 has in 32.

Arithmetic of narrow integers wraps around in StableHLO, and saturates on the engines.  So it is
done in 32 bits, which hold every sum and the low half of every product, and the result is cut to
its size before it is narrowed.
"""

from opentrn.base import DType, float32, int32, uint32
from opentrn.graph import Builder, Pattern, PatternBuilder, Rule, Value, no, splat_of

# What the chip stores: 64-bit types are narrowed, as the vendor's compiler does.
ON_DEVICE = {"int64": int32, "uint64": uint32, "float64": float32}


def device_dtype(kind: DType) -> DType:
    """The dtype a graph value has on the chip."""
    return ON_DEVICE.get(str(kind), kind)


NARROW = ("int8", "uint8", "int16", "uint16")


def _wrapped(g: Builder, wide: Value, dtype) -> Value:
    """int32 values as `dtype` holds them after wrapping around."""
    lowest = g.full(wide.shape, int(dtype.min), "int32")
    mask = g.full(wide.shape, 2**dtype.bits - 1, "int32")
    above = g.and_(g.subtract(wide, lowest), mask)
    return g.cast(g.add(above, lowest), dtype)


def _is_narrow(x: Value) -> bool | no:
    return x.dtype in NARROW or no("its dtype is wide enough, or a float")


def _two(name: str) -> type[Rule]:
    """The rule of an op on two operands."""

    def find(p: PatternBuilder, x: Pattern, y: Pattern) -> Pattern:
        return getattr(p, name)(x, y)

    def make(g: Builder, x: Value, y: Value) -> Value:
        made = getattr(g, name)(g.cast(x, "int32"), g.cast(y, "int32"))
        return _wrapped(g, made, x.dtype)

    def sample(g: Builder) -> tuple[Value, ...]:
        pairs = [(g.input(f"x{d}", (40,), d), g.input(f"y{d}", (40,), d)) for d in NARROW]
        return tuple(getattr(g, name)(x, y) for x, y in pairs)

    def refuse(g: Builder) -> Value:
        return getattr(g, name)(g.input("x", (4,), "int32"), g.input("y", (4,), "int32"))

    return _rule(name, find, make, sample, refuse)


def _one(name: str) -> type[Rule]:
    """The rule of an op on one operand, whose result may be one more than the largest number."""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return getattr(p, name)(x)

    def make(g: Builder, x: Value) -> Value:
        return _wrapped(g, getattr(g, name)(g.cast(x, "int32")), x.dtype)

    def sample(g: Builder) -> tuple[Value, ...]:
        return tuple(getattr(g, name)(g.input(f"x{d}", (40,), d)) for d in NARROW)

    def refuse(g: Builder) -> Value:
        return getattr(g, name)(g.input("x", (4,), "int32"))

    return _rule(name, find, make, sample, refuse)


def _rule(name, find, make, sample, refuse) -> type[Rule]:
    body = {
        "__doc__": f"{name} of 8- or 16-bit integers → {name} in 32 bits, wrapped",
        "__module__": __name__,
        "find": find,
        "when": lambda x: _is_narrow(x),
        "make": make,
        "sample": sample,
        "refuse": refuse,
    }
    return type(f"Wrap{name.title().replace('_', '')}", (Rule,), body)


class WrapSums(Rule):
    """sums of 8- or 16-bit integers → sums in 32 bits, wrapped"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.reduce(x, kind="add", bind="total")

    def when(x: Value) -> bool | no:
        return _is_narrow(x)

    def make(g: Builder, x: Value, total: Value) -> Value:
        made = g.reduce(g.cast(x, "int32"), kind="add", dimensions=total.attrs.dimensions)
        return _wrapped(g, made, x.dtype)

    def sample(g: Builder) -> tuple[Value, ...]:
        return tuple(
            g.reduce(g.input(f"x{d}", (6, 40), d), kind="add", dimensions=(1,)) for d in NARROW
        )

    def refuse(g: Builder) -> Value:
        return g.reduce(g.input("x", (4, 4), "int32"), kind="add", dimensions=(1,))


SHIFTS = ("shift_left", "shift_right_logical", "shift_right_arithmetic")


def _unsigned(g: Builder, x: Value) -> Value:
    """The bits of a narrow integer as an int32, zeros above."""
    wide = g.cast(x, "int32")
    return g.and_(wide, g.like(wide, 2**x.dtype.bits - 1))


def _signed(g: Builder, x: Value) -> Value:
    """The bits of a narrow integer read as a signed number."""
    top = g.full(x.shape, 2 ** (x.dtype.bits - 1), "int32")
    return g.subtract(g.xor(_unsigned(g, x), top), top)


def _shift(name: str) -> type[Rule]:
    """The rule of a shift: what lies above the bits of the dtype is what the shift brings down."""

    def find(p: PatternBuilder, x: Pattern, places: Pattern) -> Pattern:
        return getattr(p, name)(x, places)

    def make(g: Builder, x: Value, places: Value) -> Value:
        wide = _signed(g, x) if name == "shift_right_arithmetic" else _unsigned(g, x)
        return _wrapped(g, getattr(g, name)(wide, g.cast(places, "int32")), x.dtype)

    def sample(g: Builder) -> tuple[Value, ...]:
        pairs = [(g.input(f"x{d}", (40,), d), g.input(f"y{d}", (40,), d)) for d in NARROW]
        return tuple(getattr(g, name)(x, y) for x, y in pairs)

    def refuse(g: Builder) -> Value:
        return getattr(g, name)(g.input("x", (4,), "int32"), g.input("y", (4,), "int32"))

    return _rule(name, find, make, sample, refuse)


class CountNarrow(Rule):
    """popcnt of 8- or 16-bit integers → popcnt of their bits in 32"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.popcnt(x)

    def when(x: Value) -> bool | no:
        return _is_narrow(x)

    def make(g: Builder, x: Value) -> Value:
        return g.cast(g.popcnt(_unsigned(g, x)), x.dtype)

    def sample(g: Builder) -> tuple[Value, ...]:
        return tuple(g.popcnt(g.input(f"x{d}", (40,), d)) for d in NARROW)

    def refuse(g: Builder) -> Value:
        return g.popcnt(g.input("x", (4,), "int32"))


class LeadingZerosNarrow(Rule):
    """count_leading_zeros of 8- or 16-bit integers → in 32 bits, less those that are not theirs"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.count_leading_zeros(x)

    def when(x: Value) -> bool | no:
        return _is_narrow(x)

    def make(g: Builder, x: Value) -> Value:
        wide = g.count_leading_zeros(_unsigned(g, x))
        return g.cast(g.subtract(wide, g.like(wide, 32 - x.dtype.bits)), x.dtype)

    def sample(g: Builder) -> tuple[Value, ...]:
        return tuple(g.count_leading_zeros(g.input(f"x{d}", (40,), d)) for d in NARROW)

    def refuse(g: Builder) -> Value:
        return g.count_leading_zeros(g.input("x", (4,), "int32"))


class CountWide(Rule):
    """popcnt of int64 → of the lower half; of the upper half, which is the sign, 0 or 32"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.popcnt(x)

    def when(x: Value) -> bool | no:
        return x.dtype == "int64" or no("it has no upper half, or one that is no sign")

    def make(g: Builder, x: Value) -> Value:
        low = g.cast(x, "int32")
        above = g.shift_right_arithmetic(low, g.like(low, 31))
        total = g.add(g.popcnt(low), g.and_(above, g.like(low, 32)))
        return g.cast(total, x.dtype)

    def sample(g: Builder) -> Value:
        x = g.input("x", (40,), "int64")
        return g.popcnt(g.subtract(x, g.like(x, 2)))

    def refuse(g: Builder) -> Value:
        return g.popcnt(g.input("x", (4,), "uint32"))


class IntegerPower(Rule):
    """power of integers → squares multiplied where the exponent has a bit, wrapped around"""

    def find(p: PatternBuilder, x: Pattern, exponent: Pattern) -> Pattern:
        return p.power(x, exponent, bind="made")

    def when(x: Value) -> bool | no:
        return x.dtype.kind in ("int", "uint") or no("its dtype is no integer's")

    def make(g: Builder, x: Value, exponent: Value, made: Value) -> Value:
        square, bits = g.cast(x, "int32"), g.cast(exponent, "int32")
        known = splat_of(exponent)
        one, zero = g.like(square, 1), g.like(square, 0)
        places = 32 if known is None else max(int(abs(known)).bit_length(), 1)
        result = one
        for place in range(min(places, 32)):
            bit = g.and_(g.shift_right_logical(bits, g.like(bits, place)), one)
            taken = g.compare(bit, zero, direction="NE")
            result = g.select(taken, g.multiply(result, square), result)
            square = g.multiply(square, square)
        if x.dtype.kind == "int":
            # Of a negative power only 1 and -1 leave a whole number, which all its bits give.
            small = g.compare(g.abs(g.cast(x, "int32")), one, direction="EQ")
            whole = g.or_(g.compare(bits, zero, direction="GE"), small)
            result = g.select(whole, result, zero)
        return _wrapped(g, result, x.dtype) if x.dtype in NARROW else g.cast(
            g.bitcast_convert(result, "uint32") if x.dtype.kind == "uint" else result, x.dtype
        )  # fmt: skip

    def sample(g: Builder) -> tuple[Value, ...]:
        pairs = [(g.input(f"x{d}", (40,), d), g.input(f"y{d}", (40,), d))
                 for d in (*NARROW, "int32", "uint32", "int64")]  # fmt: skip
        made = [g.power(x, y) for x, y in pairs]
        return *made, *(g.power(x, g.like(x, 3)) for x, _ in pairs)

    def refuse(g: Builder) -> Value:
        return g.power(g.input("x", (4,)), g.input("y", (4,)))


class FullExponent(Rule):
    """reduce_precision to as many exponent bits as the dtype has → to 8, which drops none"""

    def find(p: PatternBuilder, x: Pattern) -> Pattern:
        return p.reduce_precision(x, bind="made")

    def when(x: Value, made: Value) -> bool | no:
        bits = made.attrs.exponent_bits
        return (bits >= x.dtype.exponent and bits != 8) or no("exponents are cut, or there are 8")

    def make(g: Builder, x: Value, made: Value) -> Value:
        return g.reduce_precision(x, 8, made.attrs.mantissa_bits)

    def sample(g: Builder) -> Value:
        return g.reduce_precision(g.input("x", (40,), "float16"), 5, 7)

    def refuse(g: Builder) -> Value:
        return g.reduce_precision(g.input("x", (40,)), 5, 7)


BITS = (*map(_shift, SHIFTS), CountNarrow, LeadingZerosNarrow, CountWide, IntegerPower,
        FullExponent)
WRAP = (*map(_two, ("add", "subtract", "multiply", "divide")),
        *map(_one, ("negate", "abs", "not_")), WrapSums, *BITS)  # fmt: skip

__all__ = ["WRAP", "device_dtype"]
