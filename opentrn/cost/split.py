"""How a model is divided over devices: the degrees of each kind of parallelism, and the job."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from opentrn.base.errors import UsageError, declare

declare(
    "cost.split",
    "A split has degrees of at least 1.",
    rule="tp, cp, pp, dp, ep, micro_batch and chunks are at least 1; zero is 0 to 3; ep divides dp",
    fix="correct the degree named above",
)

RECOMPUTE = ("none", "selective", "full")
"""What is computed again in the backward pass: nothing, attention's inside, whole layers."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Degrees: tensor, context, pipeline, data and expert parallelism, and what goes with them.

    Ranks lie tensor-parallel first, then context, data, pipeline; experts divide the data-parallel
    ranks. `sequence` is sequence parallelism of the norms (Korthikanti et al.), `zero` the ZeRO
    level (3 = FSDP), `chunks` the interleaved model chunks of each pipeline stage.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    micro_batch: int = 1
    chunks: int = 1
    recompute: str = "none"
    sequence: bool = True
    zero: int = 1

    def __post_init__(self):
        degrees = (self.tp, self.cp, self.pp, self.dp, self.ep, self.micro_batch, self.chunks)
        if min(degrees) < 1 or self.zero not in range(4) or self.dp % self.ep:
            raise UsageError(f"{self} cannot be", code="cost.split")
        if self.recompute not in RECOMPUTE:
            raise UsageError(f"no recomputation is called {self.recompute!r}", code="cost.split",
                             fix=f"one of {', '.join(RECOMPUTE)}")  # fmt: skip

    @property
    def devices(self) -> int:
        """How many devices it takes."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def level(self) -> int:
        """Recomputation as a number: 0 none, 1 selective, 2 full."""
        return RECOMPUTE.index(self.recompute)

    def row(self) -> dict[str, int | str | bool]:
        """All degrees as a dict, for JSON."""
        return asdict(self)

    @property
    def degrees(self) -> str:
        """The degrees above one, in words: "TP8 PP4 DP2 5 chunks ZeRO-1"."""
        parts = [f"{k.upper()}{v}" for k in ("tp", "cp", "pp", "dp", "ep")
                 if (v := getattr(self, k)) > 1]  # fmt: skip
        parts += [f"{self.chunks} chunks"] if self.chunks > 1 else []
        parts += [f"ZeRO-{self.zero}"] if self.zero and self.dp > 1 else []
        return " ".join(parts) or "one device"

    def __str__(self) -> str:
        return f"{self.degrees}, micro-batch {self.micro_batch}, recompute {self.recompute}"


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training job: sequences of `sequence` tokens, `batch` of them in a step.

    `attention` is "flash" (scores are never kept) or "scores" (they are, as in Megatron-LM of
    2022); `dtype` the type of matmuls, `optimizer` a name of workloads.OPTIMIZERS.
    """

    batch: int
    sequence: int
    optimizer: str = "adamw"
    dtype: str = "bfloat16"
    attention: str = "flash"

    def __post_init__(self):
        if self.batch < 1 or self.sequence < 1:
            raise UsageError(f"{self.batch} sequences of {self.sequence} tokens", code="cost.split",
                             rule="a batch and a sequence are at least 1")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A serving job: `batch` sequences at once, `prompt` tokens read and `answer` tokens made.

    `weight_bytes` and `kv_bytes` are bytes for each weight and cached number.
    """

    batch: int = 1
    prompt: int = 1024
    answer: int = 1024
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    dtype: str = "bfloat16"

    def __post_init__(self):
        for name in ("batch", "prompt", "answer"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}", code="cost.split",
                                 rule="batch, prompt and answer are at least 1",
                                 fix=f"{name} is 1 or more")  # fmt: skip
        for name in ("weight_bytes", "kv_bytes"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name} is {getattr(self, name):g}", code="cost.split",
                                 rule="a weight and a cached number take some bytes",
                                 fix="2 for bfloat16, 1 for float8 and int8")  # fmt: skip

    @property
    def context(self) -> int:
        """Most tokens one sequence has."""
        return self.prompt + self.answer
