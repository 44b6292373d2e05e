"""Graph to executable by named passes, checked before and after."""

from opentrn.compiler.outline import Outline, outline
from opentrn.compiler.pipeline import PIPELINE, Stage, State, compile, compile_graph
from opentrn.compiler.place import place_hbm
from opentrn.compiler.why import explain_stages, why

__all__ = ["Outline", "PIPELINE", "Stage", "State", "compile", "compile_graph", "explain_stages",
           "outline", "place_hbm", "why"]  # fmt: skip
