"""`opentrn.frameworks.jax.jit` against JAX on the CPU."""

import functools
import re

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import NotBuiltError, TrnError, UnsupportedError, UsageError, Where

jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")
from jax.extend.core import Primitive  # noqa: E402
from jax.interpreters import mlir  # noqa: E402

jnp = jax.numpy
neuron = pytest.importorskip("opentrn.frameworks.jax", reason="the extra `jax`")
from opentrn.frameworks.judge import NarrowedWarning  # noqa: E402

R = np.random.default_rng(0)
X = R.normal(size=(8, 16)).astype(np.float32)
W = R.normal(size=(16, 4)).astype(np.float32)
B = R.normal(size=4).astype(np.float32)


def close(found, wanted, tolerance=2e-6):
    leaves, tree = jax.tree.flatten(found)
    others, shape = jax.tree.flatten(wanted)
    assert tree == shape
    for one, other in zip(leaves, others, strict=True):
        assert isinstance(one, jax.Array)
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=tolerance,
                                   atol=tolerance)


def loss(params, x, y):
    hidden = jax.nn.gelu(x @ params["w"] + params["b"])
    return jnp.mean((hidden - y) ** 2)


PARAMS = {"w": W, "b": B}
Y = R.normal(size=(8, 4)).astype(np.float32)


def test_trees_of_arrays_go_in_and_out():
    def f(x, *, params, scale):
        y = x @ params["w"] + params["b"]
        return {"y": y * scale, "parts": [y.sum(), (jnp.argmax(y, 1), y > 0)]}
    given = {"params": PARAMS, "scale": 2.0}
    close(neuron.jit(f)(X, **given), jax.jit(f)(X, **given))


def test_gradients_and_batches():
    close(neuron.jit(jax.value_and_grad(loss))(PARAMS, X, Y), jax.value_and_grad(loss)(
        PARAMS, X, Y))
    rows = jax.vmap(lambda x: jnp.dot(x, W))
    close(neuron.jit(rows)(X), rows(X), 4e-6)


def test_inside_other_transformations_it_is_a_part_of_them():
    inner = neuron.jit(loss)
    close(jax.grad(inner)(PARAMS, X, Y), jax.grad(loss)(PARAMS, X, Y))
    close(jax.jit(inner)(PARAMS, X, Y), loss(PARAMS, X, Y))
    assert inner.programs == {}
    close(neuron.jit(jax.grad(inner))(PARAMS, X, Y), jax.grad(loss)(PARAMS, X, Y))


def test_loops_and_branches():
    def scanned(x):
        return jax.lax.scan(lambda c, row: (c * 0.5 + row, c.sum()), jnp.zeros(16), x)
    close(neuron.jit(scanned)(X), scanned(X), 4e-6)

    def looped(x, p):
        x = jax.lax.fori_loop(0, 3, lambda i, c: c * 2 + i, x)
        return jax.lax.cond(p > 0, lambda x: x + 1, lambda x: -x, x)
    for p in (1.0, -1.0):
        close(neuron.jit(looped)(X, p), looped(X, p))


