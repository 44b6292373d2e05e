"""Graph values are frozen and shared: build the same thing twice and you hold the same object."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from opentrn.base import Bug, DType, DtypeError, ShapeError, UsageError, Where, declare, user_line
from opentrn.graph.carriers import storage
from opentrn.graph.data import Data
from opentrn.graph.ops.define import OPS, Op, Shape, Traffic, Type, Wrong, arity

declare("graph.operands", "an op got too many or too few operands",
        "each op has a fixed list of operands")
declare("graph.free_input", "an output depends on an input the graph does not list",
        "every `input` an output reaches is listed in `inputs`", "add it to `inputs`")
declare("graph.input_name", "two inputs of a graph share a name",
        "inputs are told apart by name", "rename one")

KINDS: dict[str, type[Exception]] = {
    "shape": ShapeError, "dtype": DtypeError, "attribute": UsageError,
}


class Value:
    """One array a program computes: an op with its attributes, applied to other values.

    Two values with one op, attributes and operands are one object, so `is` means "same meaning"
    and a common subexpression is found for nothing.  `where` is the line that built it first; it
    is no part of what the value means."""

    __slots__ = ("__weakref__", "args", "attrs", "dtype", "shape", "where")

    args: tuple[Value, ...]
    attrs: Op
    dtype: DType
    shape: Shape
    where: Where | None

    def __init__(self, attrs: Op, args: tuple[Value, ...], kind: Type,
                 where: Where | None) -> None:
        put = object.__setattr__
        put(self, "attrs", attrs)
        put(self, "args", args)
        put(self, "shape", kind.shape)
        put(self, "dtype", kind.dtype)
        put(self, "where", where)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"graph values are frozen; build a new one instead of setting {name}")

    def __copy__(self) -> Value:
        return self

    def __deepcopy__(self, memo: object) -> Value:
        return self

    @property
    def op(self) -> str:
        """The op's name, for example "dot_general"."""
        return self.attrs.name

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def type(self) -> Type:
        """Shape and dtype together."""
        return Type(self.shape, self.dtype)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.type.size

    @property
    def nbytes(self) -> int:
        """Bytes of the result as it lies in HBM."""
        return self.type.nbytes

    @property
    def flops(self) -> int:
        """Arithmetic operations of this node alone (see `Op.flops`)."""
        return self.attrs.flops(self.type, *(a.type for a in self.args))

    @property
    def traffic(self) -> Traffic:
        """Bytes read and written when this node runs alone."""
        return self.attrs.traffic(self.type, *(a.type for a in self.args))

    @property
    def bytes(self) -> int:
        """Bytes moved when this node runs alone: read plus written."""
        return sum(self.traffic)

    def __add__(self, other: Any) -> Value:
        return _infix("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return _infix("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return _infix("subtract", self, other)

    def __rsub__(self, other: Any) -> Value:
        return _infix("subtract", other, self)

    def __mul__(self, other: Any) -> Value:
        return _infix("multiply", self, other)

    def __rmul__(self, other: Any) -> Value:
        return _infix("multiply", other, self)

    def __truediv__(self, other: Any) -> Value:
        return _infix("divide", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return _infix("divide", other, self)

    def __neg__(self) -> Value:
        return make(OPS["negate"](), (self,))

    def __repr__(self) -> str:
        name = getattr(self.attrs, "label", "") or ", ".join(a.op for a in self.args)
        return f"{self.op}({name}) {self.type}"


def _infix(name: str, lhs: Any, rhs: Any) -> Value:
    """`lhs op rhs`, where one of the two may be a Python number."""
    like = lhs if isinstance(lhs, Value) else rhs
    return make(OPS[name](), (lift(lhs, like), lift(rhs, like)))


def lift(x: Any, like: Value, where: Where | None = None) -> Value:
    """`x` itself, or a Python number as an array of `like`'s shape and dtype."""
    if isinstance(x, Value):
        return x
    return full(like.shape, x, like.dtype, where)


def full(shape: Shape, number: Any, kind: DType, where: Where | None = None) -> Value:
    """An array that holds one number everywhere: a scalar constant, broadcast."""
    array = np.asarray(number).astype(storage(kind)).reshape(())
    scalar = make(OPS["constant"](data=Data.of(array, kind)), (), where)
    if shape == ():
        return scalar
    return make(OPS["broadcast_in_dim"](shape=shape, dimensions=()), (scalar,), where)


SHARED: weakref.WeakValueDictionary[tuple[Any, ...], Value] = weakref.WeakValueDictionary()


def make(attrs: Op, args: tuple[Value, ...], where: Where | None = None) -> Value:
    """The one value of this op, attributes and operands; checked when first made.

    Raises ShapeError, DtypeError or UsageError with code `graph.<op>.shape|dtype|attribute` at
    `where`, or at the user's line."""
    cls = type(attrs)
    kinds = tuple(a.type for a in args)
    try:
        attrs = attrs.settle(*kinds)
        found = SHARED.get((cls, attrs, args))
        if found is not None:
            return found
        least, most = arity(cls)
        if len(args) < least or (most is not None and len(args) > most):
            raise _operand_count(cls, len(args), where)
        result = attrs.result(*kinds)
    except Wrong as wrong:
        raise refusal(cls, wrong, kinds, where) from None
    value = Value(attrs, args, result, where or user_line())
    SHARED[(cls, attrs, args)] = value
    return value


def _operand_count(cls: type[Op], got: int, where: Where | None) -> UsageError:
    return UsageError(f"{cls.name} got {got} operands", code="graph.operands", at=where,
                      rule=f"{cls.name} takes {', '.join(cls.operands) or 'no operands'}")


def refusal(cls: type[Op], wrong: Wrong, kinds: tuple[Type, ...],
            where: Where | None) -> Exception:
    """The user's error for what an op refused."""
    what = wrong.what if wrong.what.startswith(cls.name) else f"{cls.name}: {wrong.what}"
    if kinds:
        what += f"  ({', '.join(map(str, kinds))})"
    return KINDS[wrong.kind](what, code=f"graph.{cls.name}.{wrong.kind}", rule=cls.law,
                             fix=wrong.fix, at=where)


def remake(value: Value, args: tuple[Value, ...]) -> Value:
    """The same op on other operands, keeping the source line."""
    if all(a is b for a, b in zip(args, value.args, strict=True)):
        return value
    return make(value.attrs, args, value.where)


def relocate(values: Iterable[Value], where: Where | None) -> None:
    """Give what was just built inside this package, by operators that know no builder, the line
    it stands for.

    Such values carry the user's line at hand (the call of an importer or of a pass).  A line is
    no part of what a value means, so this changes no identity."""
    here = user_line()
    if where is None or here is None or where == here:
        return
    stack = list(values)
    seen: set[Value] = set()
    while stack:
        value = stack.pop()
        if value in seen or value.op == "input" or value.where not in (here, where):
            continue
        seen.add(value)
        object.__setattr__(value, "where", where)
        stack.extend(value.args)


def topological(outputs: Iterable[Value]) -> list[Value]:
    """Every value the outputs need, operands first; no recursion, so depth does not matter."""
    order: list[Value] = []
    seen: set[Value] = set()
    stack: list[tuple[Value, Iterator[Value]]] = []
    for output in outputs:
        if output in seen:
            continue
        seen.add(output)
        stack.append((output, iter(output.args)))
        while stack:
            value, rest = stack[-1]
            for arg in rest:
                if arg not in seen:
                    seen.add(arg)
                    stack.append((arg, iter(arg.args)))
                    break
            else:
                order.append(value)
                stack.pop()
    return order


class Graph:
    """A tensor program: `inputs` in call order, `outputs`, and the constants with their names.

    `constants` maps a parameter's name to its value; tied parameters map to one value.  The graph
    is immutable; passes return new ones."""

    __slots__ = ("_order", "constants", "inputs", "name", "output_names", "outputs")

    def __init__(self, inputs: Iterable[Value], outputs: Iterable[Value],
                 constants: Mapping[str, Value] | None = None, *, name: str = "main",
                 output_names: Iterable[str] = ()) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._order = topological(self.outputs)
        self.name = name
        self.output_names = tuple(output_names) or tuple(
            f"output{i}" for i in range(len(self.outputs)))
        live = set(self._order)
        named = {k: v for k, v in (constants or {}).items() if v in live}
        self.constants: Mapping[str, Value] = MappingProxyType(named)
        self._check()

    def _check(self) -> None:
        names = [getattr(v.attrs, "label", "") for v in self.inputs]
        for value in self.inputs:
            if value.op != "input":
                raise UsageError(f"{value!r} is listed as an input but is computed",
                                 code="graph.free_input", at=value.where)
        if len(set(names)) != len(names):
            raise UsageError(f"inputs {', '.join(names)} share a name", code="graph.input_name")
        if len(self.output_names) != len(self.outputs):
            raise Bug(f"{len(self.outputs)} outputs, {len(self.output_names)} names")
        listed = set(self.inputs)
        for value in self._order:
            if value.op == "input" and value not in listed:
                raise UsageError(f"{value!r} is needed but not listed in `inputs`",
                                 code="graph.free_input", at=value.where)

    def __iter__(self) -> Iterator[Value]:
        """Every value in topological order, operands first."""
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    @property
    def flops(self) -> int:
        """Arithmetic operations of the whole graph."""
        return sum(v.flops for v in self._order)

    @property
    def bytes(self) -> int:
        """Bytes moved if every node ran alone: an upper bound no fusion has lowered yet."""
        return sum(v.bytes for v in self._order)

    def users(self) -> dict[Value, list[Value]]:
        """For each value, the values that read it (once for each operand place)."""
        found: dict[Value, list[Value]] = {v: [] for v in self._order}
        for value in self._order:
            for arg in value.args:
                found[arg].append(value)
        return found

    def histogram(self) -> dict[str, int]:
        """How many nodes of each op, most frequent first."""
        counts: dict[str, int] = {}
        for value in self._order:
            counts[value.op] = counts.get(value.op, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def rebuild(self, change: Callable[[Value, tuple[Value, ...]], Value]) -> Graph:
        """A new graph in which `change(old, new_args)` stands for each non-leaf value."""
        new: dict[Value, Value] = {}
        for value in self._order:
            args = tuple(new[a] for a in value.args)
            new[value] = value if value.op == "input" else change(value, args)
        named = {k: new[v] for k, v in self.constants.items()}
        return self.with_outputs((new[v] for v in self.outputs), named)

    def with_outputs(self, outputs: Iterable[Value],
                     constants: Mapping[str, Value] | None = None) -> Graph:
        """The same inputs, names and constants with other outputs."""
        named = self.constants if constants is None else constants
        return Graph(self.inputs, outputs, named, name=self.name, output_names=self.output_names)

    def __repr__(self) -> str:
        ins = ", ".join(str(v.type) for v in self.inputs)
        outs = ", ".join(str(v.type) for v in self.outputs)
        return f"Graph {self.name}({ins}) -> {outs}: {len(self)} values"
