"""Gradients of attention through torch, against gradients in float64."""

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from opentrn import compiler
from opentrn.frameworks.torch.backend import decompositions
from opentrn.graph import evaluate, from_fx

# Largest difference as a share of the largest number: float32 by rounding of sums, bfloat16 by
# roundings of weights, slopes and results.
ALLOWED = {torch.float32: 2e-6, torch.bfloat16: 1.2e-2}


def operands(sizes, kind=torch.float32):
    batch, heads, groups, queries, keys, width = sizes
    random = torch.Generator().manual_seed(0)
    shapes = [(batch, heads, queries, width), (batch, groups, keys, width),
              (batch, groups, keys, width), (batch, heads, queries, width)]  # fmt: skip
    return [torch.randn(shape, generator=random).to(kind) for shape in shapes]


def attended(q, k, v, mask=None, causal=False):
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
    )


def gradients(function, q, k, v, grad):
    """The result and the gradients of its operands."""
    given = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = function(*given)
    return [out.detach(), *torch.autograd.grad(out, given, grad)]


def exact(q, k, v, grad, mask=None, causal=False):
    """In float64, by the derivatives of the operations attention is spelled out in."""
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.double()
    with sdpa_kernel(SDPBackend.MATH):
        wide = [x.double() for x in (q, k, v)]
        return gradients(lambda *x: attended(*x, mask, causal), *wide, grad.double())


def agree(found, wanted, kind):
    for one, right in zip(found, wanted, strict=True):
        assert one.dtype == kind
        assert (one.double() - right).abs().max() <= ALLOWED[kind] * right.abs().max()


MASKS = {
    "none": lambda t, s: None,
    "bool": lambda t, s: torch.arange(t * s).reshape(1, 1, t, s) % 3 != 1,
    "numbers": lambda t, s: torch.sin(torch.arange(t * s).reshape(1, 1, t, s)),
    "lowest": lambda t, s: torch.where(
        torch.arange(t)[:, None].expand(t, s) == 2, torch.finfo(torch.float32).min, 0.0
    ).reshape(1, 1, t, s),
}


@pytest.mark.parametrize("kind", ALLOWED)
@pytest.mark.parametrize("sizes", [(2, 2, 2, 7, 7, 8), (1, 4, 2, 130, 130, 16)])
@pytest.mark.parametrize("causal", [False, True])
def test_compiled_gradients(sizes, causal, kind):
    torch._dynamo.reset()
    given = operands(sizes, kind)
    compiled = torch.compile(lambda *x: attended(*x, causal=causal), backend="neuron")
    agree(gradients(compiled, *given), exact(*given, causal=causal), kind)


@pytest.mark.parametrize("name", MASKS)
def test_compiled_gradients_with_a_mask(name):
    torch._dynamo.reset()
    given, mask = operands((1, 2, 2, 9, 11, 8)), MASKS[name](9, 11)
    compiled = torch.compile(lambda *x: attended(*x, mask), backend="neuron")
    agree(gradients(compiled, *given), exact(*given, mask), torch.float32)


def traced(given, table):
    """One graph of the result and its gradients, by torch's tracer and a table of decompositions"""
    step = lambda *x: gradients(attended, *x)  # noqa: E731
    return make_fx(step, decomposition_table=table, tracing_mode="fake")(*given)


def test_gradients_are_right_where_torchs_own_decompositions_are_wrong():
    """Torch decomposes the forward of its flash attention and not the backward, which then reads a
    logsumexp of another layout: the loss is right and gradients are not."""
    from torch._decomp import core_aten_decompositions

    given = operands((2, 4, 4, 6, 6, 8))
    wanted = exact(*given)
    wrong = traced(given, core_aten_decompositions())(*given)
    assert (wrong[0].double() - wanted[0]).abs().max() < 1e-5
    assert (wrong[1].double() - wanted[1]).abs().max() > 0.1 * wanted[1].abs().max()
    ours = from_fx(traced(given, decompositions())).graph
    found = evaluate(ours, [x.numpy() for x in given])
    agree([torch.from_numpy(x) for x in found], wanted, torch.float32)


def test_neither_scores_nor_weights_are_ever_in_memory():
    sizes = (1, 2, 1, 512, 512, 32)
    graph = from_fx(traced(operands(sizes), decompositions())).graph
    executable = compiler.compile(graph)
    assert executable.meta["hbm_bytes"]["scratchpad"] < 512 * 512 * 4
    names = [row[0] for row in executable.meta["kernels"]]
    assert "attention_backward" in names
    assert "softmax" not in names


def test_the_forward_keeps_no_logsumexp():
    torch._dynamo.reset()
    kept = []

    def backend(module, examples):
        from torch._dynamo.backends.common import aot_autograd

        def forward(graph, _):
            kept.append([n.meta["val"].shape for n in graph.graph.output_node().args[0]])
            return make_boxed_func(graph.forward)

        return aot_autograd(
            fw_compiler=forward, bw_compiler=lambda graph, _: make_boxed_func(graph.forward),
            decompositions=decompositions(),
        )(module, examples)  # fmt: skip

    given = operands((1, 2, 2, 5, 5, 4))
    found = gradients(torch.compile(attended, backend=backend), *given)
    agree(found, exact(*given), torch.float32)
    assert (1, 2, 5) not in [tuple(shape) for shape in kept[0]]
