"""A kernel library for all targets: matrix products, attention, norms, movement, any size."""

from opentrn.nki.kernels.attention import attention
from opentrn.nki.kernels.matmul import linear, matmul
from opentrn.nki.kernels.movement import copy, embedding
from opentrn.nki.kernels.norms import layer_norm

__all__ = ["attention", "copy", "embedding", "layer_norm", "linear", "matmul"]
