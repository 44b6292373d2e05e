"""A function of torch's and its gradients as graphs, held to torch's autograd in float64."""

import warnings

import numpy as np
import torch

from opentrn.frameworks.torch import backend
from opentrn.graph import evaluate, from_fx


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def values(function, *tensors):
    """What a function returns, computed by its graph."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"decomposition_table": backend.decompositions(), "tracing_mode": "fake"}
        module = make_fx(function, **options)(*tensors)
        # Some gradients of torch's write what they made; graphs do not.
        pure = torch.func.functionalize(torch.fx.Interpreter(module).run, remove="mutations")
        module = make_fx(pure, **options)(*tensors)
        traced = from_fx(module)
    found = evaluate(traced.graph, [tensors[i].numpy() for i in traced.inputs])
    assert all(kind == "value" for kind, _ in traced.outputs)
    return [found[place] for _, place in traced.outputs]


def agree(function, *tensors):
    """Values of a function's graph, and gradients where it has some, are torch's in float64."""

    def both(*given):
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in given]
        made = function(*leaves)
        if not made.requires_grad:
            return [made]
        weights = torch.linspace(0.5, 1.5, made.numel(), dtype=made.dtype).reshape(made.shape)
        wanted = [x for x in leaves if x.requires_grad]
        slopes = torch.autograd.grad(made, wanted, weights, materialize_grads=True)
        return [made.detach(), *slopes]

    exact = both(*(x.double() if x.is_floating_point() else x for x in tensors))
    for got, want in zip(values(both, *tensors), exact, strict=True):
        finite = want[want.isfinite()].abs().double()
        scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
        np.testing.assert_allclose(got, want.numpy(), rtol=2e-5, atol=2e-5 * scale)
