"""How much of a simulated trn2 core compiled programs use: MFU of products, attention, layers.

    python bench/compiled.py               every measurement, as a table
    python bench/compiled.py matmul        those whose name contains a word

MFU is the flops of the products (and of attention's visible scores) over the time predicted for the
program, as a share of the Tensor Engine's dense bfloat16 peak.  Weights are constants, as in a
frozen model, but for training steps, whose weights are inputs.  Whole steps with AdamW (float32
state) are timed without being linked; their compile time is all from the model in Python on:
PyTorch traces it, the graph is imported and rewritten, its kernels are recorded and timed.
"""

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from opentrn import compiler, hw, runtime
from opentrn.base import TrnError, bytes_text
from opentrn.graph import Graph, from_torch, g

TOKENS = 2048
# Meta's Llama 3 8B: config.json of meta-llama/Meta-Llama-3-8B.
WIDTH, HEADS, KEYS, DEPTH, HIDDEN = 4096, 32, 8, 128, 14336
HALF = "bfloat16"


@dataclass(frozen=True)
class Used:
    """A program's time on the device, its MFU, the one asked for, and how long compiling took."""

    name: str
    microseconds: float
    mfu: float
    goal: float
    compile_seconds: float
    instructions: int
    peak_bytes: int = 0


def peak() -> float:
    """Dense bfloat16 flops a second of one core: its share of the 667 TFLOP/s of the chip."""
    chip = hw.target("trn2")
    return float(chip.fact("chip.peak_bf16").value) / int(chip.cores)


def used(name: str, graph: Callable[[], Graph], flops: float, goal: float) -> Used:
    """Compile a graph and time it."""
    made = graph()
    begin = time.perf_counter()
    executable = compiler.compile(made, target="trn2")
    seconds = time.perf_counter() - begin
    ns = runtime.load(executable).time().total_ns
    return Used(name, ns / 1e3, flops / (ns * 1e-9) / peak(), goal, seconds,
                len(executable.program))  # fmt: skip


def product(m: int, k: int, n: int, goal: float) -> Used:
    """x · w."""
    x, w = g.input("x", (m, k), HALF), g.input("w", (k, n), HALF)
    return used(f"matmul {m}x{k}x{n}", lambda: Graph([x, w], [g.matmul(x, w)]), 2 * m * k * n, goal)


def attention(causal: bool) -> Used:
    """Eight heads of Llama's depth."""
    q, k, v = (g.input(name, (1, 8, TOKENS, DEPTH), HALF) for name in "qkv")
    made = g.attention(q, k, v, causal=causal, scale=DEPTH**-0.5)
    flops = 4 * 8 * TOKENS**2 * DEPTH / (2 if causal else 1)
    name = f"attention{' causal' * causal} 8x{TOKENS}x{DEPTH}"
    return used(name, lambda: Graph([q, k, v], [made]), flops, 0.0)


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Root mean square norm in float32."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight


class Mlp(torch.nn.Module):
    """Llama's gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in (("gate", (HIDDEN, WIDTH)), ("up", (HIDDEN, WIDTH)),
                            ("down", (WIDTH, HIDDEN))):  # fmt: skip
            self.register_buffer(name, torch.zeros(shape, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """down(silu(gate(x)) · up(x))"""
        return F.linear(F.silu(F.linear(x, self.gate)) * F.linear(x, self.up), self.down)


class Layer(torch.nn.Module):
    """One decoder layer of Llama 3 8B."""

    def __init__(self) -> None:
        super().__init__()
        half = torch.bfloat16
        self.mlp = Mlp()
        shapes = {"q": (WIDTH, WIDTH), "k": (KEYS * DEPTH, WIDTH), "v": (KEYS * DEPTH, WIDTH),
                  "o": (WIDTH, WIDTH), "first": (WIDTH,), "second": (WIDTH,)}  # fmt: skip
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=half))
        turns = torch.outer(torch.arange(TOKENS), 500000.0 ** -torch.linspace(0, 1, DEPTH // 2))
        both = torch.cat([turns, turns], -1)
        self.register_buffer("cos", both.cos().to(half))
        self.register_buffer("sin", both.sin().to(half))

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary positions."""
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and MLP, each with a norm before it and a sum after."""
        h = rms(x, self.first)
        heads = [F.linear(h, w).view(1, TOKENS, -1, DEPTH).transpose(1, 2)
                 for w in (self.q, self.k, self.v)]  # fmt: skip
        q, k, v = self.turned(heads[0]), self.turned(heads[1]), heads[2]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.linear(y.transpose(1, 2).reshape(1, TOKENS, WIDTH), self.o)
        return x + self.mlp(rms(x, self.second))


def mlp() -> Used:
    """The MLP alone."""
    x = torch.zeros(TOKENS, WIDTH, dtype=torch.bfloat16)
    return used("Llama-3-8B MLP", lambda: from_torch(Mlp(), (x,)), 6 * TOKENS * WIDTH * HIDDEN, 0.0)


def layer_flops() -> float:
    """Products of one layer's forward, and its visible scores."""
    weights = 2 * WIDTH * WIDTH + 2 * WIDTH * KEYS * DEPTH + 3 * WIDTH * HIDDEN
    return 2 * TOKENS * weights + 4 * HEADS * TOKENS**2 * DEPTH / 2


