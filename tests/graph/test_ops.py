"""Every op against an independent computation in float64 or exact integers."""

import math

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from opentrn.graph import OPS, Graph, evaluate, g
from opentrn.graph.ops import foreign, placement
from tests.graph.test_region_ops import FAMILIES

COVERED = {"input"}


def run(op, *arrays, kinds=(), **attributes):
    """The op on inputs holding these arrays."""
    COVERED.add(op)
    names = kinds or [np.asarray(a).dtype for a in arrays]
    arrays = [np.asarray(a) for a in arrays]
    inputs = [g.input(f"x{i}", a.shape, k) for i, (a, k) in enumerate(zip(arrays, names,
                                                                          strict=True))]
    value = getattr(g, op + "_")(*inputs, **attributes)
    result = evaluate(Graph(inputs, [value]), arrays)[0]
    assert result.shape == value.shape
    return result


def close(got, want, tolerance=3e-7):
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance)


R = np.random.default_rng(7)
X = R.normal(size=(5, 7)).astype(np.float32)
Y = R.normal(size=(5, 7)).astype(np.float32)
P = np.abs(X) + np.float32(0.1)
N = R.integers(-50, 50, (5, 7)).astype(np.int32)
M = R.integers(1, 9, (5, 7)).astype(np.int32)
ERF = np.vectorize(math.erf)


@pytest.mark.parametrize(
    ("op", "x", "function"),
    [
        ("negate", X, np.negative), ("abs", X, np.abs), ("sign", X, np.sign),
        ("exponential", X, np.exp), ("exponential_minus_one", X * 1e-3, np.expm1),
        ("log", P, np.log), ("log_plus_one", P * 1e-3, np.log1p), ("sqrt", P, np.sqrt),
        ("rsqrt", P, lambda x: 1 / np.sqrt(x)), ("cbrt", X, np.cbrt), ("tanh", X, np.tanh),
        ("logistic", X, lambda x: 1 / (1 + np.exp(-x))), ("sine", X, np.sin),
        ("cosine", X, np.cos), ("tan", X, np.tan), ("erf", X, ERF), ("floor", X, np.floor),
        ("ceil", X, np.ceil), ("round_nearest_even", np.float32([0.5, 1.5, 2.5, -0.5]), np.rint),
        ("round_nearest_afz", np.float32([0.5, 1.5, 0.49999997, -0.5]),
         lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x)),
    ],
)
def test_unary(op, x, function):
    x = x.astype(np.float32)
    close(run(op, x), function(x.astype(np.float64)), 1e-6)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(run(op, wide), function(wide), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("add", np.add), ("subtract", np.subtract), ("multiply", np.multiply),
        ("divide", np.divide), ("maximum", np.maximum), ("minimum", np.minimum),
        ("atan2", np.arctan2), ("remainder", np.fmod),
    ],
)
def test_binary(op, function):
    close(run(op, X, Y), function(X.astype(np.float64), Y.astype(np.float64)), 1e-6)


def test_power():
    close(run("power", P, Y), P.astype(np.float64) ** Y.astype(np.float64), 1e-6)
    bases, powers = np.int32([2, -3, 1, -1, -1, 5]), np.int32([10, 3, -4, -3, -2, -1])
    assert run("power", bases, powers).tolist() == [1024, -27, 1, -1, 1, 0]


def test_integers_divide_towards_zero():
    a, b = np.int32([7, -7, 7, -7, 3]), np.int32([2, 2, -2, -2, 0])
    assert run("divide", a, b).tolist() == [3, -3, -3, 3, -1]
    assert run("remainder", a, b).tolist() == [1, -1, 1, -1, 3]
    want = [[int(p / q) for p, q in zip(r, s, strict=True)] for r, s in zip(N, M, strict=True)]
    assert run("divide", N, M).tolist() == want


def test_integers_wrap():
    top = np.int8([127, -128])
    assert run("add", top, np.int8([1, -1])).tolist() == [-128, 127]
    assert run("multiply", np.uint8([200]), np.uint8([2])).tolist() == [144]


