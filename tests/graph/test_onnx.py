"""ONNX models as graphs, against ONNX's reference evaluator and torch."""

import random

import ml_dtypes
import numpy as np
import pytest

from opentrn import compiler, runtime
from opentrn.base import (
    FileFormatError,
    MissingFileError,
    NotBuiltError,
    TrnError,
    UnsupportedError,
    UsageError,
)
from opentrn.graph import evaluate, from_onnx, straighten

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
reference = pytest.importorskip("onnx.reference", reason="the extra `onnx` is not installed")
TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model(nodes, inputs, outputs, weights=(), opset=21, **more):
    """A model of nodes written as (op, inputs, outputs, attributes) or NodeProtos."""
    made = [n if hasattr(n, "op_type") else helper.make_node(n[0], n[1].split(), n[2].split(),
            **(n[3] if len(n) > 3 else {})) for n in nodes]  # fmt: skip
    info = [[helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(np.dtype(t)), s)
             for k, (t, s) in each.items()] for each in (inputs, outputs)]  # fmt: skip
    graph = helper.make_graph(made, "g", *info, [numpy_helper.from_array(v, k) for k, v in weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **more)


def agrees(source, given, within=1e-5, **options):
    graph = from_onnx(source, **options)
    found = evaluate(graph, [given[v.attrs.label] for v in graph.inputs])
    wanted = reference.ReferenceEvaluator(source).run(None, given)
    for have, want in zip(found, wanted, strict=True):
        assert have.dtype == want.dtype
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, within, within)
    return graph


PERCEPTRON = [("MatMul", "x w", "a"), ("Add", "a b", "h"), ("Relu", "h", "r"),
              ("Gemm", "r v", "y", {"transB": 1})]  # fmt: skip


def perceptron(batch=4):
    weights = {"w": floats(8, 16), "b": floats(16), "v": floats(3, 16)}
    return model(PERCEPTRON, {"x": ("f4", [batch, 8])}, {"y": ("f4", [batch, 3])}, weights.items())


def test_a_model_keeps_its_names():
    graph = agrees(perceptron(), {"x": floats(4, 8)})
    assert [v.attrs.label for v in graph.inputs] == ["x"]
    assert graph.output_names == ("y",)
    assert set(graph.constants) == {"w", "b", "v"}
    assert graph.histogram()["dot_general"] == 2


def test_files_and_bytes(tmp_path):
    made = perceptron()
    onnx.save(made, tmp_path / "net.onnx")
    one, two = from_onnx(tmp_path / "net.onnx"), from_onnx(made.SerializeToString())
    assert one.outputs == two.outputs == from_onnx(made).outputs
    assert one.name == "net"


def test_weights_beside_the_file(tmp_path):
    made = perceptron()
    want = from_onnx(made)
    onnx.save(made, tmp_path / "net.onnx", save_as_external_data=True, location="w.bin",
              size_threshold=0)  # fmt: skip
    x = floats(4, 8)
    found = evaluate(from_onnx(tmp_path / "net.onnx"), [x])
    np.testing.assert_array_equal(found[0], evaluate(want, [x])[0])
    (tmp_path / "w.bin").write_bytes(b"short")
    with pytest.raises(FileFormatError, match="end after the end of w.bin"):
        from_onnx(tmp_path / "net.onnx")
    raw = onnx.load(tmp_path / "net.onnx", load_external_data=False)
    for entry in raw.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../w.bin"
    onnx.save(raw, tmp_path / "out.onnx")
    with pytest.raises(FileFormatError, match="it lies outside"):
        from_onnx(tmp_path / "out.onnx")


