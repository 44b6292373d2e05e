"""The only place that rounds: carriers in, carriers out, round to nearest, ties to even.

A *carrier* is the array that holds values on chip (see `base.dtypes`): float32 numbers that are
already representable in their type, or integers. `store` is the hot path of the simulator; the
rounding is bit arithmetic in scratch memory that belongs to the calling thread and is reused.
Nothing here warns about inf or NaN: they are values like others. Little-endian machines only.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from opentrn.base.blas import dot, dots  # noqa: F401  (part of this module)
from opentrn.base.dtypes import (
    ALL,
    FLOATS,
    DType,
    bfloat16,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    tfloat32,
)  # fmt: skip
from opentrn.base.errors import Bug
from opentrn.base.functions import (  # noqa: F401  (the functions are part of this module)
    FUNCTIONS,
    abs_,
    arctan,
    ceil,
    copy,
    cos,
    erf,
    erf_dx,
    exp,
    expm1,
    floor,
    gelu,
    gelu_apprx_sigmoid,
    gelu_apprx_sigmoid_dx,
    gelu_apprx_tanh,
    gelu_dx,
    gelu_sigmoid,
    gelu_sigmoid_dx,
    gelu_tanh,
    log,
    log1p,
    mish,
    negative,
    reciprocal,
    relu,
    rint,
    rsqrt,
    sigmoid,
    silu,
    silu_dx,
    sin,
    softplus,
    sqrt,
    square,
    tan,
    tanh,
    trunc,
)  # fmt: skip

_F32, _F64, _U32 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.uint32)
_EXPONENT_BITS = np.uint32(0x7F800000)
_SIGN_BIT = np.uint32(0x80000000)
_QUIET_NAN = np.uint32(0x7FC00000)
_ONE = np.uint32(1)
_BLOCK = 1 << 20  # elements rounded at a time: bounds the scratch memory to 12 MiB a thread
_BYTES = tuple(each for each in ALL if each.is_float and each.itemsize == 1)
_LIKE_FLOAT32 = (float32, tfloat32)
_SMALL = 2048  # below this many elements one library cast beats several vector passes


class _Scratch(threading.local):
    """Three reusable arrays of up to _BLOCK elements for each thread, as views of any shape."""

    def __init__(self):
        self.size = 0
        self.views: dict[tuple, tuple] = {}

    def take(self, shape: tuple, size: int) -> tuple:
        """(a, a as bits, b, b as bits, c as bits), each of `shape`; content undefined."""
        views = self.views.get(shape)
        if views is None:
            if size > self.size or len(self.views) > 4096:
                self.size = max(size, self.size, 1 << 16)
                self.memory = np.empty((3, self.size), np.float32)
                self.views = {}
            a, b, c = (row[:size].reshape(shape) for row in self.memory)
            views = (a, a.view(_U32), b, b.view(_U32), c.view(_U32))
            self.views[shape] = views
        return views


_scratch = _Scratch()


def _as_float32(x) -> np.ndarray:
    """Numbers as a float32 array, without a warning for those that overflow to inf."""
    with np.errstate(all="ignore"):
        return np.asarray(x, _F32)


def _has_nan(x: np.ndarray) -> bool:
    """Whether any element of a float32 array is NaN (a sum of squares is NaN only then)."""
    if x.flags.c_contiguous:
        total = np.vdot(x, x)
        return bool(total != total)
    return bool(np.isnan(x).any())


def _blocks(x: np.ndarray, dst: np.ndarray, do, *more) -> None:
    """Call `do(x, dst, *more)` on pieces of at most _BLOCK elements of two equal shapes."""
    if x.size <= _BLOCK:
        do(x, dst, *more)
        return
    rows = max(1, x.shape[0] * _BLOCK // x.size)
    for start in range(0, x.shape[0], rows):
        if rows == 1:
            _blocks(x[start], dst[start], do, *more)
        else:
            do(x[start : start + rows], dst[start : start + rows], *more)


# ---- how things are rounded ----------------------------------------------------------------------


DRAW: ContextVar[Callable[[int], np.ndarray] | None] = ContextVar("DRAW", default=None)
"""What draws random words while floats are rounded by chance, or None; the threads of a program's
cores have it from the caller's context (`sim.lockstep`)."""


