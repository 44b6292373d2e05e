"""Ops on bits and complex numbers, ops with regions, random bits: against hand, NumPy and SciPy."""

import cmath

import ml_dtypes
import numpy as np
import pytest

from opentrn.base import DtypeError, ShapeError, TrnError, UsageError
from opentrn.graph import (
    OPS,
    Graph,
    Region,
    TupleType,
    Type,
    evaluate,
    fold,
    g,
    graph_dtype,
    read,
    write,
)
from opentrn.graph.ops import bits, combining, complexes, control, linear_algebra, random

FAMILIES = (bits, combining, complexes, control, linear_algebra, random)
TRIED = set()
F32, I32 = (Type((), graph_dtype(name)) for name in ("float32", "int32"))


def run(op, *arrays, kinds=(), parts=None, **attributes):
    """The op on inputs holding these arrays; `parts`: the tuple's parts of these numbers."""
    TRIED.add(op)
    arrays = [np.asarray(a) for a in arrays]
    kinds = kinds or [a.dtype for a in arrays]
    inputs = [g.input(f"x{i}", a.shape, k) for i, (a, k) in enumerate(zip(arrays, kinds,
                                                                          strict=True))]
    value = getattr(g, op + "_")(*inputs, **attributes)
    if parts is None:
        graph = Graph(inputs, [value])
    else:
        TRIED.add("get_tuple_element")
        graph = Graph(inputs, [g.get_tuple_element(value, i) for i in parts])
    found = evaluate(read(write(graph)), arrays)  # as text and back: the same program
    return found[0] if parts is None else found


ADD = Region.of(lambda a, b: g.add(a, b), F32, F32)


# ----------------------------------------------------------------------------------------- bits


def test_shifts():
    x, by = np.int8([1, -1, 64, -128, 5, 5]), np.int8([3, 1, 1, 7, 8, -1])
    assert run("shift_left", x, by).tolist() == [8, -2, -128, 0, 0, 0]
    assert run("shift_right_logical", x, by).tolist() == [0, 127, 32, 1, 0, 0]
    assert run("shift_right_arithmetic", x, by).tolist() == [0, -1, 32, -1, 0, 0]
    assert run("shift_right_arithmetic", np.int8([-5]), np.int8([100])).tolist() == [-1]
    wide = np.uint64([1 << 63])
    assert run("shift_right_arithmetic", wide, np.uint64([62])).tolist() == [(1 << 64) - 2]


def test_shifts_of_four_bits():
    x, by = np.int8([-1, 7, -8]), np.int8([1, 1, 3])
    kinds = ("int4", "int4")
    assert run("shift_left", x, by, kinds=kinds).tolist() == [-2, -2, 0]
    assert run("shift_right_logical", x, by, kinds=kinds).tolist() == [7, 3, 1]
    assert run("shift_right_arithmetic", x, by, kinds=kinds).tolist() == [-1, 3, -1]


def test_counts_of_bits():
    x = np.int32([0, 1, -1, 255, -(2**31)])
    assert run("popcnt", x).tolist() == [0, 1, 32, 8, 1]
    assert run("count_leading_zeros", x).tolist() == [32, 31, 0, 24, 0]
    assert run("count_leading_zeros", np.uint64([0, 1 << 40])).tolist() == [64, 23]
    assert run("popcnt", np.int8([-1]), kinds=("int4",)).tolist() == [4]
    assert run("count_leading_zeros", np.int8([1]), kinds=("int4",)).tolist() == [3]


