"""`neuronxcc.nki.isa`: instructions that return their result as a tile, under a mask.

Each is one instruction of `nki.isa`; names, parameters and defaults are those of the NKI API
reference v2.26.1.
"""

from math import prod
from typing import Any

from opentrn.base import NotBuiltError, ShapeError, UsageError, float32, uint8, uint32
from opentrn.base import dtype as as_dtype
from opentrn.isa import dge_mode, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd
from opentrn.nki import isa as nisa
from opentrn.nki.beta1 import elements, masks
from opentrn.nki.beta1.elements import masked, operand, operator_name, tile
from opentrn.nki.beta1.grids import Grid
from opentrn.nki.beta1.pending import current
from opentrn.nki.beta1.tile import Tensor, produce
from opentrn.nki.isa import get_nc_version
from opentrn.nki.language import memory

tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
dma_engine = engine.dma
unknown_engine = engine.unknown

# Imported under its older name it is a package: `.constants` lies below it.
__path__: list[str] = []

LOWEST = -3.4028234663852886e38


def _column(value: Any, spans: Any) -> Any:
    """An operand with one element for each partition, cut to the partitions of the mask."""
    if not isinstance(value, Tensor):
        return operand(value)
    if value.size == value.shape[0]:
        value = value.squeezed((value.shape[0], 1))
    return value.read() if spans is None else value.read((spans[0], (0, value.shape[1])))


def _void(mask: Any, shape: tuple[int, ...], what: str) -> masks.Ranges | None:
    """The rectangle of a mask for an instruction that writes into tiles it is given."""
    current().flush()
    if mask is None or mask is True:
        return None
    spans = masks.rectangle(mask, shape)
    if spans is None:
        raise NotBuiltError(f"{what} under a mask that is no rectangle", code="beta1.mask")
    return spans


def _nothing(spans: Any) -> bool:
    return spans is not None and any(low >= high for low, high in spans)


def _result(value: Tensor | None, spans: Any) -> Any:
    """A given destination [P, …] of a reduction, cut to the partitions of the mask."""
    if value is None:
        return None
    return value.write() if spans is None else value.write((spans[0], *_full(value)[1:]))


def _bytes(predicate: Any) -> Tensor:
    """A predicate whose truth values are read as the bytes they are."""
    chosen = tile(predicate, "predicate")
    return chosen.view(uint8) if chosen.element == "bool" else chosen


def _full(value: Tensor) -> tuple:
    return tuple((0, n) for n in value.shape)


# ---------------------------------------------------------------------- scalar engine


def activation(op, data, *, bias=None, scale=1.0, reduce_op=None, reduce_res=None,
               reduce_cmd=reduce_cmd.idle, mask=None, dtype=None):
    """op(data · scale + bias), with an optional reduction along the free dimensions."""
    data, name, command = tile(data), operator_name(op), reduce_cmd

    def issue(dst: Any, spans: Any) -> None:
        nisa.activation(
            dst,
            name,
            operand(data, spans, data.shape),
            bias=_float_column(bias, spans),
            scale=_float_column(scale, spans),
            reduce_op=None if reduce_op is None else operator_name(reduce_op),
            reduce_res=_result(reduce_res, spans),
            reduce_cmd=command,
        )

    made = masked(data.shape, dtype or data.element, mask, issue)
    if reduce_res is not None:
        made.settle()
    return made


def _float_column(value: Any, spans: Any) -> Any:
    """A column as float32, which the Scalar Engine's scale must be."""
    return _column(value, spans)


def activation_reduce(op, data, *, reduce_op, reduce_res, bias=None, scale=1.0, mask=None,
                      dtype=None):
    """op(data · scale + bias), and its reduction along the free dimensions in `reduce_res`."""
    data, name = tile(data), operator_name(op)

    def issue(dst: Any, spans: Any) -> None:
        nisa.activation_reduce(
            dst,
            name,
            operand(data, spans, data.shape),
            operator_name(reduce_op),
            _result(reduce_res, spans),
            bias=_float_column(bias, spans),
            scale=_float_column(scale, spans),
        )

    made = masked(data.shape, dtype or data.element, mask, issue)
    made.settle()
    return made


# ---------------------------------------------------------------------- vector engine


def tensor_copy(src, *, mask=None, dtype=None, engine=engine.unknown):
    """A copy of a tile."""
    return elements.copied(tile(src, "src"), dtype, mask, engine)


