"""MX: quantisation and products against plain float64 loops over ml_dtypes, layout refusals."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import DtypeError, LimitError
from opentrn.isa.mx import nc_matmul_mx, quantize_mx, scale_rows
from opentrn.isa.operands import IndexForm
from tests.isa.vector_forms import carrier, cycles, make, refuse, tile

ELEMENTS = {
    "float8_e4m3fn_x4": (ml_dtypes.float8_e4m3fn, 8, 448.0),
    "float8_e5m2_x4": (ml_dtypes.float8_e5m2, 15, 57344.0),
    "float4_e2m1fn_x4": (ml_dtypes.float4_e2m1fn, 2, 6.0),
}


def words_of(codes, packed):
    """Element codes [P, C, 4] as words [P, C]; the first number lies in the lowest bits."""
    if packed.startswith("float4"):
        parts = [codes[..., q].astype(np.uint16) << (4 * q) for q in range(4)]
    else:
        parts = [codes[..., q].astype(np.uint32) << (8 * q) for q in range(4)]
    return parts[0] | parts[1] | parts[2] | parts[3]


def quantised(x, packed):
    """Words and e8m0 codes {(group, column): code} of x [P, 4C], number by number in float64."""
    kind, largest, most = ELEMENTS[packed]
    partitions, columns = x.shape[0], x.shape[1] // 4
    codes = np.zeros((partitions, columns, 4), np.uint8)
    scales = {}
    for g in range(partitions // 8):
        for c in range(columns):
            group = x[8 * g : 8 * g + 8, 4 * c : 4 * c + 4].astype(np.float64)
            top = np.abs(group).max()
            exponent = -127 if top == 0 else int(np.floor(np.log2(top))) - (largest - 1)
            exponent = min(max(exponent, -127), 127)
            scales[g, c] = exponent + 127
            scaled = np.clip(group / 2.0**exponent, -most, most).astype(np.float32)
            codes[8 * g : 8 * g + 8, c] = scaled.astype(kind).view(np.uint8)
    return words_of(codes, packed), scales


def quantise(x, packed="float8_e4m3fn_x4", scale="uint8", rows=None, first=0, source="bfloat16"):
    """Run quantize_mx on x [P, 4C]: words and the scale tile, which began as 77s."""
    p, f = x.shape
    rows = p if rows is None else rows
    i = make(
        quantize_mx,
        on="trn3",
        dst=tile(p, f // 4, t=packed),
        src=tile(p, f, t=source),
        dst_scale=tile(rows, f // 4, t=scale, partition=first),
    )
    held = np.full((rows, f // 4), 77, i.dst_scale.dtype.carrier)
    made = i.run(src=carrier(x, source), dst_scale=held)
    return made["dst"], made["dst_scale"]


@given(st.sampled_from(sorted(ELEMENTS)[1:]), st.sampled_from([32, 64, 128]), st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_quantisation_is_the_documented_formula(packed, partitions, columns):
    rng = np.random.default_rng(partitions + columns)
    x = rng.standard_normal((partitions, 4 * columns)) * 2.0 ** rng.integers(
        -9, 9, (1, 4 * columns)
    )
    x = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    x[:8, :4] = 0
    words, scales = quantise(x, packed)
    want, codes = quantised(x, packed)
    np.testing.assert_array_equal(words, want)
    for (g, c), code in codes.items():
        assert scales[32 * (g // 4) + g % 4, c] == code
    others = np.delete(scales, scale_rows(partitions), axis=0)
    assert (others == 77).all()


def test_an_all_zero_group_has_the_smallest_scale_and_nan_the_scale_nan():
    x = np.zeros((32, 8), np.float32)
    x[9, 5] = np.nan
    words, scales = quantise(x)
    assert scales[0].tolist() == [0, 0]
    assert scales[1].tolist() == [0, 255]
    assert (words[:8] == 0).all()


def test_the_largest_value_is_rounded_and_not_clamped():
    # 496 = 2^8 * 1.9375: scale 2^(8 - 7) = 2, 248 is between 240 and 256 and ties to 256 (even)
    x = np.zeros((32, 4), np.float32)
    x[0, 0] = 496
    words, scales = quantise(x)
    assert scales[0, 0] == 128
    assert ml_dtypes.float8_e4m3fn(256).view(np.uint8) == words[0, 0] & 255


def test_e8m0_scale_tiles_hold_the_powers_themselves():
    x = np.full((32, 4), 3.0, np.float32)
    _, scales = quantise(x, scale="float8_e8m0fnu")
    assert scales[:4, 0].tolist() == [2.0**-6] * 4  # floor(log2 3) - 7


def test_scales_of_one_quadrant_fit_four_partitions_and_begin_at_offsets():
    x = np.ones((32, 8), np.float32)
    for first in (0, 4, 8, 12):
        assert quantise(x, rows=4, first=first)[1].tolist() == [[120, 120]] * 4
    for first in (1, 2, 16, 32):
        refuse(LimitError, "quantize_mx.rules", lambda f=first: quantise(x, rows=4, first=f))
    text = refuse(LimitError, "quantize_mx.rules", lambda: quantise(np.ones((64, 8)), rows=32))
    assert "needs 36 partitions" in text


@pytest.mark.parametrize(
    ("kind", "code", "more"),
    [
        (DtypeError, "src.dtype", {"src": tile(32, 8)}),
        (DtypeError, "dst.dtype", {"dst": tile(32, 2, t="float4_e2m1fn_x4")}),
        (DtypeError, "dst_scale.dtype", {"dst_scale": tile(32, 2, t="int8")}),
        (
            LimitError,
            "P",
            {"src": tile(48, 8, t="bfloat16"), "dst": tile(48, 2, t="float8_e5m2_x4")},
        ),
        (LimitError, "F", {"src": tile(32, 6, t="bfloat16")}),
        (LimitError, "rules", {"dst": tile(32, 3, t="float8_e5m2_x4")}),
        (LimitError, "rules", {"dst_scale": tile(32, 4, t="uint8")}),
        (DtypeError, "dst.dtype", {"on": "trn2"}),
    ],
)
def test_what_quantisation_refuses(kind, code, more):
    usual = {
        "dst": tile(32, 2, t="float8_e5m2_x4"),
        "src": tile(32, 8, t="bfloat16"),
        "dst_scale": tile(32, 2, t="uint8"),
        "on": "trn3",
    }
    refuse(kind, f"quantize_mx.{code}", lambda: make(quantize_mx, **(usual | more)))


def test_cost_of_quantisation():
    i = make(
        quantize_mx,
        on="trn3",
        dst=tile(128, 512, t="float8_e4m3fn_x4"),
        src=tile(128, 2048, t="bfloat16"),
        dst_scale=tile(128, 512, t="uint8"),
    )
    assert cycles(i) == pytest.approx(512)  # 2048 / 4


# ---------------------------------------------------------------------- products


def operand(rng, k, columns, packed, low=117, high=137):
    """Random words, e8m0 codes [k/8, columns], and the float64 matrix [k, 4, columns] they mean."""
    kind, _, _ = ELEMENTS[packed]
    codes = rng.integers(0, 16 if packed.startswith("float4") else 256, (k, columns, 4), np.uint8)
    if not packed.startswith("float4"):
        codes &= 0xF7 if packed == "float8_e5m2_x4" else 0xFE  # no NaN, no infinity
        codes[(codes & 0x7F) >= 0x7C] = 0x30
    scales = rng.integers(low, high, (k // 8, columns)).astype(np.uint8)
    values = codes.view(kind).astype(np.float64)
    powers = 2.0 ** (np.repeat(scales, 8, axis=0).astype(np.float64) - 127)
    return words_of(codes, packed), scales, (values * powers[..., None]).transpose(0, 2, 1)


def placed(scales, k, first=0):
    """Scale codes in the rows the hardware wants; the rest is garbage."""
    held = np.full((k, scales.shape[1]), 255, np.uint8)
    for g, row in enumerate(scales):
        held[32 * (g // 4) + g % 4] = row
    return held


def product(left, right, k, m, n, a, b, on="trn3", out="float32", **more):
    i = make(
        nc_matmul_mx,
        on=on,
        dst=tile(m, n, t=out, space="psum"),
        stationary=tile(k, m, t=a),
        moving=tile(k, n, t=b),
        stationary_scale=tile(k, m, t="uint8"),
        moving_scale=tile(k, n, t="uint8"),
        **more,
    )
    return i.run(
        stationary=left[0],
        moving=right[0],
        stationary_scale=placed(left[1], k),
        moving_scale=placed(right[1], k),
    )["dst"]


@given(
    st.sampled_from(sorted(ELEMENTS)),
    st.sampled_from(sorted(ELEMENTS)),
    st.sampled_from([32, 64, 96, 128]),
    st.integers(1, 8),
    st.integers(1, 9),
)
@settings(max_examples=25, deadline=None)
def test_product_is_dequantise_then_multiply(a, b, k, half_m, n):
    rng = np.random.default_rng(k * half_m * n)
    left = operand(rng, k, 2 * half_m, a)
    right = operand(rng, k, n, b)
    got = product(left, right, k, 2 * half_m, n, a, b)
    want = np.einsum("kqm,kqn->mn", left[2], right[2])
    size = np.einsum("kqm,kqn->mn", np.abs(left[2]), np.abs(right[2]))
    assert got.dtype == np.float32
    assert (np.abs(got - want) <= 1e-6 * size + 1e-30).all()


def test_scales_far_apart_do_not_overflow_on_the_way():
    rng = np.random.default_rng(5)
    kind = "float8_e5m2_x4"
    left = operand(rng, 32, 2, kind, 250, 255)  # 2^123 … 2^127 times up to 2^15
    right = operand(rng, 32, 3, kind, 0, 5)
    got = product(left, right, 32, 2, 3, kind, kind)
    want = np.einsum("kqm,kqn->mn", left[2], right[2])
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_nan_scale_spreads_to_its_column_only():
    kind = "float8_e4m3fn_x4"
    rng = np.random.default_rng(6)
    left, right = operand(rng, 32, 2, kind), operand(rng, 32, 3, kind)
    right[1][2, 1] = 255
    got = product(left, right, 32, 2, 3, kind, kind)
    assert np.isnan(got[:, 1]).all()
    assert np.isfinite(got[:, [0, 2]]).all()


def form(on="trn3", k=128, m=128, n=512, kind="float8_e4m3fn_x4", **more):
    given = {
        "dst": tile(m, n, space="psum"),
        "stationary": tile(k, m, t=kind),
        "moving": tile(k, n, t=kind),
        "stationary_scale": tile(k, m, t="uint8"),
        "moving_scale": tile(k, n, t="float8_e8m0fnu"),
    }
    return make(nc_matmul_mx, on=on, **(given | more))


def test_sizes_and_costs_by_hand():
    i = form()
    assert cycles(i) == pytest.approx(512)
    assert i.flop_count == 2 * 512 * 128 * 512
    assert i.cost.background_ns == pytest.approx(32 / 2.4)  # 128 columns, 4 a cycle at 2.4 GHz
    assert cycles(form(k=32, m=2, n=1)) == pytest.approx(2)
    assert form(n=4096).N == 4096
    assert form(n=8192, dst=tile(128, 8192, t="bfloat16", space="psum")).N == 8192


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("K", {"k": 40}),
        ("K", {"k": 96, "tile_position": (0, 0), "tile_size": (64, 128)}),
        ("M", {"m": 3}),
        ("M", {"m": 130}),
        ("N", {"n": 4097}),
        ("rules", {"moving_scale": tile(128, 511, t="uint8")}),
        ("rules", {"moving_scale": tile(99, 512, t="uint8")}),
        ("rules", {"stationary_scale": tile(128, 128, t="uint8", partition=16)}),
        ("rules", {"k": 32, "tile_position": (16, 0), "tile_size": (32, 128)}),
        ("rules", {"k": 32, "tile_position": (0, 0), "tile_size": (32, 64)}),
        ("rules", {"k": 32, "tile_position": (0, 32), "tile_size": (32, 128)}),
        ("rules", {"k": 32, "tile_position": (0, 0)}),
    ],
)
def test_what_a_product_refuses(code, more):
    refuse(LimitError, f"nc_matmul_mx.{code}", lambda: form(**more))


def test_row_tiles_are_allowed():
    assert form(k=32, tile_position=(96, 0), tile_size=(32, 128)).K == 32
    assert form(k=64, tile_position=(64, 0), tile_size=(64, 128)).K == 64


def test_data_and_scales_share_their_index():
    one, other = IndexForm(8, -1, (7, 0)), IndexForm(8, -1, (8, 0))
    data = tile(128, 128, t="float8_e5m2_x4", indirect="tensor", index=one)
    scale = tile(128, 128, t="uint8", indirect="tensor", index=one)
    assert form(stationary=data, stationary_scale=scale).M == 128
    for wrong in (scale._replace(index=other), tile(128, 128, t="uint8")):
        text = refuse(
            LimitError,
            "nc_matmul_mx.rules",
            lambda w=wrong: form(stationary=data, stationary_scale=w),
        )
        assert "one matrix" in text


def test_trn2_has_no_mx_formats():
    text = refuse(DtypeError, "nc_matmul_mx.stationary.dtype", lambda: form(on="trn2"))
    assert "trn3" in text
    assert "NCC_EVRF051" in text
