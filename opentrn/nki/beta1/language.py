"""`neuronxcc.nki.language`: tensors, index grids, loops, and math that returns tiles.

Contracts: NKI API reference v2.26.1 (nki.language).  Everything lowers to `nki.isa` instructions.
"""

from math import prod as _product
from typing import Any

import numpy as np

from opentrn.base import DType, NotBuiltError, ShapeError, UsageError, declare, dtypes
from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki.beta1 import assign, blocks, constants, elements, loops, masks
from opentrn.nki.beta1.blocks import par_dim
from opentrn.nki.beta1.functions import (
    abs,
    add,
    all,
    arctan,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    ceil,
    cos,
    divide,
    dropout,
    equal,
    erf,
    erf_dx,
    exp,
    floor,
    fmod,
    gelu,
    gelu_apprx_sigmoid,
    gelu_apprx_tanh,
    gelu_dx,
    greater,
    greater_equal,
    invert,
    left_shift,
    less,
    less_equal,
    log,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    max,
    maximum,
    mean,
    min,
    minimum,
    mish,
    mod,
    multiply,
    negative,
    not_equal,
    power,
    prod,
    rand,
    random_seed,
    reciprocal,
    relu,
    right_shift,
    rms_norm,
    rsqrt,
    sigmoid,
    sign,
    silu,
    silu_dx,
    sin,
    softmax,
    softplus,
    sqrt,
    square,
    subtract,
    sum,
    tan,
    tanh,
    trunc,
    var,
    where,
)
from opentrn.nki.beta1.grids import arange, mgrid
from opentrn.nki.beta1.launch_grid import nc, spmd_dim
from opentrn.nki.beta1.loops import affine_range, sequential_range, static_range
from opentrn.nki.beta1.pending import current
from opentrn.nki.beta1.sharing import all_reduce, atomic_rmw
from opentrn.nki.beta1.tile import Tensor, produce
from opentrn.nki.language import memory
from opentrn.nki.language.memory import ds, tile_size
from opentrn.nki.tensor import MemoryRegion, NkiTensor

declare(
    "beta1.unsupported",
    "A name of the older API that OpenTrn does not have.",
    rule="a name that is not built says so; it never computes something else",
    fix="use another function; see docs/conformance.md for what is built",
)
declare(
    "beta1.space",
    "A tensor lies in the wrong memory for this function.",
    rule="nl.load reads HBM, nl.store writes HBM, everything else works on tiles on chip",
    fix="nl.load the tensor into a tile first",
)
declare(
    "beta1.mask",
    "A mask that this instruction cannot follow.",
    rule="matmul, transpose and collectives take masks that cut the contraction or nothing",
    fix="mask the load of the operands, or cut the tiles with slices",
)

# Imported under its older name it is a package: `.constants` lies below it.
__path__: list[str] = []

# Dtypes of this age are NumPy's, so that host code computes with them.
bool_ = np.bool_
int8, int16, int32 = np.int8, np.int16, np.int32
uint8, uint16, uint32 = np.uint8, np.uint16, np.uint32
float16, float32 = np.float16, np.float32
bfloat16 = dtypes.bfloat16.storage
float8_e4m3, float8_e5m2 = dtypes.float8_e4m3.storage, dtypes.float8_e5m2.storage
tfloat32 = dtypes.tfloat32

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
private_hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm
# Kernels of this age return tensors allocated in `nl.hbm`, so it is the memory outputs lie in.
hbm = MemoryRegion.shared_hbm


class _Float:
    """Limits of a floating-point dtype."""

    def __init__(self, kind: DType):
        self.dtype, self.max, self.min = kind, float(kind.max), -float(kind.max)
        self.tiny, self.bits = float(kind.smallest_normal), kind.bits


fp32 = _Float(dtypes.float32)
bfp16 = _Float(dtypes.bfloat16)


def finfo(dtype: Any) -> _Float:
    """The limits of a floating-point dtype: max, min, tiny."""
    return _Float(as_dtype(dtype))


def static_cast(input_data: Any, dtype: Any) -> Any:
    """An array on the host as another dtype, rounded as the chip rounds."""
    kind = as_dtype(dtype)
    if hasattr(input_data, "detach"):
        import torch

        return input_data.to(getattr(torch, str(kind)))
    array = np.asarray(input_data)
    return array.astype(kind.storage)


# ---------------------------------------------------------------------- tensors


def ndarray(shape, dtype, *, buffer=None, name="", lazy_initialization=False):
    """A new, unwritten tensor; see `blocks.tensor` for shapes with `par_dim`."""
    return blocks.tensor(shape, dtype, buffer, name)


def full(shape, fill_value, dtype, *, buffer=None, name="", lazy_initialization=False):
    """A new tensor filled with one number."""
    return blocks.tensor(shape, dtype, buffer, name, fill_value)


def zeros(shape, dtype, *, buffer=None, name="", lazy_initialization=False):
    """A new tensor of zeros."""
    return blocks.tensor(shape, dtype, buffer, name, 0)


