"""Element-wise operations of tensor programs on tiles: how they run on the engines.

Every operation takes its operands (a `Value`, or a number) and the dtype wanted for its result, or
None for the one it is computed in, and returns a `Value`.
"""

from collections.abc import Callable
from math import pi, prod

from opentrn.base import UnsupportedError, declare
from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.kernels.values import Late, Value, cast, fresh, number_of, write

declare(
    "kernels.element_type",
    "An element-wise operation has no kernel for this kind of number.",
    rule="functions take floats; integers have arithmetic, comparison and bit operations",
    fix="convert the operand first",
)

# Above this magnitude a float32 has no fraction.
WHOLE = 2.0**23
INFINITE = float("inf")
# 2π as two float32 of few bits and the rest, so that n · 2π is exact for n up to 2^14.
TURN = (6.28125, 507 / 2**18, 2 * pi - 6.28125 - 507 / 2**18)


def computed_in(kind: str):
    """The dtype values of a kind are computed in."""
    return {"float": nl.float32, "int": nl.int32, "uint": nl.uint32, "bool": nl.uint8}[kind]


def tile_of(operand, like, dtype):
    """An operand as a tile of `dtype` (a number fills one)."""
    if isinstance(operand, Value):
        return cast(operand.tile, dtype)
    made = fresh(like, dtype)
    nisa.memset(made, operand)
    return made


def first_value(operands) -> Value:
    """The first operand that is a tile."""
    return next(o for o in operands if isinstance(o, Value))


def refuse(name: str, kind: str):
    """UnsupportedError: `name` has no kernel for numbers of this kind."""
    raise UnsupportedError(
        f"no element-wise kernel for `{name}` of {kind}",
        code="kernels.element_type",
        rule="functions take floats; integers have arithmetic, comparison and bit operations",
        fix="convert the operand first",
    )


def whole(tile):
    """The tile itself, or a copy with an element for each place where it repeats one."""
    if all(stride or count == 1 for stride, count in tile.get_pattern()[1:]):
        return tile
    made = fresh(tile, tile.dtype)
    nisa.tensor_copy(made, tile)
    return made


def result_in(value: Value, dtype):
    """The value's tile as a tile of `dtype` that can be stored."""
    return whole(cast(value.tile, dtype))


# ---------------------------------------------------------------------- two operands


def _exactly(op, a, b, dst) -> None:
    """dst = a <op> b with every operand a tile of the dtype of dst (32-bit integers, bytes)."""
    nisa.tensor_tensor(dst, tile_of(a, dst, dst.dtype), tile_of(b, dst, dst.dtype), op)


# What an instruction takes along before another operator.
LATE = (nl.add, nl.subtract, nl.multiply, nl.maximum, nl.minimum)


def _on_floats(op, a, b, dtype) -> Value:
    """a <op> b in `dtype`; in float32 and put off, where `dtype` is None and one is a number."""
    if dtype is None and op in LATE and (number_of(a) is None) != (number_of(b) is None):
        swap = number_of(b) is None
        x, number = (b, number_of(a)) if swap else (a, number_of(b))
        if not isinstance(x, Late):
            return Late(x, op, number, swap)
    dst = fresh(_wide(a, b), dtype if dtype and dtype.is_float else nl.float32)
    write(op, a, b, dst)
    return Value(dst, "float")


def _wide(a, b):
    """A tile of the shape of a <op> b."""
    whole = a if isinstance(a, Value) else b
    return whole.x.tile if isinstance(whole, Late) else whole.tile


def binary(op, on_bool=None) -> Callable:
    """An operator on floats and integers, and on booleans if it has a logical twin."""

    def operation(operands, dtype):
        a, b = operands
        like = first_value(operands)
        if like.kind == "float":
            return _on_floats(op, a, b, dtype)
        if like.kind == "bool" and on_bool is None:
            refuse(op.__name__, "booleans")
        dst = fresh(like.tile, computed_in(like.kind))
        _exactly(on_bool if like.kind == "bool" else op, a, b, dst)
        return Value(dst, like.kind)

    return operation


def bits(op, on_bool) -> Callable:
    """A bitwise operator on integers, its logical twin on booleans."""

    def operation(operands, dtype):
        like = first_value(operands)
        if like.kind == "float":
            refuse(op.__name__, "floats")
        dst = fresh(like.tile, computed_in(like.kind))
        _exactly(on_bool if like.kind == "bool" else op, *operands, dst)
        return Value(dst, like.kind)

    return operation


