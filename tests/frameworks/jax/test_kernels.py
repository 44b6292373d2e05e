"""NKI kernels inside functions that `opentrn.frameworks.jax.jit` compiles: linked into them."""

import numpy as np
import pytest

import opentrn.nki as nki
import opentrn.nki.isa as nisa
import opentrn.nki.language as nl
from opentrn.base import NotBuiltError, OrderError, ShapeError, UnsupportedError
from opentrn.graph import evaluate, from_stablehlo

jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")
jnp = jax.numpy
neuron = pytest.importorskip("opentrn.frameworks.jax", reason="the extra `jax`")

R = np.random.default_rng(0)
X = R.normal(size=(16, 8)).astype(np.float32)
Y = R.normal(size=(8, 16)).astype(np.float32)


@nki.jit
def scaled_sum(x, y, factor, *, shift=0.0):
    """x · factor + y + shift, and the sum of each row."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((x.shape[0], 1), nl.float32, buffer=nl.shared_hbm)
    made = nl.add(nl.add(nl.multiply(nl.load(x), factor), nl.load(y)), shift)
    nl.store(out, made)
    nl.store(total, nl.sum(made, 1, dtype=nl.float32))
    return out, total


@nki.jit
def overwrite(x):
    """Writes into its argument and returns it."""
    nl.store(x, nl.multiply(nl.load(x), 2.0))
    return x


def same(x, y, factor, shift=0.0):
    """What `scaled_sum` computes, in JAX."""
    out = x * factor + y + shift
    return out, out.sum(1, keepdims=True)


def model(call):
    """A function of two layers that call the kernel between other ops."""

    def f(x, y):
        first = call(x.T + 1, y * 2, 3.0, shift=0.5)
        second = call(jnp.tanh(first[0]), first[0].reshape(16, 8).reshape(8, 16), 3.0,
                      shift=0.5)  # fmt: skip
        return second[0] @ second[0].T, second[1] + first[1]

    return f


def close(found, wanted, tolerance=1e-5):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(np.asarray(one, float), np.asarray(other, float), tolerance,
                                   tolerance)


def test_a_kernel_is_part_of_the_program():
    jitted = neuron.jit(model(scaled_sum))
    wanted = model(same)(X, Y)
    close(jitted(X, Y), wanted)
    (program,) = jitted.programs.values()
    calls = {name: count for name, _, count in program.executable.meta["kernels"]}
    assert calls["scaled_sum"] == 2
    lines = {one.where.line for one in program.executable.program.instructions()
             if one.where is not None and one.where.file == __file__}  # fmt: skip
    begin = scaled_sum.func.__code__.co_firstlineno
    assert {begin + 5, begin + 6, begin + 7} <= lines
    close(evaluate(program.lowered.graph, [X, Y]), wanted)
    close(jax.jit(model(scaled_sum))(X, Y), wanted)


def test_a_kernel_is_traced_once_for_all_layers():
    def layers(count):
        def f(x, y):
            for _ in range(count):
                x = scaled_sum(x, y, 0.5)[0]
            return x

        return neuron.jit(f).compile(Y, Y).executable

    assert layers(6).meta["kernels_traced"] == layers(2).meta["kernels_traced"]
    assert layers(6).meta["kernel_calls"] == layers(2).meta["kernel_calls"] + 4
    both = neuron.jit(lambda x: (scaled_sum(x, x, 0)[0], scaled_sum(x, x, -0.0)[0],
                                 scaled_sum(x, x, False, shift=1.0)[0]))  # fmt: skip
    close(both(Y), (Y, Y, Y + 1))


def test_values_never_change():
    def f(x):
        y = x + 1
        return overwrite(y), y * 1.0, overwrite(x), x

    close(neuron.jit(f)(Y), (2 * (Y + 1), Y + 1, 2 * Y, Y))


def test_batches_loops_and_gradients():
    rows = np.stack([Y, Y + 1, -Y])
    mapped = jax.vmap(lambda x: scaled_sum(x, Y, 2.0)[1])
    close(neuron.jit(mapped)(rows), jax.vmap(lambda x: same(x, Y, 2.0)[1])(rows))

    def scanned(call):
        return lambda x: jax.lax.scan(lambda c, r: (call(c, r, 0.5)[0], c.sum()), x, rows)

    close(neuron.jit(scanned(scaled_sum))(Y), scanned(same)(Y))

    def looped(call):
        def turn(state):
            return state[0] + 1, call(state[1], Y, 0.5)[0]

        return lambda n: jax.lax.while_loop(lambda s: s[0] < n, turn, (0, jnp.ones_like(Y)))[1]

    close(neuron.jit(looped(scaled_sum))(3), looped(same)(3))

    @jax.custom_vjp
    def doubled(x):
        return scaled_sum(x, x, 1.0)[0]

    doubled.defvjp(lambda x: (doubled(x), None), lambda _, d: (scaled_sum(d, d, 1.0)[0],))
    slope = jax.grad(lambda x: (doubled(x) ** 2).sum())
    close(neuron.jit(slope)(Y), 8 * Y)
    close(jax.jit(slope)(Y), 8 * Y)


def test_its_dtypes_are_kept_where_floats_are_narrowed():
    jitted = neuron.jit(lambda x: scaled_sum(x * 1.001, x, 1.0), dtype="bfloat16")
    found = jitted(Y)
    assert found[0].dtype == np.float32
    close(found, same(Y * 1.001, Y, 1.0), 2e-2)
    (program,) = jitted.programs.values()
    inside = {str(v.dtype) for one in program.executable.program.instructions()
              if one.where is not None and one.where.file == __file__
              for v in one.writes() if v.buffer.space == "hbm"}  # fmt: skip
    assert inside == {"float32"}


def test_what_cannot_be_is_refused():
    with pytest.raises(UnsupportedError, match="gradient of the kernel") as error:
        neuron.jit(jax.grad(lambda x: scaled_sum(x, x, 1.0)[0].sum()))(Y)
    assert error.value.code == "nki.jax_gradient"
    with pytest.raises(ShapeError) as error:
        neuron.jit(lambda x: scaled_sum(x, x, 1.0))(np.ones((256, 3), np.float32))
    assert error.value.at.file == __file__
    text = jax.jit(lambda x: scaled_sum(x, x, 1.0)).trace(Y).lower(
        lowering_platforms=("neuron",)).as_text()  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"custom_call @opentrn\.nki"):
        from_stablehlo(text)


# ------------------------------------------------------------------------- launches on two cores


@nki.jit
def halves(x, before=0):
    """Each core adds the other's half to its own; core 1 then doubles what core 0 wrote."""
    out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id(0)
    height = x.shape[0] // 2
    mine = nl.load(x[nl.ds(me * height, height)])
    theirs = mine if before else nl.ndarray(mine.shape, mine.dtype)
    own = nl.copy(mine)
    nisa.sendrecv(mine, theirs, 1 - me, 1 - me, 0)
    nl.store(out[0, nl.ds(me * height, height)], nl.add(own, theirs))
    nisa.core_barrier(out, (0, 1))
    if me == 1:
        nl.store(out[1], nl.multiply(nl.load(out[0]), 2.0))
    return out


