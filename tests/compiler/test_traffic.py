"""What compiled programs move and turn, counted in their instructions beside the least by hand."""

from math import prod

import pytest

from opentrn import compiler, runtime
from opentrn.graph import Graph, g
from opentrn.hw import target
from opentrn.sim import timeline

TOKENS, WIDTH, HEADS, HIDDEN = 256, 512, 4, 1024


def moved(program) -> int:
    """Bytes that DMAs read from HBM or write there."""
    return sum(
        prod(n for _, n in view.steps) * view.dtype.itemsize
        for one in program.instructions()
        if one.opcode in ("dma_copy", "dma_transpose")
        for view in one.views()
        if view.buffer.space == "hbm"
    )


def turned(program) -> int:
    """128 x 128 blocks that the Tensor Engine transposes."""
    return sum(one.opcode == "nc_transpose" for one in program.instructions())


def copies(executable) -> int:
    """Kernel calls that only lay memory out anew."""
    return sum(n for name, _, n in executable.meta["kernels"] if name == "copy")


def layer(x):
    """A decoder layer, its weights [in, out] constants of the program."""

    def weight(name, *shape):
        return g.input(name, shape, "bfloat16")

    inputs = [
        weight("q", WIDTH, WIDTH),
        weight("k", WIDTH, WIDTH),
        weight("v", WIDTH, WIDTH),
        weight("o", WIDTH, WIDTH),
        weight("up", WIDTH, HIDDEN),
        weight("down", HIDDEN, WIDTH),
    ]
    q, k, v, o, up, down = inputs
    h = g.rms_norm(x)

    def heads(y):
        return g.transpose(g.reshape(y, (1, TOKENS, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    seen = g.attention(*(heads(g.matmul(h, w)) for w in (q, k, v)), causal=True, scale=0.1)
    joined = g.reshape(g.transpose(seen, (0, 2, 1, 3)), (TOKENS, WIDTH))
    x = x + g.matmul(joined, o)
    return inputs, x + g.matmul(g.gelu(g.matmul(g.rms_norm(x), up)), down)


def test_a_layer_moves_what_it_must():
    x = g.input("x", (TOKENS, WIDTH), "bfloat16")
    weights, y = layer(x)
    executable = compiler.compile(Graph([x, *weights], [y]))
    assert copies(executable) == 0
    unit = TOKENS * WIDTH * 2
    held = sum(prod(w.shape) * 2 for w in weights)
    # In units of x: into the norm and out of it 2, into q, k and v 3, their results 3 out and 3 in;
    # those of attention 1 out and 1 in, the sum 1 out with 1 of x in; the norm 2, into `up` 1, its
    # result twice as wide 2 out and 2 in, the sum 1 out and 1 in.
    least = held + unit * 24
    identity = 128 * 128 * 2  # what the Tensor Engine turns and hides scores by
    assert least <= moved(executable.program) <= least + identity


def test_a_layer_turns_rows_once_for_each_product():
    x = g.input("x", (TOKENS, WIDTH), "bfloat16")
    weights, y = layer(x)
    program = compiler.compile(Graph([x, *weights], [y])).program
    blocks = (TOKENS // 128) * (WIDTH // 128)
    # Rows of x: q, k, v, o and up take WIDTH of them, down twice as many.  Attention turns queries
    # and keys once, and the weights of what each tile of queries sees: 1 block for the first, 2
    # for the second.
    attention = 2 * blocks + HEADS * (1 + 2)
    assert turned(program) == 5 * blocks + 2 * blocks + attention


def test_gradients_of_weights_are_not_turned():
    """dw = xᵀ · dy needs x as it lies in memory."""
    x, dy = (g.input(n, (TOKENS, w), "bfloat16") for n, w in (("x", WIDTH), ("dy", HIDDEN)))
    executable = compiler.compile(Graph([x, dy], [g.matmul(g.transpose(x, (1, 0)), dy)]))
    assert copies(executable) == turned(executable.program) == 0
    assert moved(executable.program) == 2 * (TOKENS * (WIDTH + HIDDEN) + WIDTH * HIDDEN)


def test_few_rows_do_not_copy_turned_weights():
    """y = x · wᵀ with w [out, in] an input, as torch keeps it."""
    x, w = g.input("x", (128, WIDTH), "bfloat16"), g.input("w", (HIDDEN, WIDTH), "bfloat16")
    executable = compiler.compile(Graph([x, w], [g.matmul(x, g.transpose(w, (1, 0)))]))
    assert copies(executable) == 0
    assert moved(executable.program) == 2 * (128 * WIDTH + WIDTH * HIDDEN + 128 * HIDDEN)


WHERE = [("trn2", "bfloat16", 0), ("trn3", "bfloat16", 0), ("trn1", "bfloat16", 1),
         ("trn2", "float32", 1)]  # fmt: skip


@pytest.mark.parametrize(("chip", "kind", "copied"), WHERE)
def test_many_rows_do_not_copy_turned_weights(chip, kind, copied):
    """The DMA turns them on their way, where it can; elsewhere they are laid out anew once."""
    rows = 1024
    x, w = g.input("x", (rows, WIDTH), kind), g.input("w", (HIDDEN, WIDTH), kind)
    graph = Graph([x, w], [g.matmul(x, g.transpose(w, (1, 0)))])
    executable = compiler.compile(graph, target=chip)
    assert copies(executable) == copied
    tensors = rows * WIDTH + (1 + 2 * copied) * WIDTH * HIDDEN + rows * HIDDEN
    assert moved(executable.program) == tensors * (2 if kind == "bfloat16" else 4)


def test_a_chain_of_elements_is_one_trip():
    """Momentum and weight decay: three tensors in, one out, one instruction a pair of operators."""
    p, d, m = (g.input(n, (512, 1024), "bfloat16") for n in "pdm")
    rate = g.input("rate", (1,), "float32")
    wide = [g.cast(v, "float32") for v in (p, d, m)]
    step = wide[2] * 0.9 + wide[1] * 0.1
    new = g.cast(wide[0] * 0.99 - g.broadcast(rate, (512, 1024)) * step, "bfloat16")
    program = compiler.compile(Graph([p, d, m, rate], [new])).program
    tensors = 4 * 512 * 1024 * 2
    assert tensors < moved(program) < 1.01 * tensors
    stores = sum(
        one.opcode == "dma_copy" and one.views()[0].buffer.space == "hbm"
        for one in program.instructions()
    )
    busy = {"vector": 0.0, "gpsimd": 0.0, "scalar": 0.0}
    work = dict.fromkeys(busy, 0)
    found = timeline(program, target("trn2"))
    for one, start, end in zip(program.instructions(), found.start, found.end, strict=True):
        if one.opcode != "dma_copy":
            work[one.form.engine_name] += 1
            busy[one.form.engine_name] += end - start
    # Alone, the Vector Engine has d·0.1; m·0.9 + it; rate · it; p·0.99 - it.  The first passes two
    # elements a cycle of 0.96 GHz, a pair of tiles half an element.
    assert work["vector"] <= 4 * stores + 1  # and `rate` once in float32
    alone = 512 * 1024 / 128 * (0.5 + 3 * 2) / 0.96
    assert max(busy.values()) < 0.75 * alone


@pytest.mark.parametrize(("shape", "axes"), [((2048, 4096), (0, 1)), ((4, 2048, 512), (0,)),
                                         ((6, 300000), (1,))])  # fmt: skip
def test_reductions_go_at_the_speed_of_memory(shape, axes):
    x = g.input("x", shape, "bfloat16")
    graph = Graph([x], [g.reduce(x, kind="add", dimensions=axes)])
    chip = target("trn2")
    bandwidth = float(chip.fact("chip.hbm_bandwidth").value) / int(chip.cores)
    least = prod(shape) * 2 / bandwidth * 1e9
    time = runtime.load(compiler.compile(graph)).time().total_ns
    # One lane of 128, or one plane of 4 on the Tensor Engine, would take more than 20 times this;
    # 20 us are the latencies of the transfers one after another.
    assert time < 5 * least + 20_000


def test_loads_of_the_next_tile_go_beside_the_work_on_this_one():
    """A product whose weights do not fit: the Tensor Engine waits for no load but the first."""
    x, w = g.input("x", (1024, 2048), "bfloat16"), g.input("w", (2048, 4096), "bfloat16")
    found = runtime.load(compiler.compile(Graph([x, w], [g.matmul(x, w)]))).time()
    products = 1024 * 2048 * 4096 / 128**2 / 2.4  # ns, at a row of 128 a cycle of 2.4 GHz
    chip = target("trn2")
    bandwidth = float(chip.fact("chip.hbm_bandwidth").value) / int(chip.cores)
    loads = (1024 * 2048 + 2048 * 4096 + 1024 * 4096) * 2 / bandwidth * 1e9
    assert found.total_ns < 0.85 * (products + loads)