def tensor_copy_predicated(*, src, dst, predicate, reverse_pred=False, mask=None, dtype=None):
    """dst = src where the predicate is not zero."""
    spans = _void(mask, dst.shape, "tensor_copy_predicated")
    if not _nothing(spans):
        source = operand(src, spans, dst.shape)
        pred = operand(_bytes(predicate), spans, dst.shape)
        dst.read()
        nisa.tensor_copy_predicated(dst.write(spans), source, pred, reverse_pred)


def tensor_tensor(data1, data2, op, *, dtype=None, mask=None, engine=engine.unknown):
    """data1 op data2 on two tiles."""
    data1, data2 = tile(data1, "data1"), tile(data2, "data2")
    shape = data1.shape if data1.ndim >= data2.ndim else data2.shape

    def issue(dst: Any, spans: Any) -> None:
        one, two = operand(data1, spans, shape), operand(data2, spans, shape)
        nisa.tensor_tensor(dst, one, two, operator_name(op), engine)

    return masked(shape, dtype or elements.promoted(data1, data2), mask, issue)


def tensor_scalar(data, op0, operand0, reverse0=False, op1=None, operand1=None, reverse1=False, *,
                  dtype=None, mask=None, engine=engine.unknown):
    """(data op0 operand0) op1 operand1; operands are numbers or one value for each partition."""
    data = tile(data)

    def issue(dst: Any, spans: Any) -> None:
        second = None if op1 is None else operator_name(op1)
        nisa.tensor_scalar(
            dst, operand(data, spans, data.shape), operator_name(op0), _wide(operand0, spans),
            reverse0, second, _wide(operand1, spans), reverse1, engine,
        )

    return masked(data.shape, dtype or data.element, mask, issue)


def _wide(value: Any, spans: Any) -> Any:
    """A column operand as float32 (integers stay): what the engine broadcasts."""
    if isinstance(value, Tensor) and value.element.kind == "float" and value.element != float32:
        made = memory.ndarray((value.shape[0], 1), float32, memory.sbuf)
        nisa.tensor_copy(made, _column(value, None))
        return made if spans is None else made[spans[0][0] : spans[0][1], :]
    return _column(value, spans)


def scalar_tensor_tensor(*, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False,
                         dtype=None, mask=None):
    """(data op0 operand0) op1 operand1, the second operand being a tile."""
    data, second = tile(data), tile(operand1, "operand1")

    def issue(dst: Any, spans: Any) -> None:
        nisa.scalar_tensor_tensor(
            dst, operand(data, spans, data.shape), operator_name(op0), _wide(operand0, spans),
            operator_name(op1), operand(second, spans, data.shape), reverse0, reverse1,
        )

    return masked(data.shape, dtype or elements.promoted(data, second), mask, issue)


def reciprocal(data, *, dtype=None, mask=None):
    """1 / data."""
    data = tile(data)
    return masked(
        data.shape,
        dtype or data.element,
        mask,
        lambda dst, spans: nisa.reciprocal(dst, operand(data, spans, data.shape)),
    )


def tensor_reduce(op, data, axis, *, mask=None, dtype=None, negate=False, keepdims=False):
    """Reduction along free axes; the mask says which elements take part."""
    data = tile(data)
    axes = sorted(a % data.ndim for a in (axis if isinstance(axis, list | tuple) else [axis]))
    if not axes or axes[0] == 0:
        raise ShapeError(f"a reduction along axes {axes}", code="beta1.reduce")
    kept = [a for a in range(data.ndim) if a not in axes]
    shape = tuple(data.shape[a] if a in kept or not keepdims else 1 for a in range(data.ndim))
    if not keepdims:
        shape = tuple(data.shape[a] for a in kept)
    shape = shape if len(shape) > 1 else (*shape, 1)
    spans = masks.rectangle(mask, data.shape)
    if spans is None:
        raise NotBuiltError("a reduction under a mask that is no rectangle", code="beta1.mask")

    def run(t: Tensor) -> None:
        if _nothing(spans):
            return
        cut = data.read(spans).permute((*kept, *axes)) if axes[-1] != data.ndim - 1 or axes != list(
            range(axes[0], data.ndim)
        ) else data.read(spans)
        rows = [spans[a] for a in kept]
        if keepdims:
            rows = [spans[a] if a in kept else (0, 1) for a in range(data.ndim)]
        rows = rows if len(rows) > 1 else [*rows, (0, 1)]
        into = t.write(tuple(rows))
        flat = cut.shape[: len(kept)]
        last = tuple(range(len(kept), data.ndim))
        into = into.reshape(flat if len(flat) > 1 else (*flat, 1))
        nisa.tensor_reduce(into, operator_name(op), cut, last, negate=negate)

    return produce(shape, dtype or data.element, run)


