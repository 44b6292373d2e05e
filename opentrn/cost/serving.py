"""Closed-form seconds to read a prompt and to make one token, part by part.

    prefill  flops / (peak prefill) or the weights' bytes / (rate memory), whichever is longer,
             and two all-reduces a layer
    decode   weights and cache once through memory (or the flops), and two all-reduces a layer,
             each with its bytes and the wait for the slowest rank
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opentrn.comm import tiered_all_to_all, tiered_seconds, tiered_send
from opentrn.cost.demand import device_parameters, kv_per_device, sizes
from opentrn.cost.platform import Platform
from opentrn.cost.split import Serving
from opentrn.workloads import Model, attention_flops

Array = Any

PARTS = ("compute", "memory", "tensor", "expert", "pipeline", "host")
"""The parts of a prefill or a decode step; memory is what arithmetic does not hide."""


def _touched(m: Model, tokens: Array) -> Array:
    """Share of the experts that so many tokens use, each choosing evenly: 1 - (1 - k/E)^n."""
    if not m.experts:
        return 1.0
    return 1.0 - (1.0 - m.active_experts / m.experts) ** tokens


def _arithmetic(m: Model, rate: float, s: Any, tokens: Array, heads: Array, seen: float) -> Array:
    """Seconds at `rate` flop/s for `tokens` tokens that see `seen` positions, `heads` of them
    through the vocabulary.
    """
    p = sizes(m)
    each = (p.tensor_mm + p.expert_mm) / s.tp + p.whole_mm
    flops = tokens * (2.0 * each + attention_flops(m, seen) / s.tp) / s.cp
    return (flops + 2.0 * heads * p.head_mm / s.tp) / rate


def _messages(m: Model, platform: Platform, s: Any, tokens: Array) -> dict[str, Array]:
    """Seconds of all layers' communication for so many tokens."""
    nbytes = 2.0 * tokens * m.hidden / s.cp
    rounds = (2.0 if m.attends else 1.0) * m.layers
    one = tiered_seconds("all_reduce", platform.reached, nbytes, s.tp) + platform.wait(s.tp)
    routed = tiered_all_to_all(platform.reached, nbytes * max(m.active_experts, 1), s.ep, s.tp)
    routed = 2.0 * m.expert_layers * (routed + platform.wait(s.ep))
    send = tiered_send(platform.reached, nbytes / s.tp, s.tp * s.cp)
    return {
        "tensor": rounds * one,
        "expert": routed + 0.0 * one,
        "pipeline": np.where(np.asarray(s.pp) > 1, (s.pp - 1.0) * send, 0.0),
    }


def _parts(m: Model, platform: Platform, s: Any, work: Array, moved: Array, tokens: Array):
    parts = _messages(m, platform, s, tokens)
    parts["compute"] = work
    parts["memory"] = np.maximum(moved - work, 0.0)
    parts["host"] = platform.eff("launch") * s.pp + 0.0 * work
    return {name: parts[name] for name in PARTS}


def prefill_parts(m: Model, platform: Platform, job: Serving, s: Any) -> dict[str, Array]:
    """Seconds until the first token of `job.batch` prompts, by PARTS (all stages in turn).

    Source: the roofline of reading prompts: flops or bytes, whichever takes longer.
    """
    tokens = np.ceil(job.batch / s.dp) * job.prompt
    rate = platform.peak(job.dtype) * platform.eff("prefill")
    work = _arithmetic(m, rate, s, tokens, np.ceil(job.batch / s.dp), job.prompt / 2.0)
    dense, expert = device_parameters(m, s)
    held = (dense + expert * _touched(m, tokens)) * s.pp
    moved = job.weight_bytes * held / (platform.memory_bandwidth * platform.eff("memory"))
    return _parts(m, platform, s, work, moved, tokens)


def decode_parts(m: Model, platform: Platform, job: Serving, s: Any) -> dict[str, Array]:
    """Seconds of one more token of every sequence, by PARTS; caches are half-way through.

    Source: the roofline of one token: weights and caches read once, or flops.
    """
    batch = np.ceil(job.batch / s.dp)
    seen = job.prompt + job.answer / 2.0
    flops = platform.peak(job.dtype) * platform.eff("matmul")
    work = _arithmetic(m, flops, s, batch, batch, seen)
    dense, expert = device_parameters(m, s)
    embedding = 0.0 if m.tied else m.vocabulary * m.hidden / s.tp
    held = (dense - embedding + expert * _touched(m, batch)) * s.pp
    cache = kv_per_device(m, job, s) * s.pp * seen / job.context
    rate = platform.memory_bandwidth * platform.eff("memory")
    return _parts(m, platform, s, work, (job.weight_bytes * held + cache) / rate, batch)
