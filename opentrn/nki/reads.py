"""What a kernel's Python can see, as a key: as long as it is equal, tracing records the same.

A kernel's function is Python.  What it records follows from its code, its arguments and what it
reads besides: globals, closures, defaults, and what those reach.  `key_of` gathers all of that in
one value to compare.  Whatever could make two runs differ without showing in it (files, clocks,
random numbers, printing, objects of kinds not known here) makes it `Opaque`: there is no key, and
nobody may suppose that the next run is like the last one.
"""

import dis
import sys
from collections.abc import Callable, Collection, Iterator
from enum import Enum, EnumType
from functools import cached_property, lru_cache, partial
from itertools import takewhile
from types import (
    BuiltinFunctionType,
    CodeType,
    EllipsisType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, NamedTuple

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
    "savetxt", "savez", "savez_compressed", "lib", "testing", "ctypeslib",
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
    int, float, bool, str, bytes, complex, NoneType, EllipsisType, range, np.ufunc, DType,
))  # fmt: skip
_THEMSELVES = (FunctionType, type, EnumType, DType, np.ufunc)
# More than this is not read at every launch: bytes of an array, values.
LARGEST_ARRAY, MOST = 1 << 16, 2_000
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
_ENCLOSING = ("LOAD_DEREF", "LOAD_CLASSDEREF", "STORE_DEREF", "DELETE_DEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_MISSING = object()


class Opaque(Exception):
    """Something a kernel reads, of which nobody can say whether it is the same the next time."""


class _Code(NamedTuple):
    """What code names: per global and per variable of an enclosing function the ways it goes on.

    A way is the names in `a.b.c` behind `a`, `()` where the value itself is used.  `every` are all
    names in the code, `imports` the modules it imports.
    """

    globals: dict[str, frozenset[tuple[str, ...]]]
    enclosing: dict[str, frozenset[tuple[str, ...]]]
    every: frozenset[str]
    imports: frozenset[str]


class _Any(frozenset):
    """Ways on by any of these names, again and again."""


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
    every = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more = _read_code(inner)
            every |= more.every
            imports |= more.imports
            for known, new in zip(ways, more, strict=False):
                for name, on in new.items():
                    known.setdefault(name, set()).update(on)
    kept = [{name: frozenset(on) for name, on in one.items()} for one in ways]
    return _Code(*kept, frozenset(every), frozenset(imports))


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
        self.left = MOST

    def of(self, value: Any, ways: Collection[tuple[str, ...]] = ()) -> Any:
        """The key of any value; `ways` are those by which the reading code goes on from it."""
        self.left -= 1
        if not self.left:
            raise Opaque("too many things")
        kind = type(value)
        if kind in _PLAIN and kind is not float:
            return kind, value
        if kind is ModuleType:
            return self._module(value, ways)
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

    def _slice(self, value: slice) -> tuple:
        return slice, self.of(value.start), self.of(value.stop), self.of(value.step)

    def _array(self, value: np.ndarray) -> tuple:
        if value.nbytes > LARGEST_ARRAY or value.dtype.hasobject:
            raise Opaque("a large array")
        return np.ndarray, value.dtype, value.shape, value.tobytes()

    def _number(self, value: np.generic) -> tuple:
        if value.dtype.hasobject:
            raise Opaque("an object of NumPy")
        return type(value), value.dtype, value.tobytes()

    # ------------------------------------------------------------ code

    def _entered(self, value: Any) -> int | None:
        """The number of something that is being read already; None when it is new."""
        known = self.met.get(id(value))
        if known is None:
            self.met[id(value)] = len(self.met)
        return known

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
        read = [
            (name, self._global(function, name, _all_of(ways, code)))
            for name, ways in code.globals.items()
        ]
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
            found.append(self.of(held, _all_of(code.enclosing.get(name, ()), code)))
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

    def _wrapped(self, function: Any) -> tuple:
        return "cached", self.of(function.__wrapped__)

    def _module(self, module: ModuleType, ways: Collection[tuple[str, ...]]) -> Any:
        name = module.__name__
        root = name.partition(".")[0]
        if name in PURE_MODULES:
            return module
        if root in sys.stdlib_module_names or name.startswith("numpy."):
            raise Opaque(f"the module {name}")
        begun = ways if isinstance(ways, _Any) else {way[0] for way in ways if way}
        if root == "numpy" and not FROM_OUTSIDE.isdisjoint(begun):
            raise Opaque("what NumPy reads from outside")
        if not _settled(name) and hasattr(module, "__getattr__"):
            raise Opaque(f"the module {name}, which makes its names")
        ways = ways if isinstance(ways, _Any) else frozenset(ways)
        if (known := self.met.get((name, ways))) is not None:
            return "again", known
        self.met[name, ways] = len(self.met)
        held, on = vars(module), {}
        if isinstance(ways, _Any):
            on = dict.fromkeys(ways & held.keys(), ways)
        else:
            for way in ways:
                if way and way[0] in held:
                    on.setdefault(way[0], set()).add(way[1:])
        if _settled(name):
            return tuple([self._of_settled(held[one], on[one]) for one in sorted(on)])
        return name, tuple([(one, self.of(held[one], on[one])) for one in sorted(on)])

    def _of_settled(self, value: Any, ways: Collection) -> Any:
        """What a settled package holds under a name: functions and classes are themselves."""
        return value if type(value) in _THEMSELVES else self.of(value, ways)

    # ------------------------------------------------------------ classes and their instances

    def _class(self, kind: type) -> Any:
        if (
            _settled(kind.__module__)
            or kind.__module__ == "builtins"
            or (kind.__module__.lstrip("_") in PURE_MODULES)
        ):
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
        enum = isinstance(kind, EnumType)
        for name, value in vars(kind).items():
            formal = name in _FORMAL or _generated(kind, value)
            if formal or isinstance(value, MemberDescriptorType | GetSetDescriptorType):
                continue
            if not enum:
                yield name, self._member(value)
            elif type(value) is kind:
                yield name, self.of(value._value_)
            elif isinstance(value, FunctionType | staticmethod | classmethod) and (
                not name.startswith("_")
            ):
                yield name, self._member(value)

    def _member(self, value: Any) -> Any:
        if isinstance(value, property):
            return property, self.of(value.fget), self.of(value.fset), self.of(value.fdel)
        if isinstance(value, staticmethod | classmethod):
            return type(value), self.of(value.__func__)
        if isinstance(value, cached_property):
            return cached_property, self.of(value.func)
        return self.of(value)

    def _enum(self, value: Enum) -> tuple:
        kind = type(value)
        return self._class(kind), value if _settled(kind.__module__) else value.name

    def _instance(self, value: Any) -> tuple:
        """An object with fields, of a class whose methods can be read, or of one of ours."""
        kind = type(value)
        if _settled(kind.__module__):
            return kind, self._of_ours(value)
        plain = {base for base in kind.__mro__ if base.__module__ == "builtins"}
        if not plain <= {object, tuple}:
            raise Opaque(f"a {kind.__qualname__}")
        content = tuple([self.of(one) for one in value]) if tuple in plain else ()
        return self._class(kind), content, self._fields(value)

    def _fields(self, value: Any) -> tuple:
        slots = [
            (name, self.of(getattr(value, name, None)))
            for base in type(value).__mro__
            for name, one in vars(base).items()
            if isinstance(one, MemberDescriptorType)
        ]
        return self._dict(getattr(value, "__dict__", {})), tuple(slots)

    def _of_ours(self, value: Any) -> Any:
        """A kernel, or an object that holds plain values (as limits do); no tensor, no machine."""
        if hasattr(value, "func") and hasattr(value, "grid"):
            return self.of(value.func), value.grid, self.of(value.options)
        fields = getattr(value, "__dict__", None)
        slots = any("__slots__" in vars(base) for base in type(value).__mro__)
        if fields is None or slots or not all(type(one) in _PLAIN for one in fields.values()):
            raise Opaque(f"a {type(value).__qualname__}")
        return self._dict(fields)


def _all_of(ways: Collection[tuple[str, ...]], code: _Code) -> Collection[tuple[str, ...]]:
    """The ways on; every one that the code can name where the value itself is used."""
    if () not in ways:
        return ways
    return _Any(code.every)


def _generated(kind: type, value: Any) -> bool:
    """Whether a class member is a method that `dataclasses` wrote."""
    if "__dataclass_fields__" not in vars(kind) or not isinstance(value, FunctionType):
        return False
    home = value.__globals__.get("__name__")
    return home in ("dataclasses", "reprlib") or value.__code__.co_filename == "<string>"


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


_READ: dict[type, Callable[[_Reader, Any], Any]] = {
    float: lambda _, value: (float, value.hex()),
    tuple: _Reader._many,
    list: _Reader._many,
    dict: _Reader._dict,
    set: _Reader._many,
    frozenset: _Reader._many,
    slice: _Reader._slice,
    np.ndarray: _Reader._array,
    np.generic: _Reader._number,
    np.dtype: lambda _, value: (np.dtype, value),
    FunctionType: _Reader._function,
    BuiltinFunctionType: _Reader._builtin,
    MethodType: _Reader._method,
    partial: _Reader._partial,
    type(lru_cache(len)): _Reader._wrapped,
    type: _Reader._class,
    Enum: _Reader._enum,
}
