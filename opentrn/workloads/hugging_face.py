"""A model description from the fields of a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opentrn.base import FileFormatError, UnknownNameError, declare, nearest
from opentrn.workloads.model import Model

declare(
    "workloads.config",
    "A config.json names its kind of model and gives its sizes as whole numbers.",
    rule="every size of the kind is there, a whole number, and not below what the kind needs",
    fix="use the config.json that belongs to the weights",
)

_ALSO = {"num_experts": "num_local_experts", "num_local_experts": "num_experts"}
"""Fields that are written under either name."""

_MAY_BE_ZERO = {"n_shared_experts", "first_k_dense_replace", "q_lora_rank", "type_vocab_size"}


class Config(dict):
    """The fields of one config.json, and what turned out to be wrong with them."""

    def __init__(self, fields: Mapping[str, Any]):
        super().__init__(fields)
        self.gone: list[str] = []
        self.wrong: list[str] = []
        self.read: set[str] = set()

    def size(self, name: str) -> int:
        """A required whole number; what is amiss is noted, and 1 taken until the end."""
        self.read |= {name, _ALSO.get(name, name)}
        value = self.get(name, self.get(_ALSO.get(name, "")))
        if value is None:
            self.gone.append(name)
            return 1
        return self._whole(name, value)

    def maybe(self, name: str, default: int) -> int:
        """A whole number that may be left out or null."""
        value = self.get(name)
        return default if value is None else self._whole(name, value)

    def layers(self, name: str) -> list[int]:
        """A list of layers, empty when it is left out or null."""
        value = self.get(name) or []
        if isinstance(value, list) and all(type(n) is int and n >= 0 for n in value):
            return value
        self.wrong.append(f"{name} = {value!r}")
        return []

    def _whole(self, name: str, value: Any) -> int:
        least = 0 if name in _MAY_BE_ZERO else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.wrong.append(f"{name} = {value!r}")
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
        "kv_heads": c.maybe("num_key_value_heads", heads), "head": c.maybe("head_dim", 0),
        "context": c.maybe("max_position_embeddings", 2048),
        "tied": bool(c.get("tie_word_embeddings", False)),
    }  # fmt: skip


def _llama(c: Config) -> dict[str, Any]:
    bias = bool(c.get("attention_bias", False))
    (wide,) = _sizes(c, "intermediate_size")
    return _text(c) | {
        "feedforward": wide, "bias_qkv": bias, "bias_out": bias,
        "bias_mlp": bool(c.get("mlp_bias", False)),
    }  # fmt: skip


def _mistral(c: Config) -> dict[str, Any]:
    near = c.maybe("sliding_window", 0)
    return _llama(c) | {"window": near, "window_layers": c.size("num_hidden_layers") * bool(near)}


def _qwen3(c: Config) -> dict[str, Any]:
    return _llama(c) | {"head_norm": True}


def _qwen2(c: Config) -> dict[str, Any]:
    return _llama(c) | {"bias_qkv": True}


def _qwen3_experts(c: Config) -> dict[str, Any]:
    experts, active, wide = _sizes(
        c, "num_experts", "num_experts_per_tok", "moe_intermediate_size"
    )
    text, every = _text(c), c.maybe("decoder_sparse_step", 1)
    plain = {n for n in c.layers("mlp_only_layers") if n < text["layers"] and (n + 1) % every == 0}
    dense = text["layers"] - (text["layers"] // every - len(plain))
    return text | {
        "head_norm": True, "experts": experts, "active_experts": active, "expert": wide,
        "dense_layers": dense, "feedforward": c.size("intermediate_size") if dense else 0,
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
        "expert_bias": True, "window": c.maybe("sliding_window", 128), "window_layers": near,
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
        "latent_query": c.maybe("q_lora_rank", 0), "kv_heads": 0, "feedforward": ff,
        "experts": experts, "active_experts": active, "expert": wide, "shared": shared,
        "dense_layers": dense,
    }  # fmt: skip


def _gpt2(c: Config) -> dict[str, Any]:
    layers, hidden, heads, vocabulary, positions = _sizes(
        c, "n_layer", "n_embd", "n_head", "vocab_size", "n_positions"
    )
    return {
        "layers": layers, "hidden": hidden, "heads": heads, "vocabulary": vocabulary,
        "feedforward": c.maybe("n_inner", 4 * hidden), "positions": positions,
        "context": positions, **_GPT,
    }  # fmt: skip


_GPT = {
    "gated": False, "tied": True, "norm": "layer", "bias_qkv": True, "bias_out": True,
    "bias_mlp": True, "dropout": True,
}  # fmt: skip


def _opt(c: Config) -> dict[str, Any]:
    (wide,) = _sizes(c, "ffn_dim")
    text = _text(c)
    narrow = c.maybe("word_embed_proj_dim", text["hidden"])
    if narrow != text["hidden"] or not c.get("do_layer_norm_before", True):
        c.wrong.append(f"word_embed_proj_dim = {narrow}, or norms after the layers")
    tied = bool(c.get("tie_word_embeddings", True))
    positions = text["context"] + 2  # the two first are for padding
    return text | {**_GPT, "feedforward": wide, "positions": positions, "tied": tied}


def _bert(c: Config) -> dict[str, Any]:
    (wide,) = _sizes(c, "intermediate_size")
    return _text(c) | {
        **_GPT, "feedforward": wide, "positions": c.maybe("max_position_embeddings", 512),
        "segments": c.maybe("type_vocab_size", 0), "decoder": False, "embedding_norm": True,
        "final_norm": False, "pooler": True,
    }  # fmt: skip


def _vit(c: Config) -> dict[str, Any]:
    layers, hidden, heads, wide, patch, image = _sizes(
        c, "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size",
        "patch_size", "image_size",
    )  # fmt: skip
    return {
        "layers": layers, "hidden": hidden, "heads": heads, "feedforward": wide, "patch": patch,
        "image": image, "channels": c.maybe("num_channels", 3), **_GPT, "tied": False,
        "decoder": False, "classes": len(c.get("id2label") or ()), "dropout": False,
        "context": (image // patch) ** 2 + 1,
    }  # fmt: skip


def _mamba(c: Config) -> dict[str, Any]:
    layers, hidden, vocabulary, state, kernel = _sizes(
        c, "num_hidden_layers", "hidden_size", "vocab_size", "state_size", "conv_kernel"
    )
    rank = -(-hidden // 16)
    if c.get("time_step_rank") != "auto":
        rank = c.maybe("time_step_rank", rank)
    return {
        "layers": layers, "hidden": hidden, "vocabulary": vocabulary, "tied": True,
        "inner": c.maybe("intermediate_size", c.maybe("expand", 2) * hidden), "state": state,
        "convolution": kernel, "step_rank": rank,
        "norms": 1, "context": 1 << 20,
    }  # fmt: skip


KINDS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "llama": _llama, "mistral": _mistral, "qwen2": _qwen2, "qwen3": _qwen3,
    "qwen3_moe": _qwen3_experts, "mixtral": _mixtral, "gpt_oss": _gpt_oss,
    "deepseek_v3": _deepseek, "gpt2": _gpt2, "opt": _opt, "bert": _bert, "vit": _vit,
    "mamba": _mamba,
}  # fmt: skip
"""model_type -> how its fields are read."""


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Fields that make most of a model's parameters: never passed over."""


