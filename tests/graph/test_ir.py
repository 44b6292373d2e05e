"""Values are frozen, shared and checked when made; graphs of any depth can be walked."""

import copy
import gc

import ml_dtypes
import numpy as np
import pytest

from opentrn.base import TrnError, explanation
from opentrn.graph import OPS, Builder, Data, Graph, evaluate, g, make, topological
from opentrn.graph.ir import SHARED


def test_same_content_is_one_object():
    x, y = g.input("x", (4, 8)), g.input("y", (4, 8))
    assert g.add(x, y) is g.add(x, y)
    assert g.add(x, y) is not g.add(y, x)
    assert g.transpose(x, (1, 0)) is g.transpose(x, permutation=[-1, 0])
    assert g.softmax(x) is g.softmax(x, axis=1)
    assert g.reduce(x, "add", 1) is g.reduce(x, "add", (-1,))
    assert g.reshape(x, (2, -1)) is g.reshape(x, (2, 16))
    assert x * 2 is g.multiply(x, 2.0)


def test_different_content_is_not_shared():
    x = g.input("x", (4, 8))
    assert g.input("x", (4, 8), "bfloat16") is not x
    assert g.input("z", (4, 8)) is not x
    assert g.convert(x, "int32") is not g.convert(x, "uint32")
    assert g.constant(1) is not g.constant(1.0)
    assert g.constant(np.float32(1)) is not g.constant(np.ones((1,), np.float32))


def test_constants_are_told_apart_by_every_byte():
    plain = np.zeros(100_000, np.float32)
    other = plain.copy()
    other[77_777] = 1.0
    assert g.constant(plain) is g.constant(plain.copy())
    assert g.constant(plain) is not g.constant(other)
    assert Data.of(plain).digest != Data.of(other).digest
    assert Data.of(plain).digest == Data.of(plain.copy()).digest
    assert Data.of(plain).digest != Data.of(plain.reshape(-1, 1)).digest


def test_a_constant_shares_memory_and_is_read_only():
    array = np.arange(6, dtype=np.float32)
    value = g.constant(array)
    assert np.shares_memory(value.attrs.data.array, array)
    with pytest.raises(ValueError, match="read-only"):
        value.attrs.data.array[0] = 1


def test_the_source_line_is_not_part_of_identity():
    x = g.input("x", (3,))
    first = g.negate(x)
    second = g.negate(x)
    assert first is second
    assert first.where.file == __file__
    assert first.where.text == "first = g.negate(x)"


def test_values_are_frozen():
    x = g.input("x", (3,))
    with pytest.raises(AttributeError, match="frozen"):
        x.shape = (4,)
    with pytest.raises(AttributeError):
        x.attrs.label = "y"
    assert copy.deepcopy(x) is x


def test_values_nobody_holds_are_forgotten():
    gc.collect()
    before = len(SHARED)
    x = g.input("only here", (3,))
    y = g.exponential(x)
    assert len(SHARED) == before + 2
    del x, y
    assert len(SHARED) == before


def test_a_graph_of_a_hundred_thousand_values_needs_no_recursion():
    x = g.input("x", (1,))
    value = x
    for _ in range(100_000):
        value = g.add(value, x)
    graph = Graph([x], [value])
    assert len(graph) == 100_001
    assert graph.flops == 100_000
    assert evaluate(graph, [np.ones(1, np.float32)])[0][0] == 100_001
    assert len(graph.rebuild(lambda old, args: make(old.attrs, args))) == 100_001
    del graph, value  # taking it apart must not recurse either


def test_order_puts_operands_first():
    x = g.input("x", (2,))
    a, b = g.exponential(x), g.negate(x)
    graph = Graph([x], [a * b + a, b])
    place = {v: i for i, v in enumerate(graph)}
    assert all(place[arg] < place[v] for v in graph for arg in v.args)
    assert topological([a]) == [x, a]
    assert graph.users()[x] == [a, b]


def test_a_graph_refuses_an_input_it_does_not_list():
    x, y = g.input("x", (2,)), g.input("y", (2,))
    with pytest.raises(TrnError, match="not listed") as error:
        Graph([x], [x + y])
    assert error.value.code == "graph.free_input"
    with pytest.raises(TrnError) as error:
        Graph([x, g.input("x", (3,))], [x])
    assert error.value.code == "graph.input_name"


def test_constants_keep_their_names():
    w = g.constant(np.ones((2, 2), np.float32))
    graph = Graph([], [w + w], {"tied.a": w, "tied.b": w})
    assert dict(graph.constants) == {"tied.a": w, "tied.b": w}
    renewed = graph.rebuild(lambda old, args: old if not args else g.multiply(args[0], 2.0))
    assert list(renewed.constants) == ["tied.a", "tied.b"]


X = g.input("x", (4, 8))
W = g.input("w", (8, 3))
I = g.input("i", (4,), "int32")  # noqa: E741 - an index
B = g.input("b", (4, 8), "bool")
S = g.input("s", (), "int32")