def test_logical_and_bitwise():
    a, b = N > 0, M > 4
    for op, want in (("and", a & b), ("or", a | b), ("xor", a ^ b)):
        assert np.array_equal(run(op, a, b), want)
    assert run("and", np.int32([12]), np.int32([10])).tolist() == [8]
    assert run("or", np.int32([12]), np.int32([10])).tolist() == [14]
    assert run("xor", np.int32([12]), np.int32([10])).tolist() == [6]
    assert run("not", np.int32([0, 5])).tolist() == [-1, -6]
    assert run("not", np.array([True, False])).tolist() == [False, True]


def test_compare_with_nan():
    x, y = np.float32([1, 2, np.nan]), np.float32([2, 2, np.nan])
    want = {"EQ": [0, 1, 0], "NE": [1, 0, 1], "LT": [1, 0, 0], "LE": [1, 1, 0], "GT": [0, 0, 0],
            "GE": [0, 1, 0]}
    for direction, truth in want.items():
        assert run("compare", x, y, direction=direction).astype(int).tolist() == truth
    assert run("is_finite", np.float32([1, np.inf, np.nan])).tolist() == [True, False, False]


def test_select_and_clamp():
    assert np.array_equal(run("select", N > 0, X, Y), np.where(N > 0, X, Y))
    low, high = np.full_like(X, -0.5), np.full_like(X, 0.5)
    assert np.array_equal(run("clamp", low, X, high), np.clip(X, -0.5, 0.5))


def test_convert():
    x = np.float32([1.5, -1.5, 2.9, np.nan, np.inf, -np.inf, 3e9])
    limits = np.iinfo(np.int32)
    assert run("convert", x, dtype="int32").tolist() == [
        1, -1, 2, 0, limits.max, limits.min, limits.max]
    assert run("convert", np.int32([257, -1]), dtype="uint8").tolist() == [1, 255]
    assert run("convert", np.int32([0, 3]), dtype="bool").tolist() == [False, True]
    assert run("convert", np.array([True, False]), dtype="float32").tolist() == [1.0, 0.0]
    assert run("convert", np.int64([2**40]), dtype="int64").tolist() == [2**40]
    halfway = np.float32([1 + 2**-8, 1 + 3 * 2**-8, 1.1])
    want = halfway.astype(ml_dtypes.bfloat16)
    assert np.array_equal(run("convert", halfway, dtype="bfloat16"), want)
    third = np.float64([1 / 3])
    assert run("convert", third, dtype="float32").tolist() == [float(np.float32(1 / 3))]


def test_leaves():
    COVERED.update({"constant", "iota"})
    x = g.input("x", (2, 3), "int32")
    value = g.iota((2, 3), 1, "int32") + g.constant(np.int32([[10], [20]]).repeat(3, 1)) + x
    got = evaluate(Graph([x], [value]), [np.full((2, 3), 100, np.int32)])[0]
    assert got.tolist() == [[110, 111, 112], [120, 121, 122]]
    line = evaluate(Graph([], [g.iota((3, 2), 0, "float32")]), [])[0]
    assert line.tolist() == [[0, 0], [1, 1], [2, 2]]


def test_shapes():
    cube = R.normal(size=(2, 3, 4)).astype(np.float32)
    assert np.array_equal(run("broadcast_in_dim", X[:1], shape=(3, 4, 7), dimensions=(1, 2)),
                          np.broadcast_to(X[:1], (3, 4, 7)))
    assert np.array_equal(run("reshape", cube, shape=(6, 4)), cube.reshape(6, 4))
    turned = run("transpose", cube, permutation=(2, 0, 1))
    assert turned.shape == (4, 2, 3)
    assert turned[3, 1, 2] == cube[1, 2, 3]
    cut = run("slice", X, starts=(1, 0), limits=(5, 7), strides=(2, 3))
    assert np.array_equal(cut, X[1:5:2, 0:7:3])
    assert np.array_equal(run("concatenate", X, Y, dimension=1), np.hstack([X, Y]))
    assert np.array_equal(run("reverse", cube, dimensions=(0, 2)), cube[::-1, :, ::-1])


