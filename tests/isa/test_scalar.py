"""The Scalar Engine: activations against float64, accumulators by hand, refusals, costs."""

import math

import numpy as np
import pytest

from opentrn.base import DtypeError, LimitError, SpaceError, UsageError, dtype
from opentrn.hw import chip
from opentrn.isa.define import form
from opentrn.isa.enums import reduce_cmd
from opentrn.isa.operands import ImmediateForm, OperandForm
from opentrn.isa.scalar import activate2, activation, activation_reduce

NUMBER = ImmediateForm()


def tile(*shape, dtype_="float32", space="sbuf", **more):
    return OperandForm(space, shape, dtype(dtype_), **more)


def make(
    op="copy",
    on="trn2",
    shape=(128, 512),
    bias=None,
    scale=NUMBER,
    reduce_op=None,
    res=None,
    cmd=reduce_cmd.idle,
    **more,
):
    dst = more.get("dst", tile(*shape))
    data = more.get("data", tile(*shape))
    return form(activation, chip(on), (dst, data, bias, scale, res), (op, reduce_op, cmd))


def make_sum(op="copy", on="trn2", reduce_op="add", res=None, shape=(128, 8)):
    forms = (tile(*shape), tile(*shape), res, None, NUMBER)
    return form(activation_reduce, chip(on), forms, (op, reduce_op))


def run(i, data, scale=1.0, bias=None, accumulators=None, **more):
    if accumulators is None:
        accumulators = np.zeros(128, np.float32)
    return i.run(data=data, scale=scale, bias=bias, accumulators=accumulators, **more)


def test_scale_then_bias_then_function():
    x = np.linspace(-4, 4, 128 * 512, dtype=np.float32).reshape(128, 512)
    scale = np.linspace(0.5, 2, 128, dtype=np.float32).reshape(128, 1)
    bias = np.linspace(-1, 1, 128, dtype=np.float32).reshape(128, 1)
    i = make("tanh", bias=tile(128, 1), scale=tile(128, 1))
    got = run(i, x, scale=scale, bias=bias)["dst"]
    want = np.tanh(x.astype(np.float64) * scale + bias)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert got.dtype == np.float32


def test_tiles_broadcast_over_several_free_dimensions_and_dst_may_be_shaped_otherwise():
    x = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    bias = np.array([[10.0], [20.0]], np.float32)
    i = make(bias=tile(2, 1), dst=tile(2, 12), data=tile(2, 3, 4))
    got = run(i, x, scale=2.0, bias=bias)["dst"]
    assert got.shape == (2, 12)
    assert got[0].tolist() == [10 + 2 * n for n in range(12)]
    assert got[1].tolist() == [20 + 2 * n for n in range(12, 24)]


def test_integers_become_float32_first():
    i = make("square", shape=(1, 3), data=tile(1, 3, dtype_="int32"))
    got = run(i, np.array([[3, -4, 5]], np.int32))["dst"]
    assert got.dtype == np.float32
    assert got.tolist() == [[9.0, 16.0, 25.0]]


def test_bias_tile_of_low_precision():
    i = make("relu", shape=(2, 2), bias=tile(2, 1, dtype_="bfloat16"))
    got = run(i, np.zeros((2, 2), np.float32), bias=np.array([[1.5], [-1.5]], np.float32))
    assert got["dst"].tolist() == [[1.5, 1.5], [0.0, 0.0]]


def test_the_specification_applies_the_bias_of_a_copy_and_reports_it():
    # users saw 0 for op=copy on trn1 with NKI 0.2; the specification says 1
    zeros, ones = np.zeros((128, 512), np.float32), np.ones((128, 1), np.float32)
    copy, relu = (make(op, bias=tile(128, 1)) for op in ("copy", "relu"))
    assert (run(copy, zeros, bias=ones)["dst"] == 1).all()
    assert (run(relu, zeros, bias=ones)["dst"] == 1).all()
    [(operand, reason)] = copy.disputed()
    assert operand == "bias"
    assert "op=copy" in reason
    assert "trn1" in reason
    for one in (copy, relu, make("copy")):
        assert one.ignored() == []
    assert relu.disputed() == make("copy").disputed() == []


def test_reduce_op_without_a_reduction_is_reported():
    [(operand, _)] = make("exp", reduce_op="add").ignored()
    assert operand == "reduce_op"


