"""How programs of other frameworks become graphs; each framework is loaded only when used."""

from opentrn.graph.importers.torch import from_torch

__all__ = ["from_torch"]