def test_pad_with_gaps_and_cuts():
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    got = run("pad", x, np.float32(9), low=(1, -1), high=(0, 2), interior=(0, 1))
    assert got.tolist() == [[9, 9, 9, 9, 9, 9], [9, 2, 9, 3, 9, 9], [9, 5, 9, 6, 9, 9]]


def test_dynamic_slices_stay_inside():
    start = np.int32(4), np.int32(-3)
    assert np.array_equal(run("dynamic_slice", X, *start, sizes=(2, 3)), X[3:5, 0:3])
    patch = np.zeros((2, 3), np.float32)
    want = X.copy()
    want[3:5, 0:3] = 0
    assert np.array_equal(run("dynamic_update_slice", X, patch, *start), want)


def test_gather_rows_and_windows():
    rows = np.int32([[0, 4], [9, 2]])  # 9 is pushed to 4
    got = run("gather", X, rows, offset_dims=(2,), collapsed_slice_dims=(0,),
              start_index_map=(0,), index_vector_dim=2, slice_sizes=(1, 7))
    assert np.array_equal(got, X[[[0, 4], [4, 2]]])
    corners = np.int64([[1, 3], [2, -5]])
    got = run("gather", X, corners, offset_dims=(1, 2), collapsed_slice_dims=(),
              start_index_map=(0, 1), index_vector_dim=1, slice_sizes=(2, 3))
    assert np.array_equal(got, np.stack([X[1:3, 3:6], X[2:4, 0:3]]))
    each = np.int32([[3], [0], [6], [1], [2]])
    got = run("gather", X, each, offset_dims=(), collapsed_slice_dims=(1,), start_index_map=(1,),
              index_vector_dim=1, slice_sizes=(1, 1), operand_batching_dims=(0,),
              indices_batching_dims=(0,))
    assert np.array_equal(got, X[np.arange(5), each[:, 0]])


def test_take_is_recognised():
    x, i = g.input("x", (5, 6, 7)), g.input("i", (2, 3), "int32")
    for axis in range(3):
        value = g.take(x, i, axis)
        assert value.attrs.taken_axis(x.type, i.type) == axis
        indices = R.integers(0, 5, (2, 3)).astype(np.int32)
        array = R.normal(size=(5, 6, 7)).astype(np.float32)
        got = evaluate(Graph([x, i], [value]), [array, indices])[0]
        assert np.array_equal(got, np.take(array, indices, axis))


@pytest.mark.parametrize("kind", ["set", "add", "multiply", "maximum", "minimum"])
def test_scatter(kind):
    operand = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    rows, updates = np.int32([2, 0, 2, 7]), R.normal(size=(4, 3)).astype(np.float32)
    got = run("scatter", operand, rows, updates, kind=kind, update_window_dims=(1,),
              inserted_window_dims=(0,), scatter_dims=(0,), index_vector_dim=1)
    want = operand.astype(np.float64)
    step = {"set": lambda a, b: b, "add": np.add, "multiply": np.multiply,
            "maximum": np.maximum, "minimum": np.minimum}[kind]
    for row, update in zip(rows[:3], updates, strict=False):  # row 7 is outside
        want[row] = step(want[row], update)
    close(got, want)


def test_scatter_windows():
    operand = np.zeros((4, 5), np.float32)
    corners = np.int32([[0, 1], [2, 3], [3, 4]])  # of the last two only some elements are inside
    updates = np.ones((3, 2, 3), np.float32)
    got = run("scatter", operand, corners, updates, kind="add", update_window_dims=(1, 2),
              inserted_window_dims=(), scatter_dims=(0, 1), index_vector_dim=1)
    want = operand.copy()
    want[0:2, 1:4] += 1
    want[2:4, 3:5] += 1
    want[3:4, 4:5] += 1
    assert np.array_equal(got, want)


