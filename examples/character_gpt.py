"""Train a character GPT on a real text, on a simulated Trainium, beside eager PyTorch in bfloat16.

The text is the Python language reference as the standard library ships it (`pydoc_data.topics`,
465 thousand characters).  All runs begin with the same weights and see the same batches; each
training step on the chip (forward, backward, AdamW) is one program.  What rounding alone does to
the losses is measured: eager runs begin with each weight moved at random by up to half a step of
bfloat16, and the band is what lies between the lowest and the highest of their losses:

    python examples/character_gpt.py [--steps 150] [--twins 8] [--target trn2] [--plot loss.svg]
"""

import argparse
import copy
import time
from collections.abc import Iterator, Sequence
from pydoc_data import topics

import torch
from torch import nn
from torch.nn import functional as F

from opentrn.frameworks.torch import train_step

CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 48, 8, 64, 4, 2
COLOURS = {"eager bfloat16": "#555555", "simulated chip": "#d95f02"}
BAND = "#cccccc"


def text() -> tuple[torch.Tensor, str]:
    """The text as numbers of its characters, and the characters."""
    whole = "\n".join(topics.topics.values())
    letters = "".join(sorted(set(whole)))
    places = {letter: n for n, letter in enumerate(letters)}
    return torch.tensor([places[letter] for letter in whole]), letters


class Block(nn.Module):
    """Attention and an MLP, each with a norm before it and a sum after."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, WIDTH] to the same."""
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, -1).transpose(1, 2)
                   for y in self.heads(self.first(x)).chunk(3, -1))  # fmt: skip
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    """A GPT of characters."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.table = nn.Embedding(letters, WIDTH)
        self.places = nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next character at each place, [B, T, letters]."""
        return self.scores(self.norm(self.blocks(self.table(tokens) + self.places)))


