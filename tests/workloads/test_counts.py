"""Parameters counted by us, by instantiated models, and by those who published them."""

import pytest

from opentrn.base import TrnError
from opentrn.workloads import Model, from_config, model, models, parameters

transformers = pytest.importorskip("transformers", reason="the demo extra is not installed")
torch = pytest.importorskip("torch", reason="the torch extra is not installed")

GPT3 = {"n_layer": 32, "n_embd": 4096, "n_head": 32, "vocab_size": 50304, "n_positions": 2048}
CASES = {
    "llama-3.1-8b": ("LlamaConfig", "LlamaForCausalLM", {
        "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "tie_word_embeddings": False}),
    "llama-3.1-405b": ("LlamaConfig", "LlamaForCausalLM", {
        "num_hidden_layers": 126, "hidden_size": 16384, "num_attention_heads": 128,
        "num_key_value_heads": 8, "intermediate_size": 53248, "vocab_size": 128256}),
    "llama-3.2-1b": ("LlamaConfig", "LlamaForCausalLM", {
        "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192,
        "vocab_size": 128256, "tie_word_embeddings": True}),
    "qwen3-8b": ("Qwen3Config", "Qwen3ForCausalLM", {
        "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
        "vocab_size": 151936}),
    "qwen3-30b-a3b": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", {
        "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768, "vocab_size": 151936}),
    "gpt-oss-20b": ("GptOssConfig", "GptOssForCausalLM", {
        "num_hidden_layers": 24, "num_local_experts": 32, "hidden_size": 2880,
        "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "num_experts_per_tok": 4, "vocab_size": 201088}),
    "mixtral-8x7b": ("MixtralConfig", "MixtralForCausalLM", {
        "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8,
        "num_experts_per_tok": 2, "vocab_size": 32000}),
    "deepseek-v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", {}),
    "gpt-3-6.7b": ("GPT2Config", "GPT2LMHeadModel", GPT3),
    "bert-base": ("BertConfig", "BertModel", {}),
    "vit-base": ("ViTConfig", "ViTForImageClassification", {"num_labels": 1000}),
    "mistral-7b": ("MistralConfig", "MistralForCausalLM", {"sliding_window": None}),
    "opt-13b": ("OPTConfig", "OPTForCausalLM", {
        "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40, "ffn_dim": 20480,
        "vocab_size": 50272, "word_embed_proj_dim": 5120}),
    "mamba-130m": ("MambaConfig", "MambaForCausalLM", {
        "num_hidden_layers": 24, "hidden_size": 768, "vocab_size": 50280}),
}  # fmt: skip




def _llama(layers, hidden, heads, kv, wide, words=128256, **more):
    fields = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
              "num_key_value_heads": kv, "intermediate_size": wide}  # fmt: skip
    return fields | {"vocab_size": words} | more


def _gpt(layers, hidden, heads, words=51200):
    fields = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "vocab_size": words}
    return "GPT2Config", "GPT2LMHeadModel", fields | {"n_positions": 2048}


def _qwen(layers, hidden, heads, kv, wide, **more):
    return _llama(layers, hidden, heads, kv, wide, 151936, head_dim=128, **more)


LLAMA_MODEL, QWEN_MODEL = ("LlamaConfig", "LlamaForCausalLM"), ("Qwen3Config", "Qwen3ForCausalLM")
CASES |= {
    "llama-2-7b": (*LLAMA_MODEL, _llama(32, 4096, 32, 32, 11008, 32000)),
    "llama-2-13b": (*LLAMA_MODEL, _llama(40, 5120, 40, 40, 13824, 32000)),
    "llama-2-70b": (*LLAMA_MODEL, _llama(80, 8192, 64, 8, 28672, 32000)),
    "llama-3-8b": (*LLAMA_MODEL, _llama(32, 4096, 32, 8, 14336)),
    "llama-3-70b": (*LLAMA_MODEL, _llama(80, 8192, 64, 8, 28672)),
    "llama-3.1-70b": (*LLAMA_MODEL, _llama(80, 8192, 64, 8, 28672)),
    "llama-3.3-70b": (*LLAMA_MODEL, _llama(80, 8192, 64, 8, 28672)),
    "llama-3.2-3b": (*LLAMA_MODEL, _llama(28, 3072, 24, 8, 8192, tie_word_embeddings=True)),
    "qwen3-0.6b": (*QWEN_MODEL, _qwen(28, 1024, 16, 8, 3072, tie_word_embeddings=True)),
    "qwen3-32b": (*QWEN_MODEL, _qwen(64, 5120, 64, 8, 25600)),
    "qwen3-235b-a22b": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", _qwen(
        94, 4096, 64, 4, 12288, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=1536)),
    "gpt-oss-120b": ("GptOssConfig", "GptOssForCausalLM", _llama(
        36, 2880, 64, 8, 2880, 201088, head_dim=64, num_local_experts=128,
        num_experts_per_tok=4)),
    "mixtral-8x22b": ("MixtralConfig", "MixtralForCausalLM", _llama(
        56, 6144, 48, 8, 16384, 32768, num_local_experts=8, num_experts_per_tok=2)),
    "moe-1t": ("MixtralConfig", "MixtralForCausalLM", _llama(
        72, 8192, 64, 8, 4352, num_local_experts=128, num_experts_per_tok=4)),
    "gpt-23b": _gpt(28, 8192, 64, 50304), "gpt-46b": _gpt(56, 8192, 64, 50304),
    "gpt-3-175b": _gpt(96, 12288, 96), "megatron-22b": _gpt(48, 6144, 64),
    "megatron-530b": _gpt(105, 20480, 128), "megatron-1t": _gpt(128, 25600, 160),
    "dense-1t": _gpt(128, 25600, 160),
    "opt-30b": ("OPTConfig", "OPTForCausalLM", {
        "num_hidden_layers": 48, "hidden_size": 7168, "num_attention_heads": 56, "ffn_dim": 28672,
        "vocab_size": 50272, "word_embed_proj_dim": 7168}),
    "opt-66b": ("OPTConfig", "OPTForCausalLM", {
        "num_hidden_layers": 64, "hidden_size": 9216, "num_attention_heads": 72, "ffn_dim": 36864,
        "vocab_size": 50272, "word_embed_proj_dim": 9216}),
    "vit-large": ("ViTConfig", "ViTForImageClassification", {
        "num_labels": 1000, "hidden_size": 1024, "num_hidden_layers": 24,
        "num_attention_heads": 16, "intermediate_size": 4096}),
    "mamba-2.8b": ("MambaConfig", "MambaForCausalLM", {
        "num_hidden_layers": 64, "hidden_size": 2560, "vocab_size": 50280}),
}  # fmt: skip


