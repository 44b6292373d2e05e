"""The op that stands for a kernel written by hand."""

import numpy as np
import pytest

from opentrn import compiler
from opentrn.base import ShapeError, UnsupportedError, UsageError
from opentrn.compiler.precision import precision
from opentrn.graph import Callee, Graph, Type, evaluate, fold, g, graph_dtype, read, write

F32, BF16 = graph_dtype("float32"), graph_dtype("bfloat16")
X, Y = g.input("x", (2, 3), "float32"), g.input("y", (3,), "bfloat16")
TYPES = (Type((2, 3), F32), Type((3,), BF16))


def sums(x, y):
    """x + y in float32, and the sum of each row of x as bfloat16."""
    return [x + y.astype(np.float32), x.sum(1).astype(y.dtype)]


CALLEE = Callee("sums", TYPES, (TYPES[0], Type((2,), BF16)), kernel=sums, run=sums, flops=12)


def test_it_computes_what_its_callee_computes():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = np.array([1, 2, 3]).astype(BF16.storage)
    made = g.foreign(X, Y, callee=CALLEE)
    graph = Graph([X, Y], [g.get_tuple_element(made, i) for i in (0, 1)])
    wide, narrow = evaluate(graph, [x, y])
    assert wide.tolist() == [[1, 3, 5], [4, 6, 8]]
    assert narrow.astype(float).tolist() == [3, 12]
    assert made.flops == 12
    assert made.traffic == (24 + 6, 24 + 4)
    assert g.foreign(X, Y, callee=CALLEE) is made


def test_other_operands_are_refused():
    with pytest.raises(ShapeError, match="takes"):
        g.foreign(Y, X, callee=CALLEE)
    with pytest.raises(UsageError, match="should be a Callee"):
        g.foreign(X, Y, callee="sums")


def test_its_text_has_a_name_and_no_code():
    graph = Graph([X, Y], [g.get_tuple_element(g.foreign(X, Y, callee=CALLEE), 0)])
    again = read(write(graph))
    assert write(again) == write(graph)
    given = [np.zeros((2, 3), np.float32), np.zeros(3, BF16.storage)]
    with pytest.raises(UsageError, match="no code") as error:
        evaluate(again, given)
    assert error.value.code == "graph.foreign_absent"
    with pytest.raises(UnsupportedError, match="its name alone"):
        compiler.compile(again)


def test_it_is_not_computed_ahead_of_time_nor_in_another_precision():
    known = [g.constant(np.ones((2, 3), np.float32)),
             g.constant(np.ones(3).astype(BF16.storage), "bfloat16")]  # fmt: skip
    out = g.get_tuple_element(g.foreign(*known, callee=CALLEE), 0)
    assert fold(Graph([], [out])).histogram()["foreign"] == 1
    graph = Graph([X, Y], [g.get_tuple_element(g.foreign(g.tanh(X), Y, callee=CALLEE), 0) * 2.0])
    narrowed = precision(graph, BF16)
    (call,) = [v for v in narrowed if v.op == "foreign"]
    assert call.args[0].dtype == F32
    assert {str(v.dtype) for v in narrowed if v.op == "tanh"} == {"bfloat16"}
