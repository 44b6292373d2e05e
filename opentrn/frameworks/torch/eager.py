"""Eager execution on the device: each op is a program of its own, compiled once for its operands.

An op goes through the same graph and compiler as a whole model, so its numbers and its time are
the device's.  What the device cannot run runs on the CPU with a warning that names the op and the
reason; such work takes no simulated time.
"""

import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opentrn import compiler, nki, runtime
from opentrn.base import (
    Bug,
    DtypeError,
    NotBuiltError,
    TrnError,
    UnsupportedError,
    UsageError,
    declare,
)
from opentrn.base import dtype as as_dtype
from opentrn.frameworks.torch import queue
from opentrn.frameworks.torch.backend import decompositions
from opentrn.frameworks.torch.memory import dense_strides, near, on_device
from opentrn.frameworks.torch.piece import Loaded, examples_of
from opentrn.frameworks.torch.places import prints, user_place
from opentrn.frameworks.torch.report import Compilation
from opentrn.frameworks.torch.seeds import seeded
from opentrn.graph import BYTES, from_fx
from opentrn.isa import Builder, Executable, View
from opentrn.nki import kernels, record

PROGRAMS = 4096
"""How many compiled ops are kept; those used longest ago go first."""

ON_CPU = declare(
    "frameworks.on_cpu",
    "An op on tensors of the device `neuron` ran on the CPU.",
    rule="ops without a rule or a kernel, and those whose sizes depend on data, run on the host; "
    "that takes no simulated time",
    fix="write it with ops the device has (opentrn analyze names them), or do it before `.to`",
)
MIXED = declare(
    "frameworks.mixed_devices",
    "An op was given tensors of several devices.",
    rule="tensors of an op are on one device; only a tensor without axes, and indices, may be on "
    "the CPU",
    fix="move them to one device: x.to(y.device)",
)
# Arguments PyTorch wants, or takes, on the CPU: lengths of sequences, and what indexes.
ON_HOST = ("lengths", "batch_sizes", "input_lengths", "target_lengths",
           "tensor_indices_or_sections", "indices")  # fmt: skip


REFUSED = (UnsupportedError, NotBuiltError, DtypeError)
"""What says that the device cannot compute an op."""


class OnCpuWarning(UserWarning):
    """An op on the device ran on the CPU; shown once for each line and reason."""


@dataclass(frozen=True)
class Fallback:
    """An op that ran on the CPU, and why."""

    op: str
    why: str


FALLBACKS: dict[Fallback, int] = {}


def told(op: str, why: str) -> None:
    """Count an op that runs on the CPU, and warn at the user's line."""
    one = Fallback(op, why)
    FALLBACKS[one] = FALLBACKS.get(one, 0) + 1
    place = user_place()
    text = f"neuron: {op} ran on the CPU: {why} (opentrn explain {ON_CPU})"
    if place is None:
        warnings.warn(text, OnCpuWarning, stacklevel=2)
    else:
        warnings.warn_explicit(text, OnCpuWarning, place.file, place.line)


# ---------------------------------------------------------------------- operands


@dataclass(frozen=True)
class Hole:
    """The place of a tensor among an op's arguments."""

    number: int


def _taken(given: Any, tensors: list[Any]) -> Any:
    """Arguments with their tensors moved to `tensors`, hashable, devices named as the host's."""
    import torch

    if isinstance(given, torch.Tensor):
        tensors.append(given)
        return Hole(len(tensors) - 1)
    if isinstance(given, list | tuple):
        return tuple([_taken(one, tensors) for one in given])
    if isinstance(given, torch.device):
        return torch.device("cpu")
    # 1, 1.0 and True are equal, but not the same argument.
    return (type(given), given) if isinstance(given, bool | int | float) else given


def _put(given: Any, tensors: Sequence[Any]) -> Any:
    """The arguments with tensors in their places."""
    if isinstance(given, Hole):
        return tensors[given.number]
    if isinstance(given, tuple):
        if len(given) == 2 and isinstance(given[0], type):
            return given[1]
        return [_put(one, tensors) for one in given]
    return given


def _meta(tensor: Any) -> tuple:
    return (tuple(tensor.shape), tensor.dtype)


