"""The table of torch rules: each keyed by an ATen schema, which is checked against its function.

A rule is a function of the builder and of the schema's arguments.  It gets graph values for
tensors, Python numbers for scalars, house dtypes for torch dtypes, lists for lists.  Arguments that
say where a tensor lives (`device`, `layout`, …) mean nothing here and are never passed.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentrn.base import Bug, NotBuiltError, Where, declare

declare("graph.torch_argument", "a torch op is used in a way its rule does not cover",
        "a rule states which arguments it takes")

PLACEMENT = ("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy",
             "cudnn_enable", "cudnn_enabled")
WORDS = {"None": None, "True": True, "False": False}


@dataclass(frozen=True)
class TorchRule:
    """How one ATen op becomes graph ops."""

    name: str
    schema: str
    parameters: tuple[str, ...]
    make: Callable[..., Any]


RULES: dict[str, TorchRule] = {}


def torch_op(*schemas: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function as the rule for these schemas.

    Refuses (Bug) a function whose parameters or defaults differ from a schema's, one without a
    docstring, and a second rule for an op."""
    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for schema in schemas:
            rule = _rule(schema, function)
            if rule.name in RULES:
                other = RULES[rule.name].make
                raise Bug(f"two rules for {rule.name}: {other.__name__}, {function.__name__}")
            RULES[rule.name] = rule
        return function
    return enter


def _rule(schema: str, function: Callable[..., Any]) -> TorchRule:
    name, wanted = parse(schema)
    if not function.__doc__:
        raise Bug(f"torch rule {function.__name__}: say what it computes")
    have = list(inspect.signature(function).parameters.values())[1:]
    names = [p.name for p in have]
    if names != list(wanted):
        raise Bug(f"torch rule {function.__name__}: the schema of {name} says "
                  f"({', '.join(wanted)}), the function takes ({', '.join(names)})")
    for parameter in have:
        given = parameter.default
        if wanted[parameter.name] is inspect.Parameter.empty:
            continue  # torch always passes it
        if given != wanted[parameter.name] and given != _as_tuple(wanted[parameter.name]):
            raise Bug(f"torch rule {function.__name__}: `{parameter.name}` defaults to "
                      f"{wanted[parameter.name]!r} in {name}, to {given!r} in the function")
    return TorchRule(name, schema, tuple(names), function)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def parse(schema: str) -> tuple[str, dict[str, Any]]:
    """The op's name and its parameters with their defaults (`inspect.Parameter.empty` if none),
    without those about placement."""
    head, _, _ = schema.rpartition(" -> ")
    name, _, inside = head.partition("(")
    parameters: dict[str, Any] = {}
    for part in _split(inside[:-1]):
        if part == "*":
            continue
        left, equals, default = part.partition("=")
        parameter = left.split()[-1]
        if parameter in PLACEMENT:
            continue
        parameters[parameter] = _default(default) if equals else inspect.Parameter.empty
    return name, parameters


def _split(text: str) -> list[str]:
    """Parts between commas that are outside brackets."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _default(text: str) -> Any:
    if text in WORDS:
        return WORDS[text]
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text  # a word of torch's own, such as contiguous_format


def refuse(what: str, where: Where | None, fix: str = "") -> NotBuiltError:
    """The error of a rule that does not cover this use of its op."""
    return NotBuiltError(what, code="graph.torch_argument", fix=fix, at=where)