def ones(shape, dtype, *, buffer=None, name="", lazy_initialization=False):
    """A new tensor of ones."""
    return blocks.tensor(shape, dtype, buffer, name, 1)


def empty_like(a, dtype=None, *, buffer=None, name=""):
    """A new, unwritten tensor of the shape of `a`."""
    return blocks.tensor(a.shape, dtype or a.element, buffer or a.buffer, name)


def zeros_like(a, dtype=None, *, buffer=None, name=""):
    """A new tensor of zeros of the shape of `a`."""
    return blocks.tensor(a.shape, dtype or a.element, buffer or a.buffer, name, 0)


def full_like(a, fill_value, dtype=None, *, buffer=None, name=""):
    """A new tensor of one number of the shape of `a`."""
    return blocks.tensor(a.shape, dtype or a.element, buffer or a.buffer, name, fill_value)


def shared_constant(constant, dtype=None):
    """A tensor in HBM with data known when the kernel is built."""
    data = np.asarray(constant)
    current().flush()
    return Tensor.of(memory.shared_constant(data if dtype is None else static_cast(data, dtype)))


def shared_identity_matrix(n, dtype=uint8):
    """The n × n identity, a constant in HBM."""
    return shared_constant(np.eye(n), dtype)


# ---------------------------------------------------------------------- loads and stores


def load(src, *, mask=None, dtype=None):
    """A tile in SBUF with the values of a tensor in HBM; dimension 0 becomes partitions."""
    src = _in_hbm(src, "load")
    shape = src.shape if src.ndim > 1 else (src.shape[0], 1)
    source = src.squeezed(shape)
    kind = as_dtype(dtype or src.element)

    def run(t: Tensor) -> None:
        for spans in masks.rectangles(mask, shape):
            nisa.dma_copy(t.write(spans), source.read(spans))

    return produce(shape, kind, run, moves=kind == src.element)


def store(dst, value, *, mask=None):
    """Write a tile (or a number) to a tensor in HBM, where the mask allows."""
    dst = _in_hbm(dst, "store")
    current().flush()
    if isinstance(value, elements.NUMBERS):
        if mask is None:
            assign.fill(dst, value)
            return
        shape = dst.shape if dst.ndim > 1 else (1, *dst.shape)
        value = Tensor.of(memory.full(shape, value, dst.element))
    value = elements.tile(value, "value")
    shape = dst.shape if dst.ndim >= value.ndim else value.shape
    dst, value = dst.squeezed(shape), value.squeezed(shape)
    if value.space == "psum":
        value = elements.copied(value)
        value.settle()
    for spans in masks.rectangles(mask, shape):
        nisa.dma_copy(dst.write(spans), value.read(spans))


def _in_hbm(tensor: Any, what: str) -> Tensor:
    tensor = elements.tile(tensor, "src" if what == "load" else "dst")
    if tensor.space != "hbm":
        raise UsageError(f"nl.{what} of a tile in {tensor.space}", code="beta1.space")
    return tensor


def load_transpose2d(src, *, mask=None, dtype=None):
    """A tile [N, M] in SBUF: the transpose of a tensor [M, N] in HBM."""
    src = _in_hbm(src, "load")
    if mask is not None:
        raise NotBuiltError("a mask on load_transpose2d", code="beta1.mask")
    rows, columns = src.shape
    kind = as_dtype(dtype or src.element)

    def run(t: Tensor) -> None:
        made = memory.load_transpose2d(src.read(), kind)
        nisa.tensor_copy(t.write(), made)

    current().flush()
    if mask is None:
        return Tensor.of(memory.load_transpose2d(src.read(), kind))
    return produce((columns, rows), kind, run)


def copy(src, *, mask=None, dtype=None):
    """A copy of a tile, cast to `dtype`."""
    return elements.copied(elements.tile(src, "src"), dtype, mask)


copy.nki_op = "copy"


def broadcast_to(src, *, shape):
    """A tile whose dimensions of size 1 are repeated to `shape`."""
    repeated = elements.tile(src, "src").broadcast_to(shape)
    if repeated._waiting is not None or repeated.space == "hbm":
        return repeated
    return elements.copied(repeated)


def expand_dims(data, axis):
    """A dimension of size 1 inserted."""
    return data.expand_dims(axis)


def transpose(x, *, dtype=None, mask=None):
    """The transpose of a 2-D tile, through the Tensor Engine."""
    from opentrn.nki.beta1 import isa

    return isa.nc_transpose(x, dtype=dtype, mask=mask)


def matmul(x, y, *, transpose_x=False, mask=None):
    """x · y in PSUM (float32); with `transpose_x`, x is already [K, M]."""
    from opentrn.nki.beta1 import isa

    left = x if transpose_x else copy(isa.nc_transpose(x))
    return isa.nc_matmul(left, y, mask=mask)


