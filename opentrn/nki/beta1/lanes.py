"""`neuronxcc.nki.isa`: instructions of the Scalar and Vector Engines."""

from typing import Any

from opentrn.base import NotBuiltError, ShapeError, float32, uint32
from opentrn.base import dtype as as_dtype
from opentrn.isa import engine, reduce_cmd
from opentrn.nki import isa as nisa
from opentrn.nki.beta1 import elements, masks
from opentrn.nki.beta1.elements import masked, operand, operator_name, tile
from opentrn.nki.beta1.operands import bytes_of, column, nothing, result, void, whole
from opentrn.nki.beta1.pending import current
from opentrn.nki.beta1.tile import Tensor, produce
from opentrn.nki.language import memory

LOWEST = -3.4028234663852886e38


# ---------------------------------------------------------------------- scalar engine


def activation(
    op,
    data,
    *,
    bias=None,
    scale=1.0,
    reduce_op=None,
    reduce_res=None,
    reduce_cmd=reduce_cmd.idle,
    mask=None,
    dtype=None,
):
    """op(data · scale + bias), with an optional reduction along the free dimensions."""
    data, name, command = tile(data), operator_name(op), reduce_cmd

    def issue(dst: Any, spans: Any) -> None:
        nisa.activation(
            dst,
            name,
            operand(data, spans, data.shape),
            bias=column(bias, spans),
            scale=column(scale, spans),
            reduce_op=None if reduce_op is None else operator_name(reduce_op),
            reduce_res=result(reduce_res, spans),
            reduce_cmd=command,
        )

    made = masked(data.shape, dtype or data.element, mask, issue)
    if reduce_res is not None:
        made.settle()
    return made


def activation_reduce(
    op, data, *, reduce_op, reduce_res, bias=None, scale=1.0, mask=None, dtype=None
):
    """op(data · scale + bias), and its reduction along the free dimensions in `reduce_res`."""
    data, name = tile(data), operator_name(op)

    def issue(dst: Any, spans: Any) -> None:
        nisa.activation_reduce(
            dst,
            name,
            operand(data, spans, data.shape),
            operator_name(reduce_op),
            result(reduce_res, spans),
            bias=column(bias, spans),
            scale=column(scale, spans),
        )

    made = masked(data.shape, dtype or data.element, mask, issue)
    made.settle()
    return made


# ---------------------------------------------------------------------- vector engine


def tensor_copy(src, *, mask=None, dtype=None, engine=engine.unknown):
    """A copy of a tile."""
    return elements.copied(tile(src, "src"), dtype, mask, engine)


def tensor_copy_dynamic_src(src, *, mask=None, dtype=None, engine=engine.unknown):
    """A copy of a tile whose place in its partitions an integer in SBUF gives."""
    return elements.copied(tile(src, "src"), dtype, mask, engine)


def tensor_copy_dynamic_dst(*, dst, src, mask=None, dtype=None, engine=engine.unknown):
    """dst = src, where an integer in SBUF gives the place of `dst` in its partitions."""
    src = tile(src, "src")
    if dtype is not None and as_dtype(dtype) not in (src.element, dst.element):
        src = elements.copied(src, dtype)
    spans = void(mask, dst.shape, "tensor_copy_dynamic_dst")
    if not nothing(spans):
        nisa.tensor_copy(dst.write(spans), operand(src, spans, dst.shape), engine=engine)


def tensor_copy_predicated(*, src, dst, predicate, reverse_pred=False, mask=None, dtype=None):
    """dst = src where the predicate is not zero."""
    spans = void(mask, dst.shape, "tensor_copy_predicated")
    if not nothing(spans):
        source = operand(src, spans, dst.shape)
        pred = operand(bytes_of(predicate), spans, dst.shape)
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


def tensor_scalar(
    data,
    op0,
    operand0,
    reverse0=False,
    op1=None,
    operand1=None,
    reverse1=False,
    *,
    dtype=None,
    mask=None,
    engine=engine.unknown,
):
    """(data op0 operand0) op1 operand1; operands are numbers or one value for each partition."""
    data = tile(data)

    def issue(dst: Any, spans: Any) -> None:
        second = None if op1 is None else operator_name(op1)
        nisa.tensor_scalar(
            dst,
            operand(data, spans, data.shape),
            operator_name(op0),
            _wide(operand0, spans),
            reverse0,
            second,
            _wide(operand1, spans),
            reverse1,
            engine,
        )

    return masked(data.shape, dtype or data.element, mask, issue)


def _wide(value: Any, spans: Any) -> Any:
    """A column operand as float32 (integers stay): what the engine broadcasts."""
    if isinstance(value, Tensor) and value.element.kind == "float" and value.element != float32:
        made = memory.ndarray((value.shape[0], 1), float32, memory.sbuf)
        nisa.tensor_copy(made, column(value, None))
        return made if spans is None else made[spans[0][0] : spans[0][1], :]
    return column(value, spans)


