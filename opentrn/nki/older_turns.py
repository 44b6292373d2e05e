"""What calls of NKI 0.1 to 0.5 become where more than their signature differed.

Each takes today's function, the arguments by their old names, and `note`, which notices a
migration.  Source: nki/migration/index.rst of aws-neuron-sdk v2.32.0.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki.language.memory import ndarray, region_of, sbuf
from opentrn.nki.session import current
from opentrn.nki.tensor import MemoryRegion, NkiTensor

Note = Callable[..., None]
FP32_MIN = float(np.finfo(np.float32).min)


def dma_copy(now: Callable, given: dict, note: Note) -> Any:
    """A PSUM source went through; `dst_rmw_op` made it a read-modify-write."""
    how, unique = given.pop("dst_rmw_op"), given.pop("unique_indices", True)
    src, dst = given["src"], given["dst"]
    if isinstance(src, NkiTensor) and src.buffer is MemoryRegion.psum:
        note(
            "the DMA does not read PSUM since NKI 0.3",
            "copy into a tile in SBUF with nisa.tensor_copy first",
        )
        copied = ndarray(src.shape, src.dtype, sbuf)
        nisa.tensor_copy(copied, src)
        given["src"] = src = copied
    if how is None:
        return now(**given)
    note("`dst_rmw_op` was removed in NKI 0.3", "nisa.dma_compute(dst, [dst, src], reduce_op)")
    return nisa.dma_compute(
        dst,
        [dst, src],
        how,
        unique_indices=unique,
        oob_mode=given["oob_mode"],
        name=given["name"],
    )


def dma_transpose(now: Callable, given: dict, note: Note) -> Any:
    """A result of lower rank was padded."""
    src, dst = given["src"], given["dst"]
    axes = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}.get(src.ndim)
    want = tuple(src.shape[a] for a in axes) if axes else dst.shape
    if dst.ndim < src.ndim and dst.size == prod(want):
        note(
            f"`dst` {list(dst.shape)} has a lower rank than `src` {list(src.shape)}: since "
            "NKI 0.4 it must have the permuted shape",
            f"give `dst` the shape {list(want)}",
        )
        given["dst"] = dst.reshape(want)
    return now(**given)


def memset(now: Callable, given: dict, note: Note) -> Any:
    """Floats were converted to the integers of the tile."""
    dst, value = given["dst"], given["value"]
    if isinstance(value, float) and isinstance(dst, NkiTensor) and dst.dtype.is_integer:
        given["value"] = int(np.rint(value))
        note(
            f"{value} in {dst.dtype}: since NKI 0.3 the value has the type of the tile",
            f"pass value={given['value']}",
        )
    return now(**given)


def quantize_mx(now: Callable, given: dict, note: Note) -> Any:
    """The block scale doubled in 0.5; the older one is not modelled."""
    note(
        "since NKI 0.5 the block scale is twice that of the OCP sample algorithm; it is so here",
        "compare with values of NKI 0.5 or later",
    )
    return now(**given)


def any_engine(now: Callable, given: dict, note: Note) -> Any:
    """The engine could be left open; it is that of today's default."""
    if given["engine"] is nisa.engine.unknown:
        del given["engine"]
    return now(**given)


def range_select(now: Callable, given: dict, note: Note) -> Any:
    """Whatever was passed, the fill was the lowest float32 and the accumulators were reset."""
    reset = nisa.reduce_cmd.reset_reduce
    usual = given["reduce_cmd"] in (reset, nisa.reduce_cmd.idle)
    if not usual or np.float32(given["on_false_value"]) not in (0.0, FP32_MIN):
        note(
            "NKI 0.2 took reduce_cmd for reset_reduce and on_false_value for the lowest float32, "
            "whatever was passed; since 0.3 they count",
            "leave both out",
        )
    given |= {"reduce_cmd": reset, "on_false_value": FP32_MIN}
    given["range_start"] = int(given["range_start"])
    return now(**given)


def register_move(now: Callable, given: dict, note: Note) -> Any:
    """`imm` is `src` now."""
    note("`imm` is called `src` since NKI 0.3", "nisa.register_move(dst, src)")
    return now(given["dst"], given["imm"])


def sendrecv(now: Callable, given: dict, note: Note) -> Any:
    """A flag became an enumeration."""
    chosen = nisa.dma_engine.dma
    if given.pop("use_gpsimd_dma"):
        chosen = nisa.dma_engine.gpsimd_dma
        note("`use_gpsimd_dma` became `dma_engine` in NKI 0.3")
    return now(**given, dma_engine=chosen)


def always(now: Callable, given: dict, note: Note) -> Any:
    """The function is gone."""
    note("removed in NKI 0.4: nisa.tensor_copy with .ap(scalar_offset=...) does it")
    return now(**given)


def tensor_reduce(now: Callable, given: dict, note: Note) -> Any:
    """Axis 1 meant the last free dimension, also of tiles with several."""
    data, axis = given["data"], given["axis"]
    one = axis[0] if isinstance(axis, list | tuple) and len(axis) == 1 else axis
    if isinstance(data, NkiTensor) and data.ndim > 2 and type(one) is int and one == 1:
        last = data.ndim - 1
        note(
            f"axis=1 of a tile with {data.ndim} dimensions is the last one, {last}, in NKI 0.2 "
            "and dimension 1 since 0.3",
            f"pass axis={last}",
        )
        given["axis"] = last
    return now(**given)


def current_rank(now: Callable, given: dict, note: Note) -> Any:
    """The number of channels is no argument any more."""
    if given.pop("num_channels") != 1:
        note("`num_channels` was removed in NKI 0.3")
    return now(**given)


def made(now: Callable, given: dict, note: Note) -> Any:
    """Buffers had names, and none meant SBUF."""
    buffer = given["buffer"]
    if isinstance(buffer, str):
        note("strings for `buffer` went with NKI 0.3", f"pass buffer=nl.{buffer}")
    given["buffer"] = sbuf if buffer is None else region_of(buffer)
    return now(**given)


def num_programs(now: Callable, given: dict, note: Note) -> Any:
    """Without an axis it was the size of the whole grid."""
    axes, grid = given["axes"], current().grid
    if axes is None and len(grid) > 1:
        note("`axes` is 0 when left out since NKI 0.3", f"pass axes={tuple(range(len(grid)))}")
    return now(tuple(range(len(grid))) if axes is None else axes)


def shared_constant(now: Callable, given: dict, note: Note) -> Any:
    """The constant could be converted on the way."""
    constant, kind = given["constant"], given["dtype"]
    if kind is None or isinstance(constant, str):
        return now(constant)
    note("`dtype` was removed in NKI 0.3", "convert the array itself")
    return now(np.asarray(constant).astype(as_dtype(kind).storage))
