"""Element-wise math, reductions and small composites on tiles, each lowered to `nki.isa`.

A function of this module is also an operator: `nl.add` may be passed as `op=` to an instruction.
Results are new SBUF tiles of dtype `dtype`, by default that of the first tile.
"""

import builtins
from collections.abc import Callable
from typing import Any

from opentrn.base import BoundsError, ShapeError, UsageError, declare, float32, int32, uint8, uint16
from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki.language.memory import full, ndarray, psum, sbuf, tile_size, two_dimensional
from opentrn.nki.tensor import NkiTensor

declare(
    "nki.broadcast",
    "Two tiles do not broadcast to one shape.",
    rule="free dimensions must be equal or 1; partitions must be equal",
    fix="slice or reshape one tile, or nl.broadcast_to it",
)
declare(
    "nki.axis",
    "A reduction names an axis it cannot reduce.",
    rule="axes are free dimensions: 1 to ndim - 1, or negative from the last",
    fix="sum over partitions with nisa.nc_matmul and a column of ones",
)
declare(
    "nki.no_tile",
    "A math function was given no tile.",
    rule="at least one argument is an NkiTensor",
    fix="use Python for numbers, nl.full for a tile of one number",
)

# Results that may be asserted: `assert nl.equal(a, b)`.
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
COMPARISONS += ("logical_and", "logical_or", "logical_xor")
# Above this magnitude a float32 has no fraction.
WHOLE = 2.0**23


def _result(like: NkiTensor, shape, dtype) -> NkiTensor:
    return ndarray(shape, as_dtype(dtype or like.dtype), sbuf)


def _is_column(y: NkiTensor) -> bool:
    """One float32 for each partition: what tensor_scalar takes as an operand."""
    return y.size == y.shape[0] and y.dtype == float32


