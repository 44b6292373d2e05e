"""A model description from the fields of a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opentrn.base import FileFormatError, UnknownNameError, declare, nearest
from opentrn.workloads.model import Model

declare(
    "workloads.config",
    "A config.json names its kind of model and gives its sizes as whole numbers.",
    fix="use the config.json that belongs to the weights",
)

_ALSO = {"num_experts": "num_local_experts", "num_local_experts": "num_experts"}
"""Fields that are written under either name."""


class Config(dict):
    """The fields of one config.json, and the required ones it turned out to lack."""

    def __init__(self, fields: Mapping[str, Any]):
        super().__init__(fields)
        self.gone: list[str] = []

    def size(self, name: str) -> int:
        """A required whole number; what is missing is noted and taken as 1 until the end."""
        value = self.get(name, self.get(_ALSO.get(name, "")))
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.gone.append(name)
            return 1
        return value


def _sizes(c: Config, *names: str) -> list[int]:
    return [c.size(name) for name in names]


def _text(c: Config) -> dict[str, Any]:
    """The fields that decoders of text share."""
    layers, hidden, vocabulary, heads = _sizes(
        c, "num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads"
    )
    return {
        "layers": layers, "hidden": hidden, "vocabulary": vocabulary, "heads": heads,
        "kv_heads": c.get("num_key_value_heads") or heads, "head": c.get("head_dim") or 0,
        "context": c.get("max_position_embeddings") or 2048,
        "tied": bool(c.get("tie_word_embeddings", False)),
    }  # fmt: skip


def _llama(c: Config) -> dict[str, Any]:
    bias = bool(c.get("attention_bias", False))
    (wide,) = _sizes(c, "intermediate_size")
    return _text(c) | {
        "feedforward": wide, "bias_qkv": bias, "bias_out": bias,
        "bias_mlp": bool(c.get("mlp_bias", False)),
    }  # fmt: skip


def _qwen3(c: Config) -> dict[str, Any]:
    return _llama(c) | {"head_norm": True}


def _qwen2(c: Config) -> dict[str, Any]:
    return _llama(c) | {"bias_qkv": True}


def _qwen3_experts(c: Config) -> dict[str, Any]:
    experts, active, wide = _sizes(
        c, "num_experts", "num_experts_per_tok", "moe_intermediate_size"
    )
    return _text(c) | {
        "head_norm": True, "experts": experts, "active_experts": active, "expert": wide
    }  # fmt: skip


def _mixtral(c: Config) -> dict[str, Any]:
    experts, active, wide = _sizes(
        c, "num_local_experts", "num_experts_per_tok", "intermediate_size"
    )
    return _text(c) | {"experts": experts, "active_experts": active, "expert": wide}


def _gpt_oss(c: Config) -> dict[str, Any]:
    kinds = c.get("layer_types") or ()
    near = sum(kind == "sliding_attention" for kind in kinds) or c.size("num_hidden_layers") // 2
    return _mixtral(c) | {
        "bias_qkv": True, "bias_out": True, "sinks": True, "router_bias": True,
        "expert_bias": True, "window": c.get("sliding_window") or 128, "window_layers": near,
    }  # fmt: skip


def _deepseek(c: Config) -> dict[str, Any]:
    experts, active, wide, shared, dense, ff = _sizes(
        c, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
        "n_shared_experts", "first_k_dense_replace", "intermediate_size",
    )  # fmt: skip
    kv, rotary, plain, value = _sizes(
        c, "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"
    )
    return _text(c) | {
        "head": rotary + plain, "value_head": value, "latent_kv": kv, "rotary_head": rotary,
        "latent_query": c.get("q_lora_rank") or 0, "kv_heads": 0, "feedforward": ff,
        "experts": experts, "active_experts": active, "expert": wide, "shared": shared,
        "dense_layers": dense,
    }  # fmt: skip


def _gpt2(c: Config) -> dict[str, Any]:
    layers, hidden, heads, vocabulary, positions = _sizes(
        c, "n_layer", "n_embd", "n_head", "vocab_size", "n_positions"
    )
    return {
        "layers": layers, "hidden": hidden, "heads": heads, "vocabulary": vocabulary,
        "feedforward": c.get("n_inner") or 4 * hidden, "positions": positions,
        "context": positions, **_GPT,
    }  # fmt: skip


_GPT = {
    "gated": False, "tied": True, "norm": "layer", "bias_qkv": True, "bias_out": True,
    "bias_mlp": True, "dropout": True,
}  # fmt: skip


def _bert(c: Config) -> dict[str, Any]:
    (wide,) = _sizes(c, "intermediate_size")
    return _text(c) | {
        **_GPT, "feedforward": wide, "positions": c.get("max_position_embeddings") or 512,
        "segments": c.get("type_vocab_size") or 0, "decoder": False, "embedding_norm": True,
        "final_norm": False, "pooler": True,
    }  # fmt: skip


def _vit(c: Config) -> dict[str, Any]:
    layers, hidden, heads, wide, patch, image = _sizes(
        c, "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size",
        "patch_size", "image_size",
    )  # fmt: skip
    return {
        "layers": layers, "hidden": hidden, "heads": heads, "feedforward": wide, "patch": patch,
        "image": image, "channels": c.get("num_channels") or 3, **_GPT, "tied": False,
        "decoder": False, "classes": len(c.get("id2label") or ()), "dropout": False,
        "context": (image // patch) ** 2 + 1,
    }  # fmt: skip


def _mamba(c: Config) -> dict[str, Any]:
    layers, hidden, vocabulary, state, kernel = _sizes(
        c, "num_hidden_layers", "hidden_size", "vocab_size", "state_size", "conv_kernel"
    )
    return {
        "layers": layers, "hidden": hidden, "vocabulary": vocabulary, "tied": True,
        "inner": c.get("intermediate_size") or c.get("expand", 2) * hidden, "state": state,
        "convolution": kernel, "step_rank": c.get("time_step_rank") or -(-hidden // 16),
        "norms": 1, "context": 1 << 20,
    }  # fmt: skip


KINDS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "llama": _llama, "mistral": _llama, "qwen2": _qwen2, "qwen3": _qwen3,
    "qwen3_moe": _qwen3_experts, "mixtral": _mixtral, "gpt_oss": _gpt_oss,
    "deepseek_v3": _deepseek, "gpt2": _gpt2, "bert": _bert, "vit": _vit, "mamba": _mamba,
}  # fmt: skip
"""model_type -> how its fields are read."""


def from_config(config: Config, name: str = "") -> Model:
    """The Model of a config.json's fields.

    Raises FileFormatError `workloads.config` for missing fields (all are named at once), and
    UnknownNameError for a `model_type` that is not known.
    """
    kind = config.get("model_type")
    if kind is None:
        raise FileFormatError("config.json has no model_type", code="workloads.config")
    if kind not in KINDS:
        close = ", ".join(nearest(str(kind), KINDS)) or ", ".join(KINDS)
        raise UnknownNameError(
            f"no rule reads the config.json of model_type {kind!r}", code="workloads.config",
            fix=f"known kinds: {close}",
        )  # fmt: skip
    fields = Config(config)
    found = KINDS[kind](fields)
    if fields.gone:
        gone = ", ".join(dict.fromkeys(fields.gone))
        raise FileFormatError(
            f"config.json lacks {gone}, which {kind} needs", code="workloads.config"
        )
    label = name or str(config.get("_name_or_path") or "") or str(kind)
    return Model(name=label, source="config.json", **found)