def test_sizes_that_vary_have_to_be_fixed():
    made = perceptron(batch="n")
    with pytest.raises(NotBuiltError, match="sizes that vary: n") as caught:
        from_onnx(made)
    assert caught.value.code == "graph.dynamic_shape"
    assert "dims={'n': 1}" in caught.value.fix
    assert from_onnx(made, dims={"n": 2}).outputs[0].shape == (2, 3)
    assert from_onnx(made, shapes={"x": (5, 8)}).outputs[0].shape == (5, 3)
    with pytest.raises(UsageError, match="no input y; it has x"):
        from_onnx(made, shapes={"y": (5, 8)})
    for given in ((5, 7), (5, 8, 1), (8,)):  # what the file says of the second axis is 8
        with pytest.raises(UsageError, match=r"x is \[n, 8\], it was given") as caught:
            from_onnx(made, shapes={"x": given})
        assert caught.value.code == "graph.onnx_fixed"
    with pytest.raises(UsageError, match="no axis of an input is called m; there are n"):
        from_onnx(made, dims={"m": 2})
    with pytest.raises(UsageError, match=r"x is \[n, 8\], it was given \[2, 9\]"):
        from_onnx(made, fixed={"x": np.zeros((2, 9), np.float32)})


def test_shape_arithmetic_leaves_no_trace():
    nodes = [("Shape", "x", "s"), ("Gather", "s zero", "n"), ("Unsqueeze", "n axis", "n1"),
             ("Concat", "n1 rest", "shape", {"axis": 0}), ("Reshape", "x shape", "y")]  # fmt: skip
    weights = {"zero": np.int64(0), "axis": np.int64([0]), "rest": np.int64([-1])}
    made = model(nodes, {"x": ("f4", [2, 3, 4])}, {"y": ("f4", [2, 12])},
                 [(k, np.asarray(v)) for k, v in weights.items()])  # fmt: skip
    graph = agrees(made, {"x": floats(2, 3, 4)})
    assert graph.histogram() == {"input": 1, "reshape": 1}


def test_a_shape_that_is_given_has_to_be_fixed():
    made = model([("Reshape", "x s", "y")], {"x": ("f4", [2, 6]), "s": ("i8", [2])},
                 {"y": ("f4", None)})  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"\(`s`\) is not known") as caught:
        from_onnx(made)
    assert caught.value.code == "graph.onnx_unknown"
    assert from_onnx(made, fixed={"s": np.int64([3, 4])}).outputs[0].shape == (3, 4)
    with pytest.raises(UsageError, match="s is int64, it was given int32"):
        from_onnx(made, fixed={"s": np.int32([3, 4])})


def test_missing_ops_are_named_all_at_once():
    nodes = [("RandomNormalLike", "x", "a"), ("Relu", "x", "r"), ("ImageDecoder", "r", "b"),
             ("ImageDecoder", "r", "c"), helper.make_node("Fancy", ["c"], ["y"],
             domain="com.example")]  # fmt: skip
    made = model(nodes, {"x": ("f4", [1, 4, 4])}, {"y": ("f4", None)})
    with pytest.raises(UnsupportedError) as caught:
        from_onnx(made)
    text = str(caught.value)
    assert caught.value.code == "graph.unsupported_op"
    assert "uses 3 ops that have no rule (4 of 5 nodes)" in text
    assert text.index("2 × ImageDecoder") < text.index("1 × RandomNormalLike")
    assert "1 × com.example.Fancy" in text
    assert len(text.splitlines()) == 5
    assert "<g.onnx>:1 in RandomNormalLike" in text


def test_functions_of_the_model():
    body = [helper.make_node("Mul", ["v", "v"], ["q"]), helper.make_node("Softmax", ["q"], ["out"])]
    body[1].attribute.append(onnx.AttributeProto(
        name="axis", ref_attr_name="along", type=onnx.AttributeProto.INT))  # fmt: skip
    squares = helper.make_function("own", "Squares", ["v"], ["out"], body,
                                   [helper.make_opsetid("", 21)], ["along"])  # fmt: skip
    call = helper.make_node("Squares", ["x"], ["y"], domain="own", along=0)
    made = model([call], {"x": ("f4", [3, 4])}, {"y": ("f4", [3, 4])}, functions=[squares])
    made.opset_import.append(helper.make_opsetid("own", 1))
    x = floats(3, 4)
    e = np.exp((x * x).astype(float))
    np.testing.assert_allclose(evaluate(from_onnx(made), [x])[0], e / e.sum(0), 1e-5)