REFUSED = [
    ("add", "shape", lambda: g.add(X, W)),
    ("add", "dtype", lambda: g.add(X, g.convert(X, "bfloat16"))),
    ("exponential", "dtype", lambda: g.exponential(I)),
    ("and", "dtype", lambda: g.and_(X, X)),
    ("select", "dtype", lambda: g.select(X, X, X)),
    ("select", "shape", lambda: g.select(B, W, W)),
    ("compare", "attribute", lambda: g.compare(X, X, direction="LESS")),
    ("clamp", "shape", lambda: g.clamp(X, W, X)),
    ("is_finite", "dtype", lambda: g.is_finite(I)),
    ("iota", "attribute", lambda: g.iota((2, 3), 2, "int32")),
    ("iota", "dtype", lambda: g.iota((2, 3), 0, "bool")),
    ("broadcast_in_dim", "shape", lambda: g.broadcast_in_dim(X, (4, 9), (0, 1))),
    ("broadcast_in_dim", "shape", lambda: g.broadcast_in_dim(X, (8, 4), (1, 0))),
    ("reshape", "shape", lambda: g.reshape(X, (5, 5))),
    ("reshape", "shape", lambda: g.reshape(X, (5, -1))),
    ("transpose", "shape", lambda: g.transpose(X, (0,))),
    ("transpose", "attribute", lambda: g.transpose(X, (0, 0))),
    ("slice", "shape", lambda: g.slice(X, (0, 0), (4, 9), (1, 1))),
    ("dynamic_slice", "shape", lambda: g.dynamic_slice(X, S, sizes=(2, 2))),
    ("dynamic_slice", "shape", lambda: g.dynamic_slice(X, S, S, sizes=(5, 2))),
    ("dynamic_update_slice", "shape", lambda: g.dynamic_update_slice(X, W, S, S)),
    ("concatenate", "shape", lambda: g.concatenate(X, W, dimension=0)),
    ("pad", "shape", lambda: g.pad(X, g.full((), 0.0), (0,), (1,))),
    ("reverse", "attribute", lambda: g.reverse(X, (2,))),
    ("gather", "shape", lambda: g.gather(X, I, offset_dims=(1,), collapsed_slice_dims=(0,),
                                         start_index_map=(0,), index_vector_dim=1,
                                         slice_sizes=(1, 9))),
    ("gather", "dtype", lambda: g.take(X, X)),
    ("scatter", "shape", lambda: g.scatter(X, I, W, kind="add", update_window_dims=(1,),
                                           inserted_window_dims=(0,), scatter_dims=(0,),
                                           index_vector_dim=1)),
    ("dot_general", "shape", lambda: g.dot_general(X, X, 1, 0)),
    ("dot_general", "dtype", lambda: g.dot_general(X, g.convert(W, "bfloat16"), 1, 0)),
    ("dot_general", "dtype", lambda: g.dot_general(B, B, 1, 1)),
    ("convolution", "shape", lambda: g.convolution(
        g.input("im", (1, 3, 5)), g.input("k", (2, 4, 3)), (1,), ((0, 0),))),
    ("reduce", "attribute", lambda: g.reduce(X, "add", 2)),
    ("reduce", "dtype", lambda: g.reduce(X, "and", 1)),
    ("reduce_window", "attribute", lambda: g.reduce_window(X, "maximum", (2,))),
    ("cumulative", "attribute", lambda: g.cumulative(X, "add", 5)),
    ("argmax", "dtype", lambda: g.argmax(X, 0, "float32")),
    ("sort", "attribute", lambda: g.sort(X, 2)),
    ("top_k", "shape", lambda: g.top_k(X, 9)),
    ("gelu", "dtype", lambda: g.gelu(I)),
    ("softmax", "attribute", lambda: g.softmax(X, 2)),
    ("layer_norm", "shape", lambda: g.layer_norm(X, g.input("v", (4,)))),
    ("rms_norm", "shape", lambda: g.rms_norm(X, g.input("v", (4,)))),
    ("attention", "shape", lambda: g.attention(X, W, W)),
    ("attention", "shape", lambda: g.attention(X, X, X, g.input("m", (4, 5)))),
    ("attention_gradient", "shape", lambda: g.attention_gradient(X, X, X, X, W)),
    ("attention_gradient", "attribute", lambda: g.attention_gradient(X, X, X, X, X, part="out")),
    ("input", "shape", lambda: g.input("n", (-1,))),
]


@pytest.mark.parametrize(("op", "kind", "build"), REFUSED)
def test_a_wrong_operand_is_refused_at_the_users_line(op, kind, build):
    with pytest.raises(TrnError) as error:
        build()
    assert error.value.code == f"graph.{op}.{kind}"
    assert error.value.at.file == __file__
    assert error.value.rule == OPS[op].law
    assert explanation(error.value.code).rule == OPS[op].law


