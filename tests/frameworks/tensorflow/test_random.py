"""Random numbers of TensorFlow programs: seeded ones are those XLA draws on the CPU, bit for bit;
of the others the distribution, the repeat and the difference of two calls are held."""

import numpy as np
import pytest

from opentrn.base import UnsupportedError
from opentrn.frameworks import tensorflow as neuron

tf = pytest.importorskip("tensorflow", reason="the extra `tensorflow` is not installed")
keras = pytest.importorskip("keras", reason="the extra `tensorflow` is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
SEEDS = [(1, 2), (2**31 - 1, -2), (-(2**31), 0)]
X = np.ones((6, 8), np.float32)


def by_xla(f, *args):
    return tf.function(f, jit_compile=True)(*map(tf.constant, args)).numpy()


@pytest.mark.parametrize("algorithm", ["philox", "threefry", "auto_select"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int32"])
def test_stateless_numbers_are_those_of_xla(kind, algorithm):
    def f(seed):
        most = 1000 if kind == "int32" else None
        made = tf.random.stateless_uniform((5, 7, 3), seed, 0, most, kind, alg=algorithm)
        return tf.cast(made, tf.float32)

    for seed in SEEDS:
        given = np.array(seed, np.int32)
        np.testing.assert_array_equal(neuron.trace(f, (given,))(given).numpy(), by_xla(f, given))


def test_keys_are_split_and_normal_numbers_drawn_of_them():
    def f(seed):
        first = tf.random.split(seed, 3)[1]
        return tf.random.stateless_normal((100,), tf.random.fold_in(first, 7))

    seed = np.array([123456789, -5], np.int32)
    np.testing.assert_allclose(neuron.trace(f, (seed,))(seed).numpy(), by_xla(f, seed), 1e-6, 1e-6)


def test_a_generator_moves_on():
    ours, other = (tf.random.Generator.from_seed(3, alg="philox") for _ in range(2))
    traced = neuron.trace(lambda x: ours.uniform((6, 8)) + x, (X,))
    for _ in range(3):
        want = by_xla(lambda x: other.uniform((6, 8)) + x, X)
        np.testing.assert_array_equal(traced(X).numpy(), want)
        np.testing.assert_array_equal(ours.state.numpy(), other.state.numpy())


def test_training_with_dropout():
    """A step of a Keras model with dropout gives TensorFlow's own loss and weights, step by step:
    the same elements are dropped, other ones in each step."""
    x = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)

    def training():
        keras.utils.set_random_seed(7)
        model = keras.Sequential([
            keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.4),
            keras.layers.GaussianNoise(0.1), keras.layers.Dense(2),
        ])  # fmt: skip
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        rule = keras.optimizers.SGD(0.1)
        rule.build(model.trainable_variables)

        def step(x, y):
            with tf.GradientTape() as tape:
                told = loss(y, model(x, training=True))
            rule.apply(tape.gradient(told, model.trainable_variables), model.trainable_variables)
            return told

        return model, step

    model, step = training()
    other, own = training()
    traced, jitted = neuron.trace(step, (x, y)), tf.function(own, jit_compile=True)
    losses = []
    for _ in range(4):
        losses.append(float(traced(x, y)))
        np.testing.assert_allclose(losses[-1], float(jitted(x, y)), 1e-5)
    for mine, theirs in zip(model.weights, other.weights, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), 1e-4, 1e-6)
    assert len(set(losses)) == 4


N = 20_000
APART = 5  # standard deviations of a mean that are allowed


def drawn(f):
    traced = neuron.trace(lambda x: f() + 0 * tf.cast(x, f().dtype), (np.float32(1),))
    tf.random.set_seed(5)
    one, two = (traced(np.float32(1)).numpy().astype(float) for _ in range(2))
    tf.random.set_seed(5)
    np.testing.assert_array_equal(traced(np.float32(1)).numpy().astype(float), one)
    assert (one != two).mean() > 0.01
    return np.concatenate([one, two]).reshape(-1)


def test_numbers_without_a_seed():
    """Uniform, normal, whole and dropped: mean, deviation and ends as the distribution says."""
    found = drawn(lambda: tf.random.uniform((N,), -2.0, 3.0))
    assert found.min() >= -2
    assert found.max() < 3
    assert abs(found.mean() - 0.5) < APART * 5 / (24 * N) ** 0.5
    found = drawn(lambda: tf.random.normal((N,), 1.0, 2.0))
    assert abs(found.mean() - 1) < APART * 2 / (2 * N) ** 0.5
    assert abs(found.std() / 2 - 1) < APART / (4 * N) ** 0.5
    assert abs(np.mean((found - 1) ** 4) / 48 - 1) < APART * (96 / 9 / (2 * N)) ** 0.5
    whole = drawn(lambda: tf.random.uniform((N,), -7, 9, tf.int32))
    numbers, counts = np.unique(whole, return_counts=True)
    np.testing.assert_array_equal(numbers, np.arange(-7, 9))
    assert np.abs(counts - N / 8).max() < APART * (N / 8) ** 0.5
    kept = drawn(lambda: tf.nn.dropout(tf.ones((N,)), 0.3))
    np.testing.assert_allclose(np.unique(kept), [0, 1 / 0.7], 1e-6)
    assert abs((kept == 0).mean() - 0.3) < APART * (0.21 / (2 * N)) ** 0.5


def test_two_draws_are_two():
    f = lambda x: (tf.random.normal((N,)) + x, tf.random.normal((N,)))  # noqa: E731
    one, two = (v.numpy() for v in neuron.trace(f, (np.float32(0),))(np.float32(0)))
    assert abs(np.corrcoef(one, two)[0, 1]) < APART / N**0.5


def test_a_draw_in_a_loop_is_refused():
    """Each turn would draw the same numbers."""
    def f(x):
        body = lambda i, s: (i + 1, s + tf.random.uniform((3,)))  # noqa: E731
        return tf.while_loop(lambda i, s: i < 3, body, (0, x))[1]

    with pytest.raises(UnsupportedError, match="rng"):
        neuron.trace(f, (np.ones(3, np.float32),))


def test_what_sorts():
    """top_k, sort and argsort, after which TensorFlow sets each size to what it is."""
    x = np.random.default_rng(1).permutation(48).reshape(6, 8).astype(np.float32)
    values, places = neuron.trace(lambda x: tuple(tf.math.top_k(x, 3)), (x,))(x)
    np.testing.assert_array_equal(places.numpy(), np.argsort(-x, -1)[:, :3])
    np.testing.assert_array_equal(values.numpy(), -np.sort(-x, -1)[:, :3])
    np.testing.assert_array_equal(neuron.trace(lambda x: tf.sort(x, 0), (x,))(x), np.sort(x, 0))
    found = neuron.trace(tf.argsort, (x,))(x).numpy()
    np.testing.assert_array_equal(found, np.argsort(x, -1))