def test_accumulators_follow_reduce_cmd():
    x = np.arange(8, dtype=np.float32).reshape(2, 4)  # sums 6 and 22
    before = np.full(128, 100.0, np.float32)
    after = {}
    for cmd in (reduce_cmd.idle, reduce_cmd.reset, reduce_cmd.reduce, reduce_cmd.reset_reduce):
        op = "add" if cmd in (reduce_cmd.reduce, reduce_cmd.reset_reduce) else None
        i = make(shape=(2, 4), reduce_op=op, cmd=cmd, res=tile(2, 1))
        made = run(i, x, accumulators=before)
        after[cmd.name] = made["reduce_res"].reshape(-1).tolist()
        if cmd is reduce_cmd.idle:
            assert "accumulators" not in made
        else:
            assert made["accumulators"][:2].tolist() == after[cmd.name]
            assert (made["accumulators"][2:] == 100).all()
    assert after == {
        "idle": [100.0, 100.0],
        "reset": [0.0, 0.0],
        "reduce": [106.0, 122.0],
        "reset_reduce": [6.0, 22.0],
    }
    assert (before == 100).all()


def test_accumulators_belong_to_the_partitions_of_the_data():
    i = make(
        dst=tile(2, 3, partition=32),
        data=tile(2, 3, partition=32),
        reduce_op="add",
        cmd=reduce_cmd.reset_reduce,
        res=tile(2, 1),
    )
    made = run(i, np.ones((2, 3), np.float32), accumulators=np.full(128, 7, np.float32))
    assert made["accumulators"][30:36].tolist() == [7, 7, 3, 3, 7, 7]


def test_the_sum_is_of_activated_values():
    x = np.linspace(-3, 3, 128 * 64, dtype=np.float32).reshape(128, 64)
    i = make("exp", shape=(128, 64), reduce_op="add", cmd=reduce_cmd.reset_reduce, res=tile(128, 1))
    got = run(i, x)["reduce_res"]
    want = np.exp(x.astype(np.float64)).sum(1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_activation_reduce_resets_first():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    i = make_sum("square", res=tile(2, 1), shape=(2, 3))
    made = run(i, x, accumulators=np.full(128, 9, np.float32))
    assert made["dst"].tolist() == [[0, 1, 4], [9, 16, 25]]
    assert made["reduce_res"].tolist() == [[5], [50]]
    assert made["accumulators"][:3].tolist() == [5, 50, 9]
    quiet = make_sum("square", res=None, shape=(2, 3))
    assert "reduce_res" not in run(quiet, x)


def busy_cycles(i):
    return i.cost.busy_ns * i.chip.scalar.clock * 1e-9


@pytest.mark.parametrize(("free", "cycles"), [(1, 64), (64, 64), (65, 65), (512, 512)])
def test_cost_is_the_larger_of_64_and_n(free, cycles):
    i = make(shape=(128, free))
    assert busy_cycles(i) == pytest.approx(cycles)
    assert i.cost.grade == "stated"


def test_reading_the_accumulators_costs_64_cycles_more():
    kept = make(reduce_op="add", cmd=reduce_cmd.reset_reduce)
    read = make(reduce_op="add", cmd=reduce_cmd.reset_reduce, res=tile(128, 1))
    assert busy_cycles(kept) == pytest.approx(512)
    assert busy_cycles(read) == pytest.approx(576)
    assert busy_cycles(make_sum(res=tile(128, 1))) == pytest.approx(128)


def test_a_number_as_bias_needs_neuroncore_v3():
    with pytest.raises(LimitError) as caught:
        make("relu", on="trn1", bias=NUMBER)
    assert "[P, 1]" in caught.value.rule
    assert "memset" in caught.value.fix
    made = run(make("relu", bias=NUMBER, shape=(1, 2)), np.zeros((1, 2), np.float32), bias=2.5)
    assert made["dst"].tolist() == [[2.5, 2.5]]


def test_scale_tile_must_be_float32():
    with pytest.raises(DtypeError) as caught:
        make(scale=tile(128, 1, dtype_="bfloat16"))
    assert caught.value.code == "activation.scale.dtype"


def test_bias_may_not_be_tfloat32():
    with pytest.raises(DtypeError) as caught:
        make(bias=tile(128, 1, dtype_="tfloat32"))
    assert caught.value.code == "activation.bias.dtype"


def test_hbm_is_out_of_reach():
    with pytest.raises(SpaceError) as caught:
        make(data=tile(128, 512, space="hbm"))
    assert caught.value.code == "activation.data"


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"reduce_op": "maximum", "cmd": reduce_cmd.reset_reduce}, "nl.add"),
        ({"cmd": reduce_cmd.reduce}, "reduce_op"),
        ({"cmd": reduce_cmd.load_reduce}, "loaded"),
        ({"op": "prelu"}, "slope"),
        ({"data": tile(128, 512, indirect="tensor")}, "indirect"),
    ],
)
def test_refusals(more, word):
    with pytest.raises(LimitError) as caught:
        make(**more)
    assert word in caught.value.rule
    assert caught.value.fix
    assert caught.value.code == "activation.rules"


