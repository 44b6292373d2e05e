"""`torch.device("neuron")`: a name torch knows; eager execution is not built."""

from typing import Any, NoReturn

from opentrn.base import NotBuiltError, declare
from opentrn.frameworks.torch.places import user_place

EAGER = declare(
    "frameworks.eager",
    "A tensor was to be made on, or moved to, the device `neuron`.",
    rule="models run on the simulated device through torch.compile, trace or train_step; tensors "
    "stay on the CPU",
    fix='leave the tensors where they are and use torch.compile(model, backend="neuron")',
)
MAKERS = ("empty.memory_format", "empty_strided")


def refuse(*args: Any, **kwargs: Any) -> NoReturn:
    """NotBuiltError `frameworks.eager` at the user's line."""
    raise NotBuiltError(
        "tensors on the device `neuron` are not built yet", code=EAGER, at=user_place()
    )


def name_device() -> Any:
    """Give torch's out-of-tree device the name `neuron`, and a clear refusal of tensors there.

    Returns torch's registration, which lasts as long as it is held; None when another package has
    taken the device, or this torch has no devices written in Python.
    """
    import torch
    from torch.utils import backend_registration

    prepare = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if prepare is None or torch._C._get_privateuse1_backend_name() != "privateuseone":
        return None
    prepare("neuron", backend_module=_module(), hook=_hook())
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    for name in MAKERS:
        library.impl(name, refuse)
    return library


def _module() -> Any:
    """What `torch.neuron` is: a device of which there are none that eager code can use."""
    from torch.utils.backend_registration import _DummyBackendModule

    class Module(_DummyBackendModule):
        def is_available(self) -> bool:
            return False

        def device_count(self) -> int:
            return 0

        def manual_seed_all(self, seed: int) -> None:
            pass  # graphs take random numbers from the CPU's generator

    return Module()


def _hook() -> Any:
    """What torch.accelerator asks: whether tensors can live there."""
    from torch.utils.backend_registration import _DummyPrivateUse1Hook

    class Hook(_DummyPrivateUse1Hook):
        def is_available(self) -> bool:
            return False

    return Hook()


__all__ = ["EAGER", "name_device", "refuse"]
