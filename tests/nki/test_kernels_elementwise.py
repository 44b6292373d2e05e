"""The elementwise kernel: every operation against NumPy, on floats, integers and booleans."""

import math

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import UnsupportedError
from opentrn.nki import kernels
from tests.nki.kernel_checks import close, every_target, exact, numbers, run

ERF = np.vectorize(math.erf)
UNARY = {
    "negate": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "tanh": np.tanh,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "sine": np.sin,
    "cosine": np.cos,
    "erf": ERF,
    "floor": np.floor,
    "ceil": np.ceil,
    "round_nearest_even": np.rint,
    "gelu": lambda x: x * 0.5 * (1 + ERF(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(0, x),
    "relu": lambda x: np.maximum(x, 0),
}
POSITIVE = {
    "log": np.log,
    "log_plus_one": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "remainder": np.fmod,
}
COMPARE = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}
INTEGER = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
IN0, IN1 = ("in", 0), ("in", 1)


def apply(inputs, *steps, dtype="float32", **more):
    return run(kernels.elementwise, list(inputs), steps, inputs[0].shape, dtype, **more)


@every_target
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name, target):
    x = numbers(0, 3, 131, 7) * np.float32(3)
    close(apply([x], (name, IN0), target=target), UNARY[name](exact(x)), 16)


@pytest.mark.parametrize("name", POSITIVE)
def test_functions_of_positive_numbers(name):
    x = np.abs(numbers(0, 300, 33)) + np.float32(1e-6)
    close(apply([x], (name, IN0)), POSITIVE[name](exact(x)), 16)


@pytest.mark.parametrize("name", ["exponential_minus_one", "log_plus_one"])
def test_nothing_is_lost_near_zero(name):
    x = np.float32(10) ** np.arange(-20, 0, dtype=np.float32)
    want = {"exponential_minus_one": np.expm1, "log_plus_one": np.log1p}[name](exact(x))
    assert np.abs(apply([x], (name, IN0)) / want - 1).max() < 1e-6


def test_waves_far_from_zero_and_tangents():
    x = np.linspace(-300, 300, 1001, dtype=np.float32)
    assert np.abs(apply([x], ("sine", IN0)) - np.sin(exact(x))).max() < 5e-7
    assert np.abs(apply([x], ("cosine", IN0)) - np.cos(exact(x))).max() < 5e-7
    x = np.linspace(-1.4, 1.4, 1001, dtype=np.float32)
    assert np.abs(apply([x], ("tan", IN0)) - np.tan(exact(x))).max() < 1e-4


@pytest.mark.parametrize("name", ["sine", "cosine"])
@pytest.mark.parametrize(("limit", "error"), [(1e5, 5e-7), (1e6, 0.1)])
def test_waves_are_right_as_far_as_conformance_says(name, limit, error):
    x = np.linspace(-limit, limit, 20_000, dtype=np.float32).reshape(100, 200)
    wanted = {"sine": np.sin, "cosine": np.cos}[name](x.astype(np.float64))
    assert np.abs(apply([x], (name, IN0)) - wanted).max() < error


@pytest.mark.parametrize("name", ["sine", "cosine"])
def test_waves_of_nan_and_of_infinities_are_nan(name):
    x = np.array([[np.nan, np.inf], [-np.inf, np.nan]], np.float32)
    assert np.isnan(apply([x], (name, IN0))).all()


def test_rounding_keeps_what_is_whole():
    x = np.array([2.5, -2.5, 3.5, -0.5, 1e10, -3e38, np.inf, -np.inf], np.float32)
    assert np.array_equal(apply([x], ("round_nearest_even", IN0)), np.rint(x))
    assert np.array_equal(apply([x], ("floor", IN0)), np.floor(x))
    assert np.array_equal(apply([x], ("ceil", IN0)), np.ceil(x))


