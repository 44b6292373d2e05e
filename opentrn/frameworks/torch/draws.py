"""Ops that draw random numbers: on the device, seeded by its generator (see `seeds`).

What the device does not draw (integers, permutations, rarer distributions) and what is given a
generator of its own is drawn by PyTorch on the host and takes no simulated time.
"""

from collections.abc import Callable
from typing import Any

from opentrn.frameworks.torch import eager
from opentrn.frameworks.torch.memory import near, on_device
from opentrn.frameworks.torch.seeds import generator


def _uniform(shape: Any, low: float = 0.0, high: float = 1.0, *, kind: Any, **kwargs: Any) -> Any:
    import torch

    return torch.rand(shape, dtype=kind).float() * (high - low) + low


def _normal(shape: Any, mean: float = 0.0, deviation: float = 1.0, **kwargs: Any) -> Any:
    import torch

    return torch.randn(shape) * deviation + mean


def _bernoulli(shape: Any, chance: float = 0.5, **kwargs: Any) -> Any:
    import torch

    return (torch.rand(shape) < chance).float()


def _exponential(shape: Any, rate: float = 1.0, **kwargs: Any) -> Any:
    import torch

    return torch.log(1.0 - torch.rand(shape)) / -rate


def _drawing(name: str, function: Callable) -> Callable:
    """An op that fills a floating tensor with numbers the device draws by `function`."""
    on_host = _filling(name)

    def fill(tensor: Any, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        plain = all(isinstance(a, bool | int | float) for a in args)
        device = plain and generator is None and tensor.numel() and _is_drawn(name, tensor.dtype)
        if not device:
            return on_host(tensor, *args, generator=generator, **kwargs)
        options = {"device": tensor.device, "kind": _digits(tensor.dtype)}
        found = eager.call(function, (tuple(tensor.shape), *args), options)
        eager.written(tensor, near(found).to(tensor.dtype))
        return tensor

    return fill


def _is_drawn(name: str, dtype: Any) -> bool:
    """Whether the device draws such numbers: floats, and masks of dropout."""
    import torch

    return dtype.is_floating_point or dtype == torch.bool and name.startswith("bernoulli_")


def _digits(dtype: Any) -> Any:
    """The dtype whose bits a uniform number in [0, 1) has: its own, of at least 16."""
    import torch

    return dtype if dtype in (torch.bfloat16, torch.float16) else torch.float32


def _filling(name: str) -> Any:
    """An op that fills a tensor on the device with random numbers."""

    def fill(tensor: Any, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        import torch

        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        made = torch.empty(tensor.shape, dtype=tensor.dtype)
        read = [near(a) if isinstance(a, torch.Tensor) else a for a in args]
        op(made, *read, generator=_chosen(generator, tensor), **kwargs)
        eager.written(tensor, made)
        return tensor

    return fill


def _chosen(given: Any, tensor: Any) -> Any:
    return generator(tensor.device.index or 0) if given is None else given


def _randperm(n: int, *, generator: Any = None, out: Any = None) -> Any:
    import torch

    made = torch.randperm(n, generator=_chosen(generator, out), dtype=out.dtype)
    out.resize_(made.shape)
    eager.written(out, made)
    return out


def _dropout(x: Any, p: float, train: bool | None) -> tuple[Any, Any]:
    """Elements kept with probability 1 - p and scaled, and which were kept."""
    import torch

    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    keep = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return x * keep * scale, keep


def _multinomial(x: Any, count: int, replacement: bool = False, *, generator: Any = None) -> Any:
    import torch

    chosen = _chosen(generator, x)
    made = torch.multinomial(near(x), count, replacement, generator=chosen)
    return on_device(made, x.device.index or 0)


OPS: dict[str, Any] = {
    name: _filling(name)
    for name in ("random_", "random_.to", "random_.from", "geometric_", "log_normal_", "cauchy_",
                 "bernoulli_.Tensor")
} | {
    "uniform_": _drawing("uniform_", _uniform),
    "normal_": _drawing("normal_", _normal),
    "bernoulli_.float": _drawing("bernoulli_.float", _bernoulli),
    "exponential_": _drawing("exponential_", _exponential),
    "randperm.generator_out": _randperm,
    "native_dropout": _dropout,
    "multinomial": _multinomial,
}  # fmt: skip

__all__ = ["OPS", "generator"]
