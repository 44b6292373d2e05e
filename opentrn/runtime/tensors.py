"""Inputs and outputs: NumPy arrays or torch tensors on the outside, storage arrays on the inside.

Nothing is converted silently, with one exception that users rely on: 64-bit integers become 32-bit
ones where all values fit.  float64 does not exist on the chip and is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opentrn.base import DType, DtypeError, LimitError, ShapeError, UsageError, declare, dtype
from opentrn.isa import Spec

declare(
    "runtime.inputs",
    "A model takes a certain number of inputs.",
    rule="one array or tensor for each input, in order",
    fix="`model.inputs` lists them",
    neuron="NRT_EXEC_BAD_INPUT 1002",
)
declare(
    "runtime.input_shape",
    "A compiled model has fixed shapes.",
    rule="the shape is the one the model was compiled for",
    fix="pad or cut the input, or compile the model for this shape",
    neuron="NRT_EXEC_BAD_INPUT 1002",
)
declare(
    "runtime.input_dtype",
    "An input has another data type than the model was compiled for.",
    rule="the dtype is the one the model was compiled for; only 64-bit integers are narrowed",
    fix="convert the input first",
    neuron="NRT_EXEC_BAD_INPUT 1002",
)
declare(
    "runtime.input_range",
    "A 64-bit integer input has values that 32 bits do not hold.",
    rule="int64 becomes int32 (uint64 uint32) only when every value fits",
    fix="make the values smaller; the chip has no 64-bit integers",
    neuron="NRT_EXEC_BAD_INPUT 1002",
)
declare(
    "runtime.read_only",
    "The program writes one of its inputs, and this array cannot be written.",
    rule="an input the program writes is an array that can be written",
    fix="pass a copy that can be written: numpy.array(x)",
    neuron="NRT_EXEC_BAD_INPUT 1002",
)
declare(
    "runtime.torch_dtype",
    "torch has no data type for this output.",
    rule="outputs come back as torch tensors when an input was one",
    fix="pass NumPy arrays to get NumPy arrays",
)

_NARROWED = {"int64": ("int32", "uint32"), "uint64": ("uint32", "int32")}


def is_torch(value: Any) -> bool:
    """Whether this is a torch tensor; torch is not imported to find out."""
    return type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach")


def to_arrays(specs: Sequence[Spec], values: Sequence[Any]) -> list[np.ndarray]:
    """The values as storage arrays of the specs.

    Raises ShapeError `runtime.inputs` and `runtime.input_shape`, DtypeError `runtime.input_dtype`,
    LimitError `runtime.input_range`.
    """
    if len(values) != len(specs):
        names = ", ".join(spec_text(spec) for spec in specs) or "none"
        raise ShapeError(
            f"the model takes {len(specs)} inputs, {len(values)} were given",
            code="runtime.inputs",
            fix=f"inputs: {names}",
        )
    return [_array(spec, value) for spec, value in zip(specs, values, strict=True)]


def spec_text(spec: Spec) -> str:
    """`x float32[8, 128]`."""
    return f"{spec.name or 'input'} {spec.dtype}[{', '.join(map(str, spec.shape))}]"


def _array(spec: Spec, value: Any) -> np.ndarray:
    array = from_torch(value) if is_torch(value) else np.asarray(value)
    if tuple(array.shape or (1,)) != tuple(spec.shape):
        raise ShapeError(
            f"`{spec.name}` has shape {list(array.shape)}, not {list(spec.shape)}",
            code="runtime.input_shape",
        )
    if array.dtype == spec.dtype.storage:
        return array
    if array.dtype.name in _NARROWED and spec.dtype in _NARROWED[array.dtype.name]:
        return _narrowed(spec, array)
    raise DtypeError(
        f"`{spec.name}` is {array.dtype}, not {spec.dtype}",
        code="runtime.input_dtype",
        fix=_conversion(value, spec.dtype),
    )


def _narrowed(spec: Spec, array: np.ndarray) -> np.ndarray:
    least, most = np.iinfo(spec.dtype.storage).min, np.iinfo(spec.dtype.storage).max
    if array.size and not (least <= int(array.min()) and int(array.max()) <= most):
        raise LimitError(
            f"`{spec.name}` holds {int(array.min())} to {int(array.max())}, "
            f"{spec.dtype} holds {least} to {most}",
            code="runtime.input_range",
        )
    return array.astype(spec.dtype.storage)


def _conversion(value: Any, wanted: DType) -> str:
    """How to convert this value, in its own library's words."""
    if is_torch(value):
        return f"pass x.to(torch.{wanted})"
    plain = wanted.storage.type.__module__ == "numpy"
    return f"pass x.astype({'numpy' if plain else 'ml_dtypes'}.{wanted.storage.name})"


# ---------------------------------------------------------------------- torch


def from_torch(tensor: Any) -> np.ndarray:
    """The tensor's values as a NumPy array of the same dtype; shares memory where it can."""
    held = tensor.detach().cpu().contiguous()
    kind = dtype(tensor.dtype)
    if kind.storage.type.__module__ == "numpy":
        return held.numpy()
    import torch

    bits = torch.int16 if kind.itemsize == 2 else torch.uint8
    return held.view(bits).numpy().view(kind.storage)


def to_torch(array: np.ndarray) -> Any:
    """The array as a torch tensor of the same dtype; DtypeError `runtime.torch_dtype`."""
    import torch

    kind = dtype(array.dtype)
    name = {"bool_": "bool"}.get(str(kind), str(kind))
    wanted = getattr(torch, name, None)
    if not isinstance(wanted, torch.dtype):
        raise DtypeError(f"torch has no {kind}", code="runtime.torch_dtype")
    if array.dtype.type.__module__ == "numpy":
        return torch.from_numpy(array)
    bits = np.int16 if kind.itemsize == 2 else np.uint8
    return torch.from_numpy(array.view(bits)).view(wanted)


# ---------------------------------------------------------------------- inputs that are written


def writer(spec: Spec, value: Any) -> Callable[[np.ndarray], None]:
    """A function that stores new contents into an input; UsageError `runtime.read_only`."""
    if is_torch(value):
        return lambda array: value.detach().copy_(to_torch(array))
    if isinstance(value, np.ndarray) and value.flags.writeable:
        return lambda array: np.copyto(value, array.reshape(value.shape))
    raise UsageError(
        f"the program writes its input `{spec.name}`, which is a {type(value).__name__} that "
        "cannot be written",
        code="runtime.read_only",
    )
