"""What a kernel's Python can see, as a key: as long as it is equal, tracing records the same.

A kernel's function is Python.  What it records follows from its code, its arguments and what it
reads besides: globals, closures, defaults, and what those reach.  `key_of` gathers all of that in
one value to compare.  Whatever could make two runs differ without showing in it (files, clocks,
random numbers, printing, objects of kinds not known here) makes it `Opaque`: there is no key, and
nobody may suppose that the next run is like the last one.
"""

import dis
import sys
from collections import namedtuple
from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING
from enum import Enum, EnumType
from functools import cached_property, lru_cache, partial
from itertools import takewhile
from types import (
    BuiltinFunctionType,
    CodeType,
    EllipsisType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, Generic, NamedTuple

import numpy as np

from opentrn.base import DType

# Modules of the standard library whose functions depend on their arguments alone.
PURE_MODULES = frozenset((
    "cmath", "collections", "collections.abc", "dataclasses", "enum", "functools", "itertools",
    "math", "numbers", "operator", "types", "typing",
))  # fmt: skip
# Packages whose names are taken as they are: nothing a kernel reads there changes under it.
SETTLED = ("opentrn", "numpy", "ml_dtypes")
# What NumPy has that reads or draws something from outside.
FROM_OUTSIDE = frozenset((
    "random", "load", "loadtxt", "genfromtxt", "fromfile", "fromregex", "memmap", "save",
    "savetxt", "savez", "savez_compressed", "lib", "testing", "ctypeslib", "errstate", "geterr",
    "seterr", "geterrcall", "seterrcall", "getbufsize", "setbufsize", "get_printoptions",
    "set_printoptions", "printoptions", "show_config", "show_runtime", "info",
    "datetime64",
))  # fmt: skip
PURE_BUILTINS = frozenset((
    "abs", "all", "any", "bool", "bytes", "callable", "chr", "complex", "dict", "divmod",
    "enumerate", "filter", "float", "format", "frozenset", "int", "isinstance", "issubclass",
    "iter", "len", "list", "map", "max", "min", "next", "ord", "pow", "range", "repr",
    "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "type", "zip",
    "property", "staticmethod", "classmethod", "super", "object", "NotImplemented", "Ellipsis",
))  # fmt: skip
# Class members that hold no behaviour of their own.
_FORMAL = frozenset((
    "__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__annotations__",
    "__match_args__", "__slots__", "__dataclass_fields__", "__dataclass_params__",
    "__static_attributes__", "__firstlineno__", "__parameters__", "__orig_bases__",
))  # fmt: skip
_PLAIN = frozenset((
    int, float, bool, str, bytes, complex, NoneType, EllipsisType, range, DType,
))  # fmt: skip
# Of these, equal ones differ: 0.0 and -0.0, range(0, 3, 2) and range(0, 4, 2).
_LOOSE = frozenset((float, complex, range))
_THEMSELVES = (FunctionType, type, EnumType, DType, np.ufunc)
# More than this is not read at every launch: bytes of arrays together, values.
LARGEST_ARRAYS, MOST = 1 << 16, 2_000
_GLOBALS = (
    "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL",
)  # fmt: skip
_ENCLOSING = (
    "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "STORE_DEREF", "DELETE_DEREF",
)  # fmt: skip
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
# Where a value is used as it is, and nobody knows which of its names are read.
AS_VALUE = frozenset([()])
_MISSING = object()
# The flag of classes that Python code made: Py_TPFLAGS_HEAPTYPE of CPython's object.h.
_MADE = 1 << 9
# What a named tuple's class has for each field: it says the place.
_TUPLE_FIELD = type(namedtuple("_One", "field").field)


class Opaque(Exception):
    """Something a kernel reads, of which nobody can say whether it is the same the next time."""


class _Code(NamedTuple):
    """What code names: per global and per variable of an enclosing function the ways it goes on.

    A way is the names in `a.b.c` behind `a`, `()` where the value itself is used.  `imports` names
    the modules it imports.
    """

    globals: dict[str, frozenset[tuple[str, ...]]]
    enclosing: dict[str, frozenset[tuple[str, ...]]]
    imports: frozenset[str]


@lru_cache(maxsize=4096)
def _read_code(code: CodeType) -> _Code:
    ways: tuple[dict, dict] = ({}, {})
    steps = list(dis.get_instructions(code))
    imports = {one.argval for one in steps if one.opname == "IMPORT_NAME"}
    for n, one in enumerate(steps):
        if one.opname in _GLOBALS or one.opname in _ENCLOSING:
            found = ways[one.opname in _ENCLOSING].setdefault(one.argval, set())
            on = takewhile(lambda step: step.opname in _ATTRIBUTES, steps[n + 1 :])
            found.add(tuple([step.argval for step in on]))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more = _read_code(inner)
            imports |= more.imports
            for known, new in zip(ways, more, strict=False):
                for name, on in new.items():
                    known.setdefault(name, set()).update(on)
    kept = [{name: frozenset(on) for name, on in one.items()} for one in ways]
    return _Code(*kept, frozenset(imports))


def key_of(function: Callable, arguments: Any) -> Any:
    """What a call of `function` with these arguments sees, hashable; Opaque when it cannot be told.

    Arrays among the arguments must have been replaced by what the kernel may know of them.
    """
    reader = _Reader()
    try:
        return reader.of(function), reader.of(arguments)
    except RecursionError:
        raise Opaque("something that holds itself") from None


def _settled(module: str | None) -> bool:
    return (module or "").partition(".")[0] in SETTLED


class _Reader:
    """One reading.  `met` numbers the functions, classes and modules that were entered."""

    def __init__(self):
        self.met: dict[Any, int] = {}
        self.left, self.bytes = MOST, LARGEST_ARRAYS

    def of(self, value: Any, ways: Collection[tuple[str, ...]] = AS_VALUE) -> Any:
        """The key of any value; `ways` are those by which the reading code goes on from it."""
        self.left -= 1
        if not self.left:
            raise Opaque("too many things")
        kind = type(value)
        if kind in _PLAIN and kind not in _LOOSE:
            return kind, value
        if isinstance(value, ModuleType):
            return self._module(value, ways)
        if kind in (list, dict, set) and (known := self._entered(value)) is not None:
            return "again", known
        read = _READ.get(kind)
        if read is not None:
            return read(self, value)
        for base in (type, Enum, np.generic, np.dtype):
            if isinstance(value, base):
                return _READ[base](self, value)
        return self._instance(value)

    def _many(self, values: Any) -> tuple:
        return type(values), tuple([self.of(one) for one in values])

    def _dict(self, values: dict) -> tuple:
        return dict, tuple([(self.of(key), self.of(one)) for key, one in values.items()])

    def _steps(self, value: slice | range) -> tuple:
        return type(value), self.of(value.start), self.of(value.stop), self.of(value.step)

    def _array(self, value: np.ndarray) -> tuple:
        self.bytes -= value.nbytes
        if self.bytes < 0:
            raise Opaque("large arrays")
        held = value
        while isinstance(held.base, np.ndarray):  # what it is a view of, and from where on
            held = held.base
        place = self._number_of(held), _address(value) - _address(held)
        return self._dtype(value.dtype), value.shape, value.strides, place, value.tobytes()

    def _number(self, value: np.generic) -> tuple:
        return type(value), self._dtype(value.dtype), value.tobytes()

    def _dtype(self, value: np.dtype) -> tuple:
        if value.hasobject or value.metadata is not None:
            raise Opaque(f"what {value} holds besides numbers")
        return np.dtype, value

    # ------------------------------------------------------------ code

    def _entered(self, value: Any) -> int | None:
        """The number of something that is being read already; None when it is new."""
        known = self.met.get(id(value))
        if known is None:
            self.met[id(value)] = len(self.met)
        return known

    def _number_of(self, value: Any) -> int:
        """The number of something two names may share: writing by one shows by the other."""
        return self.met.setdefault(id(value), len(self.met))

    def _function(self, function: FunctionType) -> Any:
        known = self._entered(function)
        if known is not None:
            return "again", known
        home = function.__globals__.get("__name__")
        if not _settled(home):
            return self._users(function)
        if home.startswith("numpy") and function.__name__ in FROM_OUTSIDE:
            raise Opaque(function.__name__)
        cells = function.__closure__
        return (function.__code__, self._cells(function)) if cells else function

    def _users(self, function: FunctionType) -> tuple:
        code = _read_code(function.__code__)
        if code.imports:
            raise Opaque(f"an import of {min(code.imports)}")
        read = [(name, self._global(function, name, on)) for name, on in code.globals.items()]
        return (
            function.__code__,
            tuple(read),
            self._cells(function),
            self.of(function.__defaults__),
            self.of(function.__kwdefaults__),
            self.of(function.__dict__),
        )

    def _cells(self, function: FunctionType) -> tuple:
        code, found = _read_code(function.__code__), []
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                held = cell.cell_contents
            except ValueError:
                found.append("empty")
                continue
            ways = code.enclosing.get(name, AS_VALUE)
            found.append((self._number_of(cell), self.of(held, ways)))
        return tuple(found)

    def _global(self, function: FunctionType, name: str, ways: Collection) -> Any:
        value = function.__globals__.get(name, _MISSING)
        if value is not _MISSING:
            return self.of(value, ways)
        value = function.__builtins__.get(name, _MISSING)
        if value is _MISSING:
            return "undefined"
        if name not in PURE_BUILTINS and not _is_error(value):
            raise Opaque(f"the builtin {name}")
        return "builtin", value

    def _builtin(self, function: BuiltinFunctionType) -> Any:
        owner = function.__self__
        if isinstance(owner, type) and owner.__module__ == "builtins":
            return function  # such as tuple.__new__
        module = getattr(owner, "__name__", "") if isinstance(owner, ModuleType) else ""
        known = PURE_BUILTINS if module == "builtins" else ()
        if module.lstrip("_") in PURE_MODULES or function.__name__ in known:
            return function
        raise Opaque(f"{function.__name__} of a kind not known")

    def _method(self, method: MethodType) -> tuple:
        return MethodType, self.of(method.__func__), self.of(method.__self__)

    def _partial(self, made: partial) -> tuple:
        return partial, self.of(made.func), self.of(made.args), self.of(made.keywords)

    def _ufunc(self, function: np.ufunc) -> np.ufunc:
        if getattr(np, function.__name__, None) is not function:
            raise Opaque("a ufunc of somebody's function")
        return function

    def _module(self, module: ModuleType, ways: Collection[tuple[str, ...]]) -> Any:
        """What is read of a module.

        One of the user's must be gone on from by name: who holds it could read any name of it.
        """
        name, held = module.__name__, vars(module)
        root = name.partition(".")[0]
        if name in PURE_MODULES:
            return module
        if root in sys.stdlib_module_names or name.startswith("numpy."):
            raise Opaque(f"the module {name}")
        if root == "opentrn" and () in ways:
            ways = {(one,) for one in held if not one.startswith("_")}
        ways = frozenset(ways)
        if (known := self.met.get((name, ways))) is not None:
            return "again", known
        self.met[name, ways] = len(self.met)
        on: dict[str, set] = {}
        for way in ways:
            if not way or way[0] not in held or way[0].startswith("__"):
                raise Opaque(f"the module {name} as a value")
            if root == "numpy" and way[0] in FROM_OUTSIDE:
                raise Opaque("what NumPy reads from outside")
            on.setdefault(way[0], set()).add(way[1:])
        if _settled(name):
            return tuple([self._of_settled(held[one], on[one]) for one in sorted(on)])
        return name, tuple([(one, self.of(held[one], on[one])) for one in sorted(on)])

    def _of_settled(self, value: Any, ways: Collection) -> Any:
        """What a settled package holds under a name: functions and classes are themselves."""
        return value if type(value) in _THEMSELVES else self.of(value, ways)

    # ------------------------------------------------------------ classes and their instances

    def _itself(self, kind: type) -> bool:
        """Whether a class is known by its name."""
        home = kind.__module__
        if home == "builtins":  # as is said too of what is made where no module has a name
            return not kind.__flags__ & _MADE
        return _settled(home) or home.lstrip("_") in PURE_MODULES

    def _class(self, kind: type) -> Any:
        if kind.__module__ == "numpy" and kind.__name__ in FROM_OUTSIDE:
            raise Opaque(kind.__name__)
        if self._itself(kind):
            return kind
        known = self._entered(kind)
        if known is not None:
            return "again", known
        if kind.__module__.partition(".")[0] in sys.stdlib_module_names and (
            kind.__module__ != "__main__"
        ):
            raise Opaque(f"the class {kind.__qualname__}")
        if type(kind) not in (type, EnumType):
            raise Opaque(f"a class made by {type(kind).__qualname__}")
        bases = tuple([self._class(base) for base in kind.__bases__])
        return kind.__qualname__, bases, (*self._members(kind),)

    def _members(self, kind: type) -> Iterator[tuple]:
        for one in vars(kind).get("__dataclass_fields__", {}).values():
            given = one.default, one.default_factory
            yield one.name, tuple([self.of(g) for g in given if g is not MISSING])
        for name, value in vars(kind).items():
            if name in _FORMAL:
                continue
            if _generated(kind, value):
                yield name, value.__code__
                continue
            if isinstance(value, MemberDescriptorType) and "__slots__" in vars(kind):
                continue
            if isinstance(kind, EnumType):
                yield from self._of_enum(kind, name, value)
            else:
                yield name, self._member(value)

    def _of_enum(self, kind: EnumType, name: str, value: Any) -> Iterator[tuple]:
        """A member with all that hangs on it, or what an enumeration has besides."""
        if type(value) is kind:
            fields = {key: one for key, one in vars(value).items() if key[:1] != "_"}
            yield name, self.of(value._value_), self._dict(fields)
        elif not (name[:1] == name[-1:] == "_" and _home(value) in ("", "enum")):
            yield name, self._member(value)

    def _member(self, value: Any) -> Any:
        if isinstance(value, property):
            return property, self.of(value.fget), self.of(value.fset), self.of(value.fdel)
        if isinstance(value, staticmethod | classmethod):
            return type(value), self.of(value.__func__)
        if isinstance(value, _TUPLE_FIELD):
            return value.__reduce__()
        if isinstance(value, cached_property):
            return cached_property, self.of(value.func)
        return self.of(value)

    def _enum(self, value: Enum) -> tuple:
        kind = type(value)
        held = value if _settled(kind.__module__) else (value.name, self.of(value._value_))
        return self._class(kind), held

    def _instance(self, value: Any) -> Any:
        """An object with fields, of classes that can be read, or one of ours.

        What other classes keep in their objects does not show: an `itertools.count`, a `deque`.
        """
        kind = type(value)
        if (known := self._entered(value)) is not None:
            return "again", known
        if kind.__module__.startswith("opentrn."):
            return kind, self._of_ours(value)
        for base in kind.__mro__:
            written = not self._itself(base) or base.__module__.startswith("opentrn.")
            if not written and base not in (object, tuple, Generic):
                raise Opaque(f"a {kind.__qualname__}")
        content = tuple([self.of(one) for one in value]) if isinstance(value, tuple) else ()
        return self._class(kind), content, self._fields(value)

    def _fields(self, value: Any) -> tuple:
        slots = [
            (name, self.of(getattr(value, name, None)))
            for base in type(value).__mro__
            for name, one in vars(base).items()
            if isinstance(one, MemberDescriptorType)
        ]
        fields = getattr(value, "__dict__", None)
        return None if fields is None else self._dict(fields), tuple(slots)

    def _of_ours(self, value: Any) -> Any:
        """A kernel, or an object that holds plain values (as limits do); no tensor, no machine."""
        if hasattr(value, "func") and hasattr(value, "grid"):
            return self.of(value.func), value.grid, self.of(value.options)
        fields = getattr(value, "__dict__", None)
        slots = any("__slots__" in vars(base) for base in type(value).__mro__)
        if fields is None or slots or not all(type(one) in _PLAIN for one in fields.values()):
            raise Opaque(f"a {type(value).__qualname__}")
        return self._dict(fields)


def _generated(kind: type, value: Any) -> bool:
    """Whether a class member is a method that `dataclasses` wrote."""
    if "__dataclass_fields__" not in vars(kind) or not isinstance(value, FunctionType):
        return False
    home = value.__globals__.get("__name__")
    written = value.__code__.co_qualname.startswith("__create_fn__.")
    return home in ("dataclasses", "reprlib") or written


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _home(value: Any) -> str:
    """The module in which a function, or one that a class wraps, was written."""
    inner = getattr(value, "__func__", getattr(value, "fget", value))
    return inner.__globals__.get("__name__", "") if isinstance(inner, FunctionType) else ""


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


_READ: dict[type, Callable[[_Reader, Any], Any]] = {
    float: lambda _, value: (float, value.hex()),
    complex: lambda _, value: (complex, value.real.hex(), value.imag.hex()),
    tuple: _Reader._many,
    list: _Reader._many,
    dict: _Reader._dict,
    set: _Reader._many,
    frozenset: _Reader._many,
    slice: _Reader._steps,
    range: _Reader._steps,
    np.ndarray: _Reader._array,
    np.generic: _Reader._number,
    np.dtype: _Reader._dtype,
    FunctionType: _Reader._function,
    BuiltinFunctionType: _Reader._builtin,
    MethodType: _Reader._method,
    partial: _Reader._partial,
    np.ufunc: _Reader._ufunc,
    type: _Reader._class,
    Enum: _Reader._enum,
}