def test_a_training_step_runs_again_and_again():
    def step(params, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return value, jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
    ours, theirs = neuron.jit(step), jax.jit(step)
    mine = other = jax.tree.map(jnp.asarray, PARAMS)
    losses = []
    for _ in range(5):
        value, mine = ours(mine, X, Y)
        wanted, other = theirs(other, X, Y)
        close(value, wanted, 1e-5)
        losses.append(float(value))
    assert losses == sorted(losses, reverse=True)
    assert len(ours.programs) == 1
    (program,) = ours.programs.values()
    assert program.calls == 5
    assert 1e-6 < program.device_seconds < 1e-3


def test_one_program_for_each_shape_dtype_and_static_value():
    def f(x, n, *, kind="sum"):
        return getattr(jnp, kind)(x, 0) * n
    jitted = neuron.jit(f, static_argnums=1, static_argnames="kind")
    for x, n, kind in ((X, 2, "sum"), (X + 1, 2, "sum"), (X, 3, "sum"), (X[:4], 2, "sum"),
                       (X, 2, "max")):
        close(jitted(x, n, kind=kind), f(x, n, kind=kind))
    assert len(jitted.programs) == 4
    close(jitted(X, n=3), f(X, 3))
    with pytest.raises(UsageError, match="not hashable"):
        jitted(X, [1])


def test_as_a_decorator_and_ahead_of_time():
    @neuron.jit(dtype="bfloat16")
    def f(x):
        """A product."""
        return x @ x.T
    shape = jax.ShapeDtypeStruct((64, 64), np.float32)
    program = f.compile(shape)
    assert program.executable.meta["dtype"] == "bfloat16"
    assert f.__doc__ == "A product."
    big = R.normal(size=(64, 64)).astype(np.float32)
    worst = float(jnp.abs(f(big) - big @ big.T).max())
    assert 1e-3 < worst < 0.5  # bfloat16, of sums of 64 products
    with pytest.raises(UsageError, match="no precision float8"):
        neuron.jit(lambda x: x, dtype="float8")


def test_donated_arrays_are_gone():
    x, y = jnp.asarray(X), jnp.asarray(X)
    close(neuron.jit(lambda x, y: x + y, donate_argnums=0)(x, y), jnp.asarray(2 * X))
    assert x.is_deleted()
    assert not y.is_deleted()


def test_programs_keep_the_lines_they_come_from():
    def f(x):
        return jnp.tanh(x)  # this line
    program = neuron.jit(f).compile(X)
    (tanh,) = [v for v in program.lowered.graph if v.op == "tanh"]
    assert tanh.where.file == __file__
    assert "# this line" in tanh.where.text


def test_random_keys():
    def f(key):
        return jax.random.split(key)
    graph = neuron.from_jax(f, jax.random.key(0, impl="rbg"))
    assert graph.inputs[0].type.shape == (4,)
    with neuron.as_on_neuron():
        assert jax.random.key_impl(jax.random.key(0)) == "rbg"
        drawn = neuron.from_jax(lambda: jax.random.bits(jax.random.key(1), (8,)))
    assert "rng_bit_generator" in drawn.histogram()
    assert jax.random.key_impl(jax.random.key(0)) == "threefry2x32"


@pytest.mark.parametrize("impl", ["rbg", "threefry2x32", "unsafe_rbg"])
def test_random_numbers_are_those_jax_draws(impl):
    from opentrn.graph import evaluate

    def f(words):
        key, other = jax.random.split(jax.random.wrap_key_data(words, impl=impl))
        return (jax.random.bits(key, (7,)), jax.random.bits(other, (5,), "uint8"),
                jax.random.uniform(key, (3, 5)), jax.random.normal(other, (33,)),
                jax.random.permutation(key, 10), jax.random.key_data(jax.random.fold_in(key, 3)))
    words = np.asarray(jax.random.key_data(jax.random.key(2**40 + 7, impl=impl)))
    found = evaluate(neuron.from_jax(f, words), [words])
    ours = neuron.jit(f)(words)
    for one, other, wanted in zip(found, ours, jax.jit(f)(words), strict=True):
        np.testing.assert_allclose(one, np.asarray(wanted), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(other, np.asarray(wanted), rtol=2e-6, atol=2e-6)


def test_indexing_sorting_and_bits():
    """What JAX writes as gathers with their clamping, scatters, sorts by several keys, shifts."""
    at = np.array([3, -1, 40, 0, 3], np.int32)
    whole = np.arange(-6, 6, dtype=np.int32)

    def f(x, at, n):
        grown = x.at[at].add(1.0, mode="drop").at[:, 2].multiply(3.0).at[at, 1].max(0.5)
        order = jnp.lexsort((x[:, 0], jnp.round(x[:, 1])))
        return (
            jnp.take(x, at, axis=0, mode="clip"), x[at], x[at, at % 16], grown,
            jnp.take_along_axis(x, jnp.argsort(x, 1), 1), order, jnp.sort(x, 0),
            n // 5, n % 5, n << 3, n >> 1, jax.lax.population_count(n), jax.lax.clz(n),
            jax.lax.bitcast_convert_type(x, jnp.int32), jnp.cumsum(n), n[:, None] * n,
            jax.lax.dynamic_update_slice(x, x[:2, :3], (at[0], at[1])), jnp.cbrt(x),
            jax.lax.associative_scan(jnp.maximum, x, axis=1), jnp.unique(n // 2, size=7),
            jax.lax.reduce_precision(x, 5, 3), jnp.median(x, 1), jnp.histogram(x, 4)[0],
        )
    close(neuron.jit(f)(X, at, whole), jax.jit(f)(X, at, whole), 3e-6)


def test_gradients_of_what_looks_up_and_pools():
    def pooled(x):
        windows = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 3), (2, 2), "VALID")
        return jnp.sum(windows ** 2) + jnp.sum(jnp.sort(x, 1)[:, 3] * jnp.cumprod(x[0, :8]))
    close(neuron.jit(jax.grad(pooled))(X), jax.grad(pooled)(X), 1e-5)

    def looked_up(table, at):
        return jnp.sum(jnp.tanh(table[at]) * jnp.arange(16.0))
    at = np.array([[1, 3, 1], [0, 1, 7]], np.int32)
    close(neuron.jit(jax.grad(looked_up))(X, at), jax.grad(looked_up)(X, at), 1e-5)


def test_loops_that_run_as_often_as_the_data_say():
    def root(x):
        def away(state):
            return jnp.abs(state[0] ** 2 - x).max() > 1e-3

        def newton(state):
            return (state[0] + x / state[0]) / 2, state[1] + 1
        return jax.lax.while_loop(away, newton, (jnp.ones_like(x) * 50, 0))
    jitted = neuron.jit(root)
    for x in (np.float32([2.0, 9.0, 1e3]), np.float32([2500.0, 2500.0, 2500.0])):
        close(jitted(x), jax.jit(root)(x), 1e-6)
    assert len(jitted.programs) == 1
    each = jax.vmap(lambda n, x: jax.lax.fori_loop(0, n, lambda i, c: c * x + i, 1.0))
    counts, x = np.int32([0, 3, 6]), np.float32([2.0, 0.5, -1.5])
    close(neuron.jit(each)(counts, x), each(counts, x), 1e-6)


ONE = {
    "row": lambda x, i, j: x[i] * 2,
    "row as a column": lambda x, i, j: x[i][:, None] * jnp.ones((16, 3)),
    "row turned": lambda x, i, j: x[i][None].T @ jnp.ones((1, 4)),
    "outer product": lambda x, i, j: jnp.outer(x[i], x[j]),
    "product with a row": lambda x, i, j: x @ x[i],
    "element": lambda x, i, j: x[i, j] * x,
    "column": lambda x, i, j: x[:, j][:, None] * x,
    "window": lambda x, i, j: jax.lax.dynamic_slice(x, (i, j), (1, 3)).T,
    "axis that is kept": lambda x, i, j: jax.lax.dynamic_index_in_dim(x, j, 1),
    "in a loop": lambda x, i, j: jax.lax.while_loop(
        lambda s: s[0] < i, lambda s: (s[0] + 1, s[1] + x[s[0], j] * x[s[0]]),
        (0, jnp.zeros(16)))[1],
}  # fmt: skip


@pytest.mark.parametrize("pick", ONE.values(), ids=ONE.keys())
def test_a_number_of_the_data_picks(pick):
    for i, j in ((3, 2), (0, 15), (-1, -1)):
        close(neuron.jit(pick)(X, i, j), jax.jit(pick)(X, i, j), 1e-5)


def test_what_the_chip_has_not_is_refused():
    with jax.enable_x64(True), pytest.raises(UnsupportedError, match="argument 0 is float64") as e:
        neuron.jit(lambda x: x + 1)(X.astype(np.float64))
    assert e.value.code == "frameworks.jax_float64"
    with pytest.raises(UnsupportedError, match="a result is complex64"):
        neuron.jit(lambda x: x * 1j)(X)


def test_ops_the_chip_cannot_do_are_named_at_once_with_their_line():
    def spectrum(x):
        return jnp.fft.fft(x).real  # here
    with pytest.raises(UnsupportedError, match="1 × fft: complex64") as error:
        neuron.jit(spectrum)(X)
    assert "# here" in error.value.at.text

    def factor(x):
        return jax.lax.while_loop(lambda s: s.sum() < 9, jnp.linalg.cholesky, x)
    with pytest.raises(TrnError) as error:
        neuron.jit(factor)(X[:4, :4])
    assert error.value.code == "compiler.no_kernel"
    assert "cholesky" in error.value.what


def test_all_refusals_come_at_once_each_with_its_line():
    def several(x):
        a = jnp.linalg.cholesky(x)  # one
        b = jnp.fft.rfft(x[0])  # two
        c = jax.lax.linalg.triangular_solve(x, x, left_side=True)  # three
        d, _ = jnp.linalg.qr(x)  # four
        return a, b.real, c, d, jnp.tanh(x)
    with pytest.raises(UnsupportedError) as error:
        neuron.jit(several)(X[:4, :4])
    what = error.value.what
    for op, mark in (("cholesky", "one"), ("fft", "two"), ("triangular_solve", "three"),
                     ("custom_call @Qr", "four")):  # fmt: skip
        (row,) = [n for n, line in enumerate(what.splitlines()) if f" × {op}:" in line]
        assert f"# {mark}" in what.splitlines()[row + 1]
    assert "× tanh" not in what
    assert error.value.code == "graph.unsupported_op"


def test_refusals_in_loops_count_turns_among_turns():
    def f(x):
        return jax.lax.scan(lambda c, _: (jnp.linalg.cholesky(c), jnp.linalg.qr(c)[1]), x, None, 20)
    with pytest.raises(UnsupportedError, match="20 × cholesky") as error:
        neuron.jit(f)(X[:4, :4])
    count, whole = map(int, re.search(r"\((\d+) of (\d+) values\)", error.value.what).groups())
    assert count >= 40
    assert count < whole


def test_numbers_in_the_middle_that_the_chip_has_not_are_refused():
    with jax.enable_x64(True), pytest.raises(UnsupportedError, match="float64") as error:
        neuron.jit(lambda x: jnp.sum(x.astype(jnp.float64)).astype(jnp.float32))(X)
    assert error.value.code == "frameworks.numbers"
    for kind in (jnp.int4, jnp.float8_e4m3fn):
        with pytest.raises(UnsupportedError) as error:
            neuron.jit(lambda x: x.astype(jnp.float32) * 2)(jnp.ones(3, kind))
        assert error.value.code == "frameworks.numbers"
    with nki.use_target("trn3"):
        ones = neuron.jit(lambda x: x.astype(jnp.float32) * 2)(jnp.ones(3, jnp.float8_e4m3fn))
    assert ones.tolist() == [2, 2, 2]


def test_arithmetic_of_64_bits_that_may_wrap_around_is_told_once_at_its_line():
    given = np.array([2**20, 3, -5])

    def squares(x):
        y = x * x  # 2**40 has no place in 32 bits
        return y + y, jnp.max(x)

    def in_a_loop(x):
        return jax.lax.while_loop(lambda c: c[0] < x[1], lambda c: (c[0] + 1, c[1] * x), (0, x))

    with jax.enable_x64(True):
        for f, names in ((squares, "multiply, add"), (in_a_loop, "multiply"),
                         (jnp.sum, "reduce")):  # fmt: skip
            with pytest.warns(NarrowedWarning, match=rf"int64 \({names}\)") as told:
                neuron.jit(f).compile(given)
            assert len(told) == 1
            assert f is jnp.sum or told[0].filename == __file__
        for f in (lambda x: x + 1, jnp.max, lambda x: x.astype(np.int32) * 2, lambda x: x[::-1],
                  lambda x: x * -1):  # fmt: skip
            neuron.jit(f).compile(given)  # warnings are errors


def test_what_jax_has_no_stablehlo_for_is_refused_with_its_lines():
    def both(x):
        w, _ = jnp.linalg.eigh(x)  # here
        return w + jnp.linalg.eigh(x)[0], jax.scipy.linalg.schur(x)  # and there
    with pytest.raises(UnsupportedError, match="2 × eigh") as error:
        neuron.jit(both)(X[:4, :4])
    assert error.value.code == "frameworks.jax_primitive"
    assert "# here" in error.value.what
    assert "1 × schur" in error.value.what
    with pytest.raises(UnsupportedError) as error:
        neuron.jit(jnp.linalg.svd)(X[:4, :4])
    assert error.value.code == "frameworks.jax_primitive"

    def printing(x):
        jax.debug.print("{}", x)  # a line
        return x
    with pytest.raises(UnsupportedError, match="debug_print") as error:
        neuron.jit(printing)(X)
    assert error.value.code == "frameworks.jax_callback"
    assert "# a line" in error.value.at.text


@pytest.mark.parametrize(("problem", "code", "says", "at"), [
    (NotBuiltError("our own", code="nki.cores", at=Where("f.py", 3, "g")), "nki.cores", "our own",
     "f.py:3 in g"),
    (NotImplementedError("JAX has none of it\nmore"), "frameworks.jax_primitive",
     "JAX has none of it", None),
    (NotImplementedError(), "frameworks.jax_primitive", "JAX cannot lower an op for the chip",
     None),
], ids=["ours", "JAX's", "without words"])  # fmt: skip
def test_what_fails_while_jax_lowers_keeps_its_words(problem, code, says, at):
    def lowering(*_):
        raise problem

    odd = Primitive("odd")
    odd.def_abstract_eval(lambda x: x)
    mlir.register_lowering(odd, lowering)
    with pytest.raises(TrnError) as error:
        neuron.jit(odd.bind)(X)
    assert (error.value.code, error.value.what) == (code, says)
    assert at is None or str(error.value.at) == at


def test_arguments_have_the_dtypes_jax_gives_them():
    for given in (X.astype(np.float64), np.float64(2), np.arange(3), np.uint64(7), [1.5, 2.5], 3):
        if isinstance(given, list):
            given = tuple(given)
        found, wanted = (f(lambda x: jax.tree.map(lambda a: a * 2, x))(given)
                         for f in (neuron.jit, jax.jit))  # fmt: skip
        close(found, wanted)


def test_results_are_weak_where_jax_has_them_weak():
    def f(x, n):
        return x * 2, 1, 2.0, n, n + 1, jnp.float32(n), {"k": 3 * n}
    for n in (3, 1.5, True):
        found, wanted = (jax.tree.leaves(j(f)(X, n)) for j in (neuron.jit, jax.jit))
        assert [a.weak_type for a in found] == [a.weak_type for a in wanted]
        assert [(a + jnp.bfloat16(1)).dtype for a in found] == [(a + jnp.bfloat16(1)).dtype
                                                               for a in wanted]  # fmt: skip


def test_methods_are_jitted_as_jax_jits_them():
    class Model:
        def __init__(self, scale):
            self.scale = scale

        @functools.partial(neuron.jit, static_argnums=0)
        def call(self, x):
            return x * self.scale

        @neuron.jit
        def plain(x):
            return x + 1

    close(Model(3).call(X), jnp.asarray(3 * X))
    close(Model(4).call(X), jnp.asarray(4 * X))
    close(Model.plain(X), jnp.asarray(X + 1))


def test_arguments_that_cannot_be_donated_are_refused_as_jax_does():
    for options in ({"donate_argnums": 9}, {"donate_argnums": 0, "static_argnums": 0}):
        for f in (neuron.jit, jax.jit):
            with pytest.raises(ValueError, match="donate_arg|donate_argnums"):
                f(lambda x: x, **options)


def test_calls_into_python_are_refused_at_their_line():
    def f(x):
        def turn(i, c):
            return jax.pure_callback(np.tanh, c, c) + i  # in a loop
        return jax.lax.fori_loop(0, 3, turn, x)
    with pytest.raises(UnsupportedError, match="pure_callback") as error:
        neuron.jit(f)(X)
    assert error.value.code == "frameworks.jax_callback"
    assert "# in a loop" in error.value.at.text


def test_a_computation_of_every_device_of_a_mesh_runs_on_one_core():
    def f(x):
        return jax.lax.psum(x, "i")
    part = jax.sharding.PartitionSpec
    alone = jax.sharding.Mesh(np.array(jax.devices()[:1]), "i")
    one = jax.shard_map(f, mesh=alone, in_specs=part("i"), out_specs=part())
    close(neuron.jit(one)(X), jnp.asarray(X))
    two = jax.shard_map(f, mesh=jax.sharding.AbstractMesh((2,), ("i",)), in_specs=part("i"),
                        out_specs=part())
    jitted = neuron.jit(two)
    close(jitted(X), jnp.asarray(X[:4] + X[4:]))
    (program,) = jitted.programs.values()
    assert program.lowered.graph.histogram()["sharding_constraint"] == 2
    assert ["OneDevice", "rewrote", 2] in program.executable.meta["rules"]


def test_devices_that_meet_in_a_loop_are_refused():
    def f(x):
        return jax.lax.fori_loop(0, 3, lambda i, c: jax.lax.psum(c, "i") / 2, x)
    part = jax.sharding.PartitionSpec("i")
    mapped = jax.shard_map(f, mesh=jax.sharding.AbstractMesh((2,), ("i",)), in_specs=part,
                           out_specs=part, check_vma=False)
    with pytest.raises(NotBuiltError, match="inside a loop") as error:
        neuron.jit(mapped)(X)
    assert error.value.code == "graph.stablehlo_sharded"
    assert error.value.at.file == __file__


def test_profiles_name_the_lines_of_the_function():
    def f(x, w):
        y = jnp.tanh(x @ w)  # a product
        return jnp.sum(jnp.sort(y, 1)[:, :2] ** 2)  # then a sort
    program = neuron.jit(f).compile(X, W)
    lines = {one.where.text.partition("# ")[2] for one in program.executable.program.instructions()}
    assert lines == {"a product", "then a sort"}
