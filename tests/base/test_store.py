"""Storing and casting between types: what engines do to values on the way into memory."""

import itertools
import threading

import ml_dtypes
import numpy as np
import pytest

from opentrn.base import Bug, dtypes, numerics

TC05 = np.float32([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 300, -300])


@pytest.mark.parametrize("repeat", [1, 1000])
@pytest.mark.parametrize(
    ("to", "want"),
    [
        (dtypes.int8, [0, 2, 2, 0, -2, 126, 127, 127, -128]),
        (dtypes.uint8, [0, 2, 2, 0, 0, 126, 128, 255, 0]),
        (dtypes.int16, [0, 2, 2, 0, -2, 126, 128, 300, -300]),
        (dtypes.uint16, [0, 2, 2, 0, 0, 126, 128, 300, 0]),
        (dtypes.int32, [0, 2, 2, 0, -2, 126, 128, 300, -300]),
        (dtypes.uint32, [0, 2, 2, 0, 0, 126, 128, 300, 0]),
    ],
)
def test_float_to_integer_rounds_half_to_even_and_clamps(to, want, repeat):
    got = numerics.cast(np.tile(TC05, repeat), dtypes.float32, to)
    assert got.dtype == to.carrier
    assert got.tolist() == want * repeat


@pytest.mark.parametrize(
    "to", [d for d in dtypes.INTS if d.on_chip] + [dtypes.int64, dtypes.uint64]
)
def test_float_specials_to_integer(to):
    x = np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, -0.0, 2.0**31, 2.0**63])
    top, low = to.max, to.min
    want = [0, top, low, top, low, 0, min(2**31, top), min(2**63, top)]
    assert numerics.cast(x, dtypes.float32, to).tolist() == want


def test_integer_to_integer_of_another_width_passes_through_float32():
    x = np.array([2**24 + 1, -(2**31), 2**31 - 1, 300, -5], np.int32)
    assert numerics.cast(x, dtypes.int32, dtypes.int8).tolist() == [127, -128, 127, 127, -5]
    got = numerics.cast(x, dtypes.int32, dtypes.uint32).tolist()
    assert got == [2**24, 0, 2**31, 300, 0]
    assert numerics.cast(x, dtypes.int32, dtypes.int32).tolist() == x.tolist()
    back = numerics.cast(np.array([2**32 - 1], np.uint32), dtypes.uint32, dtypes.int32)
    assert back.tolist() == [2**31 - 1]


def test_integer_to_float_rounds_to_the_float_type():
    x = np.array([257, 255, 2**24 + 1, -(2**31)], np.int32)
    assert numerics.cast(x, dtypes.int32, dtypes.float32).tolist() == [257, 255, 2**24, -(2**31)]
    assert numerics.cast(x, dtypes.int32, dtypes.bfloat16).tolist() == [256, 255, 2**24, -(2**31)]
    assert numerics.cast(x, dtypes.int32, dtypes.float8_e4m3)[:2].tolist() == [np.inf, np.inf]


def test_64_bit_types_do_not_pass_through_float32():
    big = np.array([2**53 + 1, -(2**62) - 1, 7], np.int64)
    assert numerics.cast(big, dtypes.int64, dtypes.int32).tolist() == [2**31 - 1, -(2**31), 7]
    assert numerics.cast(big, dtypes.int64, dtypes.uint64).tolist() == [2**53 + 1, 0, 7]
    fine = np.array([0.1, 1e300])
    assert numerics.cast(fine, dtypes.float64, dtypes.float64).tolist() == fine.tolist()
    assert numerics.cast(fine, dtypes.float64, dtypes.int64).tolist() == [0, 2**63 - 1]
    odd = np.array([16777217], np.int32)
    assert numerics.cast(odd, dtypes.int32, dtypes.int64).tolist() == [16777217]
    assert numerics.cast(odd, dtypes.int32, dtypes.float64).tolist() == [16777217.0]


