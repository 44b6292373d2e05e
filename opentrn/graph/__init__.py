"""Tensor programs with StableHLO meaning, and how programs of other frameworks become them."""

from opentrn.graph.build import Builder, g
from opentrn.graph.data import Data
from opentrn.graph.evaluate import evaluate, run
from opentrn.graph.importers import from_torch
from opentrn.graph.ir import Graph, Value, make, remake, topological
from opentrn.graph.ops import OPS, Op, Traffic, Type
from opentrn.graph.rules import Note, Pass, Rule, no, prove, random_array, rewrite, splat_of
from opentrn.graph.simplify import CLEAN, RECOGNISE, decompose, fold
from opentrn.graph.text import constants, read, write

__all__ = [
    "CLEAN", "OPS", "RECOGNISE", "Builder", "Data", "Graph", "Note", "Op", "Pass", "Rule",
    "Traffic", "Type", "Value", "decompose", "evaluate", "fold", "from_torch", "g", "make", "no",
    "constants", "prove", "random_array", "read", "remake", "rewrite", "run", "splat_of",
    "topological", "write",
]
