"""Sizes that divide by nothing, and sizes that fit no memory of the chip: right, and no cliffs."""

import numpy as np
import pytest

from opentrn import compiler, runtime
from opentrn.graph import Graph, evaluate, g
from tests.compiler.running import normal, run

ODD = (1, 2, 127, 129, 257, 511, 513)


def matmul(kind, n):
    x, w = g.input("x", (n, 131), kind), g.input("w", (131, n), kind)
    return [x, w], g.matmul(x, w)


def deep(kind, n):
    x, w = g.input("x", (37, n), kind), g.input("w", (n, 41), kind)
    return [x, w], g.matmul(x, w)


def softmax(kind, n):
    x = g.input("x", (n, 97), kind)
    return [x], g.softmax(x, axis=-1)


def softmax_of_columns(kind, n):
    x = g.input("x", (n, 13), kind)
    return [x], g.softmax(x, axis=0)


def norm(kind, n):
    x, s, t = g.input("x", (67, n), kind), g.input("s", (n,), kind), g.input("t", (n,), kind)
    return [x, s, t], g.layer_norm(x, s, t)


def attention(kind, n):
    q, k, v = (g.input(c, (1, 2, m, 31), kind) for c, m in (("q", 129), ("k", n), ("v", n)))
    return [q, k, v], g.attention(q, k, v, scale=0.2)


def convolution(kind, n):
    x, w = g.input("x", (1, 3, 5, n), kind), g.input("w", (7, 3, 3, 1), kind)
    return [x, w], g.convolution(x, w, strides=(1, 1), padding=((1, 1), (0, 0)))


def total(kind, n):
    x = g.input("x", (3, n, 11), kind)
    return [x], g.reduce(x, kind="add", dimensions=(1,))


FAMILIES = (matmul, deep, softmax, softmax_of_columns, norm, attention, convolution, total)


def doubles(make, n):
    """The graph on float64, which says what is meant."""
    inputs, made = make("float64", n)
    return Graph(inputs, [made])


# The norm of one number divides by its variance, 0, and is left out.
@pytest.mark.parametrize(
    ("make", "n"), [(make, n) for make in FAMILIES for n in ODD if (make, n) != (norm, 1)]
)
def test_odd_sizes(make, n):
    inputs, made = make("float32", n)
    graph, meant = Graph(inputs, [made]), doubles(make, n)
    given = [normal(*v.shape, seed=k) for k, v in enumerate(inputs)]
    (wanted,) = evaluate(meant, [x.astype(np.float64) for x in given])
    for mode in ("exact", "fast"):
        executable = compiler.compile(graph, numerics=mode)
        found = np.asarray(runtime.load(executable)(*given), np.float64)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("make", FAMILIES)
def test_every_chip_computes_the_families_in_half_precision(make, chip):
    inputs, made = make("bfloat16", 129)
    graph, meant = Graph(inputs, [made]), doubles(make, 129)
    given = [normal(*v.shape, seed=k).astype(v.dtype.storage) for k, v in enumerate(inputs)]
    (wanted,) = evaluate(meant, [x.astype(np.float64) for x in given])
    (found,) = run(compiler.compile(graph, target=chip), given)
    found = np.asarray(found).astype(np.float64).reshape(wanted.shape)
    # A few roundings to 8 bits on the way, of numbers up to the largest.
    np.testing.assert_allclose(found, wanted, rtol=2.0**-5, atol=2.0**-7 * np.abs(wanted).max())


def pair(rows, width=1024):
    """Two products of which the first result fits SBUF (24 MiB) or does not."""
    x = g.input("x", (rows, width), "bfloat16")
    u, d = (g.input(c, (width, width), "bfloat16") for c in "ud")
    return Graph([x, u, d], [g.matmul(g.gelu(g.matmul(x, u)), d)])


def test_what_does_not_fit_on_the_chip_goes_through_memory_and_time_grows_in_step():
    """From 512 KiB to 64 MiB between producer and consumer."""
    sizes = [256 * 2**n for n in range(8)]
    times = [compiler.outline(pair(n)).nanoseconds for n in sizes]
    for less, more, size in zip(times, times[1:], sizes[1:], strict=False):
        # Weights are loaded once whatever the rows: never less time, never more than in proportion.
        assert 1.0 <= more / less <= 2.05, size
    assert times[-1] / times[-2] > 1.9  # by then all of it is work on rows


def test_sizes_next_to_each_other_take_like_times():
    """One row more costs at most one tile of rows."""
    for rows in (512, 2048, 4096):
        even, odd = (compiler.outline(pair(n)).nanoseconds for n in (rows, rows + 1))
        tile = compiler.outline(pair(rows + 128)).nanoseconds
        assert 0.99 * even <= odd <= 1.02 * tile


def test_memory_of_the_device_is_where_growing_ends():
    x = g.input("x", (1 << 20, 4096), "float32")  # 16 GiB, and as much for every result
    w = g.input("w", (4096, 4096), "float32")
    outlined = compiler.outline(Graph([x, w], [g.matmul(x, w)]))
    assert outlined.hbm_bytes["inputs"] == (1 << 20) * 4096 * 4 + 4096 * 4096 * 4
    assert outlined.hbm_bytes["outputs"] == (1 << 20) * 4096 * 4
