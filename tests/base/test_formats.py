"""Rounding and decoding of every low precision format, exhaustively against ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import dtypes, numerics

NARROW = ["float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e3m4", "float4_e2m1fn"]
FORMATS = [*NARROW, "float16", "bfloat16"]
BIG = 5000  # above the size at which the vector path takes over from the library cast


def library(name):
    """The independent implementation: NumPy's float16 or the ml_dtypes scalar type."""
    return np.float16 if name == "float16" else getattr(ml_dtypes, name)


def expected(x, name):
    """float32 -> format -> float32 by the independent implementation."""
    with np.errstate(all="ignore"):
        return x.astype(library(name)).astype(np.float32)


def same(a, b):
    """Equal bit for bit (so -0.0 is not 0.0), any NaN equal to any NaN."""
    assert a.dtype == b.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    ok = ~np.isnan(a)
    np.testing.assert_array_equal(a[ok].view(np.uint32), b[ok].view(np.uint32))


def patterns(name):
    """Every bit pattern of a format, in its storage dtype."""
    kind = np.dtype(library(name))
    count = 16 if name == "float4_e2m1fn" else 256**kind.itemsize
    return np.arange(count, dtype=f"u{kind.itemsize}").view(kind)


def hard_values(name):
    """Every finite value, the midpoints to its neighbours, and the float32 beside each midpoint."""
    with np.errstate(all="ignore"):
        values = np.unique(patterns(name).astype(np.float64))
    values = values[np.isfinite(values)]
    step = values[-1] - values[-2]
    values = np.concatenate([[values[0] - step], values, [values[-1] + step]])
    with np.errstate(over="ignore"):
        middles = ((values[1:] + values[:-1]) / 2).astype(np.float32)
        exact = values[1:-1].astype(np.float32)
    up, down = (np.nextafter(middles, np.float32(to)) for to in (np.inf, -np.inf))
    return np.concatenate([exact, middles, up, down])


SPECIALS = np.array(
    [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1.1e-38, 3.4e38, -3.4e38, 1.0],
    np.float32,
)


def in_both_paths(x, name):
    """round_to on one large array, checked to agree with round_to on small pieces."""
    to = dtypes.dtype(name)
    big = numerics.round_to(np.resize(x, max(x.size, BIG)), to)[: x.size]
    pieces = [numerics.round_to(x[i : i + 1000], to) for i in range(0, x.size, 1000)]
    same(np.concatenate(pieces), big)
    return big


@pytest.mark.parametrize("name", [*FORMATS, "float8_e8m0fnu"])
def test_every_bit_pattern_decodes_as_in_ml_dtypes(name):
    stored = patterns(name)
    with np.errstate(all="ignore"):
        reference = stored.astype(np.float32)
    same(numerics.decode(stored, dtypes.dtype(name)), reference)


@pytest.mark.parametrize("name", [*FORMATS, "float8_e8m0fnu"])
def test_every_value_encodes_to_its_own_bits(name):
    stored = patterns(name)
    kind = dtypes.dtype(name)
    again = numerics.encode(numerics.decode(stored, kind), kind)
    assert again.dtype == stored.dtype
    with np.errstate(all="ignore"):
        number = ~np.isnan(stored.astype(np.float32))
    bits = f"u{stored.itemsize}"
    np.testing.assert_array_equal(again.view(bits)[number], stored.view(bits)[number])


@pytest.mark.parametrize("name", FORMATS)
def test_values_midpoints_and_their_neighbours_round_as_in_ml_dtypes(name):
    x = hard_values(name)
    same(in_both_paths(x, name), expected(x, name))


@pytest.mark.parametrize("name", FORMATS)
def test_specials_round_as_in_ml_dtypes(name):
    same(in_both_paths(SPECIALS, name), expected(SPECIALS, name))


@pytest.mark.parametrize("name", FORMATS)
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_float32_rounds_as_in_ml_dtypes(name, bits):
    x = np.array(bits, np.uint32).view(np.float32)
    same(in_both_paths(x, name), expected(x, name))


@pytest.mark.parametrize("name", FORMATS)
def test_a_million_random_bit_patterns_round_as_in_ml_dtypes(name):
    x = np.random.default_rng(5).integers(0, 2**32, 1_100_000, np.uint32).view(np.float32)
    same(numerics.round_to(x, dtypes.dtype(name)), expected(x, name))


@pytest.mark.parametrize("name", FORMATS)
def test_encode_of_unrounded_values_equals_the_library_cast(name):
    x = np.concatenate([hard_values(name), SPECIALS])
    with np.errstate(all="ignore"):
        want = x.astype(library(name))
    got = numerics.encode(x, dtypes.dtype(name))
    number = ~np.isnan(x)
    bits = f"u{got.itemsize}"
    same(got.astype(np.float32), want.astype(np.float32))
    np.testing.assert_array_equal(got[number].view(bits), want[number].view(bits))


