"""Programs for several devices: shardings are kept, computations of one device give what JAX gives
on as many devices."""

import os
import subprocess
import sys

import numpy as np
import pytest

from opentrn import compiler, runtime
from opentrn.base import NotBuiltError, UsageError
from opentrn.graph import evaluate, from_stablehlo, g, read, write

pytest.importorskip("jax", reason="the extra `jax` is not installed")

# JAX makes eight devices of one CPU, runs each function on them, and writes its program.
ON_EIGHT = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
rows, both, none = (NamedSharding(mesh, p) for p in (P("x"), P("x", "y"), P()))
def collectives(a, b):
    def one(a, b):
        total = jax.jit(lambda v: lax.psum(v, "x") + lax.pmax(v, ("x", "y")))(a)
        whole = lax.all_gather(b, "y", axis=1, tiled=True)
        part = lax.psum_scatter(whole, "y", scatter_dimension=1, tiled=True)
        turned = lax.all_to_all(whole, "y", 1, 0, tiled=True)
        ring = lax.ppermute(a, "y", [(i, (i + 1) % 4) for i in range(3)])
        place = lax.axis_index("x") * 10 + lax.axis_index("y")
        return total, part + place, turned, ring, lax.pmean(b, "y")
    return jax.shard_map(one, mesh=mesh, in_specs=(P("x", "y"), P(None, ("x", "y"))),
                         out_specs=(P(None, "y"), P(None, ("x", "y")), P("y", "x"), P("x", "y"),
                                    P(None, "x")), check_vma=False)(a, b)
def placed(a, b):
    c = lax.with_sharding_constraint(a @ b[:8], both)
    return c + 1, c.sum(0)
rng = np.random.default_rng(0)
a = rng.normal(size=(8, 8)).astype(np.float32)
b = rng.normal(size=(8, 32)).astype(np.float32)
b = np.round(b * 8)
for name, f in (("collectives", jax.jit(collectives)),
                ("placed", jax.jit(placed, in_shardings=(rows, none), out_shardings=(both, none)))):
    text = f.trace(a, b).lower(lowering_platforms=("neuron",)).as_text()
    open(f"{sys.argv[1]}/{name}.mlir", "w").write(text)
    np.savez(f"{sys.argv[1]}/{name}.npz", a, b, *map(np.asarray, f(a, b)))
"""


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eight")
    subprocess.run([sys.executable, "-c", ON_EIGHT, str(folder)], check=True,
                   env={**os.environ, "JAX_PLATFORMS": "cpu"})
    return folder


def given(folder, name):
    """(the graph, arguments, what JAX gives on eight devices)."""
    with np.load(folder / f"{name}.npz") as held:
        arrays = [held[key] for key in held.files]
    return from_stablehlo((folder / f"{name}.mlir").read_bytes()), arrays[:2], arrays[2:]


@pytest.mark.parametrize("name", ["collectives", "placed"])
def test_the_numbers_are_those_of_eight_devices(eight, name):
    graph, arrays, wanted = given(eight, name)
    compiled = runtime.load(compiler.compile(graph))
    for found in (evaluate(graph, arrays), compiled(*arrays)):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, 2e-5, 2e-5)


def test_shardings_are_kept(eight):
    graph, _, _ = given(eight, "placed")
    placed = {(v.attrs.mesh, v.attrs.axes) for v in graph if v.op == "sharding_constraint"}
    assert placed == {("x=2 y=4", "x -"), ("x=2 y=4", "x y"), ("x=2 y=4", "- -"), ("x=2 y=4", "-")}
    assert graph.outputs[0].attrs.axes == "x y"
    assert write(read(write(graph))) == write(graph)
    mapped, _, _ = given(eight, "collectives")
    assert [v.attrs.axes for v in mapped.outputs] == ["- y", "- x+y", "y x", "x y", "- x"]


@pytest.mark.parametrize("axes", ["x", "x z", "x - -"])
def test_a_sharding_names_axes_of_its_mesh(axes):
    with pytest.raises(UsageError, match="on the mesh"):
        g.sharding_constraint(g.input("a", (4, 6)), mesh="x=2 y=3", axes=axes)


def test_the_program_of_one_of_several_devices_is_refused():
    text = """module attributes {mhlo.num_partitions = 2 : i32} {
      func.func @main(%a: tensor<2xui32>) -> tensor<ui32> {
        %0 = stablehlo.partition_id : tensor<ui32> loc("step.py":7:0)
        return %0 : tensor<ui32> } }"""
    with pytest.raises(NotBuiltError, match="one of several devices") as error:
        from_stablehlo(text)
    assert error.value.code == "graph.stablehlo_sharded"
