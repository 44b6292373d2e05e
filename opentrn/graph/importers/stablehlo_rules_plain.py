"""Rules for StableHLO ops that are graph ops of one name: element by element, and layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from opentrn.base import NotBuiltError
from opentrn.graph.evaluate import evaluate
from opentrn.graph.importers.stablehlo_call import Call, rule
from opentrn.graph.ir import Graph, Value, make, topological
from opentrn.graph.ops.define import OPS

POINTWISE = (
    "abs", "add", "and", "atan2", "cbrt", "ceil", "complex", "cosine", "count_leading_zeros",
    "divide", "exponential", "exponential_minus_one", "floor", "imag", "is_finite", "log",
    "log_plus_one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt",
    "power", "real", "remainder", "round_nearest_afz", "round_nearest_even", "rsqrt", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sine", "sqrt", "subtract", "tan",
    "tanh", "xor",
)
_WITHOUT_ATTRIBUTES = {f"{dialect}.{name}": OPS[name]() for dialect in ("stablehlo", "chlo", "mhlo")
                       for name in (*POINTWISE, "erf")}


@rule(*(f"stablehlo.{name}" for name in POINTWISE), "chlo.erf", "chlo.tan", "mhlo.erf")
def pointwise(call: Call) -> Value:
    """The graph op of the same name and meaning."""
    return make(_WITHOUT_ATTRIBUTES[call.op.name], tuple(call.args), call.where)


@rule("stablehlo.constant")
def constant_(call: Call) -> Value:
    """The array; one number everywhere is one number, repeated."""
    return call.importer.constant(call.op, call.result, call.g)


@rule("stablehlo.convert")
def convert(call: Call) -> Value:
    """The same numbers in the result's dtype."""
    return call.g.cast(call.args[0], call.result.dtype)


@rule("stablehlo.bitcast_convert")
def bitcast_convert(call: Call) -> Value:
    """The same bits in the result's dtype."""
    return call.g.bitcast_convert(call.args[0], call.result.dtype)


@rule("stablehlo.reduce_precision")
def reduce_precision(call: Call) -> Value:
    """Fewer exponent and mantissa bits."""
    return call.g.reduce_precision(call.args[0], call.attr("exponent_bits"),
                                   call.attr("mantissa_bits"))


@rule("stablehlo.compare")
def compare(call: Call) -> Value:
    """A comparison, in the order of numbers or in IEEE 754's total order."""
    lhs, rhs = call.args
    direction = call.attr("comparison_direction")
    if call.attr("compare_type") == "TOTALORDER" and lhs.dtype.kind == "float":
        return call.g.compare_total_order(lhs, rhs, direction)
    return call.g.compare(lhs, rhs, direction)


@rule("stablehlo.select")
def select(call: Call) -> Value:
    """The choice; one scalar may choose for all elements."""
    pred, on_true, on_false = call.args
    return call.g.select(call.g.broadcast(pred, on_true.shape), on_true, on_false)


@rule("stablehlo.clamp")
def clamp(call: Call) -> Value:
    """The operand between two bounds, which may be scalars."""
    low, operand, high = call.args
    return call.g.clamp(call.g.broadcast(low, operand.shape), operand,
                        call.g.broadcast(high, operand.shape))


@rule("chlo.square")
def square(call: Call) -> Value:
    """x·x"""
    return call.args[0] * call.args[0]


@rule("chlo.conj")
def conj(call: Call) -> Value:
    """The complex conjugate; a real number is its own."""
    x = call.args[0]
    if x.dtype.kind != "complex":
        return x
    return call.g.complex(call.g.real(x), call.g.negate(call.g.imag(x)))


# ------------------------------------------------------------------------------------------ layout


@rule("stablehlo.iota", "stablehlo.dynamic_iota")
def iota(call: Call) -> Value:
    """Counting along an axis."""
    kind = call.result
    return call.g.iota(kind.shape, call.attr("iota_dimension"), kind.dtype)


@rule("stablehlo.reshape", "stablehlo.dynamic_reshape")
def reshape(call: Call) -> Value:
    """Another shape; the operand itself, where it has that shape (XLA wraps every argument)."""
    if call.args[0].shape == call.result.shape:
        return call.args[0]
    return call.g.reshape(call.args[0], call.result.shape)


@rule("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim")
def broadcast_in_dim(call: Call) -> Value:
    """Repeated along new axes; axes in another order are transposed first."""
    x, axes = call.args[0], tuple(call.attr("broadcast_dimensions"))
    if list(axes) != sorted(axes):
        order = tuple(int(i) for i in np.argsort(axes))
        x, axes = call.g.transpose(x, order), tuple(sorted(axes))
    return call.g.broadcast_in_dim(x, call.result.shape, axes)


