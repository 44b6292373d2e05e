"""Small models of three families with random weights, as plain PyTorch modules."""

import logging

import torch


def _settled(module: torch.nn.Module) -> torch.nn.Module:
    """Weights that keep activations near 1, the same on every run."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            drawn = torch.randn(weight.shape, generator=random)
            if weight.ndim > 1:
                weight.copy_(drawn * weight.shape[-1] ** -0.5)
            else:
                weight.copy_(drawn * 0.1 + (1.0 if "weight" in name else 0.0))
    return module.eval()


class Outputs(torch.nn.Module):
    """The named fields of what a Hugging Face model returns."""

    def __init__(self, model: torch.nn.Module, *fields: str):
        super().__init__()
        self.model, self.fields = model, fields

    def forward(self, *args):
        found = self.model(*args)
        return tuple(getattr(found, field) for field in self.fields)


def bert(layers: int = 2):
    """BERT with a pooler, one sentence shorter than the other."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, attn_implementation="sdpa",
    )  # fmt: skip
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[1, 15:] = 0
    ids = torch.randint(0, 100, (2, 24), generator=torch.Generator().manual_seed(1))
    return Outputs(_settled(BertModel(config)), "last_hidden_state", "pooler_output"), (ids, mask)


def llama(layers: int = 2):
    """Llama: RMS norm, rotary positions, grouped heads, causal attention, SwiGLU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=96, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=96, max_position_embeddings=64, use_cache=False,
        attn_implementation="sdpa",
    )  # fmt: skip
    ids = torch.randint(0, 96, (2, 20), generator=torch.Generator().manual_seed(1))
    return Outputs(_settled(LlamaForCausalLM(config)), "logits"), (ids,)


def vit(layers: int = 2):
    """A vision transformer: patches by convolution, a class token."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=64, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=128,
        image_size=32, patch_size=8, attn_implementation="sdpa",
    )  # fmt: skip
    image = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return Outputs(_settled(ViTModel(config)), "last_hidden_state", "pooler_output"), (image,)
