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


# What NumPy computes of integers of a dtype, for each op of single elements it has too.
IN_NUMPY = {
    "not_": np.invert, "and_": np.bitwise_and, "or_": np.bitwise_or, "xor": np.bitwise_xor,
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "negate": np.negative,
    "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_every_op_on_integers_has_every_bit(kind):
    """Random numbers of the whole range, and the ends of it."""
    info, rng = np.iinfo(kind), np.random.default_rng(0)
    given = [rng.integers(info.min, info.max, (4, 32), kind, endpoint=True) for _ in range(2)]
    ends = np.array([info.min, info.max, 0, 1, info.min + 1, info.max - 1], kind)
    for x, moved in zip(given, (ends, np.roll(ends, 1)), strict=True):
        x[0, :6] = moved
    x, y = (g.input(name, (4, 32), kind) for name in "xy")
    both = [name for name in IN_NUMPY if IN_NUMPY[name].nin == 2]
    made = [getattr(g, n)(x, y) if n in both else getattr(g, n)(x) for n in IN_NUMPY]
    found = opentrn.load(opentrn.compile(Graph([x, y], made)))(*given)
    for name, array in zip(IN_NUMPY, found, strict=True):
        wanted = IN_NUMPY[name](*given if name in both else given[:1])
        np.testing.assert_array_equal(array, wanted.astype(kind), name)
