"""What the chip refuses: five lines at the kernel's own line, with a stable code and a way out."""

import ml_dtypes
import numpy as np
import pytest

from opentrn import nki
from opentrn.base import BoundsError, TrnError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from tests.nki.tiles import applied


def tile(shape, dtype=nl.float32, buffer=nl.sbuf, **more):
    made = nl.ndarray(shape, dtype, buffer=buffer, **more)
    nisa.memset(made, 1)
    return made


def refusal(kernel, *arrays, target="trn2"):
    """The error of a kernel, after checking the form every refusal has."""
    with nki.use_target(target), pytest.raises(TrnError) as caught:
        nki.run(kernel, *arrays)
    error = caught.value
    lines = str(error).splitlines()
    assert lines[1].startswith("  at    test_refusals.py:")
    assert error.at.file == __file__
    assert [line[:7] for line in lines[2:]] == ["  rule ", "  fix  ", "  more "]
    assert lines[4].startswith(f"  more  opentrn explain {error.code}")
    assert error.json()["at"]["line"] == error.at.line
    return error


def test_256_partitions():
    def kernel():
        nl.ndarray((256, 512), nl.float32)

    error = refusal(kernel)
    assert error.code == "nki.partitions"
    assert "[256, 512]" in error.what
    assert "at most 128" in error.what
    assert "2 tiles" in error.fix


def test_256_rows_into_a_column():
    def kernel(x):
        t = nl.ndarray((128, 1), nl.float32)
        nisa.dma_copy(t, x)

    error = refusal(kernel, np.ones((256, 1), np.float32))
    assert error.code == "dma_copy.rules"
    assert "256" in error.rule
    assert error.at.text == "nisa.dma_copy(t, x)"


PLACES = [
    (48, 32, False), (48, 64, True), (36, 48, False), (32, 96, True), (33, 96, False),
    (65, 64, False), (128, 0, True), (64, 64, True), (64, 32, False), (1, 1, False), (1, 96, True),
]  # fmt: skip


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize(("count", "start", "legal"), PLACES)
def test_engines_start_at_quadrants(count, start, legal, target):
    def kernel():
        t = tile((128, 8))
        if start + count <= 128:
            nisa.tensor_scalar(t[start : start + count], t[start : start + count], nl.add, 1.0)
        else:
            nisa.tensor_scalar(t.ap([[8, count], [1, 8]], offset=8 * start), t, nl.add, 1.0)
        return nl.zeros((1, 1), nl.float32, buffer=nl.shared_hbm)

    if legal:
        with nki.use_target(target):
            nki.run(kernel)
        return
    error = refusal(kernel, target=target)
    if start + count <= 128:
        starts = "0" if count > 64 else "0, 64" if count > 32 else "0, 32, 64, 96"
        assert error.code == "tensor_scalar.start_partition"
        assert f"{count} partitions starting at {start}" in error.what
        assert f"start at one of {starts}," in error.fix
    else:
        assert error.code == "view.ap"


def test_dma_starts_anywhere():
    def kernel(x):
        t = tile((128, 8))
        nisa.dma_copy(t[37:85], x)
        out = nl.ndarray((48, 8), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, t[37:85])
        return out

    x = np.arange(48 * 8, dtype=np.float32).reshape(48, 8)
    assert np.array_equal(nki.simulate(kernel)(x), x)


def product(moving=(128, 512), dtypes=(nl.bfloat16, nl.bfloat16), buffer=nl.sbuf, into=nl.float32):
    def kernel():
        left, right = tile((128, 128), dtypes[0]), tile(moving, dtypes[1], buffer)
        acc = nl.ndarray((128, moving[1]), into, buffer=nl.psum)
        nisa.nc_matmul(acc, left, right)
        out = nl.ndarray((128, moving[1]), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, acc)
        return out

    return kernel


def test_matmul_operands_come_from_sbuf():
    error = refusal(product(buffer=nl.psum))
    assert error.code == "nc_matmul.moving"
    assert error.what == "nc_matmul: `moving` is in psum"
    assert "tensor_copy" in error.fix
    assert error.at.text == "nisa.nc_matmul(acc, left, right)"


def test_float32_pairs_only_with_float32():
    error = refusal(product(dtypes=(nl.float32, nl.bfloat16)))
    assert error.code == "nc_matmul.rules"
    assert "stationary is float32, moving is bfloat16" in error.rule


def test_1024_columns_are_too_many_before_trn3():
    for target in ("trn1", "trn2"):
        error = refusal(product((128, 1024)), target=target)
        assert error.code == "nc_matmul.N"
        assert f"N = 1024, at most 512 on {target}" in error.what
        assert error.fix == "cut N into 2 tiles of at most 512"
    with nki.use_target("trn3"):
        assert (nki.run(product((128, 1024))).outputs == 128).all()