def _refuse(fields: Config, kind: str) -> None:
    """FileFormatError that names every field that is missing or impossible, if there is one."""
    told = []
    for name in _EXPERTS:
        if name not in fields.read and (fields.get(name) or 0) not in (0, 1):
            fields.wrong.append(f"{name} = {fields[name]!r}, which {kind} has not")
    if fields.gone:
        told.append(f"lacks {', '.join(dict.fromkeys(fields.gone))}, which {kind} needs")
    if fields.wrong:
        told.append(f"says {', '.join(dict.fromkeys(fields.wrong))}")
    if told:
        raise FileFormatError(f"config.json {' and '.join(told)}", code="workloads.config")


def _stored(fields: Config) -> str:
    """The format weights are published in, where they are quantised: "fp8", "gptq", ..."""
    told = fields.get("quantization_config")
    return str(told.get("quant_method") or "quantised") if isinstance(told, Mapping) else ""


def from_config(config: Config, name: str = "") -> Model:
    """The Model of a config.json's fields.

    Raises FileFormatError `workloads.config` for missing and impossible fields (all are named at
    once), UnknownNameError for a `model_type` that is not known, UsageError `workloads.model` for
    sizes that contradict each other.
    """
    kind = config.get("model_type")
    if kind is None:
        raise FileFormatError("config.json has no model_type", code="workloads.config")
    if not isinstance(kind, str) or kind not in KINDS:
        close = ", ".join(nearest(str(kind), KINDS)) or ", ".join(KINDS)
        raise UnknownNameError(
            f"no rule reads the config.json of model_type {kind!r}", code="workloads.config",
            fix=f"known kinds: {close}",
        )  # fmt: skip
    fields = Config(config)
    found = KINDS[kind](fields)
    _refuse(fields, str(kind))
    label = name or str(config.get("_name_or_path") or "") or str(kind)
    return Model(name=label, source="config.json", stored=_stored(fields), **found)
