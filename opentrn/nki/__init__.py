"""The kernel language: Python that runs, and records an `isa.Program`."""

from opentrn.nki import collectives, dtype, isa, kernels, language, typing
from opentrn.nki.again import tracing
from opentrn.nki.axes import name_axes
from opentrn.nki.check import Checked, check, document, worst
from opentrn.nki.check_arguments import Shaped, read_grid, read_pair
from opentrn.nki.debug import dump, find_nonfinite
from opentrn.nki.jit import AnyKernel, Kernel, jit, run, taking_launches
from opentrn.nki.newer import FIRST as NEWER
from opentrn.nki.newer import refuse as refuse_newer
from opentrn.nki.older import functions as older_functions
from opentrn.nki.older import missing as missing_name
from opentrn.nki.quirks import QUIRKS, Quirk
from opentrn.nki.ranks import PerRank, run_ranks, simulate
from opentrn.nki.record import Recording, record
from opentrn.nki.session import Run, current_chip, use_strict, use_target, watch, watch_findings
from opentrn.nki.target import told_rounding
from opentrn.nki.tensor import NKIObject, NkiTensor
from opentrn.nki.traced import Bound, TracedKernel
from opentrn.nki.versions import TODAY, VERSIONS, current_version, use_version

__all__ = [
    "AnyKernel",
    "Bound",
    "Checked",
    "Kernel",
    "NEWER",
    "NKIObject",
    "NkiTensor",
    "PerRank",
    "QUIRKS",
    "Quirk",
    "Recording",
    "Run",
    "TODAY",
    "VERSIONS",
    "Shaped",
    "TracedKernel",
    "check",
    "collectives",
    "current_chip",
    "current_version",
    "document",
    "dtype",
    "dump",
    "find_nonfinite",
    "isa",
    "jit",
    "kernels",
    "language",
    "missing_name",
    "name_axes",
    "older_functions",
    "read_grid",
    "read_pair",
    "record",
    "refuse_newer",
    "run",
    "run_ranks",
    "simulate",
    "taking_launches",
    "told_rounding",
    "tracing",
    "typing",
    "use_strict",
    "use_target",
    "use_version",
    "watch",
    "watch_findings",
    "worst",
]
