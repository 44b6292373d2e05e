"""Small models with random weights of 27 families: logits and gradients on the device, and eager.

    python -m tests.frameworks.families [FAMILY …]      # prints the table

Models are transformers' own (and three small ones of ours), compiled unmodified with
`torch.compile(backend="neuron")`; transformers' configurations are made small, nothing else.
"""

import copy
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import opentrn.frameworks.torch as neuron

SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "num_local_experts": 4,
           "moe_intermediate_size": 32}  # fmt: skip
LOGITS, GRADIENTS = 2e-4, 2e-3
"""Largest difference allowed, as a share of the largest logit, and of a gradient's largest."""
HALF = 2.0
"""In bfloat16: how many times as far from eager float32 as eager bfloat16 is."""


def decoder(name: str, **more) -> Callable:
    """A causal language model of transformers, and token ids."""

    def make():
        import transformers

        kind, _, other = name.partition(":")
        config = getattr(transformers, f"{kind}Config")(**{**SMALL, **more})
        if name in ("Gemma2", "GptOss"):  # transformers has them in eager attention only
            config._attn_implementation = "eager"
        head = "GPT2LMHeadModel" if kind == "GPT2" else f"{other or kind}ForCausalLM"
        model = getattr(transformers, head)(config)
        return model, {"input_ids": torch.randint(3, 96, (2, 12)), "use_cache": False}

    return make


def encoder(name: str, head: str, inputs: Callable, **config) -> Callable:
    """Another model of transformers with its inputs."""

    def make():
        import transformers

        held = getattr(transformers, f"{name}Config")(**config)
        return getattr(transformers, head)(held), inputs()

    return make


def ids() -> dict:
    return {"input_ids": torch.randint(3, 96, (2, 12))}


def image(size: int = 32) -> Callable:
    return lambda: {"pixel_values": torch.randn(2, 3, size, size)}


def clip():
    """CLIP with both towers."""
    import transformers

    text = {**SMALL, "projection_dim": 16}
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
              "num_attention_heads": 4, "image_size": 32, "patch_size": 8}  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    return transformers.CLIPModel(config), {**ids(), **image()()}


class Unet(nn.Module):
    """Two levels down and up with skips, group norms and interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1)
        self.middle, self.up = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(24, 8, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, n) for n in (8, 16, 16, 8))
        self.last = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        a = nn.functional.silu(self.norms[0](self.first(x)))
        b = nn.functional.silu(self.norms[1](self.down(a)))
        b = nn.functional.silu(self.norms[2](self.middle(b)))
        up = nn.functional.interpolate(b, scale_factor=2, mode="nearest")
        return self.last(nn.functional.silu(self.norms[3](self.up(torch.cat([a, up], 1)))))


class Lstm(nn.Module):
    """A two-layer LSTM over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(96, 16), nn.LSTM(16, 24, 2, batch_first=True)
        self.out = nn.Linear(24, 96)

    def forward(self, tokens):
        return self.out(self.lstm(self.table(tokens))[0])


