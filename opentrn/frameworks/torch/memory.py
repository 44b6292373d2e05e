"""Tensors of the device `neuron`: simulated HBM as host memory that PyTorch sees as the device's.

PyTorch lets a package exchange tensors by DLPack (dmlc.github.io/dlpack, `DLManagedTensor`), whose
devices include one for extensions.  Such a tensor is one of PyTorch's out-of-tree device, with
shape, strides and storage of its own, and its memory is ours: no compiled code is needed.
"""

import ctypes
import weakref
from collections import Counter
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from opentrn import nki
from opentrn.base import CapacityError, UnsupportedError, bytes_text, declare
from opentrn.frameworks.torch.places import prints, user_place
from opentrn.runtime import devices

COMPLEX = declare(
    "frameworks.complex",
    "A tensor of complex numbers was to go to the device.",
    rule="NeuronCores have no complex numbers",
    fix="carry real and imaginary parts as two tensors (torch.view_as_real), or keep it on the CPU",
    neuron="NCC_EVRF004",
)
FLOAT64 = declare(
    "frameworks.float64",
    "A tensor of float64 was to go to the device.",
    rule="NeuronCores have no 64-bit floats",
    fix="convert it to torch.float32 first, or keep that part of the code on the CPU",
    neuron="NCC_ESPP004",
)
FULL = declare(
    "frameworks.memory",
    "A tensor does not fit the memory that is left on its NeuronCore.",
    rule="the tensors of a device fit its share of the HBM",
    fix="use a smaller batch or dtype, delete tensors that are not needed, or use another device",
    neuron="NRT_RESOURCE 4",
)
# DLDeviceType of dlpack.h.
_HOST, _EXTENSION = 1, 12


SHOWN = 8
"""Rows of the table of a device's memory; what is smaller is told together."""


class _Device(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int))


class _Head(ctypes.Structure):
    """The head of DLManagedTensor: what lies before the shape is all that is changed."""

    _fields_ = (("data", ctypes.c_void_p), ("device", _Device))


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _moved(tensor: Any, kind: int, index: int) -> Any:
    """The same memory as a tensor of another device."""
    import torch

    capsule = torch._C._to_dlpack(tensor)
    head = _Head.from_address(_pointer(capsule, b"dltensor"))
    head.device.device_type, head.device.device_id = kind, index
    return torch._C._from_dlpack(capsule)


def host(tensor: Any) -> Any:
    """A CPU tensor that shares the memory of a tensor on the device."""
    held = tensor.detach()
    try:
        return _moved(held, _HOST, 0)
    except BufferError:  # DLPack has no name for the dtype
        import torch

        return _moved(held.view(torch.uint8), _HOST, 0).view(tensor.dtype)


def near(tensor: Any) -> Any:
    """The tensor's memory as the host sees it (a CPU tensor as it is)."""
    return tensor if tensor.device.type == "cpu" else host(tensor)


def on_device(result: Any, index: int) -> Any:
    """A fresh result of a program as a tensor on the device."""
    made = allocate(result.shape, dense_strides(result.shape), result.dtype, index)
    host(made).copy_(result)
    return made


@dataclass
class Use:
    """Bytes of tensors alive on one device now, at most since the last reset, and ever; bytes
    that came from the host and went there; how many tensors are alive of each (text, bytes)."""

    now: int = 0
    peak: int = 0
    ever: int = 0
    allocations: int = 0
    freed: int = 0
    tensors: int = 0
    received: int = 0
    sent: int = 0
    alive: Counter = field(default_factory=Counter)


_uses: dict[int, Use] = {}


def use_of(index: int) -> Use:
    """The account of one device."""
    return _uses.setdefault(index, Use())


def capacity(index: int) -> int:
    """Bytes of HBM one NeuronCore has."""
    return devices(nki.current_chip())[index].hbm_bytes


def _free(index: int, nbytes: int, name: str) -> None:
    use = use_of(index)
    use.now -= nbytes
    use.freed += nbytes
    use.tensors -= 1
    use.alive[name, nbytes] -= 1
    if not use.alive[name, nbytes]:
        del use.alive[name, nbytes]


def _charge(index: int, nbytes: int, name: str, rows: int, kind: Any) -> None:
    """Account for a tensor of so many bytes; `rows` is the length of its first axis."""
    use, room = use_of(index), capacity(index)
    if use.now + nbytes > room:
        raise CapacityError(
            f"{name} of {bytes_text(nbytes)} does not fit neuron:{index}\n{table(index)}",
            code=FULL,
            fix=_would_fit(index, nbytes, rows, kind),
            at=user_place(),
        )
    use.now += nbytes
    use.peak, use.ever = max(use.peak, use.now), use.ever + nbytes
    use.allocations += 1
    use.tensors += 1
    use.alive[name, nbytes] += 1