@pytest.mark.parametrize("cmd", [True, 1, "reduce", None])
def test_reduce_cmd_is_a_member_of_its_enumeration(cmd):
    with pytest.raises(UsageError) as caught:
        make(cmd=cmd)
    assert caught.value.code == "isa.reduce_cmd"


def test_indirection_on_neuroncore_v4_only_where_allowed():
    make(on="trn3", data=tile(128, 512, indirect="tensor"))
    with pytest.raises(LimitError):
        make(on="trn3", bias=tile(128, 1, indirect="tensor"))
    with pytest.raises(LimitError):
        make(on="trn3", dst=tile(128, 512, space="psum", indirect="tensor"))


def make2(op="copy", op0="bypass", op1="bypass", on="trn3", shape=(2, 3), **more):
    operands = (
        tile(*shape),
        tile(*shape),
        more.get("imm0", NUMBER),
        more.get("imm1", NUMBER),
        NUMBER,
        more.get("res"),
    )
    flags = (
        op,
        op0,
        op1,
        more.get("reverse0", False),
        more.get("reverse1", False),
        more.get("reduce_op"),
        more.get("cmd", reduce_cmd.idle),
    )
    return form(activate2, chip(on), operands, flags)


def run2(i, data, imm0=0.0, imm1=0.0, slope=0.0, accumulators=None):
    if accumulators is None:
        accumulators = np.zeros(128, np.float32)
    return i.run(data=data, imm0=imm0, imm1=imm1, relu_param=slope, accumulators=accumulators)


@pytest.mark.parametrize(
    ("op0", "op1", "reverse0", "reverse1", "want"),
    [
        ("multiply", "add", False, False, 5.0 * 2 + 3),
        ("multiply", "subtract", False, False, 5.0 * 2 - 3),
        ("multiply", "subtract", False, True, 3 - 5.0 * 2),
        ("multiply", "bypass", False, False, 10.0),
        ("add", "bypass", False, False, 7.0),
        ("subtract", "bypass", False, False, 3.0),
        ("subtract", "bypass", True, False, -3.0),
        ("bypass", "bypass", False, False, 5.0),
    ],
)
def test_activate2_stages(op0, op1, reverse0, reverse1, want):
    i = make2(op0=op0, op1=op1, reverse0=reverse0, reverse1=reverse1)
    got = run2(i, np.full((2, 3), 5, np.float32), imm0=2.0, imm1=3.0)["dst"]
    assert (got == want).all()


def test_activate2_slope_and_reductions():
    x = np.array([[-2, 1, 3], [4, -8, 0]], np.float32)
    got = run2(make2("prelu"), x, slope=0.25)["dst"]
    assert got.tolist() == [[-0.5, 1, 3], [4, -2, 0]]
    for how, want in (("maximum", [3, 4]), ("minimum", [-2, -8]), ("abs_max", [3, -8])):
        i = make2(reduce_op=how, cmd=reduce_cmd.reset_reduce, res=tile(2, 1))
        assert run2(i, x)["reduce_res"].reshape(-1).tolist() == want
    more = make2(reduce_op="maximum", cmd=reduce_cmd.reduce, res=tile(2, 1))
    made = run2(more, x, accumulators=np.full(128, 3.5, np.float32))
    assert made["reduce_res"].reshape(-1).tolist() == [3.5, 4]
    cleared = run2(make2(reduce_op="minimum", cmd=reduce_cmd.reset), x)["accumulators"]
    assert cleared[0] == math.inf


def test_activate2_exists_on_trn3_only_and_has_six_pairs():
    with pytest.raises(UsageError) as caught:
        make2(on="trn2")
    assert caught.value.code == "activate2.generation"
    with pytest.raises(LimitError):
        make2(op0="add", op1="multiply")
    with pytest.raises(LimitError):
        make2(imm0=tile(2, 1), imm1=tile(2, 1, dtype_="bfloat16"), op0="multiply", op1="add")
    with pytest.raises(LimitError):
        make2(reverse0=True)


def test_activate2_reports_unused_tiles():
    [(operand, _)] = make2(op0="multiply", imm1=tile(2, 1)).ignored()
    assert operand == "imm1"
