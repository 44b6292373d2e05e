"""Whole models, instruction by instruction, against eager PyTorch and the graph's own meaning."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra `torch` is not installed")
pytest.importorskip("transformers", reason="the package `transformers` is not installed")

import torch

from opentrn import compiler, sim
from opentrn.graph import evaluate, from_torch
from opentrn.hw import target
from tests.compiler import models
from tests.compiler.running import run

# Relative to the largest number: float32 sums in another order; bfloat16 keeps 8 bits, each of
# some twenty roundings in a row adds half a unit in the last place.
TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2, "float16": 4e-3}
CASES = [
    (name, dtype, "trn2") for name in ("bert", "llama", "vit") for dtype in ("float32", "bfloat16")
] + [("bert", "bfloat16", "trn1"), ("bert", "bfloat16", "trn3"), ("llama", "float16", "trn2")]


@pytest.mark.parametrize(("name", "dtype", "chip"), CASES)
def test_a_model_computes_what_pytorch_computes(name, dtype, chip):
    module, args = getattr(models, name)()
    executable = compiler.compile(module, args, target=chip, dtype=dtype)
    found = run(executable, [a.numpy() for a in args])
    with torch.no_grad():
        wanted = [w.numpy().astype(np.float64) for w in module(*args)]
    assert len(found) == len(wanted)
    for f, w in zip(found, wanted, strict=True):
        difference = np.abs(f.reshape(w.shape) - w).max()
        assert difference < TOLERANCE[dtype] * np.abs(w).max()
    assert sim.timeline(executable.program, target(chip)).total_ns > 1000.0


@pytest.mark.parametrize("name", ["bert", "llama", "vit"])
def test_a_model_computes_what_its_graph_means(name):
    module, args = getattr(models, name)(1)
    graph = from_torch(module, args)
    arrays = [a.numpy() for a in args]
    found = run(compiler.compile(graph), arrays)
    for f, w in zip(found, evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(f.reshape(w.shape), w, 1e-4, 1e-4)


@pytest.mark.parametrize(("name", "most"), [("bert", 6), ("llama", 3), ("vit", 3)])
def test_further_layers_trace_no_further_kernels(name, most):
    counts = []
    for layers in (2, most):
        module, args = getattr(models, name)(layers)
        counts.append(compiler.compile(module, args).meta)
    assert counts[0]["kernels_traced"] == counts[1]["kernels_traced"]
    assert counts[0]["kernel_calls"] < counts[1]["kernel_calls"]


def test_the_projections_of_one_tensor_are_one_product():
    module, args = models.bert()
    kernels = compiler.compile(module, args).meta["kernels"]
    # For each layer: query, key and value as one, and up; output and down with their norms.
    assert sum(n for name, _, n in kernels if name == "linear") == 2 * 2 + 1
    assert sum(n for name, _, n in kernels if name == "linear_norm") == 2 * 2


def test_llama_reads_grouped_heads_once_and_needs_no_mask():
    module, args = models.llama()
    graphs = {}
    compiler.compile(module, args, watch=lambda name, state: graphs.setdefault(name, state.graph))
    for value in graphs["fuse"]:
        if value.op == "attention":
            assert value.args[1].shape[1] == 2, "two key heads for four query heads"
            assert value.attrs.causal
            assert len(value.args) == 3
    assert "negate" not in str(graphs["fuse"].histogram())
