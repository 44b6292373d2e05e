"""Flops, activation bytes and cached bytes of a model.

A matmul of n parameters costs 2 n flops a token, its backward pass twice that. Attention of one
token over s positions costs 2 (head + value_head) s flops a head. Activation bytes follow
Korthikanti et al. (arXiv 2205.05198, table 2), written as a list of what is kept, so that grouped
heads, gated layers and experts are counted by the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from opentrn.workloads.model import Model
from opentrn.workloads.weights import parameters, weights

RECOMPUTE = ("none", "selective", "full")
"""Kept activations: all; all but the attention scores; only each layer's input."""


def matmul_parameters(m: Model, active: bool = True) -> float:
    """Parameters that multiply each token, head included and embedding look-up not."""
    found = sum(w.total * (w.active if active else 1.0) for w in weights(m) if w.matmul)
    tied_head = m.vocabulary * m.hidden if m.tied and m.vocabulary else 0
    return found + tied_head


def attention_flops(m: Model, positions: float) -> float:
    """Flops of one token's attention over so many positions, all layers, forward.

    Source: 2 (head + value_head) flops for each position and head; Mamba's scan 9 for each state
    (module).
    """
    if not m.attends:
        return 9.0 * m.inner * m.state * m.layers
    each = 2.0 * m.heads * (m.head + m.value_head)
    near = min(positions, m.window) if m.window_layers else positions
    return each * (near * m.window_layers + positions * (m.layers - m.window_layers))


def model_flops(m: Model, tokens: float, positions: float) -> float:
    """Forward flops of `tokens` tokens that each see `positions` positions.

    Source: 2 flops for each parameter that multiplies (PaLM, arXiv 2204.02311, appendix B).
    """
    return tokens * (2.0 * matmul_parameters(m) + attention_flops(m, positions))


def train_flops(m: Model, tokens: float, sequence: int) -> float:
    """Flops a training step needs, nothing recomputed: forward and twice that backward.

    Attention counts the whole square, masked half included, as published MFU figures do
    (PaLM, arXiv 2204.02311, appendix B).
    """
    return 3.0 * model_flops(m, tokens, sequence)


def decode_flops(m: Model, batch: int, positions: int) -> float:
    """Flops that make one more token of each of `batch` sequences.

    Source: as `model_flops`, of one token of each sequence.
    """
    return model_flops(m, batch, positions)


def kv_bytes(m: Model, tokens: float, itemsize: float = 2.0, kv_heads: int | None = None) -> float:
    """Bytes that `tokens` tokens keep in the caches of all layers.

    `kv_heads` counts copies: 32 for a model of 8 that is divided over 32 devices. Layers with a
    sliding window keep `window` tokens at most; `tokens` is taken as one sequence's.

    Source: 2 (key, value) kv_heads head itemsize; latents: DeepSeek-V2, arXiv 2405.04434.
    """
    factor = 1.0 if kv_heads is None or m.latent_kv else kv_heads / m.kv_heads
    near = min(tokens, m.window) if m.window_layers else tokens
    kept = near * m.window_layers + tokens * (m.layers - m.window_layers)
    return m.kv_width * factor * kept * itemsize


def state_bytes(m: Model, itemsize: float = 2.0) -> float:
    """Bytes of recurrent state one sequence keeps (Mamba): float32 state, 16-bit convolution.

    Source: Mamba, arXiv 2312.00752: inner x state, and the last inputs of the convolution.
    """
    return m.layers * m.inner * (m.state * 4.0 + m.convolution * itemsize)


@dataclass(frozen=True, slots=True)
class ActivationBytes:
    """Bytes one token keeps in one layer for the backward pass, by what divides them.

    `sequence`: divided only with sequence parallelism; `tensor`: always; `scores`: for each
    position it attends to, divided by tensor parallelism; `input`: what full recomputation keeps.
    """

    sequence: float
    tensor: float
    scores: float
    input: float


def activation_bytes(m: Model, itemsize: float = 2.0) -> ActivationBytes:
    """Bytes one token keeps in an average layer; Korthikanti's 10, 24 and 5 as/h for GPT-3.

    sequence: inputs of the norms and of attention and feed-forward, dropout masks;
    tensor: queries, keys, values, attention's output, feed-forward's hidden part;
    scores: softmax, and with dropout its mask and result.

    Source: Korthikanti et al., arXiv 2205.05198, table 2.
    """
    h, mask = m.hidden, 1.0 if m.dropout else 0.0
    if m.inner:
        inner = m.inner * (4 * itemsize + 2 * itemsize) + m.inner * m.state * 4.0 / m.convolution
        return ActivationBytes(2 * h * itemsize, inner, 0.0, h * itemsize)
    sequence = 4 * h * itemsize + 2 * h * mask
    heads = m.heads * (m.head + m.value_head) + m.kv_heads * (m.head + m.value_head)
    if m.latent_kv:
        heads += m.heads * m.head
        sequence += (m.latent_query + m.latent_kv + m.rotary_head) * itemsize
    hidden = 3 if m.gated else 2
    dense = (m.layers - m.expert_layers) / m.layers
    wide = m.feedforward * dense
    if m.experts:
        wide += (m.active_experts + m.shared) * m.expert * (1 - dense)
        sequence += m.active_experts * h * itemsize * 2 * (1 - dense)
    tensor = heads * itemsize + hidden * wide * itemsize
    scores = m.heads * (itemsize + (1.0 + itemsize) * mask)
    return ActivationBytes(sequence, tensor, scores, h * itemsize)


def describe(m: Model) -> str:
    """One line: parameters, active parameters, cached bytes a token."""
    total, active = parameters(m), parameters(m, active=True)
    told = f", {active / 1e9:,.2f} B active" if active != total else ""
    kv = kv_bytes(m, 1)
    return f"{m.name}: {total / 1e9:,.2f} B parameters{told}, {kv:,.0f} B of KV a token"