def test_a_function_that_calls_itself():
    body = [helper.make_node("Own", ["v"], ["out"], domain="own")]
    own = helper.make_function("own", "Own", ["v"], ["out"], body, [helper.make_opsetid("own", 1)])
    made = model(body, {"v": ("f4", [3])}, {"out": ("f4", [3])}, functions=[own])
    made.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(FileFormatError, match="the function Own calls itself"):
        from_onnx(made)


# ------------------------------------------------------------------------------------------ control


def graph_of(nodes, inputs, outputs):
    return model(nodes, inputs, outputs).graph


def test_a_branch():
    then = graph_of([("Add", "x x", "t")], {}, {"t": ("f4", [3])})
    other = graph_of([("Mul", "x x", "e")], {}, {"e": ("f4", [3])})
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    made = model([node], {"c": ("bool", []), "x": ("f4", [3])}, {"y": ("f4", [3])})
    x = floats(3)
    for c in (True, False):
        graph = agrees(made, {"c": np.asarray(c), "x": x})
        assert graph.histogram()["if"] == 1
    taken = from_onnx(made, fixed={"c": np.asarray(True)})
    assert taken.histogram() == {"input": 1, "add": 1}


def loop_body(*, stop):
    """s ← s + w · i; goes on as long as the sum of s is below a limit, where there is one."""
    nodes = [("Cast", "i", "f", {"to": 1}), ("Mul", "w f", "m"), ("Add", "s m", "s2"),
             ("Identity", "s2", "seen")]  # fmt: skip
    ends = [("ReduceSum", "s2", "total", {"keepdims": 0}), ("Less", "total limit", "c2")]
    nodes += ends if stop else [("Identity", "c", "c2")]
    return graph_of(nodes, {"i": ("i8", []), "c": ("bool", []), "s": ("f4", [3])},
                    {"c2": ("bool", []), "s2": ("f4", [3]),
                     **({} if stop else {"seen": ("f4", [3])})})  # fmt: skip


def test_a_loop_stays_a_loop():
    node = helper.make_node("Loop", ["n", "go", "x"], ["y", "all"], body=loop_body(stop=False))
    made = model([node], {"x": ("f4", [3]), "w": ("f4", [3])},
                 {"y": ("f4", [3]), "all": ("f4", [5, 3])},
                 [("n", np.asarray(np.int64(5))), ("go", np.asarray(True))])  # fmt: skip
    graph = agrees(made, {"x": floats(3), "w": floats(3)})
    (loop,) = [v for v in graph if v.op == "while"]
    assert loop.attrs.trips == 5


def test_a_loop_that_ends_by_its_condition():
    node = helper.make_node("Loop", ["", "go", "x"], ["y"], body=loop_body(stop=True))
    made = model([node], {"x": ("f4", [3]), "w": ("f4", [3])}, {"y": ("f4", [3])},
                 [("go", np.asarray(True)), ("limit", np.asarray(np.float32(10)))])  # fmt: skip
    graph = agrees(made, {"x": np.zeros(3, np.float32), "w": np.ones(3, np.float32)})
    (loop,) = [v for v in graph if v.op == "while"]
    assert loop.attrs.trips == -1


def test_a_loop_whose_state_grows_is_built_turn_by_turn():
    body = graph_of([("Concat", "s x", "s2", {"axis": 0}), ("Identity", "c", "c2")],
                    {"i": ("i8", []), "c": ("bool", []), "s": ("f4", None)},
                    {"c2": ("bool", []), "s2": ("f4", None)})  # fmt: skip
    node = helper.make_node("Loop", ["n", "go", "x"], ["y"], body=body)
    made = model([node], {"x": ("f4", [2])}, {"y": ("f4", [8])},
                 [("n", np.asarray(np.int64(3))), ("go", np.asarray(True))])  # fmt: skip
    assert agrees(made, {"x": floats(2)}).outputs[0].shape == (8,)


def test_a_loop_of_unknown_length_cannot_collect():
    node = helper.make_node("Loop", ["n", "", "x"], ["y", "all"], body=loop_body(stop=False))
    made = model([node], {"n": ("i8", []), "x": ("f4", [3]), "w": ("f4", [3])},
                 {"y": ("f4", [3]), "all": ("f4", None)})  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"\(`n`\) is not known.*collects"):
        from_onnx(made)
    assert from_onnx(made, fixed={"n": np.asarray(np.int64(2))}).outputs[1].shape == (2, 3)


