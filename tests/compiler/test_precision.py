"""What is stored narrow, and what is not."""

import ml_dtypes
import numpy as np
import pytest

from opentrn import compiler, runtime
from opentrn.base import UsageError, bfloat16, dtype, float16
from opentrn.compiler.precision import angles, precision
from opentrn.graph import Graph, evaluate, g
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


def product(kind, level="matmult", **options):
    """A product on the chip and its float64 value from operands rounded to `kind`."""
    x, w = g.input("x", (96, 200)), g.input("w", (200, 64))
    make = np.random.default_rng(3).standard_normal
    given = [make((96, 200)).astype(np.float32), make((200, 64)).astype(np.float32)]
    executable = compiler.compile(Graph([x, w], [g.matmul(x, w)]), dtype=kind, auto_cast=level,
                                  **options)  # fmt: skip
    return np.asarray(runtime.load(executable)(*given), np.float64), given


@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp8_e4m3", "tf32"])
def test_matmult_rounds_operands_of_products_only(kind, numerics):
    found, given = product(kind, numerics=numerics)
    if kind == "tf32":  # 10 bits of fraction, to nearest even
        bits = [a.view(np.uint32).astype(np.uint64) for a in given]
        kept = [(b + 0xFFF + (b >> 13 & 1) >> 13 << 13).astype(np.uint32) for b in bits]
        x, w = (k.view(np.float32).astype(np.float64) for k in kept)
    else:
        types = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp8_e4m3": ml_dtypes.float8_e4m3}
        x, w = (a.astype(types[kind]).astype(np.float64) for a in given)
    # Sums are float32: nothing is rounded to `kind` on the way out.
    np.testing.assert_allclose(found, x @ w, rtol=0, atol=2e-4 if kind == "tf32" else 5e-5)


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp8_e4m3", "tf32"])
def test_matmult_with_a_turned_matrix_a_bias_and_heads(kind):
    x, w, b = g.input("x", (2, 3, 8, 16)), g.input("w", (24, 16)), g.input("b", (24,))
    y = g.dot_general(x, w, lhs_contracting=3, rhs_contracting=1)
    y = g.gelu(y + g.broadcast_in_dim(b, shape=y.shape, dimensions=(3,)))
    scores = g.matmul(y, g.transpose(y, (0, 1, 3, 2)))
    graph = Graph([x, w, b], [scores])
    make = np.random.default_rng(4).standard_normal
    given = [make(v.shape).astype(np.float32) for v in graph.inputs]
    (wide,) = evaluate(graph, given)
    found = on_chip_with(graph, given, kind)
    room = {"bf16": 2.0**-6, "fp16": 2.0**-9, "fp8_e4m3": 2.0**-2, "tf32": 2.0**-9}[kind]
    assert np.abs(found - wide).max() <= room * np.abs(wide).max()
    assert np.abs(found - wide).max() > 0


def on_chip_with(graph, given, kind):
    executable = compiler.compile(graph, dtype=kind, auto_cast="matmult")
    return np.asarray(runtime.load(executable)(*given))


def test_levels_of_automatic_casts():
    exact, given = product("bf16", "none")
    np.testing.assert_allclose(exact, given[0].astype(float) @ given[1], atol=2e-5)
    stored, given = product("bf16", "all")
    x, w = (a.astype(ml_dtypes.bfloat16).astype(np.float64) for a in given)
    np.testing.assert_allclose(stored, x @ w, rtol=2.0**-8, atol=2e-5)
    for kind, level in (("fp8_e4m3", "all"), ("bf16", "most")):
        with pytest.raises(UsageError) as refused:
            product(kind, level)
        assert refused.value.code == "compiler.auto_cast"
