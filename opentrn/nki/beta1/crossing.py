"""`neuronxcc.nki.isa`: instructions that cross partitions: Tensor Engine, GpSimd, DMA."""

from math import prod
from typing import Any

from opentrn.base import NotBuiltError, UsageError, float32
from opentrn.base import dtype as as_dtype
from opentrn.isa import dge_mode, engine, matmul_perf_mode, oob_mode
from opentrn.nki import isa as nisa
from opentrn.nki.beta1 import elements, masks
from opentrn.nki.beta1.elements import masked, operand, operator_name, tile
from opentrn.nki.beta1.grids import Grid
from opentrn.nki.beta1.operands import column, nothing, void, whole
from opentrn.nki.beta1.pending import current
from opentrn.nki.beta1.tile import Tensor, produce
from opentrn.nki.language import memory

# ---------------------------------------------------------------------- tensor engine


def nc_matmul(
    stationary,
    moving,
    *,
    is_stationary_onezero=False,
    is_moving_onezero=False,
    is_transpose=False,
    tile_position=(),
    tile_size=(),
    mask=None,
    perf_mode=matmul_perf_mode.none,
):
    """stationaryᵀ · moving in PSUM as float32; the mask may cut the contraction."""
    left, right = tile(stationary, "stationary"), tile(moving, "moving")
    doubled = "double_row" in str(getattr(perf_mode, "name", perf_mode))
    mode = matmul_perf_mode.double_row if doubled else matmul_perf_mode.none
    free = right.shape[2:] if doubled else right.shape[1:]
    shape = (prod(left.shape[2:] if doubled else left.shape[1:]), *free)
    spans = _contraction(mask, right.shape)
    options = {
        "is_stationary_onezero": is_stationary_onezero,
        "is_moving_onezero": is_moving_onezero,
        "is_transpose": is_transpose,
        "tile_position": tuple(tile_position),
        "tile_size": tuple(tile_size),
        "perf_mode": mode,
    }

    def into(dst: Any, accumulate: Any) -> None:
        if nothing(spans):
            return
        a = left.read((spans[0], *whole(left)[1:])) if spans else left.read()
        b = right.read((spans[0], *whole(right)[1:])) if spans else right.read()
        nisa.nc_matmul(dst, _in_sbuf(a), _in_sbuf(b), accumulate=accumulate, **options)

    return produce(
        shape,
        float32,
        lambda t: into(t.begin(), False),
        "psum",
        add=lambda t: into(*t.product()),
        casts=False,
    )


def _contraction(mask: Any, shape: tuple[int, ...]) -> masks.Ranges | None:
    """The mask of a matmul: partitions only."""
    if mask is None or mask is True:
        return None
    spans = masks.rectangle(mask, shape)
    free = tuple((0, n) for n in shape[1:])
    if spans is None or (not nothing(spans) and spans[1:] != free):
        raise NotBuiltError("a matmul under a mask on free dimensions", code="beta1.mask")
    return spans


def nc_transpose(data, *, mask=None, dtype=None, engine=engine.unknown):
    """The transpose of a 2-D tile: in PSUM by the Tensor Engine, in SBUF by the Vector Engine."""
    data = tile(data)
    shape = (prod(data.shape[1:]), data.shape[0])
    small = shape[0] <= 32 and shape[1] <= 32
    vector = engine.name == "vector" or (data.space == "psum" and small)
    spans = masks.rectangle(mask, data.shape)
    if spans is None:
        raise NotBuiltError("a transpose under a mask that is no rectangle", code="beta1.mask")
    kind = as_dtype(dtype or data.element)

    def run(t: Tensor) -> None:
        if nothing(spans):
            return
        into = t.write((spans[1], spans[0])) if data.ndim == 2 else t.write()
        given = data.read(spans)
        if into.dtype == given.dtype:
            nisa.nc_transpose(into, given, engine)
            return
        turned = memory.ndarray(into.shape, given.dtype, into.buffer)
        nisa.nc_transpose(turned, given, engine)
        nisa.tensor_copy(into, turned)

    return produce(shape, kind, run, "sbuf" if vector else "psum", casts=False)


# ---------------------------------------------------------------------- gpsimd and others


def iota(expr, dtype, *, mask=None):
    """A tile with the values of an index expression."""
    if not isinstance(expr, Grid):
        raise UsageError(f"iota of {expr!r}", code="beta1.affine")
    shape = expr.shape if expr.ndim > 1 else (1, *expr.shape)
    steps = expr.spread(shape)

    def issue(dst: Any, spans: Any) -> None:
        low = [a for a, _ in spans] if spans else [0] * len(shape)
        offset = expr.offset + sum(s * a for s, a in zip(steps, low, strict=True))
        nisa.iota(dst, **elements.affine(tuple(dst.shape), steps), offset=offset)

    return masked(shape, dtype, mask, issue, casts=False)


