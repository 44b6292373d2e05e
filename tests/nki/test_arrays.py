"""Arguments of every kind go in, and results come back in the caller's kind."""

import ml_dtypes
import numpy as np
import pytest

from opentrn import nki
from opentrn.base import DtypeError, ShapeError, UsageError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl


@nki.jit
def plus_one(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.add(nl.load(x), 1.0))
    return out


@nki.jit
def both(pair, options):
    """Arrays inside a tuple and a dictionary."""
    a, b = pair
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.add(nl.load(a), nl.multiply(nl.load(b), options["factor"])))
    return out, out


@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_numpy_and_ml_dtypes(kind):
    found = plus_one(np.full((4, 3), 2.0, kind))
    assert type(found) is np.ndarray
    assert found.dtype == kind
    assert np.array_equal(found.astype(np.float64), np.full((4, 3), 3.0))


def test_views_that_are_not_dense_are_read_right():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2].T
    assert np.array_equal(plus_one(x), x + 1)


def test_containers_of_arrays():
    a, b = np.ones((4, 4), np.float32), np.full((4, 4), 2.0, np.float32)
    one, two = both((a, b), {"factor": 3.0})
    assert np.array_equal(one, np.full((4, 4), 7.0))
    assert np.array_equal(one, two)


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_torch_in_and_out(name):
    torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
    kind = getattr(torch, name)
    for given in (torch.full((4, 3), 2.0, dtype=kind), torch.nn.Parameter(torch.ones(4, 3) * 2)):
        found = plus_one(given)
        assert type(found) is torch.Tensor
        assert found.dtype == given.dtype
        assert torch.equal(found.double(), torch.full((4, 3), 3.0, dtype=torch.float64))


def test_jax_in_and_out():
    jnp = pytest.importorskip("jax.numpy", reason="the extra `jax` is not installed")
    given = jnp.full((4, 3), 2.0, jnp.bfloat16)
    found = plus_one(given)
    assert type(found) is type(given)
    assert found.dtype == jnp.bfloat16
    assert np.array_equal(np.asarray(found, np.float64), np.full((4, 3), 3.0))
    assert float(given[0, 0]) == 2.0


@nki.jit
def cast_and_scale(x, options, kind=None):
    """Two results, a dtype and a dictionary among the arguments."""
    kind = kind or x.dtype
    scaled = nl.ndarray(x.shape, kind, buffer=nl.shared_hbm)
    tile = nl.multiply(nl.load(x), options["factor"])
    nl.store(scaled, nl.copy(tile, kind))
    total = nl.ndarray((x.shape[0], 1), nl.float32, buffer=nl.shared_hbm)
    nl.store(total, nl.sum(tile, 1, dtype=nl.float32))
    return scaled, {"total": total}["total"]


def test_jax_functions_that_are_compiled_or_mapped_call_kernels():
    jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")
    x = jax.numpy.arange(24, dtype=jax.numpy.float32).reshape(2, 4, 3)

    def function(a):
        scaled, total = cast_and_scale(a + 1, {"factor": 2.0}, jax.numpy.bfloat16)
        return scaled, total * 10

    wanted = (np.arange(24.0).reshape(2, 4, 3) + 1) * 2
    scaled, total = jax.jit(function)(x[0])
    assert scaled.dtype == jax.numpy.bfloat16
    np.testing.assert_array_equal(np.asarray(scaled, np.float64), wanted[0])
    np.testing.assert_array_equal(np.asarray(total), wanted[0].sum(1, keepdims=True) * 10)
    mapped, _ = jax.jit(jax.vmap(function))(x)
    np.testing.assert_array_equal(np.asarray(mapped, np.float64), wanted)
    shape, _ = jax.eval_shape(function, x[0])
    assert (shape.shape, shape.dtype) == ((4, 3), jax.numpy.bfloat16)


def test_what_the_chip_refuses_is_refused_while_jax_traces():
    jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")
    x = jax.numpy.ones((256, 3))
    with pytest.raises(ShapeError) as caught:
        jax.jit(lambda a: plus_one(a))(x)
    assert caught.value.code == "nki.partitions"
    assert caught.value.at.text == "nl.store(out, nl.add(nl.load(x), 1.0))"


def test_a_compiled_jax_function_keeps_the_target_it_was_traced_for():
    jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")
    seen = []

    @nki.jit
    def kernel(x):
        seen.append(nki.current_chip().name)
        return plus_one(x)

    compiled = jax.jit(lambda a: kernel(a))
    with nki.use_target("trn3"):
        jax.block_until_ready(compiled(jax.numpy.ones((2, 2))))
    assert set(seen) == {"trn3"}


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32", "int32"])
def test_dtypes_of_every_library_are_arguments(kind):
    x = np.full((2, 3), 2.0, np.float32)
    given = [kind, getattr(nl, kind), np.dtype(getattr(ml_dtypes, kind, kind))]
    jnp = pytest.importorskip("jax.numpy", reason="the extra `jax` is not installed")
    torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
    for one in (*given, getattr(jnp, kind), getattr(torch, kind)):
        scaled, total = cast_and_scale(x, {"factor": 1.5}, one)
        assert scaled.dtype.name == kind
        assert (scaled.astype(np.float64) == 3).all()
        assert (total == 9).all()


def test_torch_tensors_without_values_are_refused():
    torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
    with pytest.raises(UsageError) as caught:
        plus_one(torch.ones(4, 3, device="meta"))
    assert caught.value.code == "nki.argument_values"


