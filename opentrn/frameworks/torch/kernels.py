"""Kernels as torch functions: `wrap_nki` makes one of a kernel, `nki_op` an op torch knows.

An op made by `nki_op` runs eagerly, and in compiled graphs, where each launch of a kernel is one op
beside those of torch that the function calls.  It can be given a gradient with
`register_autograd`, as any op of `torch.library.custom_op`.  An op that writes its arguments runs
between the graphs of torch.compile.
"""

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any

from opentrn import nki
from opentrn.base import NotBuiltError, declare
from opentrn.frameworks.torch import eager
from opentrn.frameworks.torch.backend import decompositions
from opentrn.frameworks.torch.memory import dense_strides
from opentrn.graph import TORCH_RULES, Callee, FxImporter, TorchRule, Type, Value, torch_dtype
from opentrn.isa import Builder, View

LAUNCH = "opentrn::launch"
LAUNCHED = declare(
    "frameworks.launch",
    "A kernel inside an op of nki_op is launched in a way that a compiled graph cannot hold.",
    rule="a kernel of nki.jit takes tensors among its arguments, and returns a tensor or a list",
    fix="run the op outside of what is compiled: torch.compiler.disable(op)",
)


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
        overload = self.op._opoverload
        # Nothing in a graph writes its arguments: torch.compile ends its graph before such an op.
        self._call = torch.compiler.disable(self.op) if mutates_args else overload
        if not mutates_args:
            names = tuple(a.name for a in overload._schema.arguments)
            make = functools.partial(_inlined, function)
            TORCH_RULES[name] = TorchRule(name, str(overload._schema), names, make)
            self.op.register_kernel("neuron")(lambda *args: eager.call(overload, args, {}))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's results; they have gradients if `register_autograd` gave them some."""
        return self._call(*args, **kwargs)

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


# ---------------------------------------------------------------------- in compiled graphs


def _inlined(function: Callable, g: Any, **given: Any) -> Any:
    """The function's results in a graph: its torch ops by their rules, its launches as they are.

    Raises NotBuiltError `frameworks.launch`, and what the chip would refuse of the kernels."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    leaves, tree = torch.utils._pytree.tree_flatten(given)
    values = [x for x in leaves if isinstance(x, Value)]
    calls: list[Callee] = []

    def body(*tensors: Any) -> Any:
        rest = iter(tensors)
        full = [next(rest) if isinstance(x, Value) else x for x in leaves]
        return function(**torch.utils._pytree.tree_unflatten(full, tree))

    with torch._guards.tracing(None), FakeTensorMode(), torch.no_grad():
        shapes = [torch.empty(v.shape, dtype=getattr(torch, v.dtype.name)) for v in values]
        with nki.taking_launches(functools.partial(_taken, calls)):
            pure = torch.func.functionalize(body, remove="mutations")
            module = make_fx(pure, decomposition_table=decompositions())(*shapes)
    found = _Launches(module, calls, g).into(values)
    return found[0] if len(found) == 1 else found


class _Launches(FxImporter):
    """An importer that knows what each launch calls."""

    def __init__(self, module: Any, calls: list[Callee], g: Any) -> None:
        super().__init__(module, {}, "kernels")
        self.calls, self.g = calls, g

    def known(self, node: Any) -> bool:
        """A launch, or what has a rule."""
        return node.target is _library().launch or super().known(node)

    def call(self, node: Any) -> None:
        """One op by its rule, or one launch."""
        if node.target is not _library().launch:
            super().call(node)
            return
        tensors, _, number = node.args
        g, callee = self.g, self.calls[number]
        parts = g.foreign(*(self.values[t] for t in tensors), callee=callee)
        self.values[node] = [g.get_tuple_element(parts, n) for n in range(len(callee.gives))]


def _taken(calls: list[Callee], kernel: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A launch on tensors without numbers: noted, and its results, without numbers too."""
    import torch

    leaves, tree = torch.utils._pytree.tree_flatten((args, kwargs))
    places = tuple(n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    if not isinstance(kernel, nki.Kernel) or not places:
        raise NotBuiltError(f"a launch of {kernel.__name__}", code=LAUNCHED)
    held = tuple(None if n in places else leaf for n, leaf in enumerate(leaves))
    bound = nki.Bound(kernel, held, tree, places)
    tensors = [leaves[n] for n in places]
    takes = tuple(Type(tuple(t.shape), torch_dtype(t.dtype)) for t in tensors)
    kinds: list[type] = []

    def body(*given: Any) -> Any:
        positional, named = bound.arguments(given)
        result = kernel.func(*positional, **named)
        kinds.append(type(result))
        return result

    body.grid, body.__name__ = kernel.grid, kernel.__name__
    made = nki.record(body, nki.current_chip(), *map(_view, takes))
    gives = tuple(Type(view.shape, view.dtype) for view in made.results)
    flops = sum(one.form.flop_count for one in made.program.instructions())
    calls.append(Callee(kernel.__name__, takes, gives, bound, _Run(bound), flops))
    told = json.dumps([[list(t.shape), t.dtype.name] for t in gives])
    found = _library().launch(tensors, told, len(calls) - 1)
    return found[0] if issubclass(kinds[0], nki.NkiTensor) else kinds[0](found)


class _Run:
    """What a launch means on NumPy arrays."""

    def __init__(self, bound: nki.Bound) -> None:
        self.bound = bound

    def __call__(self, *arrays: Any) -> tuple:
        args, kwargs = self.bound.arguments(arrays)
        made = self.bound.kernel(*args, **kwargs)
        return tuple(made) if isinstance(made, list | tuple) else (made,)


def _view(kind: Type) -> View:
    """A tensor of this type in HBM, row by row."""
    shape = kind.shape or (1,)
    buffer = Builder("argument", nki.current_chip().name).buffer("hbm", shape, kind.dtype)
    return View(buffer, 0, tuple(zip(dense_strides(shape), shape, strict=True)), kind.dtype)


class _Library:
    """PyTorch's registration of the op that stands for a launch while a function is traced."""

    def __init__(self) -> None:
        import torch

        self.held = torch.library.Library("opentrn", "FRAGMENT")
        self.held.define("launch(Tensor[] given, str results, int number) -> Tensor[]")
        torch.library.register_fake(LAUNCH, self._shapes, lib=self.held)
        self.launch = torch.ops.opentrn.launch.default

    @staticmethod
    def _shapes(given: list[Any], results: str, number: int) -> list[Any]:
        import torch

        return [given[0].new_empty(shape, dtype=getattr(torch, kind))
                for shape, kind in json.loads(results)]  # fmt: skip


_library = functools.cache(_Library)


__all__ = ["NkiOp", "nki_op", "wrap_nki"]
