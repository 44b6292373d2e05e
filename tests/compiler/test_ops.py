"""One op at a time through the whole compiler, each against NumPy computed here in float64."""

import math

import numpy as np
import pytest

from opentrn.base import UnsupportedError
from opentrn.graph import g
from tests.compiler.running import normal, on_chip, whole

erf = np.vectorize(math.erf)


def close(build, wanted, *arrays, tolerance=2e-5, **options):
    (found, *_), _ = on_chip(build, *arrays, **options)
    np.testing.assert_allclose(
        np.asarray(found, np.float64), np.asarray(wanted, np.float64), tolerance, tolerance
    )


def equal(build, wanted, *arrays, **options):
    (found, *_), _ = on_chip(build, *arrays, **options)
    np.testing.assert_array_equal(found, wanted)


def softmax(x, axis):
    grown = np.exp(x - x.max(axis, keepdims=True))
    return grown / grown.sum(axis, keepdims=True)


X = normal(3, 5, 7)
W = X.astype(np.float64)
PAIR = normal(3, 5, 7, seed=1)
NUMBERS = whole(4, 9)


COMPOSITES = {
    "softmax over a middle axis": (lambda x: g.softmax(x, 1), softmax(W, 1)),
    "log_softmax": (lambda x: g.log_softmax(x, 2), np.log(softmax(W, 2))),
    "log_softmax over the first": (lambda x: g.log_softmax(x, 0), np.log(softmax(W, 0))),
    "softplus": (lambda x: g.softplus(x), np.log1p(np.exp(W))),
    "gelu": (lambda x: g.gelu(x), 0.5 * W * (1 + erf(W / math.sqrt(2)))),
    "silu": (lambda x: g.silu(x), W / (1 + np.exp(-W))),
    "layer_norm over two axes": (
        lambda x: g.layer_norm(x, axis=1),
        (W - W.mean((1, 2), keepdims=True)) / np.sqrt(W.var((1, 2), keepdims=True) + 1e-5),
    ),
    "rms_norm over two axes": (
        lambda x: g.rms_norm(x, axis=1, epsilon=1e-6),
        W / np.sqrt((W * W).mean((1, 2), keepdims=True) + 1e-6),
    ),
    "cumulative sum": (lambda x: g.cumulative(x, kind="add", dimension=1), W.cumsum(1)),
    "running maximum": (
        lambda x: g.cumulative(x, kind="maximum", dimension=2), np.maximum.accumulate(W, 2)),
    "reverse": (lambda x: g.reverse(x, (0, 2)), W[::-1, :, ::-1]),
    "log1p of a square": (lambda x: g.log_plus_one(x * x), np.log1p(W * W)),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSITES)
def test_ops_without_a_kernel_are_spelled_out(name):
    build, wanted = COMPOSITES[name]
    close(build, wanted, X)


ELEMENTS = {
    "a chain": (lambda x, y: g.tanh(x * y + 1.0) - x, np.tanh(W * PAIR + 1) - W),
    "select": (
        lambda x, y: g.select(g.compare(x, y, direction="GT"), x, y), np.maximum(W, PAIR)),
    "select of numbers": (
        lambda x, y: g.select(g.compare(x, y, direction="GT"), g.like(x, 1.0), g.like(x, -2.0)),
        np.where(W > PAIR, 1.0, -2.0)),
    "and, or, not": (
        lambda x, y: g.select(
            g.and_(g.not_(g.compare(x, 0.0, direction="LT")),
                   g.or_(g.compare(y, 0.5, direction="GE"), g.compare(x, y, direction="NE"))),
            x, g.like(x, 0.0)),
        np.where((W >= 0) & ((PAIR >= 0.5) | (W != PAIR)), W, 0.0)),
    "a value read twice": (lambda x, y: (x + y) * (x + y), (W + PAIR) ** 2),
    "clamp": (lambda x, y: g.clamp(g.like(x, -0.5), x, g.like(x, 0.5)), W.clip(-0.5, 0.5)),
    "a row and a column": (
        lambda x, y: x * g.broadcast_in_dim(g.sum(y, (0, 1)), x.shape, (2,)),
        W * PAIR.astype(np.float64).sum((0, 1))),
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTS)
def test_element_wise_programs(name):
    build, wanted = ELEMENTS[name]
    close(build, wanted, X, PAIR)