def compare(op) -> Callable:
    """A comparison: booleans as bytes.  Integers are compared as integers."""

    def operation(operands, dtype):
        a, b = operands
        like = first_value(operands)
        dst = fresh(_wide(a, b), nl.uint8)
        if like.kind == "float":
            write(op, a, b, dst)
            return Value(dst, "bool")
        wide = fresh(like.tile, computed_in(like.kind))
        _exactly(op, a, b, wide)
        return Value(cast(wide, nl.uint8), "bool")

    return operation


def _floats(name: str, operands) -> None:
    for operand in operands:
        if isinstance(operand, Value) and operand.kind != "float":
            refuse(name, operand.kind)


def power(operands, dtype):
    """lhs to the power rhs; small exponents known in advance by multiplication and roots."""
    _floats("power", operands)
    base, exponent = operands
    if isinstance(base, Value) and not isinstance(exponent, Value) and exponent in _POWERS:
        return _POWERS[exponent](base, dtype)
    like = first_value(operands).tile
    dst = fresh(like, nl.float32)
    nisa.tensor_tensor(
        dst, tile_of(base, like, nl.float32), tile_of(exponent, like, nl.float32), nl.power
    )
    return Value(dst, "float")


def _times(a, b):
    return binary(nl.multiply)([a, b], None)


_POWERS = {
    0.5: lambda x, dtype: activation(nl.sqrt)([x], dtype),
    1: lambda x, dtype: x,
    2: lambda x, dtype: activation(nl.square)([x], dtype),
    3: lambda x, dtype: binary(nl.multiply)([_times(x, x), x], dtype),
    -0.5: lambda x, dtype: activation(nl.rsqrt)([x], dtype),
    -1: lambda x, dtype: binary(nl.divide)([1.0, x], dtype),
}


def divide(operands, dtype):
    """lhs / rhs of floats; by a number as a product only where its inverse is exact."""
    _floats("divide", operands)
    return binary(nl.divide)(operands, dtype)


def remainder(operands, dtype):
    """What is left of lhs / rhs, with the sign of lhs."""
    return binary(nl.fmod)(operands, dtype)


def select(operands, dtype):
    """on_true where the predicate holds, else on_false."""
    pred, yes, no = operands
    chosen = [o for o in (yes, no) if isinstance(o, Value)]
    kind = chosen[0].kind if chosen else "float"
    dst = fresh(pred.tile, chosen[0].tile.dtype if chosen else nl.float32)
    if len(chosen) == 2 and yes.tile.dtype != no.tile.dtype:
        dst = fresh(pred.tile, computed_in(kind))
    if isinstance(no, Value):
        nisa.tensor_copy(dst, no.tile)
    else:
        nisa.memset(dst, no)
    source = cast(yes.tile, dst.dtype) if isinstance(yes, Value) else yes
    nisa.tensor_copy_predicated(dst, source, pred.tile)
    return Value(dst, kind)


def clamp(operands, dtype):
    """operand held between low and high."""
    low, x, high = operands
    if x.kind == "float" and not isinstance(low, Value) and not isinstance(high, Value):
        dst = fresh(x.tile, dtype if dtype and dtype.is_float else nl.float32)
        nisa.tensor_scalar(dst, x.tile, nl.maximum, low, op1=nl.minimum, operand1=high)
        return Value(dst, "float")
    return binary(nl.minimum)([binary(nl.maximum)([x, low], None), high], dtype)


# ---------------------------------------------------------------------- one operand


def activation(function) -> Callable:
    """A function of the Scalar Engine."""

    def operation(operands, dtype):
        (x,) = operands
        _floats(function.__name__, operands)
        dst = fresh(x.tile, dtype if dtype and dtype.is_float else nl.float32)
        nisa.activation(dst, function, x.tile)
        if x.shares is not None:
            x.shares.add(("scalar", prod(dst.shape[1:])))
        return Value(dst, "float")

    return operation


def negate(operands, dtype):
    """-x"""
    (x,) = operands
    if x.kind == "float":
        return binary(nl.multiply)([x, -1.0], dtype)
    return binary(nl.subtract)([0, x], dtype)


def magnitude(operands, dtype):
    """|x|"""
    (x,) = operands
    if x.kind == "float":
        return activation(nl.abs)(operands, dtype)
    return x if x.kind == "uint" else binary(nl.maximum)([x, negate([x], None)], dtype)


def sign(operands, dtype):
    """-1, 0 or 1."""
    (x,) = operands
    if x.kind == "float":
        return activation(nl.sign)(operands, dtype)
    return binary(nl.maximum)([binary(nl.minimum)([x, 1], None), -1], dtype)


