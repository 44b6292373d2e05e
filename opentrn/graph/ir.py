"""Graph values are frozen and shared: build the same thing twice and you hold the same object."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from opentrn.base import Bug, DType, DtypeError, ShapeError, UsageError, Where, declare, user_line
from opentrn.graph import carriers
from opentrn.graph.carriers import storage
from opentrn.graph.data import Data
from opentrn.graph.ops.define import OPS, Op, Shape, Traffic, TupleType, Type, Wrong, arity
from opentrn.graph.ops.elementwise import Elementwise

declare("graph.operands", "an op got too many or too few operands",
        "each op has a fixed list of operands")
declare("graph.free_input", "an output depends on an input the graph does not list",
        "every `input` an output reaches is listed in `inputs`", "add it to `inputs`")
declare("graph.tuple_output", "an output is the tuple of an op with several results",
        "each output is one array", "list the parts: g.get_tuple_element(x, index)")
declare("graph.input_name", "two inputs of a graph share a name",
        "inputs are told apart by name", "rename one")

KINDS: dict[str, type[Exception]] = {
    "shape": ShapeError, "dtype": DtypeError, "attribute": UsageError,
}


class Value:
    """One array a program computes: an op with its attributes, applied to other values.

    Two values with one op, attributes and operands are one object, so `is` means "same meaning"
    and a common subexpression is found for nothing.  `where` is the line that built it first; it
    is no part of what the value means.  A value of a `TupleType` stands for the several results of
    one op and has no shape or dtype itself."""

    __slots__ = ("__weakref__", "args", "attrs", "dtype", "shape", "type", "where")

    args: tuple[Value, ...]
    attrs: Op
    dtype: DType
    shape: Shape
    type: Type
    where: Where | None

    def __init__(self, attrs: Op, args: tuple[Value, ...], kind: Type | TupleType,
                 where: Where | None) -> None:
        put = object.__setattr__
        put(self, "attrs", attrs)
        put(self, "args", args)
        put(self, "type", kind)
        if type(kind) is Type:
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
        return self._ask(self.attrs.flops)

    @property
    def traffic(self) -> Traffic:
        """Bytes read and written when this node runs alone."""
        return self._ask(self.attrs.traffic)

    def _ask(self, question: Callable[..., Any]) -> Any:
        """What the op says of its work here, or the user's error if it cannot know."""
        kinds = tuple(a.type for a in self.args)
        try:
            return question(self.type, *kinds)
        except Wrong as wrong:
            raise refusal(type(self.attrs), wrong, (), self.where) from None

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
        key = (cls, attrs, args)
        found = SHARED.get(key)
        if found is not None:
            return found
        least, most = arity(cls)
        if len(args) < least or (most is not None and len(args) > most):
            raise _operand_count(cls, len(args), where)
        if not cls.takes_tuples and any(type(k) is TupleType for k in kinds):
            raise Wrong("an operand is the tuple of several results",
                        fix="pick one: g.get_tuple_element(x, index)")
        result = attrs.result(*kinds)
    except Wrong as wrong:
        raise refusal(cls, wrong, kinds, where) from None
    value = Value(attrs, args, result, where or user_line())
    SHARED[key] = value
    return value


def _operand_count(cls: type[Op], got: int, where: Where | None) -> UsageError:
    return UsageError(f"{cls.name} got {got} operands", code="graph.operands", at=where,
                      rule=f"{cls.name} takes {', '.join(cls.operands) or 'no operands'}")


def run(value: Value, *args: Any) -> Any:
    """One op on carriers, rounded to its dtype; a tuple of carriers for several results."""
    result = value.attrs.evaluate(value.type, *args)
    if value.attrs.exact:
        return result
    if type(value.type) is TupleType:
        kinds = value.type.parts
        return tuple(carriers.settle(r, k.dtype) for r, k in zip(result, kinds, strict=True))
    return carriers.settle(result, value.dtype)


