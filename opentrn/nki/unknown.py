"""What the compiler does not know while a kernel is built, in Python's comparisons and arithmetic.

Python would compare tiles and registers by identity, which is quietly false, so every such
operator is refused.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.base import UsageError, declare

declare(
    "nki.compare",
    "A tile or a register stands in a Python comparison.",
    rule="its value is not known while the kernel is built: Python would compare identities, and "
    "branch the same way for every value",
    fix="compare tiles with nl.equal, nl.less, ...; ask for the same tensor with `is`",
)
declare(
    "nki.arithmetic",
    "A tile or a register stands in Python arithmetic.",
    rule="its value is not known while the kernel is built; instructions compute with tiles",
    fix="compute with nl.add, nl.multiply, ... or nisa.tensor_tensor and nisa.tensor_scalar",
)
declare(
    "nki.number",
    "A tile was asked for a number, a length or an array.",
    rule="what it holds is known only on the device, while its Python runs before",
    fix="read sizes from tile.shape; compute with nl and nisa; look at values with print(tile)",
)


class ValueAskedError(UsageError, TypeError):
    """A tile taken for the values it will hold; a TypeError, as of any object without them."""


_COMPARISONS = {
    "eq": ("==", "equal"),
    "ne": ("!=", "not_equal"),
    "lt": ("<", "less"),
    "le": ("<=", "less_equal"),
    "gt": (">", "greater"),
    "ge": (">=", "greater_equal"),
}
_ARITHMETIC = {
    "add": ("+", "add"),
    "sub": ("-", "subtract"),
    "mul": ("*", "multiply"),
    "truediv": ("/", "divide"),
    "floordiv": ("//", "divide"),
    "mod": ("%", "mod"),
    "pow": ("**", "power"),
    "and": ("&", "bitwise_and"),
    "or": ("|", "bitwise_or"),
    "xor": ("^", "bitwise_xor"),
    "lshift": ("<<", "left_shift"),
    "rshift": (">>", "right_shift"),
}
# Operators of one tile, and what stands for them in nki.language (a cast to int32 rounds).
_UNARY = {
    "neg": ("-", "negative"),
    "pos": ("+", "copy"),
    "invert": ("~", "invert"),
    "abs": ("abs()", "abs"),
    "round": ("round()", "copy(dtype=nl.int32)"),
    "ceil": ("math.ceil()", "ceil"),
    "floor": ("math.floor()", "floor"),
    "trunc": ("math.trunc()", "trunc"),
}
# What NumPy names otherwise than nki.language.
_NUMPY = {"remainder": "mod", "absolute": "abs"}
_BY_UFUNC = {name for _, name in _COMPARISONS.values()}


class Unknown:
    """Base of tiles and registers: operators with numbers, arrays or each other are refused.

    With anything else they are what Python makes of them, so `tile == None` is False.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    sort = "a tile"
    instead = {
        "nki.compare": "nl.{0} makes a tile of 0 and 1; ask for the same tensor with `is`",
        "nki.arithmetic": "nl.{0} makes a new tile, nisa.tensor_tensor and tensor_scalar write one",
    }

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Refused: functions of NumPy, and operators that have a number of NumPy on the left."""
        name = _NUMPY.get(ufunc.__name__, ufunc.__name__)
        code = "nki.compare" if name in _BY_UFUNC else "nki.arithmetic"
        raise _computed(self, f"np.{ufunc.__name__}", name, code)

    def __matmul__(self, other: Any) -> Any:
        """Refused: products are instructions."""
        raise _computed(self, "@", "matmul", "nki.arithmetic")

    __rmatmul__ = __matmul__

    def __divmod__(self, other: Any) -> Any:
        """Refused, as `/` is."""
        raise _computed(self, "divmod()", "divide", "nki.arithmetic")

    __rdivmod__ = __divmod__


def _computed(asked: Unknown, sign: str, function: str, code: str) -> ValueAskedError:
    """The refusal of `sign`; `function` of nki.language does the same for tiles."""
    what = "compared by" if code == "nki.compare" else "computed with by"
    text = f"{asked.sort} is {what} `{sign}` while the kernel is built"
    return ValueAskedError(text, code=code, fix=asked.instead[code].format(function))


def _operator(sign: str, function: str, code: str) -> Any:
    """The method that refuses `sign`; `function` of nki.language does the same for tiles."""

    def method(self: Unknown, other: Any) -> Any:
        if not isinstance(other, Unknown | int | float | np.generic | np.ndarray):
            return NotImplemented
        raise _computed(self, sign, function, code)

    return method


def _alone(sign: str, function: str) -> Callable:
    """The method that refuses an operator of one tile."""

    def method(self: Unknown, *_: Any) -> Any:
        raise _computed(self, sign, function, "nki.arithmetic")

    return method


for _name, (_sign, _function) in _COMPARISONS.items():
    setattr(Unknown, f"__{_name}__", _operator(_sign, _function, "nki.compare"))
for _name, (_sign, _function) in _ARITHMETIC.items():
    for _place in (_name, f"r{_name}"):
        setattr(Unknown, f"__{_place}__", _operator(_sign, _function, "nki.arithmetic"))
for _name, (_sign, _function) in _UNARY.items():
    setattr(Unknown, f"__{_name}__", _alone(_sign, _function))


def _asked(what: str) -> Callable:
    """The method that refuses to be `what`."""

    def method(self: Any, *_: Any, **__: Any) -> Any:
        raise ValueAskedError(f"a tile is taken for {what}", code="nki.number")

    return method


class Valueless:
    """Base of tiles of both interfaces: no number, length or array while the kernel is built."""

    __slots__ = ()

    __float__ = __int__ = __complex__ = _asked("a number")
    __index__ = _asked("an index or a number of steps")
    __len__ = _asked("a sequence with a length")
    __array__ = _asked("an array of NumPy")

    def __format__(self, form: str) -> str:
        """The text of print; refused in the form of a number."""
        if form:
            raise ValueAskedError("a tile is written as a number", code="nki.number")
        return str(self)
