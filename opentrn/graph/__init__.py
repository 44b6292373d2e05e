"""Tensor programs with StableHLO meaning, and how programs of other frameworks become them."""

from opentrn.graph.build import Builder, g
from opentrn.graph.data import Data
from opentrn.graph.evaluate import evaluate, run
from opentrn.graph.ir import Graph, Value, make, remake, topological
from opentrn.graph.ops import OPS, Op, Traffic, Type

__all__ = [
    "OPS", "Builder", "Data", "Graph", "Op", "Traffic", "Type", "Value", "evaluate", "g", "make",
    "remake", "run", "topological",
]
