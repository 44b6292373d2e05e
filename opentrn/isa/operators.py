"""The ALU operators (`OPS`) and activation functions (`ACTS`), each defined once.

Operators take carriers (float32 arrays, integer arrays) and return carriers.  Arithmetic operators
compute in the type they are given: engines convert to float32 first, GpSimd keeps 32-bit integers.
Bitvec operators see bit patterns of integers.  Comparisons and logic give 1 and 0.  Nothing warns:
inf and NaN are values, and NaN spreads through every arithmetic operator, max and min included
(NKI simulator guide, sentinel values).  Source of names, kinds and ranges unless noted: NKI ISA
common fields (nki.api.shared), tables of operators and activation functions.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from math import inf, pi
from typing import Any

import numpy as np

from opentrn.base import FUNCTIONS, UnknownNameError, UsageError, declare, nearest

declare(
    "isa.unknown_operator",
    "an operator or activation function has an unknown name",
    rule="operators are the ALU operators and activation functions of nki.isa",
    fix="use nl.<name> of a listed operator",
)
declare(
    "isa.not_reducible",
    "an operator cannot reduce",
    rule="only operators marked as legal reductions combine many elements into one",
    fix="use nl.add, nl.multiply, nl.maximum, nl.minimum or a bitwise or logical and/or/xor",
)

VECTOR, GPSIMD, BOTH = ("vector",), ("gpsimd",), ("vector", "gpsimd")
ANY = (*BOTH, "scalar")


_QUIET: ContextVar[bool] = ContextVar("opentrn_quiet", default=False)


@contextmanager
def quiet() -> Iterator[None]:
    """NumPy's warnings are off inside the block: engines overflow and divide by zero silently.

    Whoever runs many instructions enters it once; an operator alone takes as long to enter it as
    to compute a tile.
    """
    token = _QUIET.set(True)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _QUIET.reset(token)


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One ALU operator: `op(x, y)` or, with arity 1, `op(x)`.

    kind "arithmetic", "bitvec", "logical" or "compare"; only "bitvec" is a separate family for the
    rule that two operators of one instruction are of the same family.  `engines` may run it;
    `identity` is what a reduction starts from; `native` says it is exact on 32-bit integers
    (GpSimd); `generation` is the first NeuronCore version that has it; `grade` is "assumed" for
    operators the public table does not list.
    """

    name: str
    arity: int
    kind: str
    meaning: Callable[..., np.ndarray] = field(repr=False)
    engines: tuple[str, ...] = BOTH
    reducible: bool = False
    identity: float | int | None = None
    commutative: bool = False
    native: bool = False
    generation: int = 2
    grade: str = "stated"

    def __call__(self, x: Any, y: Any = None, out: np.ndarray | None = None) -> np.ndarray:
        """The values of the operator; `y` is not looked at when arity is 1.

        `out`, an array of the result's shape and carrier, receives the result when given.
        """
        if not _QUIET.get():
            with quiet():
                return self(x, y, out)
        return self.meaning(x, out=out) if self.arity == 1 else self.meaning(x, y, out=out)

    def __reduce__(self):
        return op, (self.name,)

    def __str__(self) -> str:
        return self.name

    @property
    def bitvec(self) -> bool:
        """Whether it works on bit patterns of integers instead of float32 numbers."""
        return self.kind == "bitvec"


# ---------------------------------------------------------------------- meanings


def _carrier(x: Any, y: Any) -> np.dtype:
    """The carrier an operator on x and y returns: float32, or the common integer type."""
    kinds = [a.dtype for a in (x, y) if isinstance(a, np.ndarray | np.generic)]
    dtype = np.result_type(*kinds) if kinds else np.dtype(np.float32)
    return dtype if dtype.kind in "iu" else np.dtype(np.float32)


def _empty(x: Any, y: Any, out: np.ndarray | None) -> np.ndarray:
    if out is not None:
        return out
    if y is x and type(x) is np.ndarray and x.dtype.kind in "fiu":
        return np.empty(x.shape, x.dtype if x.dtype.kind != "f" else np.float32)
    return np.empty(np.broadcast_shapes(np.shape(x), np.shape(y)), _carrier(x, y))


def _flag(ufunc: np.ufunc) -> Callable:
    """A comparison or logical ufunc that gives 1 and 0 in the carrier of its inputs."""

    def meaning(x, y, out=None):
        return ufunc(x, y, out=_empty(x, y, out))

    return meaning


