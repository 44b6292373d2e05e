"""Kernels as torch functions: `wrap_nki` makes one of a kernel, `nki_op` an op torch knows.

An op made by `nki_op` runs eagerly. It can be given a gradient with `register_autograd`, as any op
of `torch.library.custom_op`. torch.compile runs it between graphs.
"""

from collections.abc import Callable, Iterable
from typing import Any

from opentrn import nki


def wrap_nki(kernel: Callable) -> Any:
    """A kernel that takes and returns torch tensors: `kernel[2](...)` runs on two cores."""
    return kernel if isinstance(kernel, nki.Kernel) else nki.jit(kernel)


class NkiOp:
    """A torch op made of a function that calls kernels; call it like the function.

    `op` is what `torch.library.custom_op` made; torch also has it as `torch.ops.namespace.op`.
    """

    def __init__(self, name: str, function: Callable, mutates_args: tuple[str, ...]) -> None:
        import torch

        self.name, self.__wrapped__, self.__doc__ = name, function, function.__doc__
        self.op = torch.library.custom_op(name, function, mutates_args=mutates_args)
        self.op.register_fake(lambda *args, **kwargs: _shapes(function, args, kwargs))
        # No graph has an op for a user's kernel: torch.compile ends its graph before it.
        self._eager = torch.compiler.disable(self.op)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's results; they have gradients if `register_autograd` gave them some."""
        return self._eager(*args, **kwargs)

    def register_autograd(self, backward: Callable, **options: Any) -> None:
        """Give the op a gradient, as `torch.library.CustomOpDef.register_autograd` does."""
        self.op.register_autograd(backward, **options)

    def register_fake(self, function: Callable) -> Callable:
        """Say the result's shape in another way than by running the kernels once."""
        return self.op.register_fake(function)

    def __repr__(self) -> str:
        return f"<NkiOp {self.name}>"


def nki_op(name: str, mutates_args: Iterable[str] = ()) -> Callable[[Callable], NkiOp]:
    """A decorator: a function of tensors that calls kernels becomes the torch op `name`.

    The name is "namespace::op"; parameters and result need annotations, from which torch infers
    the op's schema.  `mutates_args` names the tensors it writes.  What `torch.library.custom_op`
    raises for a name or an annotation it does not take goes through.
    """
    return lambda function: NkiOp(name, function, tuple(mutates_args))


def _shapes(function: Callable, args: Any, kwargs: Any) -> Any:
    """Results without numbers: the function runs once on ones of the arguments' shapes."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    def real(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return torch.ones([int(n) for n in x.shape], dtype=x.dtype)

    leaves = torch.utils._pytree.tree_leaves(args)
    like = next(x for x in leaves if isinstance(x, torch.Tensor))
    with unset_fake_temporarily():
        given, named = torch.utils._pytree.tree_map(real, (args, kwargs))
        found = function(*given, **named)
    return torch.utils._pytree.tree_map(
        lambda x: like.new_empty(x.shape, dtype=x.dtype) if isinstance(x, torch.Tensor) else x,
        found,
    )


__all__ = ["NkiOp", "nki_op", "wrap_nki"]