def scalar_tensor_tensor(
    *, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False, dtype=None, mask=None
):
    """(data op0 operand0) op1 operand1, the second operand being a tile."""
    data, second = tile(data), tile(operand1, "operand1")

    def issue(dst: Any, spans: Any) -> None:
        nisa.scalar_tensor_tensor(
            dst,
            operand(data, spans, data.shape),
            operator_name(op0),
            _wide(operand0, spans),
            operator_name(op1),
            operand(second, spans, data.shape),
            reverse0,
            reverse1,
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
        if nothing(spans):
            return
        cut = (
            data.read(spans).permute((*kept, *axes))
            if axes[-1] != data.ndim - 1 or axes != list(range(axes[0], data.ndim))
            else data.read(spans)
        )
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


def tensor_scalar_reduce(
    *, data, op0, operand0, reduce_op, reduce_res, reverse0=False, dtype=None, mask=None
):
    """data op0 operand0, and its reduction along the free dimensions in `reduce_res`."""
    data = tile(data)

    def issue(dst: Any, spans: Any) -> None:
        nisa.tensor_scalar_reduce(
            dst,
            operand(data, spans, data.shape),
            operator_name(op0),
            _wide(operand0, spans),
            operator_name(reduce_op),
            result(reduce_res, spans),
            reverse0,
        )

    made = masked(data.shape, dtype or data.element, mask, issue)
    made.settle()
    return made


def tensor_scalar_cumulative(
    *, src, dst, op0, op1, imm0, imm1=None, reduce_cmd=reduce_cmd.reset_reduce
):
    """dst[i] = running op1 of (src[i] op0 imm0), starting as `reduce_cmd` says."""
    current().flush()
    # The older API takes a start value with every command, though only load_reduce uses it.
    start = _wide(imm1, None) if reduce_cmd.name == "load_reduce" else None
    nisa.tensor_scalar_cumulative(
        dst.write(),
        operand(tile(src)),
        operator_name(op0),
        operator_name(op1),
        _wide(imm0, None),
        start,
        reduce_cmd,
    )


def tensor_tensor_scan(
    data0, data1, initial, op0, op1, reverse0=False, reverse1=False, *, dtype=None, mask=None
):
    """r[i] = (r[i-1] op0 data0[i]) op1 data1[i] along the free dimension."""
    data0, data1 = tile(data0, "data0"), tile(data1, "data1")

    def issue(dst: Any, spans: Any) -> None:
        nisa.tensor_tensor_scan(
            dst,
            operand(data0, spans, data0.shape),
            operand(data1, spans, data0.shape),
            _wide(initial, spans),
            operator_name(op0),
            operator_name(op1),
            reverse0,
            reverse1,
        )

    return masked(data0.shape, dtype or elements.promoted(data0, data1), mask, issue)


def select_reduce(
    *,
    dst,
    predicate,
    on_true,
    on_false,
    reduce_res=None,
    reduce_cmd=reduce_cmd.idle,
    reduce_op="maximum",
    reverse_pred=False,
    mask=None,
    dtype=None,
):
    """dst = predicate ? on_true : on_false, with an optional reduction."""
    spans = void(mask, dst.shape, "select_reduce")
    if not nothing(spans):
        source = operand(on_true, spans, dst.shape)
        pred = operand(bytes_of(predicate), spans, dst.shape)
        nisa.select_reduce(
            dst.write(spans),
            pred,
            source,
            column(on_false, spans),
            result(reduce_res, spans),
            reduce_cmd,
            operator_name(reduce_op),
            reverse_pred,
        )


def range_select(
    *,
    on_true_tile,
    comp_op0,
    comp_op1,
    bound0,
    bound1,
    reduce_cmd=reduce_cmd.idle,
    reduce_res=None,
    reduce_op="maximum",
    range_start=0,
    on_false_value=LOWEST,
    mask=None,
    dtype=None,
):
    """on_true_tile where its position lies between the bounds of its partition."""
    data, command = tile(on_true_tile, "on_true_tile"), reduce_cmd

    def issue(dst: Any, spans: Any) -> None:
        nisa.range_select(
            dst,
            operand(data, spans, data.shape),
            operator_name(comp_op0),
            operator_name(comp_op1),
            column(bound0, spans),
            column(bound1, spans),
            command,
            result(reduce_res, spans),
            operator_name(reduce_op),
            range_start,
            float(on_false_value),
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
        if not nothing(spans):
            instruction(t.write((spans[0], (0, columns))), data.read(spans))

    return produce((data.shape[0], columns), dtype or data.element, run)


def nc_find_index8(*, data, vals, mask=None, dtype=None):
    """Positions of eight values in each partition, as uint32."""
    data, vals = tile(data), tile(vals, "vals")
    spans = masks.rectangle(mask, data.shape) or whole(data)

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
