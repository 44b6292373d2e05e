"""Calling kernels: arguments of every kind, results in the caller's kind, runs, targets, checks."""

import ml_dtypes
import numpy as np
import pytest

from opentrn import nki
from opentrn.base import DtypeError, UnknownNameError, UnwrittenError, UsageError
from opentrn.isa import Executable, parse_program, program_text
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.sim import Replay, Strict
from tests.nki.tiles import BF16

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def stored(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm, name="out")
    nl.store(out, tile)
    return out


@nki.jit
def double(x):
    """2 x."""
    return stored(nl.multiply(nl.load(x), 2.0))


def test_a_kernel_is_called_wrapped_simulated_and_run():
    assert double.__name__ == "double"
    assert double.__doc__ == "2 x."
    plain = double.func
    for way in (double, double[1], nki.simulate(double), nki.simulate(plain), nki.jit(plain)):
        assert np.array_equal(way(X), 2 * X)
    run = nki.run(double, X)
    assert np.array_equal(run.outputs, 2 * X)
    assert (run.name, run.chip.name) == ("double", "trn2")
    assert run.program.counts() == {"dma_copy": 2, "tensor_scalar": 1}


def test_jit_takes_options_of_older_releases():
    made = nki.jit(mode="baremetal", platform_target="trn2")(double.func)
    assert made.options == {"mode": "baremetal", "platform_target": "trn2"}
    assert np.array_equal(made(X), 2 * X)
    assert nki.jit(made) is made


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32",
     "bfloat16", "float8_e5m2", "float8_e4m3"],
)  # fmt: skip
def test_arrays_of_every_dtype_go_in_and_out_unchanged(dtype):
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    x = (np.arange(40).reshape(8, 5) % 3).astype(kind)

    def kernel(a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray(a.shape, a.dtype)
        nisa.dma_copy(t, a)
        nisa.dma_copy(out, t)
        return out

    found = nki.simulate(kernel)(x)
    assert found.dtype == x.dtype
    assert np.array_equal(found, x)


def test_arrays_of_any_layout_are_taken():
    big = np.arange(240, dtype=np.float32).reshape(12, 20)
    for x in (big.T, big[::2, 3:9], np.asfortranarray(big), big[::-1]):
        assert np.array_equal(double(x), 2 * x)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.complex64])
def test_dtypes_the_chip_lacks_are_refused(dtype):
    with pytest.raises(DtypeError) as caught:
        double(X.astype(dtype))
    assert caught.value.code in ("nki.argument_dtype", "base.dtype")


def test_numbers_of_no_dimension_become_one_element():
    def kernel(x):
        assert x.shape == (1,)
        return stored(nl.load(x))

    assert nki.simulate(kernel)(np.array(3.0, np.float32)).tolist() == [[3]]


torch = pytest.importorskip("torch", reason="the torch extra is not installed")


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "int32", "uint8", "bool", "float8_e5m2"]
)
def test_torch_tensors_come_back_as_torch_tensors(dtype):
    kind = getattr(torch, dtype)
    x = (torch.arange(12).reshape(3, 4) % 3).to(kind)

    def kernel(a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, a)
        return out

    found = nki.simulate(kernel)(x)
    assert found.dtype == kind
    assert found.float().tolist() == x.float().tolist()


def test_torch_views_and_gradients_do_not_matter():
    x = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6).t().requires_grad_()
    assert torch.equal(double(x), (2 * x).detach())
    mixed = nki.simulate(lambda pair: stored(nl.add(nl.load(pair[0]), nl.load(pair[1]))))
    assert torch.equal(
        mixed([torch.ones(2, 3), np.ones((2, 3), np.float32)]), torch.full((2, 3), 2)
    )


def test_arguments_of_every_kind():
    def kernel(x, scale=1.0, *more, bias, flags=(), **named):
        assert flags == ("a", None)
        t = nl.multiply(nl.load(x), scale)
        for each in (*more, bias["one"], *bias["two"], named["last"]):
            t = nl.add(t, nl.load(each))
        return stored(t)

    ones = np.ones_like(X)
    run = nki.run(
        kernel, X, 3.0, ones, 2 * ones, bias={"one": 4 * ones, "two": [8 * ones]},
        flags=("a", None), last=16 * ones,
    )  # fmt: skip
    assert np.array_equal(run.outputs, 3 * X + 31)
    names = [b.name for b in run.program.inputs]
    assert names == ["x", "more_0", "more_1", "bias_one", "bias_two_0", "last"]


