"""PyTorch programs as graphs: export, take apart, then one rule for each ATen op.

Torch is imported only inside the functions.  Modules are exported without running them on data;
ops a back end has a kernel for (`linear`, `layer_norm`, attention, …) are kept whole.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opentrn.base import (
    Bug,
    NotBuiltError,
    UnsupportedError,
    UsageError,
    Where,
    declare,
    dtype,
)
from opentrn.graph.build import Builder
from opentrn.graph.carriers import storage
from opentrn.graph.data import Data
from opentrn.graph.importers import (
    torch_rules_elementwise,
    torch_rules_functions,
    torch_rules_grouped,
    torch_rules_index,
    torch_rules_linear,
    torch_rules_quantised,
    torch_rules_reduce,
    torch_rules_resample,
    torch_rules_scan,
    torch_rules_scatter,
    torch_rules_shape,
    torch_rules_train,
    torch_rules_windows,
)
from opentrn.graph.importers.missing import unsupported
from opentrn.graph.importers.torch_rules import RULES, refuse
from opentrn.graph.importers.torch_types import BYTES, torch_dtype
from opentrn.graph.ir import Graph, Value, relocate

FAMILIES = (torch_rules_elementwise, torch_rules_functions, torch_rules_index,
            torch_rules_linear, torch_rules_reduce, torch_rules_resample, torch_rules_shape,
            torch_rules_train, torch_rules_windows, torch_rules_quantised,
            torch_rules_scan, torch_rules_scatter, torch_rules_grouped)

# Ops torch would take apart although a rule, and often a kernel, exists for the whole.
KEPT = (
    "linear", "matmul", "scaled_dot_product_attention", "layer_norm", "rms_norm", "group_norm",
    "silu", "mish", "softplus", "softmax.int", "log_softmax.int", "conv1d", "conv2d", "conv3d",
    "max_pool2d", "hardswish", "hardsigmoid", "dropout", "adaptive_avg_pool2d", "stack",
    "std.correction", "unbind.int", "split.Tensor", "split_with_sizes", "logsumexp",
    "upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec",
    "upsample_bicubic2d.vec", "adaptive_avg_pool3d", "median", "median.dim",
)
# Nodes without a result anyone can use.
SKIPPED = ("aten::_assert_tensor_metadata", "aten::sym_constrain_range_for_size", "aten::_assert",
           "aten::_assert_async.msg", "aten::_assert_scalar")

declare("graph.unsupported_op", "a model uses ops of its framework that have no rule yet",
        "every op of the model has a rule",
        "write it with other ops, or compute it on the CPU; `opentrn analyze` lists all places")
declare("graph.dynamic_shape", "a model was to be imported with sizes that may vary",
        "shapes are fixed when a graph is built",
        "import the model once for each size (bucket) you need")

declare("graph.effects", "a module does more than to return tensors",
        "a program returns tensors: nothing keeps a buffer or an argument the module changes, or "
        "hands out what is no tensor",
        "return tensors only, call module.eval() first, or use torch.compile(module, "
        "backend='neuron'), which keeps all of it")

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def from_torch(module: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
               dynamic: Any = None, pure: bool = False) -> Graph:
    """The graph of a torch module (or ExportedProgram) called with example inputs.

    Inputs are the tensors in `args` and `kwargs` in call order; parameters and buffers become
    constants that share the module's memory: training the module afterwards would change them.
    Buffers the module changes come back as further outputs, named "buffer:<name>".  Only shapes
    and dtypes of the examples matter.  Parameters on the meta device give a graph without numbers,
    which can be costed but not run.

    Raises UnsupportedError `graph.unsupported_op`, which names all missing ops at once,
    NotBuiltError `graph.dynamic_shape` if `dynamic` is given, and with `pure` UsageError
    `graph.effects` for a module that changes buffers or arguments or returns more than tensors."""
    if dynamic is not None:
        raise NotBuiltError("graphs with varying sizes are not built", code="graph.dynamic_shape")
    program = decomposed(exported(module, tuple(args), dict(kwargs or {})))
    if pure:
        _refuse_effects(program)
    return Importer(program, type(module).__name__).graph()


def _refuse_effects(program: Any) -> None:
    for spec in program.graph_signature.output_specs:
        if spec.kind.name != "USER_OUTPUT":
            what = "an argument" if "INPUT" in spec.kind.name else "its buffer"
            raise UsageError(f"the module changes {what} `{spec.target}`", code="graph.effects")
        if type(spec.arg).__name__ != "TensorArgument":
            value = getattr(spec.arg, "value", None)
            raise UsageError(f"the module returns {value!r} beside tensors", code="graph.effects")


def exported(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The ExportedProgram of a module; one given as `module` is taken as it is."""
    import torch
    if isinstance(module, torch.export.ExportedProgram):
        return module
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch's own, about its own insides
        return torch.export.export(module, args, kwargs, strict=False)


