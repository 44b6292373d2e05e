"""A model as its configuration fields: enough to count every parameter, flop and byte of it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from opentrn.base import UsageError, declare

declare(
    "workloads.model",
    "A model description must be possible.",
    rule="sizes are whole numbers, not negative; kv_heads divides heads; parts are no more than "
    "their whole",
    fix="compare the fields with the model's published config.json",
)

NORMS = ("rms", "layer")
"""Kinds of normalisation: a scale alone, or a scale and a shift."""


_PARTS = {
    "active_experts": "experts", "dense_layers": "layers", "window_layers": "layers",
    "patch": "image",
}  # fmt: skip
"""Counts that are of another count, so never more."""


def _check_size(name: str, field: str, kind: str, value: object) -> None:
    """UsageError unless a number of the description is whole (or finite) and not negative."""
    if kind == "int":
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    else:
        fits = kind != "float" or (isinstance(value, int | float) and 0 <= value < float("inf"))
    if not fits:
        raise UsageError(f"{name}: {field} = {value!r}", code="workloads.model")


@dataclass(frozen=True, kw_only=True)
class Model:
    """One transformer (or Mamba) model. All sizes are counts; zero means the part is absent.

    `head` is the width of a query and key head, `value_head` that of a value head. `feedforward`
    is the width of a dense layer's hidden part, `expert` that of one expert. `dense_layers` are
    the first layers of a model of experts that have none. `window` is how far the layers with a
    sliding window look back, and `window_layers` how many there are. `latent_query`, `latent_kv`,
    `rotary_head` belong to multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), `inner`,
    `state`, `convolution`, `step_rank` to Mamba (arXiv 2312.00752), `patch`, `image`, `channels`,
    `classes` to ViT. `positions` counts learned positions; rotary positions have no parameters.
    `stored` names the format that weights are published in, where they are quantised.
    """

    name: str
    layers: int
    hidden: int
    vocabulary: int = 0
    heads: int = 0
    kv_heads: int = 0
    head: int = 0
    value_head: int = 0
    feedforward: int = 0
    context: int = 2048
    gated: bool = True
    tied: bool = False
    norm: str = "rms"
    norms: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    bias_qkv: bool = False
    bias_out: bool = False
    bias_mlp: bool = False
    head_norm: bool = False
    sinks: bool = False
    dropout: bool = False
    decoder: bool = True
    positions: int = 0
    segments: int = 0
    pooler: bool = False
    language_head: bool = False
    experts: int = 0
    active_experts: int = 0
    expert: int = 0
    shared: int = 0
    dense_layers: int = 0
    router_bias: bool = False
    expert_bias: bool = False
    window: int = 0
    window_layers: int = 0
    latent_query: int = 0
    latent_kv: int = 0
    rotary_head: int = 0
    inner: int = 0
    state: int = 0
    convolution: int = 0
    step_rank: int = 0
    patch: int = 0
    image: int = 0
    channels: int = 3
    classes: int = 0
    source: str = ""
    stored: str = ""
    published: float = 0.0

    def __post_init__(self):
        own = object.__setattr__
        if self.heads and not self.kv_heads:
            own(self, "kv_heads", self.heads)
        if self.heads and not self.head:
            own(self, "head", self.hidden // self.heads)
        if self.heads and not self.value_head:
            own(self, "value_head", self.head)
        for field in fields(self):
            _check_size(self.name, field.name, str(field.type), getattr(self, field.name))
        if self.layers < 1 or self.hidden < 1:
            raise UsageError(
                f"{self.name} has {self.layers} layers of width {self.hidden}",
                code="workloads.model",
            )
        if self.heads % max(self.kv_heads, 1):
            raise UsageError(
                f"{self.name}: {self.heads} heads do not share {self.kv_heads} KV heads evenly",
                code="workloads.model",
            )
        for part, whole in _PARTS.items():
            if getattr(self, part) > getattr(self, whole):
                raise UsageError(
                    f"{self.name}: {part} = {getattr(self, part)}, of {getattr(self, whole)} "
                    f"{whole}", code="workloads.model",
                )  # fmt: skip
        if self.norm not in NORMS:
            raise UsageError(f"{self.name}: no norm {self.norm!r}", code="workloads.model")

    @property
    def attends(self) -> bool:
        """Whether its layers have attention."""
        return self.heads > 0

    @property
    def expert_layers(self) -> int:
        """How many layers hold experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def kv_width(self) -> int:
        """Numbers that one layer keeps for one token while text is generated."""
        if self.latent_kv:
            return self.latent_kv + self.rotary_head
        return self.kv_heads * (self.head + self.value_head) if self.decoder else 0

    @property
    def patches(self) -> int:
        """Tokens an image becomes, the class token included; 0 for a model of text."""
        return (self.image // self.patch) ** 2 + 1 if self.patch else 0

    def changed(self, **fields_: object) -> Model:
        """A variant with other fields; same checks."""
        return replace(self, **fields_)
