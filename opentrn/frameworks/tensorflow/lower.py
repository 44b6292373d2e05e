"""A TensorFlow function, lowered to StableHLO by TensorFlow's own XLA bridge, as a graph.

The bridge makes arguments of all variables, and results of those the function assigns: so a whole
training step is one pure program. Its order is fixed: arguments, then what the function captures;
results, then the new values of variables.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from opentrn.base import NotBuiltError, TrnError, UnsupportedError, UsageError, Where, declare
from opentrn.frameworks.tensorflow.draws import Seed, seeded
from opentrn.graph import Graph, from_stablehlo, g, inline

PLATFORM = "CPU"  # whose rules TensorFlow's bridge follows; the program it gives is the same
OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)

declare(
    "frameworks.tf_missing",
    "TensorFlow models cannot be traced without TensorFlow.",
    rule="TensorFlow traces and lowers its own functions",
    fix="pip install 'opentrn[tensorflow]'",
)
UNSUPPORTED = declare(
    "frameworks.tf_unsupported",
    "A TensorFlow function uses ops that XLA cannot compile.",
    rule="text, files, tables and results of unknown size do not run on a chip",
    fix="do that part before or after the traced function",
)
SHAPE_VALUE = declare(
    "frameworks.tf_constant",
    "A shape or an axis is computed from an argument of a TensorFlow function.",
    rule="sizes are fixed when a function is traced",
    fix="give that argument as a Python number, or close over it",
)
FLOAT64 = declare(
    "frameworks.tf_float64",
    "A traced function takes, gives or keeps 64-bit floats.",
    rule="NeuronCores have no 64-bit floats",
    fix="tf.cast(x, tf.float32), or keras.config.set_floatx('float32')",
    neuron="NCC_ESPP004",
)
XLA = declare(
    "frameworks.tf_xla",
    "TensorFlow could not trace a function, or XLA could not lower it.",
    rule="what is traced is what tf.function(jit_compile=True) accepts",
    fix="run the function eagerly first; then once under tf.function(jit_compile=True)",
)
MODEL = declare(
    "frameworks.tf_model",
    "What was given to be traced is no function of TensorFlow, or its examples do not fit.",
    rule="a tf.function, a Keras model on the TensorFlow backend, a callable or a SavedModel "
    "folder; examples are arrays, tensors or tf.TensorSpec",
    fix="for example trace(model, tf.TensorSpec((8, 28, 28, 1)))",
)


@dataclass(frozen=True)
class Lowered:
    """What TensorFlow made of a function for some arguments.

    The graph's inputs are the tensors among the arguments, in order, then `captured`: variables
    (resource handles), constants, and last a `Seed` where the program draws random numbers of one.
    Its outputs are the tensors of `outputs`, the tree the function returns, then the new values of
    captured[i] for each i of `updates`.  `names` are those of arguments given by name, in order,
    `fixed` the arguments that are no tensors.
    """

    graph: Graph
    arguments: tuple[Any, ...]
    captured: tuple[Any, ...]
    updates: tuple[int, ...]
    outputs: Any
    names: tuple[str, ...] = ()
    fixed: tuple[Any, ...] = ()

    def values(self) -> list[Any]:
        """What is captured, as NumPy arrays, at this moment."""
        return [read(each) for each in self.captured]


def tensorflow() -> Any:
    """The package; UnsupportedError `frameworks.tf_missing`."""
    try:
        import tensorflow
    except ImportError:
        raise UnsupportedError("TensorFlow is not installed",
                               code="frameworks.tf_missing") from None  # fmt: skip
    return tensorflow


def lower(function: Callable, args: Sequence[Any] = (), kwargs: dict | None = None) -> Lowered:
    """Trace a function for arguments like these: arrays, tensors or `tf.TensorSpec`; everything
    else is fixed as it is.

    Raises NotBuiltError `graph.dynamic_shape`; UnsupportedError `frameworks.tf_unsupported` naming
    all ops XLA has not, `frameworks.tf_constant`, `frameworks.tf_float64` and `frameworks.tf_xla`;
    and what `graph.from_stablehlo` raises.
    """
    tf = tensorflow()
    leaves = tf.nest.flatten((tuple(args), dict(kwargs or {})))
    kinds = [spec_of(leaf) for leaf in leaves]
    specs = [kind for kind in kinds if kind is not None]
    _refuse_open(specs)
    # A plain function is one of tf.function: AutoGraph reads its `if`, `for` and `while`.
    plain = inspect.isfunction(function) or inspect.ismethod(function)
    called = tf.function(function) if plain else function

    def whole(*tensors: Any) -> Any:
        given = iter(tensors)
        each = [leaf if kind is None else next(given)
                for leaf, kind in zip(leaves, kinds, strict=True)]  # fmt: skip
        these, named = tf.nest.pack_sequence_as((tuple(args), dict(kwargs or {})), each)
        return called(*these, **named)

    traced = tf.function(whole, jit_compile=True, autograph=False)
    places: dict[str, tuple[str, int]] = {}
    try:
        concrete = traced.get_concrete_function(*specs)
        places = dict(lines(concrete.graph))
        text = traced.experimental_get_compiler_ir(*specs)(
            stage="stablehlo", platform_name=PLATFORM
        )
    except Exception as problem:  # AutoGraph gives what the function raised a class of its own
        _raise(problem, places)
    fixed = tuple(leaf for leaf, kind in zip(leaves, kinds, strict=True) if kind is None)
    made = _lowered(function, concrete, specs, placed(text, places))
    return replace(made, names=tuple(sorted(kwargs or {})), fixed=fixed)


def _lowered(function: Callable, concrete: Any, specs: list[Any], text: str) -> Lowered:
    captured = tuple(concrete.captured_inputs)
    graph = from_stablehlo(text)
    held = [type_of(each) for each in captured]
    wanted = [(tuple(s.shape), s.dtype.name) for s in (*specs, *held)]
    have = [(v.shape, str(v.dtype)) for v in graph.inputs]
    updates = [number - len(specs) for number in aliases(text)]
    if have != wanted or len(graph.outputs) != len(concrete.outputs) + len(updates):
        raise UnsupportedError(f"the program takes {have}, the function {wanted}", code=XLA)
    names = _distinct([*(s.name or f"arg{i}" for i, s in enumerate(specs)),
                       *_names(concrete, captured)])  # fmt: skip
    results = [f"output{i}" for i in range(len(concrete.outputs))]
    outputs = [*results, *(f"new:{names[len(specs) + i]}" for i in updates)]
    graph = renamed(graph, names, outputs, getattr(function, "__name__", "") or "function")
    _refuse_float64(graph)
    drawing = seeded(graph)
    if drawing is not graph:
        graph, captured = drawing, (*captured, Seed())
    return Lowered(graph, tuple(specs), captured, tuple(updates), concrete.structured_outputs)


def from_tensorflow(function: Callable, args: Sequence[Any] = (),
                    kwargs: dict | None = None) -> Graph:  # fmt: skip
    """The graph of a function for arguments like these; variables it only reads are constants.

    The new values of those it assigns are further outputs, named "new:<variable>"; four words
    named "seed" are the last input where it draws random numbers without a seed. Raises as
    `lower` does.
    """
    return frozen(lower(function, args, kwargs))


def frozen(lowered: Lowered) -> Graph:
    """The graph with what is captured and not assigned as constants, by their names; the seed of
    draws stays an input."""
    graph, first = lowered.graph, len(lowered.arguments)
    values, constants, kept = list(graph.inputs), {}, list(graph.inputs[:first])
    for i, (value, each) in enumerate(zip(graph.inputs[first:], lowered.captured, strict=True)):
        if i in lowered.updates or isinstance(each, Seed):
            kept.append(value)
            continue
        made = g.constant(read(each), str(value.dtype))
        values[first + i] = constants[value.attrs.label] = made
    outputs = inline(graph, values)
    return Graph(kept, outputs, constants, name=graph.name, output_names=graph.output_names)


def renamed(graph: Graph, names: Sequence[str], outputs: Sequence[str], name: str) -> Graph:
    """The same graph with other names."""
    plain = "".join(c if c.isalnum() or c == "_" else "_" for c in name).strip("_") or "function"
    inputs = [g.input(n, v.shape, v.dtype) for n, v in zip(names, graph.inputs, strict=True)]
    return Graph(inputs, inline(graph, inputs), graph.constants, name=plain, output_names=outputs)


def _names(concrete: Any, captured: Sequence[Any]) -> Iterator[str]:
    for i, each in enumerate(captured):
        owner = next((v for v in concrete.variables if v.handle is each), None)
        path = getattr(owner, "path", None) or getattr(owner, "name", "") or f"captured{i}"
        yield path.partition(":")[0]


def _distinct(names: Sequence[str]) -> list[str]:
    """Names, each once: a second `x` is `x.1`."""
    made: list[str] = []
    for name in names:
        count, wanted = 0, name
        while wanted in made:
            count += 1
            wanted = f"{name}.{count}"
        made.append(wanted)
    return made


# ---------------------------------------------------------------------------------- tensors


def spec_of(leaf: Any) -> Any:
    """The `tf.TensorSpec` of an argument that is traced, None for one that is fixed."""
    tf = tensorflow()
    if isinstance(leaf, tf.TensorSpec):
        return leaf
    if isinstance(leaf, tf.Variable) or not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
        return None
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        raise UnsupportedError(f"an example is a {type(leaf).__name__}", code=UNSUPPORTED,
                               fix="give its parts as tensors, or a dense tensor")  # fmt: skip
    try:
        return tf.TensorSpec(tuple(leaf.shape), tf.as_dtype(leaf.dtype))
    except TypeError:
        raise UsageError(f"an example is a {type(leaf).__name__} of {leaf.dtype}",
                         code=MODEL) from None  # fmt: skip


def type_of(captured: Any) -> Any:
    """The `tf.TensorSpec` of a captured tensor, or of what the captured variable holds."""
    tf = tensorflow()
    if captured.dtype != tf.resource:
        return tf.TensorSpec(captured.shape, captured.dtype)
    data = getattr(captured, "_handle_data", None)
    if data is None or not data.shape_and_type:
        raise UnsupportedError("the function uses a table or another resource", code=UNSUPPORTED)
    held = data.shape_and_type[0]
    return tf.TensorSpec(held.shape, tf.as_dtype(held.dtype))


def read(captured: Any) -> Any:
    """A captured tensor, or the captured variable's value now, as a NumPy array."""
    if isinstance(captured, Seed):
        return captured.read()
    tf = tensorflow()
    if captured.dtype != tf.resource:
        return captured.numpy()
    kind = type_of(captured).dtype
    return tf.raw_ops.ReadVariableOp(resource=captured, dtype=kind).numpy()