def densely(tensor: Any) -> Any:
    """The tensor's numbers in row-major order; a strided one is copied by the device."""
    held = near(tensor)
    if held.is_contiguous() or not held.numel() or tensor.device.type == "cpu":
        return held.contiguous()
    if str(held.dtype) in BYTES:
        import torch

        return densely(tensor.view(torch.uint8)).view(held.dtype)
    steps = tuple(zip(held.stride(), held.shape, strict=True)) or ((1, 1),)
    model = _copying(steps, held.dtype, nki.current_chip().name)
    made = queue.run(model, tensor.device.index or 0, _narrow(_span(held)))
    return made.reshape(held.shape).to(held.dtype)


def _span(held: Any) -> Any:
    """The memory from a tensor's first element to its last, as one dimension."""
    reach = sum((n - 1) * s for n, s in zip(held.shape, held.stride(), strict=True))
    return held.as_strided((reach + 1,), (1,))


def torch_narrow(dtype: Any) -> Any:
    """The dtype the chip holds numbers of a torch dtype in."""
    import torch

    return torch.int32 if dtype == torch.int64 else dtype


def _narrow(held: Any) -> Any:
    return held.to(torch_narrow(held.dtype))


def _view(steps: tuple, dtype: Any) -> View:
    """A view of a buffer that reaches from its first element to its last."""
    reach = sum(s * (n - 1) for s, n in steps) + 1
    kind = as_dtype(torch_narrow(dtype))
    buffer = Builder("layout", nki.current_chip().name).buffer("hbm", (reach,), kind)
    return View(buffer, 0, steps, kind)


@functools.lru_cache(PROGRAMS)
def _copying(steps: tuple, dtype: Any, target: str) -> Any:
    """A program that makes a strided tensor dense."""
    made = record(kernels.copy, nki.current_chip(), _view(steps, dtype))
    return _loaded(made.program, "copy")


@functools.lru_cache(PROGRAMS)
def _writing(steps: tuple, dtype: Any, target: str) -> Any:
    """A program that writes a dense tensor where a strided one lies."""
    shape = tuple(n for _, n in steps)
    dense = tuple(zip(dense_strides(shape), shape, strict=True))
    made = record(kernels.write, nki.current_chip(), _view(steps, dtype), _view(dense, dtype))
    return _loaded(made.program, "write")


def _loaded(program: Any, name: str) -> Any:
    compiler.place_hbm(program)
    return runtime.load(Executable.of(program, name=name))


def written(tensor: Any, result: Any, moved: bool = False) -> None:
    """Store a result in a tensor on the device, whatever its strides.

    A program writes a dense tensor itself; with `moved` the result lies elsewhere on the device,
    and a copy is made by a program."""
    held = near(tensor)
    plain = held.is_contiguous() and not moved
    if plain or not held.numel() or tensor.device.type == "cpu":
        held.copy_(result)
        return
    steps = tuple(zip(held.stride(), held.shape, strict=True)) or ((1, 1),)
    model = _writing(steps, held.dtype, nki.current_chip().name)
    flat, given = _span(held), result.to(held.dtype).contiguous()
    space = _narrow(flat)
    queue.run(model, tensor.device.index or 0, space, _narrow(given).reshape(-1))
    if space is not flat:
        flat.copy_(space)


# ---------------------------------------------------------------------- programs


class OneOp:
    """An op for operands of certain shapes and dtypes, and its program.

    `writes` are the places of the tensors it writes; they come first among the results.
    """

    def __init__(self, op: Any, args: Any, kwargs: Any, tensors: list[Any]) -> None:
        self.op, self.args, self.kwargs = op, args, kwargs
        self.writes, self.fresh = _effects(op, args, kwargs)
        self.program = self._compiled(tensors)

    def __call__(self, *tensors: Any) -> list[Any]:
        """The op as a function without effects: what it wrote, then what it made."""
        import torch

        held = [t.clone() if n in self.writes else t for n, t in enumerate(tensors)]
        args, kwargs = _put(self.args, held), dict(_put(self.kwargs, held))
        found = self.op(*args, **kwargs)
        leaves = found if isinstance(found, list | tuple) else (found,)
        flat = torch.utils._pytree.tree_leaves([leaves[n] for n in self.fresh])
        return [*(held[n] for n in self.writes), *flat]

    def _compiled(self, tensors: list[Any]) -> Loaded:
        import torch

        # An op that runs while Dynamo traces has sizes of its own, not those of what is traced.
        with torch.no_grad(), warnings.catch_warnings(), torch._guards.tracing(None):
            warnings.simplefilter("ignore")  # torch's own, about its own insides
            module = _pure(lambda *given: self(*given), tensors)
            if any(_writes(node) for node in module.graph.nodes):  # a decomposition does
                module = _pure(torch.fx.Interpreter(module).run, tensors)
        self._note_hidden_writes(module.graph)
        module.graph.eliminate_dead_code()
        traced = from_fx(module, {}, _name(self.op))
        record_ = Compilation(_name(self.op), "eager", "")
        chip = nki.current_chip().name
        traced, seeds = seeded(traced, chip)
        if traced.graph.outputs:
            record_.model = runtime.load(compiler.compile(traced.graph, target=chip))
        return Loaded(traced, record_, examples_of(module), {}, seeds)


    def _note_hidden_writes(self, graph: Any) -> None:
        """Make results of what an op writes without its schema's saying so (running statistics)."""
        given = [n for n in graph.nodes if n.op == "placeholder"]
        output = next(n for n in graph.nodes if n.op == "output")
        for node in [n for n in graph.nodes if _writes(n) and n.args[0] in given]:
            results = list(output.args[0])
            results.insert(len(self.writes), node.args[1])
            output.args = (results,)
            self.writes.append(given.index(node.args[0]))
            graph.erase_node(node)


