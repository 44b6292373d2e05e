"""Programs that are timed without being linked, beside the same programs linked."""

import numpy as np
import pytest

from opentrn import compiler, runtime
from opentrn.base import UnsupportedError, UsageError
from opentrn.graph import Graph, g
from opentrn.runtime import memory


def layers(count, width=128, kind="bfloat16"):
    """Blocks of a product, an activation, a norm and a sum, each with weights of its own."""
    x = given = g.input("x", (128, width), kind)
    inputs = [given]
    for n in range(count):
        w, v = (g.input(f"{name}{n}", (width, width), kind) for name in "wv")
        inputs += [w, v]
        x = x + g.matmul(g.gelu(g.matmul(g.rms_norm(x), w)), v)
    return Graph(inputs, [x])


@pytest.mark.parametrize("graph", [layers(3), layers(1, 300, "float32")])
def test_an_outline_counts_what_the_linked_program_has(graph):
    outlined, executable = compiler.outline(graph), compiler.compile(graph)
    assert outlined.instructions == len(executable.program)
    assert outlined.hbm_bytes == executable.meta["hbm_bytes"]
    kernels: dict[str, int] = {}
    for part in outlined.parts:
        kernels[part.name] = kernels.get(part.name, 0) + part.calls
    linked: dict[str, int] = {}
    for name, _, count in executable.meta["kernels"]:
        linked[name] = linked.get(name, 0) + count
    assert kernels == linked


def test_its_memory_is_that_of_the_linked_program():
    graph, device = layers(3), runtime.devices("trn2")[0]
    outlined, model = compiler.outline(graph), runtime.load(compiler.compile(graph))
    rings = [0, 0]
    for part in outlined.parts:
        for n, nbytes in enumerate(memory.ring_bytes(part.program, part.outside)):
            rings[n] += nbytes * part.calls
    found = memory.memory_of(outlined.instructions, outlined.hbm_bytes, tuple(rings), device)
    for row in model.memory.rows:
        if row.name != "shared scratchpad":  # placed first-fit here, alive at once there
            assert found[row.name] == row.nbytes, row.name


def test_its_time_is_that_of_the_linked_program_but_for_overlap():
    graph = layers(4)
    linked = runtime.load(compiler.compile(graph)).time().total_ns
    outlined = compiler.outline(graph)
    # Kernels one after another: a linked program may only gain by overlapping their ends.
    assert 0.95 * linked <= outlined.nanoseconds <= 1.5 * linked
    assert outlined.nanoseconds == pytest.approx(sum(outlined.by_kernel().values()))


def test_repeated_layers_are_recorded_once():
    few, many = compiler.outline(layers(2)), compiler.outline(layers(20))
    programs = {id(part.program) for part in many.parts}
    assert len(programs) == len({id(part.program) for part in few.parts})
    ratio = many.nanoseconds / few.nanoseconds
    assert ratio == pytest.approx(10, rel=0.05)


def test_weights_without_numbers_are_timed_as_if_they_had_them():
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(128, 256), torch.nn.Linear(256, 128)
            self.also = torch.nn.Linear(128, 256)

        def forward(self, x):
            return self.down(torch.nn.functional.gelu(self.up(x)) * self.also(x))

    with torch.device("meta"):
        bare = Block()
    whole, x = Block(), torch.zeros(64, 128)
    found = compiler.compile(bare, (x.to("meta"),), numerics="none")
    wanted = compiler.compile(whole, (x,), numerics="none")
    # Weights are turned on the host, and those of one operand are one product, in both.
    assert found.by_kernel().keys() == wanted.by_kernel().keys()
    assert found.hbm_bytes == wanted.hbm_bytes
    assert found.instructions == wanted.instructions
    assert found.nanoseconds == pytest.approx(wanted.nanoseconds)
    assert compiler.compile(bare, (x.to("meta"),), numerics="auto").why
    with pytest.raises(UsageError, match=r"`\w+\.(weight|bias)` has no numbers"):
        compiler.compile(bare, (x.to("meta"),), numerics="exact")


def test_loops_are_refused():
    with pytest.raises(UnsupportedError, match="loop"):
        compiler.outline(_loop())


def _loop():
    """Multiply by 2 until a number passes 100: how often depends on the number."""
    x = g.input("x", (4, 4))
    jax = pytest.importorskip("jax", reason="jax writes the loop")
    from opentrn.graph import from_stablehlo

    def run(x):
        return jax.lax.while_loop(lambda v: v[0, 0] < 100, lambda v: v * 2.0, x)

    text = jax.jit(run).lower(np.ones(x.shape, np.float32)).as_text()
    return from_stablehlo(text)