def _matched(x: NkiTensor, y: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
    """Both tiles as views of one common shape; ShapeError when they do not broadcast."""
    while x.ndim < y.ndim:
        x = x.expand_dim(1)
    while y.ndim < x.ndim:
        y = y.expand_dim(1)
    for dim in range(1, x.ndim):
        if x.shape[dim] == 1 != y.shape[dim]:
            x = x.broadcast(dim, y.shape[dim])
        elif y.shape[dim] == 1 != x.shape[dim]:
            y = y.broadcast(dim, x.shape[dim])
    if x.shape != y.shape:
        raise ShapeError(
            f"tiles of shape {list(x.shape)} and {list(y.shape)} do not broadcast",
            code="nki.broadcast",
        )
    return x, y


def _apply(op: str, x: Any, y: Any, dtype) -> NkiTensor:
    """A binary operator on tiles, columns and numbers."""
    if not isinstance(x, NkiTensor) and not isinstance(y, NkiTensor):
        raise UsageError(f"{op} of {x!r} and {y!r}", code="nki.no_tile")
    if not isinstance(x, NkiTensor):
        out = _result(y, y.shape, dtype)
        nisa.tensor_scalar(out, y, op, x, reverse0=True)
        return out
    if not isinstance(y, NkiTensor) or (_is_column(y) and y.shape[0] == x.shape[0]):
        out = _result(x, x.shape, dtype)
        nisa.tensor_scalar(out, x, op, y)
        return out
    a, b = _matched(x, y)
    out = _result(x, a.shape, dtype)
    nisa.tensor_tensor(out, a, b, op)
    return out


def _binary(name: str, doc: str, op: str = "") -> Callable:
    def function(x, y, dtype=None):
        return _apply(op or name, x, y, dtype)

    def comparison(x, y, dtype=None):
        return _apply(op or name, x, y, dtype).compared()

    return _named(comparison if name in COMPARISONS else function, name, doc, op)


def _unary(name: str, doc: str) -> Callable:
    def function(x, dtype=None):
        out = _result(x, x.shape, dtype)
        nisa.activation(out, name, x)
        return out

    return _named(function, name, doc)


def _named(function: Callable, name: str, doc: str, op: str = "") -> Callable:
    function.__name__ = function.__qualname__ = name
    function.__doc__, function.nki_op = doc, op or name
    return function


add = _binary("add", "x + y, element by element.")
subtract = _binary("subtract", "x - y, element by element.")
multiply = _binary("multiply", "x · y, element by element.")
divide = _binary("divide", "x / y, element by element.")
maximum = _binary("maximum", "The larger of x and y.")
minimum = _binary("minimum", "The smaller of x and y.")
abs_max = _binary("abs_max", "The one of larger magnitude.")
abs_min = _binary("abs_min", "The one of smaller magnitude.")
power = _binary("power", "x to the power y.")
fmod = _binary("fmod", "Remainder of x / y with the sign of x.")
mod = _binary("mod", "Remainder of x / y with the sign of y.")
equal = _binary("equal", "1 where x = y, else 0.")
not_equal = _binary("not_equal", "1 where x ≠ y, else 0.")
less = _binary("less", "1 where x < y, else 0.")
less_equal = _binary("less_equal", "1 where x ≤ y, else 0.")
greater = _binary("greater", "1 where x > y, else 0.")
greater_equal = _binary("greater_equal", "1 where x ≥ y, else 0.")
bitwise_and = _binary("bitwise_and", "Bits set in both integers.")
bitwise_or = _binary("bitwise_or", "Bits set in either integer.")
bitwise_xor = _binary("bitwise_xor", "Bits set in exactly one integer.")
left_shift = _binary("left_shift", "x shifted left by y bits.")
right_shift = _binary("right_shift", "x shifted right by y bits.")
logical_and = _binary("logical_and", "1 where both are not zero, else 0.")
logical_or = _binary("logical_or", "1 where either is not zero, else 0.")
logical_xor = _binary("logical_xor", "1 where exactly one is not zero, else 0.")

exp = _unary("exp", "e to the power x.")
log = _unary("log", "Natural logarithm.")
sqrt = _unary("sqrt", "Square root.")
tanh = _unary("tanh", "Hyperbolic tangent.")
sigmoid = _unary("sigmoid", "1 / (1 + e⁻ˣ).")
relu = _unary("relu", "max(x, 0).")
gelu = _unary("gelu", "x · Φ(x) with the exact error function.")
gelu_apprx_sigmoid = _unary("gelu_apprx_sigmoid", "x · sigmoid(1.702 x).")
gelu_apprx_tanh = _unary("gelu_apprx_tanh", "GELU by its tanh approximation.")
gelu_dx = _unary("gelu_dx", "Derivative of GELU.")
gelu_apprx_sigmoid_dx = _unary("gelu_apprx_sigmoid_dx", "Derivative of gelu_apprx_sigmoid.")
silu = _unary("silu", "x · sigmoid(x).")
silu_dx = _unary("silu_dx", "Derivative of SiLU.")
softplus = _unary("softplus", "log(1 + eˣ).")
mish = _unary("mish", "x · tanh(softplus(x)).")
erf = _unary("erf", "Error function.")
erf_dx = _unary("erf_dx", "Derivative of the error function.")
square = _unary("square", "x².")
sin = _unary("sin", "Sine; valid on [-π, π], as the engine has no range reduction.")
arctan = _unary("arctan", "Arc tangent; valid on [-π/2, π/2].")
sign = _unary("sign", "-1, 0 or 1.")
abs = _unary("abs", "Magnitude.")


def _rsqrt(x, dtype=None):
    out = _result(x, x.shape, dtype)
    nisa.tensor_scalar(out, x, "rsqrt", None, engine=nisa.engine.gpsimd)
    return out


def _copy(x, dtype=None):
    return _moved(x, dtype or x.dtype)


# NKI 0.5: on GpSimd, which does not reach PSUM; 0.6: on the Vector Engine, bits as they are.
rsqrt = _named(_rsqrt, "rsqrt", "1 / √x of a tile in SBUF.")
copy = _named(_copy, "copy", "A copy in SBUF, cast to `dtype`; without a cast bit by bit.")


def reciprocal(x, dtype=None):
    """1 / x on the Vector Engine."""
    out = _result(x, x.shape, dtype)
    nisa.reciprocal(out, x)
    return out


def negative(x, dtype=None):
    """-x."""
    return _apply("multiply", x, -1.0, dtype)


def invert(x, dtype=None):
    """Every bit of an integer flipped."""
    return _apply("bitwise_xor", x, -1 if x.dtype.kind == "int" else (1 << x.dtype.bits) - 1, dtype)


def logical_not(x, dtype=None):
    """1 where x is zero, else 0."""
    return _apply("equal", x, 0.0, dtype).compared()


def cos(x, dtype=None):
    """Cosine, as sin(π/2 - |x|); valid on [-π, π]."""
    out = _result(x, x.shape, dtype)
    shifted = _apply("multiply", abs(x, float32), -1.0, float32)
    nisa.tensor_scalar(shifted, shifted, "add", 1.5707963267948966)
    nisa.activation(out, "sin", shifted)
    return out


def tan(x, dtype=None):
    """Tangent, as sin / cos; valid where both are."""
    return divide(sin(x, float32), cos(x, float32), dtype or x.dtype)


def _rounded(x: NkiTensor, correction: str, sign_of: float, dtype) -> NkiTensor:
    """x rounded to an integer through int32, then moved by one where rounding went too far."""
    if x.dtype.is_integer:
        return _moved(x, dtype or x.dtype)
    whole = _moved(x, int32)
    near = _moved(whole, float32)
    over = _apply(correction, near, x, float32)
    nisa.tensor_scalar(over, over, "multiply", sign_of)
    nisa.tensor_tensor(near, near, over, "add")
    # What is not smaller than 2²³ has no fraction; NaN compares false and stays NaN this way.
    small = ndarray(x.shape, uint8, sbuf)
    nisa.tensor_scalar(small, abs(x, float32), "less", WHOLE)
    result = _moved(x, float32)
    nisa.tensor_copy_predicated(result, near, small)
    return result if as_dtype(dtype or x.dtype) == float32 else _moved(result, dtype or x.dtype)


def _moved(x: NkiTensor, dtype) -> NkiTensor:
    """A copy on the Vector Engine, which casts (integers of one width stay exact)."""
    made = ndarray(x.shape, as_dtype(dtype), sbuf)
    nisa.tensor_copy(made, x)
    return made


def floor(x, dtype=None):
    """The largest integer ≤ x (floor(-0.0) is 0.0)."""
    return _rounded(x, "greater", -1.0, dtype)


def ceil(x, dtype=None):
    """The smallest integer ≥ x (between -1 and 0 it is 0.0)."""
    return _rounded(x, "less", 1.0, dtype)


def trunc(x, dtype=None):
    """x without its fraction."""
    if x.dtype.is_integer:
        return _moved(x, dtype or x.dtype)
    down = floor(abs(x, float32), float32)
    return multiply(down, sign(x, float32), dtype or x.dtype)


# ---------------------------------------------------------------------- reductions


def _axes(x: NkiTensor, axis) -> tuple[int, ...]:
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    if not builtins.all(isinstance(a, int) for a in axes):
        raise UsageError(f"axis={axis!r} is no dimension", code="nki.axis")
    if not axes or not builtins.all(-x.ndim <= a < x.ndim for a in axes):
        raise BoundsError(f"axis {axis} of a tile with {x.ndim} dimensions", code="nki.axis")
    found = tuple(sorted({a % x.ndim for a in axes}))
    if found[0] == 0:
        raise UsageError("a reduction over the partition dimension", code="nki.axis")
    return found


def _reduced_shape(x: NkiTensor, axes, keepdims: bool) -> tuple[int, ...]:
    kept = [n if d not in axes else 1 for d, n in enumerate(x.shape) if keepdims or d not in axes]
    return tuple(kept) if len(kept) > 1 else (*kept, 1)


def _trailing(x: NkiTensor, axes: tuple[int, ...]) -> tuple[NkiTensor, tuple[int, ...]]:
    """The tile with the reduced axes last (a view), and where they are then."""
    first = x.ndim - len(axes)
    if axes[0] == first:
        return x, axes
    kept = [d for d in range(x.ndim) if d not in axes]
    return x.permute((*kept, *axes)), tuple(range(first, x.ndim))


def _reduce(op: str, x: NkiTensor, axis, dtype, keepdims: bool) -> NkiTensor:
    axes = _axes(x, axis)
    out = _result(x, _reduced_shape(x, axes, keepdims), dtype)
    turned, last = _trailing(x, axes)
    shape = _reduced_shape(turned, last, False)
    nisa.tensor_reduce(out.reshape(shape), op, turned, last)
    return out


def sum(x, axis, dtype=None, keepdims=False):
    """Sum along free axes."""
    return _reduce("add", x, axis, dtype, keepdims)


def max(x, axis, dtype=None, keepdims=False):
    """Maximum along free axes."""
    return _reduce("maximum", x, axis, dtype, keepdims)


def min(x, axis, dtype=None, keepdims=False):
    """Minimum along free axes."""
    return _reduce("minimum", x, axis, dtype, keepdims)


def prod(x, axis, dtype=None, keepdims=False):
    """Product along free axes."""
    return _reduce("multiply", x, axis, dtype, keepdims)


def _count(x: NkiTensor, axis) -> int:
    n = 1
    for a in _axes(x, axis):
        n *= x.shape[a]
    return n


def mean(x, axis, dtype=None, keepdims=False):
    """Arithmetic mean along free axes, through float32."""
    total = _reduce("add", x, axis, float32, keepdims)
    return multiply(total, 1.0 / _count(x, axis), dtype or x.dtype)


def var(x, axis, dtype=None, keepdims=False):
    """Population variance along free axes, through float32; sizes of one are kept."""
    centre = mean(x, axis, float32, keepdims=True)
    apart = subtract(x, centre, float32)
    return mean(square(apart, float32), axis, dtype or x.dtype, keepdims=True)


def all(x, axis, dtype=None):
    """1 where no element along the axes is zero, else 0."""
    return _reduce("minimum", not_equal(x, 0.0, float32), axis, dtype or x.dtype, False).compared()


# ---------------------------------------------------------------------- composites


def softmax(x, axis=-1, dtype=None):
    """exp(x - max) / Σ exp(x - max) along free axes."""
    axes = _axes(x, axis)
    peak = ndarray(_reduced_shape(x, axes, True), float32, sbuf)
    turned, last = _trailing(x, axes)
    flat = peak.reshape(_reduced_shape(turned, last, False))
    nisa.tensor_reduce(flat, "maximum", turned, last, negate=True)
    if peak.size == peak.shape[0]:
        grown = ndarray(x.shape, float32, sbuf)
        total = ndarray((x.shape[0], 1), float32, sbuf)
        column = peak.reshape((x.shape[0], 1))
        nisa.activation_reduce(grown, "exp", x, "add", total, bias=column)
    else:
        grown = exp(add(x, peak, float32), float32)
        total = sum(grown, axis, float32, keepdims=True)
    return multiply(grown, reciprocal(total, float32), dtype or x.dtype)


def rms_norm(x, w, axis, n, epsilon=1e-06, dtype=None, compute_dtype=None):
    """x / √(Σ x² / n + epsilon) · w along trailing free axes."""
    kind = as_dtype(compute_dtype or float32)
    squares = sum(square(x, kind), axis, float32, keepdims=True)
    nisa.tensor_scalar(squares, squares, "multiply", 1.0 / n, op1="add", operand1=float(epsilon))
    scaled = multiply(x, rsqrt(squares, float32), kind)
    return multiply(scaled, w, dtype or x.dtype)


def where(condition, x, y, dtype=None):
    """x where the condition is not zero, else y; x and y are tiles or numbers."""
    like = x if isinstance(x, NkiTensor) else y if isinstance(y, NkiTensor) else condition
    kind = as_dtype(dtype or like.dtype)
    out = ndarray(condition.shape, kind, sbuf)
    if isinstance(y, NkiTensor):
        nisa.tensor_copy(out, _matched(condition, y)[1])
    else:
        nisa.memset(out, y)
    chosen = ndarray(condition.shape, uint8, sbuf)
    nisa.tensor_scalar(chosen, condition, "not_equal", 0.0)
    if isinstance(x, NkiTensor):
        x = _matched(condition, x)[1]
        x = x if x.dtype == kind else copy(x, kind)
    nisa.tensor_copy_predicated(out, x, chosen)
    return out


def expand_dims(x, axis):
    """A view with a dimension of size 1 inserted."""
    return x.expand_dim(axis % (x.ndim + 1))


def full_like(x, fill_value, dtype=None, buffer=None, name=""):
    """A new tensor of one value, of the shape (and dtype and memory) of `x`."""
    return full(x.shape, fill_value, dtype or x.dtype, buffer or x.buffer, name)


def broadcast_to(x, shape, dtype=None):
    """`x` repeated along dimensions of size 1 to `shape`; `x` itself when it has that shape.

    One partition is repeated through the Tensor Engine, exactly.  Raises ShapeError `nki.broadcast`
    for another rank or a size that is neither equal nor 1.
    """
    shape, kind = tuple(shape), as_dtype(dtype or x.dtype)
    fits = len(shape) == x.ndim and builtins.all(
        n in (1, wanted) for n, wanted in zip(x.shape, shape, strict=True)
    )
    if not fits:
        what = f"{list(x.shape)} does not broadcast to {list(shape)}"
        raise ShapeError(what, code="nki.broadcast")
    if x.shape == shape and x.dtype == kind:
        return x
    wide = x
    for dim in range(1, len(shape)):
        wide = wide.broadcast(dim, shape[dim]) if x.shape[dim] != shape[dim] else wide
    made = _moved(wide, kind)
    return made if x.shape[0] == shape[0] else _repeat_partition(made, shape, kind)


def _free(shape) -> int:
    n = 1
    for size in shape[1:]:
        n *= size
    return n


def _repeat_partition(row: NkiTensor, shape, kind) -> NkiTensor:
    """ones[1, P]ᵀ · row[1, F] for blocks of F: exact, as each sum has one term.

    32-bit integers go as halves, which float32 holds exactly.
    """
    count, width = shape[0], _free(shape)
    out = ndarray((count, width), kind, sbuf)
    source, target = row.reshape((1, width)), out
    if kind.is_integer and kind.bits == 32:
        source, target = source.view(uint16), out.view(uint16)
        width *= 2
    ones, moving = full((1, count), 1.0, float32), _moved(source, float32)
    step = tile_size.psum_bank_fmax
    for start in range(0, width, step):
        stop = start + step if start + step < width else width
        block = ndarray((count, stop - start), float32, psum)
        nisa.nc_matmul(block, ones, moving[:, start:stop])
        nisa.tensor_copy(target[:, start:stop], block)
    return out.reshape(shape)


def transpose(x, dtype=None):
    """The 2-D transpose of a tile of at most 128 × 128, in SBUF."""
    rows, columns = two_dimensional("transpose", "x", x)
    turned = ndarray((columns, rows), x.dtype, psum)
    nisa.nc_transpose(turned, x)
    out = ndarray((columns, rows), as_dtype(dtype or x.dtype), sbuf)
    nisa.tensor_copy(out, turned)
    return out


def matmul(x, y, transpose_x=False):
    """x · y in PSUM as float32; `transpose_x` says that x is already [K, M]."""
    two_dimensional("matmul", "x", x)
    two_dimensional("matmul", "y", y)
    left = x if transpose_x else transpose(x)
    out = ndarray((left.shape[1], y.shape[1]), float32, psum)
    nisa.nc_matmul(out, left, y)
    return out


def _operator_only(name: str, doc: str) -> Callable:
    def function(*args, **kwargs):
        raise UsageError(
            f"nl.{name} is an operator, not a function",
            code="nki.no_tile",
            rule=f"pass nl.{name} as `op=` to an nki.isa instruction",
            fix="see nki.isa.activation and nki.isa.tensor_scalar",
        )

    return _named(function, name, doc)


average = _operator_only("average", "Mean, as a reduction operator.")
prelu = _operator_only("prelu", "Leaky ReLU with a slope operand, as an activation.")
bypass = _operator_only("bypass", "The operand unchanged, as an operator.")