def _pure(function: Callable, tensors: list[Any]) -> Any:
    """A function as a graph of ops that write nothing."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    pure = torch.func.functionalize(lambda *given: function(*given), remove="mutations")
    return make_fx(pure, decomposition_table=_table(), tracing_mode="fake")(*tensors)


def _writes(node: Any) -> bool:
    return getattr(getattr(node.target, "_schema", None), "is_mutable", False)


@functools.cache
def _table() -> dict[Any, Any]:
    import torch

    norms = torch._decomp.get_decompositions([torch.ops.aten.native_batch_norm])
    return {**decompositions(), **norms}


def _name(op: Any) -> str:
    return getattr(getattr(op, "_schema", None), "name", op.__name__).replace("::", "_")


def _effects(op: Any, args: Any, kwargs: Any) -> tuple[list[int], list[int]]:
    """(tensors an op writes, results that are new), by number; a made-up op writes nothing."""
    import torch

    schema = getattr(op, "_schema", None)
    if schema is None:
        return [], [0]
    named = dict(kwargs)
    given = {a.name: args[n] if n < len(args) else named.get(a.name)
             for n, a in enumerate(schema.arguments)}  # fmt: skip
    writes = [
        hole.number
        for a in schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
        for hole in torch.utils._pytree.tree_leaves([given[a.name]])
        if isinstance(hole, Hole)
    ]
    return writes, [n for n, r in enumerate(schema.returns) if r.alias_info is None]


_programs: dict[tuple, OneOp | TrnError] = {}
_tracing = threading.RLock()  # PyTorch traces one function at a time


def program_for(op: Any, args: Any, kwargs: Any, tensors: list[Any]) -> OneOp:
    """The compiled op for these operands; raises what compiling it raises, each time."""
    key = (op, args, kwargs, tuple(map(_meta, tensors)), nki.current_chip().name)
    with _tracing:
        found = _programs.pop(key, None)
        if found is None:
            try:
                found = OneOp(op, args, kwargs, tensors)
            except REFUSED as error:
                found = error
            while len(_programs) >= PROGRAMS:
                _programs.pop(next(iter(_programs)))
        _programs[key] = found  # the last used comes last
    if isinstance(found, TrnError):
        raise found
    return found


def call(op: Any, args: Any, kwargs: Any) -> Any:
    """An op on tensors of the device: its results, which are there too."""
    args = _as_tensors(op, args)
    tensors: list[Any] = []
    held = _taken(args, tensors)
    named = tuple(sorted((k, _taken(v, tensors)) for k, v in kwargs.items()))
    index = _index(tensors, args, kwargs)
    if len(tensors) > 1:
        _refuse_mixed(op, args, tensors)
    if any(not t.numel() for t in tensors) or prints():
        return _host_call(op, held, named, tensors, index)
    dense = [densely(t) for t in tensors]
    try:
        made = program_for(op, held, named, dense)
    except REFUSED as error:
        why = _why(error)
    except RuntimeError as error:  # torch cannot trace it, or refuses the arguments
        if isinstance(error, Bug):
            raise
        why = f"torch cannot trace it: {type(error).__name__}"
    else:
        return _ran(made, op, args, kwargs, tensors, dense, index)
    found = _host_call(op, held, named, tensors, index)
    told(str(op), why)
    return found


def _refuse_mixed(op: Any, args: Any, tensors: list[Any]) -> None:
    """UsageError `frameworks.mixed_devices` for tensors of several devices."""
    import torch

    homes = {t.device for t in tensors}
    if len(homes) == 1:
        return
    schema = getattr(op, "_schema", None)
    names = [a.name for a in schema.arguments] if schema is not None else []
    allowed = [x for name, x in zip(names, args, strict=False) if name in ON_HOST]
    hosts = set(map(id, torch.utils._pytree.tree_leaves(allowed)))
    found = {t.device for t in tensors
             if t.device.type != "cpu" or t.dim() and id(t) not in hosts}  # fmt: skip
    if len(found) > 1:
        told = f"{_name(op)}: expected all tensors to be on the same device, found "
        told += " and ".join(sorted(map(str, found)))
        raise UsageError(told, code=MIXED, at=user_place())


def _as_tensors(op: Any, args: tuple) -> tuple:
    """Arguments with the numbers PyTorch hands over in place of tensors as such again."""
    import torch

    schema = getattr(op, "_schema", None)
    kinds = [str(a.type) for a in schema.arguments] if schema is not None else []
    return tuple(
        torch.tensor(given) if kind == "Tensor" and isinstance(given, bool | int | float) else given
        for given, kind in zip(args, [*kinds, *[""] * len(args)], strict=False)
    )


def _ran(made: OneOp, op: Any, args: Any, kwargs: Any, tensors: list[Any], dense: list[Any],
         index: int) -> Any:  # fmt: skip
    """Run a compiled op; what it wrote is stored, what it made is returned."""
    found = queue.call(made.program, index, dense)
    for n, result in zip(made.writes, found, strict=False):
        written(tensors[n], result)
    rest = found[len(made.writes) :]
    fresh = [None if r is None else on_device(r, index) for r in rest]
    return _results(op, args, kwargs, fresh)


def _why(error: TrnError) -> str:
    """The reason of a refusal in a line: its head, and the first op it names."""
    head, *rows = [line.strip() for line in error.what.splitlines()]
    return f"{head}: {' '.join(rows[0].split())}" if rows else head


def _index(tensors: list[Any], args: Any, kwargs: Any) -> int:
    """The device an op runs on: that of its tensors, or the one it was asked for."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            return tensor.device.index or 0
    device = kwargs.get("device")
    return queue.current() if device is None or device.index is None else device.index


