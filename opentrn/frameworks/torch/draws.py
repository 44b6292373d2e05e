"""Random numbers of the device: a generator for each, whose numbers fill tensors in place.

The generator is PyTorch's own on the host, so a seed gives the same numbers as on the CPU.
"""

from typing import Any

from opentrn.frameworks.torch import eager
from opentrn.frameworks.torch.memory import near, on_device

_generators: dict[int, Any] = {}


def generator(index: int) -> Any:
    """The generator of one device."""
    import torch

    if index not in _generators:
        _generators[index] = torch.Generator()
        _generators[index].manual_seed(torch.initial_seed())
    return _generators[index]


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
    for name in ("uniform_", "normal_", "random_", "random_.to", "random_.from", "exponential_",
                 "geometric_", "log_normal_", "cauchy_", "bernoulli_.float",
                 "bernoulli_.Tensor")
} | {
    "randperm.generator_out": _randperm,
    "native_dropout": _dropout,
    "multinomial": _multinomial,
}  # fmt: skip

__all__ = ["OPS", "generator"]
