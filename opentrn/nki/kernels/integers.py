"""Whole numbers on tiles: quotients, shifts and counts of bits, exact in 32 bits.

The engines divide in float32 only, and shift by fewer places than there are bits; what tensor
programs mean by these operations is put together from that.
"""

from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.kernels.pointwise import Value, cast, computed_in, first_value, fresh, tile_of

BITS = 32


def _both(op, a, b, dtype=None):
    """a <op> b of two tiles, as a new tile of the dtype of a."""
    made = fresh(a, dtype or a.dtype)
    nisa.tensor_tensor(made, a, b, op)
    return made


def _with(op, tile, number):
    """tile <op> number for an operator on bits."""
    made = fresh(tile, tile.dtype)
    nisa.tensor_scalar(made, tile, op, number)
    return made


def _filled(like, number, dtype):
    made = fresh(like, dtype)
    nisa.memset(made, number)
    return made


def _truth(op, a, b):
    """Where a <op> b, of 32-bit integers: bytes of 0 and 1."""
    return cast(_both(op, a, b), nl.uint8)


# ---------------------------------------------------------------------- shifts


def _move(op, tile, places):
    """A shift of bits by a number, or by a tile of numbers, of places; 0 beyond all bits."""
    if not isinstance(places, Value):
        known = int(places)
        return _with(op, tile, known) if 0 <= known < BITS else _filled(tile, 0, tile.dtype)
    count = cast(places.tile, tile.dtype)
    moved = _both(op, tile, _with(nl.bitwise_and, count, BITS - 1))
    beyond = _with(nl.bitwise_and, count, ~(BITS - 1))
    inside = _truth(nl.equal, beyond, _filled(tile, 0, tile.dtype))
    made = _filled(tile, 0, tile.dtype)
    nisa.tensor_copy_predicated(made, moved, inside)
    return made


def _operand(operands):
    """The tile that is shifted, and its kind."""
    like = first_value(operands)
    return tile_of(operands[0], like.tile, computed_in(like.kind)), like.kind


def shift(op):
    """The bits moved up, or down with zeros above; by all places or more it gives 0."""

    def operation(operands, dtype):
        tile, kind = _operand(operands)
        return Value(_move(op, tile, operands[1]), kind)

    return operation


def shift_right_arithmetic(operands, dtype):
    """The bits moved down, the sign repeated above: of a negative number, ~(~x >> places)."""
    tile, kind = _operand(operands)
    sign = _both(nl.subtract, _filled(tile, 0, nl.int32),
                 _with(nl.right_shift, tile.view(nl.int32), BITS - 1))  # fmt: skip
    sign = sign.view(tile.dtype)
    moved = _move(nl.right_shift, _both(nl.bitwise_xor, tile, sign), operands[1])
    return Value(_both(nl.bitwise_xor, moved, sign), kind)


# ---------------------------------------------------------------------- counts of bits


def popcnt(operands, dtype):
    """How many bits are 1: sums of 1, 2, 4 bits in their places, then of bytes by a product.

    Hacker's Delight (Warren, 2nd edition), figure 5-2."""
    (x,) = operands
    return Value(_ones(x.tile.view(nl.int32)).view(x.tile.dtype), x.kind)


def _ones(bits):
    half = _with(nl.bitwise_and, _with(nl.right_shift, bits, 1), 0x55555555)
    twos = _both(nl.subtract, bits, half)
    low = _with(nl.bitwise_and, twos, 0x33333333)
    high = _with(nl.bitwise_and, _with(nl.right_shift, twos, 2), 0x33333333)
    fours = _both(nl.add, low, high)
    bytes_ = _both(nl.add, fours, _with(nl.right_shift, fours, 4))
    bytes_ = _with(nl.bitwise_and, bytes_, 0x0F0F0F0F)
    total = _both(nl.multiply, bytes_, _filled(bits, 0x01010101, nl.int32))
    return _with(nl.right_shift, total, BITS - 8)