@contextmanager
def stochastic(draw: Callable[[int], np.ndarray] | None) -> Iterator[None]:
    """Inside, what becomes a float narrower than float32 is rounded by `stochastic_round`.

    `draw(n)` gives n random words, uint32.  The Neuron runtime has this as a mode of the device for
    casts to float16, bfloat16, fp8 and tf32 (NEURON_RT_STOCHASTIC_ROUNDING_EN).
    """
    before = DRAW.set(draw)
    try:
        yield
    finally:
        DRAW.reset(before)


# ---- float32 values to the values of another type ------------------------------------------------


def _drop_bits(x: np.ndarray, dst: np.ndarray, drop: int) -> None:
    """Round away the low `drop` mantissa bits: bfloat16 and tfloat32 keep float32's exponent.

    Adding half a unit less one, plus the last bit kept, carries exactly when the nearest-even rule
    rounds up; a carry out of the mantissa is the right exponent, at the top the infinity.
    """
    bits = x.view(_U32)
    mask = np.uint32(0xFFFFFFFF << drop & 0xFFFFFFFF)
    _, t, *_ = _scratch.take(x.shape, x.size)
    np.right_shift(bits, np.uint32(drop), out=t)
    np.bitwise_and(t, _ONE, out=t)
    np.add(t, bits, out=t)
    np.add(t, np.uint32((1 << drop - 1) - 1), out=t)
    if _has_nan(x):
        nan = np.isnan(x)
        np.copyto(t, bits & _SIGN_BIT | _QUIET_NAN, where=nan)
    np.bitwise_and(t, mask, out=dst.view(_U32))


def _round_narrow(x: np.ndarray, dst: np.ndarray, to: DType) -> None:
    """Round to a type with a smaller exponent range (float16, fp8, fp4) by float32 addition.

    With m = 1.5·2^(e+23-p), x + m has units of 2^(e-p), so (x + m) - m is x rounded to p mantissa
    bits; e is the exponent of x, at least that of the smallest normal, which gives subnormals, and
    at most one beyond the largest, which keeps m finite.
    """
    bits = x.view(_U32)
    a, a_bits, b, b_bits, sign = _scratch.take(x.shape, x.size)
    low, high, shift, top = _NARROW[to]
    with np.errstate(all="ignore"):
        np.bitwise_and(bits, _SIGN_BIT, out=sign)
        np.bitwise_and(bits, _EXPONENT_BITS, out=b_bits)
        np.clip(b, low, high, out=b)
        np.multiply(b, shift, out=b)
        np.add(x, b, out=a)
        np.subtract(a, b, out=a)
        if not (np.max(a) <= top and np.min(a) >= -top):
            _fix_specials(a, sign, to)
    np.bitwise_or(a_bits, sign, out=dst.view(_U32))


def _narrow_constants(to: DType) -> tuple:
    """Smallest and largest power of two that set the unit, 1.5·2^(23-p), largest value."""
    beyond = 2.0 ** np.frexp(to.max)[1]
    values = (to.smallest_normal, beyond, 1.5 * 2.0 ** (23 - to.mantissa), to.max)
    return tuple(np.float32(each) for each in values)


_NARROW = {each: _narrow_constants(each) for each in FLOATS if each.exponent < 8}


def _fix_specials(a: np.ndarray, sign: np.ndarray, to: DType) -> None:
    """Replace what lies beyond the range of `to`, in place; `sign` is applied afterwards."""
    nan = np.isnan(a)
    beyond = np.abs(a) > np.float32(to.max)
    if to.has_nan:
        np.copyto(a, np.float32(np.inf if to.has_inf else np.nan), where=beyond)
        np.copyto(a, np.float32(np.nan), where=nan)
    else:  # fp4 has neither: clamp, and NaN to the zero of the other sign, as ml_dtypes does
        np.copyto(a, np.float32(to.max), where=beyond)
        np.copyto(a, np.float32(0), where=nan)
        np.bitwise_xor(sign, _SIGN_BIT, out=sign, where=nan)
    np.abs(a, out=a)


def _round_float(x: np.ndarray, dst: np.ndarray, to: DType) -> None:
    """Write float32 `x` rounded to the float type `to` into the float32 array `dst`."""
    draw = DRAW.get()
    if draw is not None and to.kind == "float" and to.mantissa < 23:
        np.copyto(dst, stochastic_round(x, to, draw(x.size).reshape(x.shape)))
    else:
        _round_nearest(x, dst, to)


