"""The device `neuron`: PyTorch's out-of-tree device, registered from Python.

What PyTorch asks of such a device (a guard, hooks, a module `torch.neuron`, ops for its dispatch
key) is registered here; what Python cannot register is in `parity`.
"""

from dataclasses import dataclass
from typing import Any

import opentrn
from opentrn import nki
from opentrn.base import NotBuiltError, UsageError, declare
from opentrn.frameworks.torch import autocast, draws, eager, memory, parity, queue, seeds
from opentrn.frameworks.torch.places import user_place

HOST_ONLY = declare(
    "frameworks.device_feature",
    "Something was asked of the device `neuron` that PyTorch offers to compiled back ends only.",
    rule="the device is registered from Python: PyTorch's C++ allocators, generators and streams "
    "cannot be",
    fix="torch.neuron has memory statistics, seeds, Event and Stream of its own",
)
# Ops that only make another view of the same memory: PyTorch's own code for that looks at sizes
# and strides alone.
_VIEWS = ("as_strided", "view", "_reshape_alias", "unfold",
          "set_.source_Storage_storage_offset", "set_.source_Tensor", "set_.source_Storage",
          "view_as_real")  # fmt: skip
# Ops PyTorch would take apart before they reach the device, or has under a name for others.
_WHOLE = {
    "native_layer_norm": "native_layer_norm",
    "native_group_norm": "native_group_norm",
    "convolution_overrideable": "convolution",
    "cummax": "cummax",
    "cummin": "cummin",
    "masked_scatter_backward": "masked_scatter_backward",
}
NAME = "neuron"


def name_device() -> Any:
    """Make `neuron` a device; returns PyTorch's registrations, which last as long as they are held.

    None when another package has taken the device, or this PyTorch has no devices in Python."""
    import torch
    from torch.utils import backend_registration

    prepare = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if prepare is None or torch._C._get_privateuse1_backend_name() != "privateuseone":
        return None
    prepare(NAME, backend_module=Neuron())
    held = torch.library.Library("aten", "IMPL", "PrivateUse1")
    _register(held)
    parity.install(torch.neuron)
    every = torch.library.Library("_", "IMPL")
    every.fallback(torch._disable_dynamo(_fallback), "PrivateUse1")
    return held, every, autocast.register()


def _register(library: Any) -> None:
    """The ops that are about memory, not numbers."""
    import torch

    host_keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def enter(name: str, function: Any) -> None:
        # After a break Dynamo watches what runs, and would compile this package's own code.
        library.impl(name, torch._disable_dynamo(function))

    for name in _VIEWS:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        enter(name, _viewing(op, host_keys))
    enter("empty.memory_format", _empty)
    enter("empty_strided", _empty_strided)
    enter("view_as_complex", _view_as_complex)
    enter("histc", _histc)
    enter("_copy_from", _copy_from)
    enter("_copy_from_and_resize", _copy_from_and_resize)
    enter("_local_scalar_dense", _item)
    enter("resize_", _resize)
    enter("convolution_backward_overrideable", _convolution_backward)
    for name, function in draws.OPS.items():
        enter(name, function)
    for name, wanted in _WHOLE.items():
        packet, _, overload = wanted.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        enter(name, _instead(op))
    torch.serialization.register_package(0, _tag, _restored)


def _instead(op: Any) -> Any:
    """An op that runs as `op`, to which PyTorch gives the same arguments."""
    return lambda *args, **kwargs: eager.call(op, args, kwargs)


def _tag(storage: Any) -> str | None:
    """What torch.save writes for a storage of the device."""
    return str(storage.device) if storage.device.type == NAME else None


def _restored(storage: Any, location: str) -> Any:
    """What torch.load makes of a storage that goes to the device."""
    import torch

    if location.partition(":")[0] != NAME:
        return None
    held = storage.untyped() if hasattr(storage, "untyped") else storage
    flat = torch.empty(0, dtype=torch.uint8).set_(held)
    return flat.to(location).untyped_storage()


def _viewing(op: Any, keys: Any) -> Any:
    return lambda *args, **kwargs: op.redispatch(keys, *args, **kwargs)


def _view_as_complex(x: Any) -> None:
    memory.refuse(x.dtype.to_complex(), x.shape)


