"""Where an accumulation group begins: tiles that go round the banks by address, and transposes."""

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import LimitError, bfloat16
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.sim import Replay

BANK = 2048


@nki.jit
def round_the_banks(a, b):
    """Three sums of two products, in tiles made at two addresses."""
    out = nl.ndarray((3, 64, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    lhs = nl.ndarray((64, 2, 64), dtype=nl.float32, buffer=nl.sbuf)
    rhs = nl.ndarray((64, 2, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=lhs, src=a)
    nisa.dma_copy(dst=rhs, src=b)
    for n in range(3):
        acc = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum, address=(0, n % 2 * BANK))
        for k in range(2):
            nisa.nc_matmul(dst=acc, stationary=lhs[:, k, :], moving=rhs[:, k, :])
        done = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=done, src=acc)
        nisa.dma_copy(dst=out[n], src=done)
    return out


def test_a_new_tile_at_an_old_address_begins_a_new_sum():
    random = np.random.default_rng(0)
    a, b = random.integers(-8, 8, size=(2, 64, 2, 64)).astype(np.float32)
    right = np.einsum("pkm,pkn->mn", a, b)
    run = nki.run(round_the_banks, a, b)
    again = Replay(run.program, run.chip)
    for outputs in (run.outputs, *again([a, b]), *again([a, b])):
        for block in np.reshape(outputs, (3, 64, 64)):
            assert np.array_equal(block, right)


@nki.jit
def transposed(x, identity):
    """xᵀ by nc_matmul in transpose mode, PSUM in the dtype of x."""
    out = nl.ndarray((64, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((64, 64), dtype=x.dtype, buffer=nl.sbuf)
    ones = nl.ndarray((64, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=ones, src=identity)
    turned = nl.ndarray((64, 64), dtype=x.dtype, buffer=nl.psum)
    nisa.nc_matmul(dst=turned, stationary=tile, moving=ones, is_transpose=True)
    nisa.tensor_copy(dst=tile, src=turned)
    nisa.dma_copy(dst=out, src=tile)
    return out


@pytest.mark.parametrize("kind", [bfloat16.storage, np.dtype(np.float16), np.dtype(np.float32)])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_transpose_mode_hands_on_infinities_and_nan(kind, target):
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64).astype(kind)
    x[3, 5], x[60, 2], x[0, 63] = np.inf, -np.inf, np.nan
    identity = np.eye(64).astype(kind)
    with nki.use_target(target):
        out = nki.run(transposed, x, identity).outputs
    np.testing.assert_array_equal(out.astype(np.float32), x.T.astype(np.float32))


def test_transpose_mode_does_not_exist_on_trn1():
    x = np.ones((64, 64), bfloat16.storage)
    with nki.use_target("trn1"), pytest.raises(LimitError, match="must be float32 on trn1"):
        nki.run(transposed, x, x)
