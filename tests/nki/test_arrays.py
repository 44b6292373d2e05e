"""Arguments of every kind go in, and results come back in the caller's kind."""

import ml_dtypes
import numpy as np
import pytest

from opentrn import nki
from opentrn.base import DtypeError
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