@pytest.mark.parametrize("name", BINARY)
def test_two_operands_in_any_place(name):
    x, y = numbers(0, 5, 77), numbers(1, 5, 77)
    function = BINARY[name]
    exactly = exact if name != "remainder" else np.asarray
    close(apply([x, y], (name, IN0, IN1)), exact(function(exactly(x), exactly(y))), 4)
    close(apply([x], (name, IN0, 2.5)), exact(function(exactly(x), 2.5)), 4)
    close(apply([x], (name, 2.5, IN0)), exact(function(2.5, exactly(x))), 4)


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -0.5, -1, 1, 2.5])
def test_powers(exponent):
    x = np.abs(numbers(0, 50, 20)) + np.float32(0.1)
    close(apply([x], ("power", IN0, exponent)), exact(x) ** exponent, 16)
    y = np.full_like(x, exponent)
    close(apply([x, y], ("power", IN0, IN1)), exact(x) ** exponent, 16)


@every_target
@pytest.mark.parametrize("name", INTEGER)
def test_integers_are_exact(name, target):
    x, y = np.random.default_rng(0).integers(-(2**31), 2**31, (2, 7, 33)).astype(np.int32)
    found = apply([x, y], (name, IN0, IN1), dtype="int32", target=target)
    assert np.array_equal(found, INTEGER[name](x, y))
    found = apply([x], (name, IN0, 7), dtype="int32", target=target)
    assert np.array_equal(found, INTEGER[name](x, np.int32(7)))


@pytest.mark.parametrize("direction", COMPARE)
def test_comparisons(direction):
    x, y = np.random.default_rng(0).integers(-(2**31), 2**31, (2, 9, 33)).astype(np.int32)
    y[0], y[1] = x[0], x[1] + 1
    step = (f"compare_{direction}", IN0, IN1)
    assert np.array_equal(apply([x, y], step, dtype="bool"), COMPARE[direction](x, y))
    a, b = numbers(0, 9, 33), numbers(1, 9, 33)
    b[0], b[1, 0] = a[0], np.nan
    assert np.array_equal(apply([a, b], step, dtype="bool"), COMPARE[direction](a, b))


def test_booleans():
    x, y = np.random.default_rng(0).random((2, 5, 9)) > 0.5
    for name, function in (
        ("and", np.logical_and),
        ("or", np.logical_or),
        ("xor", np.logical_xor),
        ("add", np.logical_or),
        ("multiply", np.logical_and),
    ):
        assert np.array_equal(apply([x, y], (name, IN0, IN1), dtype="bool"), function(x, y))
    assert np.array_equal(apply([x], ("not", IN0), dtype="bool"), ~x)
    whole = np.arange(45, dtype=np.int32).reshape(5, 9) - 20
    assert np.array_equal(apply([whole], ("not", IN0), dtype="int32"), ~whole)


def test_select_and_clamp():
    holds = np.random.default_rng(0).random((5, 9)) > 0.5
    x, y = numbers(0, 5, 9), numbers(1, 5, 9)
    found = apply([holds, x, y], ("select", IN0, IN1, ("in", 2)))
    assert np.array_equal(found, np.where(holds, x, y))
    found = apply([holds, x], ("select", IN0, -1.0, IN1))
    assert np.array_equal(found, np.where(holds, np.float32(-1), x))
    assert np.array_equal(apply([x], ("clamp", -0.5, IN0, 1.0)), np.clip(x, -0.5, 1))


def test_conversions():
    x = (numbers(0, 20, 30) * 1000).astype(np.float32)
    assert np.array_equal(apply([x], ("convert", IN0, "int32"), dtype="int32"), x.astype(np.int32))
    whole = np.random.default_rng(0).integers(-(2**31), 2**31, (7, 33)).astype(np.int32)
    for narrow in ("int8", "uint8", "int16"):
        found = apply([whole], ("convert", IN0, narrow), dtype=narrow)
        assert np.array_equal(found, whole.astype(narrow))
    assert np.array_equal(apply([whole], ("convert", IN0, "bool"), dtype="bool"), whole != 0)
    holds = x > 0
    assert np.array_equal(apply([holds], ("convert", IN0, "float32")), holds.astype(np.float32))
    # A conversion on the way rounds, the other steps do not.
    rounded = apply([x], ("convert", IN0, "bfloat16"), ("multiply", ("step", 0), 1.0))
    near = apply([x], ("multiply", IN0, 1.0), dtype="bfloat16")
    assert np.array_equal(rounded, exact(near))


def test_is_finite():
    x = np.array([1, np.inf, np.nan, -np.inf, 3e38], np.float32)
    found = apply([x], ("is_finite", IN0), dtype="bool")
    assert found.tolist() == [True, False, False, False, True]