def same_halves(x):
    """What `halves` computes, in JAX."""
    both = x[: len(x) // 2] + x[len(x) // 2 :]
    return jnp.stack([jnp.concatenate([both, both]), 2 * jnp.concatenate([both, both])])


@pytest.mark.parametrize("before", [0, 1], ids=["into another tile", "into the tile it sends"])
def test_the_cores_of_a_launch_take_turns(before):
    jitted = neuron.jit(lambda x: halves[2](x * 3, before) + 1)
    close(jitted(X), same_halves(X * 3) + 1)
    (program,) = jitted.programs.values()
    opcodes = {one.opcode for one in program.executable.program.instructions()}
    assert not opcodes & {"sendrecv", "core_barrier"}
    close(evaluate(program.lowered.graph, [X]), [same_halves(X * 3) + 1])
    close(jax.jit(lambda x: halves[2](x, before))(X), same_halves(X))


def test_launches_in_batches_loops_and_beside_each_other():
    rows = np.stack([X, X + 1, -X])
    close(neuron.jit(jax.vmap(lambda x: halves[2](x)))(rows), jax.vmap(same_halves)(rows))

    def scanned(call):
        return lambda x: jax.lax.scan(lambda c, r: (call(c)[0] + r, c.sum()), x, rows)

    close(neuron.jit(scanned(halves[2]))(X), scanned(same_halves)(X))
    both = neuron.jit(lambda x: (halves[2](x), scaled_sum(x.T, x.T, 1.0)[0], halves[2](x + 1)))
    close(both(X), (same_halves(X), 2 * X.T, same_halves(X + 1)))


def test_what_instances_in_turn_would_spoil_is_refused():
    @nki.jit
    def racing(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        if nl.program_id(0) == 0:
            nl.store(out, tile)
        else:
            nl.load(out)
        return out

    @nki.jit
    def apart(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out[nl.ds(nl.program_id(0) * 8, 8)], nl.load(x[0:8]))
        if nl.program_id(0) == 0:
            nisa.core_barrier(out, (0, 1))
        return out

    @nki.jit
    def drawing(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((8, x.shape[1]), nl.uint32)
        nisa.rng(tile)
        nl.store(out[nl.ds(nl.program_id(0) * 8, 8)], nl.copy(tile, dtype=x.dtype))
        return out

    for kernel, kind, code in (
        (racing[2], OrderError, "nki.core_race"), (apart[2], OrderError, "sim.deadlock"),
        (drawing[2], NotBuiltError, "nki.one_core"), (halves[4], NotBuiltError, "nki.cores"),
    ):  # fmt: skip
        with pytest.raises(kind) as error:
            neuron.jit(lambda x, kernel=kernel: kernel(x))(X)
        assert error.value.code == code
        assert code == "nki.cores" or error.value.at.file == __file__
