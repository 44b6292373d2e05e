"""Running one nl function on arrays: each array becomes an SBUF tile, the result an array."""

import ml_dtypes
import numpy as np

from opentrn import nki
from opentrn.nki import language as nl

BF16 = ml_dtypes.bfloat16


def applied(function, *arrays, target="trn2"):
    """`function` of tiles holding `arrays`, as an array of its dtype; no findings allowed."""

    def kernel(*given):
        tile = function(*[nl.load(x) for x in given])
        out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm, name="out")
        nl.store(out, tile)
        return out

    with nki.use_target(target):
        run = nki.run(kernel, *arrays)
    assert run.findings == ()
    return run.outputs


def close(found, wanted, relative=4e-6, least=1e-6):
    """Assert equality within `relative` of each value (or `least`), NaN and infinities alike."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape
    special = ~np.isfinite(wanted)
    np.testing.assert_array_equal(found[special], wanted[special])
    error = np.abs(found - wanted)[~special]
    limit = np.maximum(np.abs(wanted[~special]) * relative, least)
    assert (error <= limit).all(), f"largest error {error.max()}"
