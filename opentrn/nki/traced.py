"""Kernels inside functions that JAX traces (jax.jit, jax.vmap): called back when values are known.

The results' shapes come from recording the kernel on the shapes of its arguments, so that a kernel
the chip would refuse is refused while JAX traces.  JAX knows no gradient of it: wrap it in
jax.custom_vjp for one.
"""

import contextvars
import inspect
from typing import Any

from opentrn.isa import Builder
from opentrn.nki.arrays import is_array, is_traced
from opentrn.nki.check_arguments import shaped
from opentrn.nki.check_record import opened
from opentrn.nki.session import Session, chosen_chip, entered, new_machine
from opentrn.nki.tensor import NkiTensor


def any_traced(args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether some argument, also inside containers, is a value that JAX is tracing."""

    def inside(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return any(inside(one) for one in value)
        if isinstance(value, dict):
            return any(inside(one) for one in value.values())
        return is_traced(value)

    return inside([list(args), kwargs])


def call(kernel: Any, run: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The kernel as one operation of the function being traced; `run(args, kwargs)` runs it.

    Raises what the chip would refuse for these shapes, at the kernel's line.
    """
    import jax

    leaves, tree = jax.tree_util.tree_flatten((args, kwargs), is_leaf=lambda x: x is None)
    places = [n for n, leaf in enumerate(leaves) if is_array(leaf)]

    # JAX calls back from threads of its own: the target and checks are those in force now.
    context = contextvars.copy_context()

    def back(*values: Any) -> Any:
        given = list(leaves)
        for place, value in zip(places, values, strict=True):
            given[place] = jax.numpy.asarray(value)
        return context.copy().run(run, *jax.tree_util.tree_unflatten(tree, given))

    wanted = _shapes(kernel, args, kwargs)
    given = [leaves[place] for place in places]
    return jax.pure_callback(back, wanted, *given, vmap_method="sequential")


def _shapes(kernel: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Shapes and dtypes of the results, in the structure the kernel returns."""
    import jax

    chip = chosen_chip(kernel.options.get("platform_target"))
    bound = inspect.signature(kernel.func).bind(*args, **kwargs)
    session = Session(
        kernel.__name__,
        chip,
        new_machine(chip),
        Builder(kernel.__name__, chip.name),
        grid=kernel.grid,
    )
    session.recording_only = 1
    with entered(session):
        own = {name: opened(session, name, shaped(v)) for name, v in bound.arguments.items()}
        given = inspect.BoundArguments(bound.signature, own)
        result = kernel.func(*given.args, **given.kwargs)

    def of(tensor: Any) -> Any:
        return jax.ShapeDtypeStruct(tensor.shape, tensor.dtype.storage)

    return jax.tree_util.tree_map(of, result, is_leaf=lambda x: isinstance(x, NkiTensor))


__all__ = ["any_traced", "call"]
