"""Bytes that one device holds: weights, gradients, optimizer states, activations, caches, rest.

The same formulas take plain numbers (one Split) or arrays (a whole space of splits at once).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from opentrn.cost.platform import Platform
from opentrn.cost.split import Serving, Training
from opentrn.workloads import Model, activation_bytes, optimizer, weights

Array = Any

PARTS = ("weights", "gradients", "optimizer", "activations", "kv_cache", "scratch", "reserved")
"""What memory is used for, in the order reports give it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Parameters of a model by what divides them; layer parts are summed over all layers.

    `tensor`, `whole` and `expert` stand in layers, `vocabulary` is the embedding and the head.
    `_mm` are those that multiply, experts counted as often as a token uses them.
    """

    tensor: float
    whole: float
    expert: float
    vocabulary: float
    ends: float
    tensor_mm: float
    whole_mm: float
    expert_mm: float
    head_mm: float
    kv: float


@lru_cache(maxsize=256)
def sizes(m: Model) -> Sizes:
    """The parameters of a model by kind of share."""
    total = dict.fromkeys(("tensor", "whole", "expert", "vocabulary", "ends"), 0.0)
    multiplied = dict.fromkeys(("tensor", "whole", "expert"), 0.0)
    kv = 0.0
    for w in weights(m):
        kind = w.share if w.layers or w.share == "vocabulary" else "ends"
        total[kind] += w.total
        if w.layers and w.matmul:
            multiplied[w.share] += w.total * w.active
        kv += w.total if w.name in ("key", "value") else 0.0
    return Sizes(
        **total, tensor_mm=multiplied["tensor"], whole_mm=multiplied["whole"],
        expert_mm=multiplied["expert"], head_mm=float(m.vocabulary * m.hidden), kv=kv,
    )  # fmt: skip


def device_parameters(m: Model, s: Any) -> tuple[Array, Array]:
    """(parameters outside experts, parameters of experts) on the fullest device of a split.

    The first pipeline stage holds the embedding and the last the head: each counts half the
    `vocabulary` share of an untied model, and all of it when there is one stage. Key and value
    heads beyond the model's are copies.
    """
    p = sizes(m)
    copies = np.maximum(s.tp / max(m.kv_heads, 1), 1.0) if p.kv else 1.0
    stage = (p.tensor + p.kv * (copies - 1.0)) / s.tp + p.whole
    ends = p.vocabulary / s.tp
    ends = np.where(np.asarray(s.pp) > 1, ends if m.tied else ends / 2.0, ends) + p.ends
    return stage / s.pp + ends, p.expert / (s.ep * s.tp) / s.pp


def _divided(s: Any, least: int, data: Array) -> Array:
    return np.where(np.asarray(s.zero) >= least, data, 1.0)


def stored_activations(m: Model, job: Training, s: Any) -> tuple[Array, Array, Array]:
    """Bytes of one token in one layer: (kept, kept scores, kept only while its layer works)."""
    a = activation_bytes(m)
    shared = np.where(s.sequence, s.tp, 1.0)
    every = a.sequence / shared + a.tensor / s.tp
    scores = a.scores * job.sequence / s.tp if job.attention == "scores" else 0.0
    kept = np.where(s.level == 2, a.input / shared, every)
    kept_scores = np.where(s.level == 0, scores, 0.0)
    working = np.where(s.level == 2, every + scores, np.where(s.level == 1, scores, 0.0))
    return kept, kept_scores, working


def activation_memory(m: Model, job: Training, s: Any, batches: Array) -> Array:
    """Bytes of kept activations on the first stage: as many micro-batches as are in flight.

    1F1B holds `pp` micro-batches of layers / pp layers; interleaving (Korthikanti et al., section
    4.2.3) 1 + (pp - 1) / (pp chunks) times a whole model's layers.
    """
    tokens = s.micro_batch * job.sequence / s.cp
    kept, scores, working = stored_activations(m, job, s)
    deep = np.where(np.asarray(s.chunks) > 1, 1.0 + (s.pp - 1.0) / (s.pp * s.chunks), 1.0)
    flying = np.minimum(s.pp * deep, batches * 1.0)
    layers = m.layers / s.pp
    logits = 4.0 * m.vocabulary / s.tp * tokens
    logits = np.where(np.asarray(s.pp) > 1, 0.0, logits)
    return tokens * ((kept + scores) * layers * flying + working) + logits


def training_memory(m: Model, platform: Platform, job: Training, s: Any) -> dict[str, Array]:
    """Bytes on the fullest device, by PARTS."""
    dense, expert = device_parameters(m, s)
    kind = optimizer(job.optimizer)
    data = s.dp * s.cp * 1.0
    spread = data / s.ep
    out = {}
    for name, each, least in (
        ("weights", kind.weight, 3), ("gradients", kind.gradient, 2), ("optimizer", kind.states, 1)
    ):
        out[name] = each * (
            dense / _divided(s, least, data) + expert / _divided(s, least, spread)
        )
    batches = job.batch / (s.dp * s.micro_batch)
    out["activations"] = activation_memory(m, job, s, batches)
    out["kv_cache"] = 0.0 * dense
    layer = (dense / m.layers + expert / max(m.expert_layers, 1)) * s.pp
    gathered = np.where(np.asarray(s.zero) == 3, 2.0 * kind.weight * layer, 0.0)
    tokens = s.micro_batch * job.sequence / s.cp
    workspace = 4.0 * tokens * m.hidden * 2.0 + gathered
    out["scratch"] = _paged(platform, workspace)
    out["reserved"] = platform.reserved + 0.0 * dense
    return out


def _paged(platform: Platform, nbytes: Array) -> Array:
    """Bytes rounded up to whole scratchpad pages, one at least."""
    if not platform.page:
        return nbytes
    return np.maximum(np.ceil(nbytes / platform.page), 1.0) * platform.page


def kv_per_device(m: Model, job: Serving, s: Any) -> Array:
    """Bytes of cache on one device: heads are divided as far as there are any, then copied."""
    near = min(job.context, m.window) if m.window_layers else job.context
    kept = near * m.window_layers + job.context * (m.layers - m.window_layers)
    heads = max(m.kv_heads, 1)
    share = 1.0 if m.latent_kv else np.ceil(m.kv_heads / s.tp) / heads
    batch = np.ceil(job.batch / s.dp)
    state = m.layers * m.inner * (m.state * 4.0 + m.convolution * 2.0) / s.tp
    return batch * (m.kv_width * job.kv_bytes * kept * share / (s.pp * s.cp) + state / s.pp)


def serving_memory(m: Model, platform: Platform, job: Serving, s: Any) -> dict[str, Array]:
    """Bytes on the fullest device, by PARTS; activations are those of one prompt."""
    dense, expert = device_parameters(m, s)
    tokens = np.minimum(job.prompt * 1.0, 8192.0)
    a = activation_bytes(m)
    workspace = tokens * (a.sequence + a.tensor) / s.tp + 4.0 * m.vocabulary / s.tp
    zero = 0.0 * dense
    return {
        "weights": job.weight_bytes * (dense + expert),
        "gradients": zero,
        "optimizer": zero,
        "activations": zero,
        "kv_cache": kv_per_device(m, job, s) + zero,
        "scratch": _paged(platform, workspace) + zero,
        "reserved": platform.reserved + zero,
    }


def memory(m: Model, platform: Platform, job: Training | Serving, s: Any) -> dict[str, Array]:
    """Bytes on the fullest device of a split (or of arrays of splits), by PARTS.

    Source: ZeRO, arXiv 1910.02054; activations, arXiv 2205.05198; reserved memory of `hw`.
    """
    count = training_memory if isinstance(job, Training) else serving_memory
    return count(m, platform, job, s)
