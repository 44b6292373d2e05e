"""Every parameter of a model, by part, and how each part can be divided over devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from opentrn.workloads.model import Model

SHARES = ("tensor", "whole", "expert", "vocabulary")
"""What may divide a weight: tensor parallelism, nothing, expert parallelism, or (embeddings) the
vocabulary over the tensor-parallel group."""


@dataclass(frozen=True, slots=True)
class Weight:
    """`count` numbers of one kind of part in each of `layers` layers; `matmul` of them multiply.

    `active` is the share of them that one token uses (experts), `layers` 0 for what stands before
    or behind the layers.
    """

    name: str
    count: int
    share: str
    layers: int = 0
    matmul: bool = True
    active: float = 1.0
    last: bool = False

    @property
    def total(self) -> int:
        """Numbers in the whole model."""
        return self.count * max(self.layers, 1)


def _norm(m: Model, width: int) -> int:
    return width * (2 if m.norm == "layer" else 1)


def _attention(m: Model) -> Iterator[Weight]:
    h, q, kv = m.hidden, m.heads * m.head, m.kv_heads * m.head
    layers = m.layers
    if m.latent_kv:
        if m.latent_query:
            yield Weight("query.down", h * m.latent_query, "whole", layers)
            yield Weight("query.norm", m.latent_query, "whole", layers, matmul=False)
            yield Weight("query.up", m.latent_query * q, "tensor", layers)
        else:
            yield Weight("query", h * q, "tensor", layers)
        yield Weight("kv.down", h * (m.latent_kv + m.rotary_head), "whole", layers)
        yield Weight("kv.norm", m.latent_kv, "whole", layers, matmul=False)
        up = m.heads * (m.head - m.rotary_head + m.value_head)
        yield Weight("kv.up", m.latent_kv * up, "tensor", layers)
    else:
        yield Weight("query", h * q, "tensor", layers)
        yield Weight("key", h * kv, "tensor", layers)
        yield Weight("value", h * m.kv_heads * m.value_head, "tensor", layers)
        if m.bias_qkv:
            yield Weight("qkv.bias", q + 2 * kv, "tensor", layers, matmul=False)
    yield Weight("out", m.heads * m.value_head * h, "tensor", layers)
    if m.bias_out:
        yield Weight("out.bias", h, "whole", layers, matmul=False)
    if m.head_norm:
        yield Weight("head.norm", 2 * m.head, "whole", layers, matmul=False)
    if m.sinks:
        yield Weight("sinks", m.heads, "tensor", layers, matmul=False)


def _feedforward(m: Model) -> Iterator[Weight]:
    h, pieces, dense = m.hidden, 3 if m.gated else 2, m.layers - m.expert_layers
    if m.feedforward and dense:
        yield Weight("mlp", pieces * h * m.feedforward, "tensor", dense)
        if m.bias_mlp:
            bias = (pieces - 1) * m.feedforward + h
            yield Weight("mlp.bias", bias, "tensor", dense, matmul=False)
    layers = m.expert_layers
    if not layers:
        return
    active = m.active_experts / m.experts
    yield Weight("router", h * m.experts, "whole", layers)
    if m.router_bias:
        yield Weight("router.bias", m.experts, "whole", layers, matmul=False)
    each = pieces * h * m.expert
    yield Weight("experts", m.experts * each, "expert", layers, active=active)
    if m.expert_bias:
        bias = (pieces - 1) * m.expert + h
        yield Weight("experts.bias", m.experts * bias, "expert", layers, matmul=False,
                     active=active)  # fmt: skip
    if m.shared:
        yield Weight("shared", m.shared * each, "tensor", layers)


def _mamba(m: Model) -> Iterator[Weight]:
    h, inner, layers = m.hidden, m.inner, m.layers
    yield Weight("in", h * 2 * inner, "tensor", layers)
    yield Weight("convolution", inner * (m.convolution + 1), "tensor", layers, matmul=False)
    yield Weight("selection", inner * (m.step_rank + 2 * m.state), "tensor", layers)
    yield Weight("step", m.step_rank * inner, "tensor", layers)
    yield Weight("scan", inner * (m.state + 2), "tensor", layers, matmul=False)
    yield Weight("out", inner * h, "tensor", layers)


def _ends(m: Model) -> Iterator[Weight]:
    h = m.hidden
    if m.vocabulary:
        yield Weight("embedding", m.vocabulary * h, "vocabulary", matmul=False)
    if m.positions or m.segments:
        yield Weight("positions", (m.positions + m.segments) * h, "whole", matmul=False)
    if m.patch:
        yield Weight("patches", m.channels * m.patch**2 * h + h, "whole")
        yield Weight("patch positions", (m.patches + 1) * h, "whole", matmul=False)
    if m.embedding_norm:
        yield Weight("embedding.norm", _norm(m, h), "whole", matmul=False)
    if m.final_norm:
        yield Weight("final.norm", _norm(m, h), "whole", matmul=False, last=True)
    if m.pooler:
        yield Weight("pooler", h * h + h, "whole", last=True)
    if m.classes:
        yield Weight("classes", h * m.classes + m.classes, "whole", last=True)
    if m.language_head:
        yield Weight("transform", h * h + h + 2 * h, "whole", last=True)
        yield Weight("vocabulary.bias", m.vocabulary, "vocabulary", matmul=False, last=True)
        yield Weight("next sentence", 2 * h + 2, "whole", last=True)
    if m.vocabulary and not m.tied:
        yield Weight("head", m.vocabulary * h, "vocabulary", last=True)


@lru_cache(maxsize=256)
def weights(m: Model) -> tuple[Weight, ...]:
    """All parts of a model; their totals add up to its parameters."""
    found = [Weight("norms", m.norms * _norm(m, m.hidden), "whole", m.layers, matmul=False)]
    if m.attends:
        found += _attention(m)
    found += _mamba(m) if m.inner else _feedforward(m)
    return (*found, *_ends(m))


def parameters(m: Model, active: bool = False) -> int:
    """How many parameters a model has; with `active`, those that one token uses.

    Source: the fields of the model's config.json; counted against instantiated models.
    """
    if not active:
        return sum(w.total for w in weights(m))
    return round(sum(w.total * w.active for w in weights(m)))