def _round_nearest(x: np.ndarray, dst: np.ndarray, to: DType) -> None:
    """The same to the nearest value, ties to even, whatever the mode."""
    if x.size <= _SMALL and to not in _LIKE_FLOAT32 or to.kind == "scale":
        with np.errstate(all="ignore"):
            np.copyto(dst, x.astype(to.storage))
    elif to.exponent < 8:
        _blocks(x, dst, _round_narrow, to)
    elif to.mantissa < 23:
        _blocks(x, dst, _drop_bits, 23 - to.mantissa)
    else:
        np.copyto(dst, x)


def round_to(x, dtype: DType, out: np.ndarray | None = None, saturate: bool = False) -> np.ndarray:
    """Round float32 values to the nearest values of a float type, ties to even; float32 out.

    Too large becomes inf, or NaN in float8_e4m3fn, which has no inf; fp4 has neither and clamps.
    With `saturate` everything beyond the range, infinities included, becomes the largest finite
    value. NaN stays NaN. The scale type rounds to a power of two, ties up; zero, negatives and inf
    become NaN. `out` may be `x` itself.
    """
    x = _as_float32(x)
    if not dtype.is_float or dtype is float64:
        raise Bug(f"round_to({dtype}): only floats of at most 32 bits; store() writes the others")
    if out is None:
        out = np.empty(x.shape, np.float32)
    if saturate:
        x = np.clip(x, np.float32(-dtype.max), np.float32(dtype.max))
    if x.ndim:
        _round_float(x, out, dtype)
    else:
        _round_float(x[None], out[None], dtype)
    return out


# ---- values to integers --------------------------------------------------------------------------


def _to_integer(x: np.ndarray, dst: np.ndarray, to: DType) -> None:
    """Round floats to integers, ties to even; beyond the range clamp, NaN to 0."""
    wide = to.bits >= 32 or x.dtype == _F64  # 2^31 - 1 is no float32, but is a float64
    with np.errstate(all="ignore"):
        a = np.asarray(np.rint(x, dtype=_F64 if wide else _F32))
        if to.bits == 64:
            _to_integer_64(a, dst, to)
            return
        np.clip(a, to.min, to.max, out=a)
        np.copyto(a, 0, where=np.isnan(a))
        np.copyto(dst, a, casting="unsafe")


def _to_integer_64(a: np.ndarray, dst: np.ndarray, to: DType) -> None:
    """The same for 64-bit integers, whose limits are not floats of any kind."""
    top = 2.0**63 if to.kind == "int" else 2.0**64
    safe = np.where((a >= to.min) & (a < top), a, 0)
    np.copyto(dst, safe, casting="unsafe")
    np.copyto(dst, to.max, where=np.broadcast_to(a >= top, dst.shape))
    np.copyto(dst, to.min, where=np.broadcast_to(a < to.min, dst.shape))


def _integers_exactly(x: np.ndarray, dst: np.ndarray, to: DType) -> None:
    """Integers to integers with clamping, without passing through float32."""
    info = np.iinfo(x.dtype)
    low, high = max(int(info.min), to.min), min(int(info.max), to.max)
    np.copyto(dst, np.clip(x, x.dtype.type(low), x.dtype.type(high)), casting="unsafe")


# ---- storing -------------------------------------------------------------------------------------


def _holds(src: DType, dst: DType) -> bool:
    """Whether every value of `src` is a value of `dst`, so that storing needs no rounding."""
    if src is dst:
        return True
    if "packed" in (src.kind, dst.kind) or dst.kind in ("bool", "scale"):
        return False
    if dst.is_integer:
        return src.kind == "bool" or (
            src.is_integer and src.bits < 32 and src.min >= dst.min and src.max <= dst.max
        )
    if not src.is_float:
        return src.bits - (src.kind == "int") <= dst.mantissa + 1 and src.max <= dst.max
    smallest = [each.smallest_normal * 2.0**-each.mantissa for each in (src, dst)]
    return (
        src.mantissa <= dst.mantissa and src.max <= dst.max and smallest[0] >= smallest[1]
        and src.has_inf <= dst.has_inf and src.has_nan <= dst.has_nan
    )  # fmt: skip


_HELD = {src: frozenset(dst for dst in ALL if _holds(src, dst)) for src in ALL}


