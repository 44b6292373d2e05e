"""A kernel library for all targets: matrix products, attention, norms, movement, any size."""

from opentrn.nki.kernels.attention import attention
from opentrn.nki.kernels.attention_backward import attention_backward
from opentrn.nki.kernels.elementwise import elementwise, elementwise_together
from opentrn.nki.kernels.linear_norm import linear_norm
from opentrn.nki.kernels.matmul import (
    DMA_TURNS,
    KEPT_ROWS,
    Tiling,
    linear,
    matmul,
    turns_on_the_way,
)
from opentrn.nki.kernels.microscaling import matmul_mx
from opentrn.nki.kernels.movement import (
    concatenate,
    copy,
    embedding,
    pad,
    to_register,
    transpose,
    write,
)
from opentrn.nki.kernels.norms import layer_norm, rms_norm, softmax
from opentrn.nki.kernels.operations import OPERATIONS
from opentrn.nki.kernels.ordering import LONGEST_SORT, sort
from opentrn.nki.kernels.reduction import reduce
from opentrn.nki.kernels.scattering import scatter_rows, update_slice
from opentrn.nki.kernels.tiles import lies_turned

__all__ = [
    "DMA_TURNS",
    "KEPT_ROWS",
    "Tiling",
    "LONGEST_SORT",
    "OPERATIONS",
    "attention",
    "attention_backward",
    "concatenate",
    "copy",
    "elementwise",
    "elementwise_together",
    "embedding",
    "layer_norm",
    "lies_turned",
    "linear",
    "linear_norm",
    "matmul",
    "matmul_mx",
    "pad",
    "reduce",
    "rms_norm",
    "scatter_rows",
    "softmax",
    "sort",
    "to_register",
    "transpose",
    "turns_on_the_way",
    "update_slice",
    "write",
]
