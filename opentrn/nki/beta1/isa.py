"""`neuronxcc.nki.isa`: instructions that return their result as a tile, under a mask.

Each is one instruction of `nki.isa`; names, parameters and defaults are those of the NKI API
reference v2.26.1.
"""

from opentrn.base import NotBuiltError
from opentrn.isa import dge_mode, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd
from opentrn.nki.beta1 import constants
from opentrn.nki.beta1.crossing import (
    affine_select,
    dma_copy,
    dma_transpose,
    dropout,
    iota,
    local_gather,
    memset,
    nc_matmul,
    nc_stream_shuffle,
    nc_transpose,
    sequence_bounds,
)
from opentrn.nki.beta1.lanes import (
    activation,
    activation_reduce,
    bn_aggr,
    bn_stats,
    max8,
    nc_find_index8,
    nc_match_replace8,
    range_select,
    reciprocal,
    scalar_tensor_tensor,
    select_reduce,
    tensor_copy,
    tensor_copy_dynamic_dst,
    tensor_copy_dynamic_src,
    tensor_copy_predicated,
    tensor_partition_reduce,
    tensor_reduce,
    tensor_scalar,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor,
    tensor_tensor_scan,
)
from opentrn.nki.isa import get_nc_version

tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
dma_engine = engine.dma
unknown_engine = engine.unknown

# Imported under its older name it is a package: `.constants` lies below it.
__path__: list[str] = []

NOT_BUILT = ("builtin_custom_op",)


def __getattr__(name: str):
    """A clear refusal for names of the older API that do not exist here."""
    if name in NOT_BUILT:
        raise NotBuiltError(f"nisa.{name} is not built", code="beta1.unsupported")
    raise AttributeError(f"module neuronxcc.nki.isa has no attribute {name!r}")


__all__ = [
    "activation",
    "activation_reduce",
    "affine_select",
    "bn_aggr",
    "bn_stats",
    "constants",
    "dge_mode",
    "dma_copy",
    "dma_engine",
    "dma_transpose",
    "dropout",
    "engine",
    "get_nc_version",
    "gpsimd_engine",
    "iota",
    "local_gather",
    "matmul_perf_mode",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_stream_shuffle",
    "nc_transpose",
    "nc_version",
    "oob_mode",
    "range_select",
    "reciprocal",
    "reduce_cmd",
    "scalar_engine",
    "scalar_tensor_tensor",
    "select_reduce",
    "sequence_bounds",
    "tensor_copy",
    "tensor_copy_dynamic_dst",
    "tensor_copy_dynamic_src",
    "tensor_copy_predicated",
    "tensor_engine",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "unknown_engine",
    "vector_engine",
]
