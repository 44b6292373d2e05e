"""Random graphs of odd shapes, compiled, beside the same graphs on float64."""

import random
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn import compiler, runtime
from opentrn.graph import Graph, evaluate, g
from opentrn.isa.text import program_text

SIZES = (1, 2, 3, 5, 7, 16, 31, 64, 127, 128, 129)
MOST = 60_000  # elements of a value
UNARY = (
    g.tanh, g.abs, g.negate, g.logistic, g.gelu, g.silu, g.sine, g.erf, g.softplus,
    lambda x: g.exponential(x * 0.3), lambda x: g.sqrt(g.abs(x)), lambda x: x * 2.5 - 1.0,
    lambda x: g.log(g.abs(x) + 1.0), lambda x: g.rsqrt(g.abs(x) + 0.5),
)  # fmt: skip
BINARY = (
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, g.maximum, g.minimum,
    lambda a, b: a / (g.abs(b) + 0.5),
)  # fmt: skip


def binary(draw, x, values):
    y = draw.choice(values)
    try:
        shape = np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return x
    return draw.choice(BINARY)(g.broadcast(x, shape), g.broadcast(y, shape))


def reduced(draw, x, values):
    """A reduction over any axes, by itself or taken from its operand."""
    axes = tuple(sorted(draw.sample(range(x.rank), draw.randint(min(1, x.rank), x.rank))))
    kind = draw.choice(("add", "maximum", "minimum"))
    if kind != "add" and not x.size:
        return x
    total = g.reduce(x, kind=kind, dimensions=axes)
    if draw.random() < 0.5:
        return total * 0.1
    kept = tuple(1 if n in axes else size for n, size in enumerate(x.shape))
    return x - g.broadcast(g.reshape(total, kept), x.shape) * 0.1


def moved(draw, x, values):
    """Another order, another shape, a part, or several of it."""
    order = list(range(x.rank))
    draw.shuffle(order)
    rows = draw.choice([n for n in range(1, x.size + 1) if x.size % n == 0] or [1])
    ways = [lambda: g.transpose(x, tuple(order))]
    if x.size:
        starts = [draw.randrange(n) for n in x.shape]
        limits = [draw.randint(a + 1, n) for a, n in zip(starts, x.shape, strict=True)]
        strides = [draw.choice((1, 1, 2, 3)) for _ in x.shape]
        ways += [lambda: g.reshape(x, (rows, x.size // rows)),
                 lambda: g.slice(x, starts=starts, limits=limits, strides=strides)]  # fmt: skip
    if x.rank:
        axis = draw.randrange(x.rank)
        ways += [lambda: g.concatenate(x, g.negate(x), x, dimension=axis),
                 lambda: g.reverse(x, dimensions=(axis,))]  # fmt: skip
    return draw.choice(ways)()


def product(draw, x, values):
    if x.rank < 2:
        return x
    order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    return g.matmul(x, g.transpose(x, tuple(order))) * (1 / max(1, x.shape[-1]))


def rows(draw, x, values):
    """Softmax over any axis, or a root mean square norm."""
    if not x.rank:
        return x
    return draw.choice((lambda: g.softmax(x, axis=draw.randrange(x.rank)), lambda: g.rms_norm(x)))()


def unary(draw, x, values):
    return draw.choice(UNARY)(x)


WAYS = (unary, binary, binary, reduced, moved, product, rows)


def graph(seed: int, kind: str) -> Graph:
    """The same graph for each kind."""
    draw = random.Random(seed)
    shape = [draw.choice(SIZES if n < 2 else SIZES[:6]) for n in range(draw.randint(1, 4))]
    while prod(shape) > MOST // 4:
        shape[shape.index(max(shape))] = draw.choice(SIZES[:5])
    if draw.random() < 0.08:
        shape[draw.randrange(len(shape))] = 0
    few = [1 if draw.random() < 0.4 else n for n in shape]
    inputs = [g.input("a", tuple(shape), kind), g.input("b", tuple(few), kind)]
    values = list(inputs)
    for _ in range(draw.randint(2, 8)):
        made = draw.choice(WAYS)(draw, draw.choice(values), values)
        if made.size <= MOST:
            values.append(made)
    return Graph(inputs, values[-draw.choice((1, 2)) :])


def numbers(made: Graph, seed: int):
    source = np.random.default_rng(seed)
    return [source.standard_normal(v.shape).astype(np.float32) for v in made.inputs]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_random_graphs_mean_what_they_mean_on_float64(seed):
    made = graph(seed, "float32")
    arrays = numbers(made, seed)
    wanted = evaluate(graph(seed, "float64"), [a.astype(np.float64) for a in arrays])
    narrow = evaluate(made, arrays)
    for mode in ("exact", "fast"):
        found = runtime.load(compiler.compile(made, numerics=mode))(*arrays)
        found = found if isinstance(found, list | tuple) else [found]
        for ours, want, own in zip(found, wanted, narrow, strict=True):
            assert ours.shape == want.shape
            # What rounding to float32 costs this graph by itself, and the engines' functions.
            room = 2e-4 * np.abs(want).max(initial=0) + 20 * np.abs(own - want).max(initial=0)
            np.testing.assert_allclose(ours, want, rtol=0, atol=room + 1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_a_graph_compiled_twice_is_the_same_program(seed):
    made = graph(seed, "float32")
    first, second = compiler.compile(made), compiler.compile(made)
    assert program_text(first.program) == program_text(second.program)
    assert first.content_hash == second.content_hash
