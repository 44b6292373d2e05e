"""`nki.isa`: one function for each instruction, made from its class in `opentrn.isa`."""

from opentrn.base import TrnError
from opentrn.isa import (
    INSTRUCTIONS,
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from opentrn.nki.isa import constants
from opentrn.nki.issue import NkiInstruction, function_of
from opentrn.nki.session import current, current_chip
from opentrn.nki.tensor import NkiTensor, VirtualRegister

# NKI 0.6 names the error users may catch; ours all belong to one family.
NkiValidationError = TrnError

tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown

_FUNCTIONS = [name for name, cls in INSTRUCTIONS.items() if cls.module == "nki.isa"]
for _name in _FUNCTIONS:
    globals()[_name] = function_of(INSTRUCTIONS[_name], __name__)


def get_nc_version() -> nc_version:
    """The NeuronCore generation of the current target."""
    return nc_version(current_chip().generation)


def get_nc_sub_version() -> int:
    """The silicon revision within a generation; the first one is modelled."""
    return 0


def register_alloc(x: int | NkiTensor | None = None) -> VirtualRegister:
    """A new register, holding `x` if given (a number, or a one-element tile that is loaded)."""
    session = current()
    number = session.builder.register().number
    made = VirtualRegister(number, session.machine)
    if isinstance(x, NkiTensor):
        globals()["register_load"](made, x)
    elif x is not None:
        globals()["register_move"](made, x)
    return made


__all__ = [
    *_FUNCTIONS,
    "NkiInstruction",
    "NkiValidationError",
    "VirtualRegister",
    "constants",
    "dge_mode",
    "dma_engine",
    "engine",
    "get_nc_sub_version",
    "get_nc_version",
    "gpsimd_engine",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
    "register_alloc",
    "scalar_engine",
    "tensor_engine",
    "unknown_engine",
    "vector_engine",
]
