"""Arithmetic of 8- and 16-bit integers: it wraps around in StableHLO, and saturates on the engines.

So it is done in 32 bits, which hold every sum and the low half of every product, and the result is
cut to its size before it is narrowed.
"""

from opentrn.graph import Builder, Pattern, PatternBuilder, Rule, Value, no

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
    return type(f"Wrap{name.title()}", (Rule,), body)


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


WRAP = (*map(_two, ("add", "subtract", "multiply", "divide")), *map(_one, ("negate", "abs")),
        WrapSums)  # fmt: skip

__all__ = ["WRAP"]
