"""How programs of other frameworks become graphs; each framework is loaded only when used."""

from opentrn.graph.importers.missing import near_op
from opentrn.graph.importers.onnx import from_onnx
from opentrn.graph.importers.onnx_call import RULES as ONNX_RULES
from opentrn.graph.importers.stablehlo import from_stablehlo
from opentrn.graph.importers.stablehlo_call import RULES as STABLEHLO_RULES
from opentrn.graph.importers.stablehlo_call import Call as StablehloCall
from opentrn.graph.importers.torch import Importer as TorchImporter
from opentrn.graph.importers.torch import exported_torch, from_torch, op_name, where_of
from opentrn.graph.importers.torch_fx import Draw, FxImporter, Traced, from_fx
from opentrn.graph.importers.torch_rules import RULES as TORCH_RULES
from opentrn.graph.importers.torch_rules import TorchRule
from opentrn.graph.importers.torch_types import BYTES, torch_dtype

__all__ = [
    "BYTES",
    "ONNX_RULES",
    "STABLEHLO_RULES",
    "TORCH_RULES",
    "Draw",
    "FxImporter",
    "StablehloCall",
    "Traced",
    "TorchImporter",
    "TorchRule",
    "exported_torch",
    "from_fx",
    "from_onnx",
    "from_stablehlo",
    "from_torch",
    "near_op",
    "op_name",
    "torch_dtype",
    "where_of",
]