def write(captured: Any, array: Any) -> None:
    """Give a captured variable a new value."""
    tf = tensorflow()
    value = tf.constant(array, type_of(captured).dtype)
    tf.raw_ops.AssignVariableOp(resource=captured, value=value)


# --------------------------------------------------------------------------------- refusals


def _refuse_open(specs: Sequence[Any]) -> None:
    for number, spec in enumerate(specs):
        if not (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool
                or spec.dtype.is_complex):  # fmt: skip
            raise UnsupportedError(
                f"the argument {spec.name or number} holds {spec.dtype.name}, not numbers",
                code=UNSUPPORTED,
            )
        if not spec.shape.is_fully_defined():
            raise NotBuiltError(
                f"the argument {spec.name or number} has the shape {spec.shape}",
                code="graph.dynamic_shape",
                fix="give an example with all sizes; of a SavedModel "
                f"shapes={{{spec.name!r}: (…)}}, on the command line --shape {spec.name}=…",
            )  # fmt: skip


def _refuse_float64(graph: Graph) -> None:
    wide = [f"input {v.attrs.label}" for v in graph.inputs if v.dtype == "float64"]
    wide += [f"output {name}" for name, v in zip(graph.output_names, graph.outputs, strict=True)
             if v.dtype == "float64"]  # fmt: skip
    if wide:
        raise UnsupportedError(f"{', '.join(wide)}: float64", code=FLOAT64)


