"""Tensor programs with StableHLO meaning, and how programs of other frameworks become them."""

from opentrn.graph import carriers
from opentrn.graph.build import Builder, g
from opentrn.graph.data import Data
from opentrn.graph.evaluate import evaluate, run
from opentrn.graph.importers import (
    BYTES,
    ONNX_RULES,
    STABLEHLO_RULES,
    TORCH_RULES,
    Draw,
    FxImporter,
    StablehloCall,
    TorchImporter,
    TorchRule,
    Traced,
    exported_torch,
    from_fx,
    from_onnx,
    from_stablehlo,
    from_torch,
    near_op,
    op_name,
    torch_dtype,
    where_of,
)
from opentrn.graph.ir import Graph, Region, Value, inline, make, remake, topological
from opentrn.graph.ops import OPS, Op, Traffic, TupleType, Type
from opentrn.graph.ops.composite import Composite
from opentrn.graph.ops.define import Wrong, count, same_dtype, stream
from opentrn.graph.ops.elementwise import Elementwise
from opentrn.graph.ops.foreign import Callee
from opentrn.graph.recognise import ATTENTION, RECOGNISE
from opentrn.graph.rules import (
    Note,
    Pass,
    Pattern,
    PatternBuilder,
    Rule,
    no,
    prove,
    random_array,
    rewrite,
    splat_of,
)
from opentrn.graph.simplify import CLEAN, decompose, fold
from opentrn.graph.straighten import straighten
from opentrn.graph.text import constants, read, write
from opentrn.graph.types import graph_dtype

__all__ = [
    "ATTENTION",
    "Builder",
    "CLEAN",
    "Callee",
    "Composite",
    "Data",
    "Draw",
    "Elementwise",
    "FxImporter",
    "Graph",
    "Note",
    "ONNX_RULES",
    "OPS",
    "Op",
    "Pass",
    "Pattern",
    "PatternBuilder",
    "RECOGNISE",
    "Region",
    "Rule",
    "STABLEHLO_RULES",
    "StablehloCall",
    "BYTES",
    "TORCH_RULES",
    "TorchRule",
    "Traced",
    "Traffic",
    "TupleType",
    "Type",
    "Value",
    "Wrong",
    "carriers",
    "constants",
    "count",
    "decompose",
    "evaluate",
    "TorchImporter",
    "exported_torch",
    "fold",
    "from_fx",
    "from_onnx",
    "from_stablehlo",
    "from_torch",
    "g",
    "graph_dtype",
    "inline",
    "make",
    "no",
    "near_op",
    "op_name",
    "torch_dtype",
    "prove",
    "random_array",
    "read",
    "remake",
    "rewrite",
    "run",
    "same_dtype",
    "splat_of",
    "straighten",
    "stream",
    "topological",
    "where_of",
    "write",
]