@rule("stablehlo.broadcast")
def broadcast(call: Call) -> Value:
    """Repeated along new leading axes."""
    x, lead = call.args[0], len(call.attr("broadcast_sizes"))
    return call.g.broadcast_in_dim(x, call.result.shape, tuple(range(lead, lead + x.rank)))


@rule("stablehlo.transpose")
def transpose(call: Call) -> Value:
    """Another order of axes; the operand itself, where the order stays."""
    order = tuple(call.attr("permutation"))
    if order == tuple(range(len(order))):
        return call.args[0]
    return call.g.transpose(call.args[0], order)


@rule("stablehlo.reverse")
def reverse(call: Call) -> Value:
    """Back to front."""
    return call.g.reverse(call.args[0], call.attr("dimensions"))


@rule("stablehlo.concatenate")
def concatenate(call: Call) -> Value:
    """One after the other."""
    return call.g.concatenate(*call.args, dimension=call.attr("dimension"))


@rule("stablehlo.slice")
def slice_(call: Call) -> Value:
    """A part with fixed ends."""
    return call.g.slice(call.args[0], call.attr("start_indices"), call.attr("limit_indices"),
                        call.attr("strides"))


@rule("stablehlo.dynamic_slice")
def dynamic_slice(call: Call) -> Value:
    """A window of fixed size anywhere."""
    return call.g.dynamic_slice(*call.args, sizes=call.attr("slice_sizes"))


@rule("stablehlo.dynamic_update_slice")
def dynamic_update_slice(call: Call) -> Value:
    """A window written anywhere."""
    return call.g.dynamic_update_slice(*call.args)


@rule("stablehlo.pad")
def pad(call: Call) -> Value:
    """Filling around and between."""
    return call.g.pad(*call.args, low=call.attr("edge_padding_low"),
                      high=call.attr("edge_padding_high"), interior=call.attr("interior_padding"))


@rule("stablehlo.get_dimension_size")
def get_dimension_size(call: Call) -> Value:
    """A size, which is fixed here."""
    return call.g.constant(np.int32(call.args[0].shape[call.attr("dimension")]))


@rule("stablehlo.set_dimension_size")
def set_dimension_size(call: Call) -> Value:
    """The operand, where a size is set to what it is, as TensorFlow writes after each sort.

    Raises NotBuiltError `graph.dynamic_shape` for any other size."""
    x, axis = call.args[0], call.attr("dimension")
    size = int(known(call, call.args[1]).reshape(()))
    if size != x.shape[axis]:
        raise NotBuiltError(f"{size} of the {x.shape[axis]} elements of axis {axis} are kept as a "
                            "varying size", code="graph.dynamic_shape", at=call.where)
    return x


@rule("stablehlo.optimization_barrier", "mhlo.copy", "stablehlo.copy")
def as_it_is(call: Call) -> list[Value]:
    """The operands: values cannot be moved across what has no effects."""
    return call.args


@rule("stablehlo.tuple")
def tuple_(call: Call) -> list[Any]:
    """The operands as one."""
    return [call.args]


@rule("stablehlo.get_tuple_element")
def get_tuple_element(call: Call) -> list[Any]:
    """One of several."""
    return [call.args[0][call.attr("index")]]


@rule("stablehlo.after_all", "stablehlo.create_token")
def token(call: Call) -> list[None]:
    """An order between effects; graphs have none."""
    return [None]


# ------------------------------------------------------------- ops whose sizes are operands


def known(call: Call, x: Value) -> np.ndarray:
    """The numbers of an operand that must be known when the program is imported."""
    if any(v.op == "input" for v in topological([x])):
        raise call.refuse("a size depends on the inputs", "shapes are fixed in a graph")
    return evaluate(Graph([], [x]))[0]


@rule("stablehlo.dynamic_pad")
def dynamic_pad(call: Call) -> Value:
    """Padding of known sizes."""
    operand, value, *sizes = call.args
    low, high, interior = (known(call, s).tolist() for s in sizes)
    return call.g.pad(operand, value, low=low, high=high, interior=interior)


@rule("stablehlo.real_dynamic_slice")
def real_dynamic_slice(call: Call) -> Value:
    """A slice of known ends."""
    return call.g.slice(call.args[0], *(known(call, s).tolist() for s in call.args[1:]))