def test_booleans():
    x = np.float32([0.0, -0.0, 0.3, -2, np.nan, np.inf])
    got = numerics.cast(x, dtypes.float32, dtypes.bool_)
    assert got.dtype == np.uint8
    assert got.tolist() == [0, 0, 1, 1, 1, 1]
    assert numerics.cast(got, dtypes.bool_, dtypes.bfloat16).tolist() == [0, 0, 1, 1, 1, 1]
    assert numerics.cast(np.array([0, 5], np.int32), dtypes.int32, dtypes.bool_).tolist() == [0, 1]


LOW = [d for d in dtypes.FLOATS if d.bits <= 16]


@pytest.mark.parametrize(("src", "dst"), list(itertools.permutations(LOW, 2)))
def test_every_value_of_a_format_casts_to_every_other_as_in_ml_dtypes(src, dst):
    """Also proves which casts may be plain copies: a wrong shortcut shows as an unrounded value."""
    count = 16 if src.bits == 4 else 2**src.bits
    stored = np.arange(count, dtype=f"u{src.itemsize}").view(src.storage)
    with np.errstate(all="ignore"):
        x = stored.astype(np.float32)
        want = x.astype(dst.storage).astype(np.float32)
    got = numerics.cast(x, src, dst)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("src", [dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16])
@pytest.mark.parametrize("dst", [*LOW, dtypes.tfloat32, dtypes.float32])
def test_every_small_integer_casts_to_every_float(src, dst):
    x = np.arange(src.min, src.max + 1).astype(src.carrier)
    with np.errstate(all="ignore"):
        if dst is dtypes.tfloat32:
            unit = 2.0 ** np.maximum(np.floor(np.log2(np.maximum(np.abs(x * 1.0), 1))) - 10, -11)
            want = (np.rint(x / unit) * unit).astype(np.float32)
        else:
            want = x.astype(np.float32).astype(dst.storage).astype(np.float32)
    np.testing.assert_array_equal(numerics.cast(x, src, dst), want)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "tfloat32", "float16", "float8_e4m3"])
@pytest.mark.parametrize("columns", [1, 3, 512])
def test_store_writes_a_strided_window_and_nothing_else(name, columns):
    to = dtypes.dtype(name)
    x = np.random.default_rng(3).standard_normal((128, columns)).astype(np.float32)
    memory = np.full((128, 2 * columns + 16), 77.0, np.float32)
    window = memory[:, 5 : 5 + 2 * columns : 2]
    numerics.store(window, x, None, to)
    np.testing.assert_array_equal(window, numerics.round_to(x, to))
    window[...] = 77.0
    assert (memory == 77.0).all()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float16"])
def test_store_reads_all_of_an_overlapping_value_before_it_writes(name):
    to = dtypes.dtype(name)
    memory = np.random.default_rng(4).standard_normal(9000).astype(np.float32)
    want = memory[:-1].astype(to.storage).astype(np.float32)
    numerics.store(memory[1:], memory[:-1], None, to)
    np.testing.assert_array_equal(memory[1:], want)


def test_store_broadcasts_numbers_and_columns():
    dst = np.zeros((4, 6), np.float32)
    numerics.store(dst, 1.00390625, None, dtypes.bfloat16)
    assert (dst == 1.0).all()
    numerics.store(dst, np.float32([[1], [2], [3], [257]]), None, dtypes.bfloat16)
    assert dst[:, 5].tolist() == [1, 2, 3, 256]
    whole = np.zeros((2, 2), np.int8)
    numerics.store(whole, 1000.5, None, dtypes.int8)
    assert (whole == 127).all()
    numerics.store(whole, -7, None, dtypes.int8)
    assert (whole == -7).all()
    point = np.zeros((), np.float32)
    numerics.store(point, np.float32(1.00390625), None, dtypes.bfloat16)
    assert point == 1.0


def test_a_value_of_the_same_type_is_not_rounded_again():
    dst = np.zeros(3, np.int32)
    numerics.store(dst, np.array([16777217, -1, 2], np.int32), None, dtypes.int32)
    assert dst.tolist() == [16777217, -1, 2]