def test_dot_general_with_batch_axes_anywhere():
    a, b = R.normal(size=(3, 2, 4, 5)), R.normal(size=(5, 6, 2, 4))
    got = run("dot_general", a.astype(np.float32), b.astype(np.float32), lhs_contracting=(2, 3),
              rhs_contracting=(3, 0), lhs_batch=(1,), rhs_batch=(2,))
    want = np.einsum("abcd,debc->bae", a.astype(np.float32).astype(np.float64),
                     b.astype(np.float32).astype(np.float64))
    close(got, want, 1e-5)


def test_dot_general_in_bfloat16_is_summed_in_float32_and_rounded_once():
    a = R.normal(size=(4, 300)).astype(ml_dtypes.bfloat16)
    b = R.normal(size=(300, 5)).astype(ml_dtypes.bfloat16)
    got = run("dot_general", a, b, lhs_contracting=1, rhs_contracting=0)
    want = a.astype(np.float64) @ b.astype(np.float64)
    assert got.dtype == ml_dtypes.bfloat16
    close(got, want, 2**-8)
    wide = run("dot_general", a, b, lhs_contracting=1, rhs_contracting=0, dtype="float32")
    close(wide, want, 1e-5)


def test_dot_general_of_short_integers_is_summed_in_the_result_dtype():
    a, b = R.integers(-128, 127, (3, 50)), R.integers(-128, 127, (50, 2))
    got = run("dot_general", a.astype(np.int8), b.astype(np.int8), lhs_contracting=1,
              rhs_contracting=0, dtype="int32")
    assert np.array_equal(got, a @ b)


def plain_convolution(image, kernel, stride, low, high, dilation, grown, groups):
    """Two spatial axes, by loops."""
    n, c, h, w = image.shape
    spread = np.zeros((n, c, (h - 1) * grown + 1, (w - 1) * grown + 1))
    spread[:, :, ::grown, ::grown] = image
    image = np.pad(spread, ((0, 0), (0, 0), (low, high), (low, high)))
    o, i, kh, kw = kernel.shape
    rows = (image.shape[2] - (kh - 1) * dilation - 1) // stride + 1
    columns = (image.shape[3] - (kw - 1) * dilation - 1) // stride + 1
    result = np.zeros((n, o, rows, columns))
    for f in range(o):
        first = f // (o // groups) * i
        part = image[:, first:first + i]
        for y in range(rows):
            for x in range(columns):
                window = part[:, :, y * stride:y * stride + (kh - 1) * dilation + 1:dilation,
                              x * stride:x * stride + (kw - 1) * dilation + 1:dilation]
                result[:, f, y, x] = (window * kernel[f]).sum((1, 2, 3))
    return result


