"""Operators and activation functions against Python's own arithmetic and float64 mathematics."""

import copy
import math
import operator as py
import pickle
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import UnknownNameError, UsageError
from opentrn.isa import operators
from opentrn.isa.operators import ACTS, OPS, Act, Op, accumulate, act, op, reduce, scan

F = np.float32
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 7.0, -7.0, 1e20, -1e20, inf, -inf, nan]
PAIRS = [(x, y) for x in SPECIAL for y in SPECIAL]


def both(values):
    with np.errstate(over="ignore"):  # 1e20 · 1e20 is inf in float32
        return [np.array(column, F) for column in zip(*values, strict=True)]


def close(actual, expected, rtol=1e-6):
    with np.errstate(over="ignore"):
        expected = np.array(expected, np.float64).astype(F)  # what float32 can say of it
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=0)


def quietly(function):
    """Python arithmetic that raises on special values, with the IEEE result instead."""

    def safe(x, y):
        try:
            return function(x, y)
        except ZeroDivisionError:
            return nan if x == 0 or math.isnan(x) else math.copysign(inf, x * math.copysign(1, y))
        except (OverflowError, ValueError):
            return None

    return safe


def magnitude(larger):
    def choose(x, y):
        if math.isnan(x) or math.isnan(y):
            return None
        return x if (abs(x) > abs(y) if larger else abs(x) < abs(y)) else y

    return choose


def spread(function):
    """NaN in, NaN out."""
    return lambda x, y: nan if math.isnan(x) or math.isnan(y) else function(x, y)


def truth(function):
    return lambda x, y: 1.0 if function(x, y) else 0.0


MEANINGS = {
    "add": py.add, "subtract": py.sub, "multiply": py.mul, "divide": quietly(py.truediv),
    "maximum": spread(max), "minimum": spread(min),
    "abs_max": magnitude(True), "abs_min": magnitude(False),
    "equal": truth(py.eq), "not_equal": truth(py.ne), "less": truth(py.lt),
    "less_equal": truth(py.le), "greater": truth(py.gt), "greater_equal": truth(py.ge),
    "logical_and": truth(lambda x, y: x != 0 and y != 0),
    "logical_or": truth(lambda x, y: x != 0 or y != 0),
    "logical_xor": truth(lambda x, y: (x != 0) != (y != 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANINGS)
def test_binary_meanings_on_special_values(name):
    expected = [(x, y, MEANINGS[name](x, y)) for x, y in PAIRS]
    x, y, r = both([(x, y, r) for x, y, r in expected if r is not None])
    result = OPS[name](x, y)
    assert result.dtype == F
    close(result, r)
    out = np.empty_like(x)
    assert OPS[name](x, y, out=out) is out
    np.testing.assert_array_equal(out, result)


def test_remainders_and_powers():
    pairs = [(7.5, 2.0), (-7.5, 2.0), (7.5, -2.0), (-7.5, -2.0), (0.5, 3.0)]
    x, y = both(pairs)
    close(OPS["fmod"](x, y), [math.fmod(a, b) for a, b in pairs])
    close(OPS["mod"](x, y), [a - b * math.floor(a / b) for a, b in pairs])
    bases, powers = both([(2.0, 10.0), (9.0, 0.5), (2.0, -1.0), (-2.0, 3.0), (0.0, 0.0)])
    close(OPS["power"](bases, powers), [1024.0, 3.0, 0.5, -8.0, 1.0])
    assert math.isnan(OPS["power"](F(-2), F(0.5)))


def test_magnitudes_keep_sign_and_take_y_on_ties():
    assert OPS["abs_max"](F(-5), F(3)) == -5
    assert OPS["abs_min"](F(5), F(-3)) == -3
    assert OPS["abs_max"](F(1), F(-1)) == -1
    assert OPS["abs_min"](F(1), F(-1)) == -1
    for name in ("abs_max", "abs_min"):
        assert math.isnan(OPS[name](F(nan), F(1)))


def test_unary_meanings():
    x = np.array([-3.0, -0.5, 0.0, 2.0, inf, nan], F)
    close(OPS["abs"](x), [3, 0.5, 0, 2, inf, nan])
    close(OPS["square"](x), [9, 0.25, 0, 4, inf, nan])
    close(OPS["relu"](x), [0, 0, 0, 2, inf, nan])
    close(OPS["reciprocal"](x), [-1 / 3, -2, inf, 0.5, 0, nan])
    close(OPS["rsqrt"](x), [nan, nan, inf, 1 / math.sqrt(2), 0, nan])
    close(OPS["bypass"](x), x)
    out = np.zeros(6, F)
    close(OPS["bypass"](x, out=out), x)
    close(OPS["relu"](x, None, out=out), [0, 0, 0, 2, inf, nan])


BITS = {
    "bitwise_and": py.and_, "bitwise_or": py.or_, "bitwise_xor": py.xor,
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 31)), min_size=1, max_size=8))
def test_bit_operators_see_patterns(pairs):
    mask = 2**32 - 1
    for signed in (np.uint32, np.int32):
        x = np.array([a for a, _ in pairs], np.uint32).view(signed)
        y = np.array([b for _, b in pairs], np.uint32).view(signed)

        def check(result, expected, kind=signed):
            assert result.dtype == kind
            assert result.view(np.uint32).tolist() == expected

        for name, python in BITS.items():
            check(OPS[name](x, y), [python(a, b) for a, b in pairs])
        check(OPS["invert"](x), [a ^ mask for a, _ in pairs])
        check(OPS["left_shift"](x, y), [(a << b) & mask for a, b in pairs])
        check(OPS["right_shift"](x, y), [a >> b for a, b in pairs])
        out = np.empty_like(x)
        OPS["right_shift"](x, y, out=out)
        check(out, [a >> b for a, b in pairs])
        check(OPS["bitwise_and"](x, 0xFFFF0000), [a & 0xFFFF0000 for a, _ in pairs])
        check(OPS["right_shift"](x, 4), [a >> 4 for a, _ in pairs])


