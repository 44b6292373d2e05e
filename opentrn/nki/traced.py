"""Kernels inside functions that JAX traces: one operation, `nki_kernel`, of the function.

The results' shapes come from recording the kernel on the shapes of its arguments, so that a kernel
the chip would refuse is refused while JAX traces.  On JAX's own devices the operation calls the
kernel back when values are known; lowered for the platform `neuron` it is a custom call that
names the kernel by a token.  JAX knows no gradient of it: wrap it in
jax.custom_vjp for one.
"""

import contextvars
import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from opentrn.base import UnsupportedError, declare
from opentrn.isa import Program
from opentrn.nki.arrays import is_array, is_traced
from opentrn.nki.check_arguments import shaped
from opentrn.nki.check_record import Recorded, opened, returned
from opentrn.nki.one_core import recorded
from opentrn.nki.session import Session, chosen_chip
from opentrn.nki.tensor import NkiTensor

NUMBERS = itertools.count()

GRADIENT = declare(
    "nki.jax_gradient",
    "JAX was asked for the gradient of a kernel.",
    rule="a kernel is one operation of which JAX knows no derivative",
    fix="wrap it in jax.custom_vjp, with a function (or a kernel) for the gradient",
)


def any_traced(args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether some argument, also inside containers, is a value that JAX is tracing."""

    def inside(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return any(inside(one) for one in value)
        if isinstance(value, dict):
            return any(inside(one) for one in value.values())
        return is_traced(value)

    return inside([list(args), kwargs])


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A kernel with all its arguments but the tensors; called with those, in order.

    `tree` says how the leaves nest: a tree definition of JAX's or PyTorch's.  Inside another kernel
    or a recording it returns the tensors of the result in a list.  Two are equal that have one
    function and equal arguments.
    """

    kernel: Any
    leaves: tuple
    tree: Any
    places: tuple[int, ...]
    key: tuple = field(init=False, repr=False)

    def __post_init__(self) -> None:
        key = self.kernel.func, self.kernel.grid, self.tree, tuple(map(_exact, self.leaves))
        object.__setattr__(self, "key", key)

    @property
    def __name__(self) -> str:
        return self.kernel.__name__

    @property
    def grid(self) -> tuple[int, ...]:
        """The sizes of the kernel's launch grid."""
        return self.kernel.grid

    def __call__(self, *tensors: Any) -> list[Any]:
        """The kernel's function on these tensors."""
        args, kwargs = self.arguments(tensors)
        return _tensors(self.kernel.func(*args, **kwargs))

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple, dict[str, Any]]:
        """Positional and named arguments with these tensors (or arrays) in their places."""
        given = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            given[place] = tensor
        return self.tree.unflatten(given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bound) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _exact(leaf: Any) -> tuple:
    """A leaf as a key: 0, 0.0, -0.0 and False are four, what has no hash is only itself."""
    try:
        hash(leaf)
    except TypeError:
        return type(leaf), id(leaf)
    return type(leaf), repr(leaf) if isinstance(leaf, float) else leaf


def _tensors(result: Any) -> list[Any]:
    """The tensors of a result, in JAX's order, which is that of sorted names."""
    if isinstance(result, dict):
        result = [result[name] for name in sorted(result)]
    if isinstance(result, list | tuple):
        return [tensor for one in result for tensor in _tensors(one)]
    return [] if result is None else [result]


@dataclass(frozen=True, eq=False)
class TracedKernel:
    """A kernel call in a function being traced: `run(args, kwargs)` runs it on arrays.

    `programs` are what its instances record for these shapes, `context` the target and checks in
    force.  What is lowered for JAX's platform PLATFORM calls TARGET, with `token` as an attribute.
    """

    TARGET: ClassVar[str] = "opentrn.nki"
    PLATFORM: ClassVar[str] = "neuron"

    bound: Bound
    run: Callable
    programs: tuple[Program, ...]
    context: contextvars.Context
    token: str = field(default_factory=lambda: f"kernel {next(NUMBERS)}")

    @property
    def flops(self) -> int:
        """Arithmetic of one call; of a device loop, that of one turn."""
        every = (one for program in self.programs for one in program.instructions())
        return sum(one.form.flop_count for one in every)

    def __call__(self, *arrays: Any) -> list[Any]:
        """The results for these arrays, flat."""
        import jax

        # JAX calls back from threads of its own: the target and checks are those of the trace.
        made = self.context.copy().run(self.run, *self.bound.arguments(arrays))
        return jax.tree_util.tree_leaves(made)


