"""Tiles: operators, assignment, accumulation, block dimensions, promotion, reductions."""

import ml_dtypes
import numpy as np
import pytest

from opentrn.base import TrnError
from opentrn.nki import beta1 as nki
from opentrn.nki import watch
from opentrn.nki.beta1 import isa as nisa
from opentrn.nki.beta1 import language as nl

RNG = np.random.default_rng(5)


def random(*shape) -> np.ndarray:
    """Values around 1, away from 0."""
    return (RNG.random(shape) + 0.5).astype(np.float32)


@nki.jit
def applied(f, *arrays, dtype=np.float32):
    """f on loaded tiles, stored."""
    tile = f(*[nl.load(a) for a in arrays])
    out = nl.ndarray(tile.shape, dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


def opcodes(kernel, *args) -> list[str]:
    """The instructions a call of the kernel issues."""
    with watch() as runs:
        kernel(*args)
    return [i.opcode for i in runs[0].program.body]


BINARY = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
    lambda a, b: 2.0 - a * b,
    lambda a, b: -a + 1.5 / b,
    lambda a, b: (a > b) * a + (a <= b) * b,
    lambda a, b: (a == b) + (a != b) * b,
]


@pytest.mark.parametrize("f", BINARY)
def test_operators_mean_what_they_mean_for_arrays(f):
    a, b = random(128, 40), random(128, 40)
    expected = f(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(applied(f, a, b), expected, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("shape", [(128, 1), (1, 40), (1, 1)])
def test_operators_broadcast_free_dimensions_and_single_partitions(shape):
    a, b = random(128, 40), random(*shape)
    np.testing.assert_array_equal(applied(lambda x, y: x * y, a, b), a * b)
    np.testing.assert_array_equal(applied(lambda x, y: x - y, b, a), b - a)


def test_a_vector_along_each_axis_makes_a_table():
    a, b = random(128, 1), random(1, 30)
    np.testing.assert_array_equal(applied(lambda x, y: x + y, a, b), a + b)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("float32", ml_dtypes.bfloat16, np.float32),
        (ml_dtypes.bfloat16, np.float16, np.float32),
        (np.int32, ml_dtypes.bfloat16, ml_dtypes.bfloat16),
        (np.int16, np.int32, np.int32),
        (np.uint8, np.float16, np.float16),
    ],
)
def test_results_have_the_wider_dtype(left, right, expected):
    seen = []

    def f(a, b):
        seen.append((a + b).dtype)
        return a + b

    applied(f, np.ones((4, 4), left), np.ones((4, 4), right))
    assert seen == [np.dtype(expected)]


def test_dividing_integers_gives_fractions():
    a = np.arange(16, dtype=np.int32).reshape(4, 4)
    np.testing.assert_array_equal(applied(lambda x: x / 8, a), a / 8)


def test_an_assignment_is_one_instruction():
    @nki.jit
    def kernel(x):
        t = nl.ndarray((128, 64), nl.float32)
        t[...] = nl.load(x)
        t[:, 0:32] = nl.exp(t[:, 0:32])
        out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    x = random(128, 64)
    expected = np.concatenate([np.exp(x[:, :32].astype(np.float64)), x[:, 32:]], axis=1)
    np.testing.assert_allclose(kernel(x), expected, rtol=1e-6)
    assert opcodes(kernel, x) == ["dma_copy", "activation", "dma_copy"]


def test_a_named_value_keeps_its_own_memory():
    @nki.jit
    def kernel(x):
        y = nl.exp(nl.load(x))
        t = nl.ndarray((4, 8), nl.float32)
        t[...] = y
        t[...] = 0.0
        out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, y)
        return out

    x = random(4, 8)
    np.testing.assert_allclose(kernel(x), np.exp(x), rtol=1e-6)


def test_values_are_computed_before_their_sources_change():
    @nki.jit
    def kernel(x):
        t = nl.load(x)
        doubled = t * 2.0
        t[...] = 7.0
        out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, doubled + t)
        return out

    x = random(4, 8)
    np.testing.assert_array_equal(kernel(x), x * 2 + 7)


def test_assignment_rounds_once_into_a_narrower_tile():
    def f(a):
        t = nl.ndarray((16, 32), nl.bfloat16)
        t[...] = a * 1.0
        return t

    a = random(16, 32)
    expected = a.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(applied(f, a), expected)