def test_defaults_and_keywords():
    def kernel(x, y=None, *, scale=2.0):
        t = nl.load(x)
        if y is not None:
            t = nl.add(t, nl.load(y))
        return stored(nl.multiply(t, scale))

    call = nki.simulate(kernel)
    assert np.array_equal(call(X), 2 * X)
    assert np.array_equal(call(x=X, y=X), 4 * X)
    assert np.array_equal(call(X, X, scale=0.5), X)
    with pytest.raises(TypeError):
        call(X, X, 0.5)


def test_results_of_every_shape():
    def kernel(x):
        first, second = stored(nl.load(x)), stored(nl.add(nl.load(x), 1.0))
        return first, [second, first]

    first, rest = nki.simulate(kernel)(X)
    assert np.array_equal(first, X)
    assert isinstance(rest, list)
    assert np.array_equal(rest[0], X + 1)
    assert nki.simulate(lambda x: None)(X) is None


def test_a_returned_view_is_what_comes_back():
    def kernel(x):
        out = nl.ndarray((3, 8), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out[:, 0:4], x)
        return out[:, 0:4].permute((1, 0))

    run = nki.run(kernel, X)
    assert np.array_equal(run.outputs, X.T)
    assert run.findings == ()


def test_kernels_call_kernels():
    @nki.jit
    def inner(x, times=1):
        for _ in nl.static_range(times):
            x = double(x)
        return x

    run = nki.run(lambda x: stored(nl.load(inner(x, times=3))), X)
    assert np.array_equal(run.outputs, 8 * X)
    assert run.program.counts()["tensor_scalar"] == 3


def test_functions_outside_a_kernel_are_refused():
    for call in (
        lambda: nl.ndarray((1, 1), nl.float32),
        lambda: nisa.memset(None, 0),
        lambda: nl.program_id(0),
        lambda: next(nl.dynamic_range(3)),
        lambda: nisa.register_alloc(1),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.code == "nki.outside_kernel"


def test_only_shared_hbm_tensors_are_returned():
    for buffer in (nl.sbuf, nl.psum, nl.private_hbm):
        with pytest.raises(UsageError) as caught:
            nki.run(lambda b=buffer: nl.full((4, 4), 0, nl.float32, buffer=b, name="t"))
        assert caught.value.code == "nki.output_space"
        assert "`t`" in caught.value.what
    with pytest.raises(UsageError) as caught:
        nki.run(lambda: 3)
    assert caught.value.code == "nki.return"


def test_an_output_nobody_wrote_is_an_error_and_never_zeros():
    def kernel(x):
        return nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="o")

    with pytest.raises(UnwrittenError) as caught:
        nki.run(kernel, X)
    error = caught.value
    assert error.code == "sim.unwritten_output"
    assert error.what == "output `o`: 100% unwritten"
    assert error.at.text.startswith("return nl.ndarray(x.shape")
    with nki.use_strict(Strict(unwritten_output="report")):
        run = nki.run(kernel, X)
    assert np.isnan(run.outputs).all()
    assert [f.code for f in run.findings] == ["sim.unwritten_output"]


@pytest.mark.parametrize(
    ("dtype", "unwritten"),
    [(np.float32, np.nan), (BF16, np.nan), (np.float16, np.nan), (ml_dtypes.float8_e5m2, np.nan),
     (np.int32, 2**31 - 1), (np.int8, 127), (np.uint16, 65535)],
)  # fmt: skip
def test_what_was_not_written_is_not_zero(dtype, unwritten):
    def kernel(x):
        out = nl.ndarray((4, 6), x.dtype, buffer=nl.shared_hbm, name="o")
        nisa.dma_copy(out[0:3, 0:4], x)
        return out

    run = nki.run(kernel, X.astype(dtype))
    found = run.outputs.astype(np.float64)
    assert np.array_equal(found[:3, :4], X.astype(dtype).astype(np.float64))
    np.testing.assert_array_equal(found[3], np.full(6, unwritten))
    np.testing.assert_array_equal(found[:, 4:], np.full((4, 2), unwritten))
    assert [f.what for f in run.findings] == ["output `o`: 50.0% unwritten"]


