"""What PyTorch's own devices have from C++, for the device `neuron`.

Storages, events, memory statistics, pinned memory and the conversion of modules ask C++
registries that Python cannot fill: without an entry PyTorch raises an internal error, ends the
process, or does something else than for its own devices.  So the names below, which PyTorch looks
up in Python, are replaced once, when the device gets its name; for other devices they do what they
did.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from opentrn.base import NotBuiltError, declare
from opentrn.frameworks.torch import memory, queue
from opentrn.frameworks.torch.places import user_place

PARALLEL = declare(
    "frameworks.data_parallel",
    "nn.DataParallel was asked to split a batch over devices `neuron`.",
    rule="nn.DataParallel copies a module to GPUs at each call; NeuronCores hold programs",
    fix="run the module on one device, or a process for each core; `opentrn plan` splits models",
)
NAME = "neuron"


def install(module: Any) -> None:
    """Put everything in place; `module` is what `torch.neuron` is."""
    import torch

    torch.UntypedStorage.__new__ = staticmethod(_storages(torch.UntypedStorage.__new__))
    torch.nn.Module._apply = _keeping(torch.nn.Module._apply)
    torch.nn.DataParallel.__init__ = _refusing(torch.nn.DataParallel.__init__)
    _HELD.append(_pinning())
    found = torch.accelerator.current_accelerator()
    if found is None or found.type != NAME:
        return
    torch.Event = queue.Event
    for name, function in _accelerator(module).items():
        setattr(torch.accelerator, name, function)
        if hasattr(torch.accelerator.memory, name):
            setattr(torch.accelerator.memory, name, function)


# ---------------------------------------------------------------------- storages


def _storages(known: Callable) -> Callable:
    """`torch.UntypedStorage(n, device="neuron")`: `copy.deepcopy` of a tensor comes here."""
    import torch

    def make(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != NAME:
            return known(cls, *args, **kwargs, **({} if device is None else {"device": device}))
        index = torch.device(device).index
        index = queue.current() if index is None else index
        flat = known(cls, *args, **kwargs)
        made = memory.allocate((flat.nbytes(),), (1,), torch.uint8, index)
        if args and not isinstance(args[0], int):
            made.copy_(torch.empty(0, dtype=torch.uint8).set_(flat))
        return made.untyped_storage()

    return make


# ---------------------------------------------------------------------- modules


def _keeping(known: Callable) -> Callable:
    """`module.to("neuron")`: parameters stay the objects they are, as for PyTorch's own devices.

    Otherwise an optimizer made before would hold the old ones, and weights that are one would be
    two.  Where PyTorch cannot exchange what an object holds (a graph of gradients, or a guard of
    compiled code, refers to it) the parameter is a new one, the same in all its places."""
    import torch

    moved = torch.utils.weak.WeakIdKeyDictionary()

    def apply(self: Any, fn: Callable, *args: Any, **kwargs: Any) -> Any:
        before = dict(self._parameters)
        known(self, fn, *args, **kwargs)
        for name, old in before.items():
            new = self._parameters.get(name)
            if old is None or new is None or new is old or NAME not in _types(old, new):
                continue
            there = moved.get(old)
            if there is not None and there.device == new.device and there.dtype == new.dtype:
                self._parameters[name] = there
                continue
            new.__dict__.update(old.__dict__)
            try:
                torch.utils.swap_tensors(old, new)
            except RuntimeError:
                moved[old] = new
            else:
                self._parameters[name] = old
        return self

    return apply


def _types(*tensors: Any) -> set[str]:
    return {t.device.type for t in tensors}


def _refusing(known: Callable) -> Callable:
    """nn.DataParallel: NotBuiltError `frameworks.data_parallel` for modules on the device."""

    def begin(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if NAME in _types(*module.parameters(), *module.buffers()):
            raise NotBuiltError("nn.DataParallel of a module on neuron", code=PARALLEL,
                                at=user_place())  # fmt: skip
        known(self, module, *args, **kwargs)

    return begin


# ---------------------------------------------------------------------- torch.accelerator


def _accelerator(module: Any) -> dict[str, Callable]:
    """Functions of torch.accelerator, by those of torch.neuron."""
    import torch

    def capability(device: Any = None, /) -> dict[str, Any]:
        """The dtypes tensors of the device may have."""
        names = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
                 "float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")  # fmt: skip
        return {"supported_dtypes": {getattr(torch, name) for name in names}}

    def stats(device: Any = None, /) -> OrderedDict:
        """The counts that exist here."""
        return OrderedDict(sorted(module.memory_stats(device).items()))

    return {
        "synchronize": lambda device=None, /: module.synchronize(device),
        "set_device_index": lambda device, /: module.set_device(device),
        "set_device_idx": lambda device, /: module.set_device(device),
        "current_device_index": module.current_device,
        "current_device_idx": module.current_device,
        "device_index": module.device,
        "get_device_capability": capability,
        "empty_cache": module.empty_cache,
        "empty_host_cache": module.empty_cache,
        "memory_stats": stats,
        "get_memory_info": lambda device=None, /: module.mem_get_info(device),
        **{name: _of_device(getattr(module, name)) for name in STATISTICS},
    }


STATISTICS = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
              "reset_peak_memory_stats", "reset_accumulated_memory_stats")  # fmt: skip


def _of_device(function: Callable) -> Callable:
    return lambda device=None, /: function(device)


# ---------------------------------------------------------------------- memory of the host


def _pinning() -> Any:
    """`tensor.pin_memory()`: memory of the host is all alike to a simulated device, so a copy."""
    import torch

    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl("_pin_memory", lambda x, device=None: x.clone(), allow_override=True)
    return library


_HELD: list[Any] = []

__all__ = ["PARALLEL", "install"]