def opposite(operands, dtype):
    """Logical not of booleans, every bit of integers flipped."""
    (x,) = operands
    if x.kind == "bool":
        return compare(nl.equal)([Value(x.tile, "float"), 0.0], dtype)
    if x.kind == "float":
        refuse("not", "floats")
    dst = fresh(x.tile, x.tile.dtype)
    nisa.tensor_scalar(dst, x.tile, nl.invert, None)
    return Value(dst, x.kind)


def _with(op, tile, number: float):
    """tile <op> number as a new float32 tile."""
    dst = fresh(tile, nl.float32)
    nisa.tensor_scalar(dst, tile, op, number)
    return dst


def _nearest(tile):
    """The nearest whole numbers (halves to even), of magnitudes below 2^23, as float32."""
    return cast(cast(tile, nl.int32), nl.float32)


def round_even(operands, dtype):
    """The nearest whole number; halves go to the even one."""
    (x,) = operands
    near, given = _nearest(x.tile), cast(x.tile, nl.float32)
    return _keep_whole(near, given)


def _keep_whole(near, given):
    """`near`, but numbers so large that they are whole (inf and NaN too) as they are."""
    small = fresh(given, nl.uint8)
    nisa.tensor_scalar(small, nl.abs(given), nl.less, WHOLE)
    dst = cast(given, nl.float32)
    if dst is given:
        dst = fresh(given, nl.float32)
        nisa.tensor_copy(dst, given)
    nisa.tensor_copy_predicated(dst, near, small)
    return Value(dst, "float")


def _towards(op, step: float) -> Callable:
    """Whole numbers on one side: the nearest, moved by `step` where it lies beyond x."""

    def operation(operands, dtype):
        _floats("rounding", operands)
        given = cast(operands[0].tile, nl.float32)
        near = _nearest(given)
        beyond, moved = fresh(near, nl.float32), fresh(near, nl.float32)
        nisa.tensor_tensor(beyond, near, given, op)
        nisa.scalar_tensor_tensor(moved, beyond, nl.multiply, step, nl.add, near)
        return _keep_whole(moved, given)

    return operation


floor, ceil = _towards(nl.greater, -1.0), _towards(nl.less, 1.0)


def truncated(x: Value):
    """The number without its fraction, a float32 tile."""
    down = floor([Value(nl.abs(x.tile, nl.float32), "float")], None).tile
    return nl.multiply(down, nl.sign(x.tile, nl.float32), nl.float32)


def _less_turns(x, shift: float, turn: tuple[float, ...]):
    """x less the whole turns in x + shift, as a float32 quotient counts them; `turn` is 2π in
    parts.

    Of n turns the quotient is wrong by up to n · 2^-23, which may leave more than half a turn.
    """
    turns = fresh(x, nl.float32)
    nisa.tensor_scalar(turns, x, nl.multiply, 1 / (2 * pi), op1=nl.add, operand1=shift / (2 * pi))
    turns = _nearest(turns)
    for part in turn:
        left = fresh(x, nl.float32)
        nisa.scalar_tensor_tensor(left, turns, nl.multiply, -part, nl.add, x)
        x = left
    return x


def _wave(shift: float) -> Callable:
    """sin(x + shift), brought into [-π, π] first: the engine does not reduce its argument."""

    def operation(operands, dtype):
        _floats("sine", operands)
        x = operands[0].tile
        rest = _less_turns(_less_turns(x, shift, TURN), shift, (2 * pi,))
        # Rounding may leave a last bit beyond π, where the engine's sine is another polynomial.
        nisa.tensor_scalar(rest, rest, nl.add, shift, op1=nl.minimum, operand1=3.1415925)
        nisa.tensor_scalar(rest, rest, nl.maximum, -3.1415925)
        nisa.scalar_tensor_tensor(rest, x, nl.multiply, 0.0, nl.add, rest)  # infinities: NaN
        return activation(nl.sin)([Value(rest, "float")], dtype)

    return operation


sine, cosine = _wave(0.0), _wave(pi / 2)


def tangent(operands, dtype):
    """sin x / cos x"""
    return binary(nl.divide)([sine(operands, None), cosine(operands, None)], dtype)