def tensor_partition_reduce(op, data, *, mask=None, dtype=None):
    """Reduction along partitions, on GpSimd."""
    data = tile(data)
    return masked(
        (1, *data.shape[1:]),
        dtype or data.element,
        mask,
        lambda dst, spans: nisa.tensor_partition_reduce(dst, operator_name(op), operand(data)),
    )


def tensor_scalar_reduce(*, data, op0, operand0, reduce_op, reduce_res, reverse0=False, dtype=None,
                         mask=None):
    """data op0 operand0, and its reduction along the free dimensions in `reduce_res`."""
    data = tile(data)

    def issue(dst: Any, spans: Any) -> None:
        nisa.tensor_scalar_reduce(
            dst, operand(data, spans, data.shape), operator_name(op0), _wide(operand0, spans),
            operator_name(reduce_op), _result(reduce_res, spans), reverse0,
        )

    made = masked(data.shape, dtype or data.element, mask, issue)
    made.settle()
    return made


def tensor_scalar_cumulative(*, src, dst, op0, op1, imm0, imm1=None,
                             reduce_cmd=reduce_cmd.reset_reduce):
    """dst[i] = running op1 of (src[i] op0 imm0), starting as `reduce_cmd` says."""
    current().flush()
    # The older API takes a start value with every command, though only load_reduce uses it.
    start = _wide(imm1, None) if reduce_cmd.name == "load_reduce" else None
    nisa.tensor_scalar_cumulative(
        dst.write(), operand(tile(src)), operator_name(op0), operator_name(op1),
        _wide(imm0, None), start, reduce_cmd,
    )


def tensor_tensor_scan(data0, data1, initial, op0, op1, reverse0=False, reverse1=False, *,
                       dtype=None, mask=None):
    """r[i] = (r[i-1] op0 data0[i]) op1 data1[i] along the free dimension."""
    data0, data1 = tile(data0, "data0"), tile(data1, "data1")

    def issue(dst: Any, spans: Any) -> None:
        nisa.tensor_tensor_scan(
            dst, operand(data0, spans, data0.shape), operand(data1, spans, data0.shape),
            _wide(initial, spans), operator_name(op0), operator_name(op1), reverse0, reverse1,
        )

    return masked(data0.shape, dtype or elements.promoted(data0, data1), mask, issue)


def select_reduce(*, dst, predicate, on_true, on_false, reduce_res=None,
                  reduce_cmd=reduce_cmd.idle, reduce_op="maximum", reverse_pred=False, mask=None,
                  dtype=None):
    """dst = predicate ? on_true : on_false, with an optional reduction."""
    spans = _void(mask, dst.shape, "select_reduce")
    if not _nothing(spans):
        source = operand(on_true, spans, dst.shape)
        pred = operand(_bytes(predicate), spans, dst.shape)
        nisa.select_reduce(
            dst.write(spans), pred, source, _column(on_false, spans), _result(reduce_res, spans),
            reduce_cmd, operator_name(reduce_op), reverse_pred,
        )


def range_select(*, on_true_tile, comp_op0, comp_op1, bound0, bound1, reduce_cmd=reduce_cmd.idle,
                 reduce_res=None, reduce_op="maximum", range_start=0, on_false_value=LOWEST,
                 mask=None, dtype=None):
    """on_true_tile where its position lies between the bounds of its partition."""
    data, command = tile(on_true_tile, "on_true_tile"), reduce_cmd

    def issue(dst: Any, spans: Any) -> None:
        nisa.range_select(
            dst, operand(data, spans, data.shape), operator_name(comp_op0), operator_name(comp_op1),
            _column(bound0, spans), _column(bound1, spans), command, _result(reduce_res, spans),
            operator_name(reduce_op), range_start, float(on_false_value),
        )

    made = masked(data.shape, dtype or data.element, mask, issue)
    made.settle()
    return made


def bn_stats(data, *, mask=None, dtype=None):
    """Count, mean and variance of even and odd elements: [P, 6]."""
    return _pooled("bn_stats", nisa.bn_stats, data, 6, mask, dtype or float32)


def bn_aggr(data, *, mask=None, dtype=None):
    """Mean and variance from bn_stats results: [P, 2]."""
    return _pooled("bn_aggr", nisa.bn_aggr, data, 2, mask, dtype)


def max8(*, src, mask=None, dtype=None):
    """The eight largest elements of each partition, falling."""
    return _pooled("max8", nisa.max8, src, 8, mask, dtype)