def test_the_products_dtype_by_generation():
    for target in ("trn1", "trn2"):
        error = refusal(product(into=nl.bfloat16), target=target)
        assert error.code == "nc_matmul.rules"
        assert f"must be float32 on {target}" in error.rule
    with nki.use_target("trn3"):
        assert (nki.run(product(into=nl.bfloat16)).outputs == 128).all()


def test_ocp_fp8_begins_with_trn3_and_does_not_mix():
    fn, ieee = nl.float8_e4m3fn, nl.float8_e4m3
    for target in ("trn1", "trn2"):
        error = refusal(product(dtypes=(fn, fn)), target=target)
        assert error.neuron == "NCC_EVRF051"
        assert "float8_e4m3 (max 240)" in error.fix
        assert "(NCC_EVRF051)" in str(error)
    with nki.use_target("trn3"):
        assert (nki.run(product(dtypes=(fn, fn))).outputs == 128).all()
    error = refusal(product(dtypes=(fn, ieee)), target="trn3")
    assert "do not mix" in error.rule


def test_fp8_values_end_where_their_format_ends():
    x = np.array([[239, 247, 249, 300, 448, 470, -470]], np.float32)
    ieee = applied(lambda t: nl.copy(t, nl.float8_e4m3), x)
    assert ieee.dtype == ml_dtypes.float8_e4m3
    assert ieee.astype(float).tolist() == [[240, 240, np.inf, np.inf, np.inf, np.inf, -np.inf]]
    fn = applied(lambda t: nl.copy(t, nl.float8_e4m3fn), x, target="trn3")
    found = fn.astype(float)[0].tolist()
    assert found[:5] == [240, 240, 256, 288, 448]
    assert np.isnan(found[5:]).all()


def test_the_eight_largest_and_where_they_are():
    def kernel(x, wanted):
        data, values = nl.load(x), nl.load(wanted)
        places = nl.ndarray((1, 8), nl.uint32)
        nisa.nc_find_index8(places, data, values)
        largest = nl.ndarray((1, 8), nl.float32)
        nisa.max8(largest, data)
        first = nl.ndarray((1, 8), nl.uint32, buffer=nl.shared_hbm)
        second = nl.ndarray((1, 8), nl.float32, buffer=nl.shared_hbm)
        nl.store(first, places)
        nl.store(second, largest)
        return first, second

    data = np.array([[5, 3, 5, 1, 0, 0, 0, 0]], np.float32)
    search = np.array([[5, 5, 3, 1, 9, 9, 9, 9]], np.float32)
    places, largest = nki.simulate(kernel)(data, search)
    assert places.tolist() == [[0, 2, 1, 3] + [2**32 - 1] * 4]
    assert largest.tolist() == [[5, 5, 3, 1, 0, 0, 0, 0]]


def test_operands_of_the_wrong_kind_or_missing():
    def array():
        nisa.tensor_copy(tile((4, 4)), np.ones((4, 4), np.float32))

    def text():
        nisa.tensor_copy(tile((4, 4)), "x")

    def number():
        nisa.tensor_copy(tile((4, 4)), 3.0)

    def absent():
        nisa.tensor_copy(tile((4, 4)), None)

    assert refusal(array).code == "nki.operand"
    assert "is a ndarray, not a tile" in refusal(array).what
    assert refusal(text).code == "nki.operand"
    assert refusal(number).code == "tensor_copy.src"
    error = refusal(absent)
    assert error.code == "tensor_copy.src"
    assert "missing" in error.what
    with pytest.raises(TypeError):
        nki.run(lambda: nisa.tensor_copy(tile((4, 4))))


def test_hbm_is_no_operand_of_an_engine():
    def kernel(x):
        nisa.tensor_copy(tile((4, 4)), x)

    error = refusal(kernel, np.ones((4, 4), np.float32))
    assert error.what == "tensor_copy: `src` is in hbm"
    assert "nisa.dma_copy" in error.fix


def test_a_dma_must_have_as_many_elements_on_both_sides():
    def kernel(x):
        nisa.dma_copy(tile((4, 8)), x)

    error = refusal(kernel, np.ones((4, 4), np.float32))
    assert error.code == "dma_copy.rules"
    assert "32" in error.rule
    assert "16" in error.rule


def test_an_unknown_operator_is_named():
    def kernel():
        t = tile((4, 4))
        nisa.tensor_tensor(t, t, t, "plus")

    error = refusal(kernel)
    assert "plus" in error.what


def test_errors_in_library_calls_carry_the_users_line():
    def kernel(x):
        nl.sum(nl.load(x), 0)

    error = refusal(kernel, np.ones((4, 4), np.float32))
    assert error.at.text == "nl.sum(nl.load(x), 0)"


