"""The gradients of attention as an op that reads its operands and its result only.

Torch's own op also reads the logsumexp that its forward saves.  The kernel here computes the
weights again, so a forward graph would compute and keep that tensor for nothing.
"""

import functools
from typing import Any

from opentrn.graph import TORCH_RULES

NAME = "opentrn::attention_gradients"


@functools.cache
def _registered() -> Any:
    """The library that holds the op, which torch knows as long as this lives."""
    import torch

    library = torch.library.Library("opentrn", "FRAGMENT")
    library.define(TORCH_RULES[NAME].schema.removeprefix("opentrn::"))
    library.impl("attention_gradients", _on_host, "CPU")
    torch.library.register_fake(NAME, _shapes, lib=library)
    return library


def _shapes(grad_out: Any, query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> tuple:
    """Results without numbers."""
    import torch

    return tuple(torch.empty_like(x) for x in (query, key, value))


def _on_host(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, dropout_p: float, is_causal: bool,
    *, attn_mask: Any = None, scale: float | None = None,
) -> tuple:  # fmt: skip
    """Torch's gradients, with the logsumexp computed again."""
    import torch

    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    more = {"attn_mask": attn_mask, "scale": scale}
    _, total = flash(query, key, value, dropout_p, is_causal, **more)
    return back(grad_out, query, key, value, out, total, dropout_p, is_causal, **more)


def _without_total(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, *rest: Any,
    **more: Any,
) -> Any:  # fmt: skip
    import torch

    op = torch.ops.opentrn.attention_gradients
    return op(grad_out, query, key, value, out, *rest, **more)


def decomposition() -> dict[Any, Any]:
    """Torch's op of attention's gradients, and what to write in its place."""
    import torch

    _registered()
    back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return {back: _without_total}


__all__ = ["decomposition"]