@every_target
def test_a_chain_is_rounded_once(target):
    x, y = (numbers(n, 2, 200, 70, dtype="bfloat16") for n in (0, 1))
    steps = (
        ("multiply", IN0, IN1),
        ("add", ("step", 0), 1.0),
        ("tanh", ("step", 1)),
        ("multiply", ("step", 2), ("step", 0)),
    )
    product = exact(x) * exact(y)
    found = apply([x, y], *steps, dtype="bfloat16", target=target)
    close(found, np.tanh(product + 1) * product, 1.1)


@nki.jit
def _of_views(x, row):
    shape = (x.shape[1], x.shape[0], x.shape[2])
    turned = x.permute((1, 0, 2))
    spread = row.reshape((1, 1, shape[2])).broadcast(0, shape[0]).broadcast(1, shape[1])
    return kernels.elementwise([turned, spread], (("add", IN0, IN1),), shape, "float32")


def test_views_of_every_kind():
    x, row = numbers(0, 4, 150, 5), numbers(1, 5)
    assert np.array_equal(run(_of_views, x, row), x.transpose(1, 0, 2) + row)


@pytest.mark.parametrize("size", [1, 7, 127, 128, 129, 8191, 8192, 8193, 300007])
def test_sizes_that_divide_by_nothing(size):
    x = numbers(0, size)
    assert np.array_equal(apply([x], ("add", IN0, 1.0)), x + np.float32(1))


def test_refusals_name_the_operation():
    x = numbers(0, 4)
    with pytest.raises(UnsupportedError, match="erf_inv"):
        nki.run(kernels.elementwise, [x, x], (("erf_inv", IN0, IN1),), (4,), "float32")
    whole = x.astype(np.int32)
    with pytest.raises(UnsupportedError, match="`tanh` of int"):
        nki.run(kernels.elementwise, [whole], (("tanh", IN0),), (4,), "float32")


@nki.jit
def _of_repeated(x, column, heads):
    """x [A, B, C] · column [A, B, 1] + heads [A, B], each of which is repeated over 4 columns."""
    cut = (*x.shape[:2], x.shape[2] // 4, 4)
    wide = column.expand_dim(3).broadcast(2, cut[2]).broadcast(3, 4)
    parts = heads.expand_dim(3).broadcast(3, 4)
    steps = (("multiply", IN0, IN1), ("add", ("step", 0), ("in", 2)))
    return kernels.elementwise([x.reshape(cut), wide, parts], steps, cut, "float32")


@pytest.mark.parametrize("shape", [(2, 70, 64), (3, 130, 8), (1, 5, 12000)])
def test_what_repeats_along_rows_is_loaded_once_a_row(shape):
    x, column = numbers(0, *shape), numbers(1, *shape[:2], 1)
    heads = numbers(2, *shape[:2], shape[2] // 4)
    done = nki.run(_of_repeated, x, column, heads)
    want = x * column + np.repeat(heads, 4, -1)
    assert np.array_equal(done.outputs.reshape(shape), want)
    loaded = sum(
        i.form.move.descriptors for i in done.program.instructions() if i.opcode == "dma_copy"
    )
    # A descriptor for each row of x and of the result, each number of the column, each row of the
    # heads, and not one for each of the elements they stand for.
    assert loaded < 6 * shape[0] * shape[1] + 3 * x.nbytes // 512


def test_a_repeated_number_can_be_stored_and_read_by_its_bits():
    column = numbers(0, 140, 1)
    wide = np.broadcast_to(column, (140, 300))
    assert np.array_equal(run(_spread, column, "convert", "float32"), wide)
    assert np.array_equal(run(_spread, column, "abs"), np.abs(wide))
    angle = np.arctan2(exact(wide), exact(-wide))
    assert np.abs(run(_spread, column, "atan2") - angle).max() < 1e-5


@nki.jit
def _spread(column, name, *more):
    wide, shape = column.broadcast(1, 300), (140, 300)
    steps = ((name, IN0, *more),)
    if name == "atan2":
        steps = (("negate", IN0), (name, IN0, ("step", 0)))
    return kernels.elementwise([wide], steps, shape, "float32")
