"""`torch.compile(backend="neuron")`: graphs from Dynamo, forward and backward, on the device.

Dynamo hands over one graph for each stretch of code it can follow; AOTAutograd makes it a function
of ATen ops without side effects, with a second graph for the gradients where they are needed.
"""

import functools
from collections.abc import Mapping
from typing import Any

from opentrn.frameworks.torch import attention, foreach, recurrent
from opentrn.frameworks.torch.piece import Piece
from opentrn.frameworks.torch.places import place_in
from opentrn.frameworks.torch.report import HISTORY, Break, Capture
from opentrn.frameworks.torch.settings import Settings

NAMES = ("neuron", "neuronx")
# Ops with rules of their own that torch's decompositions would turn into loops, scatters, or
# results the chip computes worse.  Attention is among them for another reason: torch decomposes
# its forward but not its backward, which then reads a logsumexp of another layout, and gradients
# come out silently wrong.
KEPT = (
    "_scaled_dot_product_flash_attention_for_cpu", "embedding_dense_backward",
    "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward",
    "silu", "mish", "softplus", "hardswish", "hardsigmoid", "t", "new_zeros", "new_ones", "stack",
    "split.Tensor", "split_with_sizes", "unbind.int", "logsumexp", "baddbmm",
    "slice_backward", "select_backward", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d", "upsample_linear1d.vec",
    "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec", "take",
    "max_pool2d_with_indices", "max_pool3d_with_indices", "diagonal", "copysign.Tensor",
)  # fmt: skip


@functools.cache
def decompositions() -> dict[Any, Any]:
    """Torch's decompositions into core ATen ops, without those of ops in `KEPT`; not to change."""
    import torch
    from torch._decomp import core_aten_decompositions, get_decompositions

    aten = torch.ops.aten
    table = dict(core_aten_decompositions())
    table.update(get_decompositions([
        aten.native_dropout, aten.native_batch_norm_backward, aten._native_batch_norm_legit,
        aten._batch_norm_with_update, aten._batch_norm_with_update_functional,
        aten.adaptive_max_pool2d, aten.adaptive_max_pool3d, aten.grid_sampler_2d,
    ]))
    for name in KEPT:
        packet, _, overload = name.partition(".")
        found = getattr(getattr(aten, packet, None), overload or "default", None)
        table.pop(found, None)
    for part in (attention, foreach, recurrent):
        table |= part.decomposition()
    return table


def neuron(
    module: Any, examples: Any, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Any:
    """Compile one graph of Dynamo's; what torch.compile calls.

    `options` are those of `Settings`.  The graph is compiled for the chip when it is first called,
    so that refusals arrive as they are.
    """
    from torch._dynamo.backends.common import aot_autograd

    settings = Settings.of(options)
    name = _record(module, settings.name)

    def forward(graph: Any, _: Any) -> Any:
        return _boxed(Piece(graph, f"{name} forward", settings))

    def backward(graph: Any, _: Any) -> Any:
        return _boxed(Piece(graph, f"{name} backward", settings))

    def inference(graph: Any, _: Any) -> Any:
        frozen = _lasting(graph) if settings.freeze else ()
        return _boxed(Piece(graph, name, settings, frozen))

    compiled = aot_autograd(
        fw_compiler=forward, bw_compiler=backward, inference_compiler=inference,
        decompositions=decompositions(),
    )  # fmt: skip
    return compiled(module, examples)


def _boxed(piece: Piece) -> Any:
    """The calling convention of AOTAutograd: one list, which may be emptied."""

    def run(args: list[Any]) -> list[Any]:
        given = tuple(args)
        args.clear()
        return piece(*given)

    run._boxed_call = True
    return run


def _lasting(graph: Any) -> tuple[int, ...]:
    """Positions of parameters and buffers among a graph's placeholders."""
    import torch

    context = torch._guards.TracingContext.try_get()
    found = getattr(getattr(context, "fw_metadata", None), "static_input_indices", None) or ()
    count = sum(node.op == "placeholder" for node in graph.graph.nodes)
    written = getattr(context.fw_metadata, "mutated_inp_runtime_indices", ()) if context else ()
    return tuple(i for i in found if i < count and i not in set(written))


def _record(module: Any, wanted: str) -> str:
    """Note the graph, the break that ended it, and whether it is another version; its name."""
    import torch

    compile_id = torch._guards.CompileContext.current_compile_id()
    version = getattr(compile_id, "frame_compile_id", 0) or 0
    again = f"version {version + 1} of its code: other inputs than before" if version else ""
    name = wanted or f"graph{len(HISTORY.captures)}"
    HISTORY.captures.append(Capture(name, _function(module), again))
    reason = getattr(module, "compile_subgraph_reason", None)
    if reason is not None and getattr(reason, "graph_break", True):
        lines = [line.strip() for line in str(reason.reason).splitlines()]
        HISTORY.breaks.append(Break(place_in(reason.user_stack), _told(lines)))
    return name


def _told(lines: list[str]) -> str:
    """Torch's reason for a break in one line: its title, and its explanation."""
    kept = [x for x in lines if x and not x.startswith(("For more details", "Higher framework"))]
    title = kept[0] if kept else "not told"
    if title.startswith("generic_jump"):
        return "a branch depends on a tensor's value, which is known only on the device"
    if "torch.compiler.disable" in title:
        return "a function runs between graphs: nki_op, or torch.compiler.disable"
    why = next((x for x in kept[1:] if x.startswith("Explanation:")), "")
    return f"{title}. {why.removeprefix('Explanation: ')}" if why else title


def _function(module: Any) -> str:
    """The user's function or line a graph began at."""
    import torch

    from opentrn.graph import where_of

    for node in module.graph.nodes:
        trace = node.meta.get("stack_trace") if node.op not in ("placeholder", "output") else None
        if trace:
            return str(where_of(trace) or "unknown code")
    return f"{type(module).__name__} of torch {torch.__version__}"


def register() -> None:
    """Make "neuron" (and "neuronx") a backend of torch.compile; a second call does nothing."""
    import torch._dynamo

    known = torch._dynamo.list_backends(exclude_tags=())
    for name in NAMES:
        if name not in known:
            torch._dynamo.register_backend(neuron, name=name)


__all__ = ["KEPT", "NAMES", "decompositions", "neuron", "register"]
