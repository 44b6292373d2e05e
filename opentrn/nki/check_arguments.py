"""The arguments a kernel is checked with: shapes told on the command line or found in its file."""

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from opentrn.base import DType, DtypeError, UsageError, declare, float32
from opentrn.base import dtype as as_dtype
from opentrn.nki import arrays
from opentrn.nki.typing import tensor

SYNTAX = declare(
    "nki.check_argument",
    "An argument to check a kernel with cannot be read.",
    rule="name=dtype[sizes] is a tensor; numbers, strings, True, False, None, dtypes, tuples and "
    "lists are themselves",
    fix="for example --arg a=float32[256,512] --arg n=128 --arg dtype=bfloat16",
)
GRID = declare(
    "nki.check_grid",
    "The launch grid to check a kernel on cannot be read.",
    rule="a grid is one or more whole numbers from 1 on, what stands in kernel[...] in a script",
    fix="write 2 or 4,2",
)
MISSING = declare(
    "nki.check_missing",
    "A kernel cannot be checked because some of its arguments are not known.",
    rule="arguments come from --arg, else from example_inputs in the file, else from annotations "
    "with a shape, else from the parameter's default",
    fix="pass --arg NAME=float32[256,512] for each of them",
)


@dataclass(frozen=True)
class Shaped:
    """A tensor argument of which only dtype and shape are known."""

    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def read(text: str) -> Any:
    """The value written as `text`, with `dtype[sizes]` as Shaped; UsageError for another form."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except UsageError:
        raise
    except (SyntaxError, ValueError, DtypeError):
        raise UsageError(f"cannot read the argument {text!r}", code=SYNTAX) from None


def read_pair(text: str) -> tuple[str, Any]:
    """`name=value` as a pair; UsageError for another form."""
    name, found, value = text.partition("=")
    if not found or not name.strip().isidentifier():
        raise UsageError(f"cannot read the argument {text!r}", code=SYNTAX)
    return name.strip(), read(value)


def read_grid(text: str) -> tuple[int, ...]:
    """The launch grid written as `2` or `4,2`; () for an empty text, UsageError for another."""
    sizes = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isdigit() and int(part) for part in sizes):
        raise UsageError(f"cannot read the launch grid {text!r}", code=GRID)
    return tuple(int(part) for part in sizes)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Subscript):
        sizes = ast.literal_eval(node.slice)
        sizes = sizes if isinstance(sizes, tuple) else (sizes,)
        if not all(type(n) is int and n > 0 for n in sizes):
            what = f"{ast.unparse(node)}: the sizes of a tensor are whole numbers from 1 on"
            raise UsageError(what, code=SYNTAX)
        return Shaped(_dtype(node.value), sizes)
    if isinstance(node, ast.Tuple | ast.List):
        parts = [_value(one) for one in node.elts]
        return tuple(parts) if isinstance(node, ast.Tuple) else parts
    if isinstance(node, ast.Name | ast.Attribute):
        return _dtype(node)
    return ast.literal_eval(node)


def _dtype(node: ast.expr) -> DType:
    """`float32`, or with a module before it as in `nl.float32`."""
    return as_dtype(node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", ""))


def shaped(value: Any) -> Any:
    """Arrays as Shaped, strings that read as one too; containers are walked."""
    if arrays.is_array(value):
        return Shaped(as_dtype(value.dtype), tuple(value.shape) or (1,))
    if isinstance(value, list | tuple):
        return arrays.rebuilt(value, [shaped(one) for one in value])
    if type(value) is dict:
        return {key: shaped(one) for key, one in value.items()}
    if type(value) is str and "[" in value:
        try:
            return read(value)
        except UsageError:
            return value
    return value


def examples(names: Mapping[str, Any], kernel: str, parameters: list[str]) -> dict[str, Any]:
    """What a file's `example_inputs` says about one kernel, by parameter name.

    `<kernel>_inputs` or `example_inputs` is a dictionary by parameter name (or, `example_inputs`
    only, by kernel name), a tuple in parameter order, or a function that returns one of these.
    """
    found = names.get(f"{kernel}_inputs", names.get("example_inputs"))
    found = found() if callable(found) else found
    if isinstance(found, Mapping) and kernel in found:
        found = found[kernel]
    if isinstance(found, tuple | list):
        found = dict(zip(parameters, found, strict=False))
    if not isinstance(found, Mapping):
        return {}
    return {str(name): shaped(value) for name, value in found.items() if name in parameters}


def fill(
    func: Callable, given: Mapping[str, Any], names: Mapping[str, Any]
) -> tuple[inspect.BoundArguments, list[str]]:
    """The arguments of one call of `func`, and what had to be assumed.

    `given` was told by name, `names` are the globals of the kernel's file.
    Raises UsageError `nki.check_argument` for a name the kernel does not have, `nki.check_missing`
    when a parameter is left without a value.
    """
    signature = inspect.signature(func)
    unknown = [name for name in given if name not in signature.parameters]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        known = ", ".join(signature.parameters)
        raise UsageError(
            f"{func.__name__} has no parameter `{unknown[0]}`", code=SYNTAX, fix=f"it has {known}"
        )
    values: dict[str, Any] = {}
    assumed, missing = [], []
    known = {**examples(names, func.__name__, list(signature.parameters)), **given}
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        declared = _declared(parameter.annotation)
        if name in known:
            values[name] = known[name]
        elif declared is not None:
            values[name], note = declared
            assumed += [f"{name}: {note}"] if note else []
        elif parameter.default is parameter.empty:
            missing.append(name)
    if missing:
        raise UsageError(
            f"{func.__name__}: nothing says what {', '.join(f'`{n}`' for n in missing)} "
            f"{'is' if len(missing) == 1 else 'are'}",
            code=MISSING,
        )
    return signature.bind(**values), assumed


def _declared(annotation: Any) -> tuple[Shaped, str] | None:
    """(tensor, what was assumed) of `tensor[128, 512]` or "float32[128, 512]"; None otherwise."""
    if isinstance(annotation, type) and issubclass(annotation, tensor) and annotation.shape:
        return Shaped(float32, annotation.shape), "float32, as no dtype is declared"
    found = shaped(annotation) if isinstance(annotation, str) else None
    return (found, "") if isinstance(found, Shaped) else None


__all__ = [
    "MISSING",
    "SYNTAX",
    "Shaped",
    "examples",
    "fill",
    "read",
    "read_grid",
    "read_pair",
    "shaped",
]
