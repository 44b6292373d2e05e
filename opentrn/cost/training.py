"""Closed-form seconds of a training step, part by part; one split or arrays of splits.

A layer of one micro-batch costs, on one device,

    forward   matmul flops / (peak matmul)  +  kept activation bytes x passes / (rate memory)
              +  weight bytes / (rate memory)
    backward  twice the first two, the weights once more, and the gradient added up in memory
    again     what recomputation repeats

and its communication; micro-batches follow each other through the pipeline, whose bubble is
(pp - 1) / chunks micro-batches (Narayanan et al., arXiv 2104.04473). Nothing is counted twice:
every byte and flop comes from `workloads`, every rate from `hw`, every share from
`efficiencies.toml`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opentrn.comm import tiered_all_to_all, tiered_seconds, tiered_send
from opentrn.cost.demand import device_parameters, sizes
from opentrn.cost.platform import Platform
from opentrn.cost.split import Training
from opentrn.workloads import Model, activation_bytes, attention_flops, optimizer

Array = Any

PARTS = ("compute", "tensor", "sequence", "expert", "context", "pipeline", "data", "bubble",
         "optimizer", "host")  # fmt: skip
"""The parts of a step: compute, exposed communication by kind, bubble, optimizer, host."""

COMMUNICATION = ("tensor", "sequence", "expert", "context", "pipeline", "data")
"""Those parts that are exposed communication."""


def _layer_compute(m: Model, platform: Platform, job: Training, s: Any) -> dict[str, Array]:
    """Seconds of an average layer for one micro-batch: forward, backward, again, attention."""
    p, a = sizes(m), activation_bytes(m)
    peak = platform.peak(job.dtype) * platform.eff("matmul")
    rate = platform.memory_bandwidth * platform.eff("memory")
    tokens = s.micro_batch * job.sequence / s.cp
    each = (p.tensor_mm / s.tp + p.expert_mm / s.tp + p.whole_mm) / m.layers
    linear = 2.0 * tokens * each / peak
    core = tokens * attention_flops(m, job.sequence) / m.layers / s.tp / peak
    shared = np.where(s.sequence, s.tp, 1.0)
    passes = platform.eff("passes")
    moved = passes * tokens * (a.sequence / shared + a.tensor / s.tp) / rate
    flash = job.attention == "flash"
    scores = 0.0 if flash else passes * tokens * a.scores * job.sequence / s.tp / rate
    kind = optimizer(job.optimizer)
    held = (p.tensor / s.tp + p.whole + p.expert / (s.ep * s.tp)) / m.layers
    load = kind.weight * held / rate
    forward = linear + core + moved + scores + load
    added = 2.0 * kind.gradient * held / rate
    backward = 2.0 * (linear + moved + scores) + (2.5 if flash else 2.0) * core + load + added
    inside = 0.0 if flash else core + scores
    again = np.where(s.level == 2, forward, np.where(s.level == 1, inside, 0.0))
    return {"forward": forward, "backward": backward, "again": again, "core": core}


def _layer_communication(m: Model, platform: Platform, job: Training, s: Any) -> dict[str, Array]:
    """Exposed seconds of one layer's communication for one micro-batch, by kind."""
    tokens = s.micro_batch * job.sequence / s.cp
    nbytes = 2.0 * tokens * m.hidden
    sync = platform.wait(s.tp)
    reduce = tiered_seconds("all_reduce", platform.reached, nbytes, s.tp) + sync
    gather = tiered_seconds("all_gather", platform.reached, nbytes, s.tp) + sync
    twice = 2.0 if m.attends else 1.0
    rounds = twice * (2.0 + np.where(s.level == 2, 1.0, 0.0))
    regather = np.where(np.asarray(s.sequence) & (np.asarray(s.tp) > 1), twice / 2.0 * gather, 0.0)
    out = {"tensor": rounds * reduce, "sequence": regather}
    out["expert"] = 0.0 * reduce
    if m.experts:
        routed = nbytes * m.active_experts / np.where(s.sequence, s.tp, 1.0)
        one = tiered_all_to_all(platform.reached, routed, s.ep, s.tp * s.cp)
        one = one + platform.wait(s.ep)
        again = np.where(s.level == 2, 2.0, 0.0)
        out["expert"] = (4.0 + again) * one * m.expert_layers / m.layers
    return out