def store(dst: np.ndarray, value, src: DType | None, dtype: DType) -> None:
    """Write `value` into the carrier array `dst` of type `dtype`, converted as engines convert.

    `value` is an array of floats or integers (or a number) that broadcasts to `dst`; `src` is the
    type whose values it holds, or None for fresh results. Floats round to nearest even; floats to
    integers round and clamp, NaN to 0; integers of another width pass through float32; 64-bit
    types, which engines do not have, convert without that step. `dst` may have any strides and may
    overlap `value`. Packed types accept only their own bits.
    """
    if type(value) is not np.ndarray:
        value = _array_of(value)
    if src is not None and dtype in _HELD[src]:
        np.copyto(dst, value, casting="unsafe")
        return
    if dtype.is_float and dtype is not float64:
        if value.dtype != _F32:
            value = _as_float32(value)
        if dtype is float32:
            np.copyto(dst, value)
        elif value.shape == dst.shape and dst.ndim:
            _round_float(value, dst, dtype)
        else:
            np.copyto(dst, round_to(value, dtype))
        return
    _store_other(dst, value, dtype)


def _array_of(value) -> np.ndarray:
    """Numbers as the array they are: float32 for floats, their own type for integers."""
    return _as_float32(value) if isinstance(value, float) else np.asarray(value)


def _store_other(dst: np.ndarray, value: np.ndarray, dtype: DType) -> None:
    """Store into integers, booleans, packed words and float64."""
    kind = value.dtype.kind
    if dtype.kind == "packed":
        if value.dtype != dtype.carrier:
            raise Bug(f"a {dtype} holds packed bits; {value.dtype} values cannot be stored in it")
        np.copyto(dst, value)
    elif dtype.kind == "bool":
        np.not_equal(value, 0, out=dst, casting="unsafe")
    elif dtype is float64 or value.dtype == dtype.carrier:
        np.copyto(dst, value, casting="unsafe")
    elif kind in "iub" and (dtype.bits == 64 or value.dtype.itemsize == 8):
        _integers_exactly(value.astype(np.int64) if kind == "b" else value, dst, dtype)
    else:
        _to_integer(_as_float32(value) if kind in "iub" else value, dst, dtype)


def cast(x: np.ndarray, src: DType, dst: DType) -> np.ndarray:
    """Convert a carrier of `src` into a new carrier of `dst`, by the rules of `store`."""
    out = np.empty(np.shape(x), dst.carrier)
    store(out, x, src, dst)
    return out


def uninitialised(dtype: DType):
    """What memory nothing wrote to reads as: NaN for floats, else the largest carrier integer."""
    if dtype.is_float:
        return dtype.carrier.type(np.nan)
    return dtype.carrier.type(np.iinfo(dtype.carrier).max)


# ---- storage -------------------------------------------------------------------------------------


@functools.cache
def _decoding(dtype: DType) -> np.ndarray:
    """Byte -> value of an 8-bit float (of fp4 the lower half of the byte)."""
    codes = np.arange(256, dtype=np.uint8) & np.uint8(15 if dtype.bits == 4 else 255)
    return codes.view(dtype.storage).astype(np.float32)


@functools.cache
def _encoding(dtype: DType) -> np.ndarray:
    """Top 16 bits of a float32 that is a value of an 8-bit float -> its byte."""
    tops = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):
        return tops.astype(dtype.storage).view(np.uint8)


def encode(
    x: np.ndarray, dtype: DType, exact: bool = False, out: np.ndarray | None = None
) -> np.ndarray:
    """The storage array of carrier `x`; values that `dtype` does not have are rounded first.

    `exact` promises that there are none, which saves bfloat16 the look for them.  `out`, a storage
    array of the same shape, receives the bytes when given.
    """
    if dtype is bfloat16:
        return _encode_bfloat16(_as_float32(x), exact, out)
    if out is not None:
        out[...] = encode(x, dtype)
        return out
    x = _as_float32(x) if dtype.carrier == _F32 else np.asarray(x, dtype.carrier)
    if dtype.narrow is not None:
        return x
    if dtype is float16:
        with np.errstate(all="ignore"):
            return (x if DRAW.get() is None else round_to(x, dtype)).astype(np.float16)
    if dtype in _BYTES:
        tops = np.right_shift(round_to(x, dtype).view(_U32), np.uint32(16))
        return np.take(_encoding(dtype), tops, mode="clip").view(dtype.storage)
    if dtype is tfloat32:
        return round_to(x, dtype)
    return x.astype(dtype.storage)


