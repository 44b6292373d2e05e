"""`neuronxcc.nki.typing`: annotations of kernel parameters and tiles."""

from typing import Any


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

__all__ = ["mutable", "mutable_tensor", "scalar", "tensor"]
