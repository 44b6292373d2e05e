"""Vector Engine reductions, scans and statistics against float64 and plain loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import DtypeError, LimitError, ShapeError, UsageError
from opentrn.isa.enums import reduce_cmd
from opentrn.isa.operators import OPS
from opentrn.isa.vector_reduce import (
    bn_aggr,
    bn_stats,
    tensor_reduce,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor_scan,
)
from tests.isa.vector_forms import BF16, NUMBER, carrier, cycles, make, refuse, stored, tile

F = np.float32
BIG, COLUMN = tile(128, 512), tile(128, 1)
SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))


def numbers(*shape, seed=0, scale=2.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(F)


def registers(value=0.0):
    return np.full(128, value, F)


# ------------------------------------------------------------------ tensor_reduce


@pytest.mark.parametrize("width", [1, 2, 7, 64, 300])
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_the_extreme_of_a_row_with_every_kind_of_number(name, width):
    x = numbers(64, width, seed=width)
    x[5, 0], x[6, width // 2], x[7, width - 1] = np.nan, np.inf, -np.inf
    x[8] = 3.0
    form = make(tensor_reduce, dst=tile(64, 1), op=name, data=tile(64, width), axis=1)
    pick = max if name == "maximum" else min
    wanted = [np.nan if any(v != v for v in row) else pick(row) for row in x.tolist()]
    np.testing.assert_array_equal(form.run(x)["dst"][:, 0], np.array(wanted, F))
    # rows that lie apart, as those of a padded tile do
    wider = np.zeros((64, width + 5), F)
    wider[:, :width] = x
    np.testing.assert_array_equal(form.run(wider[:, :width])["dst"][:, 0], np.array(wanted, F))


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.sampled_from([(3,), (2, 3), (1, 2, 3)]), st.booleans(), st.booleans())
def test_sum_over_trailing_axes(shape, axes, negate, keepdims):
    x = numbers(*shape)
    want = x.astype(np.float64).sum(axis=axes, keepdims=keepdims)
    want = -want if negate else want
    flags = {"op": "add", "axis": list(axes), "negate": negate, "keepdims": keepdims}
    i = make(tensor_reduce, dst=tile(*want.shape), data=tile(*shape), **flags)
    got = stored(i, "dst", i.run(data=x)["dst"])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert got.shape == want.shape


@pytest.mark.parametrize(
    ("op", "want"),
    [
        ("add", 7),
        ("subtract", -13),
        ("multiply", -60),
        ("maximum", 5),
        ("minimum", -3),
        ("logical_and", 1),
        ("logical_or", 1),
        ("logical_xor", 0),
    ],
)
def test_every_arithmetic_reduction(op, want):
    x = np.array([[-3, 4, 5, 1]], F)
    i = make(tensor_reduce, dst=tile(1, 1), data=tile(1, 4), op=op, axis=1)
    assert i.run(data=x)["dst"].item() == want


def test_bitvec_reductions():
    t = tile(1, 3, t="int32")
    x = np.array([[0x0FF0, -1, 0x00FF]], np.int32)
    for op, want in (("bitwise_and", 0xF0), ("bitwise_or", -1), ("bitwise_xor", ~0x0F0F)):
        i = make(tensor_reduce, dst=tile(1, 1, t="int32"), data=t, op=op, axis=1)
        assert i.run(data=x)["dst"].item() == want
    unsigned = make(tensor_reduce, dst=tile(1, 1, t="uint32"), data=t, op="bitwise_or", axis=1)
    assert unsigned.run(data=x)["dst"].item() == 2**32 - 1
    for bad in (
        {"dst": tile(1, 1), "op": "bitwise_or"},
        {"dst": tile(1, 1, t="int32"), "op": "bitwise_or", "negate": True},
        {"dst": tile(1, 1, t="int8"), "op": "bitwise_or"},
    ):
        refuse(
            LimitError,
            "tensor_reduce.rules",
            lambda b=bad: make(tensor_reduce, data=t, axis=1, **b),
        )


def test_tc08_reduce_axes():
    x = np.arange(8, dtype=F).reshape(1, 2, 4).repeat(128, axis=0)
    last = make(tensor_reduce, dst=tile(128, 2), data=tile(128, 2, 4), op="add", axis=2)
    np.testing.assert_array_equal(last.run(data=x)["dst"][0], [6, 22])
    both = make(tensor_reduce, dst=tile(128, 1), data=tile(128, 2, 4), op="add", axis=(1, 2))
    np.testing.assert_array_equal(both.run(data=x)["dst"][127], [28])
    # a middle axis is no trailing axis: it must be permuted to the end
    text = refuse(
        LimitError,
        "tensor_reduce.rules",
        lambda: make(tensor_reduce, dst=tile(128, 4), data=tile(128, 2, 4), op="add", axis=1),
    )
    assert "permute" in text
    turned = make(tensor_reduce, dst=tile(128, 4), data=tile(128, 4, 2), op="add", axis=2)
    got = turned.run(data=x.transpose(0, 2, 1))["dst"][0]
    np.testing.assert_array_equal(got, [4, 6, 8, 10])


def test_reduce_in_float32_then_round():
    # 256 ones and one more: bfloat16 steps would stop at 256
    x = np.ones((1, 514), F)
    i = make(tensor_reduce, dst=tile(1, 1, t=BF16), data=tile(1, 514, t=BF16), op="add", axis=1)
    assert stored(i, "dst", i.run(data=x)["dst"]).item() == 514 - 2  # 514 rounds to 512 in bfloat16
    ints = make(
        tensor_reduce, dst=tile(1, 1, t="int8"), data=tile(1, 3, t="int8"), op="add", axis=1
    )
    got = ints.run(data=np.full((1, 3), 100, np.int8))["dst"]
    assert stored(ints, "dst", got).item() == 127


def test_reduce_refusals():
    base = {"data": tile(128, 2, 4)}
    for case in (
        {"dst": tile(128, 2), "op": "add", "axis": (0, 1, 2)},
        {"dst": tile(128, 2), "op": "add", "axis": ()},
        {"dst": tile(128, 2), "op": "add", "axis": 3},
        {"dst": tile(128, 3), "op": "add", "axis": 2},
        {"dst": tile(128, 2), "op": "power", "axis": 2},
        {"dst": tile(128, 2), "op": "average", "axis": 2},
        {"dst": tile(128, 2), "op": "equal", "axis": 2},
    ):
        refuse(LimitError, "tensor_reduce.rules", lambda c=case: make(tensor_reduce, **base, **c))
    refuse(
        UsageError,
        "tensor_reduce.axis",
        lambda: make(tensor_reduce, dst=tile(128, 2), op="add", axis="F", **base),
    )
    refuse(
        ShapeError,
        "tensor_reduce.data",
        lambda: make(tensor_reduce, dst=tile(64, 2), op="add", axis=2, **base),
    )
    negative = make(tensor_reduce, dst=tile(128, 2), op="add", axis=-1, **base)
    assert negative.axes == (2,)


def test_reduce_cost():
    half = tile(128, 512, t=BF16)
    flags = {"op": "add", "axis": 1}
    assert cycles(make(tensor_reduce, dst=COLUMN, data=BIG, **flags)) == pytest.approx(512)
    bf16 = {"dst": tile(128, 1, t=BF16), "data": half}
    for on in ("trn1", "trn2", "trn3"):
        assert cycles(make(tensor_reduce, on=on, **bf16, **flags)) == pytest.approx(256)
    assert cycles(make(tensor_reduce, **bf16, op="minimum", axis=1)) == pytest.approx(512)
    assert cycles(make(tensor_reduce, dst=COLUMN, data=half, **flags)) == pytest.approx(512)
    i = make(tensor_reduce, dst=COLUMN, data=BIG, **flags)
    # measured on trn2: 685 ns (SBUF) and 679 ns (PSUM) until visible
    assert i.cost.busy_ns + i.cost.latency_ns == pytest.approx(682, rel=0.01)


# ------------------------------------------------------------------ tensor_scalar_reduce


def tsr(shape=(4, 2, 3), op0="multiply", reduce_op="add", res=True, t="float32", **more):
    return make(
        tensor_scalar_reduce,
        dst=tile(*shape, t=t),
        data=tile(*shape, t=t, partition=more.pop("partition", 0)),
        op0=op0,
        operand0=more.pop("operand0", NUMBER),
        reduce_op=reduce_op,
        reduce_res=tile(shape[0], 1) if res else None,
        **more,
    )


@pytest.mark.parametrize(
    ("name", "identity"),
    [("add", 0.0), ("multiply", 1.0), ("maximum", -np.inf), ("minimum", np.inf)],
)
def test_reset_reduce_chain_and_load(name, identity):
    fold = {"add": np.sum, "multiply": np.prod, "maximum": np.max, "minimum": np.min}[name]
    x = numbers(4, 2, 3)
    wide = (x.astype(np.float64) * 0.5).reshape(4, 6)
    first = tsr(reduce_op=name)
    out = first.run(data=x, operand0=0.5, accumulators=registers(77.0))
    np.testing.assert_allclose(out["dst"].reshape(4, 6), wide, rtol=1e-6)
    np.testing.assert_allclose(out["reduce_res"][:, 0], fold(wide, axis=1), rtol=1e-5)
    np.testing.assert_array_equal(out["accumulators"][:4], out["reduce_res"][:, 0])
    np.testing.assert_array_equal(out["accumulators"][4:], 77.0)
    again = tsr(reduce_op=name, reduce_cmd=reduce_cmd.reduce)
    chained = again.run(data=x, operand0=0.5, accumulators=out["accumulators"])
    twice = np.concatenate([wide, wide], axis=1)
    np.testing.assert_allclose(chained["reduce_res"][:, 0], fold(twice, axis=1), rtol=1e-5)
    start = np.array([[-9], [2], [0.5], [9]], F)
    loaded = tsr(reduce_op=name, reduce_cmd=reduce_cmd.load_reduce, reduce_init=tile(4, 1))
    got = loaded.run(data=x, operand0=0.5, accumulators=registers(), reduce_init=start)
    want = fold(np.concatenate([start, wide], axis=1), axis=1)
    np.testing.assert_allclose(got["reduce_res"][:, 0], want, rtol=1e-5, atol=1e-6)


def test_reduction_happens_before_rounding_and_negate_does_not_touch_the_registers():
    x = carrier([[1.0, 2.0**-9]], BF16)
    i = tsr(shape=(1, 2), op0="add", t=BF16, reduce_res_negate=True)
    out = i.run(data=x, operand0=1.0, accumulators=registers())
    assert out["reduce_res"].item() == -(3 + 2.0**-9)  # bfloat16 would make the second 1
    assert out["accumulators"][0] == 3 + 2.0**-9


def test_lanes_follow_the_partition_of_the_input():
    x = np.ones((32, 4), F)
    i = tsr(shape=(32, 4), partition=64)
    out = i.run(data=x, operand0=1.0, accumulators=registers(-1.0))
    want = registers(-1.0)
    want[64:96] = 4
    np.testing.assert_array_equal(out["accumulators"], want)
    np.testing.assert_array_equal(out["reduce_res"], np.full((32, 1), 4.0))


def test_scalar_reduce_refusals_and_cost():
    for case in (
        {"reduce_op": "subtract"},
        {"reverse0": True},
        {"reduce_cmd": reduce_cmd.idle},
        {"reduce_cmd": reduce_cmd.reset},
        {"reduce_cmd": reduce_cmd.load_reduce},
        {"reduce_init": NUMBER},
        {"operand0": tile(4, 1, t=BF16)},
        {"op0": "bitwise_and", "t": "int32"},
    ):
        refuse(LimitError, "tensor_scalar_reduce.rules", lambda c=case: tsr(**c))
    refuse(
        DtypeError,
        "tensor_scalar_reduce.reduce_init.dtype",
        lambda: tsr(reduce_cmd=reduce_cmd.load_reduce, reduce_init=tile(4, 1, t=BF16)),
    )
    assert cycles(tsr(shape=(128, 512))) == pytest.approx(512 + 64)
    assert cycles(tsr(shape=(128, 8))) == pytest.approx(64 + 64)


# ------------------------------------------------------------------ tensor_scalar_cumulative


def cumulative(x, op0, imm0, op1, accumulators=None, imm1=None, cmd=reduce_cmd.reset_reduce):
    def how(y):
        return tile(len(y), 1) if isinstance(y, np.ndarray) else None if y is None else NUMBER

    i = make(
        tensor_scalar_cumulative,
        dst=tile(*x.shape),
        src=tile(*x.shape),
        op0=op0,
        op1=op1,
        imm0=how(imm0),
        imm1=how(imm1),
        reduce_cmd=cmd,
    )
    held = registers() if accumulators is None else accumulators
    return i.run(src=x, imm0=imm0, imm1=imm1, accumulators=held)


@pytest.mark.parametrize("op1", ["add", "subtract", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("begin", ["reset_reduce", "reduce", "load_reduce"])
def test_cumulative_is_the_published_loop(op1, begin):
    x, imm0 = numbers(5, 3, 4), numbers(5, 1, seed=1)
    held, imm1 = numbers(128, seed=2), numbers(5, 1, seed=3)
    reset = {"add": 0, "subtract": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}[op1]
    register = {"reset_reduce": np.full(5, reset, F), "reduce": held[:5], "load_reduce": imm1[:, 0]}
    reg, step = register[begin], OPS[op1].meaning
    want = np.empty((5, 12), F)
    for f, column in enumerate((x * imm0[:, :, None]).reshape(5, 12).T):
        reg = step(column, reg)
        want[:, f] = reg
    cmd = reduce_cmd[begin]
    out = cumulative(x, "multiply", imm0, op1, held, imm1 if begin == "load_reduce" else None, cmd)
    np.testing.assert_array_equal(out["dst"].reshape(5, 12), want)
    np.testing.assert_array_equal(out["accumulators"][:5], want[:, -1])
    np.testing.assert_array_equal(out["accumulators"][5:], held[5:])


def test_cumulative_by_hand():
    x = np.array([[1, 2, 3, 4]], F)
    np.testing.assert_array_equal(cumulative(x, "add", 1.0, "add")["dst"], [[2, 5, 9, 14]])
    # each step takes the register from the new element: 1, 2-1, 3-1, 4-2
    np.testing.assert_array_equal(cumulative(x, "add", 0.0, "subtract")["dst"], [[1, 1, 2, 2]])


def test_cumulative_refusals_and_cost():
    base = {"dst": BIG, "src": BIG, "op0": "add", "op1": "add", "imm0": NUMBER}
    for case in (
        {"op1": "logical_or"},
        {"op0": "abs"},
        {"op0": "bitwise_or"},
        {"reduce_cmd": reduce_cmd.load_reduce},
        {"imm1": NUMBER},
        {"reduce_cmd": reduce_cmd.idle},
    ):
        refuse(
            LimitError,
            "tensor_scalar_cumulative.rules",
            lambda c=case: make(tensor_scalar_cumulative, **dict(base, **c)),
        )
    for name, bad in (("src", tile(128, 512, t="int32")), ("imm0", tile(128, 1, t=BF16))):
        refuse(
            DtypeError,
            f"tensor_scalar_cumulative.{name}.dtype",
            lambda n=name, b=bad: make(tensor_scalar_cumulative, **dict(base, **{n: b})),
        )
    i = make(tensor_scalar_cumulative, **base)
    assert cycles(i) == pytest.approx(512)
    assert i.cost.grade == "derived"


# ------------------------------------------------------------------ tensor_tensor_scan


def scan_form(shape, op0, op1, initial=NUMBER, **flags):
    forms = {n: tile(*shape) for n in ("dst", "data0", "data1")}
    return make(tensor_tensor_scan, initial=initial, op0=op0, op1=op1, **forms, **flags)


def plain_scan(op0, op1, a, b, initial, reverse0=False, reverse1=False):
    """The specification: one column after the other, every step rounded to float32."""
    first, second = OPS[op0].meaning, OPS[op1].meaning
    r = np.broadcast_to(np.asarray(initial, F).reshape(-1), (len(a),))
    out = np.empty(a.shape, F)
    with np.errstate(all="ignore"):
        for f in range(a.shape[1]):
            r = first(r, a[:, f]) if reverse0 else first(a[:, f], r)
            r = second(b[:, f], r) if reverse1 else second(r, b[:, f])
            out[:, f] = r
    return out


PAIRS = st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum", "less"])


@settings(max_examples=60, deadline=None)
@given(
    PAIRS, PAIRS, st.booleans(), st.booleans(), st.integers(1, 9), st.sampled_from(["", "0", "1"])
)
def test_scan_is_the_recurrence_bit_for_bit(op0, op1, reverse0, reverse1, free, ones):
    shape = (3, free)
    a, b, begin = numbers(*shape), numbers(*shape, seed=1), numbers(3, 1, seed=2)
    a = np.ones_like(a) if ones == "0" else a
    b = np.ones_like(b) if ones == "1" else b
    i = scan_form(shape, op0, op1, tile(3, 1), reverse0=reverse0, reverse1=reverse1)
    got = i.run(data0=a, data1=b, initial=begin)["dst"]
    want = plain_scan(op0, op1, a, b, begin, reverse0, reverse1)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == F


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, -0.0])
@pytest.mark.parametrize(
    ("op0", "op1"), [("multiply", "add"), ("multiply", "maximum"), ("multiply",) * 2]
)
def test_scan_fast_paths_keep_special_values(op0, op1, special):
    a, b = np.ones((2, 6), F), numbers(2, 6)
    b[:, 3] = special
    i = scan_form((2, 6), op0, op1)
    got = i.run(data0=a, data1=b, initial=0.1)["dst"]
    want = plain_scan(op0, op1, a, b, 0.1)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_scan_over_several_free_dimensions_and_types():
    forms = {"dst": tile(2, 2, 3), "data0": tile(2, 6, t=BF16), "data1": tile(2, 3, 2, t="int16")}
    i = make(tensor_tensor_scan, initial=NUMBER, op0="multiply", op1="add", **forms)
    a = np.full((2, 6), 0.5, F)
    b = np.arange(12, dtype=np.int16).reshape(2, 3, 2)
    got = stored(i, "dst", i.run(data0=a, data1=b, initial=2.0)["dst"])
    want, r = [], 2.0
    for d in range(6):
        r = r * 0.5 + d
        want.append(r)
    np.testing.assert_array_equal(got[0].reshape(-1), want)


def test_scan_refusals_and_cost():
    assert cycles(scan_form((128, 512), "multiply", "add")) == pytest.approx(1024)
    assert cycles(scan_form((128, 8), "multiply", "add")) == pytest.approx(64)
    for case in ({"op0": "bitwise_or"}, {"op1": "abs"}):
        flags = {"op0": "add", "op1": "add"} | case
        refuse(LimitError, "tensor_tensor_scan.rules", lambda f=flags: scan_form((4, 4), **f))
    psum = tile(128, 512, space="psum")
    refuse(
        LimitError,
        "tensor_tensor_scan.rules",
        lambda: make(
            tensor_tensor_scan,
            dst=BIG,
            data0=psum,
            data1=psum,
            initial=NUMBER,
            op0="add",
            op1="add",
        ),
    )
    refuse(
        ShapeError,
        "tensor_tensor_scan.initial",
        lambda: scan_form((4, 4), "add", "add", initial=tile(4, 2)),
    )


# ------------------------------------------------------------------ bn_stats, bn_aggr


def stats(x):
    i = make(bn_stats, dst=tile(len(x), 6), data=tile(*x.shape))
    return i.run(data=x)["dst"]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40))
def test_bn_stats_of_even_and_odd_elements(rows, free):
    x = numbers(rows, free) + 5
    got = stats(x)
    for at, half in ((0, x[:, 0::2]), (3, x[:, 1::2])):
        half = half.astype(np.float64)
        count = half.shape[1]
        want = [count, half.mean(1), half.var(1) * count] if count else [0, 0, 0]
        for offset, value in enumerate(want):
            np.testing.assert_allclose(got[:, at + offset], value, rtol=1e-5, atol=1e-4)


def test_bn_stats_by_hand():
    got = stats(np.array([[1, 10, 3, 20, 5]], F))
    np.testing.assert_array_equal(got, [[3, 3, 8, 2, 15, 50]])


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.lists(st.integers(2, 30), min_size=1, max_size=4))
def test_bn_aggr_gives_mean_and_variance_of_everything(rows, sizes):
    parts = [numbers(rows, n, seed=k) * (k + 1) + k for k, n in enumerate(sizes)]
    triples = np.concatenate([stats(p) for p in parts], axis=1)
    i = make(bn_aggr, dst=tile(rows, 2), data=tile(*triples.shape))
    got = i.run(data=triples)["dst"]
    whole = np.concatenate(parts, axis=1).astype(np.float64)
    np.testing.assert_allclose(got[:, 0], whole.mean(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[:, 1], whole.var(1), rtol=1e-4)


def test_bn_refusals_and_cost():
    text = refuse(
        LimitError,
        "bn_stats.F",
        lambda: make(bn_stats, dst=tile(128, 6), data=tile(128, 513)),
    )
    assert "F = 513, at most 512" in text
    refuse(ShapeError, "bn_stats.dst", lambda: make(bn_stats, dst=tile(128, 5), data=BIG))
    refuse(ShapeError, "bn_aggr.dst", lambda: make(bn_aggr, dst=tile(128, 3), data=tile(128, 6)))
    refuse(LimitError, "bn_aggr.F", lambda: make(bn_aggr, dst=tile(128, 2), data=tile(128, 8)))
    assert cycles(make(bn_stats, dst=tile(128, 6), data=BIG)) == pytest.approx(512)
    wide = make(bn_aggr, dst=tile(128, 2), data=tile(128, 24))
    assert cycles(wide) == pytest.approx(13 * 8)
    assert cycles(make(bn_aggr, dst=tile(128, 2), data=tile(128, 6))) == pytest.approx(64)
