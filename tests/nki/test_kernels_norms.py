"""Kernels layer_norm, rms_norm and softmax against float64."""

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import UsageError
from opentrn.nki import kernels
from tests.nki.kernel_checks import close, every_dtype, every_target, exact, numbers, run

WIDTHS = [1, 7, 127, 513, 7000]
# Subtracting the mean and dividing keep a few roundings of the largest number.
ROUNDS = {"float32": 16, "bfloat16": 1.1}


def layer_normed(x, weight=1.0, bias=0.0, epsilon=1e-5):
    apart = x - x.mean(-1, keepdims=True)
    return apart / np.sqrt((apart**2).mean(-1, keepdims=True) + epsilon) * weight + bias


def rms_normed(x, weight=1.0, epsilon=1e-6):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight


@every_dtype
@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm_of_any_width(width, dtype):
    x, residual = (numbers(n, 2, 65, width, dtype=dtype) for n in (0, 1))
    weight, bias = (numbers(n, width, dtype=dtype) for n in (2, 3))
    found = run(kernels.layer_norm, x, weight, bias, 1e-5, residual)
    want = layer_normed(exact(x) + exact(residual), exact(weight), exact(bias))
    close(found, want, ROUNDS[dtype])


@every_target
def test_layer_norm_without_some_of_it(target):
    x, row = numbers(0, 300, 40), numbers(1, 40)
    for weight in (None, row):
        for bias in (None, row):
            found = run(kernels.layer_norm, x, weight, bias, 1e-3, target=target)
            scale = 1.0 if weight is None else exact(weight)
            shift = 0.0 if bias is None else exact(bias)
            close(found, layer_normed(exact(x), scale, shift, 1e-3), ROUNDS["float32"])


def test_layer_norm_far_from_zero():
    x = (numbers(0, 50, 300) * 0.5 + 1000).astype(np.float32)
    found = run(kernels.layer_norm, x)
    # Inputs near 1000 are multiples of 2⁻¹⁴: the exact result is not lost by cancellation.
    assert np.abs(found - layer_normed(exact(x))).max() < 2e-3


@every_target
@every_dtype
@pytest.mark.parametrize("width", [1, 300, 7000])
def test_rms_norm(target, dtype, width):
    x, residual = (numbers(n, 131, width, dtype=dtype) for n in (0, 1))
    weight = numbers(2, width, dtype=dtype)
    found = run(kernels.rms_norm, x, weight, 1e-6, residual, target=target)
    want = rms_normed(exact(x) + exact(residual), exact(weight))
    close(found, want, ROUNDS[dtype])
    plain = run(kernels.rms_norm, x, target=target)
    close(plain, rms_normed(exact(x)), ROUNDS[dtype])


@every_target
@every_dtype
@pytest.mark.parametrize("width", [1, 129, 7000])
def test_softmax(target, dtype, width):
    x = numbers(0, 3, 50, width, dtype=dtype)
    grown = np.exp(exact(x))
    want = grown / grown.sum(-1, keepdims=True)
    close(run(kernels.softmax, x, target=target), want, ROUNDS[dtype])


def test_softmax_of_large_numbers_and_of_hidden_ones():
    x = np.array([[1e30, 0, -1e30, 1e30], [-np.inf, 0, -np.inf, 0]], np.float32)
    want = np.array([[0.5, 0, 0, 0.5], [0, 0.5, 0, 0.5]])
    assert np.array_equal(run(kernels.softmax, x), want)


@nki.jit
def _of_a_turned_view(x):
    return kernels.softmax(x.permute((1, 0)))


def test_softmax_of_a_turned_view_and_of_another_axis():
    x = numbers(0, 60, 30)
    grown = np.exp(exact(x).T)
    close(run(_of_a_turned_view, x), grown / grown.sum(-1, keepdims=True), 16)
    with pytest.raises(UsageError, match="axis 0"):
        nki.run(kernels.softmax, x, 0)
