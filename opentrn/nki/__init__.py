"""The kernel language: Python that runs, and records an `isa.Program`."""

from opentrn.nki import collectives, dtype, isa, kernels, language, typing
from opentrn.nki.check import Checked, check, document, worst
from opentrn.nki.check_arguments import Shaped, read_pair
from opentrn.nki.jit import Kernel, jit, run
from opentrn.nki.ranks import PerRank, run_ranks, simulate
from opentrn.nki.record import Recording, record
from opentrn.nki.session import Run, current_chip, use_strict, use_target, watch
from opentrn.nki.tensor import NKIObject, NkiTensor

__all__ = [
    "Checked",
    "Kernel",
    "NKIObject",
    "NkiTensor",
    "PerRank",
    "Recording",
    "Run",
    "Shaped",
    "check",
    "collectives",
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
    "run_ranks",
    "simulate",
    "typing",
    "use_strict",
    "use_target",
    "watch",
    "worst",
]
