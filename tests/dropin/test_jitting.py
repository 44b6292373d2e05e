"""Unmodified JAX scripts on the simulated device, as JAX_PLATFORMS=neuron asks."""

import numpy as np
import pytest

from opentrn.dropin import run_script

jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")

SCRIPT = """
import os
from functools import partial
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

assert os.environ["JAX_PLATFORMS"] == "cpu"

@partial(jax.jit, static_argnames="power", donate_argnums=0)
def f(x, y, *, power):
    return {"z": (x @ y) ** power}

@jax.jit
def g(x):
    return jnp.tanh(x).sum()

keys = jax.random.key_impl(jax.random.key(0))
x, y = jnp.ones((4, 3)), jnp.full((3, 2), 2.0)
z = f(x, y, power=2)["z"]
gone = x.is_deleted()
slope = jax.grad(g)(y)
mesh = Mesh(jax.devices()[:1], "d")
one = jax.jit(lambda v: v + 1, in_shardings=NamedSharding(mesh, P("d")))(y)
compiled = [type(f).__name__, len(f.programs), len(g.programs)]
again = jax.jit(g)(y)
shape = g.eval_shape(y).shape
"""


def test_jit_means_the_device_and_is_put_back(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "neuron")
    (tmp_path / "script.py").write_text(SCRIPT)
    before = jax.jit
    seen = run_script(str(tmp_path / "script.py"))
    assert jax.jit is before
    assert jax.random.key_impl(jax.random.key(0)) == "threefry2x32"
    assert seen["keys"] == "rbg"
    np.testing.assert_array_equal(seen["z"], np.full((4, 2), 36.0))
    assert seen["gone"]
    np.testing.assert_allclose(seen["slope"], 1 - np.tanh(np.full((3, 2), 2.0)) ** 2, 1e-5)
    np.testing.assert_array_equal(seen["one"], np.full((3, 2), 3.0))
    assert seen["compiled"] == ["Jitted", 1, 0]  # a gradient is JAX's own call of g
    np.testing.assert_allclose(seen["again"], 6 * np.tanh(2.0), 1e-5)
    assert seen["shape"] == ()


def test_constraints_run_on_one_core_and_maps_over_several_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "neuron")
    (tmp_path / "script.py").write_text("""
import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P
mesh = AbstractMesh((2,), ("d",))
two = NamedSharding(mesh, P("d"))
x = jax.numpy.ones(4)
same = jax.jit(lambda v: jax.lax.with_sharding_constraint(v + 1, two))(x)
mapped = jax.jit(jax.shard_map(lambda v: v + jax.lax.axis_index("d"), mesh=mesh,
                               in_specs=P("d"), out_specs=P("d")))(x)
""")
    seen = run_script(str(tmp_path / "script.py"))
    np.testing.assert_array_equal(seen["same"], np.full(4, 2.0))
    np.testing.assert_array_equal(seen["mapped"], [1, 1, 2, 2])


def test_otherwise_jax_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    (tmp_path / "script.py").write_text("import jax\nmine = jax.jit\n")
    assert run_script(str(tmp_path / "script.py"))["mine"] is jax.jit