_MISSING = re.compile(r"(\w+) \(No registered '")
_CONSTANT = re.compile(r"Input (\d+) to node `([^`]*)` with op (\w+) must be a compile-time")
_NODE = re.compile(r"(?:\{\{node |to node `)([^`}]+)[`}]")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def _raise(problem: Exception, places: dict[str, tuple[str, int]]) -> NoReturn:
    """Raise the refusal of what TensorFlow says; what is not TensorFlow's, and our own errors
    (which AutoGraph turns into a StagingError), as they are."""
    raised: BaseException | None = problem
    while type(raised).__name__ == "StagingError":
        raised = raised.__context__
    if isinstance(raised, TrnError):
        raise raised from None
    if not isinstance(problem, (ValueError, tensorflow().errors.OpError)):
        raise problem
    raise _refused(problem, places) from problem


def _refused(problem: Exception, places: dict[str, tuple[str, int]]) -> UnsupportedError:
    """The error for what TensorFlow says: its ops, or the first line of its words."""
    told = str(problem)
    frames = [(f, int(n)) for f, n, _ in _FRAME.findall(told) if _is_users(f)]
    named = [places[node] for node in _NODE.findall(told) if node in places]
    at = Where(*[*frames[-1:], *named[:1]][-1]) if frames or named else None
    missing = list(dict.fromkeys(_MISSING.findall(told)))
    if missing:
        what = f"XLA has no kernel for {', '.join(missing)}"
        return UnsupportedError(what, code=UNSUPPORTED, at=at)
    found = _CONSTANT.search(told)
    if found:
        what = f"input {found[1]} of {found[2]} ({found[3]}) depends on an argument"
        return UnsupportedError(what, code=SHAPE_VALUE, at=at)
    line = next((row.strip() for row in told.splitlines() if row.strip()), type(problem).__name__)
    return UnsupportedError(line[:300], code=XLA, at=at)