def call(kernel: Any, run: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The kernel as one operation of the function being traced; `run(args, kwargs)` runs it.

    Raises what the chip would refuse for these shapes, at the kernel's line.
    """
    import jax

    leaves, tree = jax.tree_util.tree_flatten((args, kwargs), is_leaf=lambda x: x is None)
    places = tuple(n for n, leaf in enumerate(leaves) if is_array(leaf))
    held = tuple(None if n in places else leaf for n, leaf in enumerate(leaves))
    shapes, programs = _recorded(kernel, args, kwargs)
    flat, out = jax.tree_util.tree_flatten(shapes)
    bound = Bound(kernel, held, tree, places)
    made = TracedKernel(bound, run, programs, contextvars.copy_context())
    found = primitive().bind(*[leaves[n] for n in places], traced=made, shapes=tuple(flat))
    return jax.tree_util.tree_unflatten(out, found)


@functools.cache
def primitive() -> Any:
    """JAX's primitive `nki_kernel`: traced kernels, with what JAX needs to know of them."""
    import jax
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    made = Primitive("nki_kernel")
    made.multiple_results = True

    @made.def_abstract_eval
    def abstract(*_: Any, traced: TracedKernel, shapes: tuple) -> list[Any]:
        return [jax.core.ShapedArray(s.shape, s.dtype) for s in shapes]

    @made.def_impl
    def impl(*arrays: Any, **more: Any) -> Any:
        return jax.jit(functools.partial(made.bind, **more))(*arrays)

    def lowered(context: Any, *operands: Any, traced: TracedKernel, shapes: tuple) -> Any:
        platforms = context.platforms or context.module_context.platforms

        def on_neuron(*arrays: Any) -> Any:
            return jax.ffi.ffi_call(TracedKernel.TARGET, shapes)(*map(jax.numpy.asarray, arrays),
                                                    token=traced.token)  # fmt: skip

        def elsewhere(*arrays: Any) -> Any:
            return jax.pure_callback(lambda *given: traced(*map(jax.numpy.asarray, given)),
                                     list(shapes), *arrays)  # fmt: skip

        function = on_neuron if tuple(platforms) == (TracedKernel.PLATFORM,) else elsewhere
        return mlir.lower_fun(function, multiple_results=True)(context, *operands)

    def batched(arrays: Sequence[Any], axes: Sequence[Any], **more: Any) -> Any:
        moving = [n for n, axis in enumerate(axes) if axis is not None]

        def one(rows: Any) -> Any:
            given = list(arrays)
            for n, row in zip(moving, rows, strict=True):
                given[n] = row
            return made.bind(*given, **more)

        rows = [jax.numpy.moveaxis(arrays[n], axes[n], 0) for n in moving]
        found = jax.lax.map(one, rows)
        return found, [0] * len(found)

    def derived(arrays: Any, _: Any, *, traced: TracedKernel, **more: Any) -> Any:
        raise UnsupportedError(f"the gradient of the kernel {traced.bound.__name__}",
                               code=GRADIENT)  # fmt: skip

    mlir.register_lowering(made, lowered)
    batching.primitive_batchers[made] = batched
    ad.primitive_jvps[made] = derived
    return made


def _recorded(kernel: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, tuple[Program, ...]]:
    """(shapes and dtypes of the results, in the structure the kernel returns; the programs of its
    instances)."""
    import jax

    chip = chosen_chip(kernel.options.get("platform_target"))
    bound = inspect.signature(kernel.func).bind(*args, **kwargs)

    def body(session: Session) -> Any:
        own = {name: opened(session, name, shaped(v)) for name, v in bound.arguments.items()}
        given = inspect.BoundArguments(bound.signature, own)
        return kernel.func(*given.args, **given.kwargs)

    cores, (result, *_) = recorded(kernel.__name__, chip, kernel.grid, body)
    found = Recorded()
    found.results += returned(result, found)
    for refused in found.refused:
        raise refused

    def of(tensor: Any) -> Any:
        return jax.ShapeDtypeStruct(tensor.shape, tensor.dtype.storage)

    shapes = jax.tree_util.tree_map(of, result, is_leaf=lambda x: isinstance(x, NkiTensor))
    return shapes, tuple(core.builder.program() for core in cores)


__all__ = ["Bound", "TracedKernel", "any_traced", "call", "primitive"]