def _encode_bfloat16(x: np.ndarray, exact: bool, out: np.ndarray | None) -> np.ndarray:
    """The upper halves, in one pass: NumPy shifts and narrows piece by piece in the cache."""
    bits = (x if exact else round_to(x, bfloat16)).view(_U32)
    made = np.empty(x.shape, bfloat16.storage) if out is None else out
    half = made.view(np.uint16)
    np.right_shift(bits, np.uint32(16), out=half, dtype=_U32, casting="unsafe")
    return made


def decode(a: np.ndarray, dtype: DType, out: np.ndarray | None = None) -> np.ndarray:
    """The carrier of storage array `a` (of `dtype.storage`, or the same bytes as integers).

    `out`, a carrier array of the same shape, receives the values when given.
    """
    a = np.asarray(a)
    if dtype.narrow is not None and out is None:
        return a.view(_F32)
    if a.dtype.itemsize != dtype.itemsize:
        raise Bug(f"decode({dtype}) of {a.dtype}: elements must have {dtype.itemsize} bytes")
    if dtype is bfloat16:
        bits = np.empty(a.shape, _U32) if out is None else out.view(_U32)
        return np.left_shift(a.view(np.uint16), np.uint32(16), out=bits, dtype=_U32).view(_F32)
    if out is not None:
        np.copyto(out, decode(a, dtype))
        return out
    if dtype in _BYTES:
        return np.take(_decoding(dtype), a.view(np.uint8), mode="clip")
    if dtype is tfloat32:
        return round_to(a.view(_F32), dtype)
    if dtype.kind == "bool":
        return (a.view(np.uint8) != 0).astype(np.uint8)
    return a.view(dtype.storage).astype(dtype.carrier)


# ---- stochastic rounding -------------------------------------------------------------------------

def stochastic_round(x, dtype: DType, random_bits: np.ndarray) -> np.ndarray:
    """Round float32 up or down with the probability of its distance; float32 out.

    `random_bits` is uint32 of x's shape: with r = bits/2^32 in [0, 1) the magnitude in units of the
    last place becomes floor(m + r), so zero bits truncate and the mean over r is x. Beyond the
    range as in `round_to`. Floats of at most 32 bits only. `stochastic` makes it the mode.
    """
    x = _as_float32(x)
    if dtype.kind != "float" or dtype is float64:
        raise Bug(f"stochastic_round({dtype}): only floats of at most 32 bits")
    if dtype.exponent == 8 and dtype.mantissa < 23:
        return _drop_by_chance(x, 23 - dtype.mantissa, random_bits)
    with np.errstate(all="ignore"):
        size = np.abs(x).astype(np.float64)
        exponent = np.frexp(np.maximum(size, dtype.smallest_normal))[1] - 1
        unit = np.ldexp(1.0, exponent - dtype.mantissa)
        size = np.floor(size / unit + random_bits * 2.0**-32) * unit
        size = np.where(np.isfinite(x), size, np.abs(x))
        size = np.atleast_1d(np.copysign(size, x).astype(np.float32))
        _round_nearest(size, size, dtype)
        return size.reshape(x.shape)


def _drop_by_chance(x: np.ndarray, drop: int, random_bits: np.ndarray) -> np.ndarray:
    """`stochastic_round` where float32's exponent is kept: what is cut off carries when it and as
    many random bits make one, an infinity at the top."""
    made = (x.view(_U32) + (random_bits >> np.uint32(32 - drop))) >> np.uint32(drop)
    return np.where(np.isnan(x), np.float32(np.nan), (made << np.uint32(drop)).view(_F32))


# ---- microscaling formats ------------------------------------------------------------------------


