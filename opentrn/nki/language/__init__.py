"""`nki.language`: tensors, loops and math on tiles, written on top of `nki.isa`."""

from opentrn.base import dtypes as _dtypes
from opentrn.nki.language.loops import (
    affine_range,
    dynamic_range,
    fori_loop,
    no_reorder,
    sequential_range,
    static_range,
    while_loop,
)
from opentrn.nki.language.memory import (
    device_print,
    ds,
    empty_like,
    full,
    hbm,
    is_hbm,
    is_on_chip,
    is_psum,
    is_sbuf,
    load,
    load_transpose2d,
    ndarray,
    num_programs,
    ones,
    private_hbm,
    program_id,
    program_ndim,
    psum,
    sbuf,
    shared_constant,
    shared_hbm,
    shared_identity_matrix,
    store,
    tile_size,
    zeros,
    zeros_like,
)
from opentrn.nki.tensor import MemoryRegion, NKIObject, NkiTensor

for _dtype in _dtypes.ON_CHIP:
    globals()[str(_dtype)] = _dtype