@pytest.mark.parametrize(
    ("stride", "low", "high", "dilation", "grown", "groups"),
    [(1, 0, 0, 1, 1, 1), (2, 1, 2, 1, 1, 2), (1, 2, 2, 2, 1, 1), (1, 1, 2, 1, 2, 4)],
)
def test_convolution(stride, low, high, dilation, grown, groups):
    image = R.normal(size=(2, 4, 6, 5)).astype(np.float32)
    kernel = R.normal(size=(8, 4 // groups, 3, 2)).astype(np.float32)
    got = run("convolution", image, kernel, strides=(stride, stride), padding=((low, high),) * 2,
              lhs_dilation=(grown, grown), rhs_dilation=(dilation, dilation), groups=groups)
    close(got, plain_convolution(image.astype(np.float64), kernel.astype(np.float64), stride, low,
                                 high, dilation, grown, groups), 1e-5)


def test_convolution_with_channels_last_and_cut_edges():
    image = R.normal(size=(2, 6, 5, 4)).astype(np.float32)
    kernel = R.normal(size=(3, 2, 4, 8)).astype(np.float32)
    got = run("convolution", image, kernel, strides=(1, 1), padding=((-1, 0), (0, 0)),
              lhs_axes=(0, 3, 1, 2), rhs_axes=(3, 2, 0, 1), out_axes=(0, 3, 1, 2))
    want = plain_convolution(image.transpose(0, 3, 1, 2)[:, :, 1:].astype(np.float64),
                             kernel.transpose(3, 2, 0, 1).astype(np.float64), 1, 0, 0, 1, 1, 1)
    close(got, want.transpose(0, 2, 3, 1), 1e-5)


@pytest.mark.parametrize(
    ("kind", "function"),
    [("add", np.sum), ("multiply", np.prod), ("maximum", np.max), ("minimum", np.min)],
)
def test_reduce(kind, function):
    cube = R.normal(size=(3, 4, 5)).astype(np.float32)
    for axes in ((0,), (1, 2), (0, 1, 2), ()):
        want = function(cube.astype(np.float64), axis=axes)
        close(run("reduce", cube, kind=kind, dimensions=axes), want, 1e-6)


def test_reduce_bool_and_nothing():
    b = N > 0
    assert np.array_equal(run("reduce", b, kind="and", dimensions=(1,)), b.all(1))
    assert np.array_equal(run("reduce", b, kind="or", dimensions=(0,)), b.any(0))
    empty = np.zeros((3, 0), np.float32)
    assert run("reduce", empty, kind="add", dimensions=(1,)).tolist() == [0, 0, 0]
    assert run("reduce", empty, kind="maximum", dimensions=(1,)).tolist() == [-np.inf] * 3


def test_small_integers_are_summed_in_their_own_dtype():
    assert run("reduce", np.uint8([200, 100]), kind="add", dimensions=(0,)).tolist() == 44


def test_reduce_window():
    got = run("reduce_window", X, kind="maximum", window=(2, 3), strides=(1, 2))
    assert np.array_equal(got, sliding_window_view(X, (2, 3))[:, ::2].max((2, 3)))
    grown = np.pad(X.astype(np.float64), ((1, 0), (0, 2)))
    got = run("reduce_window", X, kind="add", window=(2, 2), padding=((1, 0), (0, 2)),
              dilation=(1, 2))
    close(got, sliding_window_view(grown, (2, 3))[..., ::2].sum((2, 3)), 1e-6)


def test_cumulative():
    close(run("cumulative", X, kind="add", dimension=1), X.astype(np.float64).cumsum(1), 1e-6)
    close(run("cumulative", X, kind="multiply", dimension=0), X.astype(np.float64).cumprod(0),
          1e-6)
    want = [[max(row[:i + 1]) for i in range(7)] for row in X.tolist()]
    close(run("cumulative", X, kind="maximum", dimension=1), np.array(want))
    want = [[min(row[:i + 1]) for i in range(7)] for row in X.tolist()]
    close(run("cumulative", X, kind="minimum", dimension=-1), np.array(want))


def test_argmax_takes_the_first_of_equals():
    x = np.float32([[1, 3, 3], [2, np.nan, 9]])
    assert run("argmax", x, dimension=1).tolist() == [1, 1]
    assert run("argmax", x, dimension=0, dtype="int64").dtype == np.int64


def test_sort_is_stable_both_ways():
    x = np.int32([3, 1, 3, 2, 1])
    assert run("sort", x, dimension=0).tolist() == [1, 1, 2, 3, 3]
    assert run("sort", x, dimension=0, part="indices").tolist() == [1, 4, 3, 0, 2]
    assert run("sort", x, dimension=0, descending=True).tolist() == [3, 3, 2, 1, 1]
    assert run("sort", x, dimension=0, descending=True, part="indices").tolist() == [0, 2, 3, 1, 4]


def test_top_k():
    x = np.float32([[1, 5, 5, 0], [4, 2, 8, 8]])
    assert run("top_k", x, k=2).tolist() == [[5, 5], [8, 8]]
    assert run("top_k", x, k=3, part="indices").tolist() == [[1, 2, 0], [2, 3, 0]]


COMPOSITES = {
    "gelu": lambda x: x * 0.5 * (1 + ERF(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    "log_softmax": lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True)),
    "layer_norm": lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(
        x.var(-1, keepdims=True) + 1e-5),
    "rms_norm": lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5),
}


@pytest.mark.parametrize("op", COMPOSITES)
def test_composites(op):
    x = (3 * R.normal(size=(4, 33))).astype(np.float32)
    close(run(op, x), COMPOSITES[op](x.astype(np.float64)), 1e-6)


def test_gelu_with_tanh():
    inner = math.sqrt(2 / math.pi) * (X.astype(np.float64) + 0.044715 * X.astype(np.float64) ** 3)
    close(run("gelu", X, approximate=True), 0.5 * X * (1 + np.tanh(inner)), 1e-6)


def test_activations_far_out_stay_finite():
    far = np.float32([-1e4, -100, 100, 1e4])
    assert np.allclose(run("silu", far), [0, 0, 100, 1e4])
    assert np.allclose(run("softplus", far), [0, 0, 100, 1e4])
    assert np.allclose(run("gelu", far), [0, 0, 100, 1e4])
    assert np.allclose(run("softmax", far), [0, 0, 0, 1])


def plain_attention(q, k, v, scale, seen):
    """One head after another, in float64."""
    result = np.zeros((*q.shape[:-1], v.shape[-1]))
    times = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = q[b, h] @ k[b, h // times].T * scale + seen[b, h]
            top = scores.max(-1, keepdims=True)
            weights = np.exp(scores - np.where(np.isinf(top), 0, top))
            total = weights.sum(-1, keepdims=True)
            result[b, h] = weights @ v[b, h // times] / np.where(total == 0, 1, total)
    return result


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_attention(mask):
    q = R.normal(size=(2, 4, 5, 8)).astype(np.float32)
    k, v = (R.normal(size=(2, 2, 6, d)).astype(np.float32) for d in (8, 3))
    seen, extra = np.zeros((2, 4, 5, 6)), []
    if mask == "causal":
        seen = seen + np.where(np.tri(5, 6), 0, -np.inf)
    elif mask == "bool":
        extra = [R.random((2, 1, 5, 6)) > 0.4]
        extra[0][1, 0, 2] = False  # this query sees nothing
        seen = seen + np.where(extra[0], 0, -np.inf)
    elif mask == "float":
        extra = [R.normal(size=(1, 1, 5, 6)).astype(np.float32)]
        seen = seen + extra[0]
    got = run("attention", q, k, v, *extra, causal=mask == "causal")
    want = plain_attention(*(x.astype(np.float64) for x in (q, k, v)), 8 ** -0.5, seen)
    close(got, want, 1e-6)
    if mask == "bool":
        assert (got[1, :, 2] == 0).all()


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_attention_gradient(mask):
    """Against differences of the attention in float64, summed with the gradient of its result."""
    q = R.normal(size=(1, 4, 3, 4))
    k, v = (R.normal(size=(1, 2, 5, d)) for d in (4, 3))
    seen = np.zeros((1, 4, 3, 5))
    extra: list = []
    if mask == "causal":
        seen = seen + np.where(np.tri(3, 5), 0, -np.inf)
    elif mask == "bool":
        extra = [R.random((1, 1, 3, 5)) > 0.4]
        extra[0][0, 0, 2] = False  # this query sees nothing
        seen = seen + np.where(extra[0], 0, -np.inf)
    elif mask == "float":
        extra = [R.normal(size=(1, 1, 3, 5))]
        seen = seen + extra[0]
    grad = R.normal(size=(1, 4, 3, 3))
    given = [q, k, v]
    out = plain_attention(*given, 0.7, seen)
    for n, part in enumerate(("query", "key", "value")):
        got = run("attention_gradient", *given, out, grad, *extra, causal=mask == "causal",
                  scale=0.7, part=part)
        want = np.zeros_like(given[n])
        for place in np.ndindex(want.shape):
            sides = []
            for step in (1e-6, -1e-6):
                moved = [x.copy() for x in given]
                moved[n][place] += step
                sides.append((plain_attention(*moved, 0.7, seen) * grad).sum())
            want[place] = (sides[0] - sides[1]) / 2e-6
        close(got, want, 1e-7)


def test_every_op_was_tried():
    elsewhere = {family.__name__ for family in (*FAMILIES, foreign, placement)}  # tried there
    ours = {name for name, op in OPS.items() if op.__module__.startswith("opentrn.graph")
            and op.__module__ not in elsewhere}
    assert ours - COVERED == set()
