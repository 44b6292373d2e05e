"""GpSimd: affine patterns by plain loops, selection, sums across partitions, refusals, costs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import DtypeError, LimitError, SpaceError, TrnError, UsageError, dtype
from opentrn.hw import chip
from opentrn.isa.define import form
from opentrn.isa.gpsimd import affine_select, iota, tensor_partition_reduce
from opentrn.isa.operands import OperandForm


def tile(*shape, dtype_="int32", space="sbuf"):
    return OperandForm(space, shape, dtype(dtype_))


def by_loops(partitions, pattern, offset, multiplier):
    """The documented loops, one value after the other, in Python integers wrapped to 32 bits."""
    rows = []
    for p in range(partitions):
        values = [offset + p * multiplier]
        for step, count in pattern:
            values = [v + n * step for v in values for n in range(count)]
        rows.append([(v + 2**31) % 2**32 - 2**31 for v in values])
    return rows


def made_iota(shape, pattern, on="trn2", dtype_="int32"):
    return form(iota, chip(on), (tile(*shape, dtype_=dtype_),), (pattern,))


@given(
    st.integers(1, 5),
    st.lists(
        st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(1, 3)), min_size=1, max_size=4
    ),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1),
)
@settings(max_examples=60, deadline=None)
def test_iota_is_the_documented_loop(partitions, pattern, offset, multiplier):
    free = int(np.prod([n for _, n in pattern]))
    i = made_iota((partitions, free), pattern)
    got = i.run(offset=offset, channel_multiplier=multiplier)["dst"]
    assert got.dtype == np.int32
    assert got.tolist() == by_loops(partitions, pattern, offset, multiplier)


def test_iota_takes_the_shape_of_dst():
    i = made_iota((2, 2, 3), [[10, 2], [1, 3]])
    got = i.run(offset=100, channel_multiplier=1000)["dst"]
    assert got.shape == (2, 2, 3)
    assert got[1].tolist() == [[1100, 1101, 1102], [1110, 1111, 1112]]


@pytest.mark.parametrize(
    "pattern",
    [[], [[1, 2]] * 5, [[1, 0]], [[1.5, 2]], "ab", 7, [[2**31, 2]], [[1, 2, 3]]],
)
def test_what_is_no_pattern(pattern):
    with pytest.raises(UsageError) as caught:
        made_iota((1, 2), pattern)
    assert caught.value.code == "isa.pattern"


def test_pattern_must_fill_a_partition():
    with pytest.raises(LimitError) as caught:
        made_iota((128, 512), [[1, 511]])
    assert "511" in caught.value.rule
    assert "512" in caught.value.rule


@pytest.mark.parametrize("offset", [2**31, 0.5, None])
def test_offset_must_be_a_32_bit_integer(offset):
    i = made_iota((1, 2), [[1, 2]])
    with pytest.raises(UsageError) as caught:
        i.run(offset=offset, channel_multiplier=0)
    assert "offset" in str(caught.value)


def test_iota_cannot_write_psum():
    with pytest.raises(SpaceError):
        form(iota, chip("trn2"), (tile(1, 2, space="psum"),), ([[1, 2]],))


def select(shape, pattern, cmp_op="equal", src="float32", dst="float32"):
    forms = (tile(*shape, dtype_=dst), tile(*shape, dtype_=src))
    return form(affine_select, chip("trn2"), forms, (pattern, cmp_op))


def test_causal_mask():
    # keep key k for query q when q - k >= 0
    i = select((4, 4), [[-1, 4]], "greater_equal")
    scores = np.arange(16, dtype=np.float32).reshape(4, 4)
    got = i.run(on_true_tile=scores, channel_multiplier=1, on_false_value=-9.0, offset=0)["dst"]
    want = [[scores[q, k] if k <= q else -9.0 for k in range(4)] for q in range(4)]
    assert got.tolist() == want


@pytest.mark.parametrize(
    ("cmp_op", "want"),
    [
        ("equal", [0, 1, 0]),
        ("not_equal", [1, 0, 1]),
        ("less", [1, 0, 0]),
        ("less_equal", [1, 1, 0]),
        ("greater", [0, 0, 1]),
        ("greater_equal", [0, 1, 1]),
    ],
)
def test_comparisons_with_zero(cmp_op, want):
    i = select((1, 3), [[1, 3]], cmp_op)
    ones = np.ones((1, 3), np.float32)
    made = i.run(on_true_tile=ones, channel_multiplier=0, on_false_value=0, offset=-1)
    assert made["dst"].tolist() == [want]


def test_integers_of_one_dtype_pass_unchanged():
    i = select((1, 2), [[1, 2]], "less_equal", "int32", "int32")
    tile_ = np.array([[2**24 + 1, 5]], np.int32)  # 2^24 + 1 does not survive float32
    made = i.run(on_true_tile=tile_, channel_multiplier=0, on_false_value=-3.0, offset=0)
    assert made["dst"].tolist() == [[2**24 + 1, -3]]


def test_integers_of_another_dtype_go_through_float32():
    i = select((1, 2), [[1, 2]], "less_equal", "int32", "float32")
    tile_ = np.array([[2**24 + 1, 5]], np.int32)
    made = i.run(on_true_tile=tile_, channel_multiplier=0, on_false_value=0.5, offset=0)
    assert made["dst"].tolist() == [[2.0**24, 0.5]]


def test_cmp_op_must_compare():
    with pytest.raises(LimitError) as caught:
        select((1, 2), [[1, 2]], "add")
    assert "add" in caught.value.rule


def test_on_false_value_is_a_number():
    i = select((1, 2), [[1, 2]])
    with pytest.raises(UsageError):
        i.run(
            on_true_tile=np.ones((1, 2), np.float32),
            channel_multiplier=0,
            on_false_value=np.ones((1, 2), np.float32),
            offset=0,
        )


def across(op, shape, src="float32", dst="float32"):
    forms = (tile(1, shape[1], dtype_=dst), tile(*shape, dtype_=src))
    return form(tensor_partition_reduce, chip("trn2"), forms, (op,))


def test_reductions_across_partitions():
    x = np.random.default_rng(1).standard_normal((128, 32), np.float32)
    wide = x.astype(np.float64)
    want = {"add": wide.sum(0), "average": wide.mean(0), "maximum": wide.max(0)}
    for op, row in want.items():
        got = across(op, x.shape).run(data=x)["dst"]
        assert got.shape == (1, 32)
        np.testing.assert_allclose(got[0], row, rtol=1e-5, atol=1e-5)


def test_bitwise_reductions_across_partitions():
    x = np.array([[0b1100], [0b1010], [0b1001]], np.int32)
    assert across("bitwise_and", (3, 1), "int32", "int32").run(data=x)["dst"].tolist() == [[0b1000]]
    assert across("bitwise_or", (3, 1), "int32", "int32").run(data=x)["dst"].tolist() == [[0b1111]]
    with pytest.raises(LimitError):
        across("bitwise_or", (3, 1))


def test_other_reductions_are_refused():
    with pytest.raises(LimitError) as caught:
        across("multiply", (3, 1))
    assert "tensor_reduce" in caught.value.fix
    with pytest.raises(TrnError):
        form(
            tensor_partition_reduce,
            chip("trn2"),
            (tile(2, 4, dtype_="float32"), tile(128, 4, dtype_="float32")),
            ("add",),
        )


def busy_cycles(i):
    return i.cost.busy_ns * i.chip.gpsimd.clock * 1e-9


def test_costs_are_150_cycles_and_one_for_each_element():
    assert busy_cycles(made_iota((128, 512), [[1, 512]])) == pytest.approx(662)
    assert busy_cycles(select((1, 3), [[1, 3]])) == pytest.approx(153)
    assert made_iota((1, 2), [[1, 2]]).cost.grade == "stated"
    assert across("add", (128, 4)).cost.grade == "assumed"
    assert busy_cycles(across("add", (128, 4))) == pytest.approx(150 + 4 * 7)


def test_packed_types_are_refused():
    with pytest.raises(DtypeError):
        form(iota, chip("trn3"), (tile(1, 2, dtype_="float4_e2m1fn_x4"),), ([[1, 2]],))