def _bits(y: Any, like: Any) -> Any:
    """A Python integer as the bit pattern of `like`'s type (0xFFFFFFFF is -1 for int32)."""
    if not isinstance(y, int) or not isinstance(like, np.ndarray):
        return y
    size = like.dtype.itemsize
    return np.frombuffer((y % (1 << 8 * size)).to_bytes(size, "little"), like.dtype)[0]


def _bitwise(ufunc: np.ufunc) -> Callable:
    def meaning(x, y, out=None):
        return ufunc(_bits(x, y), _bits(y, x), out=out)

    return meaning


def _unsigned(x: Any) -> Any:
    if isinstance(x, np.ndarray | np.generic) and x.dtype.kind == "i":
        return x.view(f"u{x.dtype.itemsize}")
    return x


def _right_shift(x, y, out=None):
    """Zeros come in from the left whatever the sign: there is no arithmetic right shift."""
    x, y = _bits(x, y), _bits(y, x)
    if out is not None:
        np.right_shift(_unsigned(x), _unsigned(y), out=_unsigned(out))
        return out
    shifted = np.right_shift(_unsigned(x), _unsigned(y))
    return shifted.view(x.dtype) if isinstance(x, np.ndarray) else shifted


def _by_magnitude(larger: bool) -> Callable:
    """The operand of larger (smaller) magnitude with its sign; `y` when they tie."""
    ufunc = np.greater if larger else np.less

    def meaning(x, y, out=None):
        # NaN in x must win too: a comparison with NaN is false, which would pick y.
        chosen = np.where(ufunc(np.abs(x), np.abs(y)) | np.not_equal(x, x), x, y)
        return _deliver(chosen, _empty(x, y, out))

    return meaning


def _deliver(value: np.ndarray, out: np.ndarray) -> np.ndarray:
    np.copyto(out, value, casting="same_kind")
    return out


def _power(x, y, out=None):
    out = _empty(x, y, out)
    if out.dtype.kind in "iu":
        # integers have no negative powers; through float64 they are exact up to 2^53
        return np.power(x, y, out=out, dtype=np.float64, casting="unsafe")
    return np.power(x, y, out=out)


def _divide(x, y, out=None):
    return np.divide(x, y, out=_empty(x, y, out), casting="unsafe")


def _rsqrt(x, out=None):
    return _deliver(FUNCTIONS["rsqrt"](x), _empty(x, x, out))


def _reciprocal(x, out=None):
    return np.divide(1.0, x, out=_empty(x, x, out))


def _relu(x, out=None):
    return np.maximum(x, 0, out=out)


def _bypass(x, out=None):
    return x if out is None else _deliver(x, out)


def _average(x, y, out=None):
    return np.multiply(np.add(x, y), 0.5, out=_empty(x, y, out))


# ---------------------------------------------------------------------- the table

ALL_ONES = -1  # the identity of bitwise and: every bit set, in any integer type

_ARITHMETIC = (
    Op("add", 2, "arithmetic", np.add, ANY, True, 0, True, True),
    Op("subtract", 2, "arithmetic", np.subtract, BOTH, True, 0, False, True),
    Op(
        "multiply",
        2,
        "arithmetic",
        np.multiply,
        ANY,
        True,
        1,
        True,
        True,
    ),
    Op("maximum", 2, "arithmetic", np.maximum, BOTH, True, -inf, True, True),
    Op("minimum", 2, "arithmetic", np.minimum, BOTH, True, inf, True, True),
    Op("power", 2, "arithmetic", _power, GPSIMD),
    # magnitudes: trn3 and later; reductions of activate2
    Op("abs_max", 2, "arithmetic", _by_magnitude(True), BOTH, True, 0, generation=4),
    Op("abs_min", 2, "arithmetic", _by_magnitude(False), BOTH, True, inf, generation=4),
    # not in the public table, but nki.language functions of these names exist
    Op("divide", 2, "arithmetic", _divide, BOTH, grade="assumed"),
    Op("mod", 2, "arithmetic", np.mod, BOTH, native=True, grade="assumed"),
    Op("fmod", 2, "arithmetic", np.fmod, BOTH, native=True, grade="assumed"),
    # a pooling reduction (nl.average): GpSimd across partitions
    Op("average", 2, "arithmetic", _average, GPSIMD, True, 0, True),
)
_UNARY = (
    Op("abs", 1, "arithmetic", np.abs, native=True),
    Op("square", 1, "arithmetic", np.square, native=True),
    Op("relu", 1, "arithmetic", _relu, native=True),
    Op("rsqrt", 1, "arithmetic", _rsqrt, GPSIMD),
    Op("reciprocal", 1, "arithmetic", _reciprocal, VECTOR),
    Op("bypass", 1, "arithmetic", _bypass, ANY, native=True),
)
_BITVEC = (
    Op("invert", 1, "bitvec", np.invert, VECTOR),
    Op("bitwise_and", 2, "bitvec", _bitwise(np.bitwise_and), VECTOR, True, ALL_ONES, True),
    Op("bitwise_or", 2, "bitvec", _bitwise(np.bitwise_or), VECTOR, True, 0, True),
    Op("bitwise_xor", 2, "bitvec", _bitwise(np.bitwise_xor), VECTOR, True, 0, True),
    Op("left_shift", 2, "bitvec", _bitwise(np.left_shift), VECTOR),
    Op("right_shift", 2, "bitvec", _right_shift, VECTOR),
)
_COMPARE = tuple(
    Op(name, 2, "compare", _flag(getattr(np, name)), commutative=same, native=True)
    for name, same in (
        ("equal", True),
        ("not_equal", True),
        ("greater_equal", False),
        ("greater", False),
        ("less_equal", False),
        ("less", False),
    )
)
_LOGICAL = tuple(
    Op(name, 2, "logical", _flag(getattr(np, name)), BOTH, True, identity, True, True)
    for name, identity in (("logical_and", 1), ("logical_or", 0), ("logical_xor", 0))
)