FACTOR = 2.0


@nki.jit
def scaled_by_a_global(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.load(x), FACTOR))
    return out


def test_a_kernel_never_uses_yesterdays_globals_closures_or_source(monkeypatch, tmp_path):
    x = np.ones((2, 2), np.float32)
    for factor in (3.0, 5.0):
        monkeypatch.setattr(f"{__name__}.FACTOR", factor)
        assert (scaled_by_a_global(x) == factor).all()
    settings = {"bias": 1.0}

    @nki.jit
    def biased(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.add(nl.load(x), settings["bias"]))
        return out

    assert (biased(x) == 2).all()
    settings["bias"] = 9.0
    assert (biased(x) == 10).all()
    source = tmp_path / "edited.py"
    for factor in (2.0, 4.0):
        source.write_text(
            "from opentrn import nki\nfrom opentrn.nki import language as nl\n\n"
            "@nki.jit\ndef kernel(x):\n"
            "    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n"
            f"    nl.store(out, nl.multiply(nl.load(x), {factor}))\n"
            "    return out\n"
        )
        names = {}
        exec(compile(source.read_text(), str(source), "exec"), names)
        assert (names["kernel"](x) == factor).all()


def test_a_compiled_jax_function_runs_the_kernel_as_it_is_now(monkeypatch):
    jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")
    compiled = jax.jit(lambda a: scaled_by_a_global(a))
    for factor in (3.0, 5.0):
        monkeypatch.setattr(f"{__name__}.FACTOR", factor)
        assert (np.asarray(compiled(jax.numpy.ones((2, 2)))) == factor).all()


def test_inputs_are_hbm_and_a_written_one_may_be_returned():
    @nki.jit
    def in_place(x):
        assert x.buffer == nl.hbm
        nl.store(x, nl.full(x.shape, 5.0, x.dtype))
        return x

    x = np.zeros((4, 3), np.float32)
    run = nki.run(in_place, x)
    assert np.array_equal(run.outputs, np.full((4, 3), 5.0))
    assert np.array_equal(x, run.outputs), "the caller's array is updated in place"
    assert run.findings == ()


@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_64_bit_arguments_are_refused(kind):
    with pytest.raises(DtypeError) as caught:
        plus_one(np.zeros((2, 2), kind))
    assert caught.value.code == "nki.argument_dtype"


@nki.jit
def as_given(x):
    """Its input, unchanged."""
    return x


@nki.jit
def filled(x):
    """Its input, written in place."""
    nisa.dma_copy(x, nl.full(x.shape, 7, x.dtype, nl.sbuf))
    return x


@pytest.mark.parametrize("kind", [np.float32, np.int32, np.uint8, ml_dtypes.bfloat16])
def test_a_returned_input_is_not_the_callers_array(kind):
    x = np.full((4, 3), 2, kind)
    got, again = as_given(x), as_given(x[:, 0:2])
    got[...] = 0
    again[...] = 0
    assert np.array_equal(x, np.full((4, 3), 2, kind))


def test_two_returns_of_one_tensor_are_two_arrays():
    @nki.jit
    def twice(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out, out

    first, second = twice(np.ones((4, 3), np.float32))
    first[...] = 0
    assert (second == 1).all()


def test_a_read_only_input_that_is_written_is_noticed():
    x = np.ones((4, 3), np.float32)
    assert nki.run(filled, x).findings == ()
    assert (x == 7).all()
    x = np.ones((4, 3), np.float32)
    x.flags.writeable = False
    run = nki.run(filled, x)
    assert [f.code for f in run.findings] == ["nki.read_only"]
    assert run.findings[0].where.file == __file__
    assert (x == 1).all()
    assert (run.outputs == 7).all()
    assert nki.run(as_given, x).findings == ()


def test_a_masked_array_is_refused():
    masked = np.ma.masked_array(np.ones((4, 3), np.float32), mask=np.eye(4, 3))
    with pytest.raises(UsageError) as caught:
        plus_one(masked)
    assert caught.value.code == "nki.argument_values"
    assert "filled" in caught.value.fix
    assert np.array_equal(plus_one(masked.filled(5)), 1 + np.where(np.eye(4, 3), 5, 1))


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch warns of its quantised tensors
def test_torch_tensors_that_are_not_plain_are_refused_with_the_way_out():
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def kernel(x):
        nl.load(x)

    eye = torch.eye(4)
    quantised = torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for tensor, sort, fix in [
        (eye.to_sparse(), "sparse", "to_dense"),
        (eye.to_sparse_csr(), "sparse", "to_dense"),
        (quantised, "quantised", "dequantize"),
        (nested, "nested", "to_padded_tensor"),
    ]:
        with pytest.raises(UsageError) as caught:
            nki.run(kernel, tensor)
        assert caught.value.code == "nki.argument_values"
        assert caught.value.what == f"an argument is a {sort} torch tensor"
        assert fix in caught.value.fix


def test_negated_torch_views_have_their_values():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    z = torch.complex(torch.zeros(4, 4), torch.arange(16.0).reshape(4, 4))
    negated = torch.conj(z).imag  # a view with the negative bit set
    assert negated.is_neg()

    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out

    assert np.array_equal(nki.run(kernel, negated).outputs.numpy(), -np.arange(16.0).reshape(4, 4))
