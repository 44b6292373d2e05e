"""The functional machine: aliases, reinterpreted bytes, PSUM groups, engine state."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn import nki
from opentrn.base import numerics
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.sim import Replay, Strict
from tests.nki.tiles import BF16


def out_of(*tiles):
    outs = []
    for tile in tiles:
        out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tile)
        outs.append(out)
    return tuple(outs)


def run_twice(kernel, *arrays, noticed=()):
    """Outputs of a run that finds just this, checked to be those of a replay."""
    run = nki.run(kernel, *arrays)
    assert tuple(f.code for f in run.findings if not f.code.startswith("nki.migrate.")) == noticed
    replay = Replay(run.program, run.chip)
    for _ in range(2):
        for found, wanted in zip(replay(list(arrays)), run.outputs, strict=True):
            assert found.tobytes() == wanted.tobytes()
    return run.outputs


X = np.random.default_rng(3).normal(size=(128, 16)).astype(np.float32)


# ---------------------------------------------------------------------- aliases by address


def test_tiles_at_overlapping_addresses_share_bytes():
    def kernel(x):
        a = nl.ndarray((128, 16), nl.float32, address=(0, 256))
        b = nl.ndarray((128, 16), nl.float32, address=(0, 256 + 32))
        nisa.dma_copy(a, x)
        nisa.memset(b[:, 8:16], -1.0)
        return out_of(a, b)

    a, b = run_twice(kernel, X)
    assert np.array_equal(a, X)
    assert np.array_equal(b[:, :8], X[:, 8:])
    assert (b[:, 8:] == -1).all()


def test_aliases_of_other_dtypes_and_partitions_see_the_same_bytes():
    def kernel(x):
        a = nl.ndarray((128, 16), nl.float32, address=(0, 64))
        halves = nl.ndarray((32, 8), nl.bfloat16, address=(64, 64 + 16))
        nisa.dma_copy(a, x)
        seen = nl.ndarray((32, 8), nl.bfloat16)
        nisa.tensor_copy(seen, halves)
        nisa.memset(halves[:, 1:2], 0.0)
        return out_of(a, seen)

    a, seen = run_twice(kernel, X)
    wanted = X.copy()
    bits = wanted[64:96, 4:8].copy().view(BF16)
    assert np.array_equal(seen.view(np.uint16), bits.view(np.uint16))
    bits[:, 1] = 0
    wanted[64:96, 4:8] = bits.view(np.float32)
    assert a.tobytes() == wanted.tobytes()


def test_an_alias_written_by_one_name_is_written_for_the_other():
    def kernel(x):
        a = nl.ndarray((128, 16), nl.float32, address=(0, 0), name="a")
        b = nl.ndarray((128, 16), nl.float32, address=(0, 64), name="b")
        nisa.dma_copy(b, x)
        alias = nl.ndarray((128, 8), nl.float32, address=(0, 64 + 32))
        return (*out_of(alias), *out_of(a))

    run = nki.run(kernel, X)
    assert np.array_equal(run.outputs[0], X[:, 8:])
    assert [f.code for f in run.findings] == ["sim.uninitialised"]
    assert "`a`" in run.findings[0].what
    assert np.isnan(run.outputs[1]).all()


def test_a_psum_tile_begins_its_own_sum_where_another_lies():
    def kernel(x):
        w = nl.ndarray((128, 32), nl.float32)
        nisa.memset(w, 1.0)
        t = nl.load(x)
        first = nl.ndarray((32, 16), nl.float32, buffer=nl.psum, address=(0, 2048))
        second = nl.ndarray((32, 8), nl.float32, buffer=nl.psum, address=(0, 2048 + 32))
        nisa.nc_matmul(first, w, t)
        nisa.nc_matmul(second, w, t[:, 0:8])
        result = nl.ndarray((32, 16), nl.float32)
        nisa.tensor_copy(result, first)
        return out_of(result)

    wide = X.astype(np.float64)
    sums = np.concatenate([wide[:, :8].sum(0), wide[:, :8].sum(0)])
    (found,) = run_twice(kernel, X, noticed=("sim.unread_alias",))
    np.testing.assert_allclose(found, np.tile(sums, (32, 1)), rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------- reinterpreted bytes


def test_floats_as_bytes_before_and_after_writing():
    def kernel(x):
        t = nl.load(x)
        seen = nl.ndarray((128, 64), nl.uint8)
        nisa.tensor_copy(seen, t.view(nl.uint8))
        nisa.memset(t.view(nl.uint8)[:, 3:64:4], 0x40)
        return out_of(seen, t)

    seen, after = run_twice(kernel, X)
    assert np.array_equal(seen, X.view(np.uint8))
    wanted = X.copy().view(np.uint8)
    wanted[:, 3::4] = 0x40
    assert after.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16, nl.int16, nl.uint16])
def test_the_upper_halves_of_floats(dtype):
    def kernel(x):
        t = nl.load(x)
        halves = t.view(dtype)
        upper = nl.ndarray((128, 16), dtype)
        nisa.tensor_copy(upper, halves[:, 1:32:2])
        nisa.memset(halves[:, 0:32:2], 0)
        return out_of(upper, t)

    upper, cut = run_twice(kernel, X)
    halves = X.view(np.uint16).copy()
    assert np.array_equal(upper.view(np.uint16), halves[:, 1::2])
    halves[:, 0::2] = 0
    assert cut.tobytes() == halves.tobytes()


def test_a_low_precision_tile_filled_through_its_bytes():
    def kernel(x):
        t = nl.ndarray((128, 32), nl.bfloat16)
        nisa.dma_copy(t.view(nl.float32), x)
        doubled = nl.ndarray((128, 32), nl.bfloat16)
        nisa.tensor_scalar(doubled, t, nl.multiply, 2.0)
        return out_of(t, doubled)

    finite = np.abs(X) + 1  # no half of these is a NaN or overflows
    finite.view(np.uint16)[:, 0::2] &= 0x3FFF
    t, doubled = run_twice(kernel, finite)
    assert t.tobytes() == finite.tobytes()
    assert np.array_equal(doubled.astype(np.float32), 2 * finite.view(BF16).astype(np.float32))


def test_bytes_written_one_by_one_make_a_whole_word():
    def kernel():
        t = nl.ndarray((4, 2), nl.int32)
        for place, value in enumerate((0x78, 0x56, 0x34, 0x12)):
            nisa.memset(t.view(nl.uint8)[:, place:8:4], value)
        return out_of(t)

    (found,) = run_twice(kernel)
    assert (found == 0x12345678).all()


@pytest.mark.parametrize("last", [3, 4])
def test_a_word_of_which_a_byte_is_missing_is_uninitialised(last):
    def kernel():
        t = nl.ndarray((4, 2), nl.int32)
        for place in range(last):
            nisa.memset(t.view(nl.uint8)[:, place:8:4], 1)
        u = nl.ndarray((4, 2), nl.int32)
        nisa.tensor_copy(u, t)
        return out_of(u)

    run = nki.run(kernel)
    assert [f.code for f in run.findings] == ([] if last == 4 else ["sim.uninitialised"])


def test_hbm_of_low_precision_is_marked_by_the_byte():
    def kernel(x):
        out = nl.ndarray((4, 8), nl.bfloat16, buffer=nl.shared_hbm, name="out")
        nisa.dma_copy(out.view(nl.uint8)[:, 0:15], x)
        return out

    run = nki.run(kernel, np.full((4, 15), 0x3F, np.uint8))
    assert [f.what for f in run.findings] == ["output `out`: 6.2% unwritten"]


# ---------------------------------------------------------------------- PSUM against a model


class Model:
    """PSUM cell by cell: a value and whether a matmul wrote it since the last overwrite."""

    def __init__(self, rows, columns):
        self.value = {(r, c): None for r in range(rows) for c in range(columns)}
        self.open = dict.fromkeys(self.value, False)

    def matmul(self, rows, columns, product, accumulate):
        for r in rows:
            for n, c in enumerate(columns):
                adds = self.open[r, c] if accumulate is None else accumulate
                old = self.value[r, c] if adds else 0
                self.value[r, c] = None if old is None else old + product[r][n]
                self.open[r, c] = True

    def write(self, rows, columns, value):
        for r in rows:
            for c in columns:
                self.value[r, c], self.open[r, c] = value, False

    def move(self, rows, columns, to):
        held = {(r, c): self.value[r, c] for r in rows for c in columns}
        for (r, c), value in held.items():
            self.value[r, c + to], self.open[r, c + to] = value, False


ROWS, COLUMNS = 4, 12
spans = st.integers(0, COLUMNS - 1).flatmap(
    lambda a: st.integers(a + 1, COLUMNS).map(lambda b: (a, b))
)
steps = st.one_of(
    st.tuples(st.just("matmul"), spans, st.sampled_from([None, True, False]), st.integers(1, 3)),
    st.tuples(st.just("memset"), spans, st.none(), st.integers(-2, 2)),
    st.tuples(st.just("copy"), spans, st.none(), st.integers(1, 6)),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(steps, min_size=1, max_size=12))
def test_psum_windows_follow_the_cell_model(sequence):
    model = Model(ROWS, COLUMNS)
    weights = np.arange(1, 1 + 2 * ROWS, dtype=np.float32).reshape(2, ROWS)

    def kernel(w, x):
        acc = nl.ndarray((ROWS, COLUMNS), nl.float32, buffer=nl.psum)
        left, right = nl.load(w), nl.load(x)
        for what, (a, b), accumulate, number in sequence:
            if what == "matmul":
                moving = nl.ndarray((2, b - a), nl.float32)
                nisa.tensor_scalar(moving, right[:, a:b], nl.multiply, float(number))
                nisa.nc_matmul(acc[:, a:b], left, moving, accumulate=accumulate)
            elif what == "memset":
                nisa.memset(acc[:, a:b], float(number))
            else:
                to = min(number, COLUMNS - b)
                if to:
                    tile = nl.ndarray((ROWS, b - a), nl.float32)
                    nisa.tensor_copy(tile, acc[:, a:b])
                    nisa.tensor_copy(acc[:, a + to : b + to], tile)
        tile = nl.ndarray((ROWS, COLUMNS), nl.float32)
        nisa.tensor_copy(tile, acc)
        return out_of(tile)

    x = np.arange(2 * COLUMNS, dtype=np.float32).reshape(2, COLUMNS)
    for what, (a, b), accumulate, number in sequence:
        if what == "matmul":
            model.matmul(range(ROWS), range(a, b), (weights.T @ (x[:, a:b] * number)), accumulate)
        elif what == "memset":
            model.write(range(ROWS), range(a, b), number)
        elif min(number, COLUMNS - b):
            model.move(range(ROWS), range(a, b), min(number, COLUMNS - b))
    quiet = Strict(accumulate_unset="ignore", reset_in_reduction="ignore", read_open_group="ignore")
    with nki.use_strict(quiet):
        run = nki.run(kernel, weights, x)
    wanted = [[model.value[r, c] for c in range(COLUMNS)] for r in range(ROWS)]
    wanted = np.array([[np.nan if v is None else v for v in row] for row in wanted])
    np.testing.assert_array_equal(run.outputs[0], wanted)
    replayed = Replay(run.program, run.chip)([weights, x])[0]
    np.testing.assert_array_equal(replayed, wanted)


def test_accumulation_in_bfloat16_rounds_every_time():
    """trn3 may keep a PSUM tile in bfloat16: each sum is rounded as it is stored."""

    def kernel(w, x):
        acc = nl.ndarray((1, 4), nl.bfloat16, buffer=nl.psum)
        left, right = nl.load(w), nl.load(x)
        for _ in range(3):
            nisa.nc_matmul(acc, left, right)
        tile = nl.ndarray((1, 4), nl.bfloat16)
        nisa.tensor_copy(tile, acc)
        return out_of(tile)

    w, x = np.ones((1, 1), np.float32), np.array([[1.0, 100.3, 257.0, 1e-3]], np.float32)
    with nki.use_target("trn3"):
        (found,) = run_twice(kernel, w, x)
    wanted = np.zeros(4, np.float32)
    for _ in range(3):
        wanted = (wanted + x[0]).astype(BF16).astype(np.float32)
    assert found[0].astype(np.float32).tolist() == wanted.tolist()


def test_matmuls_at_addresses_known_at_run_time():
    def kernel(w, x):
        acc = nl.ndarray((16, 4, 8), nl.float32, buffer=nl.psum)
        left, right = nl.load(w), nl.load(x)
        nisa.memset(acc, 0.0)
        for i in nl.dynamic_range(4):
            nisa.nc_matmul(acc[:, i, :], left, right)
            nisa.nc_matmul(acc[:, i, :], left, right)
        tile = nl.ndarray((16, 4, 8), nl.float32)
        nisa.tensor_copy(tile, acc)
        return out_of(tile)

    w = np.random.default_rng(5).integers(-3, 4, (32, 16)).astype(np.float32)
    x = np.random.default_rng(6).integers(-3, 4, (32, 8)).astype(np.float32)
    (found,) = run_twice(kernel, w, x)
    assert np.array_equal(found, np.repeat(2 * (w.T @ x)[:, None], 4, 1))


# ---------------------------------------------------------------------- engine state, machine


def test_accumulators_live_between_instructions_and_begin_at_zero():
    def kernel(x):
        t = nl.load(x)
        grown, sums = nl.ndarray((128, 16), nl.float32), nl.ndarray((128, 1), nl.float32)
        cmd = nisa.reduce_cmd
        nisa.activation(grown, nl.copy, t, reduce_op=nl.add, reduce_cmd=cmd.reduce)
        nisa.activation(
            grown, nl.square, t, reduce_op=nl.add, reduce_res=sums, reduce_cmd=cmd.reduce
        )
        return out_of(sums)

    (found,) = run_twice(kernel, X)
    wide = X.astype(np.float64)
    wanted = wide.sum(1) + (wide**2).sum(1)
    np.testing.assert_allclose(found[:, 0], wanted, rtol=1e-5, atol=1e-5)


def test_overlapping_copies_within_a_tile_read_before_they_write():
    def kernel(x):
        t = nl.load(x)
        nisa.tensor_copy(t[:, 1:16], t[:, 0:15])
        nisa.dma_copy(t[:, 0:10], t[:, 5:15])
        return out_of(t)

    wanted = X.copy()
    wanted[:, 1:] = X[:, :15]
    wanted[:, :10] = wanted[:, 5:15].copy()
    (found,) = run_twice(kernel, X)
    assert np.array_equal(found, wanted)


def test_instructions_in_place_on_views_of_one_tile():
    def kernel(x):
        t = nl.load(x)
        nisa.tensor_tensor(t[:, 0:8], t[:, 8:16], t[:, 4:12], nl.add)
        nisa.tensor_tensor(t[:, 4:12], t[:, 0:8], t[:, 4:12], nl.multiply)
        return out_of(t)

    wanted = X.copy()
    wanted[:, 0:8] = X[:, 8:16] + X[:, 4:12]
    wanted[:, 4:12] = wanted[:, 0:8] * wanted[:, 4:12]
    (found,) = run_twice(kernel, X)
    assert np.array_equal(found, wanted)


def test_results_written_while_they_are_computed():
    """Against NumPy's float32, one rounding a step, for every instruction that may write so."""

    def kernel(x, column):
        wide, col = nl.load(x), nl.load(column)
        tiles = [nl.ndarray((128, 4, 4), nl.float32) for _ in range(6)]
        deep = nl.ndarray((128, 4, 4), nl.float32)
        nisa.tensor_copy(deep, wide.reshape((128, 4, 4)))
        nisa.tensor_tensor(tiles[0], deep, wide, nl.subtract)  # [P, 4, 4] beside [P, 16]
        nisa.tensor_scalar(tiles[1], deep, nl.multiply, col, op1=nl.add, operand1=0.5)
        nisa.scalar_tensor_tensor(tiles[2], deep, nl.add, col, nl.multiply, wide)
        nisa.activation(tiles[3], nl.square, deep, scale=col, bias=col)
        nisa.activation(tiles[4], nl.sin, deep, scale=8.0)  # past its range
        nisa.tensor_tensor_scan(tiles[5], deep, deep, 0.25, nl.multiply, nl.add)
        nisa.tensor_tensor(deep[:, 0:2], deep[:, 1:3], deep[:, 2:4], nl.add)  # overlaps
        return out_of(*tiles, deep)

    x, column = X * 2, X[:, :1].copy()
    run = nki.run(kernel, x, column)
    found = [each.reshape(128, 16) for each in run.outputs]
    f = np.float32
    assert np.array_equal(found[0], np.zeros_like(x))
    assert np.array_equal(found[1], x * column + f(0.5))
    assert np.array_equal(found[2], (x + column) * x)
    assert np.array_equal(found[3], np.square(x * column + column))
    inside = np.abs(x * 8) <= np.pi
    t = np.float64(x) * 8 - np.copysign(np.pi, x)
    np.testing.assert_allclose(
        found[4], np.where(inside, np.sin(np.float64(x) * 8), t**3 / 6 - t), rtol=1e-4, atol=1e-5
    )
    state = np.full(128, 0.25, f)
    for n in range(16):
        state = x[:, n] * state + x[:, n]
        assert np.array_equal(found[5][:, n], state)
    assert np.array_equal(found[6][:, :8], x[:, 4:12] + x[:, 8:16])


