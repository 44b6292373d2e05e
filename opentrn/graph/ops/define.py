"""What an op is: one class with its attributes, shape rule, meaning, work and traffic.

An op class is a frozen dataclass.  Its fields are the attributes, so an *instance* of `Transpose`
is `transpose` with a chosen permutation; it holds no operands.  Everything the other floors ask
about an op (checker, NumPy meaning, cost, text form, reference page) is read from its class.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, dataclass_transform

import numpy as np

from opentrn.base import Bug, DType, declare, dtype
from opentrn.graph.types import graph_dtype

Ints = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]
Shape = tuple[int, ...]
LaterDType = DType

BOOL = dtype("bool")
INT32 = dtype("int32")

OPS: dict[str, type[Op]] = {}


class Type(NamedTuple):
    """The shape and dtype of one array."""

    shape: Shape
    dtype: DType

    @property
    def size(self) -> int:
        """The number of elements."""
        return count(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the array as it lies in HBM."""
        return count(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class TupleType(NamedTuple):
    """The types of several arrays that one op makes together; `get_tuple_element` picks one."""

    parts: tuple[Type, ...]

    @property
    def size(self) -> int:
        """The number of elements of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts as they lie in HBM."""
        return sum(part.nbytes for part in self.parts)

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.parts))})"


class Traffic(NamedTuple):
    """Bytes an op reads and writes when nothing is fused with it."""

    read: int
    written: int


class Wrong(Exception):
    """An operand or attribute an op does not accept; `ir.make` turns it into the user's error."""

    def __init__(self, what: str, *, fix: str = "", kind: str = "shape") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.kind = kind


def count(shape: Shape) -> int:
    """Product of the sizes; 1 for a scalar."""
    total = 1
    for size in shape:
        total *= size
    return total


def ints(value: Any) -> Ints:
    """A tuple of Python ints from any sequence of whole numbers, or from one whole number."""
    if hasattr(value, "__index__"):
        return (operator.index(value),)
    return tuple(operator.index(v) for v in value)


def pairs(value: Any) -> Pairs:
    """A tuple of (low, high) pairs of Python ints."""
    result = tuple(ints(v) for v in value)
    if any(len(v) != 2 for v in result):
        raise TypeError("expected (low, high) pairs")
    return result


def flag(value: Any) -> bool:
    """A Python bool from a bool or NumPy bool; nothing else counts as one."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise TypeError("expected True or False")


def word(value: Any) -> str:
    """A string, as it is."""
    if isinstance(value, str):
        return str(value)
    raise TypeError("expected a string")


def later_dtype(value: Any) -> DType | str:
    """A dtype, or "" for one that `settle` takes from the operands."""
    return graph_dtype(value) if value else ""


COERCE: dict[str, Callable[[Any], Any]] = {
    "int": operator.index,
    "float": float,
    "bool": flag,
    "str": word,
    "Ints": ints,
    "Pairs": pairs,
    "DType": graph_dtype,
    "LaterDType": later_dtype,
}


def snake(name: str) -> str:
    """`DotGeneral` -> `dot_general`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@dataclass_transform(frozen_default=True)
