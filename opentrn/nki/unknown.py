"""What the compiler does not know while a kernel is built, in Python's comparisons and arithmetic.

Python would compare tiles and registers by identity, which is quietly false, so every such
operator is refused.
"""

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


class Unknown:
    """Base of tiles and registers: operators with numbers, arrays or each other are refused.

    With anything else they are what Python makes of them, so `tile == None` is False.
    """

    __slots__ = ()
    __array_ufunc__ = None  # NumPy leaves operators with its numbers and arrays to this class
    __hash__ = object.__hash__

    sort = "a tile"
    instead = {
        "nki.compare": "nl.{0} makes a tile of 0 and 1; ask for the same tensor with `is`",
        "nki.arithmetic": "nl.{0} makes a new tile, nisa.tensor_tensor and tensor_scalar write one",
    }


def _operator(sign: str, function: str, code: str) -> Any:
    """The method that refuses `sign`; `function` of nki.language does the same for tiles."""
    what = "compared by" if code == "nki.compare" else "computed with by"

    def method(self: Unknown, other: Any) -> Any:
        if not isinstance(other, Unknown | int | float | np.generic | np.ndarray):
            return NotImplemented
        text = f"{self.sort} is {what} `{sign}` while the kernel is built"
        raise UsageError(text, code=code, fix=self.instead[code].format(function))

    return method


for _name, (_sign, _function) in _COMPARISONS.items():
    setattr(Unknown, f"__{_name}__", _operator(_sign, _function, "nki.compare"))
for _name, (_sign, _function) in _ARITHMETIC.items():
    for _place in (_name, f"r{_name}"):
        setattr(Unknown, f"__{_place}__", _operator(_sign, _function, "nki.arithmetic"))