def test_a_move_keeps_every_bit():
    bits = np.arange(128 * 64, dtype=np.uint32).astype(np.uint16).reshape(128, 64) * 8 + 3
    nan_free = bits[(bits & 0x7F80) != 0x7F80]
    x = np.resize(nan_free, (128, 64)).astype(np.uint16).view(BF16)

    def kernel(a):
        t, u = nl.load(a), nl.ndarray((128, 64), nl.bfloat16)
        nisa.tensor_copy(u, t)
        v = nl.ndarray((128, 64), nl.bfloat16, address=(0, 0))
        nisa.dma_copy(v, u)
        w = nl.ndarray((128, 64), nl.bfloat16)
        nisa.dma_copy(w, v)
        return out_of(t, u, v, w)

    for found in run_twice(kernel, x):
        assert found.tobytes() == x.tobytes()


def test_exact_encoding_is_the_rounding_one_on_held_values():
    x = numerics.round_to(X * 1e3, nl.bfloat16)
    held = numerics.encode(x, nl.bfloat16)
    assert numerics.encode(x, nl.bfloat16, exact=True).tobytes() == held.tobytes()
    out = np.empty((128, 20), np.float32)[:, 2:18]
    assert numerics.decode(held, nl.bfloat16, out=out) is not None
    assert np.array_equal(out, x)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("step", [1, 2])
def test_products_of_operands_with_any_strides(turned, step):
    a = np.random.default_rng(8).integers(-4, 5, (16, 24)).astype(np.float32)
    b = np.random.default_rng(9).integers(-4, 5, (16, 40)).astype(np.float32)
    left, right = (a.T.copy().T if turned else a)[:, ::step], b[:, ::step]
    wanted = left.astype(np.float64).T @ right
    assert np.array_equal(numerics.dot(left, right), wanted)
    out = np.empty((wanted.shape[0], wanted.shape[1] + 3), np.float32)[:, 1:-2]
    numerics.dot(left, right, out)
    assert np.array_equal(out, wanted)
    assert np.array_equal(
        numerics.dot(left, np.broadcast_to(b[:, :1], (16, 5))), left.T @ b[:, [0] * 5]
    )