def exported_torch(module: Any, args: Sequence[Any]) -> Any:
    """The ExportedProgram of a module in the ops that have rules, and in those that lack one."""
    return decomposed(exported(module, tuple(args), {}))


def decomposed(program: Any) -> Any:
    """The program in ATen's core ops and those in `KEPT`.

    `view` becomes `reshape` first: a decomposition may return other strides than the op it
    replaces, and `view` then refuses what `reshape` accepts."""
    import torch
    aten = torch.ops.aten
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is aten.view.default:
            node.target = aten.reshape.default
    table = torch.export.default_decompositions()
    for name in KEPT:
        packet, _, overload = name.partition(".")
        found = getattr(getattr(aten, packet, None), overload or "default", None)
        if found is not None:
            table.pop(found, None)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return program.run_decompositions(table)


@functools.cache
def where_of(trace: str) -> Where | None:
    """The innermost line of a node's stack trace that is not torch's own."""
    frames = _FRAME.findall(trace)
    own = [f for f in frames
           if "/torch/" not in f[0].replace("\\", "/") and not f[0].startswith("<eval_with_key>")]
    if not frames:
        return None
    file, line, function = (own or frames)[-1]
    return Where(file, int(line), function)


def op_name(target: Any) -> str:
    """"aten::add.Tensor" for an ATen op, else its printed name."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return getattr(target, "__name__", str(target))
    overload = f".{schema.overload_name}" if schema.overload_name else ""
    return f"{schema.name}{overload}"


class Importer:
    """One walk over an exported program."""

    def __init__(self, program: Any, name: str) -> None:
        self.program = program
        self.name = name
        self.values: dict[Any, Any] = {}
        self.inputs: list[Value] = []
        self.constants: dict[str, Value] = {}

    def graph(self) -> Graph:
        """Check that every op has a rule, then build."""
        self.check()
        handlers: dict[str, Callable[[Any], None]] = {
            "placeholder": self.placeholder, "get_attr": self.attribute,
            "call_function": self.call, "output": lambda node: None,
        }
        self.leaves = self._leaf_table()
        for node in self.program.graph.nodes:
            handlers[node.op](node)
        outputs, names = self._outputs()
        return Graph(self.inputs, outputs, self.constants, name=self.name, output_names=names)

    def check(self) -> None:
        """Raise one error that names every op without a rule."""
        missing: dict[str, list[Any]] = {}
        total = 0
        for node in self.program.graph.nodes:
            if node.op != "call_function":
                continue
            total += 1
            if not self.known(node):
                missing.setdefault(op_name(node.target), []).append(node)
        if missing:
            raise _unsupported(missing, total)

    def known(self, node: Any) -> bool:
        """Whether a node can become part of a graph."""
        name = op_name(node.target)
        return name in RULES or name in SKIPPED or name == "getitem"

    def _leaf_table(self) -> dict[str, tuple[str, Any]]:
        """Placeholder name -> (parameter name, tensor) of everything that is not given by the
        user."""
        table = {}
        signature = self.program.graph_signature
        state = {**self.program.constants, **self.program.state_dict}
        for spec in signature.input_specs:
            if spec.target is not None and spec.target in state:
                table[spec.arg.name] = (spec.target, state[spec.target])
        return table

    def placeholder(self, node: Any) -> None:
        """An input of the user's, or a parameter."""
        example = node.meta.get("val")
        if node.name in self.leaves:
            target, tensor = self.leaves[node.name]
            self.values[node] = self._constant(target, tensor)
        elif hasattr(example, "dtype") and hasattr(example, "shape"):
            shape = tuple(_fixed(n) for n in example.shape)
            value = Builder().input(node.name, shape, torch_dtype(example.dtype))
            self.inputs.append(value)
            self.values[node] = value
        else:
            self.values[node] = example  # a Python number or None, fixed at export

    def attribute(self, node: Any) -> None:
        """A tensor the traced code holds."""
        found = self.program.graph_module
        for part in node.target.split("."):
            found = getattr(found, part)
        self.values[node] = self._constant(node.target, found)

    def _constant(self, name: str, tensor: Any) -> Value:
        value = Builder().constant(data_of(tensor, name))
        self.constants[name] = value
        return value

    def call(self, node: Any) -> None:
        """One op by its rule; the result's type is compared with what torch says."""
        name = op_name(node.target)
        if name in SKIPPED:
            return
        if name == "getitem":
            self.values[node] = self._item(node)
            return
        where = where_of(node.meta.get("stack_trace") or "")
        given = self._bound(node)
        result = RULES[name].make(Builder(where), **given)
        made = result if isinstance(result, (list, tuple)) else [result]
        relocate((v for v in made if isinstance(v, Value)), where)
        self.values[node] = result
        _compare(node, result, name)

    def _item(self, node: Any) -> Any:
        source, index = node.args
        found = self.values[source][index]
        if found is None and node.users:
            where = where_of(node.meta.get("stack_trace") or "")
            raise refuse(f"result {index} of {op_name(source.target)} is not computed", where)
        return found

    def _bound(self, node: Any) -> dict[str, Any]:
        """The node's arguments by the schema's names, defaults left out."""
        wanted = set(RULES[op_name(node.target)].parameters)
        names = [a.name for a in node.target._schema.arguments]
        given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        return {k: self._argument(v) for k, v in given.items() if k in wanted}

    def _argument(self, given: Any) -> Any:
        import torch
        if isinstance(given, torch.fx.Node):
            return self.values[given]
        if isinstance(given, (list, tuple)):
            return [self._argument(v) for v in given]
        if isinstance(given, torch.dtype):
            if str(given) in BYTES:
                raise UnsupportedError(f"a cast to {given}", code="graph.unsupported_op",
                                       fix="quantise on the CPU: graphs hold these as bytes")
            return dtype(given)
        return given

    def _outputs(self) -> tuple[list[Value], list[str]]:
        """The output values and their names: the path in what the module returns, or
        "buffer:<name>" for a buffer it changed."""
        signature = self.program.graph_signature
        nodes = {n.name: n for n in self.program.graph.nodes}
        paths = self._paths(signature)
        values, names = [], []
        for spec in signature.output_specs:
            path = next(paths) if spec.kind.name == "USER_OUTPUT" else f"buffer:{spec.target}"
            value = self.values.get(nodes.get(getattr(spec.arg, "name", None)))
            if isinstance(value, Value):
                values.append(value)
                names.append(path)
        return values, names

    def _paths(self, signature: Any) -> Any:
        """The place of each user output in the module's return value, such as "logits"."""
        from torch.utils import _pytree as pytree
        count = sum(s.kind.name == "USER_OUTPUT" for s in signature.output_specs)
        spec = self.program.call_spec.out_spec
        if spec is None or spec.num_leaves != count:
            return iter([f"output{i}" for i in range(count)])
        whole = pytree.tree_unflatten(list(range(count)), spec)
        paths, _ = pytree.tree_flatten_with_path(whole)
        return iter([pytree.keystr(path).strip("[]'.\"") or f"output{i}"
                     for i, (path, _) in enumerate(paths)])


