"""Shapes declared in a kernel's signature are enforced."""

import numpy as np
import pytest

from opentrn import dropin, nki
from opentrn.base import ShapeError
from opentrn.nki import language as nl
from opentrn.nki.typing import tensor


@nki.jit
def twice(x: tensor[4, 6], y: tensor, scale: float = 2.0):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.add(nl.load(x), nl.load(y)), scale))
    return out


def test_the_declared_shape_passes():
    x, y = np.arange(24, dtype=np.float32).reshape(4, 6), np.ones((4, 6), np.float32)
    assert np.array_equal(twice(x, y), (x + 1) * 2)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6, 1), (24,)])
def test_another_shape_is_refused(shape):
    with pytest.raises(ShapeError, match=r"`x` has shape .*declares \[4, 6\]") as caught:
        twice(np.ones(shape, np.float32), np.ones(shape, np.float32))
    assert caught.value.code == "nki.declared_shape"


def test_one_dimension():
    assert tensor[5].shape == (5,)
    assert tensor.shape is None


def test_scripts_find_it():
    with dropin.install():
        import nki.typing as nt

        assert nt.tensor is tensor
