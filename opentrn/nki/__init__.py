"""The kernel language: Python that runs, and records an `isa.Program`."""

from opentrn.nki import isa, language
from opentrn.nki.jit import Kernel, jit, run, simulate
from opentrn.nki.session import Run, current_chip, use_strict, use_target, watch
from opentrn.nki.tensor import NKIObject, NkiTensor

__all__ = [
    "Kernel",
    "NKIObject",
    "NkiTensor",
    "Run",
    "current_chip",
    "isa",
    "jit",
    "language",
    "run",
    "simulate",
    "use_strict",
    "use_target",
    "watch",
]
