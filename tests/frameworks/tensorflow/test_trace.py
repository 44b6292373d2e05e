"""`opentrn.frameworks.tensorflow`: functions, Keras models and SavedModels on a simulated chip."""

import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from click.testing import CliRunner

from opentrn import runtime
from opentrn.base import (
    FileFormatError,
    MissingFileError,
    NotBuiltError,
    UnsupportedError,
    UsageError,
    Where,
)
from opentrn.cli import main
from opentrn.frameworks import tensorflow as neuron
from opentrn.frameworks.judge import NarrowedWarning
from opentrn.graph import evaluate

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TensorFlow's and Keras's own, about their insides
    tf = pytest.importorskip("tensorflow", reason="the extra `tensorflow` is not installed")
    keras = pytest.importorskip("keras", reason="the extra `tensorflow` is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def near(found, wanted, within=1e-5):
    wanted = np.asarray(wanted)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(np.asarray(found), wanted, within, within * np.abs(wanted).max())


def test_a_function_with_a_tree_of_results():
    @tf.function
    def f(x, y, times):
        z = tf.linalg.matmul(x, y)
        return {"sum": z + 1.0, "rest": (tf.nn.softmax(z) * times, None)}

    x, y = floats(3, 4), floats(4, 5)
    traced = neuron.trace(f, (x, tf.constant(y), 3))
    found = traced(x, y, 3)
    z = x.astype(float) @ y
    near(found["sum"].numpy(), (z + 1).astype(np.float32))
    e = np.exp(z - z.max(-1, keepdims=True))
    near(found["rest"][0].numpy(), (3 * e / e.sum(-1, keepdims=True)).astype(np.float32))
    assert found["rest"][1] is None
    assert traced.calls == 1
    assert traced.device_seconds > 0


def test_a_call_gives_what_the_example_gave():
    def f(b, a, times=2):
        return b * 10.0 + a * times

    x, y = floats(3), floats(3)
    traced = neuron.trace(f, (x, y, 3))
    near(traced(x, y).numpy(), x * 10 + y * 3)
    near(traced(x, y, 3).numpy(), x * 10 + y * 3)
    with pytest.raises(UsageError, match="traced for 3; it was given 5"):
        traced(x, y, 5)
    with pytest.raises(UsageError, match="by place"):
        traced(b=x, a=y)
    named = neuron.trace(f, {"b": x, "a": y})
    near(named(a=y, b=x).numpy(), x * 10 + y * 2)


def test_a_training_step_trains_the_variables():
    w, b = tf.Variable(floats(6, 3), name="w"), tf.Variable(np.zeros(3, np.float32), name="b")
    count = tf.Variable(0, dtype=tf.int64, name="count")
    frozen = tf.Variable(floats(3), name="frozen")

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w + b + frozen - y) ** 2)
        for v, grad in zip((w, b), tape.gradient(loss, [w, b]), strict=True):
            v.assign_sub(0.1 * grad)
        count.assign_add(1)
        return loss

    x, y = floats(8, 6), floats(8, 3)
    W, B = w.numpy().astype(float), b.numpy().astype(float)
    traced = neuron.trace(step, (tf.TensorSpec((8, 6)), tf.TensorSpec((8, 3))))
    assert [v.attrs.label for v in traced.lowered.graph.inputs[2:]] == ["w", "b", "frozen", "count"]
    assert traced.lowered.graph.output_names == ("output0", "new:w", "new:b", "new:count")
    for turn in range(3):
        apart = x @ W + B + frozen.numpy() - y
        loss = traced(x, y)
        near(loss.numpy(), np.float32((apart**2).mean()))
        W, B = W - 0.1 * 2 / 24 * x.T @ apart, B - 0.1 * 2 / 24 * apart.sum(0)
        near(w.numpy(), W.astype(np.float32))
        near(b.numpy(), B.astype(np.float32))
        assert count.numpy() == turn + 1


