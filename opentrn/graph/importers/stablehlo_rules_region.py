"""Rules for ops with regions and calls: reductions, scatters, sorts, loops, branches, custom calls.

A region of a known form becomes the op that has it built in (`reduce`, `sort`, …), which has a
kernel more often; any other goes along as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.graph import carriers
from opentrn.graph.build import Builder
from opentrn.graph.importers.stablehlo_call import Call, Made, Rule, rule
from opentrn.graph.importers.stablehlo_mlir import pairs
from opentrn.graph.ir import Region, Value, inline, region_input, remake, topological
from opentrn.graph.ops.define import Type
from opentrn.graph.ops.elementwise import Elementwise
from opentrn.graph.ops.reduction import COMBINE, identity
from opentrn.graph.straighten import trips

Numbers = ("float", "int", "uint")


def kind_of(region: Region) -> str:
    """The name of the op a region of two scalars applies to them, "" for any other region."""
    out = region.outputs[0]
    if len(region.outputs) != 1 or len(region.inputs) != 2 or len(out.args) != 2:
        return ""
    return out.op if set(out.args) == set(region.inputs) and len(region) == 3 else ""


def reduction_of(region: Region) -> str:
    """The `kind` of `reduce` that a region is, "" for any other."""
    kind = kind_of(region)
    dtype = region.outputs[0].dtype
    if dtype.kind == "bool":
        kind = {"add": "or", "multiply": "and"}.get(kind, kind)
        return kind if kind in COMBINE else ""
    if dtype.kind == "complex":
        return kind if kind in ("add", "multiply") else ""
    return kind if kind in ("add", "multiply", "maximum", "minimum") else ""


def begins_with_nothing(init: Value, kind: str) -> bool:
    """Whether a reduction's first value is the one that changes nothing."""
    while init.op in ("broadcast_in_dim", "reshape"):
        init = init.args[0]
    if init.op != "constant" or init.attrs.data.array is None or init.shape:
        return False
    number = carriers.enter(init.attrs.data.numbers(), init.dtype)
    return bool(number == identity(kind, init.dtype))


def picks(body: Region) -> str:
    """"GT" or "LT" for the region with which JAX finds the place of the largest or least element:
    of equals the first, and NaN before all; "" for any other region."""
    if len(body.inputs) != 4 or body.takes[:2] != body.takes[2:]:
        return ""
    value, index, best, place = body.inputs
    g = Builder()
    if value.dtype.kind not in Numbers or index.dtype.kind not in ("int", "uint"):
        return ""
    for direction in ("GT", "LT"):
        better = g.or_(g.compare(value, best, direction), g.compare(value, value, "NE"))
        first = g.and_(g.compare(value, best, "EQ"), g.compare(index, place, "LT"))
        wanted = (g.select(better, value, best),
                  g.select(g.or_(better, first), index, place))
        if body.outputs == wanted:
            return direction
    return ""


def _place_of_extreme(call: Call, direction: str, axes: tuple[int, ...]) -> list[Value] | None:
    """The extreme along one axis and where it is, if the second operand counts along the axis."""
    x, index = call.args[:2]
    if len(axes) != 1 or not _counts(index, axes[0]) or not x.shape[axes[0]]:
        return None
    kind = "maximum" if direction == "GT" else "minimum"
    if not (begins_with_nothing(call.args[2], kind) and _is_zero(call.args[3])):
        return None
    if direction == "LT" and x.dtype.kind != "float":
        return None  # -x of the least integer is itself
    turned = x if direction == "GT" else call.g.negate(x)
    return [call.g.reduce(x, kind=kind, dimensions=axes),
            call.g.argmax(turned, axes[0], index.dtype)]


def _is_zero(x: Value) -> bool:
    return x.op == "constant" and not x.attrs.data.numbers().any()


@rule("stablehlo.reduce")
def reduce(call: Call) -> Made:
    """A reduction over axes."""
    (body,), captured = call.regions()
    axes = call.attr("dimensions")
    direction = picks(body) if len(call.args) == 4 and not captured else ""
    found = _place_of_extreme(call, direction, axes) if direction else None
    if found is not None:
        return found
    kind = reduction_of(body) if len(call.args) == 2 and not captured else ""
    if not kind:
        made = call.g.reduce_with(*call.args, *captured, dimensions=axes, body=body)
        return call.parts(made)
    operand, init = call.args
    made = call.g.reduce(operand, kind=kind, dimensions=axes)
    if begins_with_nothing(init, kind):
        return made
    return getattr(call.g, kind + "_")(call.g.broadcast(init, made.shape), made)