def test_bitcast():
    assert run("bitcast_convert", np.float32([1.0, -2.0]), dtype="uint32").tolist() == [
        0x3F800000, 0xC0000000]
    parts = run("bitcast_convert", np.uint32([0x01020304]), dtype="uint8")
    assert parts.tolist() == [[4, 3, 2, 1]]
    assert run("bitcast_convert", parts, dtype="uint32").tolist() == [0x01020304]
    assert run("bitcast_convert", np.uint16([0x3F80]), dtype="bfloat16").astype(float) == [1.0]
    flags = run("bitcast_convert", np.uint16([0b1000_0000_0000_0101]), dtype="bool")
    assert np.flatnonzero(flags).tolist() == [0, 2, 15]
    assert run("bitcast_convert", flags, dtype="uint16").tolist() == [0x8005]
    halves = run("bitcast_convert", np.uint8([0x7F]), dtype="int4")
    assert halves.tolist() == [[-1, 7]]
    assert run("bitcast_convert", halves, dtype="uint8", kinds=("int4",)).tolist() == [0x7F]
    with pytest.raises(ShapeError, match="4 elements of uint8 make one uint32"):
        g.bitcast_convert(g.input("x", (3,), "uint8"), dtype="uint32")


def test_reduce_precision():
    x = np.float32([1.0, 1 + 2**-9, 1 + 2**-8, 1 + 3 * 2**-8, 1e38, 70000.0, 1e-6, -0.0, np.nan])
    with np.errstate(over="ignore"):
        want = x.astype(np.float16).astype(np.float32)
    want[6] = 0.0  # float16 has it as a subnormal; the op gives zero below the smallest normal
    got = run("reduce_precision", x, exponent_bits=5, mantissa_bits=10)
    np.testing.assert_array_equal(got, want)
    # Ties go to the even exponent field: 2 has 128, 4 has 129, 8 has 130.
    no_mantissa = run("reduce_precision", np.float32([np.nan, 3, 6]), exponent_bits=5,
                      mantissa_bits=0)
    assert no_mantissa.tolist() == [np.inf, 2, 8]
    brain = run("reduce_precision", x, exponent_bits=8, mantissa_bits=7)
    np.testing.assert_array_equal(brain, x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_total_order():
    x = np.array([-np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan], np.float32)
    for direction, compare in (("LT", np.less), ("GE", np.greater_equal), ("EQ", np.equal)):
        got = run("compare_total_order", x[:, None].repeat(8, 1), x[None].repeat(8, 0),
                  direction=direction)
        place = np.arange(8)
        assert np.array_equal(got, compare(place[:, None], place[None]))


# -------------------------------------------------------------------------------- complex numbers

Z = np.array([1 + 2j, -0.5 + 0.25j, 3 - 1j, -2 - 2j], np.complex64)


def test_parts_of_complex_numbers():
    x, y = np.float32([1, 2]), np.float32([3, -4])
    assert run("complex", x, y).tolist() == [1 + 3j, 2 - 4j]
    assert run("real", Z).tolist() == Z.real.tolist()
    assert run("imag", Z).tolist() == Z.imag.tolist()
    assert run("imag", x).tolist() == [0, 0]
    half = g.input("h", (2,), "bfloat16")
    with pytest.raises(DtypeError, match="the parts are bfloat16"):
        g.complex(half, half)


@pytest.mark.parametrize(("op", "function"), [
    ("exponential", cmath.exp), ("log", cmath.log), ("sqrt", cmath.sqrt), ("sine", cmath.sin),
    ("cosine", cmath.cos), ("tanh", cmath.tanh), ("tan", cmath.tan),
    ("rsqrt", lambda z: 1 / cmath.sqrt(z)), ("sign", lambda z: z / abs(z)),
    ("negate", lambda z: -z), ("log_plus_one", lambda z: cmath.log(1 + z)),
    ("exponential_minus_one", lambda z: cmath.exp(z) - 1),
    ("logistic", lambda z: 1 / (1 + cmath.exp(-z))),
])
def test_functions_of_complex_numbers(op, function):
    want = [function(complex(z)) for z in Z]
    np.testing.assert_allclose(run(op, Z), want, rtol=1e-6)
    wide = Z.astype(np.complex128)
    np.testing.assert_allclose(run(op, wide), want, rtol=1e-12)


def test_arithmetic_of_complex_numbers():
    w = Z[::-1].copy()
    for op, function in (("add", lambda a, b: a + b), ("subtract", lambda a, b: a - b),
                         ("multiply", lambda a, b: a * b), ("divide", lambda a, b: a / b),
                         ("power", lambda a, b: a ** b)):
        want = [function(complex(a), complex(b)) for a, b in zip(Z, w, strict=True)]
        np.testing.assert_allclose(run(op, Z, w), want, rtol=1e-5)
    third = np.array([complex(z) ** (1 / 3) for z in Z])
    np.testing.assert_allclose(run("cbrt", Z), third, rtol=1e-6)
    angles = [-1j * cmath.log((b + 1j * a) / cmath.sqrt(a * a + b * b))
              for a, b in zip(Z.tolist(), w.tolist(), strict=True)]
    np.testing.assert_allclose(run("atan2", Z, w), angles, rtol=1e-5)
    assert run("convert", np.complex64([2j, 1]), dtype="bool").tolist() == [False, True]
    assert run("abs", Z).dtype == np.float32
    np.testing.assert_allclose(run("abs", Z), [abs(complex(z)) for z in Z], rtol=1e-6)
    with pytest.raises(DtypeError, match="complex numbers have no order"):
        g.compare(*(g.input(n, (2,), "complex64") for n in "ab"), direction="LT")


@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT", "IRFFT"])
def test_fft(kind):
    lengths, rng = (4, 6), np.random.default_rng(1)
    shape = (3, 4, 4) if kind == "IRFFT" else (3, 4, 6)
    x = rng.normal(size=shape)
    if kind != "RFFT":
        x = x + 1j * rng.normal(size=shape)
    got = run("fft", x, fft_type=kind, fft_length=lengths)
    want = np.zeros((3, 4, 6) if kind != "RFFT" else (3, 4, 4), complex)
    if kind in ("FFT", "RFFT"):
        for u, v in np.ndindex(4, 6):
            if v < want.shape[2]:
                wave = [[cmath.exp(-2j * cmath.pi * (u * a / 4 + v * b / 6)) for b in range(6)]
                        for a in range(4)]
                want[:, u, v] = (x * np.array(wave)).sum((1, 2))
    elif kind == "IFFT":
        want = np.fft.ifft(np.fft.ifft(x, axis=1), axis=2)
    else:
        want = np.fft.irfft(np.fft.ifft(x, axis=1), n=6, axis=2)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------ loops and branches


def test_while_counts():
    kinds = (I32, F32, F32)
    cond = Region.of(lambda i, x, k: g.compare(i, g.constant(np.int32(5)), direction="LT"), *kinds)
    body = Region.of(lambda i, x, k: (i + 1, x * k), *kinds)
    got = run("while", np.int32(0), np.float32(1), np.float32(3), parts=(0, 1), cond=cond,
              body=body, trips=5)
    assert [x.tolist() for x in got] == [5, 243]
    i, x, k = (g.input(n, (), t) for n, t in zip("ixk", ("int32", "float32", "float32"),
                                                 strict=True))
    known, unknown = (g.while_(i, x, k, cond=cond, body=body, trips=n) for n in (5, -1))
    assert known.flops == 5 * 3  # an addition, a product and a comparison each time
    assert isinstance(known.type, TupleType)
    with pytest.raises(ShapeError, match="how often the loop runs is not known"):
        _ = unknown.flops
    with pytest.raises(ShapeError, match="an operand is the tuple of several results"):
        g.negate(known)
    with pytest.raises(UsageError, match="which cannot be an output"):
        Graph([i, x, k], [known])
    with pytest.raises(ShapeError, match="body gives"):
        g.while_(i, x, k, cond=cond, body=Region.of(lambda i, x, k: (x, i), *kinds))


def test_equal_regions_are_one():
    one, two = (Region.of(lambda a, b: g.add(a, b), F32, F32) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != Region.of(lambda a, b: g.add(b, a), F32, F32)
    x, z = g.input("x", (4,)), g.input("z", ())
    assert g.reduce_with(x, z, dimensions=0, body=one) is g.reduce_with(
        x, z, dimensions=0, body=two)


def test_branches():
    double, square = Region.of(lambda x: x + x, F32), Region.of(lambda x: x * x, F32)
    for pred, want in ((True, 14.0), (False, 49.0)):
        got = run("if", np.bool_(pred), np.float32(7), parts=(0,), true_branch=double,
                  false_branch=square)
        assert got == [want]
    negate = Region.of(lambda x: g.negate(x), F32)
    for index, want in ((0, 14.0), (1, 49.0), (2, -7.0), (-1, -7.0), (9, -7.0)):
        got = run("case", np.int32(index), np.float32(7), parts=(0,),
                  branches=(double, square, negate))
        assert got == [want]
    with pytest.raises(ShapeError, match="branch 0 takes"):
        g.case(g.input("i", (), "int32"), g.input("n", (), "int32"), branches=(double,))


def test_loops_are_not_folded():
    cond = Region.of(lambda i: g.compare(i, g.constant(np.int32(5)), direction="LT"), I32)
    forever = g.while_(g.constant(np.int32(0)), cond=cond, body=Region.of(lambda i: i * 0, I32))
    graph = Graph([], [g.get_tuple_element(forever, 0)])
    assert fold(graph).histogram()["while"] == 1


# --------------------------------------------------------------------------- regions that combine


def test_reduce_with():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    got = run("reduce_with", x, np.float32(100), parts=(0,), dimensions=(0, 2), body=ADD)[0]
    assert got.tolist() == (100 + x.sum((0, 2))).tolist()
    empty = run("reduce_with", x[:, :0], np.float32(7), parts=(0,), dimensions=1, body=ADD)[0]
    assert np.array_equal(empty, np.full((2, 4), 7))


def largest(a, i, b, j):
    """Of two (number, place) pairs the larger number, of equals the first place."""
    first = g.or_(g.compare(a, b, direction="GT"), g.and_(
        g.compare(a, b, direction="EQ"), g.compare(i, j, direction="LT")))
    return g.select(first, a, b), g.select(first, i, j)


def test_reduce_with_two_results():
    x = np.random.default_rng(2).integers(0, 9, (5, 33)).astype(np.float32)
    places = np.arange(33, dtype=np.int32)[None].repeat(5, 0)
    body = Region.of(largest, F32, I32, F32, I32)
    top, where = run("reduce_with", x, places, np.float32(-1), np.int32(0), parts=(0, 1),
                     dimensions=1, body=body)
    assert top.tolist() == x.max(1).tolist()
    assert where.tolist() == x.argmax(1).tolist()


def test_reduce_window_with():
    x = np.float32([1, 2, 3, 4])
    got = run("reduce_window_with", x, np.float32(0), parts=(0,), window=2, strides=1,
              base_dilation=2, dilation=2, padding=((1, 0),), body=ADD)[0]
    # 0 1 0 2 0 3 0 4, elements two apart
    assert got.tolist() == [0, 3, 0, 5, 0, 7]


def test_select_and_scatter():
    x = np.float32([[1, 5, 2, 0], [3, 4, 9, 9]])
    source = np.float32([[10, 20]])
    stay = Region.of(lambda a, b: g.compare(a, b, direction="GE"), F32, F32)
    got = run("select_and_scatter", x, source, np.float32(1), window=(2, 2), strides=(2, 2),
              padding=((0, 0), (0, 0)), select=stay, scatter=ADD)
    assert got.tolist() == [[1, 11, 1, 1], [1, 1, 21, 1]]
    overlapping = run("select_and_scatter", x[0], np.float32([1, 2, 4, 8, 16]), np.float32(0),
                      window=2, strides=1, padding=((1, 1),), select=stay, scatter=ADD)
    # Windows (–, 1) (1, 5) (5, 2) (2, 0) (0, –); padding is never chosen.
    assert overlapping.tolist() == [1, 2 + 4, 8, 16]


def test_scatter_with():
    x, y = np.float32([1, 2, 3]), np.int32([10, 20, 30])
    places = np.int32([[1], [1], [5], [0]])
    body = Region.of(lambda a, i, b, j: (a * b, i - j), F32, I32, F32, I32)
    got = run("scatter_with", x, y, places, np.float32([2, 3, 5, 7]), np.int32([1, 2, 4, 8]),
              parts=(0, 1), update_window_dims=(), inserted_window_dims=0, scatter_dims=0,
              index_vector_dim=1, body=body)
    assert [v.tolist() for v in got] == [[7, 12, 3], [2, 17, 30]]


@pytest.mark.parametrize("length", [1, 2, 7, 64, 100])
def test_sort_with(length):
    rng = np.random.default_rng(length)
    keys = rng.integers(0, 10, (3, length)).astype(np.int32)
    other = rng.normal(size=(3, length)).astype(np.float32)
    falling = Region.of(lambda a, b, x, y: g.compare(a, b, direction="GT"), I32, I32, F32, F32)
    got = run("sort_with", keys, other, parts=(0, 1), dimension=1, comparator=falling, results=2)
    order = np.argsort(-keys, axis=1, kind="stable")
    assert np.array_equal(got[0], np.take_along_axis(keys, order, 1))
    assert np.array_equal(got[1], np.take_along_axis(other, order, 1))


def test_regions_read_what_is_captured():
    x = np.float32([3, 1, 2])
    body = Region.of(lambda a, b, k: a + b * k, F32, F32, F32)
    got = run("reduce_with", x[:1], np.float32(0), np.float32(10), parts=(0,), dimensions=0,
              body=body)[0]
    assert got.tolist() == 30


# --------------------------------------------------------------------------------- linear algebra


def test_cholesky():
    rng = np.random.default_rng(3)
    half = rng.normal(size=(2, 4, 4)) + 1j * rng.normal(size=(2, 4, 4))
    full = half @ half.conj().swapaxes(1, 2) + 4 * np.eye(4)
    lower = run("cholesky", np.tril(full), lower=True)
    np.testing.assert_allclose(lower @ lower.conj().swapaxes(1, 2), full, rtol=1e-12)
    assert np.array_equal(lower, np.tril(lower))
    upper = run("cholesky", np.triu(full), lower=False)
    np.testing.assert_allclose(upper.conj().swapaxes(1, 2) @ upper, full, rtol=1e-12)
    assert np.isnan(run("cholesky", -np.eye(2), lower=True)).any()


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("form", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
@pytest.mark.parametrize("unit", [True, False])
def test_triangular_solve(left, lower, form, unit):
    rng = np.random.default_rng(4)
    a = rng.normal(size=(2, 4, 4)) + 1j * rng.normal(size=(2, 4, 4)) + 3 * np.eye(4)
    b = rng.normal(size=(2, 4, 3) if left else (2, 3, 4)) + 0j
    x = run("triangular_solve", a, b, left_side=left, lower=lower, unit_diagonal=unit,
            transpose_a=form)
    matrix = np.tril(a) if lower else np.triu(a)
    if unit:
        matrix[:, range(4), range(4)] = 1
    used = {"NO_TRANSPOSE": matrix, "TRANSPOSE": matrix.swapaxes(1, 2),
            "ADJOINT": matrix.conj().swapaxes(1, 2)}[form]
    np.testing.assert_allclose(used @ x if left else x @ used, b, rtol=1e-9, atol=1e-9)


# ----------------------------------------------------------------------------------- random numbers


def test_philox_known_answers():
    """The known-answer vectors of Random123 1.14 (kat_vectors, philox4x32, 10 rounds)."""
    zero = [np.uint32([0])] * 4
    assert [int(w[0]) for w in random.philox(zero, (0, 0))] == [
        0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    full = [np.uint32([0xFFFFFFFF])] * 4
    assert [int(w[0]) for w in random.philox(full, (0xFFFFFFFF, 0xFFFFFFFF))] == [
        0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_threefry_known_answers():
    """The known-answer vectors of Random123 1.14 (threefry2x32, 20 rounds)."""
    zero, full = np.uint32([0]), np.uint32([0xFFFFFFFF])
    assert [int(w[0]) for w in random.threefry(zero, zero, (0, 0))] == [0x6B200159, 0x99BA4EFE]
    assert [int(w[0]) for w in random.threefry(full, full, (0xFFFFFFFF, 0xFFFFFFFF))] == [
        0x1CB996FC, 0xBB002BE7]


@pytest.mark.parametrize("algorithm", ["PHILOX", "THREE_FRY", "DEFAULT"])
@pytest.mark.parametrize("shape", [(), (3,), (100,), (8, 4), (3, 6, 5), (5, 7, 3), (0, 4)])
def test_random_bits_are_those_of_xla(shape, algorithm):
    """Words and next state as XLA's generator gives them on the CPU, across a carry."""
    jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")
    words = np.array([5, 9, 0xFFFFFFFE, 7], np.uint32)
    known = getattr(jax.lax.RandomAlgorithm, f"RNG_{algorithm}")
    for kind in ("uint32", "uint8"):
        state, bits = jax.lax.rng_bit_generator(words, shape, getattr(np, kind), known)
        found = run("rng_bit_generator", words, parts=(0, 1), algorithm=algorithm, shape=shape,
                    dtype=kind)
        assert np.array_equal(found[0], state)
        assert np.array_equal(found[1], bits)


@pytest.mark.parametrize("algorithm", ["PHILOX", "THREE_FRY", "DEFAULT"])
def test_random_bits_go_on_where_they_stopped(algorithm):
    state = np.uint64([42, 7])
    whole = run("rng_bit_generator", state, parts=(0, 1), algorithm=algorithm, shape=(8, 4),
                dtype="uint64")
    next_state, first = run("rng_bit_generator", state, parts=(0, 1), algorithm=algorithm,
                            shape=(4, 4), dtype="uint64")
    last_state, second = run("rng_bit_generator", next_state, parts=(0, 1), algorithm=algorithm,
                             shape=(4, 4), dtype="uint64")
    assert np.array_equal(whole[1], np.concatenate([first, second]))
    assert np.array_equal(whole[0], last_state)
    assert len(set(whole[1].reshape(-1).tolist())) == 32


def test_draws():
    low, high = np.float32(-2), np.float32(6)
    uniform = run("rng", low, high, distribution="UNIFORM", shape=(10000,), number=0)
    assert -2 <= uniform.min() < -1.9
    assert 5.9 < uniform.max() < 6
    assert abs(uniform.mean() - 2) < 0.1
    normal = run("rng", low, high, distribution="NORMAL", shape=(10000,), number=1)
    assert abs(normal.mean() + 2) < 0.25
    assert abs(normal.std() - 6) < 0.25
    a, b = g.constant(low), g.constant(high)
    one, two = (g.rng(a, b, "UNIFORM", (3,), n) for n in (0, 1))
    assert one is not two
    assert fold(Graph([], [one])).histogram()["rng"] == 1


# -------------------------------------------------------------------------------------------- all


def test_refusals_have_codes():
    with pytest.raises(TrnError) as error:
        g.popcnt(g.input("x", (2,), "float32"))
    assert error.value.code == "graph.popcnt.dtype"


def test_every_op_of_these_families_was_tried():
    names = {f.__name__ for f in FAMILIES}
    assert {name for name, op in OPS.items() if op.__module__ in names} - TRIED == set()
