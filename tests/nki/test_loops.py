"""Device loops: they run as written, whatever their trip count, and stay loops in the program."""

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import TrnError, UsageError
from opentrn.isa import Loop
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.sim import Replay

X = np.arange(8 * 6, dtype=np.float32).reshape(8, 6)


def count(n):
    return np.array([[n]], np.int32)


def fori(x, n):
    """x + 1, n times."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    t, turns = nl.load(x), nisa.register_alloc(nl.load(n))
    nl.fori_loop(0, turns, lambda i: nisa.tensor_scalar(t, t, nl.add, 1.0))
    nl.store(out, t)
    return out


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_a_loop_runs_as_often_as_its_register_says(n):
    run = nki.run(fori, X, count(n))
    assert np.array_equal(run.outputs, X + n)
    assert run.program.counts()["tensor_scalar"] == 1
    assert [trips for _, trips in run.trips[0]] == [n]
    assert all(f.code == "nki.migrate.dynamic_range" for f in run.findings)


@pytest.mark.parametrize(
    ("start", "stop", "step"), [(0, 3, 1), (2, 9, 3), (5, 5, 1), (6, 5, 1), (0, 1, 5), (1, 8, 7)]
)
def test_constant_bounds_give_the_values_of_range(start, stop, step):
    def kernel(x):
        out = nl.ndarray((16, 1), nl.int32, buffer=nl.shared_hbm)
        t = nl.zeros((1, 16), nl.int32)
        for i in nl.dynamic_range(start, stop, step):
            nisa.register_store(t[:, i], i)
            nisa.tensor_scalar(t[:, i], t[:, i], nl.add, 100)
        nisa.dma_copy(out, t)
        return out

    wanted = np.zeros(16, int)
    for i in range(start, stop, step):
        wanted[i] = i + 100
    run = nki.run(kernel, X)
    assert run.outputs[:, 0].tolist() == wanted.tolist()
    assert all(f.code == "nki.migrate.dynamic_range" for f in run.findings)


@pytest.mark.parametrize("outer", [0, 1, 3])
@pytest.mark.parametrize("inner", [0, 1, 2])
def test_nested_loops_multiply(outer, inner):
    def kernel(x, a, b):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        t, n = nl.load(x), nisa.register_alloc(nl.load(a))
        times = nl.load(b)
        for _ in nl.dynamic_range(n):
            m = nisa.register_alloc(times)
            for _ in nl.dynamic_range(0, m):
                nisa.tensor_scalar(t, t, nl.add, 1.0)
            nisa.tensor_scalar(t, t, nl.add, 100.0)
        nl.store(out, t)
        return out

    run = nki.run(kernel, X, count(outer), count(inner))
    assert np.array_equal(run.outputs, X + outer * (100 + inner))
    loops = [node for node in run.program.body if isinstance(node, Loop)]
    assert len(loops) == 1
    assert sum(isinstance(node, Loop) for node in loops[0].body) == 1
    assert [trips for _, trips in run.trips[0]].count(inner) >= outer


def test_a_triangle_of_loops_runs_its_inner_body_first_in_a_later_turn():
    def kernel(x):
        out = nl.ndarray((6, 6), nl.float32, buffer=nl.shared_hbm)
        t = nl.zeros((1, 36), nl.float32)
        at = nl.zeros((1, 1), nl.int32)
        for i in nl.dynamic_range(6):
            for _ in nl.dynamic_range(0, i):
                where = nisa.register_alloc(at)
                nisa.memset(t[:, where], 1.0)
                nisa.tensor_scalar(at, at, nl.add, 1)
        nisa.dma_copy(out.reshape((1, 36)), t)
        return out

    run = nki.run(kernel, X)
    assert run.outputs.sum() == 15
    assert all(f.code == "nki.migrate.dynamic_range" for f in run.findings)


def test_a_loop_that_never_ran_computes_nothing_and_reads_nothing():
    def kernel(x, n):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        t, never = nl.load(x), nisa.register_alloc(nl.load(n))
        for _ in nl.dynamic_range(never):
            inner = nisa.register_alloc(nl.load(n))
            for j in nl.dynamic_range(inner):
                nisa.memset(t[:, j], -1.0)
            for _ in nl.dynamic_range(3):
                nisa.tensor_scalar(t, t, nl.add, 1.0)
            nl.while_loop(inner, lambda r: r)
        nl.store(out, t)
        return out

    run = nki.run(kernel, X, count(0))
    assert np.array_equal(run.outputs, X)
    assert all(f.code == "nki.migrate.dynamic_range" for f in run.findings)
    assert [trips for _, trips in run.trips[0]] == [0]


def test_a_while_loop_runs_until_its_register_is_zero():
    def kernel(x, n):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        t, left, one = nl.load(x), nl.load(n), nl.full((1, 1), 1, nl.int32)

        def body(r):
            nisa.tensor_scalar(t, t, nl.multiply, 2.0)
            nisa.tensor_tensor(left, left, one, nl.subtract)
            nisa.register_load(r, left)
            return r

        nl.while_loop(nisa.register_alloc(left), body)
        nl.store(out, t)
        return out

    for n in (0, 1, 5):
        run = nki.run(kernel, X, count(n))
        assert np.array_equal(run.outputs, X * 2**n)
        assert [trips for _, trips in run.trips[0]] == [n]


def test_writing_the_counter_changes_nothing():
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        t = nl.load(x)

        def body(i):
            nisa.tensor_scalar(t, t, nl.add, 1.0)
            nisa.register_move(i, 100)

        nl.fori_loop(0, 4, body)
        nl.store(out, t)
        return out

    assert np.array_equal(nki.simulate(kernel)(X), X + 4)


def test_rows_by_dynamic_slices_and_by_scalar_offset():
    def kernel(x):
        first = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="first")
        second = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="second")
        third = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="third")
        for i in nl.dynamic_range(0, 8, 2):
            t = nl.ndarray((2, 6), x.dtype)
            nisa.dma_copy(t, x[nl.ds(i, 2), :])
            nisa.dma_copy(first[nl.ds(i, 2), :], t)
            row = nl.ndarray((1, 6), x.dtype)
            nisa.dma_copy(row, x.ap([[6, 1], [1, 6]], scalar_offset=i, indirect_dim=0))
            nisa.dma_copy(second.ap([[6, 1], [1, 6]], scalar_offset=i, indirect_dim=0), row)
            nisa.dma_copy(third[i], x[i])
        return first, second, third

    run = nki.run(kernel, X)
    first, second, third = run.outputs
    assert np.array_equal(first, X)
    for found in (second, third):
        assert np.array_equal(found[::2], X[::2])
        assert np.isnan(found[1::2]).all()
    codes = ["nki.migrate.dynamic_range", "sim.partial_output", "sim.partial_output"]
    assert [f.code for f in run.findings] == codes
    assert "50.0% unwritten" in run.findings[1].what


def test_columns_of_a_tile_by_a_counter():
    def kernel(x):
        out = nl.ndarray((8, 6), x.dtype, buffer=nl.shared_hbm)
        t, turned = nl.load(x), nl.ndarray((8, 6), x.dtype)
        for i in nl.dynamic_range(6):
            nisa.tensor_scalar(turned[:, i], t[:, i], nl.multiply, -1.0)
        nl.store(out, turned)
        return out

    run = nki.run(kernel, X)
    assert np.array_equal(run.outputs, -X)
    assert all(f.code == "nki.migrate.dynamic_range" for f in run.findings)


def test_psum_accumulates_over_the_turns_of_a_loop():
    a = np.random.default_rng(0).normal(size=(4, 32, 16)).astype(np.float32)
    b = np.random.default_rng(1).normal(size=(4, 32, 24)).astype(np.float32)

    def kernel(x, y):
        out = nl.ndarray((16, 24), nl.float32, buffer=nl.shared_hbm)
        acc = nl.ndarray((16, 24), nl.float32, buffer=nl.psum)

        def body(k):
            left, right = nl.ndarray((32, 16), x.dtype), nl.ndarray((32, 24), y.dtype)
            nisa.dma_copy(left, x[k])
            nisa.dma_copy(right, y[k])
            nisa.nc_matmul(acc, left, right)

        nl.fori_loop(0, 4, body)
        nl.store(out, acc)
        return out

    run = nki.run(kernel, a, b)
    wanted = np.einsum("kpm,kpn->mn", a.astype(np.float64), b)
    np.testing.assert_allclose(run.outputs, wanted, rtol=1e-5, atol=1e-5)
    assert all(f.code == "nki.migrate.dynamic_range" for f in run.findings)
    assert np.array_equal(Replay(run.program, run.chip)([a, b])[0], run.outputs)


def test_a_psum_tile_made_in_the_body_begins_anew_in_every_turn():
    ones = np.ones((16, 16), np.float32)

    def kernel(x):
        out = nl.ndarray((3, 16, 16), nl.float32, buffer=nl.shared_hbm)
        t = nl.load(x)
        for i in nl.dynamic_range(3):
            acc = nl.ndarray((16, 16), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(acc, t, t)
            nisa.nc_matmul(acc, t, t)
            sums = nl.copy(acc)
            nisa.dma_copy(out[i], sums)
        return out

    run = nki.run(kernel, ones)
    assert (run.outputs == 32).all()
    assert all(f.code == "nki.migrate.dynamic_range" for f in run.findings)


def test_psum_reset_and_read_in_every_turn_is_no_finding():
    def kernel(x):
        out = nl.ndarray((16, 16), nl.float32, buffer=nl.shared_hbm)
        t, acc = nl.load(x), nl.ndarray((16, 16), nl.float32, buffer=nl.psum)
        total = nl.zeros((16, 16), nl.float32)
        for _ in nl.dynamic_range(3):
            nisa.nc_matmul(acc, t, t, accumulate=False)
            nisa.nc_matmul(acc, t, t, accumulate=True)
            nisa.tensor_tensor(total, total, acc, nl.add)
            nisa.memset(acc, 0.0)
        nl.store(out, total)
        return out

    run = nki.run(kernel, np.ones((16, 16), np.float32))
    assert (run.outputs == 3 * 32).all()
    assert all(f.code == "nki.migrate.dynamic_range" for f in run.findings)


def test_a_tile_that_python_lets_go_of_in_the_body_serves_every_turn():
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        total = nl.zeros(x.shape, x.dtype)
        t = nl.load(x)
        for _ in nl.dynamic_range(4):
            doubled = nl.add(t, t)
            t = None  # the device still reads the tile in later turns
            nisa.tensor_tensor(total, total, doubled, nl.add)
        nl.store(out, total)
        return out

    run = nki.run(kernel, X)
    assert np.array_equal(run.outputs, 8 * X)
    assert all(f.code == "nki.migrate.dynamic_range" for f in run.findings)


@pytest.mark.parametrize("step", [0, -1, 1.5, None])
def test_steps_are_positive_constants(step):
    with pytest.raises(UsageError) as caught:
        nki.run(lambda: nl.fori_loop(0, 4, lambda i: None, step))
    assert caught.value.code == "nki.loop"


def test_a_body_left_by_break_is_refused():
    def kernel(x):
        t = nl.load(x)
        for _ in nl.dynamic_range(4):
            nisa.tensor_scalar(t, t, nl.add, 1.0)
            break
        return x

    with pytest.raises(UsageError) as caught:
        nki.run(kernel, X)
    assert caught.value.code == "isa.open_loop"


def test_the_counter_is_no_python_number():
    def kernel(x):
        for i in nl.dynamic_range(4):
            if i == 0 or i > 2:
                break
            range(i)

    with pytest.raises((UsageError, TypeError)):
        nki.run(kernel, X)

    def index(x):
        for i in nl.dynamic_range(4):
            [1, 2, 3, 4][i]

    with pytest.raises(UsageError) as caught:
        nki.run(index, X)
    assert caught.value.code == "nki.counter"


def test_a_while_body_returns_the_next_condition():
    with pytest.raises(UsageError) as caught:
        nki.run(lambda: nl.while_loop(nisa.register_alloc(1), lambda r: None))
    assert caught.value.code == "nki.loop"


def test_device_loops_inside_no_reorder_are_refused():
    def kernel(x):
        with nl.no_reorder():
            for _ in nl.dynamic_range(2):
                nl.load(x)

    with pytest.raises(UsageError) as caught:
        nki.run(kernel, X)
    assert caught.value.code == "nki.no_reorder"


def test_a_register_without_a_value_is_refused():
    with pytest.raises(TrnError) as caught:
        nki.run(lambda: nl.fori_loop(0, nisa.register_alloc(), lambda i: None))
    assert caught.value.code == "sim.register"
