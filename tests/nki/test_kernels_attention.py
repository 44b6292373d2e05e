"""The attention kernel against softmax in float64."""

import sys

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import LimitError
from opentrn.nki import kernels
from tests.nki.kernel_checks import close, every_dtype, every_target, exact, numbers, run


def attended(q, k, v, mask=None, scale=None, causal=False):
    """Softmax attention in float64; rows that see nothing are 0."""
    q, k, v = exact(q), exact(k), exact(v)
    repeat = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, repeat, 1), np.repeat(v, repeat, 1)
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
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
    return np.einsum("bhts,bhsd->bhtd", grown / np.where(total == 0, 1, total), v)


def heads(seed, b, h, t, d, dtype="float32"):
    return numbers(seed, b, h, t, d, dtype=dtype)


def visible(*shape, hide_all=()):
    mask = (np.random.default_rng(9).random(shape) > 0.3).astype(np.uint8)
    mask[..., 0] = 1
    for place in hide_all:
        mask[place] = 0
    return mask


# exp magnifies the rounding of scores, the sum of products adds its own.
FLOAT32 = 64
# Probabilities and the result are each rounded to bfloat16.
ROUNDS = {"float32": FLOAT32, "bfloat16": 2.2}


@every_dtype
@pytest.mark.parametrize(
    "size",
    [(1, 1, 1), (7, 7, 7), (127, 129, 64), (129, 128, 32), (1, 700, 128), (300, 1, 16)],
)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_any_size(size, dtype, causal):
    t, s, d = size
    q, k, v = heads(0, 1, 3, t, d, dtype), heads(1, 1, 3, s, d, dtype), heads(2, 1, 3, s, d, dtype)
    found = run(kernels.attention, q, k, v, causal=causal)
    close(found, attended(q, k, v, causal=causal), ROUNDS[dtype])


@every_target
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "mask",
    [
        visible(2, 1, 1, 200),
        visible(2, 1, 130, 200, hide_all=[(0, 0, 5)]),
        visible(1, 4, 130, 200, hide_all=[(0, 2, slice(0, 50))]),
        visible(2, 1, 1, 200).astype(bool),
    ],
    ids=["keys", "queries", "heads", "bool"],
)
def test_boolean_masks_hide_keys(target, mask, causal):
    q, k, v = heads(0, 2, 4, 130, 64), heads(1, 2, 2, 200, 64), heads(2, 2, 2, 200, 64)
    found = run(kernels.attention, q, k, v, mask, causal=causal, target=target)
    close(found, attended(q, k, v, mask, causal=causal), FLOAT32)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("hidden", [-np.inf, np.finfo(np.float32).min, -2.5])
def test_numbers_of_a_mask_are_added(causal, hidden):
    q, k, v = heads(0, 1, 2, 140, 40), heads(1, 1, 2, 150, 40), heads(2, 1, 2, 150, 40)
    mask = np.where(visible(1, 2, 140, 150), 0, hidden).astype(np.float32)
    mask[0, 0, 3] = hidden
    found = run(kernels.attention, q, k, v, mask, causal=causal)
    close(found, attended(q, k, v, mask, causal=causal), FLOAT32)


def test_rows_without_a_visible_key_are_zero():
    q, k, v = heads(0, 1, 1, 5, 8), heads(1, 1, 1, 6, 8), heads(2, 1, 1, 6, 8)
    mask = np.zeros((1, 1, 1, 6), np.uint8)
    assert not run(kernels.attention, q, k, v, mask).any()
    assert not run(kernels.attention, q, k, v, np.full((1, 1, 1, 6), -np.inf, np.float32)).any()


@pytest.mark.parametrize("scale", [0.3, -0.2, 0.0, 3.0])
def test_scales_of_any_sign(scale):
    q, k, v = heads(0, 1, 2, 20, 8), heads(1, 1, 2, 30, 8), heads(2, 1, 2, 30, 8)
    mask = visible(1, 1, 1, 30)
    found = run(kernels.attention, q, k, v, mask, scale)
    close(found, attended(q, k, v, mask, scale), FLOAT32)


@nki.jit
def _rows_of_all_heads(q, k, v):
    views = [x.permute((0, 2, 1, 3)) for x in (q, k, v)]
    return kernels.attention(*views)


def test_heads_that_lie_side_by_side_in_memory():
    q, k, v = (numbers(n, 2, 140, 4, 32) for n in range(3))
    found = run(_rows_of_all_heads, q, k, v)
    want = attended(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)))
    close(found, want, FLOAT32)
    assert found.shape == (2, 4, 140, 32)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["none", "bool", "float"])
def test_windows_of_keys_are_merged(monkeypatch, causal, kind):
    module = sys.modules["opentrn.nki.kernels.attention"]
    for name, value in (("WINDOW_BYTES", 0), ("WINDOW", 256), ("WINDOW_QUERIES", 256)):
        monkeypatch.setattr(module, name, value)
    q, k, v = heads(0, 1, 2, 390, 16), heads(1, 1, 1, 600, 16), heads(2, 1, 1, 600, 16)
    mask = visible(1, 2, 390, 600, hide_all=[(0, 0, 7), (0, 1, slice(None), slice(0, 256))])
    if kind == "float":
        mask = np.where(mask, 0, -np.inf).astype(np.float32)
    mask = None if kind == "none" else mask
    found = run(kernels.attention, q, k, v, mask, causal=causal)
    close(found, attended(q, k, v, mask, causal=causal), FLOAT32)


def test_wide_heads_are_refused():
    q = heads(0, 1, 1, 2, 129)
    with pytest.raises(LimitError, match="heads of 129"):
        nki.run(kernels.attention, q, q, q)
