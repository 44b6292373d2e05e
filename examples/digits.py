"""Train a small convolutional network on real handwritten digits, on a simulated Trainium.

The data are scikit-learn's digits: 1797 images of 8 × 8 pixels; a random 360 are for testing.
Every training step (forward, backward, AdamW) is one program on the simulated chip:

    python examples/digits.py [--epochs 12] [--target trn2] [--plot loss.svg]
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from opentrn.frameworks.torch import TrainStep, train_step

BATCH, TESTS = 64, 360


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Images [N, 1, 8, 8] with pixels from 0 to 1, and the digit each shows, shuffled."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    order = torch.randperm(len(images))
    return images[order], torch.tensor(found.target)[order]


def network() -> nn.Module:
    """Two convolutions, pooling, two linear layers: 20 k parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def loss(model: nn.Module, images: torch.Tensor, digits: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the network's scores."""
    return F.cross_entropy(model(images), digits)


def epoch(step: TrainStep, images: torch.Tensor, digits: torch.Tensor) -> float:
    """One pass over the training images in random batches of one size; the mean loss."""
    order = torch.randperm(len(images))
    batches = order[: len(order) // BATCH * BATCH].split(BATCH)
    return sum(float(step(images[b], digits[b])) for b in batches) / len(batches)


def accuracy(model: nn.Module, images: torch.Tensor, digits: torch.Tensor) -> float:
    """The share of digits the network names right, computed on the simulated chip."""
    run = torch.compile(model, backend="neuron")
    with torch.no_grad():
        found = torch.cat([run(part).argmax(1) for part in images.split(TESTS // 2)])
    return float((found == digits).float().mean())


def plot(losses: list[float], share: float) -> str:
    """The loss of each epoch as an SVG picture."""
    last, high = max(len(losses) - 1, 1), max(losses)
    line = " ".join(f"{50 + 570 * n / last:.1f},{320 - 300 * y / high:.1f}"
                    for n, y in enumerate(losses))  # fmt: skip
    return "\n".join([
        '<svg xmlns="http://www.w3.org/2000/svg" width="640" height="360" font-size="12">',
        f'<polyline fill="none" stroke="#d95f02" points="{line}"/>',
        f'<text x="8" y="24">{high:.2f}</text><text x="8" y="324">0</text>',
        f'<text x="180" y="350">epochs 1 to {len(losses)}; mean loss in nats; '
        f"test accuracy {share:.1%}</text></svg>",
    ])  # fmt: skip


def train(
    epochs: int, target: str = "trn2", seed: int = 0, losses: list[float] | None = None
) -> tuple[float, TrainStep]:
    """Train, telling the loss after each epoch (and adding it to `losses`); the accuracy on the
    test images."""
    torch.manual_seed(seed)
    images, digits = data()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    step = train_step(model, optimizer, loss, target=target)
    for number in range(epochs):
        begin = time.perf_counter()
        mean = epoch(step, images[:-TESTS], digits[:-TESTS])
        if losses is not None:
            losses.append(mean)
        schedule.step()
        seconds = time.perf_counter() - begin
        print(f"epoch {number + 1:2d}  loss {mean:.4f}  {seconds:.1f} s on this machine")
    return accuracy(model, images[-TESTS:], digits[-TESTS:]), step


def main() -> None:
    """Train, test, and say what a step takes on the chip."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--target", default="trn2")
    parser.add_argument("--plot", default="", help="write the losses to this SVG file")
    given, losses = parser.parse_args(), []
    share, step = train(given.epochs, given.target, losses=losses)
    print(f"test accuracy {share:.1%}")
    print(f"one step of {BATCH} images: {step.device_seconds * 1e6:.0f} us on {given.target}")
    if given.plot:
        with open(given.plot, "w", encoding="utf-8") as file:
            file.write(plot(losses, share))


if __name__ == "__main__":
    main()
