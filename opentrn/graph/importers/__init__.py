"""How programs of other frameworks become graphs; each framework is loaded only when used."""

from opentrn.graph.importers.torch import exported_torch, from_torch, op_name, where_of
from opentrn.graph.importers.torch_fx import Draw, FxImporter, Traced, from_fx
from opentrn.graph.importers.torch_rules import RULES as TORCH_RULES

__all__ = [
    "TORCH_RULES",
    "Draw",
    "FxImporter",
    "Traced",
    "exported_torch",
    "from_fx",
    "from_torch",
    "op_name",
    "where_of",
]
