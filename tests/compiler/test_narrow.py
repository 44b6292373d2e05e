"""8- and 16-bit integers wrap around on the chip as they do in NumPy, at their limits too."""

import numpy as np
import pytest

import opentrn
from opentrn.graph import Graph, g

OPS = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "negate": np.negative,
    "abs": np.abs,
}  # fmt: skip


def numbers(kind: str) -> np.ndarray:
    """Every pair of limits, numbers beside them, and some others: [2, n]."""
    info = np.iinfo(kind)
    edges = [info.min, info.min + 1, info.max // 2, info.max - 1, info.max, 0, 1, 7]
    return np.array(np.meshgrid(edges, edges), kind).reshape(2, -1)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("name", OPS)
def test_arithmetic_wraps_around(kind, name):
    x, y = numbers(kind)
    given = [g.input(n, x.shape, kind) for n in "xy"]
    count = 1 if name in ("negate", "abs") else 2
    made = Graph(given, [getattr(g, name)(*given[:count])])
    with np.errstate(all="ignore"):
        right = OPS[name](*(x, y)[:count])
    assert np.array_equal(opentrn.load(opentrn.compile(made))(x, y), right)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
def test_sums_and_running_products_wrap_around(kind):
    x = np.random.default_rng(0).integers(1, np.iinfo(kind).max, (5, 300)).astype(kind)
    given = g.input("x", x.shape, kind)
    outputs = [
        g.reduce(given, kind="add", dimensions=(1,)),
        g.cumulative(given, kind="multiply", dimension=0),
    ]
    total, running = opentrn.load(opentrn.compile(Graph([given], outputs)))(x)
    assert np.array_equal(total, x.sum(1, dtype=kind))
    assert np.array_equal(running, np.cumprod(x, 0, dtype=kind))