def test_narrow_bits():
    x = np.array([0x80, 0x0F], np.uint8).view(np.int8)
    assert OPS["right_shift"](x, 3).view(np.uint8).tolist() == [0x10, 0x01]
    assert OPS["left_shift"](x, 4).view(np.uint8).tolist() == [0x00, 0xF0]
    assert OPS["bitwise_xor"](x, 0xFF).view(np.uint8).tolist() == [0x7F, 0xF0]


def test_native_integers_are_exact():
    x = np.array([2**31 - 1, -(2**31), 16777217], np.int32)
    y = np.array([0, 1, 1], np.int32)
    assert OPS["add"](x, -y).tolist() == [2**31 - 1, 2**31 - 1, 16777216]  # wraps like hardware
    assert OPS["maximum"](x, y).tolist() == [2**31 - 1, 1, 16777217]
    compared = OPS["greater"](x, y)
    assert compared.dtype == np.int32
    assert compared.tolist() == [1, 0, 1]
    assert OPS["power"](np.array([3, 2], np.int32), np.array([4, 10], np.int32)).tolist() == [
        81,
        1024,
    ]


def test_identities_do_nothing():
    x = np.array([-2.5, 0.25, 3.0], F)
    for name in ("add", "multiply", "maximum", "minimum", "abs_max", "abs_min"):
        close(OPS[name](OPS[name].identity, x), x)
    bits = np.array([0x1234, -5], np.int32)
    for name in BITS:
        assert OPS[name](bits, OPS[name].identity).tolist() == bits.tolist()
    for value in (0.0, 1.0):
        for name in ("logical_and", "logical_or", "logical_xor"):
            assert OPS[name](F(value), OPS[name].identity) == value


