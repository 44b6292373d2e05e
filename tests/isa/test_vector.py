"""Element-wise Vector Engine instructions: values, refusals, engines and costs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import LimitError, ShapeError, SpaceError, UsageError
from opentrn.isa.enums import engine
from opentrn.isa.vector import (
    memset,
    reciprocal,
    tensor_copy,
    tensor_scalar,
    tensor_tensor,
)
from tests.isa.vector_forms import (
    BF16,
    NUMBER,
    carrier,
    cycles,
    make,
    refuse,
    stored,
    tile,
    visible,
)

BIG = tile(128, 512)
SHAPES = st.tuples(st.integers(1, 8), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))


def numbers(*shape, seed=0, scale=3.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


# ------------------------------------------------------------------ tensor_copy


def test_copy_keeps_bits_between_equal_types_and_rounds_between_others():
    x = np.array([[0, 1, -1, 2**31 - 1, -(2**31), 16777217]], np.int32)
    same = make(tensor_copy, dst=tile(1, 6, t="int32"), src=tile(1, 6, t="int32"))
    np.testing.assert_array_equal(stored(same, "dst", same.run(src=x)["dst"]), x)
    to_float = make(tensor_copy, dst=tile(1, 6), src=tile(1, 6, t="int32"))
    got = stored(to_float, "dst", to_float.run(src=x)["dst"])
    np.testing.assert_array_equal(got, [[0, 1, -1, 2147483648.0, -2147483648.0, 16777216.0]])


def test_copy_casts_float_to_int_by_nearest_even_with_saturation():
    x = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 300, -300]], np.float32)
    i = make(tensor_copy, dst=tile(1, 9, t="int8"), src=tile(1, 9))
    got = stored(i, "dst", i.run(src=x)["dst"])
    np.testing.assert_array_equal(got, [[0, 2, 2, 0, -2, 126, 127, 127, -128]])


def test_copy_takes_another_shape_of_the_same_free_size():
    x = numbers(4, 2, 3)
    i = make(tensor_copy, dst=tile(4, 6), src=tile(4, 2, 3))
    np.testing.assert_array_equal(stored(i, "dst", i.run(src=x)["dst"]), x.reshape(4, 6))


def test_copy_engines():
    both = {"dst": BIG, "src": BIG}
    assert make(tensor_copy, **both).engine_name == "vector"
    assert make(tensor_copy, engine=engine.scalar, **both).engine_name == "scalar"
    text = refuse(
        LimitError,
        "tensor_copy.rules",
        lambda: make(tensor_copy, on="trn1", engine=engine.scalar, **both),
    )
    assert "trn1" in text
    assert "nisa.activation" in text
    text = refuse(
        LimitError,
        "tensor_copy.rules",
        lambda: make(tensor_copy, engine=engine.gpsimd, dst=BIG, src=tile(128, 512, space="psum")),
    )
    assert "GpSimd cannot access PSUM" in text
    refuse(
        UsageError, "tensor_copy.engine", lambda: make(tensor_copy, engine=engine.tensor, **both)
    )


def test_packed_types_are_copied_but_not_cast():
    packed = tile(32, 8, t="float8_e4m3fn_x4")
    i = make(tensor_copy, on="trn3", dst=packed, src=packed)
    bits = np.arange(256, dtype=np.uint32).reshape(32, 8) * 0x01010101
    np.testing.assert_array_equal(i.run(src=bits)["dst"], bits)
    refuse(
        LimitError,
        "tensor_copy.rules",
        lambda: make(tensor_copy, on="trn3", dst=tile(32, 8), src=packed),
    )
    refuse(
        LimitError,
        "reciprocal.rules",
        lambda: make(reciprocal, on="trn3", dst=tile(32, 8), data=packed),
    )


@pytest.mark.parametrize(
    ("on", "src", "dst", "want"),
    [
        # trn1: always one element a cycle
        ("trn1", tile(128, 512, t=BF16), tile(128, 512, t=BF16), 512),
        ("trn1", BIG, BIG, 512),
        # 16-bit, dense, SBUF: 4; types need not match
        ("trn2", tile(128, 512, t=BF16), tile(128, 512, t="float16"), 128),
        ("trn3", tile(128, 512, t=BF16), tile(128, 512, t=BF16), 128),
        # not dense: 2
        ("trn2", tile(128, 512, t=BF16, contiguous=False), tile(128, 512, t=BF16), 256),
        # dense with one side in PSUM: 2; both in PSUM, or PSUM and strided: 1
        ("trn2", tile(128, 512, t=BF16, space="psum"), tile(128, 512, t=BF16), 256),
        ("trn2", tile(128, 512, t=BF16), tile(128, 512, t=BF16, space="psum"), 256),
        ("trn2", *[tile(128, 512, t=BF16, space="psum")] * 2, 512),
        (
            "trn2",
            tile(128, 512, t=BF16, space="psum", contiguous=False),
            tile(128, 512, t=BF16),
            512,
        ),
        # the 32-bit width of the data path: 2 between dense SBUF tiles
        ("trn2", BIG, BIG, 256),
        ("trn2", BIG, tile(128, 512, t=BF16), 256),
        ("trn2", tile(128, 512, space="psum"), BIG, 512),
        ("trn2", tile(128, 512, contiguous=False), BIG, 512),
        # float8 joins the 4x path on trn3
        ("trn3", tile(128, 512, t="float8_e5m2"), tile(128, 512, t=BF16), 128),
        ("trn2", tile(128, 512, t="float8_e5m2"), tile(128, 512, t=BF16), 256),
        # MIN_II
        ("trn2", tile(128, 8, t=BF16), tile(128, 8, t=BF16), 64),
    ],
)
def test_copy_speed_modes(on, src, dst, want):
    assert cycles(make(tensor_copy, on=on, src=src, dst=dst)) == pytest.approx(want)
    scaled = make(tensor_scalar, on=on, data=src, dst=dst, op0="add", operand0=NUMBER)
    assert cycles(scaled) == pytest.approx(want)


def test_copy_on_other_engines_costs_its_own_clock():
    half = tile(128, 512, t=BF16)
    gpsimd = make(tensor_copy, dst=half, src=half, engine=engine.gpsimd)
    assert gpsimd.cost.busy_ns == pytest.approx(512 / 1.2)
    trn2 = make(tensor_copy, dst=half, src=half, engine=engine.scalar)
    assert trn2.cost.busy_ns == pytest.approx(512 / 1.2)
    trn3 = make(tensor_copy, on="trn3", dst=half, src=half, engine=engine.scalar)
    assert trn3.cost.busy_ns == pytest.approx(256 / 1.2)


def test_result_is_visible_a_latency_after_the_last_element():
    # measured on trn2: COPY of [128, 512] float32 from PSUM, 690 ns; 512 / 0.96 GHz + 152 ns
    psum = make(tensor_copy, dst=BIG, src=tile(128, 512, space="psum"))
    assert visible(psum) == pytest.approx(512 / 0.96 + 152)
    assert visible(psum) == pytest.approx(690, rel=0.02)
    small = make(tensor_copy, dst=tile(128, 4), src=tile(128, 4, space="psum"))
    assert small.cost.busy_ns == pytest.approx(64 / 0.96)
    assert visible(small) == pytest.approx(4 / 0.96 + 152)


# ------------------------------------------------------------------ shared sizes


def test_sizes_and_start_partitions():
    text = refuse(LimitError, "tensor_copy.P", lambda: make(tensor_copy, dst=tile(129, 4), src=BIG))
    assert "P = 129, at most 128" in text
    text = refuse(
        LimitError,
        "tensor_copy.F",
        lambda: make(tensor_copy, dst=tile(8, 4097, space="psum"), src=tile(8, 4097)),
    )
    assert "F = 4097, at most 4096" in text
    assert make(tensor_copy, dst=tile(8, 8192), src=tile(8, 8192)).F == 8192
    # A broadcast reads its 640 elements twelve times over: they fit PSUM (NKI Library layer norm).
    rows = tile(8, 640, 12, space="psum", repeats=12)
    assert make(tensor_copy, dst=tile(8, 640, 12), src=rows).F == 7680
    most = tile(8, 4096, 16, space="psum", repeats=16)
    assert make(tensor_copy, dst=tile(8, 65536), src=most).F == 65536
    text = refuse(
        LimitError, "tensor_copy.F", lambda: make(tensor_copy, dst=tile(8, 65537), src=BIG)
    )
    assert "at most 65536" in text
    refuse(ShapeError, "tensor_copy.src", lambda: make(tensor_copy, dst=BIG, src=tile(128, 511)))
    refuse(
        LimitError,
        "tensor_copy.start_partition",
        lambda: make(tensor_copy, dst=BIG, src=tile(128, 512, partition=32)),
    )


def test_hbm_is_refused():
    text = refuse(
        SpaceError,
        "tensor_copy.src",
        lambda: make(tensor_copy, dst=BIG, src=tile(128, 512, space="hbm")),
    )
    assert "nisa.dma_copy" in text


def test_tensor_indirection_begins_with_trn3_and_only_where_documented():
    gathered = tile(128, 512, indirect="tensor")
    assert make(tensor_copy, on="trn3", dst=BIG, src=gathered).F == 512
    text = refuse(LimitError, "tensor_copy.rules", lambda: make(tensor_copy, dst=BIG, src=gathered))
    assert "NeuronCore-v4" in text
    text = refuse(
        LimitError,
        "tensor_tensor.rules",
        lambda: make(tensor_tensor, on="trn3", dst=BIG, data1=BIG, data2=gathered, op="add"),
    )
    assert "`data2` may not" in text
    scattered = tile(128, 512, space="psum", indirect="tensor")
    refuse(
        LimitError,
        "tensor_copy.rules",
        lambda: make(tensor_copy, on="trn3", dst=scattered, src=BIG, engine=engine.scalar),
    )


# ------------------------------------------------------------------ memset


@pytest.mark.parametrize(
    ("t", "value", "want"),
    [
        ("float32", 0.1, 0.10000000149011612),
        (BF16, 0.1, 0.10009765625),
        ("int8", -200, -128),
        ("uint8", 300, 255),
        ("uint32", 0xFFFFFFFF, 0xFFFFFFFF),
        ("int32", -(2**31), -(2**31)),
        ("float8_e4m3", 1000.0, np.inf),
    ],
)
def test_memset_converts_the_number_to_the_type(t, value, want):
    i = make(memset, dst=tile(4, 2, 3, t=t), value=value)
    np.testing.assert_array_equal(stored(i, "dst", i.run()["dst"]), np.full((4, 2, 3), want))


def test_memset_of_packed_types_is_zero_only():
    packed = tile(32, 8, t="float4_e2m1fn_x4")
    i = make(memset, on="trn3", dst=packed, value=0)
    np.testing.assert_array_equal(stored(i, "dst", i.run()["dst"]), np.zeros((32, 8), np.uint16))
    refuse(LimitError, "memset.rules", lambda: make(memset, on="trn3", dst=packed, value=1))


@pytest.mark.parametrize("value", [2.0, 2.5, float("nan"), float("inf")])
def test_memset_of_integers_takes_integers(value):
    text = refuse(
        LimitError, "memset.rules", lambda: make(memset, dst=tile(4, 2, t="int32"), value=value)
    )
    assert "is filled with an integer" in text
    assert ("value=2" in text) == (value == 2.0)


def test_memset_cost_and_engines():
    assert cycles(make(memset, dst=tile(128, 512, t=BF16), value=0.0)) == pytest.approx(256)
    assert cycles(make(memset, dst=tile(128, 512, t=BF16), value=1.0)) == pytest.approx(512)
    assert cycles(make(memset, dst=BIG, value=0.0)) == pytest.approx(512)
    assert make(memset, dst=BIG, value=1, engine=engine.gpsimd).engine_name == "gpsimd"
    refuse(
        UsageError, "memset.engine", lambda: make(memset, dst=BIG, value=1, engine=engine.scalar)
    )


# ------------------------------------------------------------------ tensor_tensor


def tt(op, a, b, t="float32", dst=None, **more):
    i = make(
        tensor_tensor,
        dst=tile(*a.shape, t=dst or t),
        data1=tile(*a.shape, t=t),
        data2=tile(*b.shape, t=t),
        op=op,
        **more,
    )
    return stored(i, "dst", i.run(data1=carrier(a, t), data2=carrier(b, t))["dst"])


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum", "less"]))
def test_tensor_tensor_is_elementwise_float32(shape, op):
    a, b = numbers(*shape), numbers(*shape, seed=1)
    f64 = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}
    f64 |= {"maximum": np.maximum, "minimum": np.minimum, "less": np.less}
    want = f64[op](a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(tt(op, a, b), want, rtol=1e-6)


def test_tensor_tensor_of_different_free_shapes():
    a, b = numbers(4, 2, 3), numbers(4, 6, seed=1)
    i = make(tensor_tensor, dst=tile(4, 3, 2), data1=tile(4, 2, 3), data2=tile(4, 6), op="add")
    got = stored(i, "dst", i.run(data1=a, data2=b)["dst"])
    np.testing.assert_array_equal(got, (a.reshape(4, 6) + b).reshape(4, 3, 2))


def test_int32_is_exact_on_gpsimd_and_float32_on_the_vector_engine():
    a = np.array([[16777217, 2**31 - 1, 65537]], np.int32)
    b = np.array([[16777217, 1, 65537]], np.int32)
    args = {"dst": tile(1, 3, t="int32"), "data1": tile(1, 3, t="int32")}
    args["data2"] = tile(1, 3, t="int32")
    native = make(tensor_tensor, op="add", **args)
    assert native.engine_name == "gpsimd"
    got = stored(native, "dst", native.run(data1=a, data2=b)["dst"])
    np.testing.assert_array_equal(got, [[33554434, -(2**31), 131074]])  # wraps modulo 2^32
    product = make(tensor_tensor, op="multiply", **args)
    got = stored(product, "dst", product.run(data1=a, data2=b)["dst"])
    want = [(16777217**2 + 2**31) % 2**32 - 2**31, 2**31 - 1, 65537**2 % 2**32]
    np.testing.assert_array_equal(got, [want])
    floating = make(tensor_tensor, op="add", engine=engine.vector, **args)
    got = stored(floating, "dst", floating.run(data1=a, data2=b)["dst"])
    np.testing.assert_array_equal(got, [[33554432, 2**31 - 1, 131074]])  # saturates


def test_uint32_and_int32_mix_by_value():
    a, b = np.array([[-1]], np.int32), np.array([[2**32 - 1]], np.uint32)
    i = make(
        tensor_tensor,
        dst=tile(1, 1, t="uint32"),
        data1=tile(1, 1, t="int32"),
        data2=tile(1, 1, t="uint32"),
        op="maximum",
    )
    assert stored(i, "dst", i.run(data1=a, data2=b)["dst"])[0, 0] == 2**32 - 1
    added = make(
        tensor_tensor,
        dst=tile(1, 1, t="int32"),
        data1=tile(1, 1, t="int32"),
        data2=tile(1, 1, t="uint32"),
        op="add",
    )
    assert stored(added, "dst", added.run(data1=a, data2=b)["dst"])[0, 0] == -2


def test_int32_falls_back_to_the_vector_engine_with_psum():
    i = make(
        tensor_tensor,
        dst=tile(1, 3, t="int32", space="psum"),
        data1=tile(1, 3, t="int32"),
        data2=tile(1, 3, t="int32"),
        op="add",
    )
    assert i.engine_name == "vector"
    small = tile(1, 3, t="int16")
    assert (
        make(tensor_tensor, dst=small, data1=small, data2=small, op="add").engine_name == "vector"
    )


def test_power_runs_on_gpsimd():
    a, b = np.array([[2.0, 9.0, 4.0]], np.float32), np.array([[3.0, 0.5, -1.0]], np.float32)
    np.testing.assert_allclose(tt("power", a, b), [[8, 3, 0.25]], rtol=1e-6)
    t = tile(1, 3)
    assert make(tensor_tensor, dst=t, data1=t, data2=t, op="power").engine_name == "gpsimd"
    refuse(
        LimitError,
        "tensor_tensor.rules",
        lambda: make(tensor_tensor, dst=t, data1=t, data2=t, op="power", engine=engine.vector),
    )
    refuse(
        LimitError,
        "tensor_tensor.rules",
        lambda: make(tensor_tensor, dst=tile(1, 3, space="psum"), data1=t, data2=t, op="power"),
    )


def test_bitvec_operators_see_bits():
    a = np.array([[-1, 0x0F0F0F0F, -(2**31)]], np.int32)
    b = np.array([[0x00FF00FF, 0x00FF00FF, 31]], np.int32)
    np.testing.assert_array_equal(tt("bitwise_and", a, b, "int32"), [[0x00FF00FF, 0x000F000F, 0]])
    shift = np.array([[28, 4, 31]], np.int32)
    got = tt("right_shift", a, shift, "int32")  # zeros enter from the left
    np.testing.assert_array_equal(got, [[15, 0x00F0F0F0, 1]])
    t = tile(1, 3, t="int32")
    assert make(tensor_tensor, dst=t, data1=t, data2=t, op="bitwise_or").engine_name == "vector"


def test_bitvec_refusals():
    ints, floats, short = tile(1, 3, t="int32"), tile(1, 3), tile(1, 3, t="int16")
    for dst, one in ((floats, ints), (ints, short), (ints, tile(1, 3, t="bool"))):
        refuse(
            LimitError,
            "tensor_tensor.rules",
            lambda dst=dst, one=one: make(
                tensor_tensor, dst=dst, data1=one, data2=ints, op="bitwise_and"
            ),
        )
    refuse(
        LimitError,
        "tensor_tensor.rules",
        lambda: make(
            tensor_tensor, dst=ints, data1=ints, data2=ints, op="bitwise_or", engine=engine.gpsimd
        ),
    )


def test_tensor_tensor_refusals():
    psum = tile(128, 512, space="psum")
    text = refuse(
        LimitError,
        "tensor_tensor.rules",
        lambda: make(tensor_tensor, dst=BIG, data1=psum, data2=psum, op="add"),
    )
    assert "cannot both be in PSUM" in text
    refuse(
        LimitError,
        "tensor_tensor.rules",
        lambda: make(tensor_tensor, dst=BIG, data1=BIG, data2=BIG, op="abs"),
    )
    refuse(
        LimitError,
        "tensor_tensor.rules",
        lambda: make(tensor_tensor, dst=BIG, data1=BIG, data2=BIG, op="abs_max"),
    )
    assert make(tensor_tensor, on="trn3", dst=BIG, data1=BIG, data2=BIG, op="abs_max").P == 128
    refuse(
        UsageError,
        "tensor_tensor.data2",
        lambda: make(tensor_tensor, dst=BIG, data1=BIG, data2=NUMBER, op="add"),
    )


HALF = tile(128, 512, t=BF16)
STRIDED = tile(128, 512, t=BF16, contiguous=False)
PSUM = tile(128, 512, space="psum")


@pytest.mark.parametrize(
    ("on", "op", "data1", "data2", "dst", "want"),
    [
        ("trn1", "add", BIG, BIG, BIG, 1024),
        ("trn1", "add", PSUM, BIG, BIG, 512),
        ("trn1", "add", HALF, HALF, HALF, 512),
        ("trn1", "maximum", HALF, HALF, HALF, 1024),
        ("trn1", "add", STRIDED, HALF, HALF, 1024),
        ("trn1", "add", HALF, HALF, BIG, 1024),
        ("trn2", "add", BIG, BIG, BIG, 1024),
        ("trn2", "add", HALF, HALF, HALF, 256),
        ("trn2", "maximum", HALF, HALF, HALF, 512),
        ("trn2", "add", STRIDED, HALF, HALF, 512),
        ("trn2", "add", HALF, HALF, BIG, 1024),
        ("trn2", "add", HALF, tile(128, 512, t=BF16, space="psum"), HALF, 512),
        ("trn3", "multiply", HALF, HALF, HALF, 256),
        ("trn3", "maximum", *[tile(128, 512, t="float8_e5m2")] * 3, 512),
        ("trn2", "add", *[tile(128, 8)] * 3, 64),
    ],
)
def test_tensor_tensor_cost(on, op, data1, data2, dst, want):
    i = make(tensor_tensor, on=on, dst=dst, data1=data1, data2=data2, op=op)
    assert cycles(i) == pytest.approx(want)


def test_tensor_tensor_cost_matches_trn1_measurements():
    # [128, 512]: 0.47 µs with one tile in PSUM, 8.5 µs / 8 with both in SBUF
    split = make(tensor_tensor, on="trn1", dst=BIG, data1=PSUM, data2=BIG, op="multiply")
    assert split.cost.busy_ns == pytest.approx(470, rel=0.05)
    both = make(tensor_tensor, on="trn1", dst=BIG, data1=BIG, data2=BIG, op="multiply")
    assert both.cost.busy_ns == pytest.approx(1062, rel=0.15)


def test_tensor_tensor_cost_on_gpsimd():
    t = tile(128, 512, t="int32")
    i = make(tensor_tensor, on="trn2", dst=t, data1=t, data2=t, op="add")
    assert i.cost.busy_ns == pytest.approx((150 + 1024) / 1.2)