INTEGERS = {
    "arithmetic": (lambda n: n * 3 - 2 + n, NUMBERS * 4 - 2),
    "compare and select": (
        lambda n: g.select(g.compare(n, 2, direction="LE"), n, g.like(n, 7)),
        np.where(NUMBERS <= 2, NUMBERS, 7)),
    "numbers chosen": (
        lambda n: g.select(g.compare(n, 2, direction="LE"), g.like(n, 2**30 + 1), g.like(n, -1)),
        np.where(NUMBERS <= 2, 2**30 + 1, -1)),
    "cumulative sum": (
        lambda n: g.cumulative(n, kind="add", dimension=1), NUMBERS.cumsum(1)),
    "sum": (lambda n: g.reduce(n, kind="add", dimensions=1), NUMBERS.sum(1)),
    "maximum": (lambda n: g.reduce(n, kind="maximum", dimensions=0), NUMBERS.max(0)),
    "bool output": (lambda n: g.compare(n, 0, direction="GT"), NUMBERS > 0),
    "any": (
        lambda n: g.reduce(g.compare(n, 8, direction="GT"), kind="or", dimensions=1),
        (NUMBERS > 8).any(1)),
    "all": (
        lambda n: g.reduce(g.compare(n, -9, direction="GE"), kind="and", dimensions=1),
        (NUMBERS >= -9).all(1)),
    "iota": (lambda n: n + g.iota(n.shape, 1, n.dtype), NUMBERS + np.arange(9)),
    "to float and back": (
        lambda n: g.cast(g.cast(n, "float32") * 0.5, "int32"), np.trunc(NUMBERS / 2)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_exact(name, kind):
    build, wanted = INTEGERS[name]
    equal(build, wanted, NUMBERS.astype(kind))


def test_bool_inputs():
    flags = whole(4, 6, low=0, high=1).astype(bool)
    others = whole(4, 6, low=0, high=1, seed=1).astype(bool)
    equal(lambda a, b: g.and_(a, g.not_(b)), flags & ~others, flags, others)
    equal(lambda a, b: g.xor(a, b), flags ^ others, flags, others)


PLACES = {
    "along the last axis": (lambda x, i: g.take(x, i, 2), lambda x, i: x[:, :, i]),
    "along the first axis": (lambda x, i: g.take(x, i, 0), lambda x, i: x[i]),
    "by pairs": (
        lambda x, i: g.gather(
            x, g.reshape(g.concatenate(i, i, dimension=0), (2, 3)), offset_dims=(1,),
            collapsed_slice_dims=(0, 2), start_index_map=(0, 2), index_vector_dim=0,
            slice_sizes=(1, 5, 1)),
        lambda x, i: x[i, :, i]),
    "a window": (
        lambda x, i: g.dynamic_slice(
            x, g.constant(0), g.reshape(g.slice(i, (0,), (1,), (1,)), ()), g.constant(2),
            sizes=(3, 3, 4)),
        lambda x, i: x[:, i[0] : i[0] + 3, 2:6]),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_lookups(name):
    build, wanted = PLACES[name]
    places = np.array([2, 0, 1], np.int32)
    equal(build, wanted(X, places), X, places)


def test_argmax_and_top_k():
    x = normal(6, 40)
    x[2, 7] = x[2, 30] = 9.0  # the first of equals
    equal(lambda x: g.argmax(x, 1), x.argmax(1), x)
    order = np.argsort(-x, 1, kind="stable")[:, :3]
    equal(lambda x: g.top_k(x, 3, "indices"), order, x)
    equal(lambda x: g.top_k(x, 3), np.take_along_axis(x, order, 1), x)


def test_nan_is_the_largest():
    """Of several the first, and before infinities, whatever the axis."""
    x = normal(5, 12)
    x[0, 4] = x[0, 9] = x[1, 11] = x[2, 0] = np.nan
    x[0, 1] = x[2, 3] = x[3, 7] = np.inf
    x[4] = -np.inf
    equal(lambda x: g.argmax(x, 1), np.array([4, 11, 0, 7, 0]), x)
    equal(lambda x: g.argmax(x, 0), np.argmax(x, 0), x)
    equal(lambda x: g.top_k(x, 2, "indices"), np.array([[4, 9]]), x[:1])
    equal(lambda x: g.top_k(x, 2, "indices"), np.array([[0, 3]]), x[2:3])


def convolved(x, w, stride, pad, dilation, groups):
    """Correlation by its definition, in float64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    reach = [(n - 1) * dilation + 1 for n in w.shape[2:]]
    rows, columns = ((n - r) // stride + 1 for n, r in zip(x.shape[2:], reach, strict=True))
    out = np.zeros((x.shape[0], w.shape[0], rows, columns))
    each_in, each_out = w.shape[1], w.shape[0] // groups
    for o in range(w.shape[0]):
        lead = o // each_out * each_in
        for c, a, b in np.ndindex(*w.shape[1:]):
            top, left = a * dilation, b * dilation
            part = x[:, lead + c, top : top + (rows - 1) * stride + 1 : stride]
            part = part[:, :, left : left + (columns - 1) * stride + 1 : stride]
            out[:, o] += part * w[o, c, a, b]
    return out


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "dilation", "groups"),
    [((6, 4, 4, 4), 4, 0, 1, 1), ((6, 4, 3, 3), 1, 1, 1, 1), ((6, 4, 3, 3), 2, 1, 2, 1),
     ((6, 2, 3, 3), 1, 0, 1, 2), ((4, 1, 3, 3), 1, 1, 1, 4), ((6, 4, 1, 1), 1, 0, 1, 1)],
)  # fmt: skip
def test_convolutions(kernel, stride, pad, dilation, groups):
    x, w, b = normal(2, 4, 8, 8), normal(*kernel, seed=1), normal(kernel[0], seed=2)

    def build(x, w, b):
        y = g.convolution(x, w, strides=(stride,) * 2, padding=((pad, pad),) * 2,
                          rhs_dilation=(dilation,) * 2, groups=groups)  # fmt: skip
        return y + g.broadcast_in_dim(b, y.shape, (1,))

    wanted = convolved(x, w, stride, pad, dilation, groups) + b[:, None, None]
    close(build, wanted, x, w, b, tolerance=1e-4)


def test_pooling():
    x = normal(2, 3, 8, 8)
    options = {"window": (1, 1, 2, 2), "strides": (1, 1, 2, 2)}
    blocks = x.reshape(2, 3, 4, 2, 4, 2)
    equal(lambda x: g.reduce_window(x, kind="maximum", **options), blocks.max((3, 5)), x)
    mean = blocks.astype(np.float64).mean((3, 5))
    close(lambda x: g.reduce_window(x, kind="add", **options) * 0.25, mean, x)


@pytest.mark.parametrize(
    "subscripts", ["abc,cd->abd", "abc,abd->acd", "abc,adc->abd", "abc,dbc->ad", "abc,dca->bd"]
)
def test_products_over_any_axes(subscripts):
    left, right = subscripts.split("->")[0].split(",")
    out = subscripts.split("->")[1]
    sizes = dict(zip("abcd", (3, 4, 5, 6), strict=True))
    x = normal(*(sizes[n] for n in left))
    y = normal(*(sizes[n] for n in right), seed=1)
    batch = [n for n in left if n in right and n in out]
    inner = [n for n in left if n in right and n not in out]

    def build(x, y):
        made = g.dot_general(
            x, y, lhs_contracting=[left.index(n) for n in inner],
            rhs_contracting=[right.index(n) for n in inner],
            lhs_batch=[left.index(n) for n in batch], rhs_batch=[right.index(n) for n in batch],
        )  # fmt: skip
        have = batch + [n for n in left if n not in right] + [n for n in right if n not in left]
        return g.transpose(made, [have.index(n) for n in out])

    close(build, np.einsum(subscripts, x.astype(np.float64), y.astype(np.float64)), x, y)


def test_attention_too_wide_for_the_kernel_is_spelled_out():
    q, k, v = (normal(1, 2, 5, 160, seed=n) for n in range(3))
    scores = np.einsum("bhtd,bhsd->bhts", q.astype(np.float64), k) / math.sqrt(160)
    scores = np.where(np.tri(5), scores, -np.inf)
    wanted = np.einsum("bhts,bhsd->bhtd", softmax(scores, -1), v)
    close(lambda q, k, v: g.attention(q, k, v, causal=True), wanted, q, k, v)


def test_padding_joining_and_cutting():
    def build(x, y):
        zero = g.full((), 2.0)
        joined = g.concatenate(x, y, dimension=1)
        grown = g.pad(joined, zero, low=(1, 0, 2), high=(0, 1, -3), interior=(0, 0, 0))
        return g.slice(grown, (0, 1, 0), grown.shape, (1, 2, 1))

    joined = np.pad(np.concatenate([X, PAIR], 1)[:, :, :4], ((1, 0), (0, 1), (2, 0)),
                    constant_values=2.0)  # fmt: skip
    equal(build, joined[:, 1::2], X, PAIR)


def test_scalars():
    x, y = normal(4, 5), np.array(0.75, np.float32)

    def build(x, y):
        total = g.sum(x, (0, 1))
        return total * y, g.broadcast(g.tanh(y), x.shape) + x

    (first, second), _ = on_chip(build, x, y)
    np.testing.assert_allclose(first, x.astype(np.float64).sum() * 0.75, 1e-5)
    np.testing.assert_allclose(second, np.tanh(0.75) + x.astype(np.float64), 1e-5, 1e-5)


def test_a_dilated_image_has_zeros_between_its_elements():
    x, w = normal(1, 2, 4, 4), normal(3, 2, 2, 2)
    found, _ = on_chip(lambda x, w: g.convolution(
        x, w, strides=(1, 1), padding=((0, 0),) * 2, lhs_dilation=(2, 2)), x, w)  # fmt: skip
    spread = np.zeros((2, 7, 7))
    spread[:, ::2, ::2] = x[0]
    wanted = np.zeros((3, 6, 6))
    for i, j in np.ndindex(2, 2):
        wanted += np.einsum("oc,chw->ohw", w[:, :, i, j], spread[:, i : i + 6, j : j + 6])
    np.testing.assert_allclose(found[0][0], wanted, 1e-5, 1e-5)


def test_an_op_without_a_kernel_is_refused_with_its_reason():
    with pytest.raises(UnsupportedError, match="sort: rows of 5000 are longer"):
        on_chip(lambda x: g.sort(x, dimension=0), normal(5000))