def loss(model: nn.Module, tokens: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next characters, in nats; PyTorch says what is bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.cross_entropy(model(tokens).float().flatten(0, 1), after.flatten())


def batches(data: torch.Tensor, steps: int, seed: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Random stretches of the text, and the same moved by one character."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=draw)
        rows = starts[:, None] + torch.arange(CONTEXT + 1)
        yield data[rows[:, :-1]], data[rows[:, 1:]]


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, the same for both."""
    return torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01)


def eager(model: nn.Module, data: torch.Tensor, steps: int, seed: int) -> list[float]:
    """Losses of plain PyTorch on the CPU under bfloat16 autocast."""
    opt, found = optimizer(model), []
    for tokens, after in batches(data, steps, seed):
        opt.zero_grad()
        one = loss(model, tokens, after)
        one.backward()
        opt.step()
        found.append(one.detach().item())
    return found


def simulated(model: nn.Module, data: torch.Tensor, steps: int, seed: int,
              target: str) -> tuple[list[float], float]:  # fmt: skip
    """Losses on the chip in bfloat16, and the device's seconds for a step."""
    step = train_step(model, optimizer(model), loss, target=target)
    found = [float(step(*batch)) for batch in batches(data, steps, seed)]
    return found, step.device_seconds


def twins(model: nn.Module, count: int) -> list[nn.Module]:
    """Copies of the model whose weights moved by up to half a bfloat16 step, each its own way."""
    draw, made = torch.Generator().manual_seed(1), []
    for _ in range(count):
        one = copy.deepcopy(model)
        with torch.no_grad():
            for weight in one.parameters():
                share = torch.rand(weight.shape, generator=draw) * 2 - 1
                weight.mul_(1 + share * 2.0**-9)
        made.append(one)
    return made


def spread(curves: list[list[float]]) -> list[float]:
    """The root mean square distance of each curve from the mean of the others."""
    found, table = [], torch.tensor(curves, dtype=torch.float64)
    for n in range(len(table)):
        others = torch.cat([table[:n], table[n + 1 :]]).mean(0)
        found.append(float((table[n] - others).square().mean().sqrt()))
    return found


def within(ours: list[float], plain: list[list[float]]) -> tuple[float, float]:
    """How far our curve is from the mean of eager ones, and the farthest of those from the others.

    Root mean squares over all steps, in nats.
    """
    mean = torch.tensor(plain, dtype=torch.float64).mean(0)
    away = float((torch.tensor(ours, dtype=torch.float64) - mean).square().mean().sqrt())
    return away, max(spread(plain))


def smooth(losses: list[float], width: int = 15) -> list[float]:
    """The mean of the last `width` losses at each step."""
    return [sum(losses[max(0, n - width + 1) : n + 1]) / min(n + 1, width)
            for n in range(len(losses))]  # fmt: skip


def plot(curves: dict[str, list[float]], band: Sequence[list[float]] = ()) -> str:
    """The curves as an SVG picture, before the band of others."""
    high = max(max(c) for c in (*curves.values(), *band))
    low = min(min(c) for c in (*curves.values(), *band))
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="640" height="360" font-size="12">']

    def points(losses: list[float]) -> list[str]:
        last = max(len(losses) - 1, 1)
        return [f"{50 + 570 * n / last:.1f},{20 + 300 * (high - y) / (high - low):.1f}"
                for n, y in enumerate(losses)]  # fmt: skip

    if band:
        top, bottom = ([way(at) for at in zip(*band, strict=True)] for way in (max, min))
        around = " ".join(points(top) + points(bottom)[::-1])
        parts.append(f'<polygon fill="{BAND}" points="{around}"/>')
    for row, (name, losses) in enumerate(curves.items()):
        line = " ".join(points(losses))
        parts.append(f'<polyline fill="none" stroke="{COLOURS[name]}" points="{line}"/>')
        parts.append(f'<text x="440" y="{40 + 16 * row}" fill="{COLOURS[name]}">{name}</text>')
    parts.append(f'<text x="8" y="24">{high:.2f}</text><text x="8" y="324">{low:.2f}</text>')
    parts.append('<text x="240" y="350">steps; loss in nats a character</text></svg>')
    return "\n".join(parts)


def compare(
    steps: int, target: str = "trn2", seed: int = 0, count: int = 0
) -> tuple[dict, list[list[float]], float]:
    """Both runs' losses by name, those of `count` eager twins, the device's seconds a step."""
    torch.manual_seed(seed)
    data, letters = text()
    model = Gpt(len(letters))
    others = [eager(twin, data, steps, seed) for twin in twins(model, count)]
    plain = eager(copy.deepcopy(model), data, steps, seed)
    ours, seconds = simulated(model, data, steps, seed, target)
    return dict(zip(COLOURS, (plain, ours), strict=True)), others, seconds


def main() -> None:
    """Train all, print the losses side by side."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--twins", type=int, default=8)
    parser.add_argument("--target", default="trn2")
    parser.add_argument("--plot", default="", help="write the curves to this SVG file")
    given = parser.parse_args()
    begin = time.perf_counter()
    curves, others, seconds = compare(given.steps, given.target, count=given.twins)
    plain, ours = (smooth(c) for c in curves.values())
    print("step   eager bfloat16   simulated chip")
    for n in range(0, given.steps, max(1, given.steps // 10)):
        print(f"{n:4d}   {plain[n]:14.3f}   {ours[n]:14.3f}")
    print(f"last   {plain[-1]:14.3f}   {ours[-1]:14.3f}")
    here = (time.perf_counter() - begin) / given.steps
    print(f"one step of {BATCH} x {CONTEXT} characters: {seconds * 1e6:.0f} us on {given.target}, "
          f"{here:.2f} s on this machine")  # fmt: skip
    if given.twins > 1:
        first, chip = curves.values()
        away, most = within(chip, [first, *others])
        verdict = "within" if away <= most else "NOT within"
        print(f"the chip's losses are {away:.4f} nats from the mean of {given.twins + 1} eager "
              f"runs, the farthest of those {most:.4f} from the others: {verdict} their noise")
    if given.plot:
        with open(given.plot, "w", encoding="utf-8") as file:
            shown = [smooth(c) for c in others]
            file.write(plot({name: smooth(c) for name, c in curves.items()}, shown))


if __name__ == "__main__":
    main()
