"""`torch_xla`: scripts' tensors stay on the CPU, where kernels take them."""

from typing import Any

from opentrn.dropin.standins import torch_xla_core as core
from opentrn.dropin.standins.absent import refuse
from opentrn.dropin.standins.xla_model import xla_device

# Imported under its own name it is a package.
__path__: list[str] = []


def device(index: int | None = None) -> Any:
    """Where tensors go: the CPU."""
    return xla_device(index)


def sync(wait: bool = False) -> None:
    """Everything has run already."""


def __getattr__(name: str) -> Any:
    """Say what to do about what is not here."""
    refuse("torch_xla", name)


__all__ = ["core", "device", "sync"]
