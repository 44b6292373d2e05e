"""The model a command is given: a StableHLO file, or `FILE.py:NAME` of PyTorch or JAX."""

import os
from typing import Any

from opentrn.base import MissingFileError, declare

STABLEHLO = (".mlir", ".mlirbc", ".stablehlo", ".vhlo")
NO_FILE = declare(
    "commands.no_program",
    "A StableHLO program was to be read from a file that is not there.",
    rule="a name that ends in .mlir, .mlirbc, .stablehlo or .vhlo is the file of a program",
)


def load_model(place: str) -> tuple[Any, tuple]:
    """(a graph, ()) of a StableHLO file or a JAX function; (module, arguments) of PyTorch.

    Loops of known length are written out.  Raises MissingFileError `commands.no_program`, what
    `graph.from_stablehlo` raises, and what loading a Python file raises.
    """
    from opentrn.dropin import load_name

    if place.endswith(STABLEHLO):
        return _program(place), ()
    model, args = load_name(place, "a function returning (module, arguments)")()
    if _is_jax(model, args):
        from opentrn.frameworks.jax import from_jax

        return _ready(from_jax(model, *args)), ()
    return model, args


def _program(place: str) -> Any:
    from opentrn.graph import Graph, from_stablehlo

    if not os.path.isfile(place):
        raise MissingFileError(f"there is no file {place}", code=NO_FILE)
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