def atan2(operands, dtype):
    """The angle of the point (x, y), from the engine's arctangent of a ratio of at most 1."""
    _floats("atan2", operands)
    like = first_value(operands).tile
    y, x = (tile_of(o, like, nl.float32) for o in operands)
    far, near = nl.abs(x, nl.float32), nl.abs(y, nl.float32)
    low, high = fresh(x, nl.float32), fresh(x, nl.float32)
    nisa.tensor_tensor(low, near, far, nl.minimum)
    nisa.tensor_tensor(high, near, far, nl.maximum)
    ratio = nl.divide(low, high, nl.float32)
    for number, value in ((0.0, 0.0), (INFINITE, 1.0)):  # 0 / 0, and ∞ / ∞
        plain = fresh(x, nl.uint8)
        nisa.tensor_scalar(plain, high if number == 0.0 else low, nl.equal, number)
        nisa.tensor_copy_predicated(ratio, value, plain)
    angle = nl.arctan(ratio, nl.float32)
    for truth, turn in ((_truth(nl.greater, near, far), pi / 2), (_negative(x), pi)):
        other = fresh(x, nl.float32)
        nisa.tensor_scalar(other, angle, nl.subtract, turn, reverse0=True)
        nisa.tensor_copy_predicated(angle, other, truth)
    below = _with(nl.multiply, angle, -1.0)
    nisa.tensor_copy_predicated(angle, below, _negative(y))
    return Value(angle, "float")


def _truth(op, a, b):
    made = fresh(a, nl.uint8)
    nisa.tensor_tensor(made, a, b, op)
    return made


def _negative(tile):
    """Where the sign bit is set, of -0 too."""
    sign = fresh(tile, nl.int32)
    nisa.tensor_scalar(sign, whole(tile).view(nl.int32), nl.right_shift, 31)
    return cast(sign, nl.uint8)


def exponential_minus_one(operands, dtype):
    """eˣ - 1; below 1/2 as 2t / (1 - t) with t = tanh(x/2), which loses nothing near 0."""
    _floats("exponential_minus_one", operands)
    x = operands[0].tile
    grown = _with(nl.subtract, nl.exp(x, nl.float32), 1.0)
    t = fresh(x, nl.float32)
    nisa.activation(t, nl.tanh, x, scale=0.5)
    below = fresh(x, nl.float32)
    nisa.tensor_scalar(below, t, nl.multiply, -0.5, op1=nl.add, operand1=0.5)
    small = fresh(x, nl.uint8)
    nisa.tensor_scalar(small, nl.abs(x, nl.float32), nl.less, 0.5)
    nisa.tensor_copy_predicated(grown, nl.divide(t, below, nl.float32), small)
    return Value(grown, "float")


def log_plus_one(operands, dtype):
    """log(1 + x) = x · log(u) / (u - 1) with u = 1 + x rounded; x itself where u is 1."""
    _floats("log_plus_one", operands)
    x = cast(operands[0].tile, nl.float32)
    near = _with(nl.add, x, 1.0)
    ratio = nl.divide(nl.log(near), _with(nl.subtract, near, 1.0))
    grown = nl.multiply(ratio, x)
    for op, number in ((nl.equal, 1.0), (nl.greater, 1e30)):
        plain = fresh(x, nl.uint8)
        nisa.tensor_scalar(plain, near, op, number)
        nisa.tensor_copy_predicated(grown, x if number == 1.0 else nl.log(near), plain)
    return Value(grown, "float")


def is_finite(operands, dtype):
    """True where x is neither infinite nor NaN: x · 0 = 0."""
    _floats("is_finite", operands)
    zero = _with(nl.multiply, operands[0].tile, 0.0)
    return compare(nl.equal)([Value(zero, "float"), 0.0], dtype)


def convert(operands, dtype):
    """The numbers in another dtype: floats round, float to integer drops the fraction."""
    x, target = operands[0], as_dtype(operands[1])
    if target == nl.float32 and x.kind == "float":
        return x  # engines compute in float32 whatever they read
    if target.is_float:
        return Value(cast(x.tile, target), "float")
    if target == nl.bool_:
        if x.kind == "bool":
            return x
        return compare(nl.not_equal)([x, 0.0 if x.kind == "float" else 0], dtype)
    wide = nl.uint32 if target == nl.uint32 else nl.int32
    if x.kind == "float":
        # Saturates at the ends of the dtype, then of the 32-bit integer it is held in.
        return Value(cast(cast(truncated(x), target), wide), wide.kind)
    if target.itemsize < 4 and x.kind != "bool":
        return Value(_low_bits(_as_bits(x.tile, nl.int32), target), wide.kind)
    return Value(_as_bits(x.tile, wide), wide.kind)


