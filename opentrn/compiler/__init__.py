"""Graph to executable by named passes, checked before and after."""

from opentrn.compiler.pipeline import PIPELINE, Stage, State, compile, compile_graph

__all__ = ["PIPELINE", "Stage", "State", "compile", "compile_graph"]