def test_packed_types_take_only_their_own_bits():
    bits = np.array([0xDEADBEEF], np.uint32)
    dst = np.zeros(1, np.uint32)
    numerics.store(dst, bits, dtypes.float8_e4m3fn_x4, dtypes.float8_e4m3fn_x4)
    assert dst.tolist() == [0xDEADBEEF]
    with pytest.raises(Bug, match="packed bits"):
        numerics.store(dst, np.float32([1.0]), None, dtypes.float8_e4m3fn_x4)


def test_uninitialised_memory_reads_as_nan_or_the_largest_integer():
    assert np.isnan(numerics.uninitialised(dtypes.bfloat16))
    assert numerics.uninitialised(dtypes.float32).dtype == np.float32
    assert numerics.uninitialised(dtypes.int8) == 127
    assert numerics.uninitialised(dtypes.uint32) == 2**32 - 1
    assert numerics.uninitialised(dtypes.bool_) == 255
    assert numerics.uninitialised(dtypes.float4_e2m1fn_x4) == 65535


def test_integers_and_booleans_encode_as_themselves():
    x = np.array([-3, 100], np.int16)
    assert numerics.encode(x, dtypes.int16).tolist() == [-3, 100]
    assert numerics.encode(np.array([0, 1, 255], np.uint8), dtypes.bool_).tolist() == [
        False, True, True,
    ]  # fmt: skip
    assert numerics.decode(np.array([True, False]), dtypes.bool_).tolist() == [1, 0]
    raw = np.array([0x3F80, 0x4000], np.uint16)
    assert numerics.decode(raw, dtypes.bfloat16).tolist() == [1.0, 2.0]
    with pytest.raises(Bug, match="2 bytes"):
        numerics.decode(np.zeros(2, np.float32), dtypes.bfloat16)


def test_threads_do_not_share_scratch_memory():
    wrong = []

    def work(seed):
        x = np.random.default_rng(seed).standard_normal((64, 200)).astype(np.float32)
        want = x.astype(ml_dtypes.bfloat16).astype(np.float32)
        for _ in range(50):
            if not np.array_equal(numerics.round_to(x, dtypes.bfloat16), want):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


@pytest.mark.parametrize("shape", [(128, 64, 32), (1, 5, 7), (128, 128, 512)])
def test_dot_is_the_transposed_product(shape):
    k, m, n = shape
    generator = np.random.default_rng(6)
    a = generator.standard_normal((k, m)).astype(np.float32)
    b = generator.standard_normal((k, n)).astype(np.float32)
    want = a.astype(np.float64).T @ b.astype(np.float64)
    bound = 1e-6 * (np.abs(a).T.astype(np.float64) @ np.abs(b)) + 1e-30
    assert (np.abs(numerics.dot(a, b) - want) <= bound).all()
    window = np.zeros((m, n + 16), np.float32)
    assert numerics.dot(a, b, out=window[:, 8 : 8 + n]).base is not None
    assert (np.abs(window[:, 8 : 8 + n] - want) <= bound).all()
    assert not window[:, :8].any()
    exact = np.empty((m, n), np.float32)
    assert numerics.dot(a, b, out=exact) is exact
    assert (np.abs(exact - want) <= bound).all()


def test_dot_of_one_row_is_exactly_each_product_whatever_the_window_held():
    a = np.array([[1.5, -3.0, np.inf, 1e-30]], np.float32)
    b = np.array([[2.0, 1 / 3, 1e-30, -0.0]], np.float32)
    with np.errstate(all="ignore"):
        want = a.T * b + np.float32(0)  # PSUM is cleared first: there is no minus zero
    window = np.full((4, 20), np.nan, np.float32)
    numerics.dot(a, b, out=window[:, 8:12])
    assert np.array_equal(window[:, 8:12], want, equal_nan=True)
    assert not np.signbit(window[:, 8:12][want == 0]).any()
    assert np.isnan(window[:, :8]).all()


def test_dot_lets_inf_and_nan_through_without_a_warning():
    a = np.array([[np.inf, 1.0], [0.0, np.nan]], np.float32)
    b = np.array([[0.0], [2.0]], np.float32)
    assert np.isnan(numerics.dot(a, b)).all()