def _pooled(name: str, instruction: Any, data: Any, columns: int, mask: Any, dtype: Any) -> Tensor:
    """An instruction from [P, F] to [P, columns]; the mask says which elements take part."""
    data = tile(data)
    spans = masks.rectangle(mask, data.shape)
    if spans is None:
        raise NotBuiltError(f"{name} under a mask that is no rectangle", code="beta1.mask")

    def run(t: Tensor) -> None:
        if not _nothing(spans):
            instruction(t.write((spans[0], (0, columns))), data.read(spans))

    return produce((data.shape[0], columns), dtype or data.element, run)


def nc_find_index8(*, data, vals, mask=None, dtype=None):
    """Positions of eight values in each partition, as uint32."""
    data, vals = tile(data), tile(vals, "vals")
    spans = masks.rectangle(mask, data.shape) or _full(data)

    def run(t: Tensor) -> None:
        nisa.nc_find_index8(
            t.write((spans[0], (0, 8))), data.read(spans), vals.read((spans[0], (0, 8)))
        )

    return produce((data.shape[0], 8), dtype or uint32, run, casts=False)


def nc_match_replace8(*, data, vals, imm, dst_idx=None, mask=None, dtype=None):
    """data with the first match of each of eight values replaced by `imm`."""
    data, vals = tile(data), tile(vals, "vals")

    def issue(dst: Any, spans: Any) -> None:
        rows = None if spans is None else (spans[0], (0, 8))
        index = None if dst_idx is None else dst_idx.write(rows)
        nisa.nc_match_replace8(
            dst, operand(data, spans, data.shape), vals.read(rows), operand(imm), index
        )

    made = masked(data.shape, dtype or data.element, mask, issue)
    if dst_idx is not None and mask is not None:
        made.settle()
    return made


# ---------------------------------------------------------------------- tensor engine


def nc_matmul(stationary, moving, *, is_stationary_onezero=False, is_moving_onezero=False,
              is_transpose=False, tile_position=(), tile_size=(), mask=None,
              perf_mode=matmul_perf_mode.none):
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
        if _nothing(spans):
            return
        a = left.read((spans[0], *_full(left)[1:])) if spans else left.read()
        b = right.read((spans[0], *_full(right)[1:])) if spans else right.read()
        nisa.nc_matmul(dst, a, b, accumulate=accumulate, **options)

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
    if spans is None or (
        not _nothing(spans) and any(span != (0, n) for span, n in zip(spans[1:], shape[1:], strict=True))
    ):
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
        if _nothing(spans):
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
        made = data if pred else memory.full(data.shape, float(on_false_value), dtype or data.element)
        return elements.copied(data, dtype, mask) if pred else Tensor.of(made)
    conditions = masks.aligned_conditions(pred, data.shape)

    def issue(dst: Any, spans: Any) -> None:
        source = operand(data, spans, data.shape)
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


def memset(shape, value, dtype, *, mask=None, engine=engine.unknown):
    """A tile of one number."""
    shape = tuple(shape) if len(shape) > 1 else (*shape, 1)
    number = operand(value)
    return masked(shape, dtype, mask, lambda dst, spans: nisa.memset(dst, number, engine))


def dropout(data, prob, *, mask=None, dtype=None):
    """data with elements set to zero with probability `prob` (a number or a column)."""
    data = tile(data)

    def issue(dst: Any, spans: Any) -> None:
        nisa.dropout(dst, operand(data, spans, data.shape), _column(prob, spans))

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
    spans = _void(mask, dst.shape, "nc_stream_shuffle")
    if not _nothing(spans):
        source = operand(src, spans, dst.shape)
        nisa.nc_stream_shuffle(dst.write(spans), source, list(shuffle_mask))


def sequence_bounds(*, segment_ids, dtype=None):
    """First and last position of the segment each position belongs to: [1, 2, n]."""
    ids = tile(segment_ids, "segment_ids")
    shape = (ids.shape[0], 2, ids.shape[1])
    return produce(
        shape, dtype or ids.element, lambda t: nisa.sequence_bounds(t.write(), ids.read()),
        casts=False,
    )


# ---------------------------------------------------------------------- DMA


def dma_copy(*, dst, src, mask=None, dst_rmw_op=None, oob_mode=oob_mode.error,
             dge_mode=dge_mode.unknown):
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


NOT_BUILT = ("builtin_custom_op", "tensor_copy_dynamic_dst", "tensor_copy_dynamic_src")


def __getattr__(name: str):
    """A clear refusal for names of the older API that do not exist here."""
    if name in NOT_BUILT:
        raise NotBuiltError(f"nisa.{name} is not built", code="beta1.unsupported")
    raise AttributeError(f"module neuronxcc.nki.isa has no attribute {name!r}")


