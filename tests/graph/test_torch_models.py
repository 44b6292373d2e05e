"""Whole models with random weights: the imported graph against eager torch."""

import numpy as np
import pytest

from opentrn.graph import (
    ATTENTION,
    CLEAN,
    RECOGNISE,
    constants,
    decompose,
    evaluate,
    fold,
    from_torch,
    read,
    rewrite,
    write,
)

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
transformers = pytest.importorskip("transformers", reason="the extra `demo` is not installed")

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64}
TEXT = SIZE | {"vocab_size": 100, "max_position_embeddings": 64}


def scattered(module):
    """Weights that are neither 0 nor 1, so that nothing is simplified away by chance."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval()


def bert(attention):
    config = transformers.BertConfig(**TEXT, attn_implementation=attention)
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 7:] = 0
    return transformers.BertModel(config), (torch.randint(0, 100, (2, 12)), mask)


def llama(attention):
    config = transformers.LlamaConfig(**TEXT, num_key_value_heads=2, use_cache=False,
                                      attn_implementation=attention)
    return transformers.LlamaForCausalLM(config), (torch.randint(0, 100, (2, 12)),)


def vit(attention):
    config = transformers.ViTConfig(**SIZE, image_size=32, patch_size=8,
                                    attn_implementation=attention)
    return transformers.ViTModel(config), (torch.randn(2, 3, 32, 32),)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model", [bert, llama, vit], ids=lambda m: m.__name__)
def test_model(model, attention):
    torch.manual_seed(1)
    module, args = model(attention)
    module = scattered(module)
    graph = from_torch(module, args)
    with torch.no_grad():
        want = [v.numpy() for v in module(*args).values() if isinstance(v, torch.Tensor)]
    arrays = [a.numpy() for a in args]
    for a, b in zip(evaluate(graph, arrays), want, strict=True):
        assert np.abs(a - b).max() <= 1e-5 * max(1, np.abs(b).max())

    cleaned = rewrite(fold(graph), [*CLEAN, *RECOGNISE])
    assert len(cleaned) < len(graph)
    assert cleaned.histogram()["attention"] == 2
    for a, b in zip(evaluate(cleaned, arrays), want, strict=True):
        assert np.abs(a - b).max() <= 1e-5 * max(1, np.abs(b).max())
    if model is llama:
        closer = rewrite(cleaned, ATTENTION)
        heads = [v for v in closer if v.op == "attention"]
        assert all(v.attrs.causal and len(v.args) == 3 for v in heads)
        assert all(v.args[1].shape == (2, 2, 12, 8) for v in heads)
        got = evaluate(closer, arrays)[0]
        assert np.abs(got - want[0]).max() <= 1e-5 * max(1, np.abs(want[0]).max())
        assert cleaned.histogram()["rms_norm"] == 5
        assert cleaned.histogram()["silu"] == 2

    back = read(write(graph), constants(graph))
    assert all(x is y for x, y in zip(back.outputs, graph.outputs, strict=True))


def test_names_and_lines_are_the_models():
    module, args = llama("sdpa")
    graph = from_torch(module.eval(), args)
    assert [v.attrs.label for v in graph.inputs] == ["input_ids"]
    assert graph.output_names == ("logits",)
    assert "model.layers.1.mlp.down_proj.weight" in graph.constants
    last = graph.outputs[0]
    assert last.op == "dot_general"
    assert last.where.file.endswith("modeling_llama.py")
    assert "lm_head" in last.where.text
    cleaned = rewrite(fold(graph), [*CLEAN, *RECOGNISE])
    for program in (graph, cleaned, decompose(cleaned)):
        strange = {v.where.file for v in program if v.op not in ("input", "constant")}
        assert all("transformers" in file for file in strange)


def test_a_bfloat16_llama():
    torch.manual_seed(2)
    module, args = llama("sdpa")
    module = scattered(module).bfloat16()
    graph = from_torch(module, args)
    with torch.no_grad():
        want = module(*args).logits.float().numpy()
        exact = module.float()(*args).logits.numpy()
    cleaned = rewrite(fold(graph), [*CLEAN, *RECOGNISE])
    assert cleaned.histogram()["rms_norm"] == 5
    noise = np.abs(want - exact).max()  # what bfloat16 costs torch itself
    for program in (from_torch(module.bfloat16(), args), cleaned):
        got = evaluate(program, [args[0].numpy()])[0].astype(np.float32)
        assert np.abs(got - exact).max() <= 2 * noise


def test_flops_of_a_bert_layer_by_hand():
    module, args = bert("sdpa")
    graph = from_torch(module.eval(), args)
    products = sum(v.flops for v in graph if v.op == "dot_general")
    tokens, hidden, wide = 24, 32, 64
    layer = 2 * tokens * (4 * hidden * hidden + 2 * hidden * wide)
    pooler = 2 * 2 * hidden * hidden
    assert products == 2 * layer + pooler
