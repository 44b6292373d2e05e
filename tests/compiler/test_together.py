"""Element-wise calls joined into one: the numbers of separate calls, every tensor moved once."""

from math import prod

import numpy as np
import pytest

from opentrn import compiler
from opentrn.compiler import pieces, together
from opentrn.graph import Graph, g
from tests.compiler.running import run

SHAPE = (512, 300)


def adam(shape=SHAPE):
    """AdamW's step of a bfloat16 weight with float32 moments: (graph, its arrays)."""
    w, grad = (g.input(n, shape, "bfloat16") for n in ("w", "grad"))
    m, v = (g.input(n, shape) for n in "mv")
    wide = g.cast(grad, "float32")
    first = m * 0.9 + wide * 0.1
    second = v * 0.999 + wide * wide * 0.001
    step = first / (g.sqrt(second) + 1e-8)
    new = g.cast(g.cast(w, "float32") * 0.999 - step * 0.01, "bfloat16")
    return Graph([w, grad, m, v], [new, first, second])


def arrays(graph, seed=0):
    random = np.random.default_rng(seed)
    made = [random.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    made[-1] = np.abs(made[-1])
    return made


def calls(executable) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, _, count in executable.meta["kernels"]:
        found[name] = found.get(name, 0) + count
    return found


def as_floats(found):
    return [np.asarray(x, np.float32) for x in found]


def test_a_step_of_adam_is_one_call_with_the_numbers_of_three(monkeypatch):
    graph = adam()
    one = compiler.compile(graph)
    assert calls(one) == {"elementwise_together": 1}
    monkeypatch.setattr(together, "LEAST_ELEMENTS", prod(SHAPE) + 1)
    three = compiler.compile(graph)
    assert calls(three) == {"elementwise": 4}  # the gradient in float32 is one
    given = arrays(graph)
    joined, apart = as_floats(run(one, given)), as_floats(run(three, given))
    for a, b in zip(joined, apart, strict=True):
        np.testing.assert_array_equal(a, b)
    # By hand, in float64, from the bfloat16 numbers of weight and gradient.
    held = [np.asarray(x, np.float64) for x in
            (one.program.inputs[n].dtype.storage.type(given[n]) for n in range(4))]  # fmt: skip
    w, grad, m, v = held
    first, second = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad * grad
    new = 0.999 * w - 0.01 * first / (np.sqrt(second) + 1e-8)
    np.testing.assert_allclose(joined[1], first, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(joined[2], second, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(joined[0], new, rtol=2.0**-8, atol=1e-5)


def test_every_tensor_makes_one_trip():
    program = compiler.compile(adam()).program
    moved = sum(
        prod(n for _, n in view.steps) * view.dtype.itemsize
        for one in program.instructions()
        if one.opcode == "dma_copy"
        for view in one.views()
        if view.buffer.space == "hbm"
    )
    assert moved == prod(SHAPE) * (2 + 2 + 4 + 4 + 2 + 4 + 4)


def test_pieces_of_it_are_the_whole(monkeypatch):
    graph = adam()
    whole = as_floats(run(compiler.compile(graph), arrays(graph)))
    monkeypatch.setattr(pieces, "ELEMENTS", prod(SHAPE) // 3)
    cut = compiler.compile(graph)
    assert calls(cut) == {"elementwise_together": 4}
    for a, b in zip(as_floats(run(cut, arrays(graph))), whole, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_result_that_is_read_in_between_is_not_held_back():
    """The product reads the first result, and the second needs the product."""
    x, w = g.input("x", (512, 512)), g.input("w", (512, 512))
    first = x * 2.0 + w
    second = g.matmul(g.transpose(first, (1, 0)), w) + x
    executable = compiler.compile(Graph([x, w], [first, second]))
    assert "elementwise_together" not in calls(executable)
    given = arrays(Graph([x, w], [first]))
    made = given[0].astype(np.float64) * 2 + given[1]
    found = run(executable, given)
    np.testing.assert_allclose(found[0], made, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[1], made.T @ given[1] + given[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["bool", "int32", "bfloat16"])
def test_results_of_every_kind_are_read_as_they_are_stored(kind):
    x = g.input("x", SHAPE)
    first = g.compare(x, 0.5, direction="GT") if kind == "bool" else g.cast(x * 3.0, kind)
    outputs = [first, g.cast(first, "float32") * 0.5 + x]
    executable = compiler.compile(Graph([x], outputs))
    assert calls(executable) == {"elementwise_together": 1}
    (given,) = arrays(Graph([x], [x]))[:1]
    found = run(executable, [given])
    stored = np.asarray(found[0]).astype(np.float32).reshape(SHAPE)
    wanted = (given > 0.5) if kind == "bool" else (given * np.float32(3)).astype(
        executable.program.outputs[0].dtype.storage)  # fmt: skip
    np.testing.assert_array_equal(stored, np.asarray(wanted).astype(np.float32))
    np.testing.assert_array_equal(found[1].reshape(SHAPE), stored * np.float32(0.5) + given)
