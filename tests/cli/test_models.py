"""What `opentrn compile` and `opentrn analyze` take as a model: ONNX files, names in modules."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from opentrn import runtime
from opentrn.cli import main

SOURCE = """
import jax
import numpy as np

def build():
    return (lambda x: jax.nn.relu(x @ x)), jax.ShapeDtypeStruct((4, 4), np.float32)
"""


def opentrn(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def net(tmp_path):
    onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    helper = onnx.helper
    w = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
            for name, shape in (("x", ["batch", 8]), ("y", ["batch", 3]))]  # fmt: skip
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
             helper.make_node("Softmax", ["a"], ["y"])]  # fmt: skip
    weights = [onnx.numpy_helper.from_array(w, "w")]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]),
              tmp_path / "net.onnx")  # fmt: skip
    return tmp_path / "net.onnx", w


def test_an_onnx_file_compiles_and_runs(net, tmp_path):
    path, w = net
    done = opentrn("compile", path, "--shape", "x=4,8", "--dtype", "float32", "-o",
                   tmp_path / "x.trn")  # fmt: skip
    assert done.exit_code == 0, done.output
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    e = np.exp(x.astype(float) @ w)
    np.testing.assert_allclose(runtime.load(tmp_path / "x.trn")(x), e / e.sum(1, keepdims=True),
                               1e-4)  # fmt: skip


def test_an_onnx_file_is_analyzed(net):
    path, _ = net
    told = json.loads(opentrn("analyze", path, "--shape", "x=4,8", "--json").output)
    assert told["runs"]
    assert told["model"] == "net"
    by_op = {v["op"]: v for v in told["verdicts"]}
    assert by_op["dot_general"]["places"] == [{"file": "<net.onnx>", "line": 1}]
    assert {"dot_general", "softmax"} <= set(by_op)


def test_open_shapes_are_refused_with_the_option(net):
    path, _ = net
    done = opentrn("analyze", path)
    assert done.exit_code == 1
    assert "the input x has sizes that vary: batch" in done.output
    assert "--shape x=" in done.output
    wrong = opentrn("analyze", path, "--shape", "x=4,8", "--shape", "z=1")
    assert "no input z; it has x" in wrong.output
    for text in ("x", "=3", "x=a,b", "x=-1"):
        assert "is no shape" in opentrn("analyze", path, "--shape", text).output


def test_a_damaged_onnx_file(net):
    path, _ = net
    path.write_bytes(path.read_bytes()[:60])
    done = opentrn("compile", path)
    assert done.exit_code == 1
    assert "is no ONNX model, or it is cut off" in done.output
    assert "opentrn explain graph.onnx_file" in done.output


def test_a_name_in_a_module(tmp_path, monkeypatch):
    pytest.importorskip("jax", reason="the extra `jax` is not installed")
    (tmp_path / "package_of_mine").mkdir()
    (tmp_path / "package_of_mine" / "__init__.py").write_text("")
    (tmp_path / "package_of_mine" / "model.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    done = opentrn("compile", "package_of_mine.model:build", "--dtype", "float32", "-o", "x.trn")
    assert done.exit_code == 0, done.output
    x = np.eye(4, dtype=np.float32) * np.float32([1, -1, 2, -2])
    np.testing.assert_array_equal(runtime.load("x.trn")(x), x @ x)
    assert "Python does not find" in opentrn("analyze", "no_such.module:build").output
    assert "has not" in opentrn("analyze", "package_of_mine.model:other").output
    assert "its shapes are its own" in opentrn(
        "analyze", "package_of_mine.model:build", "--shape", "x=1").output