def test_a_narrow_result_keeps_its_rounding_in_a_wide_tile():
    def f(a):
        t = nl.ndarray((16, 32), nl.float32)
        t[...] = nl.multiply(a, 1.0, dtype=nl.bfloat16)
        return t

    a = random(16, 32)
    np.testing.assert_array_equal(applied(f, a), a.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("named", [False, True])
def test_matmuls_add_up_in_psum(named):
    @nki.jit
    def kernel(a, b):
        total = nl.zeros((64, 96), nl.float32, buffer=nl.psum)
        for k in nl.affine_range(3):
            x, y = nl.load(a[nl.ds(k * 128, 128), :]), nl.load(b[nl.ds(k * 128, 128), :])
            if named:
                product = nl.matmul(x, y, transpose_x=True)
                total[...] += product
            else:
                total[...] += nl.matmul(x, y, transpose_x=True)
        out = nl.ndarray((64, 96), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, total)
        return out

    a, b = random(384, 64), random(384, 96)
    expected = a.T.astype(np.float64) @ b
    np.testing.assert_allclose(kernel(a, b), expected, rtol=1e-5)
    if not named:
        made = opcodes(kernel, a, b)
        # No instruction writes the zeros: the first matmul overwrites what is there.
        assert made.count("nc_matmul") == 3
        assert "memset" not in made
        assert "tensor_tensor" not in made


def test_psum_zeros_are_zeros_where_no_matmul_wrote():
    @nki.jit
    def kernel(a, b):
        total = nl.zeros((64, 64), nl.float32, buffer=nl.psum)
        total[:, 0:32] += nl.matmul(nl.load(a), nl.load(b), transpose_x=True)
        out = nl.ndarray((64, 64), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, total)
        return out

    a, b = random(128, 64), random(128, 32)
    expected = np.concatenate([a.T.astype(np.float64) @ b, np.zeros((64, 32))], axis=1)
    np.testing.assert_allclose(kernel(a, b), expected, rtol=1e-5)


def test_matmul_transposes_its_left_side():
    a, b = random(64, 128), random(128, 96)
    got = applied(lambda x, y: nl.matmul(x, y), a, b)
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-5)


def test_updates_happen_in_place():
    def f(a, b):
        t = a
        t += b
        t *= 3.0
        t[:, 0:4] -= 1.0
        return a

    a, b = random(32, 8), random(32, 8)
    expected = (a + b) * np.float32(3)
    expected[:, :4] -= 1
    np.testing.assert_array_equal(applied(f, a, b), expected)


def test_block_dimensions_are_tiles_of_their_own():
    @nki.jit
    def kernel(x):
        t = nl.ndarray((2, 3, nl.par_dim(16), 8), x.dtype)
        for i in nl.affine_range(2):
            for j in nl.affine_range(3):
                p, f = nl.mgrid[0:16, 0:8]
                t[i, j, p, f] = nl.load(x[i, j, p, f])
        out = nl.ndarray((2, 3, 16, 8), x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(2):
            for j in nl.affine_range(3):
                nl.store(out[i, j], t[i][1 - i, :, :] + t[i, j])
        return out

    x = random(2, 3, 16, 8)
    expected = np.stack([x[i] + x[i, 1 - i] for i in range(2)])
    np.testing.assert_array_equal(kernel(x), expected)


@pytest.mark.parametrize("axes", [(1,), (2,), (1, 2), (-1,)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_along_any_free_axis(axes, keepdims):
    x = random(16, 5, 7)
    got = applied(lambda t: nl.sum(t, axis=list(axes), keepdims=keepdims), x)
    expected = x.astype(np.float64).sum(axis=axes, keepdims=keepdims)
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=1e-6)
    largest = applied(lambda t: nl.max(t, axis=list(axes), keepdims=keepdims), x)
    np.testing.assert_array_equal(largest.reshape(expected.shape), x.max(axes, keepdims=keepdims))


def test_masked_reductions_see_masked_elements_only():
    def f(t):
        i, j = nl.mgrid[0:16, 0:20]
        return nl.sum(t[i, j], axis=1, mask=j < 13)

    x = random(16, 20)
    got = applied(f, x)
    np.testing.assert_allclose(got[:, 0], x[:, :13].astype(np.float64).sum(1), rtol=1e-6)


def test_masked_arithmetic_leaves_the_rest_alone():
    def f(t):
        i, j = nl.mgrid[0:16, 0:20]
        out = nl.full((16, 20), -1.0, nl.float32)
        out[i, j] = nl.multiply(t[i, j], 2.0, mask=(i < 9) & (j >= 4))
        out[i, j] = nl.add(t[i, j], 100.0, mask=j >= 15 + i)
        return out

    x = random(16, 20)
    i, j = np.indices(x.shape)
    expected = np.where((i < 9) & (j >= 4), x * 2, -1).astype(np.float32)
    expected = np.where(j >= 15 + i, x + 100, expected)
    np.testing.assert_array_equal(applied(f, x), expected.astype(np.float32))


def test_composites():
    x = random(16, 32)
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    np.testing.assert_allclose(
        applied(lambda t: nl.softmax(t, axis=-1), x), e / e.sum(1, keepdims=True), rtol=1e-5
    )
    np.testing.assert_allclose(
        applied(lambda t: nl.var(t, axis=1), x)[:, 0], wide.var(1), rtol=1e-4
    )
    np.testing.assert_array_equal(applied(lambda t: nl.floor(t * 10.0 - 9.0), x),
                                  np.floor(x * np.float32(10) - np.float32(9)))
    w = random(1, 32)
    norm = wide * w / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(
        applied(lambda t, g: nl.rms_norm(t, g, 1, 32), x, w), norm, rtol=1e-5
    )
    chosen = applied(lambda t: nl.where(t > 1.0, t, -5.0), x)
    np.testing.assert_array_equal(chosen, np.where(x > 1, x, np.float32(-5)))


def test_loop_reduce_adds_up_over_its_loop_only():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 16, 8), nl.float32, buffer=nl.shared_hbm)
        for i in nl.affine_range(2):
            for k in nl.affine_range(4):
                total = nl.loop_reduce(nl.load(x[i, k]), op=np.add, loop_indices=[k])
            nl.store(out[i], total)
        return out

    x = random(2, 4, 16, 8)
    np.testing.assert_allclose(kernel(x), x.astype(np.float64).sum(1), rtol=1e-6)