class Op:
    """Base of all ops.  A subclass without a docstring, shape rule, meaning, flops or traffic
    does not import.

    Class facts: `operands` names the operands (a trailing `?` marks one that may be left out, a
    leading `*` any number of them); `law` is the shape rule in words, shown with every refusal;
    `commutative` lets patterns match in both orders; `choices` lists what a string attribute may
    be; `composite` ops also have `decompose`; `exact` ops only pass numbers on, so that their
    results need no rounding.  An op with several results has a `TupleType`; only ops with
    `takes_tuples` have operands of such a type.  An op with `drawn` set makes random numbers, so
    it is never computed ahead of time.
    """

    name: ClassVar[str]
    operands: ClassVar[tuple[str, ...]] = ()
    law: ClassVar[str] = ""
    commutative: ClassVar[bool] = False
    composite: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    takes_tuples: ClassVar[bool] = False
    drawn: ClassVar[bool] = False
    abstract: ClassVar[bool] = True
    choices: ClassVar[dict[str, tuple[str, ...]]] = {}
    fields: ClassVar[dict[str, str]] = {}
    coerced: ClassVar[tuple[tuple[str, Callable[[Any], Any], tuple[str, ...] | None], ...]] = ()

    def __init_subclass__(cls, abstract: bool = False) -> None:
        dataclasses.dataclass(frozen=True)(cls)
        cls.fields = {f.name: str(f.type) for f in dataclasses.fields(cls)}
        # An op with a field of another type checks it itself.
        cls.coerced = tuple((name, COERCE[kind], cls.choices.get(name))
                            for name, kind in cls.fields.items() if kind in COERCE)
        cls.abstract = abstract
        if abstract:
            return
        cls.name = snake(cls.__name__)
        register(cls)

    def __post_init__(self) -> None:
        for field, coerce, allowed in self.coerced:
            given = getattr(self, field)
            try:
                value = coerce(given)
            except (TypeError, ValueError):
                what = f"{self.name}: `{field}` should be {self.fields[field]}, got {given!r}"
                raise Wrong(what, kind="attribute") from None
            if allowed and value not in allowed:
                what = f"{self.name}: `{field}` is {value!r}"
                raise Wrong(what, fix=f"use one of {', '.join(allowed)}", kind="attribute")
            object.__setattr__(self, field, value)

    def settle(self, *args: Type) -> Op:
        """The same op with negative axes and defaults replaced by what they stand for here.

        Two spellings of one op must be one object, so this runs before anything is shared."""
        return self

    def result(self, *args: Type) -> Type | TupleType:
        """The shape rule: the type of the result, or `Wrong`."""
        raise NotImplementedError

    def evaluate(self, out: Type, *args: np.ndarray) -> np.ndarray:
        """The meaning, on carriers (float32 for floats of at most 32 bits, else the type itself).

        The evaluator rounds what this returns to `out.dtype`; an op with several results returns
        a tuple."""
        raise NotImplementedError

    def flops(self, out: Type, *args: Type) -> int:
        """Arithmetic operations: one for each scalar function applied, two for a multiply-add."""
        raise NotImplementedError

    def traffic(self, out: Type, *args: Type) -> Traffic:
        """Bytes moved when the op runs alone."""
        raise NotImplementedError

    @property
    def regions(self) -> tuple[Any, ...]:
        """The regions among the attributes, in order."""
        found: list[Any] = []
        for name, kind in self.fields.items():
            if kind == "Region":
                found.append(getattr(self, name))
            elif kind == "Regions":
                found.extend(getattr(self, name))
        return tuple(found)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes by name, in order of declaration."""
        return {name: getattr(self, name) for name in self.fields}

    def __str__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.attributes.items())
        return f"{self.name}({inside})"


def register(cls: type[Op]) -> None:
    """Enter a complete op into `OPS` and declare its error codes."""
    required = ["result", "evaluate", "flops", "traffic"]
    if cls.composite:
        required.append("decompose")
    missing = [m for m in required if getattr(cls, m, None) in (None, getattr(Op, m, None))]
    if not cls.__dict__.get("__doc__") or cls.__doc__.startswith(cls.__name__ + "("):
        missing.append("a docstring")
    if not cls.law:
        missing.append("law")
    if missing:
        raise Bug(f"graph op {cls.name}: define {', '.join(missing)}")
    if cls.name in OPS:
        raise Bug(f"graph op {cls.name} is defined twice")
    OPS[cls.name] = cls
    for what in ("shapes", "dtypes", "attributes"):
        declare(f"graph.{cls.name}.{what[:-1]}", f"`{cls.name}` got {what} it refuses", cls.law)


@functools.cache
def arity(cls: type[Op]) -> tuple[int, int | None]:
    """Least and greatest number of operands; None means any number."""
    least = sum(not name.endswith("?") and name[0] != "*" for name in cls.operands)
    return least, None if any(n[0] == "*" for n in cls.operands) else len(cls.operands)


def stream(out: Type, *args: Type) -> Traffic:
    """Each operand read once, the result written once."""
    return Traffic(sum(a.nbytes for a in args), out.nbytes)


def axis_of(axis: int, rank: int, name: str = "axis") -> int:
    """`axis` counted from the front; refuses one outside the rank."""
    if not -rank <= axis < rank:
        raise Wrong(f"`{name}` is {axis}, the operand has {rank} axes",
                    fix=f"use {name} in {-rank}..{rank - 1}" if rank else "give it a non-scalar",
                    kind="attribute")
    return axis % rank


def axes_of(axes: Ints, rank: int, name: str = "axes") -> Ints:
    """Every axis counted from the front; refuses repeats."""
    found = tuple(axis_of(a, rank, name) for a in axes)
    if len(set(found)) != len(found):
        raise Wrong(f"`{name}` {axes} names an axis twice", kind="attribute")
    return found


def same_dtype(*args: Type) -> DType:
    """The one dtype of all operands, or `Wrong`."""
    first = args[0].dtype
    for other in args[1:]:
        if other.dtype != first:
            raise Wrong(f"operands are {' and '.join(a.dtype for a in args)}",
                        fix=f"convert to one dtype: g.convert(x, dtype={str(first)!r})",
                        kind="dtype")
    return first


def floating(x: Type) -> None:
    """Refuse an operand that is not a float."""
    if x.dtype.kind != "float":
        raise Wrong(f"the operand is {x.dtype}, not a float", fix="convert it to a float dtype",
                    kind="dtype")


def whole(x: Type, name: str) -> None:
    """Refuse an operand that is not an integer."""
    if x.dtype.kind not in ("int", "uint"):
        raise Wrong(f"`{name}` is {x.dtype}, not an integer", fix="convert it to int32",
                    kind="dtype")
