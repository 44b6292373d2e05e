"""How a module's arguments and results nest: which leaves are tensors, and what the others are.

A program takes and gives tensors in a row.  A `Nest` remembers what stood around them, so that a
traced module gives its results as the module does, and refuses arguments nested in another way.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opentrn.base import FileFormatError, UsageError, declare

LEAF = declare(
    "frameworks.leaf",
    "A traced module takes or returns something that is neither a tensor nor plain data.",
    rule="what a traced module takes and returns is made of tensors, numbers, strings and None in "
    "tuples, lists, dictionaries and classes torch's pytree knows",
    fix="return the tensors, and make the object outside of the traced module",
)
ARGUMENT = declare(
    "frameworks.traced_argument",
    "A traced module was called with other arguments than it was traced with.",
    rule="arguments nest as they did when the module was traced; what is no tensor is the same",
    fix="call it as it was traced, or trace it again for these arguments",
)
WRITTEN = declare(
    "frameworks.written_nest",
    "How the arguments or results of a traced module nest cannot be written to a file.",
    rule="files hold tuples, lists, dictionaries with plain keys, and registered classes that are "
    "registered where the file is read; never names of modules to import",
    fix="return a plain tuple or dictionary with strings as keys",
)
PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Nest:
    """A nested value without its tensors: `fixed` has ("tensor", None) or ("plain", what it is) for
    each leaf, `spec` is torch's description of the nesting."""

    fixed: tuple[tuple[str, Any], ...]
    spec: Any

    @classmethod
    def of(cls, tree: Any, what: str) -> "Nest":
        """The nest of a value; UsageError `frameworks.leaf` names a leaf that is no plain data."""
        import torch
        from torch.utils import _pytree

        leaves, spec = _pytree.tree_flatten(tree)
        fixed = []
        for n, leaf in enumerate(leaves):
            if not isinstance(leaf, (torch.Tensor, *PLAIN)):
                path = _pytree.keystr(_pytree.tree_flatten_with_path(tree)[0][n][0])
                raise UsageError(
                    f"the module {what} a {type(leaf).__name__} at {path or 'the top'}", code=LEAF
                )
            tensor = isinstance(leaf, torch.Tensor)
            fixed.append(("tensor", None) if tensor else ("plain", leaf))
        return cls(tuple(fixed), spec)

    @property
    def tensors(self) -> int:
        """How many leaves are tensors."""
        return sum(kind == "tensor" for kind, _ in self.fixed)

    def filled(self, tensors: Sequence[Any]) -> Any:
        """The nested value with these tensors."""
        from torch.utils import _pytree

        given = iter(tensors)
        leaves = [next(given) if kind == "tensor" else value for kind, value in self.fixed]
        return _pytree.tree_unflatten(leaves, self.spec)

    def taken(self, tree: Any) -> list[Any]:
        """The tensors of a value nested like this; UsageError `frameworks.traced_argument`."""
        import torch
        from torch.utils import _pytree

        leaves, spec = _pytree.tree_flatten(tree)
        if spec != self.spec:
            raise UsageError(
                f"the arguments nest as {_shape(spec)}, not as {_shape(self.spec)}", code=ARGUMENT
            )
        for n, (leaf, (kind, value)) in enumerate(zip(leaves, self.fixed, strict=True)):
            tensor = isinstance(leaf, torch.Tensor)
            if tensor != (kind == "tensor") or not (tensor or _same(leaf, value)):
                path = _pytree.keystr(_pytree.tree_flatten_with_path(tree)[0][n][0])
                wanted = "a tensor" if kind == "tensor" else repr(value)
                shown = "a tensor" if tensor else repr(leaf)
                raise UsageError(f"argument {path} is {shown}, not {wanted}", code=ARGUMENT)
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def json(self) -> dict[str, Any]:
        """The nest as plain data; UsageError `frameworks.written_nest` when it cannot be."""
        return {"spec": _written(self.spec), "fixed": [list(one) for one in self.fixed]}

    @classmethod
    def read(cls, data: Any) -> "Nest":
        """A nest of `json()`; FileFormatError `frameworks.written_nest`.

        Nothing is imported or unpickled: classes are those that are registered by now."""
        try:
            made = cls(tuple((str(k), v) for k, v in data["fixed"]), _read(data["spec"]))
            made.filled([None] * made.tensors)
        except (KeyError, TypeError, ValueError, StopIteration) as error:
            raise FileFormatError(
                f"the file does not say how arguments or results nest: {error}", code=WRITTEN
            ) from None
        return made


def _written(spec: Any) -> Any:
    """A nesting as None (a leaf) or [class, context, children], plain data throughout."""
    from torch.utils import _pytree

    if spec.is_leaf():
        return None
    known = _pytree.SUPPORTED_SERIALIZED_TYPES.get(spec.type)
    name = getattr(known, "serialized_type_name", None)
    try:
        same = json.loads(json.dumps(spec.context)) == spec.context
    except (TypeError, ValueError):
        same = False  # a class, a function, a key that is no string
    if not same or _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name) is not spec.type:
        raise UsageError(f"a {spec.type.__name__} cannot be written to a file: {_shape(spec)}",
                         code=WRITTEN)  # fmt: skip
    return [name, spec.context, [_written(child) for child in spec.children()]]


def _read(data: Any) -> Any:
    """The nesting `_written` wrote; ValueError for a class that is not registered."""
    from torch.utils import _pytree

    if data is None:
        return _pytree.treespec_leaf()
    name, context, children = data
    if name not in _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
        raise ValueError(f"no class is registered as {name}: import the module that defines it")
    kind = _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[name]
    return _pytree.TreeSpec(kind, context, [_read(child) for child in children])


def _same(a: Any, b: Any) -> bool:
    """Equality that tells True from 1, and holds for NaN."""
    return type(a) is type(b) and (a == b or (a != a and b != b))


def _shape(spec: Any) -> str:
    """A nesting for people: `(*, {'a': *})`."""
    from torch.utils import _pytree

    class Star:
        def __repr__(self) -> str:
            return "*"

    return repr(_pytree.tree_unflatten([Star()] * spec.num_leaves, spec))


__all__ = ["ARGUMENT", "LEAF", "WRITTEN", "Nest"]