def test_every_model_that_is_known_by_name_is_counted():
    assert {*CASES, "bert-large"} == set(models())


def test_parameters_of_bert_with_its_heads_of_pre_training():
    config = transformers.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                                     intermediate_size=4096)  # fmt: skip
    with torch.device("meta"):
        made = transformers.BertForPreTraining(config)
    assert parameters(model("bert-large")) == sum(p.numel() for p in made.parameters())


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_the_instantiated_model(name):
    config_name, class_name, fields = CASES[name]
    config = getattr(transformers, config_name)(**fields)
    with torch.device("meta"):
        made = getattr(transformers, class_name)(config)
    counted = sum(p.numel() for p in made.parameters())
    assert parameters(model(name)) == counted
    read = from_config(config.to_dict())
    assert parameters(read) == counted
    own = model(name)
    assert (read.layers, read.hidden, read.kv_width, read.experts) == (
        own.layers, own.hidden, own.kv_width, own.experts)  # fmt: skip


@pytest.mark.parametrize("name", models())
def test_parameters_agree_with_the_published_number(name):
    one = model(name)
    assert parameters(one) == pytest.approx(one.published, rel=0.011)


def test_active_parameters_of_models_of_experts():
    # DeepSeek-V3 states 37 B active, Qwen3 22 B and 3.3 B, Mixtral 12.9 B.
    for name, active in (("deepseek-v3", 37e9), ("qwen3-235b-a22b", 22e9),
                         ("qwen3-30b-a3b", 3.3e9), ("mixtral-8x7b", 12.9e9)):  # fmt: skip
        assert parameters(model(name), active=True) == pytest.approx(active, rel=0.02)


LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100,
    "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads = 0"),
        ({"hidden_size": -64}, "hidden_size = -64"),
        ({"vocab_size": float("nan")}, "vocab_size = nan"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers = 2.5"),
        ({"num_key_value_heads": 0, "head_dim": "x"}, "num_key_value_heads = 0, head_dim = 'x'"),
        ({"intermediate_size": True}, "intermediate_size = True"),
        ({"hidden_size": None, "vocab_size": 0}, "lacks hidden_size, which llama needs and says"),
        ({"num_local_experts": 8}, "says num_local_experts = 8, which llama has not"),
        ({"num_key_value_heads": 3}, "do not share 3 KV heads"),
    ],
)
def test_a_config_whose_numbers_cannot_be_is_refused_with_all_of_them(fields, words):
    assert parameters(from_config(LLAMA)) > 0
    with pytest.raises(TrnError, match=words) as refused:
        from_config(LLAMA | fields)
    assert refused.value.rule
    assert refused.value.fix