def test_table_is_the_published_table():
    """Kinds and legal reductions as the public operator table lists them."""
    reducible = {
        "bitwise_and", "bitwise_or", "bitwise_xor", "add", "subtract", "multiply", "maximum",
        "minimum", "logical_and", "logical_or", "logical_xor",
    }  # fmt: skip
    listed = {name for name, each in OPS.items() if each.reducible}
    # abs_max and abs_min reduce in activate2 only; average is a pooling reduction
    assert listed == reducible | {"abs_max", "abs_min", "average"}
    assert {n for n, o in OPS.items() if o.bitvec} == {
        "invert", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
    }  # fmt: skip
    assert {n for n, o in OPS.items() if o.arity == 1} == {
        "invert", "abs", "square", "relu", "rsqrt", "reciprocal", "bypass",
    }  # fmt: skip
    assert OPS["power"].engines == ("gpsimd",)
    assert {n for n, o in OPS.items() if o.generation == 4} == {"abs_max", "abs_min"}


# ---------------------------------------------------------------- look-up


def test_look_up_by_every_kind_of_name():
    class Marked:
        nki_op = "add"

    class MarkedOp:
        nki_op = OPS["maximum"]

    assert op("add") is op(Marked()) is op(np.add) is op(OPS["add"]) is OPS["add"]
    assert op(MarkedOp()) is op(np.max) is op("max") is OPS["maximum"]
    assert op(np.bitwise_not) is OPS["invert"]
    assert act(np.exp) is act("exp") is ACTS["exp"]
    assert act(np.absolute) is ACTS["abs"]
    for each in (OPS["add"], ACTS["gelu"]):
        assert pickle.loads(pickle.dumps(each)) is each
        assert copy.deepcopy(each) is each
        assert each in {each: 1}


@pytest.mark.parametrize("look_up", [op, act])
def test_unknown_names_suggest_near_ones(look_up):
    with pytest.raises(UnknownNameError, match="sqare") as caught:
        look_up("sqare")
    assert caught.value.code == "isa.unknown_operator"
    assert "square" in caught.value.fix
    with pytest.raises(UnknownNameError):
        look_up(3)


def test_tables_hold_frozen_objects():
    assert all(type(o) is Op and o.name == n for n, o in OPS.items())
    assert all(type(a) is Act and a.name == n for n, a in ACTS.items())
    with pytest.raises(AttributeError):
        OPS["add"].name = "sub"


# ---------------------------------------------------------------- activation functions


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def normal(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


def derivative(function):
    """Central difference in float64: good to about 1e-9 here."""
    h = 1e-5
    return lambda x: (function(x + h) - function(x - h)) / (2 * h)


def gelu(x):
    return x * normal(x)


def apprx_tanh(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FUNCTIONS = {
    "copy": lambda x: x, "square": lambda x: x * x, "relu": lambda x: max(x, 0.0),
    "sign": lambda x: (x > 0) - (x < 0), "abs": abs, "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x), "silu_dx": derivative(lambda x: x * sigmoid(x)),
    "tanh": math.tanh, "gelu": gelu, "gelu_dx": derivative(gelu), "gelu_apprx_tanh": apprx_tanh,
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": derivative(lambda x: x * sigmoid(1.702 * x)),
    "softplus": lambda x: math.log1p(math.exp(-abs(x))) + max(x, 0.0),
    "mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
    "erf": math.erf, "erf_dx": lambda x: 2 / math.sqrt(math.pi) * math.exp(-x * x),
    "exp": math.exp, "log": math.log, "sin": math.sin, "arctan": math.atan, "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x), "reciprocal": lambda x: 1 / x,
    "prelu": max,
}  # fmt: skip


def test_every_function_has_a_check():
    assert set(FUNCTIONS) == set(ACTS)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "prelu"])
def test_functions_within_their_range(name):
    low, high = ACTS[name].valid_range
    if low > 0:
        x = np.geomspace(max(low, 2.0**-40), min(high, 2.0**40), 401)
    else:
        x = np.linspace(max(low, -8), min(high, 8), 401)
    x = x.astype(F)
    x = x[np.abs(x) <= high]
    expected = [FUNCTIONS[name](float(v)) for v in x]
    result = ACTS[name](x)
    assert result.dtype == F
    np.testing.assert_allclose(result, expected, rtol=3e-7, atol=2e-9 if "_dx" in name else 1e-12)
    assert ACTS[name].outside(x) == 0
    np.testing.assert_array_equal(ACTS[name](x, out=np.empty_like(x)), result)