def test_values_name_the_users_line():
    def f(x):
        y = tf.nn.relu(x)
        return tf.reduce_sum(y)

    graph = neuron.from_tensorflow(tf.function(f), (tf.TensorSpec((4, 4)),))
    (relu,) = [v for v in graph if v.op == "maximum"]
    assert os.path.samefile(relu.where.file, __file__)
    assert relu.where.text == "y = tf.nn.relu(x)"


def test_loops_and_branches():
    def f(x, n):
        total = tf.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s * 0.5 + x), (0, x))[1]
        return tf.cond(tf.reduce_sum(x) > 0, lambda: total, lambda: -total)

    x = floats(4)
    kinds = tf.TensorSpec((4,)), tf.TensorSpec((), tf.int32)
    graph = neuron.from_tensorflow(tf.function(f), kinds)
    for given in (x, -x):
        want = given
        for _ in range(5):
            want = want * np.float32(0.5) + given
        want = want if given.sum() > 0 else -want
        near(evaluate(graph, [given, np.int32(5)])[0], want)


def classifier():
    keras.utils.set_random_seed(0)
    return keras.Sequential([
        keras.Input((8, 8, 1), name="image"),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.BatchNormalization(), keras.layers.MaxPooling2D(), keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ])  # fmt: skip


def test_a_keras_model():
    model = classifier()
    x = floats(2, 8, 8, 1)
    traced = neuron.trace(model, x)
    near(traced(x).numpy(), model(x).numpy(), 1e-4)
    model.layers[-1].bias.assign(np.arange(10, dtype=np.float32))  # values are read at each call
    near(traced(x).numpy(), model(x).numpy(), 1e-4)
    kept = neuron.from_tensorflow(model, (x,))
    assert len(kept.inputs) == 1
    assert len(kept.constants) >= 8
    near(evaluate(kept, [x])[0], model(x).numpy(), 1e-4)