def _run_wide(value: Value, *args: Any) -> Any:
    """An op of scalars on arrays, element by element."""
    if value.op in ("reshape", "broadcast_in_dim"):
        return args[0]  # from scalar to scalar
    shape = np.broadcast_shapes(*(a.shape for a in args))
    result = value.attrs.evaluate(Type(shape, value.dtype), *args)
    return result if value.attrs.exact else carriers.settle(result, value.dtype)


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
        for value in self.outputs:
            if type(value.type) is TupleType:
                raise UsageError(f"{value!r} is a tuple, which cannot be an output",
                                 code="graph.tuple_output", at=value.where)
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


class Region(Graph):
    """A closed function an op applies: a loop's body, a branch, what combines two elements.

    Regions are equal if they compute the same from inputs of the same types, so an op with regions
    is shared like any other.  The inputs have the labels "%0", "%1", …; nothing outside is read:
    what a region needs comes as a further input."""

    __slots__ = ("_hash",)

    def __init__(self, inputs: Iterable[Value], outputs: Iterable[Value]) -> None:
        super().__init__(inputs, outputs, name="region")
        self._hash = hash((self.inputs, self.outputs))

    @classmethod
    def of(cls, function: Callable[..., Any], *types: Type) -> Region:
        """The region of a Python function of values of these types; it returns one or several."""
        inputs = tuple(region_input(i, kind) for i, kind in enumerate(types))
        made = function(*inputs)
        return cls(inputs, made if isinstance(made, (list, tuple)) else (made,))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Region) and self.inputs == other.inputs
            and self.outputs == other.outputs)

    def with_outputs(self, outputs: Iterable[Value],
                     constants: Mapping[str, Value] | None = None) -> Region:
        """A region of the same inputs with other outputs."""
        return Region(self.inputs, outputs)

    @property
    def takes(self) -> tuple[Type, ...]:
        """The types of the inputs."""
        return tuple(v.type for v in self.inputs)

    @property
    def gives(self) -> tuple[Type, ...]:
        """The types of the outputs."""
        return tuple(v.type for v in self.outputs)

    def apply(self, *given: Any) -> list[Any]:
        """The outputs for these carriers."""
        held = dict(zip(self.inputs, given, strict=True))
        for value in self._order:
            if value.op != "input":
                held[value] = run(value, *(held[a] for a in value.args))
        return [held[v] for v in self.outputs]

    def each(self, given: Iterable[Any], fixed: Iterable[Any] = ()) -> list[Any]:
        """The outputs, element by element, of a region of scalars for arrays of one shape.

        `fixed` are carriers the same for every element."""
        arrays, rest = list(given), list(fixed)
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        if all(self._is_pointwise(v) for v in self._order) and not any(r.shape for r in rest):
            held = dict(zip(self.inputs, [*arrays, *rest], strict=True))
            for value in self._order:
                if value.op != "input":
                    held[value] = _run_wide(value, *(held[a] for a in value.args))
            return [np.broadcast_to(held[v], shape) for v in self.outputs]
        found = [np.empty(shape, carriers.work(v.dtype)) for v in self.outputs]
        spread = np.broadcast_arrays(*arrays)
        for place in np.ndindex(shape):
            for array, value in zip(found, self.apply(*(a[place] for a in spread), *rest),
                                    strict=True):
                array[place] = value
        return found

    @staticmethod
    def _is_pointwise(value: Value) -> bool:
        """Whether a scalar op also works on all elements of arrays at once."""
        if not isinstance(value.type, Type) or value.shape:
            return False
        return value.op in ("input", "constant", "reshape", "broadcast_in_dim") or isinstance(
            value.attrs, Elementwise)

    def __repr__(self) -> str:
        takes, gives = (", ".join(map(str, kinds)) for kinds in (self.takes, self.gives))
        return f"Region({takes}) -> ({gives}): {len(self)} values"


def region_input(index: int, kind: Type) -> Value:
    """The input of a region at a place."""
    return make(OPS["input"](label=f"%{index}", shape=kind.shape, dtype=kind.dtype), ())


def inline(region: Graph, args: Iterable[Value]) -> list[Value]:
    """The outputs of a region (or graph) with `args` in the place of its inputs."""
    held = dict(zip(region.inputs, args, strict=True))
    for value in region:
        if value not in held:
            held[value] = remake(value, tuple(held[a] for a in value.args))
    return [held[v] for v in region.outputs]