@rule("stablehlo.reduce_window")
def reduce_window(call: Call) -> Made:
    """A reduction under a sliding window."""
    (body,), captured = call.regions()
    window = call.attr("window_dimensions")
    ones = (1,) * len(window)
    strides, base, dilation = (
        call.attr(name) or ones for name in ("window_strides", "base_dilations",
                                             "window_dilations"))
    padding = pairs(call.attr("padding"), len(window))
    kind = reduction_of(body) if len(call.args) == 2 and not captured else ""
    if kind and base == ones and begins_with_nothing(call.args[1], kind):
        x = call.args[0]
        running = running_axis(x, window, padding) if dilation == strides == ones else None
        if running is not None and not _rounds(x, kind):
            return running_total(call.g, x, kind, *running)
        inside = min((p for both in padding for p in both), default=0) >= 0
        if running is None and inside and kind in ("add", "maximum", "minimum"):
            return call.g.reduce_window(x, kind, window, strides, padding, dilation)
    made = call.g.reduce_window_with(
        *call.args, *captured, window=window, strides=strides, base_dilation=base,
        dilation=dilation, padding=padding, body=body)
    return call.parts(made)


def running_axis(x: Value, window: tuple[int, ...],
                 padding: tuple[tuple[int, int], ...]) -> tuple[int, bool] | None:
    """(axis, whether it runs from the end) of a window as long as one axis, padded on one side by
    all but one, as frameworks write cumsum and its kin; None for any other window."""
    axes = [a for a, n in enumerate(window) if n != 1]
    if len(axes) != 1 or x.dtype.kind not in Numbers:
        return None
    axis = axes[0]
    size = x.shape[axis]
    if window[axis] != size or any(p != (0, 0) for a, p in enumerate(padding) if a != axis):
        return None
    ends = {(size - 1, 0): False, (0, size - 1): True}
    return (axis, ends[padding[axis]]) if padding[axis] in ends else None


def _rounds(x: Value, kind: str) -> bool:
    """Whether each step of a running total is rounded to fewer digits than it is computed in."""
    return kind in ("add", "multiply") and x.dtype.kind == "float" and x.dtype.bits < 32


def running_total(g: Builder, x: Value, kind: str, axis: int, back: bool) -> Value:
    """`cumulative`, from the other end if `back`."""
    if not back:
        return g.cumulative(x, kind, axis)
    return g.reverse(g.cumulative(g.reverse(x, axis), kind, axis), axis)


@rule("stablehlo.map")
def map_(call: Call) -> Value:
    """A region of scalars applied to each element."""
    (body,), captured = call.regions()
    return spread(call, body, [*call.args, *(call.g.broadcast(c, call.result.shape)
                                             for c in captured)])[0]


def spread(call: Call, region: Region, args: list[Value]) -> list[Value]:
    """A region of scalars on whole arrays."""
    shape = args[0].shape if args else call.result.shape
    held = dict(zip(region.inputs, args, strict=True))
    for value in region:
        if value.op == "constant":
            held[value] = call.g.broadcast(value, shape)
        elif isinstance(value.attrs, Elementwise):
            held[value] = remake(value, tuple(held[a] for a in value.args))
        elif value.op != "input":
            raise call.refuse(f"its region holds {value.op}, which is not of single elements")
    return [held[v] for v in region.outputs]


@rule("stablehlo.scatter")
def scatter(call: Call) -> Made:
    """Windows combined in at places of indices."""
    from jaxlib.mlir.dialects import stablehlo
    at = stablehlo.ScatterDimensionNumbers(call.raw("scatter_dimension_numbers"))
    (body,), captured = call.regions()
    where = {
        "update_window_dims": at.update_window_dims,
        "inserted_window_dims": at.inserted_window_dims,
        "scatter_dims": at.scattered_dims_to_operand_dims,
        "index_vector_dim": at.index_vector_dim,
        "operand_batching_dims": at.input_batching_dims,
        "indices_batching_dims": at.scatter_indices_batching_dims,
    }
    count = len(call.args) // 2
    alone = [] if captured else apart(body, count)
    if not alone:
        return call.parts(call.g.scatter_with(*call.args, *captured, body=body, **where))
    indices = call.args[count]
    return [_scattered(call, call.args[n], indices, call.args[count + 1 + n], each, where)
            for n, each in enumerate(alone)]


