"""Vector Engine instructions with operators and operands: values, refusals, engines, costs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import DtypeError, LimitError, ShapeError, UsageError
from opentrn.isa.enums import engine
from opentrn.isa.vector import (
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy_predicated,
    tensor_scalar,
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
HALF = tile(128, 512, t=BF16)
PSUM = tile(128, 512, space="psum")
SHAPES = st.tuples(st.integers(1, 8), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))


def numbers(*shape, seed=0, scale=3.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


# ------------------------------------------------------------------ tensor_scalar


def ts(data, op0, operand0, op1=None, operand1=None, t="float32", dst=None, **more):
    def how(y):
        return tile(len(y), 1, t=t if t.startswith(("int", "uint")) else "float32")

    given = {"operand0": operand0, "operand1": operand1}
    forms = {
        n: how(y) if isinstance(y, np.ndarray) else None if y is None else NUMBER
        for n, y in given.items()
    }
    i = make(
        tensor_scalar,
        dst=tile(*data.shape, t=dst or t),
        data=tile(*data.shape, t=t),
        op0=op0,
        op1=op1,
        **forms,
        **more,
    )
    before = data.copy()
    got = stored(i, "dst", i.run(data=data, **given)["dst"])
    np.testing.assert_array_equal(data, before)  # inputs stay as they are
    return got


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.booleans(), st.booleans())
def test_tensor_scalar_broadcasts_vectors_over_all_free_dimensions(shape, reverse0, reverse1):
    x, v, w = numbers(*shape), numbers(shape[0], 1, seed=1), numbers(shape[0], 1, seed=2)
    d = x.astype(np.float64)
    a, b = (y.astype(np.float64).reshape(-1, 1, 1, 1) for y in (v, w))
    first = a - d if reverse0 else d - a
    want = b - first if reverse1 else first - b
    got = ts(x, "subtract", v, "subtract", w, reverse0=reverse0, reverse1=reverse1)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_tensor_scalar_by_hand():
    x = np.array([[1.0, -2.0, 3.0]], np.float32)
    np.testing.assert_array_equal(ts(x, "multiply", 2.0, "add", 1.0), [[3, -3, 7]])
    np.testing.assert_array_equal(ts(x, "subtract", 1.0, reverse0=True), [[0, 3, -2]])
    np.testing.assert_array_equal(ts(x, "abs", None, "greater", 1.5), [[0, 1, 1]])
    np.testing.assert_array_equal(ts(x, "bypass", None, "add", 1.0), [[2, -1, 4]])
    np.testing.assert_array_equal(ts(x, "reciprocal", 0), [[1, -0.5, np.float32(1 / 3)]])


def test_tensor_scalar_keeps_float32_between_its_operators():
    # 1 + 2^-10 is no bfloat16; rounding between the operators would lose it
    x = carrier([[1.0]], BF16)
    got = ts(x, "add", 2.0**-10, "subtract", 1.0, t=BF16)
    assert got[0, 0] == 2.0**-10


def test_tensor_scalar_casts_integers_to_float32():
    x = np.array([[16777217, 5]], np.int32)
    got = ts(x, "add", 1.0, t="int32")
    np.testing.assert_array_equal(
        got, [[16777216, 6]]
    )  # 2^24 + 1 is 2^24 in float32, + 1 ties down


def test_tensor_scalar_bitvec():
    x = np.array([[0x12345678, -1]], np.int32)
    got = ts(x, "right_shift", 8, "bitwise_and", 0xFF, t="int32")
    np.testing.assert_array_equal(got, [[0x56, 0xFF]])
    got = ts(x, "bitwise_and", 0xFFFF0000, t="int32")
    np.testing.assert_array_equal(got, [[0x12340000, -65536]])
    masks = np.array([[0xF]], np.int32)
    np.testing.assert_array_equal(ts(x, "bitwise_xor", masks, t="int32"), [[0x12345677, -16]])
    np.testing.assert_array_equal(ts(x, "invert", None, t="int32"), [[~0x12345678, 0]])
    with pytest.raises(UsageError) as caught:
        ts(x, "bitwise_and", 1.5, t="int32")
    assert caught.value.code == "tensor_scalar.operands"


def test_tensor_scalar_engines():
    base = {"dst": BIG, "data": BIG, "operand0": NUMBER}
    assert make(tensor_scalar, op0="add", **base).engine_name == "vector"
    rsqrt = make(tensor_scalar, op0="rsqrt", **base)
    assert rsqrt.engine_name == "gpsimd"
    assert rsqrt.cost.busy_ns == pytest.approx(4 * 512 / 1.2)
    x = np.full((128, 512), 4.0, np.float32)
    np.testing.assert_allclose(rsqrt.run(data=x, operand0=0.0)["dst"], 0.5, rtol=1e-6)
    psum = dict(base, data=PSUM)
    assert make(tensor_scalar, on="trn3", op0="rsqrt", **psum).engine_name == "scalar"
    bad = [
        {"op0": "rsqrt", "engine": engine.vector},
        {"op0": "add", "engine": engine.gpsimd},
        {"op0": "subtract", "engine": engine.scalar},
        {"op0": "multiply", "op1": "multiply", "operand1": NUMBER, "engine": engine.scalar},
    ]
    for flags in bad:
        refuse(LimitError, "tensor_scalar.rules", lambda f=flags: make(tensor_scalar, **f, **base))
    refuse(LimitError, "tensor_scalar.rules", lambda: make(tensor_scalar, op0="rsqrt", **psum))
    pair = {"op0": "multiply", "op1": "add", "operand1": NUMBER, "engine": engine.scalar}
    assert make(tensor_scalar, **pair, **base).engine_name == "scalar"
    wide = {"op0": "subtract", "engine": engine.scalar}
    assert make(tensor_scalar, on="trn3", **wide, **base).engine_name == "scalar"
    ints = tile(128, 512, t="int32")
    bits = {"dst": ints, "data": ints, "operand0": NUMBER, "op0": "bitwise_or"}
    refuse(
        LimitError,
        "tensor_scalar.rules",
        lambda: make(tensor_scalar, on="trn3", engine=engine.scalar, **bits),
    )


def test_tensor_scalar_operand_refusals():
    base = {"dst": BIG, "data": BIG}
    vector = tile(128, 1)
    cases = [
        {"op0": "add", "operand0": None},
        {"op0": "abs", "operand0": vector},
        {"op0": "add", "operand0": tile(128, 1, t=BF16)},
        {"op0": "add", "operand0": vector, "op1": "multiply"},
        {"op0": "add", "operand0": vector, "operand1": vector},
        {"op0": "add", "operand0": NUMBER, "op1": "bitwise_and", "operand1": NUMBER},
        {"op0": "bitwise_and", "operand0": NUMBER},
    ]
    for case in cases:
        refuse(LimitError, "tensor_scalar.rules", lambda c=case: make(tensor_scalar, **base, **c))
    refuse(
        ShapeError,
        "tensor_scalar.operand0",
        lambda: make(tensor_scalar, op0="add", operand0=tile(128, 2), **base),
    )
    refuse(
        ShapeError,
        "tensor_scalar.operand0",
        lambda: make(tensor_scalar, op0="add", operand0=tile(64, 1), **base),
    )
    idle = make(tensor_scalar, op0="abs", operand0=NUMBER, **base)
    with pytest.raises(UsageError) as caught:
        idle.run(data=numbers(128, 512), operand0=3.0)
    assert caught.value.code == "tensor_scalar.operand0"
    second = make(tensor_scalar, op0="add", operand0=NUMBER, op1="relu", operand1=NUMBER, **base)
    with pytest.raises(UsageError) as caught:
        second.run(data=numbers(128, 512), operand0=1.0, operand1=3.0)
    assert caught.value.code == "tensor_scalar.operand1"


# ------------------------------------------------------------------ scalar_tensor_tensor


@settings(max_examples=15, deadline=None)
@given(SHAPES, st.booleans(), st.booleans())
def test_scalar_tensor_tensor(shape, reverse0, reverse1):
    x, y, v = numbers(*shape), numbers(*shape, seed=1), numbers(shape[0], 1, seed=2)
    i = make(
        scalar_tensor_tensor,
        dst=tile(*shape),
        data=tile(*shape),
        operand1=tile(*shape),
        operand0=tile(shape[0], 1),
        op0="subtract",
        op1="subtract",
        reverse0=reverse0,
        reverse1=reverse1,
    )
    d, e = x.astype(np.float64), y.astype(np.float64)
    a = v.astype(np.float64).reshape(-1, 1, 1, 1)
    first = a - d if reverse0 else d - a
    want = e - first if reverse1 else first - e
    got = i.run(data=x, operand0=v, operand1=y)["dst"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_scalar_tensor_tensor_takes_any_type_and_shape_of_equal_size():
    i = make(
        scalar_tensor_tensor,
        dst=tile(2, 4, t="int8"),
        data=tile(2, 2, 2, t="uint8"),
        operand0=tile(2, 1, t=BF16),
        operand1=tile(2, 4, t="int16"),
        op0="multiply",
        op1="add",
    )
    data = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    out = i.run(
        data=data,
        operand0=np.array([[1.5], [2]], np.float32),
        operand1=np.full((2, 4), -3, np.int16),
    )["dst"]
    want = [[-3, -2, 0, 2], [5, 7, 9, 11]]  # -1.5 rounds to -2 and 1.5 to 2, ties to even
    np.testing.assert_array_equal(stored(i, "dst", out), want)


def test_scalar_tensor_tensor_cost_and_refusals():
    half = {"dst": HALF, "data": HALF, "operand1": HALF, "operand0": NUMBER}
    lean = make(scalar_tensor_tensor, op0="subtract", op1="multiply", **half)
    assert cycles(lean) == pytest.approx(512)
    assert cycles(make(scalar_tensor_tensor, op0="add", op1="multiply", **half)) == pytest.approx(
        1024
    )
    odd = tile(128, 511, t=BF16)
    uneven = {"dst": odd, "data": odd, "operand1": odd, "operand0": NUMBER}
    i = make(scalar_tensor_tensor, op0="subtract", op1="multiply", **uneven)
    assert cycles(i) == pytest.approx(1022)
    psum = {"dst": BIG, "data": PSUM, "operand1": PSUM, "operand0": NUMBER}
    ints = tile(128, 512, t="int32")
    bits = {"dst": ints, "data": ints, "operand1": ints, "operand0": NUMBER}
    for case in (
        dict(psum, op0="add", op1="add"),
        dict(bits, op0="bitwise_or", op1="add"),
        dict(bits, op0="add", op1="bitwise_or"),
        dict(half, op0="add", op1="abs"),
        dict(half, op0="add", op1="add", operand0=None),
    ):
        refuse(
            LimitError,
            "scalar_tensor_tensor.rules",
            lambda c=case: make(scalar_tensor_tensor, **c),
        )


# ------------------------------------------------------------------ reciprocal


def test_reciprocal():
    x = np.array([[1.0, -2.0, 0.0, np.inf, 3.0]], np.float32)
    i = make(reciprocal, dst=tile(1, 5), data=tile(1, 5))
    got = i.run(data=x)["dst"]
    np.testing.assert_allclose(got, [[1, -0.5, np.inf, 0, 1 / 3]], rtol=1e-7)
    ints = make(reciprocal, dst=tile(1, 3), data=tile(1, 3, t="int32"))
    got = ints.run(data=np.array([[1, 2, 4]], np.int32))["dst"]
    np.testing.assert_array_equal(got, [[1, 0.5, 0.25]])  # TC-24


def test_reciprocal_cost():
    assert cycles(make(reciprocal, dst=BIG, data=BIG)) == pytest.approx(8 * 512)
    assert cycles(make(reciprocal, dst=tile(128, 4), data=tile(128, 4))) == pytest.approx(64)
    # measured on trn2: [128, 4] 173 ns, [128, 8] 202 ns until visible
    for n, ns in ((4, 173), (8, 202)):
        shown = visible(make(reciprocal, dst=tile(128, n), data=tile(128, n)))
        assert shown == pytest.approx(8 * n / 0.96 + 152)
        assert shown == pytest.approx(ns, rel=0.1)


# ------------------------------------------------------------------ tensor_copy_predicated


def test_predicated_copy_of_a_tile_and_of_a_number():
    dst = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    src = dst + 10
    predicate = np.array([[1, 0, 7, 0, 0, 255]], np.uint8)
    forms = {"dst": tile(1, 2, 3), "predicate": tile(1, 6, t="uint8")}
    i = make(tensor_copy_predicated, src=tile(1, 2, 3), **forms)
    got = i.run(dst=dst, src=src, predicate=predicate)["dst"]
    np.testing.assert_array_equal(got, [[[10, 1, 12], [3, 4, 15]]])
    back = make(tensor_copy_predicated, src=NUMBER, reverse_pred=True, **forms)
    got = back.run(dst=dst, src=-1.0, predicate=predicate)["dst"]
    np.testing.assert_array_equal(got, [[[0, -1, 2], [-1, -1, 5]]])


def test_predicated_copy_keeps_integers_exact():
    t = tile(1, 2, t="int32")
    i = make(tensor_copy_predicated, dst=t, src=t, predicate=tile(1, 2, t="uint32"))
    dst, src = np.array([[1, 2**31 - 1]], np.int32), np.array([[16777217, 0]], np.int32)
    got = i.run(dst=dst, src=src, predicate=np.array([[2**31, 0]], np.uint32))["dst"]
    np.testing.assert_array_equal(got, [[16777217, 2**31 - 1]])
    assert got.dtype == np.int32


def test_predicated_copy_refusals_and_cost():
    mask = tile(128, 512, t="uint8")
    base = {"dst": BIG, "src": BIG, "predicate": mask}
    refuse(
        DtypeError,
        "tensor_copy_predicated.predicate.dtype",
        lambda: make(tensor_copy_predicated, **dict(base, predicate=tile(128, 512, t="int32"))),
    )
    for change in (
        {"src": HALF},
        {"src": PSUM, "predicate": tile(128, 512, t="uint8", space="psum")},
    ):
        refuse(
            LimitError,
            "tensor_copy_predicated.rules",
            lambda c=change: make(tensor_copy_predicated, **dict(base, **c)),
        )
    assert cycles(make(tensor_copy_predicated, **base)) == pytest.approx(1024)
    assert cycles(make(tensor_copy_predicated, **dict(base, src=PSUM))) == pytest.approx(512)
    assert cycles(make(tensor_copy_predicated, **dict(base, src=NUMBER))) == pytest.approx(512)