def _histc(x: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """Also of integers, which PyTorch counts on accelerators only."""
    import torch

    op = torch.ops.aten.histc.default
    if x.is_floating_point():
        return eager.call(op, (x, bins, min, max), {})
    return eager.call(op, (x.float(), bins, min, max), {}).to(x.dtype)


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Every op that is registered nowhere else."""
    return eager.call(op, args, kwargs)


def _place(device: Any) -> int:
    index = queue.current() if device is None or device.index is None else device.index
    if not 0 <= index < queue.cores():
        queue.choose(index)  # refuses
    return index


def _empty(size: Any, dtype: Any = None, layout: Any = None, device: Any = None,
           pin_memory: Any = None, memory_format: Any = None) -> Any:  # fmt: skip
    import torch

    dtype = torch.get_default_dtype() if dtype is None else dtype
    strides = memory.dense_strides(size)
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
    return memory.allocate(tuple(size), strides, dtype, _place(device))


def _empty_strided(size: Any, stride: Any, dtype: Any = None, layout: Any = None,
                   device: Any = None, pin_memory: Any = None) -> Any:  # fmt: skip
    import torch

    dtype = torch.get_default_dtype() if dtype is None else dtype
    return memory.allocate(tuple(size), tuple(stride), dtype, _place(device))


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    """Copies between host and device, and on the device with another dtype or layout."""
    if source.device.type == "cpu" or target.device.type == "cpu":
        memory.transfer(source, target)
        memory.near(target).copy_(memory.near(source))
    elif source.dtype == target.dtype and source.shape == target.shape:
        eager.written(target, eager.densely(source), moved=source.is_contiguous())
    else:
        kind, shape = target.dtype, tuple(target.shape)
        eager.written(target, eager.run(_converted(kind, shape), source))
    return target


_conversions: dict[Any, Any] = {}


def _converted(kind: Any, shape: tuple[int, ...]) -> Any:
    """A function, the same one each time, of a tensor: it in another dtype and shape."""

    def convert(x: Any) -> Any:
        return x.to(kind).expand(shape).clone()

    return _conversions.setdefault((kind, shape), convert)


def _copy_from_and_resize(source: Any, target: Any) -> Any:
    target.resize_(source.shape)
    return _copy_from(source, target)


def _convolution_backward(grad: Any, x: Any, weight: Any, stride: Any, padding: Any,
                          dilation: Any, transposed: bool, output_padding: Any, groups: int,
                          output_mask: Any) -> Any:  # fmt: skip
    """Gradients of a convolution; the bias, which PyTorch leaves out, has a number per channel."""
    import torch

    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    args = (grad, x, weight, [channels], stride, padding, dilation, transposed, output_padding,
            groups, output_mask)  # fmt: skip
    return eager.call(torch.ops.aten.convolution_backward.default, args, {})


def _item(tensor: Any) -> Any:
    """A number of the device's, on the host."""
    import torch

    return torch.ops.aten._local_scalar_dense(memory.host(tensor))


def _resize(tensor: Any, size: Any, memory_format: Any = None) -> Any:
    """Another shape; in new memory when there is not enough."""
    size = tuple(size)
    have = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.itemsize
    steps = memory.dense_strides(size)
    need = tensor.itemsize
    for n in size:
        need *= n
    if need <= have:
        return tensor.set_(tensor.untyped_storage(), tensor.storage_offset(), size, steps)
    made = memory.allocate(size, steps, tensor.dtype, tensor.device.index or 0)
    old = memory.host(tensor).reshape(-1)
    memory.host(made).view(-1)[: old.numel()].copy_(old)
    return tensor.set_(made.untyped_storage(), 0, size, steps)


class Neuron:
    """What `torch.neuron` is, with the names of `torch.cuda`."""

    Event, Stream = queue.Event, queue.Stream
    _initialized = True  # what torch.utils.checkpoint asks before it keeps the generator's state

    def is_available(self) -> bool:
        """Whether there is a device: always, it is simulated."""
        return True

    def is_initialized(self) -> bool:
        """Whether it is ready: always."""
        return True

    def init(self) -> None:
        """Make ready: it is."""

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        """How many NeuronCores the chip in force has."""
        return queue.cores()

    def current_device(self) -> int:
        """The index of the device that is meant by `neuron`."""
        return queue.current()

    def set_device(self, device: Any) -> None:
        """Make another device the one that is meant by `neuron`."""
        queue.choose(_index(device))

    def device(self, device: Any) -> "Chosen":
        """A context in which another device is meant by `neuron`."""
        return Chosen(_index(device))

    def get_device_name(self, device: Any = None) -> str:
        """The chip and the core."""
        return str(opentrn.runtime.devices(nki.current_chip())[_index(device)])

    def get_device_properties(self, device: Any = None) -> Any:
        """The core: `name`, `total_memory` in bytes, `multi_processor_count` (one core)."""
        held = opentrn.runtime.devices(nki.current_chip())[_index(device)]
        return Properties(str(held), held.hbm_bytes, held.chip.name)

    def synchronize(self, device: Any = None) -> None:
        """Wait for the device: everything asked of it has ended."""
        _index(device)

    def stream(self, stream: Any) -> "Chosen":
        """A context in which a stream's device is meant by `neuron`."""
        return Chosen(queue.current() if stream is None else stream.device_index)

    def current_stream(self, device: Any = None) -> queue.Stream:
        """The device's only queue."""
        return queue.Stream(_index(device))

    default_stream = current_stream

    def device_seconds(self, device: Any = None) -> float:
        """Simulated time the device has worked since the process began, in seconds."""
        return queue.of(_index(device)).seconds()

    def on_cpu(self) -> list[tuple[str, str, int]]:
        """Ops that ran on the CPU: (op, why, how often)."""
        return [(one.op, one.why, n) for one, n in eager.FALLBACKS.items()]

    # ------------------------------------------------------------------ random numbers

    def manual_seed(self, seed: int) -> None:
        """Seed the current device's generator."""
        seeds.generator(queue.current()).manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed the generators of all devices; torch.manual_seed does it too."""
        for index in range(queue.cores()):
            seeds.generator(index).manual_seed(seed)

    def initial_seed(self) -> int:
        """The seed of the current device's generator."""
        return seeds.generator(queue.current()).initial_seed()

    def get_rng_state(self, device: Any = None) -> Any:
        """The state of a device's generator, a tensor of bytes."""
        return seeds.generator(_index(device)).get_state()

    def set_rng_state(self, state: Any, device: Any = None) -> None:
        """Put a device's generator into a state it was in."""
        seeds.generator(_index(device)).set_state(state)

    def seed(self) -> int:
        """Seed the current device's generator from the host's entropy; the seed."""
        return seeds.generator(queue.current()).seed()

    def seed_all(self) -> None:
        """Seed the generators of all devices alike, from the host's entropy."""
        self.manual_seed_all(self.seed())

    def get_rng_state_all(self) -> list[Any]:
        """The states of all devices' generators."""
        return [self.get_rng_state(n) for n in range(queue.cores())]

    def set_rng_state_all(self, states: Any) -> None:
        """Put the generators of all devices into states they were in."""
        for index, state in enumerate(states):
            self.set_rng_state(state, index)

    # ------------------------------------------------------------------ memory

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes of tensors alive on the device."""
        return memory.use_of(_index(device)).now

    def max_memory_allocated(self, device: Any = None) -> int:
        """The most bytes that were alive since the last reset."""
        return memory.use_of(_index(device)).peak

    memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Begin to count the peak anew."""
        use = memory.use_of(_index(device))
        use.peak = use.now

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        """Begin to count what was ever allocated and freed anew."""
        use = memory.use_of(_index(device))
        use.ever = use.freed = use.allocations = use.received = use.sent = 0

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        """What fills the device's memory, as a table."""
        return memory.table(_index(device))

    def empty_cache(self) -> None:
        """Give back what is kept for later: nothing is."""

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """(free, total) bytes of the core's HBM."""
        total = memory.capacity(_index(device))
        return total - memory.use_of(_index(device)).now, total

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        """The counts that exist here, under torch.cuda's names."""
        use = memory.use_of(_index(device))
        return {
            "allocated_bytes.all.current": use.now,
            "allocated_bytes.all.peak": use.peak,
            "allocated_bytes.all.allocated": use.ever,
            "allocated_bytes.all.freed": use.freed,
            "allocation.all.current": use.tensors,
            "allocation.all.allocated": use.allocations,
            "host_to_device_bytes": use.received,
            "device_to_host_bytes": use.sent,
        }

    # ------------------------------------------------------------------ precision

    def get_amp_supported_dtype(self) -> list[Any]:
        """The dtypes `torch.autocast("neuron")` takes."""
        return autocast.dtypes()

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Whether there is bfloat16."""
        return True

    def __getattr__(self, name: str) -> Any:
        """Say what to do about what is not here."""
        if name.startswith("_"):
            raise AttributeError(f"torch.neuron has no attribute {name!r}")
        raise NotBuiltError(f"torch.neuron.{name} is not built", code=HOST_ONLY, at=user_place())


@dataclass(frozen=True)
class Properties:
    """What is known of a device, with the names of `torch.cuda`."""

    name: str
    total_memory: int
    chip: str
    multi_processor_count: int = 1


class Chosen:
    """A context with another current device."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __enter__(self) -> None:
        self.before = queue.choose(self.index)

    def __exit__(self, *error: Any) -> None:
        queue.choose(self.before)


def _index(device: Any) -> int:
    """A device's index; UsageError `frameworks.device_index`."""
    import torch

    if device is None:
        return queue.current()
    given = torch.device(device) if isinstance(device, str) else device
    index = getattr(given, "index", given)
    index = queue.current() if index is None else int(index)
    if not 0 <= index < queue.cores():
        raise UsageError(
            f"there is no neuron:{index}, there are {queue.cores()} devices", code=queue.INDEX
        )
    return index


__all__ = ["HOST_ONLY", "NAME", "Chosen", "Neuron", "name_device"]
