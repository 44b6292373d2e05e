"""One network written in torch, JAX and TensorFlow: the same work, the same numbers, the same time
on the chip."""

import math
import warnings
from collections import Counter

import numpy as np
import pytest

from opentrn import compiler, runtime
from opentrn.frameworks import tensorflow as neuron
from opentrn.graph import evaluate, from_torch, straighten

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TensorFlow's own, about its insides
    tf = pytest.importorskip("tensorflow", reason="the extra `tensorflow` is not installed")
torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
RNG = np.random.default_rng(0)
BATCH, STEPS, WIDTH, HIDDEN = 2, 16, 32, 64
WEIGHTS = {name: RNG.standard_normal(shape).astype(np.float32) / 8 for name, shape in {
    "q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "up": (WIDTH, HIDDEN),
    "down": (HIDDEN, WIDTH)}.items()}  # fmt: skip
X = RNG.standard_normal((BATCH, STEPS, WIDTH)).astype(np.float32)
WORK = ("dot_general", "convolution")


class Block(torch.nn.Module):
    """Attention of one head, then two layers, both added to what they read."""

    def __init__(self):
        super().__init__()
        for name, w in WEIGHTS.items():
            self.register_buffer(name, torch.tensor(w))

    def forward(self, x):
        q, k, v = x @ self.q, x @ self.k, x @ self.v
        x = x + torch.softmax(q @ k.transpose(1, 2) / math.sqrt(WIDTH), -1) @ v
        return x + torch.tanh(x @ self.up) @ self.down


def in_jax(x):
    q, k, v = x @ WEIGHTS["q"], x @ WEIGHTS["k"], x @ WEIGHTS["v"]
    x = x + jax.nn.softmax(q @ k.transpose(0, 2, 1) / math.sqrt(WIDTH), -1) @ v
    return x + jax.numpy.tanh(x @ WEIGHTS["up"]) @ WEIGHTS["down"]


def in_tensorflow(x):
    q, k, v = x @ WEIGHTS["q"], x @ WEIGHTS["k"], x @ WEIGHTS["v"]
    x = x + tf.nn.softmax(q @ tf.transpose(k, (0, 2, 1)) / math.sqrt(WIDTH), -1) @ v
    return x + tf.tanh(x @ WEIGHTS["up"]) @ WEIGHTS["down"]


@pytest.fixture(scope="module")
def graphs():
    from opentrn.frameworks.jax import from_jax

    kind = jax.ShapeDtypeStruct(X.shape, X.dtype)
    return {
        "torch": from_torch(Block(), (torch.tensor(X),)),
        "jax": from_jax(in_jax, kind),
        "tensorflow": neuron.from_tensorflow(tf.function(in_tensorflow), (tf.TensorSpec(X.shape),)),
    }


def in_float64():
    w = {k: v.astype(float) for k, v in WEIGHTS.items()}
    x = X.astype(float)
    scores = x @ w["q"] @ (x @ w["k"]).swapaxes(1, 2) / math.sqrt(WIDTH)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    x = x + e / e.sum(-1, keepdims=True) @ (x @ w["v"])
    return x + np.tanh(x @ w["up"]) @ w["down"]


def test_the_numbers_are_the_same(graphs):
    for graph in graphs.values():
        np.testing.assert_allclose(evaluate(graph, [X])[0], in_float64(), 1e-5, 1e-5)


def test_the_work_is_the_same(graphs):
    tokens = BATCH * STEPS
    products = 3 * [2 * tokens * WIDTH * WIDTH] + 2 * [2 * tokens * STEPS * WIDTH]
    products += 2 * [2 * tokens * WIDTH * HIDDEN]
    for graph in graphs.values():
        spelled = straighten(graph)
        assert sorted(v.flops for v in spelled if v.op in WORK) == sorted(products)
        assert Counter(v.op for v in spelled)["tanh"] == 1


def test_the_time_on_the_chip_is_the_same(graphs):
    times = {}
    for name, graph in graphs.items():
        model = runtime.load(compiler.compile(straighten(graph), target="trn2", dtype="float32"))
        np.testing.assert_allclose(model(X), in_float64(), 1e-4, 1e-4)
        times[name] = model.time().total_ns
    assert max(times.values()) <= 1.1 * min(times.values()), times
