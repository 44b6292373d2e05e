"""The kernel language: Python that runs, and records an `isa.Program`."""

from opentrn.nki import isa, kernels, language, typing
from opentrn.nki.jit import Kernel, jit, run, simulate
from opentrn.nki.record import Recording, record
from opentrn.nki.session import Run, current_chip, use_strict, use_target, watch
from opentrn.nki.tensor import NKIObject, NkiTensor

__all__ = [
    "Kernel",
    "NKIObject",
    "NkiTensor",
    "Recording",
    "Run",
    "current_chip",
    "isa",
    "jit",
    "kernels",
    "language",
    "record",
    "run",
    "simulate",
    "typing",
    "use_strict",
    "use_target",
    "watch",
]
