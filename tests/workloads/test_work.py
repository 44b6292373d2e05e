"""Flops, activations, caches and states against published formulas and hand arithmetic."""

import json

import pytest

from opentrn.base import FileFormatError, MissingFileError, UnknownNameError, UsageError
from opentrn.workloads import (
    Model,
    activation_bytes,
    from_config,
    kv_bytes,
    model,
    optimizer,
    state_bytes,
    train_flops,
)


@pytest.mark.parametrize("name", ["megatron-22b", "gpt-3-175b", "megatron-530b", "megatron-1t"])
def test_training_flops_follow_the_formula_of_korthikanti(name):
    m = model(name)
    layers, h, s, v, batch = m.layers, m.hidden, 2048, 51200, 4
    wanted = 72 * batch * layers * s * h**2 * (1 + s / (6 * h) + v / (12 * h * layers))
    assert train_flops(m, batch * s, s) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", ["megatron-22b", "gpt-3-175b", "megatron-530b"])
def test_activations_follow_the_formula_of_korthikanti(name):
    m, s, t = model(name), 2048, 8
    a = activation_bytes(m)
    h, heads = m.hidden, m.heads
    assert a.sequence == 10 * h
    assert a.tensor == 24 * h
    plain = a.sequence + (a.tensor + a.scores * s) / t
    assert plain == pytest.approx(h * (10 + 24 / t + 5 * heads * s / (h * t)))
    assert a.input == 2 * h


def test_cached_bytes_of_a_token():
    assert kv_bytes(model("llama-3.1-8b"), 1) == 2 * 32 * 8 * 128 * 2 == 131072
    assert kv_bytes(model("llama-3.1-8b"), 1, kv_heads=32) == 4 * 131072
    assert kv_bytes(model("llama-3.1-405b"), 1) == 2 * 126 * 8 * 128 * 2
    # Multi-head latent attention keeps 512 + 64 numbers of a token and layer.
    assert kv_bytes(model("deepseek-v3"), 1) == 61 * 576 * 2
    # gpt-oss: half the layers look back 128 tokens only.
    assert kv_bytes(model("gpt-oss-20b"), 1000) == 2 * 8 * 64 * 2 * (12 * 1000 + 12 * 128)
    assert kv_bytes(model("bert-large"), 100) == 0
    assert state_bytes(model("mamba-130m")) == 24 * 1536 * (16 * 4 + 4 * 2)


def test_optimizer_bytes():
    adam = optimizer("adamw")
    assert adam.total == 18  # 2 + 4 + 12, as in figure 1 of Korthikanti et al.
    assert optimizer("adamw-bf16").total == 8
    with pytest.raises(UnknownNameError, match="adamx"):
        optimizer("adamx")


def test_a_config_json_with_missing_fields_names_all_of_them(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    with pytest.raises(FileFormatError) as caught:
        model(file)
    for field in ("num_hidden_layers", "vocab_size", "num_attention_heads", "intermediate_size"):
        assert field in str(caught.value)
    with pytest.raises(FileFormatError, match="no model_type"):
        from_config({})
    with pytest.raises(UnknownNameError, match="lama"):
        from_config({"model_type": "lama"})
    with pytest.raises(MissingFileError):
        model(tmp_path / "nothing.json")
    file.write_text("{")
    with pytest.raises(FileFormatError):
        model(file)


def test_an_unknown_model_gets_the_nearest_names():
    with pytest.raises(UnknownNameError) as caught:
        model("llama-3.1-80b")
    assert "llama-3.1-8b" in str(caught.value)
    assert model("meta-llama/Llama-3.1-8B-Instruct") is model("llama-3.1-8b")


def test_impossible_models_are_refused():
    with pytest.raises(UsageError):
        Model(name="x", layers=0, hidden=8)
    with pytest.raises(UsageError):
        Model(name="x", layers=1, hidden=8, heads=6, kv_heads=4)
    with pytest.raises(UsageError):
        Model(name="x", layers=1, hidden=-8)
