"""Chains: element-wise ops that one kernel computes in one trip through SBUF."""

from typing import Any

from opentrn.compiler.narrow import device_dtype
from opentrn.graph import OPS, Elementwise, Graph, Note, Value, make, splat_of
from opentrn.nki import kernels

# Element-wise ops a chain may hold: those with a step in `nki.kernels.elementwise`.
COMPOSITES = ("gelu", "silu", "softplus")
CHAINED = frozenset(
    name
    for name, op in OPS.items()
    if (issubclass(op, Elementwise) or name in COMPOSITES)
    and (name in kernels.OPERATIONS or name == "compare")
)
# Ops whose kernel takes floats only, although the graph also has them on integers.
FLOATS_ONLY = ("power",)
# Ops on the bits of a number: 64-bit integers have 32 on the chip.
ON_BITS = ("shift_left", "shift_right_logical", "popcnt", "count_leading_zeros")
# Tiles of all operands and steps share SBUF: more of them make each tile shorter.
MOST_STEPS = 16
MOST_INPUTS = 6


def chainable(value: Value) -> bool:
    """Whether `kernels.elementwise` computes the op on these dtypes."""
    return value.op in CHAINED and value.size > 0 and not unfit(value)


def unfit(value: Value) -> str:
    """Why the kernel of an op does not take values of this dtype, "" if it does."""
    if value.op in FLOATS_ONLY and value.dtype.kind != "float":
        return f"the engines compute it of floats only, not of {value.dtype}"
    if value.op in ON_BITS and value.dtype in ("int64", "uint64"):
        return f"the chip holds 32 of the bits of {value.dtype}"
    return ""


class Groups:
    """Which element-wise values are computed together: each group is named by its last value.

    A value joins the group of its readers when all of them are in one group and have its shape:
    then nothing outside reads it, and no path leaves the group and comes back.
    """

    def __init__(self, graph: Graph, notes: list[Note] | None = None):
        self.root: dict[Value, Value] = {}
        self.size: dict[Value, int] = {}
        self.inputs: dict[Value, set[Value]] = {}
        self.notes = [] if notes is None else notes
        users, outputs = graph.users(), set(graph.outputs)
        for value in reversed(list(graph)):
            if chainable(value):
                self._place(value, users[value], value in outputs)

    def _place(self, value: Value, readers: list[Value], is_output: bool) -> None:
        given = {a for a in value.args if number_of(a) is None}
        roots = {self.root.get(reader) for reader in readers}
        root = roots.pop() if len(roots) == 1 and not is_output else None
        if root is not None and self._may_join(value, root, given):
            self.root[value] = root
            self.size[root] += 1
            self.inputs[root] = (self.inputs[root] - {value}) | given
        else:
            self.root[value], self.size[value], self.inputs[value] = value, 1, given

    def _may_join(self, value: Value, root: Value, given: set[Value]) -> bool:
        why = ""
        if value.shape != root.shape:
            why = f"its reader has shape {list(root.shape)}"
        elif self.size[root] >= MOST_STEPS:
            why = f"its reader's chain has {MOST_STEPS} steps already"
        elif len((self.inputs[root] - {value}) | given) > MOST_INPUTS:
            why = f"the chain would read more than {MOST_INPUTS} tensors"
        if why:
            self.notes.append(Note("chain", repr(value), "refused", why, value.where))
        return not why


def number_of(value: Value) -> bool | int | float | None:
    """The number a value holds everywhere, as a Python number of its kind, or None."""
    number = splat_of(value)
    if number is None:
        return None
    if value.dtype.kind == "bool":
        return bool(number)
    if value.dtype.kind == "float":
        return number
    # What the chip's 32 bits do not hold is read from memory, where it is refused.
    held = device_dtype(value.dtype)
    return int(number) if held.min <= number <= held.max else None


def chains(graph: Graph, notes: list[Note] | None = None) -> Graph:
    """The graph with element-wise ops merged into `chain`s, as `Groups` says."""
    groups = Groups(graph, notes)
    new: dict[Value, Value] = {}
    for value in graph:
        root = groups.root.get(value)
        if value.op == "input":
            new[value] = value
        elif root is None:
            args = tuple(new[a] for a in value.args)
            new[value] = value if value.args == args else make(value.attrs, args, value.where)
        elif root is value:
            new[value] = _chain(value, groups, new)
            if notes is not None:
                count = groups.size[value]
                why = f"{count} element-wise op{'s' * (count > 1)} in one kernel"
                notes.append(Note("chain", repr(value), "rewrote", why, value.where))
    named = {k: new[v] for k, v in graph.constants.items() if v in new}
    return graph.with_outputs((new[v] for v in graph.outputs), named)


def _chain(root: Value, groups: Groups, new: dict[Value, Value]) -> Value:
    """One chain that ends in `root`."""
    inputs: list[Value] = []
    steps: list[tuple] = []
    done: dict[Value, int] = {}

    def place(value: Value) -> Any:
        number = number_of(value)
        if number is not None:
            return number
        if groups.root.get(value) is root:
            return ("step", walk(value))
        if new[value] not in inputs:
            inputs.append(new[value])
        return ("in", inputs.index(new[value]))

    def places_of(value: Value) -> tuple:
        found = [place(a) for a in value.args]
        if all(not isinstance(p, tuple) for p in found[-2:]):
            # A kernel needs one tensor to know the dtype of a number.
            last = new[value.args[-1]]
            if last not in inputs:
                inputs.append(last)
            found[-1] = ("in", inputs.index(last))
        return tuple(found)

    def walk(value: Value) -> int:
        if value not in done:
            places = places_of(value)
            steps.append((value.op, tuple(value.attrs.attributes.items()), places))
            done[value] = len(steps) - 1
        return done[value]

    walk(root)
    attrs = OPS["chain"](steps=tuple(steps), kind=str(root.dtype))
    return make(attrs, tuple(inputs), root.where)


__all__ = ["CHAINED", "FLOATS_ONLY", "ON_BITS", "chainable", "chains", "unfit"]
