"""`neuronxcc.nki.typing`: annotations of kernel parameters and tiles."""

from typing import Any

import numpy as np

from opentrn.base import dtype as as_dtype
from opentrn.nki.arrays import rebuilt


class tensor:
    """A tensor: `tensor`, `tensor[128, 512]`, `tensor[dtype, 128, 512]`; sizes may be expressions.

    Annotations of this age describe tiles inside kernels; nothing is checked by them.
    """

    def __class_getitem__(cls, sizes: Any) -> type["tensor"]:
        """The annotation for tensors of these sizes."""
        return type("tensor", (cls,), {"sizes": sizes})


class scalar:
    """A number known when the kernel is built."""

    def __class_getitem__(cls, kind: Any) -> type["scalar"]:
        """The annotation for numbers of a dtype."""
        return type("scalar", (cls,), {"kind": kind})


class mutable_tensor(tensor):
    """A tensor the kernel writes into."""


mutable = tensor


def filled(value: Any) -> Any:
    """Arguments with `tensor[[128, 512], dtype]` replaced by random arrays, as benchmarks do."""
    if isinstance(value, dict):
        return {key: filled(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return rebuilt(value, [filled(one) for one in value])
    if not (isinstance(value, type) and issubclass(value, tensor)):
        return value
    shape, kind = value.sizes
    numbers = np.random.default_rng(0).random(tuple(shape))
    return numbers.astype(as_dtype(kind).storage)


__all__ = ["mutable", "mutable_tensor", "scalar", "tensor"]