OPS: dict[str, Op] = {
    each.name: each for each in (*_ARITHMETIC, *_UNARY, *_BITVEC, *_COMPARE, *_LOGICAL)
}

# Names other vocabularies use for the same operators: NumPy functions, short forms in the docs.
_OTHER_NAMES = {
    "max": "maximum", "amax": "maximum", "min": "minimum", "amin": "minimum", "mult": "multiply",
    "mul": "multiply", "sub": "subtract", "pow": "power", "absolute": "abs", "remainder": "mod",
    "true_divide": "divide", "bitwise_not": "invert", "copy": "bypass", "identity": "bypass",
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift",
}  # fmt: skip


# ---------------------------------------------------------------------- activation functions


@dataclass(frozen=True, slots=True, eq=False)
class Act:
    """One activation function of the Scalar Engine: `act(x)`, `act(x, parameter)` for prelu.

    Inputs outside `valid_range` (of |x| when `symmetric`) give results the hardware does not
    define; `outside` counts them.  `table` names the set of coefficients that must be loaded
    (assumed: one set per family; "" is in every set), `notes` what is special.
    """

    name: str
    function: Callable[..., np.ndarray] = field(repr=False)
    valid_range: tuple[float, float] = (-inf, inf)
    table: str = ""
    symmetric: bool = False
    parameter: bool = False
    notes: str = ""

    def __call__(
        self, x: np.ndarray, parameter: Any = 0.0, out: np.ndarray | None = None
    ) -> np.ndarray:
        """The function of a float32 array; `parameter` only matters to prelu."""
        if self.parameter:
            return self.function(x, parameter, out=out)
        return self.function(x, out=out)

    def __reduce__(self):
        return act, (self.name,)

    def __str__(self) -> str:
        return self.name

    def outside(self, x: np.ndarray) -> int:
        """How many elements of `x` lie outside the valid range (NaN does not count)."""
        low, high = self.valid_range
        if low == -inf and high == inf:
            return 0
        x = np.abs(x) if self.symmetric else x
        return int(np.count_nonzero((x < low) | (x > high)))


def _prelu(x, slope, out=None):
    """x where x ≥ 0, slope·x elsewhere."""
    with np.errstate(all="ignore"):
        return _deliver(np.where(x >= 0, x, np.multiply(x, slope)), _empty(x, x, out))


def _sin(x, out=None):
    """The sine inside [-π, π]; outside, the polynomial of the end piece goes on.

    The docs say the engine extrapolates a cubic, with sin(9.0) ≈ 27.65.  The cubic Taylor
    polynomial at ±π, t³/6 - t with t = x ∓ π, gives 27.653 there (derived from that one value).
    """
    far = np.abs(x) > pi
    t = x[far]  # taken first: `out` may be `x`
    y = FUNCTIONS["sin"](x, out=out)
    if t.size:
        with np.errstate(all="ignore"):
            t = t - np.copysign(pi, t)
            y[far] = t * t * t / 6 - t
    return y


