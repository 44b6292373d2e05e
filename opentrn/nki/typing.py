"""`nki.typing`: say in a kernel's signature which shapes it expects; `nki.run` checks them."""

import inspect

from opentrn.base import ShapeError, declare

declare(
    "nki.declared_shape",
    "An argument has another shape than the kernel's signature declares.",
    rule="a parameter annotated `nki.typing.tensor[128, 512]` takes tensors of that shape only",
    fix="pass a tensor of the declared shape, or change the annotation",
)


class tensor:
    """A tensor parameter: `tensor` for any shape, `tensor[128, 512]` for that shape only."""

    shape: tuple[int, ...] | None = None

    def __class_getitem__(cls, shape: int | tuple[int, ...]) -> type["tensor"]:
        """The annotation for tensors of `shape`."""
        sizes = shape if isinstance(shape, tuple) else (shape,)
        return type("tensor", (cls,), {"shape": sizes})


def check_declared(bound: inspect.BoundArguments) -> None:
    """Compare arguments with the shapes declared for them; ShapeError for the first difference.

    Annotations of other kinds are not ours to judge.
    """
    for name, parameter in bound.signature.parameters.items():
        wanted, given = parameter.annotation, bound.arguments.get(name)
        if not (isinstance(wanted, type) and issubclass(wanted, tensor)) or wanted.shape is None:
            continue
        shape = getattr(given, "shape", None)
        if shape is not None and tuple(shape) != wanted.shape:
            raise ShapeError(
                f"`{name}` has shape {list(shape)}; the kernel declares {list(wanted.shape)}",
                code="nki.declared_shape",
            )


__all__ = ["tensor"]