def count_leading_zeros(operands, dtype):
    """How many bits above the highest 1 are 0: the ones of what is left when all below are set."""
    (x,) = operands
    bits = x.tile.view(nl.int32)
    for places in (1, 2, 4, 8, 16):
        bits = _both(nl.bitwise_or, bits, _with(nl.right_shift, bits, places))
    return Value(_ones(_with(nl.bitwise_xor, bits, -1)).view(x.tile.dtype), x.kind)


# ---------------------------------------------------------------------- quotients


def _magnitude(tile):
    """|x| as an unsigned number; that of the least int32 is 2^31."""
    if tile.dtype == nl.uint32:
        return tile
    below = _both(nl.subtract, _filled(tile, 0, nl.int32), tile)
    return _both(nl.maximum, tile, below).view(nl.uint32)


def _ratio(n, d):
    """n / d in float32."""
    return _both(nl.divide, cast(n, nl.float32), cast(d, nl.float32))


def _quotient(n, d):
    """(n // d, n - (n // d) · d) of unsigned tiles.

    The float32 quotient is off by at most 1.8e-7 of itself and 1/2, so what is left over is below
    d / 2 + 770 in magnitude; the quotient of that is right to within 1."""
    q = cast(_ratio(n, d), nl.uint32)
    rest = _both(nl.subtract, n, _both(nl.multiply, q, d)).view(nl.int32)
    more = cast(_ratio(rest, d), nl.int32).view(nl.uint32)
    q = _both(nl.add, q, more)
    rest = _both(nl.subtract, n, _both(nl.multiply, q, d))
    below = _with(nl.right_shift, rest, BITS - 1)
    q = _both(nl.subtract, q, below)
    rest = _both(nl.add, rest, _both(nl.multiply, below, d))
    # Divisors beyond 2^31 leave no sign to see; their quotient is 0 or 1.
    large = cast(_with(nl.right_shift, d, BITS - 1), nl.uint8)
    once = _both(nl.greater_equal, n, d)
    nisa.tensor_copy_predicated(q, once, large)
    nisa.tensor_copy_predicated(rest, _both(nl.subtract, n, _both(nl.multiply, once, d)), large)
    return q, rest


def _signed(tile, negative):
    """-x where `negative` is 1, x where it is 0."""
    mask = _both(nl.subtract, _filled(tile, 0, nl.int32), negative)
    return _both(nl.subtract, _both(nl.bitwise_xor, tile, mask), mask)


def _parts(operands):
    like = first_value(operands)
    dtype = computed_in(like.kind)
    n, d = (tile_of(o, like.tile, dtype) for o in operands)
    zero = _truth(nl.equal, d, _filled(d, 0, dtype))
    return n, d, zero, like.kind


def quotient(operands, dtype):
    """n / d without its fraction; n / 0 is -1, in every bit."""
    n, d, zero, kind = _parts(operands)
    q, _ = _quotient(_magnitude(n), _magnitude(d))
    if kind == "int":
        negative = _with(nl.right_shift, _both(nl.bitwise_xor, n, d), BITS - 1)
        q = _signed(q.view(nl.int32), negative)
    ones = _filled(n, -1, nl.int32).view(q.dtype)
    nisa.tensor_copy_predicated(q, ones, zero)
    return Value(q, kind)


def rest(operands, dtype):
    """What is left of n / d, with the sign of n; of n / 0 it is n."""
    n, d, zero, kind = _parts(operands)
    _, left = _quotient(_magnitude(n), _magnitude(d))
    if kind == "int":
        left = _signed(left.view(nl.int32), _with(nl.right_shift, n, BITS - 1))
    nisa.tensor_copy_predicated(left, n, zero)
    return Value(left, kind)


WHOLE = {
    "shift_left": shift(nl.left_shift),
    "shift_right_logical": shift(nl.right_shift),
    "shift_right_arithmetic": shift_right_arithmetic,
    "popcnt": popcnt,
    "count_leading_zeros": count_leading_zeros,
}

__all__ = ["WHOLE", "quotient", "rest"]
