"""A Llama layer divided over ranks gives the logits of one rank, with sums taken by our schedules.

The division is the one that plans count: heads, and columns of the feed-forward part, one share a
rank; key and value heads copied where there are more ranks than heads; rows of the output
projections, whose partial sums an all-reduce adds up; the vocabulary, gathered.
"""

import numpy as np
import pytest

from opentrn.comm import build, place, run
from opentrn.plan.legal import tensor_degree
from opentrn.workloads import Model

TINY = Model(name="tiny", layers=1, hidden=64, heads=8, kv_heads=2, head=8, feedforward=96,
             vocabulary=48)  # fmt: skip
TOKENS = 10


def bfloat16(x):
    """Round to the nearest bfloat16, in float32 (half to even)."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def weights(rng):
    h, q, kv = 64, 8 * 8, 2 * 8
    shapes = {"q": (h, q), "k": (h, kv), "v": (h, kv), "o": (q, h), "up": (h, 96), "gate": (h, 96),
              "down": (96, h), "head": (h, 48)}  # fmt: skip
    return {n: rng.standard_normal(s).astype(np.float32) / np.sqrt(s[0]) for n, s in shapes.items()}


def norm(x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def attention(x, w, heads, kv_heads, cast):
    """The heads given, their part of the output projection applied: a partial sum."""
    q, k, v = (cast(x @ w[n]).reshape(TOKENS, -1, 8).swapaxes(0, 1) for n in "qkv")
    k, v = (np.repeat(one, heads // kv_heads, axis=0) for one in (k, v))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(8) + np.triu(np.full((TOKENS, TOKENS), -1e9), 1)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    return cast(probs @ v).swapaxes(0, 1).reshape(TOKENS, -1) @ w["o"]


def feedforward(x, w, cast):
    gate = x @ w["gate"]
    return cast(gate / (1 + np.exp(-gate)) * (x @ w["up"])) @ w["down"]


def shard(w, rank, ranks):
    """One rank's part of every weight."""

    def columns(x, parts, part):
        return np.split(x, parts, axis=1)[part]

    kv_parts = min(ranks, 2)
    kv = rank * kv_parts // ranks  # ranks beyond the key-value heads hold copies
    return {
        "q": columns(w["q"], ranks, rank), "k": columns(w["k"], kv_parts, kv),
        "v": columns(w["v"], kv_parts, kv), "o": np.split(w["o"], ranks)[rank],
        "up": columns(w["up"], ranks, rank), "gate": columns(w["gate"], ranks, rank),
        "down": np.split(w["down"], ranks)[rank], "head": columns(w["head"], ranks, rank),
    }  # fmt: skip


def summed(partial, algorithm):
    """All-reduce by the schedule that the fabric would use; every rank's result."""
    ranks = len(partial)
    if ranks == 1:
        return partial
    schedule = build("all_reduce", place(ranks, "trn2.3xlarge", lnc=2), algorithm)
    held = [np.array_split(one.ravel(), schedule.chunks) for one in partial]
    found = run(schedule, held, np.add)
    return [np.concatenate(own).reshape(partial[0].shape) for own in found]


def logits(x, w, ranks, algorithm, cast):
    parts = [shard(w, rank, ranks) for rank in range(ranks)]
    kv_heads = max(2 // ranks, 1)
    mixed = summed([attention(norm(x), p, 8 // ranks, kv_heads, cast) for p in parts], algorithm)
    states = [cast(x + one) for one in mixed]
    fed = summed([feedforward(norm(s), p, cast) for s, p in zip(states, parts, strict=True)],
                 algorithm)  # fmt: skip
    last = [norm(cast(s + f)) for s, f in zip(states, fed, strict=True)]
    return np.concatenate([one @ p["head"] for one, p in zip(last, parts, strict=True)], axis=1)


@pytest.mark.parametrize("algorithm", ["mesh", "ring", "rdh"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_logits_do_not_depend_on_the_degree(ranks, algorithm):
    rng = np.random.default_rng(3)
    w, x = weights(rng), rng.standard_normal((TOKENS, 64)).astype(np.float32)
    exact = logits(x.astype(float), {n: v.astype(float) for n, v in w.items()}, 1, "mesh",
                   lambda y: y)  # fmt: skip
    whole = logits(x, w, ranks, algorithm, lambda y: y)
    assert np.abs(whole - exact).max() < 1e-5 * np.abs(exact).max()
    narrow = logits(x, {n: bfloat16(v) for n, v in w.items()}, ranks, algorithm, bfloat16)
    assert np.abs(narrow - exact).max() < 2**-7 * 4 * np.abs(exact).max()
    degree = tensor_degree(TINY, ranks)
    assert degree.legal
    assert degree.copies == max(ranks / 2, 1)  # as the shards above hold them
