"""All ops of the graph, one class each; `OPS` finds them by name."""

from opentrn.graph.ops import (
    attention,
    composite,
    contraction,
    elementwise,
    indexing,
    leaves,
    movement,
    ordering,
    reduction,
)
from opentrn.graph.ops.define import OPS, Op, Traffic, Type

FAMILIES = (
    leaves, elementwise, movement, indexing, contraction, reduction, ordering, composite, attention,
)

__all__ = ["FAMILIES", "OPS", "Op", "Traffic", "Type"]
