"""Which element-wise ops are computed together, and that they mean the same."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.compiler.chains import MOST_INPUTS, MOST_STEPS, chains
from opentrn.graph import Graph, decompose, evaluate, g, random_array
from tests.compiler.running import graph_of, on_chip

X, Y = g.input("x", (4, 5)), g.input("y", (4, 5))


def ops(*outputs) -> dict[str, int]:
    return {k: n for k, n in chains(graph_of(*outputs)).histogram().items() if k != "input"}


def test_a_line_of_ops_is_one_chain():
    assert ops(g.tanh(g.exponential(X * Y) + 1.0)) == {"chain": 1}


def test_a_value_read_twice_inside_stays_inside():
    total = X + Y
    assert ops(total * g.tanh(total)) == {"chain": 1}


def test_a_value_read_outside_or_given_out_ends_a_chain():
    total = X + Y
    assert ops(g.tanh(total), g.sum(total, 0)) == {"chain": 2, "reduce": 1}
    assert ops(g.tanh(total), total) == {"chain": 2}


def test_two_readers_apart_do_not_share_a_chain():
    total = X + Y
    assert ops(g.tanh(total), g.exponential(total)) == {"chain": 3}


def test_a_path_out_and_back_does_not_close_a_circle():
    # total is read by the sum and by the last product, which needs the sum.
    total = X + Y
    last = total * g.broadcast_in_dim(g.sum(total, 1), (4, 5), (0,))
    assert ops(last)["chain"] == 2


def test_chains_are_bounded_and_say_so():
    notes = []
    value = X
    for _ in range(MOST_STEPS + 3):
        value = g.tanh(value)
    many = g.input("i0", (4, 5))
    for n in range(1, MOST_INPUTS + 2):
        many = many + g.input(f"i{n}", (4, 5))
    made = chains(graph_of(value, many), notes)
    assert made.histogram()["chain"] == 4
    reasons = {note.why for note in notes if note.outcome == "refused"}
    assert f"its reader's chain has {MOST_STEPS} steps already" in reasons
    assert f"the chain would read more than {MOST_INPUTS} tensors" in reasons


def test_numbers_keep_their_kind():
    n = g.input("n", (4, 5), "int32")
    chain = chains(graph_of(g.select(g.compare(n, 3, direction="GT"), n * 2, n))).outputs[0]
    numbers = [p for _, _, places in chain.attrs.steps for p in places if not isinstance(p, tuple)]
    assert sorted(numbers) == [2, 3]
    assert all(type(p) is int for p in numbers)


def test_what_engines_compute_of_floats_only_is_no_step():
    n = g.input("n", (4, 5), "int32")
    assert ops(g.power(n, n) + n) == {"chain": 1, "power": 1}
    assert ops(n / n + n) == {"chain": 1}


def test_a_long_integer_constant_is_exact():
    big = 2**31 - 3
    (found,), _ = on_chip(lambda n: g.maximum(n, big), np.array([5, big + 1], np.int32))
    np.testing.assert_array_equal(found, [big, big + 1])


UNARY = ["tanh", "negate", "abs", "logistic"]
BINARY = ["add", "subtract", "multiply", "maximum", "minimum"]


@st.composite
def programs(draw):
    """A program of element-wise ops on floats, flags and numbers that shares values freely."""
    floats, flags = [X, Y], []
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["unary", "binary", "number", "compare", "select"]))
        a, b = draw(st.sampled_from(floats)), draw(st.sampled_from(floats))
        if kind == "unary":
            floats.append(getattr(g, draw(st.sampled_from(UNARY)))(a))
        elif kind == "binary":
            floats.append(getattr(g, draw(st.sampled_from(BINARY)))(a, b))
        elif kind == "number":
            number = draw(st.sampled_from([0.5, -2.0]))
            floats.append(getattr(g, draw(st.sampled_from(BINARY)))(a, number))
        elif kind == "compare" or not flags:
            flags.append(g.compare(a, b, direction=draw(st.sampled_from(["LT", "GE", "NE"]))))
        else:
            floats.append(g.select(draw(st.sampled_from(flags)), a, b))
    outputs = draw(st.lists(st.sampled_from(floats[2:] + flags or floats), min_size=1, max_size=3))
    return Graph([X, Y], outputs)


@settings(max_examples=60, deadline=None)
@given(programs())
def test_chains_mean_what_the_ops_meant(graph):
    random = np.random.default_rng(0)
    arrays = [random_array(v, random) for v in graph.inputs]
    made = chains(graph)
    assert set(made.histogram()) <= {"input", "chain"}
    wanted = evaluate(graph, arrays)
    for other in (made, decompose(made)):
        for f, w in zip(evaluate(other, arrays), wanted, strict=True):
            assert f.dtype == w.dtype
            np.testing.assert_allclose(f.astype(np.float64), w.astype(np.float64), 1e-5, 1e-5)
