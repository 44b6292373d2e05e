"""Kernel linear_norm: layer_norm(act(x · w + bias) + residual) against float64."""

import numpy as np
import pytest

from opentrn.base import LimitError
from opentrn.nki import kernels
from tests.nki.kernel_checks import about, close, every_dtype, every_target, exact, numbers, run


def wanted(x, w, bias, residual, weight, shift, epsilon=1e-5):
    total = exact(x) @ exact(w) + exact(bias) + exact(residual)
    apart = total - total.mean(-1, keepdims=True)
    normal = apart / np.sqrt((apart**2).mean(-1, keepdims=True) + epsilon)
    return normal * exact(weight) + exact(shift)


@every_dtype
@every_target
@pytest.mark.parametrize(("rows", "depth", "width"), [(130, 200, 96), (3, 64, 600), (300, 1, 7)])
def test_products_of_any_size(rows, depth, width, dtype, target):
    x, w = numbers(0, rows, depth, dtype=dtype), numbers(1, depth, width, dtype=dtype)
    bias, weight, shift = (numbers(n, width, dtype=dtype) for n in (2, 3, 4))
    residual = numbers(5, rows, width, dtype=dtype)
    args = (x, w, bias, residual, weight, shift)
    found = run(kernels.linear_norm, *args, target=target)
    close(found, wanted(*args), 4 * about(dtype, depth) if dtype == "float32" else 1.1)


def test_without_some_of_it_and_with_an_activation():
    x, w, row = numbers(0, 40, 60), numbers(1, 60, 30), numbers(2, 30)
    total = np.tanh(exact(x) @ exact(w))
    apart = total - total.mean(-1, keepdims=True)
    want = apart / np.sqrt((apart**2).mean(-1, keepdims=True) + 1e-3)
    for weight in (None, row):
        found = run(kernels.linear_norm, x, w, None, None, weight, None, "tanh", 1e-3)
        close(found, want * (1.0 if weight is None else exact(row)), 40, "float32")


def test_rows_that_come_in_parts_are_refused():
    x, w = numbers(0, 2, 128), numbers(1, 128, 8192)
    with pytest.raises(LimitError, match="rows of 8192 come in parts of 4096"):
        run(kernels.linear_norm, x, w, None, None, None, None)
