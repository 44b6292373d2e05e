"""Run torch code on shapes alone."""

from collections.abc import Callable
from typing import Any


def fake_call(function: Callable, args: Any) -> Any:
    """What a module or function returns for these arguments, as tensors without numbers.

    Nothing of the module changes: its parameters and buffers are stood for by fakes."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(x: Any) -> Any:
        return mode.from_tensor(x) if isinstance(x, torch.Tensor) else x

    given = torch.utils._pytree.tree_map(fake, tuple(args))
    with mode, torch.no_grad():
        if not isinstance(function, torch.nn.Module):
            return function(*given)
        state = {**dict(function.named_parameters()), **dict(function.named_buffers())}
        held = {name: fake(tensor) for name, tensor in state.items()}
        return torch.func.functional_call(function, held, given)


__all__ = ["fake_call"]
