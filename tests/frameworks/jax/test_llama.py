"""A Llama-like training step of flax.nnx and optax on the device, against jax on the CPU."""

import time
import tracemalloc

import numpy as np
import pytest

from opentrn.graph import from_stablehlo

jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")
pytest.importorskip("flax", reason="flax is not installed (the extra `test`)")
pytest.importorskip("optax", reason="optax is not installed (the extra `test`)")
jnp = jax.numpy
neuron = pytest.importorskip("opentrn.frameworks.jax", reason="the extra `jax`")

from tests.frameworks.jax.llama import training  # noqa: E402  (it imports flax and optax)

IDS = np.random.default_rng(0).integers(0, 64, (2, 17)).astype(np.int32)


def worst(found, wanted):
    """The largest difference of each array, as a share of its largest number."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return max(float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in pairs)


def test_in_float32_loss_gradients_and_parameters_are_jaxs():
    params, state, step = training(dtype=jnp.float32)
    found, wanted = neuron.jit(step)(params, state, IDS), jax.jit(step)(params, state, IDS)
    np.testing.assert_allclose(float(found[2]), float(wanted[2]), 1e-6)
    assert worst(found[3], wanted[3]) < 2e-5
    # AdamW's first step is the sign of the gradient: tiny gradients may differ in it.
    assert worst(found[1][0].mu, wanted[1][0].mu) < 2e-5


def test_in_bfloat16_it_is_as_near_to_float32_as_jax_is():
    exact = jax.jit(training(dtype=jnp.float32)[2])
    params, state, step = training()
    ours, theirs = neuron.jit(step), jax.jit(step)
    mine, other, real = ((params, state) for _ in range(3))
    for _ in range(3):
        *mine, loss, grads = ours(*mine, IDS)
        *other, wanted, given = theirs(*other, IDS)
        *real, truth, slopes = exact(*real, IDS)
        np.testing.assert_allclose(float(loss), float(wanted), 2e-2)
        assert abs(float(loss) - float(truth)) < 1e-2 * float(truth)
        assert worst(grads, slopes) < worst(given, slopes)
    assert float(loss) < 4.5  # of 64 tokens: log 64 = 4.16, and at first 4.78
    assert len(ours.programs) == 1


def test_one_step_of_bfloat16_against_jax():
    params, state, step = training()
    found, wanted = neuron.jit(step)(params, state, IDS), jax.jit(step)(params, state, IDS)
    np.testing.assert_allclose(float(found[2]), float(wanted[2]), 1e-3)
    assert worst(found[3], wanted[3]) < 0.05


def test_the_import_of_32_layers_is_fast_and_small():
    params, state, step = training(layers=32)
    traced = jax.jit(step, keep_unused=True).trace(params, state, IDS)
    module = traced.lower(lowering_platforms=("neuron",)).compiler_ir("stablehlo")
    begin = time.process_time()
    graph = from_stablehlo(module)
    seconds = time.process_time() - begin
    assert len(graph) > 10_000
    assert seconds < 1.0  # of processor time
    del graph
    tracemalloc.start()
    from_stablehlo(module)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60e6
