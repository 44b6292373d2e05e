"""What is stored narrow, and what is not."""

import numpy as np
import pytest

from opentrn import compiler
from opentrn.base import UsageError, bfloat16, dtype, float16
from opentrn.compiler.precision import angles, precision
from opentrn.graph import Graph, g
from tests.compiler.running import graph_of, on_chip

X = g.input("x", (4, 6))


def test_floats_narrow_and_interfaces_stay():
    made = precision(graph_of(g.tanh(X) * 2.0), bfloat16)
    assert [v.dtype for v in (*made.inputs, *made.outputs)] == ["float32", "float32"]
    assert {v.dtype for v in made if v.op in ("tanh", "multiply", "constant")} == {"bfloat16"}


def test_integers_stay():
    n = g.input("n", (4, 6), "int32")
    made = precision(graph_of(g.select(g.compare(n, 2, direction="GT"), n, n + 1)), bfloat16)
    assert {v.dtype for v in made} <= {"int32", "bool"}


def test_a_finite_constant_stays_finite_and_an_infinite_one_does_not():
    for kind, lowest in ((bfloat16, -3.3895313892515355e38), (float16, -65504.0)):
        masks = np.array([[np.finfo(np.float32).min, -np.inf, 1.0, 0, 0, 0]] * 4, np.float32)
        made = precision(graph_of(X + g.constant(masks)), kind)
        array = next(v for v in made if v.op == "constant").attrs.data.array
        np.testing.assert_array_equal(array[0, :3].astype(np.float64), [lowest, -np.inf, 1.0])


def test_angles_stay_wide():
    positions = g.input("p", (5, 1))
    rates = g.constant(np.array([[1.0, 0.1, 0.01]], np.float32))
    angle = g.matmul(positions, rates)
    graph = graph_of(g.cosine(angle) * g.input("y", (5, 3)))
    assert {v.op for v in angles(graph)} == {"cosine", "dot_general"}
    made = precision(graph, bfloat16)
    wide = {v.op for v in made if v.dtype == "float32"} - {"input", "constant", "convert"}
    assert wide == {"cosine", "dot_general"}
    assert made.outputs[0].args[0].dtype == bfloat16


def test_a_large_angle_is_right_in_bfloat16():
    positions = np.array([[1001.0], [2003.0], [4095.0]], np.float32)

    def build(p):
        return g.sine(g.matmul(p, g.constant(np.array([[1.0, 0.37]], np.float32))))

    (found,), _ = on_chip(build, positions, dtype="bfloat16")
    wanted = np.sin(positions.astype(np.float64) * [1.0, np.float32(0.37)])
    np.testing.assert_allclose(found, wanted, atol=2e-2)


def test_a_layer_that_sums_ends_what_stays_wide():
    graph = graph_of(g.sine(g.matmul(g.tanh(X), g.input("y", (6, 6)))))
    assert {v.op for v in angles(graph)} == {"sine"}


def test_other_precisions_are_refused():
    with pytest.raises(UsageError, match="no precision int8"):
        compiler.compile(graph_of(X + 1.0), dtype="int8")
    assert precision(graph_of(X + 1.0), dtype("float32")).outputs == Graph([X], [X + 1.0]).outputs
