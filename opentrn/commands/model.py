"""The model a command is given: a file of StableHLO or ONNX, a SavedModel folder, or a function.

`FILE.py:NAME` and `module:NAME` name a function that returns a model of PyTorch, JAX or TensorFlow
with example arguments.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

STABLEHLO = (".mlir", ".mlirbc", ".stablehlo", ".vhlo")
ONNX = ".onnx"
SAVED_MODEL = "saved_model.pb"

Shapes = Mapping[str, Sequence[int]]


def load_model(place: str, shapes: Shapes | None = None) -> tuple[Any, tuple]:
    """(a graph, ()) of a file, a SavedModel, or a function of JAX or TensorFlow; (module,
    arguments) of PyTorch.

    `shapes` fixes what an ONNX file or a SavedModel leaves open.  Loops of known length are
    written out.  Raises MissingFileError and UsageError `dropin.model`, what the importers raise,
    and what loading a Python file raises.
    """
    if os.path.isfile(os.path.join(place, SAVED_MODEL)):
        return _saved_model(place, shapes or {}), ()
    if place.endswith(ONNX):
        return _onnx(place, shapes or {}), ()
    if shapes:
        raise _no_model(place, "is neither an ONNX file nor a SavedModel: its shapes are its own")
    if place.endswith(STABLEHLO):
        return _program(place), ()
    model, args = _pair(place, _load_name(place))
    if _is_tensorflow(model, args):
        from opentrn.frameworks.tensorflow import from_tensorflow

        return _ready(from_tensorflow(model, args)), ()
    if _is_jax(model, args):
        from opentrn.frameworks.jax import from_jax

        return _ready(from_jax(model, *args)), ()
    return model, args


def read_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """NAME=1,3,224,224 as (name, sizes); UsageError `dropin.model`."""
    from opentrn.base import UsageError
    from opentrn.dropin import NO_MODEL

    name, equals, sizes = text.partition("=")
    parts = [part.strip() for part in sizes.split(",") if part.strip()]
    if not name or not equals or not all(part.isdecimal() for part in parts):
        raise UsageError(
            f"--shape {text} is no shape", code=NO_MODEL,
            rule="a shape is the input's name and its sizes",
            fix="for example --shape input=1,3,224,224",
        )  # fmt: skip
    return name, tuple(map(int, parts))


def _load_name(place: str) -> Any:
    """The object of FILE.py:NAME, or of module:NAME for a module that Python finds."""
    import importlib
    import importlib.util
    import sys

    from opentrn.dropin import install, load_name

    module, _, name = place.partition(":")
    dotted = module.replace(".", "").isidentifier() and name.isidentifier()
    if not dotted or module.endswith(".py") or os.path.exists(module):
        return load_name(place, "a function returning (module, arguments)")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        with install():
            loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise _no_model(place, f"names the module {module}, which Python does not find") from None
    finally:
        sys.path.remove(here)
    if not hasattr(loaded, name):
        raise _no_model(place, f"names {name}, which the module {module} has not")
    return getattr(loaded, name)


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

    rule = "NAME in FILE.py:NAME is a function that returns (module, (tensor, ...)) or, for JAX "
    return UsageError(
        f"{place} {what}", code=NO_MODEL, rule=f"{rule}and TensorFlow, (function, (array, ...))",
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


def _onnx(place: str, shapes: Shapes) -> Any:
    from opentrn.graph import from_onnx

    return _ready(from_onnx(place, shapes=shapes))


def _saved_model(place: str, shapes: Shapes) -> Any:
    from opentrn.frameworks.tensorflow import from_saved_model

    return _ready(from_saved_model(place, shapes))


def _ready(graph: Any) -> Any:
    from opentrn.graph import straighten

    return straighten(graph)


def _is_tensorflow(model: Any, args: Any) -> bool:
    """Whether a function is to be traced by TensorFlow: it, or one of its arguments, is its own."""
    import sys

    if "tensorflow" not in sys.modules:
        return False
    import tensorflow as tf

    kinds = (tf.Tensor, tf.TensorSpec)
    own = isinstance(model, tf.Module) or hasattr(model, "get_concrete_function")
    return own or any(isinstance(leaf, kinds) for leaf in tf.nest.flatten(args))


def _is_jax(model: Any, args: Any) -> bool:
    """Whether a function is to be traced by JAX: one of its arguments is a JAX array or shape."""
    import sys

    if "jax" not in sys.modules or hasattr(model, "parameters"):
        return False
    import jax

    kinds = (jax.Array, jax.ShapeDtypeStruct)
    return any(isinstance(leaf, kinds) for leaf in jax.tree.leaves(args))


__all__ = ["load_model", "read_shape"]
