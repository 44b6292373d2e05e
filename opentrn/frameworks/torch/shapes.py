"""Tensors with a shape and no numbers: what programs that are only timed return.

Ops on them give such tensors again, by PyTorch's own shape rules; reading one is refused at the
user's line.
"""

import functools
from typing import Any

from opentrn.base import UsageError
from opentrn.frameworks.torch.places import user_place

# Ops that hand numbers to Python, or write them where others would read them as real.
READS = ("_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "unique")


@functools.cache
def _kind() -> Any:
    """The class of such tensors."""
    import torch

    class ShapeOnly(torch.Tensor):
        """A tensor of which only the shape is known."""

        def __new__(cls, shape: Any, dtype: Any, device: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)

        def __repr__(self, *, tensor_contents: Any = None) -> str:
            return f"ShapeOnly({list(self.shape)}, {self.dtype})"

        def tolist(self) -> Any:
            """Refused: UsageError `runtime.no_numbers`."""
            raise _refusal("tolist")

        def numpy(self, *, force: bool = False) -> Any:
            """Refused: UsageError `runtime.no_numbers`."""
            raise _refusal("numpy")

        def __coerce_same_metadata_as_tangent__(self, expected: Any, kind: Any = None) -> Any:
            """What AOTAutograd's backward is given in place of this: NaN, which nobody reads."""
            return torch.full(self.shape, float("nan"), dtype=self.dtype, device=self.device)

        @classmethod
        def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return _of_shapes(cls, op, args, kwargs or {})

    return ShapeOnly


def _refusal(name: str) -> UsageError:
    return UsageError(f"{name}: the tensor is of a program that was only timed",
                      code="runtime.no_numbers", at=user_place())  # fmt: skip


def _of_shapes(cls: Any, op: Any, args: Any, kwargs: Any) -> Any:
    """An op by its shape rule; UsageError `runtime.no_numbers` where numbers would be read."""
    import torch
    from torch.utils import _pytree

    name = op._schema.name.partition("::")[2]
    written = _written(op, args, kwargs)
    real = [x for x in written if not isinstance(x, cls)]
    if name in READS or real:
        raise _refusal(name)
    home = next(x.device for x in _pytree.tree_leaves((args, kwargs)) if isinstance(x, cls))
    moved = kwargs.get("device") or home
    given = {**kwargs, "device": torch.device("meta")} if "device" in kwargs else kwargs

    def bare(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        return x

    made = op(*_pytree.tree_map(bare, args), **_pytree.tree_map(bare, given))
    if written:
        return written[0] if len(written) == 1 else tuple(written)

    def dressed(x: Any) -> Any:
        return cls(x.shape, x.dtype, moved) if isinstance(x, torch.Tensor) else x

    return _pytree.tree_map(dressed, made)


def _written(op: Any, args: Any, kwargs: Any) -> list[Any]:
    """The tensors an op writes: in place, or into what `out=` names."""
    given = [*zip(op._schema.arguments, args, strict=False)]
    given += [(a, kwargs[a.name]) for a in op._schema.arguments if a.name in kwargs]
    return [x for a, x in given if a.alias_info is not None and a.alias_info.is_write]


def shape_only(shape: Any, dtype: Any, device: Any) -> Any:
    """A tensor of this shape without numbers."""
    return _kind()(tuple(map(int, shape)), dtype, device)


def is_shape_only(tensor: Any) -> bool:
    """Whether a tensor has no numbers."""
    return isinstance(tensor, _kind())


__all__ = ["is_shape_only", "shape_only"]