def apart(body: Region, count: int) -> list[Region]:
    """The regions of two scalars for each of `count` operands, where a scatter's region combines
    each of them with its own update alone; else nothing."""
    found = []
    for n, output in enumerate(body.outputs):
        pair = (body.inputs[n], body.inputs[count + n])
        own = [region_input(i, v.type) for i, v in enumerate(pair)]
        inner = dict(zip(pair, own, strict=True))
        if any(v.op == "input" and v not in pair for v in topological((output,))):
            return []
        found.append(Region(own, inline(body.with_outputs([output]),
                                        [inner.get(v, v) for v in body.inputs])))
    return found


def _scattered(call: Call, x: Value, indices: Value, updates: Value, body: Region,
               where: dict[str, Any]) -> Value:
    """One operand with its updates combined in."""
    kind = "set" if body.outputs == body.inputs[1:2] else kind_of(body)
    fits = x.dtype.kind in Numbers or kind == "set"
    if kind in ("set", "add", "multiply", "maximum", "minimum") and fits:
        return call.g.scatter(x, indices, updates, kind=kind, **where)
    return call.parts(call.g.scatter_with(x, indices, updates, body=body, **where))[0]


@rule("stablehlo.select_and_scatter")
def select_and_scatter(call: Call) -> Value:
    """The gradient of a pooling window."""
    (select, combine), captured = call.regions()
    if captured:
        raise call.refuse("a region reads values from outside")
    rank = call.args[0].rank
    ones = (1,) * rank
    return call.g.select_and_scatter(
        *call.args, call.attr("window_dimensions") or ones, call.attr("window_strides") or ones,
        pairs(call.attr("padding"), rank), select, combine)


# ------------------------------------------------------------------------------------------- sorts


def _as_jax_sorts(g: Builder, x: Value) -> Value:
    """A float with one zero and one NaN, as JAX compares them."""
    zero, nan = g.full((), 0.0, x.dtype), g.full((), float("nan"), x.dtype)
    one = g.select(g.compare(x, zero, "EQ"), zero, x)
    return g.select(g.compare(x, x, "NE"), nan, one)


def _comparators(kind: Type, direction: str) -> list[Callable[[Value, Value], Value]]:
    """The forms in which frameworks write "a comes before b" of one key."""
    g = Builder()

    def plain(a: Value, b: Value) -> Value:
        return g.compare(a, b, direction)

    def total(a: Value, b: Value) -> Value:
        return g.compare_total_order(_as_jax_sorts(g, a), _as_jax_sorts(g, b), direction)
    return [plain, total] if kind.dtype.kind == "float" else [plain]


def falls(comparator: Region) -> bool | None:
    """Whether a comparator orders by its first key alone, falling (True) or rising (False)."""
    key = comparator.takes[0]
    if key.dtype.kind not in Numbers:
        return None
    for direction in ("LT", "GT"):
        for form in _comparators(key, direction):
            wanted = form(*comparator.inputs[:2])
            if comparator.outputs == (wanted,):
                return direction == "GT"
    return None


@rule("stablehlo.sort")
def sort(call: Call) -> Made:
    """Elements in order; with places, if those are what goes along."""
    (comparator,), captured = call.regions()
    axis = call.attr("dimension", -1) % max(call.args[0].rank, 1)
    falling = falls(comparator) if not captured else None
    keys = call.args[0]
    if falling is not None and len(call.args) == 1:
        return call.g.sort(keys, axis, falling)
    if falling is not None and len(call.args) == 2 and _counts(call.args[1], axis):
        return [call.g.sort(keys, axis, falling),
                call.g.cast(call.g.sort(keys, axis, falling, "indices"), call.args[1].dtype)]
    made = call.g.sort_with(*call.args, *captured, dimension=axis, comparator=comparator,
                            results=len(call.args))
    return call.parts(made)


def _counts(x: Value, axis: int) -> bool:
    """Whether a value counts along an axis."""
    return x.op == "iota" and x.attrs.dimension == axis and x.dtype.kind in ("int", "uint")


# -------------------------------------------------------------------------------- loops, branches


@rule("stablehlo.while")
def while_(call: Call) -> list[Value]:
    """A loop, which stays one."""
    (cond, body), captured = call.regions()
    made = call.g.while_(*call.args, *captured, cond=cond, body=body,
                         trips=trips(cond, body, (*call.args, *captured)))
    return call.parts(made)


