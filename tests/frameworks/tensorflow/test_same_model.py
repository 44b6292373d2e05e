"""One network written in torch, JAX and TensorFlow: the same work, the same numbers, the same time
on the chip."""

import functools
import math
import warnings

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
    """Products, two additions, tanh, the scores' scale and a softmax: 531,392 operations. JAX has
    one more for each row of scores: it guards a maximum by -inf."""
    tokens, scores = BATCH * STEPS, BATCH * STEPS * STEPS
    products = 3 * [2 * tokens * WIDTH * WIDTH] + 2 * [2 * tokens * STEPS * WIDTH]
    products += 2 * [2 * tokens * WIDTH * HIDDEN]
    softmax = 3 * scores + 2 * (scores - tokens)
    whole = sum(products) + 2 * tokens * WIDTH + tokens * HIDDEN + scores + softmax
    for name, graph in graphs.items():
        spelled = straighten(graph)
        assert sorted(v.flops for v in spelled if v.op in WORK) == sorted(products)
        assert sum(v.flops for v in spelled) == whole + (tokens if name == "jax" else 0)


def cleaned(graph):
    """(op, shape, FLOPs, bytes) of each value after the compiler's cleaning."""
    found = []

    def keep(stage, state):
        if stage == "clean":
            found.extend((v.op, v.shape, v.flops, v.traffic) for v in state.graph)

    compiler.compile_graph(straighten(graph), "trn2", "float32", watch=keep)
    return sorted(found)


def test_cleaned_the_graphs_are_one(graphs):
    first, *others = map(cleaned, graphs.values())
    assert others == [first, first]


class Gated(torch.nn.Module):
    """What Llama has between its attentions, with an activation for the gate."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate
        for name in ("up", "down"):
            self.register_buffer(name, torch.tensor(WEIGHTS[name]))

    def forward(self, x):
        return (self.gate(x @ self.up) * torch.relu(x @ self.up)) @ self.down


def gated(gate, relu):
    def layer(x):
        hidden = x @ WEIGHTS["up"]
        return (gate(hidden) * relu(hidden)) @ WEIGHTS["down"]
    return layer


GATES = {
    "silu": (torch.nn.functional.silu, jax.nn.silu, tf.nn.silu),
    "logistic": (torch.sigmoid, jax.nn.sigmoid, tf.sigmoid),
    "gelu": (functools.partial(torch.nn.functional.gelu, approximate="tanh"), jax.nn.gelu,
             functools.partial(tf.nn.gelu, approximate=True)),
}  # fmt: skip


@pytest.mark.parametrize("gate", GATES)
def test_a_gated_layer_is_one_graph_too(gate):
    from opentrn.frameworks.jax import from_jax

    in_torch, of_jax, of_tensorflow = GATES[gate]
    spec = tf.TensorSpec(X.shape)
    made = (
        from_torch(Gated(in_torch), (torch.tensor(X),)),
        from_jax(gated(of_jax, jax.nn.relu), jax.ShapeDtypeStruct(X.shape, X.dtype)),
        neuron.from_tensorflow(tf.function(gated(of_tensorflow, tf.nn.relu)), (spec,)),
    )
    first, *others = map(cleaned, made)
    assert others == [first, first]
    assert [op for op, *_ in first].count(gate) == 1


def test_the_program_and_its_time_are_the_same(graphs):
    found = []
    for graph in graphs.values():
        model = runtime.load(compiler.compile(straighten(graph), target="trn2", dtype="float32"))
        result = model(X)
        np.testing.assert_allclose(result, in_float64(), 1e-4, 1e-4)
        opcodes = [one.opcode for one in model.executable.program.instructions()]
        found.append((model.time().total_ns, opcodes, result.tobytes()))
    assert found[0] == found[1] == found[2]