def test_prelu_scales_negatives_by_its_parameter():
    x = np.array([[-2.0, 3.0], [-4.0, -1.0]], F)
    close(ACTS["prelu"](x, 0.25), [[-0.5, 3], [-1, -0.25]])
    close(ACTS["prelu"](x, np.array([[0.5], [0.0]], F)), [[-1, 3], [0, 0]])
    assert act("prelu").parameter


def test_sine_extrapolates_a_cubic():
    """The documented hardware value: sin(9.0) is about 27.65; the range ends are continuous."""
    values = ACTS["sin"](np.array([9.0, -9.0, 3.2, 3.1], F))
    assert values[0] == pytest.approx(27.65, abs=0.01)
    assert values[1] == -values[0]
    t = 3.2 - math.pi
    assert values[2] == pytest.approx(t**3 / 6 - t, abs=1e-6)
    assert values[3] == pytest.approx(math.sin(3.1), rel=1e-5)


def test_outside_counts_what_the_docs_call_invalid():
    assert ACTS["sin"].outside(np.array([3.0, 3.2, -4.0, nan], F)) == 2
    assert ACTS["reciprocal"].outside(np.array([1, -1, 2.0**-43, -(2.0**43), 0], F)) == 3
    assert ACTS["log"].outside(np.array([-1.0, 0.0, 1.0], F)) == 2
    assert ACTS["exp"].outside(np.array([1e30], F)) == 0


# ---------------------------------------------------------------- reductions and scans

X = np.array(
    [[[3, -1, 4], [1, -5, 9]], [[2, 6, -5], [3, 5, 8]], [[0, 0, 1], [-2, 2, 0]]], F
)  # [3, 2, 3]


def folded(name, axes):
    """Each row of X combined in order by plain Python."""
    rows = X if axes == (2,) else X.reshape(3, 6)
    python = {
        "add": sum, "multiply": math.prod, "maximum": max, "minimum": min,
        "subtract": lambda r: r[0] - sum(r[1:]), "average": lambda r: sum(r) / len(r),
        "abs_max": lambda r: max(r[::-1], key=abs), "abs_min": lambda r: min(r[::-1], key=abs),
        "logical_and": lambda r: all(r), "logical_or": lambda r: any(r),
        "logical_xor": lambda r: sum(v != 0 for v in r) % 2,
    }[name]  # fmt: skip
    flat = rows.reshape(-1, rows.shape[-1]).tolist()
    return np.array([python(r) for r in flat]).reshape(rows.shape[:-1])


@pytest.mark.parametrize("axes", [(2,), (1, 2)])
@pytest.mark.parametrize("name", [n for n, o in OPS.items() if o.reducible and not o.bitvec])
def test_reductions(name, axes):
    result = reduce(name, X, axes)
    assert result.dtype == F
    close(result, folded(name, axes))


def test_bit_reductions_and_integers():
    x = np.array([[0b1100, 0b1010, 0b1111], [1, 2, 4]], np.int32)
    assert reduce("bitwise_and", x, 1).tolist() == [0b1000, 0]
    assert reduce("bitwise_or", x, (1,)).tolist() == [0b1111, 7]
    assert reduce("bitwise_xor", x, -1).tolist() == [0b1001, 7]
    total = reduce("add", np.array([[2**31 - 1, 1]], np.int32), 1)
    assert (total.dtype, total.tolist()) == (np.int32, [-(2**31)])


def test_sums_stay_close_to_exact_sums():
    x = np.random.default_rng(1).standard_normal((4, 4096)).astype(F)
    exact = [math.fsum(row) for row in x.tolist()]
    np.testing.assert_allclose(reduce("add", x, 1), exact, rtol=0, atol=2e-4)


def test_reduction_of_nan_is_nan():
    x = np.array([[1.0, nan, 2.0]], F)
    for name in ("add", "multiply", "maximum", "minimum", "abs_max", "abs_min"):
        assert math.isnan(reduce(name, x, 1)[0]), name