def layer() -> Used:
    """One layer's forward."""
    x = torch.zeros(1, TOKENS, WIDTH, dtype=torch.bfloat16)
    return used("Llama-3-8B layer", lambda: from_torch(Layer(), (x,)), layer_flops(), 0.6)


class Fed(torch.nn.Module):
    """The layer with its weights as arguments, so that it has gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()
        self.names = [n for n, b in self.layer.named_buffers() if n not in ("cos", "sin")]


def step() -> Used:
    """Forward and backward of one layer: the gradients of its weights and of its input."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from opentrn.frameworks.torch.backend import decompositions
    from opentrn.graph import from_fx

    held = Fed()
    named = dict(held.layer.named_buffers())

    def gradients(x: torch.Tensor, *weights: torch.Tensor) -> tuple:
        given = [t.detach().requires_grad_() for t in (x, *weights)]
        state = {**named, **dict(zip(held.names, given[1:], strict=True))}
        made = torch.func.functional_call(held.layer, state, (given[0],))
        return torch.autograd.grad(made, given, torch.ones_like(made))

    def traced() -> Graph:
        x = torch.zeros(1, TOKENS, WIDTH, dtype=torch.bfloat16)
        args = (x, *(named[n] for n in held.names))
        fx = make_fx(gradients, decomposition_table=decompositions(), tracing_mode="fake",
                     _allow_non_fake_inputs=True)(*args)  # fmt: skip
        return from_fx(fx).graph

    return used("Llama-3-8B layer, forward and backward", traced, 3 * layer_flops(), 0.45)


def whole_step(layers: int, vocabulary: int, goal: float) -> Used:
    """A step of Llama 3 8B: loss, gradients and AdamW, as one program."""
    import transformers
    from torch._subclasses import FakeTensorMode

    from opentrn.frameworks.torch import train_step

    begin = time.perf_counter()
    config = transformers.LlamaConfig(
        hidden_size=WIDTH, num_hidden_layers=layers, num_attention_heads=HEADS,
        num_key_value_heads=KEYS, intermediate_size=HIDDEN, vocab_size=vocabulary, use_cache=False,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = transformers.LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
        optimizer = torch.optim.AdamW(model.parameters())
        for weight in model.parameters():
            for name in ("exp_avg", "exp_avg_sq"):
                optimizer.state[weight][name] = torch.zeros(weight.shape)
        step = train_step(model, optimizer, lambda model, ids: model(ids, labels=ids).loss,
                          numerics="none")  # fmt: skip
        graph = step.graph(torch.zeros(1, TOKENS, dtype=torch.int64))
    found = compiler.outline(graph, "trn2")
    seconds = time.perf_counter() - begin
    flops = 3 * (layers * layer_flops() + 2 * TOKENS * WIDTH * vocabulary)
    name = f"Llama-3-8B, {layers} layer{'s' * (layers > 1)} of 32, vocabulary {vocabulary}, AdamW"
    mfu = flops / (found.nanoseconds * 1e-9) / peak()
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Used(name, found.nanoseconds / 1e3, mfu, goal, seconds, found.instructions, peak_bytes)


MEASUREMENTS: dict[str, Callable[[], Used]] = {
    "matmul 1024": lambda: product(1024, 1024, 1024, 0.0),
    "matmul 2048": lambda: product(2048, 2048, 2048, 0.0),
    "matmul 4096": lambda: product(4096, 4096, 4096, 0.85),
    "attention": lambda: attention(False),
    "attention causal": lambda: attention(True),
    "mlp": mlp,
    "layer": layer,
    "step": step,
    "whole step of a layer": lambda: whole_step(1, 128, 0.45),
    "whole step of all layers": lambda: whole_step(32, 128256, 0.0),
}


def main() -> None:
    """Measure what is asked for and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="measure those whose name contains a word")
    words = parser.parse_args().words
    print("| program | device time | MFU | asked for | compiled in | instructions | peak memory |")
    print("|---|---|---|---|---|---|---|")
    for name, measure in MEASUREMENTS.items():
        if words and not any(w in name for w in words):
            continue
        try:
            one = measure()
        except TrnError as error:  # a program that does not fit is a result too
            print(f"| {name} | {error.what} | | | | | |", flush=True)
            continue
        goal = f"{one.goal:.0%}" if one.goal else "–"
        print(f"| {one.name} | {one.microseconds:,.0f} us | {one.mfu:.1%} | {goal} | "
              f"{one.compile_seconds:.1f} s | {one.instructions:,} | "
              f"{bytes_text(one.peak_bytes) if one.peak_bytes else '–'} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