def test_a_written_input_is_a_finding_and_the_callers_array_is_updated():
    def kernel(x):
        t = nl.load(x)
        nl.store(x, nl.add(t, 1.0))
        return stored(nl.load(x))

    x = X.copy()
    run = nki.run(kernel, x)
    assert np.array_equal(run.outputs, X + 1)
    assert np.array_equal(x, X + 1), "as the vendor's simulator does"
    assert [f.code for f in run.findings] == ["sim.mutated_input"]
    assert "input `x` is written in place and not returned" in str(run.findings[0])
    frozen = X.copy()
    frozen.flags.writeable = False
    assert np.array_equal(nki.run(kernel, frozen).outputs, X + 1)


def test_a_written_input_that_is_returned_is_no_finding():
    def kernel(x):
        nl.store(x, nl.add(nl.load(x), 1.0))
        return x

    run = nki.run(kernel, X.copy())
    assert np.array_equal(run.outputs, X + 1)
    assert run.findings == ()


def test_targets_are_chosen_for_a_block():
    seen = []

    def kernel(x):
        seen.append((nki.current_chip().name, nisa.get_nc_version().name))
        return stored(nl.load(x))

    for name in ("trn1", "inf2", "trn2", "gen3", "trn3"):
        with nki.use_target(name) as chip:
            assert nki.run(kernel, X).chip is chip
    nki.run(kernel, X)
    assert [version for _, version in seen] == ["gen2", "gen2", "gen3", "gen3", "gen4", "gen3"]
    with pytest.raises(UnknownNameError) as caught, nki.use_target("trn9"):
        pass
    assert caught.value.code == "hw.target"


def test_runs_are_watched_inside_the_block_only():
    double(X)
    with nki.watch() as runs:
        double(X)
        with nki.watch() as inner:
            double(X)
    double(X)
    assert len(runs) == 2
    assert len(inner) == 1
    assert inner[0] is runs[1]


def test_an_error_leaves_no_kernel_running():
    def kernel(x):
        nl.load(x)
        raise RuntimeError("of the user")

    with pytest.raises(RuntimeError, match="of the user"):
        nki.run(kernel, X)
    with pytest.raises(UsageError) as caught:
        nl.ndarray((1, 1), nl.float32)
    assert caught.value.code == "nki.outside_kernel"


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        (lambda out: out[1:3], lambda x: x[1:3]),
        (lambda out: out[:, ::2], lambda x: x[:, ::2]),
        (lambda out: out.permute((1, 0)), lambda x: x.T),
        (lambda out: out.reshape((24,)), lambda x: x.reshape(24)),
        (lambda out: out.view(nl.int32), lambda x: x.view(np.int32)),
        (lambda out: out, lambda x: x),
    ],
    ids=["rows", "columns", "turned", "flat", "bits", "whole"],
)
def test_a_returned_view_is_what_a_replay_returns_too(part, wanted):
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.multiply(nl.load(x), 2.0))
        return part(out), x

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    run = nki.run(kernel, x)
    np.testing.assert_array_equal(run.outputs[0], wanted(2 * x))
    for program in (run.program, parse_program(program_text(run.program))):
        again = Replay(program, run.chip)([x + 1])
        np.testing.assert_array_equal(again[0], wanted(2 * (x + 1)))
        np.testing.assert_array_equal(again[1], x + 1)
    made = Executable.of(run.program).outputs
    assert [one.shape for one in made] == [wanted(x).shape, x.shape]


def test_a_call_that_does_not_fit_is_refused_at_its_line():
    @nki.jit
    def two(x, y):
        return x

    x = np.ones((4, 4), np.float32)
    calls = {
        "missing a required argument: 'y'": lambda: two(x),
        "too many positional arguments": lambda: two(x, x, x),
        "got an unexpected keyword argument 'z'": lambda: two(x, y=x, z=1),
        "this is no function": lambda: nki.jit(5),
        "nki.jit(5)": lambda: nki.run(5),
    }
    for words, call in calls.items():
        with pytest.raises(TypeError) as caught:
            call()
        assert caught.value.code == "nki.call"
        assert words in caught.value.what
        assert caught.value.at.file == __file__
        assert caught.value.at.line == call.__code__.co_firstlineno
