"""`torch_xla.core.xla_model`: the device is the CPU, and nothing waits to be flushed.

Scripts move tensors to `xla_device()` and hand them to kernels, which take tensors on the CPU.
"""

from typing import Any

from opentrn.dropin.standins.absent import refuse


def xla_device(n: int | None = None, devkind: str | None = None) -> Any:
    """Where tensors go: the CPU."""
    import torch

    return torch.device("cpu")


def mark_step(wait: bool = False) -> None:
    """Nothing is queued, so there is nothing to run."""


def wait_device_ops(devices: Any = ()) -> None:
    """Everything has run already."""


def optimizer_step(optimizer: Any, barrier: bool = False, optimizer_args: Any = None) -> Any:
    """One step of the optimizer; there are no other workers whose gradients count."""
    return optimizer.step(**(optimizer_args or {}))


def get_ordinal() -> int:
    """This worker: the only one."""
    return 0


def xrt_world_size() -> int:
    """How many workers there are."""
    return 1


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this worker is the first."""
    return True


def master_print(*args: Any, **kwargs: Any) -> None:
    """Print, on the first worker."""
    print(*args, **kwargs)


def save(data: Any, file_or_path: Any, **options: Any) -> None:
    """Write tensors as torch.save does."""
    import torch

    torch.save(data, file_or_path)


def __getattr__(name: str) -> Any:
    """Say what to do about what is not here."""
    refuse("torch_xla.core.xla_model", name)


__all__ = [
    "get_ordinal",
    "is_master_ordinal",
    "mark_step",
    "master_print",
    "optimizer_step",
    "save",
    "wait_device_ops",
    "xla_device",
    "xrt_world_size",
]
