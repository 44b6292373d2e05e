"""One way to see a model's ATen ops: exported, or traced with its gradients; never a crash."""

import contextlib
import copy
import io
import logging
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opentrn.base import TrnError, Where
from opentrn.frameworks.torch.backend import decompositions
from opentrn.frameworks.torch.hints import DYNAMIC
from opentrn.frameworks.torch.places import place_in
from opentrn.graph import exported_torch

DATA = ("data-dependent", "datadependent", "unbacked", "guardondatadependent", "nonzero")


@dataclass(frozen=True)
class Captured:
    """The fx graph of a model, or (what, where, fix, code) of why there is none."""

    graph: Any = None
    problem: tuple[str, Where | None, str, str] | None = None


def capture(module: Any, args: Any, *, train: bool = False) -> Captured:
    """The ops of a module or function called with `args`; with `train`, of loss and gradients.

    The loss is the sum of all results that are floats.
    """
    import torch

    given = tuple(args) if isinstance(args, tuple | list) else (args,)
    held = module if isinstance(module, torch.nn.Module) else as_module(module)
    try:
        with _quiet():
            return Captured(_joint(held, given) if train else exported_torch(held, given).graph)
    except Exception as error:
        return Captured(problem=_problem(error))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings, logs and prints about its own insides."""
    before = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def as_module(function: Any) -> Any:
    """A function as a module of its name, which is what torch exports."""
    import torch

    name, body = getattr(function, "__name__", "function"), function
    if isinstance(function, types.FunctionType):
        # Torch keeps source lines of functions called "forward" only.
        code = function.__code__.replace(co_name="forward")
        body = types.FunctionType(code, function.__globals__, "forward", function.__defaults__,
                                  function.__closure__)  # fmt: skip
        body.__kwdefaults__ = function.__kwdefaults__
    return type(name, (torch.nn.Module,), {"forward": staticmethod(body)})()


def _joint(module: Any, args: tuple) -> Any:
    """Forward and backward as one graph."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    names = [n for n, p in module.named_parameters() if p.requires_grad]
    weights = [p.detach() for p in module.parameters() if p.requires_grad]
    state = {n: b.detach().clone() for n, b in module.named_buffers()}
    floats = [n for n, x in enumerate(args) if torch.is_tensor(x) and x.is_floating_point()]

    def step(weights: list, given: tuple) -> list:
        held = [w.detach().requires_grad_() for w in weights]
        inputs = [x.detach().requires_grad_() if n in floats else x for n, x in enumerate(given)]
        named = {**dict(zip(names, held, strict=True)), **copy.copy(state)}
        with torch.enable_grad():
            found = torch.func.functional_call(module, named, tuple(inputs))
            leaves = [x for x in torch.utils._pytree.tree_leaves(found)
                      if torch.is_tensor(x) and x.requires_grad]  # fmt: skip
            total = sum(x.sum() for x in leaves)
            wanted = [*held, *(inputs[n] for n in floats)]
            grads = torch.autograd.grad(total, wanted, allow_unused=True)
        return [total, *(x for x in grads if x is not None)]

    table = dict(decompositions())
    table.update(torch._decomp.get_decompositions([torch.ops.aten.native_batch_norm]))
    with torch.fx.traceback.preserve_node_meta():
        made = make_fx(step, decomposition_table=table, tracing_mode="fake",
                       record_stack_traces=True)(weights, args)  # fmt: skip
    made.graph.eliminate_dead_code()
    return made.graph


def _problem(error: Exception) -> tuple[str, Where | None, str, str]:
    """What went wrong while tracing, for people."""
    import traceback

    where = place_in(traceback.extract_tb(error.__traceback__))
    if isinstance(error, TrnError):
        return error.what, error.at or where, error.fix, error.neuron
    text = f"{type(error).__name__}: {error}"
    if any(word in text.lower() for word in DATA):
        return (
            "its course depends on numbers that are known only when it runs", where,
            "torch.where(condition, a, b) instead of `if`; torch.compile runs such code in pieces",
            DYNAMIC,
        )  # fmt: skip
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"torch cannot trace it: {type(error).__name__}: {first}", where, "", ""


__all__ = ["Captured", "as_module", "capture"]
