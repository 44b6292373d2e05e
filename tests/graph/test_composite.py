"""A composite is the same program whole and taken apart: numbers, types and work."""

import numpy as np
import pytest

from opentrn.graph import OPS, Graph, decompose, evaluate, g, random_array


def shapes(kind):
    x = g.input("x", (4, 6, 10), kind)
    w, b = g.input("w", (10,), kind), g.input("b", (10,), kind)
    both = g.input("wb", (6, 10), kind)
    q = g.input("q", (2, 4, 5, 8), kind)
    k, v = g.input("k", (2, 2, 6, 8), kind), g.input("v", (2, 2, 6, 3), kind)
    seen, added = g.input("seen", (2, 1, 5, 6), "bool"), g.input("added", (1, 4, 5, 6), kind)
    pair = (g.input("out", (2, 4, 5, 3), kind), g.input("grad", (2, 4, 5, 3), kind))
    parts = ("query", "key", "value")
    return [
        g.gelu(x), g.gelu(x, approximate=True), g.silu(x), g.softplus(x),
        g.softmax(x), g.softmax(x, 0), g.log_softmax(x, 1),
        g.layer_norm(x), g.layer_norm(x, w), g.layer_norm(x, w, b),
        g.layer_norm(x, both, axis=1, epsilon=1e-3), g.rms_norm(x), g.rms_norm(x, w),
        g.attention(q, k, v), g.attention(q, k, v, seen), g.attention(q, k, v, added, scale=0.3),
        g.attention(q, k, v, causal=True),
        *(g.attention_gradient(q, k, v, *pair, part=part) for part in parts),
        *(g.attention_gradient(q, k, v, *pair, seen, part=part) for part in parts),
        *(g.attention_gradient(q, k, v, *pair, added, part=part, scale=0.3) for part in parts),
        *(g.attention_gradient(q, k, v, *pair, part=part, causal=True) for part in parts),
    ]


WIDTHS = {"float32": 2e-6, "float64": 1e-13, "bfloat16": 2**-8, "float16": 2**-11}
CASES = [(kind, i) for kind in WIDTHS for i in range(len(shapes(kind)))]


@pytest.mark.parametrize(("kind", "index"), CASES)
def test_taken_apart_it_computes_the_same(kind, index):
    whole = shapes(kind)[index]
    graph = Graph(whole.args, [whole])
    apart = decompose(graph)
    assert apart.outputs[0].type == whole.type
    assert not any(v.attrs.composite for v in apart)
    random = np.random.default_rng(index)
    arrays = [random_array(v, random) for v in graph.inputs]
    a, b = (evaluate(x, arrays)[0].astype(np.float64) for x in (graph, apart))
    np.testing.assert_allclose(a, b, rtol=WIDTHS[kind], atol=WIDTHS[kind])


@pytest.mark.parametrize("index", range(len(shapes("float32"))))
def test_it_states_the_work_of_its_parts(index):
    whole = shapes("float32")[index]
    parts = decompose(Graph(whole.args, [whole]))
    if "attention" not in whole.op:
        assert whole.flops == parts.flops
    elif not whole.attrs.causal:  # a causal kernel skips what the spelled-out form computes
        assert whole.flops == pytest.approx(parts.flops, rel=0.06)
    assert whole.bytes < parts.bytes


def test_causal_attention_counts_only_pairs_that_see_each_other():
    q, k = g.input("q", (1, 1, 3, 2)), g.input("k", (1, 1, 2, 2))
    full, causal = g.attention(q, k, k), g.attention(q, k, k, causal=True)
    assert full.attrs.pairs(q.type, k.type) == 6
    assert causal.attrs.pairs(q.type, k.type) == 1 + 2 + 2


def test_every_composite_is_tried():
    tried = {v.op for v in shapes("float32")}
    ours = {n: op for n, op in OPS.items() if op.__module__.startswith("opentrn.graph")}
    assert {n for n, op in ours.items() if op.composite} == tried


def test_some_can_be_kept():
    x = g.input("x", (3, 4))
    graph = Graph([x], [g.softmax(g.gelu(x))])
    assert "softmax" in decompose(graph, keep=("softmax",)).histogram()


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("shape", [(3, 0), (0, 4)])
def test_norms_of_nothing_are_empty(kind, shape):
    """Lines without elements, and no lines: a result of the same shape, and no mean of nothing."""
    x = g.input("x", shape, "float32")
    graph = Graph([x], [getattr(g, kind)(x, axis=1, epsilon=1e-5)])
    (found,) = evaluate(graph, [np.zeros(shape, np.float32)])
    assert found.shape == shape
    assert found.dtype == np.float32