def _context(m: Model, platform: Platform, job: Training, s: Any, core: Array) -> Array:
    """Ring attention: keys and values go round while attention works; what is left over."""
    width = max(m.kv_width, 2 * m.kv_heads * m.head if not m.latent_kv else m.kv_width)
    tokens = s.micro_batch * job.sequence / s.cp
    block = 2.0 * tokens * width / np.minimum(s.tp, max(m.kv_heads, 1))
    passed = (s.cp - 1.0) * tiered_send(platform.reached, block, s.tp)
    return np.where(np.asarray(s.cp) > 1, np.maximum(3.0 * passed - 3.5 * core, 0.0), 0.0)


def _data(m: Model, platform: Platform, job: Training, s: Any, hides: Array, batches: Array):
    """Exposed seconds of gradients and gathered weights over the data-parallel ranks.

    ZeRO-2 reduces gradients after every micro-batch, since it keeps a part of them only; ZeRO-3
    also gathers the weights twice for each.
    """
    level = np.asarray(s.zero)
    dense, expert = device_parameters(m, s)
    kind = optimizer(job.optimizer)
    size, stride, tiers = s.dp * s.cp * 1.0, s.tp * 1.0, platform.reached
    total = 0.0
    for held, ranks, apart in ((dense, size, stride), (expert, size / s.ep, stride * s.ep)):
        grads = tiered_seconds("reduce_scatter", tiers, kind.gradient * held, ranks, apart)
        whole = tiered_seconds("all_gather", tiers, kind.weight * held, ranks, apart)
        plain = 2.0 * grads
        zero = np.where(level == 0, plain, grads + whole)
        zero = np.where(level == 2, batches * grads + whole, zero)
        sharded = batches * (2.0 * whole + grads)
        total = total + np.where(level == 3, sharded, zero)
    behind = np.where(level >= 2, batches, 1.0) * hides
    return total - platform.eff("overlap") * np.minimum(total, behind)


def training_parts(m: Model, platform: Platform, job: Training, s: Any) -> dict[str, Array]:
    """Seconds of one step by PARTS; `s` is a Split or arrays under its names.

    Source: Narayanan et al., arXiv 2104.04473; Korthikanti et al., arXiv 2205.05198.
    """
    c = _layer_compute(m, platform, job, s)
    batches = job.batch / (s.dp * s.micro_batch)
    layers = np.ceil(m.layers / s.pp)  # of the fullest stage; chunks spread what does not divide
    peak = platform.peak(job.dtype) * platform.eff("matmul")
    tokens = s.micro_batch * job.sequence / s.cp
    head = 6.0 * tokens * sizes(m).head_mm / s.tp / peak
    stage = layers * (c["forward"] + c["backward"] + c["again"]) + head
    kinds = _layer_communication(m, platform, job, s)
    kinds["context"] = _context(m, platform, job, s, c["core"])
    parts = {name: batches * layers * one for name, one in kinds.items()}
    parts["compute"] = batches * stage
    stride = s.tp * s.cp * s.dp
    send = tiered_send(platform.reached, 2.0 * tokens * m.hidden / s.tp, stride)
    send = np.where(np.asarray(s.pp) > 1, 2.0 * s.chunks * send, 0.0)
    parts["pipeline"] = batches * send
    inside = stage - head + layers * sum(kinds.values()) + send / s.chunks
    parts["bubble"] = (s.pp - 1.0) / s.chunks * inside
    hides = layers * c["backward"]
    parts["data"] = _data(m, platform, job, s, hides, batches)
    parts["optimizer"] = _optimizer(m, platform, job, s)
    parts["host"] = platform.eff("launch") * batches * (2.0 * s.chunks) + 0.0 * stage
    return {name: parts[name] for name in PARTS}


def _optimizer(m: Model, platform: Platform, job: Training, s: Any) -> Array:
    """States read and written, gradient read, weight written, at the memory's rate."""
    dense, expert = device_parameters(m, s)
    kind = optimizer(job.optimizer)
    sharded = np.asarray(s.zero) >= 1
    data = s.dp * s.cp * 1.0
    held = dense / np.where(sharded, data, 1.0) + expert / np.where(sharded, data / s.ep, 1.0)
    moved = 2.0 * kind.states + kind.gradient + kind.weight
    return moved * held / (platform.memory_bandwidth * platform.eff("memory"))