def test_a_causal_mask():
    """Attention that looks back alone: TensorFlow writes the mask as bits."""
    x, one = floats(2, 6, 8), keras.Input(batch_shape=(2, 6, 8))
    model = keras.Model(one, keras.layers.MultiHeadAttention(2, 4)(one, one, use_causal_mask=True))
    found = neuron.trace(model, x)(x).numpy()
    near(found, model(x).numpy(), 1e-4)
    x[:, 4:] = 0
    near(neuron.trace(model, x)(x).numpy()[:, :4], found[:, :4], 1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "net"
    model = classifier()
    model.export(path, verbose=False)
    x = floats(2, 8, 8, 1)
    return path, x, model(x).numpy()


def test_a_saved_model(folder):
    path, x, wanted = folder
    found = neuron.trace(path, x)(x)
    near(found["output_0"].numpy(), wanted, 1e-4)
    with pytest.raises(NotBuiltError, match=r"shape \(None, 8, 8, 1\)") as caught:
        neuron.from_saved_model(path)
    assert caught.value.code == "graph.dynamic_shape"
    assert "--shape image" in caught.value.fix
    graph = neuron.from_saved_model(path, {"image": (2, 8, 8, 1)})
    near(evaluate(graph, [x])[0], wanted, 1e-4)
    assert graph.name == "net"
    assert graph.output_names == ("output_0",)


def test_commands_take_a_saved_model(folder, tmp_path):
    path, x, wanted = folder
    run = CliRunner()
    done = run.invoke(main, ["compile", str(path), "--shape", "image=2,8,8,1", "--dtype",
                             "float32", "-o", str(tmp_path / "x.trn")])  # fmt: skip
    assert done.exit_code == 0, done.output
    near(runtime.load(tmp_path / "x.trn")(x), wanted, 1e-4)
    told = run.invoke(main, ["analyze", str(path), "--shape", "image=2,8,8,1", "--json"])
    assert told.exit_code == 0, told.output
    assert "convolution" in {v["op"] for v in json.loads(told.output)["verdicts"]}
    assert run.invoke(main, ["analyze", str(path)]).exit_code == 1
    typed = [sys.executable, "-m", "opentrn", "analyze", str(path), "--shape", "x"]
    assert subprocess.run(typed, capture_output=True, check=False).returncode == 2


def test_commands_take_a_function(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import tensorflow as tf\nw = tf.Variable(tf.ones((4, 2)))\n"
        "def build():\n    return tf.function(lambda x: x @ w), tf.TensorSpec((3, 4))\n"
    )
    done = CliRunner().invoke(main, ["compile", f"{tmp_path}/mine.py:build", "--dtype", "float32",
                                     "-o", str(tmp_path / "x.trn")])  # fmt: skip
    assert done.exit_code == 0, done.output
    x = floats(3, 4)
    near(runtime.load(tmp_path / "x.trn")(x), np.repeat(x.sum(1, keepdims=True), 2, 1))


# ---------------------------------------------------------------------------------------- bad input


def test_ops_that_xla_has_not_are_named():
    def f(x):
        return tf.strings.length(tf.strings.as_string(x))

    with pytest.raises(UnsupportedError, match="XLA has no kernel for AsString") as caught:
        neuron.trace(tf.function(f), tf.TensorSpec((4,)))
    assert caught.value.code == "frameworks.tf_unsupported"
    assert caught.value.at.text == "return tf.strings.length(tf.strings.as_string(x))"
    assert len(str(caught.value).splitlines()) <= 5


def test_shapes_that_are_given():
    f = tf.function(lambda x, n: tf.reshape(x, (n, -1)))
    with pytest.raises(UnsupportedError, match=r"\(Reshape\) depends") as caught:
        neuron.trace(f, (tf.TensorSpec((4, 3)), tf.TensorSpec((), tf.int32)))
    assert caught.value.code == "frameworks.tf_constant"
    assert caught.value.at.text == "f = tf.function(lambda x, n: tf.reshape(x, (n, -1)))"
    assert neuron.trace(f, (tf.TensorSpec((4, 3)), 2)).lowered.graph.outputs[0].shape == (2, 6)


def test_sizes_that_vary_and_64_bits():
    f = tf.function(lambda x: x * 2)
    with pytest.raises(NotBuiltError, match=r"shape \(None, 3\)"):
        neuron.trace(f, tf.TensorSpec((None, 3)))
    with pytest.raises(UnsupportedError, match="input arg0, output output0: float64") as caught:
        neuron.trace(f, tf.TensorSpec((2, 3), tf.float64))
    assert caught.value.neuron == "NCC_ESPP004"
    with pytest.warns(NarrowedWarning, match=r"1 of the ops on int64 \(multiply\)"):
        traced = neuron.trace(f, tf.TensorSpec((3,), tf.int64))  # as 32 bits
    assert traced(np.int64([1, -2, 3])).numpy().tolist() == [2, -4, 6]


def test_plain_functions_are_read_by_autograph():
    def f(x):
        total = tf.constant(0.0)
        for i in tf.range(5):
            if x[i, 0] < 0:
                break
            total += x[i, 1]
        while total > 3:
            total -= 1.5
        if total > 1:
            return total * 2, x[i]
        return total, x[0]

    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(5, 7)).astype(np.float32)
        x[: seed + 1, 0] = 1
        found, wanted = neuron.trace(f, tf.constant(x))(x), tf.function(f)(tf.constant(x))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_our_own_errors_keep_their_code_and_line_and_those_of_others_their_class():
    def refuse(x):
        raise NotBuiltError("not yet", code="nki.cores", at=Where("model.py", 7, "f"))

    def careless(x):
        try:
            raise UsageError("handled", code="frameworks.tf_model")
        except UsageError:
            return {}["absent"]

    whole = tf.function(refuse, autograph=False)
    for f in (refuse, whole):
        with pytest.raises(NotBuiltError, match="not yet") as error:
            neuron.trace(f, floats(2))
        assert (error.value.code, str(error.value.at)) == ("nki.cores", "model.py:7 in f")
    with pytest.raises(KeyError, match="absent"):
        neuron.trace(careless, floats(2))


