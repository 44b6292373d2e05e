"""Loops copied out and branches chosen: the same numbers, and no control flow left."""

import numpy as np
import pytest

from opentrn.graph import Graph, Region, Type, evaluate, g, graph_dtype, straighten

F32, I32, VECTOR = (Type(shape, graph_dtype(kind)) for shape, kind in
                    (((), "float32"), ((), "int32"), ((4,), "float32")))
X = np.float32([1, -2, 3, 0.5])


def counted(limit, body, *types):
    """`while` from 0 to a limit; body takes the counter and the state, and gives the state."""
    cond = Region.of(lambda i, *s: g.compare(i, g.constant(np.int32(limit)), direction="LT"),
                     I32, *types)
    return cond, Region.of(lambda i, *s: (i + 1, *body(i, *s)), I32, *types)


def same(graph, *arrays, gone=("while", "if", "case", "get_tuple_element")):
    straight = straighten(graph)
    for got, want in zip(evaluate(straight, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, want)
    assert not set(straight.histogram()) & set(gone)
    return straight


def test_a_counted_loop_is_copied_out():
    cond, body = counted(3, lambda i, x: (x * 2.0,), VECTOR)
    x = g.input("x", (4,))
    loop = g.while_(g.constant(np.int32(0)), x, cond=cond, body=body)
    graph = Graph([x], [g.get_tuple_element(loop, 0), g.get_tuple_element(loop, 1)])
    straight = same(graph, X)
    assert straight.histogram()["multiply"] == 3
    assert evaluate(straight, [X])[1].tolist() == (8 * X).tolist()


def test_loops_within_loops_whose_length_depends_on_the_outer_one():
    def outer(i, x):
        cond = Region.of(lambda j, y, n: g.compare(j, n, direction="LT"), I32, VECTOR, I32)
        step = Region.of(lambda j, y, n: (j + 1, y + 1.0), I32, VECTOR, I32)
        inner = g.while_(g.constant(np.int32(0)), x, i, cond=cond, body=step)
        return (g.get_tuple_element(inner, 1),)
    cond, body = counted(4, outer, VECTOR)
    x = g.input("x", (4,))
    loop = g.while_(g.constant(np.int32(0)), x, cond=cond, body=body)
    straight = same(Graph([x], [g.get_tuple_element(loop, 1)]), X)
    assert evaluate(straight, [X])[0].tolist() == (X + 6).tolist()  # 0 + 1 + 2 + 3 turns


def test_a_loop_of_unknown_or_great_length_stays():
    x, n = g.input("x", (4,)), g.input("n", (), "int32")
    for first, many in ((n, 10), (g.constant(np.int32(0)), 10**6)):
        cond, body = counted(many, lambda i, x: (x * 2.0,), VECTOR)
        loop = g.while_(first, x, cond=cond, body=body)
        graph = Graph([x, n], [g.get_tuple_element(loop, 1)])
        assert straighten(graph).outputs == graph.outputs
    cond, body = counted(10, lambda i, x: (x * 2.0,), VECTOR)
    loop = g.while_(g.constant(np.int32(0)), x, cond=cond, body=body)
    graph = Graph([x, n], [g.get_tuple_element(loop, 1)])
    assert straighten(graph, most=9).outputs == graph.outputs


def test_the_first_of_two_tests_to_fail_ends_a_loop():
    x = g.input("x", (4,))
    for limits, turns in (((7, 3), 3), ((2, 5), 2), ((5, 0), 0)):
        def cond(i, j, x, limits=limits):
            one, two = (g.compare(c, g.constant(np.int32(n)), direction="LT")
                        for c, n in zip((i, j), limits, strict=True))
            return g.and_(one, two)
        body = Region.of(lambda i, j, x: (i + 1, j + 1, x * 2.0), I32, I32, VECTOR)
        loop = g.while_(g.constant(np.int32(0)), g.constant(np.int32(0)), x,
                        cond=Region.of(cond, I32, I32, VECTOR), body=body)
        straight = same(Graph([x], [g.get_tuple_element(loop, 2)]), X)
        assert straight.histogram().get("multiply", 0) == turns


def test_a_limit_that_the_body_changes_is_not_known():
    cond = Region.of(lambda i, n: g.compare(i, n, direction="LT"), I32, I32)
    body = Region.of(lambda i, n: (i + 1, n + n), I32, I32)
    loop = g.while_(g.constant(np.int32(0)), g.constant(np.int32(3)), cond=cond, body=body)
    graph = Graph([], [g.get_tuple_element(loop, 0)])
    assert "while" in straighten(graph).histogram()


@pytest.mark.parametrize("p", [True, False])
def test_branches_are_chosen(p):
    pred, x = g.input("p", (), "bool"), g.input("x", (4,))
    double, negate = Region.of(lambda x: x + x, VECTOR), Region.of(lambda x: g.negate(x), VECTOR)
    made = g.if_(pred, x, true_branch=double, false_branch=negate)
    straight = same(Graph([pred, x], [g.get_tuple_element(made, 0)]), np.bool_(p), X)
    assert straight.histogram()["select"] == 1
    known = g.if_(g.constant(np.bool_(p)), x, true_branch=double, false_branch=negate)
    assert "select" not in same(Graph([x], [g.get_tuple_element(known, 0)]), X).histogram()


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 3])
def test_cases_are_chosen(index):
    i, x = g.input("i", (), "int32"), g.input("x", (4,))
    branches = tuple(Region.of(lambda x, k=k: x * k, VECTOR) for k in (2.0, 3.0, 5.0))
    made = g.case(i, x, branches=branches)
    straight = same(Graph([i, x], [g.get_tuple_element(made, 0)]), np.int32(index), X)
    want = {0: 2, 1: 3}.get(index, 5)
    assert evaluate(straight, [np.int32(index), X])[0].tolist() == (want * X).tolist()
    known = g.case(g.constant(np.int32(index)), x, branches=branches)
    same(Graph([x], [g.get_tuple_element(known, 0)]), X, gone=("case", "select"))