@pytest.mark.parametrize("name", ["power", "equal", "left_shift", "abs"])
def test_no_reduction(name):
    for action in (lambda: reduce(name, X, 2), lambda: accumulate(name, X)):
        with pytest.raises(UsageError) as caught:
            action()
        assert caught.value.code == "isa.not_reducible"


@pytest.mark.parametrize(
    ("name", "python", "start"),
    [
        ("add", py.add, 0.0),
        ("multiply", py.mul, 1.0),
        ("maximum", max, -inf),
        ("minimum", min, inf),
        ("subtract", py.sub, 0.0),
    ],
)
def test_accumulate_follows_the_documented_loop(name, python, start):
    """reg = op(in[i], reg), as tensor_scalar_cumulative defines it."""
    rows = X.reshape(3, 6)
    for initial in (None, 2.0, np.array([1.0, -2.0, 0.5], F)):
        result = accumulate(name, rows, initial)
        for p, row in enumerate(rows.tolist()):
            state = start if initial is None else float(np.broadcast_to(initial, 3)[p])
            for i, value in enumerate(row):
                state = python(value, state)
                assert result[p, i] == state


def test_accumulate_rounds_every_step():
    x = np.array([[2.0**24, 1.0, 1.0, 1.0]], F)  # 2^24 + 1 is no float32: ties to even
    assert accumulate("add", x)[0].tolist() == [2.0**24] * 4


@pytest.mark.parametrize("reverse0", [False, True])
@pytest.mark.parametrize("reverse1", [False, True])
@pytest.mark.parametrize(("op0", "op1"), [("multiply", "add"), ("subtract", "subtract")])
def test_scan_follows_the_documented_loop(op0, op1, reverse0, reverse1):
    python = {"multiply": py.mul, "add": py.add, "subtract": py.sub}
    rng = np.random.default_rng(2)
    data0, data1 = (rng.integers(-3, 4, (4, 7)).astype(F) for _ in range(2))
    for initial in (1.5, np.array([[1.0], [2.0], [-1.0], [0.0]], F)):
        result = scan(op0, op1, data0, initial, data1, reverse0, reverse1)
        for p in range(4):
            state = float(np.broadcast_to(initial, (4, 1))[p, 0])
            for i in range(7):
                a, b = float(data0[p, i]), state
                middle = python[op0](b, a) if reverse0 else python[op0](a, b)
                a, b = middle, float(data1[p, i])
                state = python[op1](b, a) if reverse1 else python[op1](a, b)
                assert result[p, i] == state


def test_the_compiled_recurrence_rounds_every_step_as_float32_does():
    pytest.importorskip("numba", reason="the fast extra is missing")
    from opentrn.isa.scan_fast import linear

    rng = np.random.default_rng(3)
    wide = rng.normal(size=(11, 80)).astype(F)
    factors, terms = wide[:, 3:40], wide[::-1, 41:78]  # strided views, rows no multiple of eight
    terms = terms.copy()
    terms[0, :2], terms[1, 4], terms[2, 5] = (2.0**24, 1.0), np.inf, np.nan
    first, found = rng.normal(size=11).astype(F), np.empty((11, 37), F)
    linear(factors, terms, first, found)
    for p in range(11):
        state = first[p]
        for i in range(37):
            state = F(F(factors[p, i] * state) + terms[p, i])
            assert np.array_equal(found[p, i], state, equal_nan=True)


@pytest.mark.parametrize("before", [0, 10_000_000])
def test_scan_is_the_same_before_and_after_it_pays_to_load_the_compiled_one(monkeypatch, before):
    monkeypatch.setattr(operators, "_columns", [before])
    factors, terms = np.full((2, 4), 2.0, F), np.ones((2, 4), F)
    wanted = [[3.0, 7.0, 15.0, 31.0], [7.0, 15.0, 31.0, 63.0]]  # r = 2 r + 1 from 1 and from 3
    first = np.array([[1.0], [3.0]], F)
    assert scan("multiply", "add", factors, first, terms).tolist() == wanted
    assert scan("multiply", "add", factors, 1.0, terms)[1].tolist() == wanted[0]
    assert operators._columns == [before + 8]