def _fixed(size: Any) -> int:
    if isinstance(size, int):
        return size
    raise NotBuiltError(f"an input has the varying size {size}", code="graph.dynamic_shape")


def _compare(node: Any, result: Any, name: str) -> None:
    """Refuse (Bug) a rule whose result has another type than torch's."""
    examples = node.meta.get("val")
    if not isinstance(examples, (list, tuple)):
        examples, result = [examples], [result]
    for example, value in zip(examples, result, strict=False):
        if not isinstance(value, Value) or not hasattr(example, "shape"):
            continue
        want = tuple(example.shape), torch_dtype(example.dtype)
        if (value.shape, value.dtype) != want:
            raise Bug(f"the rule for {name} made {value.type}; torch says {want[1]}"
                      f"{list(want[0])}")


def data_of(tensor: Any, name: str = "") -> Data:
    """A tensor's numbers, sharing its memory where torch and NumPy can; only its type if it is on
    the meta device."""
    import torch
    kind = torch_dtype(tensor.dtype)
    fake = torch._subclasses.fake_tensor.FakeTensor
    if tensor.is_meta or isinstance(tensor, fake):
        return Data.absent(name, kind, tuple(tensor.shape))
    plain = tensor.detach().cpu().contiguous()
    plain = plain.view(torch.uint8) if str(tensor.dtype) in BYTES else plain
    if kind.kind != "float" or kind in ("float16", "float32", "float64"):
        return Data.of(plain.numpy(), kind)
    bits = plain.reshape(-1).view(torch.uint8).numpy()
    return Data.of(np.ascontiguousarray(bits).view(storage(kind)).reshape(plain.shape), kind)


BRANCHES = ("cond", "while_loop", "switch")
"""Ops of PyTorch's that choose code by a number of the data."""


def _unsupported(missing: dict[str, list[Any]], total: int) -> UnsupportedError:
    places = {name: [where_of(node.meta.get("stack_trace") or "") for node in nodes]
              for name, nodes in missing.items()}
    fix = ("write it with other ops, or compute it outside the compiled model, on the CPU: "
           "`opentrn analyze` shows the line of each and what to write")
    branches = [name for name in missing if name in BRANCHES]
    if branches:
        fix = (f"{branches[0]}: compute both branches and choose, torch.where(condition, a, b); a "
               "plain Python `if` on a number known beforehand also does")
    return unsupported("model uses {} torch op", places, total, RULES, fix)
