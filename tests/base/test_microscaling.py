"""Stochastic rounding, MX block scaling and the x4 packed words, against hand-made numbers."""

import numpy as np
import pytest

from opentrn.base import Bug, dtypes, numerics

STOCHASTIC = [
    dtypes.bfloat16, dtypes.float16, dtypes.tfloat32, dtypes.float8_e4m3, dtypes.float8_e5m2,
]  # fmt: skip


def even_bits(count):
    """`count` random words that cover [0, 2^32) evenly."""
    return (np.arange(count, dtype=np.uint64) * (2**32 // count)).astype(np.uint32)


@pytest.mark.parametrize("to", STOCHASTIC)
@pytest.mark.parametrize("quarter", [1, 2, 3])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_stochastic_rounding_goes_up_with_the_probability_of_the_distance(to, quarter, sign):
    unit = 2.0**-to.mantissa
    x = np.full(1024, sign * (1.5 + quarter * unit / 4), np.float32)
    got = numerics.stochastic_round(x, to, even_bits(1024))
    assert set(np.unique(np.abs(got))) == {1.5, 1.5 + unit}
    assert np.count_nonzero(np.abs(got) > 1.5) == 256 * quarter
    assert (np.sign(got) == sign).all()


@pytest.mark.parametrize("to", STOCHASTIC)
def test_stochastic_rounding_of_subnormals_values_and_specials(to):
    tiny = to.smallest_normal * 2.0**-to.mantissa
    got = numerics.stochastic_round(np.full(64, tiny / 4, np.float32), to, even_bits(64))
    assert np.count_nonzero(got == np.float32(tiny)) == 16
    assert np.count_nonzero(got == 0) == 48
    exact = np.float32([0.0, -0.0, 1.0, -1.5, tiny, to.max, np.inf, -np.inf])
    worst = np.full(exact.size, 2**32 - 1, np.uint32)
    np.testing.assert_array_equal(numerics.stochastic_round(exact, to, worst), exact)
    assert np.isnan(numerics.stochastic_round(np.float32([np.nan]), to, worst[:1])).all()


def test_stochastic_rounding_with_zero_bits_truncates():
    x = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    got = numerics.stochastic_round(x, dtypes.bfloat16, np.zeros(5000, np.uint32))
    want = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    np.testing.assert_array_equal(got, want)


def block(*values):
    """A block of 32 that starts with `values`."""
    return np.float32([*values, *[0.0] * (32 - len(values))])


@pytest.mark.parametrize(
    ("element", "top", "headroom", "scale", "value"),
    [
        (dtypes.float8_e4m3fn, 448.0, 1, 2.0, 224.0),  # floor(log2 448) = 8; 8 - (8 - 1) = 1
        (dtypes.float8_e4m3fn, 496.0, 1, 2.0, 256.0),  # 248 is a tie between 240 and 256
        (dtypes.float8_e4m3fn, 496.0, 0, 1.0, 448.0),  # without headroom the largest is clamped
        (dtypes.float8_e4m3fn, 1.0, 1, 2.0**-7, 128.0),
        (dtypes.float8_e5m2, -3.0, 1, 2.0**-13, -24576.0),  # 1 - (15 - 1)
        (dtypes.float4_e2m1fn, 7.0, 0, 1.0, 6.0),
        (dtypes.float4_e2m1fn, 5.0, 1, 2.0, 2.0),  # 2.5 is a tie between 2 and 3
        (dtypes.float8_e4m3fn, 0.0, 1, 2.0**-127, 0.0),
        (dtypes.float8_e4m3fn, 2.0**-126, 1, 2.0**-127, 2.0),  # the scale stops at 2^-127
    ],
)
def test_scale_and_value_of_one_block(element, top, headroom, scale, value):
    values, scales = numerics.quantise_mx(block(top), element, headroom=headroom)
    assert scales.tolist() == [scale]
    assert values[0] == value
    assert not values[1:].any()


def test_mx_round_trip_stays_within_half_a_unit_of_the_element():
    x = np.random.default_rng(2).standard_normal((8, 128)).astype(np.float32)
    for element in (dtypes.float8_e4m3fn, dtypes.float8_e5m2):
        values, scales = numerics.quantise_mx(x, element)
        assert scales.shape == (8, 4)
        with np.errstate(all="ignore"):
            stored = values.astype(element.storage).astype(np.float32)
        np.testing.assert_array_equal(values, stored)
        tops = np.abs(x.reshape(8, 4, 32)).max(-1).astype(np.float64)
        emax = {"float8_e4m3fn": 8, "float8_e5m2": 15}[element]
        np.testing.assert_array_equal(scales, 2.0 ** (np.floor(np.log2(tops)) - (emax - 1)))
        again = numerics.dequantise_mx(values, scales)
        bound = np.abs(x) * 2.0 ** -(element.mantissa + 1)
        floor = np.repeat(scales, 32, -1) * element.smallest_normal * 2.0**-element.mantissa
        assert (np.abs(again - x) <= np.maximum(bound, floor / 2)).all()
        codes = numerics.encode(scales, dtypes.float8_e8m0fnu)
        np.testing.assert_array_equal(numerics.dequantise_mx(values, codes), again)
        np.testing.assert_array_equal(
            numerics.dequantise_mx(values, codes.view(np.uint8)), again
        )


def test_mx_along_another_axis_and_with_nan():
    x = np.random.default_rng(3).standard_normal((64, 3)).astype(np.float32)
    x[40, 1] = np.nan
    values, scales = numerics.quantise_mx(x, dtypes.float8_e4m3fn, axis=0)
    assert values.shape == (64, 3)
    assert scales.shape == (2, 3)
    assert np.isnan(scales[1, 1])
    assert np.isnan(scales).sum() == 1
    other, other_scales = numerics.quantise_mx(x.T.copy(), dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(values, other.T)
    np.testing.assert_array_equal(scales, other_scales.T)
    again = numerics.dequantise_mx(values, scales, axis=0)
    assert np.isnan(again[32:, 1]).all()
    assert np.isfinite(again[:32]).all()
    with pytest.raises(Bug, match="blocks of 32"):
        numerics.quantise_mx(x[:33].T, dtypes.float8_e4m3fn)
    with pytest.raises(Bug, match="scales for blocks"):
        numerics.dequantise_mx(values, scales[:1], axis=0)


def test_four_values_in_one_word_first_lowest():
    x = np.float32([[1.0, 2.0, -1.0, 0.5, 448.0, 0.0, -0.0, 2.0]])
    words = numerics.pack_x4(x, dtypes.float8_e4m3fn_x4)
    assert words.dtype == np.uint32
    assert words.tolist() == [[0x30B84038, 0x4080007E]]
    np.testing.assert_array_equal(numerics.unpack_x4(words, dtypes.float8_e4m3fn_x4), x)
    y = np.float32([0.5, 1.0, 1.5, -6.0])
    words = numerics.pack_x4(y, dtypes.float4_e2m1fn_x4)
    assert words.dtype == np.uint16
    assert words.tolist() == [0xF321]
    assert numerics.unpack_x4(words, dtypes.float4_e2m1fn_x4).tolist() == y.tolist()


@pytest.mark.parametrize("packed", dtypes.PACKED)
def test_every_code_survives_packing(packed):
    codes = np.arange(2**packed.element.bits, dtype=np.uint8)
    with np.errstate(all="ignore"):
        values = codes.view(packed.element.storage).astype(np.float32)
    again = numerics.unpack_x4(numerics.pack_x4(values, packed), packed)
    np.testing.assert_array_equal(again, values)