def test_loop_reduce_into_a_tile_starts_from_what_it_holds():
    @nki.jit
    def kernel(x):
        t = nl.full((16, 8), 5.0, nl.float32)
        for k in nl.affine_range(3):
            t[...] = nl.loop_reduce(nl.load(x[k]), op=np.add, loop_indices=[k])
        out = nl.ndarray((16, 8), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    x = random(3, 16, 8)
    np.testing.assert_allclose(kernel(x), x.astype(np.float64).sum(0) + 5, rtol=1e-6)


def test_indirect_loads_and_stores_follow_an_index_tile():
    @nki.jit
    def kernel(x, rows):
        index = nl.load(rows)
        j = nl.arange(8)[None, :]
        tile = nl.load(x[index, j])
        out = nl.zeros((32, 8), nl.float32, buffer=nl.shared_hbm)
        i = nl.arange(6)[:, None]
        nl.store(out[nisa.iota(i * 5 + 1, dtype=nl.int32), j], tile)
        return out

    x, rows = random(32, 8), np.array([[3], [0], [31], [7], [7], [2]], np.int32)
    expected = np.zeros((32, 8), np.float32)
    expected[np.arange(6) * 5 + 1] = x[rows[:, 0]]
    np.testing.assert_array_equal(kernel(x, rows), expected)


def test_iota_and_affine_select_follow_their_expressions():
    def f(t):
        i, j = nl.mgrid[0:16, 0:20]
        below = nisa.affine_select(pred=(j <= i), on_true_tile=t[i, j], on_false_value=-9.0)
        return below + nisa.iota(3 * i - j + 2, dtype=nl.float32)

    x = random(16, 20)
    i, j = np.indices(x.shape)
    expected = np.where(j <= i, x, np.float32(-9)) + (3 * i - j + 2).astype(np.float32)
    np.testing.assert_array_equal(applied(f, x), expected)


def test_random_numbers_are_uniform_and_follow_the_seed():
    def f(t):
        nl.random_seed(11)
        first = nl.rand((128, 64))
        nl.random_seed(11)
        return first - nl.rand((128, 64)) + nl.rand((128, 64)) * 1.0

    got = applied(f, random(4, 4))
    assert (got >= 0).all()
    assert (got < 1).all()
    assert abs(got.mean() - 0.5) < 0.02
    assert abs(got.var() - 1 / 12) < 0.01


@pytest.mark.parametrize(
    ("use", "code"),
    [
        (lambda x, t: nl.add(x, 1.0), "tensor_scalar.data"),
        (lambda x, t: nl.load(t), "beta1.space"),
        (lambda x, t: nl.store(t, t), "beta1.space"),
        (lambda x, t: 1 if t else 0, "beta1.truth"),
        (lambda x, t: t + "one", "beta1.operand"),
        (lambda x, t: t + nl.arange(8)[None, :], "beta1.operand"),
        (lambda x, t: t[nl.arange(8)[None, :], nl.arange(4)[:, None]] + 1.0, "beta1.partition"),
        (lambda x, t: t[x], "beta1.indirect"),
        (lambda x, t: nl.sum(t, axis=0), "beta1.reduce"),
        (lambda x, t: nl.ndarray((2, nl.par_dim(4), 4), nl.float32) + 1.0, "beta1.operand"),
        (lambda x, t: nl.ndarray((2, nl.par_dim(4), 4), nl.float32)[:, 0], "beta1.block"),
        (lambda x, t: nl.ndarray((nl.par_dim(2), nl.par_dim(4)), nl.float32), "beta1.par_dim"),
        (lambda x, t: nl.gemm_grid, "beta1.unsupported"),
        (lambda x, t: nisa.builtin_custom_op, "beta1.unsupported"),
        (lambda x, t: nl.program_id(3), "beta1.launch"),
        (lambda x, t: nl.ndarray((129, 4), nl.float32), "nki.partitions"),
    ],
)
def test_refusals_have_codes(use, code):
    @nki.jit
    def kernel(x):
        made = use(x, nl.load(x))
        if hasattr(made, "settle"):
            made.settle()
        return x

    with pytest.raises(TrnError) as refused:
        kernel(np.zeros((8, 8), np.float32))
    assert refused.value.code == code


def test_an_error_is_at_the_line_of_the_instruction():
    @nki.jit
    def kernel(x):
        t = nl.load(x)
        wide = nisa.nc_matmul(t, t[0:4, :])
        return nl.exp(wide)

    with pytest.raises(TrnError) as refused:
        kernel(np.zeros((8, 8), np.float32))
    assert "nisa.nc_matmul(t, t[0:4, :])" in str(refused.value)