# ------------------------------------------------------------------------------------ places


def _is_users(file: str) -> bool:
    return not file.startswith(OWN) and not any(part in file for part in INSTALLED)


def lines(graph: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, tuple[str, int]]]:
    """(op name as XLA has it, (file, line) of the user's) of a function's ops, inner calls too."""
    for op in graph.get_operations():
        frames = [f for f in op.traceback or () if _is_users(f.filename)]
        if frames:
            yield prefix + op.name, (frames[-1].filename, frames[-1].lineno)
        if op.type in ("PartitionedCall", "StatefulPartitionedCall") and depth < 30:
            called = graph._get_function(op.get_attr("f").name)
            if getattr(called, "graph", None) is not None:
                yield from lines(called.graph, f"{prefix}{op.name}/", depth + 1)


_LOCATION = re.compile(r'^(#loc\d+ = loc\()"([^"]+)"\)$', re.MULTILINE)


def placed(text: str, found: dict[str, tuple[str, int]]) -> str:
    """The program with the user's lines in the locations that name an op."""

    def line(match: re.Match[str]) -> str:
        place = found.get(match[2].rpartition(";")[2])
        if place is None:
            return match[0]
        file = place[0].replace("\\", "\\\\").replace('"', '\\"')
        return f'{match[1]}"{match[2]}"("{file}":{place[1]}:0))'

    return _LOCATION.sub(line, text)


_ALIAS = re.compile(
    r"parameter_number = (\d+) : i64\}, output_index = array<i64(?:: (\d+))?>"
)


def aliases(text: str) -> list[int]:
    """The arguments whose new values are the last results, in the results' order."""
    head = text[: text.find("func.func")]
    pairs = sorted((int(output or 0), int(argument)) for argument, output in _ALIAS.findall(head))
    return [argument for _, argument in pairs]


__all__ = [
    "FLOAT64", "Lowered", "MODEL", "UNSUPPORTED", "XLA", "from_tensorflow", "frozen", "lower",
    "read", "spec_of", "tensorflow", "write",
]  # fmt: skip
