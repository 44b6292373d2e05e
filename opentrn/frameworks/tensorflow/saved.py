"""SavedModel folders: their signatures as functions, and as graphs."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from opentrn.base import FileFormatError, MissingFileError, UsageError, declare
from opentrn.frameworks.tensorflow.lower import MODEL, from_tensorflow, tensorflow
from opentrn.graph import Graph

SIGNATURE = "serving_default"

FOLDER = declare(
    "frameworks.tf_saved_model",
    "A folder is no SavedModel, or a damaged one.",
    rule="a SavedModel folder holds saved_model.pb and variables/",
    fix="save it again: model.export(folder) or tf.saved_model.save(module, folder)",
)


def load_signature(path: Any, signature: str = SIGNATURE) -> Any:
    """The function of a SavedModel's signature.

    Raises MissingFileError or FileFormatError `frameworks.tf_saved_model`, UsageError
    `frameworks.tf_model` for a signature it has not.
    """
    path = os.fspath(path)
    if not os.path.isfile(os.path.join(path, "saved_model.pb")):
        raise MissingFileError(f"{path} is no SavedModel folder", code=FOLDER)
    tf = tensorflow()
    try:
        loaded = tf.saved_model.load(path)
    except Exception as problem:  # whatever TensorFlow stumbles over in a damaged folder
        line = next(iter(str(problem).splitlines()), "") or type(problem).__name__
        raise FileFormatError(f"{path} cannot be loaded: {line[:200]}", code=FOLDER) from problem
    found = getattr(loaded, "signatures", {})
    if signature not in found:
        told = ", ".join(found) or "none"
        raise UsageError(f"{path} has no signature {signature}: {told}", code=MODEL)
    # The loaded object owns the variables; the function alone would let them go.
    function = found[signature]
    function.owner = loaded
    return function


def signature_of(path: Any, example: Any = None,
                 shapes: Mapping[str, Sequence[int]] | None = None) -> tuple[Any, dict]:
    """(the function of a SavedModel's signature, its arguments by name).

    `example` is a dict of arrays, or one array (or several in a tuple) in the order of the names;
    left out, the signature's own shapes hold, with `shapes` in the place of those it leaves open.
    """
    tf = tensorflow()
    function = load_signature(path)
    specs = dict(function.structured_input_signature[1])
    for name, sizes in (shapes or {}).items():
        if name not in specs:
            known = ", ".join(specs)
            raise UsageError(f"the model has no input {name}; it has {known}", code=MODEL)
        specs[name] = tf.TensorSpec(tuple(sizes), specs[name].dtype, name)
    if example is None:
        return function, specs
    if not isinstance(example, dict):
        each = example if isinstance(example, (tuple, list)) else (example,)
        if len(each) != len(specs):
            raise UsageError(f"the model takes {', '.join(specs)}; {len(each)} given", code=MODEL)
        example = dict(zip(sorted(specs), each, strict=True))
    return function, dict(example)


def from_saved_model(path: Any, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """The graph of a SavedModel's signature `serving_default`; its variables are constants.

    `shapes` fixes the inputs whose sizes the model leaves open. Raises MissingFileError,
    FileFormatError `frameworks.tf_saved_model`, UsageError `frameworks.tf_model`, NotBuiltError
    `graph.dynamic_shape`, and as `lower` does.
    """
    function, named = signature_of(path, None, shapes)
    graph = from_tensorflow(lambda **given: function(**given), (), named)
    name = os.path.basename(os.path.abspath(os.fspath(path)))
    return Graph(graph.inputs, graph.outputs, graph.constants, name=name,
                 output_names=_named(function, graph.output_names))  # fmt: skip


def _named(function: Any, names: Sequence[str]) -> list[str]:
    """The outputs by the signature's names, where these are as many."""
    told = sorted(function.structured_outputs) if isinstance(
        function.structured_outputs, dict) else []
    return told if len(told) == len(names) else list(names)


__all__ = ["FOLDER", "from_saved_model", "load_signature", "signature_of"]