@rule("chlo.scan")
def scan(call: Call) -> list[Value]:
    """A region along one axis that hands values on: a loop as long as the axis."""
    (body,), captured = call.regions()
    if captured:
        raise call.refuse("its region reads values from outside")
    count, g, axis = call.attr("operandSegmentSizes")[0], call.g, call.attr("dimension")
    rows, inits = call.args[:count], call.args[count:]
    length = rows[0].shape[axis] if rows else call.attr("scan_dim_size", 0)
    made = [g.full(t.shape, 0, t.dtype) for t in call.results[: len(call.results) - len(inits)]
            if t is not None]  # fmt: skip
    first = [g.constant(np.int32(0)), *made, *inits, *rows]
    own = [region_input(n, value.type) for n, value in enumerate(first)]
    turn, outputs, carries = own[0], own[1 : 1 + len(made)], own[1 + len(made) : -count or None]
    place = g.subtract(g.full((), length - 1, "int32"), turn) if call.attr("is_reverse") else turn
    given = [_row(g, x, axis, place) for x in own[len(own) - count :]]
    found = inline(body, [*given, *carries])
    placed = [_with_row(g, x, y, axis, place) for x, y in zip(outputs, found, strict=False)]
    onward = [g.add(turn, g.full((), 1, "int32")), *placed, *found[len(made) :],
              *own[len(own) - count :]]  # fmt: skip
    cond = Region(own, [g.compare(turn, g.full((), length, "int32"), "LT")])
    loop = g.while_(*first, cond=cond, body=Region(own, onward), trips=length)
    return [g.get_tuple_element(loop, 1 + n) for n in range(len(call.results))]


def _starts(g: Builder, x: Value, axis: int, place: Value) -> list[Value]:
    return [place if n == axis else g.constant(np.int32(0)) for n in range(x.rank)]


def _row(g: Builder, x: Value, axis: int, place: Value) -> Value:
    """What lies at a place of an axis, without the axis."""
    sizes = tuple(1 if n == axis else size for n, size in enumerate(x.shape))
    row = g.dynamic_slice(x, *_starts(g, x, axis, place), sizes=sizes)
    return g.reshape(row, (*x.shape[:axis], *x.shape[axis + 1 :]))


def _with_row(g: Builder, x: Value, row: Value, axis: int, place: Value) -> Value:
    """The array with another row at a place of an axis."""
    shape = tuple(1 if n == axis else size for n, size in enumerate(x.shape))
    return g.dynamic_update_slice(x, g.reshape(row, shape), *_starts(g, x, axis, place))


@rule("stablehlo.if")
def if_(call: Call) -> list[Value]:
    """One of two branches."""
    (yes, no), captured = call.regions()
    return call.parts(call.g.if_(call.args[0], *captured, true_branch=yes, false_branch=no))


@rule("stablehlo.case")
def case(call: Call) -> list[Value]:
    """One of several branches."""
    regions, captured = call.regions()
    return call.parts(call.g.case(call.args[0], *captured, branches=tuple(regions)))


# ------------------------------------------------------------------------------------------- calls


@rule("func.call")
def call_(call: Call) -> Made:
    """A function, in its place."""
    return call.importer.called(call.attr("callee"), call.args, call.where)


@rule("stablehlo.composite")
def composite(call: Call) -> Made:
    """What a composite is said to stand for."""
    return call.importer.called(call.attr("decomposition"), call.args, call.where)


CUSTOM: dict[str, Rule] = {}


@rule("stablehlo.custom_call")
def custom_call(call: Call) -> Made:
    """A call of something outside StableHLO: by the importer's table, refused if it has no rule."""
    known = call.importer.custom_calls
    return known[call.attr("call_target_name")](call)


def custom(*names: str) -> Callable[[Rule], Rule]:
    """Enter a function as the rule of custom calls of these targets."""
    def enter(function: Rule) -> Rule:
        for name in names:
            CUSTOM[name] = function
        return function
    return enter


@custom("mhlo.topk")
def mhlo_topk(call: Call) -> list[Value]:
    """As chlo.top_k."""
    k = call.results[0].shape[-1]
    return [call.g.top_k(call.args[0], k, part) for part in ("values", "indices")]


@custom("mhlo.erf")
def mhlo_erf(call: Call) -> Value:
    """As chlo.erf."""
    return call.g.erf(call.args[0])