def affine_select(pred, on_true_tile, on_false_value, *, mask=None, dtype=None):
    """on_true_tile where the affine predicate holds, a number elsewhere."""
    data = tile(on_true_tile, "on_true_tile")
    if isinstance(pred, bool):
        if pred:
            return elements.copied(data, dtype, mask)
        return memset(data.shape, float(on_false_value), dtype or data.element, mask=mask)
    conditions = masks.aligned_conditions(pred, data.shape)

    def issue(dst: Any, spans: Any) -> None:
        source = _in_sbuf(operand(data, spans, data.shape))
        low = [a for a, _ in spans] if spans else [0] * data.ndim
        for start, steps in conditions:
            offset = start + sum(s * a for s, a in zip(steps, low, strict=True))
            nisa.affine_select(
                dst,
                **elements.affine(tuple(dst.shape), steps),
                on_true_tile=source,
                on_false_value=float(on_false_value),
                cmp_op="greater_equal",
                offset=offset,
            )
            source = dst

    return masked(data.shape, dtype or data.element, mask, issue)


def _in_sbuf(tensor: Any) -> Any:
    """The tile, copied out of PSUM for an engine that does not read it there."""
    if tensor.buffer is not memory.psum:
        return tensor
    made = memory.ndarray(tensor.shape, tensor.dtype, memory.sbuf)
    nisa.tensor_copy(made, tensor)
    return made


def memset(shape, value, dtype, *, mask=None, engine=engine.unknown):
    """A tile of one number."""
    shape = tuple(shape) if len(shape) > 1 else (*shape, 1)
    number = operand(value)
    return masked(shape, dtype, mask, lambda dst, spans: nisa.memset(dst, number, engine))


def dropout(data, prob, *, mask=None, dtype=None):
    """data with elements set to zero with probability `prob` (a number or a column)."""
    data = tile(data)

    def issue(dst: Any, spans: Any) -> None:
        nisa.dropout(dst, operand(data, spans, data.shape), column(prob, spans))

    return masked(data.shape, dtype or data.element, mask, issue)


def local_gather(src_buffer, index, num_elem_per_idx=1, num_valid_indices=None, *, mask=None):
    """Elements gathered by the index lists of each GpSimd core (16 partitions)."""
    data, index = tile(src_buffer, "src_buffer"), tile(index, "index")
    count = num_valid_indices or index.size // (index.shape[0] // 16)
    shape = (data.shape[0], index.shape[1], 16, num_elem_per_idx)
    if prod(shape[1:]) != count * num_elem_per_idx:
        shape = (data.shape[0], count, num_elem_per_idx)

    def issue(dst: Any, spans: Any) -> None:
        nisa.local_gather(dst, data.read(), index.read(), num_elem_per_idx, num_valid_indices)

    return masked(shape, data.element, mask, issue, casts=False)


def nc_stream_shuffle(src, dst, shuffle_mask, *, dtype=None, mask=None):
    """dst partition i of each 32 takes src partition shuffle_mask[i]."""
    spans = void(mask, dst.shape, "nc_stream_shuffle")
    if not nothing(spans):
        source = operand(src, spans, dst.shape)
        nisa.nc_stream_shuffle(dst.write(spans), source, list(shuffle_mask))


def sequence_bounds(*, segment_ids, dtype=None):
    """First and last position of the segment each position belongs to: [1, 2, n]."""
    ids = tile(segment_ids, "segment_ids")
    shape = (ids.shape[0], 2, ids.shape[1])
    return produce(
        shape,
        dtype or ids.element,
        lambda t: nisa.sequence_bounds(t.write(), ids.read()),
        casts=False,
    )


# ---------------------------------------------------------------------- DMA


def dma_copy(
    *, dst, src, mask=None, dst_rmw_op=None, oob_mode=oob_mode.error, dge_mode=dge_mode.unknown
):
    """dst = src by the DMA engines; with `dst_rmw_op`, dst = dst + src."""
    current().flush()
    if src.shape != dst.shape and src.size == dst.size:
        src = src.squeezed(dst.shape)
    if dst_rmw_op is not None:
        name = operator_name(dst_rmw_op)
        nisa.dma_compute(
            dst.write(), [src.read(), dst.read()], name, oob_mode=oob_mode, unique_indices=True
        )
        return
    for spans in masks.rectangles(mask, dst.shape):
        nisa.dma_copy(dst.write(spans), src.read(spans), oob_mode=oob_mode, dge_mode=dge_mode)


def dma_transpose(src, *, axes=None, mask=None, dtype=None, dge_mode=dge_mode.unknown):
    """The transpose of a tensor in HBM or a tile, by the DMA engines."""
    src = tile(src, "src")
    order = tuple(axes) if axes else tuple(reversed(range(src.ndim)))
    shape = tuple(src.shape[a] for a in order)
    kind = as_dtype(dtype or src.element)
    if mask is not None:
        raise NotBuiltError("a mask on dma_transpose", code="beta1.mask")

    def run(t: Tensor) -> None:
        if kind == src.element and src.itemsize == 2:
            nisa.dma_transpose(t.write(), src.read(), axes=axes, dge_mode=dge_mode)
        else:
            _strided_transpose(t.write(), src.read(), order)

    return produce(shape, kind, run, casts=False)


def _strided_transpose(dst: Any, src: Any, order: tuple[int, ...]) -> None:
    """A transpose by element-wise descriptors, for dtypes the transposer does not take."""
    if src.buffer.space == "hbm":
        nisa.dma_copy(dst, src.permute(order))
        return
    through = memory.ndarray(src.shape, src.dtype, memory.private_hbm)
    nisa.dma_copy(through, src)
    nisa.dma_copy(dst, through.permute(order))
