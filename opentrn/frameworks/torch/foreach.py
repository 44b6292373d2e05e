"""Ops on lists of tensors, as optimizers call them, taken apart into one op for each tensor.

What `torch._foreach_add(tensors, others)` means is `torch.add` of each pair (PyTorch documentation,
"Foreach Functions"); eager PyTorch does that itself on devices without kernels for lists.
"""

from collections.abc import Callable
from typing import Any

# Names that are others without "_foreach_", and those of them that take a number.
NAMES = {"norm": "linalg_vector_norm"}
OF_NUMBERS = {"maximum": "clamp_min", "minimum": "clamp_max"}


def decomposition() -> dict[Any, Any]:
    """The functional ops on lists and what each is made of."""
    import torch

    table = {}
    for name in dir(torch.ops.aten):
        if not name.startswith("_foreach_") or name.endswith("_"):
            continue
        packet = getattr(torch.ops.aten, name)
        plain = name.removeprefix("_foreach_")
        for overload in packet.overloads():
            op = getattr(packet, overload)
            names = OF_NUMBERS if overload.startswith("Scalar") else NAMES
            single = getattr(torch.ops.aten, names.get(plain, NAMES.get(plain, plain)), None)
            if single is not None and not op._schema.is_mutable:
                table[op] = _each(op, single)
    return table


def _each(op: Any, single: Any) -> Callable:
    """`op` as `single` for each tensor; lists and lists of numbers go along with them."""
    arguments = op._schema.arguments
    along = {a.name for a in arguments if str(a.type).startswith("List[")}
    last = arguments[-1].name

    def run(*args: Any, **kwargs: Any) -> list[Any]:
        import torch

        given = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
        count = next(len(x) for name, x in given.items() if name in along)
        made = []
        for n in range(count):
            own = {name: x[n] if name in along else x for name, x in given.items()}
            if last == "scalars" and isinstance(own.get(last), torch.Tensor):
                own[last] = own[last][n] if own[last].dim() else own[last]
            made.append(_called(single, own))
        return made

    return run


def _called(single: Any, given: dict[str, Any]) -> Any:
    """The op with the arguments of one tensor: a number that scales goes by name."""
    named = {name: given.pop(name) for name in ("alpha", "dtype", "value") if name in given}
    if "tensor1" in given and "scalars" in given:
        named["value"] = given.pop("scalars")
    value = named.get("value")
    if hasattr(value, "dtype"):  # addcmul and addcdiv scale by numbers only
        start, first, second = given.values()
        divides = single._qualified_op_name.endswith("div")
        return start + value * (first / second if divides else first * second)
    return single(*given.values(), **named)


__all__ = ["decomposition"]