def _act(name: str, table: str = "", low: float = -inf, high: float = inf, **more) -> Act:
    """An activation function whose meaning is the one of that name in base.numerics."""
    function = more.pop("function", None) or FUNCTIONS[name]
    return Act(name, function, (low, high), table, **more)


_ALL_ACTS = (
    *(_act(name) for name in ("copy", "square", "relu", "sign", "abs")),
    _act("prelu", function=_prelu, parameter=True, notes="the slope for x < 0 is the parameter"),
    *(_act(name, "sigmoid") for name in ("sigmoid", "silu", "silu_dx")),
    _act("tanh", "tanh"),
    *(_act(name, "gelu") for name in ("gelu", "gelu_dx", "gelu_apprx_tanh")),
    *(_act(name, "gelu") for name in ("gelu_apprx_sigmoid", "gelu_apprx_sigmoid_dx")),
    *(_act(name, "softplus") for name in ("softplus", "mish")),
    *(_act(name, "erf") for name in ("erf", "erf_dx")),
    _act("exp", "exp"),
    _act("log", "log", 2.0**-64, 2.0**64),
    _act(
        "sin",
        "sin",
        -pi,
        pi,
        function=_sin,
        notes="no argument reduction: a cubic goes on outside the range, also in nl.sin",
    ),
    _act("arctan", "arctan", -pi / 2, pi / 2),
    _act("sqrt", "sqrt", 2.0**-116, 2.0**118),
    _act("rsqrt", "sqrt", 2.0**-87, 2.0**97),
    _act("reciprocal", "reciprocal", 2.0**-42, 2.0**42, symmetric=True),
)

ACTS: dict[str, Act] = {each.name: each for each in _ALL_ACTS}

_OTHER_ACTS = {"absolute": "abs", "identity": "copy", "bypass": "copy"}


# ---------------------------------------------------------------------- look-up


def op(x: Any) -> Op:
    """The operator meant by `x`: an Op, a name, an object with `.nki_op`, or a NumPy function."""
    return x if type(x) is Op else _find(x, OPS, _OTHER_NAMES, "operator")


def act(x: Any) -> Act:
    """The activation function meant by `x`: an Act, a name, `.nki_op`, or a NumPy function."""
    return x if type(x) is Act else _find(x, ACTS, _OTHER_ACTS, "activation function")


def _find(x: Any, table: dict, others: dict[str, str], what: str) -> Any:
    name = getattr(x, "nki_op", x)
    if not isinstance(name, str):
        name = getattr(name, "name", None) or getattr(name, "__name__", None) or repr(name)
    found = table.get(others.get(name, name))
    if found is None:
        near = nearest(name, [*table, *others])
        raise UnknownNameError(
            f"{name!r} is no {what}",
            code="isa.unknown_operator",
            rule=f"known: {', '.join(sorted(table))}",
            fix=f"nearest names: {', '.join(near) or 'none'}",
        )
    return found


# ---------------------------------------------------------------------- reductions and scans


def reduce(op_like: Any, x: np.ndarray, axes: int | tuple[int, ...]) -> np.ndarray:
    """Combine the elements along `axes` (removed from the shape), in the carrier of `x`.

    Sums and products of float32 are float32, in NumPy's pairwise order (the order of the hardware
    is not published).  "subtract" takes all later elements from the first (assumed); "average"
    divides the sum by the count.  Raises UsageError when the operator is no legal reduction.
    """
    which = op(op_like)
    if not which.reducible:
        raise UsageError(f"{which.name} is no reduction", code="isa.not_reducible")
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    if not _QUIET.get():
        with quiet():
            return reduce(which, x, axes)
    pick = _PICKS.get(which.name)
    if pick is not None and x.ndim == 2 and axes == (1,) and x.dtype == np.float32:
        # the index of the largest is found several times as fast as the largest
        return x[_rows(len(x)), pick(x, 1)]
    if which.name in ("abs_max", "abs_min"):
        return _reduce_magnitude(which, x, axes)
    if which.name == "average":
        count = np.prod([x.shape[a] for a in axes])
        return np.divide(np.add.reduce(x, axes), count, dtype=x.dtype)
    if which.name == "subtract":
        return _subtract_all(x, axes)
    ufunc = getattr(np, which.name)
    if which.kind == "logical":
        result = np.empty([n for a, n in enumerate(x.shape) if a not in axes], x.dtype)
        return ufunc.reduce(np.not_equal(x, 0), axes, out=result)
    return ufunc.reduce(x, axes, dtype=x.dtype)