def test_arguments_that_hold_no_numbers_are_refused():
    for given in (tf.constant(["text"]), tf.ragged.constant([[1.0, 2.0], [3.0]]),
                  tf.sparse.from_dense([[0.0, 1.0]])):  # fmt: skip
        with pytest.raises(UnsupportedError) as error:
            neuron.trace(lambda x: x, (given,))
        assert error.value.code == "frameworks.tf_unsupported"


def test_all_refusals_come_at_once_each_with_its_line():
    def several(x):
        a = tf.linalg.cholesky(x)  # one
        b = tf.math.real(tf.signal.rfft(x))  # two
        c = tf.linalg.triangular_solve(x, x)  # three
        return a, b, c, tf.tanh(x)

    with pytest.raises(UnsupportedError) as error:
        neuron.trace(several, tf.TensorSpec((4, 4)))
    lines = error.value.what.splitlines()
    for op, mark in (("cholesky", "one"), ("fft", "two"), ("triangular_solve", "three")):
        (row,) = [n for n, line in enumerate(lines) if f" × {op}:" in line]
        assert f"# {mark}" in lines[row + 1]
    assert "× tanh" not in error.value.what


def test_what_is_no_model():
    with pytest.raises(UsageError, match="trace: a int"):
        neuron.trace(3, floats(2))
    with pytest.raises(UsageError, match="no example was given"):
        neuron.trace(tf.function(lambda x: x))
    with pytest.raises(UsageError, match="there is no precision float12"):
        neuron.trace(tf.function(lambda x: x), floats(2), dtype="float12")
    traced = neuron.trace(tf.function(lambda x: x + 1), floats(2))
    with pytest.raises(UsageError, match=r"takes float32\[2\]; it was given float32\[3\]"):
        traced(floats(3))


def test_folders_that_are_no_saved_model(tmp_path, folder):
    with pytest.raises(MissingFileError, match="is no SavedModel folder"):
        neuron.trace(tmp_path)
    path, *_ = folder
    whole = (path / "saved_model.pb").read_bytes()
    for bad in (b"", b"nonsense", whole[: len(whole) // 2]):
        (tmp_path / "saved_model.pb").write_bytes(bad)
        with pytest.raises((FileFormatError, UsageError)) as caught:
            neuron.trace(tmp_path)
        assert len(str(caught.value).splitlines()) <= 5


def test_a_saved_model_with_text(tmp_path):
    module = tf.Module()
    module.f = tf.function(lambda x: tf.strings.to_number(tf.strings.as_string(x)),
                           input_signature=[tf.TensorSpec((3,))])  # fmt: skip
    tf.saved_model.save(module, tmp_path / "text", signatures=module.f)
    with pytest.raises(UnsupportedError, match="XLA has no kernel for AsString"):
        neuron.from_saved_model(tmp_path / "text")


def test_all_frameworks_in_one_process():
    pytest.importorskip("torch", reason="the extra `torch` is not installed")
    code = """
import numpy as np
import tensorflow as tf
import torch
import jax
from opentrn.frameworks import jax as nj, tensorflow as nt, torch as nn
x = np.float32([[1, -2], [3, 4]])
one = nt.trace(tf.function(lambda x: tf.nn.relu(x @ x)), x)(x).numpy()
two = np.asarray(nj.jit(lambda x: jax.nn.relu(x @ x))(x))
three = torch.compile(lambda x: torch.relu(x @ x), backend="neuron")(torch.tensor(x)).numpy()
want = np.maximum(x @ x, 0)
assert (one == want).all() and (two == want).all() and (three == want).all(), (one, two, three)
print("all three")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "all three", done.stderr[-2000:]