class Dlrm(nn.Module):
    """Bags of embeddings, pairwise products, two MLPs."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 8, mode="sum") for _ in range(3))
        self.low, self.high = nn.Linear(5, 8), nn.Linear(8 + 6, 1)

    def forward(self, dense, sparse):
        x = torch.relu(self.low(dense))
        every = torch.stack([x, *(bag(sparse[n]) for n, bag in enumerate(self.bags))], 1)
        products = torch.bmm(every, every.mT)
        row, column = torch.tril_indices(4, 4, -1)
        return self.high(torch.cat([x, products[:, row, column]], 1))


MIXTRAL = {**EXPERTS, "intermediate_size": 32}
FAMILIES: dict[str, Callable] = {
    "llama": decoder("Llama"),
    "qwen3": decoder("Qwen3", head_dim=8),
    "mistral (sliding window)": decoder("Mistral", sliding_window=4),
    "gemma2": decoder("Gemma2", head_dim=8, sliding_window=4),
    "gemma3": decoder("Gemma3Text:Gemma3", head_dim=8, sliding_window=4),
    "phi3": decoder("Phi3"),
    "gpt-oss": decoder("GptOss", head_dim=8, sliding_window=4, **EXPERTS),
    "mixtral": decoder("Mixtral", **MIXTRAL),
    "qwen3-moe": decoder("Qwen3Moe", head_dim=8, **EXPERTS),
    "deepseek-v3": decoder(
        "DeepseekV3", num_key_value_heads=4, n_routed_experts=4, n_group=2, topk_group=1,
        q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
        first_k_dense_replace=1, **EXPERTS),
    "gpt2": decoder("GPT2", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "gpt-neox": decoder("GPTNeoX"),
    "mamba": decoder("Mamba", state_size=4, conv_kernel=4),
    "mamba2": decoder("Mamba2", state_size=8, num_heads=8, head_dim=8, n_groups=1, chunk_size=4),
    "bert": encoder("Bert", "BertForMaskedLM", ids, **SMALL),
    "distilbert": encoder("DistilBert", "DistilBertForMaskedLM", ids, vocab_size=96, dim=32,
                          hidden_dim=64, n_layers=2, n_heads=4, max_position_embeddings=64),
    "t5": encoder("T5", "T5ForConditionalGeneration",
                  lambda: {**ids(), "decoder_input_ids": torch.randint(3, 96, (2, 7)),
                           "use_cache": False},
                  vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                  decoder_start_token_id=0),
    "whisper": encoder("Whisper", "WhisperForConditionalGeneration",
                       lambda: {"input_features": torch.randn(2, 8, 16), "use_cache": False,
                                "decoder_input_ids": torch.randint(3, 96, (2, 7))},
                       vocab_size=96, num_mel_bins=8, d_model=32, encoder_layers=2,
                       decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
                       encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=8,
                       max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                       decoder_start_token_id=1),
    "vit": encoder("ViT", "ViTForImageClassification", image(), hidden_size=32,
                   intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                   image_size=32, patch_size=8),
    "clip": clip,
    "swin": encoder("Swin", "SwinForImageClassification", image(), image_size=32, patch_size=4,
                    embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
    "resnet": encoder("ResNet", "ResNetForImageClassification", image(), embedding_size=8,
                      hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
    "convnext": encoder("ConvNext", "ConvNextForImageClassification", image(),
                        hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_stages=4),
    "mobilenet-v2": encoder("MobileNetV2", "MobileNetV2ForImageClassification", image(),
                            depth_multiplier=0.25, image_size=32),
    "unet": lambda: (Unet(), {"x": torch.randn(2, 3, 16, 16)}),
    "lstm": lambda: (Lstm(), {"tokens": torch.randint(0, 96, (2, 5))}),
    "dlrm": lambda: (Dlrm(), {"dense": torch.randn(4, 5),
                              "sparse": torch.randint(0, 50, (3, 4, 2))}),
}  # fmt: skip


@dataclass
class Result:
    """Differences as shares of the largest number, and `eager` bfloat16's from float32 where that
    is the measure; graphs and breaks are what torch.compile reported."""

    logits: float
    gradients: float
    worst: str
    graphs: int
    breaks: int
    seconds: float
    eager: tuple[float, float] = (0.0, 0.0)

    @property
    def passed(self) -> bool:
        """Whether both are within the tolerances stated above, and all of it ran on the device."""
        alone = self.graphs == 1 and not self.breaks
        logits, gradients = max(LOGITS, HALF * self.eager[0]), max(GRADIENTS, HALF * self.eager[1])
        return alone and self.logits <= logits and self.gradients <= gradients


def measure(name: str, numerics: str = "exact", half: bool = False) -> Result:
    """One family forward and backward, on the device and eagerly.

    With `half` the model is bfloat16 on the device; eager float32 stays the measure, and eager
    bfloat16's distance from it is what `Result.eager` tells."""
    begin = time.perf_counter()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, given = FAMILIES[name]()
        model.eval()
        for parameter in model.parameters():  # small models start with outputs near 0
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        wanted = trained(model, given)
        eager = (0.0, 0.0, "")
        if half:
            eager = distance(wanted, trained(halved(model), halves(given)))
        twin = halved(model) if half else copy.deepcopy(model)
        twin.zero_grad()
        torch._dynamo.reset()
        neuron.reset()
        with torch._dynamo.config.patch(allow_rnn=True):  # torch runs LSTMs eagerly unless told
            compiled = torch.compile(twin, backend="neuron", options={"numerics": numerics})
            found = trained(compiled, halves(given) if half else given, twin)
    logits, worst, where = distance(wanted, found)
    told = neuron.report()
    return Result(logits, worst, where, told.graphs, len(told.breaks),
                  time.perf_counter() - begin, eager[:2])  # fmt: skip


