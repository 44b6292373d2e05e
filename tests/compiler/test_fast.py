"""Fast numerics beside exact ones: the same rounding points, sums in another order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opentrn
from opentrn import compiler, runtime
from opentrn.base import UnsupportedError, UsageError
from opentrn.compiler.numerics import before_linking
from opentrn.graph import Graph, g

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

PRECISIONS = ("float32", "bfloat16", "float16")
# Half a unit in the last place of a number in [1, 2).
HALF_ULP = {"float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-12}


def both(graph, dtype, *inputs):
    """(exact, fast) outputs of one executable as float64."""
    executable = compiler.compile(graph, dtype=dtype, numerics="fast")
    found = [runtime.load(executable, numerics=mode)(*inputs) for mode in ("exact", "fast")]
    return [np.asarray(x, np.float64) for x in found]


def rms(x):
    return float(np.sqrt(np.mean(np.square(x))))


def randoms(seed):
    source = np.random.default_rng(seed)
    return lambda *shape: source.standard_normal(shape).astype(np.float32)


def linear(make):
    x, w, b = g.input("x", (70, 200)), g.input("w", (200, 90)), g.input("b", (90,))
    total = g.matmul(x, w) + g.broadcast_in_dim(b, shape=(70, 90), dimensions=(1,))
    return [x, w, b], make(total)


def one(make):
    x = g.input("x", (70, 200))
    return [x], make(x)


def attention(mask=(), groups=4, **how):
    q = g.input("q", (2, 4, 70, 32))
    k, v = (g.input(name, (2, groups, 90, 32)) for name in "kv")
    masks = [g.input("m", mask)] if mask else []
    return [q, k, v, *masks], g.attention(q, k, v, *masks, scale=0.2, **how)


def gradient(part, groups=2):
    q, out, grad = (g.input(name, (1, 4, 60, 32)) for name in ("q", "out", "grad"))
    k, v = (g.input(name, (1, groups, 60, 32)) for name in "kv")
    made = g.attention_gradient(q, k, v, out, grad, causal=True, scale=0.2, part=part)
    return [q, k, v, out, grad], made


def normed(x):
    s, t = (g.input(name, (90,)) for name in "st")
    return g.layer_norm(x, s, t)


CASES = {
    "product": lambda: linear(lambda y: y),
    "gelu": lambda: linear(g.gelu),
    "gelu by tanh": lambda: linear(lambda y: g.gelu(y, approximate=True)),
    "silu": lambda: linear(g.silu),
    "sum with another": lambda: linear(lambda y: y + g.input("r", (70, 90))),
    "activation and sum": lambda: linear(lambda y: g.tanh(y) + g.input("r", (70, 90))),
    "norm of a product": lambda: linear(normed),
    "layer norm": lambda: one(g.layer_norm),
    "rms norm": lambda: one(g.rms_norm),
    "softmax": lambda: one(lambda x: g.softmax(x, axis=-1)),
    "chain": lambda: one(lambda x: g.exponential(x) * g.logistic(x) - x / 3.0),
    "sum": lambda: one(lambda x: g.reduce(x, kind="add", dimensions=(1,))),
    "largest": lambda: one(lambda x: g.reduce(x, kind="maximum", dimensions=(0,))),
    "transpose and slice": lambda: one(lambda x: g.slice(
        g.transpose(x, (1, 0)), starts=(3, 0), limits=(50, 70), strides=(2, 1))),
    "attention": attention,
    "attention, causal": lambda: attention(causal=True),
    "attention, grouped": lambda: attention(groups=2),
    "attention, mask": lambda: attention(mask=(2, 1, 70, 90)),
    "gradient of queries": lambda: gradient("query"),
    "gradient of keys": lambda: gradient("key"),
    "gradient of values": lambda: gradient("value"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", CASES)
def test_one_op_differs_by_the_order_of_sums(name, dtype):
    """Few numbers fall on the other side of a rounding, none further than its neighbour."""
    graph, make = graph_of(name), randoms(len(name))
    exact, fast = both(graph, dtype, *(make(*v.shape) for v in graph.inputs))
    # A sum's own error is that of its terms, which are as large as the largest results.
    room = 4 * HALF_ULP[dtype] * np.abs(exact) + 2.0**-17 * np.abs(exact).max()
    if "attention" in name or "gradient" in name:
        # Weights are rounded inside: that of one key may fall on the other side.
        room += 2 * HALF_ULP[dtype] * np.abs(exact).max()
    assert np.all(np.abs(exact - fast) <= room)
    assert rms(exact - fast) <= 0.2 * HALF_ULP[dtype] * rms(exact) + 2e-6 * rms(exact)


def graph_of(name):
    """A case as a graph; its inputs are those it names, then others its value reads."""
    first, made = CASES[name]()
    stack, found = [made], dict.fromkeys(first)
    while stack:
        value = stack.pop()
        if value.op == "input":
            found.setdefault(value)
        stack += value.args
    return Graph(list(found), [made])


OPS = (
    lambda x, w: g.matmul(x, w),
    lambda x, w: g.gelu(g.matmul(x, w)),
    lambda x, w: x + g.matmul(g.rms_norm(x), w),
    lambda x, w: g.layer_norm(x),
    lambda x, w: g.softmax(x, axis=-1),
    lambda x, w: g.silu(x) * x,
    lambda x, w: g.transpose(g.matmul(g.transpose(x, (1, 0)), x), (1, 0)) * 0.05,
    lambda x, w: g.reverse(x, dimensions=(1,)) + x,
    lambda x, w: g.select(g.compare(x, 0.0, direction="GT"), x, x * 0.1),
)  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(picks=st.lists(st.integers(0, len(OPS) - 1), min_size=2, max_size=6),
       seed=st.integers(0, 99))  # fmt: skip
def test_random_graphs_agree_better_than_their_roundings(picks, seed):
    """Other rounding points would put both as far apart as either is from float32."""
    x, w = g.input("x", (64, 64)), g.input("w", (64, 64))
    made = x
    for pick in picks:
        made = OPS[pick](made, w)
    graph, make = Graph([x, w], [made]), randoms(seed)
    given = make(64, 64), make(64, 64) / 8
    wide, wide_fast = both(graph, "float32", *given)
    assert rms(wide - wide_fast) <= 1e-4 * rms(wide)
    exact, fast = both(graph, "bfloat16", *given)
    assert rms(exact - fast) <= 0.5 * rms(exact - wide) + 1e-6 * rms(wide)


def test_the_time_is_that_of_the_instructions():
    graph = graph_of("gelu")
    exact, fast = (compiler.compile(graph, numerics=mode) for mode in ("exact", "fast"))
    times = [runtime.load(e).time().total_ns for e in (exact, fast)]
    assert times[0] == times[1] > 0


def test_whole_numbers_and_scalars_are_as_the_program_has_them():
    x = g.input("x", (6,), "int64")
    total = g.reduce(x * 3, kind="add", dimensions=(0,))
    exact, fast = both(Graph([x], [total]), "float32", np.arange(6))
    assert exact.shape == fast.shape == ()
    assert exact == fast == 45


def test_a_scalar_input_stays_one():
    x, s = g.input("x", (4, 8)), g.input("s", ())
    graph = Graph([x, s], [x * g.broadcast_in_dim(s, shape=(4, 8), dimensions=())])
    given = np.arange(32, dtype=np.float32).reshape(4, 8)
    exact, fast = both(graph, "float32", given, np.float32(3))
    assert np.array_equal(exact, given * 3)
    assert np.array_equal(fast, given * 3)


def test_auto_chooses_by_size_and_says_so():
    small = graph_of("gelu")
    told = opentrn.compile(small, numerics="auto").meta["numerics"]
    assert told["mode"] == "exact"
    assert "instructions" in told["why"]
    x = g.input("x", (2048, 2048), "bfloat16")
    large = Graph([x], [g.matmul(x, x)])
    told = opentrn.compile(large, numerics="auto").meta["numerics"]
    assert told["mode"] == "fast"
    assert "17 GFLOP" in told["why"]
    x = g.input("x", (1 << 20, 1 << 20), "bfloat16")
    huge = Graph([x], [x + x])
    assert before_linking("auto", huge).mode == "none"


@pytest.mark.parametrize("mode", ["quick", "none"])
def test_a_linked_program_has_no_such_numerics(mode):
    with pytest.raises(UsageError) as refused:
        compiler.compile_graph(graph_of("gelu"), numerics=mode)
    assert refused.value.code == "compiler.numerics"


def test_none_times_only():
    graph = graph_of("gelu")
    outline = opentrn.compile(graph, numerics="none")
    assert outline.nanoseconds > 0
    assert outline.why == "it was asked for"
    timed = runtime.TimedOnly(outline)
    assert timed.time().total_ns == outline.nanoseconds
    linked = runtime.load(compiler.compile(graph))
    assert [s.shape for s in timed.outputs] == [s.shape for s in linked.outputs]
    assert timed.memory["model constants"] == linked.memory["model constants"]
    with pytest.raises(UsageError, match="only timed") as refused:
        timed(np.zeros((70, 200), np.float32))
    assert refused.value.code == "runtime.no_numbers"


def test_unknown_numerics_and_files_without_them_are_refused(tmp_path):
    graph = graph_of("gelu")
    with pytest.raises(UsageError, match="no numerics 'quick'"):
        opentrn.compile(graph, numerics="quick")
    path = opentrn.compile(graph, numerics="fast").save(tmp_path / "a.trn")
    assert opentrn.load(path).numerics == "exact"
    with pytest.raises(UsageError) as refused:
        opentrn.load(path, numerics="fast")
    assert refused.value.code == "runtime.fast"


LONGS = np.array([2**31 - 1, -(2**31), 2**31 - 2, 0, 1, -1, 100_000, 46_341, 7, -7], np.int64)


def in_32_bits(x):
    return np.asarray(x, np.int64).astype(np.int32).astype(np.int64)


INT64 = {
    "sum": (lambda x, y: x + y, lambda x, y: in_32_bits(x + y)),
    "product": (lambda x, y: x * y, lambda x, y: in_32_bits(x * y)),
    "difference": (lambda x, y: x - y, lambda x, y: in_32_bits(x - y)),
    "sum and comparison": (
        lambda x, y: g.compare(x + y, 0, direction="GT"),
        lambda x, y: in_32_bits(x + y) > 0,
    ),
    "product and quotient": (
        lambda x, y: x * y / 1000,
        lambda x, y: np.trunc(in_32_bits(x * y) / 1000).astype(np.int64),
    ),
    "total": (
        lambda x, y: g.reduce(x, kind="add", dimensions=(0,)),
        lambda x, y: in_32_bits(x.sum()),
    ),
    "largest": (lambda x, y: g.maximum(x, y), np.maximum),
}


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("name", INT64)
def test_64_bit_integers_have_the_32_bits_of_the_chip(name, mode):
    make, meaning = INT64[name]
    x, y = (g.input(n, (100,), "int64") for n in "xy")
    executable = compiler.compile(Graph([x, y], [make(x, y)]), numerics="fast")
    a, b = np.repeat(LONGS, 10), np.tile(LONGS, 10)
    found = np.asarray(runtime.load(executable, numerics=mode)(a, b))
    np.testing.assert_array_equal(found.reshape(-1), np.reshape(meaning(a, b), -1))


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_floats_become_64_bit_integers_that_saturate_at_32(mode):
    x = g.input("x", (5,))
    executable = compiler.compile(Graph([x], [g.cast(x, "int64")]), numerics="fast")
    given = np.array([1e10, -1e10, 3.0, -3.0, 2147483000.0], np.float32)
    found = runtime.load(executable, numerics=mode)(given)
    assert np.asarray(found).tolist() == [2**31 - 1, -(2**31), 3, -3, 2147483008]


def test_what_only_times_takes_the_options_and_the_empty_ends_of_what_runs():
    x, nothing = g.input("x", (8, 8), "int32"), g.input("nothing", (0,))
    graph = Graph([nothing, x], [g.matmul(x, x), nothing])
    seen = []
    run = compiler.compile(graph, integer_products=True)
    timed = compiler.compile(graph, numerics="none", integer_products=True,
                             watch=lambda stage, state: seen.append(stage))  # fmt: skip
    assert [s.shape for s in timed.inputs] == [(0,), (8, 8)]
    assert [s.shape for s in timed.outputs] == [(8, 8), (0,)]
    assert timed.instructions == len(run.program)
    assert "choose" in seen
    with pytest.raises(UnsupportedError) as refused:
        compiler.compile(graph, numerics="none")
    assert refused.value.code == "compiler.integer_product"
