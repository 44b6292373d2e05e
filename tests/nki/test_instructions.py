"""Instructions in running kernels: MX end to end, random streams, partial outputs, findings."""

import ml_dtypes
import numpy as np
import pytest

from opentrn import nki
from opentrn.base import UsageError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.session import use_strict, use_target
from opentrn.sim import Strict
from opentrn.sim.replay import Replay


def load(x):
    made = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(made, x)
    return made


def store(tile):
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def run(target, kernel, *inputs, **options):
    with use_target(target):
        return nki.run(kernel, *inputs, **options)


# ---------------------------------------------------------------------- MX


@nki.jit
def mx_product(x, y, kind, packed_scales):
    """Quantise both sides on the chip and multiply; scales in one tile, or one each."""
    sides, first = [], 0
    shared = nl.ndarray((128, y.shape[1] // 4), dtype=nl.uint8, buffer=nl.sbuf)
    for source in (load(x), load(y)):
        words = source.shape[1] // 4
        data = nl.ndarray((128, words), dtype=kind, buffer=nl.sbuf)
        if packed_scales:
            scales, first = shared[first:, :words], first + 4
        else:
            scales = nl.ndarray((128, words), dtype=nl.float8_e8m0fnu, buffer=nl.sbuf)
        nisa.quantize_mx(data, source, scales)
        sides.append((data, scales))
    (a, a_scale), (b, b_scale) = sides
    acc = nl.ndarray((a.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul_mx(acc, a, b, a_scale, b_scale)
    nisa.nc_matmul_mx(acc, a, b, a_scale, b_scale)
    held = nl.ndarray(acc.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(held, acc)
    return store(held)


def requantised(x, element, largest):
    """x [128, C, 4] rounded to MX in float64: the nearest numbers the format has."""
    out = np.empty(x.shape)
    for g in range(16):
        block = x[8 * g : 8 * g + 8]
        top = np.abs(block).max((0, 2), keepdims=True)
        scale = 2.0 ** (np.floor(np.log2(top)) - (largest - 1))
        out[8 * g : 8 * g + 8] = (block / scale).astype(np.float32).astype(element) * scale
    return out


@pytest.mark.parametrize("packed_scales", [False, True])
@pytest.mark.parametrize(
    ("kind", "element", "largest"),
    [
        (nl.float8_e4m3fn_x4, ml_dtypes.float8_e4m3fn, 8),
        (nl.float8_e5m2_x4, ml_dtypes.float8_e5m2, 15),
    ],
)
def test_quantise_and_multiply_on_the_chip(kind, element, largest, packed_scales):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((128, 4 * 64)).astype(ml_dtypes.bfloat16)
    y = rng.standard_normal((128, 4 * 96)).astype(ml_dtypes.bfloat16)
    done = run("trn3", mx_product, x, y, kind, packed_scales)
    a = requantised(x.astype(np.float64).reshape(128, 64, 4), element, largest)
    b = requantised(y.astype(np.float64).reshape(128, 96, 4), element, largest)
    want = 2 * np.einsum("kmq,knq->mn", a, b)
    np.testing.assert_allclose(done.outputs, want, rtol=1e-5, atol=1e-4)
    assert done.findings == ()
    again = Replay(done.program, done.chip)([x, y])[0]
    np.testing.assert_array_equal(again, done.outputs)


@nki.jit
def cast(x, to):
    made = nl.ndarray(x.shape, dtype=to, buffer=nl.sbuf)
    nisa.tensor_copy(made, load(x))
    wide = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(wide, made)
    return store(wide)


def test_fp8_formats_round_and_end_as_documented():
    # TC-21
    x = np.array([[239, 247, 249, 300, 448, 470]], np.float32)
    inf, nan = np.inf, np.nan
    assert run("trn2", cast, x, nl.float8_e4m3).outputs.tolist() == [[240, 240, inf, inf, inf, inf]]
    got = run("trn3", cast, x, nl.float8_e4m3fn).outputs
    np.testing.assert_array_equal(got, [[240, 240, 256, 288, 448, nan]])
    with pytest.raises(TypeError) as caught:
        run("trn2", cast, x, nl.float8_e4m3fn)
    assert "NCC_EVRF051" in str(caught.value)
    assert "trn3" in str(caught.value)


# ---------------------------------------------------------------------- engine state


@nki.jit
def noise(seed):
    first = nl.ndarray((128, 16), dtype=nl.uint32, buffer=nl.sbuf)
    second = nl.ndarray((128, 16), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.set_rng_seed(load(seed))
    nisa.rng(first)
    nisa.rng(second)
    return store(first), store(second)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_a_seed_repeats_and_a_stream_goes_on(target):
    seed = np.array([[5]], np.uint32)
    done = run(target, noise, seed)
    first, second = done.outputs
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(run(target, noise, seed).outputs[0], first)
    replay = Replay(done.program, done.chip)
    for _ in range(2):
        again = replay([seed])
        np.testing.assert_array_equal(again[0], first)
        np.testing.assert_array_equal(again[1], second)


@nki.jit
def unseeded():
    made = nl.ndarray((128, 8), dtype=nl.int32, buffer=nl.sbuf)
    nisa.rng(made, engine=nisa.engine.gpsimd)
    return store(made)


def test_replays_begin_with_the_generator_of_a_fresh_engine():
    done = run("trn2", unseeded)
    replay = Replay(done.program, done.chip)
    np.testing.assert_array_equal(replay([])[0], done.outputs)
    np.testing.assert_array_equal(replay([])[0], done.outputs)


@nki.jit
def sums(x):
    data = load(x)
    made = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((x.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    half = x.shape[1] // 2
    begin, go_on = nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.reduce
    nisa.exponential(made[:, :half], data[:, :half], reduce_cmd=begin)
    nisa.exponential(made[:, half:], data[:, half:], reduce_res=total, reduce_cmd=go_on)
    return store(total)


def test_exponentials_chain_through_the_accumulators():
    x = np.random.default_rng(2).standard_normal((64, 40)).astype(np.float32)
    got = run("trn3", sums, x).outputs
    want = np.exp(x.astype(np.float64)).sum(1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=1e-6)


# ---------------------------------------------------------------------- partial outputs


@nki.jit
def listed(x, rows):
    made = nl.ndarray((x.shape[0], x.shape[1] + 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.nonzero_with_count(made, load(x))
    return store(made[0:rows, :])


def test_rows_that_a_search_leaves_alone_stay_unwritten():
    x = np.zeros((32, 4), np.float32)
    x[0, 2] = 1
    done = run("trn2", listed, x, 1)
    assert done.outputs.tolist() == [[2, -1, -1, -1, 1]]
    assert done.findings == ()
    assert [f.code for f in run("trn2", listed, x, 2).findings] == ["sim.uninitialised"]


@nki.jit
def largest(x, k, n):
    p = x.shape[0]
    values = nl.ndarray((p, k), dtype=nl.bfloat16, buffer=nl.sbuf)
    places = nl.ndarray((p, k), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.topk(values, places, load(x), n)
    wide = -(-k // 16)
    return store(values[:, :wide]), store(places[:, :wide])


def test_topk_writes_the_columns_of_its_snake():
    rng = np.random.default_rng(3)
    x = rng.permutation(64 * 16).reshape(16, 64).astype(ml_dtypes.bfloat16)
    done = run("trn2", largest, x, 32, 16 * 64)
    assert done.findings == ()
    values, places = done.outputs
    snake = x.T.reshape(-1).astype(np.float32)
    np.testing.assert_array_equal(values.T.reshape(-1).astype(np.float32), np.sort(snake)[-32:])
    np.testing.assert_array_equal(snake[places.T.reshape(-1)], values.T.reshape(-1))
    found = run("trn2", largest, x, 20, 16 * 64).findings
    assert {f.code for f in found} == {"sim.uninitialised"}


# ---------------------------------------------------------------------- findings


@nki.jit
def biased(x, op):
    data = load(x)
    bias = nl.ndarray((x.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(bias, 1.0)
    made = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(made, op, data, bias=bias)
    return store(made)


@pytest.mark.parametrize(
    ("size", "steps"),
    [(1, [[0, 48]]), (1, [[0, 6], [0, 8]]), (8, [[0, 6], [1, 8]]), (13, [[1, 6], [1, 8]])],
    ids=["one", "one of two", "rows", "windows"],
)
def test_what_is_summed_is_not_what_overlapping_results_leave_behind(size, steps):
    @nki.jit
    def kernel(x):
        tile, sums = load(x), nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
        small = nl.ndarray((128, size), nl.float32, buffer=nl.sbuf)
        dst = small.ap([[size, 128], *steps])
        data = tile.reshape((128, *[count for _, count in steps]))
        nisa.activation_reduce(dst, nl.square, data, nl.add, sums)
        out = nl.ndarray((128, 2), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out[:, 0:1], sums)
        nisa.tensor_scalar_reduce(dst, data, nl.multiply, 3.0, nl.add, sums)
        nisa.dma_copy(out[:, 1:2], sums)
        return out

    x = np.random.default_rng(3).random((128, 48)).astype(np.float32)
    exact = x.astype(np.float64)
    wanted = np.stack([(exact**2).sum(1), 3 * exact.sum(1)], axis=1)
    np.testing.assert_allclose(nki.run(kernel, x).outputs, wanted, rtol=1e-5)


def test_a_bias_that_copy_may_ignore_is_noticed():
    # TC-07: the specification applies the bias, users saw it ignored
    x = np.zeros((128, 512), np.float32)
    done = run("trn1", biased, x, nl.copy)
    assert (done.outputs == 1).all()
    assert [f.code for f in done.findings] == ["sim.disputed_operand"]
    assert "bias not applied for op=copy" in done.findings[0].what
    assert done.findings[0].where.file.endswith("test_instructions.py")
    done = run("trn1", biased, x, nl.relu)
    assert (done.outputs == 1).all()
    assert done.findings == ()
    with use_strict(Strict(disputed_operand="error")), pytest.raises(UsageError) as caught:
        run("trn1", biased, x, nl.copy)
    assert caught.value.code == "sim.disputed_operand"


@nki.jit
def curved(x, op, scale):
    made = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(made, op, load(x), scale=scale)
    return store(made)


def test_arguments_outside_the_range_of_a_function_are_noticed():
    x = np.array([[0.5, 1.0, 3.0, 4.0]], np.float32)
    assert run("trn2", curved, x, nl.sin, 0.5).findings == ()
    done = run("trn2", curved, x, nl.sin, 1.0)
    assert [f.code for f in done.findings] == ["sim.activation_range"]
    assert "1 of 4 arguments of sin" in done.findings[0].what
    assert run("trn2", curved, x, nl.exp, 50.0).findings == ()
    with use_strict(Strict(activation_range="ignore")):
        assert run("trn2", curved, x, nl.sin, 1.0).findings == ()
    with use_strict(Strict(activation_range="error")), pytest.raises(UsageError) as caught:
        run("trn2", curved, x, nl.sin, 1.0)
    assert caught.value.code == "sim.activation_range"


@nki.jit
def filled():
    parts = []
    for value in (0.0, -0.0, False, 0, 1, True, 1.0):
        made = nl.ndarray((1, 2), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(made, value)
        parts.append(store(made))
    return tuple(parts)


def test_numbers_python_calls_equal_are_told_apart():
    got = run("trn2", filled).outputs
    assert [float(g[0, 0]) for g in got] == [0, 0, 0, 0, 1, 1, 1]
    assert [bool(np.signbit(g[0, 0])) for g in got] == [False, True, *[False] * 5]


BACKWARDS = list(range(31, -1, -1))


def shuffled(mask, filled=64, read=64):
    """The run of a shuffle of the first `filled` rows written, of which `read` are returned."""

    def kernel(x):
        tile, dst = nl.ndarray((64, 8), nl.float32), nl.ndarray((64, 8), nl.float32)
        nisa.dma_copy(tile[0:filled], x[0:filled])
        nisa.nc_stream_shuffle(dst, tile, mask)
        out = nl.ndarray((read, 8), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, dst[0:read])
        return out

    return nki.run(kernel, np.arange(512, dtype=np.float32).reshape(64, 8))


def test_a_shuffle_of_all_partitions_needs_nothing_in_dst():
    run = shuffled(BACKWARDS)
    rows = np.arange(512, dtype=np.float32).reshape(2, 32, 8)[:, ::-1].reshape(64, 8)
    assert run.findings == ()
    assert np.array_equal(run.outputs, rows)


def test_a_shuffle_leaves_the_partitions_it_keeps_unwritten():
    """The first partition is kept, so who reads it reads what nobody wrote; the rest is fine."""
    run = shuffled([255, *BACKWARDS[1:]], read=32)
    assert [f.code for f in run.findings] == ["sim.uninitialised"]
    assert "dma_copy" in run.findings[0].what
    assert np.isnan(run.outputs[0]).all()
    assert np.array_equal(run.outputs[1:, 0], np.arange(30, -1, -1) * 8.0)


def test_a_shuffle_reads_only_the_partitions_its_mask_names():
    assert shuffled([0] * 32, filled=33).findings == ()
    missing = shuffled([1] * 32, filled=33).findings
    assert [f.code for f in missing] == ["sim.uninitialised"]
    assert "nc_stream_shuffle: `src`" in missing[0].what
