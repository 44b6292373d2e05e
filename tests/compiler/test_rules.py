"""Every rule of the compiler proves itself; fused ops mean what they are made of."""

import numpy as np
import pytest

from opentrn.compiler.clean import RULES
from opentrn.compiler.fuse import LAST, LINEAR
from opentrn.compiler.masks import MASKS
from opentrn.compiler.pipeline import SPELLING
from opentrn.graph import Builder, Graph, Rule, evaluate, g, no, prove, random_array
from tests.compiler.running import graph_of, normal

ALL = [r for r in (*RULES, *SPELLING, *MASKS, *LINEAR, *LAST)
       if r.__module__.startswith("opentrn.compiler")]  # fmt: skip


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.__name__)
def test_a_rule_proves_itself(rule):
    prove(rule)


def test_no_rule_of_the_room_is_forgotten():
    def below(kind):
        for one in kind.__subclasses__():
            yield one
            yield from below(one)

    made = {r for r in below(Rule) if r.__module__.startswith("opentrn.compiler")}
    assert made == set(ALL)
    assert len({r.__name__ for r in ALL}) == len(ALL)


def test_a_guard_gives_its_reason():
    for rule in ALL:
        for value in _refused(rule):
            found = rule.attempt(value)
            assert isinstance(found, no)
            assert len(found.why) > 10


def _refused(rule):
    made = rule.refuse(Builder()) if hasattr(rule, "refuse") else ()
    return made if isinstance(made, tuple) else (made,)


def linear(kind="float32", **options):
    parts = [g.input("a", (2, 3, 4), kind), g.input("b", (4, 5), kind)]
    if options.get("bias"):
        parts.append(g.input("c", (5,), kind))
    if options.get("residual"):
        parts.append(g.input("d", (2, 3, 5), kind))
    return g.linear(*parts, **options)


LINEARS = [
    linear(), linear(bias=True), linear(bias=True, residual=True, activation="gelu"),
    linear(residual=True, activation="silu"), linear(activation="gelu_tanh"),
    linear(bias=True, activation="tanh"), linear(activation="sigmoid", kind="float32"),
]  # fmt: skip


@pytest.mark.parametrize("value", LINEARS, ids=str)
def test_a_linear_means_what_it_is_made_of(value):
    same_numbers(value)


def test_a_linear_by_its_formula():
    value = linear(bias=True, residual=True, activation="tanh")
    x, w, b, r = normal(2, 3, 4), normal(4, 5, seed=1), normal(5, seed=2), normal(2, 3, 5, seed=3)
    wanted = np.tanh(x.astype(np.float64) @ w + b) + r
    found = evaluate(graph_of(value), [x, w, b, r])[0]
    np.testing.assert_allclose(found, wanted, 1e-6, 1e-6)


def test_a_linear_in_another_dtype_is_rounded_once():
    value = g.linear(
        g.input("a", (2, 300), "bfloat16"), g.input("b", (300, 4), "bfloat16"), kind="float32"
    )
    assert value.dtype == "float32"
    ones = np.ones((2, 300)).astype(value.args[0].dtype.storage)
    found = evaluate(graph_of(value), [ones, np.ones((300, 4)).astype(ones.dtype)])[0]
    np.testing.assert_array_equal(found, 300.0)  # a bfloat16 would be 300 ± 1
    same_numbers(value)


NORMED = {
    "a bare product": {},
    "weight and bias of the norm": {"norms": 2},
    "all": {"bias": True, "residual": True, "activation": "tanh", "norms": 2, "epsilon": 1e-3},
    "weight alone": {"residual": True, "norms": 1},
}


def normed(kind: str, **options):
    parts = [g.input("a", (2, 3, 4), kind), g.input("b", (4, 5), kind)]
    if options.get("bias"):
        parts.append(g.input("c", (5,), kind))
    if options.get("residual"):
        parts.append(g.input("d", (2, 3, 5), kind))
    parts += [g.input(f"n{n}", (5,), kind) for n in range(options.get("norms", 0))]
    return g.linear_norm(*parts, **options)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NORMED)
def test_a_normed_linear_means_what_it_is_made_of(name, kind):
    same_numbers(normed(kind, **NORMED[name]), 1e-5 if kind == "float32" else 2.0**-7)


def same_numbers(value, tolerance: float = 1e-5) -> None:
    """A composite's evaluate and its decomposition agree on random inputs."""
    graph = graph_of(value)
    spelled = Graph(graph.inputs, [value.attrs.decompose(Builder(), *value.args)])
    random = np.random.default_rng(0)
    arrays = [random_array(v, random) for v in graph.inputs]
    a, b = evaluate(graph, arrays)[0], evaluate(spelled, arrays)[0]
    assert a.dtype == b.dtype
    np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), tolerance, tolerance)