def test_a_pattern_beyond_its_tensor_is_refused_where_it_is_used():
    def kernel(x, use):
        out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
        tile = nl.load(x)
        beyond = tile.ap([[8, 4], [1, 8]], offset=1)  # the last element of a partition is 8 of 8
        assert isinstance(beyond, nl.NkiTensor)
        use(beyond)
        nl.store(out, tile)
        return out

    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    assert np.array_equal(nki.run(kernel, x, lambda beyond: None).outputs, x)
    shapes = []
    nki.run(kernel, x, lambda beyond: shapes.append(beyond.shape))
    assert shapes == [(4, 8)]
    uses = (
        lambda beyond: nisa.tensor_copy(nl.ndarray((4, 8), nl.float32), beyond),
        lambda beyond: nisa.memset(beyond, 0.0),
        lambda beyond: beyond[0:1].shape,
        repr,
    )
    for use in uses:
        with pytest.raises(BoundsError, match="elements 1 to 8") as caught:
            nki.run(kernel, x, use)
        assert "beyond = tile.ap" in caught.value.at.text


def test_an_empty_or_outside_window_may_be_made_but_not_used():
    def kernel(x, size, used):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        window = x[nl.ds(2, size)]
        if used:
            nl.load(window)
        nl.store(out, nl.load(x))
        return out

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    for size, said in ((0, "ds of 0"), (2, ""), (3, "2:5")):  # rows 2 and 3 are the last ones
        assert np.array_equal(nki.run(kernel, x, size, False).outputs, x)
        if size == 2:
            assert np.array_equal(nki.run(kernel, x, size, True).outputs, x)
            continue
        with pytest.raises(BoundsError, match=said) as caught:
            nki.run(kernel, x, size, True)
        assert "window = x[nl.ds(2, size)]" in caught.value.at.text


def test_the_truth_of_a_tensor_is_that_it_is_there():
    def kernel(x, extra=None):
        out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
        tile = nl.load(x)
        if extra:
            tile = nl.add(tile, nl.load(extra))
        if tile:
            nl.store(out, tile)
        return out

    x, zeros = np.ones((4, 8), np.float32), np.zeros((4, 8), np.float32)
    for more, wanted in (((), 1), ((zeros,), 1), ((x,), 2)):
        run = nki.run(kernel, x, *more)
        assert (run.outputs == wanted).all()
        assert [(f.code, f.where.text) for f in run.findings] == [("nki.truth", "if tile:")]


# Where a [64, 512] result goes in PSUM tiles, and the bytes of a bank it reaches (hand counted).
ACROSS = {
    "every other column": ((64, 1024), lambda p: p[:, ::2], 0, 4091),
    "the middle of two banks": ((64, 1024), lambda p: p[:, 256:768], 1024, 3071),
    "halves of two banks": ((64, 2, 512), lambda p: p[:, :, 0:256], 0, 3071),
    "columns of both by a pattern": ((64, 1024), lambda p: p.ap([[1024, 64], [2, 512]]), 0, 4091),
}


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("name", ACROSS)
def test_a_product_with_gaps_crosses_no_bank(name, target):
    shape, part, first, last = ACROSS[name]

    def kernel(x, y):
        p = nl.ndarray(shape, nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=part(p), stationary=nl.load(x), moving=nl.load(y))

    arrays = np.ones((128, 64), np.float32), np.ones((128, 512), np.float32)
    error = refusal(kernel, *arrays, target=target)
    assert error.code == "nc_matmul.rules"
    assert f"from byte {first} of a bank to byte {last}" in error.rule
    assert error.at.text.startswith("nisa.nc_matmul(")


def test_a_product_with_gaps_within_a_bank_is_the_product():
    """256 columns at every second place fill one bank exactly."""

    @nki.jit
    def kernel(x, y):
        p = nl.ndarray((64, 512), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=p[:, ::2], stationary=nl.load(x), moving=nl.load(y))
        out = nl.ndarray((64, 256), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, p[:, ::2])
        return out

    rng = np.random.default_rng(5)
    x, y = (rng.integers(-3, 4, (128, n)).astype(np.float32) for n in (64, 256))
    assert np.array_equal(kernel(x, y), x.T @ y)


def test_a_transpose_by_the_tensor_engine_crosses_no_bank():
    def kernel(x):
        p = nl.ndarray((64, 1024), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=p[:, 480:544], data=nl.load(x))

    error = refusal(kernel, np.ones((64, 64), np.float32))
    assert error.code == "nc_transpose.rules"
    assert "from byte 1920 of a bank to byte 2175" in error.rule