def test_a_branch_that_may_not_end_is_not_computed_without_need():
    cond = Region.of(lambda x: g.compare(x, g.like(x, 0.0), direction="GT"), F32)
    forever = Region.of(lambda x: g.get_tuple_element(
        g.while_(x, cond=cond, body=Region.of(lambda x: x + 1.0, F32)), 0), F32)
    pred, x = g.input("p", (), "bool"), g.input("x", ())
    made = g.if_(pred, x, true_branch=forever, false_branch=Region.of(lambda x: x, F32))
    graph = Graph([pred, x], [g.get_tuple_element(made, 0)])
    assert straighten(graph).outputs == graph.outputs


def test_windows_written_in_turn_are_joined_once():
    table = Type((5, 3), graph_dtype("float32"))
    zero = g.constant(np.int32(0))

    def write(i, rows, out):
        row = g.dynamic_slice(rows, i, zero, sizes=(1, 3))
        return rows, g.dynamic_update_slice(out, row * 2.0, i, zero)
    cond, body = counted(5, write, table, table)
    x = g.input("x", (5, 3))
    loop = g.while_(zero, x, g.full((5, 3), 0.0), cond=cond, body=body)
    straight = same(Graph([x], [g.get_tuple_element(loop, 2)]),
                    np.arange(15, dtype=np.float32).reshape(5, 3),
                    gone=("while", "dynamic_slice", "dynamic_update_slice"))
    assert straight.histogram() == {"broadcast_in_dim": 1, "concatenate": 1, "constant": 1,
                                    "input": 1, "multiply": 5, "slice": 5}


@pytest.mark.parametrize("corner", [(0, 0), (2, 0), (-3, 0), (9, 9), (1, 1)])
def test_windows_at_known_places(corner):
    x, update = g.input("x", (5, 3)), g.input("u", (2, 3))
    at = [g.constant(np.int32(c)) for c in corner]
    graph = Graph([x, update], [g.dynamic_update_slice(x, update, *at),
                                g.dynamic_slice(x, *at, sizes=(2, 2))])
    arrays = (np.arange(15, dtype=np.float32).reshape(5, 3), np.full((2, 3), -1, np.float32))
    same(graph, *arrays, gone=("dynamic_slice", "dynamic_update_slice"))