def table(index: int) -> str:
    """What fills a device, largest first: tensors of one dtype and shape in a row."""
    use, room = use_of(index), capacity(index)
    rows = sorted(((n * size, n, name) for (name, size), n in use.alive.items()), reverse=True)
    lines = [f"{'tensors on neuron:' + str(index):32} {'how many':>9} {'bytes':>10}"]
    lines += [f"{name:32} {n:>9,} {bytes_text(size):>10}" for size, n, name in rows[:SHOWN]]
    if rest := rows[SHOWN:]:
        count, size = sum(n for _, n, _ in rest), sum(size for size, *_ in rest)
        lines.append(f"{'others':32} {count:>9,} {bytes_text(size):>10}")
    lines.append(f"{'total':32} {use.tensors:>9,} {bytes_text(use.now):>10}")
    lines.append(f"{'free':32} {'':>9} {bytes_text(room - use.now):>10} of {bytes_text(room)}")
    return "\n".join(lines)


def _would_fit(index: int, nbytes: int, rows: int, kind: Any) -> str:
    """What would fit: fewer rows, a smaller dtype, another device; else less of everything."""
    free = capacity(index) - use_of(index).now
    found = []
    if rows > 1 and (fit := rows * free // nbytes):
        found.append(f"{fit:,} rows of its first axis, not {rows:,}")
    if kind.itemsize == 4 and nbytes <= 2 * free:
        found.append("the same in a dtype of 2 bytes")
    others = (n for n in range(len(devices(nki.current_chip()))) if n != index)
    room = next((n for n in others if capacity(n) - use_of(n).now >= nbytes), None)
    if room is not None:
        found.append(f"neuron:{room}, which has room for it")
    freed = f"delete tensors of {bytes_text(nbytes - free)}"
    return ", or ".join([*found, freed]) if nbytes <= capacity(index) else (
        ", or ".join(found) or "spread it over more devices")


def transfer(source: Any, target: Any) -> None:
    """Account for a copy between host and device."""
    nbytes = source.numel() * source.itemsize
    if source.device.type == "cpu":
        use_of(target.device.index or 0).received += nbytes
    else:
        use_of(source.device.index or 0).sent += nbytes


def refuse(dtype: Any, shape: Any) -> None:
    """UnsupportedError `frameworks.complex` or `.float64` for what the chip does not have."""
    import torch

    if (dtype.is_complex or dtype == torch.float64) and prints():
        return
    if dtype.is_complex:
        raise UnsupportedError(f"a tensor of {dtype}", code=COMPLEX, at=user_place())
    if dtype == torch.float64 and len(shape):
        raise UnsupportedError(
            f"a tensor of float64{list(shape)}", code=FLOAT64, fix="pass x.float()", at=user_place()
        )


def allocate(shape: Any, strides: Any, dtype: Any, index: int) -> Any:
    """A new tensor on the device; its floats are NaN, for nothing has been written there.

    Raises CapacityError `frameworks.memory`, UnsupportedError for dtypes the chip lacks."""
    import torch

    refuse(dtype, shape)
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    span = sum(reach) + 1 if prod(shape) else 0
    nbytes = span * dtype.itemsize
    name = f"{str(dtype).removeprefix('torch.')}{list(shape)}"
    _charge(index, nbytes, name, shape[0] if len(shape) else 1, dtype)
    memory = np.full(max(nbytes, 1), 0xFF if dtype.is_floating_point else 0, np.uint8)
    weakref.finalize(memory, _free, index, nbytes, name).atexit = False
    flat = torch.from_numpy(memory)
    named = dtype if dtype.itemsize > 1 or dtype in (torch.bool, torch.int8) else torch.uint8
    if not nbytes:
        made = _moved(flat[:0].view(named), _EXTENSION, index)
        return made.as_strided(tuple(shape), tuple(strides))
    typed = flat.view(named).as_strided(tuple(shape), tuple(strides))
    made = _moved(typed, _EXTENSION, index)
    return made if named == dtype else made.view(dtype)


def dense_strides(shape: Any) -> tuple[int, ...]:
    """Row-major strides of a shape, as torch counts them."""
    found, step = [], 1
    for n in reversed(shape):
        found.append(step)
        step *= max(int(n), 1)
    return tuple(reversed(found))


__all__ = ["COMPLEX", "FLOAT64", "Use", "allocate", "capacity", "dense_strides", "host", "near",
           "on_device", "refuse", "table", "transfer", "use_of"]  # fmt: skip