def gather_flattened(data, indices, *, mask=None, dtype=None):
    """`data[p, indices[p, i]]`, the free dimensions counted as one."""
    data, indices = elements.tile(data), elements.tile(indices, "indices")
    if mask is not None:
        raise NotBuiltError("a mask on gather_flattened", code="beta1.mask")
    kind = as_dtype(dtype or data.dtype)

    def run(t: Tensor) -> None:
        flat = data.reshape((data.shape[0], -1)).read()
        index = indices.reshape((indices.shape[0], -1)).read()
        nisa.nc_n_gather(t.reshape((t.shape[0], -1)).write(), flat, index)

    return produce(indices.shape, kind, run, casts=False)


def loop_reduce(x, op, loop_indices, *, dtype=None, mask=None):
    """The running `op` over the loops of `loop_indices`: assigned to a tile, it adds up there."""
    x = elements.tile(x, "x")
    kind, name = as_dtype(dtype or x.element), elements.operator_name(op)
    session = current()
    where = session.line or _line()
    key = (where, *loops.place(loop_indices))
    held = session.sums.get(key)

    def run(t: Tensor) -> None:
        if held is None:
            elements.under_mask(t, x.shape, kind, mask, lambda d, s: nisa.tensor_copy(d, cut(s)))
        else:
            merge_with(t, held)
        session.sums[key] = t

    def cut(spans: Any) -> NkiTensor:
        return elements.operand(x, spans, x.shape)

    def merge_with(t: Tensor, other: Tensor) -> None:
        def issue(dst: Any, spans: Any) -> None:
            elements.apply(dst, name, other, x, spans, x.shape)

        elements.under_mask(t, x.shape, kind, mask, issue)

    def merge(t: Tensor) -> None:
        if t.written():
            merge_with(t, t)
        else:
            run(t)

    return produce(x.shape, kind, run, merge=merge)


def _line() -> Any:
    from opentrn.base import user_line

    return user_line()


# ---------------------------------------------------------------------- programs


def program_id(axis):
    """Index of this program instance along an axis of the launch grid."""
    ids = current().program_ids
    if not 0 <= axis < len(ids):
        raise ShapeError(f"axis {axis} of a launch grid of {len(ids)}", code="beta1.launch")
    return ids[axis]


def num_programs(axes=None):
    """Number of program instances along the axes of the launch grid (all of them by default)."""
    grid = current().grid
    axes = range(len(grid)) if axes is None else axes
    return _product(grid[a] for a in (axes if hasattr(axes, "__iter__") else [axes]))


def program_ndim():
    """Number of axes of the launch grid; 0 without one."""
    grid = current().grid
    return 0 if grid == (1,) else len(grid)


def device_print(prefix, x, *, mask=None):
    """Print what a tile holds now."""
    print(f"{prefix} {x!r}")


NOT_BUILT = ("gemm_grid", "gemm_stationary_grid")


def __getattr__(name: str):
    """A clear refusal for names of the older API that do not exist here."""
    if name in NOT_BUILT:
        raise NotBuiltError(f"nl.{name} is not built", code="beta1.unsupported")
    raise AttributeError(f"module neuronxcc.nki.language has no attribute {name!r}")


__all__ = [
    "Tensor",
    "abs",
    "add",
    "affine_range",
    "all",
    "all_reduce",
    "arange",
    "arctan",
    "atomic_rmw",
    "bfloat16",
    "bfp16",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bool_",
    "broadcast_to",
    "ceil",
    "constants",
    "copy",
    "cos",
    "device_print",
    "divide",
    "dropout",
    "ds",
    "empty_like",
    "equal",
    "erf",
    "erf_dx",
    "exp",
    "expand_dims",
    "finfo",
    "float16",
    "float32",
    "float8_e4m3",
    "float8_e5m2",
    "floor",
    "fmod",
    "fp32",
    "full",
    "full_like",
    "gather_flattened",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_tanh",
    "gelu_dx",
    "greater",
    "greater_equal",
    "hbm",
    "int16",
    "int32",
    "int8",
    "invert",
    "left_shift",
    "less",
    "less_equal",
    "load",
    "load_transpose2d",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "loop_reduce",
    "matmul",
    "max",
    "maximum",
    "mean",
    "mgrid",
    "min",
    "minimum",
    "mish",
    "mod",
    "multiply",
    "nc",
    "ndarray",
    "negative",
    "not_equal",
    "num_programs",
    "ones",
    "par_dim",
    "power",
    "private_hbm",
    "prod",
    "program_id",
    "program_ndim",
    "psum",
    "rand",
    "random_seed",
    "reciprocal",
    "relu",
    "right_shift",
    "rms_norm",
    "rsqrt",
    "sbuf",
    "sequential_range",
    "shared_constant",
    "shared_hbm",
    "shared_identity_matrix",
    "sigmoid",
    "sign",
    "silu",
    "silu_dx",
    "sin",
    "softmax",
    "softplus",
    "spmd_dim",
    "sqrt",
    "square",
    "static_cast",
    "static_range",
    "store",
    "subtract",
    "sum",
    "tan",
    "tanh",
    "tfloat32",
    "tile_size",
    "transpose",
    "trunc",
    "uint16",
    "uint32",
    "uint8",
    "var",
    "where",
    "zeros",
    "zeros_like",
]
