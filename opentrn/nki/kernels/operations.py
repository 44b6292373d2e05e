"""The element-wise operations a chain may have, by the names of tensor programs (StableHLO)."""

from collections.abc import Callable

from opentrn.nki import language as nl
from opentrn.nki.kernels import integers, pointwise


def by_kind(on_floats: Callable, on_integers: Callable) -> Callable:
    """One operation on floats and another on integers."""

    def operation(operands, dtype):
        whole = pointwise.first_value(operands).kind in ("int", "uint")
        return (on_integers if whole else on_floats)(operands, dtype)

    return operation


OPERATIONS: dict[str, Callable] = {
    "add": pointwise.binary(nl.add, nl.logical_or),
    "subtract": pointwise.binary(nl.subtract),
    "multiply": pointwise.binary(nl.multiply, nl.logical_and),
    "divide": by_kind(pointwise.divide, integers.quotient),
    "maximum": pointwise.binary(nl.maximum, nl.logical_or),
    "minimum": pointwise.binary(nl.minimum, nl.logical_and),
    "power": pointwise.power,
    "remainder": by_kind(pointwise.remainder, integers.rest),
    "negate": pointwise.negate,
    "abs": pointwise.magnitude,
    "sign": pointwise.sign,
    "exponential": pointwise.activation(nl.exp),
    "exponential_minus_one": pointwise.exponential_minus_one,
    "log": pointwise.activation(nl.log),
    "log_plus_one": pointwise.log_plus_one,
    "sqrt": pointwise.activation(nl.sqrt),
    "rsqrt": pointwise.activation(nl.rsqrt),
    "tanh": pointwise.activation(nl.tanh),
    "logistic": pointwise.activation(nl.sigmoid),
    "sine": pointwise.sine,
    "cosine": pointwise.cosine,
    "tan": pointwise.tangent,
    "atan2": pointwise.atan2,
    "erf": pointwise.activation(nl.erf),
    "floor": pointwise.floor,
    "ceil": pointwise.ceil,
    "round_nearest_even": pointwise.round_even,
    "round_nearest_afz": pointwise.round_away,
    "cbrt": pointwise.cube_root,
    "reduce_precision": pointwise.reduce_precision,
    "is_finite": pointwise.is_finite,
    "convert": pointwise.convert,
    "compare_EQ": pointwise.compare(nl.equal),
    "compare_NE": pointwise.compare(nl.not_equal),
    "compare_GE": pointwise.compare(nl.greater_equal),
    "compare_GT": pointwise.compare(nl.greater),
    "compare_LE": pointwise.compare(nl.less_equal),
    "compare_LT": pointwise.compare(nl.less),
    "select": pointwise.select,
    "clamp": pointwise.clamp,
    "and": pointwise.bits(nl.bitwise_and, nl.logical_and),
    "or": pointwise.bits(nl.bitwise_or, nl.logical_or),
    "xor": pointwise.bits(nl.bitwise_xor, nl.logical_xor),
    "not": pointwise.opposite,
    **integers.WHOLE,
    "gelu": pointwise.activation(nl.gelu),
    "gelu_tanh": pointwise.activation(nl.gelu_apprx_tanh),
    "silu": pointwise.activation(nl.silu),
    "softplus": pointwise.activation(nl.softplus),
    "relu": pointwise.activation(nl.relu),
}

__all__ = ["OPERATIONS"]