def _results(op: Any, args: Any, kwargs: Any, fresh: list[Any]) -> Any:
    """What an op returns: arguments it wrote, and new tensors, in the order of its schema."""
    schema = getattr(op, "_schema", None)
    if schema is None:
        return fresh[0]
    names = [a.name for a in schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    aliased = {
        next(iter(a.alias_info.before_set)): given.get(a.name)
        for a in schema.arguments
        if a.alias_info is not None
    }
    new, results = iter(fresh), []
    for one in schema.returns:
        if one.alias_info is not None:
            results.append(aliased[next(iter(one.alias_info.before_set))])
        elif str(one.type).startswith("List"):
            results.append(list(new))
        else:
            results.append(next(new))
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


def _host_call(op: Any, args: Any, kwargs: Any, tensors: list[Any], index: int) -> Any:
    """The op on the CPU: operands are read there, what it writes is written back."""
    import torch

    writes, _ = _effects(op, args, kwargs)
    held = [near(t).clone() if n in writes else near(t) for n, t in enumerate(tensors)]
    with torch.no_grad():
        found = op(*_put(args, held), **dict(_put(kwargs, held)))
    for n in writes:
        if held[n].shape != tensors[n].shape:
            tensors[n].resize_(held[n].shape)
        near(tensors[n]).copy_(held[n])
    given = {id(t): original for t, original in zip(held, tensors, strict=True)}

    def back(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return given[id(x)] if id(x) in given else on_device(x, index)

    return torch.utils._pytree.tree_map(back, found)


def run(function: Callable, *tensors: Any) -> Any:
    """A function of tensors without effects, as an op of its own: one dense CPU result."""
    dense = [densely(t) for t in tensors]
    holes = tuple(Hole(n) for n in range(len(dense)))
    index = _index(list(tensors), (), {})
    try:
        made = program_for(function, holes, (), dense)
    except REFUSED as error:  # a dtype the chip does not have
        told(function.__name__, _why(error))
        return function(*dense)
    return queue.call(made.program, index, dense)[0]


__all__ = ["FALLBACKS", "Fallback", "OnCpuWarning", "call", "densely", "run", "written"]
