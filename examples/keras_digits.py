"""Train a Keras model on scikit-learn's digits on a simulated Trainium, on TensorFlow or JAX.

    KERAS_BACKEND=tensorflow python examples/keras_digits.py cnn
    KERAS_BACKEND=jax python examples/keras_digits.py lstm

Forward, backward and Adam of a step are one program on the chip; the models are plain Keras. The
last line says how many digits nobody trained on are read right. After the name may stand how many
epochs, and a seed of the weights and of the order of the images.
"""

import os
import sys

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
from sklearn.datasets import load_digits

BATCH, TESTS = 64, 360


def mlp():
    """Two layers on the 64 pixels."""
    x = keras.Input((8, 8))
    y = keras.layers.Dense(128, activation="relu")(keras.layers.Flatten()(x))
    return keras.Model(x, keras.layers.Dense(10)(y))


def cnn():
    """Two convolutions, pooled."""
    x = keras.Input((8, 8))
    y = keras.layers.Reshape((8, 8, 1))(x)
    y = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(y)
    y = keras.layers.MaxPooling2D()(y)
    y = keras.layers.Conv2D(32, 3, padding="same", activation="relu")(y)
    y = keras.layers.MaxPooling2D()(y)
    return keras.Model(x, keras.layers.Dense(10)(keras.layers.Flatten()(y)))


def mha():
    """The rows of the image attend to each other."""
    x = keras.Input((8, 8))
    y = keras.layers.Dense(32)(x)
    place = keras.layers.Embedding(8, 32)(keras.ops.arange(8))
    y = keras.layers.LayerNormalization()(y + place)
    y = keras.layers.LayerNormalization()(y + keras.layers.MultiHeadAttention(4, 8)(y, y))
    y = keras.layers.Dense(64, activation="gelu")(y)
    return keras.Model(x, keras.layers.Dense(10)(keras.layers.Flatten()(y)))


def lstm():
    """The rows of the image read from top to bottom; what is known after each counts."""
    x = keras.Input((8, 8))
    y = keras.layers.LSTM(64, return_sequences=True)(x)
    return keras.Model(x, keras.layers.Dense(10)(keras.layers.Flatten()(y)))


MODELS = {"mlp": mlp, "cnn": cnn, "mha": mha, "lstm": lstm}


def digits():
    """(images, labels) to train on, and a random 360 to test with."""
    data = load_digits()
    images = (data.images / 16).astype(np.float32)
    labels = data.target.astype(np.int32)
    held = np.zeros(len(labels), bool)
    held[np.random.default_rng(0).permutation(len(labels))[:TESTS]] = True
    return (images[~held], labels[~held]), (images[held], labels[held])


def on_tensorflow(model, loss, optimizer, images, labels):
    """(a step that trains the model, a function that reads digits), traced for the chip."""
    import tensorflow as tf

    from opentrn.frameworks import tensorflow as neuron

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            lost = loss(y, model(x, training=True))
        slopes = tape.gradient(lost, model.trainable_variables)
        optimizer.apply(slopes, model.trainable_variables)
        return lost

    train = neuron.trace(step, (images[:BATCH], labels[:BATCH]))
    return train, lambda x: neuron.trace(model, x)(x).numpy()


def on_jax(model, loss, optimizer, images, labels):
    """The same through JAX, whose functions have no state: the variables go in and come out."""
    import jax

    from opentrn.frameworks import jax as neuron

    def lost(trained, other, x, y):
        told, other = model.stateless_call(trained, other, x, training=True)
        return loss(y, told), other

    @neuron.jit
    def step(trained, other, state, x, y):
        (value, other), slopes = jax.value_and_grad(lost, has_aux=True)(trained, other, x, y)
        trained, state = optimizer.stateless_apply(state, slopes, trained)
        return value, trained, other, state

    groups = [model.trainable_variables, model.non_trainable_variables, optimizer.variables]

    def train(x, y):
        values = [[v.value for v in group] for group in groups]
        value, *values = step(*values, x, y)
        for group, news in zip(groups, values, strict=True):
            for variable, new in zip(group, news, strict=True):
                variable.assign(new)
        return value

    def read(x):
        values = [[v.value for v in group] for group in groups[:2]]
        return np.asarray(neuron.jit(lambda *args: model.stateless_call(*args)[0])(*values, x))

    return train, read


def main(name, epochs=25, seed=0):
    """Train, and return the share of test digits that are read right."""
    keras.utils.set_random_seed(seed)
    (images, labels), (held, truth) = digits()
    model = MODELS[name]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    steps = len(labels) // BATCH * epochs
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-2, steps))
    optimizer.build(model.trainable_variables)
    backend = keras.backend.backend()
    door = {"tensorflow": on_tensorflow, "jax": on_jax}[backend]
    train, read = door(model, loss, optimizer, images, labels)
    rng = np.random.default_rng(seed)
    for epoch in range(epochs):
        order = rng.permutation(len(labels))
        for at in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[at : at + BATCH]
            lost = train(images[batch], labels[batch])
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1}: loss {float(lost):.4f}", flush=True)
    right = float((read(held).argmax(-1) == truth).mean())
    print(f"{name} on {backend}: {right:.1%} of {len(truth)} digits read right")
    return right


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["mlp"], *map(int, sys.argv[2:4]))