@pytest.mark.parametrize(
    "fields",
    [
        {"layers": 2.5}, {"hidden": "64"}, {"experts": 4, "active_experts": 8, "expert": 8},
        {"dense_layers": 3}, {"window_layers": 3}, {"vocabulary": True},
        {"published": float("nan")},
    ],
)  # fmt: skip
def test_a_model_whose_fields_cannot_be_is_refused(fields):
    with pytest.raises(TrnError, match="workloads.model"):
        Model(**({"name": "m", "layers": 2, "hidden": 64} | fields))


SMALL = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99,
         "intermediate_size": 96, "moe_intermediate_size": 32,
         "num_experts_per_tok": 2}  # fmt: skip
LATENT = SMALL | {"num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16,
                  "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
                  "n_routed_experts": 8, "n_group": 2, "topk_group": 1}  # fmt: skip
ROUTED = SMALL | {"num_key_value_heads": 2, "head_dim": 16, "num_experts": 8}


@pytest.mark.parametrize(("kind", "fields"), [
    ("DeepseekV3", LATENT | {"first_k_dense_replace": 4}),
    ("DeepseekV3", LATENT | {"first_k_dense_replace": 1}),
    ("DeepseekV3", LATENT | {"first_k_dense_replace": 0, "q_lora_rank": None}),
    ("Qwen3Moe", ROUTED | {"mlp_only_layers": [0, 3]}),
    ("Qwen3Moe", ROUTED | {"decoder_sparse_step": 2}),
])  # fmt: skip
def test_layers_with_and_without_experts(kind, fields):
    config = getattr(transformers, f"{kind}Config")(**fields)
    with torch.device("meta"):
        made = getattr(transformers, f"{kind}ForCausalLM")(config)
    assert parameters(from_config(config.to_dict())) == sum(p.numel() for p in made.parameters())


def test_flops_are_those_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    from opentrn.workloads import model_flops

    for kind, fields in (
        ("Llama", SMALL | {"num_key_value_heads": 2}),
        ("DeepseekV3", LATENT | {"first_k_dense_replace": 4}),
    ):
        config = getattr(transformers, f"{kind}Config")(**fields)
        config._attn_implementation = "eager"
        made = getattr(transformers, f"{kind}ForCausalLM")(config)
        with FlopCounterMode(display=False) as counted:
            made(input_ids=torch.zeros(2, 32, dtype=torch.long))
        assert model_flops(from_config(config.to_dict()), 64, 32) == counted.get_total_flops()


def test_a_window_bounds_the_cache_of_every_layer():
    config = transformers.MistralConfig(sliding_window=4096)
    read = from_config(config.to_dict())
    assert (read.window, read.window_layers) == (4096, 32)
    assert from_config(transformers.MistralConfig(sliding_window=None).to_dict()).window == 0


@pytest.mark.parametrize("fields", [
    {"model_type": ["llama"]}, {"model_type": "qwen3_moe", "mlp_only_layers": "abc"},
    {"model_type": "qwen3_moe", "mlp_only_layers": [-1]},
    {"model_type": "qwen3_moe", "decoder_sparse_step": 0},
    {"model_type": "deepseek_v3", "first_k_dense_replace": 5},
])  # fmt: skip
def test_layers_that_cannot_be_are_refused(fields):
    with pytest.raises(TrnError) as caught:
        from_config(LATENT | ROUTED | {"n_shared_experts": 1} | fields)
    assert caught.value.code in ("workloads.config", "workloads.model")


def test_a_file_nested_without_end_is_refused(tmp_path):
    file = tmp_path / "config.json"
    file.write_text("[" * 100_000)
    with pytest.raises(TrnError, match="is not JSON"):
        model(str(file))


def test_a_billion_layers_take_no_time():
    read = from_config(ROUTED | {"model_type": "qwen3_moe", "num_hidden_layers": 10**9,
                                 "decoder_sparse_step": 3})  # fmt: skip
    assert read.expert_layers == 333_333_333
