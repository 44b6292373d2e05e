"""`torch.autocast("neuron")`: products in bfloat16 or float16, sensitive ops in float32.

The lists are PyTorch's own policy for its devices (torch.amp, "Autocast Op Reference").
"""

from typing import Any

NARROW = (
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "conv1d",
    "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input",
    "convolution", "scaled_dot_product_attention",
)  # fmt: skip
WIDE = (
    "exp", "log", "log10", "log2", "log1p", "expm1", "pow.Tensor_Scalar", "pow.Tensor_Tensor",
    "softmax.int", "log_softmax.int", "layer_norm", "group_norm", "rms_norm", "cumsum", "cumprod",
    "sum", "sum.dim_IntList", "prod", "prod.dim_int", "mse_loss", "l1_loss", "smooth_l1_loss",
    "nll_loss", "nll_loss2d", "cross_entropy_loss", "kl_div", "norm.Scalar", "rsqrt", "acos",
    "asin", "cosh", "sinh", "tan", "reciprocal", "erfinv", "softplus",
)  # fmt: skip
# Ops whose operands must agree: the widest float among them decides.
PROMOTE = ("addcdiv", "addcmul", "atan2", "cross", "dot", "index_put", "stack", "cat",
           "scatter_add")  # fmt: skip


def dtypes() -> list[Any]:
    """The dtypes autocast takes."""
    import torch

    return [torch.bfloat16, torch.float16]


def register() -> Any:
    """Register the policy; returns PyTorch's registrations."""
    import torch

    torch.set_autocast_dtype("neuron", torch.bfloat16)
    library = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    for names, kind in ((NARROW, _narrow), (WIDE, _wide), (PROMOTE, _widest)):
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if op is not None:
                library.impl(name, _casting(op, kind))
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    return library, rest


def _narrow(tensors: list[Any]) -> Any:
    import torch

    return torch.get_autocast_dtype("neuron")


def _wide(tensors: list[Any]) -> Any:
    import torch

    return torch.float32


def _widest(tensors: list[Any]) -> Any:
    import torch

    kinds = {t.dtype for t in tensors}
    return torch.float32 if torch.float32 in kinds or len(kinds) > 1 else next(iter(kinds), None)


def _casting(op: Any, kind: Any) -> Any:
    """The op with its float tensors on the device in the dtype its list asks for."""
    import torch
    from torch.utils import _pytree

    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def floats(given: Any) -> list[Any]:
        return [x for x in _pytree.tree_leaves(given)
                if isinstance(x, torch.Tensor) and x.is_floating_point()
                and x.device.type == "neuron" and x.dtype != torch.float64]  # fmt: skip

    def run(*args: Any, **kwargs: Any) -> Any:
        tensors = floats((args, kwargs))
        wanted, chosen = kind(tensors), set(map(id, tensors))
        with torch._C._ExcludeDispatchKeyGuard(keys):
            given, named = _pytree.tree_map(
                lambda x: x.to(wanted) if id(x) in chosen else x, (args, kwargs)
            )
            return op(*given, **named)

    return run


__all__ = ["NARROW", "PROMOTE", "WIDE", "dtypes", "register"]