def _as_bits(tile, dtype):
    """Integers as 32-bit ones of another sign: the same bits, where engines would saturate."""
    return whole(tile).view(dtype) if tile.dtype in (nl.int32, nl.uint32) else cast(tile, dtype)


def _low_bits(tile, target):
    """32-bit integers wrapped to a narrower type: its low bits, with sign where it has one."""
    dst = fresh(tile, nl.int32)
    nisa.tensor_scalar(dst, tile, nl.bitwise_and, (1 << target.bits) - 1)
    if target.kind == "uint":
        return dst
    over = binary(nl.greater)([Value(dst, "int"), target.max], None).tile
    turned = binary(nl.multiply)([Value(over, "int"), 1 << target.bits], None).tile
    nisa.tensor_tensor(dst, dst, turned, nl.subtract)
    return dst


def round_away(operands, dtype):
    """The nearest whole number; halves go away from zero."""
    _floats("round_nearest_afz", operands)
    given = cast(operands[0].tile, nl.float32)
    size = nl.abs(given, nl.float32)
    down = floor([Value(size, "float")], None).tile
    rest, more = fresh(given, nl.float32), fresh(given, nl.float32)
    nisa.tensor_tensor(rest, size, down, nl.subtract)
    nisa.tensor_scalar(more, rest, nl.greater_equal, 0.5)
    nisa.tensor_tensor(down, down, more, nl.add)
    return _keep_whole(nl.multiply(down, nl.sign(given, nl.float32), nl.float32), given)


def cube_root(operands, dtype):
    """∛x: the engine's power of |x|, one step of Newton's method, and the sign of x."""
    _floats("cbrt", operands)
    x = cast(operands[0].tile, nl.float32)
    size = nl.abs(x, nl.float32)
    root = fresh(x, nl.float32)
    nisa.tensor_scalar(root, size, nl.power, 1 / 3)
    left = nl.divide(size, nl.multiply(root, root, nl.float32), nl.float32)
    near = fresh(x, nl.float32)
    nisa.scalar_tensor_tensor(near, root, nl.multiply, 2.0, nl.add, left)
    nisa.tensor_scalar(near, near, nl.multiply, 1 / 3)
    nisa.tensor_copy_predicated(root, near, is_finite([Value(near, "float")], None).tile)
    return Value(nl.multiply(root, nl.sign(x, nl.float32), nl.float32), "float")


SIGN, INFINITY, LARGEST = -(1 << 31), 0x7F800000, 8


def reduce_precision(operands, dtype):
    """Rounded to what a float of so many exponent and mantissa bits holds, on the bits of float32.

    Half of what is dropped, less one, plus the last bit that stays, makes ties go to even."""
    given, exponent, mantissa = operands
    _floats("reduce_precision", [given])
    x = cast(given.tile, nl.float32)
    bits, sign = x.view(nl.int32), fresh(x, nl.int32)
    nisa.tensor_scalar(sign, bits, nl.bitwise_and, SIGN)
    made = fresh(x, nl.int32)
    nisa.tensor_copy(made, bits)
    drop = 23 - mantissa
    if drop > 0:
        last = fresh(x, nl.int32)
        nisa.tensor_scalar(last, bits, nl.right_shift, drop, op1=nl.bitwise_and, operand1=1)
        _exactly(nl.add, Value(bits, "int"), Value(last, "int"), made)
        _exactly(nl.add, Value(made, "int"), (1 << (drop - 1)) - 1, made)
        nisa.tensor_scalar(made, made, nl.bitwise_and, -(1 << drop))
    rounded, endless = made.view(nl.float32), fresh(x, nl.int32)
    nisa.tensor_scalar(endless, sign, nl.bitwise_or, INFINITY)
    if exponent < LARGEST:
        most = (1 << (exponent - 1)) - 1
        size = nl.abs(rounded, nl.float32)
        for op, limit, other in ((nl.greater_equal, 2.0 ** (most + 1), endless),
                                 (nl.less, 2.0 ** (1 - most), sign)):  # fmt: skip
            beyond = fresh(x, nl.uint8)
            nisa.tensor_scalar(beyond, size, op, limit)
            nisa.tensor_copy_predicated(made, other, beyond)
    finite = is_finite([Value(x, "float")], None).tile
    result = fresh(x, nl.float32)
    nisa.tensor_copy(result, x if mantissa else endless.view(nl.float32))
    nisa.tensor_copy_predicated(result, rounded, finite)
    return Value(result, "float")
