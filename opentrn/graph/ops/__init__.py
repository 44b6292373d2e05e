"""All ops of the graph, one class each; `OPS` finds them by name."""

from opentrn.graph.ops import (
    attention,
    bits,
    combining,
    complexes,
    composite,
    contraction,
    control,
    elementwise,
    foreign,
    indexing,
    leaves,
    linear_algebra,
    movement,
    ordering,
    placement,
    random,
    reduction,
)
from opentrn.graph.ops.define import OPS, Op, Traffic, TupleType, Type

FAMILIES = (
    leaves, elementwise, bits, complexes, movement, indexing, contraction, reduction, ordering,
    combining, control, random, linear_algebra, composite, attention, foreign, placement,
)

__all__ = ["FAMILIES", "OPS", "Op", "Traffic", "TupleType", "Type"]