def quantise_mx(x, element: DType, axis: int = -1, block: int = 32, headroom: int = 1):
    """Split `axis` into blocks of 32 that share a power of two; return (values, scales), float32.

    With a = max |x| of a block the scale is 2^(floor(log2 a) - (emax - headroom)), emax being the
    exponent of the largest `element` value (8 for float8_e4m3fn, 15 for float8_e5m2, 2 for fp4),
    held within 2^±127; 2^-127 for a block of zeros; NaN if the block has a NaN. `values` has x's
    shape: x/scale rounded to `element`, clamped to its range. `scales` has one entry per block on
    `axis`. `headroom=1` is what the machine does, to round the largest value without clamping (NKI
    documentation, `quantize_mx`); `headroom=0` is the OCP Microscaling specification's example.
    """
    x = np.moveaxis(_as_float32(x), axis, -1)
    blocks = _split(x, block)
    with np.errstate(all="ignore"):
        top = np.max(np.abs(blocks), axis=-1)
        exponent = np.frexp(top)[1] - 1
        exponent = np.where(np.isinf(top), 127, exponent)
        emax = int(np.frexp(element.max)[1]) - 1
        exponent = np.clip(exponent - (emax - headroom), -127, 127)
        exponent = np.where(top == 0, -127, exponent)
        scales = np.ldexp(np.float32(1), exponent).astype(np.float32)
        scales = np.where(np.isnan(top), np.float32(np.nan), scales)
        scaled = (blocks.astype(np.float64) / scales[..., None]).astype(np.float32)
    values = round_to(scaled, element, saturate=True).reshape(x.shape)
    return np.moveaxis(values, -1, axis), np.moveaxis(scales, -1, axis)


def dequantise_mx(values, scales, axis: int = -1, block: int = 32) -> np.ndarray:
    """The float32 numbers values·scale that `quantise_mx` stands for.

    `scales` are float32 powers of two, or uint8 codes of float8_e8m0fnu (2^(code - 127), 255 NaN).
    """
    scales = np.asarray(scales)
    if scales.dtype != np.float32:
        scales = decode(scales, float8_e8m0fnu)
    x = np.moveaxis(_as_float32(values), axis, -1)
    blocks = _split(x, block)
    scales = np.moveaxis(scales, axis, -1)
    if scales.shape != blocks.shape[:-1]:
        raise Bug(f"dequantise_mx: {scales.shape} scales for blocks {blocks.shape[:-1]}")
    with np.errstate(all="ignore"):
        return np.moveaxis((blocks * scales[..., None]).reshape(x.shape), -1, axis)


def _split(x: np.ndarray, block: int) -> np.ndarray:
    """Reshape the last axis into [blocks, block]."""
    if not x.shape or x.shape[-1] % block:
        raise Bug(f"an axis of shape {x.shape} does not divide into blocks of {block}")
    return x.reshape(*x.shape[:-1], x.shape[-1] // block, block)


def pack_x4(values, packed: DType) -> np.ndarray:
    """Round float32 values to the element type and put four along the last axis into one word.

    [..., 4n] -> carrier words [..., n]; the first of the four lies in the lowest bits.
    """
    element = packed.element
    codes = _split(encode(values, element).view(np.uint8), 4)
    if element.bits == 8:
        return np.ascontiguousarray(codes).view(np.uint32)[..., 0]
    shifts = np.arange(0, 16, 4, dtype=np.uint16)
    return np.bitwise_or.reduce(codes.astype(np.uint16) << shifts, axis=-1)


def unpack_x4(words, packed: DType) -> np.ndarray:
    """The float32 values in packed words: [..., n] -> [..., 4n]."""
    words = np.ascontiguousarray(words, packed.carrier)
    element = packed.element
    if element.bits == 8:
        codes = words[..., None].view(np.uint8)
    else:
        codes = (words[..., None] >> np.arange(0, 16, 4, dtype=np.uint16) & 15).astype(np.uint8)
    return decode(codes, element).reshape(*words.shape[:-1], 4 * words.shape[-1])


# ---- matrix product ------------------------------------------------------------------------------


def dot_mx(stationary, stationary_scales, moving, moving_scales) -> np.ndarray:
    """float32 product of two matrices [32g, M] and [32g, N] whose 32 rows share scales [g, ·].

    Scales are float32 powers of two.  Beyond 2^±60 a scaled value could leave the range of float32
    although its product with the other side's does not, so such matrices are taken in float64.
    """
    scales = np.concatenate([np.ravel(stationary_scales), np.ravel(moving_scales)])
    kind = _F32 if ((scales <= 2.0**60) & (scales >= 2.0**-60)).all() else np.dtype(np.float64)
    with np.errstate(all="ignore"):
        left, right = (
            values.astype(kind) * np.repeat(held.astype(kind), 32, axis=0)
            for values, held in ((stationary, stationary_scales), (moving, moving_scales))
        )
        return dot(left, right).astype(_F32)
