"""Text and back gives the same objects; what was not written by us is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import TrnError
from opentrn.graph import Data, Graph, constants, g, read, write

SIZES = st.lists(st.integers(1, 3), min_size=0, max_size=3).map(tuple)
UNARY = ("negate", "exponential", "tanh", "erf", "gelu", "floor")
BINARY = ("add", "multiply", "maximum", "subtract", "divide")


@st.composite
def graphs(draw):
    """A random program over float inputs of one shape, with some movement and a constant."""
    shape = draw(SIZES)
    kind = draw(st.sampled_from(["float32", "bfloat16", "float64"]))
    names = draw(st.lists(st.text(max_size=6), min_size=1, max_size=3, unique=True))
    inputs = [g.input(n, shape, kind) for n in names]
    number = draw(st.floats(-10, 10, width=32))
    big = np.arange(40.0)
    values = [*inputs, g.full(shape, number, kind)]
    for _ in range(draw(st.integers(0, 12))):
        if draw(st.booleans()):
            values.append(getattr(g, draw(st.sampled_from(UNARY)))(draw(st.sampled_from(values))))
        else:
            pick = st.sampled_from(values)
            values.append(getattr(g, draw(st.sampled_from(BINARY)))(draw(pick), draw(pick)))
    last = values[-1]
    ends = [last, g.reshape(last, (-1,)), g.reduce(last, "add", tuple(range(last.rank)))]
    stored = g.constant(big)
    table = g.take(stored, g.constant(np.int32([1, 2])))
    outputs = [*draw(st.lists(st.sampled_from(ends), min_size=0, max_size=3)), table]
    return Graph(inputs, outputs, {"big": stored}, name=draw(st.text(max_size=5)))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_round_trip(graph):
    text = write(graph)
    back = read(text, constants(graph))
    assert back.inputs == graph.inputs
    assert all(a is b for a, b in zip(back.outputs, graph.outputs, strict=True))
    assert dict(back.constants) == dict(graph.constants)
    assert (back.name, back.output_names) == (graph.name, graph.output_names)
    assert write(back) == text


def sample():
    x = g.input("x", (2, 3))
    w = g.constant(np.arange(60, dtype=np.float32).reshape(3, 20))
    return Graph([x], [g.softmax(g.matmul(x, w)) * 0.1], {"w": w})


def test_the_text_is_stable():
    assert write(sample(), places=False).splitlines() == [
        'opentrn.graph 1 "main"',
        '%0 = "input"() {label = "x", shape = [2, 3], dtype = "float32"} : tensor<2x3xfloat32>',
        '%1 = "constant"() {data = {"type": "tensor<3x20xfloat32>", "digest": "'
        + sample().constants["w"].attrs.data.digest + '"}} : tensor<3x20xfloat32>',
        '%2 = "dot_general"(%0, %1) {lhs_contracting = [1], rhs_contracting = [0], lhs_batch = [], '
        'rhs_batch = [], dtype = "float32"} : tensor<2x20xfloat32>',
        '%3 = "softmax"(%2) {axis = 1} : tensor<2x20xfloat32>',
        '%4 = "constant"() {data = {"type": "tensor<float32>", "hex": "cdcccc3d"}} : '
        "tensor<float32>",
        '%5 = "broadcast_in_dim"(%4) {shape = [2, 20], dimensions = []} : tensor<2x20xfloat32>',
        '%6 = "multiply"(%3, %5) {} : tensor<2x20xfloat32>',
        "return %6",
        "inputs [0]",
        'outputs ["output0"]',
        'constants {"w": 1}',
    ]


def test_source_lines_travel():
    # A value made anew takes the line of the text; here the text names another file.
    line = 'loc(["model.py", 12, "forward"])'
    text = write(sample(), places=False).replace('label = "x", shape', 'label = "elsewhere", shape')
    text = text.replace("tensor<2x3xfloat32>", f"tensor<2x3xfloat32> {line}", 1)
    back = read(text, constants(sample()))
    assert str(back.inputs[0].where) == "model.py:12 in forward"
    assert line in write(back)


def test_constants_without_numbers_travel_by_name():
    w = g.constant(Data.absent("layer.w", sample().inputs[0].dtype, (3,)))
    graph = Graph([], [w], {"layer.w": w})
    assert read(write(graph)).outputs[0] is w
    assert constants(graph) == {}


GOOD = write(sample(), places=False)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "first line"),
        (GOOD.replace("graph 1", "graph 2"), "version 2"),
        (GOOD.replace('"softmax"', '"softmix"'), "no op `softmix`"),
        (GOOD.replace("%3 =", "%4 ="), "not value %3"),
        (GOOD.replace("(%2)", "(%9)"), "not there yet"),
        (GOOD.replace("{axis = 1}", "{axes = 1}"), "has the attributes axis"),
        (GOOD.replace("{axis = 1}", "{axis = }"), "cannot be read"),
        (GOOD.replace("{axis = 1}", '{axis = "a"}'), "should be int"),
        (GOOD.replace("cdcccc3d", "cdcc"), "not a Data"),
        (GOOD.replace("return %6\n", ""), "not value %7"),
        (GOOD[:GOOD.index("return")], "there is no `return`"),
        (GOOD.replace("return %6", "return 6"), "not a return"),
        (GOOD.replace("inputs [0]", "inputs [7]"), "not complete"),
        (GOOD.replace('{axis = 1} : tensor<2x20', '{axis = 1} : tensor<2x21'), "line 5 says"),
    ],
)
def test_other_text_is_refused(text, match):
    with pytest.raises(TrnError, match=match) as error:
        read(text, constants(sample()))
    assert error.value.code == "graph.text"


def test_a_missing_or_changed_constant_is_refused():
    stored = constants(sample())
    with pytest.raises(TrnError, match="not among"):
        read(GOOD, {})
    (name, array), = stored.items()
    with pytest.raises(TrnError, match="other content"):
        read(GOOD, {name: array + 1})


def test_text_obeys_the_same_checks_as_a_builder():
    with pytest.raises(TrnError) as error:
        read(GOOD.replace("rhs_contracting = [0]", "rhs_contracting = [1]"), constants(sample()))
    assert error.value.code == "graph.dot_general.shape"
