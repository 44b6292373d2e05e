"""The kernel of attention's gradients against gradients in float64."""

import sys

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import LimitError
from opentrn.nki import kernels
from tests.nki.kernel_checks import close, every_dtype, every_target, exact, numbers, run

# The module: the package has the kernel under its name.
backward = sys.modules["opentrn.nki.kernels.attention_backward"]
# Errors in roundings of the largest number: float32 sums scores, slopes and products; in bfloat16
# weights and slopes are rounded before they are multiplied again, and results once more.
ROUNDS = {"float32": 64, "bfloat16": 4}


def weights_of(q, k, mask, scale, causal):
    """Softmax weights in float64; a row that sees nothing has none."""
    scores = np.einsum("bhtd,bhsd->bhts", q, k) * scale
    if mask is not None and mask.dtype.kind in "bu":
        scores = np.where(mask != 0, scores, -np.inf)
    elif mask is not None:
        scores = scores + exact(mask)
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[2:])) > 0, scores, -np.inf)
    peak = scores.max(-1, keepdims=True)
    grown = np.exp(scores - np.where(np.isinf(peak), 0, peak))
    total = grown.sum(-1, keepdims=True)
    return grown / np.where(total == 0, 1, total)


def gradients(q, k, v, grad, mask=None, scale=None, causal=False):
    """(result, dQ, dK, dV) by the chain rule through the softmax, in float64."""
    repeat = q.shape[1] // k.shape[1]
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    q, k, v, grad = (exact(x) for x in (q, k, v, grad))
    keys, values = np.repeat(k, repeat, 1), np.repeat(v, repeat, 1)
    weights = weights_of(q, keys, mask, scale, causal)
    worth = np.einsum("bhtd,bhsd->bhts", grad, values)
    slopes = weights * (worth - (weights * worth).sum(-1, keepdims=True)) * scale

    def fold(x):
        return x.reshape(x.shape[0], -1, repeat, *x.shape[2:]).sum(2)

    return (
        np.einsum("bhts,bhsd->bhtd", weights, values),
        np.einsum("bhts,bhsd->bhtd", slopes, keys),
        fold(np.einsum("bhts,bhtd->bhsd", slopes, q)),
        fold(np.einsum("bhts,bhtd->bhsd", weights, grad)),
    )


def check(size, mask=None, scale=None, dtype="float32", causal=False, target="trn2"):
    """Run the kernel and compare; `size` is (batch, heads, key heads, queries, keys, width)."""
    b, h, g, t, s, d = size
    q, grad = numbers(0, b, h, t, d, dtype=dtype), numbers(3, b, h, t, d, dtype=dtype)
    k, v = numbers(1, b, g, s, d, dtype=dtype), numbers(2, b, g, s, d, dtype=dtype)
    out, *want = gradients(q, k, v, grad, mask, scale, causal)
    args = (q, k, v, out.astype(q.dtype), grad, mask, scale, causal)
    found = run(kernels.attention_backward, *args, target=target)
    for one, right in zip(found, want, strict=True):
        close(one, right, ROUNDS[dtype])
    return found


@every_dtype
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "size",
    [
        (1, 1, 1, 1, 1, 1), (2, 2, 2, 7, 7, 8), (1, 4, 2, 129, 127, 64), (1, 2, 1, 130, 200, 32),
        (1, 2, 2, 300, 140, 16), (1, 2, 1, 260, 700, 128),
    ],
)  # fmt: skip
def test_gradients_of_any_size(size, causal, dtype):
    check(size, causal=causal, dtype=dtype)


@every_target
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 1, 1, 200), (1, 4, 130, 200), (2, 1, 130, 200)])
def test_boolean_masks_hide_keys(shape, causal, target):
    mask = np.random.default_rng(9).random(shape) > 0.3
    mask[..., 0] = True
    mask[0, 0, 0, :100] = False  # with causality, the first query of this head sees nothing
    check((2, 4, 2, 130, 200, 32), mask, causal=causal, target=target)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("hidden", [-np.inf, np.finfo(np.float32).min, -2.5])
def test_numbers_of_a_mask_are_added(hidden, causal):
    seen = np.random.default_rng(9).random((1, 2, 140, 150)) > 0.3
    mask = np.where(seen, 0, hidden).astype(np.float32)
    # All scores of this row are hidden: where the number is finite they are equal, and torch's own
    # kernel, which keeps one logarithm of a row, gives gradients as many times too large.
    mask[0, 0, 3] = hidden
    check((1, 2, 2, 140, 150, 40), mask, causal=causal)


def test_queries_that_see_nothing_have_no_gradient():
    for nothing in (np.zeros((1, 1, 1, 6), np.uint8), np.full((1, 1, 1, 6), -np.inf, np.float32)):
        for one in check((1, 1, 1, 5, 6, 8), nothing):
            assert not one.any()


@pytest.mark.parametrize("scale", [0.3, -0.2, 3.0])
@pytest.mark.parametrize("masked", [False, True])
def test_scales_of_any_sign(scale, masked):
    mask = numbers(5, 1, 1, 20, 30) if masked else None
    check((1, 2, 2, 20, 30, 8), mask, scale)


@pytest.mark.parametrize("causal", [False, True])
def test_windows_of_queries_and_chunks_of_keys(monkeypatch, causal):
    monkeypatch.setattr(backward, "WINDOW_BYTES", 4 << 10)
    monkeypatch.setattr(backward, "HELD_BYTES", 1 << 10)
    monkeypatch.setattr(backward, "CHUNK", 128)
    check((1, 2, 1, 400, 420, 16), causal=causal)
    check((1, 2, 1, 400, 420, 16), causal=causal, dtype="bfloat16")


def test_heads_too_wide_are_refused():
    q = numbers(0, 1, 1, 4, 129)
    with pytest.raises(LimitError, match="129 elements"):
        nki.run(kernels.attention_backward, q, q, q, q, q)
