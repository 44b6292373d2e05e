"""How programs of other frameworks become graphs; each framework is loaded only when used."""

from opentrn.graph.importers.torch import from_torch, where_of
from opentrn.graph.importers.torch_fx import Draw, Traced, from_fx
from opentrn.graph.importers.torch_rules import RULES

__all__ = ["RULES", "Draw", "Traced", "from_fx", "from_torch", "where_of"]
