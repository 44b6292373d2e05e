"""The high-precision mode: low-precision floats keep float32 values; the default rounds them."""

import ml_dtypes
import numpy as np
import pytest

from opentrn import nki
from opentrn.base import TrnError, bfloat16, float8_e4m3, float32, int8, numerics, widened
from opentrn.dropin import install
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.sim import Strict

LOOSE = Strict(precise=False)


@nki.jit
def third(a, dtype):
    out = nl.ndarray(a.shape, dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(a.shape, dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(tile, nl.load(a), nl.multiply, 1 / 3)
    nl.store(out, tile)
    return out


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3"])
@pytest.mark.parametrize("columns", [4, 4096])
def test_low_precision_keeps_float32_values_only_when_asked(dtype, columns):
    x = np.linspace(1, 2, 128 * columns, dtype=np.float32).reshape(128, columns)
    exact = x * np.float32(1 / 3)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    with nki.use_strict(LOOSE):
        loose = nki.simulate(third)(x, dtype)
    assert loose.dtype == np.float32
    np.testing.assert_array_equal(loose, exact)
    rounded = nki.simulate(third)(x, dtype)
    np.testing.assert_array_equal(rounded, exact.astype(kind))


def test_inputs_matmuls_and_sizes():
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal((128, n)).astype(ml_dtypes.bfloat16) for n in (64, 512))

    def product(w, x):
        acc = nl.ndarray((64, 512), nl.float32, buffer=nl.psum)
        a, b = nl.load(w), nl.load(x)
        assert (a.dtype, a.dtype.itemsize) == ("bfloat16", 2)
        nisa.tensor_scalar(b, b, nl.multiply, 1.001)
        nisa.nc_matmul(acc, a, b)
        out = nl.ndarray((64, 512), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, acc)
        return out

    wide = [a.astype(np.float64) for a in (w, x)]
    with nki.use_strict(LOOSE):
        found = nki.simulate(product)(w, x)
    np.testing.assert_allclose(found, wide[0].T @ (wide[1] * 1.001), rtol=1e-4, atol=1e-4)


def test_bits_of_values_that_were_never_rounded_are_refused():
    def kernel(a):
        tile = nl.ndarray((4, 4), nl.bfloat16)
        nisa.memset(tile, 1.0)
        nisa.tensor_copy(nl.ndarray((4, 4), nl.uint16), tile.view(nl.uint16))

    with nki.use_strict(LOOSE), pytest.raises(TrnError) as caught:
        nki.simulate(kernel)(np.zeros((4, 4), np.float32))
    assert caught.value.code == "sim.precise_bits"


def test_widened_types_are_equal_by_name_and_never_round():
    wide = widened(bfloat16)
    assert wide == bfloat16
    assert (wide.narrow, wide.itemsize, wide.storage) == (bfloat16, 2, np.float32)
    assert widened(wide) is wide
    assert widened(float32) is float32
    assert widened(int8) is int8
    x = np.linspace(0, 1, 33, dtype=np.float32)
    np.testing.assert_array_equal(numerics.encode(x, widened(float8_e4m3)), x)
    np.testing.assert_array_equal(numerics.decode(x, wide), x)
    np.testing.assert_array_equal(numerics.round_to(x, wide), x)


def test_scripts_choose_by_the_environment(monkeypatch):
    x = np.full((4, 4), 1.0, np.float32)
    for told, kind in (("0", np.float32), ("1", ml_dtypes.bfloat16)):
        monkeypatch.setenv("NKI_PRECISE_FP", told)
        with install("trn2"):
            assert nki.simulate(third)(x, "bfloat16").dtype == kind
