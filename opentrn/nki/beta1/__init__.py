"""`neuronxcc.nki`: the older kernel API, in which instructions return tiles."""

from opentrn.nki.beta1 import compiler, isa, language, nccl, typing
from opentrn.nki.beta1.jit import (
    Kernel,
    baremetal,
    benchmark,
    jit,
    profile,
    simulate_kernel,
    trace,
)
from opentrn.nki.beta1.tile import Tensor as tensor

__all__ = [
    "Kernel",
    "baremetal",
    "benchmark",
    "compiler",
    "isa",
    "jit",
    "language",
    "nccl",
    "profile",
    "simulate_kernel",
    "tensor",
    "trace",
    "typing",
]
