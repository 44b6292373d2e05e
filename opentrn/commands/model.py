"""The model a command is given: a StableHLO file, or `FILE.py:NAME` of PyTorch or JAX."""

import os
from typing import Any

STABLEHLO = (".mlir", ".mlirbc", ".stablehlo", ".vhlo")


def load_model(place: str) -> tuple[Any, tuple]:
    """(a graph, ()) of a StableHLO file or a JAX function; (module, arguments) of PyTorch.

    Loops of known length are written out.  Raises MissingFileError and UsageError `dropin.model`,
    what `graph.from_stablehlo` raises, and what loading a Python file raises.
    """
    from opentrn.dropin import load_name

    if place.endswith(STABLEHLO):
        return _program(place), ()
    model, args = _pair(place, load_name(place, "a function returning (module, arguments)"))
    if _is_jax(model, args):
        from opentrn.frameworks.jax import from_jax

        return _ready(from_jax(model, *args)), ()
    return model, args


def _pair(place: str, build: Any) -> tuple[Any, tuple]:
    """What `build` returns, when it is a model that can be called and a tuple of arguments."""
    import inspect

    needs = "a function without arguments"
    if inspect.ismodule(build) or not callable(build):
        raise _no_model(place, f"is {_kind(build)}, not {needs} that returns (model, arguments)")
    try:
        wanted = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        wanted = ()
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p.name for p in wanted if p.default is p.empty and p.kind not in rest]
    if named:
        raise _no_model(place, f"takes {', '.join(named)}: it is not {needs}")
    found = build()
    if not isinstance(found, tuple) or len(found) != 2 or not callable(found[0]):
        raise _no_model(place, f"returned {_kind(found)}, not (model, arguments)")
    model, args = found
    if hasattr(args, "dtype"):  # one array needs no tuple
        args = (args,)
    if not isinstance(args, tuple | list):
        raise _no_model(place, f"returned arguments that are {_kind(args)}, not a tuple")
    return model, tuple(args)


def _kind(thing: Any) -> str:
    import inspect

    if thing is None or inspect.ismodule(thing):
        return "None" if thing is None else f"the module {thing.__name__}"
    name = type(thing).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _no_model(place: str, what: str) -> Exception:
    from opentrn.base import UsageError
    from opentrn.dropin import NO_MODEL

    rule = "NAME in FILE.py:NAME is a function that returns (module, (tensor, ...)) or, for JAX, "
    return UsageError(
        f"{place} {what}", code=NO_MODEL, rule=f"{rule}(function, (array, ...))",
        fix="write def build(): return module, (example,) and name it: FILE.py:build",
    )  # fmt: skip


def _program(place: str) -> Any:
    from opentrn.base import MissingFileError
    from opentrn.dropin import NO_MODEL
    from opentrn.graph import Graph, from_stablehlo

    if not os.path.isfile(place):
        raise MissingFileError(
            f"there is no file {place}", code=NO_MODEL,
            rule="a name that ends in .mlir, .mlirbc, .stablehlo or .vhlo is the file of a program",
            fix="check the path; it is read relative to the current directory",
        )  # fmt: skip
    with open(place, "rb") as file:
        found = from_stablehlo(file.read())
    name = os.path.basename(place).rpartition(".")[0]
    return _ready(Graph(found.inputs, found.outputs, found.constants, name=name,
                        output_names=found.output_names))  # fmt: skip


def _ready(graph: Any) -> Any:
    from opentrn.graph import straighten

    return straighten(graph)


def _is_jax(model: Any, args: Any) -> bool:
    """Whether a function is to be traced by JAX: one of its arguments is a JAX array or shape."""
    import sys

    if "jax" not in sys.modules or hasattr(model, "parameters"):
        return False
    import jax

    kinds = (jax.Array, jax.ShapeDtypeStruct)
    return any(isinstance(leaf, kinds) for leaf in jax.tree.leaves(args))


__all__ = ["load_model"]
