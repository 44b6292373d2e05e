"""The kernel language: Python that runs, and records an `isa.Program`."""

from opentrn.nki import dtype, isa, kernels, language, typing
from opentrn.nki.check import Checked, check, document, worst
from opentrn.nki.check_arguments import Shaped, read_pair
from opentrn.nki.jit import Kernel, jit, run, simulate
from opentrn.nki.record import Recording, record
from opentrn.nki.session import Run, current_chip, use_strict, use_target, watch
from opentrn.nki.tensor import NKIObject, NkiTensor

__all__ = [
    "Checked",
    "Kernel",
    "NKIObject",
    "NkiTensor",
    "Recording",
    "Run",
    "Shaped",
    "check",
    "current_chip",
    "document",
    "dtype",
    "isa",
    "jit",
    "kernels",
    "language",
    "read_pair",
    "record",
    "run",
    "simulate",
    "typing",
    "use_strict",
    "use_target",
    "watch",
    "worst",
]