@pytest.mark.parametrize("grid", [1.5, "a", None, 0, (), (2, 0.5), -1, 2.0], ids=repr)
def test_grids_that_are_no_positive_integers(grid):
    kernel = nki.jit(lambda x: x)
    with pytest.raises(TrnError) as caught:
        kernel[grid]
    assert caught.value.code == "nki.grid"
    assert kernel[np.int64(2)].grid == (2,)


@pytest.mark.parametrize("bounds", [(2.5,), ("a",), (0, 2.5), (0.0, 2), (None, 3)], ids=repr)
def test_bounds_of_device_loops_that_are_no_integers(bounds):
    def ranged():
        for _ in nl.dynamic_range(*bounds):
            pass

    def called():
        nl.fori_loop(bounds[0], bounds[-1], lambda i: None)

    assert refusal(ranged).code == "nki.loop"
    if len(bounds) == 2:
        assert refusal(called).code == "nki.loop"


MISFITS = [
    (lambda t: nisa.memset(dst=t), "'value'", "memset(dst, value, engine, name)"),
    (lambda t: nisa.memset(t, 1, value=2), "'value'", "memset(dst, value, engine, name)"),
    (lambda t: nisa.memset(t, *range(9)), "positional", "memset(dst, value, engine, name)"),
    (lambda t: nl.load(), "'src'", "load(src, dtype)"),
    (lambda t: t.reshape(), "'shape'", "reshape(shape)"),
]


@pytest.mark.parametrize(("call", "told", "parameters"), MISFITS)
def test_calls_that_do_not_fit_a_function_name_its_parameters(call, told, parameters):
    def kernel():
        call(nl.ndarray((4, 4), nl.float32, nl.sbuf))

    with pytest.raises(TypeError) as caught:
        nki.run(kernel)
    assert caught.value.code == "nki.signature"
    assert told in caught.value.what
    assert caught.value.fix == f"the parameters are {parameters}"
    assert caught.value.at.text.startswith("(lambda t:")


@pytest.mark.parametrize("given", [None, [1, 2], "a", 3])
def test_what_is_no_tensor_is_named_where_a_tensor_belongs(given):
    def kernel(x):
        nl.load(x)

    with pytest.raises(TrnError) as caught:
        nki.run(kernel, given)
    assert caught.value.code == "nki.argument"
    assert caught.value.what == f"load: {given!r} is given where a tensor belongs"
    assert caught.value.at.text == "nl.load(x)"


def _lines(error):
    trace, lines = error.__traceback__, []
    while trace is not None:
        lines.append((trace.tb_frame.f_code.co_filename, trace.tb_frame.f_code.co_name))
        trace = trace.tb_next
    return lines


def _own_fault(x):
    _inner()


def _inner():
    try:
        {}["k"]
    except KeyError as error:
        raise RuntimeError("mine") from error


@pytest.mark.parametrize(
    "run",
    [
        lambda x: nki.run(_own_fault, x),
        lambda x: nki.jit(_own_fault)(x),
        lambda x: nki.jit(_own_fault)[2](x),
        lambda x: nki.simulate(_own_fault)(x),
        lambda x: nki.run_ranks(_own_fault, [(x,), (x,)]),
    ],
)
def test_errors_of_a_kernel_show_lines_of_the_kernel_only(run, monkeypatch):
    x = np.zeros((4, 4), np.float32)
    monkeypatch.delenv("OPENTRN_TRACEBACK", raising=False)
    with pytest.raises(RuntimeError) as caught:
        run(x)
    names = [name for file, name in _lines(caught.value) if file == __file__]
    assert names[1:] == ["<lambda>", "_own_fault", "_inner"]
    assert all(file == __file__ for file, _ in _lines(caught.value))
    assert _lines(caught.value.__cause__) == [(__file__, "_inner")]
    monkeypatch.setenv("OPENTRN_TRACEBACK", "full")
    with pytest.raises(RuntimeError) as caught:
        run(x)
    assert any("opentrn" in file and file != __file__ for file, _ in _lines(caught.value))


def test_refusals_end_at_the_line_of_the_kernel(monkeypatch):
    monkeypatch.delenv("OPENTRN_TRACEBACK", raising=False)

    def kernel():
        nl.ndarray((4, 4), nl.float32, "nowhere")

    with pytest.raises(TrnError) as caught:
        nki.run(kernel)
    assert _lines(caught.value)[-1] == (__file__, "kernel")


def test_tensors_may_be_unnamed():
    def kernel():
        out = nl.ndarray((4, 4), nl.float32, nl.shared_hbm, name=None)
        tile = nl.ndarray((4, 4), nl.float32, nl.sbuf, name=None)
        nisa.memset(tile, 2.0)
        nl.store(out, tile)
        return out

    assert (nki.run(kernel).outputs == 2).all()