_PICKS = {"maximum": np.argmax, "minimum": np.argmin}  # NaN wins in both, as in the ufuncs


@cache
def _rows(count: int) -> np.ndarray:
    """0 … count - 1."""
    return np.arange(count)


def _last(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """`x` with `axes` moved to the end, in order, and merged into one."""
    axes = tuple(a % x.ndim for a in axes)
    kept = [a for a in range(x.ndim) if a not in axes]
    return x.transpose(*kept, *sorted(axes)).reshape([x.shape[a] for a in kept] + [-1])


def _subtract_all(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    x = _last(x, axes)
    return np.subtract(x[..., 0], np.add.reduce(x[..., 1:], -1, dtype=x.dtype))


def _reduce_magnitude(which: Op, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The element of extreme magnitude with its sign; the last one of several."""
    x = _last(x, axes)[..., ::-1]
    best = (np.argmax if which.name == "abs_max" else np.argmin)(np.abs(x), axis=-1)
    return np.take_along_axis(x, best[..., None], -1)[..., 0]


def accumulate(
    op_like: Any, x: np.ndarray, initial: Any = None, out: np.ndarray | None = None
) -> np.ndarray:
    """Running results along the last axis: `r[i] = op(x[i], r[i-1])`, rounded at every step.

    `r[-1]` is `initial` (a number or one value for each row), else the operator's identity.
    """
    which = op(op_like)
    if not which.reducible:
        raise UsageError(f"{which.name} is no reduction", code="isa.not_reducible")
    out = np.empty_like(x) if out is None else out
    state = which.identity if initial is None else initial
    with np.errstate(all="ignore"):
        first = which.meaning(x[..., 0], state)
        if which.commutative and which.kind == "arithmetic" and which.name != "average":
            out[..., 0] = first
            out[..., 1:] = x[..., 1:]
            return getattr(np, which.name).accumulate(out, axis=-1, dtype=x.dtype, out=out)
        state = first
        out[..., 0] = state
        for i in range(1, x.shape[-1]):
            state = which.meaning(x[..., i], state)
            out[..., i] = state
    return out


def scan(
    op0: Any,
    op1: Any,
    data0: np.ndarray,
    initial: Any,
    data1: np.ndarray,
    reverse0: bool = False,
    reverse1: bool = False,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """`r[i] = op1(op0(data0[i], r[i-1]), data1[i])` along the last axis of [P, F] arrays.

    `r[-1]` is `initial`, a number or [P, 1].  `reverse0`/`reverse1` swap the operands of op0/op1.
    Every step is rounded to float32, as in tensor_tensor_scan (NKI 0.6 API reference).
    """
    if op(op0).name == "multiply" and op(op1).name == "add" and _compiling(data0):
        return _linear(data0, initial, data1, out)
    first, second = op(op0).meaning, op(op1).meaning
    rows0, rows1 = np.ascontiguousarray(data0.T), np.ascontiguousarray(data1.T)
    result = np.empty_like(rows0)
    state = np.broadcast_to(np.reshape(initial, -1), rows0.shape[1:])
    with np.errstate(all="ignore"):
        for x, y, r in zip(rows0, rows1, result, strict=True):
            state = first(state, x, out=r) if reverse0 else first(x, state, out=r)
            state = second(y, r, out=r) if reverse1 else second(r, y, out=r)
    if out is None:
        return result.T
    np.copyto(out, result.T)
    return out


# Columns that `scan` went through in this process.  A column takes 0.7 us, loading the compiled
# loop about as long as the limit says: who scans little never waits for it, who scans much soon
# gets seven times the speed.
_WORTH_LOADING = 1_000_000
_columns = [0]


def _compiling(data0: np.ndarray) -> bool:
    """Whether the compiled recurrence is to be used: it pays, and Numba is installed."""
    _columns[0] += data0.shape[1]
    if _columns[0] < _WORTH_LOADING:
        return False
    from importlib.util import find_spec

    return find_spec("numba") is not None


def _linear(
    data0: np.ndarray, initial: Any, data1: np.ndarray, out: np.ndarray | None
) -> np.ndarray:
    """data0 · r + data1 by the compiled twin of `scan`."""
    from opentrn.isa.scan_fast import linear

    out = np.empty(data0.shape, np.float32) if out is None else out
    first = np.empty(data0.shape[0], np.float32)
    first[:] = np.reshape(initial, -1)
    # The compiled form takes writable arrays only.
    linear(np.require(data0, requirements="W"), np.require(data1, requirements="W"), first, out)
    return out