def round_tf32(x):
    """tf32 in float64: units of 2^(e-10), e at least that of the smallest normal float32."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
    exponent = np.frexp(np.where(np.isfinite(wide), wide, 1.0))[1] - 1
    unit = np.ldexp(1.0, np.maximum(exponent, -126) - 10)
    with np.errstate(all="ignore"):
        rounded = np.where(np.isfinite(wide), np.rint(wide / unit) * unit, wide)
        return np.copysign(rounded, wide).astype(np.float32)


@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_float32_rounds_to_tf32(bits):
    x = np.array(bits, np.uint32).view(np.float32)
    same(numerics.round_to(x, dtypes.tfloat32), round_tf32(x))


def test_tf32_ties_carries_and_specials():
    tops = np.arange(2**19, dtype=np.uint64) << 13
    x = np.concatenate([(tops + low).astype(np.uint32) for low in (0, 1, 0xFFF, 0x1000, 0x1001)])
    x = np.concatenate([x.view(np.float32), SPECIALS])
    same(numerics.round_to(x, dtypes.tfloat32), round_tf32(x))
    one = np.array([1 + 2**-11, 1 + 3 * 2**-11, 2 - 2**-12], np.float32)
    assert numerics.round_to(one, dtypes.tfloat32).tolist() == [1.0, 1 + 2**-9, 2.0]


def test_every_signalling_and_low_nan_stays_nan():
    x = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F808000], np.uint32)
    x = np.resize(x.view(np.float32), BIG)
    for each in (dtypes.bfloat16, dtypes.tfloat32, dtypes.float16, dtypes.float8_e4m3):
        assert np.isnan(numerics.round_to(x, each)).all()
        assert np.isnan(numerics.round_to(x[:5], each)).all()


def test_fp8_carry_into_the_next_exponent():
    """Triton's rounding once lost this carry: 1.96875 in e4m3 lies nearest to 2."""
    for each in (dtypes.float8_e4m3, dtypes.float8_e4m3fn):
        assert numerics.round_to(1.96875, each) == 2.0
        assert (numerics.round_to(np.full(BIG, 1.96875), each) == 2.0).all()
        assert numerics.encode(np.float32(1.96875), each).astype(np.float32) == 2.0


QUANTISED = [239, 247, 249, 300, 448, 470]
INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("name", "saturate", "want"),
    [
        ("float8_e4m3", False, [240, 240, INF, INF, INF, INF]),
        ("float8_e4m3", True, [240, 240, 240, 240, 240, 240]),
        ("float8_e4m3fn", False, [240, 240, 256, 288, 448, NAN]),
        ("float8_e4m3fn", True, [240, 240, 256, 288, 448, 448]),
    ],
)
def test_quantise_table(name, saturate, want):
    to = dtypes.dtype(name)
    for x in (np.float32(QUANTISED), np.resize(np.float32(QUANTISED), BIG)):
        got = numerics.round_to(x, to, saturate=saturate)[: len(want)]
        np.testing.assert_array_equal(got, np.float32(want))
        got = numerics.round_to(-x, to, saturate=saturate)[: len(want)]
        np.testing.assert_array_equal(got, -np.float32(want))


@pytest.mark.parametrize("name", [*FORMATS, "tfloat32"])
def test_saturation_clamps_infinities_and_keeps_nan(name):
    to = dtypes.dtype(name)
    x = np.array([np.inf, -np.inf, 3e38, -3.4e38], np.float32)
    top = np.float32(to.max)
    got = numerics.round_to(np.resize(x, BIG), to, saturate=True)[:4]
    third = min(top, 3e38)
    np.testing.assert_allclose(got, [top, -top, third, -min(top, 3.4e38)], rtol=2**-8)
    assert (np.abs(got) <= top).all()
    assert np.isnan(numerics.round_to(np.float32(np.nan), to, saturate=True)) == to.has_nan


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3", "tfloat32", "float32"])
def test_round_to_writes_into_its_input_and_keeps_shapes(name):
    to = dtypes.dtype(name)
    x = np.random.default_rng(1).standard_normal((70, 3, 50)).astype(np.float32)
    for shape in ((), (0,), (4, 0), (1, 1)):
        assert numerics.round_to(np.zeros(shape), to).shape == shape
    want = numerics.round_to(x, to)
    back = x[::-1, :, ::-1]
    same(numerics.round_to(back, to), np.ascontiguousarray(want[::-1, :, ::-1]))
    assert numerics.round_to(x, to, out=x) is x
    same(x, want)


def test_scale_type_rounds_to_a_power_of_two():
    x = np.float32([1.0, 1.49, 1.5, 3.0, 6.1, 2.0**127, 2.0**-127, 0.75])
    want = [1, 1, 2, 4, 8, 2.0**127, 2.0**-127, 1]
    assert numerics.round_to(x, dtypes.float8_e8m0fnu).tolist() == want
    bad = numerics.round_to(np.float32([-1, 0, np.inf, np.nan]), dtypes.float8_e8m0fnu)
    assert np.isnan(bad).all()


def test_large_arrays_are_cut_in_blocks_without_seams():
    x = np.random.default_rng(2).standard_normal(2_500_000).astype(np.float32)
    for shape in ((x.size,), (1, x.size), (2, x.size // 2), (625_000, 4)):
        got = numerics.round_to(x.reshape(shape), dtypes.bfloat16)
        assert got.shape == shape
        same(got.reshape(-1), expected(x, "bfloat16"))