# ---------------------------------------------------------------------------------------- bad input


def test_what_is_no_model(tmp_path):
    data = perceptron().SerializeToString()
    with pytest.raises(MissingFileError, match="there is no file"):
        from_onnx(tmp_path / "none.onnx")
    for bad in (b"", b"hello", data[: len(data) // 2], b"\x08\x07"):
        (tmp_path / "bad.onnx").write_bytes(bad)
        with pytest.raises(FileFormatError) as caught:
            from_onnx(tmp_path / "bad.onnx")
        assert caught.value.code == "graph.onnx_file"


@pytest.mark.parametrize(("nodes", "says"), [
    ([("Relu", "ghost", "y")], "`ghost` is read before it is made"),
    ([("Relu", "x x", "y")], "Relu has 2 inputs, it takes 1 to 1"),
    ([("Add", "x", "y")], "Add has 1 inputs, it takes 2 to 2"),
    ([("Relu", "x", "y", {"alpha": 1.0})], "Relu has no attribute `alpha`"),
    ([("Transpose", "x", "y", {"perm": 1})], "`perm` of Transpose has the wrong type"),
    ([("Concat", "x x", "y")], "Concat lacks its attribute `axis`"),
    ([("Cast", "x", "y", {"to": 99})], "there is no element type 99"),
    ([("Concat", "x x", "y", {"axis": 5})], "`axis` is 5, there are 2 axes"),
    ([("MaxPool", "x", "y", {"kernel_shape": [2, 2]})], "MaxPool"),
    ([("Transpose", "x", "y", {"perm": [0, 0]})], "transpose"),
    ([("Relu", "x", "y"), ("Neg", "x", "y")], "`y` is made twice"),
])  # fmt: skip
def test_nodes_that_break_their_schema(nodes, says):
    with pytest.raises(TrnError, match=says.replace("(", r"\(")) as caught:
        from_onnx(model(nodes, {"x": ("f4", [4, 6])}, {"y": ("f4", None)}))
    assert len(str(caught.value).splitlines()) <= 5
    assert caught.value.at is not None


def test_versions_out_of_range():
    for version in (1, 5, 99):
        made = model([("Relu", "x", "y")], {"x": ("f4", [2])}, {"y": ("f4", [2])}, opset=version)
        with pytest.raises(UnsupportedError, match=f"version {version}") as caught:
            from_onnx(made)
        assert caught.value.code == "graph.onnx_opset"
    made = model([("Relu", "x", "y")], {"x": ("f4", [2])}, {"y": ("f4", [2])})
    del made.opset_import[:]
    with pytest.raises(FileFormatError, match="which version"):
        from_onnx(made)


def test_outputs_of_other_sizes_than_the_model_says_are_refused():
    for told in ([3, 2], [2], [2, 4], [2, 3, 1], []):
        made = model([("Relu", "x", "y")], {"x": ("f4", [2, 3])}, {"y": ("f4", told)})
        with pytest.raises(FileFormatError, match=r"the output y is \[2, 3\], the model says "):
            from_onnx(made)
    for told in (None, [2, 3], ["rows", 3], [None, None]):
        made = model([("Relu", "x", "y")], {"x": ("f4", [2, 3])}, {"y": ("f4", told)})
        assert from_onnx(made).outputs[0].shape == (2, 3)


def test_text_and_sequences_are_refused():
    text = model([("Identity", "x", "y")], {}, {"y": ("f4", [1])})
    text.graph.input.append(helper.make_tensor_value_info("x", TensorProto.STRING, [1]))
    with pytest.raises(UnsupportedError, match="a tensor holds text"):
        from_onnx(text)
    listed = model([("SequenceLength", "x", "y")], {}, {"y": ("i8", [])})
    listed.graph.input.append(helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None))
    with pytest.raises(UnsupportedError, match="the input x is a sequence"):
        from_onnx(listed)


def test_an_output_of_another_dtype_than_the_model_says():
    made = model([("Relu", "x", "y")], {"x": ("f4", [2])}, {"y": ("f8", [2])})
    with pytest.raises(FileFormatError, match="y is float32, the model says float64"):
        from_onnx(made)


def sources():
    """Files to damage: layers, a loop, a branch, shape arithmetic, an LSTM."""
    body = helper.make_node("Loop", ["n", "", "x"], ["y", "all"], body=loop_body(stop=False))
    loop = model([body], {"x": ("f4", [3]), "w": ("f4", [3])}, {"y": ("f4", [3])},
                 [("n", np.asarray(np.int64(5)))])  # fmt: skip
    conv = model([("Conv", "x w", "c", {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
                  ("BatchNormalization", "c s b m v", "n"),
                  helper.make_node("Resize", ["n", "", "z"], ["r"], mode="linear"),
                  ("Softmax", "r", "y", {"axis": 1})],
                 {"x": ("f4", [1, 2, 8, 8])}, {"y": ("f4", None)},
                 [("w", floats(4, 2, 3, 3)), *((k, np.ones(4, np.float32)) for k in "sbmv"),
                  ("z", np.float32([1, 1, 2, 2]))])  # fmt: skip
    lstm = model([("LSTM", "x w r", "y", {"hidden_size": 3})], {"x": ("f4", [2, 1, 4])},
                 {"y": ("f4", None)},
                 [("w", floats(1, 12, 4)), ("r", floats(1, 12, 3))])  # fmt: skip
    return [m.SerializeToString() for m in (perceptron(), loop, conv, lstm)]


def damaged(data, rng):
    """Some bytes changed, dropped or doubled."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, kind = rng.randrange(len(made)), rng.randrange(4)
        if kind == 0:
            made[at] = rng.randrange(256)
        elif kind == 1:
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del made[at : at + rng.randrange(1, 4)]
        else:
            made[at:at] = made[at : at + rng.randrange(1, 8)]
    return bytes(made)


def test_damaged_files_are_refused_or_read():
    rng, refused = random.Random(7), []
    files = sources()
    for _ in range(1200):
        try:
            from_onnx(damaged(rng.choice(files), rng))
        except TrnError as error:
            refused.append(error)
    assert 100 < len(refused) < 1200
    assert {e.code for e in refused if not e.code.startswith("graph.") or not e.fix} == set()


NUMBERS = (-2, -1, 0, 1, 2, 3, 7, 1 << 20, 1 << 40)


def odd_attribute(made, node, rng):
    for each in node.attribute[:1]:
        if each.ints:
            each.ints[rng.randrange(len(each.ints))] = rng.choice(NUMBERS)
        elif each.type == onnx.AttributeProto.INT:
            each.i = rng.choice(NUMBERS)
        elif each.type == onnx.AttributeProto.STRING:
            each.s = rng.choice((b"", b"linear", b"forward", b"x"))


def odd_input(made, node, rng):
    names = [*made.graph.node[0].input, *node.output, "", "ghost"]
    node.input[rng.randrange(len(node.input))] = rng.choice(names)


def odd_op(made, node, rng):
    node.op_type = rng.choice(("Add", "Conv", "MatMul", "Reshape", "Gather", "Softmax"))


def odd_weight(made, node, rng):
    dims = rng.choice(made.graph.initializer).dims
    if dims:
        dims[rng.randrange(len(dims))] = rng.choice(NUMBERS)


def odd_shape(made, node, rng):
    dims = made.graph.input[0].type.tensor_type.shape.dim
    dims[rng.randrange(len(dims))].dim_value = rng.choice(NUMBERS)


def odd_version(made, node, rng):
    made.opset_import[0].version = rng.randrange(5, 30)


def disturbed(data, rng):
    """A model that can be parsed, with numbers, names and ops in wrong places."""
    made = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        odd = rng.choice((odd_attribute, odd_input, odd_op, odd_weight, odd_shape, odd_version))
        odd(made, rng.choice(made.graph.node), rng)
    return made


def test_disturbed_models_are_refused_or_read():
    rng, refused = random.Random(3), []
    files = sources()
    for _ in range(800):
        try:
            from_onnx(disturbed(rng.choice(files), rng))
        except TrnError as error:
            refused.append(error)
    assert 100 < len(refused) < 800
    assert {e.code for e in refused if not e.code.startswith("graph.")} == set()


# -------------------------------------------------------------------------------------- from torch


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # torch's own
def test_a_model_that_torch_exported(tmp_path):
    torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
    pytest.importorskip("onnxscript", reason="torch exports ONNX with the package onnxscript")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8),
                              torch.nn.GELU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
                              torch.nn.Linear(8 * 16, 10)).eval()  # fmt: skip
    x = torch.randn(2, 3, 8, 8)
    torch.onnx.export(net, (x,), tmp_path / "net.onnx", dynamo=True)
    graph, wanted = from_onnx(tmp_path / "net.onnx"), net(x).detach().numpy()
    np.testing.assert_allclose(evaluate(graph, [x.numpy()])[0], wanted, 1e-4, 1e-5)
    compiled = runtime.load(compiler.compile(straighten(graph)))
    np.testing.assert_allclose(compiled(x.numpy()), wanted, 1e-4, 1e-4)


# --------------------------------------------------------------------------- detectors and the like


def test_regions_between_pixels():
    """Of a plane a·y + b·x + c the mean of points inside a bin is the plane at the bin's middle."""
    y, x = np.mgrid[:12, :10].astype(np.float32)
    image = np.stack([2 * y + 3 * x + 1, x - y])[None]
    boxes, which = np.float32([[1, 2, 7, 8], [2.5, 0.5, 8.5, 6.5]]), np.int64([0, 0])
    made = model([("RoiAlign", "x boxes which", "y", {
        "output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 1.0})],
        {"x": ("f4", [1, 2, 12, 10]), "boxes": ("f4", [2, 4])}, {"y": ("f4", None)},
        [("which", which)])  # fmt: skip
    found = evaluate(from_onnx(made), [image, boxes])[0]
    for box, row in zip(boxes - 0.5, found, strict=True):
        middle_x = box[0] + (np.arange(2) + 0.5) * (box[2] - box[0]) / 2
        middle_y = (box[1] + (np.arange(3) + 0.5) * (box[3] - box[1]) / 3)[:, None]
        np.testing.assert_allclose(row[0], 2 * middle_y + 3 * middle_x + 1, 1e-5)
        np.testing.assert_allclose(row[1], middle_x - middle_y, 1e-5, 1e-5)
    adaptive = model([("RoiAlign", "x boxes which", "y", {})],
                     {"x": ("f4", [1, 2, 12, 10]), "boxes": ("f4", [2, 4])}, {"y": ("f4", None)},
                     [("which", which)])  # fmt: skip
    with pytest.raises(UnsupportedError, match="as many points as its size says"):
        from_onnx(adaptive)


def test_a_convolution_whose_taps_do_not_move_is_plain():
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=s).astype(np.float32) for s in ((2, 4, 6, 5), (6, 2, 3, 2), (6,)))
    shape = {"pads": [1, 0, 1, 1], "strides": [2, 1], "dilations": [1, 2], "group": 2}
    made = model([("Conv", "x w b", "y", shape)], {"x": ("f4", x.shape)}, {"y": ("f4", None)},
                 [("w", w), ("b", b)])  # fmt: skip
    plain = evaluate(from_onnx(made), [x])[0]
    offset = np.zeros((2, 2 * 6 * 2, *plain.shape[2:]), np.float32)
    mask = np.full((2, 2 * 6, *plain.shape[2:]), 2.0, np.float32)
    deformed = from_onnx(model(
        [("DeformConv", "x w o b m", "y", {**shape, "offset_group": 2})],
        {"x": ("f4", x.shape), "o": ("f4", offset.shape), "m": ("f4", mask.shape)},
        {"y": ("f4", None)}, [("w", w), ("b", b)]))  # fmt: skip
    bias = b[:, None, None]
    np.testing.assert_allclose(evaluate(deformed, [x, offset, mask])[0] - bias,
                               2 * (plain - bias), 1e-5, 1e-5)  # fmt: skip
    # A whole pixel down is the image moved a pixel up.
    offset.reshape(2, 2, 6, 2, *plain.shape[2:])[:, :, :, 0] = 1
    moved = np.concatenate([x[:, :, 1:], np.zeros_like(x[:, :, :1])], 2)
    mask[:] = 1
    wanted = evaluate(deformed, [moved, np.zeros_like(offset), mask])[0]
    inside = evaluate(deformed, [x, offset, mask])[0]
    np.testing.assert_allclose(inside[:, :, 1:], wanted[:, :, 1:], 1e-5, 1e-5)


@pytest.mark.parametrize("size", [0, 1, 2, 5, 9])
def test_determinants(size):
    x = np.random.default_rng(size).normal(size=(3, 2, size, size)).astype(np.float32)
    if size > 1:
        x[0, 0, :, 1] = x[0, 0, :, 0]  # none
        x[1, 1, 0, 0] = 0.0  # rows change places
    made = from_onnx(model([("Det", "x", "y")], {"x": ("f4", x.shape)}, {"y": ("f4", None)}))
    np.testing.assert_allclose(evaluate(made, [x])[0], np.linalg.det(x.astype(float)), 1e-4, 1e-5)


def test_boxes_are_kept_when_they_are_known():
    boxes = np.float32([[[0, 0, 2, 2], [0, 0, 2, 1.9], [5, 5, 6, 6], [1, 1, 0, 0]]])
    scores = np.float32([[[0.5, 0.9, 0.1, 0.8]]])
    limits = [("most", np.int64([3])), ("iou", np.float32([0.5])), ("least", np.float32([0.2]))]
    nodes = [("NonMaxSuppression", "boxes scores most iou least", "y")]
    made = from_onnx(model(nodes, {}, {"y": ("i8", None)},
                           [("boxes", boxes), ("scores", scores), *limits]))  # fmt: skip
    assert evaluate(made, [])[0].tolist() == [[0, 0, 1], [0, 0, 3]]
    open_ = model(nodes, {"boxes": ("f4", [1, 4, 4]), "scores": ("f4", [1, 1, 4])},
                  {"y": ("i8", None)}, limits)  # fmt: skip
    with pytest.raises(UnsupportedError, match="which boxes are kept") as error:
        from_onnx(open_)
    assert error.value.code == "graph.onnx_unknown"


def test_many_loops_that_are_built_turn_by_turn_are_not_deep():
    """The shape of what a turn adds is its number, so none of the sixty can be one op."""
    body = model(
        [("Unsqueeze", "i zero", "long"), ("Expand", "one long", "more"),
         ("Concat", "s more", "t", {"axis": 0}), ("Identity", "go", "on")],
        {"i": ("i8", []), "go": ("?", []), "s": ("f4", ["n"])},
        {"on": ("?", []), "t": ("f4", ["m"])},
        {"zero": np.array([0]), "one": np.ones(1, np.float32)}.items(),
    ).graph  # fmt: skip
    loops = [helper.make_node("Loop", ["count", "", "x"], [f"y{k}"], body=body) for k in range(60)]
    join = ("Concat", " ".join(f"y{k}" for k in range(60)), "y", {"axis": 0})
    source = model([*loops, join], {"x": ("f4", [2])}, {"y": ("f4", [180])},
                   {"count": np.array(2)}.items())  # fmt: skip
    x = floats(2)
    (found,) = evaluate(from_onnx(source), [x])  # turn 0 adds nothing, turn 1 a one
    np.testing.assert_array_equal(found, np.tile([*x, 1], 60))


@pytest.mark.parametrize("saturate", [0, 1])
def test_floats_of_8_bits_saturate_where_the_node_says(saturate):
    kind = np.dtype(ml_dtypes.float8_e4m3fn)
    source = model([("QuantizeLinear", "x s z", "y", {"saturate": saturate})],
                   {"x": ("f4", [5])}, {"y": (kind, [5])},
                   {"s": np.float32(2), "z": np.zeros((), kind)}.items())  # fmt: skip
    given = np.array([2000, -2000, 3, np.inf, np.nan], np.float32)
    (found,) = evaluate(from_onnx(source), [given])
    lost = np.nan if not saturate else 448
    np.testing.assert_array_equal(found.astype(np.float32), [lost, -lost, 1.5, lost, np.nan])