def halved(model: nn.Module) -> nn.Module:
    """A copy in bfloat16, without gradients."""
    twin = copy.deepcopy(model).to(torch.bfloat16)
    twin.zero_grad()
    return twin


def halves(given: dict) -> dict:
    """Inputs with their floats in bfloat16."""
    return {k: v.bfloat16() if torch.is_tensor(v) and v.is_floating_point() else v
            for k, v in given.items()}  # fmt: skip


def trained(model, given: dict, holder: nn.Module | None = None) -> tuple:
    """(logits, {parameter: gradient or None}) of a weighted sum of logits."""
    found = scores(model(**given))
    weights = torch.linspace(0.5, 1.5, found.numel()).reshape(found.shape)
    (found.float() * weights).sum().backward()
    named = (holder or model).named_parameters()
    return found.detach().float(), {n: None if p.grad is None else p.grad.float()
                                    for n, p in named}  # fmt: skip


def distance(wanted: tuple, found: tuple) -> tuple[float, float, str]:
    """Largest difference of a logit as a share of the largest; of a gradient likewise, and its
    parameter."""
    worst, where = 0.0, ""
    whole = max(float(g.abs().max()) for g in wanted[1].values() if g is not None)
    for place, a in wanted[1].items():
        b = found[1][place]
        if a is None or b is None:
            if (a is None) != (b is None):
                worst, where = float("inf"), place
            continue
        size = max(float(a.abs().max()), 1e-3 * whole)
        one = float((a - b).abs().max()) / size
        if not one <= worst:
            worst, where = one, place
    size = float(wanted[0].abs().max())
    return float((wanted[0] - found[0]).abs().max()) / size, worst, where


def scores(result) -> torch.Tensor:
    """The tensor a model is judged by."""
    for name in ("logits", "logits_per_image", "last_hidden_state"):
        if hasattr(result, name):
            return getattr(result, name)
    return result[0] if isinstance(result, tuple) else result


COLUMNS = {"float32 exact": ("exact", False), "float32 fast": ("fast", False),
           "bfloat16 exact": ("exact", True), "bfloat16 fast": ("fast", True)}  # fmt: skip


def main() -> None:
    """Print a row of the table for each family: logits and gradients of each column; in bfloat16
    with eager's after a slash."""
    print("| family | " + " | ".join(COLUMNS) + " |")
    print("|---|" + "---|" * len(COLUMNS))
    for name in FAMILIES:
        if not sys.argv[1:] or name in sys.argv[1:]:
            cells = [cell(name, *how) for how in COLUMNS.values()]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def cell(name: str, numerics: str, half: bool) -> str:
    """One measurement as text."""
    try:
        r = measure(name, numerics, half)
    except Exception as error:  # the table says what happened
        return f"fails: {' '.join(f'{type(error).__name__}: {error}'.split())[:200]}"
    told = f"{r.logits:.1e}, {r.gradients:.1e}"
    if half:
        told = f"{r.logits:.1e} / {r.eager[0]:.1e}, {r.gradients:.1e} / {r.eager[1]:.1e}"
    alone = "" if r.graphs == 1 and not r.breaks else f" ({r.graphs} graphs, {r.breaks} breaks)"
    return told + alone + ("" if r.passed else f" differs at {r.worst}")


if __name__ == "__main__":
    main()