def test_the_kind_of_refusal_is_also_pythons():
    with pytest.raises(ValueError, match=r"float32\[4,8\]"):
        g.add(X, W)
    with pytest.raises(TypeError):
        g.exponential(I)


@pytest.mark.parametrize(
    ("code", "build"),
    [
        ("graph.op", lambda: g.transpos(X, (1, 0))),
        ("graph.operands", lambda: g.add(X)),
        ("graph.transpose.attribute", lambda: g.transpose(X)),
        ("graph.transpose.attribute", lambda: g.transpose(X, (1, 0), (1, 0))),
        ("graph.transpose.attribute", lambda: g.transpose(X, permutation=("a", "b"))),
        ("graph.transpose.attribute", lambda: g.transpose(X, order=(1, 0))),
    ],
)
def test_a_wrong_call_is_refused(code, build):
    with pytest.raises(TrnError) as error:
        build()
    assert error.value.code == code


def test_the_builder_gives_its_own_line():
    where = X.where
    assert Builder(where).tanh(g.input("other", (2,))).where is where
    with pytest.raises(TrnError) as error:
        Builder(where).add(X, W)
    assert error.value.at is where


def test_every_op_states_its_work():
    assert len(OPS) >= 60
    for name, op in OPS.items():
        assert op.__doc__, name
        assert op.law, name
        assert op.name == name


def test_work_of_nodes_by_hand():
    bf16 = g.convert(X, "bfloat16")
    assert g.matmul(X, W).flops == 2 * 4 * 8 * 3
    assert g.matmul(X, W).traffic == (4 * (32 + 24), 4 * 12)
    assert bf16.traffic == (32 * 4, 32 * 2)
    assert bf16.flops == 0
    assert g.add(X, X).flops == 32
    assert g.reduce(X, "add", 1).flops == 4 * 7
    assert g.reshape(X, (32,)).bytes == 0
    assert g.transpose(X, (1, 0)).bytes == 2 * 128
    assert g.take(X, I).traffic == (4 * 8 * 4 + 16, 4 * 8 * 4)
    image, kernel = g.input("im", (2, 4, 9, 9)), g.input("k", (6, 2, 3, 3))
    conv = g.convolution(image, kernel, (1, 1), ((0, 0), (0, 0)), groups=2)
    assert conv.flops == 2 * (2 * 6 * 7 * 7) * (2 * 3 * 3)


def test_inputs_are_checked_when_a_graph_runs():
    graph = Graph([X], [g.tanh(X)])
    good = np.zeros((4, 8), np.float32)
    for bad, code in (
        ([], "graph.inputs"), ({"y": good}, "graph.inputs"),
        ([good[:2]], "graph.input_shape"), ([good.astype(np.float64)], "graph.input_dtype"),
    ):
        with pytest.raises(TrnError) as error:
            evaluate(graph, bad)
        assert error.value.code == code


def test_a_bfloat16_graph_rounds_after_every_op():
    x = g.input("x", (1000,), "bfloat16")
    graph = Graph([x], [(x * x) + 1.0])
    a = np.linspace(-3, 3, 1000).astype(ml_dtypes.bfloat16)
    wide = a.astype(np.float32)
    square = (wide * wide).astype(ml_dtypes.bfloat16).astype(np.float32)
    want = (square + 1.0).astype(ml_dtypes.bfloat16)
    got = evaluate(graph, [a])[0]
    assert got.dtype == ml_dtypes.bfloat16
    assert np.array_equal(got, want)


def test_values_are_dropped_after_their_last_reader():
    alive = []
    x = g.input("x", (8,))
    value = x
    for _ in range(5):
        value = g.tanh(g.exponential(value))

    def watch(node, array):
        gc.collect()
        alive.append(sum(1 for a in arrays if a() is not None))
        arrays.append(weak(array))

    import weakref
    weak = weakref.ref
    arrays = []
    evaluate(Graph([x], [value]), [np.zeros(8, np.float32)], watch)
    assert max(alive) <= 2


def test_outputs_belong_to_the_caller():
    x, c = g.input("x", (2, 3)), g.constant(np.float32([[1, 2, 3]]))
    wide = g.broadcast(c, (2, 3))
    array = np.zeros((2, 3), np.float32)
    for got in evaluate(Graph([x], [x, c, wide, g.reshape(x, (6,))]), [array]):
        got[...] = 7
    assert not array.any()
    assert c.attrs.data.array.tolist() == [[1, 2, 3]]


def test_a_constant_without_numbers_can_be_costed_but_not_run():
    weight = g.constant(Data.absent("w", W.dtype, (8, 3)))
    graph = Graph([X], [g.matmul(X, weight)])
    assert graph.flops == 2 * 4 * 8 * 3
    with pytest.raises(TrnError) as error:
        evaluate(graph, [np.zeros((4, 8), np.float32)])
    assert error.value.code == "graph.no_data"
